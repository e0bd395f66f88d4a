//! Rules of IPPools beyond the schema: refusals, and warnings of surprising effects.
//!
//! Invariants:
//! * admission judges a conflict in the same way as the ledger task ([`conflict`]), or more
//!   strictly. So an admitted request does not make another pool stop giving out addresses.
//!   Exception: two requests at the same time may both be admitted, although their pools conflict;
//! * only changes are judged, so that an object that was stored before a rule existed can still be
//!   labelled, annotated, finalized and corrected;
//! * no rule about the spec refuses a request of the operator, or a change of a pool that is being
//!   deleted;
//! * an orphan (a claim whose LoadBalancer no longer exists) is no reason for a refusal.

mod cluster_networks;
mod leased_addresses;
mod mutation;
mod warnings;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::{Map, Value};

pub use leased_addresses::Leased;
pub use mutation::{mutate, network};

use super::{AdmissionAnswer, AdmissionRequest, Operation, is_leaving};
use crate::limits::text::some_of;
use crate::network::Segment;
use crate::network::infrastructure::HeldBack;
use crate::object_fields::rfc3339;
use crate::pools::conflict::{self, ConflictCause, PoolConflict, PoolFacts};
use crate::pools::manual_release::ManualRelease;
use crate::pools::ranges::{self, PoolRanges, RangeError};
use api::{ANNOTATION_MANUAL_RELEASE, IPPoolSpec, Range};

/// Maximum number of LoadBalancers that a refusal names as owners of addresses. The other owners
/// are only counted.
const NAMED: usize = 3;
/// Maximum number of refusals for conflicts in one answer. The same maximum applies to warnings of
/// conflicts.
const CONFLICTS: usize = 5;
/// Maximum number of entries in a scope. This operator's schema has the same limit; Harvester's
/// schema has none.
const MOST_SCOPES: usize = 1_024;

/// An address in a pool's ledger, and the LoadBalancer for which the ledger records the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimHolder {
    /// The claimed address.
    pub ip: String,
    /// `namespace/name` of the LoadBalancer.
    pub name: String,
    /// UID of the LoadBalancer. Empty if the ledger records no UID.
    pub uid: String,
}

/// Request to create, change or delete a pool. The answer needs facts from other objects.
#[derive(Clone, Debug)]
pub struct PoolQuestion {
    operation: Operation,
    pool: PoolFacts,
    before: Option<PoolFacts>,
    spec: IPPoolSpec,
    /// Whether the pool's ranges or selector are new or changed.
    changed: bool,
    ranges_changed: bool,
    /// Fault of a new range whose start lies after its end. `None`: there is no such range.
    reversed: Option<RangeError>,
    release: Option<Result<ManualRelease, String>>,
    allocated: BTreeMap<String, String>,
    /// Claims that the request would end. The caller looks up which of their LoadBalancers exist.
    pub at_stake: Vec<ClaimHolder>,
}

/// First result for a request: its answer, or a question that needs facts from other objects.
#[derive(Clone, Debug)]
pub enum AnswerOrQuestion {
    /// The request can be answered.
    Decided(AdmissionAnswer),
    /// Other objects must be looked up first.
    Ask(Box<PoolQuestion>),
}

/// Facts from other objects that the rules of pools use.
#[derive(Clone, Debug, Default)]
pub struct PoolRuleFacts {
    /// All stored pools, each with the segment of its network.
    pub pools: Vec<(Arc<PoolFacts>, Segment)>,
    /// Segment of the network that the pool in the request names.
    pub segment: Segment,
    /// Whether the network of the pool in the request exists. `None`: not known.
    pub has_network: Option<bool>,
    /// Claims in [`PoolQuestion::at_stake`] whose LoadBalancer is known to exist. The list may be
    /// incomplete, because one such claim is enough for a refusal.
    pub holders: Vec<ClaimHolder>,
    /// Whether the LoadBalancer of a manual release exists. `None`: not known, or
    /// [`PoolQuestion::releases`] returns no LoadBalancer.
    pub exists: Option<bool>,
    /// Missing namespaces: the scope of the pool in the request names them, but they do not exist.
    pub missing: Vec<String>,
    /// Addresses and networks that the cluster itself uses.
    pub infrastructure: HeldBack,
    /// Addresses that the host leased by DHCP.
    pub leased: Vec<Leased>,
}

