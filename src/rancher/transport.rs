//! The transport of one call: a connection of its own, a request, an answer, and the close.
//!
//! Invariants:
//!
//! * A call uses HTTPS only, and does not follow a redirect.
//! * A token is sent only to a server whose certificate was verified. The trusted authorities are
//!   either exactly the given ones, or exactly the system's.
//! * An answer's body of more than [`LONGEST_BODY`] is an error.
//! * Connecting and the whole call have deadlines.
//! * A call is sent once and never repeated.
//! * A call is over, and its connection is closed, when its future ends or is dropped.
//! * An error contains no data that may hold a token. Data that may hold a token is wiped from
//!   memory, except the copies that libraries make.
//!
//! This module uses hyper and not `kube::Client`, because `kube::Client` and hyper-util's client
//! run background tasks. These tasks may outlive the future of a call. Here this future contains
//! the connection, and no task runs in the background.

use std::fmt;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use chrono::DateTime;
use futures::future::{Either, select};
use http::header::{ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_TYPE, DATE, HOST, USER_AGENT};
use http::{HeaderValue, Method, Request, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use zeroize::Zeroizing;

use super::error::{RancherCall, RancherError, safe, unconnected};
use crate::domain::credentials::secret_text::SecretText;
use crate::tls;

const CONNECT: Duration = Duration::from_secs(8);
/// Time limit for a call, including the time to connect. The limit is so long that a short freeze
/// of the machine does not end a call.
const WHOLE: Duration = Duration::from_secs(25);
/// Maximum length of an answer's body, in bytes. A list of thousands of tokens fits.
const LONGEST_BODY: usize = 8 << 20;
const LONGEST_HEAD: usize = 64 * 1024;
const AGENT: &str = concat!("harvester-guest-operator/", env!("CARGO_PKG_VERSION"));

/// Client of one server: a Rancher, a cluster behind it, or an API server. Cheap to clone.
#[derive(Clone)]
pub struct ServerClient {
    host: String,
    port: u16,
    /// Prefix that is put before the path of every call to this server, without a slash at its end.
    /// Empty if there is no prefix.
    prefix: String,
    authority: HeaderValue,
    name: ServerName<'static>,
    tls: Arc<ClientConfig>,
}

impl fmt::Debug for ServerClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Server")
    }
}

/// A request.
struct WireRequest<'a> {
    method: Method,
    /// Path and query.
    path: &'a str,
    token: &'a str,
    /// Content type and body.
    body: Option<(&'static str, Zeroizing<Vec<u8>>)>,
}

/// A successful answer.
pub(super) struct WireAnswer {
    /// The call that was answered.
    pub(super) call: RancherCall,
    /// Date by the server's clock, in seconds since the epoch. `None`: the server did not send one.
    pub(super) date: Option<i64>,
    pub(super) body: Zeroizing<Vec<u8>>,
}

impl WireAnswer {
    /// Error for an answer that does not have the expected format. `why` must hold no text of the
    /// answer.
    pub(super) fn unreadable(&self, why: impl Into<String>) -> RancherError {
        RancherError::Unreadable(self.call.clone(), why.into())
    }
}

impl ServerClient {
    /// Client for the server at a URL. `authorities`: certificate authorities that may have signed
    /// the server's certificate, in PEM. `None`: the authorities that the system trusts. `name`:
    /// the name in the server's certificate. `None`: the URL's host. `Err`: why the URL, the
    /// authorities or the name cannot be used.
    pub fn new(url: &str, authorities: Option<&str>, name: Option<&str>) -> Result<Self, String> {
        let tls = if let Some(pem) = authorities {
            tls::trusting(pem)
        } else {
            let right = "give the certificate authority of the server";
            tls::trusting_system().map_err(|why| format!("{why}: {right}"))
        };
        Self::with(url, tls?, name)
    }

    /// Client for a cluster behind this server, at the URL that a kubeconfig names. A URL on
    /// another server is an error, because the other server would get the token. A URL without a
    /// path is an error too, because it leads to no cluster. `authorities` and `name`: as for
    /// [`Self::new`].
    pub fn cluster(
        &self,
        url: &str,
        authorities: Option<&str>,
        name: Option<&str>,
    ) -> Result<Self, String> {
        let there = Self::new(url, authorities, name)?;
        if !there.is_at(self) {
            return Err("the server in the kubeconfig is not this Rancher".to_owned());
        }
        if there.prefix.is_empty() {
            let right = "a cluster behind this Rancher: https://RANCHER/k8s/clusters/ID";
            return Err(format!("the server in the kubeconfig must be {right}"));
        }
        Ok(there)
    }

