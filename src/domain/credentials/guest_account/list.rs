//! Which guests' credentials there are, how old, when last used, and whether their guest is there.
//!
//! A guest is known by its VMs: by their label, or, from older node drivers, by their names. VMs that
//! somebody made by hand bear neither, so nobody is taken for gone whose credential is new or was used
//! of late.

use std::collections::BTreeSet;

use chrono::NaiveDate;

use super::roles::{CLOUD_PROVIDER, CSI_CLUSTER, CSI_DRIVER, CSI_SHARED};
use super::{Account, Binding, Found, Guest, Token, too_much};

const DAY: i64 = 24 * 60 * 60;

/// All that was read, of one namespace or of all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Survey {
    /// ServiceAccounts by namespace and name.
    pub accounts: Vec<((String, String), Account)>,
    /// Bindings.
    pub bindings: Vec<Binding>,
    /// Token Secrets by namespace.
    pub tokens: Vec<(String, Token)>,
    /// VMs. `None`: they could not be listed.
    pub machines: Option<Vec<Machine>>,
    /// TokenRotations.
    pub rotations: Vec<Rotation>,
}

/// A TokenRotation that makes tokens of an account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// Its namespace, which is the account's.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The account's name. `None`: it makes none of an account.
    pub account: Option<String>,
}

/// A VM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The guest cluster that its label names.
    pub cluster: Option<String>,
    /// Whether a node driver made it.
    pub by_driver: bool,
}

impl Machine {
    /// Old node drivers tell the cluster by the name alone. One too many is no harm: a guest is then
    /// taken for living.
    fn is_node_of(&self, guest: &Guest) -> bool {
        self.namespace == guest.namespace
            && if let Some(cluster) = &self.cluster {
                *cluster == guest.cluster
            } else {
                let rest = self.name.strip_prefix(&guest.cluster);
                self.by_driver && rest.is_some_and(|rest| rest.starts_with('-'))
            }
    }
}

/// A guest's credential.
#[derive(Clone, Debug, PartialEq)]
pub struct Credential {
    /// Whose it is.
    pub guest: Guest,
    /// What there is of it.
    pub found: Found,
    /// How many VMs the guest has. `None`: nobody knows.
    pub machines: Option<usize>,
    /// The TokenRotation that makes tokens of its account. Of their use nobody keeps a note.
    pub rotation: Option<String>,
}

impl Survey {
    /// What there is of one guest's.
    pub fn found(&self, guest: &Guest) -> Found {
        let subject = guest.subject();
        let matters = |binding: &&Binding| {
            binding.subjects.contains(&subject) || binding.name.starts_with(&guest.binding())
        };
        let key = (guest.namespace.clone(), guest.cluster.clone());
        let in_namespace = self.tokens.iter().filter(|(ns, _)| *ns == guest.namespace);
        Found {
            account: self.accounts.iter().find(|(k, _)| *k == key).map(|(_, a)| a.clone()),
            bindings: self.bindings.iter().filter(matters).cloned().collect(),
            tokens: in_namespace.map(|(_, token)| token.clone()).collect(),
            ..Found::default()
        }
    }

    /// The TokenRotation that makes tokens of the guest's account.
    fn rotation(&self, guest: &Guest) -> Option<String> {
        let is_of = |rotation: &&Rotation| {
            rotation.namespace == guest.namespace
                && rotation.account.as_ref() == Some(&guest.cluster)
        };
        self.rotations.iter().find(is_of).map(|rotation| rotation.name.clone())
    }

    /// How many VMs are nodes of the guest.
    fn machines(&self, guest: &Guest) -> Option<usize> {
        let machines = self.machines.as_ref()?;
        Some(machines.iter().filter(|machine| machine.is_node_of(guest)).count())
    }

