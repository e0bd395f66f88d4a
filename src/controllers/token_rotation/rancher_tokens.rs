//! Mints, verifies and revokes tokens of a Rancher's user, with the API key that the spec names.
//!
//! Invariant: only the leader writes to a Rancher.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use super::rancher_session::wanted_cluster;
use super::rotation_run::{RancherSession, RotationRun, StepFault, TEST_DEADLINE};
use crate::domain::credentials::minter;
use crate::domain::credentials::rotation::MintedCredential;
use crate::domain::credentials::secret_text::SecretText;
use crate::rancher::TokenFault;

/// Pauses before the tests of a new token, one for each test. The test is repeated, because a
/// replica of Rancher may accept the token later than the replica that made the token. There are
/// few tests, because each test makes several calls.
const TEST_PAUSES: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];

/// Limit for the failed tests of a new token. At this number, the token is not tested again. A
/// failure does not count if a replica of Rancher perhaps does not know the token yet. The limit is
/// two and not one, because a proxy may break one call.
const MOST_FAULTS: u8 = 2;

impl RotationRun<'_> {
    pub(super) fn session(&self) -> Result<&RancherSession, StepFault> {
        let fault = || StepFault::Step("the operator has no session with Rancher".to_owned());
        self.session.as_ref().ok_or_else(fault)
    }

    /// Names of the tokens that were made for the TokenRotation, as the session has read them from
    /// Rancher. Empty if there is no session.
    pub(super) fn rancher_tokens(&self) -> Vec<String> {
        let prefix = &self.plan.prefix;
        self.session.as_ref().map(|session| session.issued.named(prefix)).unwrap_or_default()
    }

    /// Cluster to which a new token is limited. `None`: the token is not limited.
    fn scope(&self) -> Option<String> {
        let wanted = wanted_cluster(&self.rotation);
        match &self.read.reach {
            Some(reach) if self.is_for_cloud_credential() => {
                minter::scope(wanted, &reach.server).ok()
            }
            _ => wanted.map(str::to_owned),
        }
    }

    pub(super) async fn mint_rancher_token(
        &self,
        name: &str,
    ) -> Result<(SecretText, MintedCredential), StepFault> {
        let RancherSession { issuer, issued, .. } = self.session()?;
        self.context.ctx.writer.check_leadership()?;
        Ok(issuer.mint(issued, name, self.plan.lifetime, self.scope().as_deref()).await?)
    }

    /// Tests a token at Rancher, and at the server where the target's users send it. For a cloud
    /// credential, tests the token's rights as well. If a call fails, all calls are repeated,
    /// because any of them may reach a replica of Rancher that does not have the token yet.
    pub(super) async fn verify_rancher_token(&self, token: &SecretText) -> Result<(), StepFault> {
        let (RancherSession { issuer, .. }, scope) = (self.session()?, self.scope());
        let deadline = Instant::now() + TEST_DEADLINE;
        let mut lasting = 0;
        let mut why = format!(
            "the server where the new token will be used gave no answer within {} s",
            TEST_DEADLINE.as_secs()
        );
        for pause in TEST_PAUSES {
            let tried = async {
                sleep(pause).await;
                issuer.verify(token, self.read.reach.as_ref(), scope.as_deref()).await
            };
            let Ok(tried) = timeout_at(deadline, tried).await else { break };
            let fault = match tried {
                Ok(()) => match self.rancher_token_lacks(token).await {
                    Ok(None) => return Ok(()),
                    Ok(Some(lacks)) => return Err(StepFault::Step(lacks)),
                    Err(fault) => fault,
                },
                Err(fault) => fault,
            };
            why = fault.why;
            lasting += u8::from(!fault.may_pass);
            if lasting == MOST_FAULTS {
                break;
            }
        }
        Err(StepFault::Step(why))
    }

    /// Rights that Rancher's node driver needs and the token lacks, in words. `None`: no right is
    /// needed, none is missing, or the rights are unknown.
    async fn rancher_token_lacks(&self, token: &SecretText) -> Result<Option<String>, TokenFault> {
        match (&self.session, &self.read.reach) {
            (Some(session), Some(reach)) if self.is_for_cloud_credential() => {
                Ok(self.missing_rights(session.issuer.rights(token, reach).await?))
            }
            _ => Ok(None),
        }
    }

    pub(super) async fn revoke_rancher_token(&self, name: &str) -> Result<(), StepFault> {
        self.context.ctx.writer.check_leadership()?;
        Ok(self.session()?.issuer.revoke(name).await?)
    }
}
