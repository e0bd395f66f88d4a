//! Tests of single cases of the packing of endpoints. The module `model` tests random cases and
//! checks every write.

mod model;

use super::super::lb_identity::LbIdentity;
use super::*;

pub(super) const WEB: &str = "web";

/// Ready endpoint of VM number `n`.
pub(super) fn ready(n: usize) -> VmEndpoint {
    VmEndpoint {
        address: IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + u32::try_from(n).unwrap())),
        name: format!("vm-{n:04}").into(),
        uid: format!("uid-{n:04}").into(),
        node: "n1".into(),
        serving: true,
        terminating: false,
    }
}

pub(super) fn unready(n: usize) -> VmEndpoint {
    VmEndpoint { serving: false, ..ready(n) }
}

pub(super) fn ports() -> Vec<EndpointPort> {
    vec![EndpointPort { name: "http".into(), protocol: "TCP".into(), port: 8080 }]
}

/// EndpointSlices as an API server stores them.
#[derive(Clone, Debug, Default)]
pub(super) struct Store {
    pub(super) slices: Vec<StoredSlice>,
    writes: usize,
}

impl Store {
    pub(super) fn new(slices: Vec<StoredSlice>) -> Self {
        Self { slices, writes: 0 }
    }

    /// Executes one write. The test fails if the write names an outdated version.
    pub(super) fn execute(
        &mut self,
        write: &SliceWrite,
        family: AddressFamily,
        ports: &[EndpointPort],
    ) {
        self.writes += 1;
        let at = self.slices.iter().position(|slice| slice.name == write.name());
        if let SliceWrite::Update { version, .. } | SliceWrite::Delete { version, .. } = write {
            assert_eq!(*version, self.slices[at.unwrap()].version, "a conflict");
        }
        let slice = |endpoints: &Vec<VmEndpoint>| StoredSlice {
            name: write.name().to_owned(),
            version: format!("w{}", self.writes),
            owner: String::new(),
            family: Some(family),
            ports: ports_of(endpoints, ports),
            endpoints: endpoints.clone(),
            sound: true,
            holds_settings: at.is_some_and(|at| self.slices[at].holds_settings),
        };
        match (write, at) {
            (SliceWrite::Create { endpoints, .. }, None) => self.slices.push(slice(endpoints)),
            (SliceWrite::Update { endpoints, .. }, Some(at)) => self.slices[at] = slice(endpoints),
            (SliceWrite::Delete { .. }, Some(at)) => drop(self.slices.remove(at)),
            _ => panic!("{write:?}, but there is {at:?}"),
        }
        self.slices.sort_by(|a, b| a.name.cmp(&b.name));
    }

    /// Plans and writes until the plan is complete, and returns the writes.
    pub(super) fn settle(
        &mut self,
        family: AddressFamily,
        desired: &[VmEndpoint],
    ) -> Vec<SliceWrite> {
        let mut all = Vec::new();
        for _ in 0..3 {
            let SlicePlan { writes, complete } =
                plan(WEB, family, &ports(), &self.slices, desired, None);
            for write in &writes {
                self.execute(write, family, &ports());
            }
            all.extend(writes);
            if complete {
                return all;
            }
        }
        panic!("it goes on for ever: {all:?}");
    }

    pub(super) fn names(&self) -> Vec<&str> {
        self.slices.iter().map(|slice| slice.name.as_str()).collect()
    }
}

fn filled(count: usize) -> Store {
    let mut store = Store::default();
    store.settle(AddressFamily::V4, &(0..count).map(ready).collect::<Vec<_>>());
    store
}

fn written(writes: &[SliceWrite]) -> Vec<(&str, &str)> {
    let kind = |write: &SliceWrite| match write {
        SliceWrite::Create { .. } => "create",
        SliceWrite::Update { .. } => "update",
        SliceWrite::Delete { .. } => "delete",
    };
    writes.iter().map(|write| (kind(write), write.name())).collect()
}

#[test]
fn a_thousand_and_one_endpoints_make_eleven_slices() {
    let store = filled(1_001);
    let mut sizes: Vec<usize> = store.slices.iter().map(|slice| slice.endpoints.len()).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [&[1][..], &[100; 10]].concat());
    let mut expected: Vec<String> = (2..=11).map(|n| format!("web.ipv4-{n}")).collect();
    expected.push(WEB.to_owned());
    expected.sort();
    assert_eq!(store.names(), expected);
}

