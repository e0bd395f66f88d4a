//! Admission of LoadBalancers.
//!
//! Invariants:
//! * only the operator changes the status, with two exceptions: a guest writes `address`, and other
//!   clients may write conditions other than Ready;
//! * the annotations for namespace and project have the values of the object's own namespace;
//! * an object that was stored before a rule existed can still be labelled, finalized and deleted;
//! * mutation comes first and is idempotent;
//! * if an object has no faults, validation accepts the result of its mutation.

mod defaults;
mod frequent_mistakes;
mod rules;
mod status;

use std::net::IpAddr;

use serde_json::Value;

use super::{AdmissionAnswer, AdmissionRequest, is_leaving};
use crate::conversion::annotations;
use crate::load_balancer::facts::{self, LbSurroundings};
use crate::pools::selection::PoolSelector;
use crate::reason::NoAddressReason;
use api::{ANNOTATION_V1BETA1_FIELDS, LB_FINALIZER, LoadBalancer};

/// Maximum length of a warning, in characters. Kubernetes recommends this maximum. The API server
/// may cut a warning of more than 256 characters.
const LONGEST_WARNING: usize = 120;

/// Facts to look up before a request can be answered.
#[derive(Clone, Debug, PartialEq)]
pub struct FactRequests {
    /// The object as it would be stored.
    pub lb: LoadBalancer,
    /// Pool to look up: the pool that the object names, if the rules check this pool. `None`: no
    /// pool is looked up.
    pub pool: Option<String>,
    /// Pool of the object's present address, to look up because the object's network changes.
    /// `None`: no pool is looked up.
    pub claimed: Option<String>,
    /// Whether to look up the selectors of all pools, to see if any pool may serve the object.
    pub pools: bool,
    /// Address that the object newly publishes as leased from a DHCP server, to look up what else
    /// uses this address. `None`: no address is looked up.
    pub address: Option<IpAddr>,
}

/// Facts about an IPPool that the rules of LoadBalancers use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CandidatePool {
    /// Selector of the LoadBalancers that the pool serves.
    pub selector: PoolSelector,
    /// Reason why the pool gives out no addresses: it is being deleted, or a range is invalid.
    /// `None`: neither is the case. Conflicts with other pools are not looked up.
    pub idle: Option<String>,
    /// Whether LoadBalancers publish all addresses of the pool. Claims that are not published yet
    /// do not count.
    pub full: bool,
    /// Reason why the pool's addresses do not fit the LoadBalancer's network. `None`: the addresses
    /// fit.
    pub mismatch: Option<NoAddressReason>,
}

/// Result of the search for a pool by its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NamedPool {
    /// The pool was not looked up.
    #[default]
    Unknown,
    /// No pool has this name.
    Missing,
    /// The pool exists.
    There(CandidatePool),
}

/// Facts about other objects, for the rules of LoadBalancers. The default contains no facts. With
/// the default, no rule refuses a request because of another object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LbRuleFacts {
    /// Project of the LoadBalancer's namespace, network of its guest cluster's VMs, and addresses
    /// of its Service. These facts come from other objects, not from the request.
    pub around: LbSurroundings,
    /// Reason why the LoadBalancer would get no address: its guest cluster is being removed.
    /// `None`: no removal is known.
    pub removal: Option<NoAddressReason>,
    /// Pool that the LoadBalancer names.
    pub named: NamedPool,
    /// Pool of the LoadBalancer's present address, if the LoadBalancer's network changes.
    pub claimed: NamedPool,
    /// Selectors of all pools. `None`: the selectors were not looked up, not all pools are in the
    /// view yet, or the view contains no pool.
    pub pools: Option<Vec<PoolSelector>>,
    /// Text about another use of the address that the object newly publishes as leased. An example
    /// is `a gateway`. `None`: no other use of the address is known.
    pub taken_by: Option<String>,
}

/// Facts to look up before the request can be answered. `None`: the request is a deletion or comes
/// from this operator, or the object does not fit its type.
pub fn asks(request: &AdmissionRequest<'_>) -> Option<FactRequests> {
    let object = request.judged()?;
    let lb = read(request, object)?;
    let old = request.old.and_then(|old| read(request, old));
    let judged = !facts::is_leaving(&lb) && rules::are_due(&lb, old.as_ref());
    let named = facts::named_pool(&lb);
    let moving = old.as_ref().filter(|old| judged && rules::changes_network(&lb, old));
    Some(FactRequests {
        pool: named.clone().filter(|_| judged && facts::wants_pool(&lb)),
        claimed: moving.and_then(facts::published).map(|claim| claim.pool),
        pools: judged && facts::wants_pool(&lb) && named.is_none() && !facts::has_address(&lb),
        address: request.old.and_then(|old| status::new_lease(object, old)),
        lb,
    })
}

