//! Bad input, refused or reported by name; and which pool serves which LoadBalancer.

use anyhow::{Context as _, Result, bail, ensure};
use harvester_guest_operator::api::{self, IPPool, LoadBalancer};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::{Api, Resource, ResourceExt as _};
use serde_json::{Value, json};
use testbed::{Start, eventually};

use crate::support::{Cluster, SOON, address, lb, listeners, nothing_failed};

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

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_with_a_fault_names_the_field_and_costs_others_nothing() -> Result<()> {
    let cluster = Cluster::start().await?;
    let operator = cluster.operator().await?;
    let range = |third: u8, more: Value| {
        let mut range = json!({"subnet": format!("10.{third}.0.0/24")});
        range
            .as_object_mut()
            .into_iter()
            .for_each(|r| r.extend(more.as_object().cloned().unwrap_or_default()));
        range
    };
    let faults = [
        (
            "overlap",
            json!([range(1, json!({})), {"subnet": "10.1.0.128/25"}]),
            ["spec.ranges[1]:", "overlaps spec.ranges[0]"],
        ),
        (
            "multicast",
            json!([{"subnet": "224.0.0.0/24"}]),
            ["spec.ranges[0].subnet:", "multicast addresses"],
        ),
        (
            "network",
            json!([range(3, json!({"rangeStart": "10.3.0.0"}))]),
            ["spec.ranges[0].rangeStart:", "hosts are 10.3.0.1 to 10.3.0.254"],
        ),
        (
            "broadcast",
            json!([range(4, json!({"rangeEnd": "10.4.0.255"}))]),
            ["spec.ranges[0].rangeEnd:", "hosts are 10.4.0.1 to 10.4.0.254"],
        ),
        (
            "exclude",
            json!([range(5, json!({"exclude": ["10.5.0.9", "fd00::5"]}))]),
            ["spec.ranges[0].exclude[1]:", "family"],
        ),
        (
            "gateway",
            json!([range(6, json!({"gateway": "fd00::1"}))]),
            ["spec.ranges[0].gateway:", "family"],
        ),
    ];
    for (name, ranges, parts) in &faults {
        cluster.pool_with(name, json!({"ranges": ranges})).await?;
        let message = cluster.pool_says(name, "Ready", "InvalidRange").await?;
        assert!(parts.iter().all(|part| message.contains(part)), "{name}: {message}");
        let noted = cluster.warned(name, "InvalidRange").await?;
        assert_eq!(noted, message);
        cluster.lb_with(name, json!({"workloadType": "cluster", "ipPool": name})).await?;
        let waits = cluster.waits(name, "IPPoolNotReady").await?;
        assert!(waits.contains(name) && waits.contains(parts[0]), "{waits}");
        assert_eq!(cluster.pool_status(name).await?.total, 0);
    }
    // The faulty pool matches, too, but must not block a pool without faults.
    let fault =
        json!({"ranges": faults[0].1, "selector": {"priority": 9, "scope": [{"namespace": "*"}]}});
    cluster.pool_with("first", fault).await?;
    cluster.pool_says("first", "Ready", "InvalidRange").await?;
    cluster.pool("sound", json!({"subnet": "10.99.0.0/24"})).await?;
    cluster.lb("other").await?;
    assert_eq!(cluster.address("other").await?, "10.99.0.2");
    assert_eq!(cluster.addresses().await?.len(), 1);

    for (i, (name, ..)) in faults.iter().enumerate() {
        let repaired = json!({"spec": {"ranges": [{"subnet": format!("10.10{i}.0.0/24")}]}});
        cluster.patch_pool(name, repaired).await?;
        assert_eq!(cluster.address(name).await?, format!("10.10{i}.0.2"));
    }
    nothing_failed(&operator).await?;
    cluster.consistent().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_balancer_without_a_pool_reports_why_and_is_served_when_there_is_one() -> Result<()>
{
    let cluster = Cluster::start().await?;
    let _operator = cluster.operator().await?;
    let scope = |namespace: &str| json!({"scope": [{"project": "*", "namespace": namespace, "guestCluster": "*"}]});
    cluster.lb("any").await?;
    let message = cluster.waits("any", "NoMatchedIPPool").await?;
    assert!(message.contains("no matched IPPool") && message.contains("spec.ipPool"), "{message}");

    let named = |pool: &str| json!({"workloadType": "cluster", "ipPool": pool});
    cluster.lb_with("early", named("later")).await?;
    let message = cluster.waits("early", "IPPoolNotFound").await?;
    assert!(message.contains("\"later\"") && message.contains("spec.ipPool"), "{message}");
    cluster.pool_for("later", json!({"subnet": "10.1.0.0/24"}), json!({})).await?;
    assert_eq!(cluster.address("early").await?, "10.1.0.2");

    cluster.pool_for("theirs", json!({"subnet": "10.2.0.0/24"}), scope("theirs")).await?;
    cluster.lb_with("intruder", named("theirs")).await?;
    let message = cluster.waits("intruder", "IPPoolForbidden").await?;
    let parts = ["\"theirs\"", "scope", "namespace:\"default\""];
    assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    assert!(cluster.allocated("theirs").await?.is_empty());

    // The LoadBalancers wait only for a selector that admits them.
    cluster.patch_pool("theirs", json!({"spec": {"selector": scope("default")}})).await?;
    assert_eq!(cluster.address("any").await?, "10.2.0.2", "the oldest first");
    assert_eq!(cluster.address("intruder").await?, "10.2.0.3");
    cluster.consistent().await
}

/// Annotations are written by the LoadBalancer's owner; the Namespace by an administrator.
#[tokio::test(flavor = "multi_thread")]
async fn the_project_is_the_namespaces_whatever_the_load_balancer_says() -> Result<()> {
    let cluster = Cluster::start().await?;
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let team = Namespace {
        metadata: kube::core::ObjectMeta { name: Some("team".into()), ..Default::default() },
        ..Default::default()
    };
    namespaces.create(&PostParams::default(), &team).await?;
    let move_to = async |namespace: &str, project: &str| {
        let patch = json!({"metadata": {"annotations": {"field.cattle.io/projectId": project}}});
        namespaces.patch(namespace, &PatchParams::default(), &Patch::Merge(patch)).await
    };
    for (name, subnet) in [("ours", "10.1.0.0/24"), ("theirs", "10.2.0.0/24")] {
        let scope = json!({"scope": [{"project": format!("local/{name}"), "namespace": "*", "guestCluster": "*"}]});
        cluster.pool_for(name, json!({"subnet": subnet}), scope).await?;
    }
    move_to("default", "local:ours").await?;
    let _operator = cluster.operator().await?;
    let claims = json!({"loadbalancer.harvesterhci.io/project": "local/theirs"});
    let create = async |namespace: &str, name: &str, pool: Option<&str>| {
        let mut lb = lb(name, &json!({"workloadType": "cluster", "ipPool": pool}))?;
        lb.metadata.namespace = Some(namespace.to_owned());
        lb.metadata.annotations = serde_json::from_value(claims.clone())?;
        let api = Api::<LoadBalancer>::namespaced(cluster.client.clone(), namespace);
        api.create(&PostParams::default(), &lb).await?;
        anyhow::Ok(api)
    };
    create("default", "lb", None).await?;
    assert_eq!(cluster.address("lb").await?, "10.1.0.2", "not from theirs");
    create("default", "named", Some("theirs")).await?;
    let message = cluster.waits("named", "IPPoolForbidden").await?;
    assert!(message.contains("local/ours"), "{message}");

    // A namespace that moves takes its waiters with it. A namespace without a project is in no
    // other either.
    let waiters = create("team", "waiter", None).await?;
    let reason = async || {
        let lb = waiters.get("waiter").await.map_err(|e| e.to_string())?;
        let (_, reason, message) = crate::support::ready(&lb);
        if reason == "NoMatchedIPPool" { Ok(true) } else { Err(message) }
    };
    eventually(SOON, "waiter of team", reason).await?;
    move_to("team", "local:nobodys").await?;
    eventually(SOON, "waiter of a project without a pool", reason).await?;
    move_to("team", "local:theirs").await?;
    let served = eventually(SOON, "address in team", async || {
        waiters.get("waiter").await.map(|lb| address(&lb))
    })
    .await?;
    assert_eq!(served, "10.2.0.2");
    move_to("default", "local:theirs").await?;
    assert_eq!(cluster.address("named").await?, "10.2.0.3");
    assert_eq!(cluster.address("lb").await?, "10.1.0.2", "an existing claim stays");
    cluster.consistent().await
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_serve_in_their_order_and_the_next_one_when_one_is_full() -> Result<()> {
    let cluster = Cluster::start().await?;
    let scope = |project: &str, cluster: &str| json!([{"project": project, "namespace": "default", "guestCluster": cluster}]);
    for (name, subnet, selector) in [
        ("vlan", "10.1.0.2/32", json!({"network": "default/vlan", "scope": scope("*", "*")})),
        ("high", "10.2.0.2/32", json!({"priority": 7, "scope": scope("local/p", "guest")})),
        ("low", "10.3.0.2/32", json!({"priority": 1, "scope": scope("*", "*")})),
        // Blank admits any, and comes after a selector that admits by name.
        ("blank", "10.4.0.2/32", json!({"priority": 99, "scope": scope("", "")})),
        (
            "global",
            "10.5.0.0/29",
            json!({"scope": [{"project": "*", "namespace": "*", "guestCluster": "*"}]}),
        ),
    ] {
        cluster.pool_for(name, json!({"subnet": subnet}), selector).await?;
    }
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let project = json!({"metadata": {"annotations": {"field.cattle.io/projectId": "local:p"}}});
    namespaces.patch("default", &PatchParams::default(), &Patch::Merge(project)).await?;
    let _operator = cluster.operator().await?;
    let ask = async |name: &str, type_: &str, network: &str| {
        let mut lb = lb(name, &json!({"workloadType": type_}))?;
        lb.metadata.annotations = serde_json::from_value(json!({
            "loadbalancer.harvesterhci.io/network": network,
            "loadbalancer.harvesterhci.io/cluster": "guest",
        }))?;
        cluster.lbs().create(&PostParams::default(), &lb).await?;
        anyhow::Ok(())
    };
    for (name, type_, network, ip) in [
        ("exact", "cluster", "default/vlan", "10.1.0.2"),
        ("vlan-is-full", "cluster", "default/vlan", "10.5.0.2"),
        ("no-such-vlan", "cluster", "default/VLAN", "10.5.0.3"),
        ("priority", "cluster", "", "10.2.0.2"),
        ("high-is-full", "vm", "", "10.3.0.2"),
        ("blank-is-for-all", "vm", "", "10.4.0.2"),
        ("all-full-but-global", "vm", "", "10.5.0.4"),
        ("another", "cluster", "", "10.5.0.5"),
        ("last", "cluster", "", "10.5.0.6"),
    ] {
        ask(name, type_, network).await?;
        assert_eq!(cluster.address(name).await.context(name)?, ip, "{name}");
    }
    ask("none-left", "cluster", "").await?;
    let message = cluster.waits("none-left", "NoAvailableIP").await?;
    assert!(message.contains("high, low, blank, global"), "{message}");
    cluster.deleted("high-is-full").await?;
    assert_eq!(cluster.address("none-left").await?, "10.3.0.2");
    cluster.consistent().await
}

/// An object of a newer Harvester, with values that this version does not know.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_object_does_not_affect_others() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let mut operator = cluster.operator().await?;
    cluster.lb("holder").await?;
    assert_eq!(cluster.address("holder").await?, "10.1.0.2");

    let mut crd = json!(api::crds().remove(1));
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    let spec = crd.pointer_mut(spec).context("no spec in the schema")?;
    spec["properties"]["ipam"]["enum"] = json!(["pool", "dhcp", "static"]);
    // Without this, no object with an address could become one.
    spec["x-kubernetes-validations"] = Value::Null;
    let mut crd: CustomResourceDefinition = serde_json::from_value(crd)?;
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    // Others write the CRD too.
    eventually(SOON, "newer CRD", async || {
        crd.metadata.resource_version = crds.get(&crd.name_any()).await?.resource_version();
        crds.replace(&crd.name_any(), &PostParams::default(), &crd).await.map(|_| true)
    })
    .await?;

    let lbs = raw::<LoadBalancer>(&cluster);
    let newer = json!({"workloadType": "cluster", "ipam": "static"});
    eventually(SOON, "newer object", async || create(&lbs, "newer", &newer).await.map(|_| true))
        .await?;
    let ipam = async |ipam: &str| {
        let patch = Patch::Merge(json!({"spec": {"ipam": ipam}}));
        lbs.patch("holder", &PatchParams::default(), &patch).await
    };
    ipam("static").await?;
    for round in 0..2 {
        eventually(SOON, "count of unreadable objects", async || {
            operator
                .metric("hgo_unreadable_objects_total", &["LoadBalancer"])
                .await
                .map(|n| n >= 2.0)
        })
        .await?;
        let name = format!("other-{round}");
        cluster.lb(&name).await?;
        assert_eq!(cluster.address(&name).await?, format!("10.1.0.{}", 3 + round));
        // An object that cannot be read retains its claim.
        assert_eq!(cluster.allocated("pool").await?["10.1.0.2"], "default/holder");
        assert!(operator.process.is_running());
        let log = operator.process.log();
        assert!(log.contains("default/newer") && !log.contains("panicked"), "{log}");
        if round == 0 {
            operator.process.terminate(SOON).await?;
            operator = cluster.operator().await?;
        }
    }
    assert_eq!(lbs.get("newer").await?.data.get("status"), None, "it is unchanged");
    // Readable again, it is as before.
    lbs.delete("newer", &kube::api::DeleteParams::default()).await?;
    ipam("pool").await?;
    cluster.consistent().await?;
    assert_eq!(cluster.address("holder").await?, "10.1.0.2");
    cluster.deleted("holder").await?;
    cluster.consistent().await
}

#[tokio::test(flavor = "multi_thread")]
async fn its_own_account_may_do_all_that_it_does() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let leak = json!({"status": {"allocated": {"10.1.0.9": "default/gone"}}});
    cluster.patch_pool_status("pool", leak).await?;
    let log = Some("info,harvester_guest_operator=debug".to_owned());
    let operator = cluster.standby(Start { log, ..Start::default() }).await?;
    operator.leads().await?;
    cluster.warned("pool", "OrphanFreed").await?;
    for name in ["a", "b"] {
        cluster.lb(name).await?;
        cluster.address(name).await?;
    }
    let annotation = json!({api::ANNOTATION_MANUAL_RELEASE: "nonsense"});
    cluster.patch_pool("pool", json!({"metadata": {"annotations": annotation}})).await?;
    cluster.warned("pool", "ManualReleaseRefused").await?;
    cluster.patch_pool("pool", json!({"spec": {"ranges": [{"subnet": "10.1.0.2/32"}]}})).await?;
    cluster.lb("waiter").await?;
    cluster.waits("waiter", "NoAvailableIP").await?;
    cluster.warned("waiter", "NoAvailableIP").await?;
    for name in ["a", "b", "waiter"] {
        cluster.deleted(name).await?;
    }
    cluster.pool_deleted("pool").await?;
    assert_eq!(operator.metric("hgo_events_dropped_total", &[]).await?, 0.0);
    // An API server that has just received a kind refuses its first watch, and a watch from before.
    let excused = ["(re)initializing", "too old resource version"];
    let log = operator.process.log();
    let interrupted = log.lines().filter(|line| line.contains("watch interrupted"));
    let other = |line: &&str| !excused.iter().any(|words| line.contains(words));
    assert_eq!(interrupted.filter(other).collect::<Vec<_>>(), [""; 0]);
    nothing_failed(&operator).await?;
    let refused = || {
        let log = operator.process.log();
        let words = ["forbidden", "Forbidden", "code: 403"];
        log.lines().find(|line| words.iter().any(|word| line.contains(word))).map(str::to_owned)
    };
    assert_eq!(refused(), None);

    // The log lines are right: without its rights it writes them.
    cluster.robbed();
    let binding = "harvester-guest-operator";
    cluster.bed.kubectl(&["delete", "clusterrolebinding", binding]).await?;
    cluster.lb("refused").await?;
    eventually(SOON, "refusal", async || refused()).await.map(drop)
}

fn raw<K: Resource<DynamicType = ()>>(cluster: &Cluster) -> Api<DynamicObject> {
    let kind = ApiResource::erase::<K>(&());
    match K::plural(&()).as_ref() {
        "ippools" => Api::all_with(cluster.client.clone(), &kind),
        _ => Api::namespaced_with(cluster.client.clone(), "default", &kind),
    }
}

async fn create(api: &Api<DynamicObject>, name: &str, spec: &Value) -> kube::Result<DynamicObject> {
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
