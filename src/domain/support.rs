//! What a maintainer asks for first, out of what is stored.
//!
//! Invariant: what gets out is named here, field by field. Of a certificate it is said whether there
//! is one; a Secret is never read.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::facts;
use crate::api::{ANNOTATION_NETWORK, Condition, ConditionStatus, IPPool, LoadBalancer, READY};

/// Decisions and waiters that are told, so that a report of a large site can be sent.
const MOST: usize = 200;

/// A pool: what it may give, what it gave, and what is wrong with it.
pub fn pool(pool: &IPPool) -> Value {
    let status = pool.status.clone().unwrap_or_default();
    json!({
        "name": pool.metadata.name,
        "created": pool.metadata.creation_timestamp,
        "deleting": pool.metadata.deletion_timestamp.is_some(),
        "spec": pool.spec,
        "total": status.total,
        "available": status.available,
        "allocated": status.allocated.len(),
        "former": status.allocated_history.len(),
        "conditions": status.conditions,
    })
}

/// How many LoadBalancers are how.
pub fn counts(lbs: &[LoadBalancer]) -> Value {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for lb in lbs {
        let ready = ready(lb);
        *counts
            .entry(format!("{:?} {}", ready.status, ready.reason.unwrap_or_default()))
            .or_default() += 1;
    }
    json!(counts)
}

/// Who is not ready, and why; the oldest first.
pub fn waiters(lbs: &[LoadBalancer]) -> Vec<Value> {
    let mut waiting: Vec<_> = lbs
        .iter()
        .map(|lb| (lb, ready(lb)))
        .filter(|(_, ready)| ready.status != ConditionStatus::True)
        .collect();
    waiting.sort_by_key(|(lb, _)| {
        (lb.metadata.creation_timestamp.as_ref().map(|time| time.0), facts::name(lb))
    });
    let say = |(lb, ready): (&LoadBalancer, Condition)| {
        json!({
            "name": facts::name(lb),
            "created": lb.metadata.creation_timestamp,
            "deleting": facts::is_leaving(lb),
            "ipam": lb.spec.ipam,
            "workloadType": lb.spec.workload_type,
            "ipPool": lb.spec.ip_pool,
            "network": lb.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION_NETWORK)),
            "reason": ready.reason,
            "message": ready.message,
            "since": ready.last_update_time,
        })
    };
    waiting.into_iter().take(MOST).map(say).collect()
}

/// What was decided last, the newest first: the conditions of pools and LoadBalancers.
pub fn decisions(pools: &[IPPool], lbs: &[LoadBalancer]) -> Vec<Value> {
    let mut all = Vec::new();
    for pool in pools {
        let name = pool.metadata.name.clone().unwrap_or_default();
        for condition in pool.status.iter().flat_map(|status| &status.conditions) {
            all.push((format!("IPPool {name}"), condition, None));
        }
    }
    for lb in lbs {
        let status = lb.status.as_ref();
        let address = status.and_then(|status| status.allocated_address.as_ref());
        for condition in status.iter().flat_map(|status| &status.conditions) {
            all.push((format!("LoadBalancer {}", facts::name(lb)), condition, address));
        }
    }
    // RFC 3339 in UTC sorts as text.
    all.sort_by(|a, b| b.1.last_update_time.cmp(&a.1.last_update_time));
    let say = |(object, condition, address): (String, &Condition, _)| json!({"object": object, "condition": condition, "allocatedAddress": address});
    all.into_iter().take(MOST).map(say).collect()
}

/// What some tool applied last, certificates and all.
const APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// How the API server is led to admission or conversion: everything but the certificates, of which it
/// is said whether there are any.
pub fn registration(configuration: &Value) -> Value {
    match configuration {
        Value::Object(fields) => {
            let mut told = Map::new();
            for (name, value) in fields {
                let value = match name.as_str() {
                    "managedFields" | APPLIED => continue,
                    "caBundle" => json!(value.as_str().is_some_and(|bundle| !bundle.is_empty())),
                    _ => registration(value),
                };
                told.insert(name.clone(), value);
            }
            Value::Object(told)
        }
        Value::Array(items) => items.iter().map(registration).collect(),
        other => other.clone(),
    }
}

fn ready(lb: &LoadBalancer) -> Condition {
    let conditions = lb.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().find(|c| c.type_ == READY).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lb(name: &str, second: u8, status: &str) -> LoadBalancer {
        let at = |second: u8| format!("2026-01-01T00:00:{second:02}Z");
        serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": name, "creationTimestamp": at(second)},
            "spec": {"healthCheck": {"caBundle": "PEM"}},
            "status": {"conditions": [{"type": "Ready", "status": status, "reason": "Why",
                "lastUpdateTime": at(59 - second)}]},
        }))
        .unwrap()
    }

    #[test]
    fn the_oldest_waits_first_and_the_newest_decision_comes_first() {
        let lbs = [lb("b", 2, "False"), lb("ready", 0, "True"), lb("a", 1, "Unknown")];
        let names = |list: Vec<Value>, field: &str| -> Vec<String> {
            list.iter().map(|value| value[field].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names(waiters(&lbs), "name"), ["n/a", "n/b"]);
        let order = names(decisions(&[], &lbs), "object");
        assert_eq!(order, ["LoadBalancer n/ready", "LoadBalancer n/a", "LoadBalancer n/b"]);
        assert_eq!(counts(&lbs), json!({"False Why": 1, "True Why": 1, "Unknown Why": 1}));
    }

    #[test]
    fn there_is_an_end() {
        let lbs: Vec<_> = (0..=MOST).map(|n| lb(&format!("{n}"), 0, "False")).collect();
        assert_eq!((waiters(&lbs).len(), decisions(&[], &lbs).len()), (MOST, MOST));
    }

    #[test]
    fn of_a_certificate_it_is_said_whether_there_is_one() {
        let stored = json!({"webhooks": [{"clientConfig": {"caBundle": "AAAA", "url": "u"}},
            {"clientConfig": {"caBundle": ""}}], "metadata": {"managedFields": [1], "annotations": {APPLIED: "AAAA"}}});
        let told = json!({"webhooks": [{"clientConfig": {"caBundle": true, "url": "u"}},
            {"clientConfig": {"caBundle": false}}], "metadata": {"annotations": {}}});
        assert_eq!(registration(&stored), told);
        assert!(!json!(waiters(&[lb("a", 0, "False")])).to_string().contains("PEM"));
    }
}
