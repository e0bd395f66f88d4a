//! A credential that is renewed under the eyes of a client, which uses it all the time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use testbed::{Bed, eventually};
use tokio::time::interval;

use crate::PATIENCE;

/// Name of the TokenRotation, of its Secret, of the account and of the kubeconfig's user.
const NAME: &str = "guest";
const KEY: &str = "kubeconfig";
const OVERLAP: Duration = Duration::from_secs(5);
/// Pause between two calls of the client.
const PAUSE: Duration = Duration::from_millis(50);
const ROTATE: [&str; 4] = ["annotate", "rotation", NAME, "credentials.harvesterhci.io/rotate=now"];

/// Calls of the client, and those of them that were refused, by token.
#[derive(Default)]
struct Calls(RefCell<BTreeMap<String, (u32, u32)>>);

pub(crate) async fn run(bed: &Bed) -> Result<((), String)> {
    let begun = Instant::now();
    begin(bed).await?;
    published(bed, 1).await?;
    println!(
        "      Secret default/{NAME}: a token in its kubeconfig, {} ms after the TokenRotation",
        begun.elapsed().as_millis()
    );
    let calls = Calls::default();
    let seen = tokio::select! {
        ended = calls.go_on(bed) => match ended? {},
        seen = renew(bed, &calls) => seen?,
    };
    Ok(((), seen))
}

async fn renew(bed: &Bed, calls: &Calls) -> Result<String> {
    let old = token(bed).await?;
    eventually(PATIENCE, "call with the first token", async || calls.with(&old) > 0).await?;
    println!(
        "      a client reads the Secret and calls with its token, every {} ms",
        PAUSE.as_millis()
    );
    let begun = Instant::now();
    bed.kubectl(&ROTATE).await?;
    println!("      kubectl {}", ROTATE.join(" "));
    published(bed, 2).await?;
    let published = begun.elapsed().as_millis();
    let new = token(bed).await?;
    ensure!(new != old, "the Secret still has the first token");
    println!(
        "      a new token is published, {published} ms after the start of kubectl; both work for {} s",
        OVERLAP.as_secs()
    );
    let client = bed.client_for(&old).await?;
    eventually(PATIENCE, "refusal of the old token", async || match is_accepted(&client).await {
        Ok(true) => Err("it is accepted".to_owned()),
        Ok(false) => Ok(true),
        Err(error) => Err(format!("{error:#}")),
    })
    .await?;
    let ended = begun.elapsed();
    ensure!(ended >= OVERLAP, "the old token is refused already after {ended:?}");
    println!(
        "      the old token is refused, {:.1} s after the start: the API server remembers for up to \
         10 s whom it let in",
        ended.as_secs_f64()
    );
    eventually(PATIENCE, "call with the new token", async || calls.with(&new) > 0).await?;
    let (all, refused) = calls.total();
    ensure!(refused == 0, "{refused} of the client's {all} calls were refused");
    println!(
        "      checked: {all} calls of the client, {} with the old token and {} with the new one; \
         {refused} refused",
        calls.with(&old),
        calls.with(&new)
    );
    Ok(format!("a token is replaced in {published} ms; {all} calls meanwhile, {refused} refused"))
}

/// Creates the Secret with a kubeconfig without a token, and the TokenRotation.
async fn begin(bed: &Bed) -> Result<()> {
    let authority = ByteString(bed.ca_pem().as_bytes().to_vec());
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "host",
        "clusters": [{"name": "host", "cluster": {
            "server": bed.url(), "certificate-authority-data": authority,
        }}],
        "contexts": [{"name": "host", "context": {"cluster": "host", "user": NAME}}],
        "users": [{"name": NAME, "user": {}}],
    });
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": NAME, "namespace": "default"},
        "stringData": {KEY: kubeconfig.to_string()},
    });
    let rotation = json!({
        "apiVersion": "credentials.harvesterhci.io/v1alpha1", "kind": "TokenRotation",
        "metadata": {"name": NAME, "namespace": "default"},
        "spec": {
            "source": {"serviceAccountToken": {
                "serviceAccountName": NAME, "lifetimeSeconds": 3600,
            }},
            "target": {"secret": {"name": NAME, "key": KEY, "kubeconfigUser": NAME}},
            "overlapSeconds": OVERLAP.as_secs(),
        },
    });
    bed.apply_yaml(&secret.to_string()).await?;
    bed.apply_yaml(&rotation.to_string()).await
}

/// Waits until that many tokens were published, and none is being replaced.
async fn published(bed: &Bed, count: i64) -> Result<()> {
    let kind = GroupVersionKind::gvk("credentials.harvesterhci.io", "v1alpha1", "TokenRotation");
    let kind = ApiResource::from_gvk_with_plural(&kind, "tokenrotations");
    let rotations: Api<DynamicObject> = Api::namespaced_with(bed.admin(), "default", &kind);
    eventually(PATIENCE, &format!("token {count}"), async || {
        let rotation = rotations.get(NAME).await.map_err(|error| error.to_string())?;
        let status = &rotation.data["status"];
        let is_ours = status["current"]["ours"] == true && status["pending"].is_null();
        if is_ours && status["serial"].as_i64() >= Some(count) {
            Ok(true)
        } else {
            Err(status.to_string())
        }
    })
    .await
}

/// Token that the Secret holds now.
async fn token(bed: &Bed) -> Result<String> {
    let secret = Api::<Secret>::namespaced(bed.admin(), "default").get(NAME).await?;
    let value = secret.data.and_then(|mut data| data.remove(KEY)).context("no kubeconfig")?;
    let config: Value = serde_saphyr::from_str(&String::from_utf8(value.0)?)?;
    let token = config["users"][0]["user"]["token"].as_str();
    Ok(token.context("no token in the kubeconfig")?.to_owned())
}

/// Makes a call as the account does. `false`: its token is refused.
async fn is_accepted(client: &Client) -> Result<bool> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    match maps.list(&ListParams::default()).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 401 => Ok(false),
        Err(error) => Err(error).context("call of the client"),
    }
}

impl Calls {
    /// Calls again and again with the token of that moment.
    async fn go_on(&self, bed: &Bed) -> Result<Infallible> {
        let mut turn = interval(PAUSE);
        let mut held: Option<(String, Client)> = None;
        loop {
            turn.tick().await;
            let now = token(bed).await?;
            let client = match held.take().filter(|(token, _)| *token == now) {
                Some((_, client)) => client,
                None => bed.client_for(&now).await?,
            };
            self.note(&now, is_accepted(&client).await?);
            held = Some((now, client));
        }
    }

    fn note(&self, token: &str, is_accepted: bool) {
        let mut calls = self.0.borrow_mut();
        let (all, refused) = calls.entry(token.to_owned()).or_default();
        *all += 1;
        *refused += u32::from(!is_accepted);
    }

    /// Calls with a token so far.
    fn with(&self, token: &str) -> u32 {
        self.0.borrow().get(token).map_or(0, |(all, _)| *all)
    }

    /// All calls, and those that were refused.
    fn total(&self) -> (u32, u32) {
        let calls = self.0.borrow();
        (calls.values().map(|(all, _)| all).sum(), calls.values().map(|(_, refused)| refused).sum())
    }
}
