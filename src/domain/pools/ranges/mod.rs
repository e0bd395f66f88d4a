//! The meaning of an IPPool's ranges: from text to disjoint stretches of addresses.
//!
//! Invariants: stretches are sorted and disjoint, and no stretch has addresses of both families.
//! Addresses are never enumerated, so an IPv6 /64 costs no more than a single IPv4 address.
//!
//! Rules for a range (Harvester has them from `host-local`, one of the CNI plugins):
//! * The default start is the first host of the subnet, and the default end is the last host. /31
//!   and /127 have two hosts (RFC 3021, RFC 6164). IPv6 has no broadcast address.
//! * The default gateway is the address after the network address. A single address (/32, /128) has
//!   no gateway. A gateway is never given out.
//! * If the start is above the end, the two are exchanged. [`reversed`] finds such ranges, so that
//!   admission can refuse new ones.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::network::infrastructure::HeldBack;
use api;

/// Stretch of consecutive addresses that can be given out. All of them are in one subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressBlock {
    /// First address.
    pub first: IpAddr,
    /// Last address, at least `first`, and of the same family.
    pub last: IpAddr,
    /// Index, in `spec.ranges`, of the range to which the stretch belongs.
    pub range: usize,
}

/// Subnet of a range, with the subnet's router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// Network, without host bits.
    pub net: IpNet,
    /// Router of the network, never given out. `None`: the network has no router.
    pub gateway: Option<IpAddr>,
}

/// The checked ranges of one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolRanges {
    subnets: Vec<Subnet>,
    stretches: Vec<AddressBlock>,
}

/// Fault of a range, with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct RangeError {
    /// Path of the field, such as `spec.ranges[0].rangeEnd`.
    pub field: String,
    /// The value's fault and the remedy.
    pub message: String,
}

/// Maximum number of ranges of one pool. A new pool has at most 256, by this operator's schema. A
/// pool that was stored with Harvester's schema may have more, because that schema has no limit.
pub const MOST_RANGES: usize = 1_024;

impl PoolRanges {
    /// Ranges without any address.
    pub const fn none() -> Self {
        Self { subnets: Vec::new(), stretches: Vec::new() }
    }

    /// Reads and checks `spec.ranges`. The error is the first fault.
    pub fn parse(ranges: &[api::Range]) -> Result<Self, RangeError> {
        if ranges.is_empty() {
            return Err(error("spec.ranges", "is empty: name at least one range".to_owned()));
        }
        if ranges.len() > MOST_RANGES {
            let message = format!("has {} ranges: {MOST_RANGES} at most", ranges.len());
            return Err(error("spec.ranges", message));
        }
        let mut subnets = Vec::with_capacity(ranges.len());
        let mut blocks: Vec<AddressBlock> = Vec::with_capacity(ranges.len());
        let mut excluded = Vec::with_capacity(ranges.len());
        for (index, range) in ranges.iter().enumerate() {
            let path = format!("spec.ranges[{index}]");
            let (subnet, first, last) = parse_bounds(&path, range)?;
            // Every IPv4 address sorts before every IPv6 address.
            let overlaps = |other: &&AddressBlock| first <= other.last && other.first <= last;
            if let Some(AddressBlock { range: other, .. }) = blocks.iter().find(overlaps) {
                return Err(error(
                    &path,
                    format!(
                        "{first} to {last} overlaps spec.ranges[{other}]: ranges of one pool must not overlap"
                    ),
                ));
            }
            blocks.push(AddressBlock { first, last, range: index });
            excluded.push(parse_excludes(&path, range, &subnet)?);
            subnets.push(subnet);
        }
        // The router of one range must not be given out from another range.
        let routers = subnets.iter().filter_map(|subnet| subnet.gateway);
        let routers: Vec<(IpAddr, IpAddr)> = routers.map(|ip| (ip, ip)).collect();
        let mut stretches = Vec::new();
        for (block, excluded) in blocks.iter().zip(excluded) {
            stretches.extend(block.without(excluded.into_iter().chain(routers.iter().copied())));
        }
        stretches.sort_by_key(|s| s.first);
        Ok(Self { subnets, stretches })
    }

    /// Stretches of addresses that can be given out, ascending, IPv4 before IPv6.
    pub fn stretches(&self) -> &[AddressBlock] {
        &self.stretches
    }

    /// First and last of the addresses that can be given out. `None`: there are none.
    pub fn span(&self) -> Option<(IpAddr, IpAddr)> {
        Some((self.stretches.first()?.first, self.stretches.last()?.last))
    }

    /// Stretch that contains an address. `None`: the address cannot be given out.
    pub fn find(&self, ip: IpAddr) -> Option<&AddressBlock> {
        let after = self.stretches.partition_point(|s| s.first <= ip);
        let stretch = self.stretches[..after].last()?;
        (ip <= stretch.last).then_some(stretch)
    }

