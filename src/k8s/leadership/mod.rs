//! Leader election by a Lease. For the operator, this is the Go controller's Lease, so that the Go
//! controller and the operator exclude each other. The rules, and why no crate fits, are in
//! [`crate::domain::leader_election`].
//!
//! [`Leadership`] has an expiry, and ends by itself if it is not renewed. Each writer checks
//! [`Leadership::is_current`] at the moment of writing. Times come from a clock that goes on during
//! suspension, because other processes do not wait for a suspended machine.
//!
//! The Lease also carries a question of the leader to the other replicas, and the answer of one of
//! them ([`ReplicaNotes`]). The leader sends the question with a renewal. The answer is a separate
//! write to the Lease, and the replicas that wait for the Lease take this write for a renewal. So
//! if the leader dies just before the write, the write delays the next leader by up to one Lease
//! duration.

mod release;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};
use tokio::sync::{Notify, watch};

use super::calls::{ApiCalls as _, ApiWrites as _, TimedApi};
use super::{CallError, clock};
use crate::api::{
    ANNOTATION_LEASE_ANSWER, ANNOTATION_LEASE_OPERATOR, ANNOTATION_LEASE_QUESTION,
    ANNOTATION_LEASE_SECONDS,
};
use crate::domain::leader_election::{
    ElectionPace, LeaseAction, LeaseObserver, LeaseSeen, RETRY, StoreWentBack,
};
use crate::locks::lock;

/// Number of consecutive failed rounds of the elector after which expired leadership becomes
/// [`LeadershipState::Silent`]. A single failed round does not suffice: this process may have been
/// frozen during that round, while the API server worked.
const SILENT: u32 = 2;

/// State of this process's leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeadershipState {
    /// No leadership, for one of these reasons:
    /// * This process has never held the Lease, or has released the Lease.
    /// * The Lease was read, and no longer names this process.
    /// * The API server's store has gone back to an older state.
    Lost,
    /// Expired leadership, after [`SILENT`] or more consecutive rounds of the elector have failed:
    /// the API server does not answer, or answers with errors. Another process may have taken the
    /// Lease after the expiry.
    Silent,
    /// Valid leadership, or leadership that expired a moment ago and that this process tries to
    /// renew.
    Held,
}

/// Messages between replicas. They are stored in annotations of the Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaNotes {
    /// Question of the leader to the other replicas. `None`: the leader has no question.
    pub question: Option<String>,
    /// Answer to `question`, from a replica that does not lead. `None`: no answer yet.
    pub answer: Option<String>,
}

/// Leadership of this process: its expiry, and the messages in the Lease. The elector changes the
/// expiry, and all writers check it.
#[derive(Debug)]
pub struct Leadership {
    /// Time of the creation of this value.
    started: Duration,
    /// Time at which the leadership expires. Zero: this process does not lead.
    until: Mutex<Duration>,
    leading: watch::Sender<bool>,
    state: watch::Sender<LeadershipState>,
    /// Identity of the Lease's holder, if the holder is not a replica of this operator. `None`: a
    /// replica of this operator holds the Lease, or no process does.
    other: watch::Sender<Option<String>>,
    /// End of the elector's last round. `None`: no round has ended.
    last_round: Mutex<Option<Duration>>,
    /// Messages in the Lease, as this process last read them.
    read: watch::Sender<ReplicaNotes>,
    /// Messages of this process, to be written into the Lease. The elector writes the question
    /// while this process leads, and the answer while this process does not lead.
    said: Mutex<ReplicaNotes>,
    /// Notified when `said` changes. The elector then ends its pause and begins the next round.
    news: Notify,
}

impl Default for Leadership {
    fn default() -> Self {
        Self {
            started: clock::now(),
            until: Mutex::default(),
            leading: watch::Sender::new(false),
            state: watch::Sender::new(LeadershipState::Lost),
            other: watch::Sender::new(None),
            last_round: Mutex::default(),
            read: watch::Sender::new(ReplicaNotes::default()),
            said: Mutex::default(),
            news: Notify::new(),
        }
    }
}

impl Leadership {
    /// Whether this process leads now. The process may write only while it leads.
    pub fn is_current(&self) -> bool {
        clock::now() < *lock(&self.until)
    }

