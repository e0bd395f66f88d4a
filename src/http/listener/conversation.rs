//! One connection, from its first request to its end.
//!
//! Invariant: no request is lost with a connection. The API server does not send a POST again that
//! it sent into a connection which was being closed (Go's `http.Transport` repeats only what it
//! takes to be replayable), and what it asks a webhook that fails closed is then refused. It does
//! send again what is answered with 503 and `Retry-After` (`checkWait` in k8s.io/client-go/rest). So
//! the last answer says `Connection: close`; a connection that is idle is left to its caller, whose
//! requests could cross its end; where it must go all the same, for lack of room or because the
//! process ends, its last words are an answer to a request that is on its way; and after them the
//! line stays open for a moment, so that no reset destroys what the caller has not read yet.
//!
//! HTTP/2 has GOAWAY for this, but is no way out: the API server's client of webhooks asks for
//! HTTP/1.1 alone (`NextProtos` in k8s.io/apiserver/pkg/util/webhook).

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::line::{Arriving, Line, Progress};
use super::{Caller, Seat, WIND_DOWN};
use crate::domain::limits::connections::Phase;

/// Head and unread body of one connection. The library's least is 8 KiB.
const BUFFER: usize = 16 * 1024;
/// From the first byte of a request's head to its last.
const HEAD: Duration = Duration::from_secs(8);
/// An idle connection ends with its caller, after 90 s where that is Go's client (`IdleConnTimeout`), or
/// when there is no room for another.
const FOREVER: Duration = Duration::from_hours(24 * 365);
/// From a request's head to its answer. Whoever answers has shorter deadlines.
const ANSWER: Duration = Duration::from_secs(30);
/// For an answer to be taken.
const SENDING: Duration = Duration::from_secs(5);
/// Time within which a connection that was made for a request brings it. The caller may stand still between the
/// handshake and the request, and does not send again what it could not write to a connection that was never used
/// before (`shouldRetryRequest` in Go's net/http).
const FRESH: Duration = Duration::from_secs(5);
/// For a last word to leave, and then for what the caller had sent before it heard that.
const LAST_WORD: Duration = Duration::from_secs(1);
/// Longer than a machine stands still whose cores are all busy.
const LINGER: Duration = Duration::from_secs(8);
/// Bytes that are taken then.
const LINGER_BYTES: usize = 4 << 20;
/// An answer to a request that is just on its way, and else an end.
const FAREWELL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 0\r\n\
    Connection: close\r\nContent-Length: 0\r\n\r\n";

/// A connection that requests may come over.
pub(super) struct Conversation {
    pub(super) seat: Seat,
    pub(super) caller: Caller,
    /// It has to go: there is no room.
    pub(super) gone: CancellationToken,
}

/// How a conversation ends.
enum End {
    /// The last answer has left, or the caller has.
    Over,
    /// Nothing was asked, or not to the end.
    Unasked,
    /// The caller does not take the answer, or it did not come.
    Cut,
}

