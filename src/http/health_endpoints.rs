//! Endpoints of a process, in plain HTTP:
//!
//! * `/healthz` fails if a restart of the process would help.
//! * `/readyz` succeeds if the process leads, or could lead as soon as the leader stops. The
//!   operator's `/readyz` also fails while admission cannot answer, and while the process shuts
//!   down.
//! * `/metrics` gathers metrics at a limited rate, because the port is open to all. Requests beyond
//!   this rate get the last result again.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::listener::{AGE, Server, ServerShutdown};
use crate::domain::limits::token_bucket::TokenBucket;
use crate::k8s::leadership::Leadership;
use crate::locks::lock;
use crate::metrics::Metrics;

/// Longest time without an attempt to read the Lease. After a longer time, the process counts as
/// stuck, and `/healthz` fails. A read that fails is an attempt too, so an API server that does not
/// answer causes no restart of a pod.
pub const LONGEST_SILENCE: Duration = Duration::from_mins(1);
/// Maximum number of connections at the same time: of the kubelet, of scrapers and of people.
const CONNECTIONS: usize = 64;
/// Rate limit of gathering metrics: 20 times without a pause, then once every 200 ms.
const GATHERINGS: TokenBucket = TokenBucket::new(20, Duration::from_millis(200));

/// Process whose state `/metrics`, `/healthz` and `/readyz` report.
pub trait Process: Clone + Send + Sync + 'static {
    /// Metrics of the process. Each call first updates the metrics that are computed only when they
    /// are read, such as whether the process leads.
    fn metrics(&self) -> &Metrics;

    /// Leadership: whether the process holds its Lease.
    fn leadership(&self) -> &Leadership;

    /// Checks whether the process is ready, for `/readyz`. `Err`: reason why the process is not
    /// ready.
    fn readiness(&self) -> Result<(), &'static str>;
}

/// State of the endpoints: the process, the time at which the endpoints started, and the last
/// answer for `/metrics`, with the rate limit for new answers.
#[derive(Clone)]
struct EndpointState<P> {
    process: P,
    began: Instant,
    gathered: Arc<Mutex<(TokenBucket, String)>>,
}

/// Binds the address. Returns the bound address, and a future that serves until it is dropped.
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
        // Never cancelled, because health is served until the process ends.
        ending: ServerShutdown::default(),
    };
    Ok((bound, server.serve(listener)))
}

fn router<P: Process>(process: P) -> Router {
    let gathered = Arc::new(Mutex::new((GATHERINGS, String::new())));
    Router::new()
        .route("/metrics", get(metrics::<P>))
        .route("/healthz", get(healthz::<P>))
        .route("/readyz", get(readyz::<P>))
        .with_state(EndpointState { process, began: Instant::now(), gathered })
}

async fn metrics<P: Process>(State(shown): State<EndpointState<P>>) -> Response {
    let mut gathered = lock(&shown.gathered);
    if gathered.0.take(shown.began.elapsed()).is_ok() {
        match shown.process.metrics().render() {
            Ok(text) => gathered.1 = text,
            Err(error) => {
                return (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response();
            }
        }
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], gathered.1.clone()).into_response()
}

async fn healthz<P: Process>(State(shown): State<EndpointState<P>>) -> impl IntoResponse {
    let silence = shown.process.leadership().silence();
    if silence > LONGEST_SILENCE {
        let text = format!(
            "the process has not tried to read the Lease for {} s: it is stuck\n",
            silence.as_secs()
        );
        return (StatusCode::SERVICE_UNAVAILABLE, text);
    }
    (StatusCode::OK, "ok\n".to_owned())
}

async fn readyz<P: Process>(State(shown): State<EndpointState<P>>) -> impl IntoResponse {
    match shown.process.readiness() {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use axum::body::Body;
    use axum::http::Request;
    use tower::ServiceExt as _;

    use super::*;

    /// Process that counts how often its metrics are gathered.
    #[derive(Clone)]
    struct CountedProcess {
        metrics: Metrics,
        leadership: Arc<Leadership>,
        gathered: Arc<AtomicU32>,
    }

    impl Process for CountedProcess {
        fn metrics(&self) -> &Metrics {
            self.gathered.fetch_add(1, Ordering::Relaxed);
            &self.metrics
        }

        fn leadership(&self) -> &Leadership {
            &self.leadership
        }

        fn readiness(&self) -> Result<(), &'static str> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_thousand_scrapes_gather_as_often_as_the_rate_limit_allows() {
        let gathered = Arc::<AtomicU32>::default();
        let process = CountedProcess {
            metrics: Metrics::new().unwrap(),
            leadership: Arc::default(),
            gathered: gathered.clone(),
        };
        let began = Instant::now();
        let app = router(process);
        for n in 0..1_000 {
            let scrape = Request::get("/metrics").body(Body::empty()).unwrap();
            let answer = app.clone().oneshot(scrape).await.unwrap();
            assert_eq!(answer.status(), StatusCode::OK);
            let text = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
            assert!(text.starts_with(b"# HELP"), "scrape {n} has no metrics");
        }
        // The rate limit allows 20 gatherings of the metrics without a pause, and then five a
        // second.
        let most = 21 + began.elapsed().as_millis() / 200;
        let gathered = gathered.load(Ordering::Relaxed);
        assert!(gathered >= 20 && u128::from(gathered) <= most, "{gathered} times, limit {most}");
    }
}
