//! What a process shows of itself: `/metrics`, `/healthz`, `/readyz`, in plain HTTP.
//!
//! `/healthz` fails when a restart would help; `/readyz` fails while this replica could not
//! take over.

use std::net::SocketAddr;
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

/// A Lease that nobody here has looked at for this long means a stuck process, or an API
/// server out of reach for everybody.
const LONGEST_SILENCE: Duration = Duration::from_mins(1);

/// A process that shows itself.
pub trait Process: Clone + Send + Sync + 'static {
    /// Its metrics, with those brought up to date that say how things stand.
    fn metrics(&self) -> &Metrics;

    /// Its claim to its Lease.
    fn leadership(&self) -> &Leadership;

    /// Whether it could take over. `Err`: why not.
    fn readiness(&self) -> Result<(), &'static str>;
}

/// Binds the address, then serves until dropped. Returns the address bound.
pub async fn serve(
    address: SocketAddr,
    process: impl Process,
) -> anyhow::Result<(SocketAddr, impl Future<Output = std::io::Result<()>>)> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("--http-addr {address}: cannot listen"))?;
    let bound = listener.local_addr()?;
    let router = router(process);
    Ok((bound, async move { axum::serve(listener, router).await }))
}

fn router<P: Process>(process: P) -> Router {
    Router::new()
        .route("/metrics", get(metrics::<P>))
        .route("/healthz", get(healthz::<P>))
        .route("/readyz", get(readyz::<P>))
        .with_state(process)
}

async fn metrics<P: Process>(State(process): State<P>) -> impl IntoResponse {
    match process.metrics().render() {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn healthz<P: Process>(State(process): State<P>) -> impl IntoResponse {
    let silence = process.leadership().silence();
    if silence > LONGEST_SILENCE {
        let text = format!("the lease has not been looked at for {} s\n", silence.as_secs());
        return (StatusCode::SERVICE_UNAVAILABLE, text);
    }
    (StatusCode::OK, "ok\n".to_owned())
}

async fn readyz<P: Process>(State(process): State<P>) -> impl IntoResponse {
    match process.readiness() {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}
