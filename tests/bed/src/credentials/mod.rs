//! Owns what a TokenRotation of the namespace `default` needs: the operator's rights there, and an
//! account whose tokens are replaced.

use anyhow::Result;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use crate::operator::START;
use crate::{Bed, eventually};

/// Rights that the chart renders for the namespace, in which tokens of all accounts are replaced.
pub const CREDENTIAL_RIGHTS: &str = include_str!("rights.yaml");
/// The account `guest`, which may read ConfigMaps.
pub const GUEST_ACCOUNT: &str = include_str!("guest.yaml");

/// Creates the account, and grants the operator the rights to replace credentials in its namespace.
pub async fn install_credentials(bed: &Bed) -> Result<()> {
    bed.apply_yaml(CREDENTIAL_RIGHTS).await?;
    bed.apply_yaml(GUEST_ACCOUNT).await?;
    let operator = "system:serviceaccount:harvester-system:harvester-guest-operator";
    let guest = "system:serviceaccount:default:guest";
    for (user, resource, part, verb) in [
        (operator, "secrets", "", "list"),
        (operator, "serviceaccounts", "token", "create"),
        (guest, "configmaps", "", "list"),
    ] {
        let review = json!({"metadata": {}, "spec": {"user": user, "resourceAttributes": {
            "namespace": "default", "resource": resource, "subresource": part, "verb": verb,
        }}});
        eventually(START, &format!("right to {verb} {resource}"), async || {
            let review: SubjectAccessReview = serde_json::from_value(review.clone())?;
            let answer = Api::all(bed.admin()).create(&PostParams::default(), &review).await?;
            anyhow::Ok(answer.status.is_some_and(|status| status.allowed))
        })
        .await?;
    }
    Ok(())
}
