//! Unusual records, and links that are not the agent's own.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use chrono::{DateTime, Utc};
use harvester_guest_operator::domain::dhcp::Mac;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use testbed::net::Netns;
use testbed::net::dhcp::{Kind, Scope};
use testbed::{Proxy, Verdict, eventually};
use tokio::time::sleep;

use super::fixture::{ACCOUNT, INTERFACE, Site, identity, link, on_site, record, start_agent};
use crate::support::{LATER, SOON};

/// Removes a record by force, without waiting for its agent.
async fn force(site: &Site, name: &str) -> Result<()> {
    let bare = json!({"metadata": {"finalizers": []}});
    site.records().patch(name, &PatchParams::default(), &Patch::Merge(&bare)).await?;
    site.records().delete(name, &DeleteParams::default()).await?;
    Ok(())
}

/// Waits until a server has no grant for a hardware address.
async fn given_back(site: &mut Site, mac: &str) -> Result<()> {
    eventually(LATER, "release of the address", async || {
        site.server.granted_to(mac).await.map(|granted| granted.is_none())
    })
    .await
}

/// Makes a link with the name and the hardware address of a lease's link; returns the name.
async fn macvlan(site: &Site, lease: &str, mode: &str) -> Result<String> {
    let identity = identity(lease);
    let (name, mac) = (link(&identity), identity.mac);
    let add = format!("link add link {INTERFACE} name {name} address {mac}");
    site.host.ip(&format!("{add} type macvlan mode {mode}")).await?;
    Ok(name)
}

#[test]
fn records_and_links_of_others_are_left_alone() -> Result<()> {
    on_site(Kind::Kea, Scope::new([10, 77, 0, 1]), async |site: Site| {
        // Links of an agent that crashed before it had marked them, one of this and one of an
        // earlier version; the link of an earlier version for a lease that continues; the link of
        // another network's agent; and a link that was never a lease's.
        macvlan(&site, "crashed", "source").await?;
        macvlan(&site, "earlier", "private").await?;
        let before = macvlan(&site, "web", "private").await?;
        site.host.ip(&format!("link set dev {before} arp off up")).await?;
        let mark = "hgo-lease-agent-default-lan-e1714d09 default/web";
        site.host.command("ip", &["link", "set", "dev", &before, "alias", mark]).await?;
        let others = macvlan(&site, "others", "source").await?;
        let mark = format!("link set dev {others} alias");
        site.host.ip(&format!("{mark} hgo-lease-agent-default-wan-0badcafe")).await?;
        let strange = macvlan(&site, "strange", "bridge").await?;
        // The link is in the group that an agent would use to remove links.
        site.host.ip(&format!("link set dev {strange} group {}", 0x6c62_0000)).await?;

        // One record of another network exists before the agent starts, and one comes later.
        let elsewhere = |name: &str| {
            let mut record = record(name, &identity(name))?;
            "default/wan".clone_into(&mut record.spec.network);
            anyhow::Ok(record)
        };
        site.records().create(&PostParams::default(), &elsewhere("early")?).await?;
        let web = site.lease("web").await?;
        let mut agent = site.agent().await?;
        site.records().create(&PostParams::default(), &elsewhere("late")?).await?;
        site.bound("web", "address", |_| true).await?;
        let mut wanted = [others.clone(), strange.clone(), link(&web)];
        wanted.sort();
        eventually(SOON, "links of others, and one of a lease", async || {
            let mut links = site.links().await.map_err(|error| error.to_string())?;
            links.sort();
            if links == wanted { Ok(true) } else { Err(format!("{links:?}, not {wanted:?}")) }
        })
        .await?;
        let shown = site.host.ip(&format!("-d link show {}", link(&web))).await?;
        ensure!(shown.contains("macvlan mode source"), "of an earlier version: {shown}");
        for name in ["early", "late"] {
            let status = site.records().get(name).await?.status;
            ensure!(status.is_none(), "{name} of another network: {status:?}");
        }
        // The record is written before the metric.
        eventually(SOON, "rest of an hour", async || {
            let left = agent.metric("hgo_dhcp_first_expiry_seconds").await;
            let left = left.map_err(|error| error.to_string())?;
            if (1.0..=3600.0).contains(&left) { Ok(true) } else { Err(format!("{left} s")) }
        })
        .await?;
        // At its end it removes its own link.
        agent.stop().await?;
        let (mut left, mut wanted) = (site.links().await?, [others, strange]);
        left.sort();
        wanted.sort();
        ensure!(left == wanted, "{left:?}, not {wanted:?}");
        Ok(())
    })
}

