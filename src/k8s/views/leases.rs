//! The views of DHCPLeases, and of the Leases that networks' agents hold.
//!
//! An agent serves its network while its Lease is observed to be renewed. The agent's clock is not
//! compared with this process's clock, except to recognize a Lease that was clearly abandoned.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use chrono::{DateTime, FixedOffset, Utc};
use ipnet::IpNet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::{Api, Resource, ResourceExt};
use kube_runtime::reflector::ObjectRef;
use kube_runtime::watcher::Config;

use super::{InformerContext, LEASING, ViewPart, Views, lock};
use crate::api::{DHCPLease, LoadBalancer};
use crate::domain::dhcp::ClientIdForm;
use crate::domain::dhcp_lease::{self, AgentLease, DhcpDeclaration};
use crate::domain::dhcp_lease::{AGENT_PREFIX, agent_name};
use crate::domain::load_balancer::facts;
use crate::k8s::guard::Guard;
use crate::k8s::informer::{self, ObjectEvent, is_out_of_reach, key, split_key};
use crate::k8s::leadership::seconds;
use crate::k8s::store::{self, StoreWriter};

/// Lease (`coordination.k8s.io/v1`) that a network's agent holds, as last observed.
struct ObservedAgent {
    holding: AgentLease,
    /// Time when the Lease was last observed to change. `None`: the Lease was abandoned before this
    /// process first observed it.
    since: Option<Instant>,
}

impl ObservedAgent {
    fn serves(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| dhcp_lease::serves(&self.holding, now - since))
    }
}

/// The Leases (`coordination.k8s.io/v1`) that networks' agents hold, by the Lease's name.
#[derive(Default)]
pub(super) struct AgentIndex(HashMap<String, ObservedAgent>);

/// A network, with the facts that its agent is made from.
#[derive(Clone, Debug)]
pub struct AgentNetwork {
    /// `namespace/name` of the network.
    pub name: String,
    /// Agent that the network must have: none, the operator's, or another party's, such as the
    /// chart's. For a network with a fault in its annotations: the reason why the operator creates
    /// no agent.
    pub agent: dhcp_lease::WantedAgent,
    /// DHCP settings of the network, from its annotations, from its label for the cluster network,
    /// and from its CNI configuration.
    pub declaration: DhcpDeclaration,
    /// State of the network's agent, from the annotation [`crate::api::ANNOTATION_DHCP_STATUS`].
    /// Empty: the network does not have this annotation.
    pub status: String,
    /// Whether the operator may write the network's annotations. True if the chart's value
    /// `leaseAgent.namespaces` lists the network's namespace.
    pub may_declare: bool,
    /// Reference to the network, with its resourceVersion.
    pub reference: ObjectReference,
}

impl Views {
    /// Whether the first lists are complete for all kinds that leased addresses depend on. A kind
    /// that the cluster does not serve counts as listed. DHCPLeases and Leases also count as listed
    /// if the operator has no right to list them.
    pub fn leasing_synced(&self) -> bool {
        *self.synced.borrow() & LEASING == LEASING
    }

    /// Whether all kinds were listed that a leased address of this LoadBalancer depends on: those
    /// of [`Self::leasing_synced`], and VMs if they determine the LoadBalancer's network. VMs count
    /// as listed if the cluster does not serve them.
    pub fn leasing_synced_for(&self, lb: &LoadBalancer) -> bool {
        let vms = || self.is_listed(ViewPart::Vms) || self.has_no_vms();
        self.leasing_synced() && (facts::asks_vms_for_network(lb).is_none() || vms())
    }

    /// Whether the list of VirtualMachineInstances was refused because the cluster does not serve
    /// them.
    pub fn has_no_vms(&self) -> bool {
        self.index.no_vms.load(Ordering::Relaxed)
    }

    /// Whether a network is declared for DHCP, by an option of the operator or by an annotation of
    /// the network. Addresses are leased only on such networks.
    pub fn declares(&self, network: &str) -> bool {
        let networks = lock(&self.index.networks);
        self.dhcp.declare(network, networks.get(network).map(|known| &known.declaration))
    }

