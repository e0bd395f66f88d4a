//! The TLS listener of admission: connections, their deadlines and their end.
//!
//! Invariants: what one connection does costs the others nothing but a bounded share of memory:
//! there are at most [`CONNECTIONS`], each with small buffers and a deadline for every phase. A
//! connection in use is never closed under a request; the API server closes idle ones first.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request, Response, StatusCode};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// Connections at the same time. More wait until one ends: a silent one does within seconds.
const CONNECTIONS: usize = 1_024;
/// For the TLS handshake. Longer than a machine stands still, on either side: whose handshake is cut
/// is an API server, and its request is refused.
const HANDSHAKE: Duration = Duration::from_secs(8);
/// From the handshake to the end of the first request's head.
const FIRST_HEAD: Duration = Duration::from_secs(8);
/// Between two requests. Longer than the 90 s of the API server's client, so that it is always the
/// client that closes: a request sent into a connection that is being closed here would be lost.
const IDLE: Duration = Duration::from_secs(200);
/// After so long a connection's next answer is its last: calls spread over the replicas again.
const AGE: Duration = Duration::from_mins(15);
/// Head and unread body of one connection. The library's least is 8 KiB.
const BUFFER: usize = 16 * 1024;
/// For what is under way when the listener ends.
const WIND_DOWN: Duration = Duration::from_secs(5);
/// Pauses after a failure to accept, such as a lack of file descriptors.
const ACCEPT_PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// Whether the caller has shown a certificate that the TLS settings accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IsKnown(pub bool);

/// How serving ends, in two steps.
#[derive(Clone, Debug, Default)]
pub struct Ending {
    /// Every answer from now on is its connection's last. New connections are still taken: who
    /// routes them here may not have heard yet.
    pub soon: CancellationToken,
    /// No new connections; what is idle is closed, what is under way is finished.
    pub now: CancellationToken,
}

/// Serves until the ending says otherwise, then until the last connection is done.
pub async fn serve(
    listener: TcpListener,
    tls: TlsAcceptor,
    app: Router,
    ending: Ending,
    metrics: Metrics,
) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let all = u32::try_from(CONNECTIONS).unwrap_or(u32::MAX);
    let accepting = async {
        let mut paused = None;
        // The semaphore is never closed.
        while let Ok(place) = room.clone().acquire_owned().await {
            match listener.accept().await {
                Ok((stream, _)) => {
                    paused = None;
                    let connection = Connection {
                        tls: tls.clone(),
                        app: app.clone(),
                        ending: ending.clone(),
                        metrics: metrics.clone(),
                    };
                    tokio::spawn(async move {
                        connection.run(stream).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    if let Some(pause) = pause_after(error.kind(), paused) {
                        tracing::warn!(%error, "cannot accept a connection to admission");
                        sleep(pause).await;
                        paused = Some(pause);
                    }
                }
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        () = ending.now.cancelled() => {}
    }
    drop(listener);
    let _ = timeout(WIND_DOWN, room.acquire_many(all)).await;
}

/// How long to rest after a failure to accept, given the rest before it if that did not help.
/// `None`: it is the caller's affair, and the next one may come.
fn pause_after(failure: ErrorKind, before: Option<Duration>) -> Option<Duration> {
    match failure {
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted => None,
        _ => Some(before.map_or(ACCEPT_PAUSE.0, |before| (before * 2).min(ACCEPT_PAUSE.1))),
    }
}

struct Connection {
    tls: TlsAcceptor,
    app: Router,
    ending: Ending,
    metrics: Metrics,
}

impl Connection {
    async fn run(self, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let handshake = match timeout(HANDSHAKE, self.tls.accept(stream)).await {
            Ok(Ok(tls)) => tls,
            Ok(Err(error)) => {
                tracing::debug!(%error, "TLS handshake with admission failed");
                return self.metrics.admission.handshakes_failed.inc();
            }
            Err(_) => return self.metrics.admission.handshakes_failed.inc(),
        };
        let known = IsKnown(handshake.get_ref().1.peer_certificates().is_some());
        let began = Arc::new(AtomicBool::new(false));
        let last = CancellationToken::new();
        let serves = Answering {
            app: self.app,
            known,
            began: began.clone(),
            soon: self.ending.soon,
            last: last.clone(),
        };
        let http = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE)
            .max_buf_size(BUFFER)
            .serve_connection(
                TokioIo::new(handshake),
                service_fn(move |request| serves.clone().answer(request)),
            );
        let mut http = std::pin::pin!(http);
        let watch = async {
            sleep(FIRST_HEAD).await;
            if began.load(Ordering::Relaxed) {
                sleep(AGE).await;
                last.cancel();
                // By then it was used once more, or was idle for too long.
                sleep(IDLE * 2).await;
            }
        };
        tokio::select! {
            // Where this machine stood still, the request is there and its time is over: it counts.
            biased;
            result = http.as_mut() => if let Err(error) = result {
                tracing::debug!(%error, "connection to admission ended");
            },
            () = watch => {}
            () = self.ending.now.cancelled() => {
                http.as_mut().graceful_shutdown();
                let _ = timeout(WIND_DOWN, http).await;
            }
        }
    }
}

#[derive(Clone)]
struct Answering {
    app: Router,
    known: IsKnown,
    began: Arc<AtomicBool>,
    soon: CancellationToken,
    last: CancellationToken,
}

impl Answering {
    async fn answer(
        self,
        request: Request<hyper::body::Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        self.began.store(true, Ordering::Relaxed);
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(self.known);
        let app = TowerToHyperService::new(self.app);
        let mut response = hyper::service::Service::call(&app, request).await?;
        // Who does not ask properly keeps no connection.
        let ends = self.soon.is_cancelled() || self.last.is_cancelled();
        if ends || response.status() != StatusCode::OK {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_to_accept_is_followed_by_a_rest_unless_it_is_the_callers() {
        for callers in
            [ErrorKind::ConnectionAborted, ErrorKind::ConnectionReset, ErrorKind::Interrupted]
        {
            assert_eq!(pause_after(callers, None), None);
            assert_eq!(pause_after(callers, Some(ACCEPT_PAUSE.1)), None);
        }
        // Too many open files.
        let mut rests = Vec::new();
        for _ in 0..10 {
            rests.extend(pause_after(ErrorKind::Other, rests.last().copied()));
        }
        let millis: Vec<u128> = rests.iter().map(Duration::as_millis).collect();
        assert_eq!(millis, [5, 10, 20, 40, 80, 160, 320, 640, 1_000, 1_000]);
    }
}
