//! Watches pools and LoadBalancers, and waits for conditions on them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, TryStreamExt as _};
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, WatchEvent, WatchParams};
use testbed::{Probe, eventually};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::PATIENCE;
use crate::objects::{Balancer, Pool, all_balancers, pools};
use crate::scene::{News, Scene};

/// Watch timeout; less than the silence that ends the client's calls.
const WATCH_SECONDS: u32 = 25;
const PAUSE: Duration = Duration::from_millis(200);

/// The scene, kept up to date by two watches that end when it is dropped.
pub(crate) struct World {
    pub(crate) scene: Scene,
    news: UnboundedReceiver<(Instant, News)>,
    _watches: JoinSet<()>,
}

/// Conversions of watched objects into news.
struct Lens {
    all: fn(&[DynamicObject]) -> News,
    one: fn(&DynamicObject) -> News,
    gone: fn(&DynamicObject) -> News,
}

const POOLS: Lens = Lens {
    all: |list| News::Pools(list.iter().map(Pool::read).collect()),
    one: |object| News::Pool(Pool::read(object)),
    gone: |object| News::PoolGone(Pool::read(object).name),
};

const BALANCERS: Lens = Lens {
    all: |list| News::Balancers(list.iter().map(Balancer::read).collect()),
    one: |object| News::Balancer(Balancer::read(object)),
    gone: |object| News::BalancerGone(Balancer::read(object).key),
};

impl World {
    pub(crate) fn watch(client: &Client) -> Self {
        let (sender, news) = unbounded_channel();
        let mut watches = JoinSet::new();
        watches.spawn(follow(pools(client), POOLS, sender.clone()));
        watches.spawn(follow(all_balancers(client), BALANCERS, sender));
        Self { scene: Scene::default(), news, _watches: watches }
    }

    /// Checks the scene after every change until `look` returns a value. After the deadline the
    /// error names `what` and the result of the last check.
    pub(crate) async fn until<P: Probe>(
        &mut self,
        deadline: Duration,
        what: &str,
        mut look: impl FnMut(&Scene) -> P,
    ) -> Result<P::Value> {
        let end = Instant::now() + deadline;
        loop {
            let last = match look(&self.scene).settle() {
                Ok(value) => return Ok(value),
                Err(why) => why,
            };
            let left = end.saturating_duration_since(Instant::now());
            match timeout(left, self.change()).await {
                Ok(changed) => changed?,
                Err(_) => bail!("no {what} within {deadline:?}; last result: {last}"),
            }
        }
    }

    /// Waits for news and applies all that are queued.
    pub(crate) async fn change(&mut self) -> Result<()> {
        let (at, first) = self.news.recv().await.context("the watches have ended")?;
        self.scene.note(at, first);
        while let Ok((at, more)) = self.news.try_recv() {
            self.scene.note(at, more);
        }
        Ok(())
    }
}

/// Waits until both kinds can be watched: for a moment after it has established a new kind, the API
/// server answers that its storage is being initialized.
pub(crate) async fn watchable(client: &Client) -> Result<()> {
    for api in [pools(client), all_balancers(client)] {
        eventually(PATIENCE, "watch of a new kind", async || {
            api.watch(&WatchParams::default(), "0").await.map(|_| true)
        })
        .await?;
    }
    Ok(())
}

/// Sends the list and all changes, until the receiver is dropped.
async fn follow(api: Api<DynamicObject>, lens: Lens, sender: UnboundedSender<(Instant, News)>) {
    while !sender.is_closed() {
        // A new list makes up for the events that were missed, whatever ended the watch.
        if follow_once(&api, &lens, &sender).await.is_err() {
            sleep(PAUSE).await;
        }
    }
}

async fn follow_once(
    api: &Api<DynamicObject>,
    lens: &Lens,
    sender: &UnboundedSender<(Instant, News)>,
) -> Result<()> {
    let list = api.list(&ListParams::default()).await?;
    sender.send((Instant::now(), (lens.all)(&list.items)))?;
    let version = list.metadata.resource_version.context("a list without a version")?;
    let params = WatchParams::default().timeout(WATCH_SECONDS);
    let mut events = api.watch(&params, &version).await?.boxed();
    while let Some(event) = events.try_next().await? {
        let news = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => (lens.one)(&object),
            WatchEvent::Deleted(object) => (lens.gone)(&object),
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(status) => bail!("{}", status.message),
        };
        sender.send((Instant::now(), news))?;
    }
    Ok(())
}
