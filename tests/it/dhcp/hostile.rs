//! A lying server on the same segment: no lie gets into a record, and the agent does not crash.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use testbed::net::Netns;
use testbed::net::dhcp::{Kind, Scope};
use testbed::{LeaseAgent, eventually};

use super::fixture::{Site, on_site};
use crate::support::LATER;

const SUBNETS: [&str; 2] = ["--subnets", "192.168.0.0/24,10.77.0.0/24"];
const OFFER: u8 = 2;
const ACK: u8 = 5;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
const ME: [u8; 4] = [10, 77, 0, 9];

/// Options: 53, 54, 51, 1 and 3.
fn options(kind: u8, seconds: u32, gateway: [u8; 4]) -> Vec<u8> {
    let mut options = vec![53, 1, kind, 54, 4];
    options.extend(ME);
    options.extend([51, 4]);
    options.extend(seconds.to_be_bytes());
    options.extend([1, 4, 255, 255, 255, 0, 3, 4]);
    options.extend(gateway);
    options.push(255);
    options
}

/// An answer to a request, with any address and any options.
fn answer(question: &[u8], address: [u8; 4], options: &[u8]) -> Vec<u8> {
    let mut answer = vec![0; 236];
    answer[..8].copy_from_slice(&question[..8]);
    answer[0] = 2;
    answer[16..20].copy_from_slice(&address);
    answer[28..44].copy_from_slice(&question[28..44]);
    answer.extend(COOKIE);
    answer.extend(options);
    answer
}

/// All answers that no record may ever show.
fn lies(question: &[u8]) -> Vec<Vec<u8>> {
    let (router, good) = ([10, 77, 0, 254], [10, 77, 0, 66]);
    let mut all = Vec::new();
    for kind in [OFFER, ACK] {
        let hour = options(kind, 3600, router);
        for address in [
            [0, 0, 0, 0],
            [255, 255, 255, 255],
            [127, 0, 0, 1],
            [224, 0, 0, 5],
            [240, 0, 0, 1],
            [169, 254, 1, 1],
            [10, 77, 0, 0],
            [10, 77, 0, 255],
            router,
            ME,
            // An address of the cluster, of the internet, and of none of the subnets that the agent
            // may lease in.
            [10, 53, 0, 10],
            [8, 8, 8, 8],
        ] {
            all.push(answer(question, address, &hour));
        }
        // No lease time, or hardly any.
        all.push(answer(question, good, &options(kind, 0, router)));
        all.push(answer(question, good, &options(kind, 3, router)));
        // Another client's, another transaction's, another protocol's.
        for at in [28, 4, 0, 1, 2, 236] {
            let mut other = answer(question, good, &hour);
            other[at] ^= 0x55;
            all.push(other);
        }
        // Cut anywhere, and with options that exceed the message.
        let whole = answer(question, good, &hour);
        all.extend([0, 1, 44, 235, 239, 240, 243, 250].map(|length| whole[..length].to_vec()));
        all.push(answer(question, good, &[53, 1, kind, 54, 200, 1, 2, 3]));
        all.push(answer(question, good, &[53, 0, 54, 0, 51, 0, 255]));
        // Too large, and full of unknown options.
        let flood: Vec<u8> = [kind; 1300].into_iter().flat_map(|code| [code | 128, 0]).collect();
        all.push(answer(question, good, &flood[..1200]));
    }
    all
}

/// Answers every request with all lies until the end. Counts the lies.
async fn lie(inside: &Netns, sent: Arc<AtomicUsize>, end: Arc<AtomicBool>) -> Result<()> {
    inside
        .run(move || {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 67))?;
            socket.set_broadcast(true)?;
            socket.set_read_timeout(Some(Duration::from_millis(100)))?;
            let mut question = [0; 2048];
            while !end.load(Ordering::Relaxed) {
                let Ok((length, _)) = socket.recv_from(&mut question) else { continue };
                ensure!(length > 240, "a question of {length} octets");
                for lie in lies(&question[..length]) {
                    socket.send_to(&lie, (Ipv4Addr::BROADCAST, 68))?;
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(())
        })
        .await
}

