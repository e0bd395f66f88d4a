//! Tests of the order of the steps, from chosen states and from random states.

use proptest::prelude::*;
use serde_json::json;

use super::*;

const TAKE_OVER: Direction = Direction::TakeOver { crds: false };
const WITH_CRDS: Direction = Direction::TakeOver { crds: true };

fn deployment(name: &str, replicas: i32) -> Deployment {
    Deployment {
        name: format!("harvester-system/{name}"),
        wanted: replicas,
        running: replicas,
        ready: replicas,
        before: None,
    }
}

/// State of a Harvester cluster where the operator is installed beside Harvester's Go controller.
fn harvester() -> TakeoverState {
    let crd = |plural: &str| Crd {
        name: format!("{plural}.loadbalancer.harvesterhci.io"),
        is_kept: false,
        is_current: false,
        way_back: WayBack::Open,
    };
    TakeoverState {
        deployments: BTreeMap::from([
            (TakeoverProgram::GoController, deployment("harvester-load-balancer", 1)),
            (TakeoverProgram::GoWebhook, deployment("harvester-load-balancer-webhook", 1)),
            (TakeoverProgram::Operator, deployment("harvester-guest-operator", 2)),
        ]),
        chart: Some(ManagedChart {
            name: "fleet-local/harvester".to_owned(),
            values: json!({"enabled": true}),
            before: None,
        }),
        crds: vec![crd("ippools"), crd("loadbalancers")],
        leader: Leader::Other("go".to_owned()),
        admission: WebhookContent::Operator,
        finalizers: 5,
    }
}

/// State as [`harvester`] returns it, but without the program's Deployment.
fn without(program: TakeoverProgram) -> TakeoverState {
    let mut state = harvester();
    state.deployments.remove(&program);
    state
}

#[test]
fn a_take_over_protects_what_is_there_before_it_stops_anything() {
    let steps = TAKE_OVER.plan(&harvester()).unwrap();
    assert_eq!(
        steps,
        [
            TakeoverStep::KeepCrd("ippools.loadbalancer.harvesterhci.io".to_owned()),
            TakeoverStep::KeepCrd("loadbalancers.loadbalancer.harvesterhci.io".to_owned()),
            TakeoverStep::StopChart,
            TakeoverStep::Stop(TakeoverProgram::GoWebhook),
            TakeoverStep::AwaitEnd(TakeoverProgram::GoWebhook),
            TakeoverStep::Stop(TakeoverProgram::GoController),
            TakeoverStep::AwaitEnd(TakeoverProgram::GoController),
            TakeoverStep::AwaitLease,
            TakeoverStep::RemoveFinalizers(5),
        ]
    );
}

#[test]
fn the_go_webhook_runs_until_the_operator_answers_in_its_place() {
    let state = TakeoverState { admission: WebhookContent::Other, ..harvester() };
    let steps = TAKE_OVER.plan(&state).unwrap();
    let at = |step: &TakeoverStep| steps.iter().position(|s| s == step).unwrap();
    assert!(
        at(&TakeoverStep::AwaitAdmission) < at(&TakeoverStep::Stop(TakeoverProgram::GoWebhook))
    );
}

#[test]
fn nothing_is_stopped_where_no_replica_could_go_on() {
    let refusal = TAKE_OVER.next(&without(TakeoverProgram::Operator)).unwrap_err();
    assert!(refusal.contains("the operator is not installed"), "{refusal}");
    let next = |operator: Deployment| {
        let mut state = harvester();
        state.deployments.insert(TakeoverProgram::Operator, operator);
        TAKE_OVER.next(&state).unwrap().unwrap()
    };
    let operator = || deployment("harvester-guest-operator", 2);
    assert_eq!(
        next(Deployment { ready: 0, ..operator() }),
        TakeoverStep::AwaitReady(TakeoverProgram::Operator)
    );
    // After a way back to the Go controller, the operator's Deployment has 0 replicas and a
    // recorded number. The plan starts the operator first.
    let stopped = Deployment { before: Some(2), ..deployment("harvester-guest-operator", 0) };
    assert_eq!(next(stopped), TakeoverStep::Start(TakeoverProgram::Operator, 2));
}

