//! Work that is done one piece at a time, for callers that do not cooperate.
//!
//! Invariants: sources take turns: a source that waits for many pieces delays another by one piece.
//! A turn lasts until its guard is dropped, wherever the guard is by then.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::domain::limits::connections::ConnectionSource;

/// Queue of callers that wait for a turn. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Turns(Arc<Mutex<TurnQueue>>);

#[derive(Debug, Default)]
struct TurnQueue {
    is_taken: bool,
    /// Waiters by source, the source with the next turn first. Each source here has a waiter.
    waiting: VecDeque<(ConnectionSource, VecDeque<oneshot::Sender<CallerTurn>>)>,
}

/// Turn of a caller. Dropping it gives the next source a turn.
#[derive(Debug)]
pub struct CallerTurn(Option<Turns>);

impl Turns {
    /// Waits for a turn.
    pub async fn take(&self, source: ConnectionSource) -> CallerTurn {
        loop {
            let turn = {
                let mut queue = self.lock();
                if !std::mem::replace(&mut queue.is_taken, true) {
                    return CallerTurn(Some(self.clone()));
                }
                let (teller, turn) = oneshot::channel();
                match queue.waiting.iter_mut().find(|(of, _)| *of == source) {
                    Some((_, waiters)) => waiters.push_back(teller),
                    None => queue.waiting.push_back((source, [teller].into())),
                }
                turn
            };
            // A sender is dropped only with the queue, which lives as long as `self`.
            if let Ok(turn) = turn.await {
                return turn;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, TurnQueue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Next waiter; if there is none, the turn becomes free.
    fn next(&self) -> Option<oneshot::Sender<CallerTurn>> {
        let mut queue = self.lock();
        let Some((source, mut waiters)) = queue.waiting.pop_front() else {
            queue.is_taken = false;
            return None;
        };
        let next = waiters.pop_front();
        if !waiters.is_empty() {
            queue.waiting.push_back((source, waiters));
        }
        next
    }
}

impl Drop for CallerTurn {
    fn drop(&mut self) {
        let Some(turns) = self.0.take() else { return };
        while let Some(next) = turns.next() {
            match next.send(Self(Some(turns.clone()))) {
                Ok(()) => return,
                // The waiter has left: the same turn goes to the next one.
                Err(mut unwanted) => drop(unwanted.0.take()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn source(n: u8) -> ConnectionSource {
        ConnectionSource::of(IpAddr::from([10, 0, 0, n]))
    }

    #[tokio::test]
    async fn sources_take_turns_and_who_left_is_passed_over() {
        let turns = Turns::default();
        let first = turns.take(source(1)).await;
        let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let mut waiters = Vec::new();
        for (from, name) in [(1, "a1"), (1, "a2"), (1, "a3"), (2, "b1"), (2, "b2"), (3, "c1")] {
            let (turns, said) = (turns.clone(), said.clone());
            waiters.push(tokio::spawn(async move {
                let turn = turns.take(source(from)).await;
                let _ = said.send(name);
                tokio::task::yield_now().await;
                drop(turn);
            }));
            tokio::task::yield_now().await;
        }
        waiters[4].abort();
        let _ = (&mut waiters[4]).await;
        drop(first);
        let mut order = Vec::new();
        for _ in 0..5 {
            order.extend(heard.recv().await);
        }
        assert_eq!(order, ["a1", "b1", "c1", "a2", "a3"]);
        // No waiter is left: the next caller gets its turn at once, also after a turn that no
        // waiter took.
        let turn = timeout(Duration::from_secs(9), turns.take(source(1))).await.unwrap();
        let mut late = Box::pin(turns.take(source(2)));
        assert!(timeout(Duration::ZERO, &mut late).await.is_err());
        drop(turn);
        drop(late);
        timeout(Duration::from_secs(9), turns.take(source(3))).await.unwrap();
    }
}