#[test]
fn nothing_that_a_hostile_server_says_is_recorded() -> Result<()> {
    on_site(Kind::Dnsmasq, Scope::new([10, 77, 0, 1]), async |mut site: Site| {
        site.server.stop().await?;
        site.options = SUBNETS.to_vec();
        let mut agent = site.agent().await?;
        let there = site.segment.attach("liar", "10.77.0.9/24").await?;
        there.ip("route add default dev eth0").await?;
        let (sent, end) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let liar = {
            let (there, sent, end) = (there.clone(), sent.clone(), end.clone());
            tokio::spawn(async move { lie(&there, sent, end).await })
        };
        site.lease("web").await?;
        let unusable = eventually(LATER, "report of the lies", async || {
            let status = site.status("web").await.map_err(|error| error.to_string())?;
            let said = status
                .conditions
                .iter()
                .any(|ready| ready.reason.as_deref() == Some("UnusableOffer"));
            if said { Ok(Some(status)) } else { Err(format!("{status:?}")) }
        })
        .await?;
        ensure!(unusable.address.is_none(), "{unusable:?}");
        // Some rounds of lies.
        let enough = lies(&[0; 300]).len() * 3;
        eventually(LATER, "more lies", async || sent.load(Ordering::Relaxed) >= enough).await?;
        ensure!(site.status("web").await?.address.is_none(), "a lie is recorded");
        ensure!(agent.process.is_running(), "{}", agent.process.log());
        ensure!(agent.metric("hgo_dhcp_frames_dropped_total").await? > 0.0, "nothing was dropped");
        end.store(true, Ordering::Relaxed);
        liar.await??;

        // The agent accepts an honest server among late lies.
        let scope = site.scope.clone();
        site.server.restart(&scope).await?;
        let address: Ipv4Addr = site.address("web").await?.parse()?;
        ensure!(scope.holds(address), "{address}");
        Ok(())
    })
    .context("with a hostile server")
}

/// The recorded address is the honest server's, whatever other answers come at the same time.
#[test]
fn an_honest_server_is_heard_among_lies() -> Result<()> {
    on_site(Kind::Kea, Scope::new([10, 77, 0, 1]), async |mut site: Site| {
        site.options = SUBNETS.to_vec();
        let agent = site.agent().await?;
        let there = site.segment.attach("liar", "10.77.0.9/24").await?;
        there.ip("route add default dev eth0").await?;
        let (sent, end) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let liar = {
            let (there, sent, end) = (there.clone(), sent.clone(), end.clone());
            tokio::spawn(async move { lie(&there, sent, end).await })
        };
        let web = site.lease("web").await?;
        let address = site.address("web").await?;
        end.store(true, Ordering::Relaxed);
        liar.await??;
        let granted = site.server.granted_to(&web.mac.to_string()).await?.context("not granted")?;
        ensure!(granted.address.to_string() == address, "{granted:?}, not {address}");
        ensure!(sent.load(Ordering::Relaxed) > 0, "no lie was sent");
        answered_for_all(&site, &agent).await
    })
}

/// The router answers ARP for each address that its DHCP server grants: as with local proxy ARP, or
/// with the whole range routed to it.
async fn answered_for_all(site: &Site, agent: &LeaseAgent) -> Result<()> {
    // .100 to .199
    for range in ["10.77.0.96/27", "10.77.0.128/26", "10.77.0.192/29"] {
        site.router.ip(&format!("route add local {range} dev eth0")).await?;
    }
    for name in ["one", "two", "three"] {
        site.lease(name).await?;
    }
    for name in ["one", "two", "three"] {
        let said = eventually(LATER, &format!("report of the router at {name}"), async || {
            let status = site.status(name).await.map_err(|error| error.to_string())?;
            let ready = status.conditions.iter().find(|ready| ready.type_ == "Ready");
            let ready = ready.filter(|ready| ready.reason.as_deref() == Some("ProxyARP"));
            match ready.and_then(|ready| ready.message.clone()) {
                Some(said) if status.address.is_none() => Ok(Some(said)),
                _ => Err(format!("{status:?}")),
            }
        })
        .await?;
        ensure!(said.contains("answers ARP for every granted address"), "{said}");
    }
    // Two declines prove the router's behaviour. A third may have been under way.
    let declined = agent.metric("hgo_dhcp_declines_total").await?;
    ensure!((2.0..=3.0).contains(&declined), "{declined} addresses were declined");
    Ok(())
}