/// Removing a record's finalizer and the record also ends the lease, and a new record of the same
/// name waits until the former lease is over.
#[test]
fn a_record_that_is_removed_by_force_leaves_nothing_behind() -> Result<()> {
    on_site(Kind::Dnsmasq, Scope::new([10, 77, 0, 1]), async |mut site: Site| {
        let _agent = site.agent().await?;
        let web = site.lease("web").await?;
        site.bound("web", "address", |_| true).await?;
        force(&site, "web").await?;
        given_back(&mut site, &web.mac.to_string()).await?;
        site.linked(&[]).await?;

        site.lease("web").await?;
        site.bound("web", "address", |_| true).await?;
        force(&site, "web").await?;
        site.lease("web").await?;
        let again = site.address("web").await?;
        let granted = site.server.granted_to(&web.mac.to_string()).await?.context("no grant")?;
        ensure!(granted.address.to_string() == again, "{granted:?}, and the record has {again}");
        site.linked(&[&web]).await
    })
}

/// A failed call, a late one, a link that cannot be made, a silent server: each fault is reported,
/// and the work continues by itself when it is over.
#[test]
fn what_failed_is_tried_again() -> Result<()> {
    on_site(Kind::Kea, Scope::new([10, 77, 0, 1]), async |mut site: Site| {
        let bed = &site.cluster.bed;
        let proxy = Proxy::start(bed).await?;
        let writes = Arc::new(AtomicU32::new(0));
        let seen = writes.clone();
        proxy.set_rule(move |call| {
            if !call.is_write() || call.resource() != Some("dhcpleases") {
                return Verdict::Pass;
            }
            let refuse = |code, reason| Verdict::Refuse { code, reason, message: reason.into() };
            match seen.fetch_add(1, Ordering::Relaxed) {
                0 => refuse(500, "InternalError"),
                1 => refuse(409, "Conflict"),
                // As of a CRD without the subresource. The record exists.
                2 => refuse(404, "NotFound"),
                _ => Verdict::Pass,
            }
        });
        let kubeconfig = proxy.kubeconfig_for_service_account(bed, ACCOUNT.0, ACCOUNT.1).await?;
        let agent = start_agent(&site.program, &kubeconfig, INTERFACE, &[]).await?;
        agent.speaks().await?;
        let web = site.lease("web").await?;
        site.bound("web", "address", |_| true).await?;
        ensure!(writes.load(Ordering::Relaxed) >= 4, "fewer writes than the three refusals");

        // A foreign link has the name.
        let taken = macvlan(&site, "late", "bridge").await?;
        let late = site.lease("late").await?;
        warned(&site, "late", "LinkFailed").await?;
        site.host.ip(&format!("link delete {taken}")).await?;
        site.bound("late", "address", |_| true).await?;

        // The server is stopped.
        site.server.process.signal("STOP")?;
        let last = site.lease("last").await?;
        warned(&site, "last", "NoOffer").await?;
        site.server.process.signal("CONT")?;
        site.bound("last", "address", |_| true).await?;
        site.linked(&[&web, &late, &last]).await
    })
}

