//! Pages of lists: the number of objects in a page follows the size of the objects.
//!
//! A page is in memory as text until it is parsed, and a tenant can make objects of 1.5 MB. So pages
//! of a fixed number of objects need much memory if the number is large, and much time if it is
//! small. A list may be continued with another `limit`: the end-to-end test of Kubernetes chooses a
//! random `limit` for each page (`test/e2e/apimachinery/chunking.go`).
//!
//! The API server reads all objects of a page before it sends the first byte, and answers too late
//! if the page has many large ones. A list that begins again would come to the same page. So a page
//! with more objects than the first is requested again with fewer objects if it fails.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Response, Uri};
use http_body::Body as HttpBody;
use http_body_util::{BodyExt as _, Either, Full, LengthLimitError, Limited};
use kube::client::Body;
use tower::{BoxError, Service, ServiceExt as _};

use crate::locks::lock;

/// Largest size in bytes of a page with several objects. A larger page is not read to its end, and
/// is requested again with fewer objects.
const LARGEST_PAGE: usize = 2 << 20;
/// Number of objects in the first page of a list.
const FIRST_PAGE: u64 = 50;
/// Greatest factor from the number of objects in one page to that in the next page.
const GROWTH: u64 = 2;
/// Divisor of the number of objects when a page was too large, or has failed.
const CUT: u64 = 4;

/// Size of the next page of a list.
#[derive(Clone, Copy, Debug)]
struct PageSize {
    /// Number of objects to request.
    limit: u64,
    /// Number of objects before `limit` may grow again. The last page that was cut began with these
    /// objects. Without this pause, each large object after small ones would be requested again and
    /// again with the small ones.
    pause: u64,
}

impl PageSize {
    /// Size of the first page of a list.
    fn first() -> Self {
        Self { limit: FIRST_PAGE, pause: 0 }
    }

    /// Size of the page after a page of this size that had `bytes` bytes. If the next objects are as
    /// large, the next page has at most half of [`LARGEST_PAGE`].
    fn next(self, bytes: usize) -> Self {
        let pause = self.pause.saturating_sub(self.limit);
        let most = if pause == 0 { self.limit.saturating_mul(GROWTH) } else { self.limit };
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX).max(1);
        let fits = self.limit.saturating_mul(LARGEST_PAGE as u64 / 2) / bytes;
        Self { limit: fits.clamp(1, most), pause }
    }

    /// Size of the same page after a page of this size was too large, or has failed.
    fn cut(self) -> Self {
        Self { limit: (self.limit / CUT).max(1), pause: self.limit }
    }

    /// Whether a page of this size that ended with `error` is requested again with fewer objects.
    fn may_be_cut(self, error: &BoxError) -> bool {
        self.limit > FIRST_PAGE || error.is::<LengthLimitError>()
    }
}

/// HTTP service that sends a request for a page of a list with a `limit` that fits the size of the
/// objects: at most the `limit` of the request. Other requests pass unchanged.
#[derive(Clone)]
pub(super) struct FittedPages<S> {
    inner: S,
    /// Map from the path of a list to the size of its next page.
    sizes: Arc<Mutex<HashMap<String, PageSize>>>,
}

impl<S> FittedPages<S> {
    pub(super) fn new(inner: S) -> Self {
        Self { inner, sizes: Arc::default() }
    }
}

impl<S, B> Service<Request<Body>> for FittedPages<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Either<Full<Bytes>, B>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let most = limit_of(request.uri()).filter(|_| request.method() == Method::GET);
        let Some(most) = most else {
            let answer = self.inner.call(request);
            return Box::pin(async move { Ok(answer.await?.map(Either::Right)) });
        };
        let later = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, later);
        let sizes = self.sizes.clone();
        Box::pin(async move {
            let (request, _) = request.into_parts();
            let path = request.uri.path();
            let known = lock(&sizes).get(path).copied().filter(|_| !is_first_page(&request.uri));
            let mut size = known.unwrap_or_else(PageSize::first);
            loop {
                size.limit = size.limit.min(most);
                let mut fitted = request.clone();
                fitted.uri = with_limit(&request.uri, size.limit)?;
                let fitted = Request::from_parts(fitted, Body::empty());
                let answer = match inner.ready().await?.call(fitted).await {
                    Err(error) if size.may_be_cut(&error) => {
                        size = size.cut();
                        continue;
                    }
                    answer => answer?,
                };
                let (answer, body) = answer.into_parts();
                if !answer.status.is_success() {
                    return Ok(Response::from_parts(answer, Either::Right(body)));
                }
                let longest = if size.limit > 1 { LARGEST_PAGE } else { usize::MAX };
                match Limited::new(body, longest).collect().await {
                    Ok(page) => {
                        let page = page.to_bytes();
                        lock(&sizes).insert(path.to_owned(), size.next(page.len()));
                        return Ok(Response::from_parts(answer, Either::Left(Full::new(page))));
                    }
                    Err(error) if size.may_be_cut(&error) => size = size.cut(),
                    Err(error) => return Err(error),
                }
            }
        })
    }
}

