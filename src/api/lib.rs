//! Kubernetes types that this operator owns, and names of annotations, labels and finalizers on
//! which guests, UIs and stored objects already rely. Types of other projects that the operator
//! reads are in [`kubevirt`]. The rules for all these types are in the crate `domain`.
//!
//! Invariant: every field that Harvester serves today retains its name, type and meaning; new
//! fields are optional.
//!
//! Times are RFC 3339 text, not k8s-openapi's `Time`, so that an object with a malformed time can
//! still be read. Only that time is then unknown.

mod condition;
mod crds;
mod credentials;
mod dhcp_lease;
mod ip_pool;
pub mod kubevirt;
mod load_balancer;
mod token_rotation;
pub mod v1alpha1;
mod watched;

pub use condition::{Condition, ConditionStatus, READY};
pub use crds::{crds, to_yaml};
pub use credentials::{
    AllCloudCredentials, AuthoritySecret, CloudCredentialTarget, Minter, RancherServer,
    RancherToken, SecretTarget, ServiceAccountToken, Source, Target,
};
pub use dhcp_lease::{DHCPLease, DHCPLeaseSpec, DHCPLeaseStatus, LeaseState, OnLeaseLoss};
pub use ip_pool::{IPPool, IPPoolSpec, IPPoolStatus, PoolState, Range, Scope, Selector};
pub use load_balancer::{
    AllocatedAddress, EndpointCounts, HealthCheck, Ipam, Listener, LoadBalancer, LoadBalancerSpec,
    LoadBalancerStatus, WorkloadType,
};
pub use token_rotation::{
    CurrentCredential, Day, OnDelete, PendingCredential, PendingStep, PreviousCredential, Schedule,
    TokenRotation, TokenRotationSpec, TokenRotationStatus, Window, Workload, WorkloadKind,
};
pub use watched::{ApiKey, WatchedCredential};

/// The API group of `LoadBalancer`, `IPPool` and `DHCPLease`.
pub const GROUP: &str = "loadbalancer.harvesterhci.io";

