//! Requirements on a client from RFC 2131 and related RFCs, point by point, with the tests that
//! prove each point. `cargo test --lib the_checklist` runs those of these tests that are in `dhcp`,
//! and prints the table. The table also names the tests with real servers, which are in
//! `tests/it/dhcp`.

use std::fmt::Write;

use super::super::jitter;
use super::{acquiring, confirming, hostile, leaving, probing, renewing};
use crate::dhcp::granted_lease;

/// Test that proves a requirement: its name, and its function.
type Proof = (&'static str, fn());

/// List of the tests that prove a requirement.
macro_rules! proofs {
    ($($proof:path),+ $(,)?) => { &[$((stringify!($proof), $proof)),+] };
}

/// Requirement: its number, its text, the tests in `dhcp` that prove it, and the names of tests
/// with real servers.
type Point = (u8, &'static str, &'static [Proof], &'static [&'static str]);

/// Names of the tests that follow a lease from its first packet to its last, one test for each of
/// the four servers.
const LIVES: &[&str] = &[
    "servers::a_lease_of_dnsmasq_from_its_first_packet_to_its_last",
    "servers::a_lease_of_kea_from_its_first_packet_to_its_last",
    "servers::a_lease_of_isc_dhcpd_from_its_first_packet_to_its_last",
    "servers::a_lease_of_udhcpd_from_its_first_packet_to_its_last",
];
/// Names of the tests in which another server of the same kind replaces a server, one test for each
/// of the four servers.
const GONE: &[&str] = &[
    "faults::dnsmasq_is_gone_and_another_one_takes_over",
    "faults::kea_is_gone_and_another_one_takes_over",
    "faults::isc_dhcpd_is_gone_and_another_one_takes_over",
    "faults::udhcpd_is_gone_and_another_one_takes_over",
];

const SENDING: &[Point] = &[
    (
        1,
        "DISCOVER: from nowhere to all, no server named",
        proofs![acquiring::a_discover_comes_from_nowhere_and_goes_to_all],
        &[],
    ),
    (
        2,
        "clients of one moment begin apart",
        proofs![acquiring::clients_of_one_moment_do_not_begin_together],
        &[],
    ),
    (
        3,
        "REQUEST of an offer: address, server, xid and secs",
        proofs![acquiring::a_request_takes_up_the_offer_and_its_server],
        &[],
    ),
    (
        4,
        "after a restart: address, no server, new xid",
        proofs![
            confirming::a_lease_is_used_at_once_and_asked_after,
            renewing::t1_asks_its_server_alone_in_the_form_of_a_restart
        ],
        LIVES,
    ),
    (
        5,
        "T1: unicast to the server of option 54 (in the form of a restart)",
        proofs![renewing::t1_asks_its_server_alone_in_the_form_of_a_restart],
        LIVES,
    ),
    (
        6,
        "T2: to all (in the form of a restart)",
        proofs![renewing::from_t2_on_any_server_may_answer],
        GONE,
    ),
    (
        7,
        "RELEASE: unicast, ciaddr, server, no 50/51/55/57",
        proofs![leaving::a_release_names_the_lease_and_nothing_else],
        LIVES,
    ),
    (
        8,
        "DECLINE: to all, address and server, no list",
        proofs![probing::an_address_that_a_host_has_or_probes_is_declined],
        LIVES,
    ),
    (
        9,
        "the client identifier is the same in every message",
        proofs![confirming::who_the_client_is_stays_the_same_in_every_message],
        LIVES,
    ),
    (
        10,
        "the list of parameters is in every question",
        proofs![confirming::who_the_client_is_stays_the_same_in_every_message],
        &[],
    ),
    (
        11,
        "300 octets at least are sent, any size is read",
        proofs![
            confirming::who_the_client_is_stays_the_same_in_every_message,
            hostile::large_messages_are_read_whole
        ],
        &[],
    ),
    (12, "secs grows", proofs![acquiring::silence_is_met_by_ever_longer_waits_and_reported], &[]),
    (
        13,
        "the broadcast flag is off, can be on, and is on where the address may be in use",
        proofs![confirming::who_the_client_is_stays_the_same_in_every_message],
        LIVES,
    ),
    (
        14,
        "options in file and sname",
        proofs![hostile::options_in_other_fields_and_in_parts_are_read],
        &[],
    ),
    (15, "options in parts", proofs![hostile::options_in_other_fields_and_in_parts_are_read], &[]),
];

