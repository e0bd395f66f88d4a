//! Conflicts between pools, and which of two pools in conflict has precedence.
//!
//! Admission and the ledger task apply the same rules, so that both find the same conflicts:
//! * **Ranges.** Two pools on one network must not have an address in common. Pools on different
//!   networks may. A global pool is on every network. A network is a layer-2 segment ([`Segment`]):
//!   * two NetworkAttachmentDefinitions of one bridge and VLAN are one network;
//!   * a network whose bridge and VLAN are unknown is identified by its name. Until all networks
//!     are listed, it counts as every network;
//!   * a pool that names no network is on the nodes' own network, and so is a pool on the untagged
//!     network of the management bridge.
//! * **One global pool.** There is at most one.
//! * **Order.** Two pools are in conflict if all of these hold, because their names alone could
//!   decide which of them serves a LoadBalancer:
//!   * neither is global, and both have a scope;
//!   * both have the same network name. Pools with different network names do not compete: a
//!     LoadBalancer that names no pool is served by a pool with its own network name, or by the
//!     global pool;
//!   * both have the same priority;
//!   * this priority is not 0, or their scopes overlap.
//!
//! Of two pools in conflict, the older pool has precedence; at equal age, the pool whose name sorts
//! first. The younger pool gives out no new address, even while the older pool itself gives out
//! none because of a third pool. Otherwise, after the deletion of the third pool, the older pool
//! would give out addresses again, and the younger pool would have to stop. A pool that is being
//! deleted, or whose ranges are invalid, gives out nothing and causes no conflict.

pub mod candidates;

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::ranges::{PoolRanges, address_count};
use super::selection::PoolSelector;
use crate::LbFacts;
use crate::network::Segment;
use crate::reason::NoAddressReason;
use api::IPPoolSpec;

/// Facts about a pool, without its ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolFacts {
    /// Name of the pool.
    pub name: String,
    /// Creation time, in seconds since the epoch. A pool that is just being created has `i64::MAX`,
    /// so that it is the youngest.
    pub created: i64,
    /// Whether the pool is being deleted.
    pub deleting: bool,
    /// Selector of the LoadBalancers that the pool serves.
    pub selector: PoolSelector,
    /// Addresses of the pool. `None`: its ranges are invalid.
    pub ranges: Option<PoolRanges>,
}

/// Facts of a pool that are compared with the facts of other pools, to find conflicts.
#[derive(Clone, Copy, Debug)]
pub struct PoolContender<'a> {
    /// Name of the pool.
    pub name: &'a str,
    /// Creation time of the pool, in seconds since the epoch.
    pub created: i64,
    /// Whether the pool gives out addresses when it has no conflict. `false`: the pool is being
    /// deleted, or its ranges are invalid.
    pub serves: bool,
    /// Segment of the network in the pool's selector. Not used for a global pool.
    pub segment: &'a Segment,
    /// Selector of the LoadBalancers that the pool serves.
    pub selector: &'a PoolSelector,
    /// Addresses of the pool. Empty if its ranges are invalid.
    pub ranges: &'a PoolRanges,
}

/// Conflict of a pool with another pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConflict {
    /// Name of the other pool.
    pub with: String,
    /// Cause of the conflict.
    pub over: ConflictCause,
}

/// Cause of a conflict between two pools. The variants are in the order of gravity, the gravest
/// first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConflictCause {
    /// Some addresses are in the ranges of both pools.
    Ranges {
        /// Index, in this pool's `spec.ranges`, of the range with the first overlap.
        mine: usize,
        /// Index, in the other pool's `spec.ranges`, of the range with the first overlap.
        theirs: usize,
        /// First address of the first overlap.
        first: IpAddr,
        /// Last address of the first overlap.
        last: IpAddr,
        /// Number of addresses that are in the ranges of both pools, in all overlaps together.
        count: u128,
        /// Clause that says why both pools are on one network.
        network: String,
    },
    /// Both pools are global.
    Global,
    /// Both pools have this priority, which is not 0.
    Priority(i64),
    /// Both pools have priority 0, and scopes that may match the same LoadBalancer.
    Scope {
        /// Index of the first conflicting entry in this pool's `spec.selector.scope`.
        mine: usize,
        /// Index of the first conflicting entry in the other pool's `spec.selector.scope`.
        theirs: usize,
    },
}

