//! Pages of lists: the number of objects in a page follows the size of the objects.
//!
//! A page is in memory as text until it is parsed, and a tenant can make objects of 1.5 MB. So
//! a fixed number of objects for each page would need much memory if the number were large, and
//! much time if the number were small. A list may be continued with another `limit`, as the
//! end-to-end test of Kubernetes does (`test/e2e/apimachinery/chunking.go`).
//!
//! A page is requested again with fewer objects in each of these cases:
//! * The page has more than [`LARGEST_PAGE`] bytes, and the request was for several objects.
//! * The request fails, and was for more than [`FIRST_PAGE`] objects.
//! * The page does not arrive within [`PAGE_DEADLINE`], if that is set, and the request was for
//!   several objects. The API server reads all objects of a page before it sends the first byte, so
//!   a page of many large objects comes late.
//!
//! A page that the API server refuses is not requested again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, Uri};
use http_body::Body as HttpBody;
use http_body_util::{BodyExt as _, Either, Full, LengthLimitError, Limited};
use kube::client::Body;
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tower::{BoxError, Service, ServiceExt as _, service_fn};

use crate::locks::lock;

/// Largest size in bytes of a page with several objects. A larger page is not read to its end, and
/// is requested again with fewer objects.
const LARGEST_PAGE: usize = 2 << 20;
/// Number of objects in the first page of a list.
const FIRST_PAGE: u64 = 50;
/// Largest factor by which the number of objects may grow from one page to the next.
const GROWTH: u64 = 2;
/// Divisor of the number of objects when a page is requested again, because it was too large or
/// late, or its request failed.
const CUT: u64 = 4;
/// Factor for [`PageSize::pause`] after a page that was late, or whose request failed. A page that
/// was too large has the factor 1. Late and failed tries are kept rarer, because each may take the
/// whole deadline.
const LONG_PAUSE: u64 = 8;
/// Largest number of tries for one page of [`super::PAGE`] objects. Each try after the first one
/// requests fewer objects.
pub(super) const TRIES: u32 = 5;

tokio::task_local! {
    /// Deadline of each try of a page, if the try is for more than one object. A try for one object
    /// has only the deadline of the whole call, because no smaller page can follow. Not set in the
    /// lists of informers.
    pub(super) static PAGE_DEADLINE: Duration;
}

/// Number of objects for the next page of a list.
#[derive(Clone, Copy, Debug)]
struct PageSize {
    /// Number of objects to request.
    limit: u64,
    /// Number of objects to read before `limit` may grow again. [`Self::cut`] sets the pause to the
    /// former `limit` after a page that was too large, and otherwise to [`LONG_PAUSE`] times the
    /// former `limit`. Without a pause, `limit` would soon be too large again for the next large
    /// object.
    pause: u64,
}

impl PageSize {
    /// Size of the first page of a list.
    fn first() -> Self {
        Self { limit: FIRST_PAGE, pause: 0 }
    }

    /// Returns the number for the next page, after a page of `self.limit` objects had `bytes`
    /// bytes. If the next objects have the same size in bytes, the next page fills at most half of
    /// [`LARGEST_PAGE`], or has only one object.
    fn next(self, bytes: usize) -> Self {
        let pause = self.pause.saturating_sub(self.limit);
        let most = if pause == 0 { self.limit.saturating_mul(GROWTH) } else { self.limit };
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX).max(1);
        let fits = self.limit.saturating_mul(LARGEST_PAGE as u64 / 2) / bytes;
        Self { limit: fits.clamp(1, most), pause }
    }

    /// Returns a smaller number, with which the page is requested again after `error`. The page was
    /// too large or late, or its request failed. `None`: the page is not requested again, because
    /// its request failed and was for at most [`FIRST_PAGE`] objects.
    fn cut(self, error: &BoxError) -> Option<Self> {
        let limit = (self.limit / CUT).max(1);
        if error.is::<LengthLimitError>() {
            return Some(Self { limit, pause: self.limit });
        }
        let pause = self.limit.saturating_mul(LONG_PAUSE);
        let is_cut = self.limit > FIRST_PAGE || error.is::<Elapsed>();
        is_cut.then_some(Self { limit, pause })
    }
}

/// HTTP service that replaces the `limit` in requests for a page of a list. The new `limit` fits
/// the size of the objects, and is at most the old one. [`PageSize::cut`] decides whether a page
/// that was too large or late, or whose request failed, is requested again. Other requests pass
/// unchanged.
pub(super) fn fit_pages<S, B>(
    inner: S,
) -> impl Service<
    Request<Body>,
    Response = Response<Either<Full<Bytes>, B>>,
    Error = BoxError,
    Future: Send + 'static,
> + Send
+ 'static
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    // Map from the path of a list to the size of its next page.
    let sizes = Arc::new(Mutex::new(HashMap::<String, PageSize>::new()));
    service_fn(move |request: Request<Body>| {
        let (mut inner, sizes) = (inner.clone(), sizes.clone());
        async move {
            let most = limit_of(request.uri()).filter(|_| request.method() == Method::GET);
            let Some(most) = most else {
                return Ok::<_, BoxError>(inner.oneshot(request).await?.map(Either::Right));
            };
            let (request, _) = request.into_parts();
            let path = request.uri.path();
            let known = lock(&sizes).get(path).copied().filter(|_| !is_first_page(&request.uri));
            let mut size = known.unwrap_or_else(PageSize::first);
            loop {
                size.limit = size.limit.min(most);
                let mut fitted = request.clone();
                fitted.uri = with_limit(&request.uri, size.limit)?;
                let fitted = Request::from_parts(fitted, Body::empty());
                let page = request_page(&mut inner, fitted, size.limit);
                let deadline = PAGE_DEADLINE.try_get().ok().filter(|_| size.limit > 1);
                let answer = match deadline {
                    Some(deadline) => {
                        timeout(deadline, page).await.unwrap_or_else(|late| Err(late.into()))
                    }
                    None => page.await,
                };
                match answer.map(Response::into_parts) {
                    Ok((answer, Either::Left(page))) => {
                        lock(&sizes).insert(path.to_owned(), size.next(page.len()));
                        return Ok(Response::from_parts(answer, Either::Left(Full::new(page))));
                    }
                    Ok((answer, Either::Right(body))) => {
                        return Ok(Response::from_parts(answer, Either::Right(body)));
                    }
                    Err(error) => size = size.cut(&error).ok_or(error)?,
                }
            }
        }
    })
}

