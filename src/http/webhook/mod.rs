//! Paths that the API server calls. The Go webhook has the same paths.
//!
//! Invariants:
//! * The deadline of an answer is shorter than the API server's timeout. The answer to a refused
//!   request contains a sentence that says why.
//! * Each connection has memory for one small request or answer, so small requests do not wait for
//!   large ones. Small reviews are processed one at a time, and so are small conversions. Sources
//!   take turns, and the main thread does other work between two requests.
//! * A small review that needs a read from the API server takes one of [`READERS`] places. The
//!   parsed objects of a small review are in memory only while the review has such a place, or
//!   while the main thread works on the review.
//! * Large reviews are read and answered one at a time, and so are large conversions
//!   ([`LargeQueue`]). Sources take turns. So the total memory of large requests is bounded, and a
//!   large request delays only other large requests.
//! * A small request with a large answer is processed again, as a large request.
//! * A panic affects one request only, which is answered with 500.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use futures::FutureExt;
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::admission::{AdmissionStage, RuleSources};
use super::admission_review;
use super::conversion;
use super::large_queue::LargeQueue;
use super::listener::Caller;
use super::request_body::{BodyLimits, CompleteBody, RequestRefusal, SMALL, read};
use crate::domain::limits::connections::ConnectionSource;
use crate::k8s::CALL_DEADLINE;
use crate::metrics::Metrics;
use crate::turns::Turns;

/// Path of the webhook that changes objects.
pub const MUTATION: &str = "/v1/webhook/mutation";
/// Path of the webhook that validates objects.
pub const VALIDATION: &str = "/v1/webhook/validation";
/// Path of the webhook that converts objects between versions.
pub const CONVERSION: &str = "/v1/webhook/conversion";
/// Maximum number of connections at the same time. Each connection may hold one small request in
/// memory, so the small requests of all connections have at most 24 MiB.
pub const CONNECTIONS: usize = 768;

/// Deadline for the answer to a review. The API server waits 5 s for it (`timeoutSeconds`).
const REVIEW_DEADLINE: Duration = Duration::from_millis(4_500);
/// Deadline for the answer to a conversion. The API server waits 30 s for it.
const CONVERSION_DEADLINE: Duration = Duration::from_secs(20);
/// Limits of a review:
/// * `most`: a review may contain two copies of an object, the new one and the stored one. The API
///   server limits each copy to 3 MiB.
/// * `ends`: if two sources send slowly, an API server's review waits for up to three of their
///   turns: the present one, and one more of each source. Three turns of one second leave time for
///   the review before [`REVIEW_DEADLINE`]. Half a second would be too short, because a machine may
///   stall, and 8 MiB take 0.7 s at 100 Mbit/s.
const REVIEW_LIMITS: BodyLimits =
    BodyLimits { most: 8 << 20, begins: Duration::from_secs(3), ends: Duration::from_secs(1) };
/// Limits of a conversion. The API server sends one object of at most 3 MiB in a request.
const CONVERSION_LIMITS: BodyLimits =
    BodyLimits { begins: Duration::from_secs(8), ..REVIEW_LIMITS };

/// Deadline for the reads of pools in a large review of a LoadBalancer. It is short, because other
/// large reviews wait for the turn meanwhile. A late read makes the validation fail. In a small
/// review, the deadline is [`CALL_DEADLINE`], which is longer than [`REVIEW_DEADLINE`]. So a late
/// read there leads to the answer 503, after which the API server tries again.
const LARGE_READS: Duration = Duration::from_secs(1);
/// Maximum number of small reviews that read from the API server at the same time. The limit bounds
/// memory: the parsed objects of one small review may take about 3 MiB, a hundred times the memory
/// of their text.
const READERS: usize = 8;

