//! Tests of the plan's lines and writes, and of its text.

use std::collections::BTreeMap;

use serde_json::json;

use super::unread::{ReadFailure, RoleRead, section, sentences};
use super::*;
use crate::credentials::rotation::target_secret::SecretContent;
use crate::credentials::secret_text::SecretText;
use crate::load_balancer::facts::{LbSurroundings, Project, facts as facts_of};
use crate::network::Segment;
use crate::object_fields::condition::condition;
use crate::pools::allocator::PoolSeen;
use crate::takeover::forecast::{StoredObjects, forecast};
use api::{LB_FINALIZER, TokenRotation};

const NOW: &str = "2026-08-20T10:00:00Z";
const DAY: i64 = 24 * 60 * 60;

fn pool_of(spec: &Value, status: &Value) -> IPPool {
    serde_json::from_value(json!({
        "metadata": {"name": "pool"}, "spec": spec, "status": status,
    }))
    .unwrap()
}

fn lb(name: &str, spec: &Value, status: &Value) -> LoadBalancer {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")},
        "spec": spec, "status": status,
    }))
    .unwrap()
}

fn any() -> Value {
    json!({"ranges": [{"subnet": "10.1.0.0/24"}],
        "selector": {"scope": [{"project": "*", "namespace": "*", "guestCluster": "*"}]}})
}

fn asks() -> Value {
    json!({"workloadType": "cluster", "ipam": "pool"})
}

/// Reason of the condition that the operator would write. Empty if it would write none.
fn reason(line: &LoadBalancerLine) -> &str {
    line.said.as_ref().map_or("", |ready| ready.reason.as_deref().unwrap_or_default())
}

/// Plan for one pool, and for LoadBalancers that request an address of that pool.
fn plan(pool: &IPPool, lbs: &[LoadBalancer]) -> Preview {
    let around =
        LbSurroundings { project: Project::Outside, vm_network: None, ..LbSurroundings::default() };
    let facts = lbs.iter().filter(|lb| !facts::is_leaving(lb));
    let facts = facts.map(|lb| facts_of(lb, &around, |_| Segment::default(), true)).collect();
    let stored = StoredObjects {
        pools: vec![PoolSeen::new(pool, Segment::default())],
        facts,
        load_balancers: lbs.to_owned(),
        ..StoredObjects::default()
    };
    let forecast = forecast(&stored);
    let mut plan = Preview::default();
    let touched = forecast.touched.contains("pool");
    let (line, change) = super::pool(pool, &forecast.allocator.pools()["pool"], touched, NOW);
    plan.pools.push(line);
    plan.changes.extend(change);
    for lb in lbs {
        let (line, change) = match forecast.results.get(&facts::name(lb)) {
            Some(result) => load_balancer(lb, &AddressOutcome::Pool(result.clone()), None, NOW),
            None => leaving(lb),
        };
        plan.load_balancers.push(line);
        plan.changes.extend(change);
    }
    plan.findings = further(&forecast, &plan);
    plan
}

