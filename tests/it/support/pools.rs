//! Steps of administrators with pools, and the agreement of their ledgers with LoadBalancers.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::{
    Condition, ConditionStatus, IPPool, IPPoolStatus, LoadBalancer,
};
use harvester_guest_operator::domain::pools::ranges::PoolRanges;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::eventually;

use super::{Cluster, LATER, SOON};

pub(crate) fn pool(name: &str, spec: &Value) -> Result<IPPool> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1",
        "kind": "IPPool",
        "metadata": {"name": name},
        "spec": spec,
    }))?)
}

impl Cluster {
    /// Creates a global pool with one range.
    pub(crate) async fn pool(&self, name: &str, range: Value) -> Result<IPPool> {
        let any = json!({"scope": [{"project": "*", "namespace": "*", "guestCluster": "*"}]});
        self.pool_for(name, range, any).await
    }

    /// Creates a pool with one range and the selector given.
    pub(crate) async fn pool_for(
        &self,
        name: &str,
        range: Value,
        selector: Value,
    ) -> Result<IPPool> {
        self.pool_with(name, json!({"ranges": [range], "selector": selector})).await
    }

    /// Creates a pool with this spec.
    pub(crate) async fn pool_with(&self, name: &str, spec: Value) -> Result<IPPool> {
        Ok(self.pools().create(&PostParams::default(), &pool(name, &spec)?).await?)
    }

    pub(crate) async fn patch_pool(&self, name: &str, patch: Value) -> Result<IPPool> {
        Ok(self.pools().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?)
    }

    pub(crate) async fn patch_pool_status(&self, name: &str, patch: Value) -> Result<IPPool> {
        Ok(self.pools().patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await?)
    }

    /// Ledger of the pool.
    pub(crate) async fn allocated(&self, pool: &str) -> Result<BTreeMap<String, String>> {
        Ok(self.pools().get(pool).await?.status.unwrap_or_default().allocated)
    }

    pub(crate) async fn pool_status(&self, name: &str) -> Result<IPPoolStatus> {
        Ok(self.pools().get(name).await?.status.unwrap_or_default())
    }

    /// Waits until a condition of the pool is false for this reason, and returns the message.
    pub(crate) async fn pool_says(&self, name: &str, type_: &str, reason: &str) -> Result<String> {
        eventually(SOON, &format!("{reason} of {name}"), async || {
            let status = self.pool_status(name).await.map_err(|e| e.to_string())?;
            let says = |c: &&Condition| {
                c.type_ == type_
                    && c.status == ConditionStatus::False
                    && c.reason.as_deref() == Some(reason)
            };
            match status.conditions.iter().find(says) {
                Some(found) => Ok(Some(found.message.clone().unwrap_or_default())),
                None => Err(format!("{:?}", status.conditions)),
            }
        })
        .await
    }

    pub(crate) async fn pool_deleted(&self, name: &str) -> Result<()> {
        self.pools().delete(name, &DeleteParams::default()).await?;
        self.pool_gone(name).await
    }

    pub(crate) async fn pool_gone(&self, name: &str) -> Result<()> {
        eventually(SOON, &format!("end of pool {name}"), async || {
            self.pools().get_opt(name).await.map(|pool| pool.is_none())
        })
        .await
    }

    /// Waits until ledgers and LoadBalancers agree: every claim is published by its owner, every
    /// published address is claimed, and no address occurs twice.
    pub(crate) async fn consistent(&self) -> Result<()> {
        eventually(LATER, "agreement of ledgers and LoadBalancers", async || {
            self.check().await.map(|()| true).map_err(|e| format!("{e:#}"))
        })
        .await
    }

    async fn check(&self) -> Result<()> {
        let mut claims: BTreeMap<(String, String), (String, String)> = BTreeMap::new();
        let mut addresses = BTreeMap::new();
        for pool in self.pools().list(&ListParams::default()).await? {
            let status = pool.status.clone().unwrap_or_default();
            for (ip, owner) in &status.allocated {
                let uid = status.allocated_owners.get(ip).cloned().unwrap_or_default();
                let other = addresses.insert(ip.clone(), owner.clone());
                ensure!(other.is_none(), "{ip} is claimed twice: {other:?} and {owner}");
                claims.insert((pool.name_any(), ip.clone()), (owner.clone(), uid));
            }
            let taken = status.total - status.available;
            // A claim outside of the ranges stays, and is not counted.
            let ranges = PoolRanges::parse(&pool.spec.ranges).ok();
            let is_counted = |ip: &&String| {
                let within = |ranges: &PoolRanges| {
                    ip.parse::<IpAddr>().is_ok_and(|ip| ranges.find(ip).is_some())
                };
                ranges.as_ref().is_none_or(within)
            };
            let claimed = i64::try_from(status.allocated.keys().filter(is_counted).count())?;
            let holds_back = status.conditions.iter().any(|condition| {
                condition.message.as_ref().is_some_and(|text| text.starts_with("held back: "))
            });
            // The counts of a very large IPv6 pool stop at the field's maximum.
            let counted =
                status.total == i64::MAX || taken == claimed || (holds_back && taken > claimed);
            ensure!(counted, "counts are wrong: {status:?}");
        }
        for lb in Api::<LoadBalancer>::all(self.client.clone()).list(&ListParams::default()).await?
        {
            let Some(allocated) = lb.status.as_ref().and_then(|s| s.allocated_address.clone())
            else {
                continue;
            };
            let Some(pool) = allocated.ip_pool else { continue };
            let key = (pool, allocated.ip.unwrap_or_default());
            let owner = claims
                .remove(&key)
                .with_context(|| format!("{key:?} is published and not claimed"))?;
            let name = format!("{}/{}", lb.namespace().unwrap_or_default(), lb.name_any());
            ensure!(owner.0 == name, "{key:?} is published by {name} and claimed for {}", owner.0);
            let uid = lb.uid().unwrap_or_default();
            ensure!(owner.1.is_empty() || owner.1 == uid, "{key:?} is claimed for another {name}");
        }
        ensure!(claims.is_empty(), "claimed and not published: {claims:?}");
        Ok(())
    }
}
