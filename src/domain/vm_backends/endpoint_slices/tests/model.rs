//! Tests of the state after every single write, for any stored and any desired endpoints.

use proptest::prelude::*;

use super::super::*;
use super::{Store, WEB, ports, ready};

/// Numbers of VMs in a test: numbers around the limit of one slice and of two slices, and numbers
/// in between.
const COUNTS: [usize; 9] = [0, 1, 2, 5, 99, 100, 101, 200, 250];
/// Number of VMs for which a test chooses a state.
const ALL: usize = 260;

/// State of a VM. `None`: the VM has no endpoint. The fields of `Some`: whether the VM's endpoint
/// serves, and whether this endpoint terminates.
fn state() -> impl Strategy<Value = Option<(bool, bool)>> {
    prop::sample::select(vec![
        None,
        Some((true, false)),
        Some((true, false)),
        Some((false, false)),
        Some((true, true)),
        Some((false, true)),
    ])
}

fn endpoint(n: usize, (serving, terminating): (bool, bool), family: AddressFamily) -> VmEndpoint {
    let mut endpoint = VmEndpoint { serving, terminating, ..ready(n) };
    if family == AddressFamily::V6 {
        endpoint.address = Ipv6Addr::from_bits(0xfd00 << 112 | n as u128).into();
    }
    endpoint
}

/// States of the VMs in a test. Either all VMs serve, or each VM has a random state, or no VM
/// serves.
fn vms() -> impl Strategy<Value = Vec<Option<(bool, bool)>>> {
    let quiet = prop::sample::select(vec![None, Some((false, false)), Some((false, true))]);
    let some = prop_oneof![
        Just(vec![Some((true, false)); ALL]),
        prop::collection::vec(state(), ALL),
        prop::collection::vec(quiet, ALL),
    ];
    (prop::sample::select(COUNTS.to_vec()), some).prop_map(|(count, mut vms)| {
        vms.truncate(count);
        vms
    })
}

fn endpoints(vms: &[Option<(bool, bool)>], family: AddressFamily) -> Vec<VmEndpoint> {
    let each = |(n, state): (usize, &Option<_>)| state.map(|state| endpoint(n, state, family));
    vms.iter().enumerate().filter_map(each).collect()
}

/// Stored slices at the start of a test, with any family and ports, as other writers or earlier
/// versions of the operator may have left them. A VM may be in two slices.
fn stored() -> impl Strategy<Value = Vec<StoredSlice>> {
    let names = vec!["web", "web.ipv4-2", "web.ipv4-10", "web.ipv6-1", "web-x7k2p"];
    let family = prop::sample::select(vec![
        Some(AddressFamily::V4),
        Some(AddressFamily::V4),
        Some(AddressFamily::V6),
        None,
    ]);
    let one = (family, any::<bool>(), any::<bool>(), vms(), 0_usize..150, any::<bool>());
    let slices = prop::collection::vec(one, 5);
    (prop::sample::subsequence(names, 0..=5), slices).prop_map(|(names, slices)| {
        let slice = |(name, (family, sound, same_ports, vms, first, has_sink)): (&str, _)| {
            let vms: Vec<_> = vms;
            let skip: Vec<Option<(bool, bool)>> = vms.into_iter().skip(first).take(130).collect();
            let of = Option::<AddressFamily>::unwrap_or(family, AddressFamily::V4);
            let mut endpoints: Vec<VmEndpoint> = skip
                .iter()
                .enumerate()
                .filter_map(|(n, state)| state.map(|state| endpoint(n + first, state, of)))
                .collect();
            if has_sink {
                endpoints.push(sink_endpoint(WEB, of, None));
            }
            StoredSlice {
                name: name.to_owned(),
                version: "1".into(),
                owner: String::new(),
                family,
                ports: if same_ports { ports() } else { vec![] },
                endpoints,
                sound,
                holds_settings: false,
            }
        };
        let mut slices: Vec<StoredSlice> = names.into_iter().zip(slices).map(slice).collect();
        slices.sort_by(|a, b| a.name.cmp(&b.name));
        slices
    })
}

fn takes(slices: &[StoredSlice], family: Option<AddressFamily>) -> bool {
    let of = slices.iter().filter(|slice| family.is_none() || slice.family == family);
    of.flat_map(|slice| &slice.endpoints).any(|endpoint| endpoint.serving)
}

/// Map from the UID of each endpoint to the name of its slice.
fn places(slices: &[StoredSlice]) -> BTreeMap<&str, &str> {
    // If an endpoint's UID is in two slices, the first slice counts.
    let all = slices.iter().rev();
    all.flat_map(|slice| slice.endpoints.iter().map(|e| (&*e.uid, slice.name.as_str()))).collect()
}

