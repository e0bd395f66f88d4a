//! Tests of the rules of IPPools, one row for each case.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::network::NetworkAttachment;
use api::LABEL_GLOBAL_POOL;

pub(super) fn request<'a>(
    operation: Operation,
    object: Option<&'a Value>,
    old: Option<&'a Value>,
) -> AdmissionRequest<'a> {
    AdmissionRequest {
        operation,
        subresource: "",
        namespace: "",
        name: "pool",
        by_operator: false,
        in_v1alpha1: false,
        object,
        old,
    }
}

pub(super) fn pool(spec: &Value) -> Value {
    json!({"metadata": {"name": "pool", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": spec})
}

pub(super) fn range(first: u8, last: u8) -> Value {
    json!([{"subnet": "10.0.0.0/24", "rangeStart": format!("10.0.0.{first}"), "rangeEnd": format!("10.0.0.{last}")}])
}

pub(super) fn everybody() -> Value {
    json!([{"project": "*", "namespace": "*", "guestCluster": "*"}])
}

pub(super) fn refusals(answer: &AdmissionAnswer) -> Vec<String> {
    answer.refusals.iter().map(ToString::to_string).collect()
}

/// Answer of mutation for a new pool (`old` is `None`), or for a change of the pool `old`.
pub(super) fn mutated(object: &Value, old: Option<&Value>, vlan: Option<u16>) -> AdmissionAnswer {
    let operation = if old.is_some() { Operation::Update } else { Operation::Create };
    mutate(&request(operation, Some(object), old), vlan)
}

pub(super) fn judged(
    object: &Value,
    old: Option<&Value>,
    known: &PoolRuleFacts,
) -> AdmissionAnswer {
    let operation = if old.is_some() { Operation::Update } else { Operation::Create };
    match answer_or_ask(&request(operation, Some(object), old)) {
        AnswerOrQuestion::Decided(answer) => answer,
        AnswerOrQuestion::Ask(question) => question.answer(known),
    }
}

/// A second pool. `ends`: last byte of the first address of its range, and of the last address.
fn other(
    name: &str,
    ends: (u8, u8),
    network: &str,
    (priority, scope): (i64, &Value),
) -> (Arc<PoolFacts>, Segment) {
    let spec = json!({
        "ranges": range(ends.0, ends.1),
        "selector": {"network": network, "priority": priority, "scope": scope},
    });
    let spec: IPPoolSpec = serde_json::from_value(spec).unwrap();
    (Arc::new(PoolFacts::new(name, 5, &spec)), segment(network))
}

/// Segment of a network. Two networks, `ns/seven` and `other/seven`, are VLAN 7.
fn segment(network: &str) -> Segment {
    let seven = NetworkAttachment { bridge: "br".into(), vlan: 7 };
    Segment::of(network, ["ns/seven", "other/seven"].contains(&network).then_some(&seven), true)
}

#[test]
fn a_status_that_is_left_out_is_put_back_and_one_that_is_changed_refused() {
    let mut old = pool(&json!({"ranges": range(10, 20)}));
    old["status"] = json!({"total": 11, "allocated": {"10.0.0.10": "ns/lb"}});
    for left_out in [Value::Null, json!({})] {
        let mut new = old.clone();
        new["status"] = left_out;
        new["spec"]["description"] = json!("edited");
        assert_eq!(mutated(&new, Some(&old), None).object.unwrap()["status"], old["status"]);
        assert!(
            refusals(&judged(&new, Some(&old), &PoolRuleFacts::default()))[0]
                .starts_with("status.")
        );
    }
    let mut forged = old.clone();
    forged["status"]["allocated"]["10.0.0.11"] = json!("ns/mine");
    assert!(mutated(&forged, Some(&old), None).refusals.is_empty(), "judged later");
    for subresource in ["", "status"] {
        let request = |by_operator| AdmissionRequest {
            subresource,
            by_operator,
            ..request(Operation::Update, Some(&forged), Some(&old))
        };
        let AnswerOrQuestion::Decided(answer) = answer_or_ask(&request(false)) else {
            panic!("asks")
        };
        assert!(
            refusals(&answer)[0].starts_with("status.allocated: is the operator's"),
            "{answer:?}"
        );
        assert!(
            matches!(answer_or_ask(&request(true)), AnswerOrQuestion::Decided(a) if a == AdmissionAnswer::default())
        );
        assert_eq!(mutate(&request(true), None), AdmissionAnswer::default());
    }
    assert_eq!(judged(&old, Some(&old), &PoolRuleFacts::default()), AdmissionAnswer::default());
}

#[test]
fn ranges_are_judged_as_the_ledgers_owner_does() {
    for (range, field, part) in [
        (
            json!({"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.30", "rangeEnd": "10.0.0.20"}),
            "spec.ranges[0].rangeStart",
            "exchange the two",
        ),
        (
            json!({"subnet": "10.0.0.0/24", "rangeStart": "10.0.1.30"}),
            "spec.ranges[0].rangeStart",
            "outside subnet",
        ),
        (
            json!({"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.0"}),
            "spec.ranges[0].rangeStart",
            "network address",
        ),
        (
            json!({"subnet": "10.0.0.0/24", "rangeEnd": "10.0.0.255"}),
            "spec.ranges[0].rangeEnd",
            "broadcast address",
        ),
        (json!({"subnet": "10.0.0.0"}), "spec.ranges[0].subnet", "CIDR"),
        (
            json!({"subnet": "10.0.0.0/24", "exclude": ["x"]}),
            "spec.ranges[0].exclude[0]",
            "not an IP address",
        ),
        (
            json!({"subnet": "10.0.0.0/24", "gateway": "fd00::1"}),
            "spec.ranges[0].gateway",
            "family",
        ),
    ] {
        let object = pool(&json!({"ranges": [range]}));
        let answer = judged(&object, None, &PoolRuleFacts::default());
        assert!(
            answer.refusals.iter().any(|r| r.field == field && r.message.contains(part)),
            "{answer:?}"
        );
        // A pool that is stored with the faulty range can still get another description.
        let mut edited = object.clone();
        edited["spec"]["description"] = json!("still wrong");
        assert_eq!(
            judged(&edited, Some(&object), &PoolRuleFacts::default()),
            AdmissionAnswer::default()
        );
    }
    let twice = json!([range(10, 20)[0], range(20, 30)[0]]);
    let answer = judged(&pool(&json!({"ranges": twice})), None, &PoolRuleFacts::default());
    assert_eq!(answer.refusals[0].field, "spec.ranges[1]");
}

#[test]
fn a_pool_may_put_no_other_out_of_use() {
    let ns = |name: &str| json!([{"project": "*", "namespace": name, "guestCluster": "*"}]);
    let known = |network: &str| PoolRuleFacts {
        pools: vec![
            other("old", (10, 20), "ns/seven", (5, &ns("a"))),
            other("plain", (40, 50), "", (0, &ns("a"))),
            other("global", (60, 70), "", (0, &everybody())),
        ],
        segment: segment(network),
        ..PoolRuleFacts::default()
    };
    let new = |ends: (u8, u8), network: &str, priority: i64, scope: Value| {
        pool(&json!({
            "ranges": range(ends.0, ends.1),
            "selector": {"network": network, "priority": priority, "scope": scope},
        }))
    };
    let rows = [
        (
            new((20, 30), "other/seven", 6, ns("b")),
            "spec.ranges[0]: the ranges 10.0.0.20 overlap with other pools: IPPool old",
        ),
        (new((21, 30), "other/seven", 6, ns("b")), ""),
        (new((10, 20), "ns/eight", 5, ns("a")), ""),
        (
            new((70, 80), "ns/eight", 6, ns("b")),
            "spec.ranges[0]: the ranges 10.0.0.70 overlap with other pools: IPPool global",
        ),
        (
            new((80, 90), "ns/seven", 5, ns("b")),
            "spec.selector.priority: the priority can't be the same as the pool old",
        ),
        (
            new((80, 90), "", 0, ns("a")),
            "spec.selector.scope[0]: scope selector is same as the pool plain with priority 0",
        ),
        (new((80, 90), "", 0, ns("b")), ""),
        (
            new((80, 90), "", 0, everybody()),
            "spec.selector.scope: there is already a global IP pool: global",
        ),
    ];
    for (object, expected) in &rows {
        let network = object["spec"]["selector"]["network"].as_str().unwrap();
        let refusals = refusals(&judged(object, None, &known(network)));
        match *expected {
            "" => assert_eq!(refusals, Vec::<String>::new(), "{object}"),
            text => assert!(refusals.len() == 1 && refusals[0].starts_with(text), "{refusals:?}"),
        }
    }
    // The label alone does not make a pool global.
    let old = new((80, 90), "", 0, ns("b"));
    let mut labelled = old.clone();
    labelled["metadata"]["labels"] = json!({LABEL_GLOBAL_POOL: "true"});
    assert_eq!(judged(&labelled, Some(&old), &known("")), AdmissionAnswer::default());
}

#[test]
fn a_conflict_that_is_there_may_shrink_and_not_grow() {
    let known = PoolRuleFacts {
        pools: vec![other("old", (10, 20), "", (0, &json!([])))],
        ..PoolRuleFacts::default()
    };
    let of = |first, last| pool(&json!({"ranges": range(first, last)}));
    assert_eq!(judged(&of(15, 30), None, &known).refusals.len(), 1);
    let better = judged(&of(18, 30), Some(&of(15, 30)), &known);
    assert_eq!(refusals(&better), Vec::<String>::new());
    assert!(better.warnings.iter().any(|w| w.contains("still in conflict with IPPool old")));
    assert_eq!(judged(&of(14, 30), Some(&of(15, 30)), &known).refusals.len(), 1);
    assert_eq!(judged(&of(14, 30), Some(&of(14, 30)), &known), AdmissionAnswer::default());
}

#[test]
fn who_would_lose_an_address_is_named() {
    let mut old = pool(&json!({"ranges": range(10, 20)}));
    let allocated: Map<String, Value> =
        (10..21).map(|n| (format!("10.0.0.{n}"), json!(format!("ns/lb{n}")))).collect();
    old["status"] = json!({"allocated": allocated, "allocatedOwners": {"10.0.0.16": "u16"}});
    let mut shrunk = old.clone();
    shrunk["spec"]["ranges"] = range(10, 15);
    let AnswerOrQuestion::Ask(question) =
        answer_or_ask(&request(Operation::Update, Some(&shrunk), Some(&old)))
    else {
        panic!("the request needs no other objects")
    };
    let at_stake: Vec<&str> = question.at_stake.iter().map(|h| h.ip.as_str()).collect();
    assert_eq!(at_stake, ["10.0.0.16", "10.0.0.17", "10.0.0.18", "10.0.0.19", "10.0.0.20"]);
    assert_eq!(question.at_stake[0].uid, "u16");
    let holders = question.at_stake.clone();
    let refused =
        refusals(&question.answer(&PoolRuleFacts { holders, ..PoolRuleFacts::default() }));
    assert_eq!(
        refused,
        [
            "spec.ranges: allocated IP 10.0.0.16 (ns/lb16), 10.0.0.17 (ns/lb17), 10.0.0.18 (ns/lb18) and 2 more is excluded: keep these addresses in the ranges until they are released"
        ]
    );
    // Orphans cause no refusal. A claim that was already outside the ranges is not at stake.
    assert_eq!(refusals(&question.answer(&PoolRuleFacts::default())), Vec::<String>::new());
    let mut further = shrunk.clone();
    further["spec"]["ranges"] = range(10, 14);
    let AnswerOrQuestion::Ask(question) =
        answer_or_ask(&request(Operation::Update, Some(&further), Some(&shrunk)))
    else {
        panic!("the request needs no other objects")
    };
    assert_eq!(question.at_stake.len(), 1);
    // A PUT without status does not hide the claims: the stored status counts.
    shrunk["status"] = Value::Null;
    let put = mutated(&shrunk, Some(&old), None).object.unwrap();
    let AnswerOrQuestion::Ask(question) =
        answer_or_ask(&request(Operation::Update, Some(&put), Some(&old)))
    else {
        panic!("the request needs no other objects")
    };
    assert_eq!(question.at_stake.len(), 5);

    let AnswerOrQuestion::Ask(question) =
        answer_or_ask(&request(Operation::Delete, None, Some(&old)))
    else {
        panic!("the request needs no other objects")
    };
    assert_eq!(question.at_stake.len(), 11);
    let holders = vec![question.at_stake[0].clone()];
    let refused =
        refusals(&question.answer(&PoolRuleFacts { holders, ..PoolRuleFacts::default() }));
    assert!(
        refused[0].starts_with(
            "can't delete pool before releasing all the allocated IP: 10.0.0.10 (ns/lb10);"
        ),
        "{refused:?}"
    );
    assert_eq!(question.answer(&PoolRuleFacts::default()), AdmissionAnswer::default());
}

#[test]
fn a_deletion_under_way_and_the_operator_are_never_in_the_way_of_a_rule() {
    let mut old = pool(&json!({"ranges": range(10, 20)}));
    old["status"] = json!({"allocated": {"10.0.0.10": "ns/lb"}});
    old["metadata"]["finalizers"] = json!(["f"]);
    let mut leaving = old.clone();
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert!(
        matches!(answer_or_ask(&request(Operation::Delete, None, Some(&leaving))), AnswerOrQuestion::Decided(a) if a == AdmissionAnswer::default())
    );
    let mut done = leaving.clone();
    done["metadata"]["finalizers"] = json!([]);
    done["spec"]["ranges"] = json!([]);
    assert_eq!(
        judged(&done, Some(&leaving), &PoolRuleFacts::default()),
        AdmissionAnswer::default()
    );
    let mut broken = old.clone();
    broken["spec"]["ranges"] = json!([]);
    let by_operator = AdmissionRequest {
        by_operator: true,
        ..request(Operation::Update, Some(&broken), Some(&old))
    };
    assert!(
        matches!(answer_or_ask(&by_operator), AnswerOrQuestion::Decided(a) if a == AdmissionAnswer::default())
    );
}

#[test]
fn a_manual_release_is_judged_as_it_would_be_carried_out() {
    let mut old = pool(&json!({"ranges": range(10, 20)}));
    old["status"] = json!({"allocated": {"10.0.0.10": "ns/lb"}});
    let annotated = |asked: &str| {
        let mut new = old.clone();
        new["metadata"]["annotations"] = json!({ANNOTATION_MANUAL_RELEASE: asked});
        new
    };
    for (asked, exists, refused, warned) in [
        ("10.0.0.10 ns/lb", None, "is not of the form", ""),
        (
            "10.0.0.10: ns/other",
            None,
            "",
            "10.0.0.10 is held by ns/lb, not by ns/other: it stays allocated",
        ),
        (
            "10.0.0.10: ns/lb",
            Some(true),
            "",
            "LoadBalancer ns/lb exists: 10.0.0.10 stays allocated",
        ),
        ("10.0.0.10: ns/lb", Some(false), "", ""),
        ("10.0.0.10: ns/lb", None, "", ""),
        ("10.0.0.11: ns/lb", Some(true), "", "10.0.0.11 is not allocated here"),
    ] {
        let new = annotated(asked);
        let answer =
            judged(&new, Some(&old), &PoolRuleFacts { exists, ..PoolRuleFacts::default() });
        let fits = |texts: &[String], expected: &str| match expected {
            "" => texts.is_empty(),
            text => texts.len() == 1 && texts[0].contains(text),
        };
        let is_right = fits(&refusals(&answer), refused) && fits(&answer.warnings, warned);
        assert!(is_right, "{asked}: {answer:?}");
        assert_eq!(
            judged(&new, Some(&new), &PoolRuleFacts::default()),
            AdmissionAnswer::default(),
            "unchanged"
        );
    }
}

/// Any value, whether it has the form of a pool or not.
fn anything() -> impl Strategy<Value = Value> {
    let word = prop::sample::select(vec![
        "metadata",
        "spec",
        "status",
        "ranges",
        "selector",
        "scope",
        "subnet",
        "priority",
        "labels",
        "annotations",
        "allocated",
        "10.0.0.0/24",
        "10.0.0.9",
        "*",
        "",
        LABEL_GLOBAL_POOL,
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        word.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((word.clone(), inner), 0..5).prop_map(|pairs| {
                pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<Map<_, _>>().into()
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn no_object_brings_it_down(object in anything(), old in prop::option::of(anything())) {
        for wrapped in [object.clone(), json!({"metadata": object, "spec": object}), json!({"spec": {"ranges": object, "selector": object}})] {
            let answer = mutated(&wrapped, old.as_ref(), Some(7));
            prop_assert!(answer.refusals.is_empty() || answer.object.is_none());
            judged(&wrapped, old.as_ref(), &PoolRuleFacts::default());
            let _ = answer_or_ask(&request(Operation::Delete, None, Some(&wrapped)));
        }
    }
}
