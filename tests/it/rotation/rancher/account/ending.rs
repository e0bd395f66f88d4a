//! Ends: the TokenRotation is deleted, the account is deleted, and the operator is killed after each
//! write.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use testbed::rancher::Version;
use testbed::{Proxy, Stalls, Start};

use super::super::super::fixture::{NAME, start};
use super::super::trouble::cut_after;
use super::super::{MINTER, Site};
use crate::crash;
use crate::support::beside_bare_writes;

const KINDS: [&str; 3] = ["tokenrotations", "secrets", "serviceaccounts"];

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_revokes_here_whatever_rancher_does() -> Result<()> {
    let site = Site::with_account(Version::V2_14).await?;
    let cluster = &site.cluster;
    let operator = cluster.standby(start()).await?;
    operator.leads().await?;
    let revoke = ("onDelete", json!("Revoke"));
    let long = ("overlapSeconds", json!(86_400));

    // Keep: the token stays, and the one before is taken out after the overlap.
    site.account(&[]).await?;
    cluster.published(1).await?;
    let kept = site.published()?;
    cluster.gone().await?;
    ensure!(site.published()? == kept, "another one is there");
    ensure!(site.config()?["users"].as_array().map(Vec::len) == Some(1), "{}", site.config()?);
    cluster.works(&kept).await?;

    // Another TokenRotation takes over at once. Rancher is gone, and so is its answer.
    site.account(&[revoke.clone(), long.clone()]).await?;
    cluster.published(1).await?;
    let token = site.published()?;
    ensure!(token != kept, "it was not replaced");
    site.there.stop();
    let (stalls, began) = (Stalls::watch()?, Instant::now());
    let most = Duration::from_mins(1);
    let ((), most) = beside_bare_writes(cluster, &stalls, most, cluster.gone()).await?;
    let took = stalls.elapsed(began);
    ensure!(took < most, "{took:?}, limit {most:?}");
    cluster.refused(&token).await?;
    site.there.restart();

    // The API key is gone.
    site.account(&[revoke.clone(), long.clone()]).await?;
    cluster.published(1).await?;
    let token = site.published()?;
    cluster.guest_secrets().delete(MINTER, &DeleteParams::default()).await?;
    cluster.reason("Ready", "TargetUnreadable").await?;
    cluster.gone().await?;
    cluster.refused(&token).await?;
    site.give(&site.there.api_key(&site.user, 0, "")).await?;

    // The cloud credential is gone.
    site.account(&[revoke, long]).await?;
    cluster.published(1).await?;
    let token = site.published()?;
    site.there.delete_credential(&site.cc);
    site.poke("gone").await?;
    cluster.reason("Ready", "TargetUnreadable").await?;
    cluster.works(&token).await?;
    cluster.gone().await?;
    cluster.refused(&token).await?;
    let bound_secrets = cluster.bound_secrets().await?;
    ensure!(bound_secrets.len() == 1, "only the kept one is left, not {bound_secrets:?}");
    Ok(())
}

/// All of its tokens end with it; a later one by its name gets new ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_account_is_named_and_a_new_one_is_used() -> Result<()> {
    let site = Site::with_account(Version::Main).await?;
    let cluster = &site.cluster;
    let operator = cluster.standby(start()).await?;
    operator.leads().await?;
    site.account(&[("overlapSeconds", json!(0))]).await?;
    cluster.published(1).await?;
    let token = site.published()?;
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), "default");
    accounts.delete(NAME, &DeleteParams::default()).await?;
    cluster.refused(&token).await?;
    cluster.annotate("rotate", "1").await?;
    let said = cluster.reason("Ready", "MintFailed").await?;
    ensure!(said.contains("there is no ServiceAccount default/guest"), "{said}");
    let account = serde_json::from_value(json!({"metadata": {"name": NAME}}))?;
    accounts.create(&PostParams::default(), &account).await?;
    site.rotated("1").await?;
    site.one_account_token_is_left().await
}

/// The operator is killed after each write to the API server, and after each one to Rancher.
#[tokio::test(flavor = "multi_thread")]
async fn it_survives_a_crash_after_each_write() -> Result<()> {
    let site = Site::with_account(Version::Main).await?;
    let proxy = Proxy::start(&site.cluster.bed).await?;
    let via =
        || Start { via: Some((proxy.url().to_owned(), proxy.ca_pem().to_owned())), ..start() };
    let mut operator = site.cluster.standby(via()).await?;
    operator.leads().await?;
    // The operator knows the proxy's authority as the cluster's own.
    site.cluster.rotation(site.account_spec(proxy.url(), &[("overlapSeconds", json!(0))])).await?;
    site.cluster.published(1).await?;
    site.one_account_token_is_left().await?;
    let mut crashes = [0, 0];
    for there in [false, true] {
        for writes in 1.. {
            let request = format!("{there}-{writes}");
            let tried = if there {
                cut_after(&site, writes)
            } else {
                crash::cut_after(&proxy, &KINDS, crash::Last::Unanswered, writes)
            };
            site.cluster.annotate("rotate", &request).await?;
            let most = writes + usize::from(!there);
            let cut = site.cluster.ends_or_is_cut(&request, &tried, most).await?;
            site.cluster.works(&site.published()?).await.with_context(|| request.clone())?;
            operator.process.kill9()?;
            proxy.clear_rule();
            site.there.clear_rule();
            let _ = site.cluster.free_lease().await;
            operator = site.cluster.standby(via()).await?;
            operator.leads().await?;
            site.rotated(&request).await?;
            site.one_account_token_is_left().await?;
            if !cut {
                break;
            }
            crashes[usize::from(there)] = writes;
        }
    }
    println!("crashed after each of {} writes here and {} in Rancher", crashes[0], crashes[1]);
    // Here: three of the status, the bound Secret, the token, the record of both ends. There:
    // publish, drop.
    ensure!(crashes[0] >= 7 && crashes[1] >= 2, "{crashes:?}: were all observed?");
    Ok(())
}
