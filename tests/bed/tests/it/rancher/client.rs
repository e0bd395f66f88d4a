//! A client that sends one request and returns the whole answer.

use std::sync::Arc;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use testbed::Rancher;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Answer to a request.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: hyper::HeaderMap,
    pub text: String,
    pub body: Value,
}

/// Sends one request on a connection of its own. Without a token it sends no header.
pub async fn send(
    rancher: &Rancher,
    token: Option<&str>,
    line: &str,
    body: &str,
) -> anyhow::Result<Answer> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(rancher.ca_pem().as_bytes())?)?;
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let address = rancher.url().strip_prefix("https://").unwrap();
    let stream = TcpStream::connect(address).await?;
    let connector = TlsConnector::from(Arc::new(config));
    let stream = connector.connect(ServerName::try_from("127.0.0.1")?, stream).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let (method, path) = line.split_once(' ').unwrap();
    let mut request = hyper::Request::builder().method(method).uri(path).header("Host", address);
    if let Some(token) = token {
        request = request.header("Authorization", format!("Bearer {token}"));
    }
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    request = request.header("Content-Type", kind);
    let response =
        sender.send_request(request.body(Full::new(Bytes::from(body.to_owned())))?).await?;
    let (head, body) = response.into_parts();
    let text = String::from_utf8(body.collect().await?.to_bytes().to_vec())?;
    let body = serde_json::from_str(&text).unwrap_or_default();
    Ok(Answer { status: head.status.as_u16(), headers: head.headers, text, body })
}

/// Sends one request to a server that must answer.
pub async fn ask(rancher: &Rancher, token: &str, line: &str, body: &str) -> Answer {
    send(rancher, Some(token), line, body).await.unwrap()
}
