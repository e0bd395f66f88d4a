//! Errors of a call to a server, with texts that hold no secret.
//!
//! Invariant: every text of the server or of a library passes through [`safe`].

use chrono::DateTime;
use serde_json::Value;
use tokio_rustls::rustls::pki_types::UnixTime;
use tokio_rustls::rustls::{self, CertificateError};

/// Maximum length of a server's text in an error, in bytes. A longer text is cut.
const LONGEST: usize = 200;
/// Longest run of token characters that an error repeats, in bytes. A longer run may be a secret,
/// because names are shorter.
const LONGEST_WORD: usize = 40;

/// Reason why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RancherError {
    /// No complete answer arrived. The server may have carried out a write.
    #[error("no answer: {0}")]
    Silent(String),
    /// The token is expired, deleted, disabled or unknown. Rancher does not say which.
    #[error("the token is not accepted")]
    Unauthorized,
    /// The token's user has no permission for the call.
    #[error("not allowed: {0}")]
    Forbidden(String),
    /// The object does not exist, or the token's user may not see it.
    #[error("not found: {0}")]
    NotFound(String),
    /// The object has been changed by another client since it was read.
    #[error("another client has changed the object")]
    Conflict,
    /// Any other answer that is not a success.
    #[error("{}{message}", if *status == 0 { String::new() } else { format!("HTTP {status}: ") })]
    Refused {
        /// HTTP status. 0: the request was not sent.
        status: u16,
        /// Text of the server, passed through `safe`.
        message: String,
    },
    /// The answer does not have Rancher's format.
    #[error("the answer is not understood: {0}")]
    Unreadable(String),
}

impl RancherError {
    /// Whether the server may have carried out a write in spite of the error.
    pub fn may_be_done(&self) -> bool {
        match self {
            Self::Silent(_) | Self::Unreadable(_) => true,
            Self::Refused { status, .. } => *status >= 500,
            _ => false,
        }
    }

    /// Error for an answer with an unsuccessful HTTP status.
    pub(super) fn of(status: u16, body: &[u8]) -> Self {
        let read: Option<Value> = serde_json::from_slice(body).ok().filter(Value::is_object);
        // If Rancher is missing, a proxy may answer for it, such as an ingress. A 404 of the proxy
        // says nothing about Rancher's objects.
        if read.is_none() && status == 404 {
            let message = "the answer is not Rancher's".to_owned();
            return Self::Refused { status, message };
        }
        let plain =
            std::str::from_utf8(body).ok().filter(|text| !text.trim_start().starts_with('<'));
        let body = read.unwrap_or_default();
        let text = ["message", "Message"].into_iter().find_map(|field| body[field].as_str());
        let message = safe(text.or(plain.filter(|_| body.is_null())).unwrap_or_default().trim());
        match status {
            401 => Self::Unauthorized,
            // If a cluster other than Rancher's own does not accept a token, it treats the request
            // as unauthenticated.
            403 if message.contains("system:unauthenticated") => Self::Unauthorized,
            403 => Self::Forbidden(message),
            404 => Self::NotFound(message),
            409 => Self::Conflict,
            300..=399 => Self::Refused {
                status,
                message: "the server redirects, and redirects are not followed".into(),
            },
            _ => Self::Refused { status, message },
        }
    }
}

/// Text of a failed connection. The TLS library's texts about a certificate's validity contain the
/// present time, so they would differ at each call. The texts here do not contain the present time.
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

/// The text, cut to [`LONGEST`], without runs of characters that may be a secret.
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
        let end = (0..=LONGEST).rev().find(|at| out.is_char_boundary(*at)).unwrap_or(0);
        out.truncate(end.min(out.len()));
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for (status, body, expected) in [
            (401, &b"not authorized"[..], RancherError::Unauthorized),
            (403, &stranger[..], RancherError::Unauthorized),
            (403, &known[..], RancherError::Forbidden("User \"u-abc\" cannot get".to_owned())),
            (404, &br#"{"message":"x"}"#[..], RancherError::NotFound("x".to_owned())),
            (
                404,
                &b"<html>404 Not Found</html>"[..],
                RancherError::Refused {
                    status: 404,
                    message: "the answer is not Rancher's".into(),
                },
            ),
            (409, &b""[..], RancherError::Conflict),
            (502, &b"<html>"[..], RancherError::Refused { status: 502, message: String::new() }),
            (
                503,
                &b"service unavailable\n"[..],
                RancherError::Refused { status: 503, message: "service unavailable".into() },
            ),
            (
                500,
                &br#"{"message":"y"}"#[..],
                RancherError::Refused { status: 500, message: "y".into() },
            ),
        ] {
            assert_eq!(RancherError::of(status, body), expected, "{status}");
        }
        assert!(
            RancherError::of(500, b"").may_be_done()
                && RancherError::Silent(String::new()).may_be_done()
        );
        assert!(
            !RancherError::of(422, b"").may_be_done() && !RancherError::of(401, b"").may_be_done()
        );
        let RancherError::Refused { message, .. } = RancherError::of(302, b"") else { panic!() };
        assert!(message.contains("not followed"));
    }
}
