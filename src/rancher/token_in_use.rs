//! Checks whether the state that Rancher reports for a token in use has changed.

use super::{ListedToken, RancherError, RancherIssuer};
use crate::domain::credentials::rotation::IssuerReport;

impl RancherIssuer {
    /// Whether a token differs from the earlier report `seen`. Makes one call with the API key, and
    /// does not use the token itself. `true` in these cases:
    /// * The token is disabled now, or has another expiry.
    /// * Rancher does not show the token to the API key any more.
    /// * Rancher does not accept the API key, or does not allow the call.
    ///
    /// `false` after any other failure, such as a missing answer.
    pub async fn differs(&self, seen: &IssuerReport) -> bool {
        let found = self.rancher.token(&self.key, &seen.id).await;
        differs(&found.map(|found| found.value), seen)
    }
}

fn differs(found: &Result<Option<ListedToken>, RancherError>, seen: &IssuerReport) -> bool {
    match found {
        Ok(Some(token)) => !token.enabled || token.expires != seen.expires,
        Ok(None) | Err(RancherError::Unauthorized(_) | RancherError::Forbidden(..)) => true,
        // Any other error, such as a missing answer, does not prove a difference.
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::super::RancherCall;
    use super::*;

    #[test]
    fn what_is_gone_disabled_or_ends_at_another_time_differs_and_silence_does_not() {
        let seen =
            IssuerReport { id: "token-abcde".to_owned(), expires: Some(900), kept_alive: false };
        let token = |expires: Option<i64>, enabled: bool| ListedToken {
            name: seen.id.clone(),
            user: "u-1".to_owned(),
            description: String::new(),
            created: 100,
            expires,
            cluster: None,
            enabled,
        };
        let call = || RancherCall::new(&Method::GET, "/v3/tokens/token-abcde");
        let refused =
            |status| RancherError::Refused { call: call(), status, message: String::new() };
        for (found, other) in [
            (Ok(Some(token(Some(900), true))), false),
            (Ok(Some(token(Some(900), false))), true),
            (Ok(Some(token(Some(800), true))), true),
            (Ok(Some(token(None, true))), true),
            (Ok(None), true),
            (Err(RancherError::Unauthorized(call())), true),
            (Err(RancherError::Forbidden(call(), String::new())), true),
            (Err(RancherError::Silent(call(), String::new())), false),
            (Err(RancherError::Unreadable(call(), String::new())), false),
            (Err(refused(503)), false),
            (Err(refused(404)), false),
        ] {
            assert_eq!(differs(&found, &seen), other, "{found:?}");
        }
    }
}
