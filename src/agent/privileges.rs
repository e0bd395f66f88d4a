//! Owns the privileges of the process: two capabilities and no other.

use anyhow::{Context as _, bail};
use rustix::thread::{CapabilityFlags, CapabilitySets, capabilities, set_capabilities};

/// Capabilities that the agent needs: (capability, its name, its purpose).
const NEEDED: [(CapabilityFlags, &str, &str); 2] = [
    (CapabilityFlags::NET_ADMIN, "NET_ADMIN", "the agent needs it to make interfaces"),
    (CapabilityFlags::NET_RAW, "NET_RAW", "the agent needs it to send DHCP messages"),
];

/// Drops all capabilities except the two that the agent needs. `Err`: one of these two is missing,
/// or the kernel refuses a call.
///
/// Precondition: the process has only one thread, because each thread has capabilities of its own.
pub fn drop_privileges() -> anyhow::Result<()> {
    let now = capabilities(None).context("cannot read the capabilities of this process")?;
    for (flag, name, purpose) in NEEDED {
        if !now.permitted.contains(flag) {
            bail!("the capability {name} is missing: {purpose}");
        }
    }
    let kept = NEEDED.iter().fold(CapabilityFlags::empty(), |all, (flag, ..)| all | *flag);
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilityFlags::empty() };
    set_capabilities(None, sets).context("cannot drop the other capabilities")?;
    // A program that this process starts cannot get the dropped capabilities back.
    rustix::thread::set_no_new_privs(true).context("cannot set no_new_privs")?;
    Ok(())
}
