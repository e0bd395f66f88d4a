//! Tests of forecasts for pools and LoadBalancers as the Go controller stores them.

use serde_json::json;

use super::*;
use crate::load_balancer::facts::{LbSurroundings, Project, facts};
use crate::network::Segment;
use api::IPPool;

/// Pools and LoadBalancers as Harvester's Go controller stores them.
#[derive(Default)]
struct World {
    stored: StoredObjects,
}

impl World {
    fn pool(mut self, name: &str, spec: &serde_json::Value, allocated: &[(&str, &str)]) -> Self {
        let claims: serde_json::Map<String, serde_json::Value> =
            allocated.iter().map(|(ip, owner)| ((*ip).to_owned(), json!(owner))).collect();
        let pool: IPPool = serde_json::from_value(json!({
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "IPPool",
            "metadata": {"name": name},
            "spec": spec,
            "status": {"total": 0, "available": 0, "lastAllocated": "", "allocated": claims},
        }))
        .unwrap();
        self.stored.pools.push(PoolSeen::new(&pool, Segment::default()));
        self
    }

    /// Adds a LoadBalancer of a guest cluster. The LoadBalancer publishes the address `ip` of the
    /// pool `pool`, unless `ip` is empty.
    fn lb(self, name: &str, pool: &str, ip: &str) -> Self {
        let status = match ip {
            "" => json!({}),
            ip => json!({"address": ip, "allocatedAddress": {"ipPool": pool, "ip": ip}}),
        };
        self.object(&json!({
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "finalizers": [LB_FINALIZER]},
            "spec": {"workloadType": "cluster", "ipam": "pool"},
            "status": status,
        }))
    }

    fn object(mut self, object: &serde_json::Value) -> Self {
        let mut full =
            json!({"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer"});
        full.as_object_mut().unwrap().extend(object.as_object().unwrap().clone());
        let lb: LoadBalancer = serde_json::from_value(full).unwrap();
        if facts::wants_pool(&lb) && !facts::is_leaving(&lb) {
            let around = LbSurroundings {
                project: Project::Outside,
                vm_network: None,
                ..LbSurroundings::default()
            };
            self.stored.facts.push(facts(&lb, &around, |_| Segment::default(), true));
        }
        self.stored.load_balancers.push(lb);
        self
    }

    fn forecast(&self) -> Forecast {
        forecast(&self.stored)
    }
}

fn subnet(subnet: &str) -> serde_json::Value {
    json!({"ranges": [{"subnet": subnet}], "selector": {"scope": [{"project": "*", "namespace": "*", "guestCluster": "*"}]}})
}

#[track_caller]
fn finds(forecast: &Forecast, effect: Effect, object: &str, text: &str) {
    let found =
        |f: &&ForecastFinding| f.effect == effect && f.object == object && f.text.contains(text);
    assert!(
        forecast.findings.iter().any(|f| found(&f)),
        "{object}: {text}\n{:#?}",
        forecast.findings
    );
}

#[test]
fn a_healthy_harvester_keeps_each_address_and_has_no_finding() {
    let world = World::default()
        .pool(
            "global",
            &subnet("10.1.0.0/24"),
            &[("10.1.0.5", "default/a"), ("10.1.0.6", "default/b")],
        )
        .lb("a", "global", "10.1.0.5")
        .lb("b", "global", "10.1.0.6")
        .lb("new", "global", "");
    let forecast = world.forecast();
    assert_eq!((forecast.keep, forecast.gain, forecast.leased), (2, 1, 0));
    assert!(forecast.findings.is_empty(), "{:?}", forecast.findings);
    assert_eq!(forecast.results.len(), 3);
}

