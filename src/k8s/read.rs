//! Single objects as the API server has them now, for those who may not talk to it themselves.

use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt};

use super::{CallError, call};
use crate::api::{IPPool, LABEL_GLOBAL_POOL, LoadBalancer};
use crate::domain::conflict::PoolFacts;

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

    /// What a pool wants. `None`: there is none by the name.
    pub async fn pool(&self, name: &str) -> Result<Option<PoolFacts>, CallError> {
        match Box::pin(call(Api::<IPPool>::all(self.0.clone()).get(name))).await {
            Ok(pool) => {
                let created = pool.metadata.creation_timestamp.as_ref();
                let created = created.map_or(0, |time| time.0.as_second());
                let global = pool.labels().get(LABEL_GLOBAL_POOL).is_some_and(|v| v == "true");
                let mut facts = PoolFacts::new(name, created, &pool.spec, global);
                facts.deleting = pool.metadata.deletion_timestamp.is_some();
                Ok(Some(facts))
            }
            Err(CallError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
