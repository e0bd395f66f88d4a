//! Two TokenRotations for one credential: one goes first, the other does nothing.
//!
//! Invariant: of any two exactly one goes first, whatever either of them is doing: one that was made by hand before
//! one that was made for all cloud credentials, then the older one, then by name. One of another namespace does so only
//! once it has seen the credential: the right to make it there is no right to stop this one.

use super::minter::is_same_url;
use api::TokenRotation;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

/// A TokenRotation, as an owner.
pub(super) const API_VERSION: &str = "credentials.harvesterhci.io/v1alpha1";
pub(super) const KIND: &str = "TokenRotation";

/// The owner that has made this one: a TokenRotation for all cloud credentials.
pub fn made_by(rotation: &TokenRotation) -> Option<&OwnerReference> {
    let made = |owner: &&OwnerReference| {
        (owner.api_version.as_str(), owner.kind.as_str()) == (API_VERSION, KIND)
            && owner.controller == Some(true)
    };
    rotation.metadata.owner_references.as_ref()?.iter().find(made)
}

/// The URL of a TokenRotation's Rancher, as far as it is known.
pub fn url(rotation: &TokenRotation) -> Option<&str> {
    let server = rotation.spec.rancher.as_ref()?;
    let first = rotation.status.as_ref().and_then(|status| status.rancher_url.as_deref());
    server.url.as_deref().or(first)
}

/// Whether both are about the same Rancher: by its URL, or as long as that is not known by the API key.
pub fn is_same_rancher(one: &TokenRotation, other: &TokenRotation) -> bool {
    let (Some(here), Some(there)) = (&one.spec.rancher, &other.spec.rancher) else { return false };
    match (url(one), url(other)) {
        (Some(one), Some(other)) => is_same_url(one, other),
        _ => {
            one.metadata.namespace == other.metadata.namespace
                && here.minter.secret_name == there.minter.secret_name
        }
    }
}

/// Whether both are for the same credential.
pub fn is_same(one: &TokenRotation, other: &TokenRotation) -> bool {
    let (here, there) = (&one.spec.target, &other.spec.target);
    match (&here.secret, &there.secret, &here.cloud_credential, &there.cloud_credential) {
        (Some(here), Some(there), ..) => {
            here == there && one.metadata.namespace == other.metadata.namespace
        }
        (_, _, Some(here), Some(there)) => here == there && is_same_rancher(one, other),
        _ => false,
    }
}

/// The other TokenRotation for the same credential that goes before this one.
pub fn before<'a>(
    one: &TokenRotation,
    others: impl IntoIterator<Item = &'a TokenRotation>,
) -> Option<&'a TokenRotation> {
    others
        .into_iter()
        .filter(|other| {
            other.metadata.uid != one.metadata.uid
                && other.spec.source.is_some()
                && other.metadata.deletion_timestamp.is_none()
                && (other.metadata.namespace == one.metadata.namespace || has_seen(other))
                && rank(other) < rank(one)
                && is_same(one, other)
        })
        .min_by_key(|other| rank(other))
}

/// Whether the credential was there when the operator looked, with an API key that may be used for it.
fn has_seen(rotation: &TokenRotation) -> bool {
    rotation.status.as_ref().is_some_and(|status| status.current.is_some())
}

/// Less goes first. One that is not made yet is the youngest.
fn rank(rotation: &TokenRotation) -> (bool, i64, Option<&str>, Option<&str>) {
    let metadata = &rotation.metadata;
    let made = metadata.creation_timestamp.as_ref().map_or(i64::MAX, |time| time.0.as_second());
    let name = (metadata.namespace.as_deref(), metadata.name.as_deref());
    (made_by(rotation).is_some(), made, name.0, name.1)
}

#[cfg(test)]
mod tests;
