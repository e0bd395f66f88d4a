//! The rows of [`super::pool_rows`] through a real API server, with admission and without.

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::ConditionStatus;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use testbed::kubevirt::{networks, vlan};
use testbed::{Operator, eventually};

use super::itself;
use super::pool_rows::{Expect, GLOBAL, Operation, Row, object, rows};
use super::said::{Said, ask, send};
use crate::support::{Cluster, SOON};

const POOLS: &str = "/apis/loadbalancer.harvesterhci.io/v1beta1/ippools";

/// Result of each row without admission: a part of the API server's refusal, `gone`, or the reason
/// why one of the existing pools is not ready. Rows that are not named here leave all pools ready.
const ALONE: &[(&str, &str)] = &[
    ("scope as a map", "refused: spec.selector.scope"),
    ("scope as text", "refused: spec.selector.scope"),
    ("entry of the scope as text", "refused: spec.selector.scope[0]"),
    ("namespace as a list", "refused: spec.selector.scope[0].namespace"),
    ("selector as a list", "refused: spec.selector"),
    ("priority in quotes", "refused: spec.selector.priority"),
    ("priority as a word", "refused: spec.selector.priority"),
    ("priority below 0", "refused: spec.selector.priority"),
    ("network as a list", "refused: spec.selector.network"),
    ("ranges as a map", "refused: spec.ranges"),
    ("ranges as text", "refused: spec.ranges[0]"),
    ("no range", "refused: spec.ranges"),
    ("no ranges", "refused: spec.ranges"),
    ("no subnet", "refused: spec.ranges[0].subnet"),
    ("subnet as a number", "refused: spec.ranges[0].subnet"),
    ("exclude as text", "refused: spec.ranges[0].exclude"),
    ("subnet without a length", "refused: must be a network in CIDR form"),
    ("start outside the subnet", "refused: rangeStart must lie within subnet"),
    ("loopback", "InvalidRange"),
    ("multicast", "InvalidRange"),
    ("network address", "InvalidRange"),
    ("broadcast address", "InvalidRange"),
    ("exclusion that is none", "InvalidRange"),
    ("gateway of another family", "InvalidRange"),
    ("ranges of one pool that overlap", "InvalidRange"),
    ("overlap by one address", "RangeConflict"),
    ("overlap on a network by another name", "RangeConflict"),
    ("overlap with the global pool", "RangeConflict"),
    ("widened over another", "RangeConflict"),
    ("a second global pool", "SecondGlobalPool"),
    ("the same priority", "PriorityConflict"),
    ("the same scope without priority", "ScopeConflict"),
    ("deleted under an address", "Deleting"),
    ("deleted empty", "gone"),
];

struct Stage {
    cluster: Cluster,
    _operator: Operator,
}

impl Stage {
    async fn set(admission: bool) -> Result<Self> {
        let cluster = Cluster::start().await?;
        for (name, id) in [("x", 100), ("y", 100), ("z", 200)] {
            let network = serde_json::from_value(vlan("default", name, id))?;
            networks(&cluster.client, "default").create(&PostParams::default(), &network).await?;
        }
        let operator = if admission {
            let operator = cluster.standby(itself()).await?;
            operator.leads().await?;
            cluster.registered().await?;
            operator
        } else {
            cluster.operator().await?
        };
        let stage = Self { cluster, _operator: operator };
        if admission {
            stage.knows_networks().await?;
        }
        Ok(stage)
    }

    async fn say(&self, method: &str, path: &str, body: &Value) -> Result<Said> {
        ask(&self.cluster.client, method, path, body).await
    }

    /// Waits until networks are listed: their VLANs are the last facts that rows depend on.
    async fn knows_networks(&self) -> Result<()> {
        let row = rows().find(|row| row.name == "label of the VLAN").context("no such row")?;
        let pool = object(row.request)?;
        eventually(SOON, "list of networks", async || {
            let said = self.say("POST", &format!("{POOLS}?dryRun=All"), &pool).await;
            let said = said.map_err(|e| format!("{e:#}"))?;
            let vid = said.body.pointer("/metadata/labels/loadbalancer.harvesterhci.io~1vid");
            if vid == Some(&json!("100")) { Ok(true) } else { Err(format!("{said:?}")) }
        })
        .await
    }

