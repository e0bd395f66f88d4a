//! A client of admission that is not the API server.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use testbed::Issued;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_rustls::{TlsConnector, rustls};

/// Opens a connection that trusts a bundle, with a client certificate if one is given.
pub(crate) async fn connect(
    address: SocketAddr,
    bundle: &str,
    shown: Option<&Issued>,
) -> Result<TlsStream<TcpStream>> {
    greet(TcpStream::connect(address).await?, bundle, shown).await
}

/// Makes the TLS handshake on a connection.
pub(crate) async fn greet(
    stream: TcpStream,
    bundle: &str,
    shown: Option<&Issued>,
) -> Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate?)?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let config = match shown {
        None => builder.with_no_client_auth(),
        Some(shown) => builder.with_client_auth_cert(
            vec![CertificateDer::from_pem_slice(shown.cert_pem.as_bytes())?],
            PrivateKeyDer::from_pem_slice(shown.key_pem.as_bytes())?,
        )?,
    };
    // As the API server's connections: without it a body waits until the head is acknowledged, 40
    // ms.
    stream.set_nodelay(true)?;
    let name = ServerName::try_from("127.0.0.1")?;
    Ok(TlsConnector::from(Arc::new(config)).connect(name, stream).await?)
}

/// Posts a body. Returns status code, whether the connection stays open, and the answer.
pub(crate) async fn post(
    stream: &mut TlsStream<TcpStream>,
    path: &str,
    body: &[u8],
) -> Result<(u16, bool, String)> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: admission\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    // A server that refuses a body need not read all of it. TLS holds the last 64 KiB until it is
    // flushed.
    let _ = async {
        stream.write_all(body).await?;
        stream.flush().await
    }
    .await;
    let mut said = Vec::new();
    let end = loop {
        let read = stream.read_buf(&mut said).await?;
        anyhow::ensure!(read > 0, "ended after {:?}", String::from_utf8_lossy(&said));
        if let Some(end) = said.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
    };
    let mut body = said.split_off(end + 4);
    let head = String::from_utf8(said)?.to_lowercase();
    let length = head.split("content-length: ").nth(1).and_then(|l| l.lines().next());
    let length: usize = length.context("no length")?.trim().parse()?;
    let so_far = body.len();
    body.resize(length, 0);
    stream.read_exact(body.get_mut(so_far..).context("more than its length")?).await?;
    let code = head.split(' ').nth(1).context("no status")?.parse()?;
    Ok((code, !head.contains("connection: close"), String::from_utf8(body)?))
}
