//! Connections end, and no call fails with them: a failed call is a user's refused request.
//!
//! The caller is the real one, an API server with Go's client. In production a connection ends
//! after a quarter of an hour; here after a fraction of a second.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use harvester_guest_operator::http::listener::{Server, ServerShutdown};
use harvester_guest_operator::metrics::Metrics;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use testbed::{Authority, eventually};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{ServerConfig, crypto::aws_lc_rs};

use crate::admission::wire::connect;
use crate::admission::{Load, Probe, itself};
use crate::support::{Cluster, LATER, SOON};

/// Number of calls of a short run, and calls per second.
const CALLS: u64 = 2_000;
const RATE: u32 = 400;
/// Age of a connection at its last answer: in production ten thousand times as much.
const AGE: Duration = Duration::from_millis(90);
/// Number of a flood's connections that stay open at this end: more than the limit of 768. Of those
/// before them, the other end has closed enough.
const HELD: usize = 900;
/// Pause between two floods of a long run.
const PAUSE: Duration = Duration::from_millis(200);

/// Counts handshakes.
#[derive(Debug)]
struct Counting(Arc<CertifiedKey>, AtomicU64);

impl ResolvesServerCert for Counting {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        Some(self.0.clone())
    }
}

/// Answers a review with "allowed".
async fn allow(sent: Bytes) -> String {
    let review: Value = serde_json::from_slice(&sent).unwrap_or_default();
    let answer = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": {"uid": review["request"]["uid"], "allowed": true},
    });
    answer.to_string()
}

async fn register(cluster: &Cluster, url: &str, authority: &Authority) -> Result<()> {
    let bundle = serde_json::to_value(k8s_openapi::ByteString(authority.pem().into_bytes()))?;
    let configuration: ValidatingWebhookConfiguration = serde_json::from_value(json!({
        "metadata": {"name": "closing"},
        "webhooks": [{
            "name": "closing.example.com",
            "clientConfig": {"url": url, "caBundle": bundle},
            "rules": [{"apiGroups": ["loadbalancer.harvesterhci.io"], "apiVersions": ["*"],
                "operations": ["CREATE"], "resources": ["ippools"]}],
            "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        }],
    }))?;
    let api: Api<ValidatingWebhookConfiguration> = Api::all(cluster.client.clone());
    api.create(&PostParams::default(), &configuration).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_is_lost_when_its_connection_ends() -> Result<()> {
    let cluster = Cluster::start().await?;
    let authority = Authority::new("closing")?;
    let issued = authority.issue(&[])?;
    let chain = vec![CertificateDer::from_pem_slice(issued.cert_pem.as_bytes())?];
    let key = PrivateKeyDer::from_pem_slice(issued.key_pem.as_bytes())?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let certified = Arc::new(CertifiedKey::from_der(chain, key, &provider)?);
    let counting = Arc::new(Counting(certified, AtomicU64::new(0)));
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(counting.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let ending = ServerShutdown::default();
    let server = Server {
        port: "test",
        tls: Some(Arc::new(config)),
        app: Router::new().route("/", post(allow)),
        connections: 100,
        age: AGE,
        ending: ending.clone(),
        metrics: Metrics::new()?,
    };
    let serving = tokio::spawn(server.serve(listener));
    register(&cluster, &format!("https://{address}/"), &authority).await?;
    let probe = Probe::new(&cluster.client)?;
    eventually(SOON, "call of the webhook", async || {
        probe.once().await?;
        Ok::<_, kube::Error>(counting.1.load(Ordering::Relaxed) > 0)
    })
    .await?;
    let load = Load::start(&cluster.client, RATE)?;
    let calls = load.calls(CALLS);
    let sent = load.end_after(calls).await?;
    let connections = counting.1.load(Ordering::Relaxed);
    println!("{sent}, over {connections} connections");
    ensure!(connections > calls / 100, "{connections} connections: few have ended");
    ending.now.cancel();
    tokio::time::timeout(SOON, serving).await.context("it does not end")??;
    Ok(())
}

/// Opens `bare` connections without a handshake, and connections after it, and keeps the newest of
/// all.
async fn flood(
    address: SocketAddr,
    bundle: &str,
    bare: usize,
    held: &mut Vec<TcpStream>,
) -> Result<()> {
    for _ in 0..bare {
        held.push(TcpStream::connect(address).await?);
    }
    let greeted = futures::future::join_all((0..4).map(|_| connect(address, bundle, None))).await;
    let greeted = greeted.into_iter().filter_map(Result::ok);
    held.extend(greeted.map(|stream| stream.into_inner().0));
    held.drain(..held.len().saturating_sub(HELD));
    Ok(())
}

/// The operator's own listener, and a caller from the API server's address with more connections
/// than the limit.
#[tokio::test(flavor = "multi_thread")]
async fn no_call_is_lost_when_connections_are_evicted() -> Result<()> {
    let cluster = Cluster::start().await?;
    let operator = cluster.standby(itself()).await?;
    operator.ready().await?;
    cluster.registered().await?;
    let address = operator.admission.context("no admission")?;
    let bundle = cluster.material().await?.bundle();
    let load = Load::start(&cluster.client, 100)?;
    let evictions = async || operator.metric("hgo_connections_evicted_total", &["admission"]).await;
    let mut held = Vec::new();
    // All at once, because the listener closes a connection that begins no handshake in time: on a
    // slow machine, a few at a time would never fill it.
    eventually(LATER, "many evictions", async || {
        flood(address, &bundle, HELD, &mut held).await?;
        anyhow::Ok(evictions().await? >= 200.0)
    })
    .await?;
    while load.goes_on() {
        flood(address, &bundle, 40, &mut held).await?;
        sleep(PAUSE).await;
    }
    let sent = load.end_after(500).await?;
    println!("{} evictions: {sent}", evictions().await?);
    Ok(())
}
