//! The options of admission, and its start.

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

use crate::domain::admission::webhook_configuration::{Part, Place, emptied, is_ours};
use crate::http::admission::Admission;
use crate::http::keeper::{Keeper, find_me, jitter};
use crate::http::listener::{AGE, Ending, Server};
use crate::http::tls::{self, InUse};
use crate::http::webhook::{CONNECTIONS, Webhooks};
use crate::k8s::installation::Installation;
use crate::k8s::lease::Leadership;
use crate::k8s::read::Reader;
use crate::k8s::views::Views;
use crate::metrics::Metrics;

/// The Service in `config/manager`.
const SERVICE: &str = "harvester-guest-operator-admission";
/// Replicas replace certificates up to so much apart.
const SPREAD: Duration = Duration::from_hours(6);
/// Between the last call that is taken as usual and the end of the listener: routes need to change.
const LINGER: Duration = Duration::from_secs(4);

/// How the API server reaches admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Mode {
    /// By the Service harvester-guest-operator-admission of the operator's namespace.
    Service,
    /// By --admission-url: the operator runs outside the cluster.
    Url,
    /// Not at all. Webhook configurations of this operator are emptied at the start.
    Off,
}

/// Options of admission.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct AdmissionArgs {
    /// The operator's namespace: it holds the Secret with admission's certificates, and the Leases
    /// of DHCP agents.
    #[arg(long, env = "HGO_NAMESPACE", default_value = "harvester-system")]
    pub(super) namespace: String,
    /// How the API server reaches admission.
    #[arg(long, env = "HGO_ADMISSION", value_enum, default_value_t = Mode::Service)]
    admission: Mode,
    /// Address of admission and conversion, with TLS.
    #[arg(long, env = "HGO_ADMISSION_ADDR", default_value = "0.0.0.0:8443")]
    admission_addr: SocketAddr,
    /// With `--admission url`: what the API server calls, https://HOST:PORT. Port 0 stands for the
    /// port of --admission-addr.
    #[arg(long, env = "HGO_ADMISSION_URL")]
    admission_url: Option<String>,
    /// A ClusterRole that is removed together with the operator. The webhook configurations name it
    /// as their owner and go with it, as do DHCP agents that the operator makes.
    #[arg(long, env = "HGO_ADMISSION_OWNER")]
    pub(super) admission_owner: Option<String>,
    /// Authorities of callers' certificates, a file in PEM. Requests to judge or change an object
    /// are then taken from callers with such a certificate only. By default an API server has none.
    #[arg(long, env = "HGO_ADMISSION_CLIENT_CA")]
    admission_client_ca: Option<PathBuf>,
}

/// Admission, listening or off.
pub(super) struct Running {
    /// Whether it can answer, or need not.
    pub(super) ready: watch::Receiver<bool>,
    /// How it ends.
    pub(super) ending: Ending,
    server: Option<JoinHandle<()>>,
}

impl Running {
    /// Returns if the listener ends although it was not told to.
    pub(super) async fn ended(&mut self) {
        match &mut self.server {
            Some(server) => drop(server.await),
            None => std::future::pending().await,
        }
    }

    /// Goes on answering until nobody calls here any more.
    pub(super) async fn wind_down(self) {
        self.ending.soon.cancel();
        if let Some(server) = self.server {
            tokio::time::sleep(LINGER).await;
            self.ending.now.cancel();
            drop(server.await);
        }
    }
}

/// Listens, unless it is off.
pub(super) async fn start(
    args: &AdmissionArgs,
    client: &Client,
    views: &Views,
    leadership: &Arc<Leadership>,
    metrics: &Metrics,
) -> anyhow::Result<Running> {
    let installation = Installation::new(client.clone(), &args.namespace, metrics.clone());
    let ending = Ending::default();
    if args.admission == Mode::Off {
        unregister(&installation).await;
        let ready = watch::channel(true).1;
        return Ok(Running { ready, ending, server: None });
    }
    let listener = TcpListener::bind(args.admission_addr)
        .await
        .with_context(|| format!("--admission-addr {}: cannot listen", args.admission_addr))?;
    let address = listener.local_addr()?;
    let (place, names) = place(args, address)?;
    let in_use = Arc::new(InUse::default());
    let settings = tls::settings(in_use.clone(), args.admission_client_ca.as_deref())?;
    let (found, me) = watch::channel(String::new());
    let (tell, ready) = watch::channel(false);
    let admission = Admission {
        reader: Reader::new(client.clone()),
        views: views.clone(),
        leadership: leadership.clone(),
    };
    let known_only = args.admission_client_ca.is_some();
    let app = Webhooks::new(admission, me.clone(), known_only, metrics.clone()).router();
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
    tokio::spawn(find_me(installation.clone(), found));
    let keeper = Keeper {
        installation,
        in_use,
        names,
        place,
        namespace: args.namespace.clone(),
        owner: args.admission_owner.clone(),
        me,
        ready: tell,
        early: SPREAD.mul_f64(jitter()),
        metrics: metrics.clone(),
    };
    tokio::spawn(keeper.run());
    Ok(Running { ready, ending, server: Some(tokio::spawn(serving)) })
}

/// Where the API server finds admission, and by which names.
fn place(args: &AdmissionArgs, bound: SocketAddr) -> anyhow::Result<(Place, BTreeSet<String>)> {
    let namespace = &args.namespace;
    let mut names: BTreeSet<String> = [
        format!("{SERVICE}.{namespace}.svc"),
        format!("{SERVICE}.{namespace}"),
        SERVICE.to_owned(),
    ]
    .into();
    let url = args.admission_url.as_deref();
    let place = match (args.admission, url) {
        (Mode::Url, Some(url)) => {
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
            Place::Url(format!("https://{host}:{port}"))
        }
        (Mode::Url, None) => bail!("--admission url needs --admission-url https://HOST:PORT"),
        (_, Some(_)) => bail!("--admission-url is of use with --admission url only"),
        (_, None) => Place::Service(namespace.clone(), SERVICE.to_owned()),
    };
    Ok((place, names))
}

/// A configuration that leads to nobody would refuse every request.
async fn unregister(installation: &Installation) {
    for part in [Part::Mutating, Part::Validating] {
        let removed = match installation.read(part).await {
            Ok(Some(stored)) if is_ours(&stored) => {
                installation.write(part, &emptied(&stored)).await.map(drop)
            }
            Ok(_) => continue,
            Err(error) => Err(error),
        };
        match removed {
            Ok(()) => tracing::info!(object = part.kind(), "admission is off: emptied"),
            Err(error) => tracing::warn!(
                %error,
                object = part.kind(),
                "admission is off, and what leads to it could not be emptied"
            ),
        }
    }
}
