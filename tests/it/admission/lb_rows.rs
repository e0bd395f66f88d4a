//! Requests for LoadBalancers, and the answer to each: with admission, and without it.
//!
//! The requests are made by a tenant with all rights on LoadBalancers of namespace `team`, which is
//! in project `local/ours`; [`super::load_balancers`] describes the other objects. An object is
//! short: `{labels, annotations, status, spec}`, with the name `lb`. An admin creates `before`
//! first, and the test waits until its condition has the reason given. A message is a part of the
//! answer.
//!
//! The API server drops unknown fields before it calls admission, and warns about them itself.

/// A request and its expected results.
pub(crate) struct Row {
    /// Purpose of the row.
    pub(crate) name: &'static str,
    /// The existing object. Empty: none.
    pub(crate) before: &'static str,
    /// Reason that its condition must have before the request. Empty: any.
    pub(crate) waits_for: &'static str,
    pub(crate) how: How,
    pub(crate) on: &'static [On<'static>],
    pub(crate) off: Off,
    /// Final reason of the condition, and the pool of its address, without admission.
    pub(crate) then: (&'static str, &'static str),
}

/// Kind of the request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    Create(&'static str),
    /// A merge patch.
    Merge(&'static str),
    /// The object as read, with the patch merged into it, written back.
    Put(&'static str),
    /// The same by a current Go client: fields that it does not know are lost.
    PutByGo(&'static str),
}

/// Expected result with admission.
#[derive(Clone, Copy, Debug)]
pub(crate) enum On<'a> {
    /// Accepted without a warning.
    Silent,
    /// Accepted with this warning.
    Warn(&'a str),
    /// Admission refuses it: field and part of the message.
    Refuse(&'a str, &'a str),
    /// The schema refuses it.
    Schema(&'a str),
    /// Accepted, with this value at the path.
    Has(&'a str, &'a str),
    /// Accepted, with no value at the path.
    Lacks(&'a str),
}

/// Expected result of the API server without admission.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Off {
    Accept,
    Schema(&'static str),
}

use How::{Create, Merge, Put, PutByGo};
use Off::{Accept, Schema};
use On::{Has, Lacks, Refuse, Silent, Warn};

const NAMESPACE: &str = "/metadata/annotations/loadbalancer.harvesterhci.io~1namespace";
const PROJECT: &str = "/metadata/annotations/loadbalancer.harvesterhci.io~1project";
const NETWORK: &str = "/metadata/annotations/loadbalancer.harvesterhci.io~1network";
const CLUSTER: &str = "/metadata/annotations/loadbalancer.harvesterhci.io~1cluster";
const IP: &str = "/status/allocatedAddress/ip";
const REMOVED: &str = "metadata.labels[cloudprovider.harvesterhci.io/cluster]";
const OWNED: &str = "only the operator writes it";

const VM: &str = "{spec: {listeners: [{name: http, port: 80, backendPort: 8080}]}}";
const GUEST: &str = "{spec: {workloadType: cluster}}";
const LEASED: &str = "{spec: {workloadType: cluster, ipam: dhcp}}";
const LEASED_ON_VLAN: &str = "{annotations: {loadbalancer.harvesterhci.io/network: team/vlan7}, spec: {workloadType: cluster, ipam: dhcp}}";
const ON_VLAN: &str = "{annotations: {loadbalancer.harvesterhci.io/network: team/vlan7}, spec: {workloadType: cluster}}";
const FROM_NAMED: &str = "{spec: {workloadType: cluster, ipPool: named}}";
/// Reasons of conditions.
const HAS: &str = "Allocated";
const NO_VMS: &str = "NoRunningBackends";
const NOTHING: (&str, &str) = ("", "");
const OURS: (&str, &str) = (HAS, "ours");

const fn create(
    name: &'static str,
    object: &'static str,
    on: &'static [On<'static>],
    off: Off,
    then: (&'static str, &'static str),
) -> Row {
    Row { name, before: "", waits_for: "", how: Create(object), on, off, then }
}

/// A creation that both admission and the schema refuse, with the same words.
const fn never(
    name: &'static str,
    object: &'static str,
    said: &'static [On<'static>],
    text: &'static str,
) -> Row {
    create(name, object, said, Schema(text), NOTHING)
}

const fn update(
    name: &'static str,
    before: (&'static str, &'static str),
    how: How,
    on: &'static [On<'static>],
    off: Off,
    then: (&'static str, &'static str),
) -> Row {
    Row { name, before: before.0, waits_for: before.1, how, on, off, then }
}

#[rustfmt::skip]
pub(crate) const ROWS: &[Row] = &[
    // Filled in fields.
    create("a vm load balancer", VM, &[Silent, Has(NAMESPACE, "team"), Has(PROJECT, "local/ours"), Lacks(NETWORK)], Accept, (NO_VMS, "ours")),
    create("a guest's", GUEST, &[Silent, Has(NAMESPACE, "team"), Has(PROJECT, "local/ours"), Lacks(CLUSTER)], Accept, OURS),
    create("another project", "{annotations: {loadbalancer.harvesterhci.io/project: local/theirs}, spec: {workloadType: cluster}}", &[Warn("annotation project: set to \"local/ours\", the namespace's project, not to \"local/theirs\""), Has(PROJECT, "local/ours")], Accept, OURS),
    create("another namespace", "{annotations: {loadbalancer.harvesterhci.io/namespace: theirs}, spec: {workloadType: cluster}}", &[Warn("annotation namespace: set to \"team\", the LoadBalancer's namespace, not to \"theirs\""), Has(NAMESPACE, "team")], Accept, OURS),
    create("any project and namespace", "{annotations: {loadbalancer.harvesterhci.io/project: '*', loadbalancer.harvesterhci.io/namespace: '*', loadbalancer.harvesterhci.io/cluster: '*'}, spec: {workloadType: cluster}}", &[Warn("annotation project: "), Has(PROJECT, "local/ours"), Has(CLUSTER, "*")], Accept, OURS),
    create("the management network", "{annotations: {cloudprovider.harvesterhci.io/managementNetwork: team/vlan7}, spec: {workloadType: cluster}}", &[Silent, Has(NETWORK, "team/vlan7")], Accept, (HAS, "vlan")),
    create("the network of its VMs", "{labels: {cloudprovider.harvesterhci.io/cluster: blue}, spec: {workloadType: cluster}}", &[Silent, Has(NETWORK, "team/vlan7"), Has(CLUSTER, "blue")], Accept, (HAS, "vlan")),
    create("the network of VMs that are called so", "{labels: {cloudprovider.harvesterhci.io/cluster: red}, spec: {workloadType: cluster}}", &[Silent, Has(NETWORK, "team/vlan7"), Has(CLUSTER, "red")], Accept, (HAS, "vlan")),
    create("a network of its own", "{labels: {cloudprovider.harvesterhci.io/cluster: blue}, annotations: {loadbalancer.harvesterhci.io/network: team/none}, spec: {workloadType: cluster}}", &[Warn("no IPPool admits this LoadBalancer now, so it waits: {network:\"team/none\""), Has(NETWORK, "team/none")], Accept, ("NoMatchedIPPool", "")),
    create("no management network for VMs", "{annotations: {cloudprovider.harvesterhci.io/managementNetwork: team/vlan7}, spec: {listeners: [{name: a, port: 80}]}}", &[Silent, Lacks(NETWORK)], Accept, (NO_VMS, "ours")),
    create("a cluster's name is kept", "{labels: {cloudprovider.harvesterhci.io/cluster: kubernetes}, annotations: {loadbalancer.harvesterhci.io/cluster: own}, spec: {workloadType: cluster}}", &[Silent, Has(CLUSTER, "own")], Accept, OURS),
    create("defaults of a health check", "{spec: {listeners: [{name: a, port: 80}], healthCheck: {port: 80}}}", &[Warn("(Harvester's webhook: 2, 2, 1 s, 1 s)"), Has("/spec/healthCheck/successThreshold", "1"), Has("/spec/healthCheck/failureThreshold", "3"), Has("/spec/healthCheck/periodSeconds", "5"), Has("/spec/healthCheck/timeoutSeconds", "3")], Accept, (NO_VMS, "ours")),
    create("zeros of a health check", "{spec: {listeners: [{name: a, port: 80}], healthCheck: {port: 80, periodSeconds: 0, timeoutSeconds: 9}}}", &[Warn("spec.healthCheck: "), Has("/spec/healthCheck/periodSeconds", "5"), Has("/spec/healthCheck/timeoutSeconds", "9")], Accept, (NO_VMS, "ours")),
    create("a health check that says all", "{spec: {listeners: [{name: a, port: 80}], healthCheck: {port: 80, successThreshold: 2, failureThreshold: 2, periodSeconds: 1, timeoutSeconds: 1}}}", &[Silent, Has("/spec/healthCheck/successThreshold", "2")], Accept, (NO_VMS, "ours")),
    create("no health check", "{spec: {listeners: [{name: a, port: 80}], healthCheck: {port: 0}}}", &[Silent, Lacks("/spec/healthCheck/periodSeconds")], Accept, (NO_VMS, "ours")),
    create("a guest's health check", "{spec: {workloadType: cluster, healthCheck: {port: 80}}}", &[Silent, Lacks("/spec/healthCheck/periodSeconds")], Accept, OURS),
    create("leased", LEASED, &[Warn("spec.ipam dhcp: unless the host leases on the network, kube-vip leases, and allocatedAddress.ip stays 0.0.0.0")], Accept, ("DHCP", "")),
    // Copied with small errors.
    never("ipam of an old page", "{spec: {workloadType: cluster, ipam: ippool}}", &[Refuse("spec.ipam", "\"ippool\" is not valid: use pool (or dhcp)")], "\"pool\", \"dhcp\""),
    never("ipam in capitals", "{spec: {workloadType: cluster, ipam: DHCP}}", &[Refuse("spec.ipam", "use dhcp (or pool)")], "\"pool\", \"dhcp\""),
    never("type in capitals", "{spec: {workloadType: VM, listeners: [{name: a, port: 80}]}}", &[Refuse("spec.workloadType", "use vm (or cluster)")], "\"vm\", \"cluster\""),
    never("type of a guest", "{spec: {workloadType: Guest}}", &[Refuse("spec.workloadType", "use cluster (or vm)")], "\"vm\", \"cluster\""),
    never("listeners as a map", "{spec: {listeners: {http: {port: 80}}}}", &[Refuse("spec.listeners", "it is a map: use a list")], "spec.listeners"),
    never("port in quotes", "{spec: {listeners: [{name: a, port: '80'}]}}", &[Refuse("spec.listeners[0].port", "write 80, without quotes")], "spec.listeners[0].port"),
    never("backendPort as a name", "{spec: {listeners: [{name: a, port: 80, backendPort: http}]}}", &[Refuse("spec.listeners[0].backendPort", "port names are not resolved")], "spec.listeners[0].backendPort"),
    never("period with a unit", "{spec: {listeners: [{name: a, port: 80}], healthCheck: {port: 80, periodSeconds: 5s}}}", &[Refuse("spec.healthCheck.periodSeconds", "use a number")], "spec.healthCheck.periodSeconds"),
    never("label without a list", "{spec: {listeners: [{name: a, port: 80}], backendServerSelector: {app: web}}}", &[Refuse("spec.backendServerSelector[app]", "\"web\" is not a list: use [\"web\"]")], "spec.backendServerSelector.app"),
    never("selector of other kinds", "{spec: {listeners: [{name: a, port: 80}], backendServerSelector: {matchLabels: {app: web}}}}", &[Refuse("spec.backendServerSelector[matchLabels]", "write each label and its values")], "spec.backendServerSelector.matchLabels"),
    never("selector as a list", "{spec: {listeners: [{name: a, port: 80}], backendServerSelector: [app=web]}}", &[Refuse("spec.backendServerSelector", "is not a map")], "spec.backendServerSelector"),
    create("a field misspelt", "{spec: {listeners: [{name: a, port: 80, backendport: 8080}]}}", &[Warn("unknown field \"spec.listeners[0].backendport\""), Lacks("/spec/listeners/0/backendPort")], Accept, (NO_VMS, "ours")),
    // Rules of the schema.
    never("no listener", "{spec: {listeners: []}}", &[On::Schema("a load balancer of type vm needs at least one")], "a load balancer of type vm needs at least one"),
    never("a name twice", "{spec: {listeners: [{name: a, port: 80}, {name: a, port: 81}]}}", &[On::Schema("each name may be used once")], "each name may be used once"),
    never("a port twice", "{spec: {listeners: [{name: a, port: 80}, {name: b, port: 80}]}}", &[On::Schema("each pair of port and protocol may be used once")], "each pair of port and protocol may be used once"),
    create("a port twice, by protocol", "{spec: {listeners: [{name: a, port: 53}, {name: b, port: 53, protocol: UDP}]}}", &[Silent], Accept, (NO_VMS, "ours")),
    never("another protocol", "{spec: {listeners: [{name: a, port: 80, protocol: SCTP}]}}", &[On::Schema("must be TCP or UDP")], "must be TCP or UDP"),
    never("a name in capitals", "{spec: {listeners: [{name: A, port: 80}]}}", &[On::Schema("lower-case letters")], "lower-case letters"),
    never("health check of another port", "{spec: {listeners: [{name: a, port: 80, backendPort: 8080}], healthCheck: {port: 80}}}", &[On::Schema("must be the backendPort of a TCP listener")], "must be the backendPort of a TCP listener"),
    never("path without protocol", "{spec: {listeners: [{name: a, port: 80}], healthCheck: {port: 80, path: /x}}}", &[On::Schema("belong to http and https")], "belong to http and https"),
    never("a pool and dhcp", "{spec: {workloadType: cluster, ipam: dhcp, ipPool: named}}", &[On::Schema("must be unset when spec.ipam is dhcp")], "must be unset when spec.ipam is dhcp"),
    never("an address of one's choice", "{spec: {workloadType: cluster, requestedAddresses: [10.1.0.9]}}", &[On::Schema("spec.requestedAddresses is not supported by this version")], "to pin an address, name a pool of that one address"),
    never("a second pool", "{spec: {workloadType: cluster, ipv6Pool: named}}", &[On::Schema("spec.ipv6Pool is not supported by this version")], "name an IPv6 pool in spec.ipPool"),
    never("two families", "{spec: {workloadType: cluster, ipFamilyPolicy: PreferDualStack}}", &[On::Schema("only SingleStack is supported")], "only SingleStack is supported"),
    never("too many values of a selector", "{spec: {listeners: [{name: a, port: 80}], backendServerSelector: {app: [v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v,v], tier: [v]}}}", &[On::Schema("spec.backendServerSelector: more than 64 values in all")], "spec.backendServerSelector: more than 64 values in all"),
    update("another ipam", (GUEST, HAS), Merge("{spec: {ipam: dhcp}}"), &[On::Schema("spec.ipam is immutable")], Schema("spec.ipam is immutable"), OURS),
    update("another type", (GUEST, HAS), Merge("{spec: {workloadType: vm, listeners: [{name: a, port: 80}]}}"), &[On::Schema("spec.workloadType is immutable")], Schema("spec.workloadType is immutable"), OURS),
    // Rules that the schema does not have.
    create("an address in place of a VM's name", "{spec: {listeners: [{name: a, port: 80}], backendServerSelector: {harvesterhci.io/vmName: [10.9.0.5]}}}", &[Warn("10.9.0.5 is an address and selects no VM: use VM names")], Accept, (NO_VMS, "ours")),
    create("a guest's health check without a certificate", "{spec: {workloadType: cluster, healthCheck: {port: 80, protocol: https, caBundle: x}}}", &[Refuse("spec.healthCheck.caBundle", "no certificate in PEM")], Accept, OURS),
    create("no certificate", "{spec: {listeners: [{name: a, port: 80}], healthCheck: {port: 80, protocol: https, caBundle: x}}}", &[Refuse("spec.healthCheck.caBundle", "no certificate in PEM")], Accept, (NO_VMS, "ours")),
    create("name of no Service", "{name: 1web, spec: {listeners: [{name: a, port: 80}]}}", &[Refuse("metadata.name", "no Service can be named \"1web\"")], Accept, ("InvalidSpec", "ours")),
    create("name with a dot", "{name: a.b, spec: {listeners: [{name: a, port: 80}]}}", &[Refuse("metadata.name", "no Service can be named \"a.b\"")], Accept, ("InvalidSpec", "ours")),
    create("a guest's name", "{name: 1web, spec: {workloadType: cluster}}", &[Silent], Accept, OURS),
    create("a guest's name of 64 characters", "{name: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa, spec: {workloadType: cluster}}", &[Refuse("metadata.name", "is longer than 63 characters: choose a shorter one")], Accept, OURS),
    // Pools.
    create("a pool by name", FROM_NAMED, &[Silent], Accept, (HAS, "named")),
    create("another's pool", "{spec: {workloadType: cluster, ipPool: theirs}}", &[Refuse("spec.ipPool", "it names \"theirs\", whose scope does not admit {network:\"\" project:\"local/ours\" namespace:\"team\" cluster:\"\"}: name another, or ask the admin of the pool")], Accept, ("IPPoolForbidden", "")),
    create("another's pool, and its project", "{annotations: {loadbalancer.harvesterhci.io/project: local/theirs}, spec: {workloadType: cluster, ipPool: theirs}}", &[Refuse("spec.ipPool", "project:\"local/ours\"")], Accept, ("IPPoolForbidden", "")),
    create("a pool of another network", "{annotations: {loadbalancer.harvesterhci.io/network: team/none}, spec: {workloadType: cluster, ipPool: vlan}}", &[Refuse("metadata.annotations[loadbalancer.harvesterhci.io/network]", "the load balancer's network is \"team/none\", but IPPool \"vlan\" is on network \"team/vlan7\"")], Accept, ("NetworkMismatch", "")),
    update("to another's pool", (GUEST, HAS), Merge("{spec: {ipPool: theirs}}"), &[Refuse("spec.ipPool", "whose scope does not admit")], Accept, ("IPPoolForbidden", "ours")),
    create("no such pool", "{spec: {workloadType: cluster, ipPool: nowhere}}", &[Warn("spec.ipPool: IPPool \"nowhere\" does not exist yet; the LoadBalancer waits for it")], Accept, ("IPPoolNotFound", "")),
    create("a full pool", "{spec: {workloadType: cluster, ipPool: full}}", &[Warn("spec.ipPool: full has no available IP now")], Accept, ("NoAvailableIP", "")),
    create("a pool that is going", "{spec: {workloadType: cluster, ipPool: going}}", &[Warn("spec.ipPool: going allocates no addresses: it is being deleted")], Accept, ("IPPoolNotReady", "")),
    update("to a network that its pool is not on", (ON_VLAN, HAS), Merge("{metadata: {annotations: {loadbalancer.harvesterhci.io/network: team/none}}}"), &[Refuse("metadata.annotations[loadbalancer.harvesterhci.io/network]", "the load balancer's network is \"team/none\", but IPPool \"vlan\" is on network \"team/vlan7\"")], Accept, ("NetworkMismatch", "vlan")),
    update("to a pool of another network", (ON_VLAN, HAS), Merge("{metadata: {annotations: {loadbalancer.harvesterhci.io/network: team/none}}, spec: {ipPool: named}}"), &[Silent], Accept, NOTHING),
    update("the holder of an address retains the pool", (FROM_NAMED, HAS), Merge("{spec: {description: x}}"), &[Silent, Has("/status/allocatedAddress/ipPool", "named")], Accept, (HAS, "named")),
    // Guest clusters.
    create("of a cluster that is being removed", "{labels: {cloudprovider.harvesterhci.io/cluster: gone}, spec: {workloadType: cluster}}", &[Refuse(REMOVED, "the vm team/gone-1 shows guest cluster gone is being removed")], Accept, ("GuestClusterRemoved", "")),
    create("leased, of a cluster that is being removed", "{labels: {cloudprovider.harvesterhci.io/cluster: gone}, spec: {workloadType: cluster, ipam: dhcp}}", &[Refuse(REMOVED, "is being removed")], Accept, ("GuestClusterRemoved", "")),
    create("of a cluster that another namespace removes", "{labels: {cloudprovider.harvesterhci.io/cluster: elsewhere}, spec: {workloadType: cluster}}", &[Silent], Accept, OURS),
    create("of a cluster without a name", "{labels: {cloudprovider.harvesterhci.io/cluster: kubernetes}, spec: {workloadType: cluster}}", &[Silent], Accept, OURS),
    // Parts of the status that others leave out stay.
    update("saved without status", (GUEST, HAS), Put("{status: null, metadata: {labels: {a: b}}}"), &[Silent, Has(IP, "10.1.0.2"), Has("/metadata/labels/a", "b")], Accept, OURS),
    update("saved with an empty status", (GUEST, HAS), Put("{status: {allocatedAddress: {}}}"), &[Silent, Has(IP, "10.1.0.2")], Accept, OURS),
    update("status removed", (GUEST, HAS), Merge("{status: null}"), &[Silent, Has(IP, "10.1.0.2")], Accept, OURS),
    update("claim removed", (GUEST, HAS), Merge("{status: {allocatedAddress: null}}"), &[Silent, Has(IP, "10.1.0.2")], Accept, OURS),
    update("part of the claim removed", (GUEST, HAS), Merge("{status: {allocatedAddress: {mask: null, gateway: ''}}}"), &[Silent, Has("/status/allocatedAddress/mask", "255.255.255.0"), Has("/status/allocatedAddress/gateway", "10.1.0.1")], Accept, OURS),
    update("conditions removed", (GUEST, HAS), Merge("{status: {conditions: []}}"), &[Silent, Has("/status/conditions/0/reason", HAS)], Accept, OURS),
    update("by the guest's cloud provider", (GUEST, HAS), PutByGo("{metadata: {labels: {a: b}}, status: {address: 10.1.0.2}}"), &[Silent, Has(IP, "10.1.0.2"), Has("/status/address", "10.1.0.2")], Accept, OURS),
    update("of VMs, by a Go client", (VM, NO_VMS), PutByGo("{metadata: {labels: {a: b}}}"), &[Silent, Has("/status/endpoints/total", "0"), Has(IP, "10.1.0.2")], Accept, (NO_VMS, "ours")),
    // Parts of the status that others write.
    update("another address", (GUEST, HAS), Merge("{status: {allocatedAddress: {ip: 10.1.0.9}}}"), &[Refuse("status.allocatedAddress.ip", "only the operator writes it: it is \"10.1.0.2\", not \"10.1.0.9\"; remove status from what you send")], Accept, OURS),
    update("another's address", (GUEST, HAS), Merge("{status: {allocatedAddress: {ip: 10.2.0.2, ipPool: theirs}}}"), &[Refuse("status.allocatedAddress.ip", OWNED), Refuse("status.allocatedAddress.ipPool", OWNED)], Accept, OURS),
    update("the address of a pool that is not", (GUEST, HAS), Merge("{status: {allocatedAddress: {ip: 10.2.0.2, ipPool: ghost}}}"), &[Refuse("status.allocatedAddress.ipPool", OWNED)], Accept, OURS),
    update("a gateway", (GUEST, HAS), Merge("{status: {allocatedAddress: {gateway: 10.1.0.254}}}"), &[Refuse("status.allocatedAddress.gateway", OWNED)], Accept, OURS),
    update("addresses", (GUEST, HAS), Merge("{status: {addresses: [10.1.0.9]}}"), &[Refuse("status.addresses", OWNED)], Accept, OURS),
    update("a generation", (GUEST, HAS), Merge("{status: {observedGeneration: 7}}"), &[Refuse("status.observedGeneration", OWNED)], Accept, OURS),
    update("endpoints", (VM, NO_VMS), Merge("{status: {endpoints: {total: 3, ready: 3}}}"), &[Refuse("status.endpoints.ready", OWNED)], Accept, (NO_VMS, "ours")),
    update("backends", (VM, NO_VMS), Merge("{status: {backendServers: [10.9.9.9]}}"), &[Refuse("status.backendServers", OWNED)], Accept, (NO_VMS, "ours")),
    update("the announced address of VMs", (VM, NO_VMS), Merge("{status: {address: 10.2.0.2}}"), &[Refuse("status.address", OWNED)], Accept, (NO_VMS, "ours")),
    update("Ready", (VM, NO_VMS), Merge("{status: {conditions: [{type: Ready, status: 'True', reason: Announced}]}}"), &[Refuse("status.conditions[Ready].status", OWNED)], Accept, (NO_VMS, "ours")),
    update("a condition of another type", (GUEST, HAS), Merge("{status: {conditions: [{type: Mine, status: 'True'}]}}"), &[Silent, Has("/status/conditions/0/reason", HAS), Has("/status/conditions/1/type", "Mine")], Accept, OURS),
    create("a backup, with its status", "{spec: {workloadType: cluster}, status: {address: 10.2.0.2, allocatedAddress: {ipPool: theirs, ip: 10.2.0.2}, conditions: [{type: Ready, status: 'True'}]}}", &[Warn("status: only the operator writes it: the sent status is dropped"), Lacks("/status/address"), Lacks("/status/allocatedAddress")], Accept, OURS),
    // Parts of the status that a guest owns.
    update("the claim", (GUEST, HAS), Merge("{status: {address: 10.1.0.2}}"), &[Silent], Accept, OURS),
    update("withdrawn", (GUEST, HAS), Merge("{status: {address: ''}}"), &[Silent, Has(IP, "10.1.0.2"), Has("/status/address", "10.1.0.2")], Accept, OURS),
    update("reached elsewhere", (GUEST, HAS), Merge("{status: {address: 10.2.0.2}}"), &[Warn("status.address stays \"10.1.0.2\": \"10.2.0.2\" is not the claimed address, 10.1.0.2"), Has("/status/address", "10.1.0.2")], Accept, OURS),
    update("leased somewhere", (LEASED, "DHCP"), Merge("{status: {address: 10.9.0.7}}"), &[Silent, Has("/status/address", "10.9.0.7")], Accept, ("DHCP", "")),
    update("leased what only another guest reports", (LEASED, "DHCP"), Merge("{status: {address: 10.9.0.8}}"), &[Silent, Has("/status/address", "10.9.0.8")], Accept, ("DHCP", "")),
    update("leased another's", (LEASED, "DHCP"), Merge("{status: {address: 10.2.0.2}}"), &[Warn("status.address stays \"0.0.0.0\": 10.2.0.2 is in use"), Has("/status/address", "0.0.0.0")], Accept, ("DHCP", "")),
    update("leased another's on another network", (LEASED_ON_VLAN, "DHCP"), Merge("{status: {address: 10.2.0.2}}"), &[Silent, Has("/status/address", "10.2.0.2")], Accept, ("DHCP", "")),
    update("leased a gateway", (LEASED, "DHCP"), Merge("{status: {address: 10.1.0.1}}"), &[Warn("10.1.0.1 is a gateway"), Has("/status/address", "0.0.0.0")], Accept, ("DHCP", "")),
    update("leased a node's address", (LEASED, "DHCP"), Merge("{status: {address: 10.0.0.11}}"), &[Warn("10.0.0.11 is a node's own address"), Has("/status/address", "0.0.0.0")], Accept, ("DHCP", "")),
    // The rest of the object.
    update("labelled", (GUEST, HAS), Merge("{metadata: {labels: {a: b}}}"), &[Silent, Has("/metadata/labels/a", "b")], Accept, OURS),
    update("without finalizer", (GUEST, HAS), Merge("{metadata: {finalizers: null}}"), &[Warn("metadata.finalizers: the address stays claimed")], Accept, OURS),
];
