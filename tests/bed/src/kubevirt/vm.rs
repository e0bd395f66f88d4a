//! Owns a VM's objects in the API: plain values, rendered to a VirtualMachine, a
//! VirtualMachineInstance and virt-launcher pods as KubeVirt writes them.
//!
//! A [`Vm`] does not check its values, so that a test can write any state that KubeVirt could, and
//! some that it should not.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Grace period of a virt-launcher pod, as KubeVirt sets it.
pub(crate) const GRACE_SECONDS: u32 = 30;
/// virt-controller's finalizer on every VMI, removed when the last virt-launcher is gone.
pub(crate) const FINALIZER: &str = "foregroundDeleteVirtualMachine";

/// `status.phase` of a VMI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "KubeVirt's words")]
pub enum Phase {
    #[default]
    Pending,
    Scheduling,
    Scheduled,
    Running,
    Succeeded,
    Failed,
    Unknown,
    WaitingForSync,
}

/// The `Ready` condition of a VMI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Status of the condition.
    pub status: bool,
    /// Reason of the condition; empty if the status is true.
    pub reason: String,
}

impl Ready {
    /// A true condition without a reason.
    pub fn yes() -> Self {
        Self { status: true, reason: String::new() }
    }

    /// A false condition with a reason such as `PodNotExists`.
    pub fn no(reason: &str) -> Self {
        Self { status: false, reason: reason.to_owned() }
    }
}

/// A network interface of a VM.
#[derive(Clone, Debug)]
pub struct Nic {
    /// The network's name within the VM.
    pub name: String,
    /// `namespace/name` of its NetworkAttachmentDefinition; none means the pod network.
    pub network: Option<String>,
    /// Addresses in the guest, the main one first. On an attached network only the guest agent
    /// reports them, so without it the VMI does not show them.
    pub addresses: Vec<String>,
}

impl Nic {
    /// An interface on the pod network.
    pub fn pod(name: &str, addresses: &[&str]) -> Self {
        Self { name: name.to_owned(), network: None, addresses: strings(addresses) }
    }

    /// An interface on the network of a NetworkAttachmentDefinition, named `namespace/name`.
    pub fn attached(name: &str, network: &str, addresses: &[&str]) -> Self {
        Self { network: Some(network.to_owned()), ..Self::pod(name, addresses) }
    }
}

/// A VM: spec and state.
#[derive(Clone, Debug, Default)]
pub struct Vm {
    /// Namespace of VM and VMI.
    pub namespace: String,
    /// Name of VM and VMI.
    pub name: String,
    /// Labels of the VMI; a pod gets the labels at its creation.
    pub labels: BTreeMap<String, String>,
    /// The VMI's annotations.
    pub annotations: BTreeMap<String, String>,
    /// Node of the VM: `status.nodeName`.
    pub node: Option<String>,
    /// Network interfaces of the VM.
    pub nics: Vec<Nic>,
    /// Interfaces that exist inside the guest only, such as those of a CNI, and their addresses.
    /// The guest agent reports them, without a network's name.
    pub inner: Vec<(String, Vec<String>)>,
    /// `status.phase`.
    pub phase: Phase,
    /// The condition `Ready`; `None` leaves it out.
    pub ready: Option<Ready>,
    /// Whether the condition `Paused` is there, which is never false.
    pub paused: bool,
    /// Whether the condition `AgentConnected` is there, which is never false.
    pub agent: bool,
    /// `status.migrationState`.
    pub migration: Option<Value>,
    /// `status.activePods`: node by pod UID.
    pub active_pods: BTreeMap<String, String>,
}

