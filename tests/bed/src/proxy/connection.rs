//! Owns the connections: from a client to the proxy, and for each of them one to the server.

use std::fmt;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self as client, SendRequest};
use hyper::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE};
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::sync::{Mutex, watch};
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::journal::{Entry, Journal};
use super::{Call, Verdict};

type Rule = Arc<dyn Fn(&Call) -> Verdict + Send + Sync>;
type Body = Either<Incoming, Full<Bytes>>;

/// State shared by all connections.
pub(super) struct Shared {
    /// Address of the server, as `host:port`.
    upstream: String,
    connector: TlsConnector,
    pub(super) rule: watch::Sender<Option<Rule>>,
    pub(super) cut: watch::Sender<()>,
    pub(super) freeze: watch::Sender<()>,
    pub(super) journal: Journal,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("upstream", &self.upstream).finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn new(url: &str, ca_pem: &str) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca_pem.as_bytes())?)?;
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            upstream: url.strip_prefix("https://").context("not an https URL")?.to_owned(),
            connector: TlsConnector::from(Arc::new(config)),
            rule: watch::channel(None).0,
            cut: watch::channel(()).0,
            freeze: watch::channel(()).0,
            journal: Journal::default(),
        })
    }
}

/// Serves one client.
pub(super) async fn client(stream: TcpStream, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    let (mut cut, mut freeze) = (shared.cut.subscribe(), shared.freeze.subscribe());
    let _ = stream.set_nodelay(true);
    let serve = async {
        let Ok(stream) = acceptor.accept(stream).await else { return };
        // HTTP/1.1 allows one call at a time, so the lock is always free.
        let upstream = Mutex::new(None);
        let service = service_fn(|request| handle(request, &shared, &upstream));
        // An error comes from the client or from a requested cut.
        let _ = server::Builder::new()
            .timer(TokioTimer::new())
            .serve_connection(TokioIo::new(stream), service)
            .await;
    };
    let mut serve = std::pin::pin!(serve);
    tokio::select! {
        () = &mut serve => {}
        _ = cut.changed() => {}
        // No task serves the connection any more, and it stays open.
        _ = freeze.changed() => drop(cut.changed().await),
    }
}

/// Answers a call, or fails, which closes the client's connection without an answer.
async fn handle(
    request: Request<Incoming>,
    shared: &Shared,
    upstream: &Mutex<Option<SendRequest<Incoming>>>,
) -> Result<Response<Body>> {
    let call = Call::of(&request);
    let entry = shared.journal.add(call.clone());
    let mut rules = shared.rule.subscribe();
    let rule = rules.borrow_and_update().clone();
    let verdict = rule.map_or(Verdict::Pass, |rule| rule(&call));
    match verdict {
        Verdict::Pass => {}
        Verdict::Delay(time) => tokio::time::sleep(time).await,
        Verdict::Refuse { code, reason, message } => {
            // An unread body would cost the client its connection.
            request.into_body().collect().await?;
            let response = refusal(code, reason, &message)?;
            shared.journal.answered(entry, code);
            return Ok(response);
        }
        Verdict::Page(code) => {
            request.into_body().collect().await?;
            shared.journal.answered(entry, code);
            return page(code);
        }
        Verdict::Answer { code, body } => {
            let authorization = request
                .headers()
                .get(AUTHORIZATION)
                .and_then(|authorization| authorization.to_str().ok());
            let body = body.replace("$AUTHORIZATION", authorization.unwrap_or_default());
            request.into_body().collect().await?;
            shared.journal.answered(entry, code);
            return answer(code, body);
        }
        Verdict::CutBefore => bail!("cut before the server"),
        Verdict::CutAfter => {
            let response = forward(request, shared, upstream, entry).await?;
            if !call.is_watch() {
                response.into_body().collect().await?;
            }
            bail!("cut after the server");
        }
        Verdict::Hang => {
            let _ = rules.changed().await;
            bail!("cut after hanging");
        }
    }
    Ok(forward(request, shared, upstream, entry).await?.map(Either::Left))
}

async fn forward(
    request: Request<Incoming>,
    shared: &Shared,
    upstream: &Mutex<Option<SendRequest<Incoming>>>,
    entry: Entry,
) -> Result<Response<Incoming>> {
    let mut held = upstream.lock().await;
    let mut request = request;
    // The header `Connection` of the client does not apply to the connection to the server.
    request.headers_mut().remove(CONNECTION);
    shared.journal.forwarded(entry);
    let mut response = loop {
        let mut sender = match held.take() {
            Some(sender) if !sender.is_closed() => sender,
            _ => connect(shared).await?,
        };
        sender.ready().await?;
        match sender.try_send_request(request).await {
            Ok(response) => {
                *held = Some(sender);
                break response;
            }
            // The server closed the idle connection just now: nothing was sent, so try again.
            Err(mut failed) => match failed.take_message() {
                Some(unsent) => request = unsent,
                None => return Err(failed.into_error().into()),
            },
        }
    };
    shared.journal.answered(entry, response.status().as_u16());
    response.headers_mut().remove(CONNECTION);
    Ok(response)
}

async fn connect(shared: &Shared) -> Result<SendRequest<Incoming>> {
    let (host, _) = shared.upstream.rsplit_once(':').context("the server has no port")?;
    let name = ServerName::try_from(host.to_owned())?;
    let stream = TcpStream::connect(&shared.upstream).await.context("reach the server")?;
    stream.set_nodelay(true)?;
    let stream = shared.connector.connect(name, stream).await.context("TLS with the server")?;
    let (sender, connection) = client::handshake(TokioIo::new(stream)).await?;
    // The task ends when its sender and the last answer's body are gone.
    tokio::spawn(connection);
    Ok(sender)
}

fn page(code: u16) -> Result<Response<Body>> {
    Response::builder()
        .status(code)
        .header(CONTENT_TYPE, "text/html")
        .body(Either::Right(Full::new(Bytes::from(super::html(code)))))
        .with_context(|| format!("a page with code {code}"))
}

fn refusal(code: u16, reason: &str, message: &str) -> Result<Response<Body>> {
    let status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    });
    answer(code, status.to_string())
}

fn answer(code: u16, body: String) -> Result<Response<Body>> {
    Response::builder()
        .status(code)
        .header(CONTENT_TYPE, "application/json")
        .body(Either::Right(Full::new(Bytes::from(body))))
        .with_context(|| format!("answer with code {code}"))
}
