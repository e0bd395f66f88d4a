//! New tokens, the end of old ones, and a revoked one that stays revoked.

use std::process::Stdio;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use testbed::eventually;
use tokio::process::Command;

use super::{Harvester, who, yaml};
use crate::support::SOON;

const USER: &str = "system:serviceaccount:guests:blue";

#[tokio::test(flavor = "multi_thread")]
async fn a_new_token_is_printed_before_the_old_one_goes() -> Result<()> {
    let harvester = Harvester::start().await?;
    let first = harvester.done(&["--cluster", "blue"]).await?;
    ensure!(who(&first).await?.as_deref() == Some(USER));
    harvester.used(&first, "blue-token").await?;

    let second = harvester.done(&["--cluster", "blue", "--rotate"]).await?;
    ensure!(second != first, "the same token");
    let names: Vec<_> = harvester.tokens("blue").await?.iter().map(Secret::name_any).collect();
    ensure!(names.len() == 2 && names[0] == "blue-token", "{names:?}");
    let newest = names[1].clone();
    // A plain run returns the newest, and both work.
    ensure!(harvester.done(&["--cluster", "blue"]).await? == second);

    // The guest still uses the old token, so it is not revoked by mistake.
    let said = harvester.refused(&["--cluster", "blue", "--revoke", "old"]).await?;
    ensure!(said.contains("--revoke old") && said.contains(&newest), "{said}");
    ensure!(
        who(&first).await?.as_deref() == Some(USER) && who(&second).await?.as_deref() == Some(USER)
    );
    // A request to revoke a token that does not exist makes none.
    let said =
        harvester.refused(&["--cluster", "blue", "--rotate", "--revoke", "blue-tokn"]).await?;
    ensure!(said.contains("--revoke \"blue-tokn\"") && said.contains(&newest), "{said}");
    ensure!(harvester.tokens("blue").await?.len() == 2, "the refused request made a token");
    harvester.used(&second, &newest).await?;
    let list = harvester.done(&["--list"]).await?;
    ensure!(list.lines().count() == 3 && !list.contains("never"), "{list}");
    let would = harvester.done(&["--cluster", "blue", "--revoke", "old", "--dry-run"]).await?;
    ensure!(
        would.contains("would delete Secret guests/blue-token\n")
            && !would.contains(&format!("delete Secret guests/{newest}")),
        "{would}"
    );
    ensure!(harvester.tokens("blue").await?.len() == 2, "the dry run deleted one");

    harvester.done(&["--cluster", "blue", "--revoke", "old"]).await?;
    harvester.dead(&first).await?;
    ensure!(who(&second).await?.as_deref() == Some(USER));
    stays_dead(&harvester, &first, &second).await?;

    // Leaked: a new token first, and at once the end of the old one.
    let third = harvester.done(&["--cluster", "blue", "--rotate", "--revoke", "old"]).await?;
    ensure!(who(&third).await?.as_deref() == Some(USER));
    harvester.dead(&second).await?;
    ensure!(harvester.tokens("blue").await?.len() == 1);
    stays_dead(&harvester, &first, &third).await?;

    // The last one, by name. The next run makes a token that did not exist before.
    let name = harvester.tokens("blue").await?[0].name_any();
    harvester.done(&["--cluster", "blue", "--revoke", &name]).await?;
    harvester.dead(&third).await?;
    let fourth = harvester.done(&["--cluster", "blue"]).await?;
    ensure!(who(&fourth).await?.as_deref() == Some(USER));
    for (old, which) in [(&first, "first"), (&second, "second"), (&third, "third")] {
        ensure!(who(old).await?.is_none(), "the {which} token works again");
    }
    stays_dead(&harvester, &first, &fourth).await?;

    // The replacement of the first Secret goes with the rest.
    harvester.done(&["--cluster", "blue", "--revoke", "all"]).await?;
    let secrets: Api<Secret> = Api::namespaced(harvester.client(), "guests");
    eventually(SOON, "end of the replacement", async || {
        secrets.get_opt("blue-token").await.map(|secret| secret.is_none())
    })
    .await
}