/// Annotation of a LoadBalancer: the network that its address must belong to, as `namespace/name`
/// of a NetworkAttachmentDefinition.
pub const ANNOTATION_NETWORK: &str = "loadbalancer.harvesterhci.io/network";
/// Annotation of a LoadBalancer: the address that is or was claimed for the LoadBalancer, as
/// `POOL/ADDRESS`. The operator writes the annotation. After a restore from a backup without the
/// status, the operator claims this address again if it is free.
pub const ANNOTATION_ALLOCATED: &str = "loadbalancer.harvesterhci.io/allocated-address";
/// Annotation of a LoadBalancer: its namespace. The operator writes the value only for people.
pub const ANNOTATION_NAMESPACE: &str = "loadbalancer.harvesterhci.io/namespace";
/// Annotation of a LoadBalancer: its Rancher project, as `cluster/project`. The operator writes the
/// value only for people, and itself reads [`ANNOTATION_NAMESPACE_PROJECT`].
pub const ANNOTATION_PROJECT: &str = "loadbalancer.harvesterhci.io/project";
/// Annotation of a LoadBalancer: name of its guest cluster. The annotation has precedence over
/// [`LABEL_CLUSTER`].
pub const ANNOTATION_CLUSTER: &str = "loadbalancer.harvesterhci.io/cluster";
/// Annotation of a LoadBalancer: management network of its guest cluster, as `namespace/name` of a
/// NetworkAttachmentDefinition. Newer guest cloud providers set the annotation. It counts only if
/// [`ANNOTATION_NETWORK`] is not set.
pub const ANNOTATION_MANAGEMENT_NETWORK: &str = "cloudprovider.harvesterhci.io/managementNetwork";
/// Label of a LoadBalancer: name of its guest cluster. Guest cloud providers set the label.
pub const LABEL_CLUSTER: &str = "cloudprovider.harvesterhci.io/cluster";
/// Value of [`LABEL_CLUSTER`] that a guest cloud provider without a configured cluster name writes.
pub const NAMELESS_CLUSTER: &str = "kubernetes";
/// Annotation of a Namespace: its Rancher project, as `cluster:project`.
pub const ANNOTATION_NAMESPACE_PROJECT: &str = "field.cattle.io/projectId";
/// Label of an IPPool: `true` for the global pool, `false` for every other pool. Admission sets the
/// label from the pool's scope. The global pool serves LoadBalancers to which no other pool gives
/// an address.
pub const LABEL_GLOBAL_POOL: &str = "loadbalancer.harvesterhci.io/global-ip-pool";
/// Label of an IPPool: VLAN ID of the pool's network; `0` for no VLAN, and for a pool without a
/// network.
pub const LABEL_VID: &str = "loadbalancer.harvesterhci.io/vid";
/// Label that Harvester puts on a NetworkAttachmentDefinition: VLAN ID of the network.
pub const LABEL_VLAN: &str = "network.harvesterhci.io/vlan-id";
/// Label that Harvester puts on a NetworkAttachmentDefinition: name of its cluster network.
pub const LABEL_CLUSTER_NETWORK: &str = "network.harvesterhci.io/clusternetwork";
/// Annotation that Harvester puts on a NetworkAttachmentDefinition: subnet and router of the
/// network, as JSON (`Layer3NetworkConf` of harvester/network-controller-harvester).
pub const ANNOTATION_ROUTE: &str = "network.harvesterhci.io/route";
/// Annotation of an IPPool by which an admin releases the address of a LoadBalancer that no longer
/// exists. The value is `<ip>: <namespace>/<name>`.
pub const ANNOTATION_MANUAL_RELEASE: &str = "loadbalancer.harvesterhci.io/manuallyReleaseIP";
/// Annotation of an IPPool. While the annotation is present, with any value, the pool keeps the
/// claims of LoadBalancers that do not exist. The operator sets the annotation after a restore of
/// etcd from a backup, with the reason as its value. When an admin removes the annotation, the pool
/// frees these claims.
pub const ANNOTATION_KEEP_ORPHANS: &str = "loadbalancer.harvesterhci.io/keep-orphans";

/// Annotation of a LoadBalancer in v1alpha1: the fields that only v1beta1 has, as JSON. The
/// conversion to v1beta1 restores these fields.
pub const ANNOTATION_V1BETA1_FIELDS: &str = "loadbalancer.harvesterhci.io/v1beta1-fields";
/// Annotation of a LoadBalancer in v1beta1: the fields that only v1alpha1 has, as JSON. The
/// conversion to v1alpha1 restores these fields.
pub const ANNOTATION_V1ALPHA1_FIELDS: &str = "loadbalancer.harvesterhci.io/v1alpha1-fields";

/// Annotation of kube-vip's ConfigMap. Value `true`: IPPools were made from the addresses in the
/// ConfigMap. The Go controller uses the same annotation, so that only one of the two programs
/// makes these IPPools.
pub const ANNOTATION_IMPORTED: &str = "loadbalancer.harvesterhci.io/after-conversion";
/// Annotation of kube-vip's ConfigMap: the outcome of the import for each address in the ConfigMap.
pub const ANNOTATION_IMPORT_REPORT: &str = "loadbalancer.harvesterhci.io/conversion-report";

/// Label that Harvester puts on a VM's instances: the VM's name.
pub const LABEL_VM_NAME: &str = "harvesterhci.io/vmName";

/// Label of the Services and EndpointSlices that the operator writes for VM load balancers. The
/// value is `true`.
pub const LABEL_SERVICE_LB: &str = "loadbalancer.harvesterhci.io/servicelb";
/// Label of an EndpointSlice: the Service that the EndpointSlice belongs to.
pub const LABEL_SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Label of an EndpointSlice: name of the controller that writes the EndpointSlice. No other
/// controller changes the EndpointSlice.
pub const LABEL_SLICE_MANAGER: &str = "endpointslice.kubernetes.io/managed-by";
/// Label of an object: name of the program that manages the object. On objects of the operator's
/// chart, the value is `Helm`. On objects that the operator makes, the value is [`MANAGER`].
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Name of this operator in labels, as the program that manages an object.
pub const MANAGER: &str = "harvester-guest-operator";

