//! Objects that the API server refuses by the schema of their CRD.

use anyhow::{Context as _, Result, bail, ensure};
use harvester_guest_operator::api::{IPPool, LoadBalancer};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::{Api, Resource, ResourceExt as _};
use serde_json::{Value, json};

use crate::support::{Cluster, listeners};

/// Objects that CEL and the schema refuse, without webhook and operator.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_refuses_bad_objects_and_says_what_is_right() -> Result<()> {
    let cluster = Cluster::start().await?;
    let pools = raw::<IPPool>(&cluster);
    let range = |range: Value| json!({"ranges": [range]});
    let with =
        |field: &str, value: Value| json!({"ranges": [{"subnet": "10.1.0.0/24"}], field: value});
    refuses_new(
        &pools,
        &[
            (
                range(json!({"subnet": "10.1.0.0"})),
                &["ranges[0]", "subnet must be a network in CIDR form"],
            ),
            (range(json!({"subnet": ""})), &["ranges[0].subnet"]),
            (json!({"ranges": [{}]}), &["ranges[0].subnet", "Required"]),
            (
                range(json!({"subnet": "10.1.0.0/24", "rangeStart": "ten"})),
                &["ranges[0]", "rangeStart must be an IP address, such as 192.168.1.10"],
            ),
            (
                range(json!({"subnet": "10.1.0.0/24", "rangeEnd": "10.1.0.300"})),
                &["ranges[0]", "rangeEnd must be an IP address"],
            ),
            (
                range(json!({"subnet": "10.1.0.0/24", "rangeEnd": "10.2.0.9"})),
                &["ranges[0]", "rangeEnd must lie within subnet"],
            ),
            (
                range(json!({"subnet": "10.1.0.0/24", "rangeStart": "fd00::1"})),
                &["ranges[0]", "rangeStart must lie within subnet"],
            ),
            (
                range(json!({"subnet": "10.1.0.0/24", "gateway": "router"})),
                &["ranges[0]", "gateway must be an IP address"],
            ),
            (json!({"ranges": []}), &["spec.ranges", "at least 1"]),
            (json!({}), &["spec.ranges", "Required"]),
            (with("state", json!("Draining")), &["spec.state", "only Active"]),
            (with("state", json!("Off")), &["spec.state", "\"Active\""]),
            (with("quota", json!(5)), &["spec.quota", "remove it"]),
            (
                with("releaseCooldownSeconds", json!(60)),
                &["spec.releaseCooldownSeconds", "remove it"],
            ),
            (with("conflictProbe", json!(true)), &["spec.conflictProbe", "remove it"]),
            (with("selector", json!({"priority": -1})), &["spec.selector.priority", "0"]),
            // As the documentation of Harvester has it.
            (
                with("selector", json!({"scope": {"namespace": "*"}})),
                &["spec.selector.scope", "array"],
            ),
        ],
    )
    .await?;

    let lbs = raw::<LoadBalancer>(&cluster);
    let listener =
        |port: i64| json!({"listeners": [{"name": "a", "port": port, "backendPort": 80}]});
    let backend =
        |port: i64| json!({"listeners": [{"name": "a", "port": 80, "backendPort": port}]});
    let health = |check: Value| json!({"healthCheck": check});
    refuses_new(
        &lbs,
        &[
            (json!({"ipam": "ippool"}), &["spec.ipam", "\"pool\", \"dhcp\""]),
            (json!({"workloadType": "guest"}), &["spec.workloadType", "\"vm\", \"cluster\""]),
            (
                json!({"ipam": "dhcp", "ipPool": "p"}),
                &["spec.ipPool", "unset when spec.ipam is dhcp"],
            ),
            (
                json!({"requestedAddresses": ["10.1.0.2"]}),
                &["spec.requestedAddresses", "remove it"],
            ),
            (json!({"ipv6Pool": "six"}), &["spec.ipv6Pool", "remove it", "spec.ipPool"]),
            (
                json!({"ipFamilyPolicy": "PreferDualStack"}),
                &["spec.ipFamilyPolicy", "only SingleStack"],
            ),
            (json!({}), &["spec.listeners: a load balancer of type vm needs at least one"]),
            (
                health(json!({"protocol": "sctp"})),
                &["spec.healthCheck.protocol", "tcp, http or https"],
            ),
            (health(json!({"protocol": "http"})), &["spec.healthCheck.port", "backend port"]),
            (health(json!({"path": "/healthz"})), &["spec.healthCheck", "path", "remove them"]),
            (health(json!({"expectedStatuses": [200]})), &["spec.healthCheck", "expectedStatuses"]),
            (health(json!({"port": 70_000})), &["spec.healthCheck.port", "65535"]),
            (listener(0), &["spec.listeners[0].port", "greater than or equal to 1"]),
            (listener(70_000), &["spec.listeners[0].port", "less than or equal to 65535"]),
            (backend(0), &["spec.listeners[0].backendPort", "greater than or equal to 1"]),
            (backend(70_000), &["spec.listeners[0].backendPort", "less than or equal to 65535"]),
        ],
    )
    .await?;

    Ok(())
}

