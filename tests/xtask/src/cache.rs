//! The cache folder of this machine: built programs, and durations of the last time.

use std::env;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};

/// The cache folder: `harvester-guest-operator` in `XDG_CACHE_HOME`, or in `~/.cache`.
pub(crate) fn cache_root() -> Result<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME is set")?;
    let root = base.join("harvester-guest-operator");
    fs::create_dir_all(&root).with_context(|| format!("create {}", root.display()))?;
    Ok(root)
}

/// Locks the file, waiting for another process if necessary. Dropping the file unlocks it.
pub(crate) fn lock(path: &Path, waiting: impl FnOnce()) -> Result<File> {
    let file = File::create(path).with_context(|| format!("open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(error).context("lock the cache"),
    }
    waiting();
    file.lock().context("wait for the lock of the cache")?;
    Ok(file)
}

/// Duration of this work in the last run on this machine.
pub(crate) fn last_duration(work: &str) -> Option<Duration> {
    let text = fs::read_to_string(duration_file(work).ok()?).ok()?;
    Duration::try_from_secs_f64(text.trim().parse().ok()?).ok()
}

/// Stores the duration of the work for the next run.
pub(crate) fn store_duration(work: &str, took: Duration) -> Result<()> {
    Ok(fs::write(duration_file(work)?, format!("{:.1}\n", took.as_secs_f64()))?)
}

fn duration_file(work: &str) -> Result<PathBuf> {
    let dir = cache_root()?.join("durations");
    fs::create_dir_all(&dir)?;
    Ok(dir.join(work.replace(' ', "-")))
}

/// FNV-1a, which is the same for every toolchain; the standard library's hasher does not promise
/// that.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::fnv1a;

    #[test]
    fn the_hash_is_the_published_one() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
