//! Tests of the filter. The tests interpret the operations that the filter uses.

use super::super::ethernet::{self, FrameAddresses};
use super::super::message::{self, MessageKind};
use super::*;
use crate::dhcp::identity::ClientIdentity;
use std::net::Ipv4Addr;

/// Runs a program as the kernel does. If the program reads beyond the end of the frame, the frame
/// is dropped. `vlan`: VLAN tag that was removed from the frame. 0: the frame had no tag.
fn passes(program: &[BpfInstruction], frame: &[u8], vlan: u32) -> bool {
    passes_in(program, frame, vlan, 0)
}

/// Runs a program as [`passes`] does. `direction`: the kernel's number for a received or sent frame.
fn passes_in(program: &[BpfInstruction], frame: &[u8], vlan: u32, direction: u32) -> bool {
    let octets = |at: usize, count: usize| -> Option<u32> {
        let octets = frame.get(at..at + count)?;
        Some(octets.iter().fold(0, |high, low| (high << 8) | u32::from(*low)))
    };
    let (mut a, mut x, mut at) = (0_u32, 0_usize, 0_usize);
    loop {
        let op = program[at];
        at += 1;
        let k = usize::try_from(op.k).unwrap();
        let loaded = match op.code {
            LD_HALF if op.k == VLAN_TAG => Some(vlan),
            LD_HALF => octets(k, 2),
            LD_BYTE if op.k == DIRECTION => Some(direction),
            LD_BYTE => octets(k, 1),
            LD_HALF_X => octets(x + k, 2),
            LD_BYTE_X => octets(x + k, 1),
            LDX_HEADER => {
                let Some(first) = octets(k, 1) else { return false };
                x = usize::try_from(4 * (first & 0x0f)).unwrap();
                Some(a)
            }
            JUMP_EQUAL | JUMP_ANY_BIT => {
                let yes = if op.code == JUMP_EQUAL { a == op.k } else { a & op.k != 0 };
                at += usize::from(if yes { op.jt } else { op.jf });
                Some(a)
            }
            RETURN => return op.k > 0,
            other => panic!("an operation of {other:#x}"),
        };
        let Some(loaded) = loaded else { return false };
        a = loaded;
    }
}

fn mac(name: &str) -> ClientIdentity {
    ClientIdentity::derive("cluster", "default/net", "default", name)
}

/// Two frames: a message of the client `name` to the server's port, and a server's message to this
/// client.
fn frames(name: &str) -> (Vec<u8>, Vec<u8>) {
    let identity = mac(name);
    let mut message = message::write(MessageKind::Discover(None), &identity, 1, 0, false);
    let asked = ethernet::to_server(FrameAddresses::to_all(identity.mac), &message);
    message[0] = 2;
    let mut answer = ethernet::to_server(FrameAddresses::to_all(identity.mac), &message);
    answer[34..38].copy_from_slice(&[0, 67, 0, 68]);
    (asked, answer)
}

#[test]
fn what_is_about_a_client_passes_and_nothing_else() {
    let (asked, answer) = frames("web");
    let (others_asked, others_answer) = frames("other");
    let all = filter(FrameFilter::Dhcp);
    assert!(passes(&all, &answer, 0) && passes(&all, &asked, 0));
    assert!(passes(&all, &others_answer, 0) && passes(&all, &others_asked, 0));
    assert!(!passes_in(&all, &answer, 0, OUTGOING) && !passes_in(&all, &asked, 0, OUTGOING));
    // These are dropped: a server's message to the server's port, datagrams to other ports, and
    // packets of other protocols.
    for (at, octets) in [(34, [0, 67, 0, 67]), (34, [0, 67, 0, 69]), (34, [0, 67, 1, 68])] {
        let mut other = answer.clone();
        other[at..at + 4].copy_from_slice(&octets);
        assert!(!passes(&all, &other, 0), "{octets:?}");
    }
    for (at, value) in [(12, 0x86), (23, 6), (20, 0x20), (21, 1), (20, 0x1f)] {
        let mut other = answer.clone();
        other[at] = value;
        assert!(!passes(&all, &other, 0), "octet {at} is {value}");
    }
    // A frame with the flag "don't fragment" is not a fragment, and passes.
    let mut whole = answer.clone();
    whole[20] = 0x40;
    assert!(passes(&all, &whole, 0));
    for length in 0..38 {
        assert!(!passes(&all, &answer[..length], 0), "{length} octets");
    }
}

#[test]
fn a_longer_header_of_ipv4_moves_what_follows() {
    let (_, answer) = frames("web");
    let mut longer = answer.clone();
    longer[14] = 0x47;
    longer.splice(34..34, [1; 8]);
    let all = filter(FrameFilter::Dhcp);
    assert!(passes(&all, &longer, 0));
    longer[14] = 0x46;
    assert!(!passes(&all, &longer, 0));
}

#[test]
fn frames_of_a_vlan_are_not_accepted() {
    let (_, answer) = frames("web");
    for program in [FrameFilter::DhcpAndArp, FrameFilter::Dhcp].map(filter) {
        assert!(!passes(&program, &answer, 100) && !passes(&program, &answer, 4095));
        // A tag with a priority but no VLAN number belongs to no VLAN.
        assert!(passes(&program, &answer, 0xe000));
    }
}

#[test]
fn arp_passes_where_it_is_asked_for() {
    let question = super::super::arp::probe(mac("web").mac, Ipv4Addr::new(10, 0, 0, 20));
    let (_, answer) = frames("web");
    let both = filter(FrameFilter::DhcpAndArp);
    assert!(passes(&both, &question, 0) && passes(&both, &answer, 0));
    assert!(!passes(&both, &question, 5));
    assert!(!passes_in(&both, &question, 0, OUTGOING));
    assert!(!passes(&filter(FrameFilter::Dhcp), &question, 0));
    let nothing = filter(FrameFilter::Nothing);
    assert!(!passes(&nothing, &question, 0) && !passes(&nothing, &answer, 0));
}

/// The kernel accepts only programs that are short, jump forward, and end with a return.
#[test]
fn programs_are_short_and_jump_forward() {
    let all = [FrameFilter::Nothing, FrameFilter::Dhcp, FrameFilter::DhcpAndArp];
    for program in all.map(filter) {
        assert!(program.len() < 40);
        for (at, op) in program.iter().enumerate() {
            let furthest = at + 1 + usize::from(op.jt.max(op.jf));
            assert!(op.code == RETURN || furthest < program.len());
        }
        assert_eq!(program.last().unwrap().code, RETURN);
    }
}
