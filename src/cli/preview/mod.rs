//! The `preview` command: prints what the operator would do in this cluster. Another controller may
//! lead meanwhile. The command reads the cluster once, through a connection that cannot write.

mod credentials;
mod leases;
mod serving;

use chrono::Utc;
use kube::{Client, ResourceExt as _};

use self::serving::ServingPreview;
use super::dhcp::NetworkArgs;
use super::{ConnectionOptions, PATIENCE};
use crate::api::LoadBalancer;
use crate::domain::dhcp_lease::WantedAgent;
use crate::domain::dhcp_lease::agent_name;
use crate::domain::load_balancer::facts;
use crate::domain::load_balancer::status::AddressOutcome;
use crate::domain::object_fields::rfc3339;
use crate::domain::pools::allocator::ClaimResult;
use crate::domain::pools::kube_vip_import;
use crate::domain::preview::{self, LoadBalancerLine, PlannedWrite, Preview, report, unread};
use crate::domain::takeover::forecast::{Forecast, forecast};
use crate::k8s::stored_objects::{self, ReadResult};
use crate::k8s::{client, takeover};
use crate::metrics::Metrics;

/// Options of `preview`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PreviewArgs {
    #[command(flatten)]
    reach: ConnectionOptions,
    /// Namespace in which the operator would run. On Harvester, the management address is stored
    /// there.
    #[arg(long, env = "HGO_NAMESPACE", default_value = "harvester-system")]
    namespace: String,
    #[command(flatten)]
    dhcp: NetworkArgs,
    /// Namespaces, separated by commas. The command looks in their Secrets for credentials that
    /// expire. Default: none. With an entry of the form NAMESPACE/SECRET+SECRET, it reads only
    /// these Secrets in this namespace.
    #[arg(long, env = "HGO_CREDENTIAL_NAMESPACES", value_delimiter = ',')]
    credential_namespaces: Vec<String>,
}

/// Reads the cluster, and prints what the operator would do in it.
pub(super) async fn run(args: PreviewArgs) -> anyhow::Result<()> {
    let (namespace, name) = args.reach.lease()?;
    let metrics = Metrics::new()?;
    let kubeconfig = args.reach.kubeconfig.as_deref();
    let config = client::config(kubeconfig, PATIENCE).await?;
    let (client, refusals) = client::read_only(config, &metrics)?;
    let dhcp = args.dhcp.networks();
    let read = stored_objects::read(&client, &refusals, &args.namespace, dhcp, &metrics);
    let reading = Box::pin(read).await?;
    let now = Utc::now();
    let mut plan = Box::pin(plan(&client, &reading, &args.namespace)).await;
    // Errors of these two reads are not reported here, because `refusals` records the reads that
    // were refused. After any other error, the fact counts as not known.
    plan.leader = takeover::leader(&client, namespace, name).await.ok();
    plan.admission = takeover::admission(&client).await.ok();
    let namespaces = super::namespaces(&args.credential_namespaces);
    let mut late = reading.late.clone();
    match credentials::read(&client, &namespaces, now.timestamp()).await {
        Ok(credentials) => plan.credentials = credentials,
        Err(_) => late.push("secrets"),
    }
    plan.unknown.extend(unread::sentences(&refusals.all(), &late));
    super::print(&report::text(&plan, now.timestamp()))
}

/// Builds the plan: the addresses that LoadBalancers would have, and the writes that the operator
/// would make.
async fn plan(client: &Client, reading: &ReadResult, namespace: &str) -> Preview {
    let now = rfc3339::to_second(Utc::now());
    let forecast = forecast(&reading.stored);
    let mut plan = Preview::default();
    pools(&mut plan, reading, &forecast, &now);
    for lb in &reading.stored.load_balancers {
        let line = load_balancer(&mut plan, client, reading, &forecast, lb, &now).await;
        plan.load_balancers.push(line);
    }
    plan.load_balancers.sort_by(|a, b| a.name.cmp(&b.name));
    for vm in reading.views.moved() {
        let what = "metadata.annotations: region and zone of its node";
        plan.changes.push(PlannedWrite::new("VirtualMachineInstance", &vm, what));
    }
    for network in reading.views.agent_networks() {
        if network.agent == WantedAgent::Ours && reading.views.agent_of(&network.name).is_none() {
            let agent = format!("{namespace}/{}", agent_name(&network.name));
            let what = format!("created: DHCP agent of network {}", network.name);
            plan.changes.push(PlannedWrite::new("Deployment", &agent, what));
        }
    }
    plan.findings = preview::further(&forecast, &plan);
    plan
}

fn pools(plan: &mut Preview, reading: &ReadResult, forecast: &Forecast, now: &str) {
    for stored in &reading.pools {
        let name = stored.name_any();
        let Some(pool) = forecast.allocator.pools().get(&name) else { continue };
        let touched = forecast.touched.contains(&name);
        let (line, change) = preview::pool(stored, pool, touched, now);
        plan.pools.push(line);
        if reading.imported.contains(&name) {
            let what = "created: from kube-vip's ConfigMap";
            plan.changes.push(PlannedWrite::new("IPPool", &name, what));
        } else {
            plan.changes.extend(change);
        }
    }
    plan.pools.sort_by(|a, b| a.name.cmp(&b.name));
    if !reading.imported.is_empty() {
        let name = format!("{}/{}", kube_vip_import::NAMESPACE, kube_vip_import::NAME);
        let what = "metadata.annotations: report of the import, with what cannot be imported";
        plan.changes.push(PlannedWrite::new("ConfigMap", &name, what));
    }
}

async fn load_balancer(
    plan: &mut Preview,
    client: &Client,
    reading: &ReadResult,
    forecast: &Forecast,
    lb: &LoadBalancer,
    now: &str,
) -> LoadBalancerLine {
    let name = facts::name(lb);
    if facts::is_leaving(lb) {
        plan.changes.extend(serving::withdrawn(&reading.views, lb));
        let (line, change) = preview::leaving(lb);
        plan.changes.extend(change);
        return line;
    }
    let outcome = match (reading.removals.get(&name), forecast.results.get(&name)) {
        (Some(removal), _) => Some(AddressOutcome::Pool(ClaimResult::Waiting(removal.clone()))),
        (None, Some(result)) => Some(AddressOutcome::Pool(result.clone())),
        (None, None) => leases::decide(&reading.views, lb).map(|(outcome, change)| {
            plan.changes.extend(change);
            outcome
        }),
    };
    let Some(outcome) = outcome else { return preview::unknown(lb) };
    let served = serving::serve(&reading.views, client, lb, outcome.clone()).await;
    let Some(ServingPreview { outcome, report, changes, unchecked }) = served else {
        let (line, change) = preview::load_balancer(lb, &outcome, None, now);
        plan.changes.extend(change);
        return LoadBalancerLine { said: preview::unknown(lb).said, ..line };
    };
    let (line, change) = preview::load_balancer(lb, &outcome, report.as_ref(), now);
    plan.changes.extend(change);
    plan.changes.extend(changes);
    if unchecked {
        plan.unknown.push(format!(
            "health of the VMs of LoadBalancer {name}: this command runs no health checks"
        ));
    }
    line
}