/// Each range has every field that the rules of the schema read.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_stores_256_ranges_and_refuses_257() -> Result<()> {
    let cluster = Cluster::start().await?;
    let pools = raw::<IPPool>(&cluster);
    let range = |n: usize| {
        let net = format!("10.{}.{}", 1 + n / 256, n % 256);
        json!({
            "subnet": format!("{net}.0/24"), "gateway": format!("{net}.1"),
            "rangeStart": format!("{net}.10"), "rangeEnd": format!("{net}.99"),
        })
    };
    let ranges = |count: usize| json!({"ranges": (0..count).map(range).collect::<Vec<_>>()});
    create(&pools, "many", &ranges(256)).await?;
    assert_eq!(cluster.pools().get("many").await?.spec.ranges.len(), 256);
    refuses_new(&pools, &[(ranges(257), &["spec.ranges", "at most 256"])]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_refuses_bad_changes_and_leaves_the_object_alone() -> Result<()> {
    let cluster = Cluster::start().await?;
    let (pools, lbs) = (raw::<IPPool>(&cluster), raw::<LoadBalancer>(&cluster));
    let ipam = ["spec.ipam is immutable", "create a new LoadBalancer"];
    let workload = ["spec.workloadType is immutable", "create a new LoadBalancer"];
    // The stored spec, the change, and the refusal.
    for (stored, change, refusal) in [
        (json!({"ipam": "pool"}), json!({"ipam": "dhcp"}), Some(ipam)),
        (json!({"ipam": "dhcp"}), json!({"ipam": null}), Some(ipam)),
        (json!({}), json!({"ipam": "dhcp"}), Some(ipam)),
        (json!({}), json!({"ipam": "pool"}), None),
        (json!({"ipam": "pool"}), json!({"ipam": null}), None),
        (json!({"workloadType": "vm"}), json!({"workloadType": "cluster"}), Some(workload)),
        (json!({}), json!({"workloadType": "cluster"}), Some(workload)),
        (json!({}), json!({"workloadType": "vm"}), None),
        (json!({"workloadType": "vm"}), json!({"workloadType": null}), None),
        (
            json!({"ipam": "dhcp"}),
            json!({"ipPool": "p"}),
            Some(["spec.ipPool must be unset", "DHCP server"]),
        ),
    ] {
        let mut stored = stored;
        stored["listeners"] = listeners();
        let before = create(&lbs, "changed", &stored).await.context(stored.to_string())?;
        let patch = Patch::Merge(json!({"spec": change}));
        let answer = lbs.patch("changed", &PatchParams::default(), &patch).await;
        match refusal {
            Some(parts) => check_refusal(answer, &change, &parts)?,
            None => drop(answer.with_context(|| format!("{stored} to {change}"))?),
        }
        let unchanged = lbs.get("changed").await?.resource_version() == before.resource_version();
        assert_eq!(unchanged, refusal.is_some(), "{stored} to {change}");
        cluster.deleted("changed").await?;
    }
    // An edit of a pool in use.
    create(&pools, "edited", &json!({"ranges": [{"subnet": "10.1.0.0/24"}]})).await?;
    let patch = Patch::Merge(json!({"spec": {"ranges": [{"subnet": "10.1.0.0/33"}]}}));
    let answer = pools.patch("edited", &PatchParams::default(), &patch).await;
    check_refusal(answer, &json!("10.1.0.0/33"), &["subnet must be a network in CIDR form"])?;
    assert_eq!(cluster.pools().get("edited").await?.spec.ranges[0].subnet, "10.1.0.0/24");
    Ok(())
}

pub(crate) fn raw<K: Resource<DynamicType = ()>>(cluster: &Cluster) -> Api<DynamicObject> {
    let kind = ApiResource::erase::<K>(&());
    match K::plural(&()).as_ref() {
        "ippools" => Api::all_with(cluster.client.clone(), &kind),
        _ => Api::namespaced_with(cluster.client.clone(), "default", &kind),
    }
}

pub(crate) async fn create(
    api: &Api<DynamicObject>,
    name: &str,
    spec: &Value,
) -> kube::Result<DynamicObject> {
    let kind = if api.resource_url().ends_with("ippools") {
        ApiResource::erase::<IPPool>(&())
    } else {
        ApiResource::erase::<LoadBalancer>(&())
    };
    let object = DynamicObject::new(name, &kind).data(json!({"spec": spec}));
    api.create(&PostParams::default(), &object).await
}

/// Checks that each spec is refused with all the parts in the text, and that no object is stored.
async fn refuses_new(api: &Api<DynamicObject>, table: &[(Value, &[&str])]) -> Result<()> {
    for (spec, parts) in table {
        check_refusal(create(api, "bad", spec).await, spec, parts)?;
        assert!(api.get_opt("bad").await?.is_none(), "{spec}");
    }
    Ok(())
}

fn check_refusal(answer: kube::Result<DynamicObject>, input: &Value, parts: &[&str]) -> Result<()> {
    let message = match answer {
        Err(kube::Error::Api(status)) if status.code == 422 => status.message.clone(),
        other => bail!("{input}: {other:?}"),
    };
    let missing = parts.iter().find(|part| !message.contains(**part));
    ensure!(missing.is_none(), "{input}: no {missing:?} in {message}");
    Ok(())
}
