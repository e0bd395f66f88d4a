//! The content of a control plane's etcd: a snapshot of it, and the restore of that snapshot.
//!
//! Several API servers may share one etcd, so a server treats a foreign write as another server's:
//! its caches follow, and so do the watches of its clients. A restore therefore needs no finalizer,
//! no garbage collection and no rights, and each object has its former UID.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::ByteString;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::operator::http_post;

const ALL: &str = "/registry/";
/// Keys of objects that the daemons write at any time, and that a restore does not change.
const DAEMONS: [&str; 6] = [
    "/registry/masterleases/",
    "/registry/leases/kube-system/apiserver-",
    "/registry/flowschemas/",
    "/registry/prioritylevelconfigurations/",
    "/registry/apiregistration.k8s.io/",
    "/registry/storageversions/",
];
/// Keys of the chart's FlowSchemas, which a restore changes like other objects of a test.
const CHARTS_FLOWS: &str = "/registry/flowschemas/harvester-guest-operator";
/// Number of reads without a change after which the store counts as quiet, and their period.
const QUIET: (u32, Duration) = (8, Duration::from_millis(25));
/// Number of reads after which a store that is not quiet is an error.
const MOST_READS: u32 = 400;
/// Operations in a transaction: the limit with which etcd is started.
pub(crate) const MOST: usize = 4_000;

type Key = String;

/// Client of etcd over its JSON gateway.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Store {
    port: u16,
}

/// A stored object.
#[derive(Clone, Debug)]
struct Object {
    value: ByteString,
    /// Revision of etcd at its last write.
    revision: i64,
}

/// All stored objects at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    objects: BTreeMap<Key, Object>,
}

/// Revision of etcd, which grows with each write, and the revisions of all objects then.
struct Revisions {
    etcd: i64,
    objects: BTreeMap<Key, i64>,
}

#[derive(Deserialize)]
struct Range {
    header: Header,
    #[serde(default)]
    kvs: Vec<Pair>,
}

#[derive(Deserialize)]
struct Pair {
    key: ByteString,
    mod_revision: String,
    #[serde(default)]
    value: Option<ByteString>,
}

#[derive(Deserialize)]
struct Done {
    header: Header,
}

#[derive(Deserialize)]
struct Header {
    revision: String,
}

impl Store {
    pub(crate) fn new(port: u16) -> Self {
        Self { port }
    }

    /// Reads everything, once the store is quiet.
    pub(crate) async fn snapshot(self) -> Result<Snapshot> {
        let (mut read, mut same) = (self.revisions().await?, 0);
        while same < QUIET.0 * 5 {
            sleep(QUIET.1).await;
            same = if self.read_again(&mut read).await? { 0 } else { same + 1 };
        }
        let mut objects = BTreeMap::new();
        for pair in self.range(ALL, false).await?.kvs {
            let (key, revision) = pair.place()?;
            objects.insert(key, Object { value: pair.value.unwrap_or_default(), revision });
        }
        objects.retain(|key, _| is_ours(key));
        Ok(Snapshot { objects })
    }

    /// Writes the snapshot back, and returns the changed keys. The daemons may still react to
    /// earlier events, so this continues until the store is quiet.
    pub(crate) async fn restore(self, snapshot: &mut Snapshot) -> Result<BTreeSet<Key>> {
        let mut changed = BTreeSet::new();
        let (mut read, mut same) = (self.revisions().await?, 0);
        for _ in 0..MOST_READS {
            let differing = snapshot.differing(&read.objects);
            if differing.is_empty() {
                same += 1;
                if same >= QUIET.0 {
                    return Ok(changed);
                }
                sleep(QUIET.1).await;
            } else {
                same = 0;
                for keys in differing.chunks(MOST) {
                    self.write(snapshot, keys).await?;
                }
                changed.extend(differing);
            }
            self.read_again(&mut read).await?;
        }
        bail!("the store does not become quiet, the last changes are {changed:?}")
    }

    /// Reads the objects whose keys have a prefix.
    pub(crate) async fn values(self, prefix: &str) -> Result<BTreeMap<Key, Vec<u8>>> {
        let mut values = BTreeMap::new();
        for pair in self.range(prefix, false).await?.kvs {
            let (key, _) = pair.place()?;
            values.insert(key, pair.value.unwrap_or_default().0);
        }
        Ok(values)
    }

    async fn revisions(self) -> Result<Revisions> {
        let range = self.range(ALL, true).await?;
        let mut objects: BTreeMap<_, _> =
            range.kvs.iter().map(Pair::place).collect::<Result<_>>()?;
        objects.retain(|key, _| is_ours(key));
        Ok(Revisions { etcd: range.header.revision.parse()?, objects })
    }

