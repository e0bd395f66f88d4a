//! Rights of a guest: the roles that it gets, and the namespaces where they are bound.
//!
//! The cloud provider's role is bound in the guest's namespace alone. The roles of the CSI driver
//! depend on [`CsiAccess`]:
//!
//! * [`CsiAccess::Harvester`]: Harvester's role for CSI drivers is bound for the whole cluster.
//! * [`CsiAccess::Narrow`]: Harvester's role for CSI drivers is bound in the guest's namespace. A
//!   role for the cluster-scoped kinds that the driver reads (StorageClasses, VolumeAttachments,
//!   Settings) is bound for the whole cluster. A third role is bound in the two namespaces that all
//!   guests share. There the driver writes NetworkFilesystems, and reads Longhorn's Volumes.
//! * [`CsiAccess::None`]: no role is bound.

use serde_json::{Value, json};

use super::{
    BindingSubject, CreationStep, ExistingObjects, GuestCluster, KindAndName, OTHER, ObjectKind,
    RBAC, StoredBinding, owner,
};

/// Harvester's ClusterRole for cloud providers.
pub const CLOUD_PROVIDER: &str = "harvesterhci.io:cloudprovider";
/// Harvester's ClusterRole for CSI drivers.
pub const CSI_DRIVER: &str = "harvesterhci.io:csi-driver";
/// ClusterRole with the rights to the cluster-scoped kinds that a CSI driver reads.
pub const CSI_CLUSTER: &str = "harvester-guest-operator:csi-cluster";
/// ClusterRole with the rights of a CSI driver in the namespaces that all guests share.
pub const CSI_SHARED: &str = "harvester-guest-operator:csi-shared";
/// All ClusterRoles that guests get.
pub const GUEST_ROLES: [&str; 4] = [CLOUD_PROVIDER, CSI_DRIVER, CSI_CLUSTER, CSI_SHARED];
/// Namespaces that all guests share: one for network file systems, one for Longhorn's volumes.
pub const SHARED_NAMESPACES: [&str; 2] = ["harvester-system", "longhorn-system"];

/// Rights of the guest's CSI driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CsiAccess {
    /// Harvester's role for CSI drivers, bound for the whole cluster, as Harvester itself binds it.
    Harvester,
    /// Harvester's role for CSI drivers, bound in the guest's namespace. In other namespaces, the
    /// driver gets only the rights that it needs.
    Narrow,
    /// No rights: the guest has no CSI driver.
    None,
}

/// Rights that the guest's CSI driver gets. `asked`: rights that the option `--csi` requests. If
/// the option is not given, the first case that applies decides:
///
/// 1. The driver has rights: it keeps them.
/// 2. The guest has a token Secret or a placeholder: the driver gets no rights. The token Secret is
///    created last, so the guest's access is complete without these rights.
/// 3. All other cases: the driver gets narrow rights. The guest is new, or the creation of its
///    access was interrupted.
pub fn csi(guest: &GuestCluster, found: &ExistingObjects, asked: Option<CsiAccess>) -> CsiAccess {
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
        None if has(CSI_DRIVER, false) => CsiAccess::Harvester,
        None if is_narrow || !has_had_token(guest, found) => CsiAccess::Narrow,
        None => CsiAccess::None,
    }
}

fn has_had_token(guest: &GuestCluster, found: &ExistingObjects) -> bool {
    let name_placeholder = found.taken.get(&guest.token());
    !found.own(guest).is_empty() || name_placeholder.is_some_and(|taken| taken.stands_for.is_some())
}

pub(super) fn plan(
    guest: &GuestCluster,
    csi: CsiAccess,
    found: &ExistingObjects,
    steps: &mut Vec<CreationStep>,
    faults: &mut Vec<String>,
) {
    let wanted = wanted(guest, csi, found);
    for role in [CLOUD_PROVIDER, CSI_DRIVER] {
        if wanted.iter().any(|(_, wanted)| *wanted == role) && !found.roles.contains_key(role) {
            faults.push(missing(role));
        }
    }
    for (role, rules) in
        own_roles().into_iter().filter(|(role, _)| wanted.iter().any(|(_, wanted)| wanted == role))
    {
        let object =
            KindAndName { kind: ObjectKind::ClusterRole, namespace: None, name: role.to_owned() };
        match found.roles.get(role) {
            None => steps.push(CreationStep { object, body: json!({"rules": rules}) }),
            Some(there) if *there != rules => faults.push(format!(
                "--csi narrow: {object} exists, but has other rules than --csi narrow needs. \
                 Delete it, or give --csi harvester"
            )),
            Some(_) => {}
        }
    }
    for (object, role) in wanted {
        match found.bindings.iter().find(|there| there.object() == object) {
            None => steps.push(step(guest, found, object, role)),
            Some(there) => faults.extend(fault(guest, role, there)),
        }
    }
}

