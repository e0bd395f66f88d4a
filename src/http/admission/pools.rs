//! Facts for the rules of IPPools.
//!
//! Other pools are listed from the API server, so that the list includes a pool that another
//! replica has just admitted. Two pools created at the same time can still both be admitted. Then
//! the ledger task applies the same rule: the younger pool allocates nothing, and its condition
//! says why. No request is refused because a fact is not available in time. If the list of pools is
//! not available, the view is used.

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
use crate::k8s::CallError;

/// Maximum number of LoadBalancers that are read from the API server for one request.
const READS: usize = 16;
/// Time limit for each of three reads from the API server: the list of pools, the LoadBalancers of
/// one request together, and the LoadBalancer of a manual release.
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) async fn decide(
    at: &RuleSources,
    stage: AdmissionStage,
    request: &AdmissionRequest<'_>,
) -> Result<AdmissionAnswer, CallError> {
    if stage == AdmissionStage::Mutation {
        let vlan = request.object.and_then(|object| at.views.vlan_of(network(object)));
        return Ok(mutate(request, vlan));
    }
    match answer_or_ask(request) {
        AnswerOrQuestion::Decided(answer) => Ok(answer),
        AnswerOrQuestion::Ask(question) => Ok(question.answer(&known(at, &question).await)),
    }
}

async fn known(at: &RuleSources, question: &PoolQuestion) -> PoolRuleFacts {
    let views = &at.views;
    let listed = tokio::time::timeout(PATIENCE, at.reader.pools(views)).await;
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
        holders: existing(at, &question.at_stake).await,
        exists: match question.releases() {
            Some(name) => exists(at, name).await,
            None => None,
        },
        missing: missing.map(str::to_owned).collect(),
        infrastructure: views.infrastructure.held_back(),
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

/// Returns the claims in `holders` whose LoadBalancer exists. If the view has none of these
/// LoadBalancers, up to `READS` of them are read from the API server, because they may be newer
/// than the view. If they are not all read within `PATIENCE`, for example because many requests
/// wait for such reads, none of them counts. A claim whose LoadBalancer no longer exists blocks
/// nothing: the ledger task releases it later.
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
/// server did not answer within `PATIENCE`, or returned an error.
async fn exists(at: &RuleSources, name: &str) -> Option<bool> {
    let (namespace, name) = name.split_once('/')?;
    let answer = tokio::time::timeout(PATIENCE, at.reader.uid_of(namespace, name)).await.ok()?;
    answer.ok().map(|uid| uid.is_some())
}
