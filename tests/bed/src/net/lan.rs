//! Owns a small network: a bridge in the host's namespace, and machines attached to it.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};

use super::Netns;

/// A bridge. It is part of the host's namespace and goes with it.
#[derive(Debug)]
pub struct Lan {
    host: Netns,
    bridge: String,
    gateway: String,
    prefix: String,
    ports: AtomicU32,
}

impl Lan {
    /// Makes a bridge on the host with an address such as `10.200.0.1/24`, and makes the host
    /// route. The name of a bridge has at most 8 letters.
    pub async fn new(host: &Netns, bridge: &str, address: &str) -> Result<Self> {
        let (gateway, prefix) = address.split_once('/').context("an address without prefix")?;
        host.ip(&format!("link add name {bridge} type bridge")).await?;
        host.ip(&format!("address add {address} dev {bridge}")).await?;
        host.ip(&format!("link set {bridge} up")).await?;
        host.sysctl("net/ipv4/ip_forward", "1").await?;
        // Without this limit off, the kernel sends only about one ICMP error a second.
        host.sysctl("net/ipv4/icmp_ratelimit", "0").await?;
        Ok(Self {
            host: host.clone(),
            bridge: bridge.to_owned(),
            gateway: gateway.to_owned(),
            prefix: prefix.to_owned(),
            ports: AtomicU32::new(0),
        })
    }

    /// Namespace of the bridge.
    pub fn host(&self) -> &Netns {
        &self.host
    }

    /// The bridge's name on the host.
    pub fn bridge(&self) -> &str {
        &self.bridge
    }

    /// Attaches a new machine: a namespace whose `eth0` has the address, with the host as its
    /// gateway.
    pub async fn attach(&self, label: &str, address: &str) -> Result<Netns> {
        let machine = Netns::new(label).await?;
        let port = format!("{}-{}", self.bridge, self.ports.fetch_add(1, Ordering::Relaxed));
        let there = machine.path();
        let pair =
            format!("link add name {port} type veth peer name eth0 netns {}", there.display());
        self.host.ip(&pair).await?;
        self.host.ip(&format!("link set {port} master {} up", self.bridge)).await?;
        machine.ip(&format!("address add {address}/{} dev eth0", self.prefix)).await?;
        machine.ip("link set eth0 up").await?;
        machine.ip(&format!("route add default via {}", self.gateway)).await?;
        Ok(machine)
    }

    /// Gives the host a further address on the bridge, as an announcer does with a Service's.
    pub async fn bind(&self, address: &str) -> Result<()> {
        self.host.ip(&format!("address replace {address}/32 dev {}", self.bridge)).await?;
        Ok(())
    }

    /// Removes such an address.
    pub async fn unbind(&self, address: &str) -> Result<()> {
        self.host.ip(&format!("address delete {address}/32 dev {}", self.bridge)).await?;
        Ok(())
    }
}
