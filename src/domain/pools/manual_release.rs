//! The annotation by which an admin releases the address of an orphan: `<ip>: <namespace>/<name>`.

use std::net::IpAddr;

/// An admin's request to release an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManualRelease {
    /// Address to release.
    pub ip: IpAddr,
    /// `namespace/name` of the LoadBalancer that owns the address. If the ledger records another
    /// owner, the request is refused.
    pub name: String,
}

impl ManualRelease {
    /// Parses the annotation. The error gives the fault and the right form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let fault = || {
            format!(
                "{text:?} is not of the form \"<ip>: <namespace>/<name>\", such as \"192.168.1.10: default/web\""
            )
        };
        // The separator is the last colon, because an IPv6 address contains colons.
        let (ip, name) = text.rsplit_once(':').ok_or_else(fault)?;
        let ip = ip.trim().parse().map_err(|_| fault())?;
        let name = name.trim();
        match name.split_once('/') {
            Some((namespace, short))
                if !namespace.is_empty() && !short.is_empty() && !short.contains('/') =>
            {
                Ok(Self { ip, name: name.to_owned() })
            }
            _ => Err(fault()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_families() {
        let v4 = ManualRelease::parse("10.0.0.7: ns/lb").unwrap();
        assert_eq!((v4.ip.to_string().as_str(), v4.name.as_str()), ("10.0.0.7", "ns/lb"));
        assert_eq!(ManualRelease::parse("fd00::7:ns/lb").unwrap().ip.to_string(), "fd00::7");
    }

    #[test]
    fn says_what_would_be_right() {
        for text in [
            "",
            "10.0.0.7",
            "10.0.0.7 ns/lb",
            "10.0.0.7: lb",
            "10.0.0.7: /lb",
            "x: ns/lb",
            "10.0.0.7: a/b/c",
        ] {
            assert!(ManualRelease::parse(text).unwrap_err().contains("default/web"), "{text}");
        }
    }
}
