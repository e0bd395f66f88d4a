//! Errors of a call to a server. Each error names the call, and holds no secret.
//!
//! Invariant: these texts pass through [`safe`] before they become part of an error: each text from
//! the server, each text of a library about a fault of the connection, and each part of a path.

use std::fmt;

use chrono::DateTime;
use http::Method;
use serde_json::Value;
use tokio_rustls::rustls::pki_types::UnixTime;
use tokio_rustls::rustls::{self, CertificateError};

/// Maximum length in bytes of a text that passes through [`safe`], and of the name of a call. A
/// longer text is cut to this length, and then gets a mark of 3 more bytes.
const LONGEST: usize = 200;
/// Maximum length in bytes of a word in an error. A word consists of characters that occur in
/// tokens. A longer word is left out, because it may be a secret. Names of objects are usually
/// shorter.
const LONGEST_WORD: usize = 40;

/// Name of a call in errors: the HTTP method and the path of the request. The query is left out,
/// and so is each part of the path that may be a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RancherCall(Box<str>);

impl RancherCall {
    /// Name of the call with this HTTP method and this path. `path` may have a query.
    pub(super) fn new(method: &Method, path: &str) -> Self {
        let path = path.split('?').next().unwrap_or_default();
        let parts: Vec<String> = path.split('/').map(safe).collect();
        let mut name = format!("{method} {}", parts.join("/"));
        if name.len() > LONGEST {
            cut(&mut name);
        }
        Self(name.into())
    }
}

impl fmt::Display for RancherCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reason why a call failed, with the name of the call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RancherError {
    /// No complete answer arrived. The text says why. If the call was a write, the server may have
    /// carried it out.
    #[error("{0}: no answer: {1}")]
    Silent(RancherCall, String),
    /// The server does not accept the token. The token is expired, deleted, disabled, unknown or
    /// limited to a cluster. Rancher does not say which. If the token is empty, or cannot be put
    /// into a header, no request was sent.
    #[error("{0}: the token is not accepted")]
    Unauthorized(RancherCall),
    /// The token's user has no permission for the call.
    #[error("{0}: not allowed: {1}")]
    Forbidden(RancherCall, String),
    /// The object does not exist, the token's user has no right to see it, or the server does not
    /// have the requested API. If the name of the object is not valid, no request was sent.
    #[error("{0}: not found: {1}")]
    NotFound(RancherCall, String),
    /// The object has been changed by another client since it was read.
    #[error("{0}: another client has changed the object")]
    Conflict(RancherCall),
    /// Any failure that no other variant covers: an answer that is not a success, or a request that
    /// was not sent (status 0).
    #[error("{call}: {}{message}", status_text(*status))]
    Refused {
        /// The refused call.
        call: RancherCall,
        /// HTTP status. 0: the request was not sent.
        status: u16,
        /// Text of the server, passed through `safe`. The operator's own text in three cases: the
        /// request was not sent, the server redirects, or a proxy answers 404.
        message: String,
    },
    /// The answer does not have the expected format, or is too long.
    #[error("{0}: the answer is not understood: {1}")]
    Unreadable(RancherCall, String),
}

impl RancherError {
    /// Whether the same call may succeed later. `true` in these cases:
    ///
    /// * The Rancher gave no answer, or an unreadable one.
    /// * The status is 5xx.
    /// * The status is 429: Rancher limits the rate of calls.
    /// * The status is 404, from a proxy that finds no Rancher behind it.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Silent(..) | Self::Unreadable(..) => true,
            Self::Refused { status, .. } => matches!(status, 404 | 429 | 500..),
            _ => false,
        }
    }

    /// Error for an answer with an unsuccessful HTTP status.
    pub(super) fn of(call: RancherCall, status: u16, body: &[u8]) -> Self {
        let read: Option<Value> = serde_json::from_slice(body).ok().filter(Value::is_object);
        // A 404 whose body is no JSON object comes from a proxy, such as an ingress, that finds no
        // Rancher behind it. This answer says nothing about Rancher's objects.
        if read.is_none() && status == 404 {
            let message = "the answer does not come from Rancher".to_owned();
            return Self::Refused { call, status, message };
        }
        let plain =
            std::str::from_utf8(body).ok().filter(|text| !text.trim_start().starts_with('<'));
        let body = read.unwrap_or_default();
        let text = ["message", "Message"].into_iter().find_map(|field| body[field].as_str());
        let message = safe(text.or(plain.filter(|_| body.is_null())).unwrap_or_default().trim());
        match status {
            401 => Self::Unauthorized(call),
            // A cluster behind Rancher treats a request with an unknown token as unauthenticated,
            // and answers 403.
            403 if message.contains("system:unauthenticated") => Self::Unauthorized(call),
            403 => Self::Forbidden(call, message),
            404 => Self::NotFound(call, message),
            409 => Self::Conflict(call),
            300..=399 => Self::Refused {
                call,
                status,
                message: "the server redirects, and the operator follows no redirect".into(),
            },
            _ => Self::Refused { call, status, message },
        }
    }
}

