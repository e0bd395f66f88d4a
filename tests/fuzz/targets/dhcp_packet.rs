//! A frame, received by a DHCP client in each state: the client never panics, answers with at
//! most one message, takes no invalid address, and always has a deadline.
#![no_main]

#[path = "wire.rs"]
mod wire;

use std::net::Ipv4Addr;
use std::sync::LazyLock;
use std::time::Duration;

use harvester_guest_operator::domain::dhcp::{ClientAction, DhcpClient, owner_of};
use libfuzzer_sys::fuzz_target;

const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 20);

/// A client in each state in which it receives, and the transaction id that it waits for.
static CLIENTS: LazyLock<Vec<(DhcpClient, u32)>> = LazyLock::new(|| {
    let mut all = Vec::new();
    let mut client = wire::client();
    let mut now = Duration::ZERO;
    let mut xid = wire::xid(&client.poll(now)).unwrap();
    all.push((client.clone(), xid));
    for kind in [2, 5] {
        let mut message = wire::head(xid, ADDRESS);
        message.extend(wire::options(kind, 120));
        let out = client.receive(&wire::frame(&message), now);
        xid = wire::xid(&out).unwrap_or(xid);
        all.push((client.clone(), xid));
    }
    // From the probe until T1.
    loop {
        now = client.deadline().unwrap();
        let out = client.poll(now);
        for out in &out {
            if let ClientAction::Record(record) = out {
                client.record_written(record.serial, now);
            }
        }
        if let Some(xid) = wire::xid(&out) {
            all.push((client.clone(), xid));
            return all;
        }
    }
});

fuzz_target!(|data: &[u8]| {
    let Some((how, rest)) = data.split_first() else { return };
    for (client, xid) in CLIENTS.iter() {
        let mut client = client.clone();
        // The input as a frame, as a message, after a message's head, or after valid options.
        let frame = match how % 4 {
            0 => rest.to_vec(),
            1 => wire::frame(rest),
            2 => wire::frame(&[&wire::head(*xid, ADDRESS), rest].concat()),
            _ => {
                let sound = wire::options([2, 5, 6][usize::from(how / 4) % 3], 120);
                wire::frame(&[&wire::head(*xid, ADDRESS), &sound, rest].concat())
            }
        };
        let _ = owner_of(&frame);
        let now = client.deadline().unwrap().saturating_sub(Duration::from_millis(1));
        let out = client.receive(&frame, now);
        assert!(out.iter().filter(|out| matches!(out, ClientAction::Send(_))).count() <= 1);
        assert!(client.deadline().is_some());
        wire::is_sound(&client);
    }
});
