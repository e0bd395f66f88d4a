//! A router that is also the DHCP server, and clients behind it.
//!
//! dnsmasq answers a client without an address by writing the router's ARP entry itself (SIOCSARP,
//! `dhcp.c` in 2.90), unless the client requests a broadcast. The entry is for the address of a
//! LoadBalancer, and the client is the agent, which answers for no address: traffic would end
//! there.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::api::DeleteParams;
use testbed::net::dhcp::{Kind, Scope};
use testbed::net::{Netns, Segment};

use super::fixture::{Site, on_site};

/// Time between two requests of the client.
pub(super) const PERIOD: Duration = Duration::from_millis(20);
/// Longest loss of requests in a row: 0.3 s.
pub(super) const HOLE: usize = 15;
const RENEWALS: usize = 3;
const PORT: u16 = 8080;

/// A client in a namespace that sends requests until it is stopped.
pub(super) struct Client {
    over: Arc<AtomicBool>,
    answered: tokio::task::JoinHandle<Result<Vec<bool>>>,
}

impl Client {
    /// Sends to the address that is current at the time.
    pub(super) fn start(inside: &Netns, address: &Arc<Mutex<Ipv4Addr>>) -> Self {
        let (over, inside) = (Arc::new(AtomicBool::new(false)), inside.clone());
        let (until, address) = (over.clone(), address.clone());
        let asking = async move { inside.run(move || ask(&address, &until)).await };
        Self { over, answered: tokio::spawn(asking) }
    }

    pub(super) async fn stop(self) -> Result<Requests> {
        self.over.store(true, Ordering::Relaxed);
        let answered = self.answered.await??;
        let hole = answered.split(|answered| *answered).map(<[bool]>::len).max();
        Ok(Requests {
            sent: answered.len(),
            lost: answered.iter().filter(|answered| !**answered).count(),
            hole: hole.unwrap_or_default(),
        })
    }
}

/// Counts of a client's requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requests {
    pub(super) sent: usize,
    /// Requests without an answer.
    pub(super) lost: usize,
    /// Longest run of lost requests.
    pub(super) hole: usize,
}

/// Sends numbered requests: each answer repeats the number.
fn ask(address: &Mutex<Ipv4Addr>, over: &AtomicBool) -> Result<Vec<bool>> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_nonblocking(true)?;
    let mut answered = Vec::new();
    let mut answer = [0; 8];
    // Answers that are under way at the end have ten seconds to arrive. The last request is the last
    // one that the echo answers.
    let mut rest = 500;
    while rest > 0 {
        if over.load(Ordering::Relaxed) {
            rest = if answered.last() == Some(&true) { 0 } else { rest - 1 };
        } else {
            // The kernel reports an error if the route is not known.
            let to = *address.lock().map_err(|_| anyhow::anyhow!("poisoned"))?;
            let _ = socket.send_to(&answered.len().to_be_bytes(), (to, PORT));
            answered.push(false);
        }
        std::thread::sleep(PERIOD);
        while let Ok(8) = socket.recv(&mut answer) {
            if let Some(seen) = answered.get_mut(usize::from_be_bytes(answer)) {
                *seen = true;
            }
        }
    }
    Ok(answered)
}

/// Echoes packets to the port of an address, from there. Its ARP request for the router announces
/// the address first, as a gratuitous ARP does.
pub(super) async fn echo(
    inside: &Netns,
    address: Ipv4Addr,
    router: Ipv4Addr,
) -> Result<tokio::task::JoinHandle<()>> {
    let bound = inside.run(move || {
        let socket = UdpSocket::bind((address, PORT))?;
        socket.send_to(b"", (router, PORT))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    });
    let socket = tokio::net::UdpSocket::from_std(bound.await?)?;
    Ok(tokio::spawn(async move {
        let mut question = [0; 64];
        while let Ok((length, peer)) = socket.recv_from(&mut question).await {
            let _ = socket.send_to(&question[..length], peer).await;
        }
    }))
}

/// A client behind the router, on a segment of its own, and an announcer on the site's.
pub(super) async fn client_and_announcer(site: &Site) -> Result<(Segment, Netns, Netns)> {
    let outside = Segment::new("outside").await?;
    let router = &site.router;
    outside.plug(router, "eth1").await?;
    router.ip("address add 10.99.0.1/24 dev eth1").await?;
    router.sysctl("net/ipv4/ip_forward", "1").await?;
    let client = outside.attach("client", "10.99.0.2/24").await?;
    client.ip("route add default via 10.99.0.1").await?;
    let announcer = site.segment.attach("announcer", "10.77.0.9/24").await?;
    announcer.ip(&format!("route add default via {}", site.scope.server)).await?;
    Ok((outside, client, announcer))
}

/// Checks the longest loss in traffic from a client behind the router, through renewals and a
/// restart.
async fn traffic(mut site: Site) -> Result<()> {
    let (_outside, behind, announcer) = client_and_announcer(&site).await?;
    let mut agent = site.agent().await?;
    let web = site.lease("web").await?;
    let mut status = site.bound("web", "address", |_| true).await?;
    let address: Ipv4Addr = status.address.clone().context("no address")?.parse()?;
    announcer.ip(&format!("address add {address}/32 dev eth0")).await?;
    let _echo = echo(&announcer, address, site.scope.server).await?;
    let client = Client::start(&behind, &Arc::new(Mutex::new(address)));
    for _ in 0..RENEWALS {
        status = site.renewed("web", &status).await?;
    }
    site.kill(&mut agent).await?;
    let _agent = site.agent().await?;
    let status = site.renewed("web", &status).await?;
    ensure!(status.address == Some(address.to_string()), "{status:?}");
    let requests = client.stop().await?;
    println!("{requests:?}, {PERIOD:?} apart");
    ensure!(requests.sent > 1_000 && requests.hole <= HOLE, "{requests:?}");

    // The guest has not noticed the end of its LoadBalancer, and the server gives its address to no
    // other host.
    let mac = announcer.ip("-j link show eth0").await?;
    let mac: serde_json::Value = serde_json::from_str(&mac)?;
    let by = mac[0]["address"].as_str().context("no hardware address")?;
    site.bound("web", "announcer", |status| status.announcers == [by]).await?;
    site.records().delete("web", &DeleteParams::default()).await?;
    site.deleted("web").await?;
    let granted = site.server.granted_to(&web.mac.to_string()).await?;
    ensure!(granted.is_some_and(|granted| granted.address == address), "{address} was released");
    Ok(())
}

#[test]
fn renewals_do_not_lead_a_routers_traffic_to_the_agent() -> Result<()> {
    let scope = Scope::new([10, 77, 0, 1]).seconds(120).timers(30, 50);
    on_site(Kind::Dnsmasq, scope, traffic)
}
