//! The most that one event can cost the operator's one thread, whatever a tenant writes.

use std::hint::black_box;
use std::time::{Duration, Instant};

use harvester_guest_operator::api::kubevirt::VirtualMachineInstance;
use harvester_guest_operator::api::{IPPoolStatus, LoadBalancer};
use harvester_guest_operator::domain::load_balancer::bounds;
use harvester_guest_operator::domain::network::Segment;
use harvester_guest_operator::domain::pools::allocator::{
    ClaimResult, LoadBalancerEntry, LoadBalancerIndex, PoolAllocator, PoolSeen,
};
use harvester_guest_operator::domain::pools::selection::PoolRequirement;
use harvester_guest_operator::domain::pools::status::pool_status;
use harvester_guest_operator::domain::vm_backends::{listeners, vm};
use harvester_guest_operator::domain::{LbFacts, Owner};
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

/// Time in which one of 1,000 pools is merged and all pools are judged. Each pool has ten claims,
/// which their LoadBalancers publish.
fn change_among_pools() -> Duration {
    const MANY: usize = 1_000;
    let mut allocator = PoolAllocator::default();
    let mut lbs = Vec::new();
    for number in 0..MANY {
        let namespace = format!("n{number}");
        allocator.merge(&pool_seen(number), &LoadBalancerIndex::default());
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
    clock(|| {
        allocator.merge(&changed, &LoadBalancerIndex::new(lbs));
        drop(black_box(allocator.serve_waiters()));
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
