//! Owns DHCP servers that tests run: the four of Debian, each in a namespace of the test.
//!
//! Invariant: a server receives and sends on one interface of its namespace and nowhere else.

mod config;
mod records;
mod relay;

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

pub use self::records::Granted;
pub use self::relay::Relay;
use super::{Netns, program, search_path};
use crate::{Managed, eventually};

/// Longest time until a server listens, and until it has ended.
const PATIENCE: Duration = Duration::from_secs(30);

/// DHCP server program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the programs' names")]
pub enum Kind {
    Dnsmasq,
    Kea,
    Isc,
    Udhcpd,
}

impl Kind {
    /// All four programs.
    pub const ALL: [Self; 4] = [Self::Dnsmasq, Self::Kea, Self::Isc, Self::Udhcpd];

    fn program(self) -> &'static str {
        match self {
            Self::Dnsmasq => "dnsmasq",
            Self::Kea => "kea-dhcp4",
            Self::Isc => "dhcpd",
            Self::Udhcpd => "udhcpd",
        }
    }

    /// Text of a message in the program's log. udhcpd does not log it.
    fn says(self, message: Message) -> Option<&'static str> {
        match (self, message) {
            (Self::Udhcpd, _) => None,
            (Self::Kea, Message::Decline) => Some("DHCP4_DECLINE_LEASE"),
            (_, Message::Decline) => Some("DHCPDECLINE"),
            (_, Message::Nak) => Some("DHCPNAK"),
        }
    }
}

/// Message of a server's log that a test looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages' names")]
pub enum Message {
    Decline,
    Nak,
}

/// Configuration of a server: subnet, range and times.
#[derive(Clone, Debug)]
pub struct Scope {
    /// The server's own address, in the subnet. The router has the subnet's 254th address.
    pub server: Ipv4Addr,
    /// Bits of the subnet's prefix.
    pub prefix: u8,
    /// First and last address, by their number in the subnet.
    pub range: (u16, u16),
    /// Duration of leases in seconds; at least 120 for dnsmasq.
    pub seconds: u32,
    /// Times of renewal (T1) and rebinding (T2) in seconds, sent to clients.
    pub timers: Option<(u32, u32)>,
    /// Whether it is authoritative for the subnet: it refuses requests for leases that it does not
    /// know.
    pub authoritative: bool,
    /// Reserved addresses for one client each, by their number in the subnet. Not supported for
    /// udhcpd here.
    pub reserved: Vec<(Reservation, u16)>,
}

/// Client of a reservation.
#[derive(Clone, Debug)]
pub enum Reservation {
    /// Hardware address.
    Mac(String),
    /// Client identifier, its octets in hexadecimal separated by colons.
    ClientId(String),
}

impl Scope {
    /// Scope with addresses .100 to .199 of a /24 and leases of an hour.
    pub fn new(server: [u8; 4]) -> Self {
        Self {
            server: server.into(),
            prefix: 24,
            range: (100, 199),
            seconds: 3600,
            timers: None,
            authoritative: true,
            reserved: Vec::new(),
        }
    }

    /// The same scope with other times of renewal and rebinding, in seconds.
    #[must_use]
    pub fn timers(mut self, renew: u32, rebind: u32) -> Self {
        self.timers = Some((renew, rebind));
        self
    }

    /// The same scope with leases of so many seconds.
    #[must_use]
    pub fn seconds(mut self, seconds: u32) -> Self {
        self.seconds = seconds;
        self
    }

    /// The same scope with another range.
    #[must_use]
    pub fn range(mut self, first: u16, last: u16) -> Self {
        self.range = (first, last);
        self
    }

    /// The same scope in a subnet of another size.
    #[must_use]
    pub fn prefix(mut self, bits: u8) -> Self {
        self.prefix = bits;
        self
    }

    /// The same scope with an address reserved for one client.
    #[must_use]
    pub fn reserve(mut self, client: Reservation, number: u16) -> Self {
        self.reserved.push((client, number));
        self
    }

    /// Address of the subnet by its number there.
    pub fn at(&self, number: u16) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.server.to_bits() & self.netmask().to_bits() | u32::from(number))
    }

    /// Mask of the subnet.
    pub fn netmask(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0))
    }

    /// The server's address with its prefix, as an interface gets it.
    pub fn interface(&self) -> String {
        format!("{}/{}", self.server, self.prefix)
    }

    /// Whether the range contains this address.
    pub fn holds(&self, address: Ipv4Addr) -> bool {
        (self.at(self.range.0)..=self.at(self.range.1)).contains(&address)
    }
}

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub struct DhcpServer {
    /// The process, to kill, stop or measure.
    pub process: Managed,
    kind: Kind,
    inside: Netns,
    interface: String,
    dir: TempDir,
}

