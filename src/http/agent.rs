//! What a lease agent shows of itself: `/metrics`, `/healthz`, `/readyz`, in plain HTTP.
//!
//! An agent that stands by is ready: it would speak as soon as nobody else does.

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

use crate::k8s::lease::Leadership;
use crate::metrics::Metrics;

/// A Lease that was not looked at for so long means a process that is stuck, or an API server out
/// of reach.
const LONGEST_SILENCE: Duration = Duration::from_mins(1);

/// What the answers are made of.
#[derive(Clone)]
pub struct Shown {
    /// The agent's metrics.
    pub metrics: Metrics,
    /// Its claim to speak.
    pub leadership: Arc<Leadership>,
    /// Brings those metrics up to date that say how things stand.
    pub refresh: Arc<dyn Fn() + Send + Sync>,
}

/// Binds the address, then serves until dropped. Returns the address bound.
pub async fn serve(
    address: SocketAddr,
    shown: Shown,
) -> anyhow::Result<(SocketAddr, impl Future<Output = std::io::Result<()>>)> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("--http-addr {address}: cannot listen"))?;
    let bound = listener.local_addr()?;
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(shown);
    Ok((bound, async move { axum::serve(listener, router).await }))
}

async fn metrics(State(shown): State<Shown>) -> impl IntoResponse {
    (shown.refresh)();
    match shown.metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn healthz(State(shown): State<Shown>) -> impl IntoResponse {
    let silence = shown.leadership.silence();
    if silence > LONGEST_SILENCE {
        let text = format!("the lease has not been looked at for {} s\n", silence.as_secs());
        return (StatusCode::SERVICE_UNAVAILABLE, text);
    }
    (StatusCode::OK, "ok\n".to_owned())
}

async fn readyz(State(shown): State<Shown>) -> impl IntoResponse {
    if shown.leadership.looked() {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the lease has not been seen yet\n")
    }
}
