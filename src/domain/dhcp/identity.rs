//! Who a lease's holder is to a DHCP server: hardware address, client identifier, host name.
//!
//! Servers know a client by one or the other, and a client that changes either loses its address
//! somewhere. Both are therefore derived, from what stays when a LoadBalancer is deleted and made
//! again: the cluster, the network, namespace and name. Invariant: the same in every process and
//! every version. The hash is cryptographic, because tenants choose names: nobody can find one that
//! takes over the address of another tenant's LoadBalancer.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use super::Mac;

/// What the hash is for, so that no other use of the same words comes to the same result.
const PURPOSE: &str = "harvester-guest-operator dhcp identity 1";
/// RFC 4361: what follows is an IAID and a DUID.
const TYPE_DUID: u8 = 255;
/// RFC 6355: the DUID is a UUID.
const DUID_UUID: [u8; 2] = [0, 4];
/// Octets that option 61 can carry, its type included.
const CLIENT_ID: std::ops::RangeInclusive<usize> = 2..=255;
/// Longest label of a DNS name.
const LABEL: usize = 63;

/// Option 61, its type octet included.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClientId(Vec<u8>);

impl ClientId {
    /// The octets.
    pub fn octets(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|octet| write!(f, "{octet:02x}"))
    }
}

/// The text is no client identifier.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a client identifier is 2 to 255 octets in hexadecimal")]
pub struct NoClientId;

impl FromStr for ClientId {
    type Err = NoClientId;

    fn from_str(text: &str) -> Result<Self, NoClientId> {
        let octet = |pair: &[u8]| {
            let digit = |c: u8| char::from(c).to_digit(16);
            let value = digit(*pair.first()?)? * 16 + digit(*pair.get(1)?)?;
            u8::try_from(value).ok()
        };
        let octets: Option<Vec<u8>> = text.as_bytes().chunks(2).map(octet).collect();
        octets.filter(|octets| CLIENT_ID.contains(&octets.len())).map(Self).ok_or(NoClientId)
    }
}

/// A lease's holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The source of its frames, and `chaddr`.
    pub mac: Mac,
    /// Option 61.
    pub client_id: ClientId,
    /// Option 12: at most 255 octets are sent, none if it is empty.
    pub hostname: String,
}

impl Identity {
    /// The holder for a LoadBalancer. `cluster` is what tells this cluster from all others: the
    /// UID of its Namespace kube-system; `network` is `namespace/name` of the network.
    pub fn derive(cluster: &str, network: &str, namespace: &str, name: &str) -> Self {
        let mut hash = Sha256::new();
        for part in [PURPOSE, cluster, network, namespace, name] {
            // With its length, so that parts cannot be cut in another way.
            hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(part);
        }
        let hash = hash.finalize();
        let mut mac = [0; 6];
        mac.copy_from_slice(&hash[..6]);
        // Locally administered, one station.
        mac[0] = (mac[0] & 0xfc) | 0x02;
        let mut client_id = vec![TYPE_DUID];
        client_id.extend(&hash[6..10]);
        client_id.extend(DUID_UUID);
        client_id.extend(&hash[16..32]);
        Self { mac: Mac(mac), client_id: ClientId(client_id), hostname: hostname(name) }
    }
}

/// A LoadBalancer's name as one label of a DNS name. Names of objects are lower-case letters,
/// digits, `-` and `.`, and begin with a letter or a digit.
fn hostname(name: &str) -> String {
    let label: String = name.chars().map(|c| if c == '.' { '-' } else { c }).take(LABEL).collect();
    label.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests;
