//! Owns an Ethernet segment: a switch in a namespace of its own, without an address, and the
//! machines attached to it.

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
    /// Makes a switch that forwards without delay.
    pub async fn new(label: &str) -> Result<Self> {
        let switch = Netns::new(label).await?;
        // No test here uses IPv6, and its automatic messages would be noise.
        switch.sysctl("net/ipv6/conf/default/disable_ipv6", "1").await?;
        switch.ip("link add name br0 type bridge forward_delay 0").await?;
        switch.ip("link set br0 up").await?;
        Ok(Self { switch, ports: AtomicU32::new(0) })
    }

    /// Namespace of the switch, to observe or capture on its ports.
    pub fn switch(&self) -> &Netns {
        &self.switch
    }

    /// Puts an interface into a namespace, connected to the switch. Returns the switch's port.
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

    /// Attaches a new machine: a namespace whose `eth0` has the address, such as `10.77.0.1/24`.
    pub async fn attach(&self, label: &str, address: &str) -> Result<Netns> {
        let machine = Netns::new(label).await?;
        self.plug(&machine, "eth0").await?;
        machine.ip(&format!("address add {address} dev eth0")).await?;
        Ok(machine)
    }

    /// Disconnects a port, or connects it again.
    pub async fn cable(&self, port: &str, plugged: bool) -> Result<()> {
        let state = if plugged { "up" } else { "down" };
        self.switch.ip(&format!("link set {port} {state}")).await?;
        Ok(())
    }
}