impl PoolFacts {
    /// Facts of a stored pool, from its metadata and its spec.
    pub fn of(meta: &ObjectMeta, spec: &IPPoolSpec) -> Self {
        let name = meta.name.as_deref().unwrap_or_default();
        let created = meta.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
        Self { deleting: meta.deletion_timestamp.is_some(), ..Self::new(name, created, spec) }
    }

    /// Facts of the pool `name`, from its spec. The pool counts as not being deleted. `created`:
    /// creation time in seconds since the epoch.
    pub fn new(name: &str, created: i64, spec: &IPPoolSpec) -> Self {
        Self {
            name: name.to_owned(),
            created,
            deleting: false,
            selector: PoolSelector::new(spec.selector.as_ref()),
            ranges: PoolRanges::parse(&spec.ranges).ok(),
        }
    }

    /// Returns the facts that [`find_conflicts`] compares. `segment`: segment of the pool's
    /// network.
    pub fn contender<'a>(&'a self, segment: &'a Segment) -> PoolContender<'a> {
        static NOTHING: PoolRanges = PoolRanges::none();
        PoolContender {
            name: &self.name,
            created: self.created,
            serves: !self.deleting && self.ranges.is_some(),
            segment,
            selector: &self.selector,
            ranges: self.ranges.as_ref().unwrap_or(&NOTHING),
        }
    }
}

impl PoolContender<'_> {
    /// Reason why addresses of both pools may be announced on one segment. `None`: the pools have
    /// no segment in common.
    fn shared_network(&self, other: &Self) -> Option<String> {
        let (a, b) = (self.selector.network(), other.selector.network());
        let name = |network: &str| match network {
            "" => "the management network".to_owned(),
            network => format!("network {network}"),
        };
        self.meets(other).then(|| {
            if self.selector.is_global() || other.selector.is_global() {
                let global = if other.selector.is_global() { other.name } else { self.name };
                format!("IPPool {global} is global and serves every network")
            } else if a == b {
                format!("both are on {}", name(a))
            } else if [self.segment, other.segment].contains(&&Segment::Unlisted) {
                "the networks of the cluster are not known yet".to_owned()
            } else {
                format!("{} and {} are the same segment", name(a), name(b))
            }
        })
    }

    /// Whether addresses of both pools may be announced on one segment.
    pub fn meets(&self, other: &Self) -> bool {
        let (a, b) = (self.selector, other.selector);
        a.is_global()
            || b.is_global()
            || a.network() == b.network()
            || self.segment.meets(other.segment)
    }

    /// All causes of conflict between the two pools, the gravest first. The pools' age does not
    /// matter. Empty if one of the pools is being deleted or has invalid ranges, or if both have
    /// the same name.
    pub fn contests(&self, other: &Self) -> Vec<ConflictCause> {
        if !self.serves || !other.serves || self.name == other.name {
            return Vec::new();
        }
        let mut contests = Vec::new();
        if self.meets(other)
            && let Some((mine, theirs, first, last, count)) = overlap(self.ranges, other.ranges)
        {
            let network = self.shared_network(other).unwrap_or_default();
            contests.push(ConflictCause::Ranges { mine, theirs, first, last, count, network });
        }
        match (self.selector.is_global(), other.selector.is_global()) {
            (true, true) => contests.push(ConflictCause::Global),
            (false, false) => contests.extend(order(self.selector, other.selector)),
            // No conflict: the global pool comes after all other pools that fit.
            _ => {}
        }
        contests
    }

    /// Key that sorts pools by precedence: the older pool first; at equal age, the pool whose name
    /// sorts first.
    fn age(&self) -> (i64, &str) {
        (self.created, self.name)
    }
}