const RECEIVING: &[Point] = &[
    (
        16,
        "operation, hardware, cookie, xid, address are ours",
        proofs![hostile::only_what_answers_us_is_heard],
        &[],
    ),
    (
        17,
        "a server is named; only the chosen one counts",
        proofs![
            hostile::an_answer_without_a_server_or_a_type_is_none,
            acquiring::only_the_chosen_server_grants_or_refuses
        ],
        &[],
    ),
    (
        18,
        "OFFER while requesting is dropped",
        proofs![acquiring::an_offer_while_requesting_is_dropped],
        &[],
    ),
    (
        19,
        "ACK while selecting is dropped",
        proofs![acquiring::an_ack_while_selecting_is_dropped],
        &[],
    ),
    (
        20,
        "option 61 is ours or absent",
        proofs![hostile::an_answer_to_another_client_identifier_is_not_ours],
        LIVES,
    ),
    (
        21,
        "no or no useful lease time is refused",
        proofs![
            hostile::useless_offers_are_refused_by_name,
            acquiring::an_ack_that_is_not_what_was_offered_is_judged_again
        ],
        &[],
    ),
    (
        22,
        "another address is a change, reported and probed",
        proofs![renewing::another_address_is_a_loss_then_a_fresh_one],
        &[],
    ),
    (
        23,
        "a malformed option hides nothing",
        proofs![
            hostile::an_option_over_the_end_hides_nothing,
            hostile::a_message_that_ends_too_early_is_none
        ],
        &[],
    ),
    (
        24,
        "the checksum of UDP is not asked for",
        proofs![hostile::a_wrong_checksum_of_udp_does_not_matter_and_one_of_ipv4_does],
        LIVES,
    ),
    (
        25,
        "our own frames are ignored",
        proofs![hostile::another_host_with_our_hardware_address_is_noticed],
        &[],
    ),
];

const TIMERS: &[Point] = &[
    (
        26,
        "4, 8, 16, 32, 64 s, a second more or less",
        proofs![
            acquiring::silence_is_met_by_ever_longer_waits_and_reported,
            acquiring::a_request_is_given_up_after_a_minute
        ],
        &[],
    ),
    (
        27,
        "T1 and T2 from 58 and 59 if they make sense",
        proofs![granted_lease::tests::t1_and_t2_are_taken_only_together_and_in_order],
        LIVES,
    ),
    (
        28,
        "a lease counts from when it was asked for",
        proofs![renewing::t1_asks_its_server_alone_in_the_form_of_a_restart],
        &[],
    ),
    (29, "all times anew with every ACK", proofs![renewing::every_answer_sets_all_times_anew], &[]),
    (
        30,
        "retries: half of what is left, a minute at least",
        proofs![
            renewing::a_silent_server_is_asked_twice_alone_then_all_are,
            renewing::short_leases_are_asked_for_more_often
        ],
        &[],
    ),
    (
        31,
        "infinite leases: no end, asked after daily",
        proofs![
            renewing::a_lease_without_end_is_asked_after_daily_and_kept,
            hostile::an_infinite_lease_is_one_and_the_longest_finite_one_is_not
        ],
        &["scopes::a_lease_of_dnsmasq_without_end", "scopes::a_lease_of_kea_without_end"],
    ),
    (
        32,
        "tiny leases never spin",
        proofs![
            hostile::useless_offers_are_refused_by_name,
            granted_lease::tests::no_answer_makes_a_client_spin
        ],
        &[],
    ),
    (
        33,
        "sleep and set clocks",
        proofs![
            leaving::a_late_answer_does_not_revive_a_lease,
            leaving::a_clock_that_runs_backwards_is_taken_to_stand_still,
            confirming::a_recorded_end_is_only_a_hint
        ],
        &[],
    ),
    (
        34,
        "renewals of many are spread",
        proofs![
            granted_lease::tests::five_hundred_renewals_stay_spread,
            jitter::tests::any_run_of_clients_is_spread_evenly
        ],
        &[],
    ),
];

