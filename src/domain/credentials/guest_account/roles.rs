//! What a guest may do: which roles it is bound to, and where.
//!
//! The cloud provider's role is bound in the guest's namespace alone. The CSI driver reads kinds that
//! are in no namespace (StorageClasses, VolumeAttachments, Settings), so that part is bound for the
//! whole cluster, and it writes NetworkFilesystems and reads Longhorn's Volumes in two namespaces that
//! all guests share.

use serde_json::{Value, json};

use super::{Binding, Found, Guest, Kind, Object, RBAC, Step, Subject, owner};

/// Harvester's role for cloud providers.
pub const CLOUD_PROVIDER: &str = "harvesterhci.io:cloudprovider";
/// Harvester's role for CSI drivers.
pub const CSI_DRIVER: &str = "harvesterhci.io:csi-driver";
/// What a CSI driver reads that is in no namespace.
pub const CSI_CLUSTER: &str = "harvester-guest-operator:csi-cluster";
/// What a CSI driver needs in the namespaces that all guests share.
pub const CSI_SHARED: &str = "harvester-guest-operator:csi-shared";
/// Those namespaces: one for network file systems, one for Longhorn's volumes.
pub const SHARED_NAMESPACES: [&str; 2] = ["harvester-system", "longhorn-system"];

/// What the CSI driver may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Csi {
    /// As Harvester gives it: its role, for the whole cluster.
    Harvester,
    /// Its role in the guest's namespace, and elsewhere only what is needed there.
    Narrow,
    /// Nothing: the guest has no CSI driver.
    None,
}

/// The rights of the guest's CSI driver: those that are asked for, else those that the guest has. One that
/// is new, or whose making was cut short, gets narrow ones: its token is made last.
pub fn csi(guest: &Guest, found: &Found, asked: Option<Csi>) -> Csi {
    let subject = guest.subject();
    let has = |role: &str, in_namespace: bool| {
        let mut bindings = found.bindings.iter();
        bindings.any(|binding| {
            binding.gives(role)
                && binding.subjects.contains(&subject)
                && binding.namespace.is_some() == in_namespace
        })
    };
    let is_narrow = has(CSI_DRIVER, true) || has(CSI_CLUSTER, false) || has(CSI_SHARED, true);
    match asked {
        Some(csi) => csi,
        None if has(CSI_DRIVER, false) => Csi::Harvester,
        None if is_narrow || !has_had_token(guest, found) => Csi::Narrow,
        None => Csi::None,
    }
}

fn has_had_token(guest: &Guest, found: &Found) -> bool {
    let stand_in = found.taken.get(&guest.token());
    !found.own(guest).is_empty() || stand_in.is_some_and(|taken| taken.stands_for.is_some())
}

/// A binding that the guest should have.
struct Wanted {
    namespace: Option<String>,
    name: String,
    role: &'static str,
    /// A wider role that is there already and does as well.
    or: Option<&'static str>,
    /// Whether the account owns it. Not in another namespace, where its name means nothing.
    owned: bool,
}

pub(super) fn plan(
    guest: &Guest,
    csi: Csi,
    found: &Found,
    steps: &mut Vec<Step>,
    faults: &mut Vec<String>,
) {
    let wanted = wanted(guest, csi, found);
    for role in [CLOUD_PROVIDER, CSI_DRIVER] {
        if wanted.iter().any(|w| w.role == role) && !found.roles.contains_key(role) {
            faults.push(missing(role));
        }
    }
    for (role, rules) in
        own_roles().into_iter().filter(|(r, _)| wanted.iter().any(|w| w.role == *r))
    {
        let object = Object { kind: Kind::ClusterRole, namespace: None, name: role.to_owned() };
        match found.roles.get(role) {
            None => steps.push(Step { object, body: json!({"rules": rules}) }),
            Some(there) if *there != rules => faults.push(format!(
                "--csi narrow: {object} is there with other rules: it is not ours. Delete it, or take --csi harvester"
            )),
            Some(_) => {}
        }
    }
    for wanted in wanted {
        let is = |b: &&Binding| b.namespace == wanted.namespace && b.name == wanted.name;
        match found.bindings.iter().find(is) {
            None => steps.push(step(guest, found, &wanted)),
            Some(there) => faults.extend(fault(guest, &wanted, there)),
        }
    }
}

