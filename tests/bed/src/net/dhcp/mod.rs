//! Owns DHCP servers that tests run: the four of Debian, each in a namespace that the test made.
//!
//! Invariant: a server hears and sends on one interface of its namespace and nowhere else.

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

/// Until a server listens, and until it has ended.
const PATIENCE: Duration = Duration::from_secs(30);

/// Which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the programs' names")]
pub enum Kind {
    Dnsmasq,
    Kea,
    Isc,
    Udhcpd,
}

impl Kind {
    /// All four.
    pub const ALL: [Self; 4] = [Self::Dnsmasq, Self::Kea, Self::Isc, Self::Udhcpd];

    fn program(self) -> &'static str {
        match self {
            Self::Dnsmasq => "dnsmasq",
            Self::Kea => "kea-dhcp4",
            Self::Isc => "dhcpd",
            Self::Udhcpd => "udhcpd",
        }
    }

    /// How it logs a message. udhcpd does not.
    fn says(self, message: Message) -> Option<&'static str> {
        match (self, message) {
            (Self::Udhcpd, _) => None,
            (Self::Kea, Message::Decline) => Some("DHCP4_DECLINE_LEASE"),
            (_, Message::Decline) => Some("DHCPDECLINE"),
            (_, Message::Nak) => Some("DHCPNAK"),
        }
    }
}

/// What a test looks for in a server's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages' names")]
pub enum Message {
    Decline,
    Nak,
}

/// What a server gives out.
#[derive(Clone, Debug)]
pub struct Scope {
    /// The server's own address. The subnet is around it, and its 254th address the router's.
    pub server: Ipv4Addr,
    /// Bits of the subnet's prefix.
    pub prefix: u8,
    /// The first and the last address, by their number in the subnet.
    pub range: (u16, u16),
    /// For how long, in seconds. dnsmasq has no leases of less than 120.
    pub seconds: u32,
    /// When to renew and when to rebind, in seconds. udhcpd says nothing of it to its clients.
    pub timers: Option<(u32, u32)>,
    /// Whether it speaks for the whole subnet: refuses what it does not know.
    pub authoritative: bool,
    /// Addresses that are kept for one client each, by their number in the subnet. udhcpd has none
    /// here.
    pub reserved: Vec<(Reservation, u16)>,
}

/// By what a server knows the client of a reservation.
#[derive(Clone, Debug)]
pub enum Reservation {
    /// Its hardware address.
    Mac(String),
    /// Its client identifier, its octets with colons between them.
    ClientId(String),
}

impl Scope {
    /// Addresses .100 to .199 of a /24 for an hour.
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

    /// The same, renewed after so many seconds and rebound after so many.
    #[must_use]
    pub fn timers(mut self, renew: u32, rebind: u32) -> Self {
        self.timers = Some((renew, rebind));
        self
    }

    /// The same with leases of so many seconds.
    #[must_use]
    pub fn seconds(mut self, seconds: u32) -> Self {
        self.seconds = seconds;
        self
    }

    /// The same with another range.
    #[must_use]
    pub fn range(mut self, first: u16, last: u16) -> Self {
        self.range = (first, last);
        self
    }

    /// The same in a subnet of another size.
    #[must_use]
    pub fn prefix(mut self, bits: u8) -> Self {
        self.prefix = bits;
        self
    }

    /// The same with an address that is kept for one client.
    #[must_use]
    pub fn reserve(mut self, client: Reservation, number: u16) -> Self {
        self.reserved.push((client, number));
        self
    }

    /// An address of the subnet by its number there.
    pub fn at(&self, number: u16) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.server.to_bits() & self.netmask().to_bits() | u32::from(number))
    }

    /// The subnet's mask.
    pub fn netmask(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0))
    }

    /// The server's address with its prefix, as an interface gets it.
    pub fn interface(&self) -> String {
        format!("{}/{}", self.server, self.prefix)
    }

    /// Whether it would give out this address.
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
    /// Starts one on an interface that has the scope's address already, and waits until it listens.
    pub async fn start(kind: Kind, inside: &Netns, interface: &str, scope: &Scope) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("hgo-dhcp-").tempdir()?;
        let process = launch(kind, inside, interface, scope, dir.path().into()).await?;
        let interface = interface.to_owned();
        let mut server = Self { process, kind, inside: inside.clone(), interface, dir };
        server.listening().await?;
        Ok(server)
    }

    /// Ends it, politely so that it writes what it knows, and starts it with this scope. It
    /// remembers what it granted.
    pub async fn restart(&mut self, scope: &Scope) -> Result<()> {
        self.stop().await?;
        let dir = self.dir.path().into();
        self.process = launch(self.kind, &self.inside, &self.interface, scope, dir).await?;
        self.listening().await
    }

    /// Ends it, politely so that it writes what it knows.
    pub async fn stop(&mut self) -> Result<()> {
        if self.process.is_running() {
            self.process.terminate(PATIENCE).await?;
        }
        Ok(())
    }

    /// Has it forget what it granted. It must not be running.
    pub fn forget(&mut self) -> Result<()> {
        ensure!(!self.process.is_running(), "it would write its file again");
        let file = self.lease_file();
        if file.exists() {
            fs::remove_file(file)?;
        }
        Ok(())
    }

    /// Starts it again in another subnet: its interface has the scope's address, and no other. It
    /// must not be running.
    pub async fn readdress(&mut self, scope: &Scope) -> Result<()> {
        self.inside.ip(&format!("address flush dev {}", self.interface)).await?;
        let address = format!("address add {} dev {}", scope.interface(), self.interface);
        self.inside.ip(&address).await?;
        self.restart(scope).await
    }

    /// Which program.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Everything that it has said since it was first started.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Whether it has logged such a message; nothing if it never does.
    pub fn logged(&self, message: Message) -> Option<bool> {
        Some(self.log().contains(self.kind.says(message)?))
    }

    /// What its lease file says now. udhcpd writes it when it ends only, or on demand: it is asked.
    pub async fn granted(&mut self) -> Result<Vec<Granted>> {
        let file = self.lease_file();
        if self.kind == Kind::Udhcpd && self.process.is_running() {
            if file.exists() {
                fs::remove_file(&file)?;
            }
            self.process.signal("USR1")?;
            // It is complete when it is closed again.
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

    /// What it has granted to a hardware address and not taken back.
    pub async fn granted_to(&mut self, mac: &str) -> Result<Option<Granted>> {
        Ok(self.granted().await?.into_iter().find(|granted| granted.mac == mac && granted.live))
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