    /// All credentials, by namespace and cluster; of one namespace, if one is given.
    pub fn credentials(&self, namespace: Option<&str>) -> Vec<Credential> {
        let roles = [CLOUD_PROVIDER, CSI_DRIVER, CSI_CLUSTER, CSI_SHARED];
        let bound = self
            .bindings
            .iter()
            .filter(|binding| roles.iter().any(|role| binding.gives(role)))
            .flat_map(|binding| &binding.subjects)
            .filter(|subject| subject.kind == "ServiceAccount")
            .map(|subject| (subject.namespace.clone(), subject.name.clone()));
        let marked = self
            .accounts
            .iter()
            .filter(|((_, name), account)| account.made_for.as_deref() == Some(name.as_str()));
        let names: BTreeSet<_> = bound.chain(marked.map(|(key, _)| key.clone())).collect();
        names
            .into_iter()
            .filter(|(ns, _)| namespace.is_none_or(|wanted| wanted == ns))
            .filter_map(|(ns, cluster)| Guest::new(&cluster, &ns).ok())
            .map(|guest| Credential {
                found: self.found(&guest),
                machines: self.machines(&guest),
                rotation: self.rotation(&guest),
                guest,
            })
            .collect()
    }
}

impl Credential {
    /// Whole days since the credential was last made, added to or used. `None`: no account is left.
    pub(super) fn quiet_days(&self, now: i64) -> Option<i64> {
        let account = self.found.account.as_ref()?;
        let today = now.div_euclid(DAY);
        let own = self.found.own(&self.guest);
        let made = own.iter().map(|token| token.created).chain([account.created]);
        let used = own.iter().filter_map(|token| day(token.last_used.as_deref()?));
        let last = made.map(|second| second.div_euclid(DAY)).chain(used).max()?;
        Some((today - last).max(0))
    }
}

fn day(text: &str) -> Option<i64> {
    let date = NaiveDate::parse_from_str(text, "%Y-%m-%d").ok()?;
    Some(date.and_hms_opt(0, 0, 0)?.and_utc().timestamp().div_euclid(DAY))
}

/// The table of `--list`.
pub fn table(credentials: &[Credential], now: i64, unused_days: i64) -> String {
    let head = ["NAMESPACE", "CLUSTER", "TOKEN", "AGE", "LAST USED", "GUEST", "NOTES"];
    let mut rows = vec![head.map(str::to_owned)];
    for credential in credentials {
        let guest = match (credential.machines, credential.lives(now, unused_days)) {
            (None, _) => "unknown".to_owned(),
            (Some(0), None) => "gone".to_owned(),
            (Some(0), Some(_)) => "no VMs".to_owned(),
            (Some(1), _) => "1 VM".to_owned(),
            (Some(machines), _) => format!("{machines} VMs"),
        };
        let row = |token: &str, age: String, used: &str, notes: Vec<String>| {
            let Guest { namespace, cluster } = credential.guest.clone();
            let notes = notes.join("; ");
            [namespace, cluster, token.to_owned(), age, used.to_owned(), guest.clone(), notes]
        };
        let mut general = too_much(&credential.guest, &credential.found);
        if credential.found.account.is_none() {
            general.push("left over: its ServiceAccount is gone".to_owned());
        }
        let replaced = |name| format!("TokenRotation {name} makes others");
        general.extend(credential.rotation.as_ref().map(replaced));
        let current = credential.found.valid(&credential.guest).last().map(|t| t.name.clone());
        let mut own = credential.found.own(&credential.guest);
        own.sort_by_key(|token| (token.created, token.name.clone()));
        if own.is_empty() {
            rows.push(row("-", "-".to_owned(), "-", general));
            continue;
        }
        for token in own {
            let mut notes = Vec::new();
            if current.as_ref() == Some(&token.name) {
                notes.push("newest".to_owned());
            }
            notes.extend(token.invalid_since.as_ref().map(|day| format!("refused since {day}")));
            notes.append(&mut general);
            let used = token.last_used.as_deref().unwrap_or("never");
            rows.push(row(&token.name, age(now - token.created), used, notes));
        }
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}   "));
        text.push_str(cells.collect::<String>().trim_end());
        text.push('\n');
    }
    text
}

/// A span of time in its largest unit of which there are two.
fn age(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / DAY);
    match (days, hours, minutes) {
        (2.., _, _) => format!("{days}d"),
        (_, 2.., _) => format!("{hours}h"),
        (_, _, 2..) => format!("{minutes}m"),
        _ => format!("{seconds}s"),
    }
}
