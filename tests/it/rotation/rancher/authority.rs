//! Rights and owner of a token in a cloud credential, and the server that receives the API key.

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::ANNOTATION_RANCHER_URL;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use testbed::rancher::{Role, Version};
use testbed::{Verdict, eventually};

use super::super::fixture::NAME;
use super::{MINTER, Site};
use crate::support::SOON;

impl Site {
    async fn annotate_key(&self, url: Value) -> Result<()> {
        let patch =
            Patch::Merge(json!({"metadata": {"annotations": {ANNOTATION_RANCHER_URL: url}}}));
        let secrets = self.cluster.guest_secrets();
        secrets.patch(MINTER, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    async fn refused(&self, reason: &str, parts: &[&str]) -> Result<()> {
        eventually(SOON, &format!("{reason}: {parts:?}"), async || {
            let said = self.cluster.reason("Ready", reason).await.map_err(|e| format!("{e:#}"))?;
            if parts.iter().all(|part| said.contains(part)) { Ok(true) } else { Err(said) }
        })
        .await
    }

    /// User and cluster of the published token.
    fn whose(&self) -> Result<(String, String)> {
        let published = self.published()?;
        let name = published.split(':').next().unwrap_or_default();
        let token = self.there.token(name).context("it is not there")?;
        Ok((token.user, token.cluster))
    }
}

/// Checks at a site where the API key belongs to the credential's owner.
pub(super) async fn is_least(site: &Site) -> Result<()> {
    let spec = async |spec: Value| {
        let patch = Patch::Merge(json!({"spec": spec}));
        site.cluster.rotations().patch(NAME, &PatchParams::default(), &patch).await
    };
    spec(json!({"overlapSeconds": 0})).await?;
    let own = (site.user.clone(), "c-m-prod".to_owned());
    ensure!(site.whose()? == own, "{:?}", site.whose());
    let before = site.there.content(&site.cc);

    // Not every reader of the credential may have an administrator's token.
    let admin = site.there.user(true);
    site.give(&site.there.api_key(&admin, 0, "")).await?;
    let parts = ["spec.rancher.minter", admin.as_str(), site.user.as_str(), "allowOtherUser"];
    site.refused("MinterRefused", &parts).await?;
    ensure!(site.there.content(&site.cc) == before, "it was written");
    let allow =
        async |allow| spec(json!({"source": {"rancherToken": {"allowOtherUser": allow}}})).await;
    allow(json!(true)).await?;
    let given = (admin.clone(), own.1.clone());
    eventually(SOON, "the administrator's token", async || {
        Ok::<_, anyhow::Error>(site.whose()? == given)
    })
    .await?;
    let theirs = site.published()?;
    allow(Value::Null).await?;
    site.refused("MinterRefused", &parts).await?;
    site.give(&site.there.api_key(&site.user, 0, "")).await?;
    eventually(SOON, "the owner's token", async || Ok::<_, anyhow::Error>(site.whose()? == own))
        .await?;
    site.cluster.reason("Ready", "Current").await?;
    // The owner's key cannot revoke the administrator's token.
    ensure!(site.there.accepts(&theirs), "it was revoked");
    site.there.delete_token(theirs.split(':').next().unwrap_or_default());

    // The key is sent only to the URL that its own Secret names.
    for (url, part) in
        [(json!("https://127.0.0.1:9"), "\"https://127.0.0.1:9\""), (Value::Null, site.there.url())]
    {
        site.annotate_key(url).await?;
        site.refused("MinterRefused", &[ANNOTATION_RANCHER_URL, part]).await?;
        site.there.reset();
        site.poke(part).await?;
        site.cluster.annotate("rotate", part).await?;
        site.refused("MinterRefused", &[ANNOTATION_RANCHER_URL, part]).await?;
        ensure!(site.there.calls().is_empty(), "{:?}", site.there.calls());
    }
    site.annotate_key(json!(site.there.url())).await?;
    site.rotated(site.there.url()).await?;

    // A reader cannot create machines.
    let reads = || Role { writes: false, namespaces: Vec::new() };
    site.there.role("c-m-prod", &site.user, reads());
    let before = site.published()?;
    site.cluster.annotate("rotate", "reader").await?;
    site.refused("VerifyFailed", &["may not create virtualmachines.kubevirt.io"]).await?;
    ensure!(site.published()? == before, "it was published");
    site.there.role("c-m-prod", &site.user, Role { writes: true, namespaces: vec!["team".into()] });
    site.rotated("reader").await?;
    // A review that cannot be made is no refusal.
    site.there.role("c-m-prod", &site.user, reads());
    site.there.set_rule(|call| {
        let refusal = Verdict::Refuse { code: 403, reason: "Forbidden", message: "no".to_owned() };
        if call.path.ends_with("/selfsubjectaccessreviews") { refusal } else { Verdict::Pass }
    });
    site.cluster.annotate("rotate", "not known").await?;
    site.rotated("not known").await?;
    site.there.clear_rule();
    site.there.role("c-m-prod", &site.user, Role { writes: true, namespaces: Vec::new() });

    // The credential's owner may write another server into it: no token goes there.
    let elsewhere = testbed::Rancher::start(Version::V2_8).await?;
    let (good, token) = (site.there.content(&site.cc), site.published()?);
    site.there.edit_content(&site.cc, &elsewhere.kubeconfig_with("c-m-prod", &token));
    site.cluster.annotate("rotate", "elsewhere").await?;
    site.refused("VerifyFailed", &["the server in the kubeconfig is not this Rancher"]).await?;
    ensure!(elsewhere.calls().is_empty(), "{:?}", elsewhere.calls());
    site.there.edit_content(&site.cc, &good);
    site.rotated("elsewhere").await?;
    site.one_is_left().await
}
