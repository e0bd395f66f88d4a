//! Maintains the children of a TokenRotation whose target is all cloud credentials of an API key's
//! user.
//!
//! Invariants:
//!
//! * No child is created or deleted before Rancher has listed the cloud credentials.
//! * A deletion requires the observed UID of the child, and a change requires its observed version.
//!   So no newer object of that name is deleted or changed.

use std::collections::BTreeMap;

use kube::ResourceExt as _;

use super::rotation_run::{AppliedChildren, RotationRun};
use crate::api::TokenRotation;
use crate::domain::credentials::children::{
    ChildChange, ObservedRancher, SuperfluousChild, children, summary,
};
use crate::domain::credentials::rivals::made_by;
use crate::k8s::CallError;

impl RotationRun<'_> {
    /// Creates, changes and deletes children, if the target is all cloud credentials, and Rancher
    /// has listed them. Does nothing while the TokenRotation is being deleted.
    pub(super) async fn apply_children(&mut self) -> Result<(), CallError> {
        let (spec, namespace) = (&self.rotation.spec, self.namespace());
        let is_one = spec.target.all_cloud_credentials.is_some() && self.plan.deleting.is_none();
        let Some(session) = self.session.as_ref().filter(|_| is_one && self.unknown.is_none())
        else {
            return Ok(());
        };
        let others = self.other_rotations();
        let others: Vec<&TokenRotation> = others.iter().map(AsRef::as_ref).collect();
        let children = children(
            &self.rotation,
            &ObservedRancher {
                url: &session.url,
                user: &session.issued.user,
                listed: &session.listed,
                key_expires: session.key.as_ref().map(|key| key.expires_at.is_some()),
                others: &others,
            },
        );
        let mut failures = BTreeMap::new();
        for child in &children.missing {
            if let Some(why) = self.create_child(&namespace, child).await? {
                failures.insert(child.name_any(), why);
            }
        }
        let writer = &self.context.ctx.writer;
        for ChildChange { name, patch } in &children.changed {
            match writer.patch_rotation_meta(&namespace, name, patch).await {
                Ok(_) | Err(CallError::NotFound(_)) => {}
                Err(error) => {
                    let why = error.refusal().map(str::to_owned).ok_or(error)?;
                    failures.insert(name.clone(), why);
                }
            }
        }
        for SuperfluousChild { name, uid, unlisted } in &children.superfluous {
            if let Some(credential) = unlisted
                && !session.issuer.lacks(credential).await
            {
                continue;
            }
            match writer.delete_rotation(&namespace, name, uid).await {
                Ok(()) | Err(CallError::NotFound(_) | CallError::Conflict(_)) => {}
                Err(error) if error.refusal().is_some() => {
                    tracing::warn!(namespace, rotation = name, %error, "TokenRotation not deleted");
                }
                Err(error) => return Err(error),
            }
        }
        self.children = Some(AppliedChildren { children, failures });
        Ok(())
    }

    /// Creates `child` in `namespace`. Returns the reason if the child cannot be created. `None`:
    /// the child was created, or exists.
    async fn create_child(
        &self,
        namespace: &str,
        child: &TokenRotation,
    ) -> Result<Option<String>, CallError> {
        let name = child.name_any();
        match self.context.ctx.writer.create_rotation(namespace, child).await {
            Ok(()) => Ok(None),
            Err(CallError::Conflict(_)) => {
                let there = self.context.ctx.credentials.rotation(namespace, &name).await?;
                let owner = |one: &TokenRotation| made_by(one).map(|owner| owner.uid.clone());
                // The name is taken. The stored object may be the child itself: the operator has
                // created it before, but the view does not contain it yet.
                let is_ours = there.is_none_or(|there| owner(&there) == owner(child));
                let why = || {
                    format!(
                        "TokenRotation {name} has the name that the operator needs for the TokenRotation of this credential: delete TokenRotation {name}"
                    )
                };
                Ok((!is_ours).then(why))
            }
            Err(error) => error.refusal().map(|why| Some(why.to_owned())).ok_or(error),
        }
    }

    /// Summary of the children. Field 0: whether every wanted child replaces its credential. Field
    /// 1: a message about all cloud credentials. `None`: the spec has no source, or the children
    /// are not known.
    pub(super) fn children_summary(&self) -> Option<(bool, String)> {
        self.rotation.spec.source.as_ref()?;
        let AppliedChildren { children, failures } = self.children.as_ref()?;
        let others = self.other_rotations();
        let others: Vec<&TokenRotation> = others.iter().map(AsRef::as_ref).collect();
        let in_namespace: Vec<&TokenRotation> =
            others.into_iter().filter(|one| one.namespace() == self.rotation.namespace()).collect();
        Some(summary(children, &in_namespace, failures))
    }
}