    /// Client for the cluster with the Rancher ID `id`, behind this server.
    pub(super) fn behind(&self, id: &str) -> Self {
        Self { prefix: format!("{}/k8s/clusters/{id}", self.prefix), ..self.clone() }
    }

    fn with(url: &str, tls: ClientConfig, name: Option<&str>) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|e| format!("{e}"))?;
        if uri.scheme_str() != Some("https") {
            return Err("must begin with https://".to_owned());
        }
        let authority = uri.authority().map(http::uri::Authority::as_str).unwrap_or_default();
        if authority.contains('@') || uri.query().is_some() {
            return Err("must have neither a user nor a query".to_owned());
        }
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(name.unwrap_or(&host).to_owned())
            .map_err(|_| format!("the host {host:?} must be a DNS name or an IP address"))?;
        Ok(Self {
            port: uri.port_u16().unwrap_or(443),
            prefix: uri.path().trim_end_matches('/').to_owned(),
            authority: HeaderValue::try_from(authority).map_err(|e| e.to_string())?,
            host,
            name,
            tls: Arc::new(tls),
        })
    }

    /// Whether both servers have the same host and port. The prefixes may differ.
    fn is_at(&self, other: &Self) -> bool {
        self.port == other.port && self.host.eq_ignore_ascii_case(&other.host)
    }

    /// Name, for errors, of a call to this server with this method and this path.
    pub(super) fn name_call(&self, method: &Method, path: &str) -> RancherCall {
        RancherCall::new(method, &format!("{}{path}", self.prefix))
    }

    /// Sends a request with a token, and reads the answer. `body`: content type and body.
    pub(super) async fn send(
        &self,
        token: &SecretText,
        method: Method,
        path: &str,
        body: Option<(&'static str, Zeroizing<Vec<u8>>)>,
    ) -> Result<WireAnswer, RancherError> {
        let token = token.reveal();
        // No request with an empty token is sent, because the server would treat the request as
        // anonymous.
        if token.is_empty() {
            return Err(RancherError::Unauthorized(self.name_call(&method, path)));
        }
        self.within(WireRequest { method, path, token, body }).await
    }

    async fn within(&self, ask: WireRequest<'_>) -> Result<WireAnswer, RancherError> {
        let call = self.name_call(&ask.method, ask.path);
        let answer = timeout(WHOLE, self.attempt(ask, &call)).await;
        answer.unwrap_or_else(|_| {
            Err(RancherError::Silent(call, format!("not within {} s", WHOLE.as_secs())))
        })
    }

    async fn attempt(
        &self,
        ask: WireRequest<'_>,
        call: &RancherCall,
    ) -> Result<WireAnswer, RancherError> {
        let broken = |error: hyper::Error| broken(call, &error);
        let request = self.request(ask, call)?;
        let connect = async {
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
            stream.set_nodelay(true)?;
            TlsConnector::from(Arc::clone(&self.tls)).connect(self.name.clone(), stream).await
        };
        let stream = timeout(CONNECT, connect)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|e| RancherError::Silent(call.clone(), unconnected(&e)))?;
        let mut builder = http1::Builder::new();
        builder.max_buf_size(LONGEST_HEAD);
        let (mut sender, connection) =
            builder.handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(broken)?;
            let (head, body) = response.into_parts();
            let date = head.headers.get(DATE).and_then(seconds);
            let body = read(body, call).await?;
            if head.status.is_success() {
                Ok(WireAnswer { call: call.clone(), date, body })
            } else {
                Err(RancherError::of(call.clone(), head.status.as_u16(), &body))
            }
        };
        match select(pin!(exchange), pin!(connection)).await {
            Either::Left((answer, _)) => answer,
            // The connection has ended, but an answer that arrived before must still be read.
            Either::Right((_, exchange)) => exchange.await,
        }
    }

    fn request(
        &self,
        ask: WireRequest<'_>,
        call: &RancherCall,
    ) -> Result<Request<Full<Bytes>>, RancherError> {
        let odd = |_| RancherError::Unauthorized(call.clone());
        let mut bearer =
            HeaderValue::try_from(Zeroizing::new(format!("Bearer {}", ask.token)).as_str())
                .map_err(odd)?;
        bearer.set_sensitive(true);
        let path = format!("{}{}", self.prefix, ask.path);
        let uri: Uri = path.parse().map_err(|_| RancherError::Refused {
            call: call.clone(),
            status: 0,
            message: "the path of the request is not valid".to_owned(),
        })?;
        let mut request = Request::new(Full::default());
        *request.method_mut() = ask.method;
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        headers.insert(HOST, self.authority.clone());
        if !ask.token.is_empty() {
            headers.insert(AUTHORIZATION, bearer);
        }
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        if let Some((kind, body)) = ask.body {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
            *request.body_mut() = Full::new(Bytes::from_owner(body));
        }
        Ok(request)
    }
}

