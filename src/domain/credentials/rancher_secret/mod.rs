//! Secret that the command `rancher-secret` prints for a Rancher's API key, and the messages of
//! that command.
//!
//! Invariants:
//!
//! * The Rancher's certificate authority is read from the Rancher itself, over a connection that is
//!   not verified. So it is used only if it has the checksum that `--ca-checksum` names.
//! * The Secret names the only URL to which the API key may be sent.

mod account;

pub use account::AccountOptions;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::DateTime;
use zeroize::Zeroizing;

use super::children::ListedCredential;
use super::guest_account::output::{joined, quoted};
use super::guest_account::{is_object_name, namespace_fault};
use super::minter::is_server;
use super::secret_text::SecretText;
use super::timestamp::Seconds;
use crate::object_fields::digest::sha256_hex;
use api::ANNOTATION_RANCHER_URL;

/// Path at which a Rancher serves its certificate authority without authentication.
pub const AUTHORITY: &str = "/cacerts";

/// Options of `rancher-secret`, and the API key.
#[derive(Clone, Debug)]
pub struct RancherSecretOptions<'a> {
    /// URL of the Rancher.
    pub url: &'a str,
    /// SHA-256 of the Rancher's certificate authority, in hexadecimal. `None`: a public authority
    /// must sign the certificate of the Rancher server.
    pub checksum: Option<&'a str>,
    /// Namespace of the Secret.
    pub namespace: &'a str,
    /// Name of the Secret.
    pub name: &'a str,
    /// API key from standard input.
    pub key: &'a SecretText,
}

impl RancherSecretOptions<'_> {
    /// Errors about the options and the key, each with the option's name. An error about the key
    /// has `standard input` in place of that name. Empty: all are valid.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut check = |fits: bool, what: &str, given: &str, right: &str| {
            if !fits {
                faults.push(format!("{what} {given:?}: must be {right}"));
            }
        };
        let url = "https://HOST or https://HOST:PORT, as in Rancher's setting server-url";
        check(is_server(self.url), "--url", self.url, url);
        let sum = self.checksum.unwrap_or_default();
        let is_sum = sum.len() == 64 && sum.chars().all(|c| c.is_ascii_hexdigit());
        let right = "64 hexadecimal digits, the SHA-256 of the text at https://RANCHER/cacerts";
        check(is_sum || self.checksum.is_none(), "--ca-checksum", sum, right);
        check(is_object_name(self.name), "--name", self.name, "the name of a Secret");
        faults.extend(namespace_fault(self.namespace));
        if self.key.claims().name.is_empty() || self.key.reveal().contains(char::is_whitespace) {
            let right = "the Bearer Token that Rancher shows once, such as token-abcde:SECRETKEY";
            faults.push(format!("standard input: must be the API key alone: {right}"));
        }
        faults
    }

    /// Text of the Secret in YAML, wiped from memory when it is dropped. `authority`: certificate
    /// authority in PEM, for the Secret's key `ca.crt`. `None`: the Secret does not get this key.
    pub fn text(&self, authority: Option<&str>) -> Zeroizing<String> {
        let token = Zeroizing::new(STANDARD.encode(self.key.reveal()));
        let authority = authority.map(|pem| format!("\n  ca.crt: {}", STANDARD.encode(pem)));
        joined(&[
            "apiVersion: v1\nkind: Secret\nmetadata:\n  name: ",
            &quoted(self.name),
            "\n  namespace: ",
            &quoted(self.namespace),
            "\n  annotations:\n    ",
            ANNOTATION_RANCHER_URL,
            ": ",
            &quoted(self.url.trim_end_matches('/')),
            "\ntype: Opaque\ndata:\n  token: ",
            &token,
            &authority.unwrap_or_default(),
            "\n",
        ])
    }
}

/// SHA-256 of a certificate authority's text, in hexadecimal. Rancher's own registration commands
/// name the same checksum.
pub fn checksum(authority: &str) -> String {
    sha256_hex(authority.as_bytes())
}

/// Returns `shown` if its checksum is `wanted`. `shown`: certificate authority that a Rancher
/// serves. The error says why the authority is refused.
pub fn authority(shown: String, wanted: &str) -> Result<String, String> {
    let found = checksum(&shown);
    if shown.trim().is_empty() {
        return Err(
            "--ca-checksum: this Rancher shows no authority at /cacerts: leave out --ca-checksum. \
             A public authority must then have signed Rancher's certificate, or one of the chart's \
             additionalTrustedCAs"
                .to_owned(),
        );
    }
    if found.eq_ignore_ascii_case(wanted) {
        return Ok(shown);
    }
    Err(format!(
        "--ca-checksum: the authority at /cacerts has another checksum, {found}. If Rancher's \
         administrator confirms it, give this one. If not, another server answers in the place of \
         Rancher"
    ))
}

/// Error text: `--ca-checksum` is missing, and no public authority has signed the Rancher's
/// certificate. `shown`: the certificate authority that the Rancher serves.
pub fn unknown_authority(shown: &str) -> String {
    format!(
        "--ca-checksum: must be given, because no public authority has signed Rancher's \
         certificate. The authority at /cacerts has the checksum {}: compare it with --ca-checksum \
         in a registration command of Rancher's UI, or ask Rancher's administrator. If it is \
         right, give it",
        checksum(shown)
    )
}

/// Report about the API key. `user`: ID of the user to whom the key belongs. `expires`: expiry of
/// the key. `None`: the key does not expire. `listed`: cloud credentials that the user may read.
pub fn report(user: &str, expires: Option<Seconds>, listed: &[ListedCredential]) -> String {
    let own = listed.iter().filter(|one| one.owner == user).count();
    let others = listed.len() - own;
    let until = expires.and_then(|at| DateTime::from_timestamp(at, 0));
    let until = until.map_or_else(
        || "does not expire".to_owned(),
        |at| format!("expires on {}, unless a TokenRotation renews it", at.format("%F %T UTC")),
    );
    let mut parts = vec![
        format!("the API key works: it belongs to the user {user:?} and {until}"),
        format!("cloud credentials for Harvester that this user made: {own}"),
    ];
    if own == 0 {
        let right = "none can be renewed with this key: give a key of the user who made them";
        parts.push(right.to_owned());
    }
    if others > 0 {
        parts.push(format!(
            "cloud credentials for Harvester that others made, which are only watched: {others}"
        ));
    }
    parts.join("\n")
}

#[cfg(test)]
mod tests;
