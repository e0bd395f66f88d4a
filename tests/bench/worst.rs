//! The most that one event can cost the operator's one thread, whatever a tenant writes.

use std::hint::black_box;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use harvester_guest_operator::api::kubevirt::VirtualMachineInstance;
use harvester_guest_operator::api::{IPPoolStatus, LoadBalancer};
use harvester_guest_operator::domain::load_balancer::bounds;
use harvester_guest_operator::domain::network::Segment;
use harvester_guest_operator::domain::network::infrastructure::{Infrastructure, Reserved};
use harvester_guest_operator::domain::pools::allocator::{
    ClaimResult, LoadBalancerEntry, LoadBalancerIndex, PoolAllocator, PoolSeen,
};
use harvester_guest_operator::domain::pools::selection::PoolRequirement;
use harvester_guest_operator::domain::pools::status::pool_status;
use harvester_guest_operator::domain::vm_backends::{listeners, vm};
use harvester_guest_operator::domain::{LbFacts, Owner};
use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// LoadBalancers that wait, and pools.
const WAITERS: usize = 10_000;
const POOLS: usize = 100;
/// Number of runs for the median.
const RUNS: usize = 9;

/// Events, each with its duration.
pub(crate) fn measure() -> Vec<(&'static str, Duration)> {
    let (vmi, lb) = (largest_vm(), largest_lb());
    vec![
        ("a VM reports 40,000 addresses", median(|| clock(|| drop(black_box(vm::vm(&vmi)))))),
        (
            "a LoadBalancer with 150,000 values and 20,000 listeners",
            median(|| {
                let mut lb = lb.clone();
                clock(|| {
                    black_box(bounds::trim(&mut lb));
                    drop(black_box(listeners::listeners(&lb.spec)));
                })
            }),
        ),
        ("a release while 10,000 wait, 100 pools", median(|| change_among_waiters(true))),
        ("one more that waits among 10,000", median(|| change_among_waiters(false))),
        ("a network of no pool changes while 10,000 wait", median(|| change_of_networks(1))),
        ("the pool that 10,000 wait for moves to another VLAN", median(|| change_of_networks(2))),
        ("1,000 Services are deleted while 10,000 wait", median(deletion_of_services)),
        ("a change of one of 1,000 pools, 10,000 LoadBalancers", median(change_among_pools)),
    ]
}

fn clock(run: impl FnOnce()) -> Duration {
    let began = Instant::now();
    run();
    began.elapsed()
}

fn median(run: impl FnMut() -> Duration) -> Duration {
    let mut times: Vec<Duration> = std::iter::repeat_with(run).take(RUNS).collect();
    times.sort_unstable();
    times[RUNS / 2]
}

fn largest_vm() -> VirtualMachineInstance {
    let addresses: Vec<String> =
        (0..40_000).map(|n| format!("fd00::{:x}:{:x}", n / 256 + 1, n % 256 + 1)).collect();
    let interface = json!({"name": "default", "ipAddress": "10.0.0.5", "ipAddresses": addresses});
    object(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"networks": [{"name": "default", "multus": {"networkName": "vlan1"}}]},
        "status": {"phase": "Running", "interfaces": [interface]},
    }))
}

fn largest_lb() -> LoadBalancer {
    let listeners: Vec<Value> =
        (1..=20_000).map(|n| json!({"name": format!("n{n}"), "port": n})).collect();
    let values: Vec<String> = (0..150_000).map(|n| format!("{n}")).collect();
    object(json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"listeners": listeners, "backendServerSelector": {"app": values}},
    }))
}

/// Time of a change in an allocator with pools of one address each. Either the first address is
/// held and freed, or another LoadBalancer asks for it; the other LoadBalancers wait for other
/// pools, half of them for a pool that does not exist.
fn change_among_waiters(is_release: bool) -> Duration {
    let mut allocator = PoolAllocator::default();
    for number in 0..POOLS {
        let mut seen = pool_seen(number);
        seen.spec.ranges = object(json!([{"subnet": format!("10.{number}.0.1/32")}]));
        allocator.merge(&seen, &LoadBalancerIndex::default());
    }
    allocator.claim(&facts(0, "n0"));
    allocator.claim(&facts(1, "n1"));
    for number in 2..WAITERS {
        allocator.claim(&facts(number, if number % 2 == 0 { "n1" } else { "nowhere" }));
    }
    allocator.serve_waiters();
    clock(|| {
        if is_release {
            allocator.release(&facts(0, "n0").owner.uid);
        } else {
            allocator.claim(&facts(WAITERS, "n1"));
        }
        drop(black_box(allocator.serve_waiters()));
    })
}

/// Time of a change of networks that moves one of the pools from VLAN 1 to the VLAN `moved`. All
/// LoadBalancers wait, because they name this pool, and a network on another VLAN.
fn change_of_networks(moved: u16) -> Duration {
    let segment = |network: &str, vlan: u16| match network {
        "pool-0" => Segment::Vlan("vlan-br".to_owned(), vlan),
        _ => Segment::Management,
    };
    let mut allocator = PoolAllocator::default();
    for number in 0..POOLS {
        let mut seen = pool_seen(number);
        if let (0, Some(selector)) = (number, &mut seen.spec.selector) {
            selector.network = Some("pool-0".to_owned());
            seen.segment = segment("pool-0", 1);
        }
        allocator.merge(&seen, &LoadBalancerIndex::default());
    }
    let elsewhere = |number| LbFacts {
        segment: Some(Segment::Vlan("vlan-br".to_owned(), 4_000)),
        named_pool: Some("pool-0".to_owned()),
        ..facts(number, "n0")
    };
    let lbs: Vec<LbFacts> = (0..WAITERS).map(elsewhere).collect();
    settle(&mut allocator, &lbs);
    clock(|| {
        allocator.relocate(|network| segment(network, moved));
        observe(&mut allocator, &lbs);
        drop(black_box(allocator.serve_waiters()));
    })
}

