//! Current pools and LoadBalancers, and when they were first seen.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::objects::{Balancer, Pool};

/// All pools and LoadBalancers, as last seen.
#[derive(Debug, Default)]
pub(crate) struct Scene {
    pub(crate) pools: BTreeMap<String, Pool>,
    /// LoadBalancers by `namespace/name`.
    pub(crate) balancers: BTreeMap<String, Seen>,
}

/// A LoadBalancer and when it was first seen.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) now: Balancer,
    first: Instant,
    /// Time at which its address was first seen.
    pub(crate) addressed: Option<Instant>,
}

/// A change of a pool or LoadBalancer.
#[derive(Debug)]
pub(crate) enum News {
    Pool(Pool),
    PoolGone(String),
    Balancer(Balancer),
    BalancerGone(String),
    /// A new list of all pools.
    Pools(Vec<Pool>),
    /// A new list of all LoadBalancers.
    Balancers(Vec<Balancer>),
}

impl Scene {
    pub(crate) fn note(&mut self, at: Instant, news: News) {
        match news {
            News::Pool(pool) => {
                self.pools.insert(pool.name.clone(), pool);
            }
            News::PoolGone(name) => {
                self.pools.remove(&name);
            }
            News::Balancer(balancer) => self.note_balancer(at, balancer),
            News::BalancerGone(key) => {
                self.balancers.remove(&key);
            }
            News::Pools(pools) => {
                self.pools = pools.into_iter().map(|pool| (pool.name.clone(), pool)).collect();
            }
            News::Balancers(all) => {
                self.balancers.retain(|key, _| all.iter().any(|balancer| balancer.key == *key));
                for balancer in all {
                    self.note_balancer(at, balancer);
                }
            }
        }
    }

    fn note_balancer(&mut self, at: Instant, now: Balancer) {
        let before = self.balancers.remove(&now.key).filter(|seen| seen.now.uid == now.uid);
        let first = before.as_ref().map_or(at, |seen| seen.first);
        let addressed = before.and_then(|seen| seen.addressed).or(now.address.as_ref().map(|_| at));
        self.balancers.insert(now.key.clone(), Seen { now, first, addressed });
    }

    /// LoadBalancers with an address of the pool.
    pub(crate) fn holders(&self, pool: &str) -> Vec<&Balancer> {
        let all = self.balancers.values().map(|seen| &seen.now);
        all.filter(|balancer| balancer.pool == pool && balancer.address.is_some()).collect()
    }

    /// All addresses, by namespace and name of the LoadBalancer.
    pub(crate) fn addresses(&self) -> BTreeMap<&str, &str> {
        let all = self.balancers.iter();
        all.filter_map(|(key, seen)| Some((key.as_str(), seen.now.address.as_deref()?))).collect()
    }

    /// The LoadBalancers of a namespace.
    pub(crate) fn of_namespace(&self, namespace: &str) -> impl Iterator<Item = &Seen> {
        let prefix = format!("{namespace}/");
        let all = self.balancers.iter();
        all.filter(move |(key, _)| key.starts_with(&prefix)).map(|(_, seen)| seen)
    }
}

impl Seen {
    /// Time from the first sight of the LoadBalancer to the first sight of its address.
    pub(crate) fn took(&self) -> Option<Duration> {
        Some(self.addressed?.saturating_duration_since(self.first))
    }

    /// Whether the operator has reported a result: an address, or a refusal with its reason.
    pub(crate) fn settled(&self) -> bool {
        let said = !self.now.reason.is_empty();
        said && (self.now.address.is_some() || self.now.ready == "False")
    }
}
