//! Owns the API server's own record of what the operator's accounts ask for, and whether they may.
//!
//! The server writes a line before it answers, so what a process has been told is in the record.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

const POLICY: &str = "audit.yaml";
const LOG: &str = "audit.log";

/// What was asked for, in a role's words: `group resource verb`.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// All of it.
    pub rights: BTreeSet<String>,
    /// What no role grants, with the server's words.
    pub forbidden: BTreeMap<String, String>,
}

/// Flags of an API server that keeps the record, of accounts of one namespace.
pub(crate) fn api_server_args(dir: &Path, namespace: &str) -> Result<[String; 2]> {
    let accounts = format!("system:serviceaccounts:{namespace}");
    let policy = json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "userGroups": [accounts]}, {"level": "None"}],
    });
    fs::write(dir.join(POLICY), policy.to_string())?;
    Ok([format!("--audit-policy-file={POLICY}"), format!("--audit-log-path={LOG}")])
}

/// Reads the record in a bed's directory.
pub(crate) fn read(dir: &Path) -> Result<Asked> {
    ensure!(dir.join(POLICY).is_file(), "the bed keeps no record");
    // It begins with the first line.
    let log = fs::read_to_string(dir.join(LOG)).or_else(|error| match error.kind() {
        ErrorKind::NotFound => Ok(String::new()),
        _ => Err(error),
    })?;
    let mut asked = Asked::default();
    // The last line may be half written.
    for event in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let Some(right) = right(&event) else { continue };
        // A refusal of another kind, such as admission's, says that it was allowed.
        if event["annotations"]["authorization.k8s.io/decision"] == "forbid" {
            let said = event["responseStatus"]["message"].to_string();
            asked.forbidden.insert(right.clone(), said);
        }
        asked.rights.insert(right);
    }
    Ok(asked)
}

fn right(event: &Value) -> Option<String> {
    let object = event["objectRef"].as_object()?;
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    let resource = match text("subresource") {
        "" => text("resource").to_owned(),
        sub => format!("{}/{sub}", text("resource")),
    };
    Some(format!("{} {resource} {}", text("apiGroup"), event["verb"].as_str()?))
}
