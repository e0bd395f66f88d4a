//! Reads for admission and the controllers: objects as the API server has them now, not as the
//! views have them.

use std::sync::Arc;

use futures::{StreamExt, future, stream};
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt};

use super::CallError;
use super::calls::ApiCalls as _;
use super::views::Views;
use crate::api::{IPPool, LoadBalancer};
use crate::domain::pools::conflict::PoolFacts;

/// Maximum number of pools that are read at the same time.
const READS: usize = 16;

/// Reader of objects. Each call has the deadline [`super::CALL_DEADLINE`].
#[derive(Clone)]
pub struct ApiReader(Client);

impl ApiReader {
    /// Creates a reader that sends its calls through `client`.
    pub fn new(client: Client) -> Self {
        Self(client)
    }

    /// UID of the LoadBalancer `namespace/name`, as the API server has it now. `None`: the
    /// LoadBalancer does not exist.
    pub async fn uid_of(&self, namespace: &str, name: &str) -> Result<Option<String>, CallError> {
        let api = Api::<PartialObjectMeta<LoadBalancer>>::namespaced(self.0.clone(), namespace);
        let lb = Box::pin(api.call_get_if_served(name)).await?;
        Ok(lb.map(|lb| lb.uid().unwrap_or_default()))
    }

    /// The LoadBalancer `namespace/name`, as the API server has it now. `None`: the LoadBalancer
    /// does not exist.
    pub async fn load_balancer(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<LoadBalancer>, CallError> {
        let api = Api::<LoadBalancer>::namespaced(self.0.clone(), namespace);
        Box::pin(api.call_get_if_served(name)).await
    }

    /// Facts of all pools as the API server has them now. Lists the metadata of all pools. Takes
    /// the facts of a pool from `views` if they are of the pool's present generation, and otherwise
    /// reads the pool. Omits a pool that cannot be read.
    pub async fn pools(&self, views: &Views) -> Result<Vec<Arc<PoolFacts>>, CallError> {
        let api = Api::<PartialObjectMeta<IPPool>>::all(self.0.clone());
        let listed = Box::pin(api.call_list(&ListParams::default())).await?;
        let facts = listed.items.into_iter().map(async |pool| match views.pool_as_of(&pool) {
            Some(facts) => Some(facts),
            None => self.pool(&pool.name_any()).await.ok().flatten().map(Arc::new),
        });
        Ok(stream::iter(facts).buffered(READS).filter_map(future::ready).collect().await)
    }

    /// Facts of the pool `name`, as the API server has it now. `None`: the pool does not exist.
    pub async fn pool(&self, name: &str) -> Result<Option<PoolFacts>, CallError> {
        let pool = Box::pin(Api::<IPPool>::all(self.0.clone()).call_get_if_served(name)).await?;
        Ok(pool.map(|pool| PoolFacts::of(&pool.metadata, &pool.spec)))
    }
}
