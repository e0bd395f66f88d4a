//! The steps of a rotation that call a Rancher, with the API key that the spec names.
//!
//! Invariants: the key is read before each look, so that a renewed key is used at once; only the
//! leader writes to a Rancher; time is Rancher's; nothing is decided without Rancher's answer.

use std::time::Duration;

use super::session::{BlindReason, RancherSession, RotationRun, TRIED_WITHIN, TargetSnapshot};
use super::way::{RancherAccess, way};
use super::{InHand, RotationContext, account, census};
use crate::api::{ApiKey, RancherServer, TokenRotation, WatchedCredential};
use crate::domain::credentials::minter::{self, TokenGrant};
use crate::domain::credentials::rotation::status::ReadyReason;
use crate::domain::credentials::rotation::target_secret::{self, TargetRead};
use crate::domain::credentials::rotation::watched::{self, WatchedCredentials};
use crate::domain::credentials::rotation::{
    RotationStep, TargetState, UnknownReason, UnpublishedCredential,
};
use crate::domain::credentials::timestamp;
use crate::domain::credentials::token::TokenText;
use crate::k8s::CallError;
use crate::k8s::credentials::ServerClock;
use crate::rancher::{CloudCredentialView, IssuedTokens, RancherError, RancherIssuer, TokenRights};
use kube::ResourceExt as _;

/// Pauses before the tests of a new token. Other replicas of Rancher know it a moment later than
/// the one that made it. Each test costs one call, the one that succeeds two.
const BETWEEN_TRIES_THERE: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];

/// Maximum of tests that fail otherwise than by a replica's delay. A proxy may break one call.
const MOST_FAULTS: u8 = 2;