/// Plans and writes until the plan is complete, and returns all writes. Checks after every write
/// that some endpoint takes traffic, if one did before the write.
fn settle(store: &mut Store, family: AddressFamily, desired: &[VmEndpoint]) -> Vec<SliceWrite> {
    let before = store.clone();
    let mut all = Vec::new();
    loop {
        let SlicePlan { writes, complete } =
            plan(WEB, family, &ports(), &store.slices, desired, None);
        let deletes = matches!(writes.last(), Some(SliceWrite::Delete { .. }));
        assert!(!deletes, "a deletion comes last: {writes:?}");
        assert!(all.len() < 20, "it goes on for ever: {all:?}");
        for write in &writes {
            let had = (takes(&store.slices, None), takes(&store.slices, Some(family)));
            store.execute(write, family, &ports());
            assert!(takes(&store.slices, None) || !had.0, "nothing takes traffic after {write:?}");
            assert!(takes(&store.slices, Some(family)) || !had.1, "nothing does after {write:?}");
        }
        all.extend(writes);
        if complete {
            break;
        }
    }
    let left = plan(WEB, family, &ports(), &store.slices, desired, None);
    assert_eq!(left, SlicePlan { writes: Vec::new(), complete: true });
    check(&before.slices, &store.slices, family, desired);
    let content = |slice: &StoredSlice| {
        (slice.family, slice.sound, slice.ports.clone(), slice.endpoints.clone())
    };
    let find =
        |slices: &[StoredSlice], name: &str| slices.iter().find(|s| s.name == name).map(content);
    let in_vain = all
        .iter()
        .filter(|write| find(&before.slices, write.name()) == find(&store.slices, write.name()));
    let deletes = all.iter().any(|write| matches!(write, SliceWrite::Delete { .. }));
    assert!(
        in_vain.count() <= usize::from(deletes),
        "one such write at most, to have the last word"
    );
    all
}

/// Checks the slices that are stored after the last write. `before`: slices before the first write.
/// `after`: slices after the last write. `desired`: endpoints that `after` must have.
fn check(
    before: &[StoredSlice],
    after: &[StoredSlice],
    family: AddressFamily,
    desired: &[VmEndpoint],
) {
    for slice in after {
        assert!(
            (1..=MOST).contains(&slice.endpoints.len()),
            "{} holds too many or none",
            slice.name
        );
        let ports = ports_of(&slice.endpoints, &ports());
        assert!(slice.sound && slice.family == Some(family) && slice.ports == ports, "{slice:?}");
    }
    let mut expected = desired.to_vec();
    if !desired.iter().any(|endpoint| endpoint.serving) {
        expected.push(sink_endpoint(WEB, family, None));
    }
    let mut found: Vec<VmEndpoint> = after.iter().flat_map(|s| s.endpoints.clone()).collect();
    found.sort_by(|a, b| a.uid.cmp(&b.uid));
    expected.sort_by(|a, b| a.uid.cmp(&b.uid));
    assert_eq!(found, expected);
    // An endpoint stays in the slice that had it in `before`, unless that slice had too many
    // endpoints.
    let usable: Vec<StoredSlice> =
        before.iter().filter(|slice| slice.family == Some(family)).cloned().collect();
    let (then, now) = (places(&usable), places(after));
    for (uid, name) in then {
        let held = usable.iter().find(|s| s.name == name).unwrap().endpoints.len();
        if held <= MOST
            && let Some(now) = now.get(uid)
        {
            assert_eq!(*now, name, "{uid} was moved");
        }
    }
}

fn changed(before: &[StoredSlice], after: &[StoredSlice]) -> usize {
    let same = |slice: &StoredSlice, other: &[StoredSlice]| {
        other.iter().any(|o| o.name == slice.name && o.endpoints == slice.endpoints)
    };
    let rewritten = after.iter().filter(|slice| !same(slice, before)).count();
    rewritten + before.iter().filter(|b| !after.iter().any(|a| a.name == b.name)).count()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn whatever_is_stored_becomes_what_is_desired(
        stored in stored(), vms in vms(), v6 in prop::bool::weighted(0.2),
    ) {
        let family = if v6 { AddressFamily::V6 } else { AddressFamily::V4 };
        settle(&mut Store::new(stored), family, &endpoints(&vms, family));
    }

    /// Each step changes the state of one VM, and counts the slices that change. Before some steps,
    /// all VMs get new states, and the slices that change then are not counted.
    #[test]
    fn a_change_of_one_vm_rewrites_one_slice(
        first in vms(),
        changes in prop::collection::vec((0..ALL, state(), prop::option::weighted(0.2, vms())), 1..12),
    ) {
        let mut vms = first;
        vms.resize(ALL, None);
        let mut store = Store::default();
        settle(&mut store, AddressFamily::V4, &endpoints(&vms, AddressFamily::V4));
        for (n, state, all) in changes {
            if let Some(mut all) = all {
                all.resize(ALL, None);
                vms = all;
                settle(&mut store, AddressFamily::V4, &endpoints(&vms, AddressFamily::V4));
            }
            let serves = |vms: &[Option<(bool, bool)>]| vms.iter().any(|vm| vm.is_some_and(|vm| vm.0));
            let (before, served) = (store.clone(), serves(&vms));
            vms[n] = state;
            settle(&mut store, AddressFamily::V4, &endpoints(&vms, AddressFamily::V4));
            // If no other VM serves, this change also adds or removes the sink. The sink may be in
            // a second slice.
            let most = if served && serves(&vms) { 1 } else { 2 };
            let changed = changed(&before.slices, &store.slices);
            prop_assert!(changed <= most, "{} slices for VM {}", changed, n);
        }
    }

    /// The slices do not depend on the order of the desired VMs.
    #[test]
    fn the_order_of_vms_does_not_matter(
        stored in stored(), vms in vms().prop_map(|vms| endpoints(&vms, AddressFamily::V4)),
        order in any::<prop::sample::Index>(),
    ) {
        let mut shuffled = vms.clone();
        if !shuffled.is_empty() {
            let at = order.index(shuffled.len());
            shuffled.rotate_left(at);
            shuffled[at..].reverse();
        }
        let plan = |desired: &[VmEndpoint]| plan(WEB, AddressFamily::V4, &ports(), &stored, desired, None);
        prop_assert_eq!(plan(&vms), plan(&shuffled));
    }
}
