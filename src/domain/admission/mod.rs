//! What may be stored: refusals, warnings and changes, decided from a request and what is known.
//!
//! Invariants: a refusal names the field, what is wrong with it and what would be right. A refused
//! request changes nothing. Objects that come in may be of any shape: what does not fit its type is
//! left for the schema to refuse, and never a reason to panic.

pub mod certificates;
pub mod load_balancer;
pub mod pool;
pub mod webhook_configuration;

use std::fmt;

use serde_json::Value;

/// What is asked of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A new object.
    Create,
    /// An object that is there.
    Update,
    /// Its end.
    Delete,
}

/// A request, as the API server passes it on.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What is asked for.
    pub operation: Operation,
    /// The part of the object that is asked for: `status`, or empty for the object itself.
    pub subresource: &'a str,
    /// The object's namespace. Empty for IPPools.
    pub namespace: &'a str,
    /// The object's name. Empty when the API server has yet to make one from `generateName`.
    pub name: &'a str,
    /// Who asks.
    pub user: &'a str,
    /// Whether that is who leads: this operator in any of its replicas, or the Go controller while
    /// that holds the Lease.
    pub by_operator: bool,
    /// The object as it would be. `None` when it is deleted.
    pub object: Option<&'a Value>,
    /// The object as it is. `None` when it is created.
    pub old: Option<&'a Value>,
}

/// Refusals and warnings that an answer keeps, of each. More are shown nowhere.
const MOST: usize = 100;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Path of the field: `spec.ranges[0].rangeEnd`. Empty for the object as a whole.
    pub field: String,
    /// What is wrong, and what would be right: one sentence, without the path.
    pub message: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            return f.write_str(&self.message);
        }
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// What is answered. The default lets the request pass as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Why not. Empty: it may be done.
    pub refusals: Vec<Refusal>,
    /// What will surprise whoever asks. kubectl shows each on a line; at most 120 characters.
    pub warnings: Vec<String>,
    /// The object as it shall be instead; only before it is judged.
    pub object: Option<Value>,
}

impl Answer {
    /// Adds a refusal, up to a hundred.
    pub fn refuse(&mut self, field: impl Into<String>, message: impl Into<String>) {
        if self.refusals.len() < MOST {
            self.refusals.push(Refusal { field: field.into(), message: message.into() });
        }
    }

    /// Adds a warning, up to a hundred.
    pub fn warn(&mut self, warning: impl Into<String>) {
        if self.warnings.len() < MOST {
            self.warnings.push(warning.into());
        }
    }
}
