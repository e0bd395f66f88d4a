//! Owns the record of this machine's stalls.
//!
//! The host of a virtual machine may withhold its processors for seconds, together or one by one,
//! and work on them is late through no fault of its own. A test that asserts an upper bound on a
//! time subtracts such time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const TICK: Duration = Duration::from_millis(20);
/// Shortest gap between ticks that counts as a stall: a busy scheduler does not explain it.
const LONG: Duration = Duration::from_millis(200);

/// Ticks on each processor until it is dropped.
#[derive(Debug)]
pub struct Stalls {
    lanes: Vec<Arc<Mutex<Lane>>>,
    over: Arc<AtomicBool>,
}

/// Ticks of one processor.
#[derive(Debug)]
struct Lane {
    last: Instant,
    gaps: Vec<(Instant, Instant)>,
}

impl Lane {
    fn tick(&mut self, now: Instant) {
        if now.duration_since(self.last) > LONG {
            self.gaps.push((self.last, now));
        }
        self.last = now;
    }
}

impl Stalls {
    /// Begins to tick on every processor that this process may use.
    pub fn watch() -> Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let ours = sched_getaffinity(None)?;
        let mut lanes = Vec::new();
        for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| ours.is_set(*cpu)) {
            let lane = Arc::new(Mutex::new(Lane { last: Instant::now(), gaps: Vec::new() }));
            let (ticking, end) = (lane.clone(), over.clone());
            thread::Builder::new().name(format!("tick-{cpu}")).spawn(move || {
                let mut only = CpuSet::new();
                only.set(cpu);
                // A processor that went offline meanwhile is skipped.
                if sched_setaffinity(None, &only).is_err() {
                    return;
                }
                while !end.load(Ordering::Relaxed) {
                    thread::sleep(TICK);
                    lock(&ticking).tick(Instant::now());
                }
            })?;
            lanes.push(lane);
        }
        Ok(Self { lanes, over })
    }

    /// Time between the two moments in which at least one processor stalled.
    pub fn between(&self, from: Instant, to: Instant) -> Duration {
        let now = Instant::now();
        let mut gaps = Vec::new();
        for lane in &self.lanes {
            let lane = lock(lane);
            gaps.extend(lane.gaps.iter().copied());
            // A stall that has not ended.
            if now.duration_since(lane.last) > LONG {
                gaps.push((lane.last, now));
            }
        }
        covered(gaps, from, to)
    }

    /// Time since then, without stalls.
    pub fn elapsed(&self, since: Instant) -> Duration {
        let now = Instant::now();
        now.duration_since(since).saturating_sub(self.between(since, now))
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Time between the two moments that lies in any of the gaps.
fn covered(mut gaps: Vec<(Instant, Instant)>, from: Instant, to: Instant) -> Duration {
    gaps.sort();
    let (mut sum, mut done) = (Duration::ZERO, from);
    for (begin, end) in gaps {
        let (begin, end) = (begin.max(done), end.min(to));
        if begin < end {
            sum += end.duration_since(begin);
            done = end;
        }
    }
    sum
}

fn lock(lane: &Mutex<Lane>) -> MutexGuard<'_, Lane> {
    lane.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_counts_once_and_only_within_the_bounds() {
        let start = Instant::now();
        let at = |second: u64| start + Duration::from_secs(second);
        let gaps = vec![(at(8), at(12)), (at(1), at(4)), (at(3), at(5)), (at(3), at(4))];
        assert_eq!(covered(gaps.clone(), at(0), at(20)), Duration::from_secs(8));
        assert_eq!(covered(gaps.clone(), at(2), at(9)), Duration::from_secs(4));
        assert_eq!(covered(gaps, at(5), at(8)), Duration::ZERO);
    }

    #[test]
    fn a_late_tick_is_a_gap() {
        let start = Instant::now();
        let mut lane = Lane { last: start, gaps: Vec::new() };
        lane.tick(start + LONG);
        assert!(lane.gaps.is_empty());
        lane.tick(start + LONG * 3);
        assert_eq!(lane.gaps, [(start + LONG, start + LONG * 3)]);
        assert!(Stalls::watch().unwrap().elapsed(start) <= start.elapsed());
    }
}
