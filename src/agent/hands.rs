//! Owns the one task that makes and removes links, one after the other.
//!
//! To remove one takes the kernel some 20 ms, to make one half a millisecond; so what is to be made
//! comes first, and nobody waits for the rest.

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
    /// Remove what a crash left behind: all links of the network but those of these names.
    ClearAllBut(HashSet<String>),
    /// Remove one such link.
    Clear(String),
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
    let mut later: VecDeque<Job> = VecDeque::new();
    loop {
        let job = match queue.try_recv() {
            Ok(job) => job,
            Err(_) => match later.pop_front() {
                Some(job) => {
                    if let Some(done) = remove(&links, job).await {
                        let _ = tell.send(done);
                    }
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
                later.extend(leftovers(&links, &needed).await);
                continue;
            }
            job => {
                later.push_back(job);
                continue;
            }
        };
        // What is to be removed and then made anew is removed first.
        later.retain(|job| !matches!(job, Job::Clear(link) if *link == name(mac)));
        if let Some(at) = later.iter().position(|job| matches!(job, Job::Remove(m) if *m == mac))
            && let Some(job) = later.remove(at)
            && let Some(done) = remove(&links, job).await
        {
            let _ = tell.send(done);
        }
        let done = match links.make(parent, mac, &lease).await {
            Ok(()) => Done::Made(mac),
            Err(error) => Done::Failed(mac, error.to_string()),
        };
        let _ = tell.send(done);
    }
}

async fn leftovers(links: &Links, needed: &HashSet<String>) -> Vec<Job> {
    let all = match links.all().await {
        Ok(all) => all,
        Err(error) => {
            tracing::warn!(%error, "cannot look for links that were left behind");
            Vec::new()
        }
    };
    let left = all.into_iter().filter(|link| links.is_ours(link) && !needed.contains(&link.name));
    left.map(|link| Job::Clear(link.name)).collect()
}

async fn remove(links: &Links, job: Job) -> Option<Done> {
    let (link, done) = match job {
        Job::Remove(mac) => (name(mac), Some(Done::Removed(mac))),
        Job::Clear(link) => (link, None),
        Job::Make { .. } | Job::ClearAllBut(_) => return None,
    };
    if let Err(error) = links.remove(&link).await {
        // It goes with the namespace, or is found by the next agent.
        tracing::warn!(link, %error, "cannot remove a link");
    } else if done.is_none() {
        tracing::info!(link, "removed a link whose lease is gone");
    }
    done
}
