//! Cloud credentials in Rancher's API, and the Secrets that store them.
//!
//! Invariant: a Secret is written by a patch of its content alone, which names the version that was
//! read. A Secret without annotations is never written: Rancher's server crashes on one, at each
//! start again.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use serde::Deserialize;
use zeroize::Zeroizing;

use super::error::Error;
use super::wire::Answer;
use super::{Dated, Rancher, Secret, parsed};

const SECRETS: &str = "/k8s/clusters/local/api/v1/namespaces/cattle-global-data/secrets";
/// Path of the list, with as many items as Rancher lists at once.
const LIST: &str = "/v3/cloudCredentials?limit=3000";
const CONTENT: &str = "harvestercredentialConfig-kubeconfigContent";
const NAMESPACE: &str = "cattle-global-data:";

/// The Secret of a cloud credential.
#[derive(Debug)]
pub struct Stored {
    /// The Secret's `resourceVersion`.
    pub version: String,
    /// Annotations of the Secret.
    pub annotations: BTreeMap<String, String>,
    /// Whether it is being deleted.
    pub going: bool,
    /// The kubeconfig in it, as it is stored. `None`: the Secret is no credential for Harvester.
    pub content: Option<Secret>,
}

/// A cloud credential for Harvester, as Rancher lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name of its Secret.
    pub name: String,
    /// Display name in Rancher's UI. Empty if Rancher has none.
    pub title: String,
    /// ID of the user who created the credential. Empty if Rancher has none.
    pub creator: String,
}

#[derive(Deserialize)]
struct Form {
    metadata: Metadata,
    #[serde(default)]
    data: Option<BTreeMap<String, Zeroizing<String>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
    #[serde(default)]
    deletion_timestamp: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    id: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    creator_id: Option<String>,
    #[serde(default, rename = "harvestercredentialConfig")]
    config: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct List {
    data: Vec<Option<Row>>,
    #[serde(default)]
    pagination: Option<Pagination>,
}

#[derive(Deserialize)]
struct Pagination {
    #[serde(default)]
    partial: bool,
}

impl Rancher {
    /// The Secret of a credential. `None`: no Secret has this name.
    pub async fn stored(&self, key: &Secret, name: &str) -> Result<Dated<Option<Stored>>, Error> {
        match self.send(key, Method::GET, &path(name)?, None).await {
            Ok(answer) => Ok(Dated { value: Some(read(&answer)?), date: answer.date }),
            Err(Error::NotFound(_)) => Ok(Dated { value: None, date: None }),
            Err(error) => Err(error),
        }
    }

    /// Writes a content into a Secret, if the Secret has not changed since `was` was read.
    pub async fn write(
        &self,
        key: &Secret,
        name: &str,
        was: &Stored,
        content: &Secret,
    ) -> Result<Stored, Error> {
        if was.annotations.is_empty() {
            let message = "a Secret without annotations crashes Rancher's server".to_owned();
            return Err(Error::Refused { status: 0, message });
        }
        let encoded = Zeroizing::new(STANDARD.encode(content.reveal()));
        // Built as text, because a tree of JSON values would leave a copy in memory. Neither part
        // needs JSON escapes.
        let mut body = Zeroizing::new(Vec::with_capacity(encoded.len() + 256));
        for part in [
            "{\"metadata\":{\"resourceVersion\":",
            &serde_json::Value::from(was.version.as_str()).to_string(),
            "},\"data\":{\"",
            CONTENT,
            "\":\"",
            &encoded,
            "\"}}",
        ] {
            body.extend_from_slice(part.as_bytes());
        }
        let body = Some(("application/merge-patch+json", body));
        let answer = self.send(key, Method::PATCH, &path(name)?, body).await?;
        read(&answer)
    }

    /// The credentials for Harvester that the key's user may see.
    pub async fn credentials(&self, key: &Secret) -> Result<Dated<Vec<Listed>>, Error> {
        let answer = self.send(key, Method::GET, LIST, None).await?;
        let list: List = parsed(&answer)?;
        if list.pagination.is_some_and(|pagination| pagination.partial) {
            return Err(Error::Unreadable(
                "there are more credentials than Rancher lists at once".to_owned(),
            ));
        }
        let rows = list.data.into_iter().flatten().filter(|row| row.config.is_some());
        let listed = rows.filter_map(|row| {
            Some(Listed {
                name: row.id.strip_prefix(NAMESPACE)?.to_owned(),
                title: row.name.unwrap_or_default(),
                creator: row.creator_id.unwrap_or_default(),
            })
        });
        Ok(Dated { value: listed.collect(), date: answer.date })
    }
}

fn read(answer: &Answer) -> Result<Stored, Error> {
    let form: Form = parsed(answer)?;
    let content = form.data.and_then(|mut data| data.remove(CONTENT)).map(|encoded| {
        let odd = || Error::Unreadable("its content is no text in base64".to_owned());
        let bytes = Zeroizing::new(STANDARD.decode(encoded.as_bytes()).map_err(|_| odd())?);
        let text = std::str::from_utf8(&bytes).map_err(|_| odd())?;
        Ok(Secret(Zeroizing::new(text.to_owned())))
    });
    Ok(Stored {
        version: form.metadata.resource_version,
        annotations: form.metadata.annotations.unwrap_or_default(),
        going: form.metadata.deletion_timestamp.is_some(),
        content: content.transpose()?,
    })
}

fn path(name: &str) -> Result<String, Error> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || !name.chars().all(fits) {
        return Err(Error::NotFound("that is no name of a cloud credential".to_owned()));
    }
    Ok(format!("{SECRETS}/{name}"))
}
