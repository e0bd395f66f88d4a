//! Resource of a request to the API server, found by the request's path.

use http::Uri;

/// Plural name of the resource that a request with this URI watches. `None`: the request is not a
/// watch.
pub(super) fn watched(uri: &Uri) -> Option<String> {
    let is_watch = uri.query()?.split('&').any(|part| part == "watch=true" || part == "watch=1");
    is_watch.then(|| resource_at(uri.path()).to_owned())
}

/// Last segment of `path`. In the path of a list or watch, this segment is the plural name of the
/// resource.
pub(super) fn resource_at(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_is_recognized_by_its_query_and_named_by_its_path() {
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
