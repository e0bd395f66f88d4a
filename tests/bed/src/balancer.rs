//! Owns one address in front of several operators, as a Service is: connections go to those that
//! say they are ready, in turn.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Slower than kube-proxy is told of endpoints.
const LOOK: Duration = Duration::from_millis(500);
/// How long an answer is waited for, and how many must stay out until that means something: a
/// kubelet takes no pod out for being slow once.
const PATIENCE: Duration = Duration::from_secs(2);
const SILENCES: u32 = 3;
/// After its pod is deleted an endpoint is terminating, whatever its probe says; kube-proxy hears of it and
/// writes its rules within this time (`minSyncPeriod`).
const DELETED: Duration = Duration::from_secs(1);
/// How often it is tried again to connect, and after how long.
const CONNECTS: u32 = 20;
const RECONNECT: Duration = Duration::from_millis(50);

#[derive(Clone, Copy)]
struct Backend {
    traffic: SocketAddr,
    probes: SocketAddr,
    ready: bool,
    /// Answers that stayed out since the last one.
    silences: u32,
}

impl Backend {
    /// Takes in an answer: whether it says that it is ready, or none. One that says that it is
    /// not, or does not listen, is out at once, as a pod that is being deleted.
    fn found(&mut self, ready: Option<bool>) {
        self.silences = if ready.is_some() { 0 } else { self.silences + 1 };
        self.ready = ready.unwrap_or(self.ready && self.silences < SILENCES);
    }
}

/// A balancer. Dropping it ends it; connections that it has made go on.
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

    /// What to call.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds an operator by the addresses of its traffic and of its probes.
    pub fn add(&self, traffic: SocketAddr, probes: SocketAddr) {
        lock(&self.backends).push(Backend { traffic, probes, ready: false, silences: 0 });
    }

    /// Whether connections go to an operator, among others.
    pub fn leads_to(&self, traffic: SocketAddr) -> bool {
        lock(&self.backends).iter().any(|backend| backend.traffic == traffic && backend.ready)
    }

    /// Takes out an operator whose pod is being deleted.
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
            if let Ok(mut server) = connect(to).await {
                let _ = copy_bidirectional(&mut client, &mut server).await;
            }
        });
    }
}

/// Connects, also where this machine has no port or no file left for a moment: a Service needs
/// neither.
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
            let ready = timeout(PATIENCE, is_ready(backend.probes)).await.ok().flatten();
            let mut backends = lock(&backends);
            backends.iter_mut().filter(|b| b.probes == backend.probes).for_each(|b| b.found(ready));
        }
        sleep(LOOK).await;
    }
}

/// Whether it says that it is ready. `None`: it says nothing whole.
async fn is_ready(probes: SocketAddr) -> Option<bool> {
    let asked = async {
        let mut stream = TcpStream::connect(probes).await?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    match asked.await {
        Ok(answer) if answer.is_empty() => None,
        Ok(answer) => Some(answer.starts_with("HTTP/1.1 200")),
        Err(error) => (error.kind() == ErrorKind::ConnectionRefused).then_some(false),
    }
}

fn lock(backends: &Mutex<Vec<Backend>>) -> std::sync::MutexGuard<'_, Vec<Backend>> {
    backends.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_answer_takes_nobody_out() {
        let at = SocketAddr::from(([127, 0, 0, 1], 1));
        let mut backend = Backend { traffic: at, probes: at, ready: false, silences: 0 };
        let mut after = |ready: Option<bool>| {
            backend.found(ready);
            backend.ready
        };
        assert!(!after(None), "it has never said so");
        assert!(after(Some(true)));
        assert!(after(None) && after(None), "slow");
        assert!(after(Some(true)) && after(None) && after(None) && !after(None), "silent");
        assert!(after(Some(true)) && !after(Some(false)), "it says so");
    }
}