#[test]
fn a_line_says_what_the_condition_would_say_and_a_change_what_would_be_written() {
    let leaving = {
        let mut lb = lb(
            "leaving",
            &asks(),
            &json!({"allocatedAddress": {"ipPool": "pool", "ip": "10.1.0.9"}}),
        );
        lb.metadata.finalizers = Some(vec![LB_FINALIZER.to_owned()]);
        lb.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-08-20T10:00:00Z")).unwrap();
        lb
    };
    let lbs = vec![
        lb(
            "kept",
            &asks(),
            &json!({"address": "10.1.0.5", "allocatedAddress": {"ipPool": "pool", "ip": "10.1.0.5"}}),
        ),
        leaving,
        lb("new", &asks(), &Value::Null),
        lb(
            "wrong",
            &json!({"workloadType": "cluster", "ipam": "pool", "ipPool": "nowhere"}),
            &Value::Null,
        ),
    ];
    let plan = plan(
        &pool_of(
            &any(),
            &json!({"allocated": {"10.1.0.5": "default/kept", "10.1.0.7": "default/gone"}}),
        ),
        &lbs,
    );
    let lines: Vec<_> = plan
        .load_balancers
        .iter()
        .map(|l| (l.name.as_str(), l.has.as_str(), l.gets.as_str(), reason(l)))
        .collect();
    assert_eq!(
        lines,
        [
            ("default/kept", "10.1.0.5", "10.1.0.5", "Allocated"),
            ("default/leaving", "10.1.0.9", "", ""),
            ("default/new", "", "10.1.0.2", "Allocated"),
            ("default/wrong", "", "", "IPPoolNotFound"),
        ]
    );
    let wrong = plan.load_balancers[3].said.clone().unwrap();
    assert!(wrong.message.unwrap().contains("names \"nowhere\""));
    let changes: BTreeMap<&str, &str> =
        plan.changes.iter().map(|c| (c.object.as_str(), c.what.as_str())).collect();
    assert_eq!(changes["LoadBalancer default/leaving"], "metadata.finalizers");
    assert_eq!(changes["LoadBalancer default/wrong"], "status.conditions");
    let new = changes["LoadBalancer default/new"];
    for field in [
        "metadata.finalizers",
        "metadata.annotations",
        "status.allocatedAddress",
        "status.address",
        "status.conditions",
    ] {
        assert!(new.contains(field), "{field}: {new}");
    }
    assert!(!new.contains("resourceVersion"), "{new}");
    let pool = changes["IPPool pool"];
    assert!(pool.contains("metadata.finalizers") && pool.contains("status.allocated"), "{pool}");
    // The plan lists a finding about a repair of a pool, because no line of the plan shows the
    // repair. The plan does not list a finding that one of its lines shows.
    let found: Vec<&str> = plan.findings.iter().map(|f| f.object.as_str()).collect();
    assert_eq!(found, ["IPPool pool"]);
    assert!(plan.findings[0].text.contains("10.1.0.7 is recorded for LoadBalancer default/gone"));
}

#[test]
fn what_is_as_it_would_be_is_not_written() {
    let first = plan(&pool_of(&any(), &Value::Null), &[lb("a", &asks(), &Value::Null)]);
    assert!(!first.changes.is_empty());
    // The LoadBalancer as it is after the operator has written the plan.
    let result = crate::pools::allocator::ClaimResult::Held {
        claim: crate::Claim { pool: "pool".to_owned(), ip: "10.1.0.2".parse().unwrap() },
        subnet: None,
        network: None,
        instead: None,
    };
    let mut value = serde_json::to_value(lb("a", &asks(), &Value::Null)).unwrap();
    let patch = status::patch(
        &lb("a", &asks(), &Value::Null),
        &AddressOutcome::Pool(result.clone()),
        None,
        NOW,
    );
    json_patch::merge(&mut value, &patch.unwrap());
    let settled: LoadBalancer = serde_json::from_value(value).unwrap();
    let (line, change) = load_balancer(&settled, &AddressOutcome::Pool(result), None, NOW);
    assert_eq!((line.has.as_str(), line.gets.as_str()), ("10.1.0.2", "10.1.0.2"));
    assert_eq!(change, None);
}

