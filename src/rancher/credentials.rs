//! Cloud credentials in Rancher's API, and the Secrets that store them.
//!
//! Invariants:
//! * A write patches only the kubeconfig in a Secret, and the annotation with the expiry of the
//!   Secret's token.
//! * The patch has the resourceVersion of the Secret that was read.
//! * A Secret without annotations is never written. Rancher's server crashes when it processes such
//!   a Secret, and processes it again at each start.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use serde::Deserialize;
use serde_json::json;
use zeroize::Zeroizing;

use super::error::RancherError;
use super::transport::WireAnswer;
use super::{DatedAnswer, ServerClient, parsed};
use crate::domain::credentials::children::ListedCredential;
use crate::domain::credentials::secret_text::SecretText;
use crate::domain::credentials::timestamp::Seconds;

const SECRETS: &str = "/k8s/clusters/local/api/v1/namespaces/cattle-global-data/secrets";
/// Path of the list of cloud credentials. Rancher lists at most 3000 items at once.
const LIST: &str = "/v3/cloudCredentials?limit=3000";
const CONTENT: &str = "harvestercredentialConfig-kubeconfigContent";
const NAMESPACE: &str = "cattle-global-data:";
/// Annotation of a cloud credential's Secret in Rancher 2.9.3 to 2.11: expiry of the token, in
/// milliseconds since the epoch. Rancher's UI shows this expiry and warns of it.
const EXPIRATION: &str = "rancher.io/expiration-timestamp";

/// The Secret of a cloud credential.
#[derive(Debug)]
pub struct StoredCredential {
    /// The Secret's `resourceVersion`.
    pub version: String,
    /// Annotations of the Secret.
    pub annotations: BTreeMap<String, String>,
    /// Whether the Secret is being deleted.
    pub going: bool,
    /// The kubeconfig in the Secret, decoded from base64. `None`: the Secret is no credential for
    /// Harvester.
    pub content: Option<SecretText>,
}

/// Expiry of a token, in seconds since the epoch. `None`: the token does not expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenExpiry(pub Option<Seconds>);

