//! Single objects as the API server has them now, for those who may not talk to it themselves.

use kube::{Api, Client};

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