#[test]
fn what_the_operator_repairs_is_named() {
    let world = World::default()
        .pool(
            "global",
            &subnet("10.1.0.0/24"),
            &[("10.1.0.5", "default/gone"), ("10.1.0.6", "default/stranger"), ("ten", "default/a")],
        )
        .lb("a", "global", "10.1.0.6")
        .lb("b", "global", "10.1.0.7")
        .object(&json!({
            "metadata": {"name": "bare", "namespace": "default", "uid": "uid-bare"},
            "spec": {"workloadType": "cluster", "ipam": "dhcp"},
        }))
        .object(&json!({
            "metadata": {"name": "half", "namespace": "default", "uid": "uid-half",
                "deletionTimestamp": "2026-08-20T10:00:00Z", "finalizers": [LB_FINALIZER]},
            "spec": {"workloadType": "cluster", "ipam": "pool"},
        }));
    let forecast = world.forecast();
    assert_eq!((forecast.keep, forecast.leased), (2, 1));
    let pool = "IPPool global";
    finds(
        &forecast,
        Effect::Repairs,
        pool,
        "10.1.0.5 is recorded for LoadBalancer default/gone, which does not have it: the \
         operator releases it",
    );
    finds(
        &forecast,
        Effect::Repairs,
        pool,
        "LoadBalancer default/a publishes 10.1.0.6, which the ledger has for another LoadBalancer: \
         the operator corrects the ledger",
    );
    finds(
        &forecast,
        Effect::Repairs,
        pool,
        "LoadBalancer default/b publishes 10.1.0.7, which the ledger lacks: the operator records \
         it",
    );
    finds(
        &forecast,
        Effect::Repairs,
        pool,
        "has the key \"ten\", which is no address: the operator removes it",
    );
    finds(&forecast, Effect::Repairs, "LoadBalancer default/bare", "lacks the finalizer");
    finds(&forecast, Effect::Repairs, "LoadBalancer default/half", "is being deleted");
}

/// Two LoadBalancers publish one address. The LoadBalancer that the ledger names keeps the address.
#[test]
fn a_double_is_named_with_the_address_that_the_loser_gets() {
    let world = World::default()
        .pool("global", &subnet("10.1.0.0/24"), &[("10.1.0.5", "default/a")])
        .lb("a", "global", "10.1.0.5")
        .lb("b", "global", "10.1.0.5");
    let forecast = world.forecast();
    assert_eq!(forecast.keep, 1);
    finds(
        &forecast,
        Effect::Changes,
        "LoadBalancer default/b",
        "has 10.1.0.5, which another LoadBalancer keeps, and gets 10.1.0.2",
    );
}

#[test]
fn pools_that_break_a_stricter_rule_are_named_and_serve_on() {
    let reversed = json!({"ranges": [
        {"subnet": "10.2.0.0/24", "rangeStart": "10.2.0.20", "rangeEnd": "10.2.0.10"}
    ]});
    let world = World::default()
        .pool("reversed", &reversed, &[("10.2.0.15", "default/a")])
        .pool("first", &subnet("10.1.0.0/24"), &[])
        .pool("second", &subnet("10.1.0.0/25"), &[("10.1.0.5", "default/b")])
        .lb("a", "reversed", "10.2.0.15")
        .lb("b", "second", "10.1.0.5");
    let forecast = world.forecast();
    assert_eq!(forecast.keep, 2, "{forecast:#?}");
    finds(&forecast, Effect::Stays, "IPPool reversed", "10.2.0.20 is above rangeEnd 10.2.0.10");
    let standing_back = |f: &&ForecastFinding| f.text.starts_with("allocates no address");
    assert!(forecast.findings.iter().any(|f| standing_back(&f)), "{forecast:#?}");
}

#[test]
fn an_address_that_no_pool_gives_any_more_is_kept_and_named() {
    let world = World::default().lb("a", "gone", "10.9.0.5");
    let forecast = world.forecast();
    assert_eq!(forecast.keep, 1);
    finds(
        &forecast,
        Effect::Stays,
        "LoadBalancer default/a",
        "keeps 10.9.0.5: no matched IPPool: \"gone\" no longer exists",
    );
}
