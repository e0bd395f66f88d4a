//! Support report: the facts that a maintainer asks for first, taken from stored objects.
//!
//! Invariant: the report contains only those fields of pools, LoadBalancers and TokenRotations that
//! this module names. A Secret is never read. For a certificate, the report says only whether it
//! exists. For a credential, the report gives the name and the times, never the hash.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::load_balancer::facts;
use api::{
    ANNOTATION_NETWORK, Condition, ConditionStatus, IPPool, LoadBalancer, READY, TokenRotation,
};

/// Maximum length of each of these lists: decisions, LoadBalancers that are not ready, and
/// TokenRotations that are not ready.
const MOST: usize = 200;
/// Maximum length of the report's list of expiring credentials. The list has the credentials that
/// expire first.
const MOST_EXPIRIES: usize = 50;

/// Report of a pool: its spec, the counts of its addresses, and its conditions.
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

/// Number of LoadBalancers for each status and reason of their condition `Ready`, as a JSON object
/// with keys such as `True Announced`. A LoadBalancer without this condition counts as `Unknown`,
/// with an empty reason.
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

/// LoadBalancers whose condition `Ready` is missing or not `True`. The oldest LoadBalancer comes
/// first. Each entry contains the condition's reason. At most 200 are returned.
pub fn waiters(lbs: &[LoadBalancer]) -> Vec<Value> {
    let mut waiting: Vec<_> = lbs
        .iter()
        .map(|lb| (lb, ready(lb)))
        .filter(|(_, ready)| ready.status != ConditionStatus::True)
        .collect();
    waiting.sort_by_key(|(lb, _)| {
        (lb.metadata.creation_timestamp.as_ref().map(|time| time.0), facts::name(lb))
    });
    let entry = |(lb, ready): (&LoadBalancer, Condition)| {
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
    waiting.into_iter().take(MOST).map(entry).collect()
}

/// Latest decisions of the operator: the conditions of pools and LoadBalancers, newest first. At
/// most 200 are returned.
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
    // Times are compared as texts: RFC 3339 times in UTC sort like their texts.
    all.sort_by(|a, b| b.1.last_update_time.cmp(&a.1.last_update_time));
    let entry = |(object, condition, address): (String, &Condition, _)| json!({"object": object, "condition": condition, "allocatedAddress": address});
    all.into_iter().take(MOST).map(entry).collect()
}

/// Facts about TokenRotations:
/// * the number of TokenRotations for each status and reason of the condition `Ready`. A
///   TokenRotation without this condition counts as `Unknown New`;
/// * the credentials that expire first, at most 50;
/// * the TokenRotations whose condition `Ready` is missing or not `True`, at most 200.
pub fn credentials(rotations: &[TokenRotation]) -> Value {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    // Times are keys as texts: RFC 3339 times in UTC sort like their texts.
    let (mut expiries, mut wrong) = (BTreeMap::new(), BTreeMap::new());
    for rotation in rotations {
        let status = rotation.status.clone().unwrap_or_default();
        let ready = status.conditions.iter().find(|c| c.type_ == READY).cloned();
        let ready = ready.unwrap_or_default();
        let reason = ready.reason.clone().unwrap_or_else(|| "New".to_owned());
        *counts.entry(format!("{:?} {reason}", ready.status)).or_default() += 1;
        let meta = &rotation.metadata;
        let place = (meta.namespace.as_deref(), meta.name.as_deref());
        let name = format!("{}/{}", place.0.unwrap_or_default(), place.1.unwrap_or_default());
        if let Some(end) = &status.expires_at {
            let credential = status.current.as_ref().map(|current| &current.name);
            let entry = json!({"name": name, "credential": credential, "expiresAt": end,
                "nextRotation": status.next_rotation, "lastResult": status.last_result});
            expiries.insert((end.clone(), name.clone()), entry);
        }
        if ready.status != ConditionStatus::True {
            let entry = json!({
                "name": name,
                "created": meta.creation_timestamp,
                "deleting": meta.deletion_timestamp.is_some(),
                "reason": reason,
                "message": ready.message,
                "since": ready.last_update_time,
                "failures": status.failures,
                "retryAfter": status.retry_after,
                "pending": status.pending.map(|pending| pending.name),
                "toBeRevoked": status.previous.len(),
            });
            wrong.insert((ready.last_update_time.clone(), name), entry);
        }
    }
    json!({
        "counts": counts,
        "soonestExpiries": expiries.into_values().take(MOST_EXPIRIES).collect::<Vec<_>>(),
        "notReady": wrong.into_values().take(MOST).collect::<Vec<_>>(),
    })
}

