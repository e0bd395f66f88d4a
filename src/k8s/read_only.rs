//! A connection that cannot write: it sends only GETs that are not watches.
//!
//! Invariants:
//! * A request with another method than GET is not sent, and fails at once.
//! * A watch is not sent either, but does not fail: it waits for ever. So a command that reads the
//!   cluster once needs no right to watch, and its views do not change after their first lists.
//! * [`RefusedReads`] notes each GET of an object or a list to which the API server answers 403. A
//!   GET with the answer 404 is noted only for a list. For an object, 404 says that the object does
//!   not exist.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response, StatusCode, Uri};
use kube::client::Body;
use tower::{BoxError, Service, ServiceExt as _, service_fn};

use super::request_path::watched;
use crate::domain::preview::unread::{ReadFailure, RoleRead};
use crate::locks::lock;

/// Error for a write that was not sent. Field 0: the HTTP method. Field 1: the path.
#[derive(Debug, thiserror::Error)]
#[error("this connection only reads: {0} {1} was not sent")]
pub struct WithheldWrite(Method, String);

/// Reads that the API server refused because a right is missing (403), and lists of kinds that it
/// does not serve (404), each with the reason. Other failed reads are left out. Clones share the
/// state.
#[derive(Clone, Debug, Default)]
pub struct RefusedReads(Arc<Mutex<BTreeMap<RoleRead, ReadFailure>>>);

impl RefusedReads {
    /// Copy of the map: the refused reads, each with the reason.
    pub fn all(&self) -> BTreeMap<RoleRead, ReadFailure> {
        lock(&self.0).clone()
    }

    fn add(&self, method: &Method, uri: &Uri, status: StatusCode) {
        let why = match status {
            StatusCode::FORBIDDEN => ReadFailure::Forbidden,
            StatusCode::NOT_FOUND => ReadFailure::NotServed,
            _ => return,
        };
        let Some(read) = read(uri).filter(|_| method == Method::GET) else { return };
        // A 404 for a single object means that the object does not exist, and is not noted. A 404
        // for a list means that the kind is not served.
        if why == ReadFailure::Forbidden || read.verb == "list" {
            lock(&self.0).insert(read, why);
        }
    }
}

/// HTTP service that sends only GETs, and no watches. A request with another method fails. A watch
/// waits for ever. Adds to `refusals` each GET of an object or a list that is answered with 403,
/// and each GET of a list that is answered with 404.
pub(super) fn withhold_writes<S, B>(
    inner: S,
    refusals: RefusedReads,
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
        let (inner, refusals) = (inner.clone(), refusals.clone());
        async move {
            let (method, uri) = (request.method().clone(), request.uri().clone());
            if method != Method::GET {
                return Err(BoxError::from(WithheldWrite(method, uri.path().to_owned())));
            }
            if watched(&uri).is_some() {
                return std::future::pending().await;
            }
            let answer = inner.oneshot(request).await?;
            refusals.add(&method, &uri, answer.status());
            Ok(answer)
        }
    })
}