#[derive(Deserialize)]
struct SecretForm {
    metadata: SecretMetadata,
    data: Option<BTreeMap<String, Zeroizing<String>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SecretMetadata {
    resource_version: String,
    annotations: Option<BTreeMap<String, String>>,
    deletion_timestamp: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CredentialRow {
    id: String,
    name: Option<String>,
    creator_id: Option<String>,
    #[serde(rename = "harvestercredentialConfig")]
    config: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct CredentialList {
    data: Vec<Option<CredentialRow>>,
    pagination: Option<Pagination>,
}

#[derive(Deserialize)]
struct Pagination {
    #[serde(default)]
    partial: bool,
}

impl ServerClient {
    /// Reads the Secret of the cloud credential `name`. `None`: no Secret has this name.
    pub async fn stored(
        &self,
        key: &SecretText,
        name: &str,
    ) -> Result<DatedAnswer<Option<StoredCredential>>, RancherError> {
        match self.send(key, Method::GET, &self.secret_path(&Method::GET, name)?, None).await {
            Ok(answer) => Ok(DatedAnswer { value: Some(read(&answer)?), date: answer.date }),
            Err(RancherError::NotFound(..)) => Ok(DatedAnswer { value: None, date: None }),
            Err(error) => Err(error),
        }
    }

    /// Writes `content` into the Secret of the cloud credential `name`. Fails if the Secret has
    /// changed after the read that returned `was`, or if `was` has no annotations.
    ///
    /// `expires`: expiry of the new token in `content`. `None`: `content` has no new token. An
    /// existing annotation with the expiry gets the new token's expiry. The annotation is removed
    /// if the new token does not expire, and stays as it is if there is no new token.
    pub async fn write(
        &self,
        key: &SecretText,
        name: &str,
        was: &StoredCredential,
        content: &SecretText,
        expires: Option<TokenExpiry>,
    ) -> Result<StoredCredential, RancherError> {
        if was.annotations.is_empty() {
            let why = "the Secret has no annotations, and such a Secret crashes Rancher's server";
            return Err(self.not_written(name, why.to_owned()));
        }
        let mut metadata = json!({"resourceVersion": was.version});
        if let Some(TokenExpiry(expires)) = expires
            && was.annotations.contains_key(EXPIRATION)
        {
            let milliseconds = expires.map(|expires| expires.saturating_mul(1000).to_string());
            metadata["annotations"] = json!({EXPIRATION: milliseconds});
        }
        let encoded = Zeroizing::new(STANDARD.encode(content.reveal()));
        // The body is built as text, because a tree of JSON values would leave a copy of the
        // content in memory. Base64 needs no JSON escapes.
        let mut body = Zeroizing::new(Vec::with_capacity(encoded.len() + 256));
        for part in [
            "{\"metadata\":",
            &metadata.to_string(),
            ",\"data\":{\"",
            CONTENT,
            "\":\"",
            &encoded,
            "\"}}",
        ] {
            body.extend_from_slice(part.as_bytes());
        }
        let body = Some(("application/merge-patch+json", body));
        let path = self.secret_path(&Method::PATCH, name)?;
        let answer = self.send(key, Method::PATCH, &path, body).await?;
        read(&answer)
    }

    /// Cloud credentials for Harvester that the user of `key` may see.
    pub async fn credentials(
        &self,
        key: &SecretText,
    ) -> Result<Vec<ListedCredential>, RancherError> {
        let answer = self.send(key, Method::GET, LIST, None).await?;
        let list: CredentialList = parsed(&answer)?;
        if list.pagination.is_some_and(|pagination| pagination.partial) {
            return Err(answer.unreadable("there are more credentials than Rancher lists at once"));
        }
        let rows = list.data.into_iter().flatten().filter(|row| row.config.is_some());
        let listed = rows.filter_map(|row| {
            Some(ListedCredential {
                name: row.id.strip_prefix(NAMESPACE)?.to_owned(),
                title: row.name.unwrap_or_default(),
                owner: row.creator_id.unwrap_or_default(),
            })
        });
        Ok(listed.collect())
    }

    /// Error for content that cannot be written into the Secret of the cloud credential `name`. No
    /// request was sent.
    pub(super) fn not_written(&self, name: &str, why: String) -> RancherError {
        let call = self.name_call(&Method::PATCH, &format!("{SECRETS}/{name}"));
        RancherError::Refused { call, status: 0, message: why }
    }

    /// Path of the Secret of the cloud credential `name`. `method`: HTTP method of the call, for
    /// the error that is returned if `name` is not valid.
    fn secret_path(&self, method: &Method, name: &str) -> Result<String, RancherError> {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || !name.chars().all(fits) {
            let why = "the name must have only lower-case letters, digits and dashes".to_owned();
            return Err(RancherError::NotFound(self.name_call(method, SECRETS), why));
        }
        Ok(format!("{SECRETS}/{name}"))
    }
}

fn read(answer: &WireAnswer) -> Result<StoredCredential, RancherError> {
    let form: SecretForm = parsed(answer)?;
    let content = form.data.and_then(|mut data| data.remove(CONTENT)).map(|encoded| {
        let odd = || answer.unreadable("its content must be text in base64");
        let bytes = Zeroizing::new(STANDARD.decode(encoded.as_bytes()).map_err(|_| odd())?);
        let text = std::str::from_utf8(&bytes).map_err(|_| odd())?;
        Ok(SecretText::new(text.to_owned()))
    });
    Ok(StoredCredential {
        version: form.metadata.resource_version,
        annotations: form.metadata.annotations.unwrap_or_default(),
        going: form.metadata.deletion_timestamp.is_some(),
        content: content.transpose()?,
    })
}
