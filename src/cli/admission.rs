//! Options of admission, and its start.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use axum::http::Uri;
use clap::ValueEnum;
use kube::Client;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::domain::admission::webhook_configuration::{
    AdmissionEndpoint, WebhookObject, emptied, is_ours,
};
use crate::http::admission::RuleSources;
use crate::http::listener::{AGE, Server, ServerShutdown};
use crate::http::registration::{Registrar, find_username, jitter};
use crate::http::tls::{self, InUse};
use crate::http::webhook::{CONNECTIONS, Webhooks};
use crate::k8s::leadership::Leadership;
use crate::k8s::read::ApiReader;
use crate::k8s::views::Views;
use crate::k8s::webhook_objects::WebhookObjects;
use crate::metrics::Metrics;

/// Name of admission's Service, as in `config/manager`.
const SERVICE: &str = "harvester-guest-operator-admission";
/// Maximum head start: time by which a replica replaces admission's certificates before they are
/// due. Each replica has a random head start, so that the replicas do not all write the Secret with
/// the certificates at once.
const SPREAD: Duration = Duration::from_hours(6);
/// Time from the start of the shutdown until the listener ends. In this time, Kubernetes removes
/// the routes to this replica.
const LINGER: Duration = Duration::from_secs(4);

/// Way by which the API server reaches admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum AdmissionMode {
    /// The Service harvester-guest-operator-admission of the operator's namespace.
    Service,
    /// The URL of --admission-url: the operator runs outside the cluster.
    Url,
    /// No admission. The operator empties its webhook configurations at the start.
    Off,
}

/// Options of admission.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct AdmissionArgs {
    /// Namespace of the operator: it holds the Secret with admission's certificates, and the Leases
    /// of DHCP agents.
    #[arg(long, env = "HGO_NAMESPACE", default_value = "harvester-system")]
    pub(super) namespace: String,
    /// Way by which the API server reaches admission.
    #[arg(long, env = "HGO_ADMISSION", value_enum, default_value_t = AdmissionMode::Service)]
    admission: AdmissionMode,
    /// Address on which admission and conversion listen, with TLS.
    #[arg(long, env = "HGO_ADMISSION_ADDR", default_value = "0.0.0.0:8443")]
    admission_addr: SocketAddr,
    /// URL at which the API server calls admission, https://HOST:PORT. Only with --admission url.
    /// Port 0 stands for the port of --admission-addr.
    #[arg(long, env = "HGO_ADMISSION_URL")]
    admission_url: Option<String>,
    /// ClusterRole that is removed together with the operator. It becomes the owner of the webhook
    /// configurations and of the DHCP agents that the operator makes, so that they are removed with
    /// the ClusterRole.
    #[arg(long, env = "HGO_ADMISSION_OWNER")]
    pub(super) admission_owner: Option<String>,
    /// File in PEM with certificate authorities. With this option, admission accepts requests for
    /// validation and mutation only from a caller whose client certificate is signed by one of
    /// these authorities. By default, an API server shows no client certificate: configure a client
    /// certificate in the API server first.
    #[arg(long, env = "HGO_ADMISSION_CLIENT_CA")]
    admission_client_ca: Option<PathBuf>,
}

/// Admission of a running process: its listener, or no listener if admission is off.
pub(super) struct RunningAdmission {
    /// Whether admission can answer. Also true if admission is off.
    pub(super) ready: watch::Receiver<bool>,
    /// Cancellation tokens that end the listener.
    pub(super) ending: ServerShutdown,
    server: Option<JoinHandle<()>>,
}

impl RunningAdmission {
    /// Waits until the listener ends by itself, which is a failure. Never returns if admission is
    /// off.
    pub(super) async fn ended(&mut self) {
        match &mut self.server {
            Some(server) => drop(server.await),
            None => std::future::pending().await,
        }
    }

    /// Answers requests for the time `LINGER`, so that Kubernetes can remove the routes to this
    /// replica. Then ends the listener.
    pub(super) async fn wind_down(self) {
        self.ending.soon.cancel();
        if let Some(server) = self.server {
            tokio::time::sleep(LINGER).await;
            self.ending.now.cancel();
            drop(server.await);
        }
    }
}

