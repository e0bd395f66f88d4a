//! A year of Rancher in some seconds: the test carries out the decisions of a rotation against the
//! stand-in and moves its clock, for each version. A consumer that reads the credential now, or
//! read it one overlap ago, is never refused. Where Rancher extends the UI's token, a year without
//! any new token passes first.
//!
//! It is a bad year ([`Weather`]): one in 31 calls fails, on one day of thirty no write succeeds,
//! and two replicas take turns, each with a memory of its own.
//!
//! Here the recorded state is in memory and the test performs each step. The operator's process,
//! which carries out the same decisions, has tests of its own.

mod weather;

use std::fmt::Write as _;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures::future::try_join_all;
use harvester_guest_operator::domain::credentials::rotation::schedule::ReplacementSchedule;
use harvester_guest_operator::domain::credentials::rotation::{
    self, ObservedState, RotationAction, RotationPlan, RotationRequests, RotationState,
    RotationStep, StateChange, TargetState, UnpublishedCredential,
};
use harvester_guest_operator::domain::credentials::secret_text::SecretText;
use harvester_guest_operator::rancher::{
    CloudCredentialView, IssuedTokens, RancherError, RancherIssuer, ReplacementToken, ServerClient,
};
use testbed::eventually;
use testbed::rancher::Version;
use weather::Weather;

use crate::support::SOON;

const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;
const OVERLAP: i64 = 5 * DAY;
/// Maximum number of times, due or an overlap apart, until nothing is under way at the end of the
/// year. A replacement of one credential that was interrupted takes four: it is abandoned, begins
/// when the credential comes due again, and has an overlap. Meanwhile the other credential may come
/// due.
const ROUNDS: usize = 20;
/// Rancher's bound in minutes: no token lives for longer than twenty days, and thirty are
/// requested.
const BOUND: (&str, &str) = ("auth-token-max-ttl-minutes", "28800");

fn is_bound(version: Version) -> bool {
    matches!(version, Version::V2_11 | Version::V2_14 | Version::Main)
}

/// Stand-in for Rancher, a user's API key in memory, and a cloud credential that the UI created.
struct Site {
    weather: Arc<Weather>,
    there: testbed::Rancher,
    user: String,
    key: SecretText,
    cc: String,
}

impl Site {
    async fn new(version: Version) -> Result<Self> {
        let there = testbed::Rancher::start(version).await?;
        if is_bound(version) {
            ensure!(there.set(BOUND.0, BOUND.1), "there is no such setting");
        }
        let user = there.user(false);
        there.cluster("c-m-prod", "prod", &[&user]);
        let key = SecretText::trimmed(there.api_key(&user, 0, "the operator's"));
        let content = there.kubeconfig(&user, "c-m-prod");
        let cc = there.credential(&user, "prod", "c-m-prod", &content)?;
        let site = Self { weather: Weather::of(&there), there, user, key, cc };
        site.looked(version).await?;
        Ok(site)
    }

    /// Waits until Rancher's controller has read the present content, in versions that have one.
    async fn looked(&self, version: Version) -> Result<()> {
        if version < Version::V2_12 {
            return Ok(());
        }
        let content = self.there.content(&self.cc);
        let digest = <sha2::Sha256 as sha2::Digest>::digest(content.as_bytes());
        let sum = digest.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        eventually(SOON, "reconcile by Rancher's controller", async || {
            let secret = self.there.secret(&self.cc).unwrap_or_default();
            secret["metadata"]["annotations"]["management.cattle.io/harvester-token-checksum"]
                == *sum
        })
        .await
    }

    fn issuer(&self) -> Result<RancherIssuer> {
        RancherIssuer::new(self.there.url(), Some(self.there.ca_pem()), self.key.clone())
            .map_err(anyhow::Error::msg)
    }

    /// Token that Rancher's driver would use.
    fn published(&self) -> Result<String> {
        let config: serde_json::Value = serde_saphyr::from_str(&self.there.content(&self.cc))?;
        let user = &config["users"][0]["user"]["token"];
        Ok(user.as_str().context("no token")?.to_owned())
    }

