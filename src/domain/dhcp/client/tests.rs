//! The client under a clock that the test moves.

mod server;

use std::net::Ipv4Addr;
use std::time::Duration;

use super::*;
use server::{ACK, DISCOVER, OFFER, REQUEST, SERVER_MAC, Seen, answer, seen};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 20);

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn identity() -> Identity {
    Identity::derive("cluster", "default/net", "default", "web")
}

fn sent(out: &[Out]) -> Vec<Seen> {
    let frames = out.iter().filter_map(|out| match out {
        Out::Send(frame) => Some(frame),
        _ => None,
    });
    frames.filter_map(|frame| seen(frame)).collect()
}

fn records(out: &[Out]) -> Vec<&Record> {
    let records = out.iter().map(|out| match out {
        Out::Record(record) => Some(record),
        _ => None,
    });
    records.flatten().collect()
}

#[test]
fn an_address_is_asked_for_granted_probed_recorded_and_used() {
    let mut client = Client::new(identity(), Options::default(), 1, ms(0));
    assert_eq!((client.deadline(), client.listening()), (Some(ms(0)), Listening::Nothing));
    let out = client.due(ms(0));
    let discover = &sent(&out)[0];
    assert_eq!((discover.kind(), discover.wish(), discover.server()), (DISCOVER, None, None));
    assert_eq!(client.listening(), Listening::Dhcp);
    let out = client.heard(&answer(discover, OFFER, ADDRESS, SERVER, 120), ms(5));
    let request = &sent(&out)[0];
    assert_eq!((request.kind(), request.xid), (REQUEST, discover.xid));
    assert_eq!((request.wish(), request.server()), (Some(ADDRESS), Some(SERVER)));
    client.heard(&answer(request, ACK, ADDRESS, SERVER, 120), ms(9));
    assert_eq!((client.state(), client.listening()), (State::Probing, Listening::DhcpAndArp));
    let mut probes = 0;
    let (out, now) = loop {
        let now = client.deadline().unwrap();
        let out = client.due(now);
        if !records(&out).is_empty() {
            break (out, now);
        }
        probes += out.len();
    };
    assert_eq!(probes, 3);
    let record = records(&out)[0];
    let lease = record.lease.as_ref().unwrap();
    assert_eq!((record.state, lease.address, lease.prefix), (State::Bound, ADDRESS, Some(24)));
    assert_eq!((lease.server, lease.server_mac), (SERVER, SERVER_MAC));
    assert_eq!(lease.expires, Some(ms(120_005)));
    assert_eq!((client.state(), client.lease()), (State::Probing, None));
    client.recorded(record.serial, now);
    assert_eq!((client.state(), client.lease()), (State::Bound, Some(lease)));
}
