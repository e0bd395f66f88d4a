//! How the rest of the process reaches the ledger task.

use std::collections::BTreeSet;

use tokio::sync::{mpsc, oneshot};

use super::sweep::Orphan;
use crate::domain::pools::allocator::Verdict;
use crate::domain::{LbFacts, Owner};

/// Why the ledger gave no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LedgerError {
    /// The pool could not be written. Nothing was given or taken.
    #[error("the ledger of IPPool {0} could not be written")]
    NotWritten(String),
    /// The LoadBalancer must be read again: its claims and its status disagree.
    #[error("the LoadBalancer must be read again")]
    Stale,
    /// The term of leadership is over.
    #[error("the ledger is closed")]
    Closed,
}

type Reply<T> = oneshot::Sender<Result<T, LedgerError>>;

/// A request. Unbounded as a queue, bounded by its senders: a LoadBalancer has at most one
/// request under way, and signals are as many as the objects they speak of.
pub(super) enum Message {
    Claim(Box<LbFacts>, Reply<Verdict>),
    Release(Owner, Option<Reply<()>>),
    PoolChanged(String, Option<String>),
    NetworksChanged,
    Orphaned(Box<Orphan>),
}

/// Requests that one write decides.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) claims: Vec<(LbFacts, Reply<Verdict>)>,
    /// Each with the pools it took addresses back to.
    pub(super) releases: Vec<(Owner, Option<Reply<()>>, BTreeSet<String>)>,
    pub(super) pools: BTreeSet<String>,
    /// Networks lead elsewhere than before.
    pub(super) networks: bool,
    /// Claims of LoadBalancers that the API server no longer has.
    pub(super) orphans: Vec<Orphan>,
}

impl Batch {
    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.claims.len() + self.releases.len() + self.pools.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.claims.is_empty()
            && self.releases.is_empty()
            && self.pools.is_empty()
            && !self.networks
            && self.orphans.is_empty()
    }
}

/// The way to the ledger task.
#[derive(Clone)]
pub struct Handle(mpsc::UnboundedSender<Message>);

impl Handle {
    pub(super) fn new() -> (Self, mpsc::UnboundedReceiver<Message>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }

    /// Asks for the LoadBalancer's address. Answered when it is safe to publish.
    pub async fn claim(&self, facts: LbFacts) -> Result<Verdict, LedgerError> {
        let (reply, answer) = oneshot::channel();
        self.send(Message::Claim(Box::new(facts), reply))?;
        answer.await.map_err(|_| LedgerError::Closed)?
    }

    /// Gives back whatever the owner holds. Answered when the ledger no longer names it.
    pub async fn release(&self, owner: Owner) -> Result<(), LedgerError> {
        let (reply, answer) = oneshot::channel();
        self.send(Message::Release(owner, Some(reply)))?;
        answer.await.map_err(|_| LedgerError::Closed)?
    }

    /// The same, with nobody waiting. The sweep catches what a failure here leaves.
    pub fn forget(&self, owner: Owner) {
        let _ = self.send(Message::Release(owner, None));
    }

    /// A pool changed, or is gone.
    pub fn pool_changed(&self, name: String, version: Option<String>) {
        let _ = self.send(Message::PoolChanged(name, version));
    }

    /// A network leads elsewhere than before, or is gone.
    pub fn networks_changed(&self) {
        let _ = self.send(Message::NetworksChanged);
    }

    /// A claim's LoadBalancer is gone, says the API server.
    pub(super) fn orphaned(&self, orphan: Orphan) {
        let _ = self.send(Message::Orphaned(Box::new(orphan)));
    }

    fn send(&self, message: Message) -> Result<(), LedgerError> {
        self.0.send(message).map_err(|_| LedgerError::Closed)
    }
}
