//! Order of the steps of a take-over, and of the way back to the Go controller.
//!
//! Taking over:
//!
//! * The CRDs are protected from deletion by Helm before the ManagedChart or a CRD's form changes.
//! * Before the Go controller is stopped, Fleet is kept from starting it again.
//! * Before the Go webhook ends, the operator has registered its own admission webhook.
//! * The operator's form of the CRDs is put in place after the Go controller has ended. With this
//!   form, the API server would drop the status that the Go controller writes.
//! * Finalizers are removed after the Go controller has ended. Until then, it adds them again.
//!
//! Going back:
//!
//! * Harvester's form of the CRDs is put back first. The operator works with both forms, but the Go
//!   controller works only with Harvester's.
//! * The operator ends before the Go webhook starts, because each of the two would overwrite the
//!   other's webhook configurations.
//! * The Go controller starts last.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

/// Annotation of a Deployment: number of its replicas before a step set the number to 0. A
/// take-over writes the annotation, and so does the way back to Harvester's Go controller.
pub const ANNOTATION_REPLICAS: &str = "loadbalancer.harvesterhci.io/replicas-before-takeover";
/// Annotation of the ManagedChart: values of [`SUB_CHART`] before a take-over, as JSON.
pub const ANNOTATION_VALUES: &str = "loadbalancer.harvesterhci.io/values-before-takeover";
/// Name of the sub-chart that installs Harvester's Go controller for load balancers. It is part of
/// Harvester's chart (harvester: `deploy/charts/harvester/Chart.yaml`).
pub const SUB_CHART: &str = "harvester-load-balancer";
/// Finalizers that Harvester's Go controller adds to VirtualMachines and VirtualMachineInstances.
/// The Go controller has one handler of deletions for each of the two kinds. For each handler, the
/// library wrangler adds one finalizer to every object of the kind (`pkg/generic/remove.go`,
/// `OnRemove`).
pub const VM_FINALIZERS: [&str; 2] = [
    "wrangler.cattle.io/harvester-lb-vm-controller",
    "wrangler.cattle.io/harvester-lb-vmi-controller",
];

/// A program that is stopped or started by a take-over, or by the way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TakeoverProgram {
    /// Harvester's Go controller for load balancers.
    GoController,
    /// Admission webhook of Harvester's Go controller.
    GoWebhook,
    /// The operator, this program.
    Operator,
}

impl TakeoverProgram {
    /// Every program.
    pub const ALL: [Self; 3] = [Self::GoController, Self::GoWebhook, Self::Operator];
}

impl fmt::Display for TakeoverProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GoController => "the Go controller",
            Self::GoWebhook => "the Go webhook",
            Self::Operator => "the operator",
        })
    }
}

/// Facts about a program's Deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deployment {
    /// `namespace/name` of the Deployment.
    pub name: String,
    /// `spec.replicas`.
    pub wanted: i32,
    /// Number of pods that have not ended, including pods that are being deleted. A pod that is
    /// being deleted may still lead, or change the webhook configurations. `status.replicas` does
    /// not count such pods.
    pub running: i32,
    /// `status.readyReplicas`.
    pub ready: i32,
    /// Number of replicas before a step set the number to 0, from [`ANNOTATION_REPLICAS`]. `None`:
    /// no number is recorded.
    pub before: Option<i32>,
}

/// ManagedChart from which Fleet installs and upgrades Harvester. The values of the ManagedChart
/// outlive upgrades (harvester: `package/upgrade/upgrade_manifests.sh`,
/// `upgrade_managedchart_harvester`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagedChart {
    /// `namespace/name` of the ManagedChart.
    pub name: String,
    /// `spec.values` of the sub-chart [`SUB_CHART`]. Null: the sub-chart has no values.
    pub values: Value,
    /// Values of the sub-chart before a take-over, from [`ANNOTATION_VALUES`]. `None`: not
    /// recorded.
    pub before: Option<Value>,
}

impl ManagedChart {
    /// Values of the sub-chart that start neither Harvester's Go controller nor its webhook
    /// (charts: `charts/harvester-load-balancer/templates/deployment.yaml`).
    pub fn stopped() -> Value {
        json!({"replicaCount": 0, "webhook": {"replicasCount": 0}})
    }

