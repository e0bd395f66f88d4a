//! A guest's account, the Secret that holds its credential, and a consumer of that Secret.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use harvester_guest_operator::api::{LABEL_ROTATION, TokenRotation, TokenRotationStatus};
use k8s_openapi::ByteString;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::rbac::v1::Role;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use kube_runtime::WatchStreamExt as _;
use kube_runtime::watcher::{self, Event, watcher};
use serde_json::{Value, json};
use testbed::{Chart, Operator, Proxy, Start, eventually, install_credentials};

use crate::support::{Cluster, LATER, SOON};

/// Name of the TokenRotation, of its target and of the kubeconfig's user.
pub(super) const NAME: &str = "guest";
pub(super) const KEY: &str = "kubeconfig";
/// Pause of a consumer after each call. It uses a token for seconds, so a token that is revoked too
/// early fails many calls. Without a pause, a consumer would keep a core busy.
const BETWEEN_CALLS: Duration = Duration::from_millis(50);

/// Cluster with a guest's account, where the operator may replace credentials in the account's
/// namespace.
pub(super) async fn cluster() -> Result<Cluster> {
    let cluster = Cluster::start().await?;
    install_credentials(&cluster.bed).await?;
    Ok(cluster)
}

/// Grants the operator exactly the rights that the chart renders for the namespace with these
/// values.
pub(super) async fn limit(cluster: &Cluster, values: &Value) -> Result<()> {
    let mut namespace = values.clone();
    namespace["name"] = json!("default");
    let namespaces = format!("credentials.namespaces=[{namespace}]");
    let rendered = Chart::locate().await?.render(&["--set-json", &namespaces]).await?;
    let rendered = rendered.get("rbac/credentials.yaml").context("no rights in the chart")?;
    let role = rendered.split("---\n").find(|part| part.contains("kind: Role\n"));
    let role: Role = serde_saphyr::from_str(role.context("no role")?)?;
    let roles: Api<Role> = Api::namespaced(cluster.client.clone(), "default");
    let patch = Patch::Merge(json!({"rules": role.rules}));
    roles.patch("harvester-guest-operator-credentials", &PatchParams::default(), &patch).await?;
    // The right to issue tokens of every account was granted before.
    let review = json!({"metadata": {}, "spec": {
        "user": "system:serviceaccount:harvester-system:harvester-guest-operator",
        "resourceAttributes": {"namespace": "default", "resource": "serviceaccounts",
            "subresource": "token", "name": "default", "verb": "create"},
    }});
    let review: SubjectAccessReview = serde_json::from_value(review)?;
    eventually(SOON, "end of a right", async || {
        let api = Api::all(cluster.client.clone());
        let answer: SubjectAccessReview = api.create(&PostParams::default(), &review).await?;
        anyhow::Ok(!answer.status.is_some_and(|status| status.allowed))
    })
    .await
}

/// Options of an operator that may replace credentials in the guest's namespace.
pub(crate) fn start() -> Start {
    let options = ["--credential-namespaces", "default"].map(str::to_owned).to_vec();
    Start { options, ..Start::default() }
}

/// Starts an operator with these options behind a proxy, creates its target, and waits until it
/// leads.
pub(super) async fn behind_proxy(cluster: &Cluster) -> Result<(Proxy, Operator)> {
    let proxy = Proxy::start(&cluster.bed).await?;
    let via = Some((proxy.url().to_owned(), proxy.ca_pem().to_owned()));
    let operator = cluster.standby(Start { via, ..start() }).await?;
    operator.leads().await?;
    cluster.put(&cluster.kubeconfig()).await?;
    Ok((proxy, operator))
}

/// Spec with tokens of ten minutes, the shortest that an API server grants, and with `parts`
/// replaced.
pub(super) fn spec(parts: &[(&str, Value)]) -> Value {
    let mut spec = json!({
        "source": {"serviceAccountToken": {"serviceAccountName": NAME, "lifetimeSeconds": 600}},
        "target": {"secret": {"name": NAME, "key": KEY, "kubeconfigUser": NAME}},
        "schedule": {"jitterPercent": 0},
        "overlapSeconds": 0,
    });
    for (field, value) in parts {
        spec[*field] = value.clone();
    }
    spec
}