    /// Reads the revisions of all objects again if anything was written since. Returns whether an
    /// object was. A read of all objects takes etcd and this process many times as long as a read
    /// of its revision.
    async fn read_again(self, read: &mut Revisions) -> Result<bool> {
        // No object has this key.
        let nothing: Range = self.ask("/v3/kv/range", &json!({"key": bytes(ALL)})).await?;
        if nothing.header.revision.parse::<i64>()? == read.etcd {
            return Ok(false);
        }
        let now = self.revisions().await?;
        let is_written = now.objects != read.objects;
        *read = now;
        Ok(is_written)
    }

    /// Reads all keys with a prefix, which ends with a slash. `0` follows the slash in ASCII.
    async fn range(self, prefix: &str, keys_only: bool) -> Result<Range> {
        let end = format!("{}0", prefix.trim_end_matches('/'));
        let body = json!({"key": bytes(prefix), "range_end": bytes(&end), "keys_only": keys_only});
        self.ask("/v3/kv/range", &body).await
    }

    /// Writes the snapshot's objects of these keys, and deletes keys that it does not have.
    async fn write(self, snapshot: &mut Snapshot, keys: &[Key]) -> Result<()> {
        let operations: Vec<Value> = keys
            .iter()
            .map(|key| match snapshot.objects.get(key) {
                Some(object) => {
                    json!({"requestPut": {"key": bytes(key), "value": object.value}})
                }
                None => json!({"requestDeleteRange": {"key": bytes(key)}}),
            })
            .collect();
        let done: Done = self.ask("/v3/kv/txn", &json!({"success": operations})).await?;
        let revision = done.header.revision.parse()?;
        for key in keys {
            if let Some(object) = snapshot.objects.get_mut(key) {
                object.revision = revision;
            }
        }
        Ok(())
    }

    async fn ask<T: serde::de::DeserializeOwned>(self, path: &str, body: &Value) -> Result<T> {
        let address = ([127, 0, 0, 1], self.port).into();
        let (code, answer) = http_post(address, path, &body.to_string()).await?;
        if code != 200 {
            bail!("etcd answers {path} with {code}: {answer}");
        }
        serde_json::from_str(&answer).with_context(|| format!("read etcd's answer to {path}"))
    }
}

impl Snapshot {
    /// Value of a key in the snapshot.
    pub(crate) fn value(&self, key: &str) -> Option<&[u8]> {
        self.objects.get(key).map(|object| object.value.0.as_slice())
    }

    /// Removes an object from the snapshot: a restore deletes it.
    pub(crate) fn take(&mut self, key: &str) -> Option<Vec<u8>> {
        self.objects.remove(key).map(|object| object.value.0)
    }

    /// Adds an object to the snapshot: a restore writes it.
    pub(crate) fn put(&mut self, key: Key, value: Vec<u8>) {
        self.objects.insert(key, Object { value: ByteString(value), revision: 0 });
    }

    /// Keys of the snapshot with a prefix.
    pub(crate) fn keys(&self, prefix: &str) -> impl Iterator<Item = &Key> {
        self.objects.keys().filter(move |key| key.starts_with(prefix))
    }

    /// Keys whose object was written, deleted or created since.
    fn differing(&self, now: &BTreeMap<Key, i64>) -> Vec<Key> {
        let new = now.keys().filter(|key| !self.objects.contains_key(*key));
        let changed = self
            .objects
            .iter()
            .filter(|(key, object)| now.get(*key) != Some(&object.revision))
            .map(|(key, _)| key);
        changed.chain(new).cloned().collect()
    }
}

impl Pair {
    fn place(&self) -> Result<(Key, i64)> {
        Ok((String::from_utf8(self.key.0.clone())?, self.mod_revision.parse()?))
    }
}

fn is_ours(key: &str) -> bool {
    key.starts_with(CHARTS_FLOWS) || !DAEMONS.iter().any(|prefix| key.starts_with(prefix))
}

fn bytes(text: &str) -> ByteString {
    ByteString(text.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_new_gone_or_written_again_differs() {
        let object = |revision| Object { value: ByteString::default(), revision };
        let objects = [("a", 1), ("b", 2), ("c", 3)];
        let objects = objects.map(|(key, revision)| (key.to_owned(), object(revision))).into();
        let snapshot = Snapshot { objects };
        let now = [("a", 1), ("b", 7), ("d", 8)].map(|(key, r)| (key.to_owned(), r)).into();
        assert_eq!(snapshot.differing(&now), ["b", "c", "d"]);
    }

    #[test]
    fn what_the_daemons_keep_writing_is_left_alone() {
        assert!(!is_ours("/registry/leases/kube-system/apiserver-x"));
        assert!(is_ours("/registry/leases/kube-system/harvester-load-balancer"));
        assert!(!is_ours("/registry/flowschemas/service-accounts"));
        assert!(is_ours("/registry/flowschemas/harvester-guest-operator"));
    }
}
