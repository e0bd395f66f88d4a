//! Leader election: the next action on the Lease, and how long this process may trust that it holds
//! the Lease. A process counts a Lease as expired if *that process* has seen no change of the Lease
//! for the duration that the Lease states. So the clocks of two machines are never compared. The Go
//! controller has the same rule, from client-go. So the Go controller and this operator exclude
//! each other.
//!
//! Times are offsets on one process's monotonic clock.
//!
//! No crate for leader election fits:
//!
//! * `kube-leader-election` and `kube-lease-manager` compare the times in a Lease with the local
//!   clock.
//! * `kube-coordinate` follows client-go, but does not say until when the leadership is valid. So a
//!   process that was paused could write although another process leads.
//! * All three have one lease duration for all processes. This operator needs two: one for its own
//!   replicas, and one for the Go controller ([`ElectionPace::beside_go`]).
//! * None of the three notices that the API server's etcd was restored from a backup.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::object_fields::resource_version::number;

/// Lease durations that a user may configure, in seconds. After a leader's death, another replica
/// leads within about the configured duration plus one [`RETRY`]. Exception: if a replica writes a
/// second opinion into the Lease just after the death, the write counts as a renewal, and the
/// duration starts anew.
pub const LEASE_SECONDS: RangeInclusive<i64> = 3..=60;
/// Default lease duration, in seconds. It is the shortest allowed duration. A slow API server, or a
/// machine that pauses, needs a longer duration.
pub const DEFAULT_LEASE_SECONDS: u8 = 3;
/// Interval at which a replica that does not lead reads the Lease.
pub const RETRY: Duration = Duration::from_millis(400);
/// Safety margin of the Lease's holder. The holder stops acting as the leader at least this much
/// earlier than other replicas may take the Lease.
pub const SAFETY_MARGIN: Duration = Duration::from_millis(500);

/// Lease duration of Harvester's Go controller, in seconds (wrangler, `pkg/leader/leader.go`).
const GO_LEASE_SECONDS: u8 = 45;

/// Lease duration, and the intervals and deadlines of the leader election that follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElectionPace {
    seconds: u8,
    others: u8,
}

impl ElectionPace {
    /// Pace that follows from a lease duration in seconds, which must be in [`LEASE_SECONDS`].
    pub const fn new(seconds: u8) -> Self {
        Self { seconds, others: seconds }
    }

    /// Pace that follows from a lease duration in seconds, for a Lease that Harvester's Go
    /// controller may also take. Programs other than this operator must wait for `seconds`, but at
    /// least for 45 s, the Go controller's own lease duration. So the Go controller does not take
    /// the Lease while an API server stalls for some seconds and replicas cannot renew.
    pub const fn beside_go(seconds: u8) -> Self {
        let others = if seconds > GO_LEASE_SECONDS { seconds } else { GO_LEASE_SECONDS };
        Self { seconds, others }
    }

    /// Time without a renewal after which other replicas of this operator may take the Lease, in
    /// whole seconds.
    pub const fn seconds(self) -> u8 {
        self.seconds
    }

    /// Time without a renewal after which programs other than this operator may take the Lease, in
    /// whole seconds, as in `spec.leaseDurationSeconds`.
    pub const fn others(self) -> u8 {
        self.others
    }

    /// Interval at which the holder renews the Lease: 0.8 s for a duration of 3 s.
    pub fn renew_every(self) -> Duration {
        self.duration() * 4 / 15
    }

    /// Time limit of one round: the read of the Lease, and the write that may follow. 1.2 s for a
    /// duration of 3 s. A round that takes longer is given up, and the next round starts.
    pub fn deadline(self) -> Duration {
        self.duration() * 2 / 5
    }

    /// Time until which the holder may act as the leader: `sent`, plus the lease duration, less
    /// [`SAFETY_MARGIN`]. `sent`: start of the last round in which the API server accepted the
    /// holder's renewal.
    pub fn trusted_until(self, sent: Duration) -> Duration {
        sent + self.duration().saturating_sub(SAFETY_MARGIN)
    }