/// A new endpoint goes into the slice with the lowest number that has room. The number in a slice's
/// name is compared as a number, not as text: `web.ipv4-2` comes before `web.ipv4-10`.
#[test]
fn new_endpoints_go_where_there_is_room_first_slice_first() {
    let mut store = filled(1_001);
    let mut desired: Vec<VmEndpoint> =
        (0..1_001).filter(|n| ![150, 950].contains(n)).map(ready).collect();
    let writes = store.settle(AddressFamily::V4, &desired);
    assert_eq!(written(&writes), [("update", "web.ipv4-10"), ("update", "web.ipv4-2")]);
    desired.push(ready(2_000));
    assert_eq!(written(&store.settle(AddressFamily::V4, &desired)), [("update", "web.ipv4-2")]);
    desired.push(ready(2_001));
    assert_eq!(written(&store.settle(AddressFamily::V4, &desired)), [("update", "web.ipv4-10")]);
}

#[test]
fn a_name_that_is_free_again_is_used_again() {
    let mut store = filled(201);
    let without_first: Vec<VmEndpoint> = (100..201).map(ready).collect();
    let writes = store.settle(AddressFamily::V4, &without_first);
    assert_eq!(written(&writes), [("delete", WEB), ("update", "web.ipv4-3")]);
    let more: Vec<VmEndpoint> = (100..201).chain(300..400).map(ready).collect();
    let writes = store.settle(AddressFamily::V4, &more);
    assert_eq!(written(&writes), [("create", WEB), ("update", "web.ipv4-3")]);
}

#[test]
fn the_sink_is_there_while_no_vm_serves_and_only_then() {
    let mut store = Store::default();
    let sinks = |store: &Store| {
        let all = store.slices.iter().flat_map(|slice| &slice.endpoints);
        all.filter(|endpoint| endpoint.is_sink()).count()
    };
    let draining = VmEndpoint { terminating: true, ..ready(2) };
    for (desired, expected) in [
        (vec![], 1),
        (vec![unready(1)], 1),
        (vec![ready(1)], 0),
        (vec![draining.clone(), unready(1)], 0),
        (vec![VmEndpoint { serving: false, ..draining }, unready(1)], 1),
        (vec![ready(1), unready(2)], 0),
        (vec![], 1),
    ] {
        let writes = store.settle(AddressFamily::V4, &desired);
        assert_eq!(sinks(&store), expected, "{desired:?}");
        assert_eq!(writes.len(), 1, "in the same write: {writes:?}");
        assert_eq!(store.slices[0].endpoints.len(), desired.len() + expected);
        // A slice with the sink has none of the VMs' ports. The sink has a node's address, so
        // traffic could otherwise reach a program that has such a port on this node.
        let port = if expected == 0 { 8080 } else { SINK_PORT };
        assert_eq!(store.slices[0].ports, [EndpointPort { port, ..ports()[0].clone() }]);
    }
}

/// The sink stays until the last write. Until then, the sink keeps traffic away from programs that
/// run on the node itself.
#[test]
fn of_several_writes_the_one_that_takes_the_sink_away_is_the_last() {
    let mut store = filled(201);
    let quiet: Vec<VmEndpoint> = (0..99).chain(100..201).map(unready).collect();
    store.settle(AddressFamily::V4, &quiet);
    assert!(store.slices[0].endpoints[99].is_sink());
    let moved = |n| VmEndpoint { node: "n2".into(), ..unready(n) };
    let second = (100..200).map(moved);
    let desired: Vec<VmEndpoint> = (0..99).map(unready).chain(second).chain([ready(200)]).collect();
    let expected = [("update", "web.ipv4-3"), ("update", "web.ipv4-2"), ("update", WEB)];
    assert_eq!(written(&store.settle(AddressFamily::V4, &desired)), expected);
}

#[test]
fn endpoints_are_sorted_by_name_with_the_sink_at_the_end() {
    let zoe = VmEndpoint { name: "zoe".into(), uid: "a".into(), ..unready(0) };
    let mut store = Store::default();
    store.settle(AddressFamily::V4, &[zoe.clone(), unready(2), unready(1)]);
    assert_eq!(
        store.slices[0].endpoints,
        [unready(1), unready(2), zoe, sink_endpoint(WEB, AddressFamily::V4, None)]
    );
}

