//! What is heard of an object that this process writes itself.
//!
//! Owns which versions wake nobody. Invariant: a version that somebody else wrote wakes somebody,
//! at the latest when the write under way is over.

use std::collections::HashMap;

use super::{Views, lock};

/// By `namespace/name`.
#[derive(Default)]
pub(super) struct Echoes(HashMap<String, Echo>);

enum Echo {
    /// A write is under way; meanwhile this version was heard of. An echo may come before the
    /// answer.
    Writing(Option<String>),
    /// It was written in this version, and there is nothing more to do about that.
    Wrote(String),
}

impl Echoes {
    /// It is about to be written.
    fn begin(&mut self, name: &str) {
        self.0.insert(name.to_owned(), Echo::Writing(None));
    }

    /// A version was heard of. Returns whether somebody must look at it now.
    pub(super) fn hear(&mut self, name: &str, version: &str) -> bool {
        match self.0.get_mut(name) {
            Some(Echo::Writing(heard)) => {
                *heard = Some(version.to_owned());
                false
            }
            Some(Echo::Wrote(wrote)) => wrote != version,
            None => true,
        }
    }

    /// The write is over; `wrote` is its version, if that leaves nothing to do. Returns whether
    /// somebody must look at what was heard meanwhile.
    fn end(&mut self, name: &str, wrote: Option<String>) -> bool {
        let Some(Echo::Writing(heard)) = self.0.remove(name) else { return false };
        let is_news = heard.is_some() && heard != wrote;
        if let Some(wrote) = wrote {
            self.0.insert(name.to_owned(), Echo::Wrote(wrote));
        }
        is_news
    }

    /// It is gone.
    pub(super) fn forget(&mut self, name: &str) {
        self.0.remove(name);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// A write of a LoadBalancer under way. What is heard of it wakes nobody until this is dropped.
pub struct Writing<'a> {
    views: &'a Views,
    lb: String,
    wrote: Option<String>,
}

impl Writing<'_> {
    /// It was written in this version, and whoever wrote it knows that there is nothing more to
    /// do: hearing of that version wakes nobody.
    pub fn is_all(mut self, version: String) {
        self.wrote = Some(version);
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if lock(&self.views.echoes).end(&self.lb, self.wrote.take()) {
            self.views.tell_lbs([&self.lb]);
        }
    }
}

impl Views {
    /// A LoadBalancer, by `namespace/name`, is about to be written.
    pub fn writing(&self, lb: String) -> Writing<'_> {
        lock(&self.echoes).begin(&lb);
        Writing { views: self, lb, wrote: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LB: &str = "default/web";

    fn wrote(version: &str) -> String {
        version.to_owned()
    }

    #[test]
    fn an_echo_wakes_nobody_before_the_answer_or_after_it() {
        let mut echoes = Echoes::default();
        assert!(echoes.hear(LB, "6"), "nobody writes it");
        echoes.begin(LB);
        assert!(!echoes.hear(LB, "7"));
        assert!(!echoes.end(LB, Some(wrote("7"))));
        echoes.begin(LB);
        assert!(!echoes.end(LB, Some(wrote("8"))));
        assert!(!echoes.hear(LB, "8"));
        assert!(echoes.hear(LB, "9"), "somebody else's");
    }

    #[test]
    fn what_somebody_else_wrote_meanwhile_is_looked_at() {
        let mut echoes = Echoes::default();
        echoes.begin(LB);
        assert!(!echoes.hear(LB, "7") && !echoes.hear(LB, "8"));
        assert!(echoes.end(LB, Some(wrote("7"))));
        assert!(echoes.hear(LB, "9"));
    }

    /// A refused write, one whose answer was lost, and one that leaves something to do.
    #[test]
    fn without_a_version_everything_heard_is_looked_at() {
        let mut echoes = Echoes::default();
        echoes.begin(LB);
        assert!(!echoes.end(LB, None), "nothing was heard");
        assert!(echoes.hear(LB, "7"));
        echoes.begin(LB);
        assert!(!echoes.hear(LB, "8"));
        assert!(echoes.end(LB, None));
        assert!(echoes.hear(LB, "8"), "it is not expected");
    }

    #[test]
    fn of_one_that_is_gone_nothing_is_left() {
        let mut echoes = Echoes::default();
        echoes.begin(LB);
        echoes.hear(LB, "7");
        echoes.forget(LB);
        assert!(!echoes.end(LB, Some(wrote("7"))));
        assert!(echoes.hear(LB, "7"), "one made again under the name");
    }
}
