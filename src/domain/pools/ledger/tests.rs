//! Tests of the bounds of the ledger, and a comparison of the ledger with a model by linear scans.

use proptest::prelude::*;

use super::*;
use api;

fn ranges(subnet: &str) -> PoolRanges {
    PoolRanges::parse(&[api::Range { subnet: subnet.into(), ..api::Range::default() }]).unwrap()
}

fn ledger(subnet: &str) -> Ledger {
    Ledger::new(ranges(subnet), None)
}

fn owner(n: usize) -> Owner {
    Owner { name: format!("ns/lb{n}"), uid: format!("u{n}") }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn v4(n: usize) -> IpAddr {
    IpAddr::from((u32::try_from(n).unwrap() + (10 << 24)).to_be_bytes())
}

/// Model of the ledger by linear scans.
#[derive(Default)]
struct Model {
    pool: Vec<IpAddr>,
    closed: Vec<IpNet>,
    claims: BTreeMap<IpAddr, Owner>,
    /// Former owners, oldest first.
    history: Vec<(IpAddr, String)>,
    /// Map from a name to the last address that `remember` recorded for the name. The entry is
    /// removed when the address leaves `history`.
    former: BTreeMap<String, IpAddr>,
    cursor: Option<IpAddr>,
}

impl Model {
    fn same(a: &Owner, b: &Owner) -> bool {
        a.uid == b.uid && (!a.uid.is_empty() || a.name == b.name)
    }

    fn held_by(&self, owner: &Owner) -> Option<IpAddr> {
        self.claims.iter().find(|(_, o)| Self::same(o, owner)).map(|(ip, _)| *ip)
    }

    fn free(&self) -> Vec<IpAddr> {
        let is_free = |ip: &IpAddr| {
            !self.claims.contains_key(ip) && !self.closed.iter().any(|net| net.contains(ip))
        };
        self.pool.iter().copied().filter(is_free).collect()
    }

    fn record(&mut self, ip: IpAddr, owner: &Owner) {
        self.forget(ip);
        self.claims.insert(ip, owner.clone());
    }

    fn claim(&mut self, owner: &Owner) -> Result<IpAddr, NoAddress> {
        if let Some(ip) = self.held_by(owner) {
            return Ok(ip);
        }
        let free = self.free();
        let former = self.former.get(&owner.name).copied().filter(|ip| free.contains(ip));
        let next = || {
            let after = free.iter().find(|ip| self.cursor.is_none_or(|c| **ip > c));
            after.or(free.first()).copied()
        };
        let ip = former.or_else(next).ok_or(NoAddress::Full)?;
        if former.is_none() {
            self.cursor = Some(ip);
        }
        self.record(ip, owner);
        Ok(ip)
    }

    fn restore(&mut self, ip: IpAddr, owner: &Owner) -> bool {
        let free = !self.claims.contains_key(&ip);
        if free {
            self.record(ip, owner);
        }
        free || Self::same(&self.claims[&ip], owner)
    }

    fn release(&mut self, ip: IpAddr) -> Option<Owner> {
        let owner = self.claims.remove(&ip)?;
        if self.pool.contains(&ip) {
            self.remember(ip, &owner.name);
        }
        Some(owner)
    }

    fn remember(&mut self, ip: IpAddr, name: &str) {
        if !self.claims.contains_key(&ip) {
            self.forget(ip);
            self.history.push((ip, name.to_owned()));
            self.former.insert(name.to_owned(), ip);
        }
    }

    fn forget(&mut self, ip: IpAddr) {
        self.history.retain(|(former, _)| *former != ip);
        self.former.retain(|_, former| *former != ip);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Claim(usize),
    Release(usize),
    Restore(usize, usize),
    Remember(usize, usize),
    Close(Vec<(usize, u8)>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_usize..9).prop_map(Step::Claim),
        3 => (0_usize..9).prop_map(Step::Release),
        1 => (0_usize..9, 0_usize..9).prop_map(|(ip, o)| Step::Restore(ip, o)),
        1 => (0_usize..9, 0_usize..9).prop_map(|(ip, o)| Step::Remember(ip, o)),
        1 => prop::collection::vec((0_usize..9, 29_u8..=32), 0..3).prop_map(Step::Close),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(700) })]

    /// The subnet has five addresses that can be given out. Steps also use four addresses that
    /// cannot: the network address, the gateway, the broadcast address, and the address after the
    /// broadcast address.
    #[test]
    fn agrees_with_linear_scans(steps in prop::collection::vec(step(), 0..60)) {
        // Some owners have the same name, like objects that are created one after the other. One
        // owner has no UID.
        let owners: Vec<Owner> = (0..9)
            .map(|n| Owner { name: format!("ns/{}", n % 5), uid: if n < 8 { format!("u{n}") } else { String::new() } })
            .collect();
        let ranges = ranges("10.0.0.0/29");
        let pool = (0..9).map(v4).filter(|ip| ranges.find(*ip).is_some()).collect();
        let mut model = Model { pool, ..Model::default() };
        let mut ledger = Ledger::new(ranges, None);
        for step in steps {
            match step {
                Step::Claim(o) => prop_assert_eq!(ledger.claim(&owners[o]), model.claim(&owners[o])),
                Step::Release(n) => prop_assert_eq!(ledger.release(v4(n)), model.release(v4(n))),
                // The allocator restores a claim only for an owner without another address.
                Step::Restore(n, o) if model.held_by(&owners[o]).is_none_or(|ip| ip == v4(n)) =>
                    prop_assert_eq!(ledger.restore(v4(n), &owners[o]), model.restore(v4(n), &owners[o])),
                Step::Restore(..) => {}
                Step::Remember(n, o) => {
                    ledger.remember(v4(n), owners[o].name.clone());
                    model.remember(v4(n), &owners[o].name);
                }
                Step::Close(networks) => {
                    let net = |(n, length)| IpNet::new(v4(n), length).unwrap().trunc();
                    model.closed = networks.into_iter().map(net).collect();
                    ledger.close(&model.closed);
                    prop_assert!(!ledger.close(&model.closed), "nothing is left to change");
                }
            }
            ledger.self_check();
            prop_assert_eq!(ledger.claims(), &model.claims);
            prop_assert_eq!(ledger.cursor(), model.cursor);
            let history = ledger.history().map(|(ip, name)| (ip, name.to_owned()));
            prop_assert_eq!(history.collect::<Vec<_>>(), model.history.clone());
            prop_assert_eq!(ledger.available(), i64::try_from(model.free().len()).unwrap());
            for owner in &owners {
                prop_assert_eq!(ledger.held_by(owner), model.held_by(owner));
            }
        }
    }
}