impl Cluster {
    pub(super) fn rotations(&self) -> Api<TokenRotation> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub(super) fn guest_secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Kubeconfig with the address of the cluster, and without a token.
    pub(super) fn kubeconfig(&self) -> String {
        let authority = ByteString(self.bed.ca_pem().as_bytes().to_vec());
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "there",
            "clusters": [{"name": "there", "cluster": {
                "server": self.bed.url(), "certificate-authority-data": authority,
            }}],
            "contexts": [{"name": "there", "context": {
                "cluster": "there", "user": NAME, "namespace": "default",
            }}],
            "users": [{"name": NAME, "user": {}}, {"name": "other", "user": {"token": "theirs"}}],
        })
        .to_string()
    }

    /// Writes the target as a person does.
    pub(super) async fn put(&self, value: &str) -> Result<()> {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": NAME, "namespace": "default"},
            "stringData": {KEY: value},
        });
        let params = PatchParams::apply("person").force();
        self.guest_secrets().patch(NAME, &params, &Patch::Apply(&secret)).await?;
        Ok(())
    }

    pub(super) async fn rotation(&self, spec: Value) -> Result<TokenRotation> {
        let rotation = TokenRotation::new(NAME, serde_json::from_value(spec)?);
        Ok(self.rotations().create(&PostParams::default(), &rotation).await?)
    }

    pub(super) async fn annotate(&self, what: &str, value: &str) -> Result<()> {
        let key = format!("credentials.harvesterhci.io/{what}");
        let patch = Patch::Merge(json!({"metadata": {"annotations": {key: value}}}));
        self.rotations().patch(NAME, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    pub(super) async fn status(&self) -> Result<TokenRotationStatus> {
        Ok(self.rotations().get(NAME).await?.status.unwrap_or_default())
    }

    /// Waits until so many credentials were published and none is in progress.
    pub(super) async fn published(&self, at_least: i64) -> Result<TokenRotationStatus> {
        self.says(&format!("credential {at_least}"), |status| {
            let ours = status.current.as_ref().is_some_and(|current| current.ours);
            status.serial >= at_least && ours && status.pending.is_none()
        })
        .await
    }

    /// Waits until `is` holds for the status.
    pub(super) async fn says(
        &self,
        what: &str,
        is: impl Fn(&TokenRotationStatus) -> bool,
    ) -> Result<TokenRotationStatus> {
        eventually(LATER, what, async || {
            let status = self.status().await.map_err(|error| format!("{error:#}"))?;
            if is(&status) { Ok(Some(status)) } else { Err(format!("{status:#?}")) }
        })
        .await
    }

    /// Waits for the reason of a condition, and returns its message.
    pub(super) async fn reason(&self, type_: &str, reason: &str) -> Result<String> {
        let of = |status: &TokenRotationStatus| {
            let found = status.conditions.iter().find(|condition| condition.type_ == type_);
            found.cloned().unwrap_or_default()
        };
        let is = |status: &TokenRotationStatus| of(status).reason.as_deref() == Some(reason);
        let status = self.says(&format!("{type_} {reason}"), is).await?;
        Ok(of(&status).message.unwrap_or_default())
    }

    /// Waits until the request was carried out and nothing is left to be revoked, or until so many
    /// writes were tried, the last of which were cut. Returns whether they were.
    pub(super) async fn ends_or_is_cut(
        &self,
        request: &str,
        tried: &AtomicUsize,
        most: usize,
    ) -> Result<bool> {
        eventually(SOON, "end or cut of the rotation", async || {
            if tried.load(Ordering::SeqCst) >= most {
                return anyhow::Ok(Some(true));
            }
            let status = self.status().await?;
            let is_done = status.rotate_request.as_deref() == Some(request);
            anyhow::Ok((is_done && status.previous.is_empty()).then_some(false))
        })
        .await
    }

    /// Value of the target's key.
    pub(super) async fn value(&self) -> Result<String> {
        let secret = self.guest_secrets().get(NAME).await?;
        let value = secret.data.and_then(|mut data| data.remove(KEY)).context("no key")?;
        Ok(String::from_utf8(value.0)?)
    }

    /// Token in the target.
    pub(super) async fn token(&self) -> Result<String> {
        let value = self.value().await?;
        if !value.contains("users") {
            return Ok(value);
        }
        let config: Value = serde_saphyr::from_str(&value)?;
        let users = config["users"].as_array().context("no users")?;
        let user = users.iter().find(|user| user["name"] == NAME).context("no user")?;
        Ok(user["user"]["token"].as_str().context("no token")?.to_owned())
    }

    /// Names of the Secrets that credentials are bound to: one for each credential that works.
    pub(super) async fn bound_secrets(&self) -> Result<BTreeSet<String>> {
        let params = ListParams::default().labels(LABEL_ROTATION);
        let all = self.guest_secrets().list_metadata(&params).await?;
        Ok(all.items.iter().map(kube::ResourceExt::name_any).collect())
    }

    /// Waits until the published credential works and no other exists.
    pub(super) async fn one_is_left(&self) -> Result<()> {
        eventually(LATER, "single credential", async || {
            let status = self.status().await?;
            let current = status.current.context("none is current")?.name;
            let bound_secrets = self.bound_secrets().await?;
            ensure!(
                bound_secrets == BTreeSet::from([current.clone()]),
                "{bound_secrets:?}, not {current}"
            );
            ensure!(status.pending.is_none() && status.previous.is_empty(), "not at rest");
            anyhow::Ok(true)
        })
        .await?;
        self.works(&self.token().await?).await
    }

    /// Checks that the token works for the guest's calls.
    pub(super) async fn works(&self, token: &str) -> Result<()> {
        used(&self.bed.client_for(token).await?).await.context("the published token")
    }

    /// Waits until the token is refused. The API server caches for some seconds that it worked.
    pub(super) async fn refused(&self, token: &str) -> Result<()> {
        let client = self.bed.client_for(token).await?;
        eventually(LATER, "refusal of an old token", async || match used(&client).await {
            Ok(()) => Err("it works".to_owned()),
            Err(kube::Error::Api(status)) if status.code == 401 => Ok(true),
            Err(error) => Err(error.to_string()),
        })
        .await
    }

    pub(super) async fn gone(&self) -> Result<()> {
        self.rotations().delete(NAME, &DeleteParams::default()).await?;
        eventually(LATER, "end of the TokenRotation", async || {
            self.rotations().get_opt(NAME).await.map(|rotation| rotation.is_none())
        })
        .await
    }
}

/// Every observed version of every TokenRotation, as JSON.
pub(super) struct Versions(Arc<Mutex<String>>);

impl Versions {
    /// Starts to watch.
    pub(super) fn of(cluster: &Cluster) -> Self {
        let text = Arc::new(Mutex::new(String::new()));
        let (all, heard) = (cluster.rotations(), text.clone());
        tokio::spawn(async move {
            // Without a backoff, a watcher whose server is gone would keep the test from ending.
            let events = watcher(all, watcher::Config::default()).default_backoff();
            let mut events = pin!(events);
            while let Some(event) = events.next().await {
                if let Ok(Event::Apply(rotation)) = event
                    && let (Ok(said), Ok(mut text)) =
                        (serde_json::to_string(&rotation), heard.lock())
                {
                    text.push_str(&said);
                }
            }
        });
        Self(text)
    }

    /// All versions, once one with a publication in progress was observed.
    pub(super) async fn text(&self) -> Result<String> {
        eventually(SOON, "status with a publication", async || {
            let text = self.0.lock().map_err(|error| error.to_string())?.clone();
            Ok::<_, String>(text.contains("\"Publishing\"").then_some(text))
        })
        .await
    }
}

async fn used(client: &Client) -> kube::Result<()> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    api.list(&ListParams::default()).await.map(drop)
}

