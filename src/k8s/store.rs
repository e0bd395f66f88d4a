//! Stores of objects. Each store is kept current by the events of one informer.

use std::collections::HashSet;

use kube::Resource;
use kube_runtime::reflector::Store;
use kube_runtime::reflector::store::Writer;
use kube_runtime::watcher::Event;

use super::informer::{key, split_key};

/// Writer of a store of namespaced objects.
///
/// A list changes the store object by object. So the store has only a part of the first list until
/// that list is complete. kube-runtime's own code would replace the whole store at the end of each
/// list.
pub struct StoreWriter<K: Resource<DynamicType = ()> + Clone + 'static>(Writer<K>);

impl<K: Resource<DynamicType = ()> + Clone + Default + 'static> Default for StoreWriter<K> {
    /// Writer of a new, empty store. The store is marked as ready at once, because kube-runtime's
    /// `Controller` reconciles nothing before its store is ready.
    fn default() -> Self {
        let mut writer = Writer::default();
        writer.apply_watcher_event(&Event::InitDone);
        Self(writer)
    }
}

impl<K: Resource<DynamicType = ()> + Clone + Default + 'static> StoreWriter<K> {
    /// Returns the store that this writer changes.
    pub fn reader(&self) -> Store<K> {
        self.0.as_reader()
    }

    /// Adds an object to the store, or replaces the object with the same namespace and name.
    pub fn set(&mut self, object: K) {
        self.0.apply_watcher_event(&Event::Apply(object));
    }

    /// Removes the object with the key `key`, which is a `namespace/name`. Does nothing if the
    /// store does not have the object.
    pub fn remove(&mut self, key: &str) {
        let (namespace, name) = split_key(key);
        // kube-runtime's `Writer` reads only the namespace and the name of the object.
        let mut object = K::default();
        object.meta_mut().namespace = Some(namespace.to_owned());
        object.meta_mut().name = Some(name.to_owned());
        self.0.apply_watcher_event(&Event::Delete(object));
    }
}

/// `namespace/name` of every object in a store.
pub fn keys<K: Resource<DynamicType = ()> + Clone + 'static>(store: &Store<K>) -> HashSet<String> {
    store.state().iter().map(|object| key(object.meta())).collect()
}
