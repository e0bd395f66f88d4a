//! What the process shows of itself: `/metrics`, `/healthz`, `/readyz`, in plain HTTP.
//!
//! `/healthz` fails when a restart would help; `/readyz` fails while this replica could not
//! take over.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::api::{LoadBalancer, READY};
use crate::domain::endpoints::Endpoint;
use crate::k8s::lease::Leadership;
use crate::k8s::views::Views;
use crate::metrics::Metrics;

/// A Lease that nobody here has looked at for this long means a stuck process, or an API
/// server out of reach for everybody.
const LONGEST_SILENCE: Duration = Duration::from_mins(1);

/// What the answers are made of.
#[derive(Clone)]
pub struct Probes {
    /// The process's metrics.
    pub metrics: Metrics,
    /// Its claim to lead.
    pub leadership: Arc<Leadership>,
    /// Its view of the cluster.
    pub views: Views,
    /// Whether admission can answer, or need not.
    pub admission: watch::Receiver<bool>,
    /// Whether the process is about to end.
    pub ending: CancellationToken,
}

/// Binds the address, then serves until dropped. Returns the address bound.
pub async fn serve(
    address: SocketAddr,
    probes: Probes,
) -> anyhow::Result<(SocketAddr, impl Future<Output = std::io::Result<()>>)> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("--http-addr {address}: cannot listen"))?;
    let bound = listener.local_addr()?;
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(probes);
    Ok((bound, async move { axum::serve(listener, router).await }))
}

async fn metrics(State(probes): State<Probes>) -> impl IntoResponse {
    let leads = probes.leadership.is_current();
    probes.metrics.leader.set(i64::from(leads));
    probes.metrics.load_balancers.reset();
    probes.metrics.endpoints.reset();
    if leads {
        let mut counts: HashMap<(String, String), i64> = HashMap::new();
        for lb in probes.views.load_balancers.state() {
            *counts.entry(state(&lb)).or_default() += 1;
        }
        for ((ready, reason), count) in counts {
            probes.metrics.load_balancers.with_label_values(&[ready, reason]).set(count);
        }
        let endpoints = &probes.metrics.endpoints;
        probes.views.slices.for_each(|slice| {
            for endpoint in slice.slice.endpoints.iter().filter(|endpoint| !endpoint.is_sink()) {
                endpoints.with_label_values(&[endpoint_state(endpoint)]).inc();
            }
        });
    }
    match probes.metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

fn endpoint_state(endpoint: &Endpoint) -> &'static str {
    match (endpoint.ready(), endpoint.terminating) {
        (true, _) => "ready",
        (false, true) => "terminating",
        (false, false) => "not_ready",
    }
}

/// Ready status and reason. Reasons that other software wrote count as one, so that the
/// label's values stay a closed set.
fn state(lb: &LoadBalancer) -> (String, String) {
    let ready = lb.status.as_ref().and_then(|s| s.conditions.iter().find(|c| c.type_ == READY));
    let reason = ready.and_then(|c| c.reason.clone()).unwrap_or_default();
    let reason = if crate::domain::reason::is_ours(&reason) { reason } else { "Other".to_owned() };
    (ready.map_or_else(|| "Unknown".to_owned(), |c| format!("{:?}", c.status)), reason)
}

async fn healthz(State(probes): State<Probes>) -> impl IntoResponse {
    let silence = probes.leadership.silence();
    if silence > LONGEST_SILENCE {
        let text = format!("the lease has not been looked at for {} s\n", silence.as_secs());
        return (StatusCode::SERVICE_UNAVAILABLE, text);
    }
    (StatusCode::OK, "ok\n".to_owned())
}

async fn readyz(State(probes): State<Probes>) -> impl IntoResponse {
    // Whoever waits for conversion is the one to give it: not ready, it would never be asked.
    if !probes.views.is_synced() && !probes.views.await_conversion() {
        let text = "the first lists of LoadBalancers, IPPools and Namespaces are not complete\n";
        return (StatusCode::SERVICE_UNAVAILABLE, text);
    }
    if !*probes.admission.borrow() {
        return (StatusCode::SERVICE_UNAVAILABLE, "admission cannot answer yet\n");
    }
    if probes.ending.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "ending\n");
    }
    (StatusCode::OK, "ok\n")
}
