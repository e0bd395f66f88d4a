//! Tests of changes that kube-vip 1.2 does not handle. After such a change, the Service must be
//! created again.

use super::*;

#[test]
fn a_service_that_asks_for_another_address_goes_first() {
    let listeners = listeners();
    let wanted_100 = wanted("10.0.0.100", &listeners);
    let service = made(&wanted_100);
    for stored in [announced(service.clone(), "10.0.0.100"), service.clone()] {
        for address in ["10.0.0.101", ""] {
            let plan = plan(Some(&read(&stored)), &wanted(address, &listeners));
            assert_eq!(plan, ServicePlan::Replace, "{address:?}");
        }
    }
    // A user edited the requested address, so kube-vip has withdrawn the former address by now.
    for (annotation, field, expected) in [
        (json!("10.0.0.101"), "10.0.0.100", ServicePlan::Replace),
        (json!("10.0.0.100,10.0.0.101"), "10.0.0.100", ServicePlan::Replace),
        (json!("web.example.com"), "10.0.0.100", ServicePlan::Replace),
        (Value::Null, "10.0.0.101", ServicePlan::Replace),
    ] {
        let mut edited = service.clone();
        let annotations = json!({"metadata": {"annotations": {ASKED_ADDRESS: annotation}}});
        json_patch::merge(&mut edited, &annotations);
        edited["spec"]["loadBalancerIP"] = json!(field);
        let plan = plan(Some(&read(&edited)), &wanted_100);
        assert_eq!(plan, expected, "{edited}");
    }
    // The Service asks for the wanted address. But the request is written as Harvester's Go
    // controller writes it, or the address has another spelling.
    let mut adopted = service.clone();
    adopted["metadata"]["annotations"] = Value::Null;
    let change = plan(Some(&read(&adopted)), &wanted_100);
    assert!(matches!(change, ServicePlan::Change(_)), "{change:?}");
    let six = made(&wanted("fd00::100", &listeners));
    let mut spelled = six.clone();
    spelled["metadata"]["annotations"][ASKED_ADDRESS] = json!("fd00:0:0::0100");
    let change = plan(Some(&read(&spelled)), &wanted("fd00::100", &listeners));
    assert!(matches!(change, ServicePlan::Change(_)), "{change:?}");
}

/// kube-vip 1.2 withdraws the address for good when the traffic policy changes. An annotation
/// records the policy at creation. If this annotation is missing, the present policy counts as the
/// policy at creation.
#[test]
fn a_service_whose_traffic_policy_has_changed_is_made_anew() {
    let listeners = listeners();
    let wanted = wanted("10.0.0.100", &listeners);
    for (made_with, policy, expected) in [
        (json!("Cluster"), json!("Cluster"), ServicePlan::Keep),
        (json!("Cluster"), Value::Null, ServicePlan::Keep),
        (json!("Cluster"), json!("Local"), ServicePlan::Replace),
        (json!("Local"), json!("Local"), ServicePlan::Keep),
        (json!("Local"), json!("Cluster"), ServicePlan::Replace),
        (json!("Local"), Value::Null, ServicePlan::Replace),
    ] {
        let mut service = made(&wanted);
        service["metadata"]["annotations"][MADE_WITH_POLICY] = made_with;
        service["spec"]["externalTrafficPolicy"] = policy;
        assert_eq!(plan(Some(&read(&service)), &wanted), expected, "{service}");
    }
    let mut service = made(&wanted);
    service["metadata"]["annotations"].as_object_mut().unwrap().remove(MADE_WITH_POLICY);
    service["spec"]["externalTrafficPolicy"] = json!("Local");
    let (noted, _) = repaired(&service, &wanted);
    assert_eq!(noted["metadata"]["annotations"][MADE_WITH_POLICY], "Local");
    assert!(!repaired(&noted, &wanted).1);
}

/// kube-vip still lets traffic for a removed port reach the node itself. So the Service is created
/// again when a listener's port is removed. A port that a user added by hand is removed with a
/// patch, because kube-vip never let traffic for that port pass.
#[test]
fn a_service_that_loses_a_port_is_made_anew_and_one_that_gets_another_is_not() {
    let both = listeners();
    let service = made(&wanted("10.0.0.100", &both));
    let moved = [both[0].clone(), ListenerPort { port: 54, ..both[1].clone() }];
    for after in [&both[..1], &both[1..], &moved[..]] {
        let plan = plan(Some(&read(&service)), &wanted("10.0.0.100", after));
        assert_eq!(plan, ServicePlan::Replace, "{after:?}");
    }
    let three = [both[0].clone(), both[1].clone(), listener("https", "TCP", 443, 8443)];
    let reversed = [both[1].clone(), both[0].clone()];
    for after in [&three[..], &reversed[..]] {
        let plan = plan(Some(&read(&service)), &wanted("10.0.0.100", after));
        assert!(matches!(plan, ServicePlan::Change(_)), "{after:?}: {plan:?}");
    }
    let mut by_hand = service.clone();
    let ssh = json!({"name": "ssh", "protocol": "TCP", "port": 22, "targetPort": 22});
    by_hand["spec"]["ports"].as_array_mut().unwrap().push(ssh);
    let change = plan(Some(&read(&by_hand)), &wanted("10.0.0.100", &both));
    assert!(matches!(change, ServicePlan::Change(_)), "{change:?}");
    // If the annotation is missing, the present ports count as the ports at creation, and the
    // annotation is added.
    let mut silent = service;
    silent["metadata"]["annotations"].as_object_mut().unwrap().remove(MADE_WITH_PORTS);
    let (noted, _) = repaired(&silent, &wanted("10.0.0.100", &both));
    assert_eq!(noted["metadata"]["annotations"][MADE_WITH_PORTS], "80/TCP,53/UDP");
}

/// A tenant who changes a Service before kube-vip announces it does not make kube-vip announce the
/// change.
#[test]
fn a_service_is_corrected_before_it_is_announced() {
    let listeners = listeners();
    let wanted = wanted("10.0.0.100", &listeners);
    let mut delayed = delay_announcement(made(&wanted));
    assert!(matches!(plan(Some(&read(&delayed)), &wanted), ServicePlan::ChangeStatus(_)));
    for (until, next) in [
        ("2026-11-25T12:00:01Z", ServicePlan::DelayAnnouncement(TimeDelta::seconds(1))),
        (
            "2026-11-25T12:00:00Z",
            ServicePlan::Change(json!({"metadata": {
                "resourceVersion": "7",
                "annotations": {IGNORED: null, HELD_UNTIL: null},
            }})),
        ),
    ] {
        delayed["metadata"]["annotations"][HELD_UNTIL] = json!(until);
        assert_eq!(plan(Some(&read(&delayed)), &wanted), next, "{until}");
        let mut other = delayed.clone();
        other["metadata"]["annotations"][ASKED_ADDRESS] = json!("10.0.0.101");
        assert_eq!(plan(Some(&read(&other)), &wanted), ServicePlan::Replace, "{until}");
        let mut other = delayed.clone();
        other["spec"]["loadBalancerIP"] = json!("10.0.0.101");
        let ServicePlan::Change(patch) = plan(Some(&read(&other)), &wanted) else { panic!() };
        let expected = json!({
            "metadata": {"resourceVersion": "7"},
            "spec": {"loadBalancerIP": "10.0.0.100"},
        });
        assert_eq!(patch, expected, "{until}");
    }
}