/// Finalizer of a LoadBalancer that holds an address. The Go controller uses the same name, so that
/// each of the two controllers can remove the finalizer that the other one has set.
pub const LB_FINALIZER: &str = "wrangler.cattle.io/harvester-lb-controller";
/// Finalizer of an IPPool: a deleted pool and its ledger remain until the last address is free. The
/// Go controller uses the same name, as for [`LB_FINALIZER`].
pub const POOL_FINALIZER: &str = "wrangler.cattle.io/harvester-ipam-controller";

/// Finalizer of a DHCPLease: a deleted record remains until its address is released.
pub const DHCP_FINALIZER: &str = "loadbalancer.harvesterhci.io/dhcp-release";
/// Annotation of the Lease for leader election: identity of the replica of this operator that last
/// acquired the Lease. If `spec.holderIdentity` is another identity, another controller holds the
/// Lease.
pub const ANNOTATION_LEASE_OPERATOR: &str = "loadbalancer.harvesterhci.io/operator";
/// Annotation of the Lease for leader election: seconds without renewal after which another replica
/// of this operator takes the Lease. Other controllers wait for `spec.leaseDurationSeconds`.
pub const ANNOTATION_LEASE_SECONDS: &str = "loadbalancer.harvesterhci.io/operator-lease-seconds";
/// Annotation of the Lease for leader election: targets that the leader cannot reach (addresses of
/// VMs, each with its LoadBalancer). The leader asks the other replicas to probe these targets.
pub const ANNOTATION_LEASE_QUESTION: &str = "loadbalancer.harvesterhci.io/probe-question";
/// Annotation of the Lease for leader election: answer of another replica to
/// [`ANNOTATION_LEASE_QUESTION`], with the results of its probes.
pub const ANNOTATION_LEASE_ANSWER: &str = "loadbalancer.harvesterhci.io/probe-answer";
/// User name of Harvester's Go controller in API requests. It contains the name of the controller's
/// ServiceAccount. Source of this name: the template `harvester-load-balancer.name` in the Go
/// controller's chart (`rbac.yaml`).
pub const GO_CONTROLLER: &str = "system:serviceaccount:harvester-system:harvester-load-balancer";
/// Annotation: the party that leases addresses by DHCP. On a LoadBalancer with `ipam: dhcp`, the
/// value is `host` (an agent of this operator) or `guest` (the announcer, kube-vip). On a
/// NetworkAttachmentDefinition, the value `host` declares the network: the host leases the
/// addresses of LoadBalancers with `ipam: dhcp` on this network.
pub const ANNOTATION_DHCP: &str = "loadbalancer.harvesterhci.io/dhcp";
/// Annotation of a network that [`ANNOTATION_DHCP`] declares: IPv4 subnets whose addresses may be
/// leased, separated by commas. Without the annotation, any address may be leased.
pub const ANNOTATION_DHCP_SUBNETS: &str = "loadbalancer.harvesterhci.io/dhcp-subnets";
/// Annotation of a network that [`ANNOTATION_DHCP`] declares: whether an address stays in use when
/// its lease expires because no server answers. `Keep`, or `Withdraw`, which is the default.
pub const ANNOTATION_DHCP_ON_LEASE_LOSS: &str = "loadbalancer.harvesterhci.io/dhcp-on-lease-loss";
/// Annotation with the kind of the client identifier (option 61): `duid` (the default), `mac` or
/// `none`. A network that [`ANNOTATION_DHCP`] declares may have the annotation, and so may a
/// LoadBalancer whose address the host leases. The annotation of the LoadBalancer has precedence.
pub const ANNOTATION_DHCP_CLIENT_ID: &str = "loadbalancer.harvesterhci.io/dhcp-client-id";
/// Annotation of a network that [`ANNOTATION_DHCP`] declares. With the value `true`, the agent asks
/// servers to broadcast their answers.
pub const ANNOTATION_DHCP_BROADCAST: &str = "loadbalancer.harvesterhci.io/dhcp-broadcast";
/// Annotation with the hardware address of a DHCP client. On a Service, kube-vip writes the
/// hardware address with which it leases the Service's address. On a LoadBalancer, a user requests
/// the hardware address with which the host leases the LoadBalancer's address. Source of the names
/// of this and the next three annotations: kube-vip 1.2.3, pkg/kubevip/annotations.go.
pub const KUBE_VIP_HWADDR: &str = "kube-vip.io/hwaddr";
/// Annotation with the address that the DHCP client requests. For a Service, the client is
/// kube-vip. For a LoadBalancer, the client is the host's agent.
pub const KUBE_VIP_REQUESTED_IP: &str = "kube-vip.io/requestedIP";
/// Annotation with the host name (option 12) that the DHCP client sends. For a Service, the client
/// is kube-vip. For a LoadBalancer, the client is the host's agent.
pub const KUBE_VIP_HOSTNAME: &str = "kube-vip.io/loadbalancerHostname";
/// Annotation with the value `true`: the DHCP client asks the server to broadcast its answers. For
/// a Service, the client is kube-vip. For a LoadBalancer, the client is the host's agent.
pub const KUBE_VIP_BROADCAST: &str = "kube-vip.io/dhcp-broadcast";
/// Annotation of a NetworkAttachmentDefinition: state of the network's DHCP agent, as JSON. The
/// operator writes the annotation if [`ANNOTATION_DHCP`] or an option of the operator requests an
/// agent for the network. Content of the JSON:
///
/// * The pod that serves the network, if there is one.
/// * A reason, if no pod serves the network, or if the pod works with its former options because an
///   annotation of the network is not valid.
/// * The time since which the pod serves the network. Without a pod: the time since which the
///   reason holds.
pub const ANNOTATION_DHCP_STATUS: &str = "loadbalancer.harvesterhci.io/dhcp-status";