    /// Returns a receiver of a flag, which is true while this process leads. The receiver is
    /// notified of each change.
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.leading.subscribe()
    }

    /// Returns a receiver of the state of the leadership. The receiver is notified of each change,
    /// and of the start of each term.
    pub fn state(&self) -> watch::Receiver<LeadershipState> {
        self.state.subscribe()
    }

    /// Returns a receiver of the identity of another controller that holds the Lease. Such a
    /// controller may write the same objects as this operator's leader. The identity is `None`
    /// while a replica of this operator, or no process, holds the Lease.
    pub fn other_controller(&self) -> watch::Receiver<Option<String>> {
        self.other.subscribe()
    }

    /// Returns a receiver of the replicas' messages to each other, as this process last read them
    /// from the Lease.
    pub fn notes(&self) -> watch::Receiver<ReplicaNotes> {
        self.read.subscribe()
    }

    /// Sets the question to the other replicas. The next renewal of the Lease writes the question,
    /// if this process leads. `None` removes the question.
    pub fn ask(&self, question: Option<String>) {
        lock(&self.said).question = question;
        self.news.notify_one();
    }

    /// Sets the answer to the leader's question. The elector writes the answer into the Lease once,
    /// while the Lease has a question and is held by another replica of this operator.
    pub fn answer(&self, answer: String) {
        lock(&self.said).answer = Some(answer);
        self.news.notify_one();
    }

    fn read_notes(&self, lease: Option<&Lease>) -> ReplicaNotes {
        let annotations = lease.and_then(|lease| lease.metadata.annotations.as_ref());
        let of = |key| annotations.and_then(|all| all.get(key)).cloned();
        let question = of(ANNOTATION_LEASE_QUESTION);
        let notes = ReplicaNotes { question, answer: of(ANNOTATION_LEASE_ANSWER) };
        self.read.send_if_modified(|known| std::mem::replace(known, notes.clone()) != notes);
        notes
    }

    /// Time since the end of the elector's last round, successful or failed. Before the first round
    /// ends: time since the creation of this value.
    pub fn silence(&self) -> Duration {
        clock::now().saturating_sub(lock(&self.last_round).unwrap_or(self.started))
    }

    /// Whether the elector has finished a round, successful or failed.
    pub fn has_finished_round(&self) -> bool {
        lock(&self.last_round).is_some()
    }

    fn hold_until(&self, until: Duration) {
        *lock(&self.until) = until;
        // A term may have expired without a sign that another process has taken the Lease. In that
        // case, `state` is still `Held`. `send_replace` notifies the receivers even if the value is
        // the same, so that they notice the new term.
        if self.leading.send_if_modified(|leading| !std::mem::replace(leading, true)) {
            self.state.send_replace(LeadershipState::Held);
        }
    }

    fn set(&self, state: LeadershipState) {
        self.state.send_if_modified(|before| std::mem::replace(before, state) != state);
    }

    fn set_other(&self, other: Option<&str>) {
        let other = other.map(str::to_owned);
        self.other.send_if_modified(|known| std::mem::replace(known, other.clone()) != other);
    }

    fn give_up(&self) {
        *lock(&self.until) = Duration::ZERO;
        self.leading.send_if_modified(|leading| std::mem::replace(leading, false));
    }
}

/// Elector of this process: competes for one Lease, and renews it.
#[derive(Clone)]
pub struct LeaderElector {
    api: Api<Lease>,
    name: String,
    /// Namespace and name of the Lease, for logs.
    key: String,
    me: String,
    pace: ElectionPace,
}

impl LeaderElector {
    /// An elector for the Lease `namespace/name`. `me` is the holder identity of this process. No
    /// other process may have the same identity.
    pub fn new(
        client: Client,
        (namespace, name): (&str, &str),
        me: String,
        pace: ElectionPace,
    ) -> Self {
        let (api, key) = (Api::namespaced(client, namespace), format!("{namespace}/{name}"));
        Self { api, name: name.to_owned(), key, me, pace }
    }

