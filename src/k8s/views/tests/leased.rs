//! Tests of leased addresses that another LoadBalancer has too.

use super::*;
use crate::domain::LeasedAddress;

/// A DHCP server has leased one address to two LoadBalancers. Neither has published it yet. One of
/// them may publish it, whichever LoadBalancer and whichever record is older.
#[test]
fn one_of_two_records_of_an_address_may_be_published() {
    for (lbs, records) in [([1, 2], [3, 4]), ([1, 2], [4, 3]), ([3, 4], [2, 1]), ([1, 1], [2, 2])] {
        let mut leader = LeaderViews::new();
        for (index, name) in ["a", "b"].into_iter().enumerate() {
            let created = |second: i32| format!("2026-01-01T00:00:0{second}Z");
            let lb = read(json!({
                "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
                "metadata": {
                    "namespace": "ns", "name": name, "uid": name,
                    "creationTimestamp": created(lbs[index]),
                },
                "spec": {"ipam": "dhcp"},
            }));
            let seen = TrimmedLb { lb, trimming: LbTrimming::default() };
            let LeaderViews { views, metrics, load_balancers: writer, .. } = &mut leader;
            load_balancers::set(views, metrics, writer, seen);
            leader.records.set(read(json!({
                "apiVersion": "loadbalancer.harvesterhci.io/v1alpha1", "kind": "DHCPLease",
                "metadata": {
                    "namespace": "ns", "name": name, "creationTimestamp": created(records[index]),
                },
                "spec": {
                    "network": "ns/lan", "macAddress": "02:00:5e:10:00:01", "clientID": "",
                    "hostname": name,
                },
                "status": {"address": "10.7.0.9"},
            })));
        }
        leader.network(7, &json!({}));
        let lease = LeasedAddress {
            ip: "10.7.0.9".parse().unwrap(),
            mask: None,
            gateway: None,
            network: "ns/lan".to_owned(),
        };
        let lbs_in_view = leader.views.load_balancers.state();
        let publish = |lb: &Arc<LoadBalancer>| leader.views.unless_in_the_way(lb, lease.clone());
        let may = lbs_in_view.iter().filter(|lb| publish(lb).is_ok()).count();
        assert_eq!(may, 1, "{lbs:?} {records:?}");
    }
}
