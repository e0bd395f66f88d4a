//! Reads claims from the text of a token, without a request to a server.
//!
//! Invariant: nothing is read from the secret part of a token. Of a JSON Web Token, only the
//! payload is read. Of a Rancher's token, only the text before the colon is read.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use zeroize::Zeroizing;

use super::secret_text::SecretText;
use super::timestamp::Seconds;

/// Maximum length of a name that is reported, in bytes. A longer name counts as no name.
const LONGEST_NAME: usize = 253;
/// End of the year 9999. A later time in a token counts as not known.
const LAST_END: Seconds = 253_402_300_799;
/// Prefixes of the names of a Rancher's tokens.
const RANCHER: [&str; 3] = ["kubeconfig-", "token-", "ext/"];

/// Name and times of a token, or of a client certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenClaims {
    /// Name to report:
    ///
    /// * Token of a ServiceAccount: name of the token's Secret, or else of the ServiceAccount.
    /// * Client certificate: common name.
    /// * Token of a Rancher: description that Rancher reports for the token. If there is none, or
    ///   if the description cannot be a name that a rotation gives: name before the token's colon.
    ///
    /// Empty: the token or certificate has no name, or `is_name` refuses the name of the token.
    pub name: String,
    /// Time since which the token or certificate is valid. `None`: not known.
    pub issued: Option<Seconds>,
    /// Expiry of the token or certificate. `None`: there is none, or it is not known.
    pub expires: Option<Seconds>,
}

impl SecretText {
    /// Name and times that a token states about itself. The token's signature is not verified. A
    /// text that is no token has no name and no times.
    pub fn claims(&self) -> TokenClaims {
        let text = self.reveal();
        json_claims(text).map_or_else(|| opaque(text), |claims| of_claims(&claims))
    }
}

/// Claims of a JSON Web Token. `None`: the token is no JSON Web Token.
fn json_claims(token: &str) -> Option<Value> {
    let mut parts = token.split('.');
    let (_, payload, _) = (parts.next()?, parts.next()?, parts.next()?);
    let payload = Zeroizing::new(URL_SAFE_NO_PAD.decode(payload.trim_end_matches('=')).ok()?);
    let claims: Value = serde_json::from_slice(&payload).ok()?;
    (parts.next().is_none() && claims.is_object()).then_some(claims)
}

fn of_claims(claims: &Value) -> TokenClaims {
    let time = |claim: &str| {
        let at = claims[claim].as_i64()?;
        (0..=LAST_END).contains(&at).then_some(at)
    };
    let ours = &claims["kubernetes.io"];
    let name = [
        &ours["secret"]["name"],
        &claims["kubernetes.io/serviceaccount/secret.name"],
        &ours["serviceaccount"]["name"],
    ];
    let name = name.into_iter().find_map(Value::as_str).filter(|name| is_name(name));
    TokenClaims {
        name: name.unwrap_or_default().to_owned(),
        issued: time("iat"),
        expires: time("exp"),
    }
}

/// Claims of a token that is no JSON Web Token: only the name, which a Rancher's token has before
/// its colon. The name is empty if the token is not a Rancher's.
fn opaque(token: &str) -> TokenClaims {
    let name = token.split_once(':').map(|(name, _)| name);
    let name = name.filter(|name| RANCHER.iter().any(|prefix| name.starts_with(prefix)));
    let name = name.filter(|name| is_name(name.trim_start_matches("ext/")));
    TokenClaims { name: name.unwrap_or_default().to_owned(), ..TokenClaims::default() }
}

fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    !text.is_empty() && text.len() <= LONGEST_NAME && text.chars().all(fits)
}

#[cfg(test)]
mod tests;
