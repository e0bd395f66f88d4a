//! Way to the Rancher that a spec names: its URL, its authorities and the present API key.

use kube::ResourceExt as _;

use super::RotationContext;
use super::session::BlindReason;
use crate::api::{RancherServer, TokenRotation};
use crate::domain::credentials::minter::MinterSecret;
use crate::domain::credentials::rotation::status::ReadyReason;
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
) -> Result<Result<RancherAccess, BlindReason>, CallError> {
    let namespace = &rotation.namespace().unwrap_or_default();
    let barred = |why: String| Ok(Err(BlindReason::barred(why)));
    let (wants, credentials) = (&server.minter, &keeper.ctx.credentials);
    let read = credentials.secret(namespace, &wants.secret_name, &wants.key).await;
    let (secret, clock) = match read {
        Ok((secret, clock)) => (secret.unwrap_or_default(), clock),
        Err(error) => match error.refusal() {
            Some(why) => return barred(format!("spec.rancher.minter: {why}")),
            None => return Err(error),
        },
    };
    let Some(key) = secret.value.filter(|key| !key.reveal().is_empty()) else {
        return barred(format!(
            "spec.rancher.minter: there is no Secret {:?} with an API key under {:?}",
            wants.secret_name, wants.key
        ));
    };
    let letter = MinterSecret {
        secret: &wants.secret_name,
        named: secret.rancher_url.as_deref(),
        wanted: server.url.as_deref(),
        first: rotation.status.as_ref().and_then(|status| status.rancher_url.as_deref()),
    };
    let url = match letter.address() {
        Ok(url) => url,
        Err(why) => {
            return Ok(Err(BlindReason {
                standing: ReadyReason::MinterRefused,
                ..BlindReason::barred(why)
            }));
        }
    };
    let authority = match authority(keeper, namespace, server).await? {
        Ok(authority) => authority,
        Err(why) => return barred(why),
    };
    match RancherIssuer::new(&url, authority.as_deref(), SecretText::from(&key)) {
        Ok(issuer) => Ok(Ok(RancherAccess { issuer, key, url, clock })),
        Err(why) => barred(format!("spec.rancher: {why}")),
    }
}

/// Key of certificate authorities in the API key's Secret.
const AUTHORITY_KEY: &str = "ca.crt";

/// Certificate authorities of the spec, else of the API key's Secret; or why they cannot be read.
async fn authority(
    keeper: &RotationContext,
    namespace: &str,
    server: &RancherServer,
) -> Result<Result<Option<String>, String>, CallError> {
    let Some(wants) = &server.certificate_authority_secret else {
        if server.certificate_authority.is_some() {
            return Ok(Ok(server.certificate_authority.clone()));
        }
        let beside = &server.minter.secret_name;
        let read = keeper.ctx.credentials.secret(namespace, beside, AUTHORITY_KEY).await?;
        let pem = read.0.and_then(|secret| secret.value);
        let pem = pem.filter(|pem| !pem.reveal().trim().is_empty());
        return Ok(Ok(pem.map(|pem| pem.reveal().to_owned())));
    };
    let field = "spec.rancher.certificateAuthoritySecret";
    let read = keeper.ctx.credentials.secret(namespace, &wants.name, &wants.key).await;
    let value = match read {
        Ok((secret, _)) => secret.and_then(|secret| secret.value),
        Err(error) => match error.refusal() {
            Some(why) => return Ok(Err(format!("{field}: {why}"))),
            None => return Err(error),
        },
    };
    let pem = value.filter(|value| !value.reveal().is_empty());
    Ok(pem.map(|pem| Some(pem.reveal().to_owned())).ok_or_else(|| {
        format!("{field}: there is no Secret {:?} with a value under {:?}", wants.name, wants.key)
    }))
}
