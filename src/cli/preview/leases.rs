//! Plans the next step for a LoadBalancer whose address comes from a DHCP server. A leader plans
//! the same step at the beginning of its term.

use chrono::Utc;

use crate::api::LoadBalancer;
use crate::domain::dhcp_lease::{self, LeasingFacts, LeasingStep};
use crate::domain::load_balancer::facts;
use crate::domain::load_balancer::status::AddressOutcome;
use crate::domain::preview::PlannedWrite;
use crate::domain::reason::NoLease;
use crate::k8s::views::Views;

/// Returns the outcome for the leased address of `lb`, and the write that the operator would make,
/// if any. `None`: objects that this decision needs could not be read.
pub(super) fn decide(
    views: &Views,
    lb: &LoadBalancer,
) -> Option<(AddressOutcome, Option<PlannedWrite>)> {
    let cluster = views.cluster_id()?;
    if !views.leasing_synced_for(lb) {
        return None;
    }
    let name = facts::name(lb);
    let network = views.leasing_network(lb);
    if dhcp_lease::needs_service(lb) && !views.endpoints_synced() {
        return None;
    }
    let service = views.services.of(&name).next();
    let record = views.record(&name);
    let of = record.as_ref().map_or(&network, |record| &record.spec.network);
    let fault = views.network_fault(&network);
    let now = Utc::now().fixed_offset();
    let seen = LeasingFacts {
        lb,
        network: &network,
        record: record.as_deref(),
        declared: views.declares(&network),
        fault: fault.as_deref(),
        serving: views.agent_serves(of),
        service: service.as_ref(),
        early: true,
        now,
    };
    let wait = |why: NoLease| AddressOutcome::Host(Err(why));
    Some(match dhcp_lease::step(&seen) {
        LeasingStep::Guest(why) => (AddressOutcome::Guest(why), None),
        LeasingStep::Wait(why) => (wait(why), None),
        LeasingStep::Take(lease) => {
            (AddressOutcome::Host(views.unless_in_the_way(lb, lease)), None)
        }
        LeasingStep::Create => {
            let form = views.client_id_form(&network);
            match dhcp_lease::record(lb, &cluster, &network, form) {
                Err(fault) => (wait(NoLease::Annotation(fault.text())), None),
                Ok(new) => {
                    if let Some(other) = views.same_client(&new) {
                        (wait(dhcp_lease::identity_taken(&new, &other)), None)
                    } else {
                        let what = "created: its address is leased from the DHCP server";
                        let change = PlannedWrite::new("DHCPLease", &name, what);
                        (wait(NoLease::Pending { network, said: None }), Some(change))
                    }
                }
            }
        }
        LeasingStep::Adopt(patch) => {
            let change = PlannedWrite::patch("LoadBalancer", &name, &patch);
            (wait(NoLease::TakingOver { network }), Some(change))
        }
        LeasingStep::Keep => {
            let record = record.as_deref()?;
            let patch = dhcp_lease::release_after(record, None);
            let change = PlannedWrite::patch("DHCPLease", &name, &patch);
            let outcome = match dhcp_lease::usable(record, now) {
                Some(lease) => AddressOutcome::Host(views.unless_in_the_way(lb, lease)),
                None => wait(NoLease::Pending { network, said: None }),
            };
            (outcome, Some(change))
        }
    })
}