#[test]
fn a_pool_that_stands_back_says_why() {
    let spec = json!({"ranges": [{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.5", "rangeEnd": "10.2.0.5"}]});
    let plan = plan(&pool_of(&spec, &Value::Null), &[]);
    let said = plan.pools[0].said.as_ref().unwrap();
    assert_eq!(said.status, ConditionStatus::False);
    assert_eq!(said.reason.as_deref(), Some("InvalidRange"));
    assert!(plan.findings.is_empty(), "its line says it: {:?}", plan.findings);
}

#[test]
fn credentials_are_listed_by_their_end_and_a_renewed_one_once() {
    let now = 1_800_000_000;
    let at = crate::credentials::timestamp::rfc3339;
    let rotation = |source: &Value, status: &Value| -> TokenRotation {
        serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": "r", "uid": "u"},
            "spec": {"source": source, "target": {"secret": {"name": "s", "key": "k"}}},
            "status": status,
        }))
        .unwrap()
    };
    let content = |text: &str| SecretContent {
        value: Some(SecretText::trimmed(text.to_owned())),
        ..SecretContent::default()
    };
    let jwt = |end: i64| {
        use base64::Engine as _;
        let part = |value: Value| {
            base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(value.to_string())
        };
        format!("{}.{}.x", part(json!({})), part(json!({"exp": end})))
    };
    let ended = credentials::of_rotation(
        &rotation(&Value::Null, &json!({"expiresAt": at(now + DAY)})),
        now,
    );
    assert_eq!(ended.len(), 1);
    assert!(ended[0].is_soon && ended[0].renewed_by.is_none());
    assert_eq!(ended[0].place, "Secret n/s, key k");
    let listed = credentials::of_secret("n", "s", "k", &content(&jwt(now + DAY)), now);
    assert_eq!(credentials::merged(ended.clone(), listed).len(), 1, "the Secret is known");
    let other = credentials::of_secret("n", "other", "k", &content(&jwt(now + 30 * DAY)), now);
    assert!(!other[0].is_soon);
    let users =
        json!({"users": [{"name": "u", "user": {"token": jwt(now + 2 * DAY)}}]}).to_string();
    let config = credentials::of_secret("n", "config", "k", &content(&users), now);
    assert_eq!(config[0].place, "Secret n/config, key k, user u");
    assert!(credentials::of_secret("n", "p", "k", &content("hunter2"), now).is_empty());
    let all = credentials::merged(ended, [other, config].concat());
    let places: Vec<&str> = all.iter().map(|credential| credential.place.as_str()).collect();
    assert_eq!(
        places,
        ["Secret n/s, key k", "Secret n/config, key k, user u", "Secret n/other, key k"]
    );
    let text = report::text(&Preview { credentials: all, ..Preview::default() }, now);
    assert!(text.contains("expires in 1 day: soon, and nothing replaces it"), "{text}");
    assert!(!text.contains("hunter2") && !text.contains("eyJ"), "{text}");
}

#[test]
fn what_is_not_known_names_the_right_and_what_depends_on_it() {
    let read = |verb: &'static str, resource: &str, namespace: &str| RoleRead {
        verb,
        group: String::new(),
        resource: resource.to_owned(),
        namespace: namespace.to_owned(),
        name: String::new(),
    };
    let reads = BTreeMap::from([
        (read("list", "nodes", ""), ReadFailure::Forbidden),
        (read("list", "configmaps", "harvester-system"), ReadFailure::Forbidden),
        (read("list", "virtualmachineinstances", ""), ReadFailure::NotServed),
        // If the cluster does not serve TokenRotations, there are none, so no fact is missing.
        (read("list", "tokenrotations", ""), ReadFailure::NotServed),
    ]);
    let said = sentences(&reads, &["pods"]);
    assert_eq!(said.len(), 4, "{said:#?}");
    assert!(said.iter().any(|s| s.starts_with("addresses of nodes")
        && s.ends_with("the right to list nodes is missing")));
    assert!(said.iter().any(|s| s.contains("list configmaps in namespace harvester-system")));
    assert!(said.iter().any(|s| s.contains("pods were not listed in time")));
    assert!(section(&said).starts_with("\nNot known (4):\n  "));
    assert_eq!(section(&[]), "");
}

#[test]
fn columns_are_as_wide_as_their_cells_and_long_lists_are_cut() {
    let line = |n: usize| LoadBalancerLine {
        name: format!("default/lb-{n}"),
        has: String::new(),
        gets: "10.1.0.200".to_owned(),
        said: Ok(condition(ConditionStatus::True, "Allocated", String::new())),
    };
    let plan = Preview { load_balancers: (0..=200).map(line).collect(), ..Preview::default() };
    let text = report::text(&plan, 0);
    assert!(text.contains("LoadBalancers (201):"), "{text}");
    assert!(text.contains("  and 1 more\n"), "{text}");
    assert!(text.contains("  default/lb-7    -    10.1.0.200  True   Allocated\n"), "{text}");
    assert!(
        text.contains("201 LoadBalancers: 0 keep their address, 201 get their first one"),
        "{text}"
    );
    assert!(text.ends_with("nothing was written: this command only reads\n"), "{text}");
}