/// Webhooks, and the data from which they answer.
pub struct Webhooks {
    /// Sources of the facts that the rules of admission need.
    pub admission: RuleSources,
    /// Username of this operator; empty until it is known.
    pub username: tokio::sync::watch::Receiver<String>,
    /// Whether reviews are accepted only from callers with a verified client certificate.
    pub known_only: bool,
    /// The process's metrics.
    pub metrics: Metrics,
    /// Queue of large reviews.
    reviews: LargeQueue,
    /// Queue of large conversions.
    conversions: LargeQueue,
    /// Turn to process a small review.
    small_reviews: Turns<ConnectionSource>,
    /// Places of small reviews that need a read from the API server.
    readers: Turns<ConnectionSource>,
    /// Turn to process a small conversion. Any caller may send conversions, even if reviews need a
    /// client certificate. So conversions and reviews do not share a turn.
    small_conversions: Turns<ConnectionSource>,
}

impl Webhooks {
    /// Creates the webhooks with empty queues.
    pub fn new(
        admission: RuleSources,
        username: tokio::sync::watch::Receiver<String>,
        known_only: bool,
        metrics: Metrics,
    ) -> Self {
        Self {
            admission,
            username,
            known_only,
            metrics,
            reviews: LargeQueue::new(),
            conversions: LargeQueue::new(),
            small_reviews: Turns::new(1),
            readers: Turns::new(READERS),
            small_conversions: Turns::new(1),
        }
    }

    /// Router for the three paths.
    pub fn router(self) -> Router {
        Router::new()
            .route(MUTATION, review(AdmissionStage::Mutation))
            .route(VALIDATION, review(AdmissionStage::Validation))
            .route(CONVERSION, post(convert))
            .with_state(Arc::new(self))
    }

    async fn review(
        self: Arc<Self>,
        stage: AdmissionStage,
        caller: Caller,
        body: Body,
    ) -> Result<Bytes, RequestRefusal> {
        if self.known_only && !caller.is_known {
            return Err(RequestRefusal(
                StatusCode::FORBIDDEN,
                "a client certificate is required\n".to_owned(),
            ));
        }
        let source = caller.source;
        let mut sent = read(body, &self.reviews.turns, source, REVIEW_LIMITS).await?;
        if sent.turn.is_none() {
            self.small_reviews.pass(source).await;
            if let Some(answer) = if_small(&self.answer_small(stage, &sent.bytes, source).await?) {
                return Ok(answer);
            }
            sent.turn = Some(self.reviews.turns.take(source).await);
        }
        let (handle, at) = (Handle::current(), self.clone());
        let work = move |bytes: &[u8]| handle.block_on(at.answer_review(stage, bytes, true));
        run_with_turn(&self.reviews, &caller, sent, work).await
    }

    /// Answers a small review. If the review needs a read from the API server, drops its parsed
    /// objects, waits for a place, and processes the review again.
    async fn answer_small(
        &self,
        stage: AdmissionStage,
        bytes: &[u8],
        source: ConnectionSource,
    ) -> Result<Vec<u8>, RequestRefusal> {
        if let Some(answer) = self.answer_review(stage, bytes, false).now_or_never() {
            return answer;
        }
        let _place = self.readers.take(source).await;
        self.answer_review(stage, bytes, false).await
    }

    /// Answers a review. `has_turn`: whether the review has the turn of large reviews. With the
    /// turn, the reads of pools have less time ([`LARGE_READS`]). Without the turn, a large answer
    /// is not counted in the metrics, because the caller drops this answer and answers the review
    /// again with the turn.
    async fn answer_review(
        &self,
        stage: AdmissionStage,
        bytes: &[u8],
        has_turn: bool,
    ) -> Result<Vec<u8>, RequestRefusal> {
        let review = admission_review::parse(bytes).map_err(RequestRefusal::malformed)?;
        let username = self.username.borrow().clone();
        let began = Instant::now();
        let rules = &self.admission;
        let deadline = if has_turn { LARGE_READS } else { CALL_DEADLINE };
        let outcome =
            admission_review::apply_rules(rules, stage, &review, &username, deadline).await;
        let answer = admission_review::render(&outcome, &review, stage);
        if has_turn || answer.len() <= SMALL {
            let verdict = admission_review::verdict(&outcome);
            self.count(stage.name(), review.kind(), verdict, began);
        }
        Ok(answer)
    }

