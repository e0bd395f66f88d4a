//! A bounded queue in which no namespace waits for the backlog of another namespace.
//!
//! Invariants:
//! * namespaces take turns, one entry each;
//! * a namespace has at most [`OF_ONE`] entries. A further entry of this namespace is dropped,
//!   instead of an entry of another namespace;
//! * the queue has at most [`IN_ALL`] entries.

use std::collections::VecDeque;

/// Maximum number of entries of one namespace.
pub const OF_ONE: usize = 16;
/// Maximum number of entries of all namespaces together.
pub const IN_ALL: usize = 512;

/// Queue in which namespaces take turns. Each turn returns one entry of one namespace.
#[derive(Debug)]
pub struct FairQueue<T> {
    /// Namespaces that have entries, in the order of their turns, each with its entries. The first
    /// one has the next turn.
    turns: VecDeque<(String, VecDeque<T>)>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { turns: VecDeque::new() }
    }
}

impl<T> FairQueue<T> {
    /// Adds an entry behind the other entries of its namespace. Returns the entry that is dropped
    /// because of a limit. `None`: no entry is dropped.
    /// * If the namespace has [`OF_ONE`] entries, the new entry is dropped.
    /// * If the queue has [`IN_ALL`] entries, the namespace with the most entries loses its newest
    ///   entry. Exception: if no namespace has at least two entries more than the new entry's
    ///   namespace, the new entry is dropped.
    pub fn push(&mut self, namespace: &str, entry: T) -> Option<T> {
        let own = self.turns.iter().find(|(name, _)| name == namespace);
        let own = own.map_or(0, |(_, list)| list.len());
        if own >= OF_ONE {
            return Some(entry);
        }
        let mut dropped = None;
        if self.len() >= IN_ALL {
            let more = self.turns.iter_mut().filter(|(_, list)| list.len() > own + 1);
            let most = more.max_by(|(a, left), (b, right)| (left.len(), a).cmp(&(right.len(), b)));
            let Some((_, longest)) = most else { return Some(entry) };
            dropped = longest.pop_back();
        }
        match self.turns.iter_mut().find(|(name, _)| name == namespace) {
            Some((_, list)) => list.push_back(entry),
            None => self.turns.push_back((namespace.to_owned(), VecDeque::from([entry]))),
        }
        dropped
    }

    /// Removes and returns the oldest entry of the namespace that has the next turn. `None`: the
    /// queue is empty.
    pub fn pop(&mut self) -> Option<T> {
        let (namespace, mut list) = self.turns.pop_front()?;
        let entry = list.pop_front();
        if !list.is_empty() {
            self.turns.push_back((namespace, list));
        }
        entry
    }

    fn len(&self) -> usize {
        self.turns.iter().map(|(_, list)| list.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(queue: &mut FairQueue<String>) -> Vec<String> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn namespaces_take_turns() {
        let mut queue = FairQueue::default();
        for entry in ["a1", "a2", "a3", "b1", "c1", "b2"] {
            assert_eq!(queue.push(&entry[..1], entry.to_owned()), None);
        }
        assert_eq!(drain(&mut queue), ["a1", "b1", "c1", "a2", "b2", "a3"]);
        assert!(queue.turns.is_empty());
    }

    #[test]
    fn a_flood_of_one_costs_the_others_one_turn() {
        let mut queue = FairQueue::default();
        let lost = (0..10_000).filter(|n| queue.push("hostile", format!("h{n}")).is_some()).count();
        assert_eq!(lost, 10_000 - OF_ONE);
        assert_eq!(queue.push("b", "b1".to_owned()), None);
        assert_eq!(drain(&mut queue)[..2], ["h0", "b1"]);
    }

    #[test]
    fn when_all_room_is_taken_the_source_with_the_most_gives_way() {
        let mut queue = FairQueue::default();
        for name in 0..IN_ALL / OF_ONE {
            for n in 0..OF_ONE {
                assert_eq!(queue.push(&format!("n{name:02}"), format!("{name}/{n}")), None);
            }
        }
        // All namespaces have `OF_ONE` entries. The last one in alphabetical order loses its newest
        // entry.
        assert_eq!(queue.push("b", "b1".to_owned()), Some("31/15".to_owned()));
        assert_eq!(queue.len(), IN_ALL);
        let all = drain(&mut queue);
        assert_eq!(all.len(), IN_ALL);
        assert_eq!(all[IN_ALL / OF_ONE], "b1", "after one turn of each");
        // If each namespace has one entry only, no namespace loses its entry to another.
        for n in 0..IN_ALL {
            assert_eq!(queue.push(&format!("n{n}"), format!("{n}")), None);
        }
        assert_eq!(queue.push("b", "b1".to_owned()), Some("b1".to_owned()));
        assert_eq!(drain(&mut queue).len(), IN_ALL);
    }
}
