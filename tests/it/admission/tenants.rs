//! A tenant with all rights on LoadBalancers, VMs and Services of its namespace looks for a way out
//! of it. Each fails, and its answer gives the reason.
//!
//! The scene is that of [`super::load_balancers`]: the tenant is of `team`, whose pool is `ours`;
//! the victim is `theirs/victim` at `10.2.0.2` of pool `theirs`.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::{Value, json};
use testbed::eventually;

use super::load_balancers::{Stage, TEAM, whole};
use super::said::{Said, ask, send};
use crate::support::{SOON, address};

const GUEST: &str = "{spec: {workloadType: cluster}}";
const VICTIM: &str = "10.2.0.2";
const THEIRS: &str = "/apis/loadbalancer.harvesterhci.io/v1beta1/namespaces/theirs/loadbalancers";
const POOL: &str = "/apis/loadbalancer.harvesterhci.io/v1beta1/ippools/theirs";
const OWNED: &str = "only the operator writes it";

/// Expected result of a way out.
enum End {
    /// Refused, with this code and this text.
    Refused(u16, &'static str),
    /// Accepted with this warning, and gains no foreign address: the address, if any, is of
    /// an own pool.
    Warned(&'static str),
    /// Accepted, has no effect, and gains no foreign address.
    Futile,
}

/// A request, made when the LoadBalancer `before` has its address.
struct Way {
    name: &'static str,
    /// The existing object. Empty: none.
    before: &'static str,
    method: &'static str,
    path: String,
    headers: Vec<(&'static str, &'static str)>,
    body: Value,
    end: End,
}

fn way(name: &'static str, method: &'static str, path: &str, body: Value, end: End) -> Way {
    let type_ = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let headers = vec![("content-type", type_)];
    Way { name, before: "", method, path: path.to_owned(), headers, body, end }
}

fn new(name: &'static str, object: &str, end: End) -> Result<Way> {
    Ok(way(name, "POST", TEAM, whole(object)?, end))
}

/// A merge patch to a LoadBalancer with an address.
fn change(name: &'static str, before: &'static str, patch: Value, end: End) -> Way {
    Way { before, ..way(name, "PATCH", &format!("{TEAM}/lb"), patch, end) }
}

fn typed(way: Way, type_: &'static str) -> Way {
    Way { headers: vec![("content-type", type_)], ..way }
}

#[allow(clippy::too_many_lines)] // A list.
fn ways(victim_uid: &str, pool_uid: &str) -> Result<Vec<Way>> {
    let claim = json!({"status": {"allocatedAddress": {"ipPool": "theirs", "ip": VICTIM}}});
    let at = |address: &str| json!({"status": {"address": address}});
    let leased = "{spec: {workloadType: cluster, ipam: dhcp}}";
    let json_patch =
        json!([{"op": "replace", "path": "/status/allocatedAddress/ip", "value": VICTIM}]);
    let apply = json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"name": "lb"}, "status": claim["status"],
    });
    let mut as_operator = change(
        "in the operator's name",
        GUEST,
        claim.clone(),
        End::Refused(403, "cannot impersonate"),
    );
    as_operator.headers.push((
        "impersonate-user",
        "system:serviceaccount:harvester-system:harvester-guest-operator",
    ));
    let managed = format!("{TEAM}/lb?fieldManager=harvester-guest-operator");
    let mut same_uid = whole(GUEST)?;
    same_uid["metadata"]["uid"] = json!(victim_uid);
    let mut elsewhere = whole(GUEST)?;
    elsewhere["metadata"]["namespace"] = json!("theirs");
    let owned = json!({"metadata": {"ownerReferences": [{
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "IPPool", "name": "theirs",
        "uid": pool_uid, "controller": true,
    }]}});
    Ok(vec![
        // Annotations.
        new(
            "any project",
            "{annotations: {loadbalancer.harvesterhci.io/project: '*'}, spec: {workloadType: cluster}}",
            End::Warned("annotation project: set to \"local/ours\""),
        )?,
        new(
            "another project",
            "{annotations: {loadbalancer.harvesterhci.io/project: local/theirs}, spec: {workloadType: cluster}}",
            End::Warned("annotation project: set to \"local/ours\""),
        )?,
        new(
            "another namespace",
            "{annotations: {loadbalancer.harvesterhci.io/namespace: theirs}, spec: {workloadType: cluster}}",
            End::Warned("annotation namespace: set to \"team\""),
        )?,
        new(
            "any cluster",
            "{annotations: {loadbalancer.harvesterhci.io/cluster: '*'}, labels: {cloudprovider.harvesterhci.io/cluster: '*'}, spec: {workloadType: cluster}}",
            End::Refused(422, "Invalid value"),
        )?,
        new(
            "a network without a pool",
            "{annotations: {loadbalancer.harvesterhci.io/network: '*'}, spec: {workloadType: cluster}}",
            End::Warned("no IPPool admits this LoadBalancer now"),
        )?,
        change(
            "annotations later",
            GUEST,
            json!({"metadata": {"annotations": {"loadbalancer.harvesterhci.io/project": "local/theirs"}}}),
            End::Warned("annotation project: set to \"local/ours\""),
        ),
        // Pools.
        new(
            "another's pool",
            "{spec: {workloadType: cluster, ipPool: theirs}}",
            End::Refused(422, "whose scope does not admit"),
        )?,
        new(
            "another's pool, for any cluster",
            "{annotations: {loadbalancer.harvesterhci.io/cluster: '*', loadbalancer.harvesterhci.io/project: '*'}, spec: {workloadType: cluster, ipPool: theirs}}",
            End::Refused(422, "whose scope does not admit"),
        )?,
        change(
            "another's pool later",
            GUEST,
            json!({"spec": {"ipPool": "theirs"}}),
            End::Refused(422, "whose scope does not admit"),
        ),
        way(
            "another's ledger",
            "PATCH",
            &format!("{POOL}/status"),
            json!({"status": {"allocated": {VICTIM: "team/lb"}}}),
            End::Refused(403, "forbidden"),
        ),
        // The status.
        change("the victim's claim", GUEST, claim.clone(), End::Refused(422, OWNED)),
        change(
            "the victim's address in a pool that is not",
            GUEST,
            json!({"status": {"allocatedAddress": {"ipPool": "ghost", "ip": VICTIM}}}),
            End::Refused(422, OWNED),
        ),
        change(
            "a free address",
            GUEST,
            json!({"status": {"allocatedAddress": {"ip": "10.1.0.77"}}}),
            End::Refused(422, OWNED),
        ),
        typed(
            change("by a list of changes", GUEST, json_patch, End::Refused(422, OWNED)),
            "application/json-patch+json",
        ),
        Way {
            before: GUEST,
            ..typed(
                way(
                    "by server-side apply",
                    "PATCH",
                    &format!("{TEAM}/lb?fieldManager=me&force=true"),
                    apply,
                    End::Refused(422, OWNED),
                ),
                "application/apply-patch+yaml",
            )
        },
        Way {
            before: GUEST,
            ..way(
                "under the operator's name as manager",
                "PATCH",
                &managed,
                claim.clone(),
                End::Refused(422, OWNED),
            )
        },
        Way {
            before: GUEST,
            ..way(
                "by a subresource",
                "PATCH",
                &format!("{TEAM}/lb/status"),
                claim.clone(),
                End::Refused(404, "not found"),
            )
        },
        as_operator,
        change(
            "to release its own address and claim it again",
            GUEST,
            json!({"status": null}),
            End::Futile,
        ),
        new(
            "as a backup",
            "{spec: {workloadType: cluster}, status: {address: 10.2.0.2, allocatedAddress: {ipPool: theirs, ip: 10.2.0.2}}}",
            End::Warned("the sent status is dropped"),
        )?,
        change("of what is leased", leased, claim, End::Refused(422, OWNED)),
        // The published address.
        change(
            "at the victim's address",
            GUEST,
            at(VICTIM),
            End::Warned("is not the claimed address"),
        ),
        change("leased, at the victim's address", leased, at(VICTIM), End::Warned("is in use")),
        change("leased, at another's gateway", leased, at("10.2.0.1"), End::Warned("is a gateway")),
        change(
            "of VMs, at the victim's address",
            "{spec: {listeners: [{name: a, port: 80}]}}",
            at(VICTIM),
            End::Refused(422, OWNED),
        ),
        // Names and identities.
        new("by the victim's name", "{name: victim, spec: {workloadType: cluster}}", End::Futile)?,
        way("with the victim's UID", "POST", TEAM, same_uid, End::Futile),
        way(
            "in another namespace",
            "POST",
            THEIRS,
            elsewhere.clone(),
            End::Refused(403, "forbidden"),
        ),
        way(
            "with a claim in another namespace",
            "POST",
            TEAM,
            elsewhere,
            End::Refused(400, "does not match the namespace"),
        ),
        change("owned by another's pool", GUEST, owned, End::Futile),
        change(
            "without its finalizer",
            GUEST,
            json!({"metadata": {"finalizers": []}}),
            End::Warned("metadata.finalizers: "),
        ),
    ])
}

