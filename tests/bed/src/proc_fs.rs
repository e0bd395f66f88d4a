//! Owns reading other processes' state from `/proc`, and lowering the peak of their memory there.

use std::time::Duration;
use std::{fs, io};

/// Whether the process exists and is not merely waiting to be reaped.
pub(crate) fn is_running(pid: u32) -> bool {
    let is_zombie = |fields: Vec<String>| fields.first().is_some_and(|state| state == "Z");
    // The first thread may have ended before the others, which still hold its sockets.
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    stat_fields(pid).is_some_and(|fields| !is_zombie(fields) || threads > 1)
}

/// Peak memory of the process so far, in KiB.
pub(crate) fn peak_rss_kib(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Lowers the peak memory of the process to its present memory.
pub(crate) fn reset_peak_rss(pid: u32) -> io::Result<()> {
    fs::write(format!("/proc/{pid}/clear_refs"), "5")
}

/// Processor time of the process so far, in user and kernel mode together.
pub(crate) fn cpu_time(pid: u32) -> Option<Duration> {
    let fields = stat_fields(pid)?;
    let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
    // Fields 14 and 15 of the line; a tick is 10 ms on every Linux that matters here.
    Some(Duration::from_millis((ticks(11)? + ticks(12)?) * 10))
}

/// Soft and hard limit of a core dump, as the kernel writes them.
pub(crate) fn core_limit(pid: u32) -> Option<(String, String)> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max core file size"))?;
    let mut words = line.split_whitespace().map(str::to_owned);
    Some((words.next()?, words.next()?))
}

/// Fields of `/proc/PID/stat` from the state on. The name before them may hold blanks and brackets,
/// so the last closing bracket ends it.
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::process;

    use super::{peak_rss_kib, reset_peak_rss};

    #[test]
    fn after_a_reset_the_peak_is_without_memory_that_is_freed() {
        drop(black_box(vec![1_u8; 128 << 20]));
        let before = peak_rss_kib(process::id()).unwrap();
        reset_peak_rss(process::id()).unwrap();
        let after = peak_rss_kib(process::id()).unwrap();
        // Other tests of this process take and free memory meanwhile.
        assert!(after + (64 << 10) < before, "{before} -> {after} KiB");
    }
}
