//! Hostile requests to admission: the CPU time and the memory that each costs the operator.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use testbed::{Bed, Operator, Options, install};
use tokio::time::timeout;

use crate::admission::{END, operator, registered};
use crate::hostile_requests::hostile;
use crate::wire;

/// Limit of the CPU time of one request.
const MOST_CPU: Duration = Duration::from_secs(1);
/// Limit of the memory of one request, above the operator's memory at rest.
const MOST_MIB: f64 = 100.0;
const PATIENCE: Duration = Duration::from_mins(1);

/// Cost of one request.
pub(crate) struct HostileCost {
    pub(crate) what: &'static str,
    pub(crate) body_mib: f64,
    pub(crate) cpu: Duration,
    /// Peak RSS during the request, above the RSS before the first of all requests.
    pub(crate) rss_mib: f64,
}

/// Sends one request after the other to an operator on a control plane of its own, without objects:
/// the operator has nothing else to do.
pub(crate) async fn measure(binary: &Path) -> Result<Vec<HostileCost>> {
    println!("hostile requests, on another control plane");
    let bed = Bed::start(Options::default()).await?;
    install(&bed).await?;
    let mut operator = operator(&bed, binary).await?;
    let bundle = registered(&bed.admin()).await?;
    operator.process.reset_peak_rss()?;
    let rest = peak_mib(&operator)?;
    let mut costs = Vec::new();
    for (what, path, body, expected) in hostile() {
        operator.process.reset_peak_rss()?;
        let before = cpu(&operator)?;
        let (code, said) = ask(&operator, &bundle, path, &body).await.context(what)?;
        ensure!(code == expected, "{what}: {code} {said:.300}");
        costs.push(HostileCost {
            what,
            body_mib: body.len() as f64 / f64::from(1 << 20),
            cpu: cpu(&operator)?.saturating_sub(before),
            rss_mib: peak_mib(&operator)? - rest,
        });
    }
    operator.process.terminate(END).await?;
    bed.stop().await?;
    Ok(costs)
}

/// Fails if a request costs more than the limits.
pub(crate) fn check(costs: &[HostileCost]) -> Result<()> {
    for HostileCost { what, cpu, rss_mib, .. } in costs {
        ensure!(*cpu <= MOST_CPU, "{what}: {cpu:?} of CPU, more than {MOST_CPU:?}");
        ensure!(*rss_mib <= MOST_MIB, "{what}: {rss_mib:.1} MiB above rest, more than {MOST_MIB}");
    }
    Ok(())
}

/// Sends one request on a connection of its own. Returns status code and answer.
async fn ask(operator: &Operator, bundle: &str, path: &str, body: &str) -> Result<(u16, String)> {
    let address = operator.admission.context("admission does not listen")?;
    let mut stream = wire::connect(address, bundle, None).await?;
    let answer = timeout(PATIENCE, wire::post(&mut stream, path, body.as_bytes())).await?;
    let (code, _, said) = answer?;
    Ok((code, said))
}

fn cpu(operator: &Operator) -> Result<Duration> {
    operator.process.cpu_time().context("no CPU time")
}

/// Peak memory since the last reset.
fn peak_mib(operator: &Operator) -> Result<f64> {
    Ok(operator.process.peak_rss_kib().context("no RSS")? as f64 / 1024.0)
}
