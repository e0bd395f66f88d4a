//! Owns the one packet socket of an agent: its ear and its mouth on the network's interface.
//!
//! It is bound to the interface on which the leases' links are, where every frame to any of them
//! passes, so it is one socket whatever the number of leases. Invariants: it is open only while
//! somebody listens; it sends on that interface and on no other; the kernel drops everything but
//! DHCP to clients, and ARP while somebody probes, before this process is woken.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram as Datagrams;

use nix::ifaddrs::getifaddrs;
use rustix::process::{MembarrierCommand, membarrier};
use socket2::{Domain, Protocol, SockFilter, SockRef, Socket, Type};
use tokio::net::UnixDatagram;

use crate::domain::dhcp;

/// `ETH_P_ALL` in the order of the network. Only such a socket sees frames before the kernel hands
/// them to the link that they are for.
const EVERYTHING: i32 = 0x0300;
/// A filter's last word: so many octets of the frame.
const RETURN: u16 = 0x06;
/// Room for a burst of answers; the kernel gives at most what it gives anybody.
const QUEUE: usize = 1 << 20;

/// What passes the filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hearing {
    /// Nothing: there is no socket.
    #[default]
    Nothing,
    /// UDP to port 68.
    Dhcp,
    /// That, and ARP.
    DhcpAndArp,
}

/// The socket, while it is open.
#[derive(Debug)]
pub(super) struct Wire {
    interface: String,
    hearing: Hearing,
    socket: Option<UnixDatagram>,
}

impl Wire {
    /// Opens nothing yet.
    pub(super) fn new(interface: &str) -> Self {
        Self { interface: interface.to_owned(), hearing: Hearing::Nothing, socket: None }
    }

    /// What it listens to.
    pub(super) fn hearing(&self) -> Hearing {
        self.hearing
    }

    /// Listens to this from now on, and to nothing that came before.
    pub(super) fn listen(&mut self, hearing: Hearing) -> io::Result<()> {
        if hearing == self.hearing {
            return Ok(());
        }
        match (&self.socket, hearing) {
            (_, Hearing::Nothing) => self.socket = None,
            (Some(socket), _) => SockRef::from(socket).attach_filter(&filter(hearing))?,
            (None, _) => self.socket = Some(open(&self.interface, hearing)?),
        }
        self.hearing = hearing;
        Ok(())
    }

    /// Closes the socket: its interface is another one now, or gone.
    pub(super) fn close(&mut self) {
        self.socket = None;
        self.hearing = Hearing::Nothing;
    }

    /// Sends a whole frame, or fails at once.
    pub(super) fn send(&self, frame: &[u8]) -> io::Result<()> {
        let socket = self.socket.as_ref().ok_or(ErrorKind::NotConnected)?;
        // Not by way of the runtime: it takes a socket that was opened a moment ago for one that is not
        // ready. A full queue of the interface is as good as a frame lost on the way.
        match SockRef::from(socket).send(frame) {
            Ok(sent) if sent < frame.len() => Err(ErrorKind::WriteZero.into()),
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    /// Waits for frames. Never returns while nobody listens.
    pub(super) async fn ready(&self) -> io::Result<()> {
        match &self.socket {
            Some(socket) => socket.readable().await,
            None => std::future::pending().await,
        }
    }

    /// The next frame that has come, if there is one.
    pub(super) fn take<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        let Some(socket) = &self.socket else { return Ok(None) };
        match socket.try_recv(buffer) {
            Ok(length) => Ok(Some(&buffer[..length])),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whoever has no right to this has no right to lease.
pub(super) fn may_open(interface: &str) -> io::Result<()> {
    open(interface, Hearing::Dhcp).map(drop)
}

fn open(interface: &str, hearing: Hearing) -> io::Result<UnixDatagram> {
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(EVERYTHING)))?;
    // From here to the real filter, frames of any interface get in.
    socket.attach_filter(&[SockFilter::new(RETURN, 0, 0, 0)])?;
    let found = getifaddrs()?.find_map(|one| {
        let address = *one.address?.as_link_addr()?;
        (one.interface_name == interface).then_some(address)
    });
    let address = found.ok_or_else(|| {
        io::Error::new(ErrorKind::NotFound, format!("there is no interface {interface}"))
    })?;
    // An address without a protocol leaves the socket's own.
    nix::sys::socket::bind(socket.as_raw_fd(), &address)?;
    // One that another CPU began to deliver before there was a filter may still be on its way. Once
    // every CPU has passed a barrier, it is in the queue. Where that is not allowed, frames are still
    // told apart by what they say.
    let _ = membarrier(MembarrierCommand::Global);
    socket.set_nonblocking(true)?;
    let _ = socket.set_recv_buffer_size(QUEUE);
    // To this socket's kind it makes no difference: datagrams are sent and received alike.
    let socket = Datagrams::from(OwnedFd::from(socket));
    while socket.recv(&mut [0; 1]).is_ok() {}
    SockRef::from(&socket).attach_filter(&filter(hearing))?;
    UnixDatagram::from_std(socket)
}

/// The client's own program, for all clients, behind a test of the frame's direction: what this
/// machine sends itself is nothing to listen to.
fn filter(hearing: Hearing) -> Vec<SockFilter> {
    const LOAD_BYTE: u16 = 0x30;
    const JUMP_EQUAL: u16 = 0x15;
    /// What the kernel knows of a frame beside its content.
    const DIRECTION: u32 = 0xffff_f000 + 4;
    const OUTGOING: u32 = 4;
    let incoming = [
        SockFilter::new(LOAD_BYTE, 0, 0, DIRECTION),
        SockFilter::new(JUMP_EQUAL, 0, 1, OUTGOING),
        SockFilter::new(RETURN, 0, 0, 0),
    ];
    let rest = dhcp::filter(None, hearing == Hearing::DhcpAndArp);
    let rest = rest.iter().map(|op| SockFilter::new(op.code, op.jt, op.jf, op.k));
    incoming.into_iter().chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// An Ethernet frame with an empty UDP datagram to a DHCP client.
    fn frame(identification: u8) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00, 0x45, 0, 0, 28, 0, identification, 0, 0, 64, 17, 0, 0]);
        frame.extend([127, 0, 0, 1, 127, 0, 0, 1, 0, 67, 0, 68, 0, 8, 0, 0]);
        frame
    }

    /// The first frame is the one that an idle agent sends for a new lease. What another socket sends is
    /// heard once: when it comes, not when it leaves.
    #[tokio::test]
    async fn a_socket_sends_as_soon_as_it_is_open() {
        if may_open("lo").is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
            eprintln!("skipped: no right to open packet sockets (CAP_NET_RAW)");
            return;
        }
        let (mut wire, mut other) = (Wire::new("lo"), Wire::new("lo"));
        other.listen(Hearing::Dhcp).unwrap();
        for _ in 0..3 {
            wire.listen(Hearing::Dhcp).unwrap();
            let sent = [frame(1), frame(2), frame(3)];
            for (from, frame) in [&wire, &other, &other].into_iter().zip(&sent) {
                from.send(frame).unwrap();
            }
            let mut heard = Vec::new();
            let last = async {
                let mut buffer = [0; 64];
                while heard.last() != sent.last() {
                    wire.ready().await.unwrap();
                    let frame = wire.take(&mut buffer).unwrap().unwrap_or_default().to_vec();
                    heard.extend(Some(frame).filter(|frame| sent.contains(frame)));
                }
            };
            tokio::time::timeout(Duration::from_mins(1), last).await.unwrap();
            assert_eq!(heard, sent);
            wire.listen(Hearing::Nothing).unwrap();
        }
    }
}
