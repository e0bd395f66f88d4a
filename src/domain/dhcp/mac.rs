//! Ethernet hardware addresses.

use std::fmt;
use std::str::FromStr;

/// Ethernet address of a station.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Broadcast address, which all stations accept.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// Zero address. An ARP request has this value in the field for the target's hardware address.
    pub const UNKNOWN: Self = Self([0; 6]);

    /// Whether the address is that of one station, not of a group.
    pub const fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().enumerate().try_for_each(|(at, octet)| {
            let colon = if at == 0 { "" } else { ":" };
            write!(f, "{colon}{octet:02x}")
        })
    }
}

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} must be a hardware address, such as 02:00:5e:10:00:01");
        let mut octets = [0; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            let part = parts.next().filter(|part| part.len() == 2 && !part.starts_with('+'));
            let value = part.and_then(|part| u8::from_str_radix(part, 16).ok());
            *octet = value.ok_or_else(wrong)?;
        }
        if parts.next().is_some() { Err(wrong()) } else { Ok(Self(octets)) }
    }
}
