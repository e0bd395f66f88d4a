//! Owns what the process may do: two capabilities, and none beside them.

use anyhow::{Context as _, bail};
use rustix::thread::{CapabilityFlags, CapabilitySets, capabilities, set_capabilities};

/// What it takes, each with what it is for.
const NEEDED: [(CapabilityFlags, &str, &str); 2] = [
    (CapabilityFlags::NET_ADMIN, "NET_ADMIN", "it makes an interface for each address"),
    (CapabilityFlags::NET_RAW, "NET_RAW", "it speaks DHCP before there is an address"),
];

/// Gives up everything but the two, or says by name which is missing.
///
/// The kernel keeps this by thread: it comes before any other thread is started.
pub(super) fn keep_two() -> anyhow::Result<()> {
    let now = capabilities(None).context("read this process's capabilities")?;
    for (flag, name, purpose) in NEEDED {
        if !now.permitted.contains(flag) {
            bail!("the capability {name} is missing: {purpose}");
        }
    }
    let kept = NEEDED.iter().fold(CapabilityFlags::empty(), |all, (flag, ..)| all | *flag);
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilityFlags::empty() };
    set_capabilities(None, sets).context("give up capabilities")?;
    // No program that it might start gets them back.
    rustix::thread::set_no_new_privs(true).context("give up gaining privileges")?;
    Ok(())
}
