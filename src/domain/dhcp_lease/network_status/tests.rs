//! Status on networks, and the times at which it is written.

use serde_json::{Value, json};

use super::*;

fn at(seconds: i64) -> DateTime<FixedOffset> {
    DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap().fixed_offset()
}

fn facts(agent: &WantedAgent) -> AgentFacts<'_> {
    AgentFacts {
        network: "default/vlan7",
        namespace: "harvester-system",
        agent,
        served_by: None,
        cluster_network: "prod",
        has_node: true,
        deployment: None,
    }
}

/// Returns the new text of the annotation, and the same text parsed as JSON. Checks that the same
/// text is not written a second time.
fn written(facts: &AgentFacts<'_>, before: &str, now: i64) -> (String, Value) {
    let text = change(facts, before, at(now)).expect("nothing is written").expect("it is removed");
    assert_eq!(change(facts, &text, at(now + 60)), None, "written twice: {text}");
    let value = serde_json::from_str(&text).unwrap();
    (text, value)
}

#[test]
fn it_says_who_serves_and_since_when() {
    let served = |by: &str, since| AgentFacts {
        served_by: Some((by.to_owned(), since)),
        // An agent that holds the Lease is active, whatever the nodes' labels and the Deployment
        // say.
        has_node: false,
        ..facts(&WantedAgent::Ours)
    };
    let (first, value) = written(&served("pod-1", Some(at(-30))), "", 0);
    assert_eq!(value, json!({"agent": "pod-1", "since": "2027-01-15T07:59:30Z"}));
    let (_, value) = written(&served("pod-2", Some(at(5))), &first, 9);
    assert_eq!(value, json!({"agent": "pod-2", "since": "2027-01-15T08:00:05Z"}));
    let (_, value) = written(&served("pod-2", None), &first, 9);
    assert_eq!(value["since"], "2027-01-15T08:00:09Z");
}

#[test]
fn it_gives_the_reason_for_a_missing_agent() {
    let refused = WantedAgent::Refused("why".to_owned());
    let failure =
        StoredDeployment { failure: Some("quota".to_owned()), ..StoredDeployment::default() };
    let ours = facts(&WantedAgent::Ours);
    let cases = [
        (facts(&refused), "Refused", "why"),
        (AgentFacts { has_node: false, ..ours.clone() }, "NoNode", "network.harvesterhci.io/prod"),
        (AgentFacts { deployment: Some(&failure), ..ours.clone() }, "NoPod", "quota"),
        (ours.clone(), "AgentAway", "agent=hgo-lease-agent-default-vlan7-"),
        (
            AgentFacts { has_node: false, ..facts(&WantedAgent::Others) },
            "AgentAway",
            "describe pods",
        ),
        (AgentFacts { has_node: false, cluster_network: "mgmt", ..ours.clone() }, "AgentAway", ""),
    ];
    let mut before = String::new();
    for (facts, reason, message) in cases {
        let (_, value) = written(&facts, "", 7);
        assert_eq!((&value["reason"], value.get("agent")), (&json!(reason), None), "{value}");
        assert!(value["message"].as_str().unwrap().contains(message), "{value}");
        before = value.to_string();
    }
    // `since` stays while only the message changes. A stored text that is not JSON is replaced.
    let other = AgentFacts { namespace: "other", ..ours.clone() };
    assert_eq!(written(&other, &before, 70).1["since"], "2027-01-15T08:00:07Z");
    assert_eq!(written(&ours, "yes", 70).1["since"], "2027-01-15T08:01:10Z");
}

#[test]
fn it_says_which_annotation_is_not_followed() {
    let faulty = WantedAgent::Faulty("this one".to_owned());
    let (_, value) = written(&facts(&faulty), "", 7);
    assert_eq!((&value["reason"], &value["message"]), (&json!("Refused"), &json!("this one")));
    let served_by = Some(("pod-1".to_owned(), Some(at(-30))));
    let served = AgentFacts { served_by, ..facts(&faulty) };
    let (before, value) = written(&served, &value.to_string(), 8);
    let since = "2027-01-15T07:59:30Z";
    let expected = json!({
        "agent": "pod-1", "since": since, "reason": "FormerOptions", "message": "this one",
    });
    assert_eq!(value, expected);
    let right = AgentFacts { agent: &WantedAgent::Ours, ..served };
    assert_eq!(written(&right, &before, 9).1, json!({"agent": "pod-1", "since": since}));
}

#[test]
fn a_network_that_asks_for_nothing_says_nothing() {
    assert_eq!(change(&facts(&WantedAgent::None), "", at(0)), None);
    assert_eq!(change(&facts(&WantedAgent::None), "{}", at(0)), Some(None));
}
