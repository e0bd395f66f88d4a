//! Tests of the meaning of ranges: a table of cases, and a comparison with small subnets whose
//! addresses are counted one by one.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// Range from a text of this form:
/// `"10.0.0.0/24 start=10.0.0.5 end=10.0.0.9 gateway=10.0.0.1 exclude=10.0.0.7,10.0.0.8"`.
fn range(text: &str) -> api::Range {
    let mut words = text.split(' ');
    let mut range = api::Range { subnet: words.next().unwrap().into(), ..Default::default() };
    for word in words {
        match word.split_once('=').unwrap() {
            ("start", value) => range.range_start = Some(value.into()),
            ("end", value) => range.range_end = Some(value.into()),
            ("gateway", value) => range.gateway = Some(value.into()),
            (_, value) => {
                range.exclude = Some(value.split(',').map(Into::into).collect());
            }
        }
    }
    range
}

fn parse(texts: &[&str]) -> Result<PoolRanges, RangeError> {
    PoolRanges::parse(&texts.iter().map(|text| range(text)).collect::<Vec<_>>())
}

fn stretches(texts: &[&str]) -> Vec<String> {
    let ranges = parse(texts).unwrap();
    ranges.stretches().iter().map(|s| format!("{}-{}", s.first, s.last)).collect()
}

#[test]
fn defaults_are_the_hosts_without_the_gateway() {
    for (text, expected, total) in [
        ("10.0.0.0/24", &["10.0.0.2-10.0.0.254"][..], 253),
        // Host bits in the subnet's text are ignored.
        ("10.0.0.77/24", &["10.0.0.2-10.0.0.254"], 253),
        ("10.0.0.0/30", &["10.0.0.2-10.0.0.2"], 1),
        // Go clients write an empty text for an unset field.
        ("10.0.0.0/24 start= end= gateway=", &["10.0.0.2-10.0.0.254"], 253),
        // Two hosts, and the default gateway is the second.
        ("10.0.0.4/31", &["10.0.0.4-10.0.0.4"], 1),
        ("10.0.0.4/31 gateway=10.0.0.9", &["10.0.0.4-10.0.0.5"], 2),
        ("fd00::4/127", &["fd00::4-fd00::4"], 1),
        // One host, and no gateway.
        ("10.0.0.5/32", &["10.0.0.5-10.0.0.5"], 1),
        ("fd00::5/128", &["fd00::5-fd00::5"], 1),
        // IPv6 has no broadcast address.
        ("fd00::/120", &["fd00::2-fd00::ff"], 254),
        ("fd00::/64", &["fd00::2-fd00::ffff:ffff:ffff:ffff"], i64::MAX),
        ("fd00::/66", &["fd00::2-fd00::3fff:ffff:ffff:ffff"], (1 << 62) - 2),
        ("64.0.0.0/3", &["64.0.0.2-95.255.255.254"], (1 << 29) - 3),
        ("2000::/3", &["2000::2-3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"], i64::MAX),
    ] {
        assert_eq!(stretches(&[text]), expected, "{text}");
        assert_eq!(parse(&[text]).unwrap().total(), total, "{text}");
    }
}

#[test]
fn bounds_gateway_and_exclusions_cut_the_range() {
    for (text, expected) in [
        ("10.0.0.0/24 start=10.0.0.5 end=10.0.0.9", &["10.0.0.5-10.0.0.9"][..]),
        ("10.0.0.0/24 start=10.0.0.1 end=10.0.0.3", &["10.0.0.2-10.0.0.3"]),
        ("10.0.0.0/24 end=10.0.0.4 gateway=10.0.0.3", &["10.0.0.1-10.0.0.2", "10.0.0.4-10.0.0.4"]),
        ("10.0.0.0/24 end=10.0.0.2 gateway=10.0.0.254", &["10.0.0.1-10.0.0.2"]),
        // A gateway outside the subnet is allowed: it is an admin's choice.
        ("10.0.0.0/30 gateway=192.168.9.1", &["10.0.0.1-10.0.0.2"]),
        ("fd00::/64 start=fd00:: end=fd00::3", &["fd00::-fd00::", "fd00::2-fd00::3"]),
        ("10.0.0.0/29 exclude=10.0.0.4", &["10.0.0.2-10.0.0.3", "10.0.0.5-10.0.0.6"]),
        ("10.0.0.0/28 exclude=10.0.0.6/30", &["10.0.0.2-10.0.0.3", "10.0.0.8-10.0.0.14"]),
        ("10.0.0.0/29 exclude=10.0.0.2-10.0.0.3,10.0.0.3-10.0.0.5", &["10.0.0.6-10.0.0.6"]),
        ("10.0.0.0/29 exclude=0.0.0.0/0", &[]),
        ("10.0.0.0/29 exclude=10.0.0.0-10.0.0.6", &[]),
        ("fd00::/124 exclude=fd00::3-fd00::f", &["fd00::2-fd00::2"]),
        ("fdff::/16 exclude=fdff::/16", &[]),
        // Reversed bounds are exchanged.
        ("10.0.0.0/24 start=10.0.0.9 end=10.0.0.5", &["10.0.0.5-10.0.0.9"]),
        // A subnet of all addresses, with bounds that hosts can have.
        ("0.0.0.0/0 start=10.0.0.5 end=10.0.0.9", &["10.0.0.5-10.0.0.9"]),
    ] {
        assert_eq!(stretches(&[text]), expected, "{text}");
    }
    assert_eq!(parse(&["10.0.0.0/29 exclude=0.0.0.0/0"]).unwrap().total(), 0);
}