    /// Competes for the Lease until this future is dropped. Returns only if the API server's store
    /// has gone back to an older state. The process must then end.
    pub async fn run(&self, leadership: &Leadership) -> StoreWentBack {
        let mut observer = LeaseObserver::default();
        let deadline = self.pace.deadline();
        let mut failures = 0;
        loop {
            let done = tokio::time::timeout(deadline, self.round(leadership, &mut observer)).await;
            failures = match done {
                Ok(Ok(_) | Err(CallError::Conflict(_))) => 0,
                _ => failures + 1,
            };
            let held = *leadership.state.borrow() == LeadershipState::Held;
            if failures >= SILENT && held && !leadership.is_current() {
                leadership.set(LeadershipState::Silent);
            }
            let pause = match done {
                Ok(Ok(ControlFlow::Continue(pause))) => pause,
                Ok(Ok(ControlFlow::Break(back))) => return back,
                Ok(Err(CallError::Conflict(_))) => Duration::ZERO,
                Ok(Err(error)) => {
                    tracing::warn!(%error, lease = self.key, "cannot read or write the Lease");
                    RETRY
                }
                Err(_) => {
                    tracing::warn!(lease = self.key, "no answer to a call about the Lease");
                    Duration::ZERO
                }
            };
            *lock(&leadership.last_round) = Some(clock::now());
            self.pause(leadership, pause.max(Duration::from_millis(20))).await;
        }
    }

    /// Waits for the time `pause`, or until this process has a message to write. If the leadership
    /// expires meanwhile, ends the term at that moment.
    async fn pause(&self, leadership: &Leadership, pause: Duration) {
        let wake = clock::now() + pause;
        let until = *lock(&leadership.until);
        if *leadership.leading.borrow() && until <= wake {
            tokio::time::sleep(until.saturating_sub(clock::now())).await;
            self.lapse(leadership);
        }
        tokio::select! {
            () = tokio::time::sleep(wake.saturating_sub(clock::now())) => {}
            () = leadership.news.notified() => {}
        }
    }

    fn lapse(&self, leadership: &Leadership) {
        tracing::warn!(lease = self.key, "leadership lost: the Lease could not be renewed in time");
        leadership.give_up();
    }

    /// Reads the Lease, and acts on it. Returns the pause before the next round. `Break`: the
    /// process must end, because the API server's store has gone back to an older state.
    async fn round(
        &self,
        leadership: &Leadership,
        observer: &mut LeaseObserver,
    ) -> Result<ControlFlow<StoreWentBack, Duration>, CallError> {
        let sent = clock::now();
        // Deadline of a call, longer than the deadline of the round that makes the call. So the
        // round's deadline is always the first to end.
        let calls = self.api.within(self.pace.deadline() * 2);
        let lease = calls.call_get_opt(&self.name).await?;
        let lease_seen = lease.as_ref().map(seen);
        let other = lease_seen.as_ref().and_then(LeaseSeen::other_controller).is_some();
        leadership.set_other(lease_seen.as_ref().and_then(LeaseSeen::other_controller));
        let notes = leadership.read_notes(lease.as_ref());
        let action = observer.decide(lease_seen, &self.me, clock::now());
        if !matches!(action, LeaseAction::Renew | LeaseAction::StartAnew(_)) {
            if *leadership.leading.borrow() {
                tracing::warn!(
                    lease = self.key,
                    "leadership lost: the Lease no longer names this process"
                );
                leadership.give_up();
            }
            leadership.set(LeadershipState::Lost);
        }
        match action {
            LeaseAction::StartAnew(back) => {
                // The Lease is not released here, because that write would give the Lease a greater
                // version. Other replicas notice the restore because the Lease's version is smaller
                // than the one they read before. A greater version could hide the restore from
                // them.
                leadership.give_up();
                leadership.set(LeadershipState::Lost);
                return Ok(ControlFlow::Break(back));
            }
            LeaseAction::Wait(until) => {
                if notes.question.is_some() && !other {
                    self.give_answer(&calls, lease, leadership).await?;
                }
                return Ok(ControlFlow::Continue(until.saturating_sub(clock::now()).min(RETRY)));
            }
            LeaseAction::Create | LeaseAction::Acquire | LeaseAction::Renew => {
                let is_new = lease.is_none();
                let mut lease = lease.unwrap_or_default();
                lease.metadata.name = Some(self.name.clone());
                lease.spec = Some(self.spec(lease.spec.as_ref(), action != LeaseAction::Renew));
                let annotations = lease.metadata.annotations.get_or_insert_default();
                annotations.extend(self.marks());
                put_question(annotations, lock(&leadership.said).question.clone());
                // A replacement requires the version that was read.
                if is_new {
                    calls.call_create(&lease).await?;
                } else {
                    calls.call_replace(&self.name, &lease).await?;
                }
            }
        }
        if *leadership.leading.borrow() && !leadership.is_current() {
            // The leadership expired before this renewal, and writes since then were refused. Only
            // the start of a term repeats these writes. So this term ends here, and the next round
            // begins another term.
            self.lapse(leadership);
            return Ok(ControlFlow::Continue(Duration::ZERO));
        }
        leadership.set_other(None);
        leadership.hold_until(self.pace.trusted_until(sent));
        if action != LeaseAction::Renew {
            tracing::info!(lease = self.key, me = self.me, "leading");
        }
        Ok(ControlFlow::Continue(self.pace.renew_every()))
    }