fn missing(role: &str) -> String {
    match role {
        CSI_DRIVER => format!(
            "--csi: ClusterRole {role} does not exist. Harvester should have made it. If the guest \
             needs no CSI driver, give --csi none"
        ),
        _ => format!(
            "ClusterRole {role} does not exist. Harvester should have made it. This operator's \
             chart makes it with rbac.guestRole=true"
        ),
    }
}

/// Bindings that the guest needs, each with its role.
fn wanted(
    guest: &GuestCluster,
    csi: CsiAccess,
    found: &ExistingObjects,
) -> Vec<(KindAndName, &'static str)> {
    let binding =
        |namespace: Option<&str>, name: &str, role| (KindAndName::binding(namespace, name), role);
    let (here, name) = (Some(guest.namespace.as_str()), guest.binding());
    let mut all = vec![binding(here, &name, CLOUD_PROVIDER)];
    match csi {
        CsiAccess::None => {}
        // The garbage collector ignores the owner reference of this ClusterRoleBinding, because a
        // ServiceAccount cannot own a cluster-scoped object. Harvester reads from the owner
        // reference to which guest the binding belongs.
        CsiAccess::Harvester => all.push(binding(None, &name, CSI_DRIVER)),
        CsiAccess::Narrow => {
            // The name of an account never contains a colon, so no binding of another guest has
            // this name.
            let csi = format!("{name}:csi");
            all.push(binding(here, &csi, CSI_DRIVER));
            all.push(binding(None, &name, CSI_CLUSTER));
            let shared = SHARED_NAMESPACES.into_iter().filter(|ns| found.shared.contains(*ns));
            all.extend(shared.map(|namespace| binding(Some(namespace), &csi, CSI_SHARED)));
        }
    }
    all
}

fn step(
    guest: &GuestCluster,
    found: &ExistingObjects,
    object: KindAndName,
    role: &str,
) -> CreationStep {
    let subject = guest.subject();
    // A binding in a namespace that all guests share has no owner, because the garbage collector
    // would delete a binding whose owner is in another namespace.
    let owners = if role == CSI_SHARED { vec![] } else { vec![owner(guest, found)] };
    CreationStep {
        object,
        body: json!({
            "metadata": {"ownerReferences": owners},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": subject.kind, "namespace": subject.namespace, "name": subject.name}],
        }),
    }
}

fn fault(guest: &GuestCluster, role: &str, there: &StoredBinding) -> Option<String> {
    let object = there.object();
    if !there.is_only(&guest.subject()) {
        return Some(format!(
            "{object} exists, but is not for this guest alone: it names {}. Give another \
             --cluster{}",
            names(there),
            if there.namespace.is_none() { ", or --csi none" } else { "" }
        ));
    }
    // Harvester's role for CSI drivers gives more rights than the wanted one.
    let gives_more = role == CSI_CLUSTER && there.gives(CSI_DRIVER);
    if there.gives(role) || gives_more {
        return None;
    }
    let (kind, name) = &there.role;
    Some(if there.gives(CSI_CLUSTER) {
        format!(
            "{object} was made with --csi narrow: leave out --csi. To change the rights, give \
             --revoke all, then make the cloud config again"
        )
    } else {
        format!("{object} exists, but grants {kind} {name} instead of ClusterRole {role}. {OTHER}")
    })
}

fn names(binding: &StoredBinding) -> String {
    let name = |s: &BindingSubject| format!("{} {}/{}", s.kind, s.namespace, s.name);
    let names: Vec<_> = binding.subjects.iter().take(3).map(name).collect();
    if names.is_empty() { "no subject".to_owned() } else { names.join(", ") }
}

/// The two ClusterRoles of `--csi narrow`: name and rules of each.
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
