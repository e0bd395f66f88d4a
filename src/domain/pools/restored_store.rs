//! Comparison of LoadBalancers before and after a restore of etcd from a backup. The state before
//! is what a replica saw, and the state after is what the API server has.
//!
//! The restore of etcd does not change guests: each guest still announces the address that its
//! LoadBalancer published last. So a published address counts as in use, even if the restored
//! ledgers do not record it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::allocator::LoadBalancerEntry;
use crate::{Claim, Owner};
use api::{IPPool, IPPoolStatus};

/// Outcome of a restore for a LoadBalancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreOutcome {
    /// The restored etcd does not contain the LoadBalancer. The claim stays recorded in the pool's
    /// ledger, or is added again by [`with_kept`].
    Kept,
    /// The restored etcd contains neither the LoadBalancer nor the pool of its claim. So the claim
    /// cannot be recorded.
    PoolGone,
    /// The restored etcd does not contain the LoadBalancer, and the restored ledger records its
    /// address for another LoadBalancer. The value is the `namespace/name` of the other
    /// LoadBalancer.
    Anothers(String),
    /// The restored etcd contains the LoadBalancer, but with another published claim than before
    /// the restore, or with none. The value is the address that the LoadBalancer now publishes, or
    /// `None`.
    Moved(Option<IpAddr>),
    /// The LoadBalancer exists in the restored etcd, but did not exist just before the restore.
    Returned,
}

/// A LoadBalancer that a restore has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreChange {
    /// Name and UID of the LoadBalancer.
    pub owner: Owner,
    /// Claim that the LoadBalancer published before the restore. For [`RestoreOutcome::Returned`],
    /// the claim that it publishes after the restore; `None` if it publishes none.
    pub claim: Option<Claim>,
    /// Outcome of the restore for this LoadBalancer.
    pub fate: RestoreOutcome,
}

impl RestoreChange {
    /// Message for an admin, with the action to take.
    pub fn message(&self) -> String {
        let Self { owner: Owner { name, .. }, claim, fate } = self;
        let at = match claim {
            Some(Claim { pool, ip }) => format!("{ip} of IPPool {pool}"),
            None => "no address".to_owned(),
        };
        let again = "reconcile the guest's Service, so that its cloud provider";
        match fate {
            RestoreOutcome::Kept => format!(
                "LoadBalancer {name} had {at} and is not in the restored etcd: the address stays recorded for it; {again} creates it again"
            ),
            RestoreOutcome::PoolGone => format!(
                "LoadBalancer {name} had {at}, and the restored etcd has neither the LoadBalancer nor the pool: create the pool again, then {again} creates the LoadBalancer again"
            ),
            RestoreOutcome::Anothers(other) => format!(
                "LoadBalancer {name} had {at} and is not in the restored etcd, where LoadBalancer {other} has the address: {again} creates it again with another address, or delete {other} first if its Service is gone"
            ),
            RestoreOutcome::Moved(now) => format!(
                "LoadBalancer {name} had {at}, and in the restored etcd it has {}: {again} updates the address",
                now.map_or_else(|| "no address".to_owned(), |ip| ip.to_string())
            ),
            RestoreOutcome::Returned => format!(
                "LoadBalancer {name} with {at} was deleted before etcd was restored, and is back: delete it if its Service is gone"
            ),
        }
    }
}

/// Returns the changes that a restore made, ordered by the LoadBalancer's name. A LoadBalancer of
/// `before` is left out in these cases:
/// * it publishes the same claim as before the restore;
/// * before the restore, it published no claim, was being deleted, or had `spec.ipam: dhcp`.
///
/// `before`: LoadBalancers as last seen before the restore. `pools` and `after`: IPPools and
/// LoadBalancers as stored now.
pub fn changes(
    before: &[LoadBalancerEntry],
    pools: &[IPPool],
    after: &[LoadBalancerEntry],
) -> Vec<RestoreChange> {
    let named: BTreeMap<&str, &LoadBalancerEntry> =
        after.iter().map(|entry| (entry.owner.name.as_str(), entry)).collect();
    let change = |entry: &LoadBalancerEntry| {
        let claim = entry.published.as_ref().filter(|_| !entry.deleting)?;
        let pool = pools.iter().find(|pool| pool.metadata.name.as_ref() == Some(&claim.pool));
        let fate = match (named.get(entry.owner.name.as_str()), pool) {
            (Some(now), _) if now.published.as_ref() == Some(claim) => return None,
            (Some(now), _) => RestoreOutcome::Moved(now.published.as_ref().map(|claim| claim.ip)),
            (None, None) => RestoreOutcome::PoolGone,
            (None, Some(pool)) => match holder(pool, claim.ip) {
                Some(other) if *other != entry.owner.name => {
                    RestoreOutcome::Anothers(other.clone())
                }
                _ => RestoreOutcome::Kept,
            },
        };
        Some(RestoreChange { owner: entry.owner.clone(), claim: Some(claim.clone()), fate })
    };
    let known: BTreeSet<&str> = before.iter().map(|entry| entry.owner.name.as_str()).collect();
    let returned = after.iter().filter(|entry| !known.contains(entry.owner.name.as_str()));
    let returned = returned.map(|entry| RestoreChange {
        owner: entry.owner.clone(),
        claim: entry.published.clone(),
        fate: RestoreOutcome::Returned,
    });
    let mut changes: Vec<RestoreChange> =
        before.iter().filter_map(change).chain(returned).collect();
    changes.sort_by(|a, b| a.owner.name.cmp(&b.owner.name));
    changes
}