    /// Uses a token as Rancher's driver does.
    async fn uses(&self, token: &str) -> Result<()> {
        let trust = Some(self.there.ca_pem());
        let client =
            ServerClient::new(self.there.url(), trust, None).map_err(anyhow::Error::msg)?;
        let url = format!("{}/k8s/clusters/c-m-prod", self.there.url());
        let cluster = client.cluster(&url, trust, None).map_err(anyhow::Error::msg)?;
        // A fault on the way is not the token's.
        let was_calm = self.weather.is_calm.swap(true, Ordering::Relaxed);
        let used = cluster.bearer(&SecretText::new(token.to_owned())).await;
        self.weather.calm(was_calm);
        used?;
        Ok(())
    }
}

/// Object that receives the credential.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    Credential,
    /// The API key itself.
    Key,
}

/// Outcome of one step.
enum Next {
    /// An act was carried out, or failed: more may follow.
    Again,
    /// Nothing is to be done until that time.
    Wait(Option<i64>),
    /// Rancher could not be read.
    Unread,
}

/// State of one rotation.
struct Rotation {
    plan: RotationPlan,
    place: Where,
    state: RotationState,
    hand: Option<(UnpublishedCredential, Option<SecretText>)>,
    /// Memory of the replica that does not lead.
    other: Option<(UnpublishedCredential, Option<SecretText>)>,
    steps: usize,
    acts: Vec<String>,
}

impl Rotation {
    fn new(prefix: &str, place: Where, lifetime: i64) -> Self {
        let plan = RotationPlan {
            prefix: prefix.to_owned(),
            source: Some(rotation::IssuerTraits {
                readable: false,
                prunes: place == Where::Credential,
                is_apart: false,
            }),
            lifetime,
            presumed: lifetime,
            schedule: ReplacementSchedule {
                left_percent: 33,
                minimum_left: 7 * DAY,
                jitter_percent: 5,
                window: None,
                paused: false,
            },
            overlap: OVERLAP,
            restarts: false,
            revokes: false,
            is_second: false,
            deleting: None,
            requests: RotationRequests::default(),
        };
        let state = RotationState::default();
        Self { plan, place, state, hand: None, other: None, steps: 0, acts: Vec::new() }
    }

    /// Whether no rotation is under way and no overlap.
    fn is_at_rest(&self) -> bool {
        self.state.pending.is_none() && self.state.previous.is_empty()
    }

    /// The other replica leads from now on.
    fn hand_over(&mut self) {
        mem::swap(&mut self.hand, &mut self.other);
        self.acts.push("the other replica leads".to_owned());
    }

