//! Parses the objects of lists and watches. An object that does not fit its type becomes an error
//! of its own, so that the other objects can still be read.
//!
//! kube's `DeserializeGuard` copies each object twice, as a tree of values, before the object is
//! parsed. These copies were most of the cost of reading VMs. The guard here keeps the text until
//! the object has been parsed.

use kube::Resource;
use kube::core::{ObjectMeta, PartialObjectMeta};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::domain::limits::text::{LONGEST_TEXT, cut};

/// An object, or the reason why it does not fit its type.
#[derive(Clone, Debug)]
pub struct Guard<K>(pub Result<K, ObjectMisfit>);

/// Error for an object that does not fit its type.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error}")]
pub struct ObjectMisfit {
    /// Metadata of the object.
    pub metadata: ObjectMeta,
    /// Parse error, cut to [`LONGEST_TEXT`].
    pub error: String,
}

impl<'de, K: DeserializeOwned + Resource> Deserialize<'de> for Guard<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        match serde_json::from_str(text.get()) {
            Ok(object) => Ok(Self(Ok(object))),
            Err(error) => {
                let PartialObjectMeta::<K> { metadata, .. } =
                    serde_json::from_str(text.get()).map_err(D::Error::custom)?;
                // The parse error quotes the text that does not fit, and this text may be long. So
                // the error is cut.
                let error = cut(error.to_string(), LONGEST_TEXT);
                Ok(Self(Err(ObjectMisfit { metadata, error })))
            }
        }
    }
}

impl<K: Resource> Resource for Guard<K> {
    super::kind_of!(K);

    fn meta(&self) -> &ObjectMeta {
        match &self.0 {
            Ok(object) => object.meta(),
            Err(misfit) => &misfit.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match &mut self.0 {
            Ok(object) => object.meta_mut(),
            Err(misfit) => &mut misfit.metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt as _;
    use kube::core::{ObjectList, WatchEvent};
    use serde_json::json;

    use super::*;
    use crate::api::LoadBalancer;

    fn lb(port: &str) -> serde_json::Value {
        let listeners =
            [json!({"name": "a", "port": port.parse::<i32>().map_or(json!(port), |p| json!(p))})];
        json!({
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
            "metadata": {"name": port, "namespace": "default", "uid": "u"},
            "spec": {"listeners": listeners},
        })
    }

    /// Events and lists in the form that the API server sends.
    #[test]
    fn in_watches_and_lists_one_that_does_not_fit_is_set_apart() {
        let event = format!(r#"{{"type":"MODIFIED","object":{}}}"#, lb("web"));
        let WatchEvent::<Guard<LoadBalancer>>::Modified(seen) =
            serde_json::from_str(&event).unwrap()
        else {
            panic!("{event}")
        };
        assert_eq!(seen.name_any(), "web");
        assert!(seen.0.unwrap_err().error.contains("expected i32"));

        let list = json!({
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancerList",
            "metadata": {"resourceVersion": "7"}, "items": [lb("80"), lb("web"), lb("81")],
        });
        let list: ObjectList<Guard<LoadBalancer>> =
            serde_json::from_str(&list.to_string()).unwrap();
        let fits: Vec<bool> = list.items.iter().map(|guard| guard.0.is_ok()).collect();
        assert_eq!(fits, [true, false, true]);
    }
}