impl Vm {
    /// A VM that was created and not processed yet.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            labels: BTreeMap::from([("harvesterhci.io/vmName".to_owned(), name.to_owned())]),
            ready: Some(Ready::no("PodNotExists")),
            ..Self::default()
        }
    }

    /// Adds a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Adds an annotation.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Adds an interface.
    #[must_use]
    pub fn nic(mut self, nic: Nic) -> Self {
        self.nics.push(nic);
        self
    }

    /// Addresses of its pods: the first address of each family that the pod network gave it.
    /// Link-local addresses are the guest's own.
    pub fn pod_addresses(&self) -> Vec<String> {
        let given = self.nics.iter().filter(|nic| nic.network.is_none());
        let given = given.flat_map(|nic| &nic.addresses).filter(|text| !text.starts_with("fe80:"));
        let first = |v6: bool| given.clone().find(|text| text.contains(':') == v6);
        [first(false), first(true)].into_iter().flatten().cloned().collect()
    }

    /// The VirtualMachine as a user creates it.
    pub fn machine(&self) -> Value {
        json!({
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachine",
            "metadata": {"namespace": self.namespace, "name": self.name, "labels": self.labels},
            "spec": {"runStrategy": "RerunOnFailure", "template": {
                "metadata": {"labels": self.labels, "annotations": self.annotations},
                "spec": self.spec(),
            }},
        })
    }

    /// The VMI as virt-controller writes it.
    pub fn instance(&self) -> Value {
        json!({
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachineInstance",
            "metadata": {
                "namespace": self.namespace,
                "name": self.name,
                "labels": self.labels,
                "annotations": self.annotations,
                "finalizers": [FINALIZER],
            },
            "spec": self.spec(),
            "status": self.status(),
        })
    }

    pub(crate) fn spec(&self) -> Value {
        let interface = |nic: &Nic| match nic.network {
            Some(_) => json!({"name": nic.name, "bridge": {}, "model": "virtio"}),
            None => json!({"name": nic.name, "masquerade": {}, "model": "virtio"}),
        };
        let network = |nic: &Nic| match &nic.network {
            Some(network) => json!({"name": nic.name, "multus": {"networkName": network}}),
            None => json!({"name": nic.name, "pod": {}}),
        };
        json!({
            "domain": {"devices": {
                "interfaces": self.nics.iter().map(interface).collect::<Vec<_>>(),
            }},
            "networks": self.nics.iter().map(network).collect::<Vec<_>>(),
            "terminationGracePeriodSeconds": GRACE_SECONDS,
        })
    }

    /// Status of the VMI. Missing values are left out, as Go's `omitempty` does.
    pub(crate) fn status(&self) -> Value {
        let mut status = json!({
            "phase": format!("{:?}", self.phase),
            "conditions": self.conditions(),
        });
        let interfaces = self.interfaces();
        let optional = [
            ("nodeName", self.node.as_ref().map(|node| json!(node))),
            ("interfaces", (!interfaces.is_empty()).then(|| json!(interfaces))),
            ("migrationState", self.migration.clone()),
            ("activePods", (!self.active_pods.is_empty()).then(|| json!(self.active_pods))),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                status[name] = value;
            }
        }
        status
    }

    fn conditions(&self) -> Vec<Value> {
        let mut conditions = Vec::new();
        if let Some(ready) = &self.ready {
            conditions.push(condition("Ready", ready.status, &ready.reason));
        }
        if self.paused {
            conditions.push(condition("Paused", true, "PausedByUser"));
        }
        if self.agent {
            conditions.push(condition("AgentConnected", true, ""));
        }
        conditions
    }

    fn interfaces(&self) -> Vec<Value> {
        if !matches!(self.phase, Phase::Running | Phase::Unknown) {
            return Vec::new();
        }
        let own = self.nics.iter().enumerate().map(|(at, nic)| {
            let source = if self.agent { "domain, guest-agent" } else { "domain" };
            let mut shown = json!({
                "name": nic.name,
                "mac": format!("52:54:00:{:02x}:{:02x}:{at:02x}", sum(&self.namespace), sum(&self.name)),
                "infoSource": source,
                "queueCount": 1,
            });
            if nic.network.is_some() {
                shown["infoSource"] = json!(format!("{source}, multus-status"));
            }
            if self.agent {
                shown["interfaceName"] = json!(format!("enp{}s0", at + 1));
            }
            if self.agent || nic.network.is_none() {
                show_addresses(&mut shown, &nic.addresses);
            }
            shown
        });
        let inner = self.inner.iter().filter(|_| self.agent).map(|(name, addresses)| {
            let mut shown = json!({"interfaceName": name, "infoSource": "guest-agent"});
            show_addresses(&mut shown, addresses);
            shown
        });
        own.chain(inner).collect()
    }
}

