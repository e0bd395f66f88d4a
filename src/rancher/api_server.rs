//! The API server that a kubeconfig names, and whom it takes a token's bearer for.
//!
//! Invariants: as for a Rancher: HTTPS, bounded in time and size, no text of the server that may hold a
//! token. What was asked is over when its time is, however the server behaves.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::bearer::bearer;
use super::error::safe;
use super::issuer::pem;
use super::wire::Endpoint;
use super::{Error, Trust};
use crate::domain::credentials::kubeconfig::Reach;

/// Servers hear of a token one after the other.
const BETWEEN_TRIES: Duration = Duration::from_millis(500);

/// An API server, or a way to one.
pub struct ApiServer(Endpoint);

impl ApiServer {
    /// The server that a kubeconfig leads to.
    pub fn of(reach: &Reach) -> Result<Self, String> {
        if let Some(fault) = reach.fault() {
            return Err(fault);
        }
        let authority = reach.authority.as_deref().map(pem).transpose()?;
        let trust = authority.as_deref().map_or(Trust::System, Trust::Pem);
        Self::new(&reach.server, trust, reach.server_name.as_deref())
    }

    /// The server at a URL. The fault is in words, if the URL or the authorities cannot be used. `name`: the
    /// one in its certificate, if another than the URL's.
    pub fn new(url: &str, trust: Trust<'_>, name: Option<&str>) -> Result<Self, String> {
        Endpoint::new(url, trust, name).map(Self)
    }

    /// Asks until the server takes the token's bearer for that user, for as long as it does not know the
    /// token. After two other faults, and when the time is over, the fault is what was said last, in words.
    pub async fn accepts(&self, token: &str, user: &str, within: Duration) -> Result<(), String> {
        let mut why = Error::Silent(format!("not within {} s", within.as_secs())).to_string();
        let asked = async {
            let mut faults = 0;
            while faults < 2 {
                match bearer(&self.0, token).await.map(|bearer| bearer.value.user) {
                    Ok(Some(who)) if who != user => {
                        faults += 1;
                        why = format!("it speaks for {:?} there and not for {user}", safe(&who));
                    }
                    Ok(_) => return true,
                    Err(error) => {
                        let may_pass = matches!(error, Error::Unauthorized | Error::Forbidden(_));
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
