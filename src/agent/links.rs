//! Owns the leases' interfaces: one macvlan each, in mode `source` without any source, without an address.
//!
//! Such a link claims its hardware address on the interface that it is on, and is handed no frame: in another
//! mode the kernel copies each broadcast of the network to each link.
//!
//! Invariants: a link's alias says whose it is, and only links with this network's alias are ever
//! touched; its name says its hardware address, so a lease finds the one that it had. What a crash
//! leaves behind is told by the alias and removed. What the kernel tells by itself comes through a
//! socket of its own: it drops what it cannot deliver, and an answer may not be among that.

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

use crate::domain::dhcp::{Mac, agent_name};

/// What the kernel answers.
const EXISTS: i32 = -17;
const NO_SUCH_DEVICE: i32 = -19;
/// The first group that links are put into to be removed together; the next that is free is taken.
const FIRST_GROUP: u32 = 0x6c62_0000;

type Messages = UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>;

/// The way to the kernel's links.
#[derive(Clone, Debug)]
pub(super) struct Links {
    handle: Handle,
    /// What the alias of each of the network's links begins with.
    mark: String,
}

/// What the kernel tells by itself.
pub(super) struct Changes {
    messages: Messages,
    links: Links,
    /// A look at all links, since the kernel dropped a message for want of room. Kept while
    /// the agent does something else: it takes longer the more links there are.
    look: Option<BoxFuture<'static, Result<Vec<Link>, Error>>>,
}

/// What is known of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) mac: Option<Mac>,
    pub(super) parent: Option<u32>,
    pub(super) alias: String,
    /// Whether it is up, and its cable plugged in.
    pub(super) carries: bool,
    /// The group of links that it is in.
    pub(super) group: u32,
    /// The mode of a macvlan.
    pub(super) mode: Option<MacVlanMode>,
    /// Whether it is up, and set as it is to be.
    pub(super) ready: bool,
}

/// Something happened to a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It is new, or different.
    Is(Link),
    /// It is no more.
    Gone(Link),
    /// Nobody knows what happened, but these are all there are.
    All(Vec<Link>),
}

impl Links {
    /// Opens the way. What happens from now on is told.
    pub(super) fn connect(network: &str) -> io::Result<(Self, Changes)> {
        let (connection, _, messages) = new_multicast_connection(&[MulticastGroup::Link])?;
        tokio::spawn(connection);
        let (connection, handle, _) = new_connection()?;
        tokio::spawn(connection);
        let links = Self { handle, mark: agent_name(network) };
        Ok((links.clone(), Changes { messages, links, look: None }))
    }

    /// All links there are.
    pub(super) async fn all(&self) -> Result<Vec<Link>, Error> {
        self.handle.link().get().execute().map_ok(read).try_collect().await
    }

    /// Whether this agent, or one before it, made the link for this network.
    ///
    /// A link that was made and not yet marked when its agent crashed is known by its name. Agents of
    /// earlier versions made private ones.
    pub(super) fn is_ours(&self, link: &Link) -> bool {
        let made = matches!(link.mode, Some(MacVlanMode::Source | MacVlanMode::Private));
        let unmarked = link.alias.is_empty() && made;
        link.alias.split(' ').next() == Some(&self.mark)
            || (unmarked && link.mac.is_some_and(|mac| link.name == name(mac)))
    }

