//! Rules of the spec. Admission and the reconciler use the same functions to find faults of
//! listeners, names and health checks. So both report the same faults.

use super::super::Refusal;
use super::{AdmissionAnswer, CandidatePool, LbRuleFacts, NamedPool};
use crate::dhcp_lease;
use crate::load_balancer::bounds;
use crate::load_balancer::facts::{self, LbSurroundings, Project};
use crate::pools::selection::{PoolRequirement, PoolSelector};
use crate::reason::NoAddressReason;
use crate::vm_backends::health;
use crate::vm_backends::listeners;
use api::{ANNOTATION_DHCP, ANNOTATION_NETWORK, LABEL_VM_NAME, LoadBalancer, LoadBalancerSpec};

/// Whether the rules apply to a request. They apply to a new object (`old` is `None`), and to a
/// change of the spec, the guest cluster, the network or the DHCP settings. Without such a change,
/// an object that was stored before a rule existed stays valid.
pub(super) fn are_due(lb: &LoadBalancer, old: Option<&LoadBalancer>) -> bool {
    old.is_none_or(|old| {
        old.spec != lb.spec
            || requirement(old) != requirement(lb)
            || leaser(old) != leaser(lb)
            || asks(old) != asks(lb)
    })
}

pub(super) fn check(
    lb: &LoadBalancer,
    old: Option<&LoadBalancer>,
    known: &LbRuleFacts,
    answer: &mut AdmissionAnswer,
) {
    if !are_due(lb, old) {
        return;
    }
    let old_faults = old.map(faults).unwrap_or_default();
    answer.refusals.extend(faults(lb).into_iter().filter(|fault| !old_faults.contains(fault)));
    if let Some(old) = old {
        immutable(lb, old, answer);
        let settled = facts::has_address(lb) && !facts::wants_pool(lb);
        let taken_over = dhcp_lease::may_be_taken_over(lb) && facts::leased(lb).is_none();
        if leaser(old) != leaser(lb) && settled && !taken_over {
            answer.warn(
                "annotation dhcp: no effect on the present address: delete the LoadBalancer and create it again",
            );
        }
        if asks(old) != asks(lb) && settled && !taken_over {
            answer.warn(
                "annotations of the DHCP client: no effect on the present lease: delete the LoadBalancer and create it again",
            );
        }
    } else {
        if let Some(removal) = &known.removal {
            let field = format!("metadata.labels[{}]", api::LABEL_CLUSTER);
            answer.refuse(field, removal.message());
        }
        if !facts::wants_pool(lb) {
            answer.warn(
                "spec.ipam dhcp: unless the host leases on the network, kube-vip leases, and allocatedAddress.ip stays 0.0.0.0",
            );
        }
    }
    if let Some(address) = listeners::address_for_name(&lb.spec).filter(|_| listeners::is_vm(lb)) {
        answer.warn(format!(
            "backendServers (label {LABEL_VM_NAME}): {address} is an address and selects no VM: use VM names"
        ));
    }
    if facts::wants_pool(lb) {
        pool(lb, old, known, answer);
    }
}

/// Faults of the LoadBalancer itself. Other objects have no influence on these faults.
pub(super) fn faults(lb: &LoadBalancer) -> Vec<Refusal> {
    let mut found = Vec::new();
    if !facts::wants_pool(lb) && lb.spec.ip_pool.as_ref().is_some_and(|pool| !pool.is_empty()) {
        found.push(Refusal::new(
            "spec.ipPool",
            "must be unset when spec.ipam is dhcp: the address comes from the DHCP server",
        ));
    }
    found.extend(reserved(&lb.spec));
    if !facts::wants_pool(lb)
        && let Err(fault) = dhcp_lease::choice(lb)
    {
        let field = format!("metadata.annotations[{ANNOTATION_DHCP}]");
        found.push(Refusal::new(field, fault));
    }
    if !facts::wants_pool(lb)
        && let Err(dhcp_lease::AnnotationFault { field, message }) = dhcp_lease::asked(lb)
    {
        found.push(Refusal { field, message });
    }
    let mut texts = Vec::new();
    let name = lb.metadata.name.as_deref().filter(|name| !name.is_empty());
    texts.extend(name.and_then(bounds::name_fault).filter(|_| facts::is_guest(lb)));
    if listeners::is_vm(lb) {
        texts.extend(name.and_then(listeners::name_fault));
        texts.extend(listeners::listeners(&lb.spec).err());
        texts.extend(listeners::selector_fault(&lb.spec));
    }
    let check = health::check(&lb.spec).err();
    let form = || lb.spec.health_check.as_ref().and_then(|check| health::form(check).err());
    texts.extend(check.or_else(form).map(|fault| fault.to_string()));
    found.extend(texts.into_iter().map(|text| match text.split_once(": ") {
        Some((field, message)) => Refusal::new(field, message),
        None => Refusal::new("spec", text),
    }));
    found
}

