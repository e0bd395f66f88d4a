//! Prevents core dumps of this process, because its memory holds credentials.
//!
//! Invariant: the limit is set before any secret is read.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Maximum size of a core dump: one byte. With this limit, the kernel writes no dump to a file, and
/// pipes none to the program that `kernel.core_pattern` names. With a limit of 0, the kernel would
/// still pipe a dump to this program.
const LIMIT: Rlimit = Rlimit { current: Some(1), maximum: Some(1) };

/// Sets the limit of this process's core dumps to [`LIMIT`], permanently. `Err`: the reason why the
/// limit was not set. For example, a limit that is already 0 cannot be raised to 1.
pub(super) fn forbid() -> Result<(), String> {
    setrlimit(Resource::Core, LIMIT).map_err(|error| {
        let limit = getrlimit(Resource::Core).maximum;
        let limit = limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
        format!("RLIMIT_CORE cannot be set to 1 and remains {limit}: {error}")
    })
}
