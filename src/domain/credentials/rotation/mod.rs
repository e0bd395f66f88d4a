//! Credentials that are replaced without a moment in which neither works.
//!
//! One step at a time: [`decide`] says what is next from what is recorded and what is seen, and
//! whoever carries it out may die after any of them. The order: a name is recorded; a credential is
//! made by it, and tried out where it will be used; that it is about to be published is recorded with
//! the version of the target that it replaces; it is published by one write that is refused if the
//! target is no longer that version; it is seen there; workloads are told; time passes; the old one
//! is revoked. Invariants: nothing is revoked that the target holds, or may still come to hold by a
//! write whose outcome is not known; nothing is made without a recorded name; what somebody else has
//! put into the target is adopted and not overwritten before its time.

mod beside;
mod decide;
mod deletion;
pub mod expiry;
pub mod inventory;
pub mod schedule;
pub mod status;
mod strangers;
pub mod target_secret;
mod term;
pub mod watched;

pub use beside::of_two;
pub use decide::{decide, told};
pub use deletion::left_behind;
pub use term::Term;

/// Seconds since the epoch, by the clock of the issuer.
pub type Seconds = i64;

/// Credentials to be revoked beyond which none is made: somebody must look first.
const MOST_PREVIOUS: usize = 16;
/// First and longest pause after a failure.
const FIRST_RETRY: Seconds = 5;
const LAST_RETRY: Seconds = 600;
/// The longest pause after one of revoking: it may have leaked, and nobody tells when a right is given.
const LAST_REVOKE: Seconds = 120;
/// When a target that tells nothing is looked at again.
const LOOK_AGAIN: Seconds = 30;
/// For so long a credential is left to whoever may have it in hand.
const IN_OTHER_HANDS: Seconds = 15;
/// A write that was sent so long ago has been answered, one way or the other.
const SURELY_ANSWERED: Seconds = 120;

/// What is to be done, with defaults for what the spec leaves out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What new credentials are called, but for their number.
    pub prefix: String,
    /// Where they come from. `None`: the target is only watched.
    pub source: Option<Issuer>,
    /// Lifetime that new ones are asked for.
    pub lifetime: Seconds,
    /// Lifetime of one whose end is not known.
    pub presumed: Seconds,
    /// When they are replaced.
    pub schedule: schedule::Schedule,
    /// For how long both are to work.
    pub overlap: Seconds,
    /// Whether workloads are told.
    pub tells: bool,
    /// Whether a deletion revokes what is published.
    pub revokes: bool,
    /// When its deletion was asked for, if it was.
    pub deleting: Option<Seconds>,
    /// The requests that are on it.
    pub requests: Requests,
}

/// What is special about where credentials come from and go to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Issuer {
    /// A credential can be read again by whoever made it.
    pub readable: bool,
    /// The issuer deletes what the target no longer names: the old one stays in it for a while.
    pub prunes: bool,
}

/// Requests by annotation. Each new value is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Replace it now.
    pub rotate: Option<String>,
    /// The same, and revoke the old one as soon as the new one is published.
    pub leaked: Option<String>,
}

impl Requests {
    /// What of these was not carried out yet.
    fn beyond(&self, done: &Self) -> Self {
        let new = |asked: &Option<String>, done: &Option<String>| {
            asked.clone().filter(|asked| !asked.is_empty() && Some(asked) != done.as_ref())
        };
        Self { rotate: new(&self.rotate, &done.rotate), leaked: new(&self.leaked, &done.leaked) }
    }

    fn is_none(&self) -> bool {
        self.rotate.is_none() && self.leaked.is_none()
    }
}

/// What is recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The number of the last credential that was named.
    pub serial: u64,
    /// What the target was last seen to hold.
    pub current: Option<Current>,
    /// What is on its way there.
    pub pending: Option<Pending>,
    /// What is to be revoked.
    pub previous: Vec<Old>,
    /// The credential that workloads were told of.
    pub told: Option<String>,
    /// Requests that were carried out.
    pub done: Requests,
    /// Failures in a row, and when it is tried again.
    pub failures: u32,
    /// When it is tried again.
    pub retry_after: Option<Seconds>,
    /// When a new one was last published.
    pub last_rotation: Option<Seconds>,
    /// What came of it last.
    pub last_result: Option<String>,
}

