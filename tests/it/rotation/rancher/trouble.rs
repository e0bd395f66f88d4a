//! Crashes, faults, refusals by name, and a check that none of them reveals a token.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::{ANNOTATION_RANCHER_URL, TokenRotation};
use serde_json::{Value, json};
use testbed::rancher::Version;
use testbed::{Call, Start, Verdict, eventually};

use super::super::fixture::{Versions, start};
use super::{Site, authority};
use crate::support::SOON;

/// Whether the call changes an object in Rancher.
fn writes(call: &Call) -> bool {
    call.is_write() && !call.path.ends_with("reviews")
}

/// Lets so many writes through. The answer to the last one is lost, and after that every call is
/// cut.
pub(super) fn cut_after(site: &Site, most: usize) -> Arc<AtomicUsize> {
    let tried = Arc::new(AtomicUsize::new(0));
    let counter = tried.clone();
    site.there.set_rule(move |call| {
        if !writes(call) {
            let over = counter.load(Ordering::SeqCst) >= most;
            return if over { Verdict::CutBefore } else { Verdict::Pass };
        }
        match counter.fetch_add(1, Ordering::SeqCst) + 1 {
            number if number < most => Verdict::Pass,
            number if number == most => Verdict::CutAfter,
            _ => Verdict::CutBefore,
        }
    });
    tried
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_survives_a_crash_after_each_write() -> Result<()> {
    let site = Site::new(Version::Main).await?;
    let mut operator = site.cluster.standby(start()).await?;
    operator.leads().await?;
    site.cluster.rotation(site.spec(&[])).await?;
    site.cluster.annotate("rotate", "0").await?;
    site.rotated("0").await?;
    site.one_is_left().await?;
    let mut uses = 0;
    let all = async {
        let mut most = 1;
        loop {
            let request = most.to_string();
            let tried = cut_after(&site, most);
            site.cluster.annotate("rotate", &request).await?;
            let cut = site.cluster.ends_or_is_cut(&request, &tried, most).await?;
            operator.process.kill9()?;
            site.there.clear_rule();
            let _ = site.cluster.free_lease().await;
            operator = site.cluster.standby(start()).await?;
            operator.leads().await?;
            site.rotated(&request).await?;
            site.one_is_left().await?;
            if !cut {
                return anyhow::Ok(most - 1);
            }
            most += 1;
        }
    };
    let crashes = tokio::select! {
        end = site.consume(&mut uses) => return end,
        crashes = all => crashes?,
    };
    println!("crashed after each of {crashes} writes; {uses} uses, none refused");
    // Create, publish, drop the old one, revoke.
    ensure!(crashes >= 4, "a rotation took only {crashes} writes: were all observed?");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rancher_that_fails_costs_nothing_but_time() -> Result<()> {
    let site = Site::new(Version::V2_15).await?;
    // Another replica, which learns of a revocation later.
    site.there.second_replica(Duration::from_secs(2));
    let operator = site.cluster.standby(start()).await?;
    operator.leads().await?;
    site.cluster.rotation(site.spec(&[])).await?;
    site.cluster.annotate("rotate", "0").await?;
    site.rotated("0").await?;
    // A half-dead tunnel to the cluster accepts requests and answers none.
    site.there.set_rule(|call| {
        let hangs = call.path.ends_with("/selfsubjectreviews");
        if hangs { Verdict::Hang } else { Verdict::Pass }
    });
    site.cluster.annotate("rotate", "hung").await?;
    let said = site.cluster.reason("Ready", "VerifyFailed").await?;
    let silent = "the server where the new token will be used gave no answer within 10 s";
    ensure!(said.contains(silent), "{said}");
    site.there.clear_rule();
    site.rotated("hung").await?;
    site.there.ext_is_down(true);
    let (quiet, kind) = (AtomicUsize::new(0), AtomicUsize::new(0));
    site.there.set_rule(move |call| {
        let refuse = |code, reason| Verdict::Refuse { code, reason, message: "no".to_owned() };
        // Between two faults is time for a whole rotation: repeated failures back off ever longer.
        if quiet.fetch_add(1, Ordering::Relaxed) < 32 {
            return Verdict::Pass;
        }
        let verdict = match (kind.load(Ordering::Relaxed) % 8, writes(call)) {
            (0, _) => refuse(500, "ServerError"),
            (1, true) => Verdict::CutAfter,
            (2, _) => Verdict::CutBefore,
            (3, true) => refuse(409, "Conflict"),
            (4, _) => refuse(503, "ServiceUnavailable"),
            (5, _) => Verdict::Delay(Duration::from_millis(300)),
            (6, _) => Verdict::Page(404),
            (7, _) => Verdict::Page(502),
            _ => return Verdict::Pass,
        };
        quiet.store(0, Ordering::Relaxed);
        kind.fetch_add(1, Ordering::Relaxed);
        verdict
    });
    let mut uses = 0;
    let rotate = async {
        for number in 1..=4 {
            let request = number.to_string();
            site.cluster.annotate("rotate", &request).await?;
            site.rotated(&request).await?;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        end = site.consume(&mut uses) => end?,
        end = rotate => end?,
    }
    site.there.clear_rule();
    site.one_is_left().await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_replaced_is_refused_by_name() -> Result<()> {
    let site = Site::new(Version::V2_8).await?;
    let operator = site.cluster.standby(start()).await?;
    operator.leads().await?;
    site.cluster.rotation(site.spec(&[])).await?;
    site.cluster.annotate("rotate", "1").await?;
    site.rotated("1").await?;
    site.one_is_left().await?;
    let good = site.there.content(&site.cc);
    let annotations =
        site.there.secret(&site.cc).unwrap_or_default()["metadata"]["annotations"].clone();

    let config: Value = serde_saphyr::from_str(&good)?;
    let mut exec = config.clone();
    exec["users"][0]["user"] = json!({"exec": {"command": "rancher"}});
    let mut lost = config.clone();
    lost["current-context"] = json!("missing");
    for (content, said) in [
        (exec.to_string(), "exec"),
        (lost.to_string(), "current context"),
        ("a: [".to_owned(), "not YAML"),
    ] {
        site.there.edit_content(&site.cc, &content);
        site.poke(said).await?;
        let says = async || -> Result<bool> {
            Ok(site.cluster.reason("Ready", "TargetUnfit").await?.contains(said))
        };
        eventually(SOON, said, says).await?;
    }
    site.there.edit_content(&site.cc, &good);
    site.there
        .edit_secret(&site.cc, |secret| secret["metadata"]["annotations"] = json!({"a": "b"}));
    site.poke("creator").await?;
    let says = async || -> Result<bool> {
        let message = site.cluster.reason("Ready", "TargetUnfit").await?;
        Ok(message.contains("field.cattle.io/creatorId"))
    };
    // Only an administrator may read a Secret without a creator: the user's key is refused.
    let admin = site.there.user(true);
    site.give(&site.there.api_key(&admin, 0, "")).await?;
    eventually(SOON, "creator", says).await?;
    site.give(&site.there.api_key(&site.user, 0, "")).await?;
    site.cluster.reason("Ready", "TargetUnreadable").await?;
    site.there.edit_secret(&site.cc, |secret| secret["metadata"]["annotations"] = annotations);
    site.poke("whole").await?;
    site.cluster.reason("Ready", "Current").await?;

    for (key, said) in [("token-abcde:nothing", "not accepted"), ("", "no Secret")] {
        site.give(key).await?;
        let says = async || -> Result<bool> {
            let message = site.cluster.reason("Ready", "TargetUnreadable").await?;
            Ok(message.contains("spec.rancher.minter") && message.contains(said))
        };
        eventually(SOON, said, says).await?;
    }
    ensure!(site.there.content(&site.cc) == good, "it was written");
    let made = site.there.tokens().into_iter().filter(|t| t.description.starts_with("guest-"));
    ensure!(made.count() == 1, "a token was issued");
    site.give(&site.there.api_key(&site.user, 0, "")).await?;
    site.cluster.reason("Ready", "Current").await?;
    // A Rancher that is down triggers no action.
    site.there.stop();
    site.poke("down").await?;
    site.cluster.reason("Ready", "TargetUnreadable").await?;
    site.there.restart();
    site.poke("up").await?;
    site.cluster.reason("Ready", "Current").await?;
    authority::is_least(&site).await
}

#[tokio::test(flavor = "multi_thread")]
async fn specs_that_make_no_sense_are_refused_naming_the_field() -> Result<()> {
    let site = Site::new(Version::V2_8).await?;
    let with = |path: &str, value: Value| {
        let mut spec = site.spec(&[]);
        if let Some(slot) = spec.pointer_mut(path) {
            *slot = value;
        }
        spec
    };
    let mut without = site.spec(&[]);
    without.as_object_mut().map(|spec| spec.remove("rancher"));
    let mut both = site.spec(&[]);
    both["target"]["secret"] = json!({"name": "a", "key": "b"});
    let mut account = site.spec(&[]);
    account["source"] = json!({"serviceAccountToken": {"serviceAccountName": "guest"}});
    let mut all = site.spec(&[]);
    all["target"] = json!({"allCloudCredentials": {}});
    all["source"] = account["source"].clone();
    let mut alone = all.clone();
    alone.as_object_mut().map(|spec| (spec.remove("rancher"), spec.remove("source")));
    alone.as_object_mut().map(|spec| spec.remove("overlapSeconds"));
    let mut authorities = site.spec(&[]);
    authorities["rancher"]["certificateAuthoritySecret"] = json!({"name": "a", "key": "b"});
    let named = |name: &str, key: &str| {
        let mut spec = authorities.clone();
        spec["rancher"].as_object_mut().map(|there| there.remove("certificateAuthority"));
        spec["rancher"]["certificateAuthoritySecret"] = json!({"name": name, "key": key});
        spec
    };
    let mut other = site.spec(&[]);
    other["target"] = json!({"secret": {"name": "a", "key": "b"}});
    other["source"]["rancherToken"]["allowOtherUser"] = json!(true);
    let mut itself = site.spec(&[]);
    itself["target"] = json!({"secret": {"name": "rancher", "key": "token"}});
    itself["source"]["rancherToken"]["cluster"] = json!("c-m-prod");
    for (spec, field) in [
        (without, "spec.rancher"),
        (both, "spec.target"),
        (account, "spec.target.cloudCredential"),
        (itself, "spec.source.rancherToken.cluster"),
        (other, "spec.source.rancherToken.allowOtherUser"),
        (all, "spec.target.allCloudCredentials"),
        (alone, "spec.rancher"),
        (named("A", "b"), "spec.rancher.certificateAuthoritySecret.name"),
        (named("a", "b/c"), "spec.rancher.certificateAuthoritySecret.key"),
        (authorities, "spec.rancher.certificateAuthoritySecret"),
        (with("/rancher/url", json!("http://rancher")), "spec.rancher.url"),
        (with("/rancher/url", json!("https://a:b@rancher")), "spec.rancher.url"),
        (with("/rancher/url", json!("https://rancher/v3")), "spec.rancher.url"),
        (with("/rancher/certificateAuthority", json!("x")), "spec.rancher.certificateAuthority"),
        (with("/rancher/minter/secretName", json!("A")), "spec.rancher.minter.secretName"),
        (with("/rancher/minter/key", json!("a/b")), "spec.rancher.minter.key"),
        (with("/target/cloudCredential/name", json!("../x")), "spec.target.cloudCredential.name"),
        (with("/source/rancherToken/lifetimeSeconds", json!(1)), "lifetimeSeconds"),
    ] {
        let refused = site.cluster.rotation(spec).await.err().map(|error| format!("{error:#}"));
        ensure!(refused.as_ref().is_some_and(|why| why.contains(field)), "{field}: {refused:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_token_is_disclosed() -> Result<()> {
    let site = Site::new(Version::Main).await?;
    let log = Some("trace".to_owned());
    let operator = site.cluster.standby(Start { log, ..start() }).await?;
    operator.leads().await?;
    let mut secrets = vec![site.published()?];
    let versions = Versions::of(&site.cluster);
    site.cluster.rotation(site.spec(&[("overlapSeconds", json!(0))])).await?;
    for request in ["1", "2"] {
        site.cluster.annotate("rotate", request).await?;
        site.rotated(request).await?;
        site.one_is_left().await?;
        secrets.push(site.published()?);
    }
    // Failing steps, too.
    site.there.set_rule(|call| if writes(call) { Verdict::CutAfter } else { Verdict::Pass });
    site.cluster.annotate("rotate", "3").await?;
    site.cluster.reason("Ready", "MintFailed").await?;
    secrets.extend(
        site.there.tokens().into_iter().map(|token| token.stored).filter(|s| s.len() == 54),
    );
    let status = versions.text().await?;
    let events: kube::Api<k8s_openapi::api::events::v1::Event> =
        kube::Api::namespaced(site.cluster.client.clone(), "default");
    let events =
        serde_json::to_string(&events.list(&kube::api::ListParams::default()).await?.items)?;
    let (_, metrics) = operator.get("/metrics").await?;
    let log = operator.process.log();
    ensure!(log.contains("TRACE") && events.contains("Published"), "nothing was reported");
    for (place, text) in
        [("log", &log), ("status", &status), ("events", &events), ("metrics", &metrics)]
    {
        for secret in &secrets {
            let half = secret.rsplit(':').next().unwrap_or_default();
            ensure!(half.len() >= 54 && !text.contains(half), "a token is in the {place}");
        }
    }
    Ok(())
}

/// A step that keeps failing is retried ever more rarely, and a retry costs few calls. Meanwhile a
/// token that was revoked by hand in another Rancher is replaced within a minute plus the time of a
/// rotation.
#[tokio::test(flavor = "multi_thread")]
async fn a_fault_that_lasts_costs_four_calls_a_minute_and_a_revoked_token_a_minute() -> Result<()> {
    let site = Site::new(Version::V2_15).await?;
    let operator = site.cluster.standby(start()).await?;
    operator.leads().await?;
    let other = Other::new(&site).await?;
    site.cluster.rotation(site.spec(&[])).await?;
    site.cluster.annotate("rotate", "0").await?;
    site.rotated("0").await?;
    site.one_is_left().await?;
    site.there.set_rule(|call| {
        let refusal = Verdict::Refuse { code: 403, reason: "Forbidden", message: "no".to_owned() };
        let is_patch = call.method == "PATCH" && call.path.contains("/secrets/");
        if is_patch { refusal } else { Verdict::Pass }
    });
    site.cluster.annotate("rotate", "1").await?;
    site.cluster.reason("Ready", "PublishFailed").await?;
    let second_minute = async {
        tokio::time::sleep(Duration::from_mins(1)).await;
        site.there.reset();
        tokio::time::sleep(Duration::from_mins(1)).await;
        let calls = site.there.calls();
        let count = calls.len();
        println!("{count} calls in the second minute of a fault that lasts");
        ensure!((1..=4).contains(&count), "{count} calls in the second minute: {calls:#?}");
        anyhow::Ok(())
    };
    tokio::try_join!(second_minute, other.is_mended())?;
    site.there.clear_rule();
    Ok(())
}

/// Second Rancher, with a credential that needs no change.
struct Other {
    there: testbed::Rancher,
    user: String,
    cc: String,
    rotations: kube::Api<TokenRotation>,
}

impl Other {
    async fn new(site: &Site) -> Result<Self> {
        let there = testbed::Rancher::start(Version::V2_12).await?;
        let user = there.user(false);
        there.cluster("c-m-prod", "prod", &[&user]);
        let cc = there.credential(
            &user,
            "prod",
            "c-m-prod",
            &there.kubeconfig_with("c-m-prod", &there.api_key(&user, 0, "")),
        )?;
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {
                "name": "other",
                "namespace": "default",
                "annotations": {ANNOTATION_RANCHER_URL: there.url()},
            },
            "stringData": {"token": there.api_key(&user, 0, "the operator's")},
        });
        site.cluster.bed.apply_yaml(&secret.to_string()).await?;
        let parts = [("source", json!({"rancherToken": {}})), ("overlapSeconds", json!(0))];
        let mut spec = site.spec(&parts);
        spec["target"]["cloudCredential"]["name"] = json!(cc);
        spec["rancher"] = super::server(&there);
        spec["rancher"]["minter"]["secretName"] = json!("other");
        let rotation = TokenRotation::new("other", serde_json::from_value(spec)?);
        let rotations = site.cluster.rotations();
        rotations.create(&kube::api::PostParams::default(), &rotation).await?;
        Ok(Self { there, user, cc, rotations })
    }

    fn kubeconfig(&self) -> Result<Value> {
        Ok(serde_saphyr::from_str(&self.there.content(&self.cc))?)
    }

    /// Waits until the credential holds another token that works. Returns the name of that token.
    async fn holds_another(&self, than: &str) -> Result<String> {
        eventually(Duration::from_secs(90), "another token", async || {
            let config = self.kubeconfig()?;
            let token = config["users"][0]["user"]["token"].as_str().unwrap_or_default().to_owned();
            let name = token.split(':').next().unwrap_or_default().to_owned();
            anyhow::Ok((name != than && self.there.accepts(&token)).then_some(name))
        })
        .await
    }

    /// Waits until so many credentials were published and nothing is left to do.
    async fn rests(&self, serial: i64) -> Result<()> {
        eventually(SOON, "rest", async || {
            let status = self.rotations.get("other").await?.status.unwrap_or_default();
            let is_alone = self.kubeconfig()?["users"].as_array().is_some_and(|all| all.len() == 1);
            let is_done = is_alone && status.pending.is_none() && status.previous.is_empty();
            // And the reconcile after the last write has ended.
            let last = self.there.calls().last().map(|record| record.at.elapsed());
            let is_quiet = last.is_some_and(|last| last > Duration::from_secs(3));
            anyhow::Ok(is_quiet && is_done && status.serial == serial && status.current.is_some())
        })
        .await
    }

    /// Revokes by hand a token that the operator did not create, and then its replacement.
    async fn is_mended(&self) -> Result<()> {
        let mut name = self.holds_another("").await?;
        let mut checked = 0;
        for round in 0..2 {
            self.rests(round).await?;
            self.there.reset();
            let revoked = Instant::now();
            self.there.delete_token(&name);
            let by_name = format!("/v3/tokens/{name}");
            name = self.holds_another(&name).await?;
            println!("replaced {:?} after it was revoked by hand", revoked.elapsed());
            let calls = self.there.calls();
            checked += usize::from(calls.first().is_some_and(|r| r.call.path == by_name));
        }
        ensure!(checked > 0, "a reconcile came first each time");
        self.rests(2).await?;
        // It was requested with the longest lifetime that Rancher grants.
        let token = self.there.token(&name).context("it is gone")?;
        ensure!(token.ttl == 90 * 86_400_000 && token.user == self.user, "{token:?}");
        Ok(())
    }
}