impl DhcpServer {
    /// Starts a server on an interface that has the scope's address already, and waits until it
    /// listens.
    pub async fn start(kind: Kind, inside: &Netns, interface: &str, scope: &Scope) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("hgo-dhcp-").tempdir()?;
        let process = launch(kind, inside, interface, scope, dir.path().into()).await?;
        let interface = interface.to_owned();
        let mut server = Self { process, kind, inside: inside.clone(), interface, dir };
        server.listening().await?;
        Ok(server)
    }

    /// Ends the server by a signal, so that it writes its leases, and starts it with this scope. It
    /// retains its leases.
    pub async fn restart(&mut self, scope: &Scope) -> Result<()> {
        self.stop().await?;
        let dir = self.dir.path().into();
        self.process = launch(self.kind, &self.inside, &self.interface, scope, dir).await?;
        self.listening().await
    }

    /// Ends the server by a signal, so that it writes its leases.
    pub async fn stop(&mut self) -> Result<()> {
        if self.process.is_running() {
            self.process.terminate(PATIENCE).await?;
        }
        Ok(())
    }

    /// Removes the server's leases. It must not be running.
    pub fn forget(&mut self) -> Result<()> {
        ensure!(!self.process.is_running(), "a running server would write its file again");
        let file = self.lease_file();
        if file.exists() {
            fs::remove_file(file)?;
        }
        Ok(())
    }

    /// Starts the server again in another subnet: its interface gets the scope's address only. The
    /// server must not be running.
    pub async fn readdress(&mut self, scope: &Scope) -> Result<()> {
        self.inside.ip(&format!("address flush dev {}", self.interface)).await?;
        let address = format!("address add {} dev {}", scope.interface(), self.interface);
        self.inside.ip(&address).await?;
        self.restart(scope).await
    }

    /// Program of the server.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Output of the server since its first start.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Whether it has logged such a message; `None` if it never logs it.
    pub fn logged(&self, message: Message) -> Option<bool> {
        Some(self.log().contains(self.kind.says(message)?))
    }

    /// Entries of its lease file now. udhcpd writes it when it ends or on a signal, which this
    /// sends.
    pub async fn granted(&mut self) -> Result<Vec<Granted>> {
        let file = self.lease_file();
        if self.kind == Kind::Udhcpd && self.process.is_running() {
            if file.exists() {
                fs::remove_file(&file)?;
            }
            self.process.signal("USR1")?;
            // The file is complete when it is closed again.
            let fds = format!("/proc/{}/fd", self.process.pid());
            eventually(PATIENCE, "udhcpd's leases", async || {
                let open = fs::read_dir(&fds)?.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
                anyhow::Ok(file.exists() && !open.into_iter().any(|path| path == file))
            })
            .await?;
        }
        if !file.exists() {
            return Ok(Vec::new());
        }
        let bytes = fs::read(&file)?;
        records::read(self.kind, &bytes)
    }

    /// Live lease of a hardware address.
    pub async fn granted_to(&mut self, mac: &str) -> Result<Option<Granted>> {
        Ok(self.granted().await?.into_iter().find(|granted| granted.mac == mac && granted.live))
    }

    /// Number of packets that the kernel has dropped so far because the socket of the server, or a
    /// processor's queue of received packets, was full. The queues are the whole machine's.
    pub async fn dropped(&self) -> Result<u64> {
        let files = self.inside.run(|| {
            let read = |file: &str| fs::read_to_string(format!("/proc/thread-self/net/{file}"));
            Ok((read("udp")?, read("softnet_stat")?))
        });
        let (sockets, queues) = files.await?;
        let mut dropped = 0;
        for socket in sockets.lines().skip(1) {
            dropped += socket.split_whitespace().next_back().context("no drops")?.parse::<u64>()?;
        }
        for queue in queues.lines() {
            let number = queue.split_whitespace().nth(1).context("no drops")?;
            dropped += u64::from_str_radix(number, 16)?;
        }
        Ok(dropped)
    }

    fn lease_file(&self) -> PathBuf {
        self.dir.path().join(config::LEASES)
    }

    async fn listening(&mut self) -> Result<()> {
        let name = self.kind.program();
        let inside = self.inside.clone();
        let ended = eventually(PATIENCE, &format!("listening {name}"), async || {
            if !self.process.is_running() {
                return Ok(Some(true));
            }
            // Kea and dhcpd have a packet socket each, the others an UDP socket on port 67.
            let sockets = inside
                .run(|| {
                    let read =
                        |file: &str| fs::read_to_string(format!("/proc/thread-self/net/{file}"));
                    Ok((read("udp")?, read("packet")?))
                })
                .await?;
            let udp = sockets.0.contains(":0043 ");
            let packet = sockets.1.lines().count() > 1;
            let there = match self.kind {
                Kind::Dnsmasq | Kind::Udhcpd => udp,
                Kind::Kea => self.process.log().contains("DHCP4_STARTED"),
                Kind::Isc => udp || packet,
            };
            anyhow::Ok(there.then_some(false))
        })
        .await
        .with_context(|| self.process.log())?;
        ensure!(!ended, "{name} ended at once:\n{}", self.process.log());
        Ok(())
    }
}

async fn launch(
    kind: Kind,
    inside: &Netns,
    interface: &str,
    scope: &Scope,
    dir: PathBuf,
) -> Result<Managed> {
    let name = kind.program();
    let args = config::write(kind, interface, scope, &dir)?;
    inside
        .run(move || {
            let mut command = program(name);
            command.args(args).current_dir(&dir).env("PATH", search_path());
            command.env("KEA_PIDFILE_DIR", &dir).env("KEA_LOCKFILE_DIR", &dir);
            Managed::spawn(&mut command, dir.join("log"))
                .with_context(|| format!("start {name}: `make nets` installs it"))
        })
        .await
}
