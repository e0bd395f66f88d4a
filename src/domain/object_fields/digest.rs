//! Digests in hexadecimal, as names, annotations and status fields hold them.
//!
//! Invariant: no later version changes the format of these texts, because stored objects contain
//! them.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// Text of octets in lower-case hexadecimal, two digits for each octet.
pub fn hex(octets: &[u8]) -> String {
    octets.iter().fold(String::with_capacity(2 * octets.len()), |mut text, octet| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{octet:02x}");
        text
    })
}

/// SHA-256 digest of bytes, in lower-case hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octets_are_two_digits_each() {
        assert_eq!(hex(&[0, 1, 0xab, 0xff]), "0001abff");
        assert_eq!(
            sha256_hex(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