/// An address of a closed network is not given out after its claim is released. Nor is it given out
/// after the ledger stops holding it back for another pool.
#[test]
fn an_address_of_a_closed_network_comes_free_when_the_network_goes() {
    let mut ledger = ledger("10.0.0.0/28");
    let first = ledger.claim(&owner(1)).unwrap();
    assert!(ledger.close(&["10.0.0.0/29".parse().unwrap()]));
    assert_eq!((ledger.total(), ledger.available()), (13, 7));
    assert_eq!(ledger.claim(&owner(1)), Ok(first), "it is in use");
    assert_eq!(ledger.claim(&owner(2)), Ok(ip("10.0.0.8")));
    assert!(ledger.hold_back(ip("10.0.0.3")));
    assert!(ledger.let_go(ip("10.0.0.3")));
    ledger.release(first);
    ledger.self_check();
    assert_eq!(ledger.available(), 6);
    assert!(ledger.close(&[]));
    ledger.self_check();
    assert_eq!(ledger.available(), 12);
}

#[test]
fn a_name_gets_its_former_address_back_while_that_is_free() {
    let mut ledger = ledger("10.0.0.0/28");
    let first = ledger.claim(&owner(1)).unwrap();
    ledger.claim(&owner(2)).unwrap();
    ledger.release(first);
    let reborn = Owner { uid: "another".into(), ..owner(1) };
    assert_ne!(ledger.claim(&owner(3)), Ok(first), "the search goes on after the last address");
    assert_eq!(ledger.claim(&reborn), Ok(first));
}

/// A former address that cannot be given does not make the claim fail. The cases are the gateway,
/// addresses outside the ranges, and an address in use.
#[test]
fn a_former_address_that_cannot_be_had_falls_through_to_the_next_free_one() {
    for hint in ["10.0.0.1", "10.0.0.0", "192.168.7.7", "fd00::1", "10.0.0.2"] {
        let mut ledger = ledger("10.0.0.0/29");
        ledger.remember(ip(hint), owner(1).name);
        assert!(ledger.restore(ip("10.0.0.2"), &owner(2)));
        assert_eq!(ledger.claim(&owner(1)), Ok(ip("10.0.0.3")), "{hint}");
        ledger.self_check();
    }
}

