//! Reads a TokenRotation's target and its Rancher, or finds the reason why they cannot be read.

use super::read_fault::{ReadFault, UnknownTarget};
use super::rotation_run::{RancherSession, RotationRun};
use super::{CredentialIssuer, RotationContext, rancher_session, target};
use crate::api::TokenRotation;
use crate::domain::credentials::rotation::TargetState;
use crate::domain::credentials::rotation::target_secret::TargetRead;
use crate::domain::credentials::rotation::watched::WatchedCredentials;
use crate::k8s::CallError;
use crate::k8s::credentials::ServerClock;

/// Content of a target, the clock of the credentials' issuer, and the session with the Rancher. If
/// the issuer gave no time, the clock is the local one. `unknown`: the reason why the target could
/// not be read; `None` if it was read.
pub(super) struct TargetSnapshot {
    pub(super) read: TargetRead,
    pub(super) clock: ServerClock,
    pub(super) unknown: Option<UnknownTarget>,
    pub(super) session: Option<RancherSession>,
}

impl TargetSnapshot {
    /// Makes the snapshot for a namespace in which the operator has no rights. Nothing is read, so
    /// the time is that of the local clock.
    pub(super) fn without_rights() -> Self {
        let why = "the operator has no rights in this namespace";
        let unknown = UnknownTarget::barred(why.to_owned());
        Self::unread(ServerClock::local(), None, unknown)
    }

    fn unread(clock: ServerClock, session: Option<RancherSession>, unknown: UnknownTarget) -> Self {
        let read = TargetRead::of(TargetState::Unknown, WatchedCredentials::default());
        Self { read, clock, unknown: Some(unknown), session }
    }
}

/// Reads the target that the spec names, and the Rancher, if the spec names one.
pub(super) async fn read(
    context: &RotationContext,
    rotation: &TokenRotation,
) -> Result<TargetSnapshot, CallError> {
    let (mut clock, mut session) = (ServerClock::local(), None);
    let read = async {
        if let Some(server) = &rotation.spec.rancher {
            session = Some(rancher_session::open(context, rotation, server, &mut clock).await?);
        }
        target::read(context, rotation, session.as_mut(), &mut clock).await
    };
    match read.await {
        Ok(read) => Ok(TargetSnapshot { read, clock, unknown: None, session }),
        Err(ReadFault::Call(error)) => Err(error),
        Err(ReadFault::Unknown(unknown)) => Ok(TargetSnapshot::unread(clock, session, unknown)),
    }
}

impl RotationRun<'_> {
    /// Reads the target and its Rancher again, after [`read`] has read them at the start of the
    /// reconcile.
    pub(super) async fn read_again(&mut self) -> Result<(), CallError> {
        let TargetSnapshot { read: target, clock, unknown, session } =
            read(self.context, &self.rotation).await?;
        (self.read, self.unknown, self.session) = (target, unknown, session);
        if self.unknown.is_none() {
            self.clock = clock;
        }
        if CredentialIssuer::of(&self.rotation) == CredentialIssuer::Rancher {
            self.existing = self.list_credentials().await?;
        }
        Ok(())
    }
}
