//! Single objects as the API server has them now, for those who may not talk to it themselves.

use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt};

use super::{CallError, call};
use crate::api::LoadBalancer;

/// Reads, each under the deadline of one call.
#[derive(Clone)]
pub struct Reader(Client);

impl Reader {
    /// Reads with this client's rights.
    pub fn new(client: Client) -> Self {
        Self(client)
    }

    /// The UID of the LoadBalancer by that name. `None`: there is none.
    pub async fn uid_of(&self, namespace: &str, name: &str) -> Result<Option<String>, CallError> {
        let api = Api::<PartialObjectMeta<LoadBalancer>>::namespaced(self.0.clone(), namespace);
        match Box::pin(call(api.get(name))).await {
            Ok(lb) => Ok(Some(lb.uid().unwrap_or_default())),
            Err(CallError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A LoadBalancer. `None`: there is none.
    pub async fn load_balancer(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<LoadBalancer>, CallError> {
        let api = Api::<LoadBalancer>::namespaced(self.0.clone(), namespace);
        match Box::pin(call(api.get(name))).await {
            Ok(lb) => Ok(Some(lb)),
            Err(CallError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
