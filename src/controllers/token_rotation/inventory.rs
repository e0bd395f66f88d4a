//! Inventory of all cloud credentials that an API key may see.
//!
//! Invariant: each reconcile reads the content of only a few cloud credentials, however many exist.

use std::time::{Duration, Instant};

use kube::ResourceExt as _;

use super::rotation_run::RancherSession;
use super::{RotationContext, lock, related};
use crate::api::TokenRotation;
use crate::domain::credentials::rotation::TargetState;
use crate::domain::credentials::rotation::inventory::CredentialInventory;
use crate::domain::credentials::rotation::watched::WatchedCredentials;
use crate::domain::credentials::timestamp::Seconds;
use crate::rancher::RancherError;

/// Maximum number of cloud credentials read in one reconcile. Each read takes one or two calls.
const MOST_READS: usize = 16;
/// Time for which a reconcile may begin further reads, counted from its first read.
const READ_TIME: Duration = Duration::from_secs(30);

/// Reason why validity and expiry of a token are unknown.
pub(super) const NOT_SEEN: &str =
    "the API key's user may not see the token in Rancher, so its validity and expiry are unknown";

/// Lists all cloud credentials, and reads the content of at most [`MOST_READS`] of them.
/// Credentials that were not read yet come first, then those whose last read is the oldest. Sets
/// `listed` and `unread` of the session. Returns the known state of all credentials.
pub(super) async fn update(
    context: &RotationContext,
    rotation: &TokenRotation,
    session: &mut RancherSession,
    now: Seconds,
) -> Result<WatchedCredentials, RancherError> {
    let RancherSession { issuer, issued: known, .. } = &*session;
    let listed = issuer.credentials().await?;
    let uid = rotation.uid().unwrap_or_default();
    let before = || {
        let recorded = rotation.status.as_ref().map(|status| status.watched.clone());
        CredentialInventory::from_status(&recorded.unwrap_or_default())
    };
    let next = {
        let mut inventories = lock(&context.inventories);
        let inventory = inventories.entry(uid.clone()).or_insert_with(before);
        inventory.set_list(listed.iter().map(|one| (one.name.clone(), one.title.clone())));
        inventory.next_to_read(MOST_READS)
    };
    let began = Instant::now();
    for name in next {
        if began.elapsed() > READ_TIME {
            break;
        }
        let found = match issuer.read_target(&name, known).await {
            Ok(view) => match view.target {
                TargetState::There { holds: Some(held), .. } if held.is_unseen => {
                    Err(NOT_SEEN.to_owned())
                }
                TargetState::There { holds: Some(held), .. } => Ok(held.claims),
                TargetState::Unfit(why) => Err(why),
                _ => Err("its current user has no token".to_owned()),
            },
            Err(error @ RancherError::Unauthorized(_)) => return Err(error),
            Err(error) => Err(error.to_string()),
        };
        if let Some(inventory) = lock(&context.inventories).get_mut(&uid) {
            inventory.store_read(&name, found, now);
        }
    }
    let replaced = related::replaced_credentials(context, rotation);
    let inventory = lock(&context.inventories).get(&uid).cloned().unwrap_or_default();
    (session.unread, session.listed) = (inventory.unread(), listed);
    Ok(inventory.watched(|name| replaced.contains(name)))
}