    async fn convert(self: Arc<Self>, caller: Caller, body: Body) -> Result<Bytes, RequestRefusal> {
        let turns = &self.conversions.turns;
        let mut sent = read(body, turns, caller.source, CONVERSION_LIMITS).await?;
        let at = self.clone();
        let work = move |bytes: &[u8], has_turn: bool| -> Result<Vec<u8>, RequestRefusal> {
            let began = Instant::now();
            let answer = conversion::review(bytes).map_err(RequestRefusal::malformed)?;
            if has_turn || answer.text.len() <= SMALL {
                at.count("conversion", "LoadBalancer", answer.verdict, began);
            }
            Ok(answer.text)
        };
        if sent.turn.is_none() {
            self.small_conversions.pass(caller.source).await;
            if let Some(answer) = if_small(&work(&sent.bytes, false)?) {
                return Ok(answer);
            }
            sent.turn = Some(turns.take(caller.source).await);
        }
        run_with_turn(&self.conversions, &caller, sent, move |bytes: &[u8]| work(bytes, true)).await
    }

    fn count(&self, call: &str, kind: &str, verdict: &str, began: Instant) {
        let metrics = &self.metrics.admission;
        metrics.requests.with_label_values(&[call, kind, verdict]).inc();
        metrics.seconds.with_label_values(&[call]).observe(began.elapsed().as_secs_f64());
    }
}

/// Returns the bytes of a small answer. `None`: the answer was large, and is dropped, because the
/// connection has no memory for it. Its request must be processed again, in a turn.
fn if_small(answer: &[u8]) -> Option<Bytes> {
    // The text is copied, because the memory of `answer` may be larger than its text.
    (answer.len() <= SMALL).then(|| Bytes::copy_from_slice(answer))
}

/// Runs `work` on another thread, on the body in `sent`. Precondition: `sent` has a turn. The turn
/// ends when the answer has the place of `queue` or needs none, or when `work` fails. If this
/// future is dropped, the turn lasts at least until `work` has ended, because nothing can stop
/// `work`.
async fn run_with_turn(
    queue: &LargeQueue,
    caller: &Caller,
    sent: CompleteBody,
    work: impl FnOnce(&[u8]) -> Result<Vec<u8>, RequestRefusal> + Send + 'static,
) -> Result<Bytes, RequestRefusal> {
    let CompleteBody { bytes, turn } = sent;
    let done = tokio::task::spawn_blocking(move || work(&bytes).map(|answer| (answer, turn)));
    match done.await {
        Ok(done) => {
            let (answer, turn) = done?;
            let answer = queue.start_answer(answer, caller).await;
            drop(turn);
            Ok(answer)
        }
        // A panic of the work's thread is raised again on this thread, so that `within` catches the
        // panic, as it does for a small request.
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(RequestRefusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
        },
    }
}

/// Answers with the result of `work`. Answers with an HTTP error if the work refuses the request,
/// panics, or does not end within `deadline`. `call`: name of the call in logs and metrics.
async fn within(
    metrics: &Metrics,
    call: &'static str,
    deadline: Duration,
    work: impl Future<Output = Result<Bytes, RequestRefusal>>,
) -> Response {
    let work = timeout(deadline, AssertUnwindSafe(work).catch_unwind());
    let refused = match work.await {
        Ok(Ok(Ok(answer))) => {
            return ([(header::CONTENT_TYPE, "application/json")], answer).into_response();
        }
        Ok(Ok(Err(refused))) => refused,
        Ok(Err(_)) => {
            tracing::error!(call, "panic while answering a review");
            RequestRefusal(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the operator failed: report this bug\n".to_owned(),
            )
        }
        Err(_) => RequestRefusal::late("the operator did not answer in time"),
    };
    tracing::debug!(
        call, status = %refused.0, why = refused.1.trim(),
        "answered a request for a review with an HTTP error"
    );
    let verdict = if refused.0.is_client_error() { "malformed" } else { "failed" };
    metrics.admission.requests.with_label_values(&[call, "", verdict]).inc();
    refused.into_response()
}

