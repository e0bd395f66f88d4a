//! Limits on the size of a LoadBalancer's data, and the cut of an object that exceeds them.
//!
//! The schema and admission limit the size of new objects. But some objects were stored before
//! these limits existed, or under Harvester's own CRD, which has no limits. So [`trim`] cuts each
//! object before a view keeps it. Invariants of a trimmed object:
//! * Its size is at most 20 KiB, not counting the names of listeners and a bundle of certificates.
//! * Decisions from the trimmed object are the same as from the whole object, with two exceptions.
//!   A count in a message may differ. Only about the first 600 addresses of `status.backendServers`
//!   are found ([`lists`]).

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::limits::text::{LONGEST_TEXT, LONGEST_WORD, cut, shorten, shorten_some};
use crate::object_fields::digest::hex;
use crate::vm_backends::health::{LONGEST_BUNDLE, LONGEST_PATH, MOST_STATUSES};
use crate::vm_backends::listeners::{LONGEST_LABEL, LONGEST_VALUE, MOST_LABELS, MOST_VALUES};
use crate::vm_backends::ports::MOST_LISTENERS;
use api::{
    ANNOTATION_ALLOCATED, ANNOTATION_CLUSTER, ANNOTATION_DHCP, ANNOTATION_DHCP_CLIENT_ID,
    ANNOTATION_MANAGEMENT_NETWORK, ANNOTATION_NETWORK, AllocatedAddress, Condition, HealthCheck,
    KUBE_VIP_BROADCAST, KUBE_VIP_HOSTNAME, KUBE_VIP_HWADDR, KUBE_VIP_REQUESTED_IP, LABEL_CLUSTER,
    LB_FINALIZER, LoadBalancer, LoadBalancerSpec, READY,
};

/// Longest name of a LoadBalancer, in characters. Cloud providers of guest clusters cut names to
/// this length, and the name of a Service cannot be longer.
pub const LONGEST_NAME: usize = 63;
/// Maximum size, in bytes of memory, of other clients' finalizers in a trimmed object. The same
/// maximum applies to other clients' conditions. If the entries of other clients in one of the two
/// lists take more, [`trim`] removes all of these entries. The operator writes each list as a
/// whole, so it must then read the object again before it writes either list.
const MOST_FOREIGN: usize = 1024;
/// Maximum number of addresses in a list `status.backendServers` that [`trim`] leaves unchanged.
/// [`trim`] replaces a longer list by two texts: the result of [`digest`] and the result of
/// [`first_of`].
const LONGEST_LIST: usize = 16;
/// Maximum size in bytes of the text that [`first_of`] returns: about 600 IPv4 addresses.
const LONGEST_FIRST: usize = 8 * 1024;

/// Annotations that decisions use. [`trim`] removes all other annotations.
const ANNOTATIONS: [&str; 10] = [
    ANNOTATION_NETWORK,
    ANNOTATION_CLUSTER,
    ANNOTATION_MANAGEMENT_NETWORK,
    ANNOTATION_DHCP,
    ANNOTATION_ALLOCATED,
    ANNOTATION_DHCP_CLIENT_ID,
    KUBE_VIP_BROADCAST,
    KUBE_VIP_HOSTNAME,
    KUBE_VIP_HWADDR,
    KUBE_VIP_REQUESTED_IP,
];

/// Text of the fault, if a LoadBalancer's name is too long. `None`: the name is short enough. The
/// length is limited because each claim stores the name in the pool's object, and all claims share
/// the size limit of this object.
pub fn name_fault(name: &str) -> Option<String> {
    (name.len() > LONGEST_NAME).then(|| {
        format!("metadata.name: is longer than {LONGEST_NAME} characters: choose a shorter one")
    })
}

/// Removes the fields of a LoadBalancer that decisions do not use, and cuts values beyond their
/// limits. Returns whether entries of other clients were removed from the finalizers or the
/// conditions. If so, the object must be read again before either list is written.
pub fn trim(lb: &mut LoadBalancer) -> bool {
    let meta = &mut lb.metadata;
    meta.managed_fields = None;
    meta.owner_references = None;
    meta.generate_name = None;
    if let Some(annotations) = meta.annotations.as_mut() {
        annotations.retain(|key, _| ANNOTATIONS.contains(&key.as_str()));
        for text in annotations.values_mut() {
            shorten(text, LONGEST_TEXT);
        }
    }
    if let Some(labels) = meta.labels.as_mut() {
        labels.retain(|key, _| key == LABEL_CLUSTER);
    }
    let mut partial = trim_finalizers(meta.finalizers.as_mut());
    trim_spec(&mut lb.spec);
    if let Some(status) = lb.status.as_mut() {
        partial |= trim_conditions(&mut status.conditions);
        status.addresses = None;
        shorten_some(&mut status.address, LONGEST_WORD);
        if let Some(allocated) = status.allocated_address.as_mut() {
            trim_allocated(allocated);
        }
        if let Some(servers) = status.backend_servers.as_mut().filter(|s| s.len() > LONGEST_LIST) {
            *servers = vec![digest(servers), first_of(servers)];
        }
    }
    partial
}

/// Digest of a list of addresses. [`trim`] stores it in place of a list that is too long to be kept
/// in memory.
fn digest(list: &[String]) -> String {
    let mut hash = Sha256::new();
    for text in list {
        hash.update(text);
        hash.update([0]);
    }
    format!("sha256:{}", hex(&hash.finalize()))
}

