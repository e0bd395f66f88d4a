//! A TokenRotation with the cloud config: refused where nobody would carry it out, carried out by a real
//! operator where somebody does, and gone with the account.

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::{LABEL_ROTATION, TokenRotation};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use testbed::{Chart, Operator, Start, eventually, repository};

use super::{Harvester, who, yaml};
use crate::support::{LATER, SOON};

const USER: &str = "system:serviceaccount:guests:blue";
const ASKED: [&str; 3] = ["--cluster", "blue", "--rotation"];

impl Harvester {
    fn rotations(&self) -> Api<TokenRotation> {
        Api::namespaced(self.client(), "guests")
    }

    /// What the chart gives for the namespace, for the tokens of these accounts.
    async fn give_rights(&self, accounts: &str) -> Result<()> {
        let namespace = "credentials.namespaces[0].name=guests";
        let accounts = format!("credentials.namespaces[0].serviceAccounts={{{accounts}}}");
        let chart = Chart::locate().await?;
        let rendered = chart.render(&["--set", namespace, "--set", &accounts]).await?;
        let rights = rendered.get("rbac/credentials.yaml").context("no rights in the chart")?;
        self.cluster.bed.apply_yaml(rights).await
    }

    /// The kubeconfig that the operator has put a token into.
    async fn published(&self) -> Result<String> {
        let secrets: Api<Secret> = Api::namespaced(self.client(), "guests");
        eventually(LATER, "published cloud config", async || {
            let status = self.rotations().get("blue").await?.status.unwrap_or_default();
            ensure!(status.current.is_some_and(|current| current.ours), "nothing is published");
            let mut data = secrets.get("blue-cloud-config").await?.data.unwrap_or_default();
            let config = data.remove("cloud-provider-config").context("no key")?;
            Ok(Some(String::from_utf8(config.0)?))
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_is_made_where_somebody_carries_it_out() -> Result<()> {
    let harvester = Harvester::start().await?;
    refusals(&harvester).await?;
    let operator = operator(&harvester).await?;
    let before = harvester.everything().await?;
    // The API server hears of the rights a moment later.
    let dry = [&ASKED[..], &["--dry-run"]].concat();
    let would = eventually(SOON, "word of the rights", async || {
        let ran = harvester.run(&dry).await?;
        ensure!(ran.ok, "{ran:?}");
        anyhow::Ok(Some(ran.out))
    })
    .await?;
    for object in ["Secret guests/blue-cloud-config", "TokenRotation guests/blue"] {
        ensure!(would.contains(&format!("would create {object}\n")), "{would}");
    }
    ensure!(harvester.everything().await? == before, "the dry run wrote something");
    ensure!(harvester.rotations().get_opt("blue").await?.is_none(), "so it did");

    let printed = harvester.done(&[&ASKED[..], &["--rotation-days", "2"]].concat()).await?;
    let config = harvester.published().await?;
    let token = |config: &str| yaml(config).map(|c| c["users"][0]["user"]["token"].clone());
    ensure!(who(&config).await?.as_deref() == Some(USER), "what is published does not work");
    ensure!(token(&config)? != token(&printed)?, "the token without an end was published");
    let strip = |config: &str| {
        yaml(config).map(|mut config| {
            config["users"][0]["user"] = json!({});
            config
        })
    };
    ensure!(strip(&config)? == strip(&printed)?, "another way: {:?}", strip(&config)?);
    let rotation = harvester.rotations().get("blue").await?;
    ensure!(rotation.spec.overlap_seconds == Some(86_400), "{:?}", rotation.spec);
    let source = rotation.spec.source.unwrap_or_default().service_account_token;
    let lifetime = source.context("another source")?.lifetime_seconds;
    ensure!(lifetime == Some(2 * 86_400), "{lifetime:?}");

    // Again: nothing is changed, not even for another number of days.
    harvester.used(&printed, "blue-token").await?;
    let made = harvester.everything().await?;
    ensure!(harvester.done(&ASKED).await? == printed, "another config");
    ensure!(harvester.everything().await? == made, "a second run changed something");
    // Nobody notes the use of such a token, so the guest is not taken for gone.
    let list = harvester.done(&["--list", "--unused-days", "0"]).await?;
    ensure!(list.contains("no VMs") && list.contains("TokenRotation blue"), "{list}");
    harvester.done(&["--revoke", "gone", "--unused-days", "0"]).await?;
    ensure!(harvester.everything().await? == made, "a guest that may be there was revoked");
    let gone = ["--cluster", "blue", "--revoke", "gone", "--unused-days", "0"];
    let said = harvester.refused(&gone).await?;
    ensure!(said.contains("TokenRotation blue"), "{said}");

    harvester.done(&["--cluster", "blue", "--revoke", "all"]).await?;
    harvester.dead(&config).await?;
    let secrets: Api<Secret> = Api::namespaced(harvester.client(), "guests");
    eventually(LATER, "end of what the account owned", async || {
        let rotation = harvester.rotations().get_opt("blue").await?;
        let secret = secrets.get_opt("blue-cloud-config").await?;
        let bound = secrets.list_metadata(&ListParams::default().labels(LABEL_ROTATION)).await?;
        anyhow::Ok(rotation.is_none() && secret.is_none() && bound.items.is_empty())
    })
    .await?;
    drop(operator);
    Ok(())
}

async fn operator(harvester: &Harvester) -> Result<Operator> {
    let options = ["--credential-namespaces", "guests"].map(str::to_owned).to_vec();
    let operator = harvester.cluster.standby(Start { options, ..Start::default() }).await?;
    operator.leads().await?;
    Ok(operator)
}

/// A role that somebody has cut down: each right that is missing is named.
async fn lacking(harvester: &Harvester) -> Result<()> {
    let roles: Api<Role> = Api::namespaced(harvester.client(), "guests");
    let name = "harvester-guest-operator-credentials";
    let whole = roles.get(name).await?.rules.unwrap_or_default();
    let write = async |rules: &[PolicyRule]| {
        let patch = Patch::Merge(json!({"rules": rules}));
        roles.patch(name, &PatchParams::default(), &patch).await.map(drop)
    };
    let mut less = whole.clone();
    let is_of = |rule: &&mut PolicyRule| {
        rule.resources.as_ref().is_some_and(|resources| resources[..] == ["secrets"])
    };
    let secrets = less.iter_mut().find(is_of).context("no rule for Secrets")?;
    secrets.verbs = vec!["get".to_owned(), "list".to_owned(), "create".to_owned()];
    write(&less).await?;
    let said = eventually(SOON, "word of what is missing", async || {
        let said = harvester.refused(&ASKED).await?;
        anyhow::Ok(said.contains("delete Secrets in guests").then_some(said))
    })
    .await?;
    for verb in ["watch", "patch"] {
        ensure!(said.contains(&format!("{verb} Secrets in guests")), "{verb}: {said}");
    }
    for rest in ["create Secrets", "ServiceAccount guests/blue"] {
        ensure!(!said.contains(rest), "{rest}: {said}");
    }
    write(&whole).await?;
    Ok(())
}

/// Each is named, and nothing is written.
async fn refusals(harvester: &Harvester) -> Result<()> {
    let bed = &harvester.cluster.bed;
    let before = harvester.everything().await?;
    let said = harvester.refused(&ASKED).await?;
    ensure!(said.contains("credentials.namespaces") && said.contains("guests"), "{said}");
    bed.kubectl(&["delete", "crd", "tokenrotations.credentials.harvesterhci.io"]).await?;
    let said = eventually(SOON, "word of the CRD", async || {
        let said = harvester.refused(&ASKED).await?;
        anyhow::Ok(said.contains("CRDs").then_some(said))
    })
    .await?;
    ensure!(said.contains("credentials.namespaces"), "not every reason: {said}");
    bed.apply_file(repository().join("crds")).await?;
    bed.crds_established().await?;
    let all = ListParams::default();
    eventually(SOON, "TokenRotations", async || {
        harvester.rotations().list(&all).await.map(|list| list.items.is_empty())
    })
    .await?;
    ensure!(harvester.everything().await? == before, "something was written");

    harvester.give_rights("green").await?;
    let said = eventually(SOON, "word of the rights", async || {
        let said = harvester.refused(&ASKED).await?;
        let named = said.contains("harvester-guest-operator may not");
        anyhow::Ok((named && !said.contains("Secrets in guests")).then_some(said))
    })
    .await?;
    ensure!(said.contains("ServiceAccount guests/blue"), "{said}");
    harvester.give_rights("blue").await?;
    lacking(harvester).await?;

    // What is there by these names and is not the guest's.
    let theirs = json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "blue-cloud-config", "namespace": "guests"}});
    bed.apply_yaml(&theirs.to_string()).await?;
    let another = json!({"apiVersion": "credentials.harvesterhci.io/v1alpha1",
        "kind": "TokenRotation", "metadata": {"name": "blue", "namespace": "guests"},
        "spec": {"target": {"secret": {"name": "other", "key": "token"}}}});
    bed.apply_yaml(&another.to_string()).await?;
    let said = harvester.refused(&ASKED).await?;
    for object in ["Secret guests/blue-cloud-config", "TokenRotation guests/blue"] {
        ensure!(said.contains(object), "{object}: {said}");
    }
    bed.kubectl(&["delete", "--namespace=guests", "secret/blue-cloud-config"]).await?;
    bed.kubectl(&["delete", "--namespace=guests", "tokenrotation/blue"]).await?;
    Ok(())
}