fn missing(role: &str) -> String {
    match role {
        CSI_DRIVER => format!(
            "--csi: ClusterRole {role} is not there: Harvester makes it. Without a CSI driver in the guest \
             take --csi none"
        ),
        _ => format!(
            "ClusterRole {role} is not there: Harvester makes it, and so does this operator's chart with \
             rbac.guestRole=true"
        ),
    }
}

fn wanted(guest: &Guest, csi: Csi, found: &Found) -> Vec<Wanted> {
    let here = Some(guest.namespace.clone());
    let name = guest.binding();
    let mut all = vec![Wanted {
        namespace: here.clone(),
        name: name.clone(),
        role: CLOUD_PROVIDER,
        or: None,
        owned: true,
    }];
    match csi {
        Csi::None => {}
        // The account cannot really own what is in no namespace, and the garbage collector leaves such
        // a binding alone; but Harvester reads from it whose the binding is.
        Csi::Harvester => {
            all.push(Wanted { namespace: None, name, role: CSI_DRIVER, or: None, owned: true });
        }
        Csi::Narrow => {
            // A colon is in no account's name, so this is no other guest's binding.
            let csi = format!("{}:csi", guest.binding());
            let or = Some(CSI_DRIVER);
            all.push(Wanted {
                namespace: here,
                name: csi.clone(),
                role: CSI_DRIVER,
                or: None,
                owned: true,
            });
            all.push(Wanted { namespace: None, name, role: CSI_CLUSTER, or, owned: true });
            let shared = SHARED_NAMESPACES.into_iter().filter(|ns| found.shared.contains(*ns));
            all.extend(shared.map(|namespace| Wanted {
                namespace: Some(namespace.to_owned()),
                name: csi.clone(),
                role: CSI_SHARED,
                or: None,
                owned: false,
            }));
        }
    }
    all
}

fn step(guest: &Guest, found: &Found, wanted: &Wanted) -> Step {
    let subject = guest.subject();
    let owners = if wanted.owned { vec![owner(guest, found)] } else { Vec::new() };
    let kind = match wanted.namespace {
        Some(_) => Kind::RoleBinding,
        None => Kind::ClusterRoleBinding,
    };
    Step {
        object: Object { kind, namespace: wanted.namespace.clone(), name: wanted.name.clone() },
        body: json!({
            "metadata": {"ownerReferences": owners},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": wanted.role},
            "subjects": [{"kind": subject.kind, "namespace": subject.namespace, "name": subject.name}],
        }),
    }
}

fn fault(guest: &Guest, wanted: &Wanted, there: &Binding) -> Option<String> {
    let object = there.object();
    if !there.is_only(&guest.subject()) {
        return Some(format!(
            "{object} is there and is not this guest's alone: it names {}. Give another --cluster{}",
            names(there),
            if wanted.namespace.is_none() { ", or --csi none" } else { "" }
        ));
    }
    if there.gives(wanted.role) || wanted.or.is_some_and(|or| there.gives(or)) {
        return None;
    }
    let (kind, name) = &there.role;
    Some(if there.gives(CSI_CLUSTER) {
        format!(
            "{object} was made with --csi narrow: leave --csi out, or --revoke all and begin anew"
        )
    } else {
        format!(
            "{object} is there and gives {kind} {name} instead of {}: it is not ours",
            wanted.role
        )
    })
}

fn names(binding: &Binding) -> String {
    let name = |s: &Subject| format!("{} {}/{}", s.kind, s.namespace, s.name);
    let names: Vec<_> = binding.subjects.iter().take(3).map(name).collect();
    if names.is_empty() { "nobody".to_owned() } else { names.join(", ") }
}

/// The two roles of `--csi narrow`.
fn own_roles() -> [(&'static str, Value); 2] {
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    let mut settings = rule("harvesterhci.io", &["settings"], &["get"]);
    settings["resourceNames"] = json!(["csi-driver-config", "csi-online-expand-validation"]);
    let cluster = json!([
        rule("storage.k8s.io", &["storageclasses"], &["get", "list", "watch"]),
        rule("storage.k8s.io", &["volumeattachments"], &["list"]),
        settings,
    ]);
    let shared = json!([
        rule(
            "harvesterhci.io",
            &["networkfilesystems"],
            &["get", "list", "create", "update", "delete"]
        ),
        rule("longhorn.io", &["volumes"], &["get", "list"]),
    ]);
    [(CSI_CLUSTER, cluster), (CSI_SHARED, shared)]
}