/// Time in which the allocator learns of the deletion of 1,000 Services that had all addresses of
/// all pools. Then 1,000 of the LoadBalancers that wait have an address.
fn deletion_of_services() -> Duration {
    const EACH: u8 = 10;
    let mut infrastructure = Infrastructure::default();
    let mut allocator = PoolAllocator::default();
    let mut services = Vec::new();
    for (pool, number) in (0_u8..).zip(0..POOLS) {
        let mut seen = pool_seen(number);
        let bounds = [1, EACH].map(|last| format!("10.0.{pool}.{}", 100 + last));
        seen.spec.ranges = object(json!([
            {"subnet": format!("10.0.{pool}.0/24"), "rangeStart": bounds[0], "rangeEnd": bounds[1]}
        ]));
        allocator.merge(&seen, &LoadBalancerIndex::default());
        for last in 1..=EACH {
            let service = Reserved::Ingress(format!("default/web-{pool}-{last}"));
            let address = IpAddr::from([10, 0, pool, 100 + last]);
            infrastructure.set(&service, [IpNet::from(address)]);
            services.push(service);
        }
    }
    allocator.set_infrastructure(infrastructure.held_back());
    let each = |number: usize| facts(number, &format!("n{}", number % POOLS));
    let lbs: Vec<LbFacts> = (0..WAITERS).map(each).collect();
    settle(&mut allocator, &lbs);
    let took = clock(|| {
        for service in &services {
            drop(black_box(infrastructure.set(service, [])));
        }
        allocator.relocate(|_| Segment::Management);
        allocator.set_infrastructure(infrastructure.held_back());
        observe(&mut allocator, &lbs);
        drop(black_box(allocator.serve_waiters()));
    });
    assert_eq!(
        allocator.waiting().count(),
        WAITERS - services.len(),
        "an address is not given out"
    );
    took
}

/// Makes all LoadBalancers wait.
fn settle(allocator: &mut PoolAllocator, lbs: &[LbFacts]) {
    for facts in lbs {
        allocator.claim(facts);
    }
    allocator.serve_waiters();
    allocator.take_moved();
    assert_eq!(allocator.waiting().count(), lbs.len(), "a LoadBalancer has an address");
}

/// Observes all LoadBalancers after a change of networks, as the ledger task does.
fn observe(allocator: &mut PoolAllocator, lbs: &[LbFacts]) {
    if allocator.take_moved() {
        for facts in lbs {
            allocator.observe(facts);
        }
    }
}

/// Time in which one of 1,000 pools is merged, all pools are judged, and the statuses of changed
/// pools are made. Each pool has ten claims, which their LoadBalancers publish.
fn change_among_pools() -> Duration {
    const MANY: usize = 1_000;
    let mut allocator = PoolAllocator::default();
    let mut lbs = Vec::new();
    for number in 0..MANY {
        allocator.merge(&pool_seen(number), &LoadBalancerIndex::default());
    }
    for number in 0..MANY {
        let namespace = format!("n{number}");
        for at in 0..WAITERS / MANY {
            let facts = facts(number * MANY + at, &namespace);
            let ClaimResult::Held { claim, .. } = allocator.claim(&facts) else { continue };
            lbs.push(LoadBalancerEntry {
                owner: facts.owner,
                created: facts.created,
                published: Some(claim),
                deleting: false,
            });
        }
    }
    assert_eq!(lbs.len(), WAITERS, "a LoadBalancer has no address");
    let mut changed = pool_seen(0);
    changed.status = pool_status(&allocator.pools()["pool-0"], &[], None, None, None, "");
    allocator.take_touched();
    clock(|| {
        allocator.merge(&changed, &LoadBalancerIndex::new(lbs));
        drop(black_box(allocator.serve_waiters()));
        for name in allocator.take_touched() {
            drop(black_box(pool_status(&allocator.pools()[&name], &[], None, None, None, "")));
        }
    })
}

/// A pool for the namespace with its number.
fn pool_seen(number: usize) -> PoolSeen {
    let scope = json!([{"project": "", "namespace": format!("n{number}"), "guestCluster": ""}]);
    let spec = json!({
        "ranges": [{"subnet": format!("10.{}.{}.0/24", number / 256, number % 256)}],
        "selector": {"scope": scope, "priority": number + 1},
    });
    PoolSeen {
        name: format!("pool-{number}"),
        created: 1,
        segment: Segment::Management,
        deleting: false,
        spec: object(spec),
        status: IPPoolStatus::default(),
    }
}

fn facts(number: usize, namespace: &str) -> LbFacts {
    LbFacts {
        owner: Owner {
            name: format!("{namespace}/web-{number:08}"),
            uid: format!("0f8fad5b-d9cb-469f-a165-{number:012}"),
        },
        created: 1,
        requirement: PoolRequirement {
            namespace: namespace.to_owned(),
            ..PoolRequirement::default()
        },
        segment: None,
        guest: true,
        named_pool: None,
        published: None,
        former: None,
        fresh: true,
    }
}

#[allow(clippy::expect_used)] // The objects are constants above.
fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object")
}