/// A new token that could not be printed replaces none.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_printed_revokes_nothing() -> Result<()> {
    let harvester = Harvester::start().await?;
    let first = harvester.done(&["--cluster", "blue"]).await?;
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full")?;
    let output = Command::new(env!("CARGO_BIN_EXE_harvester-guest-operator"))
        .args(["cloud-config", "--namespace", "guests", "--server", harvester.cluster.bed.url()])
        .args(["--cluster", "blue", "--rotate", "--revoke", "old"])
        .env("HGO_KUBECONFIG", &harvester.kubeconfig)
        .stdout(full)
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?
        .wait_with_output()
        .await?;
    let said = String::from_utf8(output.stderr)?;
    ensure!(!output.status.success() && said.contains("standard output"), "{said}");
    ensure!(!said.contains("deleted"), "{said}");
    let names: Vec<_> = harvester.tokens("blue").await?.iter().map(Secret::name_any).collect();
    ensure!(names.len() == 2 && names[0] == "blue-token", "{names:?}");
    ensure!(who(&first).await?.as_deref() == Some(USER));
    // A Secret named by the option goes although the other token is unused, and stays revoked as
    // well.
    let would =
        harvester.done(&["--cluster", "blue", "--revoke", "blue-token", "--dry-run"]).await?;
    ensure!(would.contains("would delete Secret guests/blue-token\n"), "{would}");
    ensure!(harvester.tokens("blue").await?.len() == 2, "the dry run changed something");
    harvester.done(&["--cluster", "blue", "--revoke", "blue-token"]).await?;
    harvester.dead(&first).await?;
    stays_dead(&harvester, &first, &harvester.done(&["--cluster", "blue"]).await?).await?;
    let before = harvester.everything().await?;
    let would = harvester.done(&["--cluster", "blue", "--rotate", "--dry-run"]).await?;
    ensure!(would.contains("into Secret guests/blue-token\n"), "{would}");
    ensure!(harvester.everything().await? == before, "the dry run changed something");
    Ok(())
}

/// Checks that Harvester's UI would return the valid token, and that the revoked one does not work.
async fn stays_dead(harvester: &Harvester, revoked: &str, valid: &str) -> Result<()> {
    let token = harvester.token_for_the_ui("blue").await?;
    ensure!(
        yaml(valid)?["users"][0]["user"]["token"] == token,
        "the UI would hand out another token"
    );
    ensure!(who(revoked).await?.is_none(), "the revoked token works again");
    Ok(())
}

/// Token of a Secret that was deleted by hand. Such a deletion leaves no trace, but a token is
/// determined by its Secret's name and the account.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_was_deleted_by_hand_stays_revoked() -> Result<()> {
    let harvester = Harvester::start().await?;
    let config = harvester.done(&["--cluster", "blue"]).await?;
    let secrets: Api<Secret> = Api::namespaced(harvester.client(), "guests");
    secrets.delete("blue-token", &DeleteParams::default()).await?;
    harvester.dead(&config).await?;
    let second = harvester.done(&["--cluster", "blue"]).await?;
    ensure!(second != config, "the same token");
    ensure!(who(&second).await?.as_deref() == Some(USER));
    stays_dead(&harvester, &config, &second).await?;
    // Reason for the other name: a Secret with the first name has the first token.
    secrets.delete("blue-token", &DeleteParams::default()).await?;
    let secret = serde_json::from_value(json!({
        "metadata": {"name": "blue-token", "annotations": {"kubernetes.io/service-account.name": "blue"}},
        "type": "kubernetes.io/service-account-token",
    }))?;
    secrets.create(&PostParams::default(), &secret).await?;
    eventually(SOON, "second life of the token", async || anyhow::Ok(who(&config).await?.is_some()))
        .await
}