/// Returns the answer of the mutation stage: the changed object, or refusals, or neither if nothing
/// changes. Each refusal names the remedy. The schema would refuse the same objects later, but
/// without a remedy.
pub fn mutate(request: &AdmissionRequest<'_>, known: &LbRuleFacts) -> AdmissionAnswer {
    let mut answer = AdmissionAnswer::default();
    let Some(object) = request.judged() else { return answer };
    let mut new = object.clone();
    if let Some(old) = request.old {
        status::restore_fields(&mut new, old, known, &mut answer);
    } else {
        defaults::former(&mut new, request);
        status::strip(&mut new, &mut answer);
    }
    if !is_leaving(object) {
        if request.old.is_none_or(|old| old.get("spec") != object.get("spec")) {
            frequent_mistakes::give(object, &mut answer);
            defaults::health_check(&mut new, request.old, &mut answer);
        }
        defaults::annotations(&mut new, request, &known.around, &mut answer);
    }
    if answer.refusals.is_empty() && new != *object {
        answer.object = Some(new);
    }
    finish(answer)
}

/// Returns the answer of the validation stage. Without refusals, the object may be stored as it is.
pub fn validate(request: &AdmissionRequest<'_>, known: &LbRuleFacts) -> AdmissionAnswer {
    let mut answer = AdmissionAnswer::default();
    let Some(object) = request.judged() else { return answer };
    status::check(object, request.old, known, &mut answer);
    check_losses(object, request, &mut answer);
    if request.old.is_some_and(|old| has_finalizer(old) && !has_finalizer(object)) {
        answer.warn(
            "metadata.finalizers: the address stays claimed until the LoadBalancer and its Service are gone",
        );
    }
    if !is_leaving(object)
        && let Some(lb) = read(request, object)
    {
        let old = request.old.and_then(|old| read(request, old));
        rules::check(&lb, old.as_ref(), known, &mut answer);
    }
    finish(answer)
}

/// Refuses requests by which fields of the spec would be lost. An annotation carries the fields
/// that v1alpha1 lacks. A field that does not fit into the annotation is lost, and the annotation
/// contains only its name ([`annotations::lost`]). A request is refused in two cases:
/// * The annotation names lost fields. Exception: a request in v1beta1, if the stored object has
///   lost the same fields.
/// * The other annotations leave no room for the names of lost fields, so that a loss would not be
///   noticed. Exception: a request in v1beta1 that does not enlarge the other annotations.
///
/// For a request in v1alpha1, the stored object is judged too. The API server has converted this
/// object to v1alpha1 and back. So it may lack fields here that etcd still has, and that the write
/// would remove.
fn check_losses(object: &Value, request: &AdmissionRequest<'_>, answer: &mut AdmissionAnswer) {
    let lost = |object: &Value| annotations::lost(object, ANNOTATION_V1BETA1_FIELDS);
    let (mut fields, old_fields) = (lost(object), request.old.map(lost).unwrap_or_default());
    if request.in_v1alpha1 {
        fields.extend(old_fields);
        fields.sort_unstable();
        fields.dedup();
    } else if fields == old_fields {
        fields.clear();
    }
    for field in fields {
        answer.refuse(field, "is too large for v1alpha1 and would be lost: write it in v1beta1");
    }
    let others = |object: &Value| annotations::size_of_others(object, ANNOTATION_V1BETA1_FIELDS);
    let (size, old_size) = (others(object), request.old.map_or(0, others));
    let largest = size.max(old_size);
    if largest > annotations::MOST_OF_OTHERS && (request.in_v1alpha1 || size > old_size) {
        answer.refuse(
            "metadata.annotations",
            format!(
                "have {largest} bytes, so v1alpha1 would lose fields of the spec: must have at most {} bytes, shorten them in v1beta1",
                annotations::MOST_OF_OTHERS
            ),
        );
    }
}

/// Parses the object, with the namespace of the request. `None`: the object does not fit its type,
/// and the schema refuses it.
fn read(request: &AdmissionRequest<'_>, object: &Value) -> Option<LoadBalancer> {
    let mut lb: LoadBalancer = serde_json::from_value(object.clone()).ok()?;
    lb.metadata.namespace = Some(request.namespace.to_owned());
    Some(lb)
}

fn has_finalizer(object: &Value) -> bool {
    let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    finalizers.is_some_and(|list| list.iter().any(|name| name == LB_FINALIZER))
}

/// Whether the LoadBalancer belongs to a guest cluster, by its `workloadType`.
fn is_guest(object: &Value) -> bool {
    object.pointer("/spec/workloadType").is_some_and(|type_| type_ == "cluster")
}

/// Whether the value is null, empty text, an empty list, or a map with only such values. Go clients
/// write such values for unset fields.
fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.values().all(is_blank),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Text that shows a value in a message: on one line, at most 64 characters long, and in quotes if
/// the value is text.
fn shown(value: &Value) -> String {
    cut(&value.to_string(), 64)
}

fn cut(text: &str, longest: usize) -> String {
    if text.chars().count() <= longest {
        return text.to_owned();
    }
    let kept: String = text.chars().take(longest.saturating_sub(3)).collect();
    format!("{kept}...")
}

fn finish(mut answer: AdmissionAnswer) -> AdmissionAnswer {
    for warning in &mut answer.warnings {
        *warning = cut(warning, LONGEST_WARNING);
    }
    answer
}

#[cfg(test)]
mod tests;
