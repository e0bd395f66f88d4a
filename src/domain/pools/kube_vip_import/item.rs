//! One item of a key's value in the ConfigMap: a network, a range, or a single address.

use std::net::IpAddr;

use ipnet::IpNet;

use super::super::ranges::{PoolRanges, from_u128, to_u128};
use api::Range;

/// Maximum number of doublings in the search for a range's subnet. The search starts with the
/// smallest subnet that contains both ends of the range. It ends when both ends are hosts, and the
/// gateway is outside the range.
const WIDER: u8 = 16;

/// Whether keys with this prefix contain addresses.
pub(super) fn is_format(format: &str) -> bool {
    matches!(format, "cidr" | "range")
}

/// Reads an item. Returns its range, and notes: on reversed ends, and on addresses that are not
/// given out. An item of the format `cidr` has no notes, and its host bits are ignored. `format`:
/// prefix of the key, `cidr` or `range`. The error gives the fault and the remedy.
pub(super) fn read(format: &str, text: &str) -> Result<(Range, Vec<String>), String> {
    let (range, notes) = if format == "cidr" { cidr(text)? } else { stretch(text)? };
    // The rules for the ranges of a pool apply to the imported range.
    PoolRanges::parse(std::slice::from_ref(&range)).map_err(|error| error.message)?;
    Ok((range, notes))
}

fn cidr(text: &str) -> Result<(Range, Vec<String>), String> {
    let net: IpNet = text.parse().map_err(|_| {
        format!(
            "{text:?} is not a network: write 192.168.1.0/24, or 192.168.1.5/32 for one address"
        )
    })?;
    Ok((Range { subnet: net.trunc().to_string(), ..Range::default() }, Vec::new()))
}

fn stretch(text: &str) -> Result<(Range, Vec<String>), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (mut first, mut last) = (address(first)?, address(last)?);
    if first.is_ipv4() != last.is_ipv4() {
        return Err("one end is IPv4 and the other IPv6: give both in one family".to_owned());
    }
    let mut notes = Vec::new();
    if first > last {
        (first, last) = (last, first);
        notes.push(format!("reversed, imported as {first}-{last}"));
    }
    let (range, missing) = derive(first, last);
    notes.extend(missing);
    Ok((range, notes))
}

fn address(text: &str) -> Result<IpAddr, String> {
    let ip: IpAddr = text.trim().parse().map_err(|_| {
        format!("{:?} is not an address: write 192.168.1.10-192.168.1.20", text.trim())
    })?;
    Ok(ip.to_canonical())
}

/// Makes the range from `first` to `last`, with a derived subnet. Leaves out an end that is the
/// network address or the broadcast address of the subnet. Also returns the note of [`lost`].
fn derive(first: IpAddr, last: IpAddr) -> (Range, Option<String>) {
    let bits: u8 = if first.is_ipv4() { 32 } else { 128 };
    if first == last {
        return (Range { subnet: format!("{first}/{bits}"), ..Range::default() }, None);
    }
    let differing = 128 - (to_u128(first) ^ to_u128(last)).leading_zeros();
    let smallest = bits - u8::try_from(differing).unwrap_or(bits);
    let fits = |prefix: &u8| {
        IpNet::new(first, *prefix).is_ok_and(|net| lost(net.trunc(), first, last).is_none())
    };
    let prefix = (smallest.saturating_sub(WIDER)..=smallest).rev().find(fits).unwrap_or(smallest);
    let Ok(net) = IpNet::new(first, prefix).map(|net| net.trunc()) else {
        return (Range { subnet: format!("{first}/{bits}"), ..Range::default() }, None);
    };
    let (mut start, mut end) = (to_u128(first), to_u128(last));
    if first.is_ipv4() && prefix < 31 {
        start = start.max(to_u128(net.network()) + 1);
        end = end.min(to_u128(net.broadcast()) - 1);
    }
    let text = |value| Some(from_u128(value, first.is_ipv4()).to_string());
    let range = Range {
        subnet: net.to_string(),
        range_start: text(start),
        range_end: text(end),
        ..Range::default()
    };
    (range, lost(net, first, last))
}

/// Note on the addresses from `first` to `last` that are not given out: the gateway of the subnet
/// `net`, and for IPv4 also its network address and its broadcast address. `None`: all addresses
/// are given out.
fn lost(net: IpNet, first: IpAddr, last: IpAddr) -> Option<String> {
    let (low, high) = (to_u128(net.network()), to_u128(net.broadcast()));
    let within = |value: u128| to_u128(first) <= value && value <= to_u128(last);
    let v4 = first.is_ipv4();
    let mut names = Vec::new();
    if v4 && net.prefix_len() < 31 && within(low) {
        names.push(format!("{} (network)", from_u128(low, v4)));
    }
    if within(low + 1) {
        names.push(format!("{} (gateway)", from_u128(low + 1, v4)));
    }
    if v4 && net.prefix_len() < 31 && within(high) {
        names.push(format!("{} (broadcast)", from_u128(high, v4)));
    }
    if names.is_empty() {
        return None;
    }
    Some(format!(
        "no subnet is known, so {net} is assumed, and {} are not allocated: if this is wrong, correct the range's subnet and gateway",
        names.join(", ")
    ))
}
