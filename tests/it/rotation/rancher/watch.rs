//! Credentials and API keys that are not replaced: reported by name and in time, however many there
//! are.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::{
    ConditionStatus, TokenRotation, TokenRotationStatus, WatchedCredential,
};
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use testbed::rancher::Version;
use testbed::{Record, eventually};

use super::super::fixture::start;
use super::{KEY, MINTER, Site};
use crate::support::{LATER, shows};

const DAY: u64 = 86_400;
/// Name of the TokenRotation that watches all credentials.
const ALL: &str = "all";

impl Site {
    async fn make(&self, name: &str, spec: Value) -> Result<()> {
        let rotation = TokenRotation::new(name, serde_json::from_value(spec)?);
        self.cluster.rotations().create(&PostParams::default(), &rotation).await?;
        Ok(())
    }

    async fn watch_all(&self) -> Result<()> {
        let rancher = self.spec(&[])["rancher"].clone();
        self.make(ALL, json!({"target": {"allCloudCredentials": {}}, "rancher": rancher})).await
    }

    /// Waits until `is` holds for a TokenRotation's status.
    pub(super) async fn status_where(
        &self,
        name: &str,
        what: &str,
        is: impl Fn(&TokenRotationStatus) -> bool,
    ) -> Result<TokenRotationStatus> {
        eventually(LATER, what, async || {
            let found = self.cluster.rotations().get(name).await.map_err(|e| format!("{e:#}"))?;
            let status = found.status.unwrap_or_default();
            if is(&status) { Ok(Some(status)) } else { Err(format!("{status:#?}")) }
        })
        .await
    }

    /// Creates a cloud credential with a token that lives for so many days.
    fn lasting(&self, title: &str, days: i64) -> Result<String> {
        let token = self.there.api_key(&self.user, days * 86_400_000, "");
        let content = self.there.kubeconfig_with("c-m-prod", &token);
        self.there.credential(&self.user, title, "c-m-prod", &content)
    }

    /// The reads of contents after each list of credentials.
    fn reads(&self) -> Vec<Vec<String>> {
        let mut looks = vec![Vec::new()];
        for Record { call, .. } in self.there.calls() {
            if call.path.starts_with("/v3/cloudCredentials") {
                looks.push(Vec::new());
            } else if let Some((_, name)) = call.path.split_once("/secrets/")
                && let Some(look) = looks.last_mut()
            {
                look.push(name.to_owned());
            }
        }
        looks
    }
}

fn said(status: &TokenRotationStatus, type_: &str) -> (String, bool, String) {
    let found = status.conditions.iter().find(|condition| condition.type_ == type_);
    let found = found.cloned().unwrap_or_default();
    let holds = found.status == ConditionStatus::True;
    (found.reason.unwrap_or_default(), holds, found.message.unwrap_or_default())
}

fn names(status: &TokenRotationStatus) -> Vec<&str> {
    status.watched.iter().filter_map(|one| one.credential.as_deref()).collect()
}

