//! Owns listeners with TLS on loopback, for the servers that the bed plays.

use std::future::Future;
use std::sync::Arc;

use anyhow::Result;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::pki::Issued;

/// Acceptor for TLS with this certificate and HTTP/1.1.
pub(crate) fn acceptor(issued: &Issued) -> Result<TlsAcceptor> {
    let cert = CertificateDer::from_pem_slice(issued.cert_pem.as_bytes())?;
    let key = PrivateKeyDer::from_pem_slice(issued.key_pem.as_bytes())?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![cert], key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Accepts connections until it is aborted, which also aborts the tasks that serve them.
pub(crate) async fn accept<F>(listener: TcpListener, serve: impl Fn(TcpStream) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // An error here belongs to a client that left before it was accepted.
                let Ok((stream, _)) = accepted else { continue };
                connections.spawn(serve(stream));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}