/// A credential in the target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Current {
    /// Its name; may be empty for somebody else's.
    pub name: String,
    /// By what it is known again. Empty for one that is only watched.
    pub hash: String,
    /// Whether it was made here.
    pub ours: bool,
    /// Since when it works, or was seen.
    pub issued: Seconds,
    /// When it ends, if it says so.
    pub expires: Option<Seconds>,
    /// Whether its issuer keeps it alive by itself: it is not replaced unless that is asked for.
    pub kept_alive: bool,
}

/// A credential on its way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// Its name.
    pub name: String,
    /// Since when it is on its way.
    pub since: Seconds,
    /// What it is for.
    pub requests: Requests,
    /// Set before it is published, anew for each attempt.
    pub publishing: Option<Publishing>,
}

/// A publication that may be under way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Publishing {
    /// What is published.
    pub made: Made,
    /// The version of the target that it replaces; empty for none.
    pub replaces: String,
}

/// What is known of a credential that was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// By what it is known again.
    pub hash: String,
    /// From when it works, by the issuer's clock.
    pub issued: Seconds,
    /// When it ends.
    pub expires: Option<Seconds>,
}

/// A credential that is to be revoked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Old {
    /// Its name.
    pub name: String,
    /// By what it is known again, if anybody but its maker can have it.
    pub hash: Option<String>,
    /// When. `None`: so long after workloads were told of the new one.
    pub after: Option<Seconds>,
    /// The version of the target that it may still replace.
    pub replaces: Option<String>,
    /// How often that has failed.
    pub failures: u32,
}

/// What is seen now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The time, by the clock of the issuer.
    pub now: Seconds,
    /// The target.
    pub target: Target,
    /// The names of those made here that are there. `None`: not known.
    pub existing: Option<Vec<String>>,
    /// What whoever carries this out has in hand.
    pub hand: Option<Hand>,
    /// Reason why the target is unknown.
    pub unknown: Unknown,
}

/// Why a target is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unknown {
    /// There was no answer. One may come.
    #[default]
    Silent,
    /// There was an answer that lasts, such as 403: nothing can be read, and nothing revoked.
    Barred,
    /// The same about the target alone: what was made for it is known, and can be revoked.
    TargetBarred,
}

/// A target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// It could not be read, and tells nothing.
    #[default]
    Unknown,
    /// There is none, and it may be made.
    Absent,
    /// It is there and cannot be written without harm, as the text says.
    Unfit(String),
    /// It is there.
    There {
        /// Its version.
        version: String,
        /// What the consumer would use.
        holds: Option<Held>,
        /// The hashes of all else that is in it.
        beside: Vec<String>,
        /// The hash of the one that was kept in it when it was replaced.
        kept: Option<String>,
    },
}

/// A credential in a target, by what it says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// By what it is known again.
    pub hash: String,
    /// What it is called.
    pub says: super::token::Says,
    /// Whether nothing is known of it but its name: whether it works is not known, nor when it ends.
    pub is_unseen: bool,
    /// Whether its issuer has listed the tokens among which it would be, and it is not there: it is gone, or another
    /// user's.
    pub is_missing: bool,
    /// State that its issuer gives now, if it was asked and knows it.
    pub term: Option<Term>,
}

/// A credential that only whoever carries this out has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hand {
    /// The name by which it was, or is to be, made.
    pub name: String,
    /// What came of that.
    pub made: Option<Made>,
    /// Whether it was seen to work where it will be used.
    pub verified: bool,
}

