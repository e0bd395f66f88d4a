//! Way to the Rancher that a spec names: its URL, its authorities and the present API key.

use kube::ResourceExt as _;

use super::RotationContext;
use super::look::LookFault;
use super::session::BlindReason;
use crate::api::{RancherServer, TokenRotation};
use crate::domain::credentials::minter::MinterSecret;
use crate::domain::credentials::rotation::ready::ReadyReason;
use crate::domain::credentials::token::TokenText;
use crate::k8s::CallError;
use crate::k8s::credentials::ServerClock;
use crate::rancher::{RancherIssuer, SecretText};

/// Client of a Rancher with the present API key, that key, and the URL.
pub(super) struct RancherAccess {
    pub(super) issuer: RancherIssuer,
    pub(super) key: TokenText,
    pub(super) url: String,
    /// Clock of this cluster's API server, from the read of the key.
    pub(super) clock: ServerClock,
}

/// Client of the Rancher that a spec names, or the reason why it cannot be called.
pub(super) async fn way(
    keeper: &RotationContext,
    rotation: &TokenRotation,
    server: &RancherServer,
) -> Result<RancherAccess, LookFault> {
    let namespace = &rotation.namespace().unwrap_or_default();
    let (wants, credentials) = (&server.minter, &keeper.ctx.credentials);
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
    let url = letter.address().map_err(|why| BlindReason {
        standing: ReadyReason::MinterRefused,
        ..BlindReason::barred(why)
    })?;
    let authority = authority(keeper, namespace, server).await?;
    let issuer = RancherIssuer::new(&url, authority.as_deref(), SecretText::from(&key));
    let issuer = issuer.map_err(|why| barred(format!("spec.rancher: {why}")))?;
    Ok(RancherAccess { issuer, key, url, clock })
}

fn barred(why: String) -> LookFault {
    BlindReason::barred(why).into()
}

/// Fault of the read of a Secret that a field of the spec names.
fn refused(field: &str, error: CallError) -> LookFault {
    match error.refusal() {
        Some(why) => barred(format!("{field}: {why}")),
        None => error.into(),
    }
}

/// Key of certificate authorities in the API key's Secret.
const AUTHORITY_KEY: &str = "ca.crt";

/// Certificate authorities of the spec, else of the API key's Secret. `None`: there are none.
async fn authority(
    keeper: &RotationContext,
    namespace: &str,
    server: &RancherServer,
) -> Result<Option<String>, LookFault> {
    let Some(wants) = &server.certificate_authority_secret else {
        if server.certificate_authority.is_some() {
            return Ok(server.certificate_authority.clone());
        }
        let beside = &server.minter.secret_name;
        let read = keeper.ctx.credentials.secret(namespace, beside, AUTHORITY_KEY).await?;
        let pem = read.0.and_then(|secret| secret.value);
        let pem = pem.filter(|pem| !pem.reveal().trim().is_empty());
        return Ok(pem.map(|pem| pem.reveal().to_owned()));
    };
    let field = "spec.rancher.certificateAuthoritySecret";
    let read = keeper.ctx.credentials.secret(namespace, &wants.name, &wants.key).await;
    let (secret, _) = read.map_err(|error| refused(field, error))?;
    let pem = secret.and_then(|secret| secret.value).filter(|pem| !pem.reveal().is_empty());
    let pem = pem.ok_or_else(|| {
        let (name, key) = (&wants.name, &wants.key);
        barred(format!("{field}: there is no Secret {name:?} with a value under {key:?}"))
    })?;
    Ok(Some(pem.reveal().to_owned()))
}
