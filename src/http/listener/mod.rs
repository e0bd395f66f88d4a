//! Listening sockets of this process: connections, their deadlines and their end.
//!
//! Invariant: connections take a bounded share of the process's memory and of its one thread:
//! * The number of connections is limited. If there is no room, the source with the most
//!   connections loses one of them ([`ConnectionTable`]).
//! * The expensive part of a handshake runs for one connection at a time, and sources take turns.
//!
//! The end of a connection loses a request only in the cases that
//! [`crate::domain::limits::connections`] and [`connection`] describe.
//!
//! No existing server is used: `axum::serve` has neither TLS nor settings, and `axum-server` has no
//! limit on connections. When they end, both close idle connections, and so lose the requests that
//! are on their way.

mod connection;
mod request_progress;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::server::Acceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::domain::limits::connections::{ConnectionPhase, ConnectionSource, ConnectionTable};
use crate::domain::limits::token_bucket::TokenBucket;
use crate::locks::lock;
use crate::metrics::Metrics;
use crate::turns::Turns;
use connection::Conversation;

/// Time limit for each half of the TLS handshake. The limit is long, because a busy machine on
/// either side may stall. The first half includes the wait for the connection's turn. The second
/// half has its full time even if the first one was slow: the caller may already have sent its
/// request, which would be lost with the connection.
const HANDSHAKE: Duration = Duration::from_secs(8);
/// Time limit for connections after the server has begun to end. The limit is longer than
/// `connection::FRESH`, the time that a caller has for its first request.
const WIND_DOWN: Duration = Duration::from_secs(6);
/// Time to wait for further connections when the process ends. After this time without a new
/// connection, the listener is closed.
const LAST_CALL: Duration = Duration::from_millis(100);
/// Maximum number of connections from which data is still read after their last answer.
const LINGERING: usize = 128;
/// Pauses after a failed accept: the first pause, and the longest pause. Each further failure
/// doubles the pause. One cause of such a failure is a lack of file descriptors.
const ACCEPT_PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));
/// Rate limit of log lines about connections that were closed to make room: one a minute.
const REPORTS: TokenBucket = TokenBucket::new(1, Duration::from_mins(1));

/// Sender of a request, such as an API server.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Source of the connection, from its address.
    pub source: ConnectionSource,
    /// Whether the caller has shown a certificate that the TLS settings accept.
    pub is_known: bool,
    /// Token that closes the connection at once, even while an answer is being sent. The queue of
    /// large requests cancels it when another large answer waits.
    pub cut: CancellationToken,
}

/// Shutdown of a server, in two steps.
#[derive(Clone, Debug, Default)]
pub struct ServerShutdown {
    /// Cancelled first. Every answer from then on is the last of its connection. New connections
    /// are still accepted, because routes to this process may not have changed yet.
    pub soon: CancellationToken,
    /// Cancelled second. The server then takes only the connections that already wait in the
    /// kernel, and closes its listener. It finishes requests under way, and closes idle
    /// connections. A new connection still has some time for its first request.
    pub now: CancellationToken,
}

/// Age of a connection after which its next answer is its last. The caller then opens a new
/// connection, so that calls spread over all replicas.
pub const AGE: Duration = Duration::from_mins(15);

/// Server of one port, and its settings.
pub struct Server {
    /// Name of the port, in metrics and logs.
    pub port: &'static str,
    /// TLS settings. `None`: plain HTTP.
    pub tls: Option<Arc<ServerConfig>>,
    /// Router that answers requests.
    pub app: Router,
    /// Maximum number of connections at the same time.
    pub connections: usize,
    /// Age of a connection after which its next answer is its last.
    pub age: Duration,
    /// Tokens that end the server.
    pub ending: ServerShutdown,
    /// The process's metrics.
    pub metrics: Metrics,
}

/// State that the connections of a server share.
struct ListenerState {
    server: Server,
    connections: Mutex<ConnectionTable<CancellationToken>>,
    lingering: Semaphore,
    handshakes: Turns<ConnectionSource>,
    began: Instant,
    reports: Mutex<TokenBucket>,
}

impl Server {
    /// Serves connections until [`ServerShutdown::now`] is cancelled. Then waits until the last
    /// connection has ended, for `WIND_DOWN` at most.
    pub async fn serve(self, listener: TcpListener) {
        let ending = self.ending.clone();
        let shared = Arc::new(ListenerState {
            connections: Mutex::new(ConnectionTable::new(self.connections)),
            lingering: Semaphore::new(LINGERING),
            handshakes: Turns::new(1),
            began: Instant::now(),
            reports: Mutex::new(REPORTS),
            server: self,
        });
        let tasks = TaskTracker::new();
        tokio::select! {
            () = shared.accept(&listener, &tasks) => {}
            () = ending.now.cancelled() => {}
        }
        // Takes the connections that the kernel has accepted already. Otherwise, the kernel would
        // reset these connections when the listener is closed.
        let last = async {
            while let Ok(Ok((stream, peer))) = timeout(LAST_CALL, listener.accept()).await {
                shared.take_in(stream, peer, &tasks);
            }
        };
        let end = Instant::now() + WIND_DOWN;
        let _ = timeout_at(end, last).await;
        drop(listener);
        tasks.close();
        let _ = timeout_at(end, tasks.wait()).await;
    }
}

