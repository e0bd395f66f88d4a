//! Reads the stored objects for the forecast of the `takeover` and `preview` commands, as the
//! operator reads them when it starts.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

use super::CallError;
use super::calls::ApiCalls as _;
use super::guard::Guard;
use super::informer::key;
use super::read_only::RefusedReads;
use super::takeover::PATIENCE;
use super::trimmed::TrimmedLb;
use super::views::Views;
use crate::api::{ANNOTATION_IMPORTED, DHCP_ADDRESS, IPPool, LoadBalancer};
use crate::domain::dhcp_lease::DhcpNetworks;
use crate::domain::load_balancer::facts;
use crate::domain::pools::kube_vip_import::{self, ImportFacts};
use crate::domain::preview::unread::ReadFailure;
use crate::domain::reason::NoAddressReason;
use crate::domain::takeover::forecast::StoredObjects;
use crate::metrics::Metrics;

/// Longest wait until the lists of all kinds that the forecast depends on are complete.
const LISTED: Duration = Duration::from_mins(1);

/// Result of [`read`].
pub struct ReadResult {
    /// Pools and LoadBalancers, and the facts that their addresses depend on.
    pub stored: StoredObjects,
    /// The pools of `stored`, with their metadata. A pool whose name is in [`Self::imported`] does
    /// not exist yet.
    pub pools: Vec<IPPool>,
    /// Names of the pools that the operator would make from kube-vip's ConfigMap.
    pub imported: Vec<String>,
    /// LoadBalancers that get no address, because their guest cluster is being removed. The key is
    /// the LoadBalancer's `namespace/name`. The value is the reason.
    pub removals: BTreeMap<String, NoAddressReason>,
    /// Views of every kind that the operator watches. Pools and LoadBalancers are among them.
    pub views: Views,
    /// Resources that were not read in time. Their objects may be missing in `views`. Contains
    /// `configmaps` also if kube-vip's ConfigMap could not be read. In that case, `imported` is
    /// empty. Reads that the API server refused are in [`RefusedReads`] instead.
    pub late: Vec<&'static str>,
}

/// Reads pools and LoadBalancers, and the objects that their addresses depend on. `namespace` is
/// the operator's own namespace, and `dhcp` has the operator's options about DHCP networks. Does
/// not wait for a read that `refusals` contains. Fails if pools or LoadBalancers cannot be listed.
pub async fn read(
    client: &Client,
    refusals: &RefusedReads,
    namespace: &str,
    dhcp: DhcpNetworks,
    metrics: &Metrics,
) -> anyhow::Result<ReadResult> {
    let mut unreadable = Vec::new();
    // Pools and LoadBalancers are listed before all other kinds, so that the command ends at once
    // if the user has no right to list one of the two. Pools come first. So the later list of
    // LoadBalancers contains the owner of each claim, if the owner exists.
    let pools = list::<IPPool>(client, &mut unreadable).await;
    let mut pools = pools.map_err(|error| needed("ippools", error, refusals))?;
    let lbs = list::<TrimmedLb>(client, &mut unreadable).await;
    let lbs = lbs.map_err(|error| needed("loadbalancers", error, refusals))?;
    let load_balancers: Vec<LoadBalancer> = lbs.into_iter().map(|trimmed| trimmed.lb).collect();
    let views = Views::start(client, namespace, dhcp, metrics);
    let is_refused = |verb: &str, resource: &str| {
        refusals.all().keys().any(|read| read.verb == verb && read.resource == resource)
    };
    let mut late = views.listed_within_reach(LISTED, is_refused).await;
    let imported = imported(client, &pools, &load_balancers).await;
    if imported.is_err() && !late.contains(&"configmaps") {
        late.push("configmaps");
    }
    let imported = imported.unwrap_or_default();
    let names = imported.iter().map(kube::ResourceExt::name_any).collect();
    pools.extend(imported);
    let removals: BTreeMap<String, NoAddressReason> = load_balancers
        .iter()
        .filter_map(|lb| Some((facts::name(lb), views.removal_of(lb)?)))
        .collect();
    let asking = load_balancers
        .iter()
        .filter(|lb| facts::wants_pool(lb) && !facts::is_leaving(lb))
        .filter(|lb| !removals.contains_key(&facts::name(lb)));
    let facts = asking
        .map(|lb| facts::facts(lb, &views.around(lb), |network| views.segment(network), true))
        .collect();
    let stored = StoredObjects {
        pools: pools.iter().map(|pool| views.seen(pool)).collect(),
        held_back: views.held_back(),
        facts,
        load_balancers,
        unreadable,
    };
    Ok(ReadResult { stored, pools, imported: names, removals, views, late })
}