    /// Makes the link of a lease, up. One that is there already is taken if it is as it would be
    /// made, and replaced if it is not.
    pub(super) async fn make(&self, parent: u32, mac: Mac, lease: &str) -> Result<(), Error> {
        let (name, alias) = (name(mac), self.alias(lease));
        match self.add(parent, mac, &name, &alias).await {
            Err(error) if is(&error, EXISTS) => {}
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

    /// Up, with all set before that, so that it never says a word by itself: it answers nobody's
    /// ARP, for the machine's own addresses would be answered for there too, and the kernel gives
    /// it no address of IPv6.
    async fn add(&self, parent: u32, mac: Mac, name: &str, alias: &str) -> Result<(), Error> {
        let link =
            LinkMacVlan::new(name, parent, MacVlanMode::Source).address(mac.0.to_vec()).arp(false);
        self.handle.link().add(link.build()).execute().await?;
        // Of a link that it is about to make, the kernel ignores the alias.
        let alias = LinkUnspec::new_with_name(name).alias(alias);
        self.handle.link().set(alias.build()).execute().await?;
        let quiet = AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)]);
        let quiet = LinkUnspec::new_with_name(name)
            .append_extra_attribute(LinkAttribute::AfSpecUnspec(vec![quiet]));
        if let Err(error) = self.handle.link().set(quiet.build()).execute().await {
            // As it should be where there is no IPv6.
            tracing::debug!(name, %error, "addresses of IPv6 are left to the kernel");
        }
        let up = LinkUnspec::new_with_name(name).up();
        let done = self.handle.link().set(up.build()).execute().await;
        if done.is_err() {
            self.remove(name).await?;
        }
        done
    }

    /// Removes a link. It takes the kernel some 20 ms.
    pub(super) async fn remove(&self, name: &str) -> Result<(), Error> {
        let Some(link) = self.by_name(name).await? else { return Ok(()) };
        if !self.is_ours(&link) {
            return Ok(());
        }
        gone_or(self.handle.link().del(link.index).execute().await)
    }

    /// Removes all links of the network but those of these names that are as they are to be, and returns
    /// the names of those that it removed. They go as a group, which takes the kernel hardly longer than one.
    pub(super) async fn remove_all_but(
        &self,
        needed: &HashSet<String>,
    ) -> Result<Vec<String>, Error> {
        let all = self.all().await?;
        let taken: HashSet<u32> = all.iter().map(|link| link.group).collect();
        let stays = |link: &Link| link.ready && needed.contains(&link.name);
        let left = all.into_iter().filter(|link| self.is_ours(link) && !stays(link));
        let left: Vec<Link> = left.collect();
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

    /// The link by a name.
    pub(super) async fn by_name(&self, name: &str) -> Result<Option<Link>, Error> {
        let mut found = self.handle.link().get().match_name(name.to_owned()).execute();
        match found.try_next().await {
            Ok(link) => Ok(link.map(read)),
            Err(error) if is(&error, NO_SUCH_DEVICE) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The kernel takes 255 octets. What does not fit is left out at the end, where it only tells
    /// people whose it is.
    fn alias(&self, lease: &str) -> String {
        let mut alias = format!("{} {lease}", self.mark);
        alias.truncate(250);
        alias
    }
}

impl Changes {
    /// The next change, or nothing if the kernel does not tell any more. May be dropped while it
    /// waits.
    pub(super) async fn next(&mut self) -> Option<Change> {
        loop {
            if let Some(look) = &mut self.look {
                let all = look.await;
                self.look = None;
                match all {
                    Ok(all) => return Some(Change::All(all)),
                    Err(error) => {
                        tracing::warn!(%error, "cannot look at links");
                        return None;
                    }
                }
            }
            match self.messages.next().await?.0.payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => {
                    return Some(Change::Is(read(link)));
                }
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link)) => {
                    return Some(Change::Gone(read(link)));
                }
                NetlinkPayload::Overrun(_) => {
                    let links = self.links.clone();
                    self.look = Some(async move { links.all().await }.boxed());
                }
                _ => {}
            }
        }
    }
}

/// The name of a lease's link.
pub(super) fn name(mac: Mac) -> String {
    format!("lb{}", mac.to_string().replace(':', ""))
}

/// Passes over a link that is gone already.
fn gone_or(answer: Result<(), Error>) -> Result<(), Error> {
    match answer {
        Err(error) if is(&error, NO_SUCH_DEVICE) => Ok(()),
        answer => answer,
    }
}

fn is(error: &Error, code: i32) -> bool {
    matches!(error, Error::NetlinkError(message)
        if message.code.is_some_and(|found| found.get() == code))
}

fn read(message: LinkMessage) -> Link {
    let flags = message.header.flags;
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        mac: None,
        parent: None,
        alias: String::new(),
        carries: flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
        group: 0,
        mode: None,
        ready: false,
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

/// The mode of a macvlan.
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

    /// An agent that is busy drops its wait for the kernel's word each time that something else comes.
    #[tokio::test]
    async fn a_look_at_all_links_goes_on_while_there_is_other_work() {
        let (links, _) = Links::connect("default/lan").unwrap();
        let (tell, messages) = unbounded();
        let mut changes = Changes { messages, links, look: None };
        let lost = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::Overrun(vec![]));
        tell.unbounded_send((lost, SocketAddr::new(0, 0))).unwrap();
        let change = async {
            loop {
                if let Some(change) = changes.next().now_or_never() {
                    break change;
                }
                tokio::task::yield_now().await;
            }
        };
        let change = tokio::time::timeout(Duration::from_secs(30), change).await.unwrap();
        let Some(Change::All(all)) = change else { panic!("{change:?}") };
        assert!(all.iter().any(|link| link.name == "lo"), "{all:?}");
    }
}
