//! What must be known before a decision: the ledger's answer, and where it matters the object
//! as the API server has it now.

use std::sync::Arc;

use kube::{Api, ResourceExt};

use super::{Context, Error};
use crate::api::LoadBalancer;
use crate::controllers::ip_pool::LedgerError;
use crate::domain::LbFacts;
use crate::domain::facts::{facts, is_leaving, wants_pool};
use crate::domain::plan::Finding;
use crate::k8s::{CallError, call};

/// Asks the ledger, if the LoadBalancer takes its address from pools. `fresh` is whether the
/// object was just read. Returns the object that the answer is about: when the ledger must
/// not decide on an old view, that is the current one. `None`: it is gone or going.
pub(super) async fn finding(
    lb: Arc<LoadBalancer>,
    fresh: bool,
    ctx: &Context,
) -> Result<Option<(Arc<LoadBalancer>, Finding)>, Error> {
    if !wants_pool(&lb) {
        return Ok(Some((lb, Finding::Dhcp)));
    }
    match ctx.ledger.claim(facts_of(&lb, fresh, ctx)).await {
        Ok(verdict) => Ok(Some((lb, Finding::Pool(verdict)))),
        Err(LedgerError::Stale) if !fresh => {
            let Some(lb) = current(&lb, ctx).await?.filter(|lb| !is_leaving(lb)) else {
                return Ok(None);
            };
            let verdict = ctx.ledger.claim(facts_of(&lb, true, ctx)).await?;
            Ok(Some((lb, Finding::Pool(verdict))))
        }
        Err(error) => Err(error.into()),
    }
}

/// The object as the server has it; `None` if it is gone, or another one has its name.
pub(super) async fn current(
    lb: &LoadBalancer,
    ctx: &Context,
) -> Result<Option<Arc<LoadBalancer>>, CallError> {
    let api: Api<LoadBalancer> =
        Api::namespaced(ctx.shared.client.clone(), &lb.namespace().unwrap_or_default());
    match Box::pin(call(api.get(&lb.name_any()))).await {
        Ok(now) => Ok(Some(now).filter(|now| now.uid() == lb.uid()).map(Arc::new)),
        Err(CallError::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

fn facts_of(lb: &LoadBalancer, fresh: bool, ctx: &Context) -> LbFacts {
    let namespace = lb.metadata.namespace.as_deref().unwrap_or_default();
    facts(lb, ctx.shared.views.project_of(namespace), fresh)
}