    /// Reason why no new lease starts on a declared network: one of its annotations is not valid.
    /// `None`: no annotation prevents new leases.
    pub fn network_fault(&self, network: &str) -> Option<String> {
        let networks = lock(&self.index.networks);
        self.dhcp.fault(network, networks.get(network).map(|known| &known.declaration))
    }

    /// Form of the DHCP client identifiers on a network: `duid`, `mac` or `none`.
    pub fn client_id_form(&self, network: &str) -> ClientIdForm {
        let networks = lock(&self.index.networks);
        let known = networks.get(network).map(|known| &known.declaration);
        self.dhcp.client_id_form(network, known)
    }

    /// `namespace/name` of another record (DHCPLease) whose client a DHCP server would treat as the
    /// client of the record `of`. Both are on the same network, and have the same hardware address
    /// or the same client identifier. `None`: there is no such record.
    pub fn same_client(&self, of: &DHCPLease) -> Option<String> {
        let own = key(of.meta());
        let same = |record: &DHCPLease| {
            dhcp_lease::is_one_client(&record.spec, &of.spec) && key(record.meta()) != own
        };
        self.records.find(same).map(|record| key(record.meta()))
    }

    /// Networks in the view that meet one of these conditions:
    /// * An annotation or an option of the operator asks for an agent. The operator need not be the
    ///   party that creates it.
    /// * An annotation contains the state of an agent.
    pub fn agent_networks(&self) -> Vec<AgentNetwork> {
        let networks = lock(&self.index.networks);
        let agents = networks.iter().map(|(name, known)| AgentNetwork {
            name: name.clone(),
            agent: self.dhcp.agent(name, &known.declaration),
            declaration: known.declaration.clone(),
            status: known.status.clone(),
            may_declare: self.dhcp.may_declare(name),
            reference: (*known.reference).clone(),
        });
        agents
            .filter(|of| of.agent != dhcp_lease::WantedAgent::None || !of.status.is_empty())
            .collect()
    }

    /// Agent that serves the network. Field 0: the agent's identity. Field 1: the time when the
    /// agent acquired its Lease, by the agent's clock. `None`: no agent serves the network.
    pub fn agent_of(&self, network: &str) -> Option<(String, Option<DateTime<FixedOffset>>)> {
        let agents = lock(&self.index.agents);
        let agent = agents.0.get(&agent_name(network))?;
        let holding = &agent.holding;
        agent.serves(Instant::now()).then(|| (holding.holder.clone(), holding.acquired))
    }

    /// Whether any node has the label with the key `label` and the value `true`. Such a label marks
    /// the nodes on a cluster network.
    pub fn has_node(&self, label: &str) -> bool {
        lock(&self.index.nodes).values().any(|node| node.cluster_networks.contains(label))
    }

    /// Record (DHCPLease) of the LoadBalancer `lb`, which is a `namespace/name`. `None`: the view
    /// has no such record.
    pub fn record(&self, lb: &str) -> Option<Arc<DHCPLease>> {
        let (namespace, name) = split_key(lb);
        self.records.get(&ObjectRef::new(name).within(namespace))
    }

    /// Whether an agent serves the network: an agent holds the network's Lease, and the Lease's
    /// duration has not passed since this process last observed a change of the Lease.
    pub fn agent_serves(&self, network: &str) -> bool {
        self.agent_of(network).is_some()
    }

    /// UID of the namespace kube-system, which identifies this cluster. `None`: the namespace was
    /// not observed yet.
    pub fn cluster_id(&self) -> Option<String> {
        lock(&self.index.cluster).clone()
    }

    /// Network on which an address would be leased for the LoadBalancer: the network that its
    /// annotations or its guest cluster's VMs determine. A vm LoadBalancer without such a network
    /// gets the default network. Empty: there is no network. Does not check whether the
    /// LoadBalancer wants a lease, or whether the network is declared.
    pub fn leasing_network(&self, lb: &LoadBalancer) -> String {
        self.dhcp.of(lb, &self.around(lb))
    }

