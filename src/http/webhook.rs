//! The paths that the API server calls. They are the Go webhook's.
//!
//! Invariants: every request is answered before the API server gives it up, and with a sentence if it
//! is refused. A small request waits for nobody: its connection has room for it. Large ones are read
//! and answered one at a time, reviews apart from conversions, and sources take turns; so what all
//! of them take is bounded, and two callers with large bodies delay each other and nobody else. A
//! panic is one request's, answered with 500.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::{Extension, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures::FutureExt;
use http_body_util::BodyExt;
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::admission::{Admission, Stage};
use super::conversion;
use super::listener::Caller;
use super::review::{self, Outcome};
use super::turns::{Turn, Turns};
use crate::metrics::Metrics;

/// Where changes are made.
pub const MUTATION: &str = "/v1/webhook/mutation";
/// Where requests are judged.
pub const VALIDATION: &str = "/v1/webhook/validation";
/// Where versions are converted.
pub const CONVERSION: &str = "/v1/webhook/conversion";
/// Connections at the same time. Each may bring one small request: 24 MiB in all.
pub const CONNECTIONS: usize = 768;

/// The API server waits 5 s for a review (`timeoutSeconds`), and 30 s for a conversion.
const REVIEW_DEADLINE: Duration = Duration::from_millis(4_500);
const CONVERSION_DEADLINE: Duration = Duration::from_secs(20);
/// For a body to arrive; for a large one, from when its turn has come. So whoever sends slowly holds
/// up the next for so long.
const REVIEW_ARRIVES: Duration = Duration::from_secs(3);
const CONVERSION_ARRIVES: Duration = Duration::from_secs(8);
/// A review holds an object twice, and each is at most the API server's 3 MiB.
const LARGEST_REVIEW: usize = 8 << 20;
/// A list is converted in one review.
const LARGEST_CONVERSION: usize = 32 << 20;
/// A larger body waits for its turn, and is worked on beside the process's thread, so that the Lease
/// is renewed meanwhile.
const SMALL: usize = 32 << 10;

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
    /// Turns of large reviews.
    reviews: Turns,
    /// Turns of large conversions.
    conversions: Turns,
}

impl Webhooks {
    /// Answers nothing yet.
    pub fn new(
        admission: Admission,
        me: tokio::sync::watch::Receiver<String>,
        known_only: bool,
        metrics: Metrics,
    ) -> Self {
        let (reviews, conversions) = (Turns::default(), Turns::default());
        Self { admission, me, known_only, metrics, reviews, conversions }
    }

    /// What answers on the paths.
    pub fn router(self) -> Router {
        Router::new()
            .route(MUTATION, post(mutation))
            .route(VALIDATION, post(validation))
            .route(CONVERSION, post(convert))
            .with_state(Arc::new(self))
    }

    async fn review(
        self: Arc<Self>,
        stage: Stage,
        caller: Caller,
        body: Body,
    ) -> Result<Bytes, Refused> {
        if self.known_only && !caller.is_known {
            return Err(Refused(
                StatusCode::FORBIDDEN,
                "a client certificate is needed here\n".to_owned(),
            ));
        }
        let sent = read(body, &self.reviews, caller, (LARGEST_REVIEW, REVIEW_ARRIVES)).await?;
        if sent.turn.is_none() {
            return self.judge(stage, &sent.bytes).await.map(Bytes::from);
        }
        let handle = Handle::current();
        beside(sent, move |bytes| handle.block_on(self.judge(stage, bytes))).await
    }

    async fn judge(&self, stage: Stage, bytes: &[u8]) -> Result<Vec<u8>, Refused> {
        let review = review::parse(bytes).map_err(Refused::malformed)?;
        let me = self.me.borrow().clone();
        let began = Instant::now();
        let outcome = review::judge(&self.admission, stage, &review, &me).await;
        self.count(stage.name(), review.kind(), outcome.verdict(), began);
        Ok(outcome.render(&review, stage))
    }

