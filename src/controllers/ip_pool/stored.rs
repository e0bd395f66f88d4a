//! Pool as the ledger task last read or wrote it.

use std::net::IpAddr;
use std::sync::Arc;

use kube::core::ObjectMeta;
use kube::{Resource, ResourceExt};

use crate::api::{
    ANNOTATION_KEEP_ORPHANS, ANNOTATION_MANUAL_RELEASE, Condition, IPPool, IPPoolStatus,
};
use crate::domain::Owner;

/// Stored pool, as the ledger task last read or wrote the pool.
pub(super) struct StoredPool {
    pub(super) version: String,
    pub(super) uid: String,
    pub(super) generation: Option<i64>,
    pub(super) deleting: bool,
    pub(super) finalizers: Vec<String>,
    pub(super) status: Arc<IPPoolStatus>,
    /// Value of the annotation that requests a manual release. `None`: the pool has no such
    /// annotation.
    pub(super) manual: Option<String>,
    /// Condition with the reason why the manual release was refused. `None`: no release was
    /// refused.
    pub(super) notice: Option<Condition>,
    /// Whether the pool keeps its orphans, because it has the annotation
    /// [`ANNOTATION_KEEP_ORPHANS`].
    pub(super) keeps_orphans: bool,
}

impl StoredPool {
    pub(super) fn new(pool: &IPPool) -> Self {
        let mut stored = Self {
            version: String::new(),
            uid: pool.uid().unwrap_or_default(),
            generation: None,
            deleting: false,
            finalizers: Vec::new(),
            status: Arc::new(pool.status.clone().unwrap_or_default()),
            manual: pool.annotations().get(ANNOTATION_MANUAL_RELEASE).cloned(),
            notice: None,
            keeps_orphans: pool.annotations().contains_key(ANNOTATION_KEEP_ORPHANS),
        };
        stored.update(pool.meta());
        stored
    }

    /// Takes over the metadata that the API server returned for a write.
    pub(super) fn update(&mut self, meta: &ObjectMeta) {
        self.version = meta.resource_version.clone().unwrap_or_default();
        self.generation = meta.generation;
        self.deleting = meta.deletion_timestamp.is_some();
        self.finalizers = meta.finalizers.clone().unwrap_or_default();
    }

    /// Whether the stored ledger records the address for this owner, by name and UID.
    pub(super) fn names(&self, ip: IpAddr, owner: &Owner) -> bool {
        let ip = ip.to_string();
        self.status.allocated.get(&ip) == Some(&owner.name)
            && self.status.allocated_owners.get(&ip) == Some(&owner.uid)
    }
}
