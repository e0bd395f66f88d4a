//! The connection to the API server.

use std::path::Path;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use prometheus::IntCounterVec;
use tower::{Service, layer::layer_fn};

use crate::metrics::Metrics;

/// Connects by the kubeconfig given, else `KUBECONFIG` and the default file, else as a pod.
///
/// The client's own retries are off: they repeat POSTs, and every caller here knows better
/// when a repetition is safe.
pub async fn connect(kubeconfig: Option<&Path>, metrics: &Metrics) -> anyhow::Result<Client> {
    through(way(kubeconfig).await?, metrics)
}

/// The same, with time of its own for each connection.
pub async fn connect_within(
    patience: Duration,
    kubeconfig: Option<&Path>,
    metrics: &Metrics,
) -> anyhow::Result<Client> {
    let mut config = way(kubeconfig).await?;
    config.connect_timeout = Some(patience);
    through(config, metrics)
}

/// The way to the API server.
pub async fn way(kubeconfig: Option<&Path>) -> anyhow::Result<Config> {
    let mut config = match kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path)
                .with_context(|| format!("--kubeconfig {}", path.display()))?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?
        }
        None => Config::infer().await.context(
            "no way to the API server: give --kubeconfig or KUBECONFIG, or run in a pod",
        )?,
    };
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(3));
    Ok(config)
}

/// A client that goes that way, and whose calls are counted.
pub fn through(config: Config, metrics: &Metrics) -> anyhow::Result<Client> {
    let calls = metrics.api_requests.clone();
    let counted = layer_fn(|inner| Counted { inner, calls: calls.clone() });
    Ok(ClientBuilder::try_from(config)?.with_layer(&counted).build())
}

/// Counts the calls of all who share the client, watches when they begin.
#[derive(Clone)]
struct Counted<S> {
    inner: S,
    calls: IntCounterVec,
}

impl<S, B> Service<Request<Body>> for Counted<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (method, calls) = (request.method().clone(), self.calls.clone());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let status = answer.as_ref().ok().map(Response::status);
            let code = status.as_ref().map_or("none", StatusCode::as_str);
            calls.with_label_values(&[method.as_str(), code]).inc();
            answer
        })
    }
}