impl ListenerState {
    async fn accept(self: &Arc<Self>, listener: &TcpListener, tasks: &TaskTracker) {
        let mut paused = None;
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    paused = None;
                    self.take_in(stream, peer, tasks);
                }
                Err(error) => {
                    if let Some(pause) = pause_after(error.kind(), paused) {
                        let port = self.server.port;
                        tracing::warn!(%error, port, "cannot accept a connection");
                        sleep(pause).await;
                        paused = Some(pause);
                    }
                }
            }
        }
    }

    /// Serves `stream` in a new task of `tasks`. If there is no room for one more connection, first
    /// ends the connection that [`ConnectionTable::make_room`] chooses.
    fn take_in(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr, tasks: &TaskTracker) {
        let source = ConnectionSource::of(peer.ip());
        let evicted = lock(&self.connections).make_room(source);
        if let Some(evicted) = evicted {
            evicted.ends.cancel();
            self.report_eviction(evicted.source, evicted.had);
        }
        let gone = CancellationToken::new();
        let place = lock(&self.connections).enter(source, self.began.elapsed(), gone.clone());
        let seat = ListenerSeat { shared: self.clone(), source, place };
        tasks.spawn(self.clone().connection(stream, seat, gone));
    }

    fn report_eviction(&self, source: ConnectionSource, had: usize) {
        let port = self.server.port;
        self.server.metrics.evicted.with_label_values(&[port]).inc();
        if lock(&self.reports).take(self.began.elapsed()).is_ok() {
            tracing::warn!(
                port,
                %source,
                connections = had,
                most = self.server.connections,
                "too many connections: closing one of the source that has the most"
            );
        }
    }

    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        seat: ListenerSeat,
        gone: CancellationToken,
    ) {
        let _ = stream.set_nodelay(true);
        let (source, cut) = (seat.source, CancellationToken::new());
        let caller = Caller { source, is_known: false, cut };
        let Some(settings) = self.server.tls.clone() else {
            return Conversation { seat, caller, gone }.hold(stream).await;
        };
        let greeting = self.greet(stream, settings, source);
        let greeted = tokio::select! {
            greeted = greeting => greeted,
            () = gone.cancelled() => return,
        };
        let stream = match greeted {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%error, "TLS handshake with admission failed");
                return self.server.metrics.admission.handshakes_failed.inc();
            }
        };
        let is_known = stream.get_ref().1.peer_certificates().is_some();
        Conversation { seat, caller: Caller { is_known, ..caller }, gone }.hold(stream).await;
    }

    /// Performs the TLS handshake. The expensive part of the handshake runs for one connection at a
    /// time, and sources take turns. Between two turns, the main thread of this process polls all
    /// other tasks, so that many handshakes do not block them.
    async fn greet(
        &self,
        stream: TcpStream,
        settings: Arc<ServerConfig>,
        source: ConnectionSource,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let first_half = async {
            let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
            let turn = self.handshakes.take(source).await;
            let accept = hello.into_stream(settings);
            tokio::task::yield_now().await;
            drop(turn);
            Ok::<_, std::io::Error>(accept)
        };
        let accept = timeout(HANDSHAKE, first_half).await??;
        timeout(HANDSHAKE, accept).await?
    }
}

/// Place of a connection in the table of connections. Dropping the place makes room for another
/// connection.
struct ListenerSeat {
    shared: Arc<ListenerState>,
    source: ConnectionSource,
    /// Number of the connection in the table.
    place: u64,
}

impl ListenerSeat {
    fn set_phase(&self, phase: ConnectionPhase) {
        let now = self.shared.began.elapsed();
        lock(&self.shared.connections).set_phase(self.place, phase, now);
    }
}

impl Drop for ListenerSeat {
    fn drop(&mut self) {
        lock(&self.shared.connections).leave(self.place);
    }
}

