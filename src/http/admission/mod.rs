//! Admission: gathers the facts that the rules of [`crate::domain::admission`] need, and applies
//! these rules.
//!
//! Invariants:
//! * this module never writes;
//! * a fact that is not available in time is no reason to refuse a request about an IPPool: the
//!   ledger task later applies the same rules;
//! * validation of a LoadBalancer fails if the pool that the object names, or the pool of its
//!   present address, cannot be read.

pub mod load_balancers;
pub mod pools;

use std::sync::Arc;

use crate::api::GO_CONTROLLER;
use crate::k8s::leadership::Leadership;
use crate::k8s::read::ApiReader;
use crate::k8s::views::Views;

/// Stage of an admission request. The API server calls the webhook for mutation first, then the one
/// for validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionStage {
    /// Mutation: the answer may change the object.
    Mutation,
    /// Validation: the API server stores the object as it is, or refuses it.
    Validation,
}

impl AdmissionStage {
    /// Name of the stage, for metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mutation => "mutation",
            Self::Validation => "validation",
        }
    }
}

/// Sources of the facts that the rules of admission need.
#[derive(Clone)]
pub struct RuleSources {
    /// Reader of the API server, for facts that must be current.
    pub reader: ApiReader,
    /// Views of the cluster.
    pub views: Views,
    /// Leadership, which names the holder of the Lease.
    pub leadership: Arc<Leadership>,
}

impl RuleSources {
    /// Whether `user` may write the fields that only a leader writes. `own`: the username of this
    /// operator, empty if it is not known. True if one of these holds:
    /// * `user` is this operator.
    /// * `user` is Harvester's Go controller, and a controller other than this operator holds the
    ///   Lease. A standby takes about 0.4 s to see a new holder, and answers by the former holder
    ///   until then.
    pub fn is_leader(&self, user: &str, own: &str) -> bool {
        (!own.is_empty() && user == own)
            || (user == GO_CONTROLLER && self.leadership.other_controller().borrow().is_some())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::future::pending;

    use http::{Request, Response};
    use kube::client::{Body, ClientBuilder};
    use tower::{BoxError, service_fn};

    use super::*;
    use crate::domain::dhcp_lease::DhcpNetworks;
    use crate::metrics::Metrics;

    /// Sources of facts, with an API server that answers no request.
    pub fn silent() -> RuleSources {
        let server = service_fn(|_: Request<Body>| pending::<Result<Response<Body>, BoxError>>());
        let client = ClientBuilder::new(server, "ns").build();
        let metrics = Metrics::new().unwrap();
        RuleSources {
            reader: ApiReader::new(client.clone()),
            views: Views::start(&client, "ns", DhcpNetworks::default(), &metrics),
            leadership: Arc::default(),
        }
    }
}
