//! What is heard of an EndpointSlice while this process writes it.
//!
//! The word of a write often comes before its answer. To read all of it then would be in vain, and to
//! decide again as well. Invariant: what was put aside is looked at when the write is over, if it is
//! still news then: a deletion and a list that were heard of since are newer.

use std::collections::HashMap;

use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::{Views, lock, serving};
use crate::k8s::unread::Unread;

type Slice = Unread<EndpointSlice>;

/// By `namespace/name`: slices that are being written, and the last that was heard of each.
pub(super) struct Early<T = Slice>(HashMap<String, Option<T>>);

impl<T> Default for Early<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> Early<T> {
    fn begin(&mut self, name: &str) {
        self.0.insert(name.to_owned(), None);
    }

    /// A slice was heard of. It is given back if nobody writes it.
    pub(super) fn put_aside(&mut self, name: &str, slice: T) -> Option<T> {
        match self.0.get_mut(name) {
            Some(aside) => {
                *aside = Some(slice);
                None
            }
            None => Some(slice),
        }
    }

    /// It is gone, so what is put aside is old.
    pub(super) fn gone(&mut self, name: &str) {
        if let Some(aside) = self.0.get_mut(name) {
            *aside = None;
        }
    }

    /// All were listed, so whatever is put aside is old.
    pub(super) fn listed(&mut self) {
        self.0.values_mut().for_each(|aside| *aside = None);
    }

    fn end(&mut self, name: &str) -> Option<T> {
        self.0.remove(name).flatten()
    }
}

/// A write of an EndpointSlice under way. To be dropped when the views know what came of it.
pub struct WritingSlice<'a> {
    views: &'a Views,
    name: String,
}

impl Drop for WritingSlice<'_> {
    fn drop(&mut self) {
        let aside = lock(&self.views.early).end(&self.name);
        if let Some(slice) = aside {
            serving::see(self.views, &slice);
        }
    }
}

impl Views {
    /// An EndpointSlice is about to be written. One LoadBalancer's are written one after the other.
    pub fn writing_slice(&self, namespace: &str, name: &str) -> WritingSlice<'_> {
        let name = format!("{namespace}/{name}");
        lock(&self.early).begin(&name);
        WritingSlice { views: self, name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_heard_of_during_a_write_waits_for_its_end() {
        let mut early = Early::default();
        assert_eq!(early.put_aside("a", 1), Some(1), "nobody writes it");
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
        let mut early = Early::default();
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