    fn duration(self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }
}

/// Lease as this process last read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseSeen {
    /// `spec.holderIdentity`; empty when the Lease was released.
    pub holder: String,
    /// Lease duration, from the annotation in which a replica of this operator records it. If
    /// another controller holds the Lease, or the annotation is missing or invalid, the duration is
    /// `spec.leaseDurationSeconds`.
    pub duration: Duration,
    /// `metadata.resourceVersion`. Any change of the version counts as a sign that the holder is
    /// alive.
    pub version: String,
    /// Identity of the last replica of this operator that acquired the Lease. The identity is in an
    /// annotation, which Harvester's Go controller leaves unchanged. Empty: no replica has acquired
    /// the Lease.
    pub operator: String,
}

impl LeaseSeen {
    /// Identity of the holder, if the holder is a controller other than this operator. `None`: a
    /// replica of this operator holds the Lease, or no process holds it.
    pub fn other_controller(&self) -> Option<&str> {
        Some(self.holder.as_str()).filter(|holder| !holder.is_empty() && *holder != self.operator)
    }
}

/// Next action on the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAction {
    /// Create the Lease, because there is none.
    Create,
    /// Replace the Lease and count one more transition, because the Lease is free or expired.
    Acquire,
    /// Replace the Lease with a new renewal time, because this process holds the Lease.
    Renew,
    /// Wait until this time, because another process holds the Lease. If the Lease does not change
    /// until then, it expires.
    Wait(Duration),
    /// Restart the process, because the Lease has a smaller resourceVersion than at an earlier
    /// read.
    StartAnew(StoreWentBack),
}

/// Sign that the API server's etcd was restored from a backup: the Lease has a smaller
/// resourceVersion than at an earlier read. An outdated read is not the cause, because the API
/// server reads a Lease with a quorum of etcd.
///
/// After the restore, the API server assigns some resourceVersions a second time, to other content.
/// This process's caches have the first content of these versions. A watch from such a version gets
/// no events until the version is assigned again. So the process must restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the Lease's resourceVersion went back from {from} to {to}, as after a restore of etcd from a backup: \
     data read before is no longer valid, and this process restarts"
)]
pub struct StoreWentBack {
    /// Greatest resourceVersion of the Lease that this process has read.
    pub from: u128,
    /// resourceVersion of the Lease at the latest read, less than `from`.
    pub to: u128,
}

/// Lease as this process last read it, and the time at which this process last observed a change of
/// the Lease.
#[derive(Clone, Debug, Default)]
pub struct LeaseObserver {
    seen: Option<(LeaseSeen, Duration)>,
    /// Greatest resourceVersion of the Lease that this process has read.
    newest: u128,
}

impl LeaseObserver {
    /// Decides the next action on the Lease that was read at `now`. `lease`: `None` if there is no
    /// Lease. `me`: identity of this process in `spec.holderIdentity`.
    pub fn decide(&mut self, lease: Option<LeaseSeen>, me: &str, now: Duration) -> LeaseAction {
        let Some(lease) = lease else {
            self.seen = None;
            return LeaseAction::Create;
        };
        // A resourceVersion that is not a number cannot show a restore of etcd, so it counts as
        // unchanged.
        let version = number(&lease.version).unwrap_or(self.newest);
        if version < self.newest {
            return LeaseAction::StartAnew(StoreWentBack { from: self.newest, to: version });
        }
        self.newest = version;
        let since = match &self.seen {
            Some((seen, since)) if *seen == lease => *since,
            _ => now,
        };
        let until = since + lease.duration;
        let action = match lease.holder.as_str() {
            "" => LeaseAction::Acquire,
            holder if holder == me => LeaseAction::Renew,
            _ if now >= until => LeaseAction::Acquire,
            _ => LeaseAction::Wait(until),
        };
        self.seen = Some((lease, since));
        action
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str, version: &str) -> LeaseSeen {
        LeaseSeen {
            holder: holder.to_owned(),
            duration: Duration::from_secs(45),
            version: version.to_owned(),
            operator: "replica".to_owned(),
        }
    }

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn an_absent_lease_is_created_and_a_returned_one_acquired() {
        let mut observer = LeaseObserver::default();
        assert_eq!(observer.decide(None, "me", at(0)), LeaseAction::Create);
        assert_eq!(observer.decide(Some(lease("", "1")), "me", at(0)), LeaseAction::Acquire);
    }