    /// Merge patch that puts the recorded values of the sub-chart back. Null in the patch removes a
    /// value. The whole patch is null if the sub-chart had no values before, or if nothing was
    /// recorded. Otherwise, each value of [`Self::stopped`] that was not recorded is null.
    pub fn restored(&self) -> Value {
        let Some(Value::Object(before)) = &self.before else { return Value::Null };
        let mut patch = json!({"replicaCount": null, "webhook": null});
        for (key, value) in before {
            patch[key] = value.clone();
        }
        if let Some(webhook) = patch["webhook"].as_object_mut() {
            webhook.entry("replicasCount").or_insert(Value::Null);
        }
        patch
    }

    /// Whether Fleet starts neither the Go controller nor its webhook with `self.values`.
    fn starts_nothing(&self) -> bool {
        self.values["replicaCount"] == 0 && self.values["webhook"]["replicasCount"] == 0
    }
}

/// A stored CRD of LoadBalancer or IPPool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Crd {
    /// `metadata.name` of the CRD.
    pub name: String,
    /// Whether the annotation `helm.sh/resource-policy` makes Helm keep the CRD after the chart no
    /// longer contains the CRD.
    pub is_kept: bool,
    /// Whether the CRD's `spec.versions` are those of this version of the operator.
    pub is_current: bool,
    /// Way in which the CRD gets a form that suits the Go controller.
    pub way_back: WayBack,
}

/// Way in which a CRD gets a form that suits the Go controller. Such a form has no status
/// subresource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WayBack {
    /// No step is needed: the stored form suits the Go controller, and no former form is recorded.
    #[default]
    Open,
    /// The form in the annotation [`super::crds::ANNOTATION_FORM`] can be put back.
    Recorded,
    /// No suitable form is known: the stored form has the status subresource, and no former form is
    /// recorded.
    Closed,
}

/// Holder of the Lease for which the operator and the Go controller compete. A variant's field is
/// the holder's identity in the Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Leader {
    /// No process.
    #[default]
    None,
    /// A replica of the operator.
    Operator(String),
    /// Another controller.
    Other(String),
}

/// Content of the validating webhook configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WebhookContent {
    /// The configuration is missing, or is not the operator's. For example, the API server calls
    /// the Go webhook.
    #[default]
    Other,
    /// The API server calls the operator, and refuses a write if the call gets no answer.
    Operator,
    /// The API server calls the operator, and accepts a write if the call gets no answer.
    OperatorOpen,
}

/// State from which the next step is decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakeoverState {
    /// Deployment of each program. A program without a Deployment is not in the map.
    pub deployments: BTreeMap<TakeoverProgram, Deployment>,
    /// Harvester's ManagedChart. `None`: the ManagedChart does not exist.
    pub chart: Option<ManagedChart>,
    /// The CRDs of LoadBalancer and IPPool.
    pub crds: Vec<Crd>,
    /// Holder of the Lease.
    pub leader: Leader,
    /// Content of the validating webhook configuration.
    pub admission: WebhookContent,
    /// Number of VirtualMachines and VirtualMachineInstances with one of [`VM_FINALIZERS`].
    pub finalizers: usize,
}

/// A step of a take-over, or of the way back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakeoverStep {
    /// Annotate the CRD of this name, so that Helm keeps it.
    KeepCrd(String),
    /// Set the numbers of replicas in the values of the ManagedChart to 0, and record the former
    /// values.
    StopChart,
    /// Wait until the operator has registered its admission webhook.
    AwaitAdmission,
    /// Set the number of the program's replicas to 0, and record the former number.
    Stop(TakeoverProgram),
    /// Wait until no pod of the program is left.
    AwaitEnd(TakeoverProgram),
    /// Wait until the operator holds the Lease.
    AwaitLease,
    /// Wait until the operator does not hold the Lease.
    AwaitLeaseFree,
    /// Put the operator's form into the CRD of this name. If this replaces Harvester's form, record
    /// Harvester's form.
    AdoptCrd(String),
    /// Put back the recorded form of the CRD of this name, and Helm's recorded label and
    /// annotations. If another program has replaced the operator's form, the present form stays.
    RestoreCrd(String),
    /// Remove the finalizers of Harvester's Go controller from this number of objects.
    RemoveFinalizers(usize),
    /// Let the API server accept writes even if the operator's admission does not answer.
    OpenAdmission,
    /// Set the values of the ManagedChart back to the recorded values.
    RestoreChart,
    /// Start the program with this number of replicas: the recorded number, or one replica if no
    /// number is recorded.
    Start(TakeoverProgram, i32),
    /// Wait until a replica of the program is ready.
    AwaitReady(TakeoverProgram),
}