/// Pause after an accept that failed with `failure`. `None`: no pause, because the failure concerns
/// only one connection. `before`: the last pause since an accept succeeded; `None` if there was
/// none.
fn pause_after(failure: ErrorKind, before: Option<Duration>) -> Option<Duration> {
    match failure {
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted => None,
        _ => Some(before.map_or(ACCEPT_PAUSE.0, |before| (before * 2).min(ACCEPT_PAUSE.1))),
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpSocket;
    use tokio_rustls::rustls::pki_types::ServerName;

    use super::*;
    use crate::http::tls;

    /// Server that answers every request for `/` until a token of `ending` is cancelled.
    fn server(tls: Option<Arc<ServerConfig>>, ending: ServerShutdown) -> Server {
        Server {
            port: "test",
            tls,
            app: Router::new().route("/", get(|| async { "here" })),
            connections: 10,
            age: AGE,
            ending,
            metrics: Metrics::new().unwrap(),
        }
    }

    /// A caller of TLS 1.3 sends its request together with the last part of the handshake. If the
    /// server closed the connection before it read this part, the request would be lost.
    #[tokio::test]
    async fn the_second_half_of_a_handshake_has_as_much_time_as_the_first() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (settings, connector) = tls::tests::pair();
        tokio::spawn(server(Some(settings), ServerShutdown::default()).serve(listener));
        // Connection between the caller and the server. It delays each of the caller's first two
        // writes by 5/8 of the time limit.
        let (near, far) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            let (mut asked, mut answers) = tokio::io::split(far);
            let (mut answered, mut asks) = TcpStream::connect(address).await.unwrap().into_split();
            tokio::spawn(async move {
                let _ = tokio::io::copy(&mut answered, &mut answers).await;
                answers.shutdown().await
            });
            let mut part = vec![0; 1 << 14];
            for _ in 0..2 {
                let read = asked.read(&mut part).await.unwrap();
                sleep(HANDSHAKE * 5 / 8).await;
                asks.write_all(&part[..read]).await.unwrap();
            }
            let _ = tokio::io::copy(&mut asked, &mut asks).await;
        });
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let mut caller = connector.connect(name, near).await.unwrap();
        caller.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut answer = vec![0; 512];
        let read = caller.read(&mut answer).await.unwrap();
        assert!(answer[..read].ends_with(b"here"), "{}", String::from_utf8_lossy(&answer[..read]));
    }

    /// A caller may stall after it has connected. The caller does not repeat a request that it
    /// could not write. So a new connection has the time `FRESH` for its first request, even if the
    /// listener ends meanwhile.
    #[tokio::test]
    async fn a_connection_that_was_just_made_has_time_to_ask_while_the_listener_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let ending = ServerShutdown::default();
        let serving = tokio::spawn(server(None, ending.clone()).serve(listener));
        let ask = async |caller: &mut TcpStream| {
            let request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
            caller.write_all(request).await.unwrap();
            let mut buffer = [0; 512];
            let read = caller.read(&mut buffer).await.unwrap();
            String::from_utf8_lossy(&buffer[..read]).into_owned()
        };
        let mut used = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut used).await.ends_with("here"));
        let mut fresh = TcpStream::connect(address).await.unwrap();
        ending.now.cancel();
        // A connection that has had a request gets the answer `FAREWELL` at once. If the caller has
        // just sent another request, the caller sends this request again.
        let mut words = String::new();
        used.read_to_string(&mut words).await.unwrap();
        assert!(words.starts_with("HTTP/1.1 503"), "{words}");
        sleep(Duration::from_secs(3)).await;
        let answer = ask(&mut fresh).await;
        assert!(answer.ends_with("here") && answer.contains("connection: close"), "{answer}");
        serving.await.unwrap();
    }

    /// A new connection never waits for room. Otherwise, connections of other sources would wait
    /// behind it.
    #[tokio::test]
    async fn a_source_whose_connections_are_all_busy_does_not_hold_up_another_source() {
        let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let wait = get(move || {
            let _ = said.send(());
            std::future::pending::<&'static str>()
        });
        let server = server(None, ServerShutdown::default());
        let app = server.app.clone().route("/wait", wait);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(Server { app, connections: 3, ..server }.serve(listener));
        let mut busy = Vec::new();
        for _ in 0..4 {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
            let mut caller = socket.connect(address).await.unwrap();
            caller.write_all(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            heard.recv().await.unwrap();
            busy.push(caller);
        }
        let mut caller = TcpStream::connect(address).await.unwrap();
        caller.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        timeout(WIND_DOWN, caller.read_u8()).await.unwrap().unwrap();
        // The third connection made room for the fourth, and the fourth made room for the other
        // source. The answer 503 makes the callers of both send their requests again.
        for lost in [2, 3] {
            let mut words = String::new();
            let read = timeout(WIND_DOWN, busy[lost].read_to_string(&mut words)).await;
            read.unwrap().unwrap();
            assert!(words.starts_with("HTTP/1.1 503"), "{words}");
            assert!(words.contains("Retry-After: 1"), "{words}");
        }
    }

    #[test]
    fn a_failure_to_accept_is_followed_by_a_rest_unless_it_is_the_callers() {
        for callers in
            [ErrorKind::ConnectionAborted, ErrorKind::ConnectionReset, ErrorKind::Interrupted]
        {
            assert_eq!(pause_after(callers, None), None);
            assert_eq!(pause_after(callers, Some(ACCEPT_PAUSE.1)), None);
        }
        // Pauses after consecutive failures of the kind that too many open files cause.
        let mut rests = Vec::new();
        for _ in 0..10 {
            rests.extend(pause_after(ErrorKind::Other, rests.last().copied()));
        }
        let millis: Vec<u128> = rests.iter().map(Duration::as_millis).collect();
        assert_eq!(millis, [5, 10, 20, 40, 80, 160, 320, 640, 1_000, 1_000]);
    }
}
