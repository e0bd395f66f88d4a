//! Pools that may serve a LoadBalancer. Their order for a LoadBalancer that names no pool:
//!
//! 1. The pools that are on exactly the required network, and have a scope that matches strictly: a
//!    blank field of the scope matches only a blank value.
//! 2. The pools on that network whose scope matches only because a blank project or guest cluster
//!    admits any value.
//! 3. The global pool.
//!
//! Within each group, the pool with the highest priority comes first, and names break ties. A `*`
//! is a wildcard only in a pool's scope, not in a value of the LoadBalancer.
//!
//! Group 2 exists because Harvester's UI writes scopes that name only a namespace. In Harvester,
//! such a scope matches vm LoadBalancers strictly, because Harvester's webhook leaves their project
//! blank. This operator knows their project, so without group 2 these LoadBalancers would have no
//! pool.

use std::cmp::Reverse;
use std::fmt;

use api;

/// Facts about a LoadBalancer that the selector of its pool must match. An empty field means that
/// the LoadBalancer has no such value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolRequirement {
    /// Network, `namespace/name`.
    pub network: String,
    /// Rancher project, `cluster/project`.
    pub project: String,
    /// Namespace of the LoadBalancer.
    pub namespace: String,
    /// Name of the guest cluster.
    pub cluster: String,
}

impl fmt::Display for PoolRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{{network:{:?} project:{:?} namespace:{:?} cluster:{:?}}}",
            self.network, self.project, self.namespace, self.cluster
        )
    }
}

/// Selector of a pool: the LoadBalancers that the pool serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolSelector {
    network: String,
    scope: Vec<PoolScope>,
    priority: i64,
    global: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PoolScope {
    project: String,
    namespace: String,
    cluster: String,
}

/// Rank of a pool that fits a LoadBalancer. Lower is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PoolFit {
    /// The pool's network and scope match the LoadBalancer strictly: a blank field of the scope
    /// matches only a blank value.
    Strict,
    /// The pool's network and scope match the LoadBalancer only because a blank project or guest
    /// cluster in the scope admits any value.
    Loose,
    /// The global pool, which comes after all other pools that fit.
    Global,
}

const ANY: &str = "*";

impl PoolSelector {
    /// Reads the selector of a pool. A selector that is `None` counts as an empty one. The pool is
    /// global if its scope is a single entry with `*` as project, namespace and guest cluster.
    /// Harvester's webhook has the same rule. Harvester's label for global pools has no effect.
    pub fn new(selector: Option<&api::Selector>) -> Self {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let scope: Vec<PoolScope> = selector
            .and_then(|s| s.scope.as_deref())
            .unwrap_or_default()
            .iter()
            .map(|s| PoolScope {
                project: text(&s.project),
                namespace: text(&s.namespace),
                cluster: text(&s.guest_cluster),
            })
            .collect();
        let global = matches!(scope.as_slice(), [one]
            if one.project == ANY && one.namespace == ANY && one.cluster == ANY);
        Self {
            network: selector.map(|s| text(&s.network)).unwrap_or_default(),
            priority: selector.and_then(|s| s.priority).unwrap_or_default(),
            global,
            scope,
        }
    }

    /// Rank of the pool for a LoadBalancer that names no pool. `None`: the pool does not fit.
    pub fn fit(&self, requirement: &PoolRequirement) -> Option<PoolFit> {
        if self.network == requirement.network && !self.global {
            if self.scope.iter().any(|s| s.admits(requirement, false)) {
                return Some(PoolFit::Strict);
            }
            if self.scope.iter().any(|s| s.admits(requirement, true)) {
                return Some(PoolFit::Loose);
            }
        }
        self.global.then_some(PoolFit::Global)
    }

    /// Network of the pool, `namespace/name`. Empty for the nodes' own network.
    pub fn network(&self) -> &str {
        &self.network
    }

    /// Priority of the pool. Of the pools with equal [`PoolFit`], the one with the highest priority
    /// comes first.
    pub fn priority(&self) -> i64 {
        self.priority
    }

    /// Whether the pool is the global pool, which fits every LoadBalancer and comes last in the
    /// order.
    pub fn is_global(&self) -> bool {
        self.global
    }

    /// Whether the pool has a scope. A pool without a scope serves only LoadBalancers that name it.
    pub fn has_scope(&self) -> bool {
        !self.scope.is_empty()
    }

    /// Indices of the first pair of scope entries (one entry of each pool) that the same
    /// LoadBalancer may match strictly. `None`: there is no such pair.
    pub fn shared_scope(&self, other: &Self) -> Option<(usize, usize)> {
        self.scope.iter().enumerate().find_map(|(mine, scope)| {
            let theirs = other.scope.iter().position(|theirs| scope.overlaps(theirs))?;
            Some((mine, theirs))
        })
    }

    /// Whether a LoadBalancer may name the pool: the pool is global or has no scope, or its scope
    /// admits the LoadBalancer.
    pub fn may_be_named_by(&self, requirement: &PoolRequirement) -> bool {
        self.global
            || self.scope.is_empty()
            || self.scope.iter().any(|s| s.admits(requirement, true))
    }

    /// Sort key of a pool that fits: the best pool comes first. `name` breaks ties.
    pub fn rank<'a>(&self, fit: PoolFit, name: &'a str) -> (PoolFit, Reverse<i64>, &'a str) {
        (fit, Reverse(self.priority), name)
    }
}

impl PoolScope {
    /// Whether the same LoadBalancer may match both entries strictly: a blank field matches only a
    /// blank value. Loose matches do not count. A strict match comes before a loose one. Between
    /// two loose matches, the order of the pools' names is allowed to decide.
    fn overlaps(&self, other: &Self) -> bool {
        let both = |a: &str, b: &str| a == b || a == ANY || b == ANY;
        // Every LoadBalancer has a namespace, so an entry with a blank namespace matches no
        // LoadBalancer.
        let real = !self.namespace.is_empty() && !other.namespace.is_empty();
        real && both(&self.project, &other.project)
            && both(&self.namespace, &other.namespace)
            && both(&self.cluster, &other.cluster)
    }

    /// Whether the entry matches a LoadBalancer. `loose`: whether a blank project or guest cluster
    /// in the entry admits any value.
    fn admits(&self, requirement: &PoolRequirement, loose: bool) -> bool {
        let blank_or =
            |field: &str, value: &str| loose && field.is_empty() || matches(field, value);
        blank_or(&self.project, &requirement.project)
            && matches(&self.namespace, &requirement.namespace)
            && blank_or(&self.cluster, &requirement.cluster)
    }
}

fn matches(field: &str, value: &str) -> bool {
    field == ANY || field == value
}

#[cfg(test)]
mod tests;