#[test]
fn a_harvester_without_fleet_has_its_deployments_stopped_alone() {
    let state = TakeoverState { chart: None, ..harvester() };
    let steps = TAKE_OVER.plan(&state).unwrap();
    assert!(!steps.contains(&TakeoverStep::StopChart));
    assert!(steps.contains(&TakeoverStep::Stop(TakeoverProgram::GoController)));
}

#[test]
fn the_way_back_ends_the_operator_before_the_go_webhook_starts() {
    let mut state = harvester();
    for step in TAKE_OVER.plan(&state).unwrap() {
        state.carry_out(TAKE_OVER, &step);
    }
    let steps = Direction::Undo.plan(&state).unwrap();
    assert_eq!(
        steps,
        [
            TakeoverStep::Stop(TakeoverProgram::Operator),
            TakeoverStep::OpenAdmission,
            TakeoverStep::AwaitEnd(TakeoverProgram::Operator),
            TakeoverStep::AwaitLeaseFree,
            TakeoverStep::RestoreChart,
            TakeoverStep::Start(TakeoverProgram::GoWebhook, 1),
            TakeoverStep::AwaitReady(TakeoverProgram::GoWebhook),
            TakeoverStep::Start(TakeoverProgram::GoController, 1),
            TakeoverStep::AwaitReady(TakeoverProgram::GoController),
        ]
    );
    for step in &steps {
        state.carry_out(Direction::Undo, step);
    }
    let chart = state.chart.unwrap();
    assert_eq!((chart.values, chart.before), (json!({"enabled": true}), None));
}

/// Harvester's Go controller loses its own writes of the status while the status is a subresource.
/// The API server drops these writes (`pkg/ipam/store/store.go`, `Reserve`).
#[test]
fn there_is_no_way_back_while_a_status_is_a_subresource() {
    let mut state = harvester();
    state.crds[0].way_back = WayBack::Closed;
    let refusal = Direction::Undo.next(&state).unwrap_err();
    assert!(
        refusal.contains("CRD ippools.loadbalancer.harvesterhci.io is the operator's"),
        "{refusal}"
    );
    let refusal = Direction::Undo.next(&without(TakeoverProgram::GoController)).unwrap_err();
    assert!(refusal.contains("no Deployment of the Go controller"), "{refusal}");
}

/// The operator's form of the CRDs would drop the status that Harvester's Go controller writes.
#[test]
fn the_operators_crds_are_there_only_while_the_go_controller_is_not() {
    let mut state = harvester();
    let steps = WITH_CRDS.plan(&state).unwrap();
    let name = |plural: &str| format!("{plural}.loadbalancer.harvesterhci.io");
    let at =
        |steps: &[TakeoverStep], step: &TakeoverStep| steps.iter().position(|s| s == step).unwrap();
    for plural in ["ippools", "loadbalancers"] {
        let adopted = at(&steps, &TakeoverStep::AdoptCrd(name(plural)));
        assert!(adopted > at(&steps, &TakeoverStep::AwaitEnd(TakeoverProgram::GoController)));
        assert!(adopted > at(&steps, &TakeoverStep::AwaitLease));
    }
    for step in &steps {
        state.carry_out(WITH_CRDS, step);
    }
    let steps = Direction::Undo.plan(&state).unwrap();
    assert_eq!(
        steps[..3],
        [
            TakeoverStep::RestoreCrd(name("ippools")),
            TakeoverStep::RestoreCrd(name("loadbalancers")),
            TakeoverStep::Stop(TakeoverProgram::Operator),
        ]
    );
    // After Harvester's chart has put its own form back, the next run replaces that form even
    // without `--adopt-crds`.
    state.crds[0].is_current = false;
    assert_eq!(TAKE_OVER.plan(&state).unwrap(), [TakeoverStep::AdoptCrd(name("ippools"))]);
    assert_eq!(TAKE_OVER.plan(&harvester()).unwrap().len(), 9);
}

