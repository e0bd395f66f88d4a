//! Release of the Lease by a process that ends.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{LeaderElector, Leadership, LeadershipState};
use crate::k8s::calls::{ApiCalls as _, ApiWrites as _};
use crate::k8s::{CALL_DEADLINE, CallError};

/// Pause between two attempts to release the Lease.
const AGAIN: Duration = Duration::from_millis(100);

impl LeaderElector {
    /// Releases the Lease, so that the next leader need not wait until the Lease expires. Does
    /// nothing if the leadership is [`LeadershipState::Lost`]. Repeats a failed attempt, for at
    /// most [`CALL_DEADLINE`].
    ///
    /// The Lease is released even if the leadership has expired. The Lease may still name this
    /// process, and for the Go controller, the Lease expires later than for the replicas.
    ///
    /// An attempt fails, for example, if the API server stores a late renewal between the attempt's
    /// read and its write.
    pub async fn release(&self, leadership: &Leadership) {
        if *leadership.state.borrow() == LeadershipState::Lost {
            return;
        }
        leadership.give_up();
        leadership.set(LeadershipState::Lost);
        let mut last = None;
        let released = async {
            while let Err(error) = self.try_release().await {
                last = Some(error);
                sleep(AGAIN).await;
            }
        };
        let lease = &self.key;
        // The process is ending, so all attempts together get the deadline of one call.
        if timeout(CALL_DEADLINE, released).await.is_ok() {
            tracing::info!(lease, "Lease released");
        } else {
            let error = last.map_or_else(|| "no answer".to_owned(), |error| error.to_string());
            tracing::warn!(error, lease, "Lease not released; it expires by itself");
        }
    }

    /// Makes one attempt to release the Lease. `Ok`: this process does not hold the Lease any more.
    /// If a renewal arrives later, the API server refuses it, because the Lease has a newer version
    /// than the renewal.
    async fn try_release(&self) -> Result<(), CallError> {
        let calls = self.api.within(CALL_DEADLINE / 2);
        let Some(mut lease) = calls.call_get_opt(&self.name).await? else { return Ok(()) };
        let Some(spec) = lease.spec.as_mut() else { return Ok(()) };
        if spec.holder_identity.as_deref() == Some(&self.me) {
            spec.holder_identity = Some(String::new());
            calls.call_replace(&self.name, &lease).await?;
        }
        Ok(())
    }
}
