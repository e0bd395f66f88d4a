//! Reads for admission and the controllers: objects as the API server has them now, not as the
//! views have them.

use std::sync::Arc;

use futures::{StreamExt, future, stream};
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt};
use tokio::sync::Semaphore;

use super::CallError;
use super::calls::ApiCalls as _;
use super::views::Views;
use crate::api::{IPPool, LoadBalancer};
use crate::domain::pools::conflict::PoolFacts;

/// Maximum number of pools that one call of [`ApiReader::pools`] reads at the same time.
const READS: usize = 16;
/// Maximum number of UIDs that a reader and its clones read at the same time. Any caller of
/// admission can cause such reads.
const UID_READS: usize = 16;

/// Reader of objects. Each call has the deadline [`super::CALL_DEADLINE`].
#[derive(Clone)]
pub struct ApiReader {
    client: Client,
    /// Permits for reads of UIDs. Clones share the permits.
    uid_reads: Arc<Semaphore>,
}

impl ApiReader {
    /// Creates a reader that sends its calls through `client`.
    pub fn new(client: Client) -> Self {
        Self { client, uid_reads: Arc::new(Semaphore::new(UID_READS)) }
    }

    /// UID of the LoadBalancer `namespace/name`, as the API server has it now. `None`: the
    /// LoadBalancer does not exist. The read may wait until other reads of UIDs have ended.
    pub async fn uid_of(&self, namespace: &str, name: &str) -> Result<Option<String>, CallError> {
        // The semaphore is never closed, so this is always a permit.
        let _permit = self.uid_reads.acquire().await;
        let client = self.client.clone();
        let api = Api::<PartialObjectMeta<LoadBalancer>>::namespaced(client, namespace);
        let lb = Box::pin(api.call_get_opt(name)).await?;
        Ok(lb.map(|lb| lb.uid().unwrap_or_default()))
    }

    /// The LoadBalancer `namespace/name`, as the API server has it now. `None`: the LoadBalancer
    /// does not exist.
    pub async fn load_balancer(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<LoadBalancer>, CallError> {
        let api = Api::<LoadBalancer>::namespaced(self.client.clone(), namespace);
        Box::pin(api.call_get_opt(name)).await
    }

    /// Facts of all pools in their present generation. Lists the metadata of all pools from the API
    /// server. If `views` has the facts of a pool's present generation, takes them from there.
    /// Otherwise reads the pool. Omits a pool that cannot be read.
    pub async fn pools(&self, views: &Views) -> Result<Vec<Arc<PoolFacts>>, CallError> {
        let api = Api::<PartialObjectMeta<IPPool>>::all(self.client.clone());
        let listed = Box::pin(api.call_list(&ListParams::default())).await?;
        let facts = listed.items.into_iter().map(async |pool| match views.pool_as_of(&pool) {
            Some(facts) => Some(facts),
            None => self.pool(&pool.name_any()).await.ok().flatten().map(Arc::new),
        });
        Ok(stream::iter(facts).buffered(READS).filter_map(future::ready).collect().await)
    }

    /// Facts of the pool `name`, as the API server has it now. `None`: the pool does not exist.
    pub async fn pool(&self, name: &str) -> Result<Option<PoolFacts>, CallError> {
        let api = Api::<IPPool>::all(self.client.clone());
        let pool = Box::pin(api.call_get_opt(name)).await?;
        Ok(pool.map(|pool| PoolFacts::of(&pool.metadata, &pool.spec)))
    }
}