    async fn convert(self: Arc<Self>, caller: Caller, body: Body) -> Result<Bytes, Refused> {
        let sent =
            read(body, &self.conversions, caller, (LARGEST_CONVERSION, CONVERSION_ARRIVES)).await?;
        let work = move |bytes: &[u8]| {
            let began = Instant::now();
            let answer = conversion::review(bytes).map_err(Refused::malformed)?;
            self.count("conversion", "LoadBalancer", Outcome::CONVERTED, began);
            Ok(answer)
        };
        if sent.turn.is_none() {
            work(&sent.bytes).map(Bytes::from)
        } else {
            beside(sent, work).await
        }
    }

    fn count(&self, call: &str, kind: &str, verdict: &str, began: Instant) {
        let metrics = &self.metrics.admission;
        metrics.requests.with_label_values(&[call, kind, verdict]).inc();
        metrics.seconds.with_label_values(&[call]).observe(began.elapsed().as_secs_f64());
    }
}

/// A body as a whole. A large one has the turn of its kind, until its answer has left.
struct Sent {
    bytes: Vec<u8>,
    turn: Option<Turn>,
}

/// Reads a body of at most so many bytes, which must arrive within that time. A large one must say
/// how long it is, as the API server's do: so it is refused before it has come, or has its memory once.
async fn read(
    mut body: Body,
    turns: &Turns,
    caller: Caller,
    (most, patience): (usize, Duration),
) -> Result<Sent, Refused> {
    let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if declared > most {
        return Err(Refused::too_large(most));
    }
    let mut turn = None;
    if declared > SMALL {
        turn = Some(turns.take(caller.source).await);
    }
    let mut bytes = Vec::with_capacity(declared);
    let reading = read_until(&mut body, &mut bytes, declared.max(SMALL));
    let is_whole = timeout(patience, reading)
        .await
        .map_err(|_| Refused::late("the body did not arrive in time"))??;
    if is_whole { Ok(Sent { bytes, turn }) } else { Err(Refused::without_length()) }
}

/// Reads on until the end, or until there are more bytes than that: whether it is the end.
async fn read_until(body: &mut Body, bytes: &mut Vec<u8>, most: usize) -> Result<bool, Refused> {
    while bytes.len() <= most {
        let Some(frame) = body.frame().await else { return Ok(true) };
        let frame = frame.map_err(|e| Refused::malformed(format!("body: {e}")))?;
        let Ok(data) = frame.into_data() else { continue };
        bytes.extend_from_slice(&data);
    }
    Ok(false)
}

/// Does the work on a thread beside. The turn lasts until it has ended, and its answer has left,
/// whether or not that is still waited for.
async fn beside(
    sent: Sent,
    work: impl FnOnce(&[u8]) -> Result<Vec<u8>, Refused> + Send + 'static,
) -> Result<Bytes, Refused> {
    let Sent { bytes, turn } = sent;
    let done = tokio::task::spawn_blocking(move || {
        let answer = work(&bytes)?;
        Ok(Bytes::from_owner(Leaving { answer, _turn: turn }))
    });
    match done.await {
        Ok(done) => done,
        // A panic goes on where it is caught for small ones as well.
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(Refused(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
        },
    }
}

/// An answer on its way, and the turn that it ends.
struct Leaving {
    answer: Vec<u8>,
    _turn: Option<Turn>,
}

impl AsRef<[u8]> for Leaving {
    fn as_ref(&self) -> &[u8] {
        &self.answer
    }
}

/// Answers with what the work makes, whatever becomes of it.
async fn within(
    metrics: &Metrics,
    call: &'static str,
    deadline: Duration,
    work: impl Future<Output = Result<Bytes, Refused>>,
) -> Response {
    let work = timeout(deadline, AssertUnwindSafe(work).catch_unwind());
    let refused = match work.await {
        Ok(Ok(Ok(answer))) => {
            return ([(header::CONTENT_TYPE, "application/json")], answer).into_response();
        }
        Ok(Ok(Err(refused))) => refused,
        Ok(Err(_)) => {
            tracing::error!(call, "a review ended in a panic");
            Refused(StatusCode::INTERNAL_SERVER_ERROR, "this is a bug here\n".to_owned())
        }
        Err(_) => Refused::late("no answer in time"),
    };
    tracing::debug!(call, status = %refused.0, why = refused.1.trim(), "review not answered");
    let verdict = if refused.0.is_client_error() { "malformed" } else { "failed" };
    metrics.admission.requests.with_label_values(&[call, "", verdict]).inc();
    refused.into_response()
}

/// A request that is not answered as a review, and why.
struct Refused(StatusCode, String);

impl Refused {
    fn malformed(why: impl std::fmt::Display) -> Self {
        Self(StatusCode::BAD_REQUEST, format!("{why}\n"))
    }

    fn too_large(most: usize) -> Self {
        let text = format!("the body is larger than {most} bytes\n");
        Self(StatusCode::PAYLOAD_TOO_LARGE, text)
    }

    fn without_length() -> Self {
        let text = format!("a body of more than {SMALL} bytes needs a Content-Length\n");
        Self(StatusCode::LENGTH_REQUIRED, text)
    }

    /// Refusal after which the API server sends the review again: this machine may have stood still
    /// while the body was there. It does so for 503 with `Retry-After` (`checkWait` in
    /// k8s.io/client-go/rest) while its own deadline lasts, and for neither 408 nor 504.
    fn late(what: &str) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, format!("{what}\n"))
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = (self.0, self.1).into_response();
        if self.0 == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("0"));
        }
        response
    }
}

