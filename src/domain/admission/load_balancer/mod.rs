//! What may be stored as a LoadBalancer.
//!
//! Invariants: whoever is not the operator changes nothing of the status but what is a guest's to
//! write; annotations claim no namespace and no project but the object's own; what was stored
//! before a rule was made can still be labelled, finalized and deleted. Mutation comes first and
//! is idempotent; validation accepts what mutation makes of an object without faults.

mod fill;
mod hints;
mod rules;
mod status;

use std::net::IpAddr;

use serde_json::Value;

use super::{Answer, Operation, Request};
use crate::conversion;
use crate::load_balancer::facts::{self, Surroundings};
use crate::pools::selection::Selector;
use crate::reason::Wait;
use api::{ANNOTATION_V1BETA1_FIELDS, LB_FINALIZER, LoadBalancer};

/// Characters of a warning. The API server cuts what is longer, and drops warnings beyond 4 KiB.
const LONGEST_WARNING: usize = 120;

/// What must be looked up before a request can be answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Asks {
    /// The object as it would be.
    pub lb: LoadBalancer,
    /// The pool that it newly names.
    pub pool: Option<String>,
    /// Whether any pool may serve it: the pools' selectors.
    pub pools: bool,
    /// An address that it newly says to be reached at: whose it is.
    pub address: Option<IpAddr>,
}

/// An IPPool, as far as LoadBalancers must know it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolSeen {
    /// Who it is for.
    pub selector: Selector,
    /// Why it gives out nothing.
    pub idle: Option<String>,
    /// Whether every address is taken.
    pub full: bool,
    /// Why its addresses are not for the LoadBalancer's network.
    pub mismatch: Option<Wait>,
}

/// The pool that `spec.ipPool` names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Named {
    /// It was not asked for, or cannot be seen now.
    #[default]
    Unknown,
    /// There is none by the name.
    Missing,
    /// This one.
    There(PoolSeen),
}

/// What is known besides the request. The default knows nothing, and refuses nothing for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Project and network, from objects that whoever asks does not write.
    pub around: Surroundings,
    /// Why it would get no address: its guest cluster is being removed.
    pub removal: Option<Wait>,
    /// The pool that it names.
    pub named: Named,
    /// The selectors of all pools, if they were asked for and can be seen.
    pub pools: Option<Vec<Selector>>,
    /// Whose the address is that it newly says to be reached at, in words.
    pub taken_by: Option<String>,
}

/// What to look up. `None`: nothing, or the object does not fit its type.
pub fn asks(request: &Request<'_>) -> Option<Asks> {
    if request.operation == Operation::Delete || request.by_operator {
        return None;
    }
    let lb = read(request, request.object?)?;
    let old = request.old.and_then(|old| read(request, old));
    let judged = !facts::is_leaving(&lb) && rules::are_due(&lb, old.as_ref());
    let named = facts::named_pool(&lb);
    Some(Asks {
        pool: named.clone().filter(|_| judged && facts::wants_pool(&lb)),
        pools: judged && facts::wants_pool(&lb) && named.is_none() && !facts::has_address(&lb),
        address: request.old.and_then(|old| status::new_lease(request.object?, old)),
        lb,
    })
}

/// The object as it shall be stored, or why it will not be: what only this stage can tell, because
/// the schema's words would not help.
pub fn mutate(request: &Request<'_>, known: &Known) -> Answer {
    let mut answer = Answer::default();
    let Some(object) = request.object else { return answer };
    if request.operation == Operation::Delete || request.by_operator {
        return answer;
    }
    let mut new = object.clone();
    if let Some(old) = request.old {
        status::keep(&mut new, old, known, &mut answer);
    } else {
        fill::former(&mut new, request);
        status::strip(&mut new, &mut answer);
    }
    if !is_leaving(object) {
        if request.old.is_none_or(|old| old.get("spec") != object.get("spec")) {
            hints::give(object, &mut answer);
            fill::health_check(&mut new, request.old, &mut answer);
        }
        fill::annotations(&mut new, request, &known.around, &mut answer);
    }
    if answer.refusals.is_empty() && new != *object {
        answer.object = Some(new);
    }
    finish(answer)
}

/// Whether the object may be stored as it is.
pub fn validate(request: &Request<'_>, known: &Known) -> Answer {
    let mut answer = Answer::default();
    let Some(object) = request.object else { return answer };
    if request.operation == Operation::Delete || request.by_operator {
        return answer;
    }
    status::judge(object, request.old, known, &mut answer);
    let lost = |object| conversion::annotations::lost(object, ANNOTATION_V1BETA1_FIELDS);
    let newly_lost =
        Some(lost(object)).filter(|fields| request.old.map(lost).as_ref() != Some(fields));
    for field in newly_lost.into_iter().flatten() {
        answer.refuse(field, "is too large for v1alpha1 and would be lost: write it in v1beta1");
    }
    if request.old.is_some_and(|old| has_finalizer(old) && !has_finalizer(object)) {
        answer.warn(
            "metadata.finalizers: the address stays claimed until its Service and its owner are gone",
        );
    }
    if !is_leaving(object)
        && let Some(lb) = read(request, object)
    {
        let old = request.old.and_then(|old| read(request, old));
        rules::judge(&lb, old.as_ref(), known, &mut answer);
    }
    finish(answer)
}

/// The object, in the namespace that was asked for. `None`: it does not fit its type, and the
/// schema says so.
fn read(request: &Request<'_>, object: &Value) -> Option<LoadBalancer> {
    let mut lb: LoadBalancer = serde_json::from_value(object.clone()).ok()?;
    lb.metadata.namespace = Some(request.namespace.to_owned());
    Some(lb)
}

fn is_leaving(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some_and(|time| !time.is_null())
}

fn has_finalizer(object: &Value) -> bool {
    let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    finalizers.is_some_and(|list| list.iter().any(|name| name == LB_FINALIZER))
}

/// Whether a guest cluster is behind it, as far as can be told.
fn is_guest(object: &Value) -> bool {
    object.pointer("/spec/workloadType").is_some_and(|type_| type_ == "cluster")
}

/// Null and empty: what Go clients write for unset.
fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.values().all(is_blank),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// A value as a message shows it: in quotes if it is text, on one line, and not too long.
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

fn finish(mut answer: Answer) -> Answer {
    for warning in &mut answer.warnings {
        *warning = cut(warning, LONGEST_WARNING);
    }
    answer
}

#[cfg(test)]
mod tests;
