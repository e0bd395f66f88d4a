//! Limit of the number of callers that work at the same time. Each caller takes a place, or waits
//! for one. A caller belongs to a source, such as a namespace.
//!
//! Invariants:
//! * Sources take turns. However many callers of one source wait, at most one of them gets a place
//!   before the next waiting caller of another source.
//! * A place is taken until its [`CallerTurn`] is dropped, whichever task holds this value.
//!
//! tokio's `Semaphore` serves callers in the order of their arrival, so one source with many
//! callers would delay all others.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::iter;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::oneshot;

use crate::locks::lock;

/// Limit of the number of callers that work at the same time, with a queue of the callers that
/// wait. Clones share the limit and the queue.
#[derive(Clone, Debug)]
pub struct Turns<S: Clone + Eq + Hash>(Arc<Mutex<TurnQueue<S>>>);

#[derive(Debug)]
struct TurnQueue<S: Clone + Eq + Hash> {
    /// Number of free places. The number is zero while a caller waits.
    free: usize,
    /// Callers that wait, by source. Each source in the map has at least one caller.
    waiting: HashMap<S, VecDeque<oneshot::Sender<CallerTurn<S>>>>,
    /// Sources with a waiting caller, in the order of their turns.
    order: VecDeque<S>,
}

/// A taken place: the caller may work as long as it holds this value. When the value is dropped,
/// the place goes to a waiting caller of the next source. If no caller waits, the place becomes
/// free.
#[derive(Debug)]
pub struct CallerTurn<S: Clone + Eq + Hash>(Option<Turns<S>>);

impl<S: Clone + Eq + Hash> Turns<S> {
    /// Creates a limit that lets `places` callers work at the same time.
    pub fn new(places: usize) -> Self {
        let (waiting, order) = (HashMap::new(), VecDeque::new());
        Self(Arc::new(Mutex::new(TurnQueue { free: places, waiting, order })))
    }

    /// Takes a place at once if one is free, or else waits until it is the turn of `source`. The
    /// drop of the returned [`CallerTurn`] gives the place back.
    pub async fn take(&self, source: S) -> CallerTurn<S> {
        loop {
            let turn = {
                let mut queue = self.lock();
                if let Some(left) = queue.free.checked_sub(1) {
                    queue.free = left;
                    return CallerTurn(Some(self.clone()));
                }
                let (teller, turn) = oneshot::channel();
                if !queue.waiting.contains_key(&source) {
                    queue.order.push_back(source.clone());
                }
                queue.waiting.entry(source.clone()).or_default().push_back(teller);
                turn
            };
            // `turn` fails only if its sender is dropped. The queue has the sender of each caller
            // that waits, and exists as long as `self`.
            if let Ok(turn) = turn.await {
                return turn;
            }
        }
    }

    /// Waits for the turn of `source`, lets the other tasks of this thread run, and gives the place
    /// back. If there is one place, callers return one at a time, and other tasks run before the
    /// next caller returns.
    pub async fn pass(&self, source: S) {
        let turn = self.take(source).await;
        tokio::task::yield_now().await;
        drop(turn);
    }

    fn lock(&self) -> MutexGuard<'_, TurnQueue<S>> {
        lock(&self.0)
    }

    /// Removes from the queue the caller whose turn is next, and returns the sender that wakes this
    /// caller. Skips callers whose future was dropped. `None`: no caller waits, so one place was
    /// added to the free places.
    fn next(&self) -> Option<oneshot::Sender<CallerTurn<S>>> {
        let mut queue = self.lock();
        while let Some(source) = queue.order.pop_front() {
            let Some(waiters) = queue.waiting.get_mut(&source) else { continue };
            let next = iter::from_fn(|| waiters.pop_front()).find(|waiter| !waiter.is_closed());
            if waiters.is_empty() {
                queue.waiting.remove(&source);
            } else {
                queue.order.push_back(source);
            }
            if next.is_some() {
                return next;
            }
        }
        queue.free += 1;
        None
    }
}

impl<S: Clone + Eq + Hash> Drop for CallerTurn<S> {
    fn drop(&mut self) {
        let Some(turns) = self.0.take() else { return };
        while let Some(next) = turns.next() {
            match next.send(Self(Some(turns.clone()))) {
                Ok(()) => return,
                // The caller's future was dropped after the caller left the queue. So the place
                // goes to the next caller.
                Err(mut unwanted) => drop(unwanted.0.take()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn sources_take_turns_and_who_left_is_passed_over() {
        let turns = Turns::new(1);
        let first = turns.take(1).await;
        let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let mut waiters = Vec::new();
        for (from, name) in [(1, "a1"), (1, "a2"), (1, "a3"), (2, "b1"), (2, "b2"), (3, "c1")] {
            let (turns, said) = (turns.clone(), said.clone());
            waiters.push(tokio::spawn(async move {
                let turn = turns.take(from).await;
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
        // No caller waits any more. So `take(1)` must get the place at once. `take(3)` must get it
        // at once too, although the place was first offered to `take(2)`, whose future was dropped.
        let turn = timeout(Duration::from_secs(9), turns.take(1)).await.unwrap();
        let mut late = Box::pin(turns.take(2));
        assert!(timeout(Duration::ZERO, &mut late).await.is_err());
        drop(turn);
        drop(late);
        timeout(Duration::from_secs(9), turns.take(3)).await.unwrap();
    }

    #[tokio::test]
    async fn a_waiter_that_left_costs_its_source_no_turn() {
        let turns = Turns::new(1);
        let first = turns.take("a").await;
        for _ in 0..9 {
            let mut leaving = Box::pin(turns.take("b"));
            assert!(timeout(Duration::ZERO, &mut leaving).await.is_err());
        }
        let mut same = Box::pin(turns.take("a"));
        assert!(timeout(Duration::ZERO, &mut same).await.is_err());
        let mut other = Box::pin(turns.take("b"));
        assert!(timeout(Duration::ZERO, &mut other).await.is_err());
        drop(first);
        let turn = timeout(Duration::from_secs(9), other).await.unwrap();
        drop(turn);
        timeout(Duration::from_secs(9), same).await.unwrap();
    }

    #[tokio::test]
    async fn other_tasks_run_between_two_that_pass() {
        let turns = Turns::new(1);
        let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
        for number in 0..100 {
            let (turns, said) = (turns.clone(), said.clone());
            tokio::spawn(async move {
                turns.pass(number % 3).await;
                let _ = said.send(());
            });
        }
        drop(said);
        // This task runs at least once for each two that pass.
        let (mut passed, mut looks) = (0, 0);
        while passed < 100 {
            let before = passed;
            while heard.try_recv().is_ok() {
                passed += 1;
            }
            assert!(passed <= before + 2, "{} passed at once", passed - before);
            looks += 1;
            assert!(looks < 10_000, "{passed} passed");
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_source_delays_another_by_one_piece_of_work_in_each_place() {
        let turns = Turns::new(2);
        let mut taken = VecDeque::from([turns.take("a").await, turns.take("a").await]);
        let mut more: Vec<_> = (0..100).map(|_| Box::pin(turns.take("a"))).collect();
        for waiter in &mut more {
            assert!(timeout(Duration::ZERO, waiter).await.is_err(), "both places are taken");
        }
        let mut other = Box::pin(turns.take("b"));
        assert!(timeout(Duration::ZERO, &mut other).await.is_err());
        drop(taken.pop_front());
        assert!(timeout(Duration::ZERO, &mut other).await.is_err(), "the turn of the first source");
        drop(taken.pop_front());
        timeout(Duration::from_secs(9), other).await.unwrap();
    }
}