/// Object or list that a GET of `uri` reads. The path has the form `/api/v1/…` or
/// `/apis/GROUP/VERSION/…`. `None`: the path names neither an object nor a list.
fn read(uri: &Uri) -> Option<RoleRead> {
    let mut parts = uri.path().split('/').filter(|part| !part.is_empty());
    let group = match parts.next()? {
        "api" => "",
        "apis" => parts.next()?,
        _ => return None,
    };
    let _version = parts.next()?;
    let rest: Vec<&str> = parts.collect();
    let (namespace, rest) = match rest.as_slice() {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
        rest => ("", rest),
    };
    let (resource, name) = match rest {
        [resource] => (*resource, None),
        [resource, name, ..] => (*resource, Some(*name)),
        [] => return None,
    };
    Some(RoleRead {
        verb: if name.is_some() { "get" } else { "list" },
        resource: resource.to_owned(),
        group: group.to_owned(),
        namespace: namespace.to_owned(),
        name: name.unwrap_or_default().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchParams};
    use kube::client::ClientBuilder;
    use kube::{Api, Client};
    use serde_json::json;
    use tower::layer::layer_fn;

    use super::*;
    use crate::api::IPPool;

    /// Client of a server that answers every request with `code` (field 0), and the number of
    /// requests that the server got (field 1).
    fn client(code: u16, refusals: &RefusedReads) -> (Client, Arc<AtomicUsize>) {
        let sent = Arc::new(AtomicUsize::new(0));
        let count = sent.clone();
        let server = service_fn(move |_: Request<Body>| {
            count.fetch_add(1, Ordering::Relaxed);
            let body = match code {
                200 => json!({"metadata": {}, "items": [], "spec": {"ranges": []}}),
                _ => json!({"kind": "Status", "code": code, "message": "no"}),
            };
            let answer =
                Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
            std::future::ready(answer.map_err(BoxError::from))
        });
        let refusals = refusals.clone();
        let layer = layer_fn(move |inner| withhold_writes(inner, refusals.clone()));
        (ClientBuilder::new(server, "default").with_layer(&layer).build(), sent)
    }

    #[tokio::test]
    async fn no_write_is_sent_by_any_verb() {
        let (client, sent) = client(200, &RefusedReads::default());
        let pools = Api::<IPPool>::all(client);
        let pool: IPPool =
            serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": {"ranges": []}}))
                .unwrap();
        let patch = Patch::Merge(json!({}));
        let (post, change) = (PostParams::default(), PatchParams::default());
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let refusals = [
            pools.create(&post, &pool).await.map(drop),
            pools.create(&dry, &pool).await.map(drop),
            pools.replace("a", &post, &pool).await.map(drop),
            pools.patch("a", &change, &patch).await.map(drop),
            pools.patch_status("a", &change, &patch).await.map(drop),
            pools.delete("a", &DeleteParams::default()).await.map(drop),
            pools
                .delete_collection(&DeleteParams::default(), &ListParams::default())
                .await
                .map(drop),
        ];
        for refusal in refusals {
            let refusal = refusal.unwrap_err().to_string();
            assert!(refusal.contains("only reads"), "{refusal}");
        }
        assert_eq!(sent.load(Ordering::Relaxed), 0);
        pools.list(&ListParams::default()).await.unwrap();
        pools.get("a").await.unwrap();
        assert_eq!(sent.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_watch_waits_and_is_not_sent() {
        let (client, sent) = client(200, &RefusedReads::default());
        let pools = Api::<IPPool>::all(client);
        let params = WatchParams::default();
        let watch = pools.watch(&params, "1");
        assert!(tokio::time::timeout(Duration::from_millis(50), watch).await.is_err());
        assert_eq!(sent.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn what_is_refused_is_noted_as_a_role_names_it() {
        let refusals = RefusedReads::default();
        let pools = Api::<IPPool>::all(client(403, &refusals).0);
        let _ = pools.list(&ListParams::default()).await;
        let _ = pools.get("a").await;
        let noted: Vec<String> = refusals.all().keys().map(ToString::to_string).collect();
        assert_eq!(
            noted,
            [
                "get ippools.loadbalancer.harvesterhci.io a",
                "list ippools.loadbalancer.harvesterhci.io"
            ]
        );
        // A 404 is noted for a kind that is not served, but not for an object that does not exist.
        let refusals = RefusedReads::default();
        let pools = Api::<IPPool>::all(client(404, &refusals).0);
        let _ = pools.get("a").await;
        assert_eq!(refusals.all().len(), 0);
        let _ = pools.list(&ListParams::default()).await;
        assert_eq!(refusals.all().into_values().collect::<Vec<_>>(), [ReadFailure::NotServed]);
    }

    #[test]
    fn paths_are_read_as_the_api_server_reads_them() {
        for (path, right) in [
            ("/api/v1/nodes?limit=500", "list nodes"),
            ("/api/v1/namespaces", "list namespaces"),
            ("/api/v1/namespaces/kube-system", "get namespaces kube-system"),
            ("/api/v1/namespaces/a/secrets", "list secrets in namespace a"),
            ("/apis/g.io/v1/namespaces/a/widgets/b", "get widgets.g.io b in namespace a"),
            ("/apis/g.io/v1/widgets/b/status", "get widgets.g.io b"),
        ] {
            assert_eq!(read(&path.parse().unwrap()).unwrap().to_string(), right, "{path}");
        }
        assert_eq!(read(&"/version".parse().unwrap()), None);
    }
}
