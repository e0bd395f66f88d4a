//! Owns the one task that makes and removes links.
//!
//! The kernel takes some 20 ms to remove a link and half a millisecond to make one. So the task
//! puts off removals until it has no job of another kind. There are two exceptions:
//!
//! * A new link needs the hardware address of an old link. Then the old link is removed first.
//! * The links that an earlier term left behind are removed without delay, as one group.

use std::collections::{HashSet, VecDeque};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::task::AbortOnDropHandle;

use super::netlink::{KernelLinks, name};
use crate::domain::dhcp::Mac;

/// Job for the task that makes and removes links.
#[derive(Clone, Debug)]
pub(super) enum LinkJob {
    /// Makes a lease's link on the interface with the index `parent`. `mac`: hardware address of
    /// the link. `lease`: `namespace/name` of the lease's record.
    Make { parent: u32, mac: Mac, lease: String },
    /// Removes the link of the lease with this hardware address.
    Remove(Mac),
    /// Removes the links that an earlier term left behind. A link stays if the set contains its
    /// name and the link is [ready](super::netlink::KernelLink::ready).
    ClearAllBut(HashSet<String>),
}

/// Outcome of a [`LinkJob`].
#[derive(Clone, Debug)]
pub(super) enum JobOutcome {
    /// `Err`: the link with this hardware address could not be made. The text is the error.
    Made(Mac, Result<(), String>),
    Removed(Mac),
}

/// Handle of the task that makes and removes links. `ask` gives the task a job, and `done` receives
/// the outcomes. Dropping the handle ends the task.
pub(super) struct LinkWorker {
    jobs: UnboundedSender<LinkJob>,
    pub(super) done: UnboundedReceiver<JobOutcome>,
    _task: AbortOnDropHandle<()>,
}

impl LinkWorker {
    pub(super) fn start(links: KernelLinks) -> Self {
        let (jobs, queue) = unbounded_channel();
        let (sender, done) = unbounded_channel();
        let task = AbortOnDropHandle::new(tokio::spawn(work(links, queue, sender)));
        Self { jobs, done, _task: task }
    }

    pub(super) fn ask(&self, job: LinkJob) {
        // The task receives jobs until the end of the term, so the send fails only after that.
        let _ = self.jobs.send(job);
    }
}

async fn work(
    links: KernelLinks,
    mut queue: UnboundedReceiver<LinkJob>,
    sender: UnboundedSender<JobOutcome>,
) {
    let mut later: VecDeque<Mac> = VecDeque::new();
    loop {
        let job = if later.is_empty() { queue.recv().await } else { queue.try_recv().ok() };
        match job {
            None => match later.pop_front() {
                Some(mac) => remove(&links, mac, &sender).await,
                None => return,
            },
            Some(LinkJob::Remove(mac)) => later.push_back(mac),
            Some(LinkJob::ClearAllBut(needed)) => clear(&links, &needed).await,
            Some(LinkJob::Make { parent, mac, lease }) => {
                // An old link with this hardware address may still wait for its removal. Then it is
                // removed first.
                if let Some(at) = later.iter().position(|other| *other == mac) {
                    later.remove(at);
                    remove(&links, mac, &sender).await;
                }
                let made = links.make(parent, mac, &lease).await;
                let made = made.map_err(|error| error.to_string());
                let _ = sender.send(JobOutcome::Made(mac, made));
            }
        }
    }
}

/// Executes [`LinkJob::ClearAllBut`]. A failure is only logged, because the next term tries again.
async fn clear(links: &KernelLinks, needed: &HashSet<String>) {
    match links.remove_all_but(needed).await {
        Ok(removed) if removed.is_empty() => {}
        Ok(removed) => tracing::info!(?removed, "removed links of an earlier agent"),
        Err(error) => tracing::warn!(%error, "cannot remove links of an earlier agent"),
    }
}

async fn remove(links: &KernelLinks, mac: Mac, sender: &UnboundedSender<JobOutcome>) {
    let link = name(mac);
    if let Err(error) = links.remove(&link).await {
        // The next agent removes the link, or the link ends with the network namespace.
        tracing::warn!(link, %error, "cannot remove a link");
    }
    let _ = sender.send(JobOutcome::Removed(mac));
}
