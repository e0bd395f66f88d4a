//! The paths that the API server calls. They are the Go webhook's.
//!
//! Invariants: every request is answered within [`DEADLINE`], and with a sentence if it is refused;
//! all bodies together take no more than [`BODIES`]; a panic is one request's, answered with 500.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures::FutureExt;
use http_body_util::BodyExt;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::admission::{Admission, Stage};
use super::conversion;
use super::listener::IsKnown;
use super::review::{self, Outcome};
use crate::metrics::Metrics;

/// Where changes are made.
pub const MUTATION: &str = "/v1/webhook/mutation";
/// Where requests are judged.
pub const VALIDATION: &str = "/v1/webhook/validation";
/// Where versions are converted.
pub const CONVERSION: &str = "/v1/webhook/conversion";

/// The API server waits 10 s.
const DEADLINE: Duration = Duration::from_secs(9);
/// For a body to arrive.
const BODY_DEADLINE: Duration = Duration::from_secs(5);
/// A review holds an object twice, and each is at most the API server's 3 MiB.
const LARGEST_REVIEW: usize = 8 << 20;
/// A list is converted in one review.
const LARGEST_CONVERSION: usize = 32 << 20;
/// What all bodies may take at the same time.
const BODIES: usize = 48 << 20;
/// A larger body is read on a thread of its own, so that the Lease is renewed meanwhile.
const LARGE: usize = 128 << 10;

/// What requests are answered with.
pub struct Webhooks {
    /// The rules, and what they are told.
    pub admission: Admission,
    /// Who this operator is; empty until that is known.
    pub me: tokio::sync::watch::Receiver<String>,
    /// Whether reviews are taken from callers with a certificate only.
    pub known_only: bool,
    /// The process's metrics.
    pub metrics: Metrics,
    /// Room for bodies, in bytes.
    bodies: Semaphore,
}

impl Webhooks {
    /// Answers nothing yet.
    pub fn new(
        admission: Admission,
        me: tokio::sync::watch::Receiver<String>,
        known_only: bool,
        metrics: Metrics,
    ) -> Self {
        Self { admission, me, known_only, metrics, bodies: Semaphore::new(BODIES) }
    }

    /// What answers on the paths.
    pub fn router(self) -> Router {
        Router::new()
            .route(MUTATION, post(mutation))
            .route(VALIDATION, post(validation))
            .route(CONVERSION, post(convert))
            .with_state(Arc::new(self))
    }

    /// Reads a body whose size fits, and what it takes of the room until it is answered.
    async fn read(&self, body: Body, most: usize) -> Result<(Vec<u8>, Places<'_>), Refused> {
        let mut places = Places(Vec::new());
        let mut bytes = Vec::new();
        let mut body = body;
        let reading = async {
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|e| Refused::malformed(format!("body: {e}")))?;
                let Ok(data) = frame.into_data() else { continue };
                if bytes.len() + data.len() > most {
                    let text = format!("the body is larger than {most} bytes\n");
                    return Err(Refused(StatusCode::PAYLOAD_TOO_LARGE, text));
                }
                let size = u32::try_from(data.len()).unwrap_or(u32::MAX);
                places.0.push(self.bodies.try_acquire_many(size).map_err(|_| Refused::busy())?);
                bytes.extend_from_slice(&data);
            }
            Ok(())
        };
        let late = |_| {
            let text = "the body did not arrive in time\n".to_owned();
            Refused(StatusCode::REQUEST_TIMEOUT, text)
        };
        timeout(BODY_DEADLINE, reading).await.map_err(late)??;
        Ok((bytes, places))
    }

    async fn review(&self, stage: Stage, known: IsKnown, body: Body) -> Result<Vec<u8>, Refused> {
        if self.known_only && !known.0 {
            return Err(Refused(
                StatusCode::FORBIDDEN,
                "a client certificate is needed here\n".to_owned(),
            ));
        }
        let (bytes, _places) = self.read(body, LARGEST_REVIEW).await?;
        let review = parse(bytes, |bytes| review::parse(&bytes)).await?;
        let me = self.me.borrow().clone();
        let began = Instant::now();
        let outcome = review::judge(&self.admission, stage, &review, &me).await;
        self.count(stage.name(), review.kind(), outcome.verdict(), began);
        Ok(outcome.render(&review, stage))
    }

    fn count(&self, call: &str, kind: &str, verdict: &str, began: Instant) {
        let metrics = &self.metrics.admission;
        metrics.requests.with_label_values(&[call, kind, verdict]).inc();
        metrics.seconds.with_label_values(&[call]).observe(began.elapsed().as_secs_f64());
    }
}

/// Answers with what the work makes, whatever becomes of it.
async fn within(
    metrics: &Metrics,
    call: &'static str,
    work: impl Future<Output = Result<Vec<u8>, Refused>>,
) -> Response {
    let work = timeout(DEADLINE, AssertUnwindSafe(work).catch_unwind());
    let refused = match work.await {
        Ok(Ok(Ok(answer))) => {
            return ([(header::CONTENT_TYPE, "application/json")], answer).into_response();
        }
        Ok(Ok(Err(refused))) => refused,
        Ok(Err(_)) => {
            tracing::error!(call, "a review ended in a panic");
            Refused(StatusCode::INTERNAL_SERVER_ERROR, "this is a bug here\n".to_owned())
        }
        Err(_) => Refused(StatusCode::GATEWAY_TIMEOUT, "no answer in time\n".to_owned()),
    };
    tracing::debug!(call, status = %refused.0, why = refused.1.trim(), "review not answered");
    let verdict = if refused.0.is_client_error() { "malformed" } else { "failed" };
    metrics.admission.requests.with_label_values(&[call, "", verdict]).inc();
    refused.into_response()
}

