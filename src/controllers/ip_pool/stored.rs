//! Pool as the ledger task last read or wrote it.

use std::net::IpAddr;

use kube::core::ObjectMeta;

use crate::api::{
    ANNOTATION_KEEP_ORPHANS, ANNOTATION_MANUAL_RELEASE, Condition, IPPool, IPPoolStatus,
};
use crate::domain::Owner;

/// Stored pool, as the ledger task last read or wrote the pool.
pub(super) struct StoredPool {
    /// Metadata of the pool, without the managed fields.
    pub(super) meta: ObjectMeta,
    pub(super) status: IPPoolStatus,
    /// Condition with the reason why the manual release was refused. `None`: no release was
    /// refused.
    pub(super) notice: Option<Condition>,
}

impl StoredPool {
    pub(super) fn new(pool: &IPPool) -> Self {
        let status = pool.status.clone().unwrap_or_default();
        let mut stored = Self { meta: ObjectMeta::default(), status, notice: None };
        stored.update(pool.metadata.clone());
        stored
    }

    /// Takes over the metadata that the API server returned.
    pub(super) fn update(&mut self, meta: ObjectMeta) {
        self.meta = ObjectMeta { managed_fields: None, ..meta };
    }

    /// Value of the annotation that requests a manual release. `None`: the pool has no such
    /// annotation.
    pub(super) fn manual(&self) -> Option<&str> {
        self.annotation(ANNOTATION_MANUAL_RELEASE)
    }

    /// Whether the pool keeps its orphans, because it has the annotation
    /// [`ANNOTATION_KEEP_ORPHANS`].
    pub(super) fn keeps_orphans(&self) -> bool {
        self.annotation(ANNOTATION_KEEP_ORPHANS).is_some()
    }

    /// Whether the stored ledger records the address for this owner, by name and UID.
    pub(super) fn names(&self, ip: IpAddr, owner: &Owner) -> bool {
        let ip = ip.to_string();
        self.status.allocated.get(&ip) == Some(&owner.name)
            && self.status.allocated_owners.get(&ip) == Some(&owner.uid)
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.meta.annotations.as_ref()?.get(key).map(String::as_str)
    }
}