/// Returns the pool's status, with the pool's claims of [`RestoreOutcome::Kept`] added. `None`:
/// there is no such claim. Each claim is recorded with the UID that its LoadBalancer had before the
/// restore.
pub fn with_kept(pool: &IPPool, changes: &[RestoreChange]) -> Option<IPPoolStatus> {
    let mut status = pool.status.clone().unwrap_or_default();
    let mut any = false;
    let of_pool = |claim: &&Claim| Some(&claim.pool) == pool.metadata.name.as_ref();
    for RestoreChange { owner, claim, .. } in
        changes.iter().filter(|change| change.fate == RestoreOutcome::Kept)
    {
        let Some(claim) = claim.as_ref().filter(of_pool) else { continue };
        any = true;
        status.allocated.insert(claim.ip.to_string(), owner.name.clone());
        status.allocated_owners.insert(claim.ip.to_string(), owner.uid.clone());
    }
    any.then_some(status)
}

fn holder(pool: &IPPool, ip: IpAddr) -> Option<&String> {
    pool.status.as_ref()?.allocated.get(&ip.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, uid: &str, published: Option<(&str, &str)>) -> LoadBalancerEntry {
        LoadBalancerEntry {
            owner: Owner { name: format!("default/{name}"), uid: uid.to_owned() },
            created: 0,
            published: published
                .map(|(pool, ip)| Claim { pool: pool.to_owned(), ip: ip.parse().unwrap() }),
            deleting: false,
        }
    }

    fn pool(allocated: &[(&str, &str)]) -> IPPool {
        let mut pool = IPPool::default();
        pool.metadata.name = Some("pool".to_owned());
        let text = |(ip, name): &(&str, &str)| ((*ip).to_owned(), (*name).to_owned());
        let allocated = allocated.iter().map(text).collect();
        pool.status = Some(IPPoolStatus { total: 9, allocated, ..IPPoolStatus::default() });
        pool
    }

    #[test]
    fn each_load_balancer_that_a_restore_changed_is_named_with_what_became_of_it() {
        let before = [
            entry("same", "1", Some(("pool", "10.0.0.1"))),
            entry("lost", "2", Some(("pool", "10.0.0.2"))),
            entry("poolless", "3", Some(("other", "10.9.0.3"))),
            entry("beaten", "4", Some(("pool", "10.0.0.4"))),
            entry("moved", "5", Some(("pool", "10.0.0.5"))),
            entry("waiting", "6", None),
            LoadBalancerEntry {
                deleting: true,
                ..entry("leaving", "7", Some(("pool", "10.0.0.7")))
            },
        ];
        let after = [
            entry("same", "1", Some(("pool", "10.0.0.1"))),
            entry("moved", "5", Some(("pool", "10.0.0.6"))),
            entry("back", "8", Some(("pool", "10.0.0.4"))),
        ];
        let stored = pool(&[
            ("10.0.0.1", "default/same"),
            ("10.0.0.4", "default/back"),
            ("10.0.0.6", "default/moved"),
        ]);
        let found = changes(&before, std::slice::from_ref(&stored), &after);
        let short: Vec<(&str, &RestoreOutcome)> =
            found.iter().map(|change| (change.owner.name.as_str(), &change.fate)).collect();
        let now = "10.0.0.6".parse().ok();
        assert_eq!(
            short,
            [
                ("default/back", &RestoreOutcome::Returned),
                ("default/beaten", &RestoreOutcome::Anothers("default/back".to_owned())),
                ("default/lost", &RestoreOutcome::Kept),
                ("default/moved", &RestoreOutcome::Moved(now)),
                ("default/poolless", &RestoreOutcome::PoolGone),
            ]
        );
        let kept = with_kept(&stored, &found).unwrap();
        assert_eq!(kept.allocated.len(), 4, "{:?}", kept.allocated);
        assert_eq!(kept.allocated["10.0.0.2"], "default/lost");
        assert_eq!(kept.allocated_owners["10.0.0.2"], "2");
        assert_eq!(kept.total, 9);
    }

    #[test]
    fn a_claim_that_was_kept_once_stays_and_another_pool_gets_nothing() {
        let before = [entry("lost", "2", Some(("pool", "10.0.0.2")))];
        let stored = pool(&[("10.0.0.2", "default/lost")]);
        let found = changes(&before, std::slice::from_ref(&stored), &[]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].fate, RestoreOutcome::Kept);
        let mut other = pool(&[]);
        other.metadata.name = Some("other".to_owned());
        assert_eq!(with_kept(&other, &found), None);
        assert!(found[0].message().contains("10.0.0.2 of IPPool pool"), "{}", found[0].message());
    }
}
