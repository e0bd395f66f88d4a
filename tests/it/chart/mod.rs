//! The Helm chart: refused values, rendered objects, and its life in a real control plane.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod duties;
mod fit;
mod install;
mod monitoring;
mod render;
pub(crate) mod rights;
mod scrape;
mod telling;
mod values;

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;
use testbed::{Chart, repository};

pub(crate) use self::render::monitoring_crds;
pub(crate) use self::values::leaves;

/// Values that switch on every option.
const ALL_ON: &str = "tests/it/chart/all-on.yaml";

/// All objects of rendered templates.
pub(crate) fn objects(rendered: &BTreeMap<String, String>) -> Vec<Value> {
    let texts = rendered.values().flat_map(|text| text.split("---\n"));
    texts
        .map(|text| serde_saphyr::from_str(text).unwrap())
        .filter(|v: &Value| !v.is_null())
        .collect()
}

pub(crate) fn object<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let is_it = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
    objects.iter().find(is_it).unwrap_or_else(|| panic!("no {kind} {name}"))
}

fn read(file: &str) -> String {
    fs::read_to_string(repository().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

fn yaml(file: &str) -> Value {
    serde_saphyr::from_str(&read(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

fn all_on() -> String {
    repository().join(ALL_ON).to_str().unwrap().to_owned()
}

async fn default_objects() -> Vec<Value> {
    objects(&Chart::locate().await.unwrap().render(&[]).await.unwrap())
}