/// Room that is given back when the request is answered.
struct Places<'a>(Vec<SemaphorePermit<'a>>);

/// A request that is not answered as a review, and why.
struct Refused(StatusCode, String);

impl Refused {
    fn malformed(why: impl std::fmt::Display) -> Self {
        Self(StatusCode::BAD_REQUEST, format!("{why}\n"))
    }

    fn busy() -> Self {
        let text = "too many large requests at the same time\n";
        Self(StatusCode::SERVICE_UNAVAILABLE, text.to_owned())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, self.1).into_response()
    }
}

/// Work on a body: here if it is small.
async fn parse<T: Send + 'static>(
    bytes: Vec<u8>,
    work: impl FnOnce(Vec<u8>) -> Result<T, String> + Send + 'static,
) -> Result<T, Refused> {
    let done = if bytes.len() < LARGE {
        work(bytes)
    } else {
        match tokio::task::spawn_blocking(move || work(bytes)).await {
            Ok(done) => done,
            // A panic goes on where it is caught for small ones as well.
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(error) => {
                    return Err(Refused(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()));
                }
            },
        }
    };
    done.map_err(Refused::malformed)
}

type At = State<Arc<Webhooks>>;

async fn mutation(State(at): At, Extension(known): Extension<IsKnown>, body: Body) -> Response {
    within(&at.metrics, "mutation", at.review(Stage::Mutation, known, body)).await
}

async fn validation(State(at): At, Extension(known): Extension<IsKnown>, body: Body) -> Response {
    within(&at.metrics, "validation", at.review(Stage::Validation, known, body)).await
}

/// From anybody: the API server shows no certificate here, and an answer tells the caller nothing
/// but what it has sent.
async fn convert(State(at): At, body: Body) -> Response {
    let work = async {
        let (bytes, _places) = at.read(body, LARGEST_CONVERSION).await?;
        let began = Instant::now();
        let answer = parse(bytes, |bytes| conversion::review(&bytes)).await?;
        at.count("conversion", "LoadBalancer", Outcome::CONVERTED, began);
        Ok(answer)
    };
    within(&at.metrics, "conversion", work).await
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::SocketAddr;
    use std::time::{SystemTime, UNIX_EPOCH};

    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_rustls::rustls::pki_types::pem::PemObject as _;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig, crypto::aws_lc_rs};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;
    use crate::http::authority::Material;
    use crate::http::listener::{Ending, serve};

    /// One request of its own connection: the first line of the answer, and the last. Both empty: it
    /// was closed.
    async fn ask(at: SocketAddr, tls: &TlsConnector, path: &str) -> (String, String) {
        let stream = TcpStream::connect(at).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let mut stream = tls.connect(name, stream).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said).await;
        let said = String::from_utf8(said).unwrap();
        let mut lines = said.lines();
        let first = lines.next().unwrap_or_default().to_owned();
        (first, lines.next_back().unwrap_or_default().to_owned())
    }

    fn panic_now() -> Result<Vec<u8>, Refused> {
        panic!("on purpose")
    }

    /// So that it is not that which ends the listener.
    const SHORTER_THAN_WIND_DOWN: Duration = Duration::from_millis(4_500);

    #[tokio::test]
    async fn a_panic_is_one_requests_and_the_next_is_served() {
        let metrics = Metrics::new().unwrap();
        let counted = metrics.clone();
        let app = |work: fn() -> Result<Vec<u8>, Refused>, size: usize| {
            let metrics = metrics.clone();
            get(move || async move {
                let body = vec![0; size];
                let done = parse(body, move |_| work().map_err(|_| String::new()));
                within(&metrics, "validation", done).await
            })
        };
        let router = Router::new()
            .route("/small", app(panic_now, 1))
            // Read on another thread.
            .route("/large", app(panic_now, LARGE))
            .route("/good", app(|| Ok(b"{}".to_vec()), 1))
            // Outside of what catches: nothing is answered.
            .route("/outside", get(|| async { panic_now().map(drop).unwrap_or_default() }));

        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let names = BTreeSet::from(["127.0.0.1".to_owned()]);
        let material = Material::start(now, &names, "").unwrap();
        let provider = || Arc::new(aws_lc_rs::default_provider());
        let data = material.data();
        let chain = vec![CertificateDer::from_pem_slice(&data["tls.crt"]).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(&data["tls.key"]).unwrap();
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(material.bundle().as_bytes()).unwrap()).unwrap();
        let client = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let client = TlsConnector::from(Arc::new(client));

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let ending = Ending::default();
        let tls = TlsAcceptor::from(Arc::new(config));
        let serving = tokio::spawn(serve(listener, tls, router, ending.clone(), metrics.clone()));

        let good = ("HTTP/1.1 200 OK".to_owned(), "{}".to_owned());
        let bug =
            ("HTTP/1.1 500 Internal Server Error".to_owned(), "this is a bug here".to_owned());
        for (path, expected) in
            [("/small", &bug), ("/large", &bug), ("/outside", &(String::new(), String::new()))]
        {
            assert_eq!(ask(at, &client, path).await, *expected, "{path}");
            assert_eq!(ask(at, &client, "/good").await, good, "after {path}");
        }
        let failed = ["validation", "", "failed"];
        assert_eq!(counted.admission.requests.with_label_values(&failed).get(), 2);

        // The one that ended outside has given back its place: the listener ends at once, with all.
        ending.now.cancel();
        timeout(SHORTER_THAN_WIND_DOWN, serving)
            .await
            .expect("a place was not given back")
            .unwrap();
    }
}
