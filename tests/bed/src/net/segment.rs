//! Owns a piece of Ethernet: a switch in a namespace of its own, without an address, and who hangs on it.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;

use super::Netns;

/// A switch. It goes with its last port.
#[derive(Debug)]
pub struct Segment {
    switch: Netns,
    ports: AtomicU32,
}

impl Segment {
    /// Makes a switch that learns and forwards at once.
    pub async fn new(label: &str) -> Result<Self> {
        let switch = Netns::new(label).await?;
        // Nobody here speaks IPv6, and what it says by itself is nobody's business.
        switch.sysctl("net/ipv6/conf/default/disable_ipv6", "1").await?;
        switch.ip("link add name br0 type bridge forward_delay 0").await?;
        switch.ip("link set br0 up").await?;
        Ok(Self { switch, ports: AtomicU32::new(0) })
    }

    /// Where the switch is, to look at or to listen on its ports.
    pub fn switch(&self) -> &Netns {
        &self.switch
    }

    /// Puts an interface into a namespace, its cable in the switch. Returns the switch's port.
    pub async fn plug(&self, into: &Netns, interface: &str) -> Result<String> {
        let port = format!("port{}", self.ports.fetch_add(1, Ordering::Relaxed));
        let there = into.path();
        let pair = format!(
            "link add name {port} type veth peer name {interface} netns {}",
            there.display()
        );
        self.switch.ip(&pair).await?;
        self.switch.ip(&format!("link set {port} master br0 up")).await?;
        into.sysctl(&format!("net/ipv6/conf/{interface}/disable_ipv6"), "1").await?;
        into.ip(&format!("link set {interface} up")).await?;
        Ok(port)
    }

    /// A new machine: a namespace whose `eth0` has the address, such as `10.77.0.1/24`.
    pub async fn attach(&self, label: &str, address: &str) -> Result<Netns> {
        let machine = Netns::new(label).await?;
        self.plug(&machine, "eth0").await?;
        machine.ip(&format!("address add {address} dev eth0")).await?;
        Ok(machine)
    }

    /// Pulls the cable out of a port, or puts it in again.
    pub async fn cable(&self, port: &str, plugged: bool) -> Result<()> {
        let state = if plugged { "up" } else { "down" };
        self.switch.ip(&format!("link set {port} {state}")).await?;
        Ok(())
    }
}