#[test]
fn reversed_bounds_are_found_for_admission() {
    let fault = reversed(2, &range("10.0.0.0/24 start=10.0.0.9 end=10.0.0.5")).unwrap();
    assert_eq!(fault.field, "spec.ranges[2].rangeStart");
    assert_eq!(fault.message, "10.0.0.9 is above rangeEnd 10.0.0.5: exchange the two");
    for right in ["10.0.0.0/24", "10.0.0.0/24 start=10.0.0.5 end=10.0.0.5", "10.0.0.0/24 end=x"] {
        assert_eq!(reversed(0, &range(right)), None, "{right}");
    }
}

/// The message names the field, its fault, and the remedy.
#[test]
fn faults_name_the_field_and_the_remedy() {
    let hosts = "hosts are 10.0.0.1 to 10.0.0.254";
    for (text, field, words) in [
        ("10.0.0.0/24 start=10.0.0.0", "rangeStart", &["network address", hosts][..]),
        ("10.0.0.0/24 end=10.0.0.255", "rangeEnd", &["broadcast address", hosts]),
        ("127.0.0.0/24", "subnet", &["127.0.0.1 to 127.0.0.254", "loopback", "unicast"]),
        ("224.0.0.0/24", "subnet", &["multicast"]),
        ("0.0.0.0/24", "subnet", &["this network"]),
        ("0.0.0.0/0", "subnet", &["this network"]),
        ("120.0.0.0/5 start=126.0.0.1", "subnet", &["loopback"]),
        ("255.255.255.255/32", "subnet", &["broadcast"]),
        ("::/0", "subnet", &["unspecified"]),
        ("::1/128", "subnet", &["loopback"]),
        ("::ffff:10.0.0.0/120", "subnet", &["IPv4-mapped"]),
        ("ff02::/64", "subnet", &["multicast"]),
        ("10.0.0.0/24 start=10.0.1.5", "rangeStart", &["10.0.1.5", "outside", "10.0.0.0/24"]),
        ("10.0.0.0/24 end=fd00::5", "rangeEnd", &["outside"]),
        ("10.0.0.0/24 start=10.0.0", "rangeStart", &["\"10.0.0\"", "not an IP address"]),
        ("10.0.0.0/33", "subnet", &["CIDR", "such as"]),
        ("10.0.0.0", "subnet", &["CIDR"]),
        ("10.0.0.0/24 gateway=fd00::1", "gateway", &["family", "10.0.0.0/24"]),
        ("fd00::/64 gateway=10.0.0.1", "gateway", &["family"]),
        ("10.0.0.0/24 gateway=router", "gateway", &["not an IP address"]),
        ("10.0.0.0/24 exclude=10.0.0.7,fd00::/64", "exclude[1]", &["family"]),
        ("10.0.0.0/24 exclude=10.0.0.9-fd00::1", "exclude[0]", &["family"]),
        ("10.0.0.0/24 exclude=10.0.0.9-10.0.0.7", "exclude[0]", &["above", "exchange"]),
        ("10.0.0.0/24 exclude=all", "exclude[0]", &["not an IP address"]),
    ] {
        let fault = parse(&["192.168.0.0/24", text]).unwrap_err();
        assert_eq!(fault.field, format!("spec.ranges[1].{field}"), "{text}");
        for word in words {
            assert!(fault.message.contains(word), "{text}: {word:?} is not in {fault}");
        }
    }
    let fault = PoolRanges::parse(&[]).unwrap_err().to_string();
    assert!(fault.starts_with("spec.ranges: is empty"), "{fault}");
}

