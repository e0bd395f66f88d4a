//! Owns one address in front of several operators, like a Service: connections go in turn to those
//! that report ready.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Pause between two probes. Longer than kube-proxy takes to observe endpoints.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Time for an answer to a probe (`timeoutSeconds` in the chart).
const PATIENCE: Duration = Duration::from_secs(2);
/// Probes in a row that fail before a pod is not ready (`failureThreshold`, the default).
const FAILURES: u32 = 3;
/// Time after which kube-proxy has rules without the endpoint of a pod that is being deleted,
/// whatever the pod's probe reports (`minSyncPeriod`).
const DELETED: Duration = Duration::from_secs(1);
/// Number of attempts to connect, and the delay between two.
const CONNECTS: u32 = 20;
const RECONNECT: Duration = Duration::from_millis(50);

#[derive(Clone, Copy)]
struct Backend {
    traffic: SocketAddr,
    probes: SocketAddr,
    ready: bool,
    /// Failed probes since the last success.
    failures: u32,
}

impl Backend {
    /// Records the result of a probe, as a kubelet does.
    fn probed(&mut self, succeeded: bool) {
        self.failures = if succeeded { 0 } else { self.failures + 1 };
        self.ready = succeeded || self.ready && self.failures < FAILURES;
    }
}

/// A balancer. Dropping it ends it; connections that it has made continue.
pub struct Balancer {
    address: SocketAddr,
    backends: Arc<Mutex<Vec<Backend>>>,
    tasks: [JoinHandle<()>; 2],
}

impl std::fmt::Debug for Balancer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Balancer").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Balancer {
    /// Listens on loopback.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let backends: Arc<Mutex<Vec<Backend>>> = Arc::default();
        let tasks = [
            tokio::spawn(accept(listener, backends.clone())),
            tokio::spawn(look(backends.clone())),
        ];
        Ok(Self { address, backends, tasks })
    }

    /// Address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds an operator by the addresses of its traffic and of its probes.
    pub fn add(&self, traffic: SocketAddr, probes: SocketAddr) {
        lock(&self.backends).push(Backend { traffic, probes, ready: false, failures: 0 });
    }

    /// Whether new connections go to an operator, among others.
    pub fn leads_to(&self, traffic: SocketAddr) -> bool {
        lock(&self.backends).iter().any(|backend| backend.traffic == traffic && backend.ready)
    }

    /// Removes an operator whose pod is being deleted.
    pub fn delete(&self, traffic: SocketAddr) {
        let backends = self.backends.clone();
        tokio::spawn(async move {
            sleep(DELETED).await;
            lock(&backends).retain(|backend| backend.traffic != traffic);
        });
    }
}

async fn accept(listener: TcpListener, backends: Arc<Mutex<Vec<Backend>>>) {
    let mut turn = 0_usize;
    loop {
        let Ok((mut client, _)) = listener.accept().await else {
            sleep(RECONNECT).await;
            continue;
        };
        turn = turn.wrapping_add(1);
        let ready: Vec<SocketAddr> =
            lock(&backends).iter().filter(|b| b.ready).map(|b| b.traffic).collect();
        let Some(to) = ready.get(turn % ready.len().max(1)).copied() else {
            eprintln!("testbed: a connection was ended: no operator behind the balancer is ready");
            continue;
        };
        tokio::spawn(async move {
            match connect(to).await {
                Ok(mut server) => forward(&mut client, &mut server).await,
                Err(error) => eprintln!("testbed: a connection was ended: {to}: {error}"),
            }
        });
    }
}

/// Copies both directions until both have ended. As with the packets that kube-proxy's rules
/// forward, an end of one direction, clean or not, does not end the other.
async fn forward(client: &mut TcpStream, server: &mut TcpStream) {
    let (mut asked, mut answers) = client.split();
    let (mut answered, mut asks) = server.split();
    let up = async {
        let _ = copy(&mut asked, &mut asks).await;
        let _ = asks.shutdown().await;
    };
    let down = async {
        let _ = copy(&mut answered, &mut answers).await;
        let _ = answers.shutdown().await;
    };
    tokio::join!(up, down);
}

/// Connects, and tries again where this machine has no free port or file for a moment: a Service
/// needs neither.
async fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    for _ in 0..CONNECTS {
        match TcpStream::connect(to).await {
            Err(error) if error.kind() != ErrorKind::ConnectionRefused => sleep(RECONNECT).await,
            done => return done,
        }
    }
    TcpStream::connect(to).await
}

async fn look(backends: Arc<Mutex<Vec<Backend>>>) {
    loop {
        let all = lock(&backends).clone();
        for backend in all {
            let ready = timeout(PATIENCE, is_ready(backend.probes)).await.is_ok_and(|ready| ready);
            let mut backends = lock(&backends);
            let same = backends.iter_mut().filter(|b| b.probes == backend.probes);
            same.for_each(|b| b.probed(ready));
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Whether an operator reports ready.
async fn is_ready(probes: SocketAddr) -> bool {
    let asked = async {
        let mut stream = TcpStream::connect(probes).await?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    asked.await.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

fn lock(backends: &Mutex<Vec<Backend>>) -> std::sync::MutexGuard<'_, Vec<Backend>> {
    backends.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_probes_in_a_row_must_fail() {
        let at = SocketAddr::from(([127, 0, 0, 1], 1));
        let mut backend = Backend { traffic: at, probes: at, ready: false, failures: 0 };
        let mut after = |succeeded: bool| {
            backend.probed(succeeded);
            backend.ready
        };
        assert!(!after(false), "it has never been ready");
        assert!(after(true));
        assert!(after(false) && after(false), "slow");
        assert!(after(true) && after(false) && after(false) && !after(false), "not ready");
        assert!(after(true));
    }
}
