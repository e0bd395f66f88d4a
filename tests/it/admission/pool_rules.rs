//! The table of requests for IPPools, applied to the rules directly.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use harvester_guest_operator::domain::admission::pool::{
    AnswerOrQuestion, PoolRuleFacts, answer_or_ask, mutate, network,
};
use harvester_guest_operator::domain::admission::{self, AdmissionAnswer, AdmissionRequest};
use harvester_guest_operator::domain::network::{NetworkAttachment, Segment};
use harvester_guest_operator::domain::pools::conflict::PoolFacts;
use serde_json::{Value, json};

use super::pool_rows::{Expect, Operation, Row, object, rows};

fn vlan(network: &str) -> Option<u16> {
    match network {
        "default/x" | "default/y" => Some(100),
        "default/z" => Some(200),
        _ => None,
    }
}

fn segment(network: &str) -> Segment {
    let attachment = vlan(network).map(|vlan| NetworkAttachment { bridge: "mgmt-br".into(), vlan });
    Segment::of(network, attachment.as_ref(), true)
}

/// The answer with the warnings of both calls, and the object as it would be stored.
fn answer(row: &Row) -> Result<(AdmissionAnswer, Value)> {
    let mut pools: Vec<Value> = Vec::new();
    let mut holder = false;
    for text in row.before {
        let mut object = object(text)?;
        if object["kind"] == "LoadBalancer" {
            holder = true;
            continue;
        }
        object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        let request = request(admission::Operation::Create, "", Some(&object), None);
        let labelled = mutate(&request, vlan(network(&object)));
        pools.push(labelled.object.unwrap_or(object));
    }
    let asked = object(row.request)?;
    let name = asked["metadata"]["name"].as_str().context("no name")?.to_owned();
    let mut old =
        pools.iter().find(|pool| pool["metadata"]["name"] == asked["metadata"]["name"]).cloned();
    if let Some(old) = old.as_mut().filter(|_| holder) {
        old["status"] = json!({"allocated": {"10.1.0.40": "default/holder"}});
    }
    let (operation, mut new) = match row.operation {
        Operation::Create => (admission::Operation::Create, Some(asked)),
        Operation::Update => {
            let mut new = old.clone().context("nothing to update")?;
            json_patch::merge(&mut new, &asked);
            (admission::Operation::Update, Some(new))
        }
        Operation::Delete => (admission::Operation::Delete, None),
    };
    let vlan = new.as_ref().and_then(|new| vlan(network(new)));
    let mut answer = mutate(&request(operation, &name, new.as_ref(), old.as_ref()), vlan);
    new = answer.object.take().or(new);
    if answer.refusals.is_empty() {
        let judged = match answer_or_ask(&request(operation, &name, new.as_ref(), old.as_ref())) {
            AnswerOrQuestion::Decided(answer) => answer,
            AnswerOrQuestion::Ask(question) => {
                let facts = |pool: &Value| {
                    let name = pool["metadata"]["name"].as_str().unwrap_or_default();
                    let spec = serde_json::from_value(pool["spec"].clone())?;
                    let facts = PoolFacts::new(name, 5, &spec);
                    let segment = segment(network(pool));
                    anyhow::Ok((Arc::new(facts), segment))
                };
                question.answer(&PoolRuleFacts {
                    pools: pools.iter().map(facts).collect::<Result<_>>()?,
                    segment: segment(question.network()),
                    has_network: Some(question.network() != "default/none"),
                    holders: question.at_stake.clone(),
                    exists: Some(true),
                    missing: question
                        .namespaces()
                        .filter(|n| *n == "none")
                        .map(Into::into)
                        .collect(),
                    infrastructure: BTreeMap::new(),
                    leased: Vec::new(),
                })
            }
        };
        answer.refusals.extend(judged.refusals);
        answer.warnings.extend(judged.warnings);
    }
    Ok((answer, new.unwrap_or_default()))
}

fn request<'a>(
    operation: admission::Operation,
    name: &'a str,
    object: Option<&'a Value>,
    old: Option<&'a Value>,
) -> AdmissionRequest<'a> {
    AdmissionRequest {
        operation,
        subresource: "",
        namespace: "",
        name,
        by_operator: false,
        in_v1alpha1: false,
        object,
        old,
    }
}

#[test]
fn every_request_is_answered_as_the_table_says() -> Result<()> {
    let names: BTreeSet<&str> = rows().map(|row| row.name).collect();
    assert_eq!(names.len(), rows().count(), "two rows of one name");
    let mut faults = Vec::new();
    for row in rows() {
        let (answer, stored) = answer(row).context(row.name)?;
        let refused = |field: &str, part: &str| {
            answer.refusals.iter().any(|r| r.field == field && r.message.contains(part))
        };
        let done = answer.refusals.is_empty();
        let fits = match row.expect {
            Expect::Accept => done && answer.warnings.is_empty(),
            Expect::Warn(part) => done && answer.warnings.iter().any(|w| w.contains(part)),
            Expect::Refuse(field, part) => refused(field, part),
            Expect::Label(key, value) => done && stored["metadata"]["labels"][key] == value,
            // The API server refuses it between the two calls, whatever admission answers.
            Expect::Schema(part) => !part.is_empty(),
        };
        if !fits {
            faults.push(format!("{}: {:?}, not {:?}", row.name, answer, row.expect));
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    Ok(())
}