    /// Waits until admission has observed a pool, or its deletion: another pool of the same ranges
    /// is refused because of it, or is not.
    async fn knows(&self, pool: &Value, there: bool) -> Result<()> {
        let mut probe = pool.clone();
        probe["metadata"] = json!({"name": "probe"});
        let name = pool["metadata"]["name"].as_str().unwrap_or_default();
        let path = format!("{POOLS}?dryRun=All");
        eventually(SOON, &format!("observation of {name}"), async || {
            let said = self.say("POST", &path, &probe).await.map_err(|e| format!("{e:#}"))?;
            let refused = said.message().contains(&format!("IPPool {name}"));
            if refused == there { Ok(true) } else { Err(format!("{said:?}")) }
        })
        .await
    }

    /// Creates the objects that exist before a row's request. Returns its pools.
    async fn before(&self, row: &Row) -> Result<Vec<Value>> {
        let mut pools = Vec::new();
        for text in row.before {
            let object = object(text)?;
            if object["kind"] == "LoadBalancer" {
                let lb = serde_json::from_value(object)?;
                self.cluster.lbs().create(&PostParams::default(), &lb).await?;
                self.cluster.address("holder").await?;
            } else {
                let said = self.say("POST", POOLS, &object).await?;
                ensure!(said.accepted(), "{said:?}");
                pools.push(object);
            }
        }
        Ok(pools)
    }

    async fn request(&self, row: &Row) -> Result<Said> {
        let asked = object(row.request)?;
        let name = asked["metadata"]["name"].as_str().context("no name")?;
        let one = format!("{POOLS}/{name}");
        match row.operation {
            Operation::Create => self.say("POST", POOLS, &asked).await,
            Operation::Update => self.say("PATCH", &one, &asked).await,
            Operation::Delete => send(&self.cluster.client, "DELETE", &one, &[], &json!({})).await,
        }
    }

    async fn clear(&self) -> Result<()> {
        if self.cluster.lbs().get_opt("holder").await?.is_some() {
            self.cluster.deleted("holder").await?;
        }
        let pools = self.cluster.pools();
        for pool in pools.list(&ListParams::default()).await? {
            let name = pool.metadata.name.unwrap_or_default();
            // Its last address may be about to be released.
            eventually(SOON, &format!("deletion of {name}"), async || {
                match pools.delete(&name, &DeleteParams::default()).await {
                    Err(kube::Error::Api(status)) if !status.is_not_found() => {
                        Err(status.message.clone())
                    }
                    _ => Ok(true),
                }
            })
            .await?;
            self.cluster.pool_gone(&name).await?;
        }
        Ok(())
    }

    async fn admitted(&self, row: &Row) -> Result<()> {
        let pools = self.before(row).await?;
        for pool in &pools {
            self.knows(pool, true).await?;
        }
        let said = self.request(row).await?;
        let result = check(&row.expect, &said);
        self.clear().await?;
        for pool in pools.iter().chain([&object(row.request)?]) {
            self.knows(pool, false).await?;
        }
        result
    }

    async fn alone(&self, row: &Row) -> Result<()> {
        self.before(row).await?;
        let said = self.request(row).await?;
        let wanted = ALONE.iter().find(|(name, _)| *name == row.name);
        let wanted = wanted.map_or("Ready", |(_, outcome)| outcome);
        let outcome = async || -> Result<String, String> {
            if !said.accepted() {
                return Ok(format!("refused: {}", said.message()));
            }
            let pools = self.cluster.pools().list(&ListParams::default()).await;
            let pools = pools.map_err(|e| e.to_string())?.items;
            if pools.is_empty() {
                return Ok("gone".to_owned());
            }
            // Creation times have whole seconds, so either of two in conflict may count as the
            // older.
            let mut idle = Vec::new();
            for pool in pools {
                let conditions = pool.status.map(|status| status.conditions).unwrap_or_default();
                let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
                let ready = ready.ok_or("no condition")?;
                if ready.status != ConditionStatus::True {
                    idle.extend(ready.reason);
                }
            }
            Ok(if idle.is_empty() { "Ready".to_owned() } else { idle.join(", ") })
        };
        let result = eventually(SOON, wanted, async || {
            let is = outcome().await?;
            let fits = match wanted.strip_prefix("refused: ") {
                Some(part) => is.starts_with("refused: ") && is.contains(part),
                None => is == wanted,
            };
            if fits { Ok(true) } else { Err(is) }
        })
        .await;
        self.clear().await?;
        result
    }
}

