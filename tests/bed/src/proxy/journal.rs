//! Owns the record of all calls.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::Call;

/// A call and its outcome.
#[derive(Clone, Debug)]
pub struct Record {
    /// The call.
    pub call: Call,
    /// Time of its arrival.
    pub at: Instant,
    /// Whether it was forwarded to the server.
    pub forwarded: bool,
    /// HTTP status of the answer, from the server or from the rule; `None` while there is none.
    /// After `CutAfter` it is the server's answer, although the client never got it.
    pub status: Option<u16>,
}

/// Reference to a record; stale once the journal was cleared.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    era: u64,
    index: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Journal {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    era: u64,
    records: Vec<Record>,
}

impl Journal {
    pub(crate) fn add(&self, call: Call) -> Entry {
        let mut inner = self.lock();
        inner.records.push(Record { call, at: Instant::now(), forwarded: false, status: None });
        Entry { era: inner.era, index: inner.records.len() - 1 }
    }

    pub(crate) fn forwarded(&self, entry: Entry) {
        self.update(entry, |record| record.forwarded = true);
    }

    pub(crate) fn answered(&self, entry: Entry, status: u16) {
        self.update(entry, |record| record.status = Some(status));
    }

    pub(crate) fn select(&self, wanted: impl Fn(&Call) -> bool) -> Vec<Record> {
        self.lock().records.iter().filter(|record| wanted(&record.call)).cloned().collect()
    }

    pub(crate) fn count(&self, wanted: impl Fn(&Call) -> bool) -> usize {
        self.lock().records.iter().filter(|record| wanted(&record.call)).count()
    }

    pub(crate) fn clear(&self) {
        let mut inner = self.lock();
        inner.era += 1;
        inner.records.clear();
    }

    fn update(&self, entry: Entry, change: impl FnOnce(&mut Record)) {
        let mut inner = self.lock();
        if inner.era == entry.era
            && let Some(record) = inner.records.get_mut(entry.index)
        {
            change(record);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A test's closure may panic under the lock; the records are complete all the same.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