    /// Declared networks on which at least one LoadBalancer has no address and waits for a lease.
    /// Networks that are not declared are left out: a tenant can name any number of them, and each
    /// network in the result gets metrics and an alert of its own.
    pub fn leasing_networks(&self) -> HashSet<String> {
        let waits = |lb: &LoadBalancer| !facts::wants_pool(lb) && !facts::has_address(lb);
        let waiting = self.load_balancers.state_filter(waits);
        let networks = waiting.iter().map(|lb| self.leasing_network(lb));
        networks.filter(|network| self.declares(network)).collect()
    }

    /// Enqueues every LoadBalancer that has a record (DHCPLease) for `network`, or waits for a
    /// lease there.
    pub fn enqueue_lbs_leasing_on(&self, network: &str) {
        let on_it = |record: &DHCPLease| record.spec.network == network;
        let records = self.records.state_filter(on_it);
        self.enqueue_lbs(records.iter().map(|record| key(record.meta())));
        let waits = |lb: &LoadBalancer| {
            !facts::wants_pool(lb) && !facts::has_address(lb) && self.leasing_network(lb) == network
        };
        self.enqueue_lbs_that(waits);
    }

    /// Enqueues the LoadBalancers whose leased address is in one of the networks.
    pub(super) fn enqueue_lbs_leased_in(&self, networks: &[IpNet]) {
        // While `leasing_synced` is false, no lease is decided, so no decision depends on these
        // networks yet.
        if !self.leasing_synced() {
            return;
        }
        let is_in = |record: &DHCPLease| {
            let address = record.status.as_ref().and_then(|status| status.address.as_ref());
            let address = address.and_then(|address| address.parse::<IpAddr>().ok());
            address.is_some_and(|address| networks.iter().any(|net| net.contains(&address)))
        };
        let records = self.records.state_filter(is_in);
        self.enqueue_lbs(records.iter().map(|record| key(record.meta())));
    }

    pub(super) fn set_agent(&self, lease: &Lease) {
        let (name, holding) = (lease.name_any(), holding(lease));
        if name.starts_with(AGENT_PREFIX)
            && lock(&self.index.agents).apply(&name, holding, Instant::now(), Utc::now())
        {
            self.enqueue_lbs_of_agent(&name);
        }
    }

    /// Removes the agent whose Lease has the key `key` (`namespace/name`).
    pub(super) fn remove_agent(&self, key: &str) {
        let (_, name) = split_key(key);
        if lock(&self.index.agents).remove(name) {
            self.enqueue_lbs_of_agent(name);
        }
    }

    /// Enqueues the LoadBalancers on the network of the agent with the Lease `name`. The caller has
    /// observed that the agent was replaced, has ended, or serves the network again. A LoadBalancer
    /// that was reconciled while no agent served the network must be reconciled again.
    /// `controllers::dhcp_lease::agents` checks the agents only once a second, so it misses a
    /// shorter interruption.
    fn enqueue_lbs_of_agent(&self, name: &str) {
        let records = self.records.state();
        let mut networks = self.leasing_networks();
        networks.extend(records.iter().map(|record| record.spec.network.clone()));
        networks.iter().filter(|network| agent_name(network) == name).for_each(|network| {
            self.enqueue_lbs_leasing_on(network);
        });
    }

    /// Enqueues every LoadBalancer that may have a leased address.
    pub(super) fn enqueue_leased_lbs(&self) {
        self.enqueue_lbs_that(|lb| !facts::wants_pool(lb));
    }
}

pub(super) async fn watch_records(at: InformerContext, mut writer: StoreWriter<DHCPLease>) {
    let known = || store::keys(&at.views.records);
    let on_event = |event| apply_record(&at, &mut writer, event);
    let api = Api::<Guard<DHCPLease>>::all(at.client.clone());
    informer::watch_guarded(api, Config::default(), &at.metrics, known, on_event).await;
}

