//! Owns the description of one call, read from its path as the API server reads it.

use hyper::header::USER_AGENT;
use hyper::{Method, Request};

/// A call to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The HTTP method, such as `PATCH`.
    pub method: String,
    /// The path, such as `/api/v1/namespaces/default/services/web/status`.
    pub path: String,
    /// The query without its question mark; empty without a query.
    pub query: String,
    /// Value of `User-Agent`; empty if it is missing.
    pub user_agent: String,
}

/// The parts of a path that names a resource.
#[derive(Default)]
struct Parts<'a> {
    group: &'a str,
    namespace: Option<&'a str>,
    resource: Option<&'a str>,
    name: Option<&'a str>,
    subresource: Option<&'a str>,
}

impl Call {
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        let agent = request.headers().get(USER_AGENT).and_then(|value| value.to_str().ok());
        Self {
            method: request.method().to_string(),
            path: request.uri().path().to_owned(),
            query: request.uri().query().unwrap_or_default().to_owned(),
            user_agent: agent.unwrap_or_default().to_owned(),
        }
    }

    /// Whether the method is a write. Reviews, such as of tokens, are posted and so count.
    pub fn is_write(&self) -> bool {
        [Method::POST, Method::PUT, Method::PATCH, Method::DELETE]
            .iter()
            .any(|m| *m == *self.method)
    }

    /// Whether the call is a watch.
    pub fn is_watch(&self) -> bool {
        self.method == "GET" && self.query.split('&').any(|p| p == "watch=true" || p == "watch=1")
    }

    /// The API group; empty for the core group and for paths that name no resource.
    pub fn group(&self) -> &str {
        self.parts().group
    }

    /// The resource in plural, such as `services` or `leases`.
    pub fn resource(&self) -> Option<&str> {
        self.parts().resource
    }

    /// The addressed part of the object, such as `status`.
    pub fn subresource(&self) -> Option<&str> {
        self.parts().subresource
    }

    /// The namespace; for a Namespace object, its name.
    pub fn namespace(&self) -> Option<&str> {
        self.parts().namespace
    }

    /// The object's name; `None` for lists and creations.
    pub fn name(&self) -> Option<&str> {
        self.parts().name
    }

    fn parts(&self) -> Parts<'_> {
        let mut segments = self.path.split('/').filter(|segment| !segment.is_empty());
        let group = match segments.next() {
            Some("api") => "",
            Some("apis") => segments.next().unwrap_or_default(),
            _ => return Parts::default(),
        };
        let rest: Vec<_> = segments.skip(1).collect();
        let (namespace, rest) = match rest[..] {
            // A namespace's own parts would otherwise look like a kind in that namespace.
            ["namespaces", name] | ["namespaces", name, "status" | "finalize"] => {
                (Some(name), &rest[..])
            }
            ["namespaces", name, ..] => (Some(name), &rest[2..]),
            _ => (None, &rest[..]),
        };
        let at = |index: usize| rest.get(index).copied();
        Parts { group, namespace, resource: at(0), name: at(1), subresource: at(2) }
    }
}

#[cfg(test)]
mod tests {
    use super::Call;

    fn call(line: &str) -> Call {
        let (method, uri) = line.split_once(' ').unwrap();
        let request = hyper::Request::builder().method(method).uri(uri).body(()).unwrap();
        Call::of(&request)
    }

    fn places(line: &str) -> [String; 5] {
        let call = call(line);
        let text = |part: Option<&str>| part.unwrap_or("-").to_owned();
        [
            call.group().to_owned(),
            text(call.namespace()),
            text(call.resource()),
            text(call.name()),
            text(call.subresource()),
        ]
    }

    #[test]
    fn a_path_is_read_as_the_server_reads_it() {
        for (line, expected) in [
            (
                "GET /api/v1/namespaces/a/services/web/status",
                ["", "a", "services", "web", "status"],
            ),
            (
                "POST /apis/coordination.k8s.io/v1/namespaces/a/leases",
                ["coordination.k8s.io", "a", "leases", "-", "-"],
            ),
            ("GET /apis/x.io/v1beta1/ippools/p", ["x.io", "-", "ippools", "p", "-"]),
            ("GET /api/v1/namespaces", ["", "-", "namespaces", "-", "-"]),
            ("PUT /api/v1/namespaces/a/finalize", ["", "a", "namespaces", "a", "finalize"]),
            ("GET /readyz", ["", "-", "-", "-", "-"]),
            ("GET /apis", ["", "-", "-", "-", "-"]),
        ] {
            assert_eq!(places(line), expected, "{line}");
        }
    }

    #[test]
    fn writes_and_watches_are_distinguished() {
        assert!(call("PATCH /api/v1/pods").is_write());
        assert!(!call("GET /api/v1/pods").is_write());
        assert!(call("GET /api/v1/pods?a=b&watch=true").is_watch());
        assert!(!call("GET /api/v1/pods?unwatch=true").is_watch());
    }
}
