//! Probe of a backend: connects, may send a GET, checks the answer, closes the connection.
//!
//! Invariants:
//! * the only request is a GET without credentials;
//! * at most [`LONGEST_HEAD`] bytes of the answer are in memory, and only its status is used;
//! * a redirect counts like any other status;
//! * the timeout covers the whole probe;
//! * connections are closed with a reset. At thousands of connections a second, none of them may
//!   remain in TIME_WAIT on either side.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;

use futures::future::{Either, select};
use http::header::{CONNECTION, HOST, USER_AGENT};
use http::{HeaderValue, Method};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::check_connection::{DialSettings, ProbeGet};
use crate::domain::vm_backends::health::CheckSettings;

/// Maximum size of an answer's status line and headers, in bytes. The buffer that receives them
/// grows to at most this size.
const LONGEST_HEAD: usize = 16 * 1024;
const AGENT: &str = concat!("harvester-guest-operator/", env!("CARGO_PKG_VERSION"));

/// Outcome of a probe. The set of outcomes is fixed, because [`Self::word`] is a label's value in a
/// metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeOutcome {
    /// The connection was made and, if the probe sends a GET, the answer has an expected status.
    Success,
    /// No process listens on the port, or a firewall rejects the connection with a reset.
    Refused,
    /// No host has the address, or there is no route to it, or a firewall rejects the connection.
    Unreachable,
    /// The probe took longer than the check's timeout, or than the kernel's timeout for
    /// connections.
    Timeout,
    /// The connection broke, or the answer was not HTTP, or its head was too long.
    Broken,
    /// The TLS handshake failed, or the certificate is not valid.
    Tls,
    /// The answer has a status that the check does not expect.
    Status,
    /// No descriptor, memory or port was free in this process. So the outcome shows nothing about
    /// the backend.
    Error,
}

impl ProbeOutcome {
    /// Value of the metric's label for this outcome.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::Timeout => "timeout",
            Self::Broken => "broken",
            Self::Tls => "tls",
            Self::Status => "status",
            Self::Error => "error",
        }
    }

    /// Whether the backend passed the probe. `None`: the outcome shows nothing about the backend.
    pub(super) fn verdict(self) -> Option<bool> {
        match self {
            Self::Success => Some(true),
            Self::Error => None,
            _ => Some(false),
        }
    }
}

/// Probes the backend at `address` once, as the health check `check` demands. `dial`: the
/// connection settings of `check`.
pub(super) async fn ask(
    address: IpAddr,
    check: &CheckSettings,
    dial: &DialSettings,
) -> ProbeOutcome {
    timeout(check.timeout, attempt(address, dial)).await.unwrap_or(ProbeOutcome::Timeout)
}

async fn attempt(address: IpAddr, dial: &DialSettings) -> ProbeOutcome {
    let stream = match connect(SocketAddr::new(address, dial.port)).await {
        Ok(stream) => stream,
        Err(error) => return broken(&error),
    };
    match &dial.get {
        None => ProbeOutcome::Success,
        // The future of the request is on the heap, because thousands of probes may be under way,
        // and most of them send no request.
        Some(get) => Box::pin(request(stream, address, get)).await,
    }
}

async fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_zero_linger()?;
    socket.connect(to).await
}

fn broken(error: &io::Error) -> ProbeOutcome {
    match error.kind() {
        ErrorKind::ConnectionRefused => return ProbeOutcome::Refused,
        ErrorKind::TimedOut => return ProbeOutcome::Timeout,
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted => return ProbeOutcome::Broken,
        _ => {}
    }
    match Errno::from_io_error(error) {
        // No descriptor, no memory, no free port: a fault of this process, not of the backend.
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::ADDRNOTAVAIL) => {
            ProbeOutcome::Error
        }
        _ => ProbeOutcome::Unreachable,
    }
}

async fn request(stream: TcpStream, address: IpAddr, get: &ProbeGet) -> ProbeOutcome {
    let Some(tls) = &get.tls else { return exchange(stream, address, get).await };
    let connector = TlsConnector::from(std::sync::Arc::clone(&tls.config));
    match connector.connect(tls.name(address), stream).await {
        Ok(stream) => exchange(stream, address, get).await,
        Err(_) => ProbeOutcome::Tls,
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    address: IpAddr,
    get: &ProbeGet,
) -> ProbeOutcome {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(LONGEST_HEAD);
    let Ok((mut sender, connection)) = builder.handshake(TokioIo::new(stream)).await else {
        return ProbeOutcome::Broken;
    };
    let mut request = http::Request::new(Empty::<io::Cursor<[u8; 0]>>::new());
    *request.method_mut() = Method::GET;
    *request.uri_mut() = get.path.clone();
    let headers = request.headers_mut();
    headers.extend(get.host(address).map(|host| (HOST, host)));
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    match while_driving(sender.send_request(request), connection).await {
        Ok(response) if get.request.expects(response.status().as_u16()) => ProbeOutcome::Success,
        Ok(_) => ProbeOutcome::Status,
        Err(_) => ProbeOutcome::Broken,
    }
}

/// Waits for the result of `wanted`, and polls `driver` meanwhile. If `driver` ends first, goes on
/// to wait for `wanted`.
async fn while_driving<T>(wanted: impl Future<Output = T>, driver: impl Future) -> T {
    match select(pin!(wanted), pin!(driver)).await {
        Either::Left((done, _)) => done,
        Either::Right((_, wanted)) => wanted.await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_the_backends_fault_speaks_against_it() {
        let outcome = |errno: Errno| broken(&errno.into());
        for (errno, expected) in [
            (Errno::CONNREFUSED, ProbeOutcome::Refused),
            (Errno::HOSTUNREACH, ProbeOutcome::Unreachable),
            (Errno::NETUNREACH, ProbeOutcome::Unreachable),
            (Errno::ACCESS, ProbeOutcome::Unreachable),
            (Errno::TIMEDOUT, ProbeOutcome::Timeout),
            (Errno::CONNRESET, ProbeOutcome::Broken),
        ] {
            assert_eq!((outcome(errno), outcome(errno).verdict()), (expected, Some(false)));
        }
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL]
        {
            assert_eq!((outcome(errno), outcome(errno).verdict()), (ProbeOutcome::Error, None));
        }
        assert_eq!(ProbeOutcome::Success.verdict(), Some(true));
    }
}
