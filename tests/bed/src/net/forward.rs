//! Owns ways out of a namespace: a server of the process's network, reachable on the loopback of a
//! namespace.

use std::net::{SocketAddr, TcpListener as StdListener};

use anyhow::Result;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinSet};

use super::Netns;

/// Forwards connections to the same address in the network of the process. Dropping it ends it, and
/// its connections.
#[derive(Debug)]
pub struct Forward {
    task: AbortHandle,
}

impl Forward {
    /// Forwards from a namespace, for a caller in the network of the process.
    pub async fn from(inside: &Netns, address: SocketAddr) -> Result<Self> {
        let listener = inside.run(move || Ok(StdListener::bind(address)?)).await?;
        Self::of(listener, &Handle::current())
    }

    /// Forwards from a listener by tasks of a runtime in the network of the process. The listener
    /// belongs to the network in which it was made, whichever thread accepts on it.
    pub(crate) fn of(listener: StdListener, process: &Handle) -> Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self { task: process.spawn(forward(listener)).abort_handle() })
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(listener: StdListener) -> Result<()> {
    let address = listener.local_addr()?;
    let listener = TcpListener::from_std(listener)?;
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (mut here, _) = accepted?;
                open.spawn(async move {
                    let mut there = TcpStream::connect(address).await?;
                    copy_bidirectional(&mut here, &mut there).await
                });
            }
            Some(_) = open.join_next() => {}
        }
    }
}