/// Makes the request when the LoadBalancer `before` has its address.
async fn go(stage: &Stage, way: &Way) -> Result<Said> {
    if !way.before.is_empty() {
        let object = whole(way.before)?;
        let said = ask(&stage.tenant, "POST", TEAM, &object).await?;
        ensure!(said.accepted(), "{said:?}");
        let has = async || stage.lbs("team").get("lb").await.map(|lb| address(&lb).is_some());
        eventually(SOON, "address", has).await?;
    }
    send(&stage.tenant, way.method, &way.path, &way.headers, &way.body).await
}

/// Checks that the team has addresses of its own pools only, each once, and the victim has its own.
async fn nothing_gained(stage: &Stage) -> Result<()> {
    let mut seen = BTreeSet::new();
    for lb in stage.lbs("team").list(&ListParams::default()).await? {
        let status = lb.status.clone().unwrap_or_default();
        let allocated = status.allocated_address.unwrap_or_default();
        let ip = allocated.ip.unwrap_or_default();
        let own = ip.is_empty() || ip == "0.0.0.0" || ip.starts_with("10.1.0.");
        ensure!(own, "{} has {ip}", lb.name_any());
        ensure!(ip == "0.0.0.0" || ip.is_empty() || seen.insert(ip.clone()), "{ip} is there twice");
        ensure!(status.address.as_deref() != Some(VICTIM), "{} points there", lb.name_any());
    }
    let victim = stage.lbs("theirs").get("victim").await?;
    ensure!(address(&victim).as_deref() == Some(VICTIM), "{victim:?}");
    let ledger = stage.cluster.allocated("theirs").await?;
    ensure!(ledger.len() == 1 && ledger[VICTIM] == "theirs/victim", "{ledger:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_out_of_a_namespace_leads_nowhere_and_says_so() -> Result<()> {
    let stage = Stage::set(true).await?;
    let victim = stage.lbs("theirs").get("victim").await?;
    let pool = stage.cluster.pools().get("theirs").await?;
    let ways = ways(&victim.uid().context("no UID")?, &pool.uid().context("no UID")?)?;
    let mut failures = Vec::new();
    for way in &ways {
        let walked = async {
            let said = go(&stage, way).await?;
            match way.end {
                End::Refused(code, text) => {
                    let is_said = said.body.to_string().contains(text);
                    ensure!(said.code == code && is_said, "not refused: {said:?}");
                }
                End::Warned(text) => said.warned(text)?,
                End::Futile => ensure!(said.accepted(), "{said:?}"),
            }
            // Time for the operator to react.
            stage.cluster.consistent().await?;
            nothing_gained(&stage).await
        };
        if let Err(error) = walked.await {
            failures.push(format!("{}: {error:#}", way.name));
        }
        for name in ["lb", "victim"] {
            stage.end(name).await?;
        }
        // The deletion of a namesake frees no address of the victim.
        nothing_gained(&stage).await.context(way.name)?;
    }
    println!("{} of {} ways lead nowhere", ways.len() - failures.len(), ways.len());
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    races(&stage).await
}

/// Makes many requests at once, for one address, and against their own deletion.
async fn races(stage: &Stage) -> Result<()> {
    let client = &stage.tenant;
    let asks = (0..20).map(|n| async move {
        let name = format!("race-{}", n % 4);
        let path = format!("{TEAM}/{name}");
        let said =
            match n % 5 {
                0 | 1 => {
                    ask(
                        client,
                        "POST",
                        TEAM,
                        &whole(&format!("{{name: {name}, spec: {{workloadType: cluster}}}}"))?,
                    )
                    .await?
                }
                2 => ask(
                    client,
                    "PATCH",
                    &path,
                    &json!({"status": {"allocatedAddress": {"ipPool": "theirs", "ip": VICTIM}}}),
                )
                .await?,
                3 => ask(client, "PATCH", &path, &json!({"spec": {"ipPool": "theirs"}})).await?,
                _ => ask(client, "DELETE", &path, &json!({})).await?,
            };
        let harmless = [200, 201, 404, 409, 422].contains(&said.code);
        ensure!(harmless, "{said:?}");
        // A LoadBalancer in deletion may change its spec.
        let leaving = !said.body["metadata"]["deletionTimestamp"].is_null();
        let passed = said.accepted() && (n % 5 == 2 || n % 5 == 3 && !leaving);
        ensure!(!passed, "{said:?}");
        anyhow::Ok(())
    });
    for round in 0..5 {
        futures::future::try_join_all(asks.clone())
            .await
            .with_context(|| format!("round {round}"))?;
        stage.cluster.consistent().await?;
        nothing_gained(stage).await?;
    }
    Ok(())
}