type WebhookState = State<Arc<Webhooks>>;
type CallerExtension = Extension<Caller>;

fn review(stage: AdmissionStage) -> MethodRouter<Arc<Webhooks>> {
    post(
        move |State(at): WebhookState, Extension(caller): CallerExtension, body: Body| async move {
            let work = at.clone().review(stage, caller, body);
            within(&at.metrics, stage.name(), REVIEW_DEADLINE, work).await
        },
    )
}

/// Converts objects for any caller, with or without a certificate. The API server shows no
/// certificate when it requests a conversion. The answer contains only data that the caller has
/// sent.
async fn convert(
    State(at): WebhookState,
    Extension(caller): CallerExtension,
    body: Body,
) -> Response {
    let work = at.clone().convert(caller, body);
    within(&at.metrics, "conversion", CONVERSION_DEADLINE, work).await
}

#[cfg(test)]
mod tests {
    mod waiting;

    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::pki_types::ServerName;

    use super::*;
    use crate::http::listener::{AGE, Server, ServerShutdown};
    use crate::http::tls;

    /// Sends one request on a new connection. Returns the first and the last line of the answer;
    /// both are empty if the connection was closed.
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

    fn panic_now() -> Result<Bytes, RequestRefusal> {
        panic!("on purpose")
    }

    /// Time limit of the test for the end of the listener. This limit is shorter than the time for
    /// which the listener waits for requests under way.
    const SHORTER_THAN_WIND_DOWN: Duration = Duration::from_millis(4_500);

    #[tokio::test]
    async fn a_panic_is_one_requests_and_the_next_is_served() {
        let metrics = Metrics::new().unwrap();
        let counted = metrics.clone();
        let queue = Arc::new(LargeQueue::new());
        let app = |work: fn() -> Result<Bytes, RequestRefusal>, is_large: bool| {
            let (metrics, queue) = (metrics.clone(), queue.clone());
            get(move |Extension(caller): CallerExtension| async move {
                let done = async move {
                    if !is_large {
                        return work();
                    }
                    let turn = Some(queue.turns.take(caller.source).await);
                    let sent = CompleteBody { bytes: Vec::new(), turn };
                    let work = move |_: &[u8]| work().map(|answer| answer.to_vec());
                    run_with_turn(&queue, &caller, sent, work).await
                };
                within(&metrics, "validation", REVIEW_DEADLINE, done).await
            })
        };
        let router = Router::new()
            .route("/small", app(panic_now, false))
            // This handler treats the request as large, so its work runs on another thread.
            .route("/large", app(panic_now, true))
            .route("/good", app(|| Ok(Bytes::from_static(b"{}")), true))
            // This handler panics outside of `within`, so there is no answer.
            .route("/outside", get(|| async { panic_now().map(drop).unwrap_or_default() }));

        let (config, client) = tls::tests::pair();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let ending = ServerShutdown::default();
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
        let bug = (
            "HTTP/1.1 500 Internal Server Error".to_owned(),
            "the operator failed: report this bug".to_owned(),
        );
        for (path, expected) in
            [("/small", &bug), ("/large", &bug), ("/outside", &(String::new(), String::new()))]
        {
            assert_eq!(ask(at, &client, path).await, *expected, "{path}");
            assert_eq!(ask(at, &client, "/good").await, good, "after {path}");
        }
        let failed = ["validation", "", "failed"];
        assert_eq!(counted.admission.requests.with_label_values(&failed).get(), 2);

        // The connection whose handler panicked outside of `within` has freed its place, so the
        // listener does not wait for it.
        ending.now.cancel();
        timeout(SHORTER_THAN_WIND_DOWN, serving).await.expect("a place was not freed").unwrap();
    }
}