fn one<'a>(status: &'a TokenRotationStatus, name: &str) -> Result<&'a WatchedCredential> {
    let mut all = status.watched.iter();
    all.find(|one| one.credential.as_deref() == Some(name)).context("it is not listed")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_cloud_credential_that_ends_without_replacement_is_named() -> Result<()> {
    let site = Site::new(Version::V2_11).await?;
    let operator = site.cluster.standby(start()).await?;
    operator.leads().await?;
    let (soon, far) = (site.lasting("soon", 3)?, site.lasting("far", 60)?);
    let odd = site.lasting("odd", 1)?;
    let mut exec: Value = serde_saphyr::from_str(&site.there.content(&odd))?;
    exec["users"][0]["user"] = json!({"exec": {"command": "rancher"}});
    site.there.edit_content(&odd, &exec.to_string());
    // Another user's credential is not listed.
    let other = site.there.user(false);
    let content = site.there.kubeconfig_with("c-m-prod", &site.there.api_key(&other, 0, ""));
    let hidden = site.there.credential(&other, "hidden", "c-m-prod", &content)?;
    site.watch_all().await?;
    let all = |status: &TokenRotationStatus| {
        let known = |one: &WatchedCredential| one.expires_at.is_some() || one.unknown.is_some();
        let ready = said(status, "Ready").0 == "WatchedInPart";
        status.watched.len() == 4 && ready && status.watched.iter().all(known)
    };
    let status = site.status_where(ALL, "all four", all).await?;
    ensure!(names(&status) == [&soon, &site.cc, &far, &odd], "{status:#?}");
    ensure!(!names(&status).contains(&hidden.as_str()));
    ensure!(one(&status, &soon)?.title.as_deref() == Some("soon"));
    let unknown = one(&status, &odd)?.unknown.clone().unwrap_or_default();
    ensure!(unknown.contains("exec"), "{unknown}");
    let (reason, holds, message) = said(&status, "Expiring");
    ensure!(reason == "NotReplaced" && holds && message.contains(&soon), "{message}");
    ensure!(!message.contains(&far) && !message.contains(&site.cc), "{message}");
    ensure!(status.expires_at == one(&status, &soon)?.expires_at);
    let (near, ends) = ("hgo_credential_watched_overdue", "credential_watched_expiration");
    let ends = format!("hgo_{ends}_timestamp_seconds");
    let label = |name: &str| format!("credential=\"{name}\"");
    shows(&operator, near, &[&label(&soon)], |value| value == 1.0).await?;
    shows(&operator, near, &[&label(&far)], |value| value == 0.0).await?;

    // Another TokenRotation replaces one of them.
    site.cluster.rotation(site.spec(&[])).await?;
    site.cluster.says("adoption", |status| status.current.is_some()).await?;
    let rotated = |status: &TokenRotationStatus| {
        one(status, &site.cc).is_ok_and(|one| one.rotated) && status.watched.len() == 4
    };
    let status = site.status_where(ALL, "who replaces one", rotated).await?;
    ensure!(names(&status) == [&soon, &far, &odd, &site.cc], "{status:#?}");
    let shown = [label(&site.cc), "rotated=\"true\"".to_owned()];
    let shown: Vec<&str> = shown.iter().map(String::as_str).collect();
    shows(&operator, &ends, &shown, |value| value > 0.0).await?;

    // It has expired: the status reports that, with the time of the end, until a new token is
    // there.
    let end = one(&status, &soon)?.expires_at.clone();
    site.there.advance(Duration::from_secs(4 * DAY));
    site.poke("ended").await?;
    let over = |status: &TokenRotationStatus| said(status, "Expiring").0 == "Expired";
    let status = site.status_where(ALL, "its end", over).await?;
    ensure!(status.expires_at == end && said(&status, "Expiring").2.contains("expired at"));
    let token = site.there.api_key(&site.user, 0, "");
    site.there.edit_content(&soon, &site.there.kubeconfig_with("c-m-prod", &token));
    site.poke("renewed").await?;
    let calm = |status: &TokenRotationStatus| said(status, "Expiring").0 == "TimeLeft";
    site.status_where(ALL, "another end", calm).await?;
    shows(&operator, near, &[&label(&soon)], |value| value == 0.0).await?;
    // Another user's token is not sent to any server to check it.
    let token = site.there.api_key(&other, 0, "");
    site.there.edit_content(&odd, &site.there.kubeconfig_with("c-m-prod", &token));
    site.poke("another user's").await?;
    let unseen = |status: &TokenRotationStatus| {
        let unknown = one(status, &odd).ok().and_then(|one| one.unknown.as_ref());
        unknown.is_some_and(|why| why.contains("may not see the token"))
    };
    site.status_where(ALL, "that it is not known", unseen).await?;
    let name = token.split(':').next().unwrap_or_default();
    ensure!(site.there.token(name).is_some_and(|token| token.last_used.is_none()), "it was used");
    // A Rancher that is down resolves no condition.
    site.there.stop();
    site.poke("down").await?;
    let blind = |status: &TokenRotationStatus| said(status, "Ready").0 == "TargetUnreadable";
    let status = site.status_where(ALL, "that it is down", blind).await?;
    ensure!(status.watched.len() == 4, "{status:#?}");
    site.there.restart();
    let before = site.there.content(&far);
    site.cluster.gone().await?;
    ensure!(site.there.content(&far) == before, "a watched credential was written");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_a_few_are_read_at_a_time_and_those_that_matter_are_listed() -> Result<()> {
    let site = Site::new(Version::V2_8).await?;
    let operator = site.cluster.standby(start()).await?;
    operator.leads().await?;
    let mut all = BTreeSet::from([site.cc.clone()]);
    for number in 0..40 {
        all.insert(site.lasting(&number.to_string(), 31 + number)?);
    }
    site.there.reset();
    site.watch_all().await?;
    let read = |status: &TokenRotationStatus| said(status, "Ready").0 == "Watched";
    let status = site.status_where(ALL, "all of them", read).await?;
    ensure!(status.watched.len() == 32 && status.watched_beyond == Some(9), "{status:#?}");
    let ends: Vec<_> = status.watched.iter().map(|one| one.expires_at.clone()).collect();
    ensure!(ends.is_sorted() && ends.iter().all(Option::is_some), "{ends:?}");
    ensure!(names(&status)[0] == site.cc, "the UI's ends first");
    let looks = site.reads();
    let most = looks.iter().map(Vec::len).max().unwrap_or_default();
    ensure!((1..=16).contains(&most), "{looks:?}");
    let seen: BTreeSet<String> = looks.concat().into_iter().collect();
    ensure!(seen == all, "not all were read");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_key_that_ends_without_renewal_is_reported() -> Result<()> {
    let site = Site::new(Version::Main).await?;
    let operator = site.cluster.standby(start()).await?;
    operator.leads().await?;
    site.give(&site.there.api_key(&site.user, 20 * 86_400_000, "")).await?;
    let patient = json!({"jitterPercent": 0, "minimumLeftSeconds": 7 * DAY});
    site.cluster.rotation(site.spec(&[("schedule", patient)])).await?;
    let key = |reason: &'static str| {
        move |status: &TokenRotationStatus| said(status, "MinterExpiring").0 == reason
    };
    let status = site.status_where("guest", "time left", key("TimeLeft")).await?;
    let shown = status.api_key.context("no key")?;
    ensure!(shown.name.starts_with("token-") && shown.expires_at.is_some(), "{shown:?}");
    site.there.advance(Duration::from_secs(14 * DAY));
    site.poke("near").await?;
    let status = site.status_where("guest", "near end", key("NotRenewed")).await?;
    let (_, holds, message) = said(&status, "MinterExpiring");
    ensure!(holds && message.contains(&shown.name), "{message}");

    // A TokenRotation that renews the key.
    let mut own = site.spec(&[]);
    own["target"] = json!({"secret": {"name": MINTER, "key": KEY}});
    site.make("key", own).await?;
    site.status_where("key", "itself", key("Renewed")).await?;
    site.status_where("guest", "the other", key("Renewed")).await?;

    // Without that TokenRotation, no one replaces a key that a person writes.
    site.cluster.rotations().delete("key", &DeleteParams::default()).await?;
    eventually(LATER, "end of the TokenRotation that renews it", async || {
        site.cluster.rotations().get_opt("key").await.map(|rotation| rotation.is_none())
    })
    .await?;
    let alone = |status: &TokenRotationStatus| said(status, "MinterExpiring").0 != "Renewed";
    site.status_where("guest", "that it is not renewed", alone).await?;

    // A key that is not accepted is reported, however long it is valid.
    let name = "hgo_credential_api_key_overdue";
    site.give("token-abcde:nothing").await?;
    site.status_where("guest", "refusal", key("NotAccepted")).await?;
    shows(&operator, name, &[MINTER], |value| value == 1.0).await?;
    site.give(&site.there.api_key(&site.user, 0, "")).await?;
    site.status_where("guest", "another key", key("TimeLeft")).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_authority_may_be_in_a_secret() -> Result<()> {
    let site = Site::new(Version::V2_14).await?;
    let operator = site.cluster.standby(start()).await?;
    operator.leads().await?;
    let put = async |pem: &str| -> Result<()> {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "authority", "namespace": "default"},
            "stringData": {"tls.crt": pem},
        });
        site.cluster.bed.apply_yaml(&secret.to_string()).await
    };
    let mut spec = site.spec(&[("overlapSeconds", json!(0))]);
    spec["target"] = json!({"secret": {"name": "token", "key": "token"}});
    spec["rancher"]["certificateAuthority"].take();
    spec["rancher"]["certificateAuthoritySecret"] = json!({"name": "authority", "key": "tls.crt"});
    site.cluster.rotation(spec).await?;
    let unreadable = |part: &'static str| {
        move |status: &TokenRotationStatus| {
            let (reason, _, message) = said(status, "Ready");
            reason == "TargetUnreadable" && message.contains(part)
        }
    };
    let field = "certificateAuthoritySecret: there is no Secret \"authority\"";
    site.status_where("guest", "no Secret", unreadable(field)).await?;
    put("nothing").await?;
    site.status_where("guest", "no certificate", unreadable("no certificate in PEM")).await?;
    put(&testbed::Authority::new("other")?.pem()).await?;
    site.status_where("guest", "another authority", unreadable("no answer")).await?;
    ensure!(site.there.tokens().iter().all(|token| !token.description.starts_with("guest-")));
    put(site.there.ca_pem()).await?;
    site.cluster.published(1).await?;
    let secret = site.cluster.guest_secrets().get("token").await?;
    let token = secret.data.and_then(|mut data| data.remove("token")).context("no token")?;
    let token = String::from_utf8(token.0)?;
    ensure!(site.there.accepts(&token), "it does not work");
    site.cluster.annotate("rotate", "1").await?;
    site.rotated("1").await?;
    eventually(LATER, "end of the first", async || !site.there.accepts(&token)).await
}
