//! Listing of guests' credentials: age, last use, and whether the guest still exists.
//!
//! A guest's VMs are found by their label. A VM without the label is found by its name, but only if
//! a node driver made it. Other VMs are not found. Therefore a guest of which no VM is found does
//! not count as gone while its credential is new or was used recently.

use std::collections::BTreeSet;

use chrono::NaiveDate;

use super::super::rotation::status::source_account;
use super::{ExistingObjects, GuestCluster, StoredAccount, StoredBinding, TokenSecret, too_much};
use api::TokenRotation;
use api::kubevirt::{LABEL_CREATOR, LABEL_GUEST_CLUSTER, NODE_DRIVER};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

const DAY: i64 = 24 * 60 * 60;

/// Objects from which the credentials of guests are listed, as they were read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GuestObjects {
    /// ServiceAccounts, each with its namespace and its name.
    pub accounts: Vec<((String, String), StoredAccount)>,
    /// RoleBindings and ClusterRoleBindings.
    pub bindings: Vec<StoredBinding>,
    /// Token Secrets, each with its namespace.
    pub tokens: Vec<(String, TokenSecret)>,
    /// Metadata of the VMs. `None`: the VMs could not be listed.
    pub machines: Option<Vec<ObjectMeta>>,
    /// TokenRotations, whatever their source is.
    pub rotations: Vec<TokenRotation>,
}

/// Whether a VM is a node of `guest`. The VM must be in the guest's namespace, and one of these
/// must hold:
///
/// * The VM's label [`LABEL_GUEST_CLUSTER`] names the guest cluster.
/// * The VM does not have this label, a node driver made the VM, and the VM's name begins with the
///   guest cluster's name and a dash.
///
/// In the second case, the VM may belong to another guest cluster, such as `a-b` instead of `a`.
/// This does no harm: the credential of `guest` is only kept for longer.
fn is_node_of(vm: &ObjectMeta, guest: &GuestCluster) -> bool {
    let label = |key: &str| vm.labels.as_ref().and_then(|labels| labels.get(key));
    vm.namespace.as_ref() == Some(&guest.namespace)
        && if let Some(cluster) = label(LABEL_GUEST_CLUSTER) {
            *cluster == guest.cluster
        } else {
            let rest = vm.name.as_ref().and_then(|name| name.strip_prefix(&guest.cluster));
            label(LABEL_CREATOR).is_some_and(|by| by == NODE_DRIVER)
                && rest.is_some_and(|rest| rest.starts_with('-'))
        }
}

/// A guest's credential, as `--list` shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct GuestCredential {
    /// Guest cluster to which the credential belongs.
    pub guest: GuestCluster,
    /// Existing objects of the credential.
    pub found: ExistingObjects,
    /// Number of the guest's VMs. `None`: the VMs could not be listed.
    pub machines: Option<usize>,
    /// Name of the TokenRotation that makes tokens of the guest's account. `None`: there is none. A
    /// guest with such a TokenRotation does not count as gone while its account exists, because the
    /// use of the tokens is not recorded.
    pub rotation: Option<String>,
}

impl GuestObjects {
    /// Existing objects of one guest's credential. The fields `roles`, `shared` and `taken` stay
    /// empty.
    pub fn found(&self, guest: &GuestCluster) -> ExistingObjects {
        let subject = guest.subject();
        let matters = |binding: &&StoredBinding| {
            binding.subjects.contains(&subject) || binding.name.starts_with(&guest.binding())
        };
        let key = (guest.namespace.clone(), guest.cluster.clone());
        let in_namespace = self.tokens.iter().filter(|(ns, _)| *ns == guest.namespace);
        ExistingObjects {
            account: self.accounts.iter().find(|(k, _)| *k == key).map(|(_, a)| a.clone()),
            bindings: self.bindings.iter().filter(matters).cloned().collect(),
            tokens: in_namespace.map(|(_, token)| token.clone()).collect(),
            ..ExistingObjects::default()
        }
    }

    /// Name of the TokenRotation that makes tokens of the guest's account. `None`: no TokenRotation
    /// makes such tokens.
    fn rotation(&self, guest: &GuestCluster) -> Option<String> {
        let is_of = |rotation: &&TokenRotation| {
            let account = source_account(rotation).map(|account| &account.service_account_name);
            rotation.metadata.namespace.as_ref() == Some(&guest.namespace)
                && account == Some(&guest.cluster)
        };
        self.rotations.iter().find(is_of)?.metadata.name.clone()
    }

    /// Number of VMs that are nodes of `guest`. `None`: the VMs could not be listed.
    fn machines(&self, guest: &GuestCluster) -> Option<usize> {
        let machines = self.machines.as_ref()?;
        Some(machines.iter().filter(|machine| is_node_of(machine, guest)).count())
    }

    /// Credentials of the guests in `namespace`, sorted by namespace and guest cluster. If
    /// `namespace` is `None`, the guests are those in all namespaces. A ServiceAccount counts as a
    /// guest's if one of these holds:
    ///
    /// * A binding gives the account one of the roles for guests.
    /// * The value of the account's annotation `ANNOTATION_GUEST` is the account's name.
    ///
    /// A ServiceAccount is left out if [`GuestCluster::new`] refuses its name or its namespace. For
    /// example, a ServiceAccount with the name `default` is left out.
    pub fn credentials(&self, namespace: Option<&str>) -> Vec<GuestCredential> {
        let bound = self
            .bindings
            .iter()
            .filter(|binding| binding.is_for_guests())
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
            .filter_map(|(ns, cluster)| GuestCluster::new(&cluster, &ns).ok())
            .map(|guest| GuestCredential {
                found: self.found(&guest),
                machines: self.machines(&guest),
                rotation: self.rotation(&guest),
                guest,
            })
            .collect()
    }
}

impl GuestCredential {
    /// Number of days since the latest of these events: the account was made, a token was made, a
    /// token was used. `None`: the account does not exist. `now`: seconds since the epoch.
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
    Some(date.to_epoch_days().into())
}

/// Table that `--list` prints. `now`: seconds since the epoch. `unused_days`: see
/// [`GuestCredential::reason_to_keep`].
pub fn table(credentials: &[GuestCredential], now: i64, unused_days: i64) -> String {
    let head = ["NAMESPACE", "CLUSTER", "TOKEN", "AGE", "LAST USED", "GUEST", "NOTES"];
    let mut rows = vec![head.map(str::to_owned)];
    for credential in credentials {
        let guest = match (credential.machines, credential.reason_to_keep(now, unused_days)) {
            (None, _) => "unknown".to_owned(),
            (Some(0), None) => "gone".to_owned(),
            (Some(0), Some(_)) => "no VMs".to_owned(),
            (Some(1), _) => "1 VM".to_owned(),
            (Some(machines), _) => format!("{machines} VMs"),
        };
        let row = |token: &str, age: String, used: &str, notes: Vec<String>| {
            let GuestCluster { namespace, cluster } = credential.guest.clone();
            let notes = notes.join("; ");
            [namespace, cluster, token.to_owned(), age, used.to_owned(), guest.clone(), notes]
        };
        let mut general = too_much(&credential.guest, &credential.found);
        if credential.found.account.is_none() {
            general.push("left over: its ServiceAccount is gone".to_owned());
        }
        let replaced = |name| format!("TokenRotation {name} makes other tokens of the account");
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

/// Text of a time span. The unit is the largest of days, hours and minutes in which the number is
/// at least 2. A shorter time span is in seconds.
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