/// Answers a request at once, or returns the question if the answer needs facts from other objects.
/// Such facts are needed only if the request changes the ranges or the selector, ends a claim, or
/// has a new manual release.
pub fn answer_or_ask(request: &AdmissionRequest<'_>) -> AnswerOrQuestion {
    let pass = || AnswerOrQuestion::Decided(AdmissionAnswer::default());
    if request.by_operator {
        return pass();
    }
    let old = request.old;
    if let Some(refused) = guard_status(request) {
        return AnswerOrQuestion::Decided(refused);
    }
    if !request.subresource.is_empty() {
        return pass();
    }
    let (object, ends) = match (request.operation, request.object, old) {
        (Operation::Delete, _, Some(old)) => (old, true),
        (Operation::Create | Operation::Update, Some(object), _) => (object, false),
        _ => return pass(),
    };
    if is_leaving(object) {
        return pass();
    }
    let spec = |object: &Value| serde_json::from_value::<IPPoolSpec>(object["spec"].clone()).ok();
    // The schema refuses a new spec that does not fit its type. A pool whose stored spec does not
    // fit its type may be deleted.
    let (Some(spec), before) = (spec(object), old.and_then(spec)) else { return pass() };
    let scopes = |spec: &IPPoolSpec| {
        spec.selector.as_ref().and_then(|selector| selector.scope.as_ref()).map_or(0, Vec::len)
    };
    if scopes(&spec) > MOST_SCOPES.max(before.as_ref().map_or(0, scopes)) && !ends {
        let mut refused = AdmissionAnswer::default();
        let message = format!("has {} entries: {MOST_SCOPES} at most", scopes(&spec));
        refused.refuse("spec.selector.scope", message);
        return AnswerOrQuestion::Decided(refused);
    }
    let made = old.map_or(i64::MAX, created);
    let facts = |spec: &IPPoolSpec| {
        let name = if request.name.is_empty() { "(new)" } else { request.name };
        PoolFacts::new(name, made, spec)
    };
    let (pool, before) = (facts(&spec), before.as_ref().map(facts));
    let old_spec = old.map(|old| &old["spec"]);
    let ranges_changed = old_spec.is_none_or(|old| old["ranges"] != object["spec"]["ranges"]);
    let selector_changed = before.as_ref().is_none_or(|old| old.selector != pool.selector);
    let annotation = |of: &Value| text(of, &["metadata", "annotations", ANNOTATION_MANUAL_RELEASE]);
    let asked = annotation(object).filter(|asked| old.and_then(annotation).as_ref() != Some(asked));
    let holders = old.map(holders).unwrap_or_default();
    let at_stake = if ends {
        holders.clone()
    } else if ranges_changed {
        lost(&holders, before.as_ref(), &pool)
    } else {
        Vec::new()
    };
    let changed = !ends && (ranges_changed || selector_changed);
    if !changed && asked.is_none() && at_stake.is_empty() {
        return pass();
    }
    AnswerOrQuestion::Ask(Box::new(PoolQuestion {
        operation: request.operation,
        allocated: holders.into_iter().map(|holder| (holder.ip, holder.name)).collect(),
        release: asked.filter(|_| !ends).map(|asked| ManualRelease::parse(&asked)),
        ranges_changed: ranges_changed && !ends,
        reversed: new_reversed(&spec, old_spec),
        pool,
        before,
        spec,
        changed,
        at_stake,
    }))
}

impl PoolQuestion {
    /// Network that the pool names, `namespace/name`. Empty for the nodes' own network.
    pub fn network(&self) -> &str {
        self.pool.selector.network()
    }

    /// `namespace/name` of the LoadBalancer that the request's manual release names. `None`: the
    /// request has no manual release that is new and valid, or the ledger does not record the
    /// address for this LoadBalancer.
    pub fn releases(&self) -> Option<&str> {
        let asked = self.release.as_ref()?.as_ref().ok()?;
        let owner = self.allocated.get(&asked.ip.to_string())?;
        (*owner == asked.name).then_some(owner)
    }

