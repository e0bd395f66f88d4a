//! Tests of the LoadBalancers that wait for the list of VMs before their pool is chosen.

use super::events::refused;
use super::*;
use crate::k8s::informer::ObjectEvent;

/// Views in which only the kinds that every address depends on are listed. Of the LoadBalancers,
/// only `ns/unnamed` needs VMs for its pool. `ns/of-pool` names its pool, but not its network.
fn without_vms() -> LeaderViews {
    let mut leader = LeaderViews::new();
    leader.vm_lb("ns/web");
    let guest = json!({"workloadType": "cluster"});
    leader.lb("ns/unnamed", &json!({}), &guest);
    leader.lb("ns/on-lan", &json!({ANNOTATION_NETWORK: "ns/lan"}), &guest);
    leader.lb("ns/of-pool", &json!({}), &json!({"workloadType": "cluster", "ipPool": "p"}));
    leader.views.synced.send_replace(ADDRESSES);
    leader
}

/// Names of the LoadBalancers that wait.
fn waiting(leader: &LeaderViews) -> Vec<String> {
    let views = &leader.views;
    let waiting = views.load_balancers.state_filter(|lb| views.awaits_vms(lb));
    waiting.iter().map(|lb| facts::name(lb)).collect()
}

#[tokio::test]
async fn the_first_list_of_vms_wakes_those_that_take_their_network_from_vms() {
    let leader = without_vms();
    let at = leader.informer();
    assert_eq!(waiting(&leader), ["ns/unnamed"]);
    vms::apply_vm(&at, ObjectEvent::Complete);
    leader.reports(&["ns/of-pool", "ns/unnamed"]);
    assert!(waiting(&leader).is_empty());
    vms::apply_vm(&at, ObjectEvent::Complete);
    leader.reports(&[]);
}

/// Thousands of VMs are listed at the start of a term. The decisions that rest on them come after
/// the list.
#[test]
fn a_vm_wakes_no_load_balancer_before_the_first_list_of_vms_is_complete() {
    let mut leader = LeaderViews::new();
    leader.vm_lb("ns/web");
    leader.views.synced.send_replace(!(ViewPart::Vms as u32));
    leader.vm("web", "10.7.0.7", true);
    leader.reports(&[]);
    leader.views.synced.send_replace(u32::MAX);
    leader.vm("web", "10.7.0.8", true);
    leader.reports(&["ns/web"]);
}

#[tokio::test]
async fn nothing_waits_for_vms_that_cannot_be_listed() {
    for (code, is_out_of_reach) in [(404, true), (403, true), (500, false)] {
        let leader = without_vms();
        let at = leader.informer();
        let woken: &[&str] = if is_out_of_reach { &["ns/of-pool", "ns/unnamed"] } else { &[] };
        vms::apply_vm(&at, refused(code));
        leader.reports(woken);
        assert_eq!(waiting(&leader).is_empty(), is_out_of_reach, "{code}");
        vms::apply_vm(&at, refused(code));
        leader.reports(&[]);
    }
}

/// An API server that has not read the roles yet refuses the lists of all kinds.
#[tokio::test]
async fn a_refusal_that_concerns_all_kinds_ends_no_wait() {
    let leader = without_vms();
    let at = leader.informer();
    leader.views.synced.send_replace(0);
    vms::apply_vm(&at, refused(403));
    leader.reports(&[]);
    assert_eq!(waiting(&leader), ["ns/unnamed"]);
    leader.views.synced.send_replace(ADDRESSES);
    vms::apply_vm(&at, refused(403));
    leader.reports(&["ns/of-pool", "ns/unnamed"]);
    assert!(waiting(&leader).is_empty());
}

/// An API server that has just started refuses a list because it has not read the roles, and the
/// next list for another reason.
#[tokio::test]
async fn a_missing_right_counts_until_the_next_answer() {
    let leader = without_vms();
    let at = leader.informer();
    for _ in 0..2 {
        vms::apply_vm(&at, refused(403));
        leader.reports(&["ns/of-pool", "ns/unnamed"]);
        assert!(waiting(&leader).is_empty());
        vms::apply_vm(&at, refused(503));
        leader.reports(&[]);
        assert_eq!(waiting(&leader), ["ns/unnamed"]);
    }
    vms::apply_vm(&at, refused(403));
    leader.reports(&["ns/of-pool", "ns/unnamed"]);
    vms::apply_vm(&at, ObjectEvent::Complete);
    assert!(waiting(&leader).is_empty());
}
