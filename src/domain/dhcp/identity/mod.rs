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
/// Digits by which longer names differ.
const TAIL: usize = 8;
/// RFC 2132: what follows is a hardware address of Ethernet.
const TYPE_ETHERNET: u8 = 1;

/// Option 61, its type octet included.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClientId(Vec<u8>);

impl ClientId {
    /// The octets.
    pub fn octets(&self) -> &[u8] {
        &self.0
    }

    /// The one that is made of a hardware address.
    pub fn of_mac(mac: Mac) -> Self {
        Self([&[TYPE_ETHERNET][..], &mac.0].concat())
    }

    /// A client identifier of these octets. `None`: it cannot be one.
    pub fn of(octets: &[u8]) -> Option<Self> {
        CLIENT_ID.contains(&octets.len()).then(|| Self(octets.to_vec()))
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
        octets.and_then(|octets| Self::of(&octets)).ok_or(NoClientId)
    }
}

/// Form of the client identifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientIdForm {
    /// A DUID of its own (RFC 4361), which no two clients share.
    #[default]
    Duid,
    /// The hardware address with its type: what Windows and several address managers key reservations by.
    Mac,
    /// None is sent: servers know the client by its hardware address.
    None,
}

/// The text is no form of a client identifier.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} must be duid, mac or none: the client identifier that the DHCP server sees")]
pub struct NoForm(String);

impl FromStr for ClientIdForm {
    type Err = NoForm;

    fn from_str(text: &str) -> Result<Self, NoForm> {
        match text {
            "duid" => Ok(Self::Duid),
            "mac" => Ok(Self::Mac),
            "none" => Ok(Self::None),
            other => Err(NoForm(other.to_owned())),
        }
    }
}

/// A lease's holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The source of its frames, and `chaddr`.
    pub mac: Mac,
    /// Option 61; none is sent without.
    pub client_id: Option<ClientId>,
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
        let client_id = Some(ClientId(client_id));
        Self { mac: Mac(mac), client_id, hostname: hostname(name, &hash) }
    }

    /// The same holder with a client identifier of another form. It is a derived one.
    #[must_use]
    pub fn with_form(mut self, form: ClientIdForm) -> Self {
        match form {
            ClientIdForm::Duid => {}
            ClientIdForm::Mac => self.client_id = Some(ClientId::of_mac(self.mac)),
            ClientIdForm::None => self.client_id = None,
        }
        self
    }
}

/// A LoadBalancer's name as one label of a DNS name. Names of objects are lower-case letters,
/// digits, `-` and `.`, and begin with a letter or a digit. A longer one ends in digits of the hash, because
/// what tells it from others may be at its end.
fn hostname(name: &str, hash: &[u8]) -> String {
    let label = |length| {
        let label = name.chars().map(|c| if c == '.' { '-' } else { c }).take(length);
        label.collect::<String>().trim_end_matches('-').to_owned()
    };
    if name.len() <= LABEL {
        return label(LABEL);
    }
    let digits = hash.iter().map(|octet| format!("{octet:02x}")).take(TAIL / 2).collect::<String>();
    format!("{}-{digits}", label(LABEL - TAIL - 1))
}

#[cfg(test)]
mod tests;
