//! Detection of stations that answer for every address.

use super::*;

const ROUTER: Mac = Mac([2, 0, 0, 0, 0, 1]);
const HOST: Mac = Mac([2, 0, 0, 0, 0, 2]);

fn ip(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, last)
}

#[test]
fn a_router_that_disputes_two_addresses_answers_for_all() {
    let mut disputes = AddressDisputes::default();
    disputes.add(ip(20), ROUTER, ROUTER);
    // The server grants the same address to another client, and the router disputes it again.
    disputes.add(ip(20), ROUTER, ROUTER);
    assert_eq!(disputes.proxy(), None);
    disputes.add(ip(21), ROUTER, ROUTER);
    assert_eq!(disputes.proxy(), Some(ROUTER));
    disputes.clear();
    assert_eq!(disputes, AddressDisputes::default());
}

/// A host with several addresses disputes the grants of these addresses, and is right to do so. It
/// does not count as a router that answers ARP for all addresses.
#[test]
fn a_host_with_many_addresses_is_no_router() {
    let mut disputes = AddressDisputes::default();
    for last in 20..30 {
        disputes.add(ip(last), HOST, ROUTER);
    }
    assert_eq!(disputes.proxy(), None);
}
