//! Relations between TokenRotations:
//!
//! * The credentials that TokenRotations replace.
//! * The TokenRotations whose status depends on another TokenRotation.
//! * The precedence of one of two TokenRotations for the same credential.
//!
//! Invariant: a TokenRotation that watches all cloud credentials reports each one that expires
//! soon, unless another TokenRotation has observed that credential and will replace it. The other
//! TokenRotation reports a failed replacement.

use std::collections::HashSet;
use std::sync::Arc;

use kube::ResourceExt as _;
use kube_runtime::reflector::ObjectRef;

use super::RotationContext;
use super::rotation_run::RotationRun;
use crate::api::{RancherServer, SecretTarget, TokenRotation};
use crate::domain::credentials::children::second_message;
use crate::domain::credentials::rivals::{first_rival, is_same, is_same_rancher, made_by};
use crate::domain::credentials::rotation::ready::ready_condition;
use crate::domain::credentials::rotation::{RotationPlan, due, status};
use crate::k8s::CallError;

/// Names of those cloud credentials in the Rancher of `rotation` that a TokenRotation will replace
/// (see [`replaces_its_credential`]).
pub(super) fn replaced_credentials(
    context: &RotationContext,
    rotation: &TokenRotation,
) -> HashSet<String> {
    let all = context.store.state();
    let theirs = all.iter().filter(|other| {
        is_same_rancher(other, rotation) && replaces_its_credential(context, other)
    });
    theirs
        .filter_map(|other| Some(other.spec.target.cloud_credential.as_ref()?.name.clone()))
        .collect()
}

/// Whether a TokenRotation renews the API key that `rotation` uses. The renewing TokenRotation may
/// be `rotation` itself.
pub(super) fn is_key_renewed(
    context: &RotationContext,
    rotation: &TokenRotation,
    server: &RancherServer,
) -> bool {
    let renews = |other: &TokenRotation| {
        other.namespace() == rotation.namespace()
            && other.spec.target.secret.as_ref().is_some_and(|target| is_api_key(target, server))
            && other.spec.source.as_ref().is_some_and(|source| source.rancher_token.is_some())
            && (other.uid() == rotation.uid() || replaces_its_credential(context, other))
    };
    renews(rotation) || context.store.state().iter().any(|other| renews(other))
}

/// TokenRotations whose status depends on whether the TokenRotation `other` replaces a credential.
/// There are three kinds:
///
/// * TokenRotations that watch all cloud credentials of the Rancher of `other`.
/// * TokenRotations that use the API key that is the target of `other`.
/// * TokenRotations that have the same target as `other`.
pub(super) fn dependents(
    context: &RotationContext,
    other: &TokenRotation,
) -> Vec<Arc<TokenRotation>> {
    context.store.state_filter(|one| {
        let watches = one.spec.target.all_cloud_credentials.is_some()
            && other.spec.target.cloud_credential.is_some()
            && is_same_rancher(one, other);
        let target = other.spec.target.secret.as_ref();
        let uses = one.namespace() == other.namespace()
            && one.spec.rancher.as_ref().zip(target).is_some_and(|(at, key)| is_api_key(key, at));
        one.uid() != other.uid() && (watches || uses || is_same(one, other))
    })
}

/// Whether `rotation` has observed a credential in its target, and will replace it. False, for
/// example, if the credential is only watched, or `rotation` is being deleted.
pub(super) fn replaces_its_credential(context: &RotationContext, rotation: &TokenRotation) -> bool {
    let state = status::state(rotation.status.as_ref());
    context.is_allowed(&rotation.namespace().unwrap_or_default())
        && rotation.metadata.deletion_timestamp.is_none()
        && due(&status::plan(rotation), &state).is_some()
}

/// Whether the API key of `server` is stored at `target`: in the same Secret, under the same key.
/// Namespaces are not compared.
fn is_api_key(target: &SecretTarget, server: &RancherServer) -> bool {
    let minter = &server.minter;
    target.name == minter.secret_name && target.key == minter.key
}

/// Whether status and reason of the condition Ready are the same in the versions `before` and
/// `after` of a TokenRotation.
pub(super) fn is_ready_alike(before: Option<&TokenRotation>, after: &TokenRotation) -> bool {
    let ready = |one: &TokenRotation| {
        ready_condition(one).map(|ready| (ready.status, ready.reason.clone()))
    };
    before.and_then(ready) == ready(after)
}

/// TokenRotation that made `child`. `None`: that TokenRotation no longer exists, or `child` is not
/// a child.
pub(super) fn parent(
    context: &RotationContext,
    child: &TokenRotation,
) -> Option<Arc<TokenRotation>> {
    let owner = made_by(child)?;
    let namespace = child.namespace().unwrap_or_default();
    let parent = context.store.get(&ObjectRef::new(&owner.name).within(&namespace))?;
    (parent.uid().as_ref() == Some(&owner.uid)).then_some(parent)
}

impl RotationRun<'_> {
    /// Plan of the rotation. It takes into account whether another TokenRotation has precedence.
    pub(super) fn current_plan(&self) -> RotationPlan {
        let plan = status::plan(&self.rotation);
        if self.second.is_some() { plan.second() } else { plan }
    }

    /// URL of the Rancher, as the API key's Secret names it. `None`: the spec names the URL itself
    /// or no Rancher, or there is no session with the Rancher.
    pub(super) fn named_url(&self) -> Option<String> {
        let server = self.rotation.spec.rancher.as_ref()?;
        let session = self.session.as_ref().filter(|_| server.url.is_none())?;
        Some(session.url.clone())
    }

    /// All TokenRotations in the namespaces where the operator has rights. This TokenRotation is
    /// one of them.
    pub(super) fn other_rotations(&self) -> Vec<Arc<TokenRotation>> {
        let context = self.context;
        let may = |one: &TokenRotation| context.is_allowed(&one.namespace().unwrap_or_default());
        context.store.state_filter(may)
    }

    /// Looks for another TokenRotation that has precedence for the same credential. If there is
    /// one, records the message about that TokenRotation in `second`, and adapts the plan.
    pub(super) async fn find_first_rival(&mut self) -> Result<(), CallError> {
        if self.named_url().is_some() {
            // The URL is written first, because rivals are found by the URL in the status.
            self.write_status(self.state.clone(), None).await?;
        }
        let others = self.other_rotations();
        if self.plan.source.is_some() {
            let first = first_rival(&self.rotation, others.iter().map(AsRef::as_ref));
            self.second = first.map(second_message);
            self.plan = self.current_plan();
        }
        Ok(())
    }
}