/// Requests a page with at most `limit` objects, and reads it to its end. Fails if `limit` is more
/// than 1 and the page has more than [`LARGEST_PAGE`] bytes. The body of a refusal is not read.
async fn request_page<S, B>(
    inner: &mut S,
    request: Request<Body>,
    limit: u64,
) -> Result<Response<Either<Bytes, B>>, BoxError>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let (answer, body) = inner.ready().await?.call(request).await?.into_parts();
    if !answer.status.is_success() {
        return Ok(Response::from_parts(answer, Either::Right(body)));
    }
    let longest = if limit > 1 { LARGEST_PAGE } else { usize::MAX };
    let page = Limited::new(body, longest).collect().await?.to_bytes();
    Ok(Response::from_parts(answer, Either::Left(page)))
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
    use kube::core::ObjectList;
    use proptest::prelude::*;
    use serde_json::json;
    use tower::layer::layer_fn;

    use super::*;
    use crate::k8s::calls::ApiCalls as _;
    use crate::k8s::{CallError, PAGE};

    /// Requests that the server got: the `limit` of each, and the size of the answer in bytes.
    type Served = Arc<Mutex<Vec<(u64, usize)>>>;

    const LARGE: usize = 1_500_000;

    /// Largest number of objects of 10 kB and more in a page that the server sends in time.
    const IN_TIME: usize = 110;

    /// Size of an object that is slow to read: a page with more than [`QUICK`] of them never comes.
    const SLOW: usize = 2;
    const QUICK: usize = 20;

    /// Client of a server that has ConfigMaps with contents of these sizes. The server has
    /// forgotten all continue tokens for the object `forgotten` and later ones. The request of a
    /// page fails if the page has more large objects than [`IN_TIME`].
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
            let slow = sizes[start..end].iter().filter(|size| **size == SLOW).count();
            async move {
                if slow > QUICK {
                    std::future::pending::<()>().await;
                }
                if large > IN_TIME {
                    return Err("no answer in time".into());
                }
                answer.map_err(BoxError::from)
            }
        });
        let layer = layer_fn(fit_pages);
        (Api::all(ClientBuilder::new(api_server, "default").with_layer(&layer).build()), served)
    }

    /// Names of the objects in a list that is read page by page, with at most 500 objects in each.
    async fn names(api: &Api<ConfigMap>) -> Result<Vec<String>, kube::Error> {
        names_in(async |params: &ListParams| api.list(params).await).await
    }

    /// Names as [`names`] returns them. `list` reads a page.
    async fn names_in<E>(
        list: impl AsyncFn(&ListParams) -> Result<ObjectList<ConfigMap>, E>,
    ) -> Result<Vec<String>, E> {
        let mut params = ListParams::default().limit(500);
        let mut names = Vec::new();
        loop {
            let page = list(&params).await?;
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
        let repeated = PageSize::first().cut(&"no answer in time".into());
        assert!(repeated.is_none(), "the caller must learn at once that the server is away");
    }

    #[tokio::test]
    async fn a_page_that_is_late_is_requested_again_with_fewer_objects() {
        let (api, served) = maps(vec![SLOW; 300], usize::MAX);
        let calls = api.within(Duration::from_millis(100));
        let listed = names_in(async |params: &ListParams| calls.call_list(params).await).await;
        assert_eq!(listed.unwrap().len(), 300);
        assert_eq!(limits(&served), [vec![50], vec![12; 25]].concat());
    }

    #[tokio::test]
    async fn a_page_of_one_object_that_is_late_ends_with_the_error() {
        let silent = service_fn(|_: Request<Body>| {
            std::future::pending::<Result<Response<Body>, BoxError>>()
        });
        let layer = layer_fn(fit_pages);
        let client = ClientBuilder::new(silent, "default").with_layer(&layer).build();
        let (api, deadline) = (Api::<ConfigMap>::all(client), Duration::from_millis(20));
        let params = ListParams::default().limit(PAGE);
        let late = api.within(deadline).call_list(&params).await.unwrap_err();
        assert!(
            matches!(late, CallError::Timeout { within, .. } if within == deadline * TRIES),
            "{late}"
        );
    }

    #[tokio::test]
    async fn the_last_try_of_the_largest_page_has_one_object() {
        let never = timeout(Duration::ZERO, std::future::pending::<()>());
        let late = BoxError::from(never.await.unwrap_err());
        let largest = PageSize { limit: PAGE.into(), pause: 0 };
        let cut = |size: &PageSize| size.cut(&late).filter(|_| size.limit > 1);
        let tries: Vec<u64> =
            std::iter::successors(Some(largest), cut).map(|size| size.limit).collect();
        assert_eq!(tries, [200, 50, 12, 3, 1]);
        assert_eq!(u32::try_from(tries.len()), Ok(TRIES));
    }

    /// The caller gets the refusal, and begins the list again.
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
            // A client can be made only inside a runtime.
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
