//! Session with the Rancher that a spec names: its URL, its certificate authorities, the present
//! API key, and the state that was read from the Rancher.
//!
//! Invariants:
//!
//! * The key is read before each session, so that a renewed key is used at once.
//! * Decisions use the clock of the issuer: of Rancher, or of this cluster's API server.
//! * Without Rancher's answer, no credential is made or published.

use kube::ResourceExt as _;

use super::read_fault::{ReadFault, UnknownTarget};
use super::rotation_run::RancherSession;
use super::{CredentialIssuer, RotationContext, inventory, related};
use crate::api::{ApiKey, RancherServer, TokenRotation, WatchedCredential};
use crate::domain::credentials::minter::{self, MinterSecret, TokenGrant};
use crate::domain::credentials::rotation::TargetState;
use crate::domain::credentials::rotation::ready::MINTER_REFUSED;
use crate::domain::credentials::rotation::target_secret::TargetRead;
use crate::domain::credentials::rotation::watched::{self, WatchedCredentials};
use crate::domain::credentials::secret_text::SecretText;
use crate::domain::credentials::timestamp::{self, Seconds};
use crate::k8s::CallError;
use crate::k8s::credentials::ServerClock;
use crate::rancher::{CloudCredentialView, IssuedTokens, RancherError, RancherIssuer};

/// Client of a Rancher, the present API key that the client uses, and the URL of the Rancher.
pub(super) struct RancherAccess {
    pub(super) issuer: RancherIssuer,
    pub(super) key: SecretText,
    pub(super) url: String,
    /// Clock of this cluster's API server, taken from its answer to the read of the key.
    pub(super) clock: ServerClock,
}

/// Client of the Rancher that a spec names. `Err`: the reason why the Rancher cannot be called.
pub(super) async fn access(
    context: &RotationContext,
    rotation: &TokenRotation,
    server: &RancherServer,
) -> Result<RancherAccess, ReadFault> {
    let namespace = &rotation.namespace().unwrap_or_default();
    let (wants, credentials) = (&server.minter, &context.ctx.credentials);
    let read = credentials.secret(namespace, &wants.secret_name, &wants.key).await;
    let (secret, clock) = read.map_err(|error| refused("spec.rancher.minter", error))?;
    let secret = secret.unwrap_or_default();
    let Some(key) = secret.value.filter(|key| !key.reveal().is_empty()) else {
        return Err(barred(format!(
            "spec.rancher.minter: there is no Secret {:?} with an API key under {:?}",
            wants.secret_name, wants.key
        )));
    };
    let letter = MinterSecret {
        secret: &wants.secret_name,
        named: secret.rancher_url.as_deref(),
        wanted: server.url.as_deref(),
        first: rotation.status.as_ref().and_then(|status| status.rancher_url.as_deref()),
    };
    let url = letter
        .address()
        .map_err(|why| UnknownTarget { ready: MINTER_REFUSED, ..UnknownTarget::barred(why) })?;
    let authority = authority(context, namespace, server).await?;
    let issuer = RancherIssuer::new(&url, authority.as_deref(), key.clone());
    let issuer = issuer.map_err(|why| barred(format!("spec.rancher: {why}")))?;
    Ok(RancherAccess { issuer, key, url, clock })
}

fn barred(why: String) -> ReadFault {
    UnknownTarget::barred(why).into()
}

/// Fault for the failed read of a Secret. `field`: field of the spec that names the Secret.
fn refused(field: &str, error: CallError) -> ReadFault {
    match error.refusal() {
        Some(why) => barred(format!("{field}: {why}")),
        None => error.into(),
    }
}

/// Name of the entry for certificate authorities, in the Secret that contains the API key.
const AUTHORITY_KEY: &str = "ca.crt";

/// Certificate authorities of the Rancher, in PEM. They come from the Secret that the spec names
/// for them. `Err`: this Secret does not contain them, or a Secret could not be read. If the spec
/// names no such Secret, they come from the spec itself, or else from the entry [`AUTHORITY_KEY`]
/// of the API key's Secret. `None`: neither of these two contains them.
async fn authority(
    context: &RotationContext,
    namespace: &str,
    server: &RancherServer,
) -> Result<Option<String>, ReadFault> {
    let Some(wants) = &server.certificate_authority_secret else {
        if server.certificate_authority.is_some() {
            return Ok(server.certificate_authority.clone());
        }
        let minter = &server.minter.secret_name;
        let read = context.ctx.credentials.secret(namespace, minter, AUTHORITY_KEY).await?;
        let pem = read.0.and_then(|secret| secret.value);
        let pem = pem.filter(|pem| !pem.reveal().trim().is_empty());
        return Ok(pem.map(|pem| pem.reveal().to_owned()));
    };
    let field = "spec.rancher.certificateAuthoritySecret";
    let read = context.ctx.credentials.secret(namespace, &wants.name, &wants.key).await;
    let (secret, _) = read.map_err(|error| refused(field, error))?;
    let pem = secret.and_then(|secret| secret.value).filter(|pem| !pem.reveal().is_empty());
    let pem = pem.ok_or_else(|| {
        let (name, key) = (&wants.name, &wants.key);
        barred(format!("{field}: there is no Secret {name:?} with a value under {key:?}"))
    })?;
    Ok(Some(pem.reveal().to_owned()))
}

