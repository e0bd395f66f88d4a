//! Client of the API server that a kubeconfig names. The client asks this server for the user of a
//! token.
//!
//! Invariants, which the client of a Rancher keeps too:
//!
//! * A call uses HTTPS and is bounded in size.
//! * A call ends at its deadline, however the server behaves.
//! * An error contains no word of a server's text that may be a token.

use std::time::Duration;

use http::Method;
use tokio::time::{sleep, timeout};

use super::error::safe;
use super::issuer::pem;
use super::token_bearer::REVIEW;
use super::{RancherError, ServerClient};
use crate::domain::credentials::kubeconfig::ServerEndpoint;
use crate::domain::credentials::secret_text::SecretText;

/// Pause between two calls that test a new token. The first call may fail, because the servers
/// behind one URL accept a new token at different times.
const BETWEEN_TRIES: Duration = Duration::from_millis(500);

impl ServerClient {
    /// Client for the API server that a kubeconfig names. The error says why no token may be sent
    /// to the server, or why its URL or its certificate authorities cannot be used.
    pub fn of(reach: &ServerEndpoint) -> Result<Self, String> {
        reach.check().map_err(|fault| fault.to_string())?;
        let authority = reach.authority.as_deref().map(pem).transpose()?;
        Self::new(&reach.server, authority.as_deref(), reach.server_name.as_deref())
    }

    /// Tests whether the server accepts `token` as a token of `user`. Repeats the request for the
    /// token's user until the test ends:
    /// * The test succeeds if the server names `user`, or accepts the token but cannot name its
    ///   user.
    /// * The test fails after two faults, or after the time `within`. A fault is an answer with
    ///   another user, or an error other than [`RancherError::Unauthorized`] and
    ///   [`RancherError::Forbidden`].
    ///
    /// `Err`: why the last complete request failed. If no request was complete, the text gives the
    /// time.
    pub async fn accepts(
        &self,
        token: &SecretText,
        user: &str,
        within: Duration,
    ) -> Result<(), String> {
        let call = self.name_call(&Method::POST, REVIEW);
        let mut why =
            RancherError::Silent(call, format!("not within {} s", within.as_secs())).to_string();
        let asked = async {
            let mut faults = 0;
            while faults < 2 {
                match self.bearer(token).await.map(|bearer| bearer.user) {
                    Ok(Some(who)) if who != user => {
                        faults += 1;
                        why = format!(
                            "the server says that the token belongs to {:?}, not to {user}",
                            safe(&who)
                        );
                    }
                    Ok(_) => return true,
                    Err(error) => {
                        let may_pass = matches!(
                            error,
                            RancherError::Unauthorized(_) | RancherError::Forbidden(..)
                        );
                        faults += u8::from(!may_pass);
                        why = error.to_string();
                    }
                }
                sleep(BETWEEN_TRIES).await;
            }
            false
        };
        if timeout(within, asked).await == Ok(true) { Ok(()) } else { Err(why) }
    }
}
