//! Rights that Rancher's node driver for Harvester needs when it uses a cloud credential's token.
//!
//! Source: the calls in the driver's `client.go`. [`RIGHTS`] omits images, networks, keys and
//! storage classes, because the machine's configuration decides which of them the driver reads, and
//! in which namespace. [`RIGHTS`] also omits Harvester's settings, because each examined role of
//! Harvester with the right to create virtual machines also has the right to read settings.

use std::fmt;

use serde_json::{Value, json};

/// A right that Rancher's node driver for Harvester needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverRight {
    pub(super) verb: &'static str,
    pub(super) group: &'static str,
    /// Resource, such as `virtualmachines`. In a right to a subresource: resource, slash and
    /// subresource, such as `virtualmachines/start`.
    pub(super) resource: &'static str,
    /// Name of the only object that the right is for. `None`: all objects.
    pub(super) name: Option<&'static str>,
}

const fn of(verb: &'static str, group: &'static str, resource: &'static str) -> DriverRight {
    DriverRight { verb, group, resource, name: None }
}

/// Rights that the node driver needs, in the order in which they are checked. A user with only read
/// access lacks the first one. So each check of such a user, in the whole cluster or in one
/// namespace, ends after one call.
pub const RIGHTS: [DriverRight; 10] = [
    of("create", "kubevirt.io", "virtualmachines"),
    of("get", "kubevirt.io", "virtualmachines"),
    of("update", "kubevirt.io", "virtualmachines"),
    of("delete", "kubevirt.io", "virtualmachines"),
    of("get", "kubevirt.io", "virtualmachineinstances"),
    of("update", "subresources.kubevirt.io", "virtualmachines/start"),
    of("update", "subresources.kubevirt.io", "virtualmachines/stop"),
    of("update", "subresources.kubevirt.io", "virtualmachines/restart"),
    of("create", "", "secrets"),
    of("list", "", "persistentvolumeclaims"),
];

/// Rights to get Harvester's version, and the objects that a machine's configuration can name. The
/// objects may be in any namespace. The driver does not need all of these rights for one machine,
/// because the machine's configuration names only some of the objects.
pub const READS: [DriverRight; 5] = [
    of("get", "harvesterhci.io", "virtualmachineimages"),
    of("get", "harvesterhci.io", "keypairs"),
    of("get", "k8s.cni.cncf.io", "network-attachment-definitions"),
    of("get", "storage.k8s.io", "storageclasses"),
    DriverRight { name: Some("server-version"), ..of("get", "harvesterhci.io", "settings") },
];

impl DriverRight {
    /// SelfSubjectAccessReview that asks whether a token's user has the right. The review is for
    /// all objects, even if the right names one object. `namespace`: namespace in which the user
    /// must have the right. `None`: in all namespaces.
    pub fn review(&self, namespace: Option<&str>) -> Value {
        let (resource, subresource) = self.resource.split_once('/').unwrap_or((self.resource, ""));
        json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {
                "verb": self.verb, "group": self.group, "resource": resource,
                "subresource": subresource, "namespace": namespace.unwrap_or_default(),
            }},
        })
    }

    /// Message about the API key's user, who lacks the right.
    pub fn lacking(&self) -> String {
        format!(
            "the API key's user may not {self} in any namespace there, and Rancher's node driver needs that right: give \
             the user a role that may create virtual machines in a namespace, or use a key of a user with such a role"
        )
    }

    /// Message about a ServiceAccount that lacks the right.
    pub fn account_lacks(&self, account: &str) -> String {
        format!(
            "ServiceAccount {account} may not {self} in any namespace, and Rancher's node driver needs that right: bind \
             it to a role that may create virtual machines, in the namespace of the machines"
        )
    }
}

impl fmt::Display for DriverRight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, group, resource, .. } = self;
        let dot = if group.is_empty() { "" } else { "." };
        write!(f, "{verb} {resource}{dot}{group}")
    }
}

#[cfg(test)]
mod tests;
