//! The most that one event can cost the operator's one thread, whatever a tenant writes. Each time
//! begins at the JSON text of the event's objects, because the same thread parses it.

use std::hint::black_box;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use harvester_guest_operator::api::IPPoolStatus;
use harvester_guest_operator::api::kubevirt::{
    NetworkAttachmentDefinition, ServiceAddresses, VirtualMachineInstance,
};
use harvester_guest_operator::domain::network::Segment;
use harvester_guest_operator::domain::network::infrastructure::{Infrastructure, Reserved};
use harvester_guest_operator::domain::pools::allocator::{
    ClaimResult, LoadBalancerEntry, LoadBalancerIndex, PoolAllocator, PoolSeen,
};
use harvester_guest_operator::domain::pools::selection::PoolRequirement;
use harvester_guest_operator::domain::pools::status::pool_status;
use harvester_guest_operator::domain::vm_backends::selector_index::LabelIndex;
use harvester_guest_operator::domain::vm_backends::{listeners, vm};
use harvester_guest_operator::domain::{AnnouncedAddresses, LbFacts, Owner};
use harvester_guest_operator::k8s::guard::Guard;
use harvester_guest_operator::k8s::trimmed::TrimmedLb;
use ipnet::IpNet;
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// LoadBalancers that wait, and pools.
const WAITERS: usize = 10_000;
const POOLS: usize = 100;
/// Number of runs for the median.
const RUNS: usize = 9;
/// Size in bytes of the content that fills an object. etcd takes requests of up to 1.5 MiB, so no
/// stored object is larger.
const LARGEST: usize = 1_750_000;
const LABELS: &str = "/metadata/labels";
const ADDRESSES: &str = "/status/interfaces/0/ipAddresses";

/// Events, each with its duration.
pub(crate) fn measure() -> Vec<(&'static str, Duration)> {
    let values = "/spec/backendServerSelector/app";
    vec![
        ("a VM of the largest size: addresses that are refused", of_vm(ADDRESSES, list("::"))),
        ("a VM of the largest size: one address again and again", of_vm(ADDRESSES, list("1::"))),
        ("a VM of the largest size: labels", of_vm(LABELS, labels())),
        ("a LoadBalancer of the largest size: labels", of_lb(LABELS, labels())),
        ("a LoadBalancer of the largest size: values of its selector", of_lb(values, list("0"))),
        (
            "a LoadBalancer of the largest size: listeners",
            of_lb("/spec/listeners", list(json!({"port": 1}))),
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

/// Object from its text, read as the informer of its kind reads it.
#[allow(clippy::expect_used)] // The texts are made of constants.
fn seen<K: Resource + DeserializeOwned>(text: &str) -> K {
    serde_json::from_str::<Guard<K>>(text).expect("JSON").0.expect("an object")
}

/// List of equal entries that fills an object. The shorter the entry, the more there are.
fn list(entry: impl Into<Value>) -> Value {
    let entry = entry.into();
    let with_comma = entry.to_string().len() + 1;
    vec![entry; LARGEST / with_comma].into()
}

/// Labels that fill an object.
fn labels() -> Value {
    (0..LARGEST / r#""000000":"","#.len()).map(|number| (format!("{number:06}"), "")).collect()
}

/// Text of an object, with this content at a path in it.
#[allow(clippy::expect_used)] // The paths are constants.
fn filled(mut object: Value, path: &str, content: Value) -> String {
    *object.pointer_mut(path).expect("a field") = content;
    object.to_string()
}

/// Time in which a VM is read and stored in the index of VMs, as its informer does it.
fn of_vm(path: &str, content: Value) -> Duration {
    let interface = json!({"name": "default", "ipAddress": "10.0.0.5", "ipAddresses": []});
    let vmi = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "web", "namespace": "default", "uid": "v", "labels": {}},
        "spec": {"networks": [{"name": "default", "multus": {"networkName": "vlan1"}}]},
        "status": {"phase": "Running", "interfaces": [interface]},
    });
    let text = filled(vmi, path, content);
    median(|| {
        let mut index = LabelIndex::default();
        clock(|| {
            let vmi: VirtualMachineInstance = seen(&text);
            drop(black_box(index.set_vm("default", "web", vmi.labels(), vm::vm(&vmi))));
        })
    })
}

/// Time in which a LoadBalancer is read and trimmed, and its listeners are judged.
fn of_lb(path: &str, content: Value) -> Duration {
    let lb = json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"name": "web", "namespace": "default", "uid": "l", "labels": {}},
        "spec": {"listeners": [], "backendServerSelector": {"app": []}},
    });
    let text = filled(lb, path, content);
    median(|| {
        clock(|| {
            let TrimmedLb { lb, .. } = seen(&text);
            drop(black_box(listeners::listeners(&lb.spec)));
        })
    })
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
    let changed = if is_release { facts(0, "n0") } else { facts(WAITERS, "n1") };
    let text = lb_text(&changed.owner);
    clock(|| {
        drop(black_box(seen::<TrimmedLb>(&text)));
        if is_release {
            allocator.release(&changed.owner);
        } else {
            allocator.claim(&changed);
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
    let text = network_text(moved);
    clock(|| {
        drop(black_box(seen::<NetworkAttachmentDefinition>(&text)));
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
            let name = format!("web-{pool}-{last}");
            let address = IpAddr::from([10, 0, pool, 100 + last]);
            let text = service_text(&name, address);
            let service = Reserved::Ingress(format!("default/{name}"));
            infrastructure.set(&service, [IpNet::from(address)]);
            services.push((service, text));
        }
    }
    allocator.set_infrastructure(infrastructure.held_back());
    let each = |number: usize| facts(number, &format!("n{}", number % POOLS));
    let lbs: Vec<LbFacts> = (0..WAITERS).map(each).collect();
    settle(&mut allocator, &lbs);
    let took = clock(|| {
        for (service, text) in &services {
            // The informer of Services has no guard.
            assert!(black_box(serde_json::from_str::<ServiceAddresses>(text)).is_ok(), "{text}");
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
    let text = pool_text(&PoolSeen {
        status: pool_status(&allocator.pools()["pool-0"], &[], None, None, None, ""),
        ..pool_seen(0)
    });
    allocator.take_touched();
    clock(|| {
        let changed = PoolSeen::new(&seen(&text), Segment::Management);
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

/// Text of a pool that was created one second after the epoch, as all pools here.
fn pool_text(pool: &PoolSeen) -> String {
    let object = json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "IPPool",
        "metadata": {"name": pool.name, "creationTimestamp": "1970-01-01T00:00:01Z"},
        "spec": pool.spec, "status": pool.status,
    });
    object.to_string()
}

/// Text of a guest's LoadBalancer.
fn lb_text(owner: &Owner) -> String {
    let (namespace, name) = owner.name.split_once('/').unwrap_or_default();
    let object = json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"name": name, "namespace": namespace, "uid": owner.uid},
        "spec": {"workloadType": "cluster", "ipam": "pool"},
    });
    object.to_string()
}

fn network_text(vlan: u16) -> String {
    let config = json!({"type": "bridge", "bridge": "vlan-br", "vlan": vlan});
    let object = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "pool-0", "namespace": "default"},
        "spec": {"config": config.to_string()},
    });
    object.to_string()
}

fn service_text(name: &str, address: IpAddr) -> String {
    let object = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
        "status": {"loadBalancer": {"ingress": [{"ip": address}]}},
    });
    object.to_string()
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
        service: AnnouncedAddresses::default(),
        fresh: true,
    }
}

#[allow(clippy::expect_used)] // The objects are constants above.
fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object")
}
