//! The allocator alone: the cost of one claim for pools of several sizes.

use std::hint::black_box;
use std::time::{Duration, Instant};

use harvester_guest_operator::api::Range;
use harvester_guest_operator::domain::Owner;
use harvester_guest_operator::domain::pools::ledger::Ledger;
use harvester_guest_operator::domain::pools::ranges::PoolRanges;

/// A time of one operation.
pub(crate) struct Row {
    pub(crate) pool: &'static str,
    pub(crate) what: &'static str,
    pub(crate) nanoseconds: f64,
}

/// Most claims of one measurement.
const CLAIMS: usize = 65_533;
/// Number of runs for the median.
const RUNS: usize = 9;

pub(crate) fn measure() -> Vec<Row> {
    let mut rows = Vec::new();
    for (pool, subnet, claims) in [
        ("/24", "10.0.0.0/24", 253),
        ("/16", "10.0.0.0/16", 8_000),
        ("IPv6 /64", "fd00::/64", 8_000),
    ] {
        let ranges = parse(subnet);
        let owners: Vec<Owner> = (0..claims.min(CLAIMS)).map(owner).collect();
        rows.push(Row {
            pool,
            what: "load",
            nanoseconds: median(|| {
                let began = Instant::now();
                black_box(Ledger::new(ranges.clone(), None));
                (began.elapsed(), 1)
            }),
        });
        rows.push(Row {
            pool,
            what: "claim any",
            nanoseconds: median(|| {
                let mut ledger = Ledger::new(ranges.clone(), None);
                timed(&owners, |owner| {
                    let _ = black_box(ledger.claim(owner));
                })
            }),
        });
        rows.push(Row {
            pool,
            what: "claim specific",
            nanoseconds: median(|| {
                let mut ledger = Ledger::new(ranges.clone(), None);
                let mut ips: Vec<_> =
                    owners.iter().filter_map(|owner| ledger.claim(owner).ok()).collect();
                // From the middle outwards, so that the free intervals split.
                let middle = ips.len() / 2;
                ips.rotate_left(middle);
                let mut ledger = Ledger::new(ranges.clone(), None);
                let mut ips = ips.into_iter();
                timed(&owners, |owner| {
                    black_box(ips.next().is_some_and(|ip| ledger.restore(ip, owner)));
                })
            }),
        });
        rows.push(Row {
            pool,
            what: "release",
            nanoseconds: median(|| {
                let mut ledger = Ledger::new(ranges.clone(), None);
                let mut ips: Vec<_> =
                    owners.iter().filter_map(|owner| ledger.claim(owner).ok()).collect();
                timed(&owners, |_| drop(black_box(ips.pop().and_then(|ip| ledger.release(ip)))))
            }),
        });
    }
    let mut ledger = Ledger::new(parse("10.0.0.0/24"), None);
    let mut index = 0;
    while ledger.claim(&owner(index)).is_ok() {
        index += 1;
    }
    let late: Vec<Owner> = (index..index + 1_000).map(owner).collect();
    rows.push(Row {
        pool: "/24",
        what: "claim when full",
        nanoseconds: median(|| {
            timed(&late, |owner| {
                let _ = black_box(ledger.claim(owner));
            })
        }),
    });
    rows
}

fn timed(owners: &[Owner], mut each: impl FnMut(&Owner)) -> (Duration, usize) {
    let began = Instant::now();
    for owner in owners {
        each(owner);
    }
    (began.elapsed(), owners.len())
}

/// Median of nanoseconds per operation.
fn median(mut run: impl FnMut() -> (Duration, usize)) -> f64 {
    let mut times: Vec<f64> = (0..RUNS)
        .map(|_| {
            let (time, operations) = run();
            time.as_secs_f64() * 1e9 / operations.max(1) as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[RUNS / 2]
}

fn owner(index: usize) -> Owner {
    Owner {
        name: format!("default/kubernetes-default-web-{index:08}"),
        uid: format!("0f8fad5b-d9cb-469f-a165-{index:012}"),
    }
}

#[allow(clippy::expect_used)] // The texts are constants above.
fn parse(subnet: &str) -> PoolRanges {
    PoolRanges::parse(&[Range { subnet: subnet.to_owned(), ..Range::default() }]).expect("a subnet")
}
