//! Reads the credentials of TokenRotations, and the credentials in Secrets of the given namespaces.

use std::collections::{BTreeMap, BTreeSet};

use kube::Client;

use crate::api::TokenRotation;
use crate::domain::credentials::timestamp::Seconds;
use crate::domain::preview::credentials::{ExpiringCredential, merged, of_rotation, of_secret};
use crate::k8s::CallError;
use crate::k8s::credentials::contents;
use crate::k8s::stored_objects::list;

/// Returns the expiring credentials of TokenRotations and of Secrets, in the order of their expiry.
/// Leaves out objects that the API server does not let this command read. `namespaces`: map from a
/// namespace to the Secrets to read there; an empty set stands for all.
pub(super) async fn read(
    client: &Client,
    namespaces: &BTreeMap<String, BTreeSet<String>>,
    now: Seconds,
) -> Result<Vec<ExpiringCredential>, CallError> {
    let listed = list::<TokenRotation>(client, &mut Vec::new()).await;
    let rotations = if_readable(listed)?.into_iter().flat_map(|one| of_rotation(&one, now));
    let mut secrets = Vec::new();
    for (namespace, names) in namespaces {
        let all = names.is_empty().then_some(None).into_iter();
        for name in all.chain(names.iter().map(|name| Some(name.as_str()))) {
            for (name, key, content) in if_readable(contents(client, namespace, name).await)? {
                secrets.extend(of_secret(namespace, &name, &key, &content, now));
            }
        }
    }
    Ok(merged(rotations.collect(), secrets))
}

/// Returns `answer`, or an empty list in two cases: the API server refuses the read, or the object
/// or its kind does not exist. `Err`: another failure.
fn if_readable<T>(answer: Result<Vec<T>, CallError>) -> Result<Vec<T>, CallError> {
    match answer {
        Err(CallError::NotFound(_)) => Ok(Vec::new()),
        Err(error) if error.refusal().is_some() => Ok(Vec::new()),
        answer => answer,
    }
}
