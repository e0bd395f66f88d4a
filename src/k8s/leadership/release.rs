//! Release of the Lease by a process that ends.

use super::{LeaderElector, Leadership, LeadershipState};
use crate::k8s::calls::{ApiCalls as _, ApiWrites as _};
use crate::k8s::{CALL_DEADLINE, CallError};

impl LeaderElector {
    /// Releases the Lease, so that the next leader need not wait until the Lease expires. Does
    /// nothing if this process does not lead.
    pub async fn release(&self, leadership: &Leadership) {
        if !*leadership.leading.borrow() {
            return;
        }
        leadership.give_up();
        leadership.set(LeadershipState::Lost);
        // The process is ending, so both calls together get the deadline of one call.
        let calls = self.api.within(CALL_DEADLINE / 2);
        let released = async {
            let mut lease = calls.call_get(&self.name).await?;
            let Some(spec) = lease.spec.as_mut() else { return Ok(()) };
            if spec.holder_identity.as_deref() == Some(&self.me) {
                spec.holder_identity = Some(String::new());
                calls.call_replace(&self.name, &lease).await?;
            }
            Ok::<(), CallError>(())
        };
        match released.await {
            Ok(()) => tracing::info!(lease = self.key, "Lease released"),
            Err(error) => {
                let lease = &self.key;
                tracing::warn!(%error, lease, "Lease not released; it expires by itself");
            }
        }
    }
}