const STATES: &[Point] = &[
    (
        35,
        "NAK: address dropped, begun anew after a pause",
        proofs![
            renewing::the_lease_s_own_server_may_take_it_back,
            acquiring::a_refusal_is_met_by_a_short_pause_that_grows
        ],
        LIVES,
    ),
    (
        36,
        "silence after a restart: the lease runs on, then DISCOVER",
        proofs![confirming::silence_lets_the_lease_run_on_then_the_address_is_looked_for],
        &[],
    ),
    (
        37,
        "after a restart on a wrong subnet: NAK",
        proofs![confirming::the_server_may_take_it_back_and_another_one_may_not],
        &["servers::a_lease_of_isc_dhcpd_from_its_first_packet_to_its_last"],
    ),
    (
        38,
        "a server that lost its leases grants them again",
        proofs![renewing::from_t2_on_the_same_address_is_also_looked_for],
        &[
            "faults::dnsmasq_is_gone_and_another_one_takes_over",
            "faults::isc_dhcpd_is_gone_and_another_one_takes_over",
        ],
    ),
    (
        39,
        "at the end the address is given up, and asked for",
        proofs![leaving::an_address_is_given_up_when_its_time_is_over],
        &["faults::a_cable_is_pulled_for_less_and_for_longer_than_a_lease"],
    ),
    (
        40,
        "10 s after a DECLINE; ten in a row, then one an hour",
        proofs![probing::after_a_conflict_ten_seconds_pass_and_after_ten_an_hour],
        &[],
    ),
    (
        41,
        "RFC 5227: three questions; no announcement, which is its user's",
        proofs![
            probing::three_questions_are_asked_without_claiming_the_address,
            probing::an_address_that_a_host_has_or_probes_is_declined,
            probing::what_does_not_dispute_the_address_does_not_matter
        ],
        LIVES,
    ),
    (
        42,
        "an address in use by us is never probed or declined",
        proofs![
            probing::an_address_that_we_may_be_announcing_is_never_probed,
            probing::a_held_address_is_never_declined
        ],
        &[],
    ),
    (
        43,
        "RELEASEs are paced and said twice",
        proofs![
            leaving::a_release_names_the_lease_and_nothing_else,
            jitter::tests::a_bucket_lets_a_few_through_at_once_and_the_rest_in_time
        ],
        &["many::many_leases_get_an_address_each_and_give_it_back"],
    ),
    (
        44,
        "no RELEASE except on request",
        proofs![leaving::nothing_but_release_releases],
        &["two::of_two_agents_one_speaks_and_the_other_takes_over_in_silence"],
    ),
    (
        45,
        "several servers: the former one; others' NAKs wait",
        proofs![
            acquiring::of_several_servers_the_former_one_and_its_address_are_preferred,
            renewing::another_server_s_refusal_does_not_count_while_its_own_may_answer,
            renewing::another_server_s_grant_counts_after_its_own_was_silent
        ],
        &["hostile::an_honest_server_is_heard_among_lies"],
    ),
    (
        46,
        "a relay: to all",
        proofs![renewing::a_server_behind_a_router_is_asked_by_all_hearing],
        &["scopes::a_server_behind_a_relay_grants_renews_and_takes_back"],
    ),
    (
        47,
        "subnet and gateway may change",
        proofs![renewing::a_changed_subnet_or_gateway_is_recorded],
        &[],
    ),
    (
        48,
        "an exhausted pool is asked for ever",
        proofs![acquiring::a_server_without_addresses_is_asked_for_ever],
        &["scopes::a_range_of_one_address_serves_one_after_the_other"],
    ),
    (
        49,
        "link down: silent; up: asked after at once",
        proofs![
            leaving::with_the_link_down_nothing_is_said_and_the_lease_runs_on,
            leaving::what_was_under_way_begins_anew_when_the_link_is_back
        ],
        &[
            "faults::a_cable_is_pulled_for_less_and_for_longer_than_a_lease",
            "faults::an_interface_that_comes_back_gets_its_links_again",
        ],
    ),
    (
        50,
        "another agent with our hardware address is noticed, and speaks alone",
        proofs![hostile::another_host_with_our_hardware_address_is_noticed],
        &[
            "two::of_two_agents_one_speaks_and_the_other_takes_over_in_silence",
            "records::what_is_held_is_renewed_while_the_api_server_is_away",
        ],
    ),
];

#[test]
#[expect(clippy::disallowed_methods, reason = "reads the tests that it names")]
fn the_checklist() {
    let points: Vec<&Point> = [SENDING, RECEIVING, TIMERS, STATES].into_iter().flatten().collect();
    let numbers: Vec<u8> = points.iter().map(|(number, ..)| *number).collect();
    assert_eq!(numbers, (1..=50).collect::<Vec<u8>>());
    let mut table = String::new();
    for (number, asked, proofs, servers) in points {
        let _ = writeln!(table, "{number:2}. {asked}");
        for (name, proof) in *proofs {
            proof();
            let _ = writeln!(table, "      {name}");
        }
        for test in *servers {
            let (file, name) = test.split_once("::").unwrap();
            let file = format!("{}/../../tests/it/dhcp/{file}.rs", env!("CARGO_MANIFEST_DIR"));
            let source = std::fs::read_to_string(&file).unwrap();
            assert!(source.contains(&format!("fn {name}()")), "{file} has no {name}");
            let _ = writeln!(table, "      dhcp::{test}");
        }
    }
    // The table is written to stdout directly, because the test runner captures the output of
    // `print!`.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), table.as_bytes());
}
