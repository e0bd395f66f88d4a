//! Mailbox of the ledger task: its messages, and the handle that sends them.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{mpsc, oneshot};

use crate::domain::pools::allocator::{ClaimResult, ConfirmedClaims};
use crate::domain::{Claim, LbFacts, Owner};
use crate::locks::lock;

/// Reason why the ledger task did not carry out a request.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LedgerError {
    /// The pool could not be written, or its write had no answer. The caller must repeat the
    /// request.
    #[error("the ledger of IPPool {0} could not be written")]
    NotWritten(String),
    /// The facts in the request are from a view, which may be old. Old facts must not decide about
    /// claims and reservations that exist. The caller must read the LoadBalancer from the API
    /// server, and repeat the request.
    #[error("the LoadBalancer must be read again")]
    Stale,
    /// End of this replica's term of leadership: the ledger task is gone.
    #[error("the ledger task has ended, because this replica no longer leads")]
    Closed,
}

type Reply<T> = oneshot::Sender<Result<T, LedgerError>>;

/// Message to the ledger task. The number of messages in the mailbox has no limit. A LoadBalancer's
/// reconcile waits for the answer to its request. A message without an answer reports one event,
/// such as a changed pool, a deleted LoadBalancer or a confirmed orphan.
pub(super) enum LedgerMessage {
    Claim(Box<LbFacts>, Reply<ClaimResult>),
    Release(Owner, Option<Reply<()>>),
    PoolChanged(String, Option<String>),
    NetworksChanged,
    CrdReplaced(bool),
    Orphaned(Box<OrphanClaim>),
}

/// Claim that is to be freed, because reads from the API server have confirmed one of these cases:
///
/// * The owner does not exist any more.
/// * The ledger records no UID of the owner, and the LoadBalancer with the owner's name takes no
///   address from pools any more.
/// * The case that is described at `namesake`.
#[derive(Clone, Debug)]
pub(super) struct OrphanClaim {
    pub(super) claim: Claim,
    pub(super) owner: Owner,
    /// UID of the LoadBalancer that has the owner's name now. The field is set only for a ledger
    /// entry without a UID. Such an entry is an orphan if that LoadBalancer holds another address
    /// of the pool.
    pub(super) namesake: Option<String>,
}

/// Requests that are decided together and then written.
#[derive(Default)]
pub(super) struct RequestBatch {
    pub(super) claims: Vec<(LbFacts, Reply<ClaimResult>)>,
    /// Requests for a release. Field 0: the owner. Field 1: the channel for the answer. `None`: the
    /// sender does not wait for an answer. Field 2: the pools in which the ledger task has released
    /// a claim of the owner. This set is empty until the batch is decided.
    pub(super) releases: Vec<(Owner, Option<Reply<()>>, BTreeSet<String>)>,
    pub(super) pools: BTreeSet<String>,
    /// Whether the allocator must read the networks and the reserved addresses again. `true` in
    /// these cases:
    ///
    /// * Networks were listed, or a network is new, is gone or has moved to another segment.
    /// * The reserved addresses have changed.
    pub(super) networks: bool,
    /// Whether the conditions of all pools must be decided again, because the check of the form of
    /// IPPool's CRD has a new result.
    pub(super) conditions: bool,
    /// Orphans that the API server has confirmed.
    pub(super) orphans: Vec<OrphanClaim>,
}

impl RequestBatch {
    /// Number of claims, releases and pools in the batch.
    pub(super) fn len(&self) -> usize {
        self.claims.len() + self.releases.len() + self.pools.len()
    }

    /// Whether the batch can give an address to a LoadBalancer that was no waiter before. `false`:
    /// the batch contains only releases and orphans. The addresses that they free go to waiters.
    pub(super) fn may_give_an_address(&self) -> bool {
        !self.claims.is_empty() || !self.pools.is_empty() || self.networks || self.conditions
    }

    pub(super) fn is_empty(&self) -> bool {
        self.releases.is_empty() && self.orphans.is_empty() && !self.may_give_an_address()
    }
}

/// Handle that sends requests to the ledger task of one term. Clones share the mailbox.
#[derive(Clone)]
pub struct LedgerHandle {
    mailbox: mpsc::UnboundedSender<LedgerMessage>,
    confirmed: Arc<Mutex<ConfirmedClaims>>,
    /// UIDs of LoadBalancers with `spec.ipam: dhcp` for which the last sweep found a claim, a
    /// reservation, an expected address or a waiting request. [`Self::release`] removes the UID of
    /// the released LoadBalancer.
    strays: Arc<Mutex<HashSet<String>>>,
}

