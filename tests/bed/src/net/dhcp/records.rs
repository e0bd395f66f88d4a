//! Owns the readers of the servers' lease files, each in its own format.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};

use super::Kind;

/// An entry of a lease file: the last one about its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The address.
    pub address: Ipv4Addr,
    /// Hardware address of the client, in lower case with colons.
    pub mac: String,
    /// Client identifier in hexadecimal with its type. udhcpd does not store it.
    pub client_id: Option<String>,
    /// Host name that the client sent.
    pub hostname: String,
    /// Whether it is granted, and neither released nor declined.
    pub live: bool,
}

pub(super) fn read(kind: Kind, bytes: &[u8]) -> Result<Vec<Granted>> {
    let text = || std::str::from_utf8(bytes).context("a lease file that is no text");
    let entries = match kind {
        Kind::Dnsmasq => text()?.lines().map(dnsmasq).collect::<Option<Vec<_>>>(),
        Kind::Kea => text()?.lines().skip(1).map(kea).collect(),
        Kind::Isc => text()?.split("\nlease ").skip(1).map(isc).collect(),
        Kind::Udhcpd => return Ok(udhcpd(bytes)),
    };
    let entries = entries.with_context(|| format!("a lease file of another form: {bytes:?}"))?;
    // Kea and dhcpd append; the last entry of an address counts.
    let mut last: Vec<Granted> = Vec::new();
    for entry in entries {
        last.retain(|known| known.address != entry.address);
        last.push(entry);
    }
    Ok(last)
}

/// `expiry mac address name client-id`. dnsmasq removes released leases.
fn dnsmasq(line: &str) -> Option<Granted> {
    let words: Vec<&str> = line.split(' ').collect();
    let &[_, mac, address, name, id] = words.as_slice() else { return None };
    Some(Granted {
        address: address.parse().ok()?,
        mac: mac.to_owned(),
        client_id: (id != "*").then(|| id.replace(':', "")),
        hostname: name.replace('*', ""),
        live: true,
    })
}

/// `address,hwaddr,client_id,valid_lifetime,expire,subnet_id,fqdn_fwd,fqdn_rev,hostname,state,…`
fn kea(line: &str) -> Option<Granted> {
    let words: Vec<&str> = line.split(',').collect();
    Some(Granted {
        address: words.first()?.parse().ok()?,
        mac: (*words.get(1)?).to_owned(),
        client_id: Some(words.get(2)?.replace(':', "")).filter(|id| !id.is_empty()),
        hostname: (*words.get(8)?).to_owned(),
        // A released lease has a lifetime of 0, a declined one state 1.
        live: *words.get(3)? != "0" && *words.get(9)? == "0",
    })
}

/// `10.0.0.1 {` and statements, each ended by a semicolon.
fn isc(block: &str) -> Option<Granted> {
    let (address, statements) = block.split_once(" {")?;
    let statements = statements.split_once("\n}").map_or(statements, |(inside, _)| inside);
    let value = |name: &str| {
        let found = statements.lines().find_map(|line| line.trim().strip_prefix(name))?;
        Some(found.trim().trim_end_matches(';').to_owned())
    };
    Some(Granted {
        address: address.trim().parse().ok()?,
        mac: value("hardware ethernet ").unwrap_or_default(),
        client_id: value("uid ").map(|text| unescaped(text.trim_matches('"'))),
        hostname: value("client-hostname ").unwrap_or_default().replace('"', ""),
        live: value("binding state ").is_some_and(|state| state == "active"),
    })
}

/// Decodes octal escapes and printable characters, as dhcpd writes octets, to hexadecimal.
fn unescaped(text: &str) -> String {
    let mut octets = String::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let octal = (first == b'\\' && after.len() >= 3 && after[0].is_ascii_digit()).then(|| {
            after[..3].iter().fold(0, |octet: u32, digit| octet * 8 + u32::from(digit - b'0'))
        });
        let (octet, length) = match octal {
            Some(octet) => (octet, 3),
            None if first == b'\\' => (after.first().copied().unwrap_or(first).into(), 1),
            None => (first.into(), 0),
        };
        // Writing to a String cannot fail.
        let _ = write!(octets, "{octet:02x}");
        rest = &after[length.min(after.len())..];
    }
    octets
}

/// A time of 8 octets, then 36 octets per entry: remaining seconds, address, mac, padding to 16,
/// name.
fn udhcpd(bytes: &[u8]) -> Vec<Granted> {
    let entries = bytes.get(8..).unwrap_or_default().chunks_exact(36);
    entries
        .filter_map(|entry| {
            let left = u32::from_be_bytes(entry[0..4].try_into().ok()?);
            let address: [u8; 4] = entry[4..8].try_into().ok()?;
            let mac: Vec<String> =
                entry[8..14].iter().map(|octet| format!("{octet:02x}")).collect();
            let name = entry[14..34].split(|octet| *octet == 0).next().unwrap_or_default();
            Some(Granted {
                address: address.into(),
                mac: mac.join(":"),
                client_id: None,
                hostname: String::from_utf8_lossy(name).into_owned(),
                live: left > 0,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(kind: Kind, bytes: &[u8]) -> Granted {
        let [granted] = read(kind, bytes).unwrap().try_into().unwrap();
        granted
    }

    #[test]
    fn each_form_is_read_and_the_last_word_counts() {
        let expected = Granted {
            address: [10, 77, 0, 100].into(),
            mac: "02:00:00:00:00:01".to_owned(),
            client_id: Some("ff0001".to_owned()),
            hostname: "web".to_owned(),
            live: true,
        };
        let dnsmasq = b"1700000000 02:00:00:00:00:01 10.77.0.100 web ff:00:01\n";
        assert_eq!(one(Kind::Dnsmasq, dnsmasq), expected);
        let kea = b"address,hwaddr\n\
            10.77.0.100,02:00:00:00:00:01,ff:00:01,0,1,1,0,0,web,0,\n\
            10.77.0.100,02:00:00:00:00:01,ff:00:01,120,1,1,0,0,web,0,\n";
        assert_eq!(one(Kind::Kea, kea), expected);
        let isc =
            b"# c\nlease 10.77.0.100 {\n  binding state active;\n  next binding state free;\n\
            hardware ethernet 02:00:00:00:00:01;\n  uid \"\\377\\000\\001\";\n\
            client-hostname \"web\";\n}\n";
        assert_eq!(one(Kind::Isc, isc), expected);
        let mut udhcpd = vec![0; 8];
        udhcpd.extend([0, 0, 0, 9, 10, 77, 0, 100, 2, 0, 0, 0, 0, 1]);
        udhcpd.extend(*b"web\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(one(Kind::Udhcpd, &udhcpd), Granted { client_id: None, ..expected });
    }

    #[test]
    fn what_was_given_back_is_not_live() {
        let kea = b"address\n10.77.0.100,02:00:00:00:00:01,ff:00:01,0,1,1,0,0,web,0,\n";
        assert!(!one(Kind::Kea, kea).live);
        let isc = b"\nlease 10.77.0.100 {\n  binding state free;\n}\n";
        assert!(!one(Kind::Isc, isc).live);
    }
}