#[test]
fn ranges_of_one_pool_that_overlap_are_both_named() {
    for (one, other) in [
        ("10.0.0.0/24", "10.0.0.128/25"),
        ("10.0.0.0/24 end=10.0.0.20", "10.0.0.0/24 start=10.0.0.20"),
        ("10.0.0.5/32", "10.0.0.5/32"),
        ("fd00::/64", "fd00::7/128"),
    ] {
        for pair in [[one, other], [other, one]] {
            let fault = parse(&["172.16.0.0/24", pair[0], pair[1]]).unwrap_err();
            assert_eq!(fault.field, "spec.ranges[2]", "{pair:?}");
            assert!(fault.message.contains("spec.ranges[1]"), "{fault}");
        }
    }
    // An IPv4 address and an IPv6 address of the same numeric value do not overlap.
    assert_eq!(stretches(&["10.0.0.5/32", "::a00:5/128"]).len(), 2);
    let apart = ["10.0.0.0/24 end=10.0.0.19", "10.0.0.0/24 start=10.0.0.20 end=10.0.0.30"];
    assert_eq!(stretches(&apart), ["10.0.0.2-10.0.0.19", "10.0.0.20-10.0.0.30"]);
}

#[test]
fn the_router_of_one_range_is_not_given_out_by_another() {
    let same_subnet =
        ["10.0.0.0/24 end=10.0.0.9 gateway=10.0.0.12", "10.0.0.0/24 start=10.0.0.11 end=10.0.0.13"];
    let expected = ["10.0.0.2-10.0.0.9", "10.0.0.11-10.0.0.11", "10.0.0.13-10.0.0.13"];
    assert_eq!(stretches(&same_subnet), expected);
}

#[test]
fn an_address_comes_with_the_mask_and_gateway_of_its_own_range() {
    let ranges = parse(&["fd00::/64", "10.0.0.0/22", "10.9.0.5/32"]).unwrap();
    let subnet = |ip: &str| ranges.subnet_of(ip.parse().unwrap()).map(|s| (s.mask(), s.gateway));
    let ip = |text: &str| Some(text.parse::<IpAddr>().unwrap());
    assert_eq!(subnet("10.0.2.7"), Some(("255.255.252.0".to_owned(), ip("10.0.0.1"))));
    assert_eq!(subnet("10.9.0.5"), Some(("255.255.255.255".to_owned(), None)));
    assert_eq!(subnet("fd00::7"), Some(("ffff:ffff:ffff:ffff::".to_owned(), ip("fd00::1"))));
    assert_eq!((subnet("10.0.0.1"), subnet("10.9.0.6"), subnet("::1")), (None, None, None));
}

#[test]
fn networks_are_cut_out_of_ranges() {
    let ranges = parse(&["10.0.0.0/24", "fd00::/64 start=fd00::10 end=fd00::1f"]).unwrap();
    for (networks, expected) in [
        (&[][..], &["10.0.0.2-10.0.0.254", "fd00::10-fd00::1f"][..]),
        (&["10.0.0.0/25", "fd00::18/125"], &["10.0.0.128-10.0.0.254", "fd00::10-fd00::17"]),
        (
            &["10.0.0.7/32", "10.9.0.0/16"],
            &["10.0.0.2-10.0.0.6", "10.0.0.8-10.0.0.254", "fd00::10-fd00::1f"],
        ),
        (&["10.0.0.0/8", "10.0.0.7/32", "::/0"], &[]),
    ] {
        let networks: Vec<IpNet> = networks.iter().map(|net| net.parse().unwrap()).collect();
        let rest = ranges.without(&networks);
        let shown = rest.stretches().iter().map(|s| format!("{}-{}", s.first, s.last));
        assert_eq!(shown.collect::<Vec<_>>(), expected, "{networks:?}");
    }
}

/// A range drawn at random. `bits`: number of host bits of the subnet. `net`: offset of an address
/// in the subnet. All offsets are from the address `base`, which is below the subnet.
#[derive(Clone, Debug)]
struct Drawn {
    v4: bool,
    bits: u32,
    net: u128,
    start: Option<u128>,
    end: Option<u128>,
    gateway: Option<u128>,
    /// Excluded stretches: the first offset, with the distance to the last offset (`Ok`), or with
    /// the number of host bits of a CIDR (`Err`).
    exclude: Vec<(u128, Result<u128, u32>)>,
}

/// Base of the offsets: `10.0.0.0` if `v4`, else `fd00::`. The drawn subnets are at or above offset
/// 32.
fn base(v4: bool) -> u128 {
    if v4 { 10 << 24 } else { 0xfd00 << 112 }
}

impl Drawn {
    fn ip(&self, offset: u128) -> IpAddr {
        from_u128(base(self.v4) + offset, self.v4)
    }

