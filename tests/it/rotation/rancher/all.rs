//! A single TokenRotation for the API key and for all cloud credentials of the key's user.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::{
    ANNOTATION_RANCHER_URL, ANNOTATION_ROTATE, TokenRotation, TokenRotationStatus,
};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::Role;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::rancher::Version;
use testbed::{CREDENTIAL_RIGHTS, Proxy, Start, eventually};

use super::super::fixture::start;
use super::{KEY, MINTER, OVERLAP, Site};
use crate::crash::{Last, cut_after};
use crate::support::LATER;

const DAY: u64 = 86_400;
const ALL: &str = "all";
const KEYS: &str = "all-api-key";

impl Site {
    /// Creates the TokenRotation for all, with Rancher's certificate authority beside the API key.
    async fn renew_all(&self) -> Result<()> {
        let secret = json!({"stringData": {"ca.crt": self.there.ca_pem()}});
        let params = PatchParams::default();
        self.cluster.guest_secrets().patch(MINTER, &params, &Patch::Merge(secret)).await?;
        let spec = json!({
            "source": {"rancherToken": {}}, "target": {"allCloudCredentials": {}},
            "rancher": {"minter": {"secretName": MINTER}},
            "schedule": {"jitterPercent": 0}, "overlapSeconds": OVERLAP,
        });
        let rotation = TokenRotation::new(ALL, serde_json::from_value(spec)?);
        self.cluster.rotations().create(&PostParams::default(), &rotation).await?;
        Ok(())
    }

    /// Every TokenRotation except the one for all, by name.
    async fn others(&self) -> Result<BTreeMap<String, TokenRotation>> {
        let list = self.cluster.rotations().list(&ListParams::default()).await?;
        let named = list.items.into_iter().map(|one| (one.name_any(), one));
        Ok(named.filter(|(name, _)| name != ALL).collect())
    }

    /// Waits until exactly these TokenRotations exist beside the one for all.
    async fn are(&self, names: &[&str]) -> Result<BTreeMap<String, TokenRotation>> {
        eventually(LATER, &format!("TokenRotations {names:?}"), async || {
            let others = self.others().await.map_err(|error| format!("{error:#}"))?;
            let are: Vec<&str> = others.keys().map(String::as_str).collect();
            let mut wanted = names.to_vec();
            wanted.sort_unstable();
            if are == wanted { Ok(Some(others)) } else { Err(format!("{are:?}")) }
        })
        .await
    }

    /// Waits until `Ready` has this reason and a message with these parts, and returns the status.
    async fn stands(
        &self,
        name: &str,
        reason: &str,
        parts: &[&str],
    ) -> Result<TokenRotationStatus> {
        eventually(LATER, &format!("{name}: {reason}: {parts:?}"), async || {
            let one = self.cluster.rotations().get(name).await.map_err(|e| format!("{e:#}"))?;
            let status = one.status.unwrap_or_default();
            let ready = status.conditions.iter().find(|one| one.type_ == "Ready");
            let ready = ready.cloned().unwrap_or_default();
            let said = ready.message.unwrap_or_default();
            let is = ready.reason.as_deref() == Some(reason);
            if is && parts.iter().all(|part| said.contains(part)) {
                Ok(Some(status))
            } else {
                Err(format!("{:?}: {said}", ready.reason))
            }
        })
        .await
    }

    /// Token of the first user in a cloud credential.
    fn held(&self, cc: &str) -> Result<String> {
        let config: Value = serde_saphyr::from_str(&self.there.content(cc))?;
        Ok(config["users"][0]["user"]["token"].as_str().context("no token")?.to_owned())
    }

    async fn key(&self) -> Result<String> {
        let secret = self.cluster.guest_secrets().get(MINTER).await?;
        let key = secret.data.and_then(|mut data| data.remove(KEY)).context("no API key")?;
        Ok(String::from_utf8(key.0)?)
    }