/// Text for an HTTP status, to be put before the message of a refused call. Empty for the status 0.
fn status_text(status: u16) -> String {
    if status == 0 { String::new() } else { format!("HTTP {status}: ") }
}

/// Text that says why a connection failed. For an expired or not yet valid certificate, the text of
/// the TLS library is not used: it contains the present time, so it differs at each call.
pub(super) fn unconnected(error: &std::io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let at = |time: &UnixTime| {
        let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        DateTime::from_timestamp(seconds, 0).map(|at| at.format("%F %T UTC").to_string())
    };
    match inner {
        Some(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
            not_after,
            ..
        })) => {
            format!("its certificate expired on {}", at(not_after).unwrap_or_default())
        }
        Some(rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext {
            not_before,
            ..
        })) => {
            format!("its certificate is not valid before {}", at(not_before).unwrap_or_default())
        }
        _ => safe(&error.to_string()),
    }
}

/// Puts `…` in the place of each word of `text` that is longer than [`LONGEST_WORD`], because the
/// word may be a secret. Puts a space in the place of each control character. Cuts the result to
/// [`LONGEST`].
pub(super) fn safe(text: &str) -> String {
    let belongs = |c: char| c.is_ascii_alphanumeric() || "-_+/=".contains(c);
    let mut out = String::new();
    let mut rest = text;
    while !rest.is_empty() && out.len() < LONGEST {
        let word = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        out.push_str(if word > LONGEST_WORD { "…" } else { &rest[..word] });
        rest = &rest[word..];
        let gap = rest.find(belongs).unwrap_or(rest.len());
        out.extend(rest[..gap].chars().map(|c| if c.is_control() { ' ' } else { c }));
        rest = &rest[gap..];
    }
    if !rest.is_empty() || out.len() > LONGEST {
        cut(&mut out);
    }
    out
}

