//! Health checks: the probes of backends, and the verdicts that follow from the results.
//!
//! Invariants:
//!
//! * A verdict changes only after as many consecutive results as the check demands. So a backend
//!   that fails now and then is not removed and added all the time.
//! * Only the module `spec` makes settings of probes, and it checks the field `spec.healthCheck`
//!   itself. The CRD's schema is not enough, because the API server may serve Harvester's own CRD,
//!   which does not have the operator's rules.

mod doubt;
mod schedule;
pub mod second_opinion;
mod spec;

use std::net::IpAddr;
use std::time::Duration;

pub use doubt::{Doubt, MANY, ProbeHistory, moment};
pub use schedule::{ProbePhase, first, next};
pub use spec::{
    HealthSpecFault, LONGEST_BUNDLE, LONGEST_PATH, LONGEST_PERIOD, LONGEST_TIMEOUT, MOST_IN_A_ROW,
    MOST_STATUSES, check, form,
};

/// Settings for the probes of one LoadBalancer's backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckSettings {
    /// Probe to send.
    pub probe: BackendProbe,
    /// Port of the backend to which a probe connects.
    pub port: u16,
    /// Consecutive successes that make a backend healthy: 1 to [`MOST_IN_A_ROW`].
    pub success_threshold: u32,
    /// Consecutive failures that make a backend unhealthy: 1 to [`MOST_IN_A_ROW`].
    pub failure_threshold: u32,
    /// Time from one probe of a backend to the next: 1 s to [`LONGEST_PERIOD`].
    pub period: Duration,
    /// Time after which a probe counts as failed: 1 s to [`LONGEST_TIMEOUT`]. The timeout may be
    /// longer than the period. A probe is skipped if it is due while the previous probe of the
    /// backend is under way.
    pub timeout: Duration,
}

impl CheckSettings {
    /// Whether `other` has the same probe and the same port. If so, a result of a probe for `other`
    /// is valid for this check. Thresholds, period and timeout do not matter.
    pub fn asks_the_same(&self, other: &Self) -> bool {
        self.port == other.port && self.probe == other.probe
    }
}

/// Probe of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendProbe {
    /// TCP: the backend must accept a connection.
    Tcp,
    /// HTTP: the backend must answer a GET.
    Http(ProbeRequest),
    /// HTTPS: the backend must answer a GET within TLS. The text has CA certificates in PEM, and
    /// no other CA is accepted for the backend's certificate. `None`: the backend's certificate is
    /// not verified.
    Https(ProbeRequest, Option<String>),
}

impl BackendProbe {
    /// Name of the protocol for metrics and logs: `tcp`, `http` or `https`.
    pub fn protocol(&self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Http(_) => "http",
            Self::Https(..) => "https",
        }
    }
}

/// GET request, and the answers that count as success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeRequest {
    /// Path and query: begins with `/`, printable ASCII without spaces.
    pub path: String,
    /// HTTP statuses that count as success, each 100 to 599. Empty: 200 to 399.
    pub expected: Vec<u16>,
    /// Server name, for the Host header and TLS. `None`: the backend's address.
    pub server_name: Option<String>,
}

impl ProbeRequest {
    /// Whether an answer with this HTTP status counts as success.
    pub fn expects(&self, status: u16) -> bool {
        if self.expected.is_empty() {
            (200..400).contains(&status)
        } else {
            self.expected.contains(&status)
        }
    }
}

/// Backend to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeTarget {
    /// UID of the VirtualMachineInstance. Unique among the targets of a LoadBalancer.
    pub id: String,
    /// Address of the backend.
    pub address: IpAddr,
    /// Whether a new target counts as healthy until its probes give a verdict.
    pub assume_healthy: bool,
}

/// Whether a backend can have this address. Loopback, link-local, multicast, broadcast and
/// unspecified addresses are excluded, because a guest can report any address. A probe of such an
/// address could reach the host of this process, a neighbour of this host, or a group of hosts.
pub fn may_be_backend(address: IpAddr) -> bool {
    // An IPv4-mapped IPv6 address leads to the same host as the IPv4 address.
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

/// Verdict on a backend, and the results of probes that contradict this verdict. Times are offsets
/// on one monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendHealth {
    /// Whether the verdict of the probes is healthy. A doubt does not change this field.
    passes: bool,
    /// Number of consecutive results that contradict the verdict.
    against: u32,
    /// Time of the last probe that passed and after which the verdict was healthy. Zero: there was
    /// no such probe in this process.
    passed: Duration,
    /// Time of the first failure after `passed`. `None`: there is no such failure, or the backend
    /// was never healthy.
    failing: Option<Duration>,
    /// Whether the backend's failures are doubted, so that the backend still counts as healthy.
    held: bool,
    /// Whether the backend's failures were doubted before, and now count as real.
    settled: bool,
}

impl BackendHealth {
    /// Health of a backend that has no result of the present check yet. `healthy`: whether the
    /// backend counted as healthy before, for an earlier leader or an earlier check; `false` for an
    /// unknown backend.
    pub const fn assumed(healthy: bool) -> Self {
        let passed = Duration::ZERO;
        Self { passes: healthy, against: 0, passed, failing: None, held: false, settled: false }
    }

    /// Whether the backend counts as healthy: the verdict is healthy, or the failures are doubted.
    pub const fn is_healthy(self) -> bool {
        self.passes || self.held
    }

    /// Whether the backend is healthy only because its failures are doubted.
    pub const fn is_held(self) -> bool {
        self.held
    }

    /// Adds the result of a probe. `passed`: whether the probe passed. `now`: time of this result.
    /// Returns whether the result changed the verdict.
    pub fn observe(&mut self, passed: bool, check: &CheckSettings, now: Duration) -> bool {
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

    /// Results of the backend's probes, as [`moment`] needs them. `None`: the backend was never
    /// healthy, or its failures were doubted before and now count as real. `lb`: LoadBalancer of
    /// the backend, `namespace/name`. `address`: address of the backend.
    pub fn history(self, lb: &str, address: IpAddr) -> Option<ProbeHistory<'_>> {
        let Self { passed, failing, .. } = self;
        let counts = self.passes || (failing.is_some() && !self.settled);
        counts.then_some(ProbeHistory { lb, address, passed, failing })
    }

    /// Times of the last probe that passed and of the first failure after it. `None` in each of
    /// these cases:
    ///
    /// * No probe has failed since the last one that passed.
    /// * The backend was never healthy.
    /// * The backend's failures were doubted before, and now count as real.
    pub fn silence(self) -> Option<(Duration, Duration)> {
        self.failing.filter(|_| !self.settled).map(|since| (self.passed, since))
    }

    /// Whether `moment` is between the two times that [`Self::silence`] returns: the backend's last
    /// success and the first failure after it. `false` if there are no such times.
    fn fell_silent_at(self, moment: Duration) -> bool {
        self.silence().is_some_and(|(passed, since)| (passed..=since).contains(&moment))
    }
}

#[cfg(test)]
mod tests;
