//! No core dump is made of this process: its memory holds credentials.
//!
//! Invariant: the limit is set before anything is read that is secret.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// One byte: at a limit of 0 the kernel still hands a dump to a program that `kernel.core_pattern` names,
/// and only this one keeps it from that.
const LIMIT: Rlimit = Rlimit { current: Some(1), maximum: Some(1) };

/// Sets the limit, for good. Otherwise says why not: a limit of 0 that somebody else has set may not be
/// raised.
pub(super) fn forbid() -> Result<(), String> {
    setrlimit(Resource::Core, LIMIT).map_err(|error| {
        let limit = getrlimit(Resource::Core).maximum;
        let limit = limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
        format!("RLIMIT_CORE cannot be set to 1, it stays at {limit}: {error}")
    })
}
