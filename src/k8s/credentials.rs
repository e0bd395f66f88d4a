//! Reads the present state of credentials: the Secrets that consumers read, and the objects that
//! tokens are bound to. Also requests the tokens of ServiceAccounts.
//!
//! Invariants:
//! * A Secret's value is parsed here and not by kube, because kube logs text that it cannot parse.
//! * Times are taken from the API server's clock, if its answers have a date.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::DateTime;
use http::header::DATE;
use http::{Method, Uri};
use http_body_util::BodyExt as _;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview};
use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use kube::api::{ListParams, PostParams};
use kube::client::Body;
use kube::core::{PartialObjectMeta, Request, Status};
use kube::{Api, Client, Config, Resource as _, ResourceExt as _};
use kube_runtime::watcher;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::calls::{ApiCalls as _, ApiWrites as _, run_call};
use super::guard::Guard;
use super::informer::{self, ObjectEvent};
use super::{CALL_DEADLINE, CallError};
use crate::api::{ANNOTATION_RANCHER_URL, LABEL_ROTATION, TokenRotation};
use crate::domain::credentials::kubeconfig::ServerEndpoint;
use crate::domain::credentials::rotation::target_secret::SecretContent;
use crate::domain::credentials::secret_text::SecretText;
use crate::domain::credentials::timestamp::Seconds;
use crate::metrics::Metrics;

/// Clock of a server: the time in the server's last answer, and the time that has passed since that
/// answer.
#[derive(Clone, Copy, Debug)]
pub struct ServerClock {
    said: Seconds,
    at: Instant,
}

impl ServerClock {
    /// Clock of this machine. Used when the answer of a server has no date.
    pub fn local() -> Self {
        Self::from_answer(chrono::Utc::now().timestamp())
    }

    /// Clock of a server that has just sent the time `said`, in seconds since the epoch.
    pub fn from_answer(said: Seconds) -> Self {
        Self { said, at: Instant::now() }
    }

    /// Present time on this clock, in seconds since the epoch.
    pub fn now(&self) -> Seconds {
        let since = i64::try_from(self.at.elapsed().as_secs()).unwrap_or_default();
        self.said + since
    }
}

/// Answer of the API server. Its body is not parsed yet, and is wiped from memory when dropped.
pub(super) struct RawAnswer {
    method: Method,
    uri: Uri,
    code: u16,
    date: Option<Seconds>,
    body: Zeroizing<Vec<u8>>,
}

impl RawAnswer {
    /// Parses the answer's object. `Err`: the request was refused, or the answer cannot be parsed.
    pub(super) fn granted<T: DeserializeOwned>(self) -> Result<T, CallError> {
        let answer = self.accepted()?;
        // The parse error is not passed on: it may quote a secret.
        serde_json::from_slice(&answer.body).map_err(|_| answer.failed("the answer is not JSON"))
    }

    /// Returns the answer if its HTTP status is a success. `Err`: the reason why the request was
    /// refused.
    pub(super) fn accepted(self) -> Result<Self, CallError> {
        if (200..300).contains(&self.code) {
            return Ok(self);
        }
        Err(match serde_json::from_slice::<Status>(&self.body) {
            Ok(status) => self.error(status),
            Err(_) => self.failed("refused"),
        })
    }

    /// Whether the API server answered that the requested object does not exist.
    fn says_missing(&self) -> bool {
        let status = || serde_json::from_slice::<Status>(&self.body);
        self.code == 404 && status().is_ok_and(|status| status.reason == "NotFound")
    }

    fn failed(&self, why: &str) -> CallError {
        self.error(Status::failure(why, "Unreadable").with_code(self.code))
    }

    fn error(&self, status: Status) -> CallError {
        let call = format!("{} {}", self.method, self.uri.path());
        CallError::new(call, kube::Error::Api(status.boxed()))
    }

    fn clock(&self) -> ServerClock {
        self.date.map_or_else(ServerClock::local, ServerClock::from_answer)
    }
}

/// Sends one call with the deadline `deadline`. Returns the answer even if its HTTP status is an
/// error.
pub(super) async fn raw_within(
    deadline: Duration,
    client: &Client,
    request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<RawAnswer, CallError> {
    let request = request
        .map_err(|error| CallError::not_sent("request", kube::Error::BuildRequest(error)))?;
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let answer = async {
        let answer = client.send(request.map(Body::from)).await?;
        let code = answer.status().as_u16();
        let date = answer.headers().get(DATE).and_then(|date| date.to_str().ok());
        let date = date.and_then(|date| DateTime::parse_from_rfc2822(date).ok());
        let body = answer.into_body().collect().await?.to_bytes();
        let (date, body) = (date.map(|date| date.timestamp()), Zeroizing::new(body.to_vec()));
        Ok((code, date, body))
    };
    let name = || format!("{method} {}", uri.path());
    let (code, date, body) = run_call(deadline, name, answer).await?;
    Ok(RawAnswer { method, uri, code, date, body })
}

/// Request for a token of a ServiceAccount. The token is valid only while the bound Secret exists.
#[derive(Clone, Copy, Debug)]
pub struct BoundToken<'a> {
    /// Namespace of the ServiceAccount and of the bound Secret.
    pub namespace: &'a str,
    /// Name of the ServiceAccount.
    pub account: &'a str,
    /// Requested lifetime of the token in seconds.
    pub seconds: i64,
    /// Name of the bound Secret.
    pub secret: &'a str,
    /// UID of the bound Secret.
    pub secret_uid: &'a str,
}

