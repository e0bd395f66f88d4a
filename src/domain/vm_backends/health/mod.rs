//! What a health check asks, and what its answers mean.
//!
//! Invariants: a verdict changes only after as many results in a row as the check demands, so a
//! backend that fails now and then does not come and go. What is asked of a backend is read
//! from the spec in one place ([`check`]), which trusts no schema: Harvester's own CRD may be
//! the one that is served, and it does not know our rules.

mod doubt;
mod schedule;
pub mod second_opinion;
mod spec;

use std::net::IpAddr;
use std::time::Duration;

pub use doubt::{Doubt, MANY, Sight, moment};
pub use schedule::{Phase, first, next};
pub use spec::{
    Fault, LONGEST_BUNDLE, LONGEST_PATH, LONGEST_PERIOD, LONGEST_TIMEOUT, MOST_IN_A_ROW,
    MOST_STATUSES, check, form,
};

/// How the backends of one LoadBalancer are probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What is asked.
    pub probe: Probe,
    /// The port of the backend.
    pub port: u16,
    /// Successes in a row that make a backend healthy: 1 to [`MOST_IN_A_ROW`].
    pub success_threshold: u32,
    /// Failures in a row that make a backend unhealthy: 1 to [`MOST_IN_A_ROW`].
    pub failure_threshold: u32,
    /// From one probe of a backend to its next: 1 s to [`LONGEST_PERIOD`].
    pub period: Duration,
    /// When a probe counts as failed, from its beginning: 1 s to [`LONGEST_TIMEOUT`]. It may be
    /// longer than the period; a probe that is due while the last one is under way is skipped.
    pub timeout: Duration,
}

impl Check {
    /// Whether an answer to the other check answers this one: thresholds, period and timeout
    /// say how answers are gathered, not what they are about.
    pub fn asks_the_same(&self, other: &Self) -> bool {
        self.port == other.port && self.probe == other.probe
    }
}

/// What is asked of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// That it accepts a connection.
    Tcp,
    /// That it answers a GET.
    Http(Request),
    /// That it answers a GET within TLS. With certificates in PEM: one of them must have signed
    /// the backend's. Without: the backend's certificate is not looked at.
    Https(Request, Option<String>),
}

impl Probe {
    /// A word for metrics and logs: `tcp`, `http` or `https`.
    pub fn protocol(&self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Http(_) => "http",
            Self::Https(..) => "https",
        }
    }
}

/// A GET, and which answers count as success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Path and query: begins with `/`, printable ASCII without spaces.
    pub path: String,
    /// Statuses that count as success, each 100 to 599. Empty: 200 to 399.
    pub expected: Vec<u16>,
    /// The name asked for, in the Host header and in TLS. `None`: the backend's address.
    pub server_name: Option<String>,
}

impl Request {
    /// Whether the status counts as success.
    pub fn expects(&self, status: u16) -> bool {
        if self.expected.is_empty() {
            (200..400).contains(&status)
        } else {
            self.expected.contains(&status)
        }
    }
}

/// A backend to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Who it is: the VirtualMachineInstance's UID. Unique among the targets of a LoadBalancer.
    pub id: String,
    /// Where it is.
    pub address: IpAddr,
    /// What to believe of this address until probes say otherwise, if it was not known before.
    pub assume_healthy: bool,
}

/// Whether a backend can be at the address. This process's own host, all hosts and "any" are not
/// backends: a guest that reports such an address for itself must not make us probe there.
pub fn may_be_backend(address: IpAddr) -> bool {
    // An IPv4 address in IPv6 clothes leads to the same place.
    match address.to_canonical() {
        IpAddr::V4(ip) => {
            // 0.0.0.0/8 is "this network"; Linux connects 0.0.0.0 to loopback.
            let this_network = ip.octets()[0] == 0;
            !(this_network
                || ip.is_loopback()
                || ip.is_link_local()
                || ip.is_multicast()
                || ip.is_broadcast())
        }
        IpAddr::V6(ip) => {
            !(ip.is_unspecified()
                || ip.is_loopback()
                || ip.is_unicast_link_local()
                || ip.is_multicast())
        }
    }
}

/// The verdict on a backend, and what speaks against it. Times are offsets on one monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// Result of the probes, believed or not.
    passes: bool,
    /// Results in a row that contradict that.
    against: u32,
    /// Time of the last probe that passed, of one that is healthy; zero if none of this process did.
    passed: Duration,
    /// Time of the first that failed since. `None`, too, for a backend that was never healthy.
    failing: Option<Duration>,
    /// Whether its failures are doubted.
    held: bool,
    /// Whether its failures were doubted, and are believed now.
    settled: bool,
}

impl Health {
    /// A verdict that no probe of this process has confirmed: what an earlier leader published,
    /// or `false` for a backend that nobody has seen.
    pub const fn assumed(healthy: bool) -> Self {
        let passed = Duration::ZERO;
        Self { passes: healthy, against: 0, passed, failing: None, held: false, settled: false }
    }

    /// The verdict.
    pub const fn is_healthy(self) -> bool {
        self.passes || self.held
    }

    /// Whether it is healthy only because its failures are doubted.
    pub const fn is_held(self) -> bool {
        self.held
    }

    /// Takes in a result. True when what the probes say turned.
    pub fn observe(&mut self, passed: bool, check: &Check, now: Duration) -> bool {
        if self.passes && passed {
            self.passed = now;
            self.failing = None;
        } else if self.passes {
            self.failing.get_or_insert(now);
        }
        if passed == self.passes {
            self.against = 0;
            return false;
        }
        self.against = self.against.saturating_add(1);
        let needed = if passed { check.success_threshold } else { check.failure_threshold };
        if self.against < needed {
            return false;
        }
        *self = if passed {
            Self { passed: now, ..Self::assumed(true) }
        } else {
            Self { passes: false, against: 0, ..*self }
        };
        true
    }

    /// State of the way to the target, if it passes, or did before it failed and no replica has
    /// settled why.
    pub fn sight(self, lb: &str, address: IpAddr) -> Option<Sight<'_>> {
        let Self { passed, failing, .. } = self;
        let counts = self.passes || (failing.is_some() && !self.settled);
        counts.then_some(Sight { lb, address, passed, failing })
    }

    /// Times of the last pass and of the first failure since, if it fails and no replica has settled why.
    pub fn silence(self) -> Option<(Duration, Duration)> {
        self.failing.filter(|_| !self.settled).map(|since| (self.passed, since))
    }

    /// Whether it fails, did not before the moment, and has not passed since.
    fn fell_silent_at(self, moment: Duration) -> bool {
        self.silence().is_some_and(|(passed, since)| (passed..=since).contains(&moment))
    }
}

#[cfg(test)]
mod tests;