/// `limit` in the query. `None`: the request is not for a page of a list, or `limit` is 0, which
/// requests the whole list.
fn limit_of(uri: &Uri) -> Option<u64> {
    let limit = uri.query()?.split('&').find_map(|part| part.strip_prefix("limit="))?;
    limit.parse().ok().filter(|limit| *limit > 0)
}

fn is_first_page(uri: &Uri) -> bool {
    let mut parts = uri.query().unwrap_or_default().split('&');
    !parts.any(|part| part.starts_with("continue="))
}

/// The URI, with this `limit` in its query.
fn with_limit(uri: &Uri, limit: u64) -> Result<Uri, http::Error> {
    let parts = uri.query().unwrap_or_default().split('&');
    let limit = format!("limit={limit}");
    let query: Vec<&str> =
        parts.map(|part| if part.starts_with("limit=") { &*limit } else { part }).collect();
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(format!("{}?{}", uri.path(), query.join("&")).parse()?);
    Ok(Uri::from_parts(parts)?)
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;
    use kube::api::ListParams;
    use kube::client::ClientBuilder;
    use proptest::prelude::*;
    use serde_json::json;
    use tower::{layer::layer_fn, service_fn};

    use super::*;

    /// Requests that the server got: the `limit` of each, and the size of the answer in bytes.
    type Served = Arc<Mutex<Vec<(u64, usize)>>>;

    const LARGE: usize = 1_500_000;

    /// Largest number of objects of 10 kB and more in a page that the server sends in time.
    const IN_TIME: usize = 110;

    /// Client of a server that has ConfigMaps with contents of these sizes. The server has
    /// forgotten all continue tokens for the object `forgotten` and later ones. A page with more
    /// large objects than [`IN_TIME`] gets no answer.
    fn maps(sizes: Vec<usize>, forgotten: usize) -> (Api<ConfigMap>, Served) {
        let served = Served::default();
        let seen = served.clone();
        let api_server = service_fn(move |request: Request<Body>| {
            let uri = request.uri();
            let limit = limit_of(uri).unwrap();
            let mut query = uri.query().unwrap().split('&');
            let token = query.find_map(|part| part.strip_prefix("continue="));
            let start: usize = token.map_or(0, |token| token.parse().unwrap());
            let end = sizes.len().min(start + usize::try_from(limit).unwrap());
            let map = |n: usize| {
                let name = n.to_string();
                json!({"metadata": {"name": name}, "data": {"a": "x".repeat(sizes[n])}})
            };
            let goes_on = (end < sizes.len()).then(|| end.to_string());
            let items: Vec<_> = (start..end).map(map).collect();
            let list = json!({"metadata": {"continue": goes_on}, "items": items}).to_string();
            lock(&seen).push((limit, list.len()));
            let status = if start < forgotten { StatusCode::OK } else { StatusCode::GONE };
            let answer = Response::builder().status(status).body(Body::from(list.into_bytes()));
            let large = sizes[start..end].iter().filter(|size| **size >= 10_000).count();
            async move {
                if large > IN_TIME {
                    return Err("no answer in time".into());
                }
                answer.map_err(BoxError::from)
            }
        });
        let layer = layer_fn(FittedPages::new);
        (Api::all(ClientBuilder::new(api_server, "default").with_layer(&layer).build()), served)
    }

    /// Names of the objects in a list that is read page by page, with at most 500 objects in each.
    async fn names(api: &Api<ConfigMap>) -> Result<Vec<String>, kube::Error> {
        let mut params = ListParams::default().limit(500);
        let mut names = Vec::new();
        loop {
            let page = api.list(&params).await?;
            names.extend(page.items.into_iter().filter_map(|map| map.metadata.name));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(names),
            }
        }
    }

    fn limits(served: &Served) -> Vec<u64> {
        lock(served).drain(..).map(|(limit, _)| limit).collect()
    }

    #[tokio::test]
    async fn of_small_objects_a_page_has_as_many_as_the_caller_takes() {
        let (api, served) = maps(vec![100; 2_000], usize::MAX);
        assert_eq!(names(&api).await.unwrap().len(), 2_000);
        assert_eq!(limits(&served), [50, 100, 200, 400, 500, 500, 500]);
        // Each list begins anew, because the next objects may have another size.
        assert_eq!(names(&api).await.unwrap().len(), 2_000);
        assert_eq!(limits(&served)[..2], [50, 100]);
        let few = api.list(&ListParams::default().limit(7)).await.unwrap();
        assert_eq!((few.items.len(), limits(&served)), (7, vec![7]));
    }

    /// A page that is half full leaves room for objects of twice the size.
    #[tokio::test]
    async fn pages_grow_until_they_have_half_of_the_largest_size() {
        let (api, served) = maps(vec![10_000; 600], usize::MAX);
        assert_eq!(names(&api).await.unwrap().len(), 600);
        assert_eq!(limits(&served), [50, 100, 104, 104, 104, 104, 104]);
    }

    #[tokio::test]
    async fn an_object_larger_than_a_page_is_listed_alone() {
        let (api, served) = maps(vec![LARGEST_PAGE; 2], usize::MAX);
        assert_eq!(names(&api).await.unwrap().len(), 2);
        assert_eq!(limits(&served), [50, 12, 3, 1, 1]);
    }

    #[tokio::test]
    async fn of_large_objects_a_page_has_few_and_a_larger_page_is_requested_again() {
        let (api, served) =
            maps([vec![100; 100], vec![LARGE; 3], vec![100; 9]].concat(), usize::MAX);
        assert_eq!(names(&api).await.unwrap().len(), 112);
        assert_eq!(limits(&served), [50, 100, 25, 25, 25, 6, 1, 1, 1, 1, 1, 1, 2, 4]);
    }

    #[tokio::test]
    async fn a_page_that_grew_too_much_for_the_server_is_requested_again() {
        let (api, served) = maps([vec![100; 150], vec![10_000; 120]].concat(), usize::MAX);
        assert_eq!(names(&api).await.unwrap().len(), 270);
        assert_eq!(limits(&served), [50, 100, 200, 50, 50, 50]);
        let is_repeated = PageSize::first().may_be_cut(&"no answer in time".into());
        assert!(!is_repeated, "the caller must learn at once that the server is away");
    }

    /// The caller begins the list again. What the API server answers is for the caller.
    #[tokio::test]
    async fn a_page_that_the_server_refuses_is_not_requested_again() {
        let (api, served) = maps(vec![100; 200], 50);
        assert!(names(&api).await.is_err());
        assert_eq!(limits(&served), [50, 100]);
    }

    fn any_size() -> impl Strategy<Value = usize> {
        prop::sample::select(vec![0, 10_000, LARGE])
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(30) })]

        /// A tenant chooses the sizes and the order of its objects.
        #[test]
        fn each_object_is_listed_once_and_few_pages_are_read_in_vain(
            runs in prop::collection::vec((1..60_usize, any_size()), 0..6),
        ) {
            let objects = |(count, size): (usize, usize)| {
                vec![size; if size == LARGE { count / 6 } else { count }]
            };
            let sizes: Vec<usize> = runs.into_iter().flat_map(objects).collect();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            // A client is made inside of a runtime.
            let _inside = runtime.enter();
            let (api, served) = maps(sizes.clone(), usize::MAX);
            let listed = runtime.block_on(names(&api)).unwrap();
            let expected: Vec<String> = (0..sizes.len()).map(|n| n.to_string()).collect();
            prop_assert_eq!(listed, expected);
            let served = lock(&served);
            let is_vain = |(limit, bytes): &&(u64, usize)| *limit > 1 && *bytes > LARGEST_PAGE;
            let vain = served.iter().filter(is_vain).count();
            let large = sizes.iter().filter(|size| **size == LARGE).count();
            prop_assert!(vain <= 5 * large, "{} of {:?}", vain, served);
        }
    }
}
