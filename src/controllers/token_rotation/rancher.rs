//! Calls of a TokenRotation to a Rancher, with the API key that the spec names.
//!
//! Invariants: the key is read before each look, so that a renewed key is used at once; only the
//! leader writes to a Rancher; time is Rancher's, unless the credentials are another issuer's;
//! nothing is decided without Rancher's answer.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use super::look::LookFault;
use super::session::{BlindReason, RancherSession, RotationRun, StepFault, TRIED_WITHIN};
use super::way::{RancherAccess, way};
use super::{CredentialIssuer, RotationContext, census};
use crate::api::{ApiKey, RancherServer, TokenRotation, WatchedCredential};
use crate::domain::credentials::minter::{self, TokenGrant};
use crate::domain::credentials::rotation::ready::ReadyReason;
use crate::domain::credentials::rotation::status;
use crate::domain::credentials::rotation::target_secret::TargetRead;
use crate::domain::credentials::rotation::watched::{self, WatchedCredentials};
use crate::domain::credentials::rotation::{MintedCredential, TargetState};
use crate::domain::credentials::timestamp::{self, Seconds};
use crate::domain::credentials::token::TokenText;
use crate::k8s::credentials::ServerClock;
use crate::rancher::{CloudCredentialView, IssuedTokens, RancherError, TokenFault, TokenRights};

/// Pauses before the tests of a new token. Other replicas of Rancher know it a moment later than
/// the one that made it. Each test costs one call, the one that succeeds one for each right.
const BETWEEN_TRIES_THERE: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];

/// Maximum of tests that fail otherwise than by a replica's delay. A proxy may break one call.
const MOST_FAULTS: u8 = 2;

/// Opens a session: reads the API key, and the tokens of its user in Rancher. Sets `clock` to the
/// issuer's.
pub(super) async fn open(
    keeper: &RotationContext,
    rotation: &TokenRotation,
    server: &RancherServer,
    clock: &mut ServerClock,
) -> Result<RancherSession, LookFault> {
    let RancherAccess { issuer, key, url, clock: own } = way(keeper, rotation, server).await?;
    let by_account = CredentialIssuer::of(rotation) == CredentialIssuer::ServiceAccount;
    let issued = match issuer.issued().await {
        // They are not needed: the key must only be allowed to write the cloud credential.
        Err(_) if by_account => IssuedTokens::unlisted(),
        other => other?,
    };
    if by_account {
        *clock = own;
    } else if let Some(now) = issued.now {
        *clock = ServerClock::heard(now);
    }
    let key = issuer.life(&key, &issued).await.ok().map(|life| ApiKey {
        name: life.says.name,
        issued_at: life.says.issued.map(timestamp::rfc3339),
        expires_at: life.says.expires.map(timestamp::rfc3339),
        renewed: census::is_renewed(keeper, rotation, server),
    });
    Ok(RancherSession { issuer, issued, sight: None, key, url, unread: 0, listed: Vec::new() })
}

/// Reason why tokens of the API key's user may not be put into a cloud credential, if there is one.
fn refusal(
    rotation: &TokenRotation,
    credential: &str,
    sight: &CloudCredentialView,
    user: &str,
) -> Option<String> {
    let minted = rotation.spec.source.as_ref()?.rancher_token.as_ref()?;
    // A deletion only revokes, and removes the kept old token.
    if rotation.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let allowed = minted.allow_other_user == Some(true);
    TokenGrant { credential, owner: sight.owner()?, user, allowed }.fault()
}

fn before(rotation: &TokenRotation) -> &[WatchedCredential] {
    rotation.status.as_ref().map_or(&[], |status| &status.watched)
}

/// Cluster that the spec names as the token's scope.
fn wanted(rotation: &TokenRotation) -> Option<&str> {
    rotation.spec.source.as_ref()?.rancher_token.as_ref()?.cluster.as_deref()
}

impl RancherSession {
    /// Converts an observed cloud credential into a read target.
    pub(super) fn read(
        &mut self,
        rotation: &TokenRotation,
        name: &str,
        sight: CloudCredentialView,
        now: Seconds,
    ) -> Result<TargetRead, LookFault> {
        if let Some(why) = refusal(rotation, name, &sight, &self.issued.user) {
            let blind = BlindReason::target(why);
            return Err(BlindReason { standing: ReadyReason::MinterRefused, ..blind }.into());
        }
        let sight = self.sight.insert(sight);
        let source = rotation.spec.source.as_ref();
        let minted = source.is_some_and(|source| source.rancher_token.is_some());
        let reach = sight.reach().filter(|_| minted);
        if let Some(why) = reach.and_then(|to| minter::scope(wanted(rotation), &to.server).err()) {
            let unfit = TargetState::Unfit(why);
            return Ok(TargetRead::elsewhere(unfit, WatchedCredentials::default()));
        }
        let held = match &sight.target {
            TargetState::There { holds, .. } if source.is_none() => holds.as_ref(),
            _ => None,
        };
        let listed = held.map(|held| WatchedCredential {
            credential: Some(name.to_owned()),
            unknown: held.is_unseen.then(|| census::NOT_SEEN.to_owned()),
            ..watched::token("", &held.says)
        });
        let mut watched = WatchedCredentials::of(listed.into_iter().collect());
        watched::steady(&mut watched, before(rotation), now);
        let mut read = TargetRead::elsewhere(sight.target.clone(), watched);
        read.reach = sight.reach().cloned();
        Ok(read)
    }

