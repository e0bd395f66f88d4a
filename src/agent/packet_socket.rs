//! Owns the one packet socket of an agent. The socket is bound to the interface that carries the
//! links of all leases. Every frame to one of these links passes through this interface.
//!
//! Invariants:
//!
//! * The socket is open only while a client waits for an answer or the agent sends a frame, and for
//!   a short time after that.
//! * The socket sends only on the interface to which it is bound.
//! * The socket receives only DHCP messages of clients and servers. While a client waits for an
//!   answer to an ARP question, and for a short time after that, the socket also receives ARP. The
//!   kernel drops all other frames, so they do not wake this process.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram as Datagrams;

use nix::ifaddrs::getifaddrs;
use rustix::process::{MembarrierCommand, membarrier};
use socket2::{Domain, Protocol, SockFilter, SockRef, Socket, Type};
use tokio::net::UnixDatagram;

use crate::domain::dhcp::{self, FrameFilter};

/// `ETH_P_ALL` in network byte order. The kernel hands a frame to the sockets of this protocol
/// first, before any macvlan on the interface could take the frame.
const EVERYTHING: i32 = 0x0300;
/// Requested size of the receive buffer in octets, so that a burst of answers fits. A size above
/// the kernel's limit `net.core.rmem_max` is reduced to this limit.
const QUEUE: usize = 1 << 20;

/// Packet socket that can be closed and opened again.
#[derive(Debug)]
pub(super) struct PacketSocket {
    interface: String,
    accepted: FrameFilter,
    socket: Option<UnixDatagram>,
}

impl PacketSocket {
    /// Creates a packet socket that is not open.
    pub(super) fn new(interface: &str) -> Self {
        Self { interface: interface.to_owned(), accepted: FrameFilter::Nothing, socket: None }
    }

    /// Frames that the socket accepts at present. [`FrameFilter::Nothing`]: the socket is closed.
    pub(super) fn accepted(&self) -> FrameFilter {
        self.accepted
    }

    /// Sets the frames that the socket accepts. [`FrameFilter::Nothing`] closes the socket. Any
    /// other filter opens the socket if it is closed. Frames that arrived before the opening are
    /// discarded, with one exception that a comment in [`open`] names.
    pub(super) fn set_filter(&mut self, accepted: FrameFilter) -> io::Result<()> {
        if accepted == self.accepted {
            return Ok(());
        }
        match (&self.socket, accepted) {
            (_, FrameFilter::Nothing) => self.socket = None,
            (Some(socket), _) => SockRef::from(socket).attach_filter(&filter(accepted))?,
            (None, _) => self.socket = Some(open(&self.interface, accepted)?),
        }
        self.accepted = accepted;
        Ok(())
    }

    /// Closes the socket, for example because its interface was replaced or removed.
    pub(super) fn close(&mut self) {
        self.socket = None;
        self.accepted = FrameFilter::Nothing;
    }