/// Finds the pools that give out no new address because of an older pool. Returns a map from the
/// name of each such pool to its gravest conflict with an older pool. Of equally grave conflicts,
/// the one with the oldest pool counts.
pub fn find_conflicts(pools: &[PoolContender<'_>]) -> BTreeMap<String, PoolConflict> {
    let mut gravest: BTreeMap<&str, (&PoolContender<'_>, ConflictCause)> = BTreeMap::new();
    let mut compare = |a: usize, b: usize| {
        let (a, b) = (&pools[a], &pools[b]);
        let (senior, junior) = if a.age() < b.age() { (a, b) } else { (b, a) };
        let Some(cause) = junior.contests(senior).into_iter().next() else { return };
        let is_graver = gravest.get(junior.name).is_none_or(|(known, over)| {
            (cause.weight(), senior.age()) < (over.weight(), known.age())
        });
        if is_graver {
            gravest.insert(junior.name, (senior, cause));
        }
    };
    let spans: Vec<_> = pools.iter().map(|pool| pool.ranges.span()).collect();
    candidates::each_meeting(&spans, &mut compare);
    candidates::each_rivalry(pools, &mut compare);
    let conflict = |(senior, over): (&PoolContender<'_>, _)| PoolConflict {
        with: senior.name.to_owned(),
        over,
    };
    gravest.into_iter().map(|(name, found)| (name.to_owned(), conflict(found))).collect()
}

/// All conflicts that a new or changed pool would have with the other pools, the gravest first. The
/// pools' age is ignored, because admission also refuses a pool that would make a younger pool stop
/// giving out addresses.
pub fn against(candidate: &PoolContender<'_>, others: &[PoolContender<'_>]) -> Vec<PoolConflict> {
    let mut conflicts: Vec<PoolConflict> = others
        .iter()
        .flat_map(|other| {
            let contests = candidate.contests(other).into_iter();
            contests.map(|over| PoolConflict { with: other.name.to_owned(), over })
        })
        .collect();
    conflicts.sort_by(|a, b| (a.over.weight(), &a.with).cmp(&(b.over.weight(), &b.with)));
    conflicts
}

/// Reason why a pool's addresses do not fit a LoadBalancer: the pool is on `segment`, and the
/// LoadBalancer's network is on another segment. `None`: the addresses fit, because one of these
/// holds:
/// * the segments are the same;
/// * the LoadBalancer's network is not known;
/// * one of the two segments is [`Segment::Unlisted`];
/// * the pool is global;
/// * the LoadBalancer is of type cluster, and the pool's selector names no network. The guest
///   announces the addresses on the network of its VMs.
pub fn network_mismatch(
    pool: &str,
    selector: &PoolSelector,
    segment: &Segment,
    facts: &LbFacts,
) -> Option<NoAddressReason> {
    let named = facts.segment.as_ref()?;
    let any = selector.is_global() || (facts.guest && selector.network().is_empty());
    (!any && !named.meets(segment)).then(|| NoAddressReason::NetworkMismatch {
        pool: pool.to_owned(),
        pool_network: selector.network().to_owned(),
        network: facts.requirement.network.clone(),
    })
}

/// First overlap of two pools. The fields: index of the range in `a`, index of the range in `b`,
/// first address, last address, and the number of all addresses that the pools share. `None`: no
/// overlap.
pub fn overlap(a: &PoolRanges, b: &PoolRanges) -> Option<(usize, usize, IpAddr, IpAddr, u128)> {
    let (mut left, mut right) = (a.stretches().iter().peekable(), b.stretches().iter().peekable());
    let mut found = None;
    let mut count: u128 = 0;
    // The stretches of each pool are sorted and disjoint, and none has addresses of both families.
    while let (Some(x), Some(y)) = (left.peek(), right.peek()) {
        let (first, last) = (x.first.max(y.first), x.last.min(y.last));
        if first <= last {
            found = found.or(Some((x.range, y.range, first, last)));
            count = count.saturating_add(address_count(first, last));
        }
        if x.last < y.last {
            left.next()
        } else {
            right.next()
        };
    }
    found.map(|(mine, theirs, first, last)| (mine, theirs, first, last, count))
}

/// Conflict over the order of two pools. `None`: no conflict. Precondition: neither pool is global.
/// The pools are in conflict if all of these hold, because their names alone could decide which of
/// them serves a LoadBalancer:
/// * both have a scope, the same network name and the same priority;
/// * the priority is not 0, or the scopes overlap.
fn order(a: &PoolSelector, b: &PoolSelector) -> Option<ConflictCause> {
    if a.network() != b.network()
        || a.priority() != b.priority()
        || !a.has_scope()
        || !b.has_scope()
    {
        return None;
    }
    if a.priority() != 0 {
        return Some(ConflictCause::Priority(a.priority()));
    }
    a.shared_scope(b).map(|(mine, theirs)| ConflictCause::Scope { mine, theirs })
}

impl ConflictCause {
    /// Rank of the cause; the gravest cause has the lowest rank. Each kind of cause has its own
    /// rank.
    pub fn weight(&self) -> u8 {
        match self {
            Self::Ranges { .. } => 0,
            Self::Global => 1,
            Self::Priority(_) => 2,
            Self::Scope { .. } => 3,
        }
    }
}

impl PoolConflict {
    /// Reason of the `Ready` condition of the pool that has this conflict.
    pub fn reason(&self) -> &'static str {
        use crate::reason;
        match self.over {
            ConflictCause::Ranges { .. } => reason::RANGE_CONFLICT,
            ConflictCause::Global => reason::SECOND_GLOBAL_POOL,
            ConflictCause::Priority(_) => reason::PRIORITY_CONFLICT,
            ConflictCause::Scope { .. } => reason::SCOPE_CONFLICT,
        }
    }

    /// Path of this pool's field that causes the conflict.
    pub fn field(&self) -> String {
        match &self.over {
            ConflictCause::Ranges { mine, .. } => format!("spec.ranges[{mine}]"),
            ConflictCause::Global => "spec.selector.scope".to_owned(),
            ConflictCause::Priority(_) => "spec.selector.priority".to_owned(),
            ConflictCause::Scope { mine, .. } => format!("spec.selector.scope[{mine}]"),
        }
    }

    /// Description of the conflict and of its remedy, as one sentence.
    pub fn message(&self) -> String {
        let with = &self.with;
        match &self.over {
            ConflictCause::Ranges { theirs, first, last, count, network, .. } => {
                let what =
                    if first == last { first.to_string() } else { format!("{first} to {last}") };
                let more = if *count > address_count(*first, *last) {
                    format!(" ({count} addresses in all)")
                } else {
                    String::new()
                };
                format!(
                    "the ranges {what}{more} overlap with other pools: IPPool {with} has them in spec.ranges[{theirs}], and {network}; change one of the two, or exclude them here"
                )
            }
            ConflictCause::Global => format!(
                "there is already a global IP pool: {with}; add the ranges there, or narrow the scope of one of the two"
            ),
            ConflictCause::Priority(priority) => format!(
                "the priority can't be the same as the pool {with}: {priority} is taken on this network; choose another one"
            ),
            ConflictCause::Scope { theirs, .. } => format!(
                "scope selector is same as the pool {with} with priority 0: its spec.selector.scope[{theirs}] admits LoadBalancers that this pool admits too; give one of the two a priority, or narrow its scope"
            ),
        }
    }

    /// Message for the `Ready` condition of the younger pool, which gives out no new address
    /// because of this conflict.
    pub fn standing_back(&self) -> String {
        format!(
            "{}: {}; the older pool stays in use, and this pool allocates no new address",
            self.field(),
            self.message()
        )
    }
}

#[cfg(test)]
mod tests;