    /// Adds facts from Rancher that a Secret's tokens do not contain: expiry and validity.
    pub(super) async fn ask(
        &self,
        rotation: &TokenRotation,
        read: &mut TargetRead,
        token: Option<TokenText>,
        now: Seconds,
    ) -> Result<(), RancherError> {
        let known = &self.issued;
        let named = |name: &str| known.tokens.iter().find(|token| token.name == name);
        for one in &mut read.watched.listed {
            if let Some(token) = named(&one.name) {
                one.expires_at = token.ends.map(timestamp::rfc3339);
            }
        }
        if let (TargetState::There { holds: Some(held), .. }, Some(token)) =
            (&mut read.target, token)
        {
            let answer = self.issuer.life(&token, known).await?.held(&token, false);
            let said = std::mem::replace(held, answer).says;
            let same =
                |one: &&mut WatchedCredential| one.name == said.name && !said.name.is_empty();
            for one in read.watched.listed.iter_mut().filter(same) {
                one.expires_at = held.says.expires.map(timestamp::rfc3339);
                one.unknown = held.is_unseen.then(|| census::NOT_SEEN.to_owned());
            }
        }
        let listed = std::mem::take(&mut read.watched.listed);
        read.watched.listed = WatchedCredentials::of(listed).listed;
        watched::steady(&mut read.watched, before(rotation), now);
        Ok(())
    }
}

impl RotationRun<'_> {
    pub(super) fn session(&self) -> Result<&RancherSession, StepFault> {
        self.side.as_ref().ok_or_else(|| StepFault::Step("Rancher was not asked".to_owned()))
    }

    /// Names of the tokens that were made for the TokenRotation, as the last look listed them.
    pub(super) fn rancher_tokens(&self) -> Vec<String> {
        let prefix = status::plan(&self.rotation).prefix;
        self.side.as_ref().map(|side| side.issued.named(&prefix)).unwrap_or_default()
    }

    /// Cluster to which a new token is limited. `None`: it is not limited to one.
    fn scope(&self) -> Option<String> {
        let wanted = wanted(&self.rotation);
        match &self.read.reach {
            Some(reach) if self.rotation.spec.target.cloud_credential.is_some() => {
                minter::scope(wanted, &reach.server).ok()
            }
            _ => wanted.map(str::to_owned),
        }
    }

    pub(super) async fn mint_rancher_token(
        &self,
        name: &str,
    ) -> Result<(TokenText, MintedCredential), StepFault> {
        let RancherSession { issuer, issued, .. } = self.session()?;
        self.keeper.ctx.writer.check_leadership()?;
        Ok(issuer.mint(issued, name, self.plan.lifetime, self.scope().as_deref()).await?)
    }

    /// Tests a token in Rancher and where it will be used. A replica of Rancher that does not know
    /// the token yet refuses any of the calls, so all are repeated.
    pub(super) async fn verify_rancher_token(&self, token: &TokenText) -> Result<(), StepFault> {
        let (RancherSession { issuer, .. }, scope) = (self.session()?, self.scope());
        let deadline = Instant::now() + TRIED_WITHIN;
        let mut lasting = 0;
        let mut why = format!(
            "no answer within {} s where the new token will be used",
            TRIED_WITHIN.as_secs()
        );
        for pause in BETWEEN_TRIES_THERE {
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

    /// Rights that Rancher's node driver needs and the token lacks.
    async fn rancher_token_lacks(&self, token: &TokenText) -> Result<Option<String>, TokenFault> {
        let (Some(session), Some(reach)) = (&self.side, &self.read.reach) else { return Ok(None) };
        if self.rotation.spec.target.cloud_credential.is_none() {
            return Ok(None);
        }
        Ok(match session.issuer.rights(token, reach).await? {
            TokenRights::Enough => None,
            TokenRights::Lacking(why) => Some(why),
            TokenRights::Unknown(why) => {
                self.say_rights_unknown(&why);
                None
            }
        })
    }

    pub(super) async fn revoke_rancher_token(&self, name: &str) -> Result<(), StepFault> {
        self.keeper.ctx.writer.check_leadership()?;
        Ok(self.session()?.issuer.revoke(name).await?)
    }
}
