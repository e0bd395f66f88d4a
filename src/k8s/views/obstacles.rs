//! Decides from the views whether an address that was leased by DHCP may be published.

use kube::Resource;

use super::{Views, lock};
use crate::api::LoadBalancer;
use crate::domain::LeasedAddress;
use crate::domain::dhcp_lease::{self, AddressUses, OtherHolder, PoolSegment};
use crate::domain::load_balancer::facts;
use crate::domain::reason::NoLease;
use crate::k8s::informer::key;

impl Views {
    /// Returns `lease` unchanged if its address may be published for `lb`. `Err`: the reason why
    /// the address must not be published.
    pub fn unless_in_the_way(
        &self,
        lb: &LoadBalancer,
        lease: LeasedAddress,
    ) -> Result<LeasedAddress, NoLease> {
        match dhcp_lease::why_unusable(&lease, &address_uses(self, lb, &lease)) {
            Some(why) => Err(NoLease::Unusable(why)),
            None => Ok(lease),
        }
    }
}

/// Facts from the views that decide whether the address leased for `lb` may be published. They
/// include all pools. They also include the objects that have the same address: other
/// LoadBalancers, other records (DHCPLeases), and objects of the cluster itself, such as nodes.
fn address_uses(views: &Views, lb: &LoadBalancer, lease: &LeasedAddress) -> AddressUses {
    let address = lease.ip.to_string();
    let age = |meta: &kube::core::ObjectMeta| {
        let created = meta.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
        (created, meta.namespace.clone(), meta.name.clone())
    };
    let mine = (age(lb.meta()), facts::name(lb));
    let older = |meta| age(meta) < mine.0;
    let record = views.record(&mine.1);
    let has_older_record = |meta| record.as_ref().is_none_or(|own| age(meta) < age(own.meta()));
    let pools = views.pools();
    let has_it = |other: &LoadBalancer| {
        let allocated = other.status.as_ref().and_then(|s| s.allocated_address.as_ref());
        allocated.and_then(|a| a.ip.as_ref()) == Some(&address) && facts::name(other) != mine.1
    };
    let published = views.load_balancers.state_filter(has_it);
    let mut others: Vec<OtherHolder> = published
        .iter()
        .map(|other| {
            let claim = facts::published(other);
            let pool = claim.as_ref().and_then(|c| pools.iter().find(|pool| pool.name == c.pool));
            let network = match (pool, views.record(&facts::name(other))) {
                (Some(pool), _) if pool.selector.is_global() => None,
                (Some(pool), _) => Some(pool.selector.network().to_owned()),
                (None, Some(record)) => Some(record.spec.network.clone()),
                (None, None) => Some(facts::requirement(other, &views.around(other)).network),
            };
            OtherHolder {
                segment: network.map(|network| views.segment(&network)),
                by_pool: claim.is_some(),
                publishes: true,
                older: older(other.meta()),
            }
        })
        .collect();
    let recorded = views.records.state_filter(|record| {
        let status = record.status.as_ref();
        status.and_then(|status| status.address.as_ref()) == Some(&address)
            && facts::name(lb) != key(record.meta())
    });
    others.extend(recorded.iter().map(|record| OtherHolder {
        segment: Some(views.segment(&record.spec.network)),
        by_pool: false,
        publishes: false,
        older: has_older_record(record.meta()),
    }));
    let reserved =
        lock(&views.index.infrastructure).reservations(lease.ip.into()).cloned().collect();
    AddressUses {
        segment: views.segment(&lease.network),
        pools: pools
            .into_iter()
            .map(|facts| PoolSegment { segment: views.segment(facts.selector.network()), facts })
            .collect(),
        others,
        reserved,
        range: views.network_range(&lease.network),
        published: facts::leased(lb) == Some(lease.ip),
    }
}
