//! Owns the API server's audit log: requests of the operator's accounts, and whether they were
//! authorized.
//!
//! The server writes a line before it answers, so each request that a process has an answer to is
//! in the log.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

const POLICY: &str = "audit.yaml";
const LOG: &str = "audit.log";

/// Requests, in a role's words: `group resource verb`.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// All requested rights.
    pub rights: BTreeSet<String>,
    /// The same by user name.
    pub by_user: BTreeMap<String, BTreeSet<String>>,
    /// Requested rights that no role grants, with the server's message.
    pub forbidden: BTreeMap<String, String>,
}

/// Flags of an API server that keeps the audit log, for accounts of one namespace.
pub(crate) fn api_server_args(dir: &Path, namespace: &str) -> Result<[String; 2]> {
    let accounts = format!("system:serviceaccounts:{namespace}");
    let policy = json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "userGroups": [accounts]}, {"level": "None"}],
    });
    fs::write(dir.join(POLICY), policy.to_string())?;
    Ok([format!("--audit-policy-file={POLICY}"), format!("--audit-log-path={LOG}")])
}

/// Audit log of a bed, and the part of it that has been read.
#[derive(Debug, Default)]
pub(crate) struct AuditLog {
    /// Offset of the next line.
    offset: u64,
    asked: Asked,
}

impl AuditLog {
    /// Drops all requests until now.
    pub(crate) fn begin(&mut self, dir: &Path) {
        let offset = fs::metadata(dir.join(LOG)).map_or(0, |log| log.len());
        *self = Self { offset, asked: Asked::default() };
    }

    /// Reads the new lines of the log in a bed's directory, and returns all requests so far.
    pub(crate) fn read(&mut self, dir: &Path) -> Result<Asked> {
        ensure!(dir.join(POLICY).is_file(), "the bed keeps no audit log");
        let mut file = match File::open(dir.join(LOG)) {
            // The server creates it with the first line.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(self.asked.clone()),
            opened => opened?,
        };
        file.seek(SeekFrom::Start(self.offset))?;
        let mut log = String::new();
        file.read_to_string(&mut log)?;
        // The last line may be half written.
        let complete = log.rfind('\n').map_or("", |end| &log[..=end]);
        self.offset += u64::try_from(complete.len())?;
        for line in complete.lines() {
            let event: Value = serde_json::from_str(line)?;
            let Some(right) = right(&event) else { continue };
            // A refusal of another kind, such as by admission, is logged as allowed.
            if event["annotations"]["authorization.k8s.io/decision"] == "forbid" {
                let said = event["responseStatus"]["message"].to_string();
                self.asked.forbidden.insert(right.clone(), said);
            }
            let user = event["user"]["username"].as_str().unwrap_or_default().to_owned();
            self.asked.by_user.entry(user).or_default().insert(right.clone());
            self.asked.rights.insert(right);
        }
        Ok(self.asked.clone())
    }
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