    /// Advances Rancher's clock, and triggers a reconcile of each TokenRotation.
    async fn later(&self, days: u64) -> Result<()> {
        self.there.advance(Duration::from_secs(days * DAY));
        self.poke(&format!("{days} days later")).await?;
        for name in self.others().await?.into_keys() {
            self.annotate_one(&name, "poke", &days.to_string()).await?;
        }
        Ok(())
    }

    async fn annotate_one(&self, name: &str, key: &str, value: &str) -> Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {key: value}}}));
        self.cluster.rotations().patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until a cloud credential holds another token, and returns it.
    async fn renewed(&self, cc: &str, before: &str) -> Result<String> {
        let after = eventually(LATER, &format!("another token in {cc}"), async || {
            let now = self.held(cc).map_err(|error| format!("{error:#}"))?;
            Ok::<_, String>((now != before).then_some(now))
        })
        .await?;
        ensure!(self.there.accepts(&after), "it does not work");
        Ok(after)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_object_renews_them_all_and_the_api_key() -> Result<()> {
    let site = Site::new(Version::V2_11).await?;
    let mut operator = site.cluster.standby(start()).await?;
    operator.leads().await?;
    // The key's user also sees another user's credential.
    let admin = site.there.user(true);
    site.give(&site.there.api_key(&admin, 0, "by hand")).await?;
    let credential = |title: &str| {
        let content = site.there.kubeconfig(&admin, "c-m-prod");
        site.there.credential(&admin, title, "c-m-prod", &content)
    };
    let (theirs, own) = (site.cc.clone(), credential("own")?);
    let name = |cc: &str| format!("{ALL}-{cc}");
    site.renew_all().await?;
    let first = site.are(&[KEYS, &name(&own)]).await?;
    let parts = [
        "1 of 1 cloud credentials and the API key are replaced",
        &format!("only watched: {theirs} (it belongs to the user \"{}\",", site.user),
    ];
    let status = site.stands(ALL, "Current", &parts).await?;
    ensure!(status.rancher_url.as_deref() == Some(site.there.url()), "{status:#?}");
    // The list may follow one write after the condition.
    site.status_where(ALL, "a list of what is replaced", |status| {
        let rotated = status.watched.iter().filter(|one| one.rotated);
        rotated.filter_map(|one| one.credential.as_deref()).eq([own.as_str()])
    })
    .await?;

    // It is due after twenty of thirty days.
    let (old, left_alone) = (site.held(&own)?, site.there.content(&theirs));
    site.later(25).await?;
    let new = site.renewed(&own, &old).await?;
    let token = site.there.token(new.split(':').next().unwrap_or_default()).context("no token")?;
    ensure!((token.user.as_str(), token.cluster.as_str()) == (admin.as_str(), "c-m-prod"));
    ensure!(site.there.content(&theirs) == left_alone, "another user's was written");

    // One that is created later is renewed as well.
    let late = credential("late")?;
    site.poke("late").await?;
    site.are(&[KEYS, &name(&own), &name(&late)]).await?;
    site.stands(ALL, "Current", &["2 of 2 cloud credentials and the API key"]).await?;

    // Another process continues with the existing ones.
    let tokens = site.there.tokens().len();
    operator.process.terminate(LATER).await?;
    let _ = site.cluster.free_lease().await;
    let operator = site.cluster.standby(start()).await?;
    operator.leads().await?;
    site.poke("restarted").await?;
    let key = site.key().await?;
    let before = site.held(&late)?;
    site.later(40).await?;
    site.renewed(&late, &before).await?;
    eventually(LATER, "another API key", async || {
        let now = site.key().await?;
        anyhow::Ok(now != key && site.there.accepts(&now))
    })
    .await?;
    let again = site.are(&[KEYS, &name(&own), &name(&late)]).await?;
    for (name, child) in &first {
        ensure!(again[name].uid() == child.uid(), "{name} was created again");
    }
    ensure!(site.there.tokens().len() <= tokens + 3, "{:#?}", site.there.tokens());

    // Children follow their parent's spec. A child whose credential is gone is deleted.
    let patch = Patch::Merge(json!({"spec": {"overlapSeconds": OVERLAP + 1}}));
    site.cluster.rotations().patch(ALL, &PatchParams::default(), &patch).await?;
    let follows = i64::try_from(OVERLAP + 1)?;
    eventually(LATER, "another overlap", async || {
        let others = site.others().await?;
        anyhow::Ok(others.values().all(|one| one.spec.overlap_seconds == Some(follows)))
    })
    .await?;
    site.there.delete_credential(&late);
    site.poke("deleted").await?;
    site.are(&[KEYS, &name(&own)]).await?;
    site.stands(ALL, "Current", &["1 of 1 cloud credentials"]).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_made_by_hand_goes_first_and_of_two_the_older_one() -> Result<()> {
    let site = Site::new(Version::V2_15).await?;
    let operator = site.cluster.standby(start()).await?;
    operator.leads().await?;
    site.renew_all().await?;
    let child = format!("{ALL}-{}", site.cc);
    site.are(&[KEYS, &child]).await?;
    site.annotate_one(&child, ANNOTATION_ROTATE, "1").await?;
    let before = site.published()?;
    let made = site.renewed(&site.cc, &before).await?;

    // The child is deleted, and the credential that it published stays.
    let by_hand = |name: &str| TokenRotation {
        spec: serde_json::from_value(site.spec(&[("onDelete", json!("Revoke"))]))
            .unwrap_or_default(),
        ..TokenRotation::new(name, TokenRotation::default().spec)
    };
    let create = async |name: &str| {
        site.cluster.rotations().create(&PostParams::default(), &by_hand(name)).await.map(drop)
    };
    create("prod").await?;
    site.are(&[KEYS, "prod"]).await?;
    site.stands("prod", "Current", &[]).await?;
    let parts = ["0 of 0", "TokenRotation default/prod replaces it"];
    site.stands(ALL, "Current", &parts).await?;
    ensure!(site.published()? == made && site.there.accepts(&made), "it was revoked");
    ensure!(
        site.there.content(&site.cc).matches("token:").count() == 1,
        "another token is beside it"
    );

    // The younger one changes nothing and deletes nothing.
    create("spare").await?;
    site.stands("spare", "SecondRotation", &["default/prod", "the older one"]).await?;
    site.annotate_one("spare", ANNOTATION_ROTATE, "1").await?;
    site.annotate_one("prod", ANNOTATION_ROTATE, "1").await?;
    let made = site.renewed(&site.cc, &made).await?;
    let ours = |start: &str| {
        site.there.tokens().iter().filter(|token| token.description.starts_with(start)).count()
    };
    ensure!((ours("prod-"), ours("spare-")) == (1, 0), "{:#?}", site.there.tokens());
    site.cluster.rotations().delete("spare", &DeleteParams::default()).await?;
    site.are(&[KEYS, "prod"]).await?;
    ensure!(site.there.accepts(&made), "the other one's was revoked");

    // It continues where the first one ended. Without either, the child is created again.
    create("spare").await?;
    site.stands("spare", "SecondRotation", &["default/prod"]).await?;
    let keep = Patch::Merge(json!({"spec": {"onDelete": "Keep"}}));
    for name in ["prod", "spare"] {
        site.cluster.rotations().patch(name, &PatchParams::default(), &keep).await?;
    }
    site.cluster.rotations().delete("prod", &DeleteParams::default()).await?;
    site.stands("spare", "Current", &[]).await?;
    ensure!(site.there.accepts(&site.published()?), "it does not work");
    site.cluster.rotations().delete("spare", &DeleteParams::default()).await?;
    site.are(&[KEYS, &child]).await?;
    site.stands(ALL, "Current", &["1 of 1 cloud credentials and the API key"]).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn with_it_its_children_go_and_nothing_stays_that_never_ends() -> Result<()> {
    let site = Site::new(Version::V2_12).await?;
    let operator = site.cluster.standby(start()).await?;
    operator.leads().await?;
    site.renew_all().await?;
    let child = format!("{ALL}-{}", site.cc);
    site.are(&[KEYS, &child]).await?;
    site.stands(&child, "KeptByRancher", &[]).await?;
    site.stands(ALL, "Current", &["1 of 1"]).await?;
    // Rancher gives the UI's token, which stays beside the new one for a while, no end.
    let ui = site.published()?;
    site.annotate_one(&child, ANNOTATION_ROTATE, "1").await?;
    site.renewed(&site.cc, &ui).await?;
    let eternal =
        || site.there.tokens().into_iter().filter(|one| one.alive && one.ttl == 0).count();
    ensure!(eternal() == 1, "{:#?}", site.there.tokens());
    site.cluster.rotations().delete(ALL, &DeleteParams::default()).await?;
    site.are(&[]).await?;
    eventually(LATER, "end of the UI's token", async || anyhow::Ok(!site.there.accepts(&ui)))
        .await?;
    ensure!(eternal() == 0, "{:#?}", site.there.tokens());
    ensure!(site.there.accepts(&site.published()?) && site.there.accepts(&site.key().await?));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_right_to_make_or_end_children_that_is_said() -> Result<()> {
    let site = Site::new(Version::V2_11).await?;
    site.cluster.robbed();
    let role: Role =
        serde_saphyr::from_str(CREDENTIAL_RIGHTS.split("---\n").next().unwrap_or_default())?;
    let roles: Api<Role> = Api::namespaced(site.cluster.client.clone(), "default");
    let may = async |verbs: &[&str]| {
        let mut given = role.rules.clone().unwrap_or_default();
        for rule in &mut given {
            if rule.resources.iter().flatten().any(|one| one == "tokenrotations") {
                rule.verbs = verbs.iter().map(ToString::to_string).collect();
            }
        }
        let patch = Patch::Merge(json!({"rules": given}));
        roles.patch(&role.name_any(), &PatchParams::default(), &patch).await.map(drop)
    };
    may(&["delete"]).await?;
    let operator = site.cluster.standby(start()).await?;
    operator.leads().await?;
    site.renew_all().await?;
    let parts = ["0 of 1", "cannot create resource \"tokenrotations\""];
    site.stands(ALL, "RenewedInPart", &parts).await?;
    may(&["create"]).await?;
    site.are(&[KEYS, &format!("{ALL}-{}", site.cc)]).await?;
    site.stands(ALL, "Current", &["1 of 1"]).await?;
    site.there.delete_credential(&site.cc);
    site.poke("gone").await?;
    eventually(LATER, "report of the other right", async || {
        let log = operator.process.log();
        anyhow::Ok(log.contains("cannot delete resource") && log.contains("tokenrotations"))
    })
    .await?;
    may(&["create", "delete"]).await?;
    site.poke("given").await?;
    site.are(&[KEYS]).await.map(drop)
}

/// Writes of TokenRotations before a crash: fewer than all children need.
const MOST: usize = 3;

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_two_children_costs_nothing() -> Result<()> {
    let site = Site::new(Version::V2_14).await?;
    let mut wanted = vec![KEYS.to_owned(), format!("{ALL}-{}", site.cc)];
    let mut all = vec![site.cc.clone()];
    for title in ["a", "b", "c", "d"] {
        let content = site.there.kubeconfig(&site.user, "c-m-prod");
        all.push(site.there.credential(&site.user, title, "c-m-prod", &content)?);
        wanted.push(format!("{ALL}-{}", all.last().context("none")?));
    }
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    let proxy = Proxy::start(&site.cluster.bed).await?;
    let via = || Some((proxy.url().to_owned(), proxy.ca_pem().to_owned()));
    for (at, last) in [Last::Answered, Last::Unanswered].into_iter().enumerate() {
        let mut operator = site.cluster.standby(Start { via: via(), ..start() }).await?;
        operator.leads().await?;
        let cut = cut_after(&proxy, &["tokenrotations"], last, MOST);
        if at == 0 {
            site.renew_all().await?;
        }
        eventually(LATER, "a crash", async || anyhow::Ok(cut.load(Ordering::SeqCst) > MOST))
            .await?;
        operator.process.kill9()?;
        proxy.clear_rule();
        let _ = site.cluster.free_lease().await;
    }
    let made = site.others().await?.len();
    ensure!(made < wanted.len(), "all {made} were created before the crash");
    let operator = site.cluster.standby(start()).await?;
    operator.leads().await?;
    site.are(&wanted).await?;
    site.stands(ALL, "Current", &["5 of 5 cloud credentials and the API key"]).await?;
    for cc in &all {
        ensure!(site.there.accepts(&site.held(cc)?), "{cc}");
    }
    Ok(())
}

/// The children stay as they are, and the TokenRotation for all reports the cause.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_revoked_ends_no_child() -> Result<()> {
    let site = Site::new(Version::V2_11).await?;
    let operator = site.cluster.standby(start()).await?;
    operator.leads().await?;
    site.renew_all().await?;
    let child = format!("{ALL}-{}", site.cc);
    let first = site.are(&[KEYS, &child]).await?;
    site.stands(ALL, "Current", &["1 of 1"]).await?;
    let key = site.key().await?;
    site.there.delete_token(key.split(':').next().unwrap_or_default());
    site.poke("revoked").await?;
    let refused = ["the API key is not accepted"];
    site.stands(ALL, "TargetUnreadable", &refused).await?;
    site.stands(&child, "TargetUnreadable", &refused).await?;
    let again = site.are(&[KEYS, &child]).await?;
    ensure!(first.iter().all(|(name, one)| again[name].uid() == one.uid()), "created again");
    site.give(&site.there.api_key(&site.user, 0, "another")).await?;
    site.stands(ALL, "Current", &["1 of 1 cloud credentials and the API key"]).await.map(drop)
}

/// A user who may create a TokenRotation in another namespace can name any credential. With a key
/// that may not use the credential, such an object stops no other. Nor does a credential with an
/// odd name.
#[tokio::test(flavor = "multi_thread")]
async fn a_strangers_rotation_and_an_odd_name_stop_no_other() -> Result<()> {
    let site = Site::new(Version::V2_11).await?;
    site.cluster.bed.kubectl(&["create", "namespace", "team"]).await?;
    site.cluster
        .bed
        .apply_yaml(&CREDENTIAL_RIGHTS.replace("namespace: default", "namespace: team"))
        .await?;
    let stranger = site.there.user(false);
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": MINTER, "namespace": "team",
            "annotations": {ANNOTATION_RANCHER_URL: site.there.url()}},
        "stringData": {KEY: site.there.api_key(&stranger, 0, "")},
    });
    let secrets: Api<Secret> = Api::namespaced(site.cluster.client.clone(), "team");
    secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
    let squat = TokenRotation::new("squat", serde_json::from_value(site.spec(&[]))?);
    let theirs: Api<TokenRotation> = Api::namespaced(site.cluster.client.clone(), "team");
    theirs.create(&PostParams::default(), &squat).await?;
    let odd = "cc.odd";
    let content = site.there.secret(&site.cc).context("no Secret")?;
    site.there.edit_secret(odd, |secret| {
        secret["data"] = content["data"].clone();
        secret["metadata"]["annotations"] = content["metadata"]["annotations"].clone();
    });

    let options = ["--credential-namespaces", "default,team"].map(str::to_owned).to_vec();
    let operator = site.cluster.standby(Start { options, ..start() }).await?;
    operator.leads().await?;
    site.renew_all().await?;
    let child = format!("{ALL}-{}", site.cc);
    site.are(&[KEYS, &child]).await?;
    let parts = ["1 of 2 cloud credentials and the API key are replaced", odd, "must be the name"];
    site.stands(ALL, "RenewedInPart", &parts).await?;
    eventually(LATER, "a reconcile of the stranger's", async || {
        let status = theirs.get("squat").await?.status.unwrap_or_default();
        anyhow::Ok(
            status.conditions.iter().any(|one| one.reason.as_deref() == Some("TargetUnreadable")),
        )
    })
    .await?;
    let before = site.held(&site.cc)?;
    site.annotate_one(&child, ANNOTATION_ROTATE, "1").await?;
    site.renewed(&site.cc, &before).await?;
    site.are(&[KEYS, &child]).await.map(drop)
}
