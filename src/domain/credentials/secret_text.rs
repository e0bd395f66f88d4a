//! A secret text, such as a token, an API key or a kubeconfig.
//!
//! Invariant: only [`SecretText::reveal`] returns the text. The text is wiped from memory when it
//! is dropped.

use std::fmt;

use zeroize::Zeroizing;

use crate::object_fields::digest::sha256_hex;

/// A token, or a text that contains one.
#[derive(Clone)]
pub struct SecretText(Zeroizing<String>);

impl SecretText {
    /// Stores the text as it is.
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// Stores the text without white space around it.
    pub fn trimmed(text: String) -> Self {
        let text = Zeroizing::new(text);
        Self::new(text.trim().to_owned())
    }

    /// The text itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// SHA-256 of the text, as hexadecimal digits. A status names a token by this hash, and never
    /// holds the token.
    pub fn hash(&self) -> String {
        sha256_hex(self.0.as_bytes())
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_shows_a_secret_and_white_space_is_none_of_a_trimmed_one() {
        let token = SecretText::trimmed("token-abcde:secret\n".into());
        assert!(!format!("{token:?} {:?}", Some(&token)).contains("secret"));
        assert_eq!(token.reveal(), "token-abcde:secret");
        assert_eq!(token.hash(), SecretText::new("token-abcde:secret".into()).hash());
        assert_eq!(token.hash().len(), 64);
        assert_eq!(SecretText::new("a\n".into()).reveal(), "a\n");
    }
}