    /// Networks of `all` that overlap the ranges.
    pub fn held_back(&self, all: &HeldBack) -> HeldBack {
        let mut found = HeldBack::new();
        for stretch in self.stretches() {
            let first = IpNet::from(stretch.first);
            let around = (0..first.max_prefix_len()).filter_map(|length| {
                let network = IpNet::new(first.addr(), length).ok()?.trunc();
                all.get_key_value(&network)
            });
            let last = IpNet::from(stretch.last);
            // The map is sorted by address, then by length. So the range `first..=last` contains
            // all networks that begin within the stretch and are not among `around`.
            found.extend(
                around.chain(all.range(first..=last)).map(|(net, what)| (*net, what.clone())),
            );
        }
        found
    }

    /// Routers of the ranges' networks.
    pub fn gateways(&self) -> impl Iterator<Item = IpAddr> {
        self.subnets.iter().filter_map(|subnet| subnet.gateway)
    }

    /// Subnet of an address. `None`: the address cannot be given out.
    pub fn subnet_of(&self, ip: IpAddr) -> Option<&Subnet> {
        self.find(ip).map(|s| &self.subnets[s.range])
    }

    /// The ranges without the addresses of `networks`.
    #[must_use]
    pub fn without(&self, networks: &[IpNet]) -> Self {
        let holes = || networks.iter().map(|net| (net.network(), net.broadcast()));
        let stretches =
            self.stretches.iter().flat_map(|stretch| stretch.without(holes())).collect();
        Self { subnets: self.subnets.clone(), stretches }
    }

    /// Number of addresses that can be given out. Saturates at `i64::MAX`, the highest value of
    /// `status.total`.
    pub fn total(&self) -> i64 {
        self.stretches
            .iter()
            .map(|stretch| address_count(stretch.first, stretch.last))
            .fold(0_u128, u128::saturating_add)
            .try_into()
            .unwrap_or(i64::MAX)
    }
}

impl AddressBlock {
    /// Parts of the stretch that are outside the holes. A hole is a pair of its first and last
    /// address. A hole of the other family has no effect.
    fn without(&self, holes: impl Iterator<Item = (IpAddr, IpAddr)>) -> Vec<Self> {
        let (v4, high) = (self.first.is_ipv4(), to_u128(self.last));
        let same_family = holes.filter(|(first, _)| first.is_ipv4() == v4);
        let mut holes: Vec<(u128, u128)> =
            same_family.map(|(first, last)| (to_u128(first), to_u128(last))).collect();
        holes.sort_unstable();
        let part = |first: u128, last: u128| Self {
            first: from_u128(first, v4),
            last: from_u128(last, v4),
            range: self.range,
        };
        let mut rest = Vec::new();
        let mut from = Some(to_u128(self.first));
        for (first, last) in holes {
            let Some(start) = from else { break };
            if last < start {
                continue;
            }
            if first > high {
                break;
            }
            if first > start {
                rest.push(part(start, first - 1));
            }
            from = last.checked_add(1).filter(|next| *next <= high);
        }
        rest.extend(from.map(|start| part(start, high)));
        rest
    }
}

impl Subnet {
    /// Network mask as Harvester writes it: in the form of an address, such as `255.255.255.0`.
    pub fn mask(&self) -> String {
        self.net.netmask().to_string()
    }
}

/// Number of addresses from `first` to `last`, both included. Both are of the same family, and
/// `first` is at most `last`. Saturates at `u128::MAX`.
pub fn address_count(first: IpAddr, last: IpAddr) -> u128 {
    (to_u128(last) - to_u128(first)).saturating_add(1)
}

/// Numeric value of an address.
pub fn to_u128(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// Address with the numeric value `value`. `v4`: whether it is an IPv4 address. If so, a value of
/// more than 32 bits gives `255.255.255.255`.
pub fn from_u128(value: u128, v4: bool) -> IpAddr {
    if v4 {
        IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(value).unwrap_or(u32::MAX)))
    } else {
        IpAddr::V6(Ipv6Addr::from_bits(value))
    }
}

