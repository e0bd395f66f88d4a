//! A network of one's own: a new network namespace without a name, which goes with its last
//! process, whatever became of that.
//!
//! In it all of 10.210.0.0/16 and fd00:210::/64 is this host, and 10.211.0.0/16 swallows what
//! is sent to it: a pair of links whose far end has no address, and no ARP that could fail.

use std::process::Command;

const SETUP: &str = "
ip link set lo up
ip route add local 10.210.0.0/16 dev lo
ip -6 addr add fd00:210::1/64 dev lo nodad
ip -6 route add local fd00:210::/64 dev lo
ip link add hole type veth peer name nobody
ip link set hole arp off up
ip link set nobody up
ip addr add 10.211.0.1/16 dev hole
";

/// What to say when it cannot be made.
pub(crate) const NEEDS: &str =
    "a network namespace takes root, or the right to make user namespaces, and iproute2";

/// This program again, in a namespace, after a few more shell commands. Arguments are to be
/// added.
pub(crate) fn this_program(setup: &str) -> std::io::Result<Command> {
    let mut command = Command::new("unshare");
    command
        .args(["--net", "--map-root-user", "sh", "-ec", &format!("{SETUP}{setup}\nexec \"$@\"")])
        .arg("sh")
        .arg(std::env::current_exe()?);
    Ok(command)
}