/// Applies an event of a record (DHCPLease) to the view, and enqueues the record's LoadBalancer.
pub(super) fn apply_record(
    at: &InformerContext,
    writer: &mut StoreWriter<DHCPLease>,
    event: ObjectEvent<DHCPLease>,
) {
    let views = &at.views;
    match event {
        ObjectEvent::Listed(mut record) | ObjectEvent::Changed(mut record) => {
            let name = key(record.meta());
            record.metadata.managed_fields = None;
            writer.set(record);
            views.enqueue_lbs([name]);
        }
        ObjectEvent::Unreadable(meta) => views.enqueue_lbs([key(&meta)]),
        ObjectEvent::Gone(key, _) => {
            writer.remove(&key);
            views.enqueue_lbs([key]);
        }
        ObjectEvent::Complete => at.done(ViewPart::Records),
        ObjectEvent::Refused(status) if is_out_of_reach(&status) => at.done(ViewPart::Records),
        ObjectEvent::Refused(_) => {}
    }
}

pub(super) async fn watch_agents(at: InformerContext, namespace: String) {
    let views = &at.views;
    let known =
        || lock(&views.index.agents).0.keys().map(|name| format!("{namespace}/{name}")).collect();
    let on_event = |event| match event {
        ObjectEvent::Listed(lease) | ObjectEvent::Changed(lease) => views.set_agent(&lease),
        ObjectEvent::Gone(key, _) => views.remove_agent(&key),
        ObjectEvent::Complete => at.done(ViewPart::Agents),
        ObjectEvent::Refused(status) if is_out_of_reach(&status) => at.done(ViewPart::Agents),
        ObjectEvent::Unreadable(_) | ObjectEvent::Refused(_) => {}
    };
    let api = Api::<Lease>::namespaced(at.client.clone(), &namespace);
    informer::watch(api, Config::default(), &at.metrics, known, on_event).await;
}

impl AgentIndex {
    /// Stores the content of the agent's Lease `name`. Returns `true` in these cases:
    /// * The Lease has another holder than before.
    /// * The holder serves the network again after an absence.
    ///
    /// `now` and `utc` are the time when the content was observed, by the monotonic clock and by
    /// the system clock.
    fn apply(&mut self, name: &str, holding: AgentLease, now: Instant, utc: DateTime<Utc>) -> bool {
        let since = match self.0.get(name) {
            Some(known) if known.holding == holding => return false,
            None if dhcp_lease::is_left_behind(&holding, utc.fixed_offset()) => None,
            _ => Some(now),
        };
        let agent = ObservedAgent { holding, since };
        let (holder, serves) = (agent.holding.holder.clone(), agent.serves(now));
        match self.0.insert(name.to_owned(), agent) {
            Some(before) => before.holding.holder != holder || serves && !before.serves(now),
            None => !holder.is_empty(),
        }
    }

    /// Removes the agent's Lease `name`. Returns whether the Lease had a holder.
    fn remove(&mut self, name: &str) -> bool {
        self.0.remove(name).is_some_and(|agent| !agent.holding.holder.is_empty())
    }
}

fn holding(lease: &Lease) -> AgentLease {
    let spec = lease.spec.clone().unwrap_or_default();
    AgentLease {
        holder: spec.holder_identity.unwrap_or_default(),
        duration: seconds(spec.lease_duration_seconds),
        acquired: spec.acquire_time.and_then(moment),
        renewed: spec.renew_time.and_then(moment),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
    }
}

#[allow(clippy::needless_pass_by_value)] // Used to map a field of a Lease.
fn moment(time: MicroTime) -> Option<DateTime<FixedOffset>> {
    DateTime::from_timestamp(time.0.as_second(), 0).map(|time| time.fixed_offset())
}

/// Reference to the LoadBalancer that the record (DHCPLease) belongs to.
pub fn lb_of(record: &DHCPLease) -> ObjectRef<LoadBalancer> {
    ObjectRef::new(&record.name_any()).within(&record.namespace().unwrap_or_default())
}
