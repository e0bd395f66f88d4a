//! The report: tables for people, and the same as JSON for machines.

use std::time::Duration;

use serde_json::{Value, json};

use crate::admission::Calls;
use crate::allocator::Row;
use crate::endpoints::Endpoints;
use crate::floor::Floor;
use crate::hostile::HostileCost;
use crate::rotations::Rotations;
use crate::{Ours, quantiles};

/// Measurements of one burst of `count` LoadBalancers, with the floor and with the operator.
pub(crate) struct AtOnce {
    pub(crate) count: usize,
    pub(crate) floor: Floor,
    pub(crate) ours: Ours,
}

/// Times to an address, one at a time, in a pool that `left` LoadBalancers have left.
pub(crate) struct Singles {
    pub(crate) left: usize,
    pub(crate) floor: Vec<Duration>,
    pub(crate) ours: Vec<Duration>,
}

/// Prints the bursts.
pub(crate) fn addresses(rows: &[AtOnce]) -> Value {
    println!(
        "\n{:>6} {:>9} {:>9} {:>6} {:>8} {:>6} {:>8} {:>9} {:>9} {:>6} {:>6} {:>8} {:>5} {:>8}",
        "LBs",
        "floor s",
        "ours s",
        "ratio",
        "wr/addr",
        "pool",
        "CPU s/k",
        "del fl s",
        "del s",
        "ratio",
        "pool",
        "CPU s/k",
        "409",
        "RSS MiB"
    );
    rows.iter().map(at_once).collect()
}

/// Prints times to an address, one at a time, each with the floor's three writes after it.
pub(crate) fn singles(rows: &[Singles]) -> Value {
    println!("\none by one, creation to observed address");
    let row = |Singles { left, floor, ours }: &Singles| {
        let (floor, ours) = (quantiles(floor), quantiles(ours));
        println!("in a pool that {left:>5} have left: {ours}");
        println!("{:>32} {floor}", "floor:");
        json!({"left": left, "floor": floor, "ours": ours})
    };
    rows.iter().map(row).collect()
}

/// Prints the cost of the allocator's operations.
pub(crate) fn allocator(rows: &[Row]) -> Value {
    println!("\n{:>9} {:>16} {:>9}", "pool", "operation", "ns");
    for row in rows {
        println!("{:>9} {:>16} {:>9.0}", row.pool, row.what, row.nanoseconds);
    }
    rows.iter()
        .map(|row| json!({"pool": row.pool, "operation": row.what, "ns": row.nanoseconds}))
        .collect()
}

/// Prints the highest cost of single events.
pub(crate) fn worst(events: &[(&str, Duration)]) -> Value {
    println!("\nevents that cost the most");
    let mut report = serde_json::Map::new();
    for (what, took) in events {
        let ms = took.as_secs_f64() * 1e3;
        println!("{what:<60} {ms:>8.2} ms");
        report.insert((*what).to_owned(), json!(ms));
    }
    Value::Object(report)
}

/// Prints the cost of serving VMs.
pub(crate) fn endpoints(vms: &Endpoints) -> Value {
    let seconds = |time: Duration| time.as_secs_f64();
    let (floor, ours) = (quantiles(&vms.floor_changes), quantiles(&vms.changes));
    println!("\n500 vm load balancers, 20,000 VMs");
    println!("lists of VMs and pods after           {:>8.2} s", seconds(vms.listed));
    println!("from there to the first slice         {:>8.2} s", seconds(vms.first_slice));
    println!(
        "to all slices                         {:>8.2} s, floor {:.2} s",
        seconds(vms.all_slices),
        seconds(vms.floor_slices)
    );
    println!("peak RSS                              {:>8.1} MiB", vms.peak_rss_mib);
    println!("CPU for a VM that changes for good    {:>8.2} ms", vms.cpu_ms_for_good);
    println!("CPU for a VM that is back at once     {:>8.2} ms a change", vms.cpu_ms_a_change);
    println!("CPU for a change that alters no slice {:>8.2} ms", vms.cpu_ms_no_change);
    println!("slice writes                          {:>8}", vms.slice_writes);
    println!("change of a VM to its slice: {ours}");
    println!("the floor's two writes:       {floor}");
    json!({
        "listed_seconds": seconds(vms.listed),
        "first_slice_seconds": seconds(vms.first_slice),
        "all_slices_seconds": seconds(vms.all_slices),
        "floor_slices_seconds": seconds(vms.floor_slices),
        "peak_rss_mib": vms.peak_rss_mib,
        "cpu_ms_for_good": vms.cpu_ms_for_good,
        "cpu_ms_a_change": vms.cpu_ms_a_change,
        "cpu_ms_no_change": vms.cpu_ms_no_change,
        "slice_writes": vms.slice_writes,
        "change": {"floor": floor, "ours": ours},
    })
}

