//! Limit of the sockets that probes hold open at the same time.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Maximum number of probes under way, however many file descriptors there are. It is enough even
/// if 10,000 targets do not answer: with a period of 5 s and a timeout of 3 s, they have 6,000
/// probes under way (10,000 / 5 * 3). Each probe costs the kernel about 4 KiB.
const MOST: usize = 8_192;
/// Number of file descriptors reserved for the rest of the process: connections to the API server,
/// metrics, files.
const RESERVED: usize = 256;
/// Number of probes that may always be under way, however few file descriptors there are. This
/// number is small, so probing is slow then, but it does not stop.
const LEAST: usize = 64;

/// Raises the process's soft limit of open files to its hard limit. Returns the number of probes
/// that may be under way. The raise does no harm: the usual soft limit of 1,024 only protects
/// programs that call select(2), and this program does not.
pub(super) fn allowance() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        match setrlimit(Resource::Nofile, raised) {
            Ok(()) => limit = raised,
            Err(error) => tracing::warn!(%error, "cannot raise the limit of open files"),
        }
    }
    let most = allowed(limit.current);
    if most < MOST {
        tracing::warn!(
            most,
            "the limit of open files is low, so fewer than {MOST} probes run at a time"
        );
    }
    most
}

/// Number of probes that may be under way if the limit of open files is `files`. `files: None`: the
/// number of open files has no limit.
fn allowed(files: Option<u64>) -> usize {
    let files = files.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
    files.saturating_sub(RESERVED).clamp(LEAST, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_leave_descriptors_to_the_rest_and_never_stop() {
        assert_eq!(allowed(None), MOST);
        assert_eq!(allowed(Some(1 << 20)), MOST);
        assert_eq!(allowed(Some(1_024)), 768);
        assert_eq!(allowed(Some(10)), LEAST);
    }

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_one() {
        assert!(allowance() >= LEAST);
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