/// A Deployment that Fleet starts again after a take-over is stopped again. The number of replicas
/// that was recorded first stays.
#[test]
fn what_comes_back_is_stopped_again() {
    let mut state = harvester();
    for step in TAKE_OVER.plan(&state).unwrap() {
        state.carry_out(TAKE_OVER, &step);
    }
    assert_eq!(TAKE_OVER.plan(&state).unwrap(), []);
    let controller = state.deployments.get_mut(&TakeoverProgram::GoController).unwrap();
    (controller.wanted, controller.running) = (1, 1);
    let steps = TAKE_OVER.plan(&state).unwrap();
    assert_eq!(
        steps,
        [
            TakeoverStep::Stop(TakeoverProgram::GoController),
            TakeoverStep::AwaitEnd(TakeoverProgram::GoController)
        ]
    );
}

#[test]
fn what_was_recorded_is_put_back_and_no_more() {
    for (before, patch) in [
        (None, Value::Null),
        (Some(Value::Null), Value::Null),
        (
            Some(json!({"enabled": true})),
            json!({"enabled": true, "replicaCount": null, "webhook": null}),
        ),
        (
            Some(json!({"replicaCount": 1, "webhook": {"image": {"tag": "a"}}})),
            json!({"replicaCount": 1, "webhook": {"image": {"tag": "a"}, "replicasCount": null}}),
        ),
    ] {
        let chart =
            ManagedChart { before, values: ManagedChart::stopped(), ..ManagedChart::default() };
        assert_eq!(chart.restored(), patch);
    }
}

fn any_deployment() -> impl Strategy<Value = Option<Deployment>> {
    let numbers = (0..3i32, 0..3i32, 0..3i32, prop::option::of(0..3i32));
    prop::option::of(numbers.prop_map(|(wanted, running, ready, before)| Deployment {
        name: "a/b".to_owned(),
        wanted,
        running,
        ready,
        before,
    }))
}

fn any_state() -> impl Strategy<Value = TakeoverState> {
    let values = prop_oneof![
        Just(Value::Null),
        Just(json!({"enabled": true})),
        Just(json!({"replicaCount": 0, "webhook": {"replicasCount": 2}})),
        Just(ManagedChart::stopped()),
    ];
    let chart = (values.clone(), prop::option::of(values))
        .prop_map(|(values, before)| ManagedChart { name: "a/b".to_owned(), values, before });
    let ways = prop_oneof![Just(WayBack::Open), Just(WayBack::Recorded), Just(WayBack::Closed)];
    let crds = prop::collection::vec((any::<bool>(), any::<bool>(), ways), 0..3).prop_map(|crds| {
        let crd = |(index, (is_kept, is_current, way_back))| Crd {
            name: format!("crd-{index}"),
            is_kept,
            is_current,
            way_back,
        };
        crds.into_iter().enumerate().map(crd).collect::<Vec<_>>()
    });
    let leader = prop_oneof![
        Just(Leader::None),
        Just(Leader::Operator("a".to_owned())),
        Just(Leader::Other("b".to_owned())),
    ];
    let admission = prop_oneof![
        Just(WebhookContent::Other),
        Just(WebhookContent::Operator),
        Just(WebhookContent::OperatorOpen)
    ];
    (
        [any_deployment(), any_deployment(), any_deployment()],
        prop::option::of(chart),
        crds,
        leader,
        admission,
        0..3usize,
    )
        .prop_map(|(programs, chart, crds, leader, admission, finalizers)| TakeoverState {
            deployments: TakeoverProgram::ALL
                .into_iter()
                .zip(programs)
                .filter_map(|(program, deployment)| Some((program, deployment?)))
                .collect(),
            chart,
            crds,
            leader,
            admission,
            finalizers,
        })
}

proptest! {
    /// Both directions come to an end from any state. At the end no step is left, or the next step
    /// is refused. If the next step is refused, the plan from the first state is refused too.
    #[test]
    fn every_plan_ends(state in any_state()) {
        for direction in [TAKE_OVER, WITH_CRDS, Direction::Undo] {
            let mut now = state.clone();
            for _ in 0..30 {
                let Ok(Some(step)) = direction.next(&now) else { break };
                now.carry_out(direction, &step);
            }
            let left = direction.next(&now);
            match left {
                Err(_) => prop_assert_eq!(direction.plan(&state).is_err(), true),
                Ok(left) => prop_assert_eq!(left, None),
            }
        }
    }
}
