//! What a process shows of itself: `/metrics`, `/healthz`, `/readyz`, in plain HTTP.
//!
//! `/healthz` fails when a restart would help; `/readyz` fails while this replica could not
//! take over. The port is open to all: metrics are gathered a few times a second at most, and whoever
//! asks more often gets the last ones again.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::listener::{AGE, Ending, Server};
use crate::domain::pools::write_pacing::Budget;
use crate::k8s::lease::Leadership;
use crate::metrics::Metrics;

/// A Lease that nobody here has looked at for this long means a stuck process, or an API
/// server out of reach for everybody.
const LONGEST_SILENCE: Duration = Duration::from_mins(1);
/// Connections at the same time: those of a kubelet, of scrapers and of people.
const CONNECTIONS: usize = 64;
/// Metrics are gathered so often in a row, and then once in each interval.
const GATHERINGS: Budget = Budget::new(20, Duration::from_millis(200));

/// A process that shows itself.
pub trait Process: Clone + Send + Sync + 'static {
    /// Its metrics, with those brought up to date that say how things stand.
    fn metrics(&self) -> &Metrics;

    /// Its claim to its Lease.
    fn leadership(&self) -> &Leadership;

    /// Whether it could take over. `Err`: why not.
    fn readiness(&self) -> Result<(), &'static str>;
}

/// What is asked, and what was last answered.
#[derive(Clone)]
struct Shown<P> {
    process: P,
    began: Instant,
    gathered: Arc<Mutex<(Budget, String)>>,
}

/// Binds the address, then serves until dropped. Returns the address bound.
pub async fn serve(
    address: SocketAddr,
    process: impl Process,
) -> anyhow::Result<(SocketAddr, impl Future<Output = ()>)> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("--http-addr {address}: cannot listen"))?;
    let bound = listener.local_addr()?;
    let server = Server {
        port: "metrics",
        tls: None,
        metrics: process.metrics().clone(),
        app: router(process),
        connections: CONNECTIONS,
        age: AGE,
        // It says until the process ends how that stands.
        ending: Ending::default(),
    };
    Ok((bound, server.serve(listener)))
}

fn router<P: Process>(process: P) -> Router {
    let gathered = Arc::new(Mutex::new((GATHERINGS, String::new())));
    Router::new()
        .route("/metrics", get(metrics::<P>))
        .route("/healthz", get(healthz::<P>))
        .route("/readyz", get(readyz::<P>))
        .with_state(Shown { process, began: Instant::now(), gathered })
}

async fn metrics<P: Process>(State(shown): State<Shown<P>>) -> Response {
    let mut gathered = shown.gathered.lock().unwrap_or_else(PoisonError::into_inner);
    if gathered.0.take(shown.began.elapsed()) {
        match shown.process.metrics().render() {
            Ok(text) => gathered.1 = text,
            Err(error) => {
                return (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response();
            }
        }
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], gathered.1.clone()).into_response()
}

async fn healthz<P: Process>(State(shown): State<Shown<P>>) -> impl IntoResponse {
    let silence = shown.process.leadership().silence();
    if silence > LONGEST_SILENCE {
        let text = format!("the lease has not been looked at for {} s\n", silence.as_secs());
        return (StatusCode::SERVICE_UNAVAILABLE, text);
    }
    (StatusCode::OK, "ok\n".to_owned())
}

async fn readyz<P: Process>(State(shown): State<Shown<P>>) -> impl IntoResponse {
    match shown.process.readiness() {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}