    /// Observes, decides, and carries out one act.
    async fn step(&mut self, site: &mut Site) -> Result<Next> {
        self.steps += 1;
        if self.steps.is_multiple_of(29) && !site.weather.is_calm.load(Ordering::Relaxed) {
            self.hand_over();
        }
        let issuer = site.issuer()?;
        let (known, sight, target) = match self.observe(site, &issuer).await {
            Ok(seen) => seen,
            Err(RancherError::Unauthorized(_)) => bail!("the API key is refused: {:#?}", self.acts),
            Err(error) => {
                self.acts.push(format!("not read: {error}"));
                return Ok(Next::Unread);
            }
        };
        let now = known.now.context("no date")?;
        let existing = Some(known.named(&self.plan.prefix));
        let unpublished = self.hand.as_ref().map(|(hand, _)| hand.clone());
        let seen = ObservedState { now, target, existing, unpublished, ..ObservedState::default() };
        let act = rotation::decide(&self.plan, &self.state, &seen);
        if !matches!(act, RotationAction::Wait(_)) {
            self.acts.push(format!("{now} {}", shown(&act)));
        }
        let done: Result<(), (RotationStep, String, String)> = match act {
            RotationAction::Wait(until) => return Ok(Next::Wait(until)),
            RotationAction::Write(change, state) => {
                self.state = *state;
                if change == StateChange::Named {
                    let name = self.state.pending.as_ref().context("nothing named")?.name.clone();
                    self.hand = Some((
                        UnpublishedCredential { name, ..UnpublishedCredential::default() },
                        None,
                    ));
                }
                Ok(())
            }
            RotationAction::Mint(name) => {
                match issuer.mint(&known, &name, self.plan.lifetime, None).await {
                    Ok((value, made)) => {
                        let hand =
                            UnpublishedCredential { name, made: Some(made), verified: false };
                        self.hand = Some((hand, Some(value)));
                        Ok(())
                    }
                    Err(error) => Err((RotationStep::Mint, name, error.to_string())),
                }
            }
            RotationAction::Verify => {
                let Some((hand, Some(value))) = &mut self.hand else { bail!("nothing in hand") };
                let reach = sight.as_ref().and_then(|sight| sight.reach());
                let tried = issuer.verify(value, reach, None).await;
                hand.verified = tried.is_ok();
                tried.map_err(|fault| (RotationStep::Verify, hand.name.clone(), fault.why))
            }
            RotationAction::Publish { keep } => {
                let Some((hand, Some(value))) = &self.hand else { bail!("nothing in hand") };
                if let Some(sight) = &sight {
                    let expires = hand.made.as_ref().and_then(|made| made.expires);
                    let new = ReplacementToken { token: value, expires, keep, to: None };
                    let written = issuer.publish(&site.cc, sight, &new).await;
                    written
                        .map_err(|why| (RotationStep::Publish, hand.name.clone(), why.to_string()))
                } else {
                    site.key = value.clone();
                    Ok(())
                }
            }
            RotationAction::DropOld => {
                let sight = sight.as_ref().context("nothing to drop it from")?;
                let dropped = issuer.drop_old(&site.cc, sight).await;
                dropped.map_err(|why| (RotationStep::Publish, String::new(), why.to_string()))
            }
            RotationAction::Revoke(name) => match issuer.revoke(&name).await {
                Ok(()) => Ok(()),
                Err(error) => Err((RotationStep::Revoke, name, error.to_string())),
            },
            RotationAction::Restart | RotationAction::Finish => bail!("unexpected act {act:?}"),
        };
        if let Err((step, name, why)) = done {
            self.acts.push(format!("{now} failed {step:?}: {why}"));
            self.state = rotation::failed(&self.plan, &self.state, step, &name, now);
        }
        Ok(Next::Again)
    }

    async fn observe(
        &self,
        site: &Site,
        issuer: &RancherIssuer,
    ) -> Result<(IssuedTokens, Option<CloudCredentialView>, TargetState), RancherError> {
        let known = issuer.issued().await?;
        let sight = match self.place {
            Where::Credential => Some(issuer.read_target(&site.cc, &known).await?),
            Where::Key => None,
        };
        let target = if let Some(sight) = &sight {
            sight.target.clone()
        } else {
            let holds = Some(issuer.life(&site.key, &known).await?.held(&site.key, false));
            TargetState::There {
                version: site.key.hash(),
                holds,
                other_tokens: Vec::new(),
                kept: None,
            }
        };
        Ok((known, sight, target))
    }

    /// Carries out acts until nothing is left to do. What cannot be read is read again after half
    /// an hour.
    async fn settle(&mut self, site: &mut Site) -> Result<Option<i64>> {
        for _ in 0..100 {
            match self.step(site).await? {
                Next::Again => {}
                Next::Wait(until) => return Ok(until),
                Next::Unread => return Ok(Some(site.there.now() / 1000 + HOUR / 2)),
            }
        }
        bail!("the acts do not end: {:#?}", self.acts)
    }
}

/// Describes an act in few words.
fn shown(act: &RotationAction) -> String {
    match act {
        RotationAction::Write(change, state) => format!("records {change:?} {}", state.serial),
        act => format!("{act:?}"),
    }
}

/// A year in which Rancher extends the UI's token and no token is created. Then Rancher stops.
async fn kept(site: &mut Site, key: &mut Rotation, credential: &mut Rotation) -> Result<()> {
    let ui = site.published()?;
    for _ in 0..61 {
        for rotation in [&mut *key, &mut *credential] {
            rotation.settle(site).await?;
        }
        site.uses(&ui).await?;
        site.there.advance(Duration::from_secs(u64::try_from(6 * DAY)?));
    }
    let acts = &credential.acts;
    ensure!(acts.len() == 1 && acts[0].contains("Adopted"), "{acts:#?}");
    let name = ui.split(':').next().unwrap_or_default();
    let token = site.there.token(name).context("it is gone")?;
    ensure!(site.published()? == ui && token.ttl == 0, "{token:?}");
    let left = site.there.now() / 1000 + 30 * DAY - token.created;
    site.there.set_ttl(name, left * 1000);
    Ok(())
}