/// The sink has an address that no host has (RFC 5737, RFC 6666) if the announcing node is not
/// known. The sink's UID is also the UID of the sink of Harvester's Go controller.
#[test]
fn the_sink_is_the_announcing_nodes_address_or_an_unused_one() {
    let (v4, v6) =
        (sink_endpoint(WEB, AddressFamily::V4, None), sink_endpoint(WEB, AddressFamily::V6, None));
    assert_eq!(
        (v4.address.to_string().as_str(), v6.address.to_string().as_str()),
        ("192.0.2.1", "100::1")
    );
    for sink in [v4, v6] {
        assert_eq!(&*sink.uid, "dummy347-546a-4642-9da6-5608endpoint");
        assert!(sink.is_sink() && sink.takes_traffic() && !sink.ready() && sink.node.is_empty());
    }
    assert!(!ready(1).is_sink());

    let n1 = AnnouncingNode {
        name: "n1".into(),
        addresses: vec!["fd00::11".parse().unwrap(), "10.0.0.11".parse().unwrap()],
    };
    for (family, expected) in [(AddressFamily::V4, "10.0.0.11"), (AddressFamily::V6, "fd00::11")] {
        let sink = sink_endpoint(WEB, family, Some(&n1));
        assert_eq!((sink.address.to_string().as_str(), &*sink.node), (expected, "n1"));
        assert!(sink.is_sink() && sink.takes_traffic() && !sink.ready());
    }
    let v6_only = AnnouncingNode { addresses: vec!["fd00::11".parse().unwrap()], ..n1 };
    assert_eq!(
        sink_endpoint(WEB, AddressFamily::V4, Some(&v6_only)),
        sink_endpoint(WEB, AddressFamily::V4, None)
    );
}

/// A slice of Harvester's Go controller has no label for the slice's manager. The slice's dummy
/// endpoint has an address that may be a pod's. All VMs are in this one slice, in no order.
#[test]
fn a_slice_of_the_go_controller_is_adopted_in_place() {
    let dummy = VmEndpoint {
        address: "10.52.0.255".parse().unwrap(),
        ..sink_endpoint(WEB, AddressFamily::V4, None)
    };
    let stored = |endpoints| StoredSlice {
        name: WEB.to_owned(),
        version: "1".into(),
        family: Some(AddressFamily::V4),
        ports: ports(),
        endpoints,
        ..StoredSlice::default()
    };
    let mut store = Store::new(vec![stored(vec![dummy.clone()])]);
    assert_eq!(written(&store.settle(AddressFamily::V4, &[])), [("update", WEB)]);
    assert_eq!(store.slices[0].endpoints, [sink_endpoint(WEB, AddressFamily::V4, None)]);

    let mut store = Store::new(vec![stored(vec![dummy, ready(2), ready(1)])]);
    assert_eq!(written(&store.settle(AddressFamily::V4, &[ready(1), ready(2)])), [("update", WEB)]);
    assert_eq!(store.slices[0].endpoints, [ready(1), ready(2)]);
    assert!(store.slices[0].sound);

    // The slice of Harvester's Go controller has 130 VMs, and this operator puts at most 100 into a
    // slice. So the last 30 VMs move to another slice.
    let many: Vec<VmEndpoint> = (0..130).map(ready).collect();
    let mut store = Store::new(vec![stored(many.clone())]);
    let writes = store.settle(AddressFamily::V4, &many);
    assert_eq!(written(&writes), [("create", "web.ipv4-2"), ("update", WEB)], "none is missing");
    assert_eq!(store.slices[0].endpoints, many[..100]);
}

