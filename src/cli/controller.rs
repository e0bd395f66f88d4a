//! The `controller` process, and the parts that it runs:
//!
//! * always: views, the HTTP endpoints for metrics and health, and admission unless it is off;
//! * only while it leads: controllers, and with them scheduled probes;
//! * only while it does not lead: answers to the leader's questions about VMs, and reports about
//!   another controller that holds the Lease.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use super::{ControllerArgs, admission};
use crate::controllers::second_opinion::{self, Replica};
use crate::controllers::{self, Context};
use crate::domain::leader_election::ElectionPace;
use crate::domain::vm_backends::health::second_opinion::ReplicaPlace;
use crate::http::health_endpoints;
use crate::http::operator_health::OperatorHealth;
use crate::k8s::client;
use crate::k8s::credentials::CredentialReader;
use crate::k8s::events::EventRecorder;
use crate::k8s::leadership::{LeaderElector, Leadership};
use crate::k8s::other_controller::LeaseHolderWatch;
use crate::k8s::views::Views;
use crate::k8s::write::ApiWriter;
use crate::metrics::Metrics;

/// Runs the operator until SIGTERM or SIGINT. `Err`: the start has failed, or one of the main tasks
/// has ended before such a signal.
pub(super) async fn run(args: ControllerArgs) -> anyhow::Result<()> {
    let lease = args.reach.lease()?;
    let pace = ElectionPace::beside_go(args.lease_duration);
    let me = args.identity.clone().unwrap_or_else(identity);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;

    let metrics = Metrics::new()?;
    let config = client::config(args.reach.kubeconfig.as_deref(), client::CONNECT).await?;
    let client = client::through(config.clone(), &metrics)?;
    // The Lease has its own connections, so that a burst of other calls cannot delay a renewal.
    let lease_client = client::through(config.clone(), &metrics)?;
    let leadership = Arc::new(Leadership::default());
    let views = Views::start(&client, &args.admission.namespace, args.dhcp.networks(), &metrics);
    let mut admission =
        admission::start(&args.admission, &client, &views, &leadership, &metrics).await?;
    let shown = OperatorHealth {
        metrics: metrics.clone(),
        leadership: leadership.clone(),
        views: views.clone(),
        admission: admission.ready.clone(),
        ending: admission.ending.soon.clone(),
    };
    let (address, server) = health_endpoints::serve(args.http_addr, shown).await?;
    // This server runs until the process ends, so that `/readyz` can report that this replica is
    // shutting down.
    let mut server = tokio::spawn(server);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), me, %address, lease = args.reach.lease, "started");

    let replica = Arc::new(Replica {
        leadership: leadership.clone(),
        place: ReplicaPlace { replica: me.clone(), node: args.node.unwrap_or_default() },
        lease: (lease.0.to_owned(), lease.1.to_owned()),
    });
    tokio::spawn(second_opinion::answer(replica.clone(), views.clone()));
    let ctx = Context {
        writer: ApiWriter::new(client.clone(), leadership.clone(), metrics.clone()),
        events: EventRecorder::start(client.clone(), &me, metrics.clone()),
        credentials: CredentialReader::new(client.clone(), config, metrics.clone()),
        credential_namespaces: Arc::new(super::namespaces(&args.credential_namespaces)),
        client,
        views,
        metrics,
        replica,
        began: Instant::now(),
        release_grace: args.dhcp.release_grace(),
        repair_crds: args.repair_crds,
        agents: args.dhcp.agents(&args.admission)?.map(Arc::new),
    };
    let lookout = LeaseHolderWatch {
        client: ctx.client.clone(),
        lease: (lease.0.to_owned(), lease.1.to_owned()),
        leadership: leadership.clone(),
        views: ctx.views.clone(),
        writer: ctx.writer.clone(),
        events: ctx.events.clone(),
        metrics: ctx.metrics.clone(),
    };
    tokio::spawn(lookout.run());
    let elector = LeaderElector::new(lease_client, lease, me, pace);
    let mut restored = false;
    let result = tokio::select! {
        back = elector.run(&leadership) => {
            restored = true;
            Err(anyhow::anyhow!("{back}"))
        }
        result = terms(&ctx, &leadership) => result,
        result = &mut server => Err(anyhow::anyhow!("the HTTP server ended: {result:?}")),
        () = admission.ended() => Err(anyhow::anyhow!("admission's listener ended")),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    // The term of leadership is over, because `select!` has dropped the tasks of the term.
    if restored {
        controllers::ip_pool::keep_published(&ctx).await;
    }
    // This process gives the Lease back, so another replica may lead from now on.
    elector.release(&leadership).await;
    admission.wind_down().await;
    tracing::info!("stopped");
    result
}

/// Runs the controllers during each term of this process. Never returns `Ok`. `Err`: changes of the
/// leadership can no longer be received.
async fn terms(ctx: &Context, leadership: &Leadership) -> anyhow::Result<()> {
    let mut leading = leadership.subscribe();
    loop {
        leading.wait_for(|leads| *leads).await?;
        let mut lost = leadership.subscribe();
        tokio::select! {
            biased;
            changed = lost.wait_for(|leads| !leads) => {
                changed?;
                tracing::warn!("lost the Lease: controllers stopped on this replica");
            }
            result = controllers::lead(ctx.clone()) => {
                // After a failed term, a new term begins. The new term knows only the state that
                // the API server stores.
                if let Err(error) = result {
                    tracing::error!(%error, "term ended, starting a new one");
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

/// Name of this process in the Lease: host name and process id. In a pod, the host name is the
/// pod's name.
pub(super) fn identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}_{}", host.trim(), std::process::id())
}