/// Reads a text from a Rancher by a request without a token. The server's certificate is not
/// verified, so the caller must check the text. `url`: URL of the Rancher. `path`: path of the
/// text.
pub async fn shown(url: &str, path: &str) -> Result<String, RancherError> {
    let call = RancherCall::new(&Method::GET, path);
    let unfit = |message| RancherError::Refused { call: call.clone(), status: 0, message };
    let there = ServerClient::with(url, tls::unverified().map_err(unfit)?, None).map_err(unfit)?;
    let ask = WireRequest { method: Method::GET, path, token: "", body: None };
    let answer = there.within(ask).await?;
    let text = std::str::from_utf8(&answer.body);
    text.map(str::to_owned).map_err(|_| answer.unreadable("it is not text in UTF-8"))
}

async fn read(mut body: Incoming, call: &RancherCall) -> Result<Zeroizing<Vec<u8>>, RancherError> {
    // The buffer has room for most answers from the start, because a buffer that grows leaves
    // copies in memory.
    let mut all = Zeroizing::new(Vec::with_capacity(32 * 1024));
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| broken(call, &error))?;
        let Some(data) = frame.data_ref() else { continue };
        if all.len() + data.len() > LONGEST_BODY {
            let why = format!("it is longer than {LONGEST_BODY} bytes");
            return Err(RancherError::Unreadable(call.clone(), why));
        }
        all.extend_from_slice(data);
    }
    Ok(all)
}

fn broken(call: &RancherCall, error: &hyper::Error) -> RancherError {
    RancherError::Silent(call.clone(), safe(&error.to_string()))
}

fn seconds(date: &HeaderValue) -> Option<i64> {
    DateTime::parse_from_rfc2822(date.to_str().ok()?).ok().map(|date| date.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(url: &str) -> Result<ServerClient, String> {
        let authority = rcgen::generate_simple_self_signed(["x".to_owned()]).unwrap();
        ServerClient::new(url, Some(&authority.cert.pem()), None)
    }

    #[test]
    fn a_url_leads_to_one_server_over_https() {
        for (url, host, port, prefix) in [
            ("https://rancher.example.com", "rancher.example.com", 443, ""),
            ("https://Rancher:8443/", "Rancher", 8443, ""),
            (
                "https://[2001:db8::1]:444/k8s/clusters/c-m-x/",
                "2001:db8::1",
                444,
                "/k8s/clusters/c-m-x",
            ),
        ] {
            let found = endpoint(url).unwrap();
            let parts = (found.host.as_str(), found.port, found.prefix.as_str());
            assert_eq!(parts, (host, port, prefix));
        }
        for url in [
            "http://rancher",
            "rancher",
            "https://a:b@rancher",
            "https://rancher?x=y",
            "https://",
            "https:///x",
            "",
            "https://a b",
        ] {
            assert!(endpoint(url).is_err(), "{url}");
        }
        assert!(endpoint("https://A:443/x").unwrap().is_at(&endpoint("https://a").unwrap()));
        assert!(!endpoint("https://a:444").unwrap().is_at(&endpoint("https://a").unwrap()));
        assert!(ServerClient::new("https://a", Some("nothing"), None).is_err());
    }

    #[test]
    fn the_servers_time_is_read() {
        let date = HeaderValue::from_static("Fri, 15 Jan 2027 08:00:00 GMT");
        assert_eq!(seconds(&date), Some(1_800_000_000));
        assert_eq!(seconds(&HeaderValue::from_static("yesterday")), None);
    }

    #[tokio::test]
    async fn without_a_token_nothing_is_sent() {
        let closed = endpoint("https://127.0.0.1:1").unwrap();
        for token in ["", "a\nb"] {
            let token = SecretText::new(token.to_owned());
            let sent = closed.send(&token, Method::GET, "/", None).await;
            let call = RancherCall::new(&Method::GET, "/");
            assert_eq!(sent.err(), Some(RancherError::Unauthorized(call)));
        }
    }
}