/// What is next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Record this, if nobody else has recorded anything meanwhile. What it means is for people.
    Write(Change, Box<Record>),
    /// Make the credential by that name, or read it again where that can be done.
    Mint(String),
    /// Try out what is in hand, where it will be used.
    Verify,
    /// Write what is in hand into the target, if that is the recorded version. `keep`: with what is
    /// there now beside it.
    Publish {
        /// Keep the old one in it.
        keep: bool,
    },
    /// Have workloads read the target anew.
    Tell,
    /// Take the old one, which was kept beside the new one, out of the target.
    DropOld,
    /// Revoke the credential by that name, if it is there.
    Revoke(String),
    /// Nothing holds what is being deleted any more.
    Finish,
    /// Nothing, until then at the latest.
    Wait(Option<Seconds>),
}

/// What a record says that the one before did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// What will be made.
    Named,
    /// That it is about to be published.
    Publishing,
    /// That it was.
    Published,
    /// What somebody else has put there.
    Adopted,
    /// The issuer has given the one in the target another end.
    Retimed,
    /// That one is not wanted any more.
    Abandoned,
    /// That there is one that nobody knew of.
    Found,
    /// That workloads were told.
    Told,
    /// That one is gone.
    Revoked,
}

/// A step that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make one.
    Mint,
    /// Try it out.
    Verify,
    /// Publish it.
    Publish,
    /// Tell workloads.
    Tell,
    /// Revoke the old one.
    Revoke,
}

impl Step {
    /// The word for it in statuses, Events and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Mint => "Mint",
            Self::Verify => "Verify",
            Self::Publish => "Publish",
            Self::Tell => "Tell",
            Self::Revoke => "Revoke",
        }
    }

    /// Every one.
    pub const ALL: [Self; 5] = [Self::Mint, Self::Verify, Self::Publish, Self::Tell, Self::Revoke];
}

impl Record {
    /// Whether something has failed, and was not done since.
    pub fn has_failed(&self) -> bool {
        self.last_result.as_ref().is_some_and(|result| result.starts_with("Failed"))
    }

    /// Whether what is on its way was asked for, and not only due.
    pub fn is_asked(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| !pending.requests.is_none())
    }

    /// Whether the issuer keeps what the target holds alive by itself.
    pub fn is_kept_alive(&self) -> bool {
        self.current.as_ref().is_some_and(|current| current.kept_alive)
    }

    /// Whether so many wait to be revoked that no other is made.
    pub fn is_stuck(&self) -> bool {
        self.previous.len() >= MOST_PREVIOUS
    }
}

/// What is recorded when a step has failed. What was made and never published is not wanted any
/// more; what may have been is kept, until it is known.
pub fn failed(plan: &Plan, record: &Record, step: Step, name: &str, now: Seconds) -> Record {
    let mut next = record.clone();
    next.last_result = Some(format!("Failed {}", step.word()));
    if step == Step::Revoke {
        // The others go on meanwhile.
        for old in next.previous.iter_mut().filter(|old| old.name == name) {
            old.failures = old.failures.saturating_add(1);
            old.after = Some(now + pause(old.failures).min(LAST_REVOKE));
        }
        return next;
    }
    next.failures = next.failures.saturating_add(1);
    next.retry_after = Some(now + pause(next.failures).min(LAST_RETRY));
    if matches!(step, Step::Mint | Step::Verify) {
        decide::abandon(plan, &mut next, now);
    }
    next
}

/// The pause after so many failures in a row, before it is cut off.
fn pause(failures: u32) -> Seconds {
    FIRST_RETRY << failures.saturating_sub(1).min(10)
}

/// Time at which the credential is replaced. `None`: there is none, or it is only watched, or kept alive.
pub fn due(plan: &Plan, record: &Record) -> Option<schedule::Due> {
    let current = record.current.as_ref().filter(|current| !current.kept_alive)?;
    plan.source?;
    let end = current.expires.unwrap_or(current.issued + plan.presumed);
    let seed = format!("{}/{}", plan.prefix, record.serial);
    Some(schedule::due(&plan.schedule, current.issued, end, &seed))
}

#[cfg(test)]
mod tests;