/// Consumer that uses the target's credential all the time.
#[derive(Default)]
pub(super) struct Consumer {
    /// Every token that was read.
    pub(super) tokens: RefCell<Vec<String>>,
    /// Calls that succeeded.
    pub(super) calls: Cell<u32>,
}

impl Consumer {
    /// Reads the target and uses the token for three quarters of the overlap, again and again. Ends
    /// with the first call that fails during the overlap.
    pub(super) async fn run(&self, cluster: &Cluster, overlap: Duration) -> Result<()> {
        loop {
            let read = Instant::now();
            let token = cluster.token().await?;
            let client = cluster.bed.client_for(&token).await?;
            if self.tokens.borrow().last() != Some(&token) {
                self.tokens.borrow_mut().push(token.clone());
            }
            // Like a consumer that reads the target again only after a while.
            while read.elapsed() < overlap * 3 / 4 {
                let answer = used(&client).await;
                let held = read.elapsed();
                match answer {
                    Ok(()) => self.calls.set(self.calls.get() + 1),
                    // On a slow machine the token may have been used for longer than the overlap.
                    Err(_) if held >= overlap => break,
                    Err(error) => return Err(error).context(format!("held for {held:?}")),
                }
                if cluster.token().await? != token && read.elapsed() > overlap / 4 {
                    break;
                }
                tokio::time::sleep(BETWEEN_CALLS).await;
            }
        }
    }
}