impl LedgerHandle {
    pub(super) fn new() -> (Self, mpsc::UnboundedReceiver<LedgerMessage>) {
        let (mailbox, receiver) = mpsc::unbounded_channel();
        (Self { mailbox, confirmed: Arc::default(), strays: Arc::default() }, receiver)
    }

    /// Recorded answers with confirmed claims. If a request has the same facts as an earlier one
    /// with a recorded answer, [`Self::claim`] returns this answer, and sends no message to the
    /// ledger task.
    pub(super) fn confirmed(&self) -> MutexGuard<'_, ConfirmedClaims> {
        lock(&self.confirmed)
    }

    /// Claims an address for the LoadBalancer. Returns when the API server has stored the claim, so
    /// that the address can be published, or when the LoadBalancer is a waiter. Returns at once if
    /// there is a confirmed answer for the same facts.
    ///
    /// `exists`: whether the LoadBalancer exists now. A LoadBalancer that is a waiter and does not
    /// exist is removed from the waiters, because the event of its deletion may have been handled
    /// before this request.
    pub async fn claim(
        &self,
        facts: LbFacts,
        exists: impl FnOnce() -> bool,
    ) -> Result<ClaimResult, LedgerError> {
        if let Some(answer) = self.confirmed().answer(&facts) {
            return Ok(answer);
        }
        let owner = facts.owner.clone();
        let (reply, answer) = oneshot::channel();
        self.send(LedgerMessage::Claim(Box::new(facts), reply))?;
        let answer = answer.await.map_err(|_| LedgerError::Closed)??;
        if matches!(answer, ClaimResult::Waiting(_)) && !exists() {
            self.forget(owner);
        }
        Ok(answer)
    }

    /// Releases every claim that the allocator has for the owner's UID, and the owner's waiting
    /// request. Returns when no stored ledger has these claims any more.
    pub async fn release(&self, owner: Owner) -> Result<(), LedgerError> {
        let (reply, answer) = oneshot::channel();
        let uid = owner.uid.clone();
        self.send(LedgerMessage::Release(owner, Some(reply)))?;
        answer.await.map_err(|_| LedgerError::Closed)??;
        lock(&self.strays).remove(&uid);
        Ok(())
    }

    /// Whether the last sweep found a claim, a reservation, an expected address or a waiting
    /// request of this LoadBalancer, although its `spec.ipam` is `dhcp`. `false` again after
    /// [`Self::release`] has succeeded.
    pub fn is_stray(&self, owner: &Owner) -> bool {
        lock(&self.strays).contains(&owner.uid)
    }

    /// Replaces the result of the earlier sweep. `strays`: UIDs of the LoadBalancers for which
    /// [`Self::is_stray`] returns `true` from now on.
    pub(super) fn set_strays(&self, strays: HashSet<String>) {
        *lock(&self.strays) = strays;
    }

    /// Requests the release of every claim of the owner, and does not wait for the answer. If the
    /// release fails, the sweep repeats it.
    pub fn forget(&self, owner: Owner) {
        let _ = self.send(LedgerMessage::Release(owner, None));
    }

    /// Enqueues a pool that changed or is gone. `version`: resourceVersion of the changed pool. The
    /// pool is read only if the ledger task knows no version, or an older one. `None`: the pool is
    /// read in any case.
    pub fn pool_changed(&self, name: String, version: Option<String>) {
        let _ = self.send(LedgerMessage::PoolChanged(name, version));
    }

    /// Enqueues an update of the networks and of the reserved addresses: see
    /// `RequestBatch::networks`.
    pub fn networks_changed(&self) {
        let _ = self.send(LedgerMessage::NetworksChanged);
    }

    /// Enqueues an update of every pool's conditions. `is`: whether another form has replaced the
    /// operator's form of IPPool's CRD.
    pub fn crd_replaced(&self, is: bool) {
        let _ = self.send(LedgerMessage::CrdReplaced(is));
    }

    /// Enqueues an orphan that the API server has confirmed.
    pub(super) fn orphaned(&self, orphan: OrphanClaim) {
        let _ = self.send(LedgerMessage::Orphaned(Box::new(orphan)));
    }

    fn send(&self, message: LedgerMessage) -> Result<(), LedgerError> {
        self.mailbox.send(message).map_err(|_| LedgerError::Closed)
    }
}