    /// Sends a frame at once. `Err`: the socket is closed, or has not sent the whole frame. A full
    /// queue of the interface is no error, although the frame is lost.
    pub(super) fn send(&self, frame: &[u8]) -> io::Result<()> {
        let socket = self.socket.as_ref().ok_or(ErrorKind::NotConnected)?;
        // The call bypasses tokio, because tokio treats a new socket as not ready. If the
        // interface's queue is full, the frame counts as lost in the network.
        match SockRef::from(socket).send(frame) {
            Ok(sent) if sent < frame.len() => Err(ErrorKind::WriteZero.into()),
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    /// Waits until a frame can be received. Never returns while the socket is closed.
    pub(super) async fn ready(&self) -> io::Result<()> {
        match &self.socket {
            Some(socket) => socket.readable().await,
            None => std::future::pending().await,
        }
    }

    /// Receives the next frame. `None`: no frame is waiting, or the socket is closed.
    pub(super) fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        let Some(socket) = &self.socket else { return Ok(None) };
        match socket.try_recv(buffer) {
            Ok(length) => Ok(Some(&buffer[..length])),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Checks that this process may open a packet socket on the interface. An agent cannot lease an
/// address without such a socket. `Err`: the process may not open one, or the interface does not
/// exist.
pub fn may_open(interface: &str) -> io::Result<()> {
    open(interface, FrameFilter::Dhcp).map(drop)
}

fn open(interface: &str, accepted: FrameFilter) -> io::Result<UnixDatagram> {
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(EVERYTHING)))?;
    // The socket drops all frames until the real filter is attached. Before the socket is bound,
    // frames of all interfaces arrive.
    socket.attach_filter(&filter(FrameFilter::Nothing))?;
    let found = getifaddrs()?.find_map(|one| {
        let address = *one.address?.as_link_addr()?;
        (one.interface_name == interface).then_some(address)
    });
    let address = found.ok_or_else(|| {
        io::Error::new(ErrorKind::NotFound, format!("the interface {interface} does not exist"))
    })?;
    // The address names no protocol, so the socket keeps its protocol from `Socket::new`.
    nix::sys::socket::bind(socket.as_raw_fd(), &address)?;
    // Another CPU may still deliver a frame that arrived before the drop-all filter was attached.
    // After each CPU has passed a barrier, such a frame is in the queue, and the loop below
    // discards it. If the barrier is not permitted, the frame may be received later. This does no
    // harm, because the content of the frame names its client.
    let _ = membarrier(MembarrierCommand::Global);
    socket.set_nonblocking(true)?;
    let _ = socket.set_recv_buffer_size(QUEUE);
    // Any Rust type for datagrams can hold the socket: a packet socket sends and receives them like
    // a Unix socket.
    let socket = Datagrams::from(OwnedFd::from(socket));
    while socket.recv(&mut [0; 1]).is_ok() {}
    SockRef::from(&socket).attach_filter(&filter(accepted))?;
    UnixDatagram::from_std(socket)
}

/// Filter program of the socket.
fn filter(accepted: FrameFilter) -> Vec<SockFilter> {
    let program = dhcp::filter(accepted);
    program.iter().map(|op| SockFilter::new(op.code, op.jt, op.jf, op.k)).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Ethernet frame with an empty UDP datagram for a DHCP client. `identification`: number in the
    /// IP header that is different in each frame of a test.
    fn frame(identification: u8) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00, 0x45, 0, 0, 28, 0, identification, 0, 0, 64, 17, 0, 0]);
        frame.extend([127, 0, 0, 1, 127, 0, 0, 1, 0, 67, 0, 68, 0, 8, 0, 0]);
        frame
    }

    /// An idle agent opens its socket for the first frame of a new lease, and this frame must not
    /// be lost. A socket receives a frame of another socket on `lo` once, when the frame arrives.
    /// The socket does not receive the frame a second time when the frame leaves.
    #[tokio::test]
    async fn a_socket_sends_as_soon_as_it_is_open() {
        if may_open("lo").is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
            eprintln!("skipped: no right to open packet sockets (CAP_NET_RAW)");
            return;
        }
        let (mut wire, mut other) = (PacketSocket::new("lo"), PacketSocket::new("lo"));
        other.set_filter(FrameFilter::Dhcp).unwrap();
        for _ in 0..3 {
            wire.set_filter(FrameFilter::Dhcp).unwrap();
            let sent = [frame(1), frame(2), frame(3)];
            for (from, frame) in [&wire, &other, &other].into_iter().zip(&sent) {
                from.send(frame).unwrap();
            }
            let mut heard = Vec::new();
            let last = async {
                let mut buffer = [0; 64];
                while heard.last() != sent.last() {
                    wire.ready().await.unwrap();
                    let frame = wire.receive(&mut buffer).unwrap().unwrap_or_default().to_vec();
                    heard.extend(Some(frame).filter(|frame| sent.contains(frame)));
                }
            };
            tokio::time::timeout(Duration::from_mins(1), last).await.unwrap();
            assert_eq!(heard, sent);
            wire.set_filter(FrameFilter::Nothing).unwrap();
        }
    }
}