type At = State<Arc<Webhooks>>;
type From = Extension<Caller>;

async fn mutation(State(at): At, Extension(caller): From, body: Body) -> Response {
    let work = at.clone().review(Stage::Mutation, caller, body);
    within(&at.metrics, "mutation", REVIEW_DEADLINE, work).await
}

async fn validation(State(at): At, Extension(caller): From, body: Body) -> Response {
    let work = at.clone().review(Stage::Validation, caller, body);
    within(&at.metrics, "validation", REVIEW_DEADLINE, work).await
}

/// From anybody: the API server shows no certificate here, and an answer tells the caller nothing
/// but what it has sent.
async fn convert(State(at): At, Extension(caller): From, body: Body) -> Response {
    let work = at.clone().convert(caller, body);
    within(&at.metrics, "conversion", CONVERSION_DEADLINE, work).await
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::pki_types::ServerName;

    use super::*;
    use crate::domain::limits::connections::Source;
    use crate::http::listener::{AGE, Ending, Server};
    use crate::http::tls;

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

    fn panic_now() -> Result<Bytes, Refused> {
        panic!("on purpose")
    }

    /// So that it is not that which ends the listener.
    const SHORTER_THAN_WIND_DOWN: Duration = Duration::from_millis(4_500);

    #[tokio::test]
    async fn a_panic_is_one_requests_and_the_next_is_served() {
        let metrics = Metrics::new().unwrap();
        let counted = metrics.clone();
        let turns = Turns::default();
        let app = |work: fn() -> Result<Bytes, Refused>, is_large: bool| {
            let (metrics, turns) = (metrics.clone(), turns.clone());
            get(move || async move {
                let done = async move {
                    if !is_large {
                        return work();
                    }
                    let source = Source::of([127, 0, 0, 1].into());
                    let turn = Some(turns.take(source).await);
                    let sent = Sent { bytes: Vec::new(), turn };
                    beside(sent, move |_| work().map(|answer| answer.to_vec())).await
                };
                within(&metrics, "validation", REVIEW_DEADLINE, done).await
            })
        };
        let router = Router::new()
            .route("/small", app(panic_now, false))
            // On another thread.
            .route("/large", app(panic_now, true))
            .route("/good", app(|| Ok(Bytes::from_static(b"{}")), true))
            // Outside of what catches: nothing is answered.
            .route("/outside", get(|| async { panic_now().map(drop).unwrap_or_default() }));

        let (config, client) = tls::tests::pair();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let ending = Ending::default();
        let server = Server {
            port: "test",
            tls: Some(config),
            app: router,
            connections: CONNECTIONS,
            age: AGE,
            ending: ending.clone(),
            metrics: metrics.clone(),
        };
        let serving = tokio::spawn(server.serve(listener));

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
