//! Precedence between two TokenRotations for the same credential. The one without precedence does
//! nothing.
//!
//! The first rule that decides between the two applies:
//!
//! 1. A TokenRotation that was made by hand has precedence over a child.
//! 2. The older one has precedence.
//! 3. The one whose namespace and name come first in the alphabet has precedence.
//!
//! If the two are in different namespaces, the one that the rules prefer has precedence only after
//! it has read the credential. Until then, neither of the two has precedence. Without this
//! condition, a user with the right to make TokenRotations in one namespace could stop a
//! TokenRotation in another namespace.
//!
//! Invariant: at most one of the two has precedence, because the rules give them a fixed order.

use super::minter::is_same_url;
use api::TokenRotation;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

/// `apiVersion` in an owner reference to a TokenRotation.
pub(super) const API_VERSION: &str = "credentials.harvesterhci.io/v1alpha1";
/// `kind` in an owner reference to a TokenRotation.
pub(super) const KIND: &str = "TokenRotation";

/// Owner reference of a child to the TokenRotation that made the child. `None`: the TokenRotation
/// `rotation` is no child.
pub fn made_by(rotation: &TokenRotation) -> Option<&OwnerReference> {
    let made = |owner: &&OwnerReference| {
        (owner.api_version.as_str(), owner.kind.as_str()) == (API_VERSION, KIND)
            && owner.controller == Some(true)
    };
    rotation.metadata.owner_references.as_ref()?.iter().find(made)
}

/// URL of a TokenRotation's Rancher, from the spec, or else from the status. `None`: the URL is not
/// known, or the TokenRotation uses no Rancher.
pub fn rancher_url(rotation: &TokenRotation) -> Option<&str> {
    let server = rotation.spec.rancher.as_ref()?;
    let first = rotation.status.as_ref().and_then(|status| status.rancher_url.as_deref());
    server.url.as_deref().or(first)
}

/// Whether both TokenRotations use the same Rancher. The URLs of their Ranchers are compared. If
/// one of the URLs is not known, the Secrets of their API keys are compared. False if one of the
/// two uses no Rancher.
pub fn is_same_rancher(one: &TokenRotation, other: &TokenRotation) -> bool {
    let (Some(here), Some(there)) = (&one.spec.rancher, &other.spec.rancher) else { return false };
    match (rancher_url(one), rancher_url(other)) {
        (Some(one), Some(other)) => is_same_url(one, other),
        _ => {
            one.metadata.namespace == other.metadata.namespace
                && here.minter.secret_name == there.minter.secret_name
        }
    }
}

/// Whether the targets of both TokenRotations are the same credential: the same key and user of one
/// Secret, or the same cloud credential of one Rancher.
pub fn is_same(one: &TokenRotation, other: &TokenRotation) -> bool {
    let (here, there) = (&one.spec.target, &other.spec.target);
    match (&here.secret, &there.secret, &here.cloud_credential, &there.cloud_credential) {
        (Some(here), Some(there), ..) => {
            here == there && one.metadata.namespace == other.metadata.namespace
        }
        (_, _, Some(here), Some(there)) => here.name == there.name && is_same_rancher(one, other),
        _ => false,
    }
}

/// Rival of `one` with the highest precedence. `None`: `one` has no rival. A rival is a
/// TokenRotation of `others` that has precedence over `one` for the same credential, has a source,
/// and is not being deleted.
pub fn first_rival<'a>(
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

/// Whether the operator has read the credential in the target of this TokenRotation, so that the
/// status names it. If the target is a cloud credential, this shows that the TokenRotation's API
/// key may read the cloud credential.
fn has_seen(rotation: &TokenRotation) -> bool {
    rotation.status.as_ref().is_some_and(|status| status.current.is_some())
}

/// Sort key: the TokenRotation with the smallest key has precedence. Fields of the key: whether the
/// TokenRotation is a child, creation time, namespace, name. A TokenRotation without a creation
/// time is not stored yet, and counts as the youngest.
fn rank(rotation: &TokenRotation) -> (bool, i64, Option<&str>, Option<&str>) {
    let metadata = &rotation.metadata;
    let made = metadata.creation_timestamp.as_ref().map_or(i64::MAX, |time| time.0.as_second());
    let name = (metadata.namespace.as_deref(), metadata.name.as_deref());
    (made_by(rotation).is_some(), made, name.0, name.1)
}

#[cfg(test)]
mod tests;
