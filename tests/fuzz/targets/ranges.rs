//! Ranges of an IPPool: stretches are sorted, disjoint and within their subnets, and contain no
//! excluded address.
#![no_main]

use harvester_guest_operator::api::Range;
use harvester_guest_operator::domain::pools::ranges::PoolRanges;
use libfuzzer_sys::fuzz_target;

/// Parses a line as a range: subnet, start, end, gateway, then exclusions.
fn range(line: &str) -> Range {
    let mut fields = line.split(' ');
    let mut next = || fields.next().filter(|field| !field.is_empty()).map(str::to_owned);
    let subnet = next().unwrap_or_default();
    let (range_start, range_end, gateway) = (next(), next(), next());
    let exclude: Vec<String> = fields.map(str::to_owned).collect();
    let exclude = (!exclude.is_empty()).then_some(exclude);
    Range { subnet, range_start, range_end, gateway, exclude }
}

fuzz_target!(|text: &str| {
    let ranges: Vec<Range> = text.lines().take(64).map(range).collect();
    let parsed = match PoolRanges::parse(&ranges) {
        Ok(parsed) => parsed,
        Err(error) => {
            assert!(error.field.starts_with("spec.ranges") && !error.message.is_empty());
            return;
        }
    };
    let stretches = parsed.stretches();
    for stretch in stretches {
        assert!(stretch.first <= stretch.last);
        assert_eq!(stretch.first.is_ipv4(), stretch.last.is_ipv4());
        for ip in [stretch.first, stretch.last] {
            assert_eq!(parsed.find(ip), Some(stretch));
            let subnet = parsed.subnet_of(ip).unwrap();
            assert!(subnet.net.contains(&ip) && subnet.gateway != Some(ip));
            for exclude in ranges[stretch.range].exclude.iter().flatten() {
                assert!(exclude.parse() != Ok(ip));
            }
        }
    }
    for pair in stretches.windows(2) {
        assert!(pair[0].last < pair[1].first);
    }
    assert!(parsed.total() >= i64::try_from(stretches.len()).unwrap());
});