/// Finalizer of a TokenRotation: a deleted TokenRotation remains until its credentials are revoked,
/// or until a deadline. The published credential is not revoked if `spec.onDelete` is `Keep`.
pub const ROTATION_FINALIZER: &str = "credentials.harvesterhci.io/rotation";
/// Annotation of a TokenRotation: each new value requests a new credential now.
pub const ANNOTATION_ROTATE: &str = "credentials.harvesterhci.io/rotate";
/// Annotation of a TokenRotation whose credential is leaked: each new value requests a new
/// credential now. The old credential is revoked as soon as the new credential is published.
pub const ANNOTATION_LEAKED: &str = "credentials.harvesterhci.io/leaked";
/// Annotation with a hash, which changes with each new credential. On a Secret that is a target:
/// SHA-256 of the value that was written. On pods that were restarted for a new credential: SHA-256
/// of the credential. On pods, the annotation's name has a suffix for the TokenRotation.
pub const ANNOTATION_HASH: &str = "credentials.harvesterhci.io/hash";
/// Annotation of the Secret of an API key: URL of the Rancher that issued the key. The key is sent
/// to no other URL.
pub const ANNOTATION_RANCHER_URL: &str = "credentials.harvesterhci.io/rancher-url";
/// Label with the UID of the TokenRotation that made the object. Two kinds of objects have the
/// label: Secrets whose deletion revokes a credential, and TokenRotations that another
/// TokenRotation has made.
pub const LABEL_ROTATION: &str = "credentials.harvesterhci.io/rotation";
/// Type of a bound Secret: a Secret of the operator to which the token of a ServiceAccount is
/// bound. The deletion of the Secret revokes the token.
pub const BOUND_SECRET_TYPE: &str = "credentials.harvesterhci.io/bound-secret";

/// Text in place of an address that the announcer (kube-vip) leases by DHCP. In a LoadBalancer, it
/// is the value of `status.allocatedAddress.ip`. In a Service, it asks kube-vip to lease an
/// address.
pub const DHCP_ADDRESS: &str = "0.0.0.0";
