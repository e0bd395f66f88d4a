//! Owns the one task that makes and removes links.
//!
//! To remove one takes the kernel some 20 ms, to make one half a millisecond; so what is to be made
//! comes first, and nothing waits for the rest. What a crash left behind goes together, at once.

use std::collections::{HashSet, VecDeque};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use super::links::{Links, name};
use crate::domain::dhcp::Mac;

/// What is to be done.
#[derive(Clone, Debug)]
pub(super) enum Job {
    /// Make a lease's link on that interface.
    Make { parent: u32, mac: Mac, lease: String },
    /// Remove a lease's link.
    Remove(Mac),
    /// Remove what a crash left behind: all links of the network but those of these names that are as they
    /// are to be.
    ClearAllBut(HashSet<String>),
}

/// What came of it.
#[derive(Clone, Debug)]
pub(super) enum Done {
    Made(Mac),
    /// It could not be made, and why.
    Failed(Mac, String),
    Removed(Mac),
}

/// Takes jobs, and tells what came of them. The task ends with it.
pub(super) struct Hands {
    jobs: UnboundedSender<Job>,
    pub(super) done: UnboundedReceiver<Done>,
    task: JoinHandle<()>,
}

impl Hands {
    pub(super) fn start(links: Links) -> Self {
        let (jobs, queue) = unbounded_channel();
        let (tell, done) = unbounded_channel();
        let task = tokio::spawn(work(links, queue, tell));
        Self { jobs, done, task }
    }

    pub(super) fn ask(&self, job: Job) {
        // Only the end of the term ends the task.
        let _ = self.jobs.send(job);
    }
}

impl Drop for Hands {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn work(links: Links, mut queue: UnboundedReceiver<Job>, tell: UnboundedSender<Done>) {
    let mut later: VecDeque<Mac> = VecDeque::new();
    loop {
        let job = match queue.try_recv() {
            Ok(job) => job,
            Err(_) => match later.pop_front() {
                Some(mac) => {
                    remove(&links, mac, &tell).await;
                    continue;
                }
                None => match queue.recv().await {
                    Some(job) => job,
                    None => return,
                },
            },
        };
        let (parent, mac, lease) = match job {
            Job::Make { parent, mac, lease } => (parent, mac, lease),
            Job::ClearAllBut(needed) => {
                clear(&links, &needed).await;
                continue;
            }
            Job::Remove(mac) => {
                later.push_back(mac);
                continue;
            }
        };
        // What is to be removed and then made anew is removed first.
        if let Some(at) = later.iter().position(|other| *other == mac) {
            later.remove(at);
            remove(&links, mac, &tell).await;
        }
        let done = match links.make(parent, mac, &lease).await {
            Ok(()) => Done::Made(mac),
            Err(error) => Done::Failed(mac, error.to_string()),
        };
        let _ = tell.send(done);
    }
}

/// Links that could not be removed go with the namespace, or are found by the next agent.
async fn clear(links: &Links, needed: &HashSet<String>) {
    match links.remove_all_but(needed).await {
        Ok(removed) if removed.is_empty() => {}
        Ok(removed) => tracing::info!(?removed, "removed links that were left behind"),
        Err(error) => tracing::warn!(%error, "links are left behind"),
    }
}

async fn remove(links: &Links, mac: Mac, tell: &UnboundedSender<Done>) {
    let link = name(mac);
    if let Err(error) = links.remove(&link).await {
        // It goes with the namespace, or is found by the next agent.
        tracing::warn!(link, %error, "cannot remove a link");
    }
    let _ = tell.send(Done::Removed(mac));
}