    /// Namespaces that the pool's scope names, without the wildcard `*`.
    pub fn namespaces(&self) -> impl Iterator<Item = &str> {
        let scope = self.spec.selector.as_ref().and_then(|selector| selector.scope.as_deref());
        let names = scope.unwrap_or_default().iter().filter_map(|s| s.namespace.as_deref());
        names.filter(|name| !name.is_empty() && *name != "*")
    }

    /// Answers the request. `known`: facts about other objects that the rules need, for example the
    /// holders of the pool's addresses.
    pub fn answer(&self, known: &PoolRuleFacts) -> AdmissionAnswer {
        let mut answer = AdmissionAnswer::default();
        if self.operation == Operation::Delete {
            if !known.holders.is_empty() {
                let who = name_some(&known.holders);
                answer.refuse(
                    "",
                    format!("can't delete pool before releasing all the allocated IP: {who}; delete these LoadBalancers, or give them another pool"),
                );
            }
            return answer;
        }
        if self.ranges_changed {
            let fault =
                PoolRanges::parse(&self.spec.ranges).err().or_else(|| self.reversed.clone());
            if let Some(RangeError { field, message }) = fault {
                answer.refuse(field, message);
            }
            if !known.holders.is_empty() {
                let who = name_some(&known.holders);
                answer.refuse(
                    "spec.ranges",
                    format!("allocated IP {who} is excluded: keep these addresses in the ranges until they are released"),
                );
            }
        }
        if self.changed {
            leased_addresses::check(self, known, &mut answer);
            cluster_networks::check(self, known, &mut answer);
            let (worse, old) = self.conflicts(known);
            for conflict in worse.iter().take(CONFLICTS) {
                answer.refuse(conflict.field(), conflict.message());
            }
            for conflict in old.iter().take(CONFLICTS) {
                answer.warn(format!(
                    "still in conflict with IPPool {} ({})",
                    conflict.with,
                    conflict.reason()
                ));
            }
        }
        self.check_release(known, &mut answer);
        if self.changed && answer.refusals.is_empty() {
            warnings::warn(self, known, &mut answer);
        }
        answer
    }

    /// Conflicts with other pools, in two lists. The first list has the conflicts that are new, or
    /// cover more addresses than before. The second list has the others. If the request changes the
    /// pool's network, all conflicts are new.
    fn conflicts(&self, known: &PoolRuleFacts) -> (Vec<PoolConflict>, Vec<PoolConflict>) {
        let others = known.pools.iter().filter(|(pool, _)| pool.name != self.pool.name);
        let others: Vec<_> = others.map(|(pool, segment)| pool.contender(segment)).collect();
        let of = |pool: &PoolFacts| conflict::against(&pool.contender(&known.segment), &others);
        let same = |before: &&PoolFacts| before.selector.network() == self.pool.selector.network();
        let before = self.before.as_ref().filter(same).map_or_else(Vec::new, of);
        of(&self.pool).into_iter().partition(|conflict| is_news(conflict, &before))
    }

    /// Refuses a manual release that cannot be parsed. A manual release that can be parsed, but
    /// will not be carried out, only gets a warning. Reason: a tool that applies pools from Git
    /// sends the same annotation again, even after the address has another owner.
    fn check_release(&self, known: &PoolRuleFacts, answer: &mut AdmissionAnswer) {
        let Some(asked) = &self.release else { return };
        let field = format!("metadata.annotations[{ANNOTATION_MANUAL_RELEASE}]");
        let asked = match asked {
            Ok(asked) => asked,
            Err(fault) => return answer.refuse(field, fault.clone()),
        };
        let ManualRelease { ip, name } = asked;
        match self.allocated.get(&ip.to_string()) {
            None => answer.warn(format!("{ip} is not allocated here: there is nothing to release")),
            Some(owner) if owner != name => {
                answer.warn(format!("{ip} is held by {owner}, not by {name}: it stays allocated"));
            }
            Some(_) if known.exists == Some(true) => {
                let kept =
                    format!("LoadBalancer {name} exists: {ip} stays allocated until it is deleted");
                answer.warn(kept);
            }
            Some(_) => {}
        }
    }
}

