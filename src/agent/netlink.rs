//! Network interfaces of the leases, called links. Each lease has one macvlan in mode `source`,
//! with an empty list of allowed source addresses, and without an IP address.
//!
//! A link makes its parent interface accept frames to the link's hardware address. The link itself
//! receives no frame. In other modes, the kernel would copy each broadcast of the network to each
//! link.
//!
//! Invariants:
//!
//! * An agent changes or removes only links for which [`KernelLinks::is_ours`] is true.
//! * The name of a link contains its hardware address. So an agent finds the link that an earlier
//!   agent made for the same lease.
//! * Notifications of the kernel arrive on a socket of their own. When the buffer of a socket is
//!   full, the kernel drops messages. On a shared socket, it would also drop answers to requests.

use std::collections::HashSet;
use std::io;

use futures::channel::mpsc::UnboundedReceiver;
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoMacVlan, LinkAttribute, LinkFlags,
    LinkInfo, LinkMessage, MacVlanMode,
};
use rtnetlink::sys::SocketAddr;
use rtnetlink::{
    Error, Handle, LinkMacVlan, LinkUnspec, MulticastGroup, new_connection,
    new_multicast_connection,
};

use crate::domain::dhcp::Mac;
use crate::domain::dhcp_lease::agent_name;

/// Error code of the kernel for a link that exists already: -EEXIST.
const EXISTS: i32 = -17;
/// Error code of the kernel for a link that does not exist: -ENODEV.
const NO_SUCH_DEVICE: i32 = -19;
/// Lowest number for the interface group in which several links are removed together. The search
/// for a number that no link uses starts here.
const FIRST_GROUP: u32 = 0x6c62_0000;

type Messages = UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>;

/// Access to the links of the kernel, by netlink.
#[derive(Clone, Debug)]
pub(super) struct KernelLinks {
    handle: Handle,
    /// First word in the alias of each link of this network.
    mark: String,
}

/// Receiver of the kernel's notifications about links.
pub(super) struct LinkChanges {
    messages: Messages,
    links: KernelLinks,
    /// Running request that lists all links, after the kernel has dropped notifications. The
    /// request is kept here, because any other event of the agent drops the future of
    /// [`LinkChanges::next`]. A request inside that future might never finish. `None`: no request
    /// is running.
    listing: Option<BoxFuture<'static, Result<Vec<KernelLink>, Error>>>,
}

/// State of a network interface in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KernelLink {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) mac: Option<Mac>,
    pub(super) parent: Option<u32>,
    pub(super) alias: String,
    /// Whether the interface is up and has carrier.
    pub(super) carries: bool,
    /// Interface group to which the link belongs.
    pub(super) group: u32,
    /// Mode of the macvlan. `None`: the interface is not a macvlan.
    pub(super) mode: Option<MacVlanMode>,
    /// Whether the interface is a macvlan in mode `source` that is up and has ARP off.
    pub(super) ready: bool,
}

/// Change of the network interfaces in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LinkChange {
    /// The interface is new, or has changed. The value is its new state.
    Is(KernelLink),
    /// The interface was removed. The value is its last state.
    Gone(KernelLink),
    /// Notifications were lost. The value lists all interfaces that exist now.
    All(Vec<KernelLink>),
}

impl KernelLinks {
    /// Connects to netlink. Notifications are received from this call on.
    pub(super) fn connect(network: &str) -> io::Result<(Self, LinkChanges)> {
        let (connection, _, messages) = new_multicast_connection(&[MulticastGroup::Link])?;
        tokio::spawn(connection);
        let (connection, handle, _) = new_connection()?;
        tokio::spawn(connection);
        let links = Self { handle, mark: agent_name(network) };
        Ok((links.clone(), LinkChanges { messages, links, listing: None }))
    }

    /// Lists all interfaces of the network namespace.
    pub(super) async fn all(&self) -> Result<Vec<KernelLink>, Error> {
        self.handle.link().get().execute().map_ok(read).try_collect().await
    }

    /// Whether an agent of this network may change or remove the link. One of these must hold:
    ///
    /// * The first word of the link's alias is the mark of this network.
    /// * The link has no alias, its name is the [`name`] for its hardware address, and its mode is
    ///   `source`, or `private` as in earlier versions. An agent that crashes before it sets the
    ///   alias leaves such a link.
    pub(super) fn is_ours(&self, link: &KernelLink) -> bool {
        let made = matches!(link.mode, Some(MacVlanMode::Source | MacVlanMode::Private));
        let unmarked = link.alias.is_empty() && made;
        link.alias.split(' ').next() == Some(&self.mark)
            || (unmarked && link.mac.is_some_and(|mac| link.name == name(mac)))
    }