#[test]
fn ports_and_whatever_is_not_sound_are_put_right() {
    let sound = filled(2).slices.remove(0);
    let desired = [ready(0), ready(1)];
    for broken in [
        StoredSlice { sound: false, ..sound.clone() },
        StoredSlice { ports: vec![], ..sound.clone() },
        StoredSlice {
            ports: vec![EndpointPort { port: 80, ..ports().remove(0) }],
            ..sound.clone()
        },
        StoredSlice { endpoints: vec![ready(1), ready(0)], ..sound.clone() },
        StoredSlice { endpoints: vec![ready(0), ready(1), ready(1)], ..sound.clone() },
        StoredSlice { endpoints: vec![ready(0), unready(1)], ..sound.clone() },
    ] {
        let mut store = Store::new(vec![broken.clone()]);
        assert_eq!(
            written(&store.settle(AddressFamily::V4, &desired)),
            [("update", WEB)],
            "{broken:?}"
        );
        let StoredSlice { version, .. } = store.slices[0].clone();
        assert_eq!(store.slices, [StoredSlice { version, ..sound.clone() }]);
    }
}

/// Slices of the new family are created first when the Service's address family changes. Then the
/// slices of the old family are deleted. Slices of an address type that this operator does not
/// write are deleted too.
#[test]
fn slices_of_another_family_go_after_those_of_this_one_came() {
    let old = filled(101);
    let v6 = |n: usize| VmEndpoint { address: "fd00::1".parse().unwrap(), ..ready(n) };
    let mut store = old.clone();
    let writes = store.settle(AddressFamily::V6, &[v6(1)]);
    let expected = [
        ("create", "web.ipv6-1"),
        ("delete", "web"),
        ("delete", "web.ipv4-2"),
        ("update", "web.ipv6-1"),
    ];
    assert_eq!(written(&writes), expected);
    assert_eq!(store.slices[0].endpoints, [v6(1)]);

    let mut store = old.clone();
    store.slices[0].family = None;
    let writes = store.settle(AddressFamily::V4, &[ready(100)]);
    assert_eq!(written(&writes), [("delete", "web"), ("update", "web.ipv4-2")]);

    // The name of a slice is in use until its deletion is complete. So the new slice gets another
    // name: `web.ipv4-2`.
    let mut store = Store::new(old.slices[..1].to_vec());
    store.slices[0].family = Some(AddressFamily::V6);
    let expected = [("create", "web.ipv4-2"), ("delete", "web"), ("update", "web.ipv4-2")];
    assert_eq!(written(&store.settle(AddressFamily::V4, &[ready(1)])), expected);
}

/// kube-vip up to 1.2.3 treats the last event about any slice as the state of all slices. If a
/// deletion were the last event, kube-vip would see no endpoint.
#[test]
fn a_deletion_is_never_the_last_word() {
    // The only VM of the second slice is removed, and a VM of the first slice begins to serve.
    let mixed = |first: fn(usize) -> VmEndpoint| {
        let mut store = filled(101);
        store.slices[0].endpoints =
            std::iter::once(first(0)).chain((1..100).map(unready)).collect();
        store
    };
    let desired: Vec<VmEndpoint> =
        [0, 1].map(ready).into_iter().chain((2..100).map(unready)).collect();
    let deleted_first = [("delete", "web.ipv4-2"), ("update", WEB)];
    assert_eq!(written(&mixed(ready).settle(AddressFamily::V4, &desired)), deleted_first);
    // Only the VM in the second slice takes traffic. So the first slice is written before the
    // second slice is deleted.
    let deleted_after = [("update", WEB), ("delete", "web.ipv4-2"), ("update", WEB)];
    assert_eq!(written(&mixed(unready).settle(AddressFamily::V4, &desired)), deleted_after);
}

#[test]
fn what_is_stored_is_remembered_by_uid() {
    let store = filled(101);
    let known = remembered(&store.slices);
    assert_eq!(known.len(), 101);
    assert_eq!(known.get("uid-0100"), Some(&&ready(100)));
    assert_eq!(known.get("uid-0101"), None);
    let without = filled(0);
    assert_eq!(remembered(&without.slices).keys().copied().collect::<Vec<_>>(), [SINK_UID]);
}

/// The patch names the version of the slice that was read. So the API server refuses the patch if
/// another writer has changed the slice since that read.
#[test]
fn a_patch_says_which_version_it_rests_on() {
    let lb = LbIdentity { namespace: "default", name: WEB, uid: "lb-uid" };
    let endpoints = [ready(1), unready(2)];
    let sent = serde_json::to_value(patch(lb, "17", &ports(), &endpoints, "now")).unwrap();
    assert_eq!(sent["metadata"]["resourceVersion"], "17");
    assert_eq!(sent["endpoints"].as_array().map(Vec::len), Some(2));
}
