//! Text of the [`Preview`], for a terminal.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::credentials::ExpiringCredential;
use super::{LoadBalancerLine, PlannedReady, PoolLine, Preview, has_status, unread};
use crate::credentials::timestamp::{Seconds, rfc3339};
use crate::takeover::steps::{Leader, WebhookContent};
use api::{Condition, ConditionStatus};

/// Maximum number of entries in one section of the text. A section with more entries ends with the
/// number of those that are left out. The section `Not known` has no limit.
const MOST: usize = 200;
const DAY: Seconds = 24 * 60 * 60;

/// Text of the whole plan. `now`: present time, in seconds since the epoch.
pub fn text(plan: &Preview, now: Seconds) -> String {
    let mut text = String::new();
    let leader = match &plan.leader {
        None => "not known".to_owned(),
        Some(Leader::None) => "none: the operator would lead at once".to_owned(),
        Some(Leader::Operator(holder)) => format!("the operator ({holder})"),
        Some(Leader::Other(holder)) => {
            format!("another controller ({holder}): while it leads, the operator stands by")
        }
    };
    let admission = match plan.admission {
        None => "not known",
        Some(WebhookContent::Other) => {
            "not the operator's: the operator registers its webhooks when it is installed"
        }
        Some(WebhookContent::Operator | WebhookContent::OperatorOpen) => "the operator's",
    };
    let _ = writeln!(text, "leader:     {leader}\nadmission:  {admission}");

    let lines = plan.load_balancers.iter().map(load_balancer);
    let head = ["LOADBALANCER", "HAS", "WOULD HAVE", "READY", "REASON", "MESSAGE"];
    table(&mut text, "LoadBalancers", &head, &lines.collect::<Vec<_>>());
    let lines = plan.pools.iter().map(pool);
    let head = ["IPPOOL", "AVAILABLE", "READY", "REASON", "MESSAGE"];
    table(&mut text, "IPPools", &head, &lines.collect::<Vec<_>>());
    let lines = plan.changes.iter().map(|change| format!("{}: {}", change.object, change.what));
    list(&mut text, "Would be written", &lines.collect::<Vec<_>>());
    let lines = plan.findings.iter().map(|finding| format!("{}: {}", finding.object, finding.text));
    list(&mut text, "Found", &lines.collect::<Vec<_>>());
    let lines = plan.credentials.iter().map(|credential| expiry_line(credential, now));
    list(&mut text, "Credentials that expire", &lines.collect::<Vec<_>>());
    text.push_str(&unread::section(&plan.unknown));
    let _ = writeln!(text, "\n{}\nnothing was written: this command only reads", summary(plan));
    text
}

/// Summary of the plan in one line.
pub fn summary(plan: &Preview) -> String {
    let mut counts = BTreeMap::new();
    for line in &plan.load_balancers {
        let what = match (line.has.as_str(), line.gets.as_str()) {
            ("", "") => "none",
            ("", _) => "first",
            (_, "") => "lost",
            (has, gets) if has == gets => "kept",
            _ => "moved",
        };
        *counts.entry(what).or_insert(0) += 1;
    }
    let count = |what: &str| counts.get(what).copied().unwrap_or(0);
    let is_idle = |line: &&PoolLine| !has_status(&line.said, ConditionStatus::True);
    let mut text = format!(
        "{} LoadBalancers: {} keep their address, {} get their first one, {} get another one, \
         {} lose theirs, {} have none; {} of {} IPPools would not be ready; {} objects would be \
         written; {} of {} credentials expire soon",
        plan.load_balancers.len(),
        count("kept"),
        count("first"),
        count("moved"),
        count("lost"),
        count("none"),
        plan.pools.iter().filter(is_idle).count(),
        plan.pools.len(),
        plan.changes.len(),
        plan.credentials.iter().filter(|credential| credential.is_soon).count(),
        plan.credentials.len(),
    );
    if !plan.unknown.is_empty() {
        let _ = write!(text, "; {} facts are not known", plan.unknown.len());
    }
    text
}

fn load_balancer(line: &LoadBalancerLine) -> Vec<String> {
    let address = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let mut cells = vec![line.name.clone(), address(&line.has), address(&line.gets)];
    cells.extend(said(&line.said));
    cells
}

fn pool(line: &PoolLine) -> Vec<String> {
    let mut cells = vec![line.name.clone(), line.available.to_string()];
    cells.extend(said(&line.said));
    cells
}

fn said(said: &PlannedReady) -> [String; 3] {
    let none = "-".to_owned();
    match said.clone() {
        Ok(Condition { status, reason, message, .. }) => {
            [format!("{status:?}"), reason.unwrap_or(none), message.unwrap_or_default()]
        }
        Err(why) => [none.clone(), none, why.to_owned()],
    }
}

fn expiry_line(credential: &ExpiringCredential, now: Seconds) -> String {
    let ExpiringCredential { end, place, is_soon, renewed_by } = credential;
    let when = match (end - now) / DAY {
        _ if *end <= now => "expired".to_owned(),
        0 => "expires within a day".to_owned(),
        1 => "expires in 1 day".to_owned(),
        days => format!("expires in {days} days"),
    };
    let soon = if *end <= now { "" } else { "soon, and " };
    let replaced = match renewed_by {
        Some(by) if *is_soon => format!(": {soon}TokenRotation {by} has not replaced it yet"),
        Some(by) => format!(", TokenRotation {by} replaces it before"),
        None if *is_soon => format!(": {soon}nothing replaces it"),
        None => String::new(),
    };
    format!("{}  {place}: {when}{replaced}", rfc3339(*end))
}

/// Appends a table with a title to `text`. Each column is as wide as its widest cell. The last
/// column is not padded.
fn table(text: &mut String, title: &str, head: &[&str], rows: &[Vec<String>]) {
    let _ = writeln!(text, "\n{title} ({}):", rows.len());
    let head: Vec<String> = head.iter().map(ToString::to_string).collect();
    let shown: Vec<&Vec<String>> =
        std::iter::once(&head).chain(rows.iter().take(MOST)).filter(|_| !rows.is_empty()).collect();
    let width = |column: usize| {
        let cells = shown.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    for row in shown {
        let cells = row.iter().zip(&widths);
        let line = cells.map(|(cell, width)| format!("{cell:<width$}")).collect::<Vec<_>>();
        let _ = writeln!(text, "  {}", line.join("  ").trim_end());
    }
    more(text, rows.len());
}

fn list(text: &mut String, title: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{title} ({}):", lines.len());
    for line in lines.iter().take(MOST) {
        let _ = writeln!(text, "  {line}");
    }
    more(text, lines.len());
}

fn more(text: &mut String, all: usize) {
    if all > MOST {
        let _ = writeln!(text, "  and {} more", all - MOST);
    }
}
