//! Reads the stored pools and LoadBalancers before a take-over, for the forecast.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::api::{DHCP_ADDRESS, IPPool, LoadBalancer};
use crate::domain::dhcp_lease::Networks;
use crate::domain::load_balancer::facts;
use crate::domain::pools::allocator::PoolSeen;
use crate::domain::takeover::forecast::Stored;
use crate::k8s::guard::Guard;
use crate::k8s::trimmed::{self, Trimmed};
use crate::k8s::views::Views;
use crate::k8s::{CallError, call};
use crate::metrics::Metrics;

/// Longest wait for lists of everything that addresses depend on.
const LISTED: Duration = Duration::from_mins(1);
/// Pools in one answer of a list.
const PAGE: u32 = 100;

/// Reads pools and LoadBalancers, and what their addresses depend on, as the operator does when it starts.
pub(super) async fn read(
    client: &Client,
    namespace: &str,
    metrics: &Metrics,
) -> anyhow::Result<Stored> {
    let views = Views::start(client, namespace, Networks::default(), metrics);
    let listed = async {
        views.synced().await;
        views.wait_for_infrastructure().await;
    };
    tokio::time::timeout(LISTED, listed)
        .await
        .with_context(|| format!("not every kind could be listed within {} s", LISTED.as_secs()))?;
    views.networks_listed(LISTED).await;
    let mut unreadable = Vec::new();
    let pools = list::<IPPool>(client, PAGE, &mut unreadable).await?;
    let lbs = list::<Trimmed>(client, trimmed::PAGE, &mut unreadable).await?;
    let load_balancers: Vec<LoadBalancer> = lbs.into_iter().map(|trimmed| trimmed.lb).collect();
    let asking = load_balancers
        .iter()
        .filter(|lb| facts::wants_pool(lb) && !facts::is_leaving(lb))
        .filter(|lb| views.removal_of(lb).is_none());
    let facts = asking
        .map(|lb| facts::facts(lb, &views.around(lb), |network| views.segment(network), true))
        .collect();
    Ok(Stored {
        pools: pools.iter().map(|pool| seen(pool, &views)).collect(),
        held_back: views.infrastructure.held_back(),
        facts,
        load_balancers,
        unreadable,
    })
}

fn seen(pool: &IPPool, views: &Views) -> PoolSeen {
    let network = pool.spec.selector.as_ref().and_then(|selector| selector.network.as_deref());
    PoolSeen::new(pool, views.segment(network.unwrap_or_default()))
}

/// The address of each LoadBalancer that has one, by `namespace/name`.
pub(super) async fn addresses(client: &Client) -> anyhow::Result<BTreeMap<String, String>> {
    let lbs = list::<Trimmed>(client, trimmed::PAGE, &mut Vec::new()).await?;
    let address = |lb: &LoadBalancer| {
        let allocated = lb.status.as_ref()?.allocated_address.as_ref()?.ip.clone()?;
        (!allocated.is_empty() && allocated != DHCP_ADDRESS).then_some(allocated)
    };
    Ok(lbs.iter().filter_map(|lb| Some((facts::name(&lb.lb), address(&lb.lb)?))).collect())
}

/// Every object of a kind. What does not fit the type is named in `unreadable`.
async fn list<K>(
    client: &Client,
    page: u32,
    unreadable: &mut Vec<(String, String)>,
) -> Result<Vec<K>, CallError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let api = Api::<Guard<K>>::all(client.clone());
    let mut params = ListParams::default().limit(page);
    let mut items = Vec::new();
    loop {
        let page = call(api.list(&params)).await?;
        for object in page.items {
            match object.0 {
                Ok(object) => items.push(object),
                Err(misfit) => {
                    let meta = &misfit.metadata;
                    let namespace = meta.namespace.as_ref().map(|name| format!("{name}/"));
                    let name = meta.name.clone().unwrap_or_default();
                    let object =
                        format!("{} {}{name}", K::kind(&()), namespace.unwrap_or_default());
                    unreadable.push((object, misfit.to_string()));
                }
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(items),
        }
    }
}
