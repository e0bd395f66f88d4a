//! Life of one connection, from its first request to its end.
//!
//! Aim: the end of a connection loses no request. The API server does not repeat a POST that it
//! sent into a connection that was being closed (Go's `http.Transport` repeats only requests that
//! it considers replayable). If such a POST is lost and the webhook's `failurePolicy` is `Fail`,
//! the API server refuses the write that the POST was about. But the API server repeats a request
//! that is answered with 503 and `Retry-After` (`checkWait` in k8s.io/client-go/rest). So:
//! * The last answer has the header `Connection: close`.
//! * An idle connection has no time limit. Its caller closes it, because a request could arrive
//!   while this process closes it.
//! * If this process closes a connection to make room, because the process ends, or because a
//!   request arrives too slowly, it first sends a final answer: 503 with `Retry-After`. The final
//!   answer is also the answer to each of these requests:
//!   * a request whose head is not complete yet;
//!   * a request whose body arrives too slowly;
//!   * if the connection must make room: any request whose own answer has not begun.
//! * An answer is cut only if it is late, or if its caller does not read it in time.
//! * After its last answer, the connection stays open for a moment, so that no reset destroys data
//!   that the caller has not read yet. Only `LINGERING` connections at a time can stay open. A
//!   further one is closed at once, and a reset may destroy its last answer.
//!
//! HTTP/2 can end a connection without loss (GOAWAY). But it cannot be used, because the API
//! server's client for webhooks requests HTTP/1.1 only (`NextProtos` in
//! k8s.io/apiserver/pkg/util/webhook).

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
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

use super::request_progress::{ArrivingBody, RecordedStream, RequestProgress};
use super::{Caller, ListenerSeat, ServerShutdown, WIND_DOWN};
use crate::domain::limits::connections::ConnectionPhase;

/// Size, in bytes, of the buffer for a request's head and for data of its body that no handler has
/// read yet. The minimum of hyper is 8 KiB.
const BUFFER: usize = 16 * 1024;
/// Time limit for a request's head, from its first byte to its last.
const HEAD: Duration = Duration::from_secs(8);
/// Time limit for an idle connection: a year, which stands for no limit. The caller closes an idle
/// connection (Go's client after 90 s, `IdleConnTimeout`). This process closes it only to make room
/// or because the process ends.
const FOREVER: Duration = Duration::from_hours(24 * 365);
/// Time limit for a request's body, from the end of the head. The same limit applies to the answer,
/// from the end of the body. The handlers have shorter deadlines.
const ANSWER: Duration = Duration::from_secs(30);
/// Time limit for the caller to read an answer.
const SENDING: Duration = Duration::from_secs(5);
/// Minimum time, from the end of the handshake, that the caller has for its first request even if
/// the server ends. The caller may stall before this request. If the connection is closed during
/// the stall, Go's client does not repeat the request (`shouldRetryRequest` in net/http).
const FRESH: Duration = Duration::from_secs(5);
/// Time limit for the end of a connection: for sending `FAREWELL` or `OVERLOADED`, and for ending
/// the sending half. Also the time limit for the rest of an answer that is being sent when its
/// connection must make room.
const LAST_WORD: Duration = Duration::from_secs(1);
/// Time limit for reading data that the caller sent before it read the last answer of the
/// connection. The limit leaves time to a caller whose machine is busy and stalls.
const LINGER: Duration = Duration::from_secs(8);
/// Maximum number of bytes that are read after the last answer of the connection.
const LINGER_BYTES: usize = 4 << 20;
/// Answer with status 503 that ends a connection before its next request has arrived completely. If
/// the caller has begun to send that request, this is the answer to it, and the caller sends the
/// request again.
const FAREWELL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 0\r\n\
    Connection: close\r\nContent-Length: 0\r\n\r\n";
/// Answer with status 503, for lack of room, to a request whose head has arrived. The caller must
/// wait a second before each repetition. client-go repeats a request ten times at most, and without
/// a pause, the repetitions would soon be over.
const OVERLOADED: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n\
    Connection: close\r\nContent-Length: 0\r\n\r\n";

/// Accepted connection, after its TLS handshake if there is one.
pub(super) struct Conversation {
    pub(super) seat: ListenerSeat,
    pub(super) caller: Caller,
    /// Cancelled when the connection must end to make room for another connection.
    pub(super) gone: CancellationToken,
}

/// Reason for the end of a conversation.
enum ConversationEnd {
    /// The last answer was sent, or the caller has closed the connection.
    Over,
    /// The connection must end, and has no complete request. The caller gets the answer `FAREWELL`.
    Unasked,
    /// The connection must make room for another one, and no answer to its request has begun. The
    /// caller gets the answer `OVERLOADED`.
    Unanswered,
    /// The answer to a request was late, or the caller did not read this answer in time, or another
    /// large answer waits for the place of this one ([`Caller::cut`]). The connection is closed at
    /// once, without `FAREWELL` or `OVERLOADED`.
    Cut,
}

