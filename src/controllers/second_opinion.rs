//! Second opinion about VMs that fail the leader's health checks. The leader asks another replica
//! to probe them too. The question and the answer are annotations on the Lease.
//!
//! Invariants:
//!
//! * An answer that comes from the leader's own node never makes the leader accept doubted failures
//!   as real. If the node of one of the two replicas is not known, the answer counts as one from
//!   another node.
//! * The answering replica sends probes only to targets in EndpointSlices of the operator, with the
//!   LoadBalancer's own health check.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube_runtime::reflector::ObjectRef;
use tokio::sync::watch;
use tokio::time::sleep;

use super::Context;
use crate::domain::reason;
use crate::domain::vm_backends::endpoint_slices::SINK_UID;
use crate::domain::vm_backends::health::second_opinion::{
    ASKED, AskedTarget, Opinion, OpinionAnswer, OpinionQuestion, ReplicaPlace,
};
use crate::domain::vm_backends::health::{CheckSettings, check};
use crate::domain::vm_backends::readiness::DOUBTED;
use crate::k8s::leadership::{Leadership, ReplicaNotes};
use crate::k8s::views::Views;
use crate::prober::{Prober, survey};

/// Interval between two questions of the leader, while the leader doubts failures. The leader asks
/// again, because a question names only some VMs, picked at random, and their state may change.
const AGAIN: Duration = Duration::from_secs(30);

/// Reason of the Event that reports the end of a doubt about the prober: the VMs answer again, or
/// are gone.
const TRUSTED: &str = "ProberTrusted";

/// Name and node of this replica, and its access to the Lease.
pub struct Replica {
    /// Leadership, and the annotations on the Lease.
    pub leadership: Arc<Leadership>,
    /// Name and node of this replica.
    pub place: ReplicaPlace,
    /// Namespace and name of the Lease.
    pub lease: (String, String),
}

impl Replica {
    fn lease_object(&self) -> ObjectReference {
        ObjectRef::<Lease>::new(&self.lease.1).within(&self.lease.0).into()
    }
}

/// Asks the other replicas for a second opinion whenever the prober doubts failures. Runs for one
/// term of leadership.
pub(super) async fn ask(ctx: Context, prober: Prober) {
    let held = prober.held();
    ctx.metrics.probes.doubt(0, false);
    let mut term = OpinionTerm { ctx, prober, held };
    while term.held.wait_for(|held| *held > 0).await.is_ok() {
        term.doubt().await;
    }
}

/// Questions to the other replicas in one term of leadership. The drop withdraws the present
/// question, resets the explanation of the doubt in the prober ([`Prober::explain`]), and sets the
/// metric of doubted backends to 0. The next renewal of the Lease removes the question from the
/// Lease.
struct OpinionTerm {
    ctx: Context,
    prober: Prober,
    held: watch::Receiver<usize>,
}

impl Drop for OpinionTerm {
    fn drop(&mut self) {
        self.end();
    }
}

impl OpinionTerm {
    fn end(&self) {
        self.ctx.replica.leadership.ask(None);
        self.ctx.metrics.probes.doubt(0, false);
        self.prober.explain(String::new());
    }

    fn warn(&self, reason: &str, note: String) {
        tracing::warn!(reason, "{note}");
        self.ctx.events.warning(self.ctx.replica.lease_object(), reason, note);
    }

    /// Asks questions from the first doubted failure until no failure is doubted. Reports the
    /// beginning and the end of this period.
    async fn doubt(&mut self) {
        let note = format!("{DOUBTED}: VMs that fail their health check stay endpoints: {ASKED}");
        self.warn(reason::PROBER_DOUBTED, note);
        let mut opinion = Opinion::None;
        while self.consult(&mut opinion).await.is_some() {
            if opinion == Opinion::None {
                self.prober.explain(Opinion::None.words(&self.question(), None));
            }
        }
        self.end();
        if opinion != Opinion::Dead {
            let note = "VMs that stopped answering together answer again, or are gone".to_owned();
            tracing::info!("{note}");
            let lease = self.ctx.replica.lease_object();
            self.ctx.events.normal(lease, TRUSTED, note);
        }
    }

