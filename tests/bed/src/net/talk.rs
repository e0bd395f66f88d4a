//! Owns servers and clients in a network: responders that answer with their name, over TCP, HTTP
//! and UDP, and a client that counts answers by responder.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

use super::Netns;

/// Longest wait of a client for an answer: longer than a machine stalls.
const PATIENCE: Duration = Duration::from_secs(10);

/// A responder that listens on a port and answers with its name, over TCP and UDP. To an HTTP
/// request it sends the name in an HTTP answer. Dropping it closes the port.
#[derive(Debug)]
pub struct Responder {
    state: Arc<State>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct State {
    name: String,
    healthy: AtomicBool,
    peers: Mutex<Vec<IpAddr>>,
}

impl Responder {
    /// Listens on all addresses of a namespace; the port is open when this returns.
    pub async fn start(inside: &Netns, name: &str, port: u16) -> Result<Self> {
        let (tcp, udp) = inside
            .run(move || {
                let at = (Ipv4Addr::UNSPECIFIED, port);
                let sockets = TcpListener::bind(at).and_then(|tcp| Ok((tcp, UdpSocket::bind(at)?)));
                let (tcp, udp) = sockets.with_context(|| format!("listen on port {port}"))?;
                tcp.set_nonblocking(true)?;
                udp.set_nonblocking(true)?;
                Ok((tcp, udp))
            })
            .await?;
        let tcp = tokio::net::TcpListener::from_std(tcp)?;
        let udp = tokio::net::UdpSocket::from_std(udp)?;
        let state = Arc::new(State {
            name: name.to_owned(),
            healthy: AtomicBool::new(true),
            peers: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_tcp(tcp, state.clone()));
        tasks.spawn(serve_udp(udp, state.clone()));
        Ok(Self { state, _tasks: tasks })
    }

    /// Sets the answer to HTTP requests: 200, as at first, or 503.
    pub fn healthy(&self, healthy: bool) {
        self.state.healthy.store(healthy, Ordering::Relaxed);
    }

    /// Addresses of all clients so far, in order, as the responder sees them.
    pub fn peers(&self) -> Vec<IpAddr> {
        self.state.peers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl State {
    fn asked_by(&self, peer: SocketAddr) {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).push(peer.ip());
    }
}

async fn serve_tcp(listener: tokio::net::TcpListener, state: Arc<State>) {
    let mut open = JoinSet::new();
    loop {
        // A client that closed its connection before it was accepted is no reason to stop.
        let Ok((stream, peer)) = listener.accept().await else { continue };
        state.asked_by(peer);
        open.spawn(answer(stream, state.clone()));
        while open.try_join_next().is_some() {}
    }
}

async fn answer(mut stream: tokio::net::TcpStream, state: Arc<State>) {
    let mut request = [0; 1024];
    let Ok(length) = stream.read(&mut request).await else { return };
    let name = &state.name;
    let answer = if request[..length].windows(6).any(|word| word == b" HTTP/") {
        let healthy = state.healthy.load(Ordering::Relaxed);
        let status = if healthy { "200 OK" } else { "503 Service Unavailable" };
        let length = name.len();
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{name}")
    } else {
        format!("{name}\n")
    };
    drop(stream.write_all(answer.as_bytes()).await);
    drop(stream.shutdown().await);
}

async fn serve_udp(socket: tokio::net::UdpSocket, state: Arc<State>) {
    let mut question = [0; 1024];
    loop {
        // Errors report answers that did not reach an earlier client.
        let Ok((_, peer)) = socket.recv_from(&mut question).await else { continue };
        state.asked_by(peer);
        drop(socket.send_to(state.name.as_bytes(), peer).await);
    }
}

/// Protocol of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the protocols' names")]
pub enum Protocol {
    Tcp,
    Http,
    Udp,
}

/// Result of one request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// The responder of this name answered.
    From(String),
    /// The port is closed, and the client was notified.
    Refused,
    /// No answer came.
    Silence,
    /// Any other result, in words; for an HTTP answer other than 200, its first line.
    Other(String),
}

/// Number of requests by result.
pub type Answers = BTreeMap<Answer, usize>;

/// Sends several requests at once from a namespace, each over a connection of its own.
pub async fn ask(
    from: &Netns,
    protocol: Protocol,
    address: SocketAddr,
    times: usize,
) -> Result<Answers> {
    ask_for(from, protocol, address, times, PATIENCE).await
}

/// Sends requests as [`ask`] does, and waits no longer than `patience` for an answer.
pub async fn ask_for(
    from: &Netns,
    protocol: Protocol,
    address: SocketAddr,
    times: usize,
    patience: Duration,
) -> Result<Answers> {
    from.run(move || {
        // Each thread begins in the namespace of the thread that starts it.
        thread::scope(|scope| {
            let asked: Vec<_> =
                (0..times).map(|_| scope.spawn(|| ask_once(protocol, address, patience))).collect();
            let mut answers = Answers::new();
            for answer in asked {
                let answer = answer.join().map_err(|_| anyhow!("a client panicked"))?;
                *answers.entry(answer).or_default() += 1;
            }
            Ok(answers)
        })
    })
    .await
}

fn ask_once(protocol: Protocol, address: SocketAddr, patience: Duration) -> Answer {
    let http = "GET / HTTP/1.1\r\nHost: responder\r\n\r\n";
    let answer = match protocol {
        Protocol::Tcp => exchange(address, "who\n", patience),
        Protocol::Http => exchange(address, http, patience),
        Protocol::Udp => datagram(address, patience),
    };
    let text = match answer {
        Ok(text) => text,
        Err(e) => match e.kind() {
            ErrorKind::ConnectionRefused => return Answer::Refused,
            ErrorKind::TimedOut | ErrorKind::WouldBlock => return Answer::Silence,
            _ => return Answer::Other(e.to_string()),
        },
    };
    if protocol != Protocol::Http {
        return Answer::From(text.trim_end().to_owned());
    }
    match text.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => Answer::From(body.to_owned()),
        _ => Answer::Other(text.lines().next().unwrap_or_default().to_owned()),
    }
}

fn exchange(address: SocketAddr, question: &str, patience: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(question.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn datagram(address: SocketAddr, patience: Duration) -> io::Result<String> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // Only a connected socket gets an error when the port is closed.
    socket.connect(address)?;
    socket.set_read_timeout(Some(patience))?;
    socket.send(b"who")?;
    let mut answer = [0; 1024];
    let length = socket.recv(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
}