fn check(expect: &Expect, said: &Said) -> Result<()> {
    match expect {
        Expect::Accept => said.silent()?,
        Expect::Warn(text) => said.warned(text)?,
        Expect::Refuse(field, text) => said.refused_by_webhook(field, text)?,
        Expect::Schema(text) => said.refused_by_schema(text)?,
        Expect::Label(key, value) => {
            let labels = &said.body["metadata"]["labels"];
            ensure!(said.accepted() && labels[*key] == *value, "{key}: {said:?}");
        }
    }
    Ok(())
}

async fn play(admission: bool) -> Result<()> {
    let stage = Stage::set(admission).await?;
    let mut failures = Vec::new();
    for row in rows() {
        let result = if admission { stage.admitted(row).await } else { stage.alone(row).await };
        if let Err(error) = result {
            failures.push(format!("{}: {error:#}", row.name));
            stage.clear().await?;
        }
    }
    println!("{} of {} rows as expected", rows().count() - failures.len(), rows().count());
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_admission_each_request_gets_its_answer() -> Result<()> {
    play(true).await
}

/// Two pools that exclude each other, one right after the other: the second is compared with the
/// API server's state, not with watched state.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_was_made_a_moment_ago_counts() -> Result<()> {
    let stage = Stage::set(true).await?;
    for round in 0..20 {
        let pool = |name: &str, third: usize| {
            json!({
                "apiVersion": "loadbalancer.harvesterhci.io/v1beta1",
                "kind": "IPPool",
                "metadata": {"name": format!("{name}-{round}")},
                "spec": {
                    "ranges": [{"subnet": format!("10.{round}.{third}.0/24")}],
                    "selector": {"priority": 7 + round, "scope": [{"namespace": name}]},
                },
            })
        };
        let first = stage.say("POST", POOLS, &pool("a", 1)).await?;
        ensure!(first.accepted(), "{first:?}");
        let second = stage.say("POST", POOLS, &pool("b", 2)).await?;
        second.refused_by_webhook("spec.selector.priority", &format!("the pool a-{round}"))?;
    }
    Ok(())
}

/// GitOps: a manifest exported from the global pool, with a narrowed scope, is applied again and
/// again.
#[tokio::test(flavor = "multi_thread")]
async fn an_exported_label_makes_no_pool_global_however_often_it_is_applied() -> Result<()> {
    let stage = Stage::set(true).await?;
    let manifest = |namespace: &str, clusters: &str| {
        json!({
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1",
            "kind": "IPPool",
            "metadata": {
                "name": "exported",
                "labels": {"loadbalancer.harvesterhci.io/global-ip-pool": "true"},
            },
            "spec": {
                "ranges": [{"subnet": "10.1.0.0/24"}],
                "selector": {"scope": [
                    {"project": "*", "namespace": namespace, "guestCluster": clusters}
                ]},
            },
        })
    };
    let apply = async |manifest: &Value| {
        stage.cluster.bed.apply_yaml(&serde_json::to_string(manifest)?).await
    };
    apply(&manifest("*", "*")).await?;
    stage.cluster.lb("served").await?;
    stage.cluster.address("served").await?;
    let narrow = manifest("kube-system", "*");
    for _ in 0..3 {
        apply(&narrow).await?;
        let labels = stage.cluster.pools().get("exported").await?.metadata.labels;
        let label = labels.and_then(|labels| labels.get(GLOBAL).cloned());
        ensure!(label.as_deref() == Some("false"), "{label:?}");
    }
    stage.cluster.lb("stranger").await?;
    stage.cluster.waits("stranger", "NoMatchedIPPool").await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn without_admission_the_schema_and_the_operator_say_what_they_can() -> Result<()> {
    play(false).await
}
