//! Client identities of leases: servers reserve addresses for a client, and recognize a returning
//! one.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::{
    ANNOTATION_DHCP_CLIENT_ID, ANNOTATION_NETWORK, KUBE_VIP_HWADDR, KUBE_VIP_REQUESTED_IP,
};
use kube::ResourceExt as _;
use kube::api::PostParams;
use serde_json::json;
use testbed::net::Netns;
use testbed::net::dhcp::{Kind, Reservation, Scope};
use testbed::{Managed, eventually};

use super::fixture::{NETWORK, Site, on_site};
use crate::support::{LATER, lb};

const KUBE_VIPS: &str = "00:00:6c:0d:5a:be";
const KNOWN: &str = "02:00:5e:10:00:01";

impl Site {
    /// Creates a LoadBalancer with a leased address and these annotations.
    async fn ask_as(&self, name: &str, annotations: &[(&str, &str)]) -> Result<()> {
        let mut lb = lb(name, &json!({"workloadType": "cluster", "ipam": "dhcp"}))?;
        let all = [(ANNOTATION_NETWORK, NETWORK)].into_iter().chain(annotations.iter().copied());
        lb.annotations_mut().extend(all.map(|(key, value)| (key.to_owned(), value.to_owned())));
        self.cluster.lbs().create(&PostParams::default(), &lb).await?;
        Ok(())
    }

    /// Plays the DHCP client of kube-vip, with udhcpc: by its hardware address alone, without a
    /// client identifier. Source: `request` in pkg/vip/dhcpv4.go of kube-vip 1.2.3. Returns its
    /// address as well.
    async fn kube_vip(&mut self) -> Result<(KubeVip, String)> {
        let machine = self.segment.attach("kube-vip", "192.0.2.1/32").await?;
        machine.ip(&format!("link set eth0 address {KUBE_VIPS}")).await?;
        let log = tempfile::NamedTempFile::new()?;
        let path = log.path().to_owned();
        let start = move || {
            let mut udhcpc = Command::new("busybox");
            udhcpc.args(["udhcpc", "-i", "eth0", "-f", "-C", "-R", "-s", "/bin/true"]);
            Managed::spawn(&mut udhcpc, path).context("start udhcpc: `make nets` installs busybox")
        };
        let client = machine.run(start).await?;
        // The server has written the lease before the client has it.
        eventually(LATER, "lease of udhcpc", async || client.log().contains("obtained")).await?;
        let granted = eventually(LATER, "lease of kube-vip", async || {
            self.server.granted_to(KUBE_VIPS).await
        })
        .await?;
        Ok((KubeVip { client, machine, _log: log }, granted.address.to_string()))
    }
}

struct KubeVip {
    client: Managed,
    machine: Netns,
    _log: tempfile::NamedTempFile,
}

/// An address that kube-vip leased is requested as kube-vip: dnsmasq recognizes that client, and
/// grants no second address. The annotations for a hardware address with a reservation, and for a
/// requested address, take effect.
#[test]
fn dnsmasq_knows_who_asks_as_kube_vip_or_by_a_hardware_address_of_its_own() -> Result<()> {
    let scope = Scope::new([10, 77, 0, 1]).reserve(Reservation::Mac(KNOWN.to_owned()), 150);
    on_site(Kind::Dnsmasq, scope, async |mut site: Site| {
        let _agent = site.agent().await?;
        let _operator = site.operator(600).await?;
        let (mut kube_vip, leased) = site.kube_vip().await?;
        // It ends without a RELEASE, as with its node.
        kube_vip.client.kill9()?;
        site.ask_as("adopted", &[(KUBE_VIP_HWADDR, KUBE_VIPS)]).await?;
        let adopted = site.has("adopted").await?;
        ensure!(adopted == leased, "{leased} became {adopted}");
        let granted = site.server.granted().await?;
        ensure!(granted.len() == 1, "two clients: {granted:?}");
        ensure!(granted[0].client_id.is_none(), "{granted:?}");

        site.ask_as("known", &[(KUBE_VIP_HWADDR, KNOWN)]).await?;
        let known = site.has("known").await?;
        ensure!(known == site.scope.at(150).to_string(), "{known}");
        let wished = site.scope.at(177).to_string();
        site.ask_as("wished", &[(KUBE_VIP_REQUESTED_IP, &wished)]).await?;
        let has = site.has("wished").await?;
        ensure!(has == wished, "{has}, not {wished}");
        Ok(())
    })
}

/// kube-vip releases its address when its Service goes. A LoadBalancer that then requests it as
/// kube-vip gets it again, before a new client. A LoadBalancer whose annotation makes a client
/// identifier of its hardware address gets the address reserved for that identifier.
async fn given_back(mut site: Site) -> Result<()> {
    let _agent = site.agent().await?;
    let _operator = site.operator(600).await?;
    let (mut kube_vip, leased) = site.kube_vip().await?;
    // Its RELEASE comes from the address, which goes with its interface.
    kube_vip.machine.ip(&format!("address add {leased}/24 dev eth0")).await?;
    kube_vip.client.terminate(LATER).await?;
    eventually(LATER, "release by kube-vip", async || {
        site.server.granted_to(KUBE_VIPS).await.map(|granted| granted.is_none())
    })
    .await?;
    kube_vip.machine.ip("link delete eth0").await?;
    let adopt = [(KUBE_VIP_HWADDR, KUBE_VIPS), (KUBE_VIP_REQUESTED_IP, leased.as_str())];
    site.ask_as("adopted", &adopt).await?;
    let adopted = site.has("adopted").await?;
    ensure!(adopted == leased, "{leased} became {adopted}");
    site.ask_as("known", &[(KUBE_VIP_HWADDR, KNOWN), (ANNOTATION_DHCP_CLIENT_ID, "mac")]).await?;
    let known = site.has("known").await?;
    ensure!(known == site.scope.at(150).to_string(), "{known}");
    Ok(())
}

fn kept_for_an_identifier() -> Scope {
    let id = Reservation::ClientId(format!("01:{KNOWN}"));
    Scope::new([10, 77, 0, 1]).reserve(id, 150)
}

#[test]
fn kea_gives_what_kube_vip_gave_back_to_who_asks_as_kube_vip() -> Result<()> {
    on_site(Kind::Kea, kept_for_an_identifier(), given_back)
}

#[test]
fn dhcpd_gives_what_kube_vip_gave_back_to_who_asks_as_kube_vip() -> Result<()> {
    // Outside of its range: dhcpd reserves no address within it for a host.
    let scope = kept_for_an_identifier().range(160, 199);
    on_site(Kind::Isc, scope, given_back)
}