/// Cuts the text to [`LONGEST`], and marks the cut.
fn cut(text: &mut String) {
    text.truncate(text.floor_char_boundary(LONGEST));
    text.push('…');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> RancherCall {
        RancherCall::new(&Method::GET, "/v3/tokens")
    }

    #[test]
    fn an_error_names_the_method_and_the_path_and_no_secret() {
        let secret = "x7".repeat(27);
        let path = format!("/k8s/clusters/c-m-prod/v3/tokens/token-abcde:{secret}?token={secret}");
        let body = format!(r#"{{"message":"token-abcde:{secret} is disabled"}}"#);
        let call = RancherCall::new(&Method::DELETE, &path);
        let error = RancherError::of(call, 403, body.as_bytes());
        let named = "DELETE /k8s/clusters/c-m-prod/v3/tokens/token-abcde:…";
        let expected = format!("{named}: not allowed: token-abcde:… is disabled");
        assert_eq!(error.to_string(), expected);
        assert!(!format!("{error:?}").contains("x7x7"), "{error:?}");
        let long = RancherCall::new(&Method::GET, &"/é".repeat(400)).to_string();
        assert!(long.len() <= LONGEST + '…'.len_utf8() && long.ends_with('…'), "{long}");
    }

    #[test]
    fn each_kind_of_error_names_its_call() {
        let why = || "why".to_owned();
        for (error, expected) in [
            (RancherError::Silent(call(), why()), "no answer: why"),
            (RancherError::Unauthorized(call()), "the token is not accepted"),
            (RancherError::Forbidden(call(), why()), "not allowed: why"),
            (RancherError::NotFound(call(), why()), "not found: why"),
            (RancherError::Conflict(call()), "another client has changed the object"),
            (RancherError::Refused { call: call(), status: 0, message: why() }, "why"),
            (RancherError::Refused { call: call(), status: 500, message: why() }, "HTTP 500: why"),
            (RancherError::Unreadable(call(), why()), "the answer is not understood: why"),
        ] {
            assert_eq!(error.to_string(), format!("GET /v3/tokens: {expected}"));
        }
    }

    #[test]
    fn what_may_be_a_secret_is_not_passed_on() {
        let secret = "x7".repeat(27);
        for text in [
            format!("bad token token-abcde:{secret}"),
            format!("{secret} {secret}"),
            format!("\"{secret}\""),
            format!("eyJ{secret}.eyJ{secret}.{secret}"),
            format!("é{secret}é"),
        ] {
            let said = safe(&text);
            assert!(!said.contains("x7x7"), "{said}");
        }
        let plain = "tokens.management.cattle.io \"kubeconfig-u-hc8k5lksjd\" not found";
        assert_eq!(safe(plain), plain);
        assert_eq!(safe("a\nb"), "a b");
        let long = safe(&"é ".repeat(400));
        assert!(long.len() <= LONGEST + '…'.len_utf8() && long.ends_with('…'), "{long}");
    }

    #[test]
    fn an_expired_certificate_gives_the_same_text_at_every_try() {
        let at = |seconds| UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        let message = |error| {
            let error = rustls::Error::InvalidCertificate(error);
            unconnected(&std::io::Error::new(std::io::ErrorKind::InvalidData, error))
        };
        for now in [1_800_000_001, 1_800_000_099] {
            let (time, not_after) = (at(now), at(1_800_000_000));
            let ended = message(CertificateError::ExpiredContext { time, not_after });
            assert_eq!(ended, "its certificate expired on 2027-01-15 08:00:00 UTC");
            let (time, not_before) = (at(now - 200), at(1_800_000_000));
            let early = message(CertificateError::NotValidYetContext { time, not_before });
            assert_eq!(early, "its certificate is not valid before 2027-01-15 08:00:00 UTC");
        }
        let other = message(CertificateError::UnknownIssuer);
        assert_eq!(other, "invalid peer certificate: UnknownIssuer");
    }

    #[test]
    fn an_answer_is_classified_by_its_status_and_text() {
        let stranger = br#"{"Message":"User \"system:unauthenticated\" cannot get"}"#;
        let known = br#"{"Message":"User \"u-abc\" cannot get"}"#;
        let refused = |status, message: &str| RancherError::Refused {
            call: call(),
            status,
            message: message.to_owned(),
        };
        let forbidden = "User \"u-abc\" cannot get".to_owned();
        let elsewhere = "the answer does not come from Rancher";
        for (status, body, expected) in [
            (401, &b"not authorized"[..], RancherError::Unauthorized(call())),
            (403, &stranger[..], RancherError::Unauthorized(call())),
            (403, &known[..], RancherError::Forbidden(call(), forbidden)),
            (404, &br#"{"message":"x"}"#[..], RancherError::NotFound(call(), "x".to_owned())),
            (404, &b"<html>404 Not Found</html>"[..], refused(404, elsewhere)),
            (409, &b""[..], RancherError::Conflict(call())),
            (502, &b"<html>"[..], refused(502, "")),
            (503, &b"service unavailable\n"[..], refused(503, "service unavailable")),
            (500, &br#"{"message":"y"}"#[..], refused(500, "y")),
        ] {
            assert_eq!(RancherError::of(call(), status, body), expected, "{status}");
        }
        let of = |status| RancherError::of(call(), status, b"");
        assert!([404, 429, 500, 503].into_iter().all(|status| of(status).may_pass()));
        assert!(RancherError::Silent(call(), String::new()).may_pass());
        assert!(![0, 302, 401, 403, 422].into_iter().any(|status| of(status).may_pass()));
        let not_found = RancherError::of(call(), 404, br#"{"message":"not found"}"#);
        assert!(!not_found.may_pass());
        let RancherError::Refused { message, .. } = of(302) else { panic!() };
        assert!(message.contains("follows no redirect"));
    }
}
