//! Tests of alerts and dashboard that need no scraping Prometheus.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;
use testbed::{Chart, repository, tools};

use super::{read, yaml};
use crate::hygiene::read_folder;

const RULES: &str = "charts/harvester-guest-operator/files/rules.yaml";
const DASHBOARD: &str = "charts/harvester-guest-operator/files/dashboard.json";
const TESTS: [&str; 2] =
    ["tests/it/chart/rules.test.yaml", "tests/it/chart/rules-of-hours.test.yaml"];

fn rules() -> Vec<Value> {
    let rules = yaml(RULES);
    let groups = rules["groups"].as_array().unwrap();
    groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

fn alerts() -> BTreeSet<String> {
    rules().iter().filter_map(|rule| Some(rule["alert"].as_str()?.to_owned())).collect()
}

#[tokio::test]
async fn every_alert_fires_when_it_should_and_only_then() {
    let promtool = tools().await.unwrap().path("promtool").to_owned();
    for (command, file) in [("check", RULES), ("test", TESTS[0]), ("test", TESTS[1])] {
        let output =
            Command::new(&promtool).args([command, "rules"]).arg(repository().join(file)).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "promtool {command} rules {file}:\n{said}");
    }
    // Each alert has a case in which it fires, and a case in which it does not.
    let tests = TESTS.map(yaml);
    let cases = tests.iter().flat_map(|file| file["tests"].as_array().unwrap());
    let cases = cases.flat_map(|test| test["alert_rule_test"].as_array().unwrap());
    let (mut fired, mut silent) = (BTreeSet::new(), BTreeSet::new());
    for case in cases {
        let name = case["alertname"].as_str().unwrap().to_owned();
        let silence = case["exp_alerts"].as_array().unwrap().is_empty();
        if silence {
            silent.insert(name)
        } else {
            fired.insert(name)
        };
    }
    assert_eq!(fired, alerts());
    assert_eq!(silent, alerts());
}

#[tokio::test]
async fn every_alert_has_a_severity_and_a_page_that_says_what_to_do() {
    let pages = read("charts/harvester-guest-operator/ALERTS.md");
    let headings: BTreeSet<String> =
        pages.lines().filter_map(|line| line.strip_prefix("### ")).map(str::to_owned).collect();
    assert_eq!(headings, alerts(), "ALERTS.md (left) against the rules (right)");
    for rule in rules().iter().filter(|rule| rule["alert"].is_string()) {
        let name = rule["alert"].as_str().unwrap();
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(["info", "warning", "critical"].contains(&severity), "{name}: {severity}");
        let link = format!("ALERTS.md#{}", name.to_lowercase());
        assert_eq!(rule["annotations"]["runbook_url"], link.as_str());
        assert!(rule["annotations"]["summary"].is_string(), "{name}");
    }
    let schema: Value =
        serde_json::from_str(&read("charts/harvester-guest-operator/values.schema.json")).unwrap();
    let names = &schema["properties"]["prometheusRule"]["properties"]["disabled"]["items"]["enum"];
    let names = names.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned());
    assert_eq!(names.collect::<BTreeSet<_>>(), alerts(), "values.schema.json against the rules");
    let chart = Chart::locate().await.unwrap();
    let set = "prometheusRule.enabled=true,prometheusRule.disabled={HGONoLeader},\
               prometheusRule.runbooks=https://x.example/a";
    let rendered = &chart.render(&["--set", set]).await.unwrap()["monitoring/rules.yaml"];
    assert!(!rendered.contains("HGONoLeader"));
    assert!(rendered.contains("https://x.example/a#hgoconflicts"));
    assert!(!rendered.contains("ALERTS.md"));
}

#[test]
fn rules_and_dashboard_ask_for_metrics_that_exist() {
    let mut asked: Vec<String> =
        rules().iter().map(|rule| rule["expr"].as_str().unwrap().to_owned()).collect();
    asked.extend(queries().into_iter().map(|(_, query)| query));
    let source = read_folder("src/metrics/");
    let mut names = BTreeSet::new();
    for query in &asked {
        for (at, _) in query.match_indices("hgo_") {
            let name = query[at..].chars().take_while(|c| c.is_ascii_lowercase() || *c == '_');
            names.insert(name.collect::<String>());
        }
    }
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let base = name.trim_end_matches("_bucket");
        assert!(source.contains(&format!("\"{base}\"")), "{name} is not in src/metrics");
    }
}

/// Title and query of every target of the dashboard.
pub(super) fn queries() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let title = panel["title"].as_str().unwrap().to_owned();
            queries.push((title, target["expr"].as_str().unwrap().to_owned()));
        }
    }
    queries
}

#[test]
fn panels_of_the_dashboard_have_names_and_do_not_overlap() {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let mut places = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()));
        assert!(!panel["title"].as_str().unwrap().is_empty());
        let at = |field: &str| panel["gridPos"][field].as_u64().unwrap();
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(x < 24 && places.insert((x, y)), "{}: {x}, {y}", panel["title"]);
            }
        }
    }
}
