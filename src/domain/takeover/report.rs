//! Texts of the command `takeover` for a terminal: the observed state, the plan, and the forecast.

use std::fmt::Write as _;

use super::steps::{Direction, Leader, SUB_CHART, TakeoverProgram, TakeoverState, TakeoverStep};
use crate::takeover::forecast::{Effect, Forecast, ForecastFinding};

/// Maximum number of findings of a forecast that are printed for each effect. Further findings are
/// only counted.
const MOST: usize = 200;

/// Describes one step, as a sentence.
pub fn sentence(step: &TakeoverStep, state: &TakeoverState) -> String {
    let chart = || state.chart.as_ref().map_or("", |chart| &chart.name);
    match step {
        TakeoverStep::KeepCrd(name) => {
            format!("annotate CRD {name}, so that Helm keeps it when its chart no longer has it")
        }
        TakeoverStep::StopChart => {
            format!(
                "set the replicas of {SUB_CHART} in the values of ManagedChart {} to 0",
                chart()
            )
        }
        TakeoverStep::RestoreChart => {
            format!("restore the recorded values of {SUB_CHART} in ManagedChart {}", chart())
        }
        TakeoverStep::AwaitAdmission => {
            "wait until the operator has registered its webhooks".to_owned()
        }
        TakeoverStep::OpenAdmission => {
            "let the API server accept writes without a webhook, until the Go webhook is registered"
                .to_owned()
        }
        TakeoverStep::Stop(program) => {
            format!("stop {program}: Deployment {} to 0 replicas", state.name(*program))
        }
        TakeoverStep::AwaitEnd(program) => format!("wait until all pods of {program} have ended"),
        TakeoverStep::Start(program, replicas) => {
            format!("start {program}: Deployment {} to {replicas} replicas", state.name(*program))
        }
        TakeoverStep::AwaitReady(program) => format!("wait until a pod of {program} is ready"),
        TakeoverStep::AwaitLease => "wait until the operator leads".to_owned(),
        TakeoverStep::AwaitLeaseFree => {
            "wait until the operator no longer holds the Lease".to_owned()
        }
        TakeoverStep::AdoptCrd(name) => {
            format!("replace the form of CRD {name} by the operator's, and record the former form")
        }
        TakeoverStep::RestoreCrd(name) => format!("restore the recorded form of CRD {name}"),
        TakeoverStep::RemoveFinalizers(objects) => {
            format!(
                "remove the Go controller's finalizers from {objects} VirtualMachines and VirtualMachineInstances"
            )
        }
    }
}

/// Describes the observed state in a few lines: programs, leader and ManagedChart.
pub fn situation(state: &TakeoverState) -> String {
    let mut text = String::new();
    for program in TakeoverProgram::ALL {
        let there = match state.deployments.get(&program) {
            None => "not installed".to_owned(),
            Some(d) => format!("Deployment {}, {} of {} replicas ready", d.name, d.ready, d.wanted),
        };
        let _ = writeln!(text, "{:<18} {there}", format!("{program}:"));
    }
    let leader = match &state.leader {
        Leader::None => "none".to_owned(),
        Leader::Operator(holder) => format!("the operator ({holder})"),
        Leader::Other(holder) => format!("another controller ({holder})"),
    };
    let _ = writeln!(text, "{:<18} {leader}", "leader:");
    let chart = state.chart.as_ref().map_or_else(
        || {
            "none: make sure that the tool that installed the Go controller, such as Argo CD, \
             does not start it again"
                .to_owned()
        },
        |chart| chart.name.clone(),
    );
    let _ = writeln!(text, "{:<18} {chart}", "ManagedChart:");
    text
}

/// Numbered list of the steps that are left in `direction`, or the obstacle that stops the plan.
pub fn plan(direction: Direction, state: &TakeoverState) -> String {
    match direction.plan(state) {
        Ok(steps) if steps.is_empty() => "nothing is left to do\n".to_owned(),
        Ok(steps) => {
            let mut text = String::new();
            for (index, step) in steps.iter().enumerate() {
                let _ = writeln!(text, "{:>2}. {}", index + 1, sentence(step, state));
            }
            text
        }
        Err(refusal) => format!("not possible now: {refusal}\n"),
    }
}

/// Describes the forecast: how many LoadBalancers keep, get or lease an address, and the findings.
pub fn forecast(forecast: &Forecast) -> String {
    let mut text = format!(
        "{} LoadBalancers keep their address, {} get their first one, {} lease theirs by DHCP\n",
        forecast.keep, forecast.gain, forecast.leased
    );
    for (effect, title) in [
        (Effect::Changes, "Addresses that change"),
        (Effect::Stays, "Left as they are: decide what to do"),
        (Effect::Repairs, "Repaired by the operator"),
    ] {
        let of: Vec<&ForecastFinding> =
            forecast.findings.iter().filter(|f| f.effect == effect).collect();
        if of.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n{title} ({}):", of.len());
        for finding in of.iter().take(MOST) {
            let _ = writeln!(text, "  {}: {}", finding.object, finding.text);
        }
        if of.len() > MOST {
            let _ = writeln!(text, "  and {} more", of.len() - MOST);
        }
    }
    text
}