    /// The annotation that names the last replica stays while Harvester's Go controller leads. The
    /// reason is client-go's lock: it reads the Lease, changes the Lease's `spec`, and writes the
    /// whole Lease back (`leaselock.go`, `Update`).
    #[test]
    fn a_holder_that_is_no_replica_of_the_operator_is_another_controller() {
        assert_eq!(lease("go", "1").other_controller(), Some("go"));
        assert_eq!(lease("replica", "1").other_controller(), None);
        assert_eq!(lease("", "1").other_controller(), None);
    }

    #[test]
    fn our_own_lease_is_renewed() {
        assert_eq!(
            LeaseObserver::default().decide(Some(lease("me", "1")), "me", at(9)),
            LeaseAction::Renew
        );
    }

    /// The duration of a Lease counts from the time at which this process last observed a change of
    /// the Lease. The times in the Lease do not matter.
    #[test]
    fn a_foreign_lease_is_taken_only_after_its_own_duration_without_change() {
        let mut observer = LeaseObserver::default();
        assert_eq!(
            observer.decide(Some(lease("go", "1")), "me", at(100)),
            LeaseAction::Wait(at(145))
        );
        assert_eq!(
            observer.decide(Some(lease("go", "1")), "me", at(144)),
            LeaseAction::Wait(at(145))
        );
        assert_eq!(
            observer.decide(Some(lease("go", "2")), "me", at(144)),
            LeaseAction::Wait(at(189))
        );
        assert_eq!(observer.decide(Some(lease("go", "2")), "me", at(189)), LeaseAction::Acquire);
    }

    #[test]
    fn a_lease_of_an_older_version_is_of_a_store_that_went_back() {
        let mut observer = LeaseObserver::default();
        observer.decide(Some(lease("me", "10")), "me", at(0));
        // A Lease that is deleted and created again gets a greater resourceVersion. So a smaller
        // one means that the API server's store went back.
        assert_eq!(observer.decide(None, "me", at(1)), LeaseAction::Create);
        let back = StoreWentBack { from: 10, to: 9 };
        for holder in ["me", "go", ""] {
            let action = observer.decide(Some(lease(holder, "9")), "me", at(2));
            assert_eq!(action, LeaseAction::StartAnew(back), "{holder:?}");
        }
        assert_eq!(observer.decide(Some(lease("me", "10")), "me", at(3)), LeaseAction::Renew);
        // A resourceVersion that is not a number counts as unchanged.
        assert_eq!(observer.decide(Some(lease("me", "a")), "me", at(4)), LeaseAction::Renew);
    }

    #[test]
    fn a_lease_ends_for_its_holder_before_it_ends_for_others() {
        for seconds in LEASE_SECONDS {
            let pace = ElectionPace::new(u8::try_from(seconds).unwrap());
            let lasts = Duration::from_secs(pace.seconds().into());
            let trusted = pace.trusted_until(at(10));
            assert!(trusted < at(10) + lasts, "{seconds}");
            // If one renewal times out, the holder can send another one before its leadership
            // ends.
            assert!(at(10) + pace.renew_every() + pace.deadline() < trusted, "{seconds}");
        }
        let pace = ElectionPace::beside_go(DEFAULT_LEASE_SECONDS);
        assert_eq!((pace.seconds(), pace.others()), (3, 45));
        assert_eq!(ElectionPace::beside_go(60).others(), 60);
        assert_eq!([pace.renew_every(), pace.deadline()].map(|d| d.as_millis()), [800, 1_200]);
    }
}