/// Annotation in which `kubectl apply` stores the object as it was last applied, certificates
/// included.
const APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Copy of a webhook configuration, or of parts of a CRD, for the report. Each `caBundle` becomes
/// `true` or `false`: whether the bundle has content. The copy omits `managedFields`, and the
/// annotation in which `kubectl apply` stores the last applied object.
pub fn registration(configuration: &Value) -> Value {
    match configuration {
        Value::Object(fields) => {
            let mut entry = Map::new();
            for (name, value) in fields {
                let value = match name.as_str() {
                    "managedFields" | APPLIED => continue,
                    "caBundle" => json!(value.as_str().is_some_and(|bundle| !bundle.is_empty())),
                    _ => registration(value),
                };
                entry.insert(name.clone(), value);
            }
            Value::Object(entry)
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

    fn rotation(name: &str, reason: &str, expires_at: Option<&str>) -> TokenRotation {
        let status = if reason == "Current" { "True" } else { "False" };
        serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": name},
            "spec": {"target": {"secret": {"name": "s", "key": "k"}}},
            "status": {
                "expiresAt": expires_at,
                "current": {"name": "c-1", "hash": "5ecret", "issuedAt": "2026-01-01T00:00:00Z"},
                "pending": {"name": "c-2", "step": "Publishing", "since": "2026-01-01T00:00:00Z",
                    "hash": "5ecret"},
                "previous": [{"name": "c-0", "hash": "5ecret"}],
                "conditions": [{"type": "Ready", "status": status, "reason": reason,
                    "message": "why", "lastUpdateTime": "2026-01-01T00:00:00Z"}],
            },
        }))
        .unwrap()
    }

    #[test]
    fn the_soonest_expiries_and_failures_of_credentials_are_listed_without_a_hash() {
        let (late, soon) = ("2026-03-01T00:00:00Z", "2026-02-01T00:00:00Z");
        let mut new = rotation("new", "", None);
        new.status = None;
        let all = [
            rotation("late", "Current", Some(late)),
            rotation("soon", "MintFailed", Some(soon)),
            rotation("endless", "Current", None),
            new,
        ];
        let entry = credentials(&all);
        let counts = json!({"False MintFailed": 1, "True Current": 2, "Unknown New": 1});
        assert_eq!(entry["counts"], counts);
        let names = |field: &str| -> Vec<String> {
            let list = entry[field].as_array().unwrap().iter();
            list.map(|one| one["name"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names("soonestExpiries"), ["n/soon", "n/late"]);
        assert_eq!(names("notReady"), ["n/new", "n/soon"]);
        assert_eq!(entry["notReady"][1]["message"], "why");
        assert_eq!(entry["notReady"][1]["toBeRevoked"], 1);
        assert!(!entry.to_string().contains("5ecret"), "{entry}");
        let many: Vec<_> =
            (0..=MOST).map(|n| rotation(&n.to_string(), "MintFailed", Some(soon))).collect();
        let entry = credentials(&many);
        let count = |field: &str| entry[field].as_array().unwrap().len();
        assert_eq!((count("soonestExpiries"), count("notReady")), (MOST_EXPIRIES, MOST));
    }

    #[test]
    fn of_a_certificate_it_is_said_whether_there_is_one() {
        let stored = json!({"webhooks": [{"clientConfig": {"caBundle": "AAAA", "url": "u"}},
            {"clientConfig": {"caBundle": ""}}], "metadata": {"managedFields": [1], "annotations": {APPLIED: "AAAA"}}});
        let entry = json!({"webhooks": [{"clientConfig": {"caBundle": true, "url": "u"}},
            {"clientConfig": {"caBundle": false}}], "metadata": {"annotations": {}}});
        assert_eq!(registration(&stored), entry);
        assert!(!json!(waiters(&[lb("a", 0, "False")])).to_string().contains("PEM"));
    }
}