    /// Makes the link of a lease and turns it on. An existing link of the lease stays if it is
    /// configured correctly, and is replaced otherwise. `Err`: a request failed, or an interface
    /// that [`Self::is_ours`] does not accept has the name of the link. `parent`: index of the
    /// interface that carries the link. `lease`: `namespace/name` of the lease's record.
    pub(super) async fn make(&self, parent: u32, mac: Mac, lease: &str) -> Result<(), Error> {
        let (name, alias) = (name(mac), self.alias(lease));
        match self.add(parent, mac, &name, &alias).await {
            Err(error) if has_code(&error, EXISTS) => {}
            answer => return answer,
        }
        let Some(link) = self.by_name(&name).await? else {
            return self.add(parent, mac, &name, &alias).await;
        };
        if link.mac == Some(mac) && link.parent == Some(parent) && link.ready && link.alias == alias
        {
            return Ok(());
        }
        self.remove(&name).await?;
        self.add(parent, mac, &name, &alias).await
    }

    /// Adds a link. ARP and IPv6 addresses are turned off before the link goes up, so the link
    /// sends no frame by itself. With ARP on, the link would also answer for the machine's own
    /// addresses.
    async fn add(&self, parent: u32, mac: Mac, name: &str, alias: &str) -> Result<(), Error> {
        let link =
            LinkMacVlan::new(name, parent, MacVlanMode::Source).address(mac.0.to_vec()).arp(false);
        self.handle.link().add(link.build()).execute().await?;
        // The kernel ignores the alias in a request that makes a link.
        let alias = LinkUnspec::new_with_name(name).alias(alias);
        self.handle.link().set(alias.build()).execute().await?;
        let quiet = AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)]);
        let quiet = LinkUnspec::new_with_name(name)
            .append_extra_attribute(LinkAttribute::AfSpecUnspec(vec![quiet]));
        if let Err(error) = self.handle.link().set(quiet.build()).execute().await {
            // This error is expected on a machine without IPv6.
            tracing::debug!(name, %error, "cannot turn off IPv6 addresses on the link");
        }
        let up = LinkUnspec::new_with_name(name).up();
        let done = self.handle.link().set(up.build()).execute().await;
        if done.is_err() {
            self.remove(name).await?;
        }
        done
    }

    /// Removes the link with this name, if an agent of this network made it. The kernel takes about
    /// 20 ms for this.
    pub(super) async fn remove(&self, name: &str) -> Result<(), Error> {
        let Some(link) = self.by_name(name).await? else { return Ok(()) };
        if !self.is_ours(&link) {
            return Ok(());
        }
        gone_or(self.handle.link().del(link.index).execute().await)
    }

    /// Removes the links of the network. A link stays if `needed` contains its name and the link is
    /// [ready](KernelLink::ready). Returns the names of the removed links. The kernel removes the
    /// links as one group. This takes little longer than the removal of one link.
    pub(super) async fn remove_all_but(
        &self,
        needed: &HashSet<String>,
    ) -> Result<Vec<String>, Error> {
        let all = self.all().await?;
        let taken: HashSet<u32> = all.iter().map(|link| link.group).collect();
        let stays = |link: &KernelLink| link.ready && needed.contains(&link.name);
        let left = all.into_iter().filter(|link| self.is_ours(link) && !stays(link));
        let left: Vec<KernelLink> = left.collect();
        let free = (FIRST_GROUP..u32::MAX).find(|group| !taken.contains(group));
        let Some(group) = free.filter(|_| !left.is_empty()) else { return Ok(Vec::new()) };
        for link in &left {
            let grouped = LinkUnspec::new_with_index(link.index);
            let grouped = grouped.append_extra_attribute(LinkAttribute::Group(group)).build();
            gone_or(self.handle.link().set(grouped).execute().await)?;
        }
        let mut remove = self.handle.link().del(0);
        remove.message_mut().attributes.push(LinkAttribute::Group(group));
        gone_or(remove.execute().await)?;
        Ok(left.into_iter().map(|link| link.name).collect())
    }

    /// Reads the interface with this name. `None`: no interface has this name.
    pub(super) async fn by_name(&self, name: &str) -> Result<Option<KernelLink>, Error> {
        let mut found = self.handle.link().get().match_name(name.to_owned()).execute();
        match found.try_next().await {
            Ok(link) => Ok(link.map(read)),
            Err(error) if has_code(&error, NO_SUCH_DEVICE) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Alias of a lease's link. The kernel accepts at most 255 octets, so the alias is cut to 250.
    /// The end of the lease's name may be lost, but no program reads this name.
    fn alias(&self, lease: &str) -> String {
        let mut alias = format!("{} {lease}", self.mark);
        alias.truncate(250);
        alias
    }
}

impl LinkChanges {
    /// Waits for the next change. `None`: the kernel sends no more notifications, or the links
    /// cannot be listed. If the future is dropped, no change is lost.
    pub(super) async fn next(&mut self) -> Option<LinkChange> {
        loop {
            if let Some(listing) = &mut self.listing {
                let all = listing.await;
                self.listing = None;
                match all {
                    Ok(all) => return Some(LinkChange::All(all)),
                    Err(error) => {
                        tracing::warn!(%error, "cannot list the links");
                        return None;
                    }
                }
            }
            match self.messages.next().await?.0.payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => {
                    return Some(LinkChange::Is(read(link)));
                }
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link)) => {
                    return Some(LinkChange::Gone(read(link)));
                }
                NetlinkPayload::Overrun(_) => {
                    let links = self.links.clone();
                    self.listing = Some(async move { links.all().await }.boxed());
                }
                _ => {}
            }
        }
    }
}

