//! Objects of which only a part of the metadata has been parsed.
//!
//! A process also gets watch events for its own writes, and repeated events. The resourceVersion is
//! enough to recognize such an event. The object of such an event is then dropped, and the rest of
//! the object is never parsed.

use std::marker::PhantomData;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use kube::core::ObjectMeta;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// An object of which only name, namespace, resourceVersion, UID and owner references are parsed.
/// [`Self::read`] parses the rest.
#[derive(Clone, Debug)]
pub struct LazyObject<K> {
    head: ObjectMeta,
    text: Box<RawValue>,
    kind: PhantomData<fn() -> K>,
}

impl<K: DeserializeOwned> LazyObject<K> {
    /// Parses the whole object. `Err`: the object does not fit the type `K`.
    pub fn read(&self) -> Result<K, serde_json::Error> {
        serde_json::from_str(self.text.get())
    }
}

#[derive(Deserialize)]
struct ObjectHead {
    metadata: MetadataHead,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetadataHead {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    owner_references: Option<Vec<OwnerReference>>,
}

impl<'de, K> Deserialize<'de> for LazyObject<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let ObjectHead { metadata: head } =
            serde_json::from_str(text.get()).map_err(D::Error::custom)?;
        let head = ObjectMeta {
            name: head.name,
            namespace: head.namespace,
            uid: head.uid,
            resource_version: head.resource_version,
            owner_references: head.owner_references,
            ..ObjectMeta::default()
        };
        Ok(Self { head, text, kind: PhantomData })
    }
}

impl<K: Resource> Resource for LazyObject<K> {
    super::kind_of!(K);

    fn meta(&self) -> &ObjectMeta {
        &self.head
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.head
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::discovery::v1::EndpointSlice;
    use kube::core::WatchEvent;

    use super::*;

    /// The event has the form in which the API server sends it.
    #[test]
    fn the_rest_is_read_on_demand() {
        let event = r#"{"type":"ADDED","object":{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice",
            "metadata":{"name":"web","namespace":"default","uid":"u","resourceVersion":"7",
                "ownerReferences":[{"apiVersion":"v1","kind":"LoadBalancer","name":"web","uid":"l"}],
                "managedFields":[{"manager":"x","fieldsV1":{"f:endpoints":{}}}]},
            "addressType":"IPv4","endpoints":[{"addresses":["192.0.2.1"]}]}}"#;
        let WatchEvent::<LazyObject<EndpointSlice>>::Added(seen) =
            serde_json::from_str(event).unwrap()
        else {
            panic!("{event}")
        };
        assert_eq!(seen.meta().resource_version.as_deref(), Some("7"));
        assert_eq!(seen.meta().owner_references.as_ref().unwrap()[0].uid, "l");
        assert_eq!(seen.meta().managed_fields, None);
        assert_eq!(seen.read().unwrap().endpoints.unwrap()[0].addresses, ["192.0.2.1"]);
    }
}