fn parse_bounds(path: &str, range: &api::Range) -> Result<(Subnet, IpAddr, IpAddr), RangeError> {
    let net: IpNet = range.subnet.parse().map_err(|_| {
        error(
            &format!("{path}.subnet"),
            format!("{:?} is not a network in CIDR form, such as 192.168.1.0/24", range.subnet),
        )
    })?;
    let host = net.addr();
    let net = net.trunc();
    let single = net.prefix_len() == net.max_prefix_len();
    let pair = net.prefix_len() + 1 == net.max_prefix_len();
    let (low, high) = (to_u128(net.network()), to_u128(net.broadcast()));
    let v4 = matches!(net, IpNet::V4(_));
    let family = family_name(v4);

    let first_host = if single || pair { low } else { low + 1 };
    let last_host = if single || pair || !v4 { high } else { high - 1 };

    let bound = |field: &str, text: &Option<String>, default: u128| match set(text.as_ref()) {
        None => Ok(from_u128(default, v4)),
        Some(text) => {
            let field = format!("{path}.{field}");
            let ip = parse_ip(&field, text)?;
            if !net.contains(&ip) {
                return Err(error(&field, format!("{ip} is outside subnet {net}")));
            }
            if v4 && !single && !pair && (to_u128(ip) == low || to_u128(ip) == high) {
                let which = if to_u128(ip) == low { "network" } else { "broadcast" };
                return Err(error(
                    &field,
                    format!(
                        "{ip} is the {which} address of {net}: hosts are {} to {}",
                        from_u128(first_host, v4),
                        from_u128(last_host, v4)
                    ),
                ));
            }
            Ok(ip)
        }
    };
    let first =
        bound("rangeStart", &range.range_start, if single { to_u128(host) } else { first_host })?;
    let last = bound("rangeEnd", &range.range_end, if single { to_u128(host) } else { last_host })?;
    let (first, last) = (first.min(last), first.max(last));
    if let Some((block, kind)) = not_unicast(first, last) {
        return Err(error(
            &format!("{path}.subnet"),
            format!(
                "{first} to {last} includes {kind} addresses ({block}): a load balancer needs unicast addresses"
            ),
        ));
    }
    let gateway = match set(range.gateway.as_ref()) {
        None if single => None,
        None => Some(from_u128(low + 1, v4)),
        Some(text) => {
            let field = format!("{path}.gateway");
            let ip = parse_ip(&field, text)?;
            if ip.is_ipv4() != v4 {
                return Err(error(
                    &field,
                    format!(
                        "{ip} is not of the IP family of subnet {net}: use an {family} address"
                    ),
                ));
            }
            Some(ip)
        }
    };
    Ok((Subnet { net, gateway }, first, last))
}

fn parse_excludes(
    path: &str,
    range: &api::Range,
    subnet: &Subnet,
) -> Result<Vec<(IpAddr, IpAddr)>, RangeError> {
    let v4 = matches!(subnet.net, IpNet::V4(_));
    range
        .exclude
        .iter()
        .flatten()
        .enumerate()
        .map(|(index, text)| {
            let field = format!("{path}.exclude[{index}]");
            let (first, last) = if let Ok(net) = text.parse::<IpNet>() {
                (net.network(), net.broadcast())
            } else if let Some((first, last)) = text.split_once('-') {
                (parse_ip(&field, first.trim())?, parse_ip(&field, last.trim())?)
            } else {
                let ip = parse_ip(&field, text)?;
                (ip, ip)
            };
            if first.is_ipv4() != v4 || last.is_ipv4() != v4 {
                let (net, family) = (subnet.net, family_name(v4));
                return Err(error(
                    &field,
                    format!(
                        "{text} is not of the IP family of subnet {net}: use {family} addresses"
                    ),
                ));
            }
            if first > last {
                return Err(error(&field, format!("{first} is above {last}: exchange the two")));
            }
            Ok((first, last))
        })
        .collect()
}

/// Searches `first..=last` for addresses that no host can have, such as multicast addresses.
/// Returns the network and the kind of the first entry of `BLOCKS` that overlaps. `None`: no entry
/// overlaps. Source: IANA special-purpose registries; RFC 6890, RFC 5771, RFC 4291.
fn not_unicast(first: IpAddr, last: IpAddr) -> Option<(&'static str, &'static str)> {
    const BLOCKS: [(&str, &str); 7] = [
        ("0.0.0.0/8", "\"this network\""),
        ("127.0.0.0/8", "loopback"),
        ("224.0.0.0/4", "multicast"),
        ("255.255.255.255/32", "broadcast"),
        ("::/127", "unspecified and loopback"),
        ("::ffff:0:0/96", "IPv4-mapped"),
        ("ff00::/8", "multicast"),
    ];
    BLOCKS.into_iter().find(|(block, _)| {
        block.parse().is_ok_and(|net: IpNet| {
            net.addr().is_ipv4() == first.is_ipv4()
                && first <= net.broadcast()
                && net.network() <= last
        })
    })
}

/// The fault of a range whose start is above its end. `index`: index of the range in `spec.ranges`.
/// `None`: the start is not above the end, or the start or the end is absent or invalid.
pub fn reversed(index: usize, range: &api::Range) -> Option<RangeError> {
    let bound = |text: &Option<String>| set(text.as_ref())?.parse::<IpAddr>().ok();
    let (first, last) = (bound(&range.range_start)?, bound(&range.range_end)?);
    (first > last).then(|| {
        error(
            &format!("spec.ranges[{index}].rangeStart"),
            format!("{first} is above rangeEnd {last}: exchange the two"),
        )
    })
}

fn parse_ip(field: &str, text: &str) -> Result<IpAddr, RangeError> {
    text.parse()
        .map_err(|_| error(field, format!("{text:?} is not an IP address, such as 192.168.1.10")))
}

fn set(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str).filter(|t| !t.is_empty())
}

fn family_name(v4: bool) -> &'static str {
    if v4 { "IPv4" } else { "IPv6" }
}

fn error(field: &str, message: String) -> RangeError {
    RangeError { field: field.to_owned(), message }
}

#[cfg(test)]
mod tests;
