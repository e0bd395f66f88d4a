//! Client of the API server that a kubeconfig names. Asks this server for the user of a token.
//!
//! Invariants, which also hold for the client of a Rancher:
//!
//! * A call uses HTTPS and is bounded in size.
//! * A call ends at its deadline, however the server behaves.
//! * An error leaves out each word of a server's text that may be a token.

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
    /// to the server.
    pub fn of(reach: &ServerEndpoint) -> Result<Self, String> {
        reach.check().map_err(|fault| fault.to_string())?;
        let authority = reach.authority.as_deref().map(pem).transpose()?;
        Self::new(&reach.server, authority.as_deref(), reach.server_name.as_deref())
    }

    /// Tests whether the server accepts `token` as a token of `user`: asks the server for the
    /// token's user. `Err`: why the last question failed. Results of a question:
    /// * The server names `user`, or accepts the token but cannot name its user: the test succeeds.
    /// * The server does not know the token yet, or forbids the question: it is asked again.
    /// * Any other result is a fault. After two faults, or after the time `within`, the test fails.
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