/// Prints the times of admission, and returns them.
pub(crate) fn admission(measured: &Calls) -> Value {
    println!("\nadmission, 10,000 load balancers, 100 pools");
    let mut report = serde_json::Map::new();
    for (what, times) in &measured.by_question {
        let times = quantiles(times);
        println!("{what:<40} {times}");
        report.insert((*what).to_owned(), times);
    }
    let (without, with) = (quantiles(&measured.without), quantiles(&measured.with));
    println!("a dry-run creation, without admission    {without}");
    println!("a dry-run creation, with admission       {with}");
    for (count, time) in &measured.lists {
        let millis = time.as_secs_f64() * 1e3;
        println!("conversion of a list of {count:<6}           {millis:>8.2} ms");
        report.insert(format!("conversion_{count}_ms"), json!(millis));
    }
    println!("peak RSS                              {:>8.1} MiB", measured.peak_rss_mib);
    report.insert("creation_without".to_owned(), without);
    report.insert("creation_with".to_owned(), with);
    report.insert("peak_rss_mib".to_owned(), json!(measured.peak_rss_mib));
    Value::Object(report)
}

/// Prints the cost of hostile requests.
pub(crate) fn hostile(costs: &[HostileCost]) -> Value {
    println!("\n{:<32} {:>8} {:>7} {:>13}", "hostile request", "MiB", "CPU s", "RSS MiB more");
    let row = |HostileCost { what, body_mib, cpu, rss_mib }: &HostileCost| {
        let cpu = cpu.as_secs_f64();
        println!("{what:<32} {body_mib:>8.1} {cpu:>7.2} {rss_mib:>13.1}");
        json!({"request": what, "body_mib": body_mib, "cpu_seconds": cpu, "rss_mib": rss_mib})
    };
    costs.iter().map(row).collect()
}

/// Prints the times of replaced credentials, and returns them.
pub(crate) fn rotations(measured: &Rotations) -> Value {
    let seconds = |time: Duration| time.as_secs_f64();
    let count = measured.count as f64;
    let fullest = |each: &[f64]| each.iter().copied().fold(0.0, f64::max);
    let calls = measured.calls.iter().sum::<f64>() / count;
    let cpu_ms = seconds(measured.cpu) * 1e3 / count;
    println!("\n{} TokenRotations that are due at once", measured.count);
    println!(
        "all are replaced          {:>8.1} s, floor {:.1} s",
        seconds(measured.took),
        seconds(measured.floor)
    );
    println!("in the fullest second     {:>8}", fullest(&measured.published));
    println!("calls for each            {calls:>8.1}, floor 4");
    println!("calls, the fullest second {:>8}", fullest(&measured.calls));
    println!("CPU for each              {cpu_ms:>8.1} ms");
    println!("peak RSS                  {:>8.1} MiB", measured.peak_rss_mib);
    println!("steps that failed {}, tokens that work {}", measured.failed, measured.alive);
    json!({
        "rotations": measured.count,
        "seconds": seconds(measured.took),
        "floor_seconds": seconds(measured.floor),
        "fullest_second": fullest(&measured.published),
        "calls_each": calls,
        "calls_in_fullest_second": fullest(&measured.calls),
        "cpu_ms_each": cpu_ms,
        "peak_rss_mib": measured.peak_rss_mib,
        "failed": measured.failed,
        "alive": measured.alive,
    })
}

fn at_once(row: &AtOnce) -> Value {
    let AtOnce { count, floor, ours } = row;
    let seconds = |time: Duration| time.as_secs_f64();
    let ratio = seconds(ours.addressed) / seconds(floor.addressed);
    let delete_ratio = seconds(ours.deleted) / seconds(floor.deleted);
    let per_address = (ours.lb_writes + ours.pool_writes) / *count as f64;
    let per_thousand = |cpu: Duration| seconds(cpu) * 1e3 / *count as f64;
    let (cpu, delete_cpu) = (per_thousand(ours.cpu), per_thousand(ours.delete_cpu));
    println!(
        "{count:>6} {:>9.2} {:>9.2} {ratio:>6.2} {per_address:>8.3} {:>6} {cpu:>8.2} {:>9.2} {:>9.2} {delete_ratio:>6.2} {:>6} {delete_cpu:>8.2} {:>5} {:>8.1}",
        seconds(floor.addressed),
        seconds(ours.addressed),
        ours.pool_writes,
        seconds(floor.deleted),
        seconds(ours.deleted),
        ours.delete_pool_writes,
        ours.conflicts,
        ours.peak_rss_mib
    );
    json!({
        "load_balancers": count,
        "floor_seconds": seconds(floor.addressed),
        "ours_seconds": seconds(ours.addressed),
        "created_seconds": seconds(ours.created),
        "ratio": ratio,
        "floor_delete_seconds": seconds(floor.deleted),
        "ours_delete_seconds": seconds(ours.deleted),
        "delete_ratio": delete_ratio,
        "lb_writes": ours.lb_writes,
        "pool_writes": ours.pool_writes,
        "delete_pool_writes": ours.delete_pool_writes,
        "writes_per_address": per_address,
        "conflicts": ours.conflicts,
        "peak_rss_mib": ours.peak_rss_mib,
        "cpu_seconds_per_1000": cpu,
        "delete_cpu_seconds_per_1000": delete_cpu,
    })
}
