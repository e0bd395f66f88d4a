//! Identity by which a DHCP server knows the holder of a lease: hardware address, client
//! identifier, host name. Invariants:
//!
//! * The derived identity of a LoadBalancer is the same in every process and every version, and
//!   also after the LoadBalancer is deleted and created again. It is derived only from the cluster,
//!   the network, and the LoadBalancer's namespace and name. Reason: some servers identify a client
//!   by the hardware address, others by the client identifier. A client that changes one of the two
//!   loses its address at some servers.
//! * The identity is derived by a cryptographic hash, because tenants choose names. With a weak
//!   hash, a tenant could find a name that gives the identity of another tenant's LoadBalancer, and
//!   could take over the address of that LoadBalancer.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use super::Mac;
use crate::object_fields::digest::hex;

/// First part of the input of the hash from which identities are derived. A change of this text
/// would change all derived identities.
const PURPOSE: &str = "harvester-guest-operator dhcp identity 1";
/// Type octet of a client identifier with an IAID and a DUID: RFC 4361.
const TYPE_DUID: u8 = 255;
/// Type of a DUID with a UUID: RFC 6355.
const DUID_UUID: [u8; 2] = [0, 4];
/// Valid lengths of a client identifier, in octets, with the type octet.
const CLIENT_ID: std::ops::RangeInclusive<usize> = 2..=255;
/// Maximum length of one label of a DNS name, in characters.
const LABEL: usize = 63;
/// Number of hexadecimal digits at the end of a host name that was too long and was cut. The digits
/// are from the identity's hash.
const TAIL: usize = 8;
/// Type octet of a client identifier with an Ethernet address: RFC 2132.
const TYPE_ETHERNET: u8 = 1;

/// Client identifier: the value of DHCP option 61, with the type octet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClientId(Vec<u8>);

impl ClientId {
    /// Value of option 61: the type octet, then the other octets of the identifier.
    pub fn octets(&self) -> &[u8] {
        &self.0
    }

    /// Client identifier made of the type octet for Ethernet and the hardware address `mac`.
    pub fn of_mac(mac: Mac) -> Self {
        Self([&[TYPE_ETHERNET][..], &mac.0].concat())
    }

    /// Client identifier of these octets. `None`: there are fewer than 2 or more than 255 octets.
    pub fn of(octets: &[u8]) -> Option<Self> {
        CLIENT_ID.contains(&octets.len()).then(|| Self(octets.to_vec()))
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl FromStr for ClientId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let octet = |pair: &[u8]| {
            let digit = |c: u8| char::from(c).to_digit(16);
            let value = digit(*pair.first()?)? * 16 + digit(*pair.get(1)?)?;
            u8::try_from(value).ok()
        };
        let octets: Option<Vec<u8>> = text.as_bytes().chunks(2).map(octet).collect();
        octets
            .and_then(|octets| Self::of(&octets))
            .ok_or("a client identifier is 2 to 255 octets in hexadecimal")
    }
}

/// Form of the client identifier that a client sends to DHCP servers: a DUID, the hardware address,
/// or no identifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientIdForm {
    /// A DUID (RFC 4361). Each client has its own.
    #[default]
    Duid,
    /// The hardware address, after its type octet. The DHCP server of Windows and several address
    /// managers find a client's reservation by this client identifier.
    Mac,
    /// No client identifier. Servers then recognise the client by its hardware address.
    None,
}

impl FromStr for ClientIdForm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "duid" => Ok(Self::Duid),
            "mac" => Ok(Self::Mac),
            "none" => Ok(Self::None),
            other => Err(format!(
                "{other:?} must be duid, mac or none: the client identifier that the DHCP server sees"
            )),
        }
    }
}

/// Identity of a DHCP client, by which servers recognise the holder of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIdentity {
    /// Hardware address: the source of the client's frames, and the field `chaddr` of its messages.
    pub mac: Mac,
    /// Client identifier, option 61. `None`: the client sends none.
    pub client_id: Option<ClientId>,
    /// Host name, option 12. Only the first 255 octets are sent. Empty: the client sends no host
    /// name.
    pub hostname: String,
}

impl ClientIdentity {
    /// Derives the identity for a LoadBalancer. `cluster`: UID of the cluster's Namespace
    /// kube-system. `network`: `namespace/name` of the network. `namespace`, `name`: those of the
    /// LoadBalancer.
    pub fn derive(cluster: &str, network: &str, namespace: &str, name: &str) -> Self {
        let mut hash = Sha256::new();
        for part in [PURPOSE, cluster, network, namespace, name] {
            // The length of each part is also hashed. Without it, the parts `a` and `bc` would give
            // the same octets as `ab` and `c`.
            hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(part);
        }
        let hash = hash.finalize();
        let mut mac = [0; 6];
        mac.copy_from_slice(&hash[..6]);
        // The address is marked as locally administered, and as that of one station.
        mac[0] = (mac[0] & 0xfc) | 0x02;
        let mut client_id = vec![TYPE_DUID];
        client_id.extend(&hash[6..10]);
        client_id.extend(DUID_UUID);
        client_id.extend(&hash[16..32]);
        let client_id = Some(ClientId(client_id));
        Self { mac: Mac(mac), client_id, hostname: hostname(name, &hash) }
    }

    /// Changes the client identifier to the form `form`. The client identifier of `self` must be
    /// the DUID that [`Self::derive`] has made, because the form `Duid` leaves it unchanged.
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

/// Makes one label of a DNS name from a LoadBalancer's name: a `.` becomes `-`. A name of more than
/// 63 characters is cut, and digits of `hash` replace its end. Without the digits, two names that
/// differ only at the end would give the same label. Precondition: the name begins with a
/// lower-case letter or a digit.
fn hostname(name: &str, hash: &[u8]) -> String {
    let label = |length| {
        let label = name.chars().map(|c| if c == '.' { '-' } else { c }).take(length);
        label.collect::<String>().trim_end_matches('-').to_owned()
    };
    if name.len() <= LABEL {
        return label(LABEL);
    }
    format!("{}-{}", label(LABEL - TAIL - 1), hex(&hash[..TAIL / 2]))
}

#[cfg(test)]
mod tests;
