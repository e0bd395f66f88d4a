//! Single probes of some targets, outside of any schedule, for a second opinion.

use std::net::IpAddr;
use std::time::Duration;

use tokio::task::JoinSet;

use super::check_connection::DialSettings;
use super::probe::ask;
use crate::domain::vm_backends::health::{CheckSettings, may_be_backend};

/// Maximum time for the probe of a target. The leader waits for the result, so a longer timeout of
/// the check is cut to this time.
const LONGEST: Duration = Duration::from_secs(10);

/// Probes each target once, all at the same time. Returns (number of targets that passed, number of
/// targets that failed). A target is skipped if its check is invalid, or if no backend can have its
/// address. A probe that shows nothing about its target is not counted.
pub async fn survey(targets: Vec<(IpAddr, CheckSettings)>) -> (usize, usize) {
    let mut probes = JoinSet::new();
    for (address, check) in targets {
        let Ok(dial) = DialSettings::new(&check) else { continue };
        if may_be_backend(address) {
            let check = CheckSettings { timeout: check.timeout.min(LONGEST), ..check };
            probes.spawn(async move { ask(address, &check, &dial).await.verdict() });
        }
    }
    let (mut passed, mut failed) = (0, 0);
    while let Some(verdict) = probes.join_next().await {
        match verdict {
            Ok(Some(true)) => passed += 1,
            Ok(Some(false)) => failed += 1,
            Ok(None) | Err(_) => {}
        }
    }
    (passed, failed)
}
