//! Rules of the spec. What is wrong with listeners, names and health checks is told by the
//! functions that the reconciler asks as well, so that both say the same.

use super::{Answer, Known, Named, PoolSeen};
use crate::api::LoadBalancer;
use crate::domain::admission::Refusal;
use crate::domain::facts::{self, Project};
use crate::domain::health;
use crate::domain::vm_lb;

/// Whether there is something to judge: what was stored before a rule was made stays as it is
/// until somebody changes it.
pub(super) fn are_due(lb: &LoadBalancer, old: Option<&LoadBalancer>) -> bool {
    old.is_none_or(|old| old.spec != lb.spec || cluster(old) != cluster(lb))
}

pub(super) fn judge(
    lb: &LoadBalancer,
    old: Option<&LoadBalancer>,
    known: &Known,
    answer: &mut Answer,
) {
    if !are_due(lb, old) {
        return;
    }
    let old_faults = old.map(faults).unwrap_or_default();
    answer.refusals.extend(faults(lb).into_iter().filter(|fault| !old_faults.contains(fault)));
    if let Some(old) = old {
        immutable(lb, old, answer);
    } else {
        if let Some(removal) = &known.removal {
            let field = format!("metadata.labels[{}]", crate::api::LABEL_CLUSTER);
            answer.refuse(field, removal.message());
        }
        if !facts::wants_pool(lb) {
            answer.warn(
                "spec.ipam dhcp: the announcer leases the address; allocatedAddress.ip stays 0.0.0.0",
            );
        }
    }
    if facts::wants_pool(lb) {
        pool(lb, old, known, answer);
    }
}

/// What is wrong with the object alone.
pub(super) fn faults(lb: &LoadBalancer) -> Vec<Refusal> {
    let mut found = Vec::new();
    if !facts::wants_pool(lb) && lb.spec.ip_pool.as_ref().is_some_and(|pool| !pool.is_empty()) {
        found.push(Refusal {
            field: "spec.ipPool".to_owned(),
            message: "must be unset when spec.ipam is dhcp: the address comes from the DHCP server"
                .to_owned(),
        });
    }
    if !vm_lb::is_vm(lb) {
        return found;
    }
    let name = lb.metadata.name.as_deref().filter(|name| !name.is_empty());
    let texts = name
        .and_then(vm_lb::name_fault)
        .into_iter()
        .chain(vm_lb::listeners(&lb.spec).err())
        .chain(health::check(&lb.spec).err().map(|fault| fault.to_string()));
    found.extend(texts.map(|text| match text.split_once(": ") {
        Some((field, message)) => Refusal { field: field.to_owned(), message: message.to_owned() },
        None => Refusal { field: "spec".to_owned(), message: text },
    }));
    found
}

/// The CRD says the same; Harvester's own does not.
fn immutable(lb: &LoadBalancer, old: &LoadBalancer, answer: &mut Answer) {
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

fn pool(lb: &LoadBalancer, old: Option<&LoadBalancer>, known: &Known, answer: &mut Answer) {
    let facts = facts::facts(lb, &known.around, true);
    let Some(name) = facts.named_pool else {
        let served = |pools: &Vec<_>| {
            pools.iter().any(|selector: &crate::domain::pool_choice::Selector| {
                selector.fit(&facts.requirement).is_some()
            })
        };
        if known.around.project != Project::Unknown
            && old.and_then(facts::published).is_none()
            && known.pools.as_ref().is_some_and(|pools| !served(pools))
        {
            answer.warn(format!("no IPPool admits it now, it waits: {}", facts.requirement));
        }
        return;
    };
    // Whoever has its address there keeps it.
    if old.and_then(facts::published).is_some_and(|claim| claim.pool == name) {
        return;
    }
    match &known.named {
        Named::Unknown => {}
        Named::Missing => {
            answer.warn(format!("spec.ipPool: there is no IPPool {name:?} yet; it waits for one"));
        }
        Named::There(PoolSeen { selector, idle, full }) => {
            if !selector.may_be_named_by(&facts.requirement) {
                if known.around.project != Project::Unknown {
                    answer.refuse(
                        "spec.ipPool",
                        format!(
                            "it names {name:?}, whose scope does not admit {}; it admits {}",
                            facts.requirement,
                            selector.admitted()
                        ),
                    );
                }
            } else if let Some(why) = idle {
                answer.warn(format!("spec.ipPool: {name} gives out no addresses: {why}"));
            } else if *full {
                answer
                    .warn(format!("spec.ipPool: {name} has no available IP now; it waits for one"));
            }
        }
    }
}

fn cluster(lb: &LoadBalancer) -> String {
    facts::requirement(lb, &facts::Surroundings::default()).cluster
}
