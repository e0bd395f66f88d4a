//! Name of a network's agent. The agent's Deployment and the agent's Lease have this name.
//!
//! Invariant: the chart's template `hgo.agent` renders the same name. A test compares the two
//! names.

use crate::object_fields::digest::sha256_hex;

/// Maximum length of the readable part of an agent's name, in characters. The readable part is
/// [`AGENT_PREFIX`] and the network. With a dash and the digest, a name has at most 54 characters,
/// so it fits into a DNS label (63).
const READABLE: usize = 45;
/// Length of the digest at the end of an agent's name, in characters.
const DIGITS: usize = 8;

/// Prefix of each agent's name.
pub const AGENT_PREFIX: &str = "hgo-lease-agent-";

/// Name of a network's agent, of its Deployment, and of its Lease in the operator's namespace.
/// `network`: `namespace/name` of the NetworkAttachmentDefinition. The name ends with a part of the
/// SHA-256 of `network`, so that the agents of two networks do not have the same name.
pub fn agent_name(network: &str) -> String {
    let plain = format!("{AGENT_PREFIX}{}", network.replace('/', "-"));
    let cut: String = plain.chars().take(READABLE).collect();
    let cut = cut.strip_suffix('-').unwrap_or(&cut);
    let cut = cut.strip_suffix('.').unwrap_or(cut);
    let digest = sha256_hex(network.as_bytes());
    format!("{cut}-{}", &digest[..DIGITS]).replace('.', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected name is the one that Helm renders.
    #[test]
    fn a_name_is_readable_and_its_own() {
        assert_eq!(agent_name("default/vlan100"), "hgo-lease-agent-default-vlan100-752faa03");
        assert_ne!(agent_name("a-b/c"), agent_name("a/b-c"));
        assert_ne!(agent_name("a/b.c"), agent_name("a/b-c"));
    }

    #[test]
    fn a_name_is_a_dns_label_whatever_the_network() {
        for network in
            [format!("{}/{}", "n".repeat(63), "d".repeat(253)), "a/b.c.d".into(), "a/b".into()]
        {
            let name = agent_name(&network);
            assert!(name.len() <= 63, "{name}");
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'));
            assert!(!name.starts_with('-') && !name.ends_with('-'), "{name}");
        }
    }
}
