//! Facts for the rules of IPPools.
//!
//! Other pools are listed from the API server, so that the list includes a pool that another
//! replica has just admitted. If the list fails or is late, the pools in the view are used. A fact
//! that is not available in time never causes a refusal.
//!
//! Two pools in conflict can both be admitted if they are created at the same time. The ledger task
//! then applies the rule about conflicts: the younger pool allocates nothing, and its condition
//! says why.

use std::time::Duration;

use chrono::Utc;
use futures::future::join_all;
use kube::ResourceExt as _;

use super::{AdmissionStage, RuleSources};
use crate::domain::admission::pool::{
    AnswerOrQuestion, ClaimHolder, Leased, PoolQuestion, PoolRuleFacts, answer_or_ask, mutate,
    network,
};
use crate::domain::admission::{AdmissionAnswer, AdmissionRequest};
use crate::domain::dhcp_lease;

/// Maximum number of LoadBalancers that `existing` reads from the API server for one request.
const READS: usize = 16;
/// Time limit for each of three reads from the API server: the list of pools, the LoadBalancers
/// that `existing` reads for one request, and the LoadBalancer of a manual release. The three run
/// at the same time, because the request must be answered within 4.5 s.
const PATIENCE: Duration = Duration::from_secs(2);

/// Answers a review of an IPPool. A read that fails is no reason for a refusal.
pub async fn decide(
    at: &RuleSources,
    stage: AdmissionStage,
    request: &AdmissionRequest<'_>,
) -> AdmissionAnswer {
    if stage == AdmissionStage::Mutation {
        let vlan = request.object.and_then(|object| at.views.vlan_of(network(object)));
        return mutate(request, vlan);
    }
    match answer_or_ask(request) {
        AnswerOrQuestion::Decided(answer) => answer,
        AnswerOrQuestion::Ask(question) => question.answer(&known(at, &question).await),
    }
}

async fn known(at: &RuleSources, question: &PoolQuestion) -> PoolRuleFacts {
    let views = &at.views;
    let released = async {
        match question.releases() {
            Some(name) => exists(at, name).await,
            None => None,
        }
    };
    let (listed, holders, exists) = tokio::join!(
        tokio::time::timeout(PATIENCE, at.reader.pools(views)),
        existing(at, &question.at_stake),
        released,
    );
    let pools = listed.ok().and_then(Result::ok).unwrap_or_else(|| views.pools());
    let pools = pools.into_iter().map(|pool| {
        let segment = views.segment(pool.selector.network());
        (pool, segment)
    });
    let missing = question.namespaces().filter(|name| views.has_namespace(name) == Some(false));
    PoolRuleFacts {
        pools: pools.collect(),
        segment: views.segment(question.network()),
        has_network: views.has_network(question.network()),
        holders,
        exists,
        missing: missing.map(str::to_owned).collect(),
        infrastructure: views.held_back(),
        leased: leased(at),
    }
}

/// Addresses that the host cluster leases now, according to the DHCPLeases in the view.
fn leased(at: &RuleSources) -> Vec<Leased> {
    let views = &at.views;
    let now = Utc::now().fixed_offset();
    let records = views.records.state();
    let leased = records.iter().filter_map(|record| {
        let lease = dhcp_lease::usable(record, now)?;
        let namespace = record.namespace().unwrap_or_default();
        let name = format!("{namespace}/{}", record.name_any());
        Some(Leased { ip: lease.ip, name, segment: views.segment(&lease.network) })
    });
    leased.collect()
}

/// Returns the claims in `holders` whose LoadBalancer is in the view. If there is no such claim,
/// the LoadBalancers may be newer than the view: then up to `READS` of them are read from the API
/// server, and the claims of those that exist are returned. Returns no claim if these reads
/// together take longer than `PATIENCE`.
async fn existing(at: &RuleSources, holders: &[ClaimHolder]) -> Vec<ClaimHolder> {
    let is = |holder: &ClaimHolder, uid: &str| holder.uid.is_empty() || holder.uid == uid;
    let seen = |holder: &ClaimHolder| {
        let (namespace, name) = holder.name.split_once('/')?;
        at.views.uid_of(namespace, name)
    };
    let (mut found, suspects): (Vec<_>, Vec<_>) =
        holders.iter().partition(|holder| seen(holder).is_some_and(|uid| is(holder, &uid)));
    if found.is_empty() {
        let asked = suspects.into_iter().take(READS).map(async |holder: &ClaimHolder| {
            let (namespace, name) = holder.name.split_once('/')?;
            let uid = at.reader.uid_of(namespace, name).await.ok()??;
            is(holder, &uid).then_some(holder)
        });
        let answers = tokio::time::timeout(PATIENCE, join_all(asked)).await.unwrap_or_default();
        found.extend(answers.into_iter().flatten());
    }
    found.into_iter().cloned().collect()
}

/// Whether a LoadBalancer exists. `name`: its `namespace/name`. `None`: unknown, because the API
/// server did not answer within `PATIENCE` or returned an error, or `name` has no namespace.
async fn exists(at: &RuleSources, name: &str) -> Option<bool> {
    let (namespace, name) = name.split_once('/')?;
    let answer = tokio::time::timeout(PATIENCE, at.reader.uid_of(namespace, name)).await.ok()?;
    answer.ok().map(|uid| uid.is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::api::ANNOTATION_MANUAL_RELEASE;
    use crate::domain::admission::Operation;
    use crate::http::admission::tests::silent;

    /// The request excludes one address and releases another, so it needs all three reads.
    #[tokio::test]
    async fn the_reads_of_a_request_wait_at_the_same_time() {
        let pool = |annotations: Value, range: Value| {
            json!({
                "metadata": {"name": "web", "annotations": annotations},
                "spec": {"ranges": [range]},
                "status": {"allocated": {"10.0.0.10": "ns/a", "10.0.0.20": "ns/b"}},
            })
        };
        let old = pool(json!({}), json!({"subnet": "10.0.0.0/24"}));
        let new = pool(
            json!({ANNOTATION_MANUAL_RELEASE: "10.0.0.20: ns/b"}),
            json!({"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.16"}),
        );
        let request = AdmissionRequest {
            operation: Operation::Update,
            subresource: "",
            namespace: "",
            name: "web",
            by_operator: false,
            in_v1alpha1: false,
            object: Some(&new),
            old: Some(&old),
        };
        let (began, rules) = (Instant::now(), silent());
        // After a stall of the machine, `timeout` looks for the answer before it looks at the
        // limit.
        let answer = decide(&rules, AdmissionStage::Validation, &request);
        timeout(PATIENCE * 3 / 2, answer).await.expect("one after the other");
        assert!(began.elapsed() >= PATIENCE, "it waited for no read");
    }
}