    fn spec(&self) -> api::Range {
        let width = if self.v4 { 32 } else { 128 };
        let text = |offset: Option<u128>| offset.map(|o| self.ip(o).to_string());
        let exclude = self.exclude.iter().map(|(at, size)| match size {
            Ok(0) => self.ip(*at).to_string(),
            Ok(length) => format!("{}-{}", self.ip(*at), self.ip(at + length)),
            Err(bits) => format!("{}/{}", self.ip(*at), width - bits),
        });
        api::Range {
            subnet: format!("{}/{}", self.ip(self.net), width - self.bits),
            range_start: text(self.start),
            range_end: text(self.end),
            gateway: text(self.gateway),
            exclude: Some(exclude.collect()),
        }
    }

    /// Returns the offsets between the bounds, and the offsets among them that can be given out.
    /// Checks each offset by itself. `None`: the range is invalid.
    fn enumerate(&self) -> Option<(BTreeSet<u128>, BTreeSet<u128>)> {
        let all: Vec<u128> =
            (0..1024).filter(|o| o >> self.bits == self.net >> self.bits).collect();
        let [low, .., high] = all[..] else {
            let only = all[0];
            return (self.start.is_none_or(|s| s == only) && self.end.is_none_or(|e| e == only))
                .then(|| self.split(BTreeSet::from([only])));
        };
        let ends_are_hosts = all.len() == 2;
        let refused =
            |o: u128| !all.contains(&o) || self.v4 && !ends_are_hosts && (o == low || o == high);
        if self.start.is_some_and(refused) || self.end.is_some_and(refused) {
            return None;
        }
        let first = self.start.unwrap_or(if ends_are_hosts { low } else { low + 1 });
        let keeps_last = ends_are_hosts || !self.v4;
        let last = self.end.unwrap_or(if keeps_last { high } else { high - 1 });
        let (first, last) = (first.min(last), first.max(last));
        let between: BTreeSet<u128> =
            all.into_iter().filter(|o| first <= *o && *o <= last).collect();
        (!between.is_empty()).then(|| self.split(between))
    }

    fn router(&self) -> Option<u128> {
        let second = ((self.net >> self.bits) << self.bits) + 1;
        self.gateway.or((self.bits > 0).then_some(second))
    }

    fn split(&self, between: BTreeSet<u128>) -> (BTreeSet<u128>, BTreeSet<u128>) {
        let excluded = |o: u128| {
            self.exclude.iter().any(|(at, size)| match size {
                Ok(length) => *at <= o && o <= at + length,
                Err(bits) => o >> bits == at >> bits,
            })
        };
        let mut given = between.clone();
        given.retain(|o| Some(*o) != self.router() && !excluded(*o));
        (between, given)
    }
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let offset = || 24_u128..84;
    let some = || proptest::option::weighted(0.4, offset());
    let size = prop_oneof![(0_u128..6).prop_map(Ok), (0_u32..6).prop_map(Err)];
    let exclude = proptest::collection::vec((offset(), size), 0..4);
    (any::<bool>(), 0_u32..6, 32_u128..80, some(), some(), some(), exclude).prop_map(
        |(v4, bits, net, start, end, gateway, exclude)| Drawn {
            v4,
            bits,
            net,
            start,
            end,
            gateway,
            exclude,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1_000) })]

    #[test]
    fn small_subnets_agree_with_counting_one_by_one(one in drawn(), two in drawn()) {
        let expected = one.enumerate().zip(two.enumerate()).filter(|((a, _), (b, _))| {
            one.v4 != two.v4 || a.is_disjoint(b)
        });
        let parsed = PoolRanges::parse(&[one.spec(), two.spec()]);
        prop_assert_eq!(parsed.is_ok(), expected.is_some(), "{:?}", parsed);
        let (Ok(ranges), Some(((_, mut a), (_, mut b)))) = (parsed, expected) else { return Ok(()) };
        if one.v4 == two.v4 {
            a.retain(|o| Some(*o) != two.router());
            b.retain(|o| Some(*o) != one.router());
        }
        prop_assert_eq!(ranges.total(), i64::try_from(a.len() + b.len()).unwrap());
        prop_assert!(ranges.stretches().is_sorted_by(|x, y| x.last < y.first));
        for offset in 0..128 {
            for (index, (range, given)) in [(&one, &a), (&two, &b)].into_iter().enumerate() {
                let found = ranges.find(range.ip(offset)).is_some_and(|s| s.range == index);
                prop_assert_eq!(found, given.contains(&offset), "{}", range.ip(offset));
            }
        }
    }
}