impl Conversation {
    /// Answers the requests that arrive on `io`, until the connection ends.
    pub(super) async fn hold<IO>(self, io: IO)
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let shared = self.seat.shared.clone();
        let progress = Arc::new(RequestProgress::default());
        let answering = Answering {
            app: shared.server.app.clone(),
            caller: self.caller.clone(),
            progress: progress.clone(),
            gone: self.gone.clone(),
            ending: shared.server.ending.clone(),
            last_from: Instant::now() + shared.server.age,
        };
        let line = RecordedStream { io, progress: progress.clone() };
        let mut http =
            http1::Builder::new().header_read_timeout(None).max_buf_size(BUFFER).serve_connection(
                TokioIo::new(line),
                service_fn(move |request| Box::pin(answering.clone().answer(request))),
            );
        let end = {
            let mut watch = pin!(self.watch(progress));
            poll_fn(|cx| {
                // The connection is polled before its deadlines. So a request that arrived while
                // this machine stalled does not count as late.
                if http.poll_without_shutdown(cx).is_ready() {
                    return Poll::Ready(ConversationEnd::Over);
                }
                watch.as_mut().poll(cx)
            })
            .await
        };
        let words: &[u8] = match end {
            ConversationEnd::Cut => return,
            ConversationEnd::Over => b"",
            ConversationEnd::Unasked => FAREWELL,
            ConversationEnd::Unanswered => OVERLOADED,
        };
        let line = http.into_parts().io.into_inner();
        drop(self.seat);
        // From here on, the connection has no place in the table of connections. Only its stream is
        // still needed.
        if take_leave(line, words, &shared.lingering).await.is_err() {
            tracing::debug!(port = shared.server.port, "a caller closed the connection first");
        }
    }

    /// Future that completes when the connection must end, and returns the reason. Until then, it
    /// records the phase of the connection in the table of connections. Precondition: the caller
    /// polls the future after each transfer of data, because a new phase does not wake the future.
    fn watch(&self, progress: Arc<RequestProgress>) -> impl Future<Output = ConversationEnd> {
        let ending = self.seat.shared.server.ending.now.clone();
        let gone = self.gone.clone();
        let mut gone = Box::pin(gone.cancelled_owned());
        let mut ending = Box::pin(ending.cancelled_owned());
        let mut cut = Box::pin(self.caller.cut.clone().cancelled_owned());
        let (mut is_gone, mut is_ending) = (false, false);
        let mut deadline = Box::pin(sleep(Duration::ZERO));
        let mut seen = None;
        let began = Instant::now();
        poll_fn(move |cx| {
            is_gone = is_gone || gone.as_mut().poll(cx).is_ready();
            let now = (progress.phase(), progress.answers());
            if seen != Some((now, is_gone)) {
                seen = Some((now, is_gone));
                self.seat.set_phase(now.0);
                let most = if is_gone { LAST_WORD } else { patience(now.0) };
                deadline.as_mut().reset(Instant::now() + most);
            }
            if cut.as_mut().poll(cx).is_ready() {
                return Poll::Ready(ConversationEnd::Cut);
            }
            if !is_ending && ending.as_mut().poll(cx).is_ready() {
                is_ending = true;
                shorten(deadline.as_mut(), Instant::now() + WIND_DOWN);
            }
            let is_late = deadline.as_mut().poll(cx).is_ready();
            match now {
                (ConnectionPhase::Working | ConnectionPhase::Sending, _) if is_late => {
                    Poll::Ready(ConversationEnd::Cut)
                }
                (ConnectionPhase::Asking | ConnectionPhase::Working, _) if is_gone => {
                    Poll::Ready(ConversationEnd::Unanswered)
                }
                (ConnectionPhase::Working | ConnectionPhase::Sending, _) => Poll::Pending,
                _ if is_late || is_gone => Poll::Ready(ConversationEnd::Unasked),
                (ConnectionPhase::Asking, _) => Poll::Pending,
                // A caller treats an answer without a request as a failure. So while the server
                // ends, `FAREWELL` is sent only after the caller has had the time `FRESH` for its
                // first request.
                (_, 0) if is_ending && began.elapsed() < FRESH => {
                    shorten(deadline.as_mut(), began + FRESH);
                    deadline.as_mut().poll(cx).map(|()| ConversationEnd::Unasked)
                }
                _ if is_ending => Poll::Ready(ConversationEnd::Unasked),
                _ => Poll::Pending,
            }
        })
    }
}

/// Longest time that a connection may spend in a phase.
fn patience(phase: ConnectionPhase) -> Duration {
    match phase {
        ConnectionPhase::Greeting | ConnectionPhase::Heading => HEAD,
        ConnectionPhase::Idle => FOREVER,
        ConnectionPhase::Asking | ConnectionPhase::Working => ANSWER,
        ConnectionPhase::Sending => SENDING,
    }
}

fn shorten(mut deadline: Pin<&mut Sleep>, to: Instant) {
    if deadline.deadline() > to {
        deadline.as_mut().reset(to);
    }
}

