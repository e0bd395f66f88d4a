//! A conversion webhook of the test's own: it gives the operator's answers on a port of the test,
//! which decides when it runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use harvester_guest_operator::http::conversion;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use k8s_openapi::ByteString;
use testbed::Authority;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto::aws_lc_rs};

/// A webhook that answers until it is dropped.
pub(super) struct Converter {
    pub(super) url: String,
    pub(super) bundle: ByteString,
    /// Number of reviews so far.
    pub(super) asked: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Converter {
    pub(super) async fn start() -> Result<Self> {
        let authority = Authority::new("converter")?;
        let issued = authority.issue(&[])?;
        let chain = vec![CertificateDer::from_pem_slice(issued.cert_pem.as_bytes())?];
        let key = PrivateKeyDer::from_pem_slice(issued.key_pem.as_bytes())?;
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("https://{}/v1/webhook/conversion", listener.local_addr()?);
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, count) = (acceptor.clone(), count.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let answer = service_fn(move |request| answer(request, count.clone()));
                    let connection = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), answer);
                    let _ = connection.await;
                });
            }
        });
        Ok(Self { url, bundle: ByteString(authority.pem().into_bytes()), asked, task })
    }
}

impl Drop for Converter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(
    request: Request<Incoming>,
    count: Arc<AtomicUsize>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    count.fetch_add(1, Ordering::Relaxed);
    let (status, text) = match conversion::review(&body) {
        Ok(answer) => (StatusCode::OK, answer.text),
        Err(why) => (StatusCode::BAD_REQUEST, why.into_bytes()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    Ok(response)
}
