//! Faults of a bad year: one in 31 calls fails, and on one day of thirty no write succeeds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use testbed::Verdict;

/// Faults between the operator and Rancher.
#[derive(Default)]
pub struct Weather {
    /// Whether every call passes.
    pub is_calm: AtomicBool,
    /// Whether every write is refused.
    pub is_storm: AtomicBool,
    calls: AtomicUsize,
    /// Number of calls that failed.
    pub faults: AtomicUsize,
}

impl Weather {
    /// Starts with a calm.
    pub fn of(there: &testbed::Rancher) -> Arc<Self> {
        let weather = Arc::new(Self { is_calm: true.into(), ..Self::default() });
        let rule = Arc::clone(&weather);
        there.set_rule(move |call| {
            let verdict = rule.verdict(call.is_write() && !call.path.ends_with("reviews"));
            let failed = usize::from(!matches!(verdict, Verdict::Pass));
            rule.faults.fetch_add(failed, Ordering::Relaxed);
            verdict
        });
        weather
    }

    fn verdict(&self, is_write: bool) -> Verdict {
        let refuse = |code, reason| Verdict::Refuse { code, reason, message: "no".to_owned() };
        if self.is_calm.load(Ordering::Relaxed) {
            return Verdict::Pass;
        }
        if is_write && self.is_storm.load(Ordering::Relaxed) {
            return refuse(503, "ServiceUnavailable");
        }
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        if !number.is_multiple_of(31) {
            return Verdict::Pass;
        }
        match number / 31 % 6 {
            // One of three replicas behind an ingress is away.
            0 => Verdict::Page(404),
            1 => Verdict::Page(502),
            2 => refuse(503, "ServiceUnavailable"),
            3 => Verdict::CutBefore,
            4 => Verdict::CutAfter,
            _ => refuse(500, "ServerError"),
        }
    }

    pub fn calm(&self, is_calm: bool) {
        self.is_calm.store(is_calm, Ordering::Relaxed);
    }
}
