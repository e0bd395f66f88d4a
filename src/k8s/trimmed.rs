//! LoadBalancers that are trimmed to the fields that decisions use. Each object is trimmed as soon
//! as it is parsed. So while a page of a list is read, at most one of its objects is untrimmed.

use kube::Resource;
use kube::core::ObjectMeta;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::api::LoadBalancer;
use crate::domain::load_balancer::bounds;

/// Largest size in bytes of a stored LoadBalancer that does not count as large. A guest load
/// balancer with two listeners is smaller, even with the fields that Kubernetes adds.
const LARGE: usize = 8 * 1024;

/// Differences between a stored LoadBalancer and its copy in a view.
#[derive(Clone, Copy, Debug, Default)]
pub struct LbTrimming {
    /// Whether the view's copy lacks some entries of the finalizers or of the conditions. A write
    /// of either list must contain all entries, so the object must be read again before such a
    /// write.
    pub partial: bool,
    /// Whether the stored object has more than 8 KiB, so that each write of it is expensive for the
    /// API server.
    pub large: bool,
}

/// A LoadBalancer that was cut to the fields and lengths that decisions use.
#[derive(Clone, Debug)]
pub struct TrimmedLb {
    /// The trimmed object.
    pub lb: LoadBalancer,
    /// Differences between the stored object and `lb`.
    pub trimming: LbTrimming,
}

impl<'de> Deserialize<'de> for TrimmedLb {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <&RawValue>::deserialize(deserializer)?.get();
        let mut lb: LoadBalancer = serde_json::from_str(text).map_err(D::Error::custom)?;
        let partial = bounds::trim(&mut lb);
        Ok(Self { lb, trimming: LbTrimming { partial, large: text.len() > LARGE } })
    }
}

impl Resource for TrimmedLb {
    super::kind_of!(LoadBalancer);

    fn meta(&self) -> &ObjectMeta {
        self.lb.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.lb.meta_mut()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_of_more_than_8_kib_is_large_even_if_its_copy_is_small() {
        for (length, is_large) in [(100, false), (LARGE, true)] {
            let lb = json!({
                "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
                "metadata": {"name": "web", "annotations": {"other": "x".repeat(length)}},
                "spec": {"workloadType": "cluster"},
            });
            let seen: TrimmedLb = serde_json::from_str(&lb.to_string()).unwrap();
            assert_eq!(seen.trimming.large, is_large, "{length}");
            assert_eq!(seen.lb.metadata.annotations, Some([].into()));
        }
    }
}
