//! Watch events of an EndpointSlice that this process is writing.
//!
//! The event of a write often arrives before the answer to the write. It would then be useless to
//! parse the event and to decide again, so the event is put aside. Invariant: when the write is
//! over, that event is handled, unless a later event, deletion or list has replaced it.

use std::collections::HashMap;

use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::{Views, lock, serving};
use crate::k8s::lazy_object::LazyObject;

type Slice = LazyObject<EndpointSlice>;

/// Slices that are being written, by `namespace/name`, and the last event of each.
pub(super) struct DeferredSlices<T = Slice>(HashMap<String, Option<T>>);

impl<T> Default for DeferredSlices<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> DeferredSlices<T> {
    fn begin(&mut self, name: &str) {
        self.0.insert(name.to_owned(), None);
    }

    /// Puts a slice's event aside, if this process is writing the slice. Else returns the slice.
    pub(super) fn put_aside(&mut self, name: &str, slice: T) -> Option<T> {
        match self.0.get_mut(name) {
            Some(aside) => {
                *aside = Some(slice);
                None
            }
            None => Some(slice),
        }
    }

    /// Drops the event that was put aside, because the slice is gone.
    pub(super) fn gone(&mut self, name: &str) {
        if let Some(aside) = self.0.get_mut(name) {
            *aside = None;
        }
    }

    /// Drops all events that were put aside, because a newer list is complete.
    pub(super) fn listed(&mut self) {
        self.0.values_mut().for_each(|aside| *aside = None);
    }

    fn end(&mut self, name: &str) -> Option<T> {
        self.0.remove(name).flatten()
    }
}

/// A write of an EndpointSlice that is under way. Drop this object when the views have the result
/// of the write.
pub struct WritingSlice<'a> {
    views: &'a Views,
    name: String,
}

impl Drop for WritingSlice<'_> {
    fn drop(&mut self) {
        let aside = lock(&self.views.index.early).end(&self.name);
        if let Some(slice) = aside {
            serving::see(self.views, &slice);
        }
    }
}

impl Views {
    /// Registers a write of an EndpointSlice. A slice has at most one write under way, because the
    /// slices of one LoadBalancer are written one after the other.
    pub fn writing_slice(&self, namespace: &str, name: &str) -> WritingSlice<'_> {
        let name = format!("{namespace}/{name}");
        lock(&self.index.early).begin(&name);
        WritingSlice { views: self, name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_heard_of_during_a_write_waits_for_its_end() {
        let mut early = DeferredSlices::default();
        assert_eq!(early.put_aside("a", 1), Some(1), "it is not being written");
        early.begin("a");
        assert_eq!(early.put_aside("b", 1), Some(1), "another's write");
        assert_eq!(early.put_aside("a", 2), None);
        assert_eq!(early.put_aside("a", 3), None);
        assert_eq!(early.end("a"), Some(3), "the newest");
        assert_eq!(early.put_aside("a", 4), Some(4), "the write is over");
        assert_eq!(early.end("a"), None);
    }

    #[test]
    fn what_is_older_than_a_deletion_or_a_list_is_not_looked_at() {
        let mut early = DeferredSlices::default();
        early.begin("a");
        early.put_aside("a", 1);
        early.gone("a");
        assert_eq!(early.end("a"), None);
        early.begin("a");
        early.put_aside("a", 1);
        early.listed();
        assert_eq!(early.put_aside("a", 2), None, "it is written all the same");
        assert_eq!(early.end("a"), Some(2));
    }
}