/// Fault of the first new range whose start lies after its end. A range is new if the stored spec
/// (`old_spec`) does not contain it. Returns `None` if no new range has this fault.
fn new_reversed(spec: &IPPoolSpec, old_spec: Option<&Value>) -> Option<RangeError> {
    let stored: Vec<Range> = old_spec
        .and_then(|old| serde_json::from_value(old["ranges"].clone()).ok())
        .unwrap_or_default();
    let mut new = spec.ranges.iter().enumerate().filter(|(_, range)| !stored.contains(range));
    new.find_map(|(index, range)| ranges::reversed(index, range))
}

/// Whether `conflict` is new, or covers more addresses than before. `before`: conflicts of the
/// stored pool. A conflict is new if `before` has no conflict with the same pool and of the same
/// kind.
fn is_news(conflict: &PoolConflict, before: &[PoolConflict]) -> bool {
    !before.iter().any(|old| {
        old.with == conflict.with
            && match (&old.over, &conflict.over) {
                (
                    ConflictCause::Ranges { count: had, .. },
                    ConflictCause::Ranges { count: has, .. },
                ) => has <= had,
                (old, new) => old.weight() == new.weight(),
            }
    })
}

/// Refuses an update that changes the status. `None`: the request is not an update of the pool or
/// of its status, or does not change the status. Precondition: the request does not come from the
/// operator.
fn guard_status(request: &AdmissionRequest<'_>) -> Option<AdmissionAnswer> {
    let (Operation::Update, Some(object), Some(old)) =
        (request.operation, request.object, request.old)
    else {
        return None;
    };
    if !["", "status"].contains(&request.subresource) {
        return None;
    }
    let (new, old) = (&object["status"], &old["status"]);
    let mut fields = [old, new].into_iter().filter_map(Value::as_object).flat_map(Map::keys);
    let field = fields.find(|field| old[*field] != new[*field])?;
    let mut answer = AdmissionAnswer::default();
    answer.refuse(
        format!("status.{field}"),
        format!(
            "is the operator's ledger of the pool's claims, and only the operator writes it: leave the status as it is; release the address of a LoadBalancer that no longer exists by the annotation {ANNOTATION_MANUAL_RELEASE}"
        ),
    );
    Some(answer)
}

/// Claims that the pool would lose by the change. The address of such a claim is in the ranges of
/// the stored pool (`before`), but not in the ranges of the changed pool (`now`). `holders`: all
/// claims of the pool. The result is empty if the ranges of `now` are invalid.
fn lost(holders: &[ClaimHolder], before: Option<&PoolFacts>, now: &PoolFacts) -> Vec<ClaimHolder> {
    let within = |facts: Option<&PoolFacts>, holder: &ClaimHolder| {
        let ranges = facts.and_then(|facts| facts.ranges.as_ref());
        let ip = holder.ip.parse::<IpAddr>().ok();
        ranges.zip(ip).is_some_and(|(ranges, ip)| ranges.find(ip).is_some())
    };
    // Invalid ranges are refused by another rule.
    if now.ranges.is_none() {
        return Vec::new();
    }
    let lost = holders.iter().filter(|h| within(before, h) && !within(Some(now), h));
    lost.cloned().collect()
}

/// Claims of a stored pool, in the order of their addresses.
fn holders(pool: &Value) -> Vec<ClaimHolder> {
    let status = &pool["status"];
    let allocated = status["allocated"].as_object().into_iter().flatten();
    let mut holders: Vec<ClaimHolder> = allocated
        .map(|(ip, name)| ClaimHolder {
            ip: ip.clone(),
            name: name.as_str().unwrap_or_default().to_owned(),
            uid: status["allocatedOwners"][ip].as_str().unwrap_or_default().to_owned(),
        })
        .collect();
    holders.sort_by_key(|holder| (holder.ip.parse::<IpAddr>().ok(), holder.ip.clone()));
    holders
}

fn name_some(holders: &[ClaimHolder]) -> String {
    some_of(holders.iter().map(|holder| format!("{} ({})", holder.ip, holder.name)), NAMED)
}

fn created(object: &Value) -> i64 {
    let time = object["metadata"]["creationTimestamp"].as_str();
    time.and_then(rfc3339::parse).map_or(0, |t| t.timestamp())
}

fn text(object: &Value, path: &[&str]) -> Option<String> {
    let value = path.iter().try_fold(object, |value, key| value.get(*key))?;
    value.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests;
