//! The view of IPPools: which there are, and in which version.

use std::collections::HashSet;

use kube::core::PartialObjectMeta;
use kube::{Api, ResourceExt};
use kube_runtime::watcher::{Config, Event};

use super::{Informer, Part, Signal};
use crate::api::IPPool;
use crate::k8s::informer;

pub(super) async fn watch(at: Informer) {
    let Informer { client, views, metrics, .. } = at.clone();
    let mut known: HashSet<String> = HashSet::new();
    let mut listed: HashSet<String> = HashSet::new();
    // Metadata only: a ledger of thousands of entries is not sent again for every claim.
    let api = Api::<PartialObjectMeta<IPPool>>::all(client);
    let tell = |pool: &PartialObjectMeta<IPPool>| {
        views.tell(Signal::Pool(pool.name_any(), pool.resource_version().unwrap_or_default()));
    };
    informer::run(api, Config::default(), "IPPool", &metrics, |event| match event {
        Event::Init => listed.clear(),
        Event::InitApply(pool) => {
            listed.insert(pool.name_any());
            tell(&pool);
        }
        Event::InitDone => {
            for name in known.difference(&listed) {
                views.tell(Signal::PoolGone(name.clone()));
            }
            known = std::mem::take(&mut listed);
            at.done(Part::Pools);
        }
        Event::Apply(pool) => {
            known.insert(pool.name_any());
            tell(&pool);
        }
        Event::Delete(pool) => {
            known.remove(&pool.name_any());
            views.tell(Signal::PoolGone(pool.name_any()));
        }
    })
    .await;
}