/// Sends `words`, and ends the sending half of the connection. Then reads and drops data that the
/// caller sent before it read the last answer, if `places` has a free permit. `Err`: the caller
/// closed the connection first, or a time limit has passed. `words`: the answer `FAREWELL` or
/// `OVERLOADED`, or empty.
async fn take_leave<IO>(
    mut line: RecordedStream<IO>,
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
    // If no permit is free, this connection is closed at once. So a source with many connections
    // cannot keep more than `LINGERING` of them open.
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
    progress: Arc<RequestProgress>,
    /// Cancelled when the connection must end to make room. An answer after that is the last of the
    /// connection.
    gone: CancellationToken,
    ending: ServerShutdown,
    /// Time at which the connection has reached its maximum age. An answer after this time is the
    /// last of the connection.
    last_from: Instant,
}

impl Answering {
    async fn answer(self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        self.progress.asked(request.body().is_end_stream());
        let progress = self.progress.clone();
        let mut request = request.map(|body| Body::new(ArrivingBody { body, progress }));
        request.extensions_mut().insert(self.caller);
        let app = TowerToHyperService::new(self.app);
        let mut response = hyper::service::Service::call(&app, request).await?;
        let is_last = self.gone.is_cancelled()
            || self.ending.soon.is_cancelled()
            || self.ending.now.is_cancelled()
            || Instant::now() >= self.last_from;
        // An answer with another status than 200 is also the last of its connection.
        if is_last || response.status() != StatusCode::OK {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        self.progress.answered();
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Weak;

    use axum::body::Bytes;
    use axum::extract::Extension;
    use axum::routing::get;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;
    use crate::http::listener::{AGE, Server};
    use crate::metrics::Metrics;

    /// Size, in bytes, of an answer that has no room in the buffers of two sockets.
    const UNSENT: usize = 32 << 20;

    /// Answer of the test server. The test sees when it is dropped.
    struct WatchedAnswer(Arc<Vec<u8>>);

    impl AsRef<[u8]> for WatchedAnswer {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    /// Starts a server with room for one connection. Returns its address.
    async fn serve(app: Router) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server {
            port: "test",
            tls: None,
            app,
            connections: 1,
            age: AGE,
            ending: ServerShutdown::default(),
            metrics: Metrics::new().unwrap(),
        };
        tokio::spawn(server.serve(listener));
        address
    }

    /// Sends a request to a server with room for one connection, and reads the first byte of the
    /// answer. Returns the connection, the answer, and the token that closes the connection.
    async fn asked() -> (TcpStream, Weak<Vec<u8>>, CancellationToken) {
        let (sender, mut answers) = unbounded_channel();
        let answer = move |Extension(caller): Extension<Caller>| {
            let text = Arc::new(vec![b'x'; UNSENT]);
            let _ = sender.send((Arc::downgrade(&text), caller.cut));
            async move { Bytes::from_owner(WatchedAnswer(text)) }
        };
        let address = serve(Router::new().route("/", get(answer))).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        stream.read_u8().await.unwrap();
        let (answer, cut) = answers.recv().await.unwrap();
        (stream, answer, cut)
    }

    /// A large answer holds the place of its queue until it is dropped. If hyper copied the answer,
    /// the place would be free at once, and nothing would limit the number of copies.
    #[tokio::test]
    async fn an_answer_is_not_copied_and_is_dropped_when_it_is_sent() {
        let (mut stream, answer, _) = asked().await;
        assert!(answer.upgrade().is_some(), "dropped before it was sent");
        let mut part = vec![0; 1 << 20];
        let mut received = 0;
        while answer.upgrade().is_some() {
            received += stream.read(&mut part).await.unwrap();
        }
        assert!(received > UNSENT / 2, "{received} bytes");
    }

    async fn dropped(answer: &Weak<Vec<u8>>) {
        while answer.upgrade().is_some() {
            sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn a_connection_that_is_cut_ends_while_its_answer_is_being_sent() {
        let (_stream, answer, cut) = asked().await;
        cut.cancel();
        timeout(SENDING / 2, dropped(&answer)).await.unwrap();
    }

    /// A connection that must make room is no longer in the table of connections, so the table does
    /// not limit the memory of its answer. The shorter time limits it.
    #[tokio::test]
    async fn an_answer_that_is_not_read_has_less_time_if_there_is_no_room() {
        let (stream, answer, _) = asked().await;
        let _other = TcpStream::connect(stream.peer_addr().unwrap()).await.unwrap();
        timeout(SENDING / 2, dropped(&answer)).await.unwrap();
    }

    /// A large request waits for its turn before its body is read. Without a pause, the ten
    /// repetitions of the caller would be over before that turn.
    #[tokio::test]
    async fn a_request_whose_body_is_not_read_yet_is_repeated_after_a_pause() {
        let (sender, mut bodies) = unbounded_channel();
        let wait = move |body: Body| {
            let _ = sender.send(body);
            std::future::pending::<&'static str>()
        };
        let address = serve(Router::new().route("/", get(wait))).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let _body = bodies.recv().await.unwrap();
        let _other = TcpStream::connect(address).await.unwrap();
        let mut words = String::new();
        timeout(SENDING, stream.read_to_string(&mut words)).await.unwrap().unwrap();
        assert!(words.starts_with("HTTP/1.1 503"), "{words}");
        assert!(words.contains("Retry-After: 1"), "{words}");
    }
}