/// Requests a token of a ServiceAccount by one call with the deadline `deadline`.
pub(super) async fn signed_token(
    deadline: Duration,
    client: &Client,
    wanted: BoundToken<'_>,
) -> Result<SecretText, CallError> {
    let BoundToken { namespace, account, seconds, secret, secret_uid } = wanted;
    let list = ServiceAccount::url_path(&(), Some(namespace));
    let body = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {
            "expirationSeconds": seconds,
            "boundObjectRef":
                {"apiVersion": "v1", "kind": "Secret", "name": secret, "uid": secret_uid},
        },
    });
    let body = body.to_string().into_bytes();
    let request =
        Request::new(list).create_subresource("token", account, &PostParams::default(), body);
    let answer = raw_within(deadline, client, request).await?.granted::<TokenRequest>()?;
    let token = answer.status.and_then(|status| status.token).unwrap_or_default();
    Ok(SecretText::new(token))
}

/// Reader of credentials. Each read has the deadline [`CALL_DEADLINE`].
#[derive(Clone)]
pub struct CredentialReader {
    client: Client,
    config: Config,
    metrics: Metrics,
}

impl CredentialReader {
    /// Creates a reader that sends its calls through `client`. `config` is the configuration of
    /// `client`.
    pub fn new(client: Client, config: Config, metrics: Metrics) -> Self {
        Self { client, config, metrics }
    }

    /// Watches TokenRotations in all namespaces until this future is dropped, and calls `on_event`
    /// for each event. `known` returns the keys (`namespace/name`) of the TokenRotations that the
    /// caller has, so that a missed deletion is reported after the next list.
    pub async fn watch(
        &self,
        known: impl Fn() -> HashSet<String>,
        on_event: impl FnMut(ObjectEvent<TokenRotation>),
    ) {
        let api = Api::<Guard<TokenRotation>>::all(self.client.clone());
        let config = watcher::Config::default();
        informer::watch_guarded(api, config, &self.metrics, known, on_event).await;
    }

    /// Watches the metadata of the Secret `name`, or of all Secrets in the namespace if `name` is
    /// `None`. Ends when this future is dropped. The Secrets' contents are not read. A deletion
    /// that was not observed is not reported.
    pub async fn watch_secrets(
        &self,
        namespace: &str,
        name: Option<&str>,
        on_event: impl FnMut(ObjectEvent<PartialObjectMeta<Secret>>),
    ) {
        let api = Api::<PartialObjectMeta<Secret>>::namespaced(self.client.clone(), namespace);
        let mut config = watcher::Config::default();
        if let Some(name) = name {
            config = config.fields(&format!("metadata.name={name}"));
        }
        informer::watch(api, config, &self.metrics, HashSet::new, on_event).await;
    }

