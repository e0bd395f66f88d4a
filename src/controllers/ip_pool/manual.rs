//! Manual release of an address whose LoadBalancer is gone. An administrator requests the release
//! by an annotation on the pool. This module releases the address, or reports why the release is
//! refused.

use std::time::Duration;

use super::LedgerTask;
use crate::api::Condition;
use crate::domain::Claim;
use crate::domain::pools::manual_release::ManualRelease;
use crate::domain::pools::status::manual_release_refused;
use crate::k8s::read::ApiReader;

/// Reason of a refused manual release: the LoadBalancer could not be read, so it is unknown whether
/// the LoadBalancer exists. The operator tries the read again.
const UNKNOWN: &str = "Unknown";

/// Reason of a refused manual release: the LoadBalancer exists.
const STILL_IN_USE: &str = "StillInUse";

impl LedgerTask {
    /// Carries out the release that the pool's annotation requests, or records why the release is
    /// refused. The release changes only the allocator. The next commit writes the result. Unless
    /// the release was refused, the commit also removes the annotation.
    pub(super) async fn consider_manual_release(&mut self, pool: &str) {
        let text = self.stored.get(pool).and_then(|stored| stored.manual().map(str::to_owned));
        let Some(text) = text else { return };
        let notice = self.release_manually(pool, &text).await;
        if notice.as_ref().is_some_and(|n| n.reason.as_deref() == Some(UNKNOWN)) {
            self.reread_later(pool, Duration::from_secs(1));
        }
        let Some(stored) = self.stored.get_mut(pool) else { return };
        let before = std::mem::replace(&mut stored.notice, notice.clone());
        let is_new = |new: &Condition| before.is_none_or(|old| old.message != new.message);
        if let Some(notice) = notice.filter(is_new) {
            self.ctx.events.warning(
                self.reference(pool),
                "ManualReleaseRefused",
                notice.message.unwrap_or_default(),
            );
        }
        self.allocator.touch(pool);
    }

    /// Removes each refusal that has the reason [`STILL_IN_USE`] and no longer applies: the
    /// LoadBalancer in the pool's annotation has no claim any more of the address in this
    /// annotation. The next commit then also removes the annotation.
    pub(super) fn forget_outlived_refusals(&mut self) {
        for (name, stored) in &mut self.stored {
            let refused = stored.notice.as_ref().and_then(|n| n.reason.as_deref());
            let text = stored.manual().filter(|_| refused == Some(STILL_IN_USE));
            let Some(asked) = text.and_then(|t| ManualRelease::parse(t).ok()) else { continue };
            let claim = Claim { pool: name.clone(), ip: asked.ip };
            if self.allocator.owner_of(&claim).is_none_or(|owner| owner.name != asked.name) {
                stored.notice = None;
                self.allocator.touch(name);
            }
        }
    }

    /// Releases the address that the pool's annotation names. `text`: value of the annotation.
    /// Returns the refusal as a condition. `None`: the address was released, or was free already.
    async fn release_manually(&mut self, pool: &str, text: &str) -> Option<Condition> {
        let refuse = |reason, message| Some(manual_release_refused(reason, message));
        let asked = match ManualRelease::parse(text) {
            Ok(asked) => asked,
            Err(fault) => {
                let message =
                    format!("annotation {}: {fault}", crate::api::ANNOTATION_MANUAL_RELEASE);
                return refuse("InvalidAnnotation", message);
            }
        };
        let claim = Claim { pool: pool.to_owned(), ip: asked.ip };
        let Some(owner) = self.allocator.owner_of(&claim).cloned() else {
            // The address is free. For example, the sweep freed the claim, or the operator ended
            // after the release, before it removed the annotation.
            return None;
        };
        if owner.name != asked.name {
            return refuse(
                "OtherOwner",
                format!("{} is held by {}, not by {}", asked.ip, owner.name, asked.name),
            );
        }
        let (namespace, name) = asked.name.split_once('/')?;
        match ApiReader::new(self.ctx.client.clone()).uid_of(namespace, name).await {
            Ok(None) => {
                self.allocator.release_claim(&claim, &owner);
                tracing::info!(pool, ip = %asked.ip, owner = owner.name, "address released by annotation");
                self.ctx.events.normal(
                    self.reference(pool),
                    "ManuallyReleased",
                    format!("{} of {} was released by annotation", asked.ip, owner.name),
                );
                None
            }
            Ok(Some(_)) => refuse(
                STILL_IN_USE,
                format!(
                    "LoadBalancer {} exists: delete it, and {} is released",
                    asked.name, asked.ip
                ),
            ),
            Err(error) => refuse(
                UNKNOWN,
                format!("cannot determine whether LoadBalancer {} exists: {error}", asked.name),
            ),
        }
    }
}
