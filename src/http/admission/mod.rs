//! Admission: gathers what a rule must know, and asks the rules. What may be stored is decided
//! in [`crate::domain::admission`].
//!
//! Invariant: nothing here writes. A fact that cannot be had in time is no reason to refuse, as
//! long as the reconciler reaches the same verdict alone.

mod load_balancers;
mod pools;

use std::sync::Arc;

use crate::api::GO_CONTROLLER;
use crate::domain::admission::{Answer, Request};
use crate::k8s::CallError;
use crate::k8s::lease::Leadership;
use crate::k8s::read::Reader;
use crate::k8s::views::Views;

/// The two calls of the API server for one request: changes first, then judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The object may still be changed.
    Mutation,
    /// It is as it will be stored.
    Validation,
}

impl Stage {
    /// For metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mutation => "mutation",
            Self::Validation => "validation",
        }
    }
}

/// What rules are answered from.
#[derive(Clone)]
pub struct Admission {
    /// For what must be read now.
    pub reader: Reader,
    /// What this process sees of the cluster.
    pub views: Views,
    /// Who holds the Lease.
    pub leadership: Arc<Leadership>,
}

impl Admission {
    /// Whether a user writes what a leader writes: this operator does, and the Go controller while
    /// another controller holds the Lease. The Lease is looked at several times a second.
    pub fn is_leader(&self, user: &str, me: &str) -> bool {
        (!me.is_empty() && user == me)
            || (user == GO_CONTROLLER && self.leadership.other_controller().borrow().is_some())
    }

    /// Answers for a LoadBalancer.
    pub async fn load_balancer(
        &self,
        stage: Stage,
        request: &Request<'_>,
    ) -> Result<Answer, CallError> {
        load_balancers::decide(self, stage, request).await
    }

    /// Answers for an IPPool.
    pub async fn pool(&self, stage: Stage, request: &Request<'_>) -> Result<Answer, CallError> {
        pools::decide(self, stage, request).await
    }
}
