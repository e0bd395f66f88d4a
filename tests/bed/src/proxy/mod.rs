//! A TLS proxy in front of the API server that fails on demand.
//!
//! It fails as a network or an overloaded server would: a rule decides the outcome of each call.
//! Invariants: a call is recorded before its rule is applied, in the order of arrival; a call that
//! a rule stops has never reached the server; bodies are streamed both ways, so a watch works;
//! every client's connection has a connection of its own to the server, and ends with it. Protocol
//! upgrades (exec, port-forward) are not supported.

mod call;
mod connection;
mod journal;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

pub use call::Call;
pub(crate) use journal::Journal;
pub use journal::Record;

use crate::bed::Bed;
use crate::listen;
use crate::pki::Authority;
use connection::Shared;

/// Outcome of a call.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// The server gets the call and the client gets the server's answer.
    Pass,
    /// The client gets a `Status` with this code and reason; the server never sees the call.
    Refuse {
        /// The HTTP status.
        code: u16,
        /// The machine-readable reason, such as `Conflict`.
        reason: &'static str,
        /// The message.
        message: String,
    },
    /// The client gets an HTML page with this code, as an ingress without a backend writes it; the
    /// server never sees the call.
    Page(u16),
    /// The client gets this JSON, in which `$AUTHORIZATION` is replaced by the value of its header,
    /// as from a server that repeats its input; the server never sees the call.
    Answer {
        /// The HTTP status.
        code: u16,
        /// The body.
        body: String,
    },
    /// The client's connection is closed; the server never sees the call.
    CutBefore,
    /// The server answers in full, but the client's connection is closed instead of the answer.
    /// A watch is closed once the server has accepted it.
    CutAfter,
    /// The call hangs until the rule is replaced or the proxy is dropped; then the client's
    /// connection is closed. The server never sees the call.
    Hang,
    /// The server gets the call after this time.
    Delay(Duration),
}

/// The proxy. Dropping it closes its port and every connection.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    accept: AbortHandle,
    url: String,
    ca_pem: String,
}

impl Proxy {
    /// Starts a proxy in front of the bed's API server, without a rule.
    pub async fn start(bed: &Bed) -> Result<Self> {
        let authority = Authority::new("testbed-proxy")?;
        let shared = Arc::new(Shared::new(bed.url(), bed.ca_pem())?);
        let acceptor = listen::acceptor(&authority.issue(&[])?)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("bind a port")?;
        let url = format!("https://{}", listener.local_addr()?);
        let of_all = shared.clone();
        let serve = listen::accept(listener, move |stream| {
            connection::client(stream, acceptor.clone(), of_all.clone())
        });
        let accept = tokio::spawn(serve).abort_handle();
        Ok(Self { shared, accept, url, ca_pem: authority.pem() })
    }

    /// The proxy's URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Certificate of the authority that signed the proxy's certificate, in PEM.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Writes a kubeconfig for a service account, with the proxy as its server.
    pub async fn kubeconfig_for_service_account(
        &self,
        bed: &Bed,
        namespace: &str,
        name: &str,
    ) -> Result<PathBuf> {
        let through = Some((self.url(), self.ca_pem()));
        bed.service_account_kubeconfig(namespace, name, through).await
    }

    /// Sets the rule for every call from now on. It is called once for each call, from many
    /// threads, and must not block. Calls that hang under the old rule are cut.
    pub fn set_rule(&self, rule: impl Fn(&Call) -> Verdict + Send + Sync + 'static) {
        self.shared.rule.send_replace(Some(Arc::new(rule)));
    }

    /// Removes the rule, so that every call passes.
    pub fn clear_rule(&self) {
        self.shared.rule.send_replace(None);
    }

    /// Closes every open connection, watches included. New connections are accepted.
    pub fn cut_all(&self) {
        self.shared.cut.send_replace(());
    }

    /// Freezes every open connection, watches included: no byte passes in either direction, and the
    /// connection does not end. This is like a server that loses its power, except that the kernel
    /// still acknowledges received data. New connections are accepted.
    pub fn freeze_all(&self) {
        self.shared.freeze.send_replace(());
    }

    /// Records of all calls other than watches, in the order received.
    pub fn calls(&self) -> Vec<Record> {
        self.shared.journal.select(|call| !call.is_watch())
    }

    /// Records of all watches, in the order received.
    pub fn watches(&self) -> Vec<Record> {
        self.shared.journal.select(Call::is_watch)
    }

    /// Number of writing calls that `of_interest` selects, whatever their outcome.
    pub fn writes(&self, of_interest: impl Fn(&Call) -> bool) -> usize {
        self.shared.journal.count(|call| call.is_write() && of_interest(call))
    }

    /// Removes the records so far. The rule stays.
    pub fn reset(&self) {
        self.shared.journal.clear();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The connections' tasks belong to this task and end with it.
        self.accept.abort();
    }
}

/// Error page of an ingress, as ingress-nginx ships it.
pub(crate) fn html(code: u16) -> String {
    let title = match code {
        404 => "404 Not Found",
        502 => "502 Bad Gateway",
        503 => "503 Service Temporarily Unavailable",
        _ => "504 Gateway Time-out",
    };
    format!(
        "<html>\r\n<head><title>{title}</title></head>\r\n<body>\r\n<center><h1>{title}</h1></center>\r\n\
         <hr><center>nginx</center>\r\n</body>\r\n</html>\r\n"
    )
}