/// Name of a lease's link: `lb`, then the hardware address without colons.
pub(super) fn name(mac: Mac) -> String {
    format!("lb{}", mac.to_string().replace(':', ""))
}

/// Turns the error for a link that does not exist into a success.
fn gone_or(answer: Result<(), Error>) -> Result<(), Error> {
    match answer {
        Err(error) if has_code(&error, NO_SUCH_DEVICE) => Ok(()),
        answer => answer,
    }
}

/// Whether the error is the answer of the kernel with this code.
fn has_code(error: &Error, code: i32) -> bool {
    matches!(error, Error::NetlinkError(message)
        if message.code.is_some_and(|found| found.get() == code))
}

fn read(message: LinkMessage) -> KernelLink {
    let flags = message.header.flags;
    let mut link = KernelLink {
        index: message.header.index,
        carries: flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
        ..KernelLink::default()
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Address(mac) => link.mac = mac.try_into().ok().map(Mac),
            LinkAttribute::Link(parent) => link.parent = Some(parent),
            LinkAttribute::IfAlias(alias) => link.alias = alias,
            LinkAttribute::Group(group) => link.group = group,
            LinkAttribute::LinkInfo(infos) => {
                link.mode = infos.into_iter().find_map(mode);
                link.ready = link.mode == Some(MacVlanMode::Source)
                    && flags.contains(LinkFlags::Up | LinkFlags::Noarp);
            }
            _ => {}
        }
    }
    link
}

/// Mode of a macvlan, read from its link information. `None`: the information states no mode.
fn mode(info: LinkInfo) -> Option<MacVlanMode> {
    let LinkInfo::Data(InfoData::MacVlan(data)) = info else { return None };
    data.into_iter().find_map(|one| match one {
        InfoMacVlan::Mode(mode) => Some(mode),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::channel::mpsc::unbounded;
    use rtnetlink::packet_core::NetlinkHeader;

    use super::*;

    /// A busy agent drops the future of `next` whenever another event comes first. The list of all
    /// links must arrive nevertheless.
    #[tokio::test]
    async fn a_look_at_all_links_goes_on_while_there_is_other_work() {
        let (links, _) = KernelLinks::connect("default/lan").unwrap();
        let (sender, messages) = unbounded();
        let mut changes = LinkChanges { messages, links, listing: None };
        let lost = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::Overrun(vec![]));
        sender.unbounded_send((lost, SocketAddr::new(0, 0))).unwrap();
        let change = async {
            loop {
                if let Some(change) = changes.next().now_or_never() {
                    break change;
                }
                tokio::task::yield_now().await;
            }
        };
        let change = tokio::time::timeout(Duration::from_secs(30), change).await.unwrap();
        let Some(LinkChange::All(all)) = change else { panic!("{change:?}") };
        assert!(all.iter().any(|link| link.name == "lo"), "{all:?}");
    }
}
