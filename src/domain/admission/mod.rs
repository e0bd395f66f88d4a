//! Admission: refusals, warnings and changes, decided from a request and known facts.
//!
//! Invariants:
//! * a refusal names the field, the fault and the remedy;
//! * a refused request changes nothing;
//! * an object that does not fit its type never causes a panic. If no rule here refuses the object,
//!   the schema refuses it.

pub mod certificates;
pub mod load_balancer;
pub mod pool;
pub mod webhook_configuration;

use std::fmt;

use serde_json::{Map, Value, json};

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Creation of an object.
    Create,
    /// Update of an existing object.
    Update,
    /// Deletion of an object.
    Delete,
}

/// An admission request from the API server.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionRequest<'a> {
    /// Operation of the request.
    pub operation: Operation,
    /// Subresource of the request: `status`, or empty for the object itself.
    pub subresource: &'a str,
    /// Namespace of the object. Empty for IPPools.
    pub namespace: &'a str,
    /// Name of the object. Empty if the API server will make the name from `generateName` later.
    pub name: &'a str,
    /// Whether the request comes from this operator (any replica). Also `true` for a request of
    /// Harvester's Go controller while a controller other than this operator holds the Lease.
    pub by_operator: bool,
    /// Whether the client sent the request in v1alpha1. If so, the API server has converted
    /// `object` from v1alpha1 to v1beta1. It has converted `old` from v1beta1 to v1alpha1, and back
    /// to v1beta1. Both lack the fields that did not fit into the annotation that carries fields
    /// ([`crate::conversion::annotations`]).
    pub in_v1alpha1: bool,
    /// The object as it would be stored. `None`: the request is a deletion.
    pub object: Option<&'a Value>,
    /// The object as it is stored. `None`: the request is a creation.
    pub old: Option<&'a Value>,
}

impl<'a> AdmissionRequest<'a> {
    /// Object that rules judge and change. `None`: the request is a deletion, or comes from this
    /// operator.
    fn judged(&self) -> Option<&'a Value> {
        self.object.filter(|_| self.operation != Operation::Delete && !self.by_operator)
    }
}

/// Maximum number of refusals in an answer. The same maximum applies to warnings. Further refusals
/// and warnings are dropped.
const MOST: usize = 100;

/// Refusal of a field: the field, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Path of the refused field, such as `spec.ranges[0].rangeEnd`. Empty for the object as a
    /// whole.
    pub field: String,
    /// Fault and remedy: one sentence, without the path.
    pub message: String,
}

impl Refusal {
    fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            return f.write_str(&self.message);
        }
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// Whether the object is being deleted.
fn is_leaving(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// Map under `field` in the object's metadata, such as `labels`. A map that is absent or null is
/// added. `None`: the object has no metadata, or the value under `field` is not a map.
fn metadata_map<'a>(object: &'a mut Value, field: &str) -> Option<&'a mut Map<String, Value>> {
    let metadata = object.get_mut("metadata")?.as_object_mut()?;
    let map = metadata.entry(field).or_insert(Value::Null);
    if map.is_null() {
        *map = json!({});
    }
    map.as_object_mut()
}

/// Answer to a request. The default admits the request unchanged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdmissionAnswer {
    /// Refusals. Empty: the request is admitted.
    pub refusals: Vec<Refusal>,
    /// Warnings for the requesting user. Kubernetes recommends at most 120 characters for each.
    pub warnings: Vec<String>,
    /// Object to store instead of the sent object. `None`: the sent object is stored unchanged.
    /// Only mutation sets this field.
    pub object: Option<Value>,
}

impl AdmissionAnswer {
    /// Adds a refusal. If the answer already has 100 refusals, the new one is dropped.
    pub fn refuse(&mut self, field: impl Into<String>, message: impl Into<String>) {
        if self.refusals.len() < MOST {
            self.refusals.push(Refusal::new(field, message));
        }
    }

    /// Adds a warning. If the answer already has 100 warnings, the new one is dropped.
    pub fn warn(&mut self, warning: impl Into<String>) {
        if self.warnings.len() < MOST {
            self.warnings.push(warning.into());
        }
    }
}