/// Only the DHCP server answers the agent, for longer than a lease lasts. The agent renews its lease,
/// and continues the record later. A signal to end meanwhile leaves no link.
#[test]
fn what_is_held_is_renewed_while_the_api_server_is_away() -> Result<()> {
    let scope = Scope::new([10, 77, 0, 1]).seconds(30).timers(8, 14);
    on_site(Kind::Kea, scope, async |mut site: Site| {
        let bed = &site.cluster.bed;
        let proxy = Proxy::start(bed).await?;
        let kubeconfig = proxy.kubeconfig_for_service_account(bed, ACCOUNT.0, ACCOUNT.1).await?;
        let mut agent = start_agent(&site.program, &kubeconfig, INTERFACE, &[]).await?;
        agent.speaks().await?;
        let web = site.lease("web").await?;
        site.bound("web", "address", |_| true).await?;
        let away = || {
            proxy.set_rule(|_| Verdict::Hang);
            proxy.cut_all();
        };
        away();
        eventually(LATER, "end of the leadership", async || {
            agent.process.log().contains("the state of leadership changed state=Silent")
        })
        .await?;
        // The record's content when the last write was possible.
        let before = site.records().get("web").await?;
        let status = before.status.clone().unwrap_or_default();
        let end = DateTime::parse_from_rfc3339(&status.expires_at.context("no end")?)?;
        site.lease("late").await?;
        eventually(LATER, "end of the lease in the record", async || Utc::now() > end).await?;
        let mac = web.mac.to_string();
        let held = site.server.granted_to(&mac).await?.context("the server has it no more")?;
        ensure!(Some(held.address.to_string()) == status.address, "{held:?}");
        let now = site.records().get("web").await?;
        ensure!(now.resource_version() == before.resource_version(), "{now:?}");

        proxy.clear_rule();
        proxy.cut_all();
        let after = site.bound("web", "later end", |status| {
            let later = status.expires_at.as_deref().map(DateTime::parse_from_rfc3339);
            matches!(later, Some(Ok(later)) if later > end)
        });
        let after = after.await?;
        ensure!(after.address == status.address, "{after:?}");
        let log = agent.process.log();
        ensure!(after.obtained_at == status.obtained_at, "another lease: {after:?}\n{log}");
        site.bound("late", "address", |_| true).await?;
        let log = agent.process.log();
        let terms = log.matches("the list of DHCPLeases is complete").count();
        ensure!(terms == 1, "it began again:\n{log}");

        let silences =
            || agent.process.log().matches("the state of leadership changed state=Silent").count();
        let before = silences();
        away();
        eventually(LATER, "end of the leadership", async || silences() > before).await?;
        // Another agent has the Lease, and sends requests for this one's address: this one stops.
        let other = site.segment.attach("other", &format!("{}/24", site.scope.at(3))).await?;
        other.ip("route add default dev eth0").await?;
        eventually(LATER, "log of the other agent", async || {
            duplicate(&other, web.mac).await.map_err(|error| format!("{error:#}"))?;
            Ok::<_, String>(agent.process.log().contains("another agent is active"))
        })
        .await?;
        let sent = site.frames_from(&site.port).await?;
        // Longer than T1.
        sleep(Duration::from_secs(12)).await;
        let more = site.frames_from(&site.port).await? - sent;
        ensure!(more == 0, "{more} frames beside another agent's");
        agent.stop().await?;
        site.linked(&[]).await
    })
}

/// Broadcasts a DHCPREQUEST of a client with this hardware address (RFC 2131, table 5).
async fn duplicate(inside: &Netns, mac: Mac) -> Result<()> {
    let Mac(octets) = mac;
    inside
        .run(move || {
            let mut message = vec![0; 236];
            message[..8].copy_from_slice(&[1, 1, 6, 0, 7, 7, 7, 7]);
            message[28..34].copy_from_slice(&octets);
            message.extend([99, 130, 83, 99, 53, 1, 3, 255]);
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 68))?;
            socket.set_broadcast(true)?;
            socket.send_to(&message, (Ipv4Addr::BROADCAST, 67))?;
            Ok(())
        })
        .await
}

/// Waits until the record's condition and an Event give this reason for a missing address.
async fn warned(site: &Site, name: &str, reason: &str) -> Result<()> {
    eventually(LATER, &format!("{reason} in the status of {name}"), async || {
        let status = site.status(name).await.map_err(|error| error.to_string())?;
        let ready = status.conditions.first().and_then(|ready| ready.reason.as_deref());
        if ready == Some(reason) { Ok(true) } else { Err(format!("{status:?}")) }
    })
    .await?;
    let uid = site.records().get(name).await?.uid();
    let events: Api<Event> = Api::namespaced(site.cluster.client.clone(), "default");
    eventually(LATER, &format!("Event {reason} of {name}"), async || {
        events.list(&ListParams::default()).await.map(|events| {
            events.iter().any(|event| {
                let about = event.regarding.as_ref().and_then(|about| about.uid.clone());
                about == uid && event.reason.as_deref() == Some(reason)
            })
        })
    })
    .await
}
