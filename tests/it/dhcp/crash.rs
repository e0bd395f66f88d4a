//! The agent is killed between any two steps of a lease's life, and started again. It recovers
//! without help.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, ensure};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use testbed::net::dhcp::{Kind, Scope};
use testbed::{Proxy, Verdict, eventually};

use super::fixture::{ACCOUNT, INTERFACE, Site, link, on_site, start_agent};
use crate::support::{LATER, SOON};

/// A route to the API server on which the agent's writes of records hang once `held` is set.
async fn gate(site: &Site) -> Result<(Proxy, Arc<AtomicBool>, std::path::PathBuf)> {
    let proxy = Proxy::start(&site.cluster.bed).await?;
    let held = Arc::new(AtomicBool::new(false));
    let rule = held.clone();
    proxy.set_rule(move |call| {
        let record = call.is_write() && call.resource() == Some("dhcpleases");
        if record && rule.load(Ordering::Relaxed) { Verdict::Hang } else { Verdict::Pass }
    });
    let bed = &site.cluster.bed;
    let kubeconfig = proxy.kubeconfig_for_service_account(bed, ACCOUNT.0, ACCOUNT.1).await?;
    Ok((proxy, held, kubeconfig))
}

/// Checks that a hardware address has one address at the server, the same as in the record.
async fn agreed(site: &mut Site, name: &str, mac: &str) -> Result<String> {
    let address = site.address(name).await?;
    let granted = site.server.granted().await?;
    let live: Vec<_> = granted.iter().filter(|one| one.live && one.mac == mac).collect();
    ensure!(live.len() == 1, "{live:?}");
    ensure!(live[0].address.to_string() == address, "{live:?}, and the record has {address}");
    Ok(address)
}

#[test]
fn a_crash_between_any_two_steps_leaves_one_owner_and_no_link() -> Result<()> {
    // A crash takes a part of the lease's time, and the machine may stall as well.
    let scope = Scope::new([10, 77, 0, 1]).seconds(120).timers(30, 100);
    on_site(Kind::Kea, scope, async |mut site: Site| {
        let (_proxy, held, kubeconfig) = gate(&site).await?;
        let program = site.program.clone();
        let start = async || {
            let agent = start_agent(&program, &kubeconfig, INTERFACE, &[]).await?;
            agent.speaks().await?;
            anyhow::Ok(agent)
        };

        // Between the record and the first answer: the server is stopped.
        site.server.process.signal("STOP")?;
        let mut agent = start().await?;
        let web = site.lease("web").await?;
        let mac = web.mac.to_string();
        eventually(SOON, "question", async || {
            site.frames_from(&site.port).await.map(|frames| frames > 0)
        })
        .await?;
        // Only here the next agent waits until the term of the dead one is over.
        agent.process.kill9()?;
        site.server.process.signal("CONT")?;

        // Between the grant and its record.
        held.store(true, Ordering::Relaxed);
        let mut agent = start().await?;
        eventually(LATER, "grant", async || {
            site.server.granted_to(&mac).await.map(|granted| granted.is_some())
        })
        .await?;
        ensure!(site.status("web").await?.address.is_none(), "recorded in spite of the gate");
        site.kill(&mut agent).await?;
        held.store(false, Ordering::Relaxed);

        // Between the record and anything after it.
        let mut agent = start().await?;
        let address = agreed(&mut site, "web", &mac).await?;
        site.kill(&mut agent).await?;
        let mut agent = start().await?;
        ensure!(agreed(&mut site, "web", &mac).await? == address, "another address");
        site.linked(&[&web]).await?;

        // Between the deletion and its effects.
        site.kill(&mut agent).await?;
        site.records().delete("web", &DeleteParams::default()).await?;
        held.store(true, Ordering::Relaxed);
        let mut agent = start().await?;
        eventually(LATER, "end of the grant", async || {
            site.server.granted_to(&mac).await.map(|granted| granted.is_none())
        })
        .await?;
        // Between the RELEASE and the record's end.
        site.kill(&mut agent).await?;
        held.store(false, Ordering::Relaxed);
        let mut agent = start().await?;
        eventually(LATER, "end of the record", async || {
            site.records().get_opt("web").await.map(|record| record.is_none())
        })
        .await?;
        site.linked(&[]).await?;

        // A record is deleted while no agent runs, and its link stays.
        let left = site.lease("left").await?;
        site.address("left").await?;
        site.linked(&[&left]).await?;
        site.kill(&mut agent).await?;
        let bare = json!({"metadata": {"finalizers": []}});
        site.records().patch("left", &PatchParams::default(), &Patch::Merge(&bare)).await?;
        site.records().delete("left", &DeleteParams::default()).await?;
        ensure!(site.links().await? == [link(&left)], "the link should have outlived its agent");
        let stranger = "link add link net1 name other type macvlan mode private";
        site.host.ip(stranger).await?;
        let _agent = start().await?;
        eventually(SOON, "end of the link", async || {
            site.links().await.map(|links| links == ["other"])
        })
        .await
        .context("of the two links, only the agent's own is to go")
    })
}