/// Opens a session: reads the API key, and the tokens that the key's user has in Rancher. Sets
/// `clock` to the clock of the credentials' issuer. Exception: if the issuer is Rancher, and its
/// answer contains no time, `clock` stays as it is.
pub(super) async fn open(
    context: &RotationContext,
    rotation: &TokenRotation,
    server: &RancherServer,
    clock: &mut ServerClock,
) -> Result<RancherSession, ReadFault> {
    let RancherAccess { issuer, key, url, clock: own } = access(context, rotation, server).await?;
    let by_account = CredentialIssuer::of(rotation) == CredentialIssuer::ServiceAccount;
    let issued = match issuer.issued().await {
        // The user's tokens are not needed, because Rancher is not the issuer. The key needs only
        // the rights to the cloud credential.
        Err(_) if by_account => IssuedTokens::unlisted(),
        other => other?,
    };
    if by_account {
        *clock = own;
    } else if let Some(now) = issued.now {
        *clock = ServerClock::from_answer(now);
    }
    let key = issuer.life(&key, &issued).await.ok().map(|life| ApiKey {
        name: life.claims.name,
        issued_at: life.claims.issued.map(timestamp::rfc3339),
        expires_at: life.claims.expires.map(timestamp::rfc3339),
        renewed: related::is_key_renewed(context, rotation, server),
    });
    Ok(RancherSession { issuer, issued, view: None, key, url, unread: 0, listed: Vec::new() })
}

/// Reason why the cloud credential `credential` must not get tokens of `user`, the API key's user:
/// another user owns the cloud credential, and the spec does not allow this. `None`: the cloud
/// credential may get them, or this TokenRotation puts no token of `user` into it.
fn refusal(
    rotation: &TokenRotation,
    credential: &str,
    view: &CloudCredentialView,
    user: &str,
) -> Option<String> {
    let minted = rotation.spec.source.as_ref()?.rancher_token.as_ref()?;
    // During the deletion of a TokenRotation, no token is put into the cloud credential. Tokens are
    // only revoked, and the kept token is removed.
    if rotation.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let allowed = minted.allow_other_user == Some(true);
    TokenGrant { credential, owner: view.owner()?, user, allowed }.fault()
}

fn watched_before(rotation: &TokenRotation) -> &[WatchedCredential] {
    rotation.status.as_ref().map_or(&[], |status| &status.watched)
}

/// Cluster to which the spec limits the token of a Rancher. `None`: the spec names no cluster.
pub(super) fn wanted_cluster(rotation: &TokenRotation) -> Option<&str> {
    rotation.spec.source.as_ref()?.rancher_token.as_ref()?.cluster.as_deref()
}

impl RancherSession {
    /// Converts a cloud credential, as read from Rancher, into the content of the target. `Err`:
    /// tokens of the API key's user must not be put into the cloud credential.
    pub(super) fn cloud_credential_read(
        &mut self,
        rotation: &TokenRotation,
        name: &str,
        view: CloudCredentialView,
        now: Seconds,
    ) -> Result<TargetRead, ReadFault> {
        if let Some(why) = refusal(rotation, name, &view, &self.issued.user) {
            let unknown = UnknownTarget::target_barred(why);
            return Err(UnknownTarget { ready: MINTER_REFUSED, ..unknown }.into());
        }
        let view = self.view.insert(view);
        let source = rotation.spec.source.as_ref();
        let minted = source.is_some_and(|source| source.rancher_token.is_some());
        let reach = view.reach().filter(|_| minted);
        if let Some(why) =
            reach.and_then(|to| minter::scope(wanted_cluster(rotation), &to.server).err())
        {
            let unfit = TargetState::Unfit(why);
            return Ok(TargetRead::of(unfit, WatchedCredentials::default()));
        }
        let held = view.target.held().filter(|_| source.is_none());
        let listed = held.map(|held| WatchedCredential {
            credential: Some(name.to_owned()),
            unknown: held.is_unseen.then(|| inventory::NOT_SEEN.to_owned()),
            ..watched::token_entry("", &held.claims)
        });
        let mut watched = WatchedCredentials::of(listed.into_iter().collect());
        watched::keep_first_expiries(&mut watched, watched_before(rotation), now);
        let mut read = TargetRead::of(view.target.clone(), watched);
        read.reach = view.reach().cloned();
        Ok(read)
    }

    /// Adds the expiry and validity of tokens to `read`, the content of a target Secret. These
    /// facts come from Rancher, because Rancher's tokens do not contain them. `token`: the token in
    /// the target.
    pub(super) async fn add_rancher_facts(
        &self,
        rotation: &TokenRotation,
        read: &mut TargetRead,
        token: Option<SecretText>,
        now: Seconds,
    ) -> Result<(), RancherError> {
        let known = &self.issued;
        let named = |name: &str| known.tokens.iter().find(|token| token.name == name);
        for one in &mut read.watched.listed {
            if let Some(token) = named(&one.name) {
                one.expires_at = token.expires.map(timestamp::rfc3339);
            }
        }
        if let (TargetState::There { holds: Some(held), .. }, Some(token)) =
            (&mut read.target, token)
        {
            let answer = self.issuer.life(&token, known).await?.held(&token, false);
            let said = std::mem::replace(held, answer).claims;
            let same =
                |one: &&mut WatchedCredential| one.name == said.name && !said.name.is_empty();
            for one in read.watched.listed.iter_mut().filter(same) {
                one.expires_at = held.claims.expires.map(timestamp::rfc3339);
                one.unknown = held.is_unseen.then(|| inventory::NOT_SEEN.to_owned());
            }
        }
        let listed = std::mem::take(&mut read.watched.listed);
        read.watched.listed = WatchedCredentials::of(listed).listed;
        watched::keep_first_expiries(&mut read.watched, watched_before(rotation), now);
        Ok(())
    }
}