#[test]
fn an_address_is_restored_to_its_owner_and_refused_to_another() {
    let mut ledger = ledger("10.0.0.0/29");
    assert!(ledger.restore(ip("10.0.0.5"), &owner(1)));
    assert!(ledger.restore(ip("10.0.0.5"), &owner(1)));
    let reborn = Owner { uid: "another".into(), ..owner(1) };
    assert!(!ledger.restore(ip("10.0.0.5"), &reborn));
    assert_eq!(ledger.owner_of(ip("10.0.0.5")), Some(&owner(1)));
    assert_eq!(ledger.claim(&owner(1)), Ok(ip("10.0.0.5")));
}

/// A pool that shrank retains the claim. After the release, the address is not in the pool any
/// more.
#[test]
fn a_claim_outside_the_ranges_is_never_free_afterwards() {
    let mut ledger = ledger("10.0.0.0/30");
    assert!(ledger.restore(ip("10.0.0.9"), &owner(1)));
    assert_eq!((ledger.total(), ledger.available()), (1, 1));
    assert_eq!(ledger.claim(&owner(1)), Ok(ip("10.0.0.9")));
    assert_eq!(ledger.release(ip("10.0.0.9")), Some(owner(1)));
    ledger.self_check();
    assert_eq!((ledger.available(), ledger.history().count()), (1, 0));
    assert_eq!(ledger.claim(&owner(1)), Ok(ip("10.0.0.2")));
    assert_eq!(ledger.claim(&owner(2)), Err(NoAddress::Full));
    assert_eq!(ledger.claim(&owner(1)), Ok(ip("10.0.0.2")), "a holder never meets a full pool");
}

#[test]
fn history_is_bounded_and_drops_the_oldest_release_first() {
    const RELEASES: usize = HISTORY_LENGTH + 300;
    let mut ledger = ledger("10.0.0.0/20");
    let addresses: Vec<IpAddr> = (0..RELEASES).map(|n| ledger.claim(&owner(n)).unwrap()).collect();
    // The highest address is released first, so the order by age is not the order of addresses.
    for ip in addresses.iter().rev() {
        ledger.release(*ip);
    }
    ledger.self_check();
    let remembered: Vec<IpAddr> = ledger.history().map(|(ip, _)| ip).collect();
    assert!(remembered.iter().eq(addresses[..HISTORY_LENGTH].iter().rev()));
}

/// More former owners are recorded than a release leaves in the history, as by an import. Each of
/// these owners gets its former address.
#[test]
fn a_recorded_history_stays_whole_until_a_release() {
    let mut ledger = ledger("10.0.0.0/20");
    let users: Vec<(IpAddr, Owner)> =
        (0..HISTORY_LENGTH + 300).map(|n| (v4(4_000 - n), owner(n))).collect();
    for (ip, owner) in &users {
        ledger.remember(*ip, owner.name.clone());
    }
    let (last, others) = users.split_last().unwrap();
    for (ip, owner) in others {
        assert_eq!(ledger.claim(owner), Ok(*ip));
    }
    assert_eq!(ledger.history().collect::<Vec<_>>(), [(last.0, last.1.name.as_str())]);
    for (ip, _) in others {
        ledger.release(*ip);
    }
    ledger.self_check();
    assert_eq!(ledger.history().count(), HISTORY_LENGTH);
}

/// The size of the object limits the pool if names and UIDs are as long as Kubernetes allows.
#[test]
fn a_ledger_that_fills_its_object_refuses_before_the_server_does() {
    let long = |n: usize| Owner {
        name: format!("{n:063}/{n:0253}"),
        uid: format!("{n:08}-0000-0000-0000-000000000000"),
    };
    let mut ledger = ledger("10.0.0.0/20");
    for n in 0..20 {
        ledger.remember(v4(4_000 + n), long(9_000 + n).name);
    }
    let held = (0..4_000).take_while(|n| ledger.claim(&long(*n)).is_ok()).count();
    ledger.self_check();
    assert!(ledger.available() > 0, "{held} claims");
    assert_eq!(ledger.claim(&long(held)), Err(NoAddress::LedgerFull));
    assert!((LEDGER_BYTES - 600..=LEDGER_BYTES).contains(&ledger.bytes), "{}", ledger.bytes);
    assert!(ledger.history().count() < 2, "history gives way to claims");
    // Present owners get their addresses. Bytes that a release frees are available for a new claim,
    // because history entries do not use them.
    assert_eq!(ledger.claim(&long(0)), Ok(v4(2)));
    ledger.release(v4(2));
    assert!(ledger.claim(&long(held)).is_ok());
    assert!(ledger.bytes + ledger.history.bytes <= LEDGER_BYTES);
    ledger.self_check();
}