/// First addresses of a list, at most [`LONGEST_FIRST`] bytes, each with a space after it. [`trim`]
/// stores them beside the [`digest`].
fn first_of(list: &[String]) -> String {
    let mut text = String::new();
    for address in list {
        if text.len() + address.len() >= LONGEST_FIRST {
            break;
        }
        text.push_str(address);
        text.push(' ');
    }
    text.shrink_to_fit();
    text
}

/// Whether `stored` equals `list`, or contains the [`digest`] of `list` in place of the addresses.
/// `stored`: a list in an object that [`trim`] may have cut.
pub fn is_list(stored: &[String], list: &[String]) -> bool {
    if list.len() > LONGEST_LIST
        && let [kept, _first] = stored
    {
        return *kept == digest(list);
    }
    stored == list
}

/// Whether the list `stored` contains the address. `stored`: a list in an object that [`trim`] may
/// have cut. A list that was cut has only its first addresses, about 600, so the result is `false`
/// for the others.
pub fn lists(stored: &[String], address: &str) -> bool {
    stored.iter().flat_map(|text| text.split(' ')).any(|listed| listed == address)
}

fn trim_finalizers(finalizers: Option<&mut Vec<String>>) -> bool {
    let Some(finalizers) = finalizers else { return false };
    let others = finalizers.iter().filter(|name| *name != LB_FINALIZER);
    if others.map(|name| name.len() + size_of::<String>()).sum::<usize>() <= MOST_FOREIGN {
        return false;
    }
    finalizers.retain(|name| name == LB_FINALIZER);
    finalizers.truncate(1);
    finalizers.shrink_to_fit();
    true
}

fn trim_conditions(conditions: &mut Vec<Condition>) -> bool {
    let texts = |c: &Condition| {
        let texts = [&c.reason, &c.message, &c.last_update_time, &c.last_transition_time];
        texts.into_iter().flatten().map(String::len).sum::<usize>() + c.type_.len()
    };
    let room = |c: &Condition| texts(c) + size_of::<Condition>();
    // Only the first condition of the type Ready counts.
    let ready = conditions.iter().position(|condition| condition.type_ == READY);
    let others = conditions.iter().enumerate().filter(|(at, _)| Some(*at) != ready);
    let partial = others.map(|(_, condition)| room(condition)).sum::<usize>() > MOST_FOREIGN;
    if partial {
        *conditions = ready.map(|at| conditions.swap_remove(at)).into_iter().collect();
    }
    // The operator's own condition may be cut here. If the cut text differs from the text that the
    // operator wants, the operator writes the whole condition.
    let ready = conditions.iter_mut().find(|condition| condition.type_ == READY);
    if let Some(condition) = ready {
        shorten_some(&mut condition.message, LONGEST_TEXT + 3);
        shorten_some(&mut condition.reason, LONGEST_WORD);
        shorten_some(&mut condition.last_update_time, LONGEST_WORD);
        shorten_some(&mut condition.last_transition_time, LONGEST_WORD);
    }
    partial
}

fn trim_allocated(allocated: &mut AllocatedAddress) {
    for text in
        [&mut allocated.ip_pool, &mut allocated.ip, &mut allocated.mask, &mut allocated.gateway]
    {
        shorten_some(text, LONGEST_WORD);
    }
    // This operator does not write the fields for IPv6.
    (allocated.ipv6_pool, allocated.ipv6_ip) = (None, None);
    (allocated.ipv6_mask, allocated.ipv6_gateway) = (None, None);
}

fn trim_spec(spec: &mut LoadBalancerSpec) {
    spec.description = None;
    (spec.requested_addresses, spec.ipv6_pool, spec.ip_family_policy) = (None, None, None);
    shorten_some(&mut spec.ip_pool, LONGEST_WORD);
    if spec.workload_type == Some(api::WorkloadType::Cluster) {
        spec.listeners = Vec::new();
        spec.backend_server_selector = None;
        spec.health_check = None;
        return;
    }
    // Keeps one listener more than the limit, so that a later check still finds too many listeners.
    spec.listeners.truncate(MOST_LISTENERS + 1);
    spec.listeners.shrink_to_fit();
    for listener in &mut spec.listeners {
        shorten(&mut listener.name, LONGEST_VALUE + 1);
        shorten(&mut listener.protocol, 16);
    }
    if let Some(selector) = spec.backend_server_selector.take() {
        spec.backend_server_selector = Some(trim_selector(selector));
    }
    if let Some(check) = spec.health_check.as_mut() {
        trim_check(check);
    }
}

fn trim_selector(selector: BTreeMap<String, Vec<String>>) -> BTreeMap<String, Vec<String>> {
    let mut room = MOST_VALUES + 1;
    let trimmed = |(label, values): (String, Vec<String>)| {
        let kept = values.into_iter().take(room).map(|value| cut(value, LONGEST_VALUE + 1));
        let mut values: Vec<String> = kept.collect();
        values.shrink_to_fit();
        room -= values.len();
        (cut(label, LONGEST_LABEL + 1), values)
    };
    selector.into_iter().take(MOST_LABELS + 1).map(trimmed).collect()
}

fn trim_check(check: &mut HealthCheck) {
    shorten_some(&mut check.protocol, LONGEST_WORD);
    shorten_some(&mut check.path, LONGEST_PATH + 1);
    shorten_some(&mut check.server_name, LONGEST_WORD);
    shorten_some(&mut check.ca_bundle, LONGEST_BUNDLE + 1);
    if let Some(statuses) = check.expected_statuses.as_mut() {
        statuses.truncate(MOST_STATUSES + 1);
        statuses.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests;
