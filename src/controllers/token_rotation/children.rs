//! TokenRotations for all cloud credentials of an API key's user, and two for the same credential.
//!
//! Invariants: no child is created or deleted before Rancher has listed the cloud credentials; a
//! child is deleted only with the UID that was observed; of two TokenRotations for one credential,
//! one does nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt as _;
use kube_runtime::reflector::ObjectRef;
use serde_json::{Value, json};

use super::RotationContext;
use super::session::{AppliedChildren, RotationRun};
use crate::api::{ConditionStatus, READY, TokenRotation};
use crate::domain::credentials::children::{
    ObservedRancher, SuperfluousChild, children, second, standing,
};
use crate::domain::credentials::rivals::{before, made_by};
use crate::domain::credentials::rotation::RotationPlan;
use crate::domain::credentials::rotation::status;
use crate::k8s::CallError;

impl RotationRun<'_> {
    /// Plan of the rotation.
    pub(super) fn planned(&self) -> RotationPlan {
        let plan = status::plan(&self.rotation);
        if self.second.is_some() { plan.second() } else { plan }
    }

    /// URL of the Rancher, if only the API key's Secret contains it.
    pub(super) fn named_url(&self) -> Option<String> {
        let server = self.rotation.spec.rancher.as_ref()?;
        let side = self.side.as_ref().filter(|_| server.url.is_none())?;
        Some(side.url.clone())
    }

    /// TokenRotations in namespaces where the operator has rights.
    fn others(&self) -> Vec<Arc<TokenRotation>> {
        let keeper = self.keeper;
        let may = |one: &TokenRotation| keeper.is_allowed(&one.namespace().unwrap_or_default());
        keeper.store.state_filter(may)
    }

    /// Finds another TokenRotation for the same credential that goes first.
    pub(super) async fn find_first(&mut self) -> Result<(), CallError> {
        if self.named_url().is_some() {
            // The URL in the status shows which TokenRotations have the same credential.
            self.record(self.record.clone(), None).await?;
        }
        let others = self.others();
        if self.plan.source.is_some() {
            let first = before(&self.rotation, others.iter().map(AsRef::as_ref));
            self.second = first.map(second);
            self.plan = self.planned();
        }
        Ok(())
    }

    /// Creates, changes and deletes the children of a TokenRotation for all cloud credentials.
    pub(super) async fn make_children(&mut self) -> Result<(), CallError> {
        let (spec, namespace) = (&self.rotation.spec, self.namespace());
        let is_one = spec.target.all_cloud_credentials.is_some() && self.plan.deleting.is_none();
        let Some(side) = self.side.as_ref().filter(|_| is_one && self.blind.is_none()) else {
            return Ok(());
        };
        let others = self.others();
        let others: Vec<&TokenRotation> = others.iter().map(AsRef::as_ref).collect();
        let children = children(
            &self.rotation,
            &ObservedRancher {
                url: &side.url,
                user: &side.issued.user,
                listed: &side.listed,
                key_ends: side.key.as_ref().map(|key| key.expires_at.is_some()),
                others: &others,
            },
        );
        let mut in_the_way = BTreeMap::new();
        for child in &children.missing {
            if let Some(why) = self.make_child(&namespace, child).await? {
                in_the_way.insert(child.name_any(), why);
            }
        }
        let writer = &self.keeper.ctx.writer;
        for child in &children.changed {
            let old = others.iter().find(|one| one.name_any() == child.name_any());
            let text = |one: &TokenRotation| serde_json::to_value(&one.spec).unwrap_or(Value::Null);
            let old = old.map_or(Value::Null, |old| text(old));
            let Some(change) = status::diff(&old, &text(child)) else { continue };
            let patch = json!({"spec": change});
            match writer.patch_rotation_meta(&namespace, &child.name_any(), &patch).await {
                Ok(_) | Err(CallError::NotFound | CallError::Conflict) => {}
                Err(error) => {
                    let why = error.refusal().map(str::to_owned).ok_or(error)?;
                    in_the_way.insert(child.name_any(), why);
                }
            }
        }
        for SuperfluousChild { name, uid, unlisted } in &children.superfluous {
            if let Some(credential) = unlisted
                && !side.issuer.lacks(credential).await
            {
                continue;
            }
            match writer.delete_rotation(&namespace, name, uid).await {
                Ok(()) | Err(CallError::NotFound | CallError::Conflict) => {}
                Err(error) if error.refusal().is_some() => {
                    tracing::warn!(namespace, rotation = name, %error, "not deleted");
                }
                Err(error) => return Err(error),
            }
        }
        self.children = Some(AppliedChildren { children, in_the_way });
        Ok(())
    }

    /// Creates a child. Returns the reason if it cannot be created.
    async fn make_child(
        &self,
        namespace: &str,
        child: &TokenRotation,
    ) -> Result<Option<String>, CallError> {
        let name = child.name_any();
        match self.keeper.ctx.writer.create_rotation(namespace, child).await {
            Ok(()) => Ok(None),
            Err(CallError::Conflict) => {
                let there = self.keeper.ctx.credentials.rotation(namespace, &name).await?;
                let owner = |one: &TokenRotation| made_by(one).map(|owner| owner.uid.clone());
                // The view may not contain our own child yet.
                let is_ours = there.is_none_or(|there| owner(&there) == owner(child));
                let why =
                    || format!("TokenRotation {name} has the name needed for it: delete that");
                Ok((!is_ours).then(why))
            }
            Err(error) => error.refusal().map(|why| Some(why.to_owned())).ok_or(error),
        }
    }

    /// Whether all cloud credentials are replaced that must be, and a message about them. `None`:
    /// none is to be replaced.
    pub(super) fn children_stand(&self) -> Option<(bool, String)> {
        self.rotation.spec.source.as_ref()?;
        let AppliedChildren { children, in_the_way } = self.children.as_ref()?;
        let others = self.others();
        let others: Vec<&TokenRotation> = others.iter().map(AsRef::as_ref).collect();
        let in_namespace: Vec<&TokenRotation> =
            others.into_iter().filter(|one| one.namespace() == self.rotation.namespace()).collect();
        Some(standing(children, &in_namespace, in_the_way))
    }
}

/// Whether status and reason of Ready are the same in both.
pub(super) fn stands_alike(before: Option<&TokenRotation>, after: &TokenRotation) -> bool {
    let ready = |one: &TokenRotation| -> Option<(ConditionStatus, Option<String>)> {
        let mut all = one.status.as_ref()?.conditions.iter();
        let ready = all.find(|condition| condition.type_ == READY)?;
        Some((ready.status, ready.reason.clone()))
    };
    before.and_then(ready) == ready(after)
}

/// TokenRotation that has made this child, if it still exists.
pub(super) fn parent(
    keeper: &RotationContext,
    child: &TokenRotation,
) -> Option<Arc<TokenRotation>> {
    let owner = made_by(child)?;
    let namespace = child.namespace().unwrap_or_default();
    let parent = keeper.store.get(&ObjectRef::new(&owner.name).within(&namespace))?;
    (parent.uid().as_ref() == Some(&owner.uid)).then_some(parent)
}
