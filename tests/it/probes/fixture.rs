//! A running prober, and servers for it to probe.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use harvester_guest_operator::domain::vm_backends::health::{
    BackendProbe, CheckSettings, ProbeRequest, ProbeTarget,
};
use harvester_guest_operator::metrics::Metrics;
use harvester_guest_operator::prober::Prober;
use testbed::Issued;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto::aws_lc_rs};
use tokio_util::task::AbortOnDropHandle;

/// A prober that runs until this is dropped.
pub(super) struct Bed {
    pub(super) prober: Prober,
    pub(super) changed: mpsc::UnboundedReceiver<String>,
    metrics: Metrics,
    pub(super) run: AbortOnDropHandle<()>,
}

impl Bed {
    pub(super) fn start() -> Result<Self> {
        let metrics = Metrics::new()?;
        let (sender, changed) = mpsc::unbounded_channel();
        let (prober, scheduler) = Prober::new(metrics.clone(), move |lb| {
            let _ = sender.send(lb.to_owned());
        });
        let run = AbortOnDropHandle::new(tokio::spawn(scheduler.run()));
        Ok(Self { prober, changed, metrics, run })
    }

    /// Sum of a metric's values whose labels contain the word.
    pub(super) fn metric(&self, name: &str, label: &str) -> f64 {
        let text = self.metrics.render().unwrap();
        let lines = text.lines().filter(|line| {
            line.starts_with(name)
                && line[name.len()..].starts_with(['{', ' '])
                && line.contains(label)
        });
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Number of probes with this result.
    pub(super) fn results(&self, result: &str) -> f64 {
        self.metric("hgo_probes_total", &format!("result=\"{result}\""))
    }
}

/// A check with twenty probes a second, flipping after one success or three failures. The timeout
/// is longer than any test waits.
pub(super) fn tcp(port: u16) -> CheckSettings {
    CheckSettings {
        probe: BackendProbe::Tcp,
        port,
        success_threshold: 1,
        failure_threshold: 3,
        period: Duration::from_millis(50),
        timeout: Duration::from_mins(2),
    }
}

pub(super) fn http(port: u16, path: &str) -> CheckSettings {
    CheckSettings { probe: BackendProbe::Http(request(path)), ..tcp(port) }
}

pub(super) fn request(path: &str) -> ProbeRequest {
    ProbeRequest { path: path.into(), expected: vec![], server_name: None }
}

/// A target without a verdict, named by its address.
pub(super) fn target(address: &str) -> ProbeTarget {
    let address: IpAddr = address.parse().unwrap();
    ProbeTarget { id: address.to_string(), address, assume_healthy: false }
}

/// Record of a server. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Seen(Arc<Mutex<Log>>);

#[derive(Default)]
struct Log {
    hits: HashMap<IpAddr, usize>,
    heads: Vec<String>,
    /// Connections that the other side ended.
    hung_up: usize,
}

impl Seen {
    /// Number of connections to the address.
    pub(super) fn hits(&self, address: &str) -> usize {
        let address: IpAddr = address.parse().unwrap();
        self.0.lock().unwrap().hits.get(&address).copied().unwrap_or(0)
    }

    /// Complete requests.
    pub(super) fn heads(&self) -> Vec<String> {
        self.0.lock().unwrap().heads.clone()
    }

    pub(super) fn hung_up(&self) -> usize {
        self.0.lock().unwrap().hung_up
    }

    fn accepted(&self, stream: &TcpStream) {
        let address = stream.local_addr().unwrap().ip().to_canonical();
        *self.0.lock().unwrap().hits.entry(address).or_default() += 1;
    }
}

/// A server that listens until this is dropped.
pub(super) struct Server {
    pub(super) seen: Seen,
    _task: AbortOnDropHandle<()>,
}

/// Reaction of a server to a connection.
#[derive(Clone)]
pub(super) enum Manner {
    /// Closes the connection.
    Close,
    /// Sends nothing.
    Silent,
    /// Answers with the status in the path `/status/N`; `/away` redirects to 10.210.9.9:81.
    Status,
    /// Answers with the statuses one after another, repeatedly.
    Script(Arc<Vec<u16>>),
    /// Sends an answer a byte at a time, without an end.
    Dribble,
    /// Sends headers without end.
    Flood,
    /// Sends bytes that are no HTTP.
    Nonsense,
}

impl Server {
    /// Listens on all addresses of both families.
    pub(super) async fn start(port: u16, manner: Manner) -> Result<Self> {
        Self::serve(port, manner, None).await
    }

    pub(super) async fn start_tls(port: u16, manner: Manner, issued: &Issued) -> Result<Self> {
        let certificates =
            CertificateDer::pem_slice_iter(issued.cert_pem.as_bytes()).collect::<Result<_, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(issued.key_pem.as_bytes())?;
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(certificates, key)?;
        Self::serve(port, manner, Some(TlsAcceptor::from(Arc::new(config)))).await
    }

    async fn serve(port: u16, manner: Manner, tls: Option<TlsAcceptor>) -> Result<Self> {
        let listener = TcpListener::bind(("::", port)).await?;
        let seen = Seen::default();
        let log = seen.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                log.accepted(&stream);
                let (log, manner, tls) = (log.clone(), manner.clone(), tls.clone());
                connections.spawn(async move {
                    match tls {
                        None => answer(stream, &log, &manner).await,
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => answer(stream, &log, &manner).await,
                            Err(_) => return,
                        },
                    }
                    log.0.lock().unwrap().hung_up += 1;
                });
            }
        });
        Ok(Self { seen, _task: AbortOnDropHandle::new(task) })
    }
}

async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, log: &Seen, manner: &Manner) {
    if matches!(manner, Manner::Close) {
        return;
    }
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split([' ', '?']).nth(1).unwrap_or_default().to_owned();
    let count = {
        let mut log = log.0.lock().unwrap();
        log.heads.push(head);
        log.heads.len() - 1
    };
    let text = match manner {
        Manner::Status if path == "/away" => {
            "HTTP/1.1 302 Found\r\nlocation: http://10.210.9.9:81/\r\n\r\n".to_owned()
        }
        Manner::Status => format!("HTTP/1.1 {} X\r\n\r\n", path.rsplit('/').next().unwrap()),
        Manner::Script(statuses) => {
            format!("HTTP/1.1 {} X\r\n\r\n", statuses[count % statuses.len()])
        }
        Manner::Nonsense => "SSH-2.0-OpenSSH_9.2p1\r\n\r\n".to_owned(),
        Manner::Close | Manner::Silent => String::new(),
        Manner::Dribble | Manner::Flood => "HTTP/1.1 200 OK\r\nx: ".to_owned(),
    };
    let _ = stream.write_all(text.as_bytes()).await;
    match manner {
        Manner::Dribble => {
            while stream.write_all(b"x").await.is_ok() && stream.flush().await.is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        Manner::Flood => while stream.write_all(b"xxxxxxxxxx\r\ny: ").await.is_ok() {},
        _ => {
            // Until the other side ends the connection.
            let _ = stream.read(&mut [0; 64]).await;
        }
    }
}
