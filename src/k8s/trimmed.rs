//! LoadBalancers of which no more is kept than decisions take, from the moment that they are read: a
//! page of a list never holds more than one object in full.

use kube::Resource;
use kube::core::ObjectMeta;
use serde::{Deserialize, Deserializer};

use crate::api::LoadBalancer;
use crate::domain::load_balancer::bounds;

/// Objects in one answer of a list. Each may be a megabyte and a half of text.
pub const PAGE: u32 = 50;

/// A LoadBalancer within bounds.
#[derive(Clone, Debug)]
pub struct Trimmed {
    /// The object.
    pub lb: LoadBalancer,
    /// Whether a list lost entries that a write of it must carry.
    pub partial: bool,
}

impl<'de> Deserialize<'de> for Trimmed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut lb = LoadBalancer::deserialize(deserializer)?;
        let partial = bounds::trim(&mut lb);
        Ok(Self { lb, partial })
    }
}

impl Resource for Trimmed {
    super::kind_of!(LoadBalancer);

    fn meta(&self) -> &ObjectMeta {
        self.lb.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.lb.meta_mut()
    }
}