impl TakeoverStep {
    /// Whether the step only waits, and changes no object.
    pub const fn waits(&self) -> bool {
        matches!(
            self,
            Self::AwaitAdmission
                | Self::AwaitEnd(_)
                | Self::AwaitLease
                | Self::AwaitLeaseFree
                | Self::AwaitReady(_)
        )
    }
}

/// Direction of a take-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The operator takes over from the Go controller.
    TakeOver {
        /// Whether the operator's form is put into both CRDs. `false`: it is put only into a CRD
        /// that has the annotation [`super::crds::ANNOTATION_FORM`] already.
        crds: bool,
    },
    /// The Go controller takes over from the operator.
    Undo,
}

impl Direction {
    /// The next step from this state. `None`: no step is left. `Err`: why no step is possible.
    pub fn next(self, state: &TakeoverState) -> Result<Option<TakeoverStep>, String> {
        match self {
            Self::TakeOver { crds } => take_over(state, crds),
            Self::Undo => undo(state),
        }
    }

    /// All steps that are left from this state, if each step succeeds. `Err`: reason why one of
    /// them is not possible.
    pub fn plan(self, state: &TakeoverState) -> Result<Vec<TakeoverStep>, String> {
        let mut state = state.clone();
        let mut steps = Vec::new();
        while let Some(step) = self.next(&state)? {
            state.carry_out(self, &step);
            steps.push(step);
        }
        Ok(steps)
    }
}

fn take_over(state: &TakeoverState, crds: bool) -> Result<Option<TakeoverStep>, String> {
    let missing = "the operator is not installed: install it first, with helm install. It then \
                   waits while the Go controller leads";
    if !state.deployments.contains_key(&TakeoverProgram::Operator) {
        return Err(missing.to_owned());
    }
    // Harvester's Go controller is stopped only if a replica of the operator can take over its
    // work. After a return to the Go controller, no replica runs, so the operator is started first.
    if let Some(step) = state.beginning(TakeoverProgram::Operator) {
        return Ok(Some(step));
    }
    if let Some(crd) = state.crds.iter().find(|crd| !crd.is_kept) {
        return Ok(Some(TakeoverStep::KeepCrd(crd.name.clone())));
    }
    if state.chart.as_ref().is_some_and(|chart| !chart.starts_nothing()) {
        return Ok(Some(TakeoverStep::StopChart));
    }
    if state.admission != WebhookContent::Operator {
        return Ok(Some(TakeoverStep::AwaitAdmission));
    }
    let programs = [TakeoverProgram::GoWebhook, TakeoverProgram::GoController];
    if let Some(step) = programs.into_iter().find_map(|program| state.end(program)) {
        return Ok(Some(step));
    }
    if !matches!(state.leader, Leader::Operator(_)) {
        return Ok(Some(TakeoverStep::AwaitLease));
    }
    let replaced = |crd: &&Crd| (crds || crd.way_back == WayBack::Recorded) && !crd.is_current;
    if let Some(crd) = state.crds.iter().find(replaced) {
        return Ok(Some(TakeoverStep::AdoptCrd(crd.name.clone())));
    }
    Ok((state.finalizers > 0).then_some(TakeoverStep::RemoveFinalizers(state.finalizers)))
}

fn undo(state: &TakeoverState) -> Result<Option<TakeoverStep>, String> {
    if !state.deployments.contains_key(&TakeoverProgram::GoController) {
        return Err(
            "there is no Deployment of the Go controller: install Harvester's chart harvester-load-balancer first"
                .to_owned(),
        );
    }
    let has = |way: WayBack| state.crds.iter().find(|crd| crd.way_back == way);
    if let Some(crd) = has(WayBack::Closed) {
        return Err(format!(
            "CRD {} is the operator's, and Harvester's form is not recorded. With the operator's \
             form, the API server would drop the status that the Go controller writes, and one \
             address could be allocated twice. Apply Harvester's CRD first",
            crd.name
        ));
    }
    if let Some(crd) = has(WayBack::Recorded) {
        return Ok(Some(TakeoverStep::RestoreCrd(crd.name.clone())));
    }
    let end = state.end(TakeoverProgram::Operator);
    if let Some(TakeoverStep::Stop(_)) = end {
        return Ok(end);
    }
    // `OpenAdmission` comes before the wait for the end of the operator's pods. So writes of guests
    // do not fail when no replica answers any more.
    if state.admission == WebhookContent::Operator {
        return Ok(Some(TakeoverStep::OpenAdmission));
    }
    if end.is_some() {
        return Ok(end);
    }
    if matches!(state.leader, Leader::Operator(_)) {
        return Ok(Some(TakeoverStep::AwaitLeaseFree));
    }
    if state.chart.as_ref().is_some_and(|chart| chart.before.is_some()) {
        return Ok(Some(TakeoverStep::RestoreChart));
    }
    let programs = [TakeoverProgram::GoWebhook, TakeoverProgram::GoController];
    Ok(programs.into_iter().find_map(|program| state.beginning(program)))
}

