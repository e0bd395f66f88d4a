//! A TLS proxy in front of the API server that fails on demand.
//!
//! It stands where a network or an overloaded server would fail: a rule looks at each call and
//! decides what becomes of it. Invariants: a call is recorded before its rule is asked, in the
//! order of arrival; what a rule keeps from the server has never reached it; bodies are streamed
//! both ways, so a watch works; every client's connection has a connection of its own to the
//! server, and ends with it. Protocol upgrades (exec, port-forward) are not supported.

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

/// What becomes of a call.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// The server gets it and the client gets the server's answer.
    Pass,
    /// The client gets a `Status` with this code and reason; the server never sees the call.
    Refuse {
        /// The HTTP status.
        code: u16,
        /// The machine-readable reason, such as `Conflict`.
        reason: &'static str,
        /// The text for people.
        message: String,
    },
    /// The client gets a page in HTML with this code, as an ingress writes it whose backend is gone; the
    /// server never sees the call.
    Page(u16),
    /// The client gets this JSON, in which `$AUTHORIZATION` stands for what it sent as that header, as from a
    /// server that repeats what it was sent; the server never sees the call.
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
    /// Nothing happens until the rule is replaced or the proxy is dropped; then the client's
    /// connection is closed. The server never sees the call.
    Hang,
    /// The server gets it after this time.
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

    /// The certificate of the authority that signed the proxy's own.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// A kubeconfig with which a service account goes through the proxy.
    pub async fn kubeconfig_for_service_account(
        &self,
        bed: &Bed,
        namespace: &str,
        name: &str,
    ) -> Result<PathBuf> {
        let through = Some((self.url(), self.ca_pem()));
        bed.service_account_kubeconfig(namespace, name, through).await
    }

    /// Sets the rule for every call from now on. It is asked once for each call, from many
    /// threads, and must not block. Calls that hang under the old rule are cut.
    pub fn set_rule(&self, rule: impl Fn(&Call) -> Verdict + Send + Sync + 'static) {
        self.shared.rule.send_replace(Some(Arc::new(rule)));
    }

    /// Lets every call pass again.
    pub fn clear_rule(&self) {
        self.shared.rule.send_replace(None);
    }

    /// Closes every open connection, watches included. New connections are welcome.
    pub fn cut_all(&self) {
        self.shared.cut.send_replace(());
    }

    /// Lets every open connection fall silent, watches included: nothing more comes out of it, in
    /// either direction, and it does not end. As when a server loses its power, but for the kernel,
    /// which goes on saying that it has received what is sent. New connections are welcome.
    pub fn freeze_all(&self) {
        self.shared.freeze.send_replace(());
    }

    /// Every call other than a watch, in the order received.
    pub fn calls(&self) -> Vec<Record> {
        self.shared.journal.select(|call| !call.is_watch())
    }

    /// Every watch, in the order received.
    pub fn watches(&self) -> Vec<Record> {
        self.shared.journal.select(Call::is_watch)
    }

    /// How many writing calls there were of which `of_interest` is true, whatever became of them.
    pub fn writes(&self, of_interest: impl Fn(&Call) -> bool) -> usize {
        self.shared.journal.count(|call| call.is_write() && of_interest(call))
    }

    /// Forgets the calls recorded so far. The rule stays.
    pub fn reset(&self) {
        self.shared.journal.clear();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The connections' tasks belong to this one and end with it.
        self.accept.abort();
    }
}

/// An ingress's own page: of nginx, as ingress-nginx ships it.
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
