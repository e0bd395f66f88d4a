//! LoadBalancers, cut to the fields that decisions use. Each object is cut as soon as it is read,
//! so that a page of a list never holds more than one full object.

use kube::Resource;
use kube::core::ObjectMeta;
use serde::{Deserialize, Deserializer};

use crate::api::LoadBalancer;
use crate::domain::load_balancer::bounds;

/// Number of objects in one page of a list. The value is small, because a LoadBalancer may have 1.5
/// MB of text.
pub const PAGE: u32 = 50;

/// A LoadBalancer that was cut to the fields and lengths that decisions use.
#[derive(Clone, Debug)]
pub struct TrimmedLb {
    /// The trimmed object.
    pub lb: LoadBalancer,
    /// Whether entries were cut from the finalizers or the conditions. A write of either list must
    /// contain all entries, so the object must be read again before such a write.
    pub partial: bool,
}

impl<'de> Deserialize<'de> for TrimmedLb {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut lb = LoadBalancer::deserialize(deserializer)?;
        let partial = bounds::trim(&mut lb);
        Ok(Self { lb, partial })
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