/// Reads the API key, the tokens of its user in Rancher, and the target.
pub(super) async fn look(
    keeper: &RotationContext,
    rotation: &TokenRotation,
    server: &RancherServer,
) -> Result<TargetSnapshot, CallError> {
    let namespace = rotation.namespace().unwrap_or_default();
    let way = match way(keeper, rotation, server).await? {
        Ok(way) => way,
        Err(blind) => return Ok(TargetSnapshot::blind(blind)),
    };
    let key = way.key.clone();
    let seen = see(keeper, rotation, &namespace, way).await?;
    match seen {
        Ok(mut look) => {
            if let Some(side) = &mut look.side {
                let found = side.issuer.life(&key, &side.issued).await.ok();
                side.key = found.map(|life| ApiKey {
                    name: life.says.name,
                    issued_at: life.says.issued.map(timestamp::rfc3339),
                    expires_at: life.says.expires.map(timestamp::rfc3339),
                    renewed: census::is_renewed(keeper, rotation, server),
                });
            }
            Ok(look)
        }
        Err(RancherError::Unauthorized) => {
            let why = "spec.rancher.minter: the API key is not accepted: it is expired, deleted, disabled or for one cluster only";
            let why = why.to_owned();
            Ok(TargetSnapshot::blind(BlindReason { refused: true, ..BlindReason::barred(why) }))
        }
        Err(error) => {
            let unknown =
                if error.may_be_done() { UnknownReason::Silent } else { UnknownReason::Barred };
            let why = format!("Rancher: {error}");
            Ok(TargetSnapshot::blind(BlindReason { unknown, ..BlindReason::barred(why) }))
        }
    }
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

async fn see(
    keeper: &RotationContext,
    rotation: &TokenRotation,
    namespace: &str,
    RancherAccess { issuer, url, clock, .. }: RancherAccess,
) -> Result<Result<TargetSnapshot, RancherError>, CallError> {
    let from_account = account::of(rotation).is_some();
    let known = match issuer.issued().await {
        Ok(known) => known,
        // They are not needed: the key must only be allowed to write the cloud credential.
        Err(_) if from_account => IssuedTokens::unlisted(),
        Err(error) => return Ok(Err(error)),
    };
    // Time is the issuer's, which for an account is this cluster's API server.
    let heard = |now: Option<i64>, before| match now {
        Some(now) if !from_account => ServerClock::heard(now),
        _ => before,
    };
    let mut clock = heard(known.now, if from_account { clock } else { ServerClock::local() });
    let target = &rotation.spec.target;
    let mut side = RancherSession::new(issuer, known, url);
    let read = if let Some(credential) = &target.cloud_credential {
        let seen = match side.issuer.look(&credential.name, &side.issued).await {
            Ok(seen) => seen,
            Err(error @ (RancherError::Forbidden(_) | RancherError::NotFound(_))) => {
                let look = TargetSnapshot::blind(BlindReason::target(format!("Rancher: {error}")));
                return Ok(Ok(TargetSnapshot { clock, side: Some(side), ..look }));
            }
            Err(error) => return Ok(Err(error)),
        };
        if let Some(why) = refusal(rotation, &credential.name, &seen, &side.issued.user) {
            let blind =
                BlindReason { standing: ReadyReason::MinterRefused, ..BlindReason::target(why) };
            return Ok(Ok(TargetSnapshot {
                clock,
                side: Some(side),
                ..TargetSnapshot::blind(blind)
            }));
        }
        clock = heard(seen.now, clock);
        let read = read_there(rotation, &credential.name, &seen, clock.now());
        side.sight = Some(seen);
        read
    } else if let Some(wants) = &target.secret {
        let read = keeper.ctx.credentials.secret(namespace, &wants.name, &wants.key).await;
        let secret = match read {
            Ok((secret, _)) => secret,
            Err(error) => match error.refusal() {
                Some(why) => {
                    let look = TargetSnapshot::blind(BlindReason::target(format!(
                        "spec.target.secret: {why}"
                    )));
                    return Ok(Ok(TargetSnapshot { clock, side: Some(side), ..look }));
                }
                None => return Err(error),
            },
        };
        let rotated = rotation.spec.source.is_some();
        let mut read = target_secret::read(wants, rotated, secret.as_ref());
        let token = read.token(wants, secret.as_ref());
        if let Err(error) = ask(&side.issuer, &side.issued, &mut read, token).await {
            return Ok(Err(error));
        }
        watched::steady(&mut read.watched, before(rotation), clock.now());
        read
    } else {
        match census::all(keeper, rotation, &side.issuer, &side.issued, clock.now()).await {
            Ok(all) => {
                (side.unread, side.listed) = (all.unread, all.listed);
                let nothing = TargetState::There {
                    version: String::new(),
                    holds: None,
                    beside: Vec::new(),
                    kept: None,
                };
                TargetRead::elsewhere(nothing, all.watched)
            }
            Err(error) => return Ok(Err(error)),
        }
    };
    Ok(Ok(TargetSnapshot { read, clock, blind: None, side: Some(side) }))
}

fn before(rotation: &TokenRotation) -> &[WatchedCredential] {
    rotation.status.as_ref().map_or(&[], |status| &status.watched)
}

/// Cluster that the spec names as the token's scope.
fn wanted(rotation: &TokenRotation) -> Option<&str> {
    rotation.spec.source.as_ref()?.rancher_token.as_ref()?.cluster.as_deref()
}

/// Converts an observed cloud credential into a read target.
fn read_there(
    rotation: &TokenRotation,
    name: &str,
    sight: &CloudCredentialView,
    now: i64,
) -> TargetRead {
    let minted = rotation.spec.source.as_ref().is_some_and(|source| source.rancher_token.is_some());
    let unscoped = sight.reach().filter(|_| minted);
    let unscoped = unscoped.and_then(|to| minter::scope(wanted(rotation), &to.server).err());
    if let Some(why) = unscoped {
        return TargetRead::elsewhere(TargetState::Unfit(why), WatchedCredentials::default());
    }
    let held = match &sight.target {
        TargetState::There { holds: Some(held), .. } if rotation.spec.source.is_none() => {
            Some(held)
        }
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
    if let (Some(_), TargetState::There { holds: Some(held), .. }) =
        (account::of(rotation), &mut read.target)
    {
        // A person may have put it there, and the account's token is back at its time.
        held.is_unseen = false;
    }
    read
}

/// Adds facts from Rancher that a Secret's tokens do not contain: expiry and validity.
async fn ask(
    issuer: &RancherIssuer,
    known: &IssuedTokens,
    read: &mut TargetRead,
    token: Option<TokenText>,
) -> Result<(), RancherError> {
    let named = |name: &str| known.tokens.iter().find(|token| token.name == name);
    for one in &mut read.watched.listed {
        if let Some(token) = named(&one.name) {
            one.expires_at = token.ends.map(timestamp::rfc3339);
        }
    }
    if let (TargetState::There { holds: Some(held), .. }, Some(token)) = (&mut read.target, token) {
        let now = issuer.life(&token, known).await?.held(&token, false);
        let said = std::mem::replace(held, now).says;
        let same = |one: &&mut WatchedCredential| one.name == said.name && !said.name.is_empty();
        for one in read.watched.listed.iter_mut().filter(same) {
            one.expires_at = held.says.expires.map(timestamp::rfc3339);
            one.unknown = held.is_unseen.then(|| census::NOT_SEEN.to_owned());
        }
    }
    let listed = std::mem::take(&mut read.watched.listed);
    read.watched.listed = WatchedCredentials::of(listed).listed;
    Ok(())
}

impl RotationRun<'_> {
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

    fn credential(&self) -> Option<String> {
        Some(self.rotation.spec.target.cloud_credential.as_ref()?.name.clone())
    }

    /// Makes a token in Rancher.
    pub(super) async fn mint_there(&mut self, name: &str) -> Result<(), CallError> {
        let Some(side) = &self.side else { return Ok(()) };
        let scope = self.scope();
        self.keeper.ctx.writer.check_leadership()?;
        match side.issuer.mint(&side.issued, name, self.plan.lifetime, scope.as_deref()).await {
            Ok((token, made)) => {
                let hand = UnpublishedCredential {
                    name: name.to_owned(),
                    made: Some(made),
                    verified: false,
                };
                self.take(Some(InHand { hand, token: Some(token) }));
                Ok(())
            }
            Err(error) => self.failed(RotationStep::Mint, name, &error.to_string()).await,
        }
    }

    /// Tests the token in memory, in Rancher and where it will be used.
    pub(super) async fn verify_there(&mut self) -> Result<(), CallError> {
        let Some(InHand { hand, token: Some(token) }) = self.in_hand() else {
            self.take(None);
            return Ok(());
        };
        let Some(side) = &self.side else { return Ok(()) };
        let (scope, reach) = (self.scope(), self.read.reach.as_ref());
        let mut why = format!(
            "no answer within {} s where the new token will be used",
            TRIED_WITHIN.as_secs()
        );
        let tries = async {
            let mut lasting = 0;
            for pause in BETWEEN_TRIES_THERE {
                tokio::time::sleep(pause).await;
                let Err(fault) = side.issuer.verify(&token, reach, scope.as_deref()).await else {
                    return true;
                };
                why = fault.why;
                lasting += u8::from(!fault.may_pass);
                if lasting == MOST_FAULTS {
                    break;
                }
            }
            false
        };
        if tokio::time::timeout(TRIED_WITHIN, tries).await.unwrap_or(false) {
            if let Some(lacks) = self.lacks(&token).await {
                return self.failed(RotationStep::Verify, &hand.name, &lacks).await;
            }
            let hand = UnpublishedCredential { verified: true, ..hand };
            self.take(Some(InHand { hand, token: Some(token) }));
            return Ok(());
        }
        self.failed(RotationStep::Verify, &hand.name, &why).await
    }

    /// Rights that Rancher's node driver needs and the token lacks.
    async fn lacks(&self, token: &TokenText) -> Option<String> {
        let side = self.side.as_ref()?;
        self.credential()?;
        match side.issuer.rights(token, self.read.reach.as_ref()?).await {
            TokenRights::Enough => None,
            TokenRights::Lacking(why) => Some(why),
            TokenRights::Unknown(why) => {
                self.say_rights_unknown(&why);
                None
            }
        }
    }

    /// Publishes the token in memory in the cloud credential by one write, and reads the credential
    /// again. The write is refused if the version has changed.
    pub(super) async fn publish_there(&mut self, keep: bool) -> Result<(), CallError> {
        let Some(InHand { hand, token: Some(token) }) = self.in_hand() else {
            self.take(None);
            return Ok(());
        };
        let Some((side, sight, name)) = self.there() else { return Ok(()) };
        let to = self.own_server();
        self.keeper.ctx.writer.check_leadership()?;
        let written = side.issuer.publish(&name, sight, &token, keep, to.as_ref()).await;
        self.written(&hand.name, written).await
    }

    /// Removes the kept old token from the cloud credential.
    pub(super) async fn drop_there(&mut self) -> Result<(), CallError> {
        let Some((side, sight, name)) = self.there() else { return Ok(()) };
        self.keeper.ctx.writer.check_leadership()?;
        let written = side.issuer.drop_old(&name, sight).await;
        self.written("", written).await
    }

    async fn written(
        &mut self,
        name: &str,
        written: Result<(), RancherError>,
    ) -> Result<(), CallError> {
        match written {
            Ok(()) | Err(RancherError::Conflict) => self.look_again().await,
            // The target is read before the next try at the latest.
            Err(error) => self.failed(RotationStep::Publish, name, &error.to_string()).await,
        }
    }

    fn there(&self) -> Option<(&RancherSession, &CloudCredentialView, String)> {
        let side = self.side.as_ref()?;
        Some((side, side.sight.as_ref()?, self.credential()?))
    }

    /// Revokes the tokens with this name.
    pub(super) async fn revoke_there(&mut self, name: &str) -> Result<(), String> {
        let Some(side) = &self.side else { return Err("Rancher was not asked".to_owned()) };
        side.issuer.revoke(name).await.map_err(|error| error.to_string())
    }
}
