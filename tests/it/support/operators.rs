//! Metrics and log of an operator.

use anyhow::{Context as _, Result, ensure};
use testbed::{Operator, eventually};

use super::SOON;

/// Number of writes of pools and LoadBalancers that an operator has sent, whatever their outcome.
pub(crate) async fn writes(operator: &Operator) -> Result<f64> {
    operator.metric("hgo_api_writes_total", &[]).await
}

/// Waits until a metric has a wanted value. A process may count an action a moment after its effect
/// is visible, and a leader shows its series a moment after its term began.
pub(crate) async fn shows(
    operator: &Operator,
    name: &str,
    parts: &[&str],
    is: impl Fn(f64) -> bool,
) -> Result<f64> {
    eventually(SOON, &format!("another value of {name} {parts:?}"), async || {
        let found = operator.metric(name, parts).await.map_err(|e| format!("{e:#}"))?;
        if is(found) { Ok(Some(found)) } else { Err(found.to_string()) }
    })
    .await
    .with_context(|| operator.recent_log())
}

/// Number of the operator's calls without an answer in time, which a stall of the machine causes.
/// Their outcome is unknown, so the operator repeats them, perhaps in vain.
pub(crate) fn unanswered(operator: &Operator) -> Result<f64> {
    let log = operator.process.log();
    let lines = log.lines().filter(|line| line.contains("no answer within")).count();
    Ok(f64::from(u32::try_from(lines)?))
}

/// Checks that no reconcile and no write failed, except for a missing answer. A pool's write without
/// an answer fails all reconciles that wait for the pool.
pub(crate) async fn nothing_failed(operator: &Operator) -> Result<()> {
    let log = operator.process.log();
    let most = unanswered(operator)?;
    let is_excused = |line: &str| {
        let is_of_pool = line.contains("the ledger of IPPool");
        line.contains("no answer within") || (is_of_pool && most > 0.0)
    };
    let failed: Vec<&str> =
        log.lines().filter(|line| line.contains("reconcile failed") && !is_excused(line)).collect();
    ensure!(failed.is_empty(), "{failed:#?}");
    let errors = "hgo_reconcile_errors_total";
    let of_pools = operator.metric(errors, &["\"ledger\""]).await?;
    let most_errors = if most > 0.0 { most + of_pools } else { 0.0 };
    for (name, part, most) in
        [(errors, "", most_errors), ("hgo_api_writes_total", "\"error\"", most)]
    {
        let found = operator.metric(name, &[part]).await?;
        ensure!(found <= most, "{name}: {found}, where {most} calls had no answer");
    }
    Ok(())
}
