//! The `takeover` command: replaces Harvester's Go controller by this operator, or goes back to the
//! Go controller. The command works with the rights of the account that runs it: a person's
//! account, or the account of the chart's Job. The command changes nothing without `--apply`.

mod execution;

use anyhow::bail;

use self::execution::PlanExecution;
use super::{ConnectionOptions, PATIENCE, print};
use crate::domain::dhcp_lease::DhcpNetworks;
use crate::domain::preview::unread;
use crate::domain::takeover::forecast::forecast;
use crate::domain::takeover::report;
use crate::domain::takeover::steps::Direction;
use crate::k8s::takeover::{NamespaceAndName, TakeoverClient};
use crate::k8s::{client, stored_objects};
use crate::metrics::Metrics;

/// Options of `takeover`.
#[derive(Clone, Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(super) struct TakeoverArgs {
    #[command(flatten)]
    reach: ConnectionOptions,
    /// Carries the plan out. Without this option the plan is only printed, and nothing is changed.
    #[arg(long)]
    apply: bool,
    /// Fails, before anything is changed, if the address of a LoadBalancer would change.
    #[arg(long, conflicts_with = "undo")]
    keep_addresses: bool,
    /// Goes back to the Go controller.
    #[arg(long)]
    undo: bool,
    /// Replaces Harvester's CRDs by the operator's as well. --undo puts Harvester's CRDs back.
    #[arg(long, conflicts_with = "undo")]
    adopt_crds: bool,
    /// Deployment of the Go controller, as namespace/name. The Deployment of its webhook has the
    /// same name, followed by -webhook.
    #[arg(
        long,
        value_name = "NAMESPACE/NAME",
        value_parser = namespace_and_name,
        default_value = "harvester-system/harvester-load-balancer"
    )]
    controller: NamespaceAndName,
    /// ManagedChart from which Fleet installs Harvester, as namespace/name.
    #[arg(
        long,
        value_name = "NAMESPACE/NAME",
        value_parser = namespace_and_name,
        default_value = "fleet-local/harvester"
    )]
    managed_chart: NamespaceAndName,
    /// Maximum rate of the removal of finalizers, 1 to 1000: number of VirtualMachines and
    /// VirtualMachineInstances per second.
    #[arg(
        long,
        value_name = "VMS",
        default_value_t = 100,
        value_parser = clap::value_parser!(u16).range(1..=1000)
    )]
    finalizers_per_second: u16,
}

/// Prints the plan, and carries it out with `--apply`.
pub(super) async fn run(args: TakeoverArgs) -> anyhow::Result<()> {
    let (namespace, name) = args.reach.lease()?;
    let metrics = Metrics::new()?;
    let kubeconfig = args.reach.kubeconfig.as_deref();
    let config = client::config(kubeconfig, PATIENCE).await?;
    let (reader, refusals) = client::read_only(config.clone(), &metrics)?;
    // Without `--apply`, the command uses only the connection that cannot write.
    let client = if args.apply { client::through(config, &metrics)? } else { reader.clone() };
    let takeover = TakeoverClient {
        client,
        controller: args.controller.clone(),
        chart: args.managed_chart.clone(),
        lease: (namespace.to_owned(), name.to_owned()),
    };
    let direction =
        if args.undo { Direction::Undo } else { Direction::TakeOver { crds: args.adopt_crds } };
    let mut state = Box::pin(takeover.state()).await?;
    if direction != Direction::Undo {
        state.finalizers = takeover.finalizers().await?;
    }
    print(&report::situation(&state))?;
    if direction != Direction::Undo {
        let (namespace, dhcp) = (&args.controller.0, DhcpNetworks::default());
        let read = stored_objects::read(&reader, &refusals, namespace, dhcp, &metrics);
        let reading = Box::pin(read).await?;
        let forecast = forecast(&reading.stored);
        print(&format!("\n{}", report::forecast(&forecast)))?;
        let unknown = unread::sentences(&refusals.all(), &reading.late);
        print(&unread::section(&unknown))?;
        if args.keep_addresses && forecast.changes() > 0 {
            bail!(
                "{} LoadBalancers would get another address or lose theirs, so nothing was \
                 changed: see \"Addresses that change\" above. If these changes are right, run the \
                 command without --keep-addresses",
                forecast.changes()
            );
        }
    }
    print(&format!("\n{}", report::plan(direction, &state)))?;
    if !args.apply {
        return print("\nnothing was changed: --apply carries the plan out\n");
    }
    // Refuses the whole plan before the first write if one of its steps is not possible.
    direction.plan(&state).map_err(|refusal| anyhow::anyhow!("{refusal}"))?;
    let mut output = std::io::stdout();
    let per_second = args.finalizers_per_second;
    Box::pin(PlanExecution::new(&takeover, direction, per_second, &mut output).run()).await
}

fn namespace_and_name(text: &str) -> Result<NamespaceAndName, String> {
    let found = super::namespace_and_name(text);
    let (namespace, name) = found.ok_or("must be namespace/name")?;
    Ok((namespace.to_owned(), name.to_owned()))
}
