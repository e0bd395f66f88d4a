//! The connection to the API server.

use std::path::Path;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode, Uri};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Client as Http;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tower::{BoxError, Service, ServiceBuilder, layer::layer_fn};

use super::SILENCE;
use crate::metrics::Metrics;

/// Connections that nobody has used for this long are closed. The API server at the other end may
/// have fallen silent meanwhile, and the next call would find that out by its deadline.
const IDLE: Duration = Duration::from_secs(3);
/// Probes of a connection's other end by the kernel: after this, and as often.
const KEEPALIVE: Duration = Duration::from_secs(3);
/// Probes without an answer after which the other end counts as gone.
const KEEPALIVE_PROBES: u32 = 2;

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

/// A client that goes that way, with connections of its own, and whose calls are counted.
///
/// It is kube's client but for its connections, each of which has deadlines: the library can give
/// them none that ends idle ones.
pub fn through(config: Config, metrics: &Metrics) -> anyhow::Result<Client> {
    ensure!(
        config.proxy_url.is_none(),
        "an HTTP or SOCKS proxy on the way to the API server is not supported: unset HTTPS_PROXY and proxy-url"
    );
    // Where there is one already, it stays.
    let _ = aws_lc_rs::default_provider().install_default();
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE));
    tcp.set_keepalive_retries(Some(KEEPALIVE_PROBES));
    tcp.set_tcp_user_timeout(Some(SILENCE));
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp)?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(Some(SILENCE));
    connector.set_write_timeout(Some(SILENCE));
    // A request that is sent late on an idle connection has the whole time for its answer.
    connector.set_reset_reader_on_write(true);
    let http = Http::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .build::<_, Body>(connector);
    let metrics = metrics.clone();
    let counted = layer_fn(move |inner| Counted { inner, metrics: metrics.clone() });
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(ClientBuilder::new(service, config.default_namespace).with_layer(&counted).build())
}

/// Counts the calls of all who share the client, watches when they begin.
#[derive(Clone)]
struct Counted<S> {
    inner: S,
    metrics: Metrics,
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
        let (method, metrics) = (request.method().clone(), self.metrics.clone());
        let watched = watched(request.uri());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let status = answer.as_ref().ok().map(Response::status);
            let code = status.as_ref().map_or("none", StatusCode::as_str);
            metrics.api_requests.with_label_values(&[method.as_str(), code]).inc();
            if let Some(resource) = watched.filter(|_| status == Some(StatusCode::OK)) {
                metrics.watches.began(&resource);
            }
            answer
        })
    }
}

/// The resource of a call that is a watch, in the plural.
fn watched(uri: &Uri) -> Option<String> {
    let is_watch = uri.query()?.split('&').any(|part| part == "watch=true" || part == "watch=1");
    is_watch.then(|| resource_at(uri.path()).to_owned())
}

/// The resource that a path ends with.
pub(super) fn resource_at(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_is_told_by_its_query_and_named_by_its_path() {
        for (uri, resource) in [
            ("/apis/g.io/v1/namespaces/a/widgets?watch=true&resourceVersion=1", Some("widgets")),
            ("/api/v1/nodes?timeoutSeconds=8&watch=1", Some("nodes")),
            ("/api/v1/nodes?limit=500", None),
            ("/api/v1/nodes", None),
        ] {
            assert_eq!(watched(&uri.parse().unwrap()).as_deref(), resource, "{uri}");
        }
    }
}