    /// Writes this process's answer into `lease`, the Lease as it was read. Does nothing if there
    /// is no answer or no Lease. Fails with a conflict if the Lease has changed since it was read.
    async fn give_answer(
        &self,
        calls: &TimedApi<'_, Lease>,
        lease: Option<Lease>,
        leadership: &Leadership,
    ) -> Result<(), CallError> {
        let answer = lock(&leadership.said).answer.clone();
        let (Some(mut lease), Some(answer)) = (lease, answer) else { return Ok(()) };
        let annotation = (ANNOTATION_LEASE_ANSWER.to_owned(), answer.clone());
        lease.metadata.annotations.get_or_insert_default().extend([annotation]);
        calls.call_replace(&self.name, &lease).await?;
        lock(&leadership.said).answer.take_if(|said| *said == answer);
        Ok(())
    }

    /// Annotations that the holder sets on the Lease. The first contains the identity of the
    /// holder, and shows that the holder is a replica of this operator. The second contains a
    /// number of seconds: if the Lease is not renewed for that time, another replica of this
    /// operator takes the Lease.
    fn marks(&self) -> [(String, String); 2] {
        [
            (ANNOTATION_LEASE_OPERATOR.to_owned(), self.me.clone()),
            (ANNOTATION_LEASE_SECONDS.to_owned(), self.pace.seconds().to_string()),
        ]
    }

    fn spec(&self, old: Option<&LeaseSpec>, takes_over: bool) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let old = old.cloned().unwrap_or_default();
        LeaseSpec {
            holder_identity: Some(self.me.clone()),
            lease_duration_seconds: Some(self.pace.others().into()),
            acquire_time: if takes_over { Some(now.clone()) } else { old.acquire_time },
            renew_time: Some(now),
            lease_transitions: Some(old.lease_transitions.unwrap_or(0) + i32::from(takes_over)),
            ..old
        }
    }
}

/// Sets the leader's question in the annotations of the Lease. `None` removes the question. If the
/// question changes, the answer to the old question is removed.
fn put_question(annotations: &mut BTreeMap<String, String>, question: Option<String>) {
    if annotations.get(ANNOTATION_LEASE_QUESTION) != question.as_ref() {
        annotations.remove(ANNOTATION_LEASE_ANSWER);
        annotations.remove(ANNOTATION_LEASE_QUESTION);
        annotations.extend(question.map(|text| (ANNOTATION_LEASE_QUESTION.to_owned(), text)));
    }
}

/// The facts of a Lease that decisions about leadership use.
pub fn seen(lease: &Lease) -> LeaseSeen {
    let spec = lease.spec.clone().unwrap_or_default();
    let annotations = lease.metadata.annotations.clone().unwrap_or_default();
    let mut seen = LeaseSeen {
        holder: spec.holder_identity.unwrap_or_default(),
        duration: seconds(spec.lease_duration_seconds),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
        operator: annotations.get(ANNOTATION_LEASE_OPERATOR).cloned().unwrap_or_default(),
    };
    if seen.other_controller().is_none() {
        let own = annotations.get(ANNOTATION_LEASE_SECONDS).and_then(|text| text.parse().ok());
        seen.duration = own.map_or(seen.duration, |own| seconds(Some(own)));
    }
    seen
}

/// Duration of a Lease. `count`: the number of seconds in the Lease. The result is zero if the
/// number is absent or negative.
pub(super) fn seconds(count: Option<i32>) -> Duration {
    Duration::from_secs(count.and_then(|count| u64::try_from(count).ok()).unwrap_or(0))
}

#[cfg(test)]
mod tests;
