//! A network of one's own: a new network namespace without a name, which goes with its last
//! process, however that ends.
//!
//! In it all of 10.210.0.0/16 and fd00:210::/64 is this host, and 10.211.0.0/16 drops every packet:
//! a pair of links whose far end has no address, without ARP, which could fail.

use std::process::Command;

const SETUP: &str = "
ip link set lo up
ip route add local 10.210.0.0/16 dev lo
ip -6 addr add fd00:210::1/64 dev lo nodad
ip -6 route add local fd00:210::/64 dev lo
ip link add hole type veth peer name far
ip link set hole arp off up
ip link set far up
ip addr add 10.211.0.1/16 dev hole
";

/// Error text for a namespace that cannot be made.
pub(crate) const NEEDS: &str =
    "a network namespace takes root, or the right to make user namespaces, and iproute2";

/// Command of this program in a namespace, after further shell commands. The caller adds arguments.
pub(crate) fn this_program(setup: &str) -> std::io::Result<Command> {
    let mut command = Command::new("unshare");
    command
        .args(["--net", "--map-root-user", "sh", "-ec", &format!("{SETUP}{setup}\nexec \"$@\"")])
        .arg("sh")
        .arg(std::env::current_exe()?);
    Ok(command)
}
