//! Client of the API server: its configuration, its connections with their deadlines, the pages of
//! its lists, and the count of its calls.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::{Request, Response, StatusCode};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Client as Http;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tower::util::option_layer;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _, layer::layer_fn, service_fn};

use super::SILENCE;
use super::paging::fit_pages;
use super::read_only::{RefusedReads, withhold_writes};
use super::request_path::watched;
use crate::metrics::Metrics;

/// Longest time to establish a connection: the lookup of the name, TCP and TLS together. Most
/// commands that run in a terminal have a longer time.
///
/// If the API server falls silent, an informer must recover in less than 15 s, even if the TLS
/// handshake of its next connection gets no answer either. So the sum of [`SILENCE`], this time and
/// the informer's first two delays must be less than 15 s.
pub const CONNECT: Duration = Duration::from_secs(4);
/// Longest time for which a connection stays open without a call. While no call uses a connection,
/// it may go unnoticed that the API server has become unresponsive. The next call would then fail
/// only at its deadline.
const IDLE: Duration = Duration::from_secs(3);
/// Time without data before the kernel's first keepalive probe of a connection, and the interval
/// between two of these probes.
const KEEPALIVE: Duration = Duration::from_secs(3);
/// Number of unanswered keepalive probes after which a connection counts as dead. Linux ignores
/// this number if the connection has a TCP user timeout (tcp(7)). Here, this timeout is
/// [`SILENCE`].
const KEEPALIVE_PROBES: u32 = 2;

/// Reads the configuration of a client: server and credentials. `connect`: longest time for the
/// lookup of the name, TCP and TLS together.
///
/// `kubeconfig`: the file to read. If it is `None`, these sources are tried in order:
/// * The file that `KUBECONFIG` names. If this variable is not set: the default file.
/// * The configuration of the pod.
///
/// The retries of kube's client are off, because they would repeat POSTs too. Each caller decides
/// when a retry is safe.
pub async fn config(kubeconfig: Option<&Path>, connect: Duration) -> anyhow::Result<Config> {
    let mut config = match kubeconfig {
        Some(path) => {
            let fault = || format!("--kubeconfig {}: cannot be used", path.display());
            let file = Kubeconfig::read_from(path).with_context(fault)?;
            let options = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(file, &options).await.with_context(fault)?
        }
        None => Config::infer().await.context(
            "no configuration for the API server: set --kubeconfig or KUBECONFIG, or run in a pod",
        )?,
    };
    config.default_retry = false;
    config.connect_timeout = Some(connect);
    Ok(config)
}

/// Creates a client with the configuration `config`. `metrics` counts the client's calls. The
/// client's connections have deadlines, and are closed when they are idle. `Err`: `config` cannot
/// be used, or has a proxy.
///
/// The client is assembled here, because kube's own client has no setting that closes idle
/// connections.
pub fn through(config: Config, metrics: &Metrics) -> anyhow::Result<Client> {
    assemble(config, None, metrics)
}

/// Creates a client as [`through`] does, but this client cannot write. Returns the client (field
/// 0), and the collection to which the client adds each refused read (field 1).
pub fn read_only(config: Config, metrics: &Metrics) -> anyhow::Result<(Client, RefusedReads)> {
    let refusals = RefusedReads::default();
    Ok((assemble(config, Some(refusals.clone()), metrics)?, refusals))
}

/// Creates a client as [`through`] does. If `refusals` is set, the client only reads, and adds
/// refused reads to `refusals`.
fn assemble(
    config: Config,
    refusals: Option<RefusedReads>,
    metrics: &Metrics,
) -> anyhow::Result<Client> {
    ensure!(
        config.proxy_url.is_none(),
        "an HTTP or SOCKS proxy on the way to the API server is not supported: unset the variable \
         HTTPS_PROXY, and remove proxy-url from the kubeconfig"
    );
    // The call fails if another crypto provider was installed before. The client then uses that
    // other provider.
    let _ = aws_lc_rs::default_provider().install_default();
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(config.connect_timeout.map(for_tcp));
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE));
    tcp.set_keepalive_retries(Some(KEEPALIVE_PROBES));
    tcp.set_tcp_user_timeout(Some(SILENCE));
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp)?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(Some(SILENCE));
    connector.set_write_timeout(Some(SILENCE));
    // Each write restarts the read timeout, so that a request on an idle connection has the full
    // time for its answer.
    connector.set_reset_reader_on_write(true);
    let http = Http::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .build::<_, Body>(connector);
    let metrics = metrics.clone();
    let counted = layer_fn(move |inner| count_calls(inner, metrics.clone()));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    let read_only =
        refusals.map(|refusals| layer_fn(move |inner| withhold_writes(inner, refusals.clone())));
    Ok(ClientBuilder::new(service, config.default_namespace)
        .with_layer(&counted)
        .with_layer(&option_layer(read_only))
        .with_layer(&layer_fn(fit_pages))
        .build())
}

/// Time for TCP in the connect timeout `whole`. The rest of `whole` is left for the lookup of the
/// name and for TLS. If a name has several addresses, they share the time for TCP. So an address
/// without an answer leaves time for the next address.
fn for_tcp(whole: Duration) -> Duration {
    whole * 3 / 4
}

/// HTTP service that counts the calls of a client and of its clones in the metrics. When the API
/// server accepts a watch, the service records this in the metrics too.
fn count_calls<S, B>(
    inner: S,
    metrics: Metrics,
) -> impl Service<Request<Body>, Response = Response<B>, Error = BoxError, Future: Send + 'static>
+ Clone
+ Send
+ 'static
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Send + 'static,
{
    service_fn(move |request: Request<Body>| {
        let (method, metrics) = (request.method().clone(), metrics.clone());
        let watched = watched(request.uri());
        let answer = inner.clone().oneshot(request);
        async move {
            let answer = answer.await;
            let status = answer.as_ref().ok().map(Response::status);
            let code = status.as_ref().map_or("none", StatusCode::as_str);
            metrics.api_requests.with_label_values(&[method.as_str(), code]).inc();
            if let Some(resource) = watched.filter(|_| status == Some(StatusCode::OK)) {
                metrics.watches.began(&resource);
            }
            answer
        }
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Instant;

    use super::*;

    /// The kernel accepts the connection, and the server never answers on it.
    #[tokio::test]
    async fn a_tls_handshake_has_more_time_than_tcp_and_a_silent_one_ends() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", server.local_addr().unwrap());
        let mut config = Config::new(url.parse().unwrap());
        let limit = Duration::from_millis(400);
        config.root_cert = Some(Vec::new());
        config.connect_timeout = Some(limit);
        let client = through(config, &Metrics::new().unwrap()).unwrap();
        let since = Instant::now();
        client.apiserver_version().await.unwrap_err();
        let took = since.elapsed();
        assert!(took >= limit && took < SILENCE / 2, "{took:?}");
    }

    /// The test `tests/it/silence.rs` expects an address 15 s after the API server has fallen
    /// silent. Here the next connection meets a silent API server too.
    #[test]
    fn a_silent_handshake_after_a_silence_leaves_time_before_fifteen_seconds() {
        assert_eq!(for_tcp(CONNECT), Duration::from_secs(3));
        // The first two delays of an informer, with their jitter.
        let delays = Duration::from_millis(200 + 400);
        assert!(SILENCE + CONNECT + delays < Duration::from_secs(15));
    }
}
