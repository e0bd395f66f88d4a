//! Which pools may serve a LoadBalancer, and in which order.
//!
//! One total order: pools whose network is exactly the required one and whose scope matches
//! strictly; then those that match because a blank project or guest cluster of a scope stands
//! for any; then the global pool. Within each group the higher priority wins, then the name.
//! A `*` counts in a pool's scope only: a LoadBalancer cannot widen its own reach.
//!
//! Harvester's own UI writes scopes that name a namespace alone, and Harvester's webhook leaves the
//! project of a vm LoadBalancer blank, so that both match there. Here the project is known for both
//! workload types, and a blank one in the scope admits any.

use std::cmp::Reverse;
use std::fmt;

use api;

/// What a LoadBalancer's address must fit. An empty field means "not given".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requirement {
    /// The network, `namespace/name`.
    pub network: String,
    /// The Rancher project, `cluster/project`.
    pub project: String,
    /// The LoadBalancer's namespace.
    pub namespace: String,
    /// The guest cluster.
    pub cluster: String,
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{{network:{:?} project:{:?} namespace:{:?} cluster:{:?}}}",
            self.network, self.project, self.namespace, self.cluster
        )
    }
}

/// Who a pool is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    network: String,
    scope: Vec<Scope>,
    priority: i64,
    global: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Scope {
    project: String,
    namespace: String,
    cluster: String,
}

/// How well a pool fits. Lower is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fit {
    /// Network and scope match.
    Strict,
    /// They match when blank project and guest cluster stand for any.
    Loose,
    /// The pool serves whatever no other does.
    Global,
}

const ANY: &str = "*";

impl Selector {
    /// Reads a pool's selector. The pool is global if its scope is one entry of three `*`, as
    /// Harvester's webhook decides it; the label of global pools says so and does not make it so.
    pub fn new(selector: Option<&api::Selector>) -> Self {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let scope: Vec<Scope> = selector
            .and_then(|s| s.scope.as_deref())
            .unwrap_or_default()
            .iter()
            .map(|s| Scope {
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

    /// How well the pool fits a LoadBalancer that names none. `None`: not at all.
    pub fn fit(&self, requirement: &Requirement) -> Option<Fit> {
        if self.network == requirement.network && !self.global {
            if self.scope.iter().any(|s| s.admits(requirement, false)) {
                return Some(Fit::Strict);
            }
            if self.scope.iter().any(|s| s.admits(requirement, true)) {
                return Some(Fit::Loose);
            }
        }
        self.global.then_some(Fit::Global)
    }

    /// The network, `namespace/name`, or nothing.
    pub fn network(&self) -> &str {
        &self.network
    }

    /// Higher is chosen first.
    pub fn priority(&self) -> i64 {
        self.priority
    }

    /// Whether the pool serves whatever no other does.
    pub fn is_global(&self) -> bool {
        self.global
    }

    /// Whether it serves anybody who does not name it.
    pub fn has_scope(&self) -> bool {
        !self.scope.is_empty()
    }

    /// Entries of the two scopes that one LoadBalancer may match, by their places.
    pub fn shared_scope(&self, other: &Self) -> Option<(usize, usize)> {
        self.scope.iter().enumerate().find_map(|(mine, scope)| {
            let theirs = other.scope.iter().position(|theirs| scope.overlaps(theirs))?;
            Some((mine, theirs))
        })
    }

    /// Whether a LoadBalancer may name the pool. Anyone may if the pool has no scope.
    pub fn may_be_named_by(&self, requirement: &Requirement) -> bool {
        self.global
            || self.scope.is_empty()
            || self.scope.iter().any(|s| s.admits(requirement, true))
    }

    /// Sorts pools that fit: the best first. `name` breaks ties.
    pub fn rank<'a>(&self, fit: Fit, name: &'a str) -> (Fit, Reverse<i64>, &'a str) {
        (fit, Reverse(self.priority), name)
    }
}

impl Scope {
    /// Whether something matches both, strictly: blank equals blank. Where blank stands for any,
    /// the more exact match is preferred anyway.
    fn overlaps(&self, other: &Self) -> bool {
        let both = |a: &str, b: &str| a == b || a == ANY || b == ANY;
        // Every LoadBalancer has a namespace: a blank one matches none.
        let real = !self.namespace.is_empty() && !other.namespace.is_empty();
        real && both(&self.project, &other.project)
            && both(&self.namespace, &other.namespace)
            && both(&self.cluster, &other.cluster)
    }

    fn admits(&self, requirement: &Requirement, loose: bool) -> bool {
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