    fn question(&self) -> OpinionQuestion {
        let at = Timestamp::now().to_string();
        let targets = self.prober.sample(&at);
        OpinionQuestion { by: self.ctx.replica.place.clone(), at, targets }
    }

    /// Asks one question, and reports the opinions that the answers give, until [`AGAIN`] has
    /// passed. `None`: no failure is doubted any more, because the VMs answer or are gone, or
    /// because another replica has confirmed the failures. `known`: the last reported opinion.
    async fn consult(&mut self, known: &mut Opinion) -> Option<()> {
        let question = self.question();
        let leadership = self.ctx.replica.leadership.clone();
        leadership.ask(serde_json::to_string(&question).ok());
        let mut notes = leadership.notes();
        let mut again = pin!(sleep(AGAIN));
        loop {
            let held = *self.held.borrow_and_update();
            if held == 0 {
                return None;
            }
            let answer = notes.borrow_and_update().answer.as_deref().and_then(OpinionAnswer::read);
            let opinion = question.opinion(answer.as_ref());
            if opinion != Opinion::None && opinion != *known {
                let words = opinion.words(&question, answer.as_ref());
                self.warn(event(&opinion), words.clone());
                *known = opinion;
                if *known == Opinion::Dead {
                    self.prober.believe();
                    return None;
                }
                self.prober.explain(words);
            }
            self.ctx.metrics.probes.doubt(held, *known == Opinion::Well);
            tokio::select! {
                changed = self.held.changed() => changed.ok()?,
                changed = notes.changed() => changed.ok()?,
                () = again.as_mut() => return Some(()),
            }
        }
    }
}

/// Reason of the Event that reports an opinion. Each opinion that is reported has its own reason,
/// because Events with the same reason are merged and keep the note of the first Event.
fn event(opinion: &Opinion) -> &'static str {
    match opinion {
        Opinion::Well => "ProberContradicted",
        Opinion::Dead => "OutageConfirmed",
        Opinion::SameNode | Opinion::None => "NoSecondOpinion",
    }
}

/// Probes the targets that a leader's questions name, and writes the answers to the Lease, until
/// dropped.
pub async fn answer(replica: Arc<Replica>, views: Views) {
    let mut notes = replica.leadership.notes();
    while notes.changed().await.is_ok() {
        let ReplicaNotes { question, answer } = notes.borrow_and_update().clone();
        let Some(question) = question.as_deref().and_then(OpinionQuestion::read) else { continue };
        let given = answer.as_deref().and_then(OpinionAnswer::read);
        if !question.wants_answer_of(&replica.place, given.as_ref()) {
            continue;
        }
        let targets = question.targets.iter().filter_map(|asked| target(asked, &views)).collect();
        let (passed, failed) = survey(targets).await;
        tracing::info!(passed, failed, by = question.by.replica, "probed for a second opinion");
        let found = question.answer(&replica.place, passed, failed);
        if let Some(answer) = found.and_then(|answer| serde_json::to_string(&answer).ok()) {
            replica.leadership.answer(answer);
        }
    }
}

/// Address and health check of a target that a question names. They come from this replica's views,
/// because the question alone is not trusted. `None`: the view has no such LoadBalancer with a
/// health check, or none of its EndpointSlices contains the target. Then the target is not probed.
fn target(asked: &AskedTarget, views: &Views) -> Option<(IpAddr, CheckSettings)> {
    let (namespace, name) = asked.lb.split_once('/')?;
    let lb = views.load_balancers.get(&ObjectRef::new(name).within(namespace))?;
    let uid = lb.uid()?;
    let check = check(&lb.spec).ok().flatten()?;
    let mut slices = views.slices.of(&asked.lb).filter(|slice| slice.owner == uid);
    let leads_there = slices.any(|slice| {
        let mut endpoints = slice.endpoints.iter();
        endpoints.any(|e| e.address == asked.address && &*e.uid != SINK_UID)
    });
    leads_there.then_some((asked.address, check))
}