/// Refusals of fields that are set, but not supported by this version of the operator. The CRD has
/// the same rule for v1beta1. A v1alpha1 object has these fields in an annotation, which the CRD's
/// rules do not check.
fn reserved(spec: &LoadBalancerSpec) -> impl Iterator<Item = Refusal> {
    let single = spec.ip_family_policy.as_ref().is_none_or(|policy| policy == "SingleStack");
    let fields = [
        (
            "spec.requestedAddresses",
            spec.requested_addresses.as_ref().is_some_and(|list| !list.is_empty()),
            "is not supported by this version: remove it; to pin an address, name a pool of that one address in spec.ipPool",
        ),
        (
            "spec.ipv6Pool",
            spec.ipv6_pool.as_ref().is_some_and(|pool| !pool.is_empty()),
            "is not supported by this version: remove it; name an IPv6 pool in spec.ipPool",
        ),
        ("spec.ipFamilyPolicy", !single, "only SingleStack is supported by this version"),
    ];
    fields
        .into_iter()
        .filter(|(_, is_set, _)| *is_set)
        .map(|(field, _, message)| Refusal::new(field, message))
}

/// Refuses changes of immutable fields. This operator's CRD has the same rule. Harvester's CRD does
/// not have the rule.
fn immutable(lb: &LoadBalancer, old: &LoadBalancer, answer: &mut AdmissionAnswer) {
    let fields = [
        ("ipam", facts::wants_pool(lb) == facts::wants_pool(old), "pool"),
        ("workloadType", facts::is_guest(lb) == facts::is_guest(old), "vm"),
    ];
    for (field, same, default) in fields {
        if !same {
            answer.refuse(
                format!("spec.{field}"),
                format!(
                    "is immutable (unset means {default}): create a new LoadBalancer to change it"
                ),
            );
        }
    }
}

fn pool(
    lb: &LoadBalancer,
    old: Option<&LoadBalancer>,
    known: &LbRuleFacts,
    answer: &mut AdmissionAnswer,
) {
    if let Some(mismatch) = elsewhere(known) {
        answer.refuse(format!("metadata.annotations[{ANNOTATION_NETWORK}]"), mismatch.message());
        return;
    }
    let requirement = facts::requirement(lb, &known.around);
    let Some(name) = facts::named_pool(lb) else {
        let fits = |selector: &PoolSelector| selector.fit(&requirement).is_some();
        if known.around.project != Project::Unknown
            && old.and_then(facts::published).is_none()
            && known.pools.as_ref().is_some_and(|pools| !pools.iter().any(fits))
        {
            answer.warn(format!(
                "no IPPool admits this LoadBalancer now, so it waits: {requirement}"
            ));
        }
        return;
    };
    // A LoadBalancer that already has an address of this pool keeps that address. So the pool is
    // not checked.
    if old.and_then(facts::published).is_some_and(|claim| claim.pool == name) {
        return;
    }
    match &known.named {
        NamedPool::Unknown => {}
        NamedPool::Missing => {
            answer.warn(format!(
                "spec.ipPool: IPPool {name:?} does not exist yet; the LoadBalancer waits for it"
            ));
        }
        NamedPool::There(CandidatePool { selector, idle, full, mismatch }) => {
            if !selector.may_be_named_by(&requirement) {
                if known.around.project != Project::Unknown {
                    answer.refuse(
                        "spec.ipPool",
                        format!(
                            "it names {name:?}, whose scope does not admit {requirement}: name another, or ask the admin of the pool",
                        ),
                    );
                }
            } else if let Some(mismatch) = mismatch {
                answer.refuse(
                    format!("metadata.annotations[{ANNOTATION_NETWORK}]"),
                    mismatch.message(),
                );
            } else if let Some(why) = idle {
                answer.warn(format!("spec.ipPool: {name} allocates no addresses: {why}"));
            } else if *full {
                answer.warn(format!(
                    "spec.ipPool: {name} has no available IP now; the LoadBalancer waits for one"
                ));
            }
        }
    }
}

/// Reason to refuse the LoadBalancer's new network: the new network does not fit the pool of the
/// present address. The operator would reserve the present address on the new network too, so a
/// pool of another tenant there would have to hold back this address. `None` in these cases:
/// * the network does not change, or the new network fits the pool;
/// * the pool names no network, or is not known;
/// * the LoadBalancer names another pool, which fits the new network and can give an address.
fn elsewhere(known: &LbRuleFacts) -> Option<&NoAddressReason> {
    let NamedPool::There(CandidatePool { selector, mismatch, .. }) = &known.claimed else {
        return None;
    };
    let moves = matches!(
        &known.named,
        NamedPool::There(CandidatePool { idle: None, full: false, mismatch: None, .. })
    );
    mismatch.as_ref().filter(|_| !selector.network().is_empty() && !moves)
}

/// Whether an annotation of the LoadBalancer names another network than before.
pub(super) fn changes_network(lb: &LoadBalancer, old: &LoadBalancer) -> bool {
    requirement(old).network != requirement(lb).network
}

/// Requirement that a pool must meet, from the LoadBalancer's own fields alone: its namespace, its
/// network and its guest cluster.
fn requirement(lb: &LoadBalancer) -> PoolRequirement {
    facts::requirement(lb, &LbSurroundings::default())
}

fn leaser(lb: &LoadBalancer) -> Option<&String> {
    lb.metadata.annotations.as_ref()?.get(ANNOTATION_DHCP)
}

fn asks(lb: &LoadBalancer) -> Vec<Option<&String>> {
    let annotations = lb.metadata.annotations.as_ref();
    dhcp_lease::ASKING.iter().map(|key| annotations?.get(*key)).collect()
}
