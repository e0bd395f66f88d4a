//! The `cloud-config` command against a real API server: the objects that it makes, their rights,
//! and their removal.

mod crash;
mod gone;
mod input;
mod not_ours;
mod objects;
mod rights;
pub(crate) mod roles;
mod rotate;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use testbed::{client_from, eventually};

use self::roles::Release;
use crate::command;
use crate::support::{Cluster, SOON};

/// A Harvester without VMs: its roles, its namespaces, two namespaces for guests.
struct Harvester {
    cluster: Cluster,
    kubeconfig: PathBuf,
}

/// Result of a run of the command.
#[derive(Debug)]
struct Ran {
    ok: bool,
    out: String,
    said: String,
}

impl Harvester {
    async fn start() -> Result<Self> {
        Self::of(Release::newest()).await
    }

    /// A Harvester with the roles of that release.
    async fn of(release: &Release) -> Result<Self> {
        let cluster = Cluster::start().await?;
        for name in ["longhorn-system", "guests", "other"] {
            cluster.bed.apply_yaml(&namespace(name)).await?;
        }
        cluster.bed.apply_yaml(&release.roles()).await?;
        let kubeconfig = cluster.bed.kubeconfig().to_owned();
        Ok(Self { cluster, kubeconfig })
    }

    fn client(&self) -> Client {
        self.cluster.client.clone()
    }

    /// Runs the command for the namespace `guests`, with the API server's own URL.
    async fn run(&self, args: &[&str]) -> Result<Ran> {
        let all = [&["--namespace", "guests", "--server", self.cluster.bed.url()], args].concat();
        run(&self.kubeconfig, &all).await
    }

    /// Runs the command, which must succeed. Returns its output.
    async fn done(&self, args: &[&str]) -> Result<String> {
        let ran = self.run(args).await?;
        ensure!(ran.ok, "{args:?}: {ran:?}");
        Ok(ran.out)
    }

    /// Runs the command, which must be refused. Returns its messages.
    async fn refused(&self, args: &[&str]) -> Result<String> {
        let ran = self.run(args).await?;
        ensure!(!ran.ok && ran.out.is_empty(), "{args:?}: not refused: {ran:?}");
        Ok(ran.said)
    }

    /// Names, contents and versions of all objects that the command may write, without those that
    /// Kubernetes itself writes some time after its start.
    async fn everything(&self) -> Result<Value> {
        let client = self.client();
        let all = ListParams::default();
        let (mut accounts, mut secrets, mut bindings) = (Vec::new(), Vec::new(), Vec::new());
        for namespace in ["guests", "other", "longhorn-system", "harvester-system"] {
            let api = Api::<ServiceAccount>::namespaced(client.clone(), namespace);
            accounts.extend(api.list(&all).await?.items);
            let api = Api::<Secret>::namespaced(client.clone(), namespace);
            secrets.extend(api.list(&all).await?.items);
            let api = Api::<RoleBinding>::namespaced(client.clone(), namespace);
            bindings.extend(api.list(&all).await?.items);
        }
        accounts.retain(|account| account.name_any() != "default");
        let mut roles = Api::<ClusterRole>::all(client.clone()).list(&all).await?.items;
        roles.retain(|role| role.aggregation_rule.is_none());
        let wide = Api::<ClusterRoleBinding>::all(client).list(&all).await?.items;
        Ok(json!([accounts, secrets, roles, bindings, wide]))
    }

    /// Waits until Kubernetes has filled a token Secret.
    async fn filled(&self, name: &str) -> Result<()> {
        let secrets: Api<Secret> = Api::namespaced(self.client(), "guests");
        eventually(SOON, &format!("token in {name}"), async || {
            let data = secrets.get(name).await?.data.unwrap_or_default();
            anyhow::Ok(data.contains_key("token") && data.contains_key("ca.crt"))
        })
        .await
    }

    /// Uses the kubeconfig's token until the API server has noted the use on the Secret.
    async fn used(&self, kubeconfig: &str, name: &str) -> Result<()> {
        let secrets: Api<Secret> = Api::namespaced(self.client(), "guests");
        eventually(SOON, &format!("note of a use of {name}"), async || {
            ensure!(who(kubeconfig).await?.is_some(), "the token does not work");
            let labels = secrets.get(name).await?.metadata.labels.unwrap_or_default();
            anyhow::Ok(labels.contains_key("kubernetes.io/legacy-token-last-used"))
        })
        .await
    }

    /// Token Secrets of an account, the oldest first.
    async fn tokens(&self, account: &str) -> Result<Vec<Secret>> {
        let secrets: Api<Secret> = Api::namespaced(self.client(), "guests");
        let of_type = ListParams::default().fields("type=kubernetes.io/service-account-token");
        let mut list = secrets.list(&of_type).await?.items;
        list.retain(|s| {
            s.annotations().get("kubernetes.io/service-account.name").is_some_and(|a| a == account)
        });
        list.sort_by_key(|s| (s.creation_timestamp().map(|time| time.0), s.name_any()));
        Ok(list)
    }

    /// Token in the Secret `CLUSTER-token`. Harvester's UI hands out this token, and creates the
    /// Secret if it is missing.
    async fn token_for_the_ui(&self, cluster: &str) -> Result<String> {
        let secrets: Api<Secret> = Api::namespaced(self.client(), "guests");
        let found = secrets.get_opt(&format!("{cluster}-token")).await?;
        let found = found.context("the UI would make a token of its own")?;
        let token = found.data.unwrap_or_default().remove("token");
        Ok(String::from_utf8(token.context("the UI would wait for ever")?.0)?)
    }

    /// Waits until the kubeconfig's token is refused. The API server caches accepted tokens for
    /// some seconds.
    async fn dead(&self, kubeconfig: &str) -> Result<()> {
        eventually(SOON, "refusal of a revoked token", async || {
            Ok::<_, anyhow::Error>(who(kubeconfig).await?.is_none())
        })
        .await
    }
}

fn namespace(name: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}).to_string()
}

/// Runs the command, and checks that its messages contain no token.
async fn run(kubeconfig: &Path, args: &[&str]) -> Result<Ran> {
    let args = [&["--log", "trace", "cloud-config"], args].concat();
    let output = command::run(kubeconfig, &args).await?;
    let said = String::from_utf8(output.stderr)?;
    ensure!(!holds_token(&said), "a token is in the messages of {args:?}");
    Ok(Ran { ok: output.status.success(), out: String::from_utf8(output.stdout)?, said })
}

/// Whether a text holds a token: every token of a ServiceAccount begins like this, plain or in
/// Base64.
fn holds_token(text: &str) -> bool {
    text.contains("eyJhbGci") || text.contains("ZXlKaGJHY2")
}

/// User of the kubeconfig for the API server. `None`: it is not authenticated.
async fn who(kubeconfig: &str) -> Result<Option<String>> {
    let client = client_from(kubeconfig).await?;
    let reviews: Api<SelfSubjectReview> = Api::all(client);
    match reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await {
        Ok(review) => Ok(review.status.and_then(|s| s.user_info).and_then(|user| user.username)),
        Err(kube::Error::Api(status)) if status.code == 401 => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn yaml(text: &str) -> Result<Value> {
    serde_saphyr::from_str(text).with_context(|| text.to_owned())
}

/// Decodes a text in Base64.
fn decoded(encoded: &Value) -> Result<String> {
    let bytes: ByteString = serde_json::from_value(encoded.clone())?;
    Ok(String::from_utf8(bytes.0)?)
}