async fn year(version: Version) -> Result<()> {
    let mut site = Site::new(version).await?;
    let mut credential = Rotation::new("prod-0a1b2c3d", Where::Credential, 30 * DAY);
    let mut key = Rotation::new("key-0a1b2c3d", Where::Key, 90 * DAY);
    if matches!(version, Version::V2_12 | Version::V2_14) {
        kept(&mut site, &mut key, &mut credential).await.with_context(|| format!("{version:?}"))?;
    }
    site.weather.calm(false);
    let start = site.there.now() / 1000;
    let (mut held, mut read_at) = (site.published()?, start);
    let mut uses = 0;
    loop {
        let day = (site.there.now() / 1000 - start) / DAY;
        let is_storm = day % 30 == 29;
        site.weather.is_storm.store(is_storm, Ordering::Relaxed);
        let mut until = i64::MAX;
        for rotation in [&mut key, &mut credential] {
            until = until.min(rotation.settle(&mut site).await?.unwrap_or(i64::MAX));
            site.looked(version).await?;
        }
        let now = site.there.now() / 1000;
        let context =
            || format!("{version:?}, day {}: {:#?}", (now - start) / DAY, credential.acts);
        site.uses(&site.published()?).await.with_context(context)?;
        // This consumer read the credential up to an overlap ago, as a job that still runs may
        // have.
        site.uses(&held).await.with_context(context)?;
        uses += 2;
        if now - read_at >= OVERLAP - 6 * HOUR {
            (held, read_at) = (site.published()?, now);
        }
        if now > start + 365 * DAY {
            break;
        }
        // The clock goes on during all this, so leave an hour for it.
        let soonest = if is_storm { 3 * HOUR } else { 1 };
        let next = until.min(read_at + OVERLAP - 5 * HOUR).clamp(now + soonest, now + 3 * DAY);
        site.there.advance(Duration::from_secs(u64::try_from(next - now)?));
    }
    site.weather.calm(true);
    // What has begun is completed, the last overlap ends, and no other one begins.
    for rotation in [&mut key, &mut credential] {
        let schedule = &mut rotation.plan.schedule;
        (schedule.left_percent, schedule.minimum_left, schedule.jitter_percent) = (1, 0, 0);
    }
    for _ in 0..ROUNDS {
        let mut until = i64::MAX;
        for rotation in [&mut key, &mut credential] {
            until = until.min(rotation.settle(&mut site).await?.unwrap_or(i64::MAX));
            site.looked(version).await?;
        }
        if [&key, &credential].iter().all(|one| one.is_at_rest()) {
            break;
        }
        let now = site.there.now() / 1000;
        let next = until.clamp(now + 1, now + OVERLAP);
        site.there.advance(Duration::from_secs(u64::try_from(next - now)?));
    }
    let published = credential.acts.iter().filter(|act| act.contains("Publish {")).count();
    let alive: Vec<String> =
        site.there.tokens().into_iter().filter(|t| t.alive).map(|t| t.description).collect();
    let faults = site.weather.faults.load(Ordering::Relaxed);
    println!("{version:?}: {published} contents, {uses} uses, {faults} faults, alive {alive:?}");
    ensure!(faults >= 20, "{version:?}: only {faults} calls failed");
    ensure!(published >= 12, "{version:?}: {:#?}", credential.acts);
    ensure!(alive.len() == 2, "{version:?}: {alive:?}");
    ensure!(!site.there.content(&site.cc).contains("-previous"), "{version:?}");
    for (rotation, what) in [(&credential, "credential"), (&key, "key")] {
        let (previous, last) = (&rotation.state.previous, rotation.acts.iter().rev().take(20));
        let last = last.collect::<Vec<_>>();
        ensure!(previous.is_empty(), "{version:?}: {what}: {previous:#?}, newest first {last:#?}");
    }
    ensure!(site.user.starts_with("u-"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_credential_lives_through_a_year_of_each_version() -> Result<()> {
    try_join_all(Version::ALL.map(year)).await?;
    Ok(())
}
