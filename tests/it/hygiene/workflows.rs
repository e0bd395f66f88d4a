//! Workflows of the forge: every step is a target of the Makefile or a pinned action, and no job may
//! write. So whatever a forge runs can be run on any machine, and no tag of an action that moves can
//! change it.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{files, make_targets, read, root};

const FOLDER: &str = ".github/workflows/";

#[test]
fn workflows_run_make_targets_and_nothing_else() {
    let targets = make_targets();
    let workflows: Vec<String> =
        files().into_iter().filter(|file| file.starts_with(FOLDER)).collect();
    assert!(workflows.len() >= 2, "{workflows:?}");
    for file in workflows.iter().filter(|file| root().join(file).exists()) {
        let faults = faults(&read(file), &targets);
        assert!(faults.is_empty(), "{file}:\n{}", faults.join("\n"));
    }
}

/// Steps of a workflow beside make targets and pinned actions, and the rights that it asks for.
fn faults(text: &str, targets: &BTreeSet<String>) -> Vec<String> {
    let workflow: Value = serde_saphyr::from_str(text).unwrap();
    let mut faults = Vec::new();
    if workflow["permissions"] != serde_json::json!({"contents": "read"}) {
        faults.push("permissions must be `contents: read` and nothing else".to_owned());
    }
    let jobs = workflow["jobs"].as_object().unwrap();
    for (name, job) in jobs {
        if job.get("permissions").is_some() {
            faults.push(format!("{name}: has permissions of its own"));
        }
        let steps = job["steps"].as_array().unwrap();
        for step in steps {
            let fault = match (step["run"].as_str(), step["uses"].as_str()) {
                (Some(command), None) => fault_of_command(command, targets),
                (None, Some(action)) => fault_of_action(action),
                _ => Some("has neither `run` nor `uses`, or both".to_owned()),
            };
            faults.extend(fault.map(|fault| format!("{name}: {fault}")));
        }
    }
    faults
}

fn fault_of_command(command: &str, targets: &BTreeSet<String>) -> Option<String> {
    let words: Vec<&str> = command.split(' ').collect();
    let ["make", target] = words[..] else {
        return Some(format!("`{command}` must be `make` and one target"));
    };
    let exists = targets.contains(target);
    (!exists).then(|| format!("`{command}`: the Makefile has no target {target}"))
}

/// An action is named by a commit: its tags can be moved.
fn fault_of_action(action: &str) -> Option<String> {
    let commit = action.split_once('@').map_or("", |(_, commit)| commit);
    let is_commit = commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    (!is_commit).then(|| format!("{action}: must name a commit of 40 digits"))
}

#[test]
fn each_fault_of_a_workflow_is_found() {
    let targets = BTreeSet::from(["test".to_owned()]);
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let found = |permissions: &str, step: &str| {
        let text = format!("permissions: {permissions}\njobs:\n  a:\n    steps:\n      - {step}\n");
        faults(&text, &targets).join("\n")
    };
    let read = "{contents: read}";
    assert_eq!(found(read, "run: make test"), "");
    assert_eq!(found(read, &format!("uses: a/b@{commit}")), "");
    for (permissions, step, fault) in [
        ("{contents: write}", "run: make test", "permissions must be"),
        ("{contents: read, packages: write}", "run: make test", "permissions must be"),
        (read, "run: cargo test", "must be `make` and one target"),
        (read, "run: make test; curl x", "must be `make` and one target"),
        (read, "run: \"make test\\ncurl x\"", "must be `make` and one target"),
        (read, "run: make tset", "has no target tset"),
        (read, "uses: a/b@v1", "must name a commit"),
        (read, "uses: a/b", "must name a commit"),
        (read, "name: x", "neither"),
    ] {
        let found = found(permissions, step);
        assert!(found.contains(fault), "{permissions} {step}: {found:?}");
    }
}