/// Starts admission: its listener, and the task that registers it with the API server. If admission
/// is off, only empties the operator's webhook configurations.
pub(super) async fn start(
    args: &AdmissionArgs,
    client: &Client,
    views: &Views,
    leadership: &Arc<Leadership>,
    metrics: &Metrics,
) -> anyhow::Result<RunningAdmission> {
    let webhook_objects = WebhookObjects::new(client.clone(), &args.namespace, metrics.clone());
    let ending = ServerShutdown::default();
    if args.admission == AdmissionMode::Off {
        unregister(&webhook_objects).await;
        let ready = watch::channel(true).1;
        return Ok(RunningAdmission { ready, ending, server: None });
    }
    let listener = TcpListener::bind(args.admission_addr)
        .await
        .with_context(|| format!("--admission-addr {}: cannot listen", args.admission_addr))?;
    let address = listener.local_addr()?;
    let (endpoint, names) = endpoint(args, address)?;
    let in_use = Arc::new(InUse::default());
    let settings = tls::settings(in_use.clone(), args.admission_client_ca.as_deref())?;
    let (found, username) = watch::channel(String::new());
    let (sender, ready) = watch::channel(false);
    let admission = RuleSources {
        reader: ApiReader::new(client.clone()),
        views: views.clone(),
        leadership: leadership.clone(),
    };
    let known_only = args.admission_client_ca.is_some();
    let app = Webhooks::new(admission, username.clone(), known_only, metrics.clone()).router();
    let server = Server {
        port: "admission",
        tls: Some(Arc::new(settings)),
        app,
        connections: CONNECTIONS,
        age: AGE,
        ending: ending.clone(),
        metrics: metrics.clone(),
    };
    let serving = server.serve(listener);
    tracing::info!(admission = %address, "listening");
    tokio::spawn(find_username(webhook_objects.clone(), found));
    let registrar = Registrar {
        webhook_objects,
        in_use,
        names,
        endpoint,
        namespace: args.namespace.clone(),
        owner: args.admission_owner.clone(),
        username,
        ready: sender,
        early: SPREAD.mul_f64(jitter()),
        metrics: metrics.clone(),
    };
    // The webhook configurations stay when the process ends. `takeover --undo` changes these
    // configurations, so that the API server accepts writes even if admission does not answer.
    tokio::spawn(ending.soon.clone().run_until_cancelled_owned(registrar.run()));
    Ok(RunningAdmission { ready, ending, server: Some(tokio::spawn(serving)) })
}

/// Endpoint at which the API server reaches admission, and the names in admission's certificate.
/// `bound`: address on which admission listens.
fn endpoint(
    args: &AdmissionArgs,
    bound: SocketAddr,
) -> anyhow::Result<(AdmissionEndpoint, BTreeSet<String>)> {
    let namespace = &args.namespace;
    let mut names: BTreeSet<String> = [
        format!("{SERVICE}.{namespace}.svc"),
        format!("{SERVICE}.{namespace}"),
        SERVICE.to_owned(),
    ]
    .into();
    let url = args.admission_url.as_deref();
    let endpoint = match (args.admission, url) {
        (AdmissionMode::Url, Some(url)) => {
            let uri: Uri = url.parse().with_context(|| format!("--admission-url {url}"))?;
            let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
            let plain = uri.path().len() <= 1 && uri.query().is_none();
            ensure!(
                uri.scheme_str() == Some("https") && !host.is_empty() && plain,
                "--admission-url {url}: must be https://HOST:PORT"
            );
            names.insert(host.clone());
            let host = if host.contains(':') { format!("[{host}]") } else { host };
            let port = match uri.port_u16() {
                Some(0) => bound.port(),
                Some(port) => port,
                None => 443,
            };
            AdmissionEndpoint::Url(format!("https://{host}:{port}"))
        }
        (AdmissionMode::Url, None) => {
            bail!("--admission url: --admission-url https://HOST:PORT must be given as well")
        }
        (_, Some(url)) => {
            bail!("--admission-url {url}: is only for --admission url: give both, or leave it out")
        }
        (_, None) => AdmissionEndpoint::Service(namespace.clone(), SERVICE.to_owned()),
    };
    Ok((endpoint, names))
}

/// Empties the operator's webhook configurations, because no listener runs. With their webhooks,
/// the API server would refuse most writes of LoadBalancers and IPPools by clients other than the
/// operator. A failure is only logged.
async fn unregister(webhook_objects: &WebhookObjects) {
    for part in [WebhookObject::Mutating, WebhookObject::Validating] {
        let removed = match webhook_objects.read(part).await {
            Ok(Some(stored)) if is_ours(&stored) => {
                webhook_objects.write(part, &emptied(&stored)).await.map(drop)
            }
            Ok(_) => continue,
            Err(error) => Err(error),
        };
        match removed {
            Ok(()) => tracing::info!(
                object = part.kind(),
                "admission is off: emptied its webhook configuration"
            ),
            Err(error) => tracing::warn!(
                %error,
                object = part.kind(),
                "admission is off, but its webhook configuration cannot be emptied, so the API \
                 server may refuse writes of LoadBalancers and IPPools: restart the operator, or \
                 delete the configuration"
            ),
        }
    }
}
