//! Shows the scene: a table that is redrawn on a terminal, or one line per change elsewhere.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _, stdout};

use crate::objects::Pool;
use crate::scene::{Scene, Seen};

/// Escape that cuts long lines instead of wrapping them, so that a redraw finds its first line
/// again.
const NO_WRAP: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";

/// A table in place, on a terminal; elsewhere the lines that changed.
pub(crate) struct Table {
    terminal: bool,
    drawn: usize,
    text: String,
    changes: Changes,
}

/// The rows that were shown already.
#[derive(Default)]
pub(crate) struct Changes {
    shown: BTreeMap<String, String>,
}

impl Table {
    pub(crate) fn new() -> Self {
        let terminal = stdout().is_terminal();
        Self { terminal, drawn: 0, text: String::new(), changes: Changes::default() }
    }

    /// Shows the scene if it differs from what was shown.
    pub(crate) fn show(&mut self, scene: &Scene) {
        if !self.terminal {
            self.changes.show(scene);
            return;
        }
        let text = render(scene);
        if text == self.text {
            return;
        }
        let up = if self.drawn == 0 { String::new() } else { format!("\x1b[{}A\r", self.drawn) };
        print!("{up}\x1b[J{NO_WRAP}{text}{WRAP}");
        // A closed terminal is no error.
        let _ = stdout().flush();
        self.drawn = text.lines().count();
        self.text = text;
    }

    /// Prints the whole table.
    pub(crate) fn finish(&mut self, scene: &Scene) {
        self.show(scene);
        if !self.terminal {
            print!("\n{}", render(scene));
        }
    }
}

impl Changes {
    /// Marks the whole scene as shown.
    pub(crate) fn from_here(scene: &Scene) -> Self {
        Self { shown: rows(scene) }
    }

    /// Prints new and changed rows, and the names of removed ones.
    pub(crate) fn show(&mut self, scene: &Scene) {
        let rows = rows(scene);
        for (key, row) in &rows {
            if self.shown.get(key) != Some(row) {
                println!("{row}");
            }
        }
        for key in self.shown.keys().filter(|key| !rows.contains_key(*key)) {
            println!("{key} is gone");
        }
        self.shown = rows;
    }
}

fn rows(scene: &Scene) -> BTreeMap<String, String> {
    let pools = scene.pools.values().map(|pool| (format!("pool {}", pool.name), pool_row(pool)));
    let balancers = scene.balancers.iter();
    pools.chain(balancers.map(|(key, seen)| (format!("lb {key}"), balancer_row(seen)))).collect()
}

fn render(scene: &Scene) -> String {
    let pools = columns("POOL", "TOTAL", "AVAILABLE", "USED%", "READY", "REASON");
    let balancers = wide("LOAD BALANCER", "POOL", "ADDRESS", "READY", "REASON", "MS");
    let mut lines = vec![pools];
    lines.extend(scene.pools.values().map(pool_row));
    lines.push(balancers);
    lines.extend(scene.balancers.values().map(balancer_row));
    lines.join("\n") + "\n"
}

fn pool_row(pool: &Pool) -> String {
    let used = pool.used_percent.map(|percent| percent.to_string()).unwrap_or_default();
    let (total, available) = (count(pool.total), count(pool.available));
    columns(&pool.name, &total, &available, &used, or_dash(&pool.ready), &pool.reason)
}

fn balancer_row(seen: &Seen) -> String {
    let now = &seen.now;
    let took = seen.took().map(|took| took.as_millis().to_string()).unwrap_or_default();
    let address = or_dash(now.address.as_deref().unwrap_or_default());
    wide(&now.key, or_dash(&now.pool), address, or_dash(&now.ready), &now.reason, &took)
}

fn columns(name: &str, total: &str, free: &str, used: &str, ready: &str, reason: &str) -> String {
    format!("  {name:<24} {total:>10} {free:>10} {used:>6}  {ready:<6} {reason}")
        .trim_end()
        .to_owned()
}

fn wide(name: &str, pool: &str, address: &str, ready: &str, reason: &str, took: &str) -> String {
    format!("  {name:<24} {pool:<13} {address:<18} {ready:<6} {reason:<15} {took:>5}")
        .trim_end()
        .to_owned()
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

/// A count; the largest number means "more than fits".
fn count(number: i64) -> String {
    if number == i64::MAX { "2^63-1".to_owned() } else { number.to_string() }
}