impl TakeoverState {
    fn change_deployment(
        &mut self,
        program: TakeoverProgram,
        change: impl FnOnce(&mut Deployment),
    ) {
        self.deployments.entry(program).and_modify(change);
    }

    /// `namespace/name` of the program's Deployment. Empty: there is no such Deployment.
    pub fn name(&self, program: TakeoverProgram) -> &str {
        self.deployments.get(&program).map_or("", |deployment| &deployment.name)
    }

    fn end(&self, program: TakeoverProgram) -> Option<TakeoverStep> {
        let deployment = self.deployments.get(&program)?;
        if deployment.wanted > 0 {
            return Some(TakeoverStep::Stop(program));
        }
        (deployment.running > 0).then_some(TakeoverStep::AwaitEnd(program))
    }

    fn beginning(&self, program: TakeoverProgram) -> Option<TakeoverStep> {
        let deployment = self.deployments.get(&program)?;
        if deployment.wanted == 0 {
            // One replica is started if the former number is not recorded.
            return Some(TakeoverStep::Start(program, deployment.before.unwrap_or(1).max(1)));
        }
        (deployment.ready == 0).then_some(TakeoverStep::AwaitReady(program))
    }

    fn change_crd(&mut self, name: &str, change: impl Fn(&mut Crd)) {
        self.crds.iter_mut().filter(|crd| crd.name == name).for_each(change);
    }

    /// Changes this state in the same way as a successful `step` changes the cluster.
    fn carry_out(&mut self, direction: Direction, step: &TakeoverStep) {
        match step {
            TakeoverStep::KeepCrd(name) => self.change_crd(name, |crd| crd.is_kept = true),
            TakeoverStep::AdoptCrd(name) => self.change_crd(name, |crd| {
                (crd.is_current, crd.way_back) = (true, WayBack::Recorded);
            }),
            TakeoverStep::RestoreCrd(name) => self.change_crd(name, |crd| {
                (crd.is_current, crd.way_back) = (false, WayBack::Open);
            }),
            TakeoverStep::StopChart => {
                if let Some(chart) = &mut self.chart {
                    chart.before.get_or_insert_with(|| chart.values.clone());
                    chart.values = ManagedChart::stopped();
                }
            }
            TakeoverStep::RestoreChart => {
                if let Some(chart) = &mut self.chart {
                    chart.values = chart.before.take().unwrap_or_default();
                }
            }
            TakeoverStep::AwaitAdmission => self.admission = WebhookContent::Operator,
            TakeoverStep::OpenAdmission => self.admission = WebhookContent::OperatorOpen,
            TakeoverStep::Stop(program) => self.change_deployment(*program, |deployment| {
                deployment.before.get_or_insert(deployment.wanted);
                deployment.wanted = 0;
            }),
            TakeoverStep::AwaitEnd(program) => self.change_deployment(*program, |deployment| {
                (deployment.running, deployment.ready) = (0, 0);
            }),
            TakeoverStep::Start(program, replicas) => {
                self.change_deployment(*program, |deployment| {
                    (deployment.wanted, deployment.before) = (*replicas, None);
                });
            }
            TakeoverStep::AwaitReady(program) => self.change_deployment(*program, |deployment| {
                (deployment.running, deployment.ready) = (deployment.wanted, deployment.wanted);
            }),
            TakeoverStep::AwaitLease => self.leader = Leader::Operator(String::new()),
            TakeoverStep::AwaitLeaseFree => self.leader = Leader::None,
            TakeoverStep::RemoveFinalizers(_) => self.finalizers = 0,
        }
        // The Go webhook registers itself when it starts.
        if direction == Direction::Undo
            && *step == TakeoverStep::AwaitReady(TakeoverProgram::GoWebhook)
        {
            self.admission = WebhookContent::Other;
        }
    }
}

#[cfg(test)]
mod tests;
