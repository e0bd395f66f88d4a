//! Records published addresses after a restore of etcd from a backup: the address of each
//! LoadBalancer that existed before the restore and is gone now. Guests still announce these
//! addresses.

use std::time::Duration;

use kube::Api;

use super::super::Context;
use super::load::list;
use crate::api::IPPool;
use crate::domain::load_balancer::facts;
use crate::domain::pools::allocator::LoadBalancerEntry;
use crate::domain::pools::restored_store::{RestoreOutcome, changes, with_kept};
use crate::k8s::CallError;
use crate::k8s::trimmed::TrimmedLb;

/// Longest time for the attempts to record the published addresses. The first attempts may fail,
/// because an API server that has just started refuses calls until it has read the roles. The time
/// must be shorter than a minute. After a minute without an attempt to read the Lease, `/healthz`
/// fails, and the published addresses are lost when the process is restarted.
const PATIENCE: Duration = Duration::from_secs(50);
/// Pause between two attempts to record the published addresses.
const AGAIN: Duration = Duration::from_millis(250);
/// Value of the annotation that makes a pool keep claims without a LoadBalancer.
const WHY: &str = "etcd was restored from a backup";

/// Records the published address of each LoadBalancer that is in this replica's view, but no longer
/// in the API server. If the pool of an address is gone, or if its ledger names another
/// LoadBalancer for the address, the address is only logged. Also logs every other LoadBalancer
/// that the restore changed. Called before the process ends, because the view from before the
/// restore is lost with the process. The process need not lead.
pub async fn keep_published(ctx: &Context) {
    if !ctx.views.is_synced() {
        tracing::warn!(
            "this replica does not know the addresses that were published before the restore"
        );
        return;
    }
    let before: Vec<LoadBalancerEntry> =
        ctx.views.load_balancers.state().iter().filter_map(|lb| facts::lb_entry(lb)).collect();
    let mut last = None;
    let attempts = async {
        let mut is_logged = false;
        while let Err(error) = try_keep(ctx, &before, &mut is_logged).await {
            last = Some(error);
            tokio::time::sleep(AGAIN).await;
        }
    };
    if tokio::time::timeout(PATIENCE, attempts).await.is_err() {
        let error = last.map_or_else(|| "no answer".to_owned(), |error| error.to_string());
        tracing::error!(
            error,
            "cannot record the addresses that were published before the restore"
        );
    }
}

async fn try_keep(
    ctx: &Context,
    before: &[LoadBalancerEntry],
    is_logged: &mut bool,
) -> Result<(), CallError> {
    // Pools are listed before LoadBalancers. So the list of LoadBalancers contains the owner of
    // each claim, if that owner exists.
    let pools = list::<IPPool>(&Api::all(ctx.client.clone())).await?;
    let lbs = list::<TrimmedLb>(&Api::all(ctx.client.clone())).await?;
    let after: Vec<LoadBalancerEntry> =
        lbs.iter().filter_map(|trimmed| facts::lb_entry(&trimmed.lb)).collect();
    let changes = changes(before, &pools, &after);
    if !std::mem::replace(is_logged, true) {
        for change in &changes {
            tracing::warn!(lb = change.owner.name, "{}", change.message());
        }
    }
    for pool in &pools {
        if let Some(desired) = with_kept(pool, &changes) {
            ctx.writer.keep_claims(pool, &desired, WHY).await?;
        }
    }
    let kept = changes.iter().filter(|change| change.fate == RestoreOutcome::Kept).count();
    tracing::warn!(kept, changes = changes.len(), "compared LoadBalancers with the restored etcd");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::health_endpoints::LONGEST_SILENCE;

    #[test]
    fn the_attempts_end_before_the_process_counts_as_stuck() {
        assert!(PATIENCE < LONGEST_SILENCE);
    }
}
