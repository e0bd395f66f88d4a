//! Census of all cloud credentials that an API key may see, and relations of TokenRotations.
//!
//! Invariants: each look reads only a few contents, however many there are; a credential counts as
//! replaced only if the TokenRotation that replaces it has observed it, and so reports its own
//! failures.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::ResourceExt as _;

use super::{RotationContext, lock};
use crate::api::{RancherServer, SecretTarget, TokenRotation};
use crate::domain::credentials::children::ChildCandidate;
use crate::domain::credentials::rivals::{is_same, is_same_rancher};
use crate::domain::credentials::rotation::inventory::{CredentialInventory, CredentialReadResult};
use crate::domain::credentials::rotation::watched::WatchedCredentials;
use crate::domain::credentials::rotation::{TargetState, due, status};
use crate::domain::credentials::timestamp::Seconds;
use crate::rancher::{self, IssuedTokens, RancherError, RancherIssuer};

/// Maximum of contents read in one look; each takes up to three calls.
const MOST: usize = 16;
/// Time after which a look begins no further read.
const LONG_ENOUGH: Duration = Duration::from_secs(30);

/// Reason why validity and expiry of a token are unknown.
pub(super) const NOT_SEEN: &str =
    "the API key's user may not see the token in Rancher, so its validity and expiry are unknown";

/// Known state of all cloud credentials.
pub(super) struct AllCredentials {
    pub(super) watched: WatchedCredentials,
    /// Number of credentials that were not read yet.
    pub(super) unread: usize,
    /// Every cloud credential that Rancher lists.
    pub(super) listed: Vec<ChildCandidate>,
}

/// Lists all cloud credentials, and reads those whose last read is the oldest.
pub(super) async fn all(
    keeper: &RotationContext,
    rotation: &TokenRotation,
    issuer: &RancherIssuer,
    known: &IssuedTokens,
    now: Seconds,
) -> Result<AllCredentials, RancherError> {
    let found = issuer.credentials().await?;
    let one = |one: &rancher::ListedCredential| ChildCandidate {
        name: one.name.clone(),
        owner: one.creator.clone(),
    };
    let listed = found.iter().map(one).collect();
    let uid = rotation.uid().unwrap_or_default();
    let before = || {
        let recorded = rotation.status.as_ref().map(|status| status.watched.clone());
        CredentialInventory::recorded(&recorded.unwrap_or_default())
    };
    let next = {
        let mut censuses = lock(&keeper.censuses);
        let census = censuses.entry(uid.clone()).or_insert_with(before);
        census.listed(found.into_iter().map(|one| (one.name, one.title)));
        census.next(MOST)
    };
    let began = Instant::now();
    for name in next {
        if began.elapsed() > LONG_ENOUGH {
            break;
        }
        let found = match issuer.look(&name, known).await {
            Ok(sight) => match sight.target {
                TargetState::There { holds: Some(held), .. } if held.is_unseen => {
                    CredentialReadResult::Nothing(NOT_SEEN.to_owned())
                }
                TargetState::There { holds: Some(held), .. } => {
                    CredentialReadResult::Says(held.says)
                }
                TargetState::Unfit(why) => CredentialReadResult::Nothing(why),
                _ => CredentialReadResult::Nothing("its current user has no token".to_owned()),
            },
            Err(RancherError::Unauthorized) => return Err(RancherError::Unauthorized),
            Err(error) => CredentialReadResult::Nothing(error.to_string()),
        };
        if let Some(census) = lock(&keeper.censuses).get_mut(&uid) {
            census.read(&name, found, now);
        }
    }
    let replaced = replaced(keeper, rotation);
    let census = lock(&keeper.censuses).get(&uid).cloned().unwrap_or_default();
    let unread = census.unread();
    Ok(AllCredentials { watched: census.watched(|name| replaced.contains(name)), unread, listed })
}

/// Cloud credentials of the TokenRotation's Rancher that any TokenRotation replaces.
fn replaced(keeper: &RotationContext, rotation: &TokenRotation) -> HashSet<String> {
    let all = keeper.store.state();
    let theirs =
        all.iter().filter(|other| is_same_rancher(other, rotation) && works(keeper, other));
    theirs
        .filter_map(|other| Some(other.spec.target.cloud_credential.as_ref()?.name.clone()))
        .collect()
}

/// Whether any TokenRotation renews the API key that this one uses.
pub(super) fn is_renewed(
    keeper: &RotationContext,
    rotation: &TokenRotation,
    server: &RancherServer,
) -> bool {
    let renews = |other: &TokenRotation| {
        other.namespace() == rotation.namespace()
            && other.spec.target.secret.as_ref().is_some_and(|target| is_key(target, server))
            && other.spec.source.as_ref().is_some_and(|source| source.rancher_token.is_some())
            && (other.uid() == rotation.uid() || works(keeper, other))
    };
    renews(rotation) || keeper.store.state().iter().any(|other| renews(other))
}

/// TokenRotations whose status depends on whether `other` replaces its credential: they watch all
/// cloud credentials of its Rancher, use the API key that is its target, or have the same target.
pub(super) fn who_tells_of(
    keeper: &RotationContext,
    other: &TokenRotation,
) -> Vec<Arc<TokenRotation>> {
    keeper.store.state_filter(|one| {
        let watches = one.spec.target.all_cloud_credentials.is_some()
            && other.spec.target.cloud_credential.is_some()
            && is_same_rancher(one, other);
        let target = other.spec.target.secret.as_ref();
        let uses = one.namespace() == other.namespace()
            && one.spec.rancher.as_ref().zip(target).is_some_and(|(at, key)| is_key(key, at));
        one.uid() != other.uid() && (watches || uses || is_same(one, other))
    })
}

/// Whether a TokenRotation replaces the credential that it has observed.
pub(super) fn works(keeper: &RotationContext, rotation: &TokenRotation) -> bool {
    let record = status::record(rotation.status.as_ref());
    keeper.is_allowed(&rotation.namespace().unwrap_or_default())
        && rotation.metadata.deletion_timestamp.is_none()
        && due(&status::plan(rotation), &record).is_some()
}

/// Whether the target is the Secret and key that contain the API key.
fn is_key(target: &SecretTarget, server: &RancherServer) -> bool {
    let minter = &server.minter;
    target.name == minter.secret_name && target.key == minter.key
}