    /// The TokenRotation as the API server has it now. `None`: the TokenRotation does not exist.
    pub async fn rotation(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<TokenRotation>, CallError> {
        let api = Api::<TokenRotation>::namespaced(self.client.clone(), namespace);
        Box::pin(api.call_get_opt(name)).await
    }

    /// Reads the Secret `namespace/name`. Field 0: the Secret's content, with the value under
    /// `key`. Field 1: the clock of the API server. Field 0 is `None` if the API server answered
    /// that the Secret does not exist. Any other 404, such as that of a proxy, is an error.
    pub async fn secret(
        &self,
        namespace: &str,
        name: &str,
        key: &str,
    ) -> Result<(Option<SecretContent>, ServerClock), CallError> {
        let list = Secret::url_path(&(), Some(namespace));
        let request = Request::new(list).get(name, &kube::api::GetParams::default());
        let answer = raw_within(CALL_DEADLINE, &self.client, request).await?;
        let clock = answer.clock();
        if answer.says_missing() {
            return Ok((None, clock));
        }
        Ok((Some(content(&answer.granted()?, key)), clock))
    }

    /// UID of the bound Secret `name`. Fails if the Secret does not exist, or was not created for
    /// the TokenRotation with the UID `rotation`.
    pub async fn bound_secret_uid(
        &self,
        namespace: &str,
        name: &str,
        rotation: &str,
    ) -> Result<String, CallError> {
        let api = Api::<PartialObjectMeta<Secret>>::namespaced(self.client.clone(), namespace);
        let secret = api.call_get(name).await?;
        if secret.labels().get(LABEL_ROTATION).is_none_or(|made_for| made_for != rotation) {
            let why = format!(
                "Secret {namespace}/{name} belongs to another owner: it does not have the label \
                 {LABEL_ROTATION}={rotation}, so no token is bound to it: delete the Secret, or \
                 wait until the operator uses another name"
            );
            let status = Status::failure(&why, "Invalid").with_code(422);
            return Err(CallError::new(
                api.name_call("GET", name),
                kube::Error::Api(status.boxed()),
            ));
        }
        Ok(secret.uid().unwrap_or_default())
    }

    /// Names of the Secrets in `namespace` that have the label of the TokenRotation with the UID
    /// `rotation`.
    pub async fn made_by(&self, namespace: &str, rotation: &str) -> Result<Vec<String>, CallError> {
        let api = Api::<PartialObjectMeta<Secret>>::namespaced(self.client.clone(), namespace);
        let labelled = ListParams::default().labels(&format!("{LABEL_ROTATION}={rotation}"));
        let list = api.call_list(&labelled).await?;
        Ok(list.items.iter().map(kube::ResourceExt::name_any).collect())
    }

    /// Names of all namespaces.
    pub async fn namespaces(&self) -> Result<Vec<String>, CallError> {
        let api = Api::<PartialObjectMeta<Namespace>>::all(self.client.clone());
        let list = api.call_list(&ListParams::default()).await?;
        Ok(list.items.iter().map(kube::ResourceExt::name_any).collect())
    }

    /// Fails if this operator has no right to create tokens of the ServiceAccount `account`. The
    /// operator checks this itself before it creates a token Secret: the API server puts a token
    /// into such a Secret without checking this right.
    pub async fn check_right_to_sign(
        &self,
        namespace: &str,
        account: &str,
    ) -> Result<(), CallError> {
        let what = ResourceAttributes {
            namespace: Some(namespace.to_owned()),
            resource: Some("serviceaccounts".to_owned()),
            subresource: Some("token".to_owned()),
            name: Some(account.to_owned()),
            verb: Some("create".to_owned()),
            ..ResourceAttributes::default()
        };
        let mut review = SelfSubjectAccessReview::default();
        review.spec.resource_attributes = Some(what);
        let reviews = Api::<SelfSubjectAccessReview>::all(self.client.clone());
        let answer = reviews.call_create(&review).await?;
        if answer.status.is_some_and(|status| status.allowed) {
            return Ok(());
        }
        let why = format!(
            "the operator cannot create resource \"serviceaccounts/token\" of ServiceAccount \
             {namespace}/{account}: add the account to the chart's value credentials.namespaces"
        );
        let status = Status::failure(&why, "Forbidden").with_code(403);
        let call = format!("POST {}", reviews.resource_url());
        Err(CallError::new(call, kube::Error::Api(status.boxed())))
    }

    /// URL, CA certificates and TLS settings by which this operator itself reaches the API server.
    pub fn own_way(&self) -> ServerEndpoint {
        let mut pem = String::new();
        for certificate in self.config.root_cert.iter().flatten() {
            pem.push_str("-----BEGIN CERTIFICATE-----\n");
            pem.push_str(&STANDARD.encode(certificate));
            pem.push_str("\n-----END CERTIFICATE-----\n");
        }
        ServerEndpoint {
            server: self.config.cluster_url.to_string(),
            authority: Some(STANDARD.encode(pem)).filter(|text| !text.is_empty()),
            server_name: self.config.tls_server_name.clone(),
            insecure: self.config.accept_invalid_certs,
        }
    }
}

/// Values of all Secrets in a namespace, or only of the Secret `name`. The fields of each entry are
/// the Secret's name, the key, and the value under this key.
pub async fn contents(
    client: &Client,
    namespace: &str,
    name: Option<&str>,
) -> Result<Vec<(String, String, SecretContent)>, CallError> {
    let secrets = Request::new(Secret::url_path(&(), Some(namespace)));
    let request = match name {
        Some(name) => secrets.get(name, &kube::api::GetParams::default()),
        None => secrets.list(&ListParams::default()),
    };
    let answer = raw_within(CALL_DEADLINE, client, request).await?.granted::<Value>()?;
    let one = std::slice::from_ref(&answer);
    let mut found = Vec::new();
    for secret in answer["items"].as_array().map_or(one, Vec::as_slice) {
        let name = secret["metadata"]["name"].as_str().unwrap_or_default();
        for key in secret["data"].as_object().into_iter().flatten().map(|(key, _)| key) {
            found.push((name.to_owned(), key.clone(), content(secret, key)));
        }
    }
    Ok(found)
}

fn content(secret: &Value, key: &str) -> SecretContent {
    let value = secret["data"][key].as_str().and_then(|text| STANDARD.decode(text).ok());
    let value = value.map(|bytes| {
        // A value that is not text is not a token, so it counts as empty.
        SecretText::trimmed(String::from_utf8(bytes).unwrap_or_default())
    });
    let version = secret["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
    let rancher_url = secret["metadata"]["annotations"][ANNOTATION_RANCHER_URL].as_str();
    let rancher_url = rancher_url.map(str::to_owned);
    SecretContent { version, value, immutable: secret["immutable"] == true, rancher_url }
}