/// Pools that the operator would make from kube-vip's ConfigMap before it allocates the first
/// address. The result is empty if the ConfigMap does not exist, if it was imported before, or if
/// the API server refuses the read ([`CallError::refusal`]). `Err`: the read failed in another way.
async fn imported(
    client: &Client,
    pools: &[IPPool],
    lbs: &[LoadBalancer],
) -> Result<Vec<IPPool>, CallError> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), kube_vip_import::NAMESPACE);
    let map = match maps.within(PATIENCE).call_get_opt(kube_vip_import::NAME).await {
        Err(error) if error.refusal().is_some() => None,
        map => map?,
    };
    let is_done = |map: &ConfigMap| {
        map.annotations().get(ANNOTATION_IMPORTED).is_some_and(|done| done == "true")
    };
    let Some(map) = map.filter(|map| !is_done(map)) else { return Ok(Vec::new()) };
    let known = ImportFacts { pools: pools.to_vec(), load_balancers: facts::addresses(lbs) };
    let import = kube_vip_import::plan(&map.data.unwrap_or_default(), &known);
    let new = import.pools.into_iter().filter(|pool| !pool.there);
    let pools = new.map(|new| {
        let mut pool = IPPool::new(&new.name, new.spec);
        // Of two pools in conflict, the older one stays in use. A pool that does not exist yet
        // counts as the youngest.
        pool.metadata.creation_timestamp = Some(Time(Timestamp::now()));
        pool.status.get_or_insert_default().allocated_history = new.history;
        pool
    });
    Ok(pools.collect())
}

/// Value of `status.allocatedAddress.ip` of each LoadBalancer, by the LoadBalancer's
/// `namespace/name`. Omits LoadBalancers without such an address, and those whose address kube-vip
/// leases.
pub async fn addresses(client: &Client) -> anyhow::Result<BTreeMap<String, String>> {
    let lbs = list::<TrimmedLb>(client, &mut Vec::new()).await?;
    let address = |lb: &LoadBalancer| {
        let allocated = lb.status.as_ref()?.allocated_address.as_ref()?.ip.clone()?;
        (!allocated.is_empty() && allocated != DHCP_ADDRESS).then_some(allocated)
    };
    Ok(lbs.iter().filter_map(|lb| Some((facts::name(&lb.lb), address(&lb.lb)?))).collect())
}

/// Error that [`read`] returns if it cannot list `resource`. `error` is the failure of the list.
/// `refusals` shows whether the cluster serves `resource`.
fn needed(resource: &str, error: CallError, refusals: &RefusedReads) -> anyhow::Error {
    let refused = refusals.all();
    let unserved =
        refused.iter().any(|(r, why)| r.resource == resource && *why == ReadFailure::NotServed);
    if unserved {
        anyhow::anyhow!(
            "cannot list {resource}: the cluster does not serve them. Is it a Harvester cluster?"
        )
    } else {
        error.into()
    }
}

/// Every object of the kind `K`, in all namespaces, except those that do not fit the type. An
/// object that does not fit its type is added to `unreadable`: field 0 is its kind and key, and
/// field 1 is the reason.
pub async fn list<K>(
    client: &Client,
    unreadable: &mut Vec<(String, String)>,
) -> Result<Vec<K>, CallError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let api = Api::<Guard<K>>::all(client.clone());
    let mut items = Vec::new();
    let take = |object: Guard<K>| match object.0 {
        Ok(object) => items.push(object),
        Err(misfit) => {
            let object = format!("{} {}", K::kind(&()), key(&misfit.metadata));
            unreadable.push((object, misfit.to_string()));
        }
    };
    api.within(PATIENCE).list_each(take).await?;
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::tests::changing_client;

    #[tokio::test]
    async fn a_failed_read_of_kube_vips_configmap_is_not_an_empty_configmap() {
        for (code, reason, is_known) in [
            (404, "NotFound", true),
            (403, "Forbidden", true),
            (429, "TooManyRequests", false),
            (503, "ServiceUnavailable", false),
        ] {
            let client = changing_client(code, code, reason);
            let pools = imported(&client, &[], &[]).await;
            assert_eq!(pools.is_ok(), is_known, "{code}: {pools:?}");
        }
    }
}