/// A virt-launcher pod, in which a VM runs. A migrating VM has two.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The pod's name.
    pub name: String,
    /// The pod's UID from the API server.
    pub uid: String,
    /// Node of the pod.
    pub node: String,
    /// Addresses on the pod network, one of each family at most.
    pub addresses: Vec<String>,
    /// UID of the migration that it is the target of.
    pub migration: Option<String>,
    /// `status.phase`.
    pub phase: &'static str,
    /// The condition `Ready`.
    pub ready: Ready,
    /// The readiness gate by which KubeVirt makes a paused VM's pod not ready.
    pub unpaused: bool,
}

impl Launcher {
    /// The pod as virt-controller creates it for a VMI.
    pub fn pod(&self, vm: &Vm, vmi_uid: &str) -> Value {
        let mut labels = vm.labels.clone();
        let mut add = |key: &str, value: &str| labels.insert(key.to_owned(), value.to_owned());
        add("kubevirt.io", "virt-launcher");
        add("kubevirt.io/created-by", vmi_uid);
        add("vm.kubevirt.io/name", &vm.name);
        if let Some(migration) = &self.migration {
            add("kubevirt.io/migrationJobUID", migration);
        }
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "namespace": vm.namespace,
                "name": self.name,
                "labels": labels,
                "annotations": {"kubevirt.io/domain": vm.name},
                "ownerReferences": [{
                    "apiVersion": "kubevirt.io/v1",
                    "kind": "VirtualMachineInstance",
                    "name": vm.name,
                    "uid": vmi_uid,
                    "controller": true,
                    "blockOwnerDeletion": true,
                }],
            },
            "spec": {
                "nodeName": self.node,
                "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": GRACE_SECONDS,
                "readinessGates": [{"conditionType": "kubevirt.io/virtual-machine-unpaused"}],
                "containers": [{"name": "compute", "image": "virt-launcher"}],
            },
        })
    }

    /// Status of the pod as the kubelet writes it.
    pub fn status(&self) -> Value {
        let alive = self.phase == "Running";
        json!({
            "phase": self.phase,
            "podIP": self.addresses.first(),
            "podIPs": self.addresses.iter().map(|ip| json!({"ip": ip})).collect::<Vec<_>>(),
            "conditions": [
                condition("PodScheduled", true, ""),
                condition("Initialized", true, ""),
                condition("ContainersReady", alive, ""),
                condition("kubevirt.io/virtual-machine-unpaused", self.unpaused, ""),
                condition("Ready", self.ready.status, &self.ready.reason),
            ],
        })
    }
}

/// A condition; an empty reason is left out.
fn condition(type_: &str, status: bool, reason: &str) -> Value {
    let mut condition = json!({"type": type_, "status": if status { "True" } else { "False" }});
    if !reason.is_empty() {
        condition["reason"] = json!(reason);
    }
    condition
}

fn show_addresses(interface: &mut Value, addresses: &[String]) {
    if let Some(first) = addresses.first() {
        interface["ipAddress"] = json!(first);
        interface["ipAddresses"] = json!(addresses);
    }
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

/// Checksum of a name, one octet of its MAC address.
fn sum(text: &str) -> u8 {
    text.bytes().fold(0, u8::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::{Nic, Phase, Vm};

    #[test]
    fn without_the_agent_only_the_pod_network_shows_addresses() {
        let mut vm = Vm::new("default", "a")
            .nic(Nic::pod("default", &["10.52.0.7"]))
            .nic(Nic::attached("lan", "default/vlan1", &["192.168.1.5", "fe80::5"]));
        vm.inner = vec![("cni0".to_owned(), vec!["10.42.0.1".to_owned()])];
        assert!(vm.status().get("interfaces").is_none(), "nothing runs yet");

        vm.phase = Phase::Running;
        let without = vm.status()["interfaces"].clone();
        assert_eq!(without.as_array().unwrap().len(), 2);
        assert_eq!(without[0]["ipAddress"], "10.52.0.7");
        assert!(without[1].get("ipAddress").is_none());

        vm.agent = true;
        let with = vm.status()["interfaces"].clone();
        assert_eq!(with[1]["ipAddress"], "192.168.1.5");
        assert_eq!(with[1]["ipAddresses"].as_array().unwrap().len(), 2);
        assert_ne!(with[0]["mac"], with[1]["mac"]);
        assert!(with[2].get("name").is_none(), "the guest's own has no network: {with}");
        assert_eq!(vm.spec()["networks"][1]["multus"]["networkName"], "default/vlan1");
    }
}
