//! Rights that Rancher's node driver for Harvester needs of the token of a cloud credential.
//!
//! Source: the calls in its `client.go`. Images, networks, keys and storage classes are left out: which it
//! reads, and in which namespace, is in the machine's configuration. So are Harvester's settings: no role that Harvester
//! ships was seen to keep them from a user who may make virtual machines.

use std::fmt;

use serde_json::{Value, json};

/// A right that the driver needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    verb: &'static str,
    group: &'static str,
    /// With its subresource, if it is about one.
    resource: &'static str,
}

const fn of(verb: &'static str, group: &'static str, resource: &'static str) -> Right {
    Right { verb, group, resource }
}

/// Rights that the driver needs. Those that a reader lacks come first.
pub const RIGHTS: [Right; 10] = [
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

impl Right {
    /// The question whether the bearer of a token has it, for the API server. Without a namespace: in all.
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

    /// Message about a user who lacks it.
    pub fn lacking(&self) -> String {
        format!(
            "the API key's user may not {self} in any namespace there, as Rancher's node driver must: give that user a \
             role in a namespace by which virtual machines can be made, or use a key of a user who has one"
        )
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, group, resource } = self;
        let dot = if group.is_empty() { "" } else { "." };
        write!(f, "{verb} {resource}{dot}{group}")
    }
}

#[cfg(test)]
mod tests;
