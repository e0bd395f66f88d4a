//! The whole life of a DHCP client with hostile input: valid and broken answers, times that jump,
//! links that come and go. In every case an address is used only after its record was written and
//! not beyond its lease time, and received messages cause no flood of sent ones.
#![no_main]

#[path = "wire.rs"]
mod wire;

use std::net::Ipv4Addr;
use std::time::Duration;

use harvester_guest_operator::domain::dhcp::{ClientAction, DhcpClient};
use libfuzzer_sys::fuzz_target;

/// The client, and the state of its keeper.
struct Keeper {
    client: DhcpClient,
    now: Duration,
    xid: u32,
    /// Number and address of the last record.
    record: (u64, Option<Ipv4Addr>),
    /// Address in the last record that was written.
    written: Option<Ipv4Addr>,
    done: bool,
}

impl Keeper {
    fn takes(&mut self, out: &[ClientAction]) {
        self.xid = wire::xid(out).unwrap_or(self.xid);
        assert!(out.iter().filter(|out| matches!(out, ClientAction::Send(_))).count() <= 2);
        for out in out {
            match out {
                ClientAction::Record(record) => {
                    assert!(record.serial > self.record.0);
                    self.record = (record.serial, record.lease.as_ref().map(|l| l.address));
                    // An address that a record removes is gone for its keeper at once.
                    if self.record.1 != self.written {
                        self.written = None;
                    }
                }
                ClientAction::Done => self.done = true,
                ClientAction::Send(_) => assert!(!self.done, "it is done, and sends"),
                ClientAction::Event(_) => {}
            }
        }
        wire::is_sound(&self.client);
        if let Some(lease) = self.client.lease() {
            assert_eq!(self.written, Some(lease.address), "used before it was written");
            assert!(!lease.is_over(self.now), "used beyond its time");
        }
    }

    fn step(&mut self, blow: [u8; 4]) {
        let [what, a, b, c] = blow;
        let number = u32::from_be_bytes([0, a, b, c]);
        let out = match what % 8 {
            0 | 1 => {
                self.now = self.client.deadline().map_or(self.now, |at| self.now.max(at));
                self.client.poll(self.now)
            }
            2..=4 => {
                let seconds = [0, 9, 10, 40, 120, 3600, u32::MAX - 1, u32::MAX][usize::from(b % 8)];
                let mut message = wire::head(self.xid, Ipv4Addr::new(10, 0, 0, c));
                message.extend(wire::options([2, 5, 6][usize::from(a % 3)], seconds));
                if a & 0x80 != 0 {
                    message.extend([58, 4, 0, 0, b, c, 59, 4, 0, 0, c, b]);
                }
                if a & 0x40 != 0 {
                    let at = usize::from(b) % message.len();
                    message[at] = c;
                }
                self.client.receive(&wire::frame(&message), self.now)
            }
            5 => {
                self.now += Duration::from_millis(number.into());
                self.client.poll(self.now)
            }
            6 if a % 16 == 0 => self.client.release(self.now),
            6 => self.client.set_link(a % 2 == 0, self.now),
            _ => {
                self.written = self.record.1;
                self.client.record_written(self.record.0, self.now)
            }
        };
        self.takes(&out);
    }
}

fuzz_target!(|data: &[u8]| {
    let client = wire::client();
    let now = Duration::ZERO;
    let mut keeper = Keeper { client, now, xid: 0, record: (0, None), written: None, done: false };
    for blow in data.chunks_exact(4).take(500) {
        keeper.step([blow[0], blow[1], blow[2], blow[3]]);
    }
});