impl Conversation {
    /// Answers what comes, until it ends.
    pub(super) async fn hold<IO>(self, io: IO)
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let shared = self.seat.shared.clone();
        let progress = Arc::new(Progress::default());
        let answering = Answering {
            app: shared.server.app.clone(),
            caller: self.caller,
            progress: progress.clone(),
            soon: shared.server.ending.soon.clone(),
            last_from: Instant::now() + shared.server.age,
        };
        let line = Line { io, progress: progress.clone() };
        let mut http =
            http1::Builder::new().header_read_timeout(None).max_buf_size(BUFFER).serve_connection(
                TokioIo::new(line),
                service_fn(move |request| Box::pin(answering.clone().answer(request))),
            );
        let end = {
            let mut watch = pin!(self.watch(progress));
            poll_fn(|cx| {
                // First: where this machine stood still, the request is there, and counts.
                if http.poll_without_shutdown(cx).is_ready() {
                    return Poll::Ready(End::Over);
                }
                watch.as_mut().poll(cx)
            })
            .await
        };
        let words: &[u8] = match end {
            End::Cut => return,
            End::Over => b"",
            End::Unasked => FAREWELL,
        };
        let line = http.into_parts().io.into_inner();
        drop(self.seat);
        // What else is here is of no use any more.
        if take_leave(line, words, &shared.lingering).await.is_err() {
            tracing::debug!(port = shared.server.port, "a caller left without a word");
        }
    }

    /// Ends when the connection must, and follows meanwhile what it does. Polled whenever something
    /// has passed.
    fn watch(&self, progress: Arc<Progress>) -> impl Future<Output = End> {
        let ending = self.seat.shared.server.ending.now.clone();
        let gone = self.gone.clone();
        let mut gone = Box::pin(gone.cancelled_owned());
        let mut ending = Box::pin(ending.cancelled_owned());
        let (mut is_gone, mut is_ending) = (false, false);
        let mut deadline = Box::pin(sleep(Duration::ZERO));
        let mut seen = None;
        let began = Instant::now();
        poll_fn(move |cx| {
            let now = (progress.phase(), progress.answers());
            if seen != Some(now) {
                seen = Some(now);
                self.seat.note(now.0);
                deadline.as_mut().reset(Instant::now() + patience(now.0));
            }
            is_gone = is_gone || gone.as_mut().poll(cx).is_ready();
            if !is_ending && ending.as_mut().poll(cx).is_ready() {
                is_ending = true;
                shorten(deadline.as_mut(), Instant::now() + WIND_DOWN);
            }
            if is_gone || is_ending {
                progress.end();
            }
            let is_late = deadline.as_mut().poll(cx).is_ready();
            match now {
                (Phase::Working | Phase::Sending, _) if is_late => Poll::Ready(End::Cut),
                (Phase::Working | Phase::Sending, _) => Poll::Pending,
                _ if is_late || is_gone => Poll::Ready(End::Unasked),
                (Phase::Asking, _) => Poll::Pending,
                // A caller takes a word before its first one for a failure.
                (_, 0) if is_ending && began.elapsed() < FRESH => {
                    shorten_and_poll(deadline.as_mut(), began + FRESH, cx)
                }
                _ if is_ending => Poll::Ready(End::Unasked),
                _ => Poll::Pending,
            }
        })
    }
}

/// Longest time that a connection may spend in a phase.
fn patience(phase: Phase) -> Duration {
    match phase {
        Phase::Greeting | Phase::Heading => HEAD,
        Phase::Idle => FOREVER,
        Phase::Asking | Phase::Working => ANSWER,
        Phase::Sending => SENDING,
    }
}

fn shorten(mut deadline: Pin<&mut Sleep>, to: Instant) {
    if deadline.deadline() > to {
        deadline.as_mut().reset(to);
    }
}

fn shorten_and_poll(mut deadline: Pin<&mut Sleep>, to: Instant, cx: &mut Context<'_>) -> Poll<End> {
    shorten(deadline.as_mut(), to);
    deadline.poll(cx).map(|()| End::Unasked)
}

/// Says the last words, and takes what was sent before they were heard.
async fn take_leave<IO>(
    mut line: Line<IO>,
    words: &[u8],
    places: &tokio::sync::Semaphore,
) -> std::io::Result<()>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let leaving = async {
        line.write_all(words).await?;
        line.flush().await?;
        line.shutdown().await
    };
    timeout(LAST_WORD, leaving).await??;
    // Who has many connections closed is not waited for.
    let Ok(_place) = places.try_acquire() else { return Ok(()) };
    let draining = async {
        let mut taken = 0;
        let mut buffer = vec![0; BUFFER];
        while taken < LINGER_BYTES {
            match line.read(&mut buffer).await? {
                0 => break,
                more => taken += more,
            }
        }
        Ok(())
    };
    timeout(LINGER, draining).await?
}

#[derive(Clone)]
struct Answering {
    app: Router,
    caller: Caller,
    progress: Arc<Progress>,
    soon: CancellationToken,
    /// From then on an answer is the last.
    last_from: Instant,
}

impl Answering {
    async fn answer(self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        self.progress.asked(request.body().is_end_stream());
        let progress = self.progress.clone();
        let mut request = request.map(|body| Body::new(Arriving { body, progress }));
        request.extensions_mut().insert(self.caller);
        let app = TowerToHyperService::new(self.app);
        let mut response = hyper::service::Service::call(&app, request).await?;
        let is_last =
            self.progress.is_last() || self.soon.is_cancelled() || Instant::now() >= self.last_from;
        // Who does not ask properly keeps no connection.
        if is_last || response.status() != StatusCode::OK {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        self.progress.answered();
        Ok(response)
    }
}
