//! Leases whose links cannot be made, because the agent's interface does not exist. The API server
//! refuses every request except those for the network's Lease.

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::FutureExt as _;
use http::{Request, Response, StatusCode};
use kube::client::{Body, ClientBuilder};
use prometheus::core::Collector as _;
use serde_json::json;
use tower::{BoxError, service_fn};

use super::*;
use crate::agent::managed_lease::moment;
use crate::agent::may_open;
use crate::api::{DHCP_FINALIZER, DHCPLease, LeaseState};
use crate::domain::dhcp::{
    ClientAction, ClientEvent, ClientOptions, ClientTrouble, LeaseRecord, ProbeTiming,
};
use crate::domain::leader_election::ElectionPace;
use crate::k8s::agent_records::RecordClient;
use crate::k8s::events::EventRecorder;
use crate::k8s::leadership::{LeaderElector, Leadership};
use crate::k8s::write::ApiWriter;
use crate::metrics::Metrics;

const MAC: Mac = Mac([2, 0, 0x5e, 0x10, 0, 1]);

/// Agent that leads.
async fn leader() -> DhcpAgent {
    let server = service_fn(|request: Request<Body>| {
        let is_lease = request.uri().path().contains("coordination.k8s.io");
        let (code, body) = if is_lease {
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": "lease", "resourceVersion": "1"},
                "spec": {"holderIdentity": "me", "leaseDurationSeconds": 60},
            });
            (StatusCode::OK, lease)
        } else {
            let status = json!({
                "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
                "message": "refused", "reason": "InternalError", "code": 500,
            });
            (StatusCode::INTERNAL_SERVER_ERROR, status)
        };
        let mut answer = Response::new(Body::from(body.to_string().into_bytes()));
        *answer.status_mut() = code;
        std::future::ready(Ok::<_, BoxError>(answer))
    });
    let client = ClientBuilder::new(server, "default").build();
    let leadership = Arc::new(Leadership::default());
    let lease = ("default", "lease");
    let elector = LeaderElector::new(client.clone(), lease, "me".to_owned(), ElectionPace::new(60));
    let mut leading = leadership.subscribe();
    tokio::select! {
        _ = elector.run(&leadership) => {}
        _ = leading.wait_for(|leads| *leads) => {}
    }
    let (metrics, dhcp) = Metrics::agent().unwrap();
    DhcpAgent {
        network: "default/absent".to_owned(),
        interface: "absent".to_owned(),
        me: "me".to_owned(),
        options: ClientOptions { probe: ProbeTiming::OFF, ..ClientOptions::default() },
        writer: ApiWriter::new(client.clone(), leadership.clone(), metrics.clone()),
        events: EventRecorder::start(client.clone(), "me", metrics.clone()),
        records: RecordClient::new(client, metrics.clone()),
        leadership,
        metrics,
        dhcp,
        first_expiry: Arc::default(),
    }
}

/// Term that serves one lease. The report that the lease's link cannot be made is queued.
async fn term(agent: &DhcpAgent) -> AgentTerm<'_> {
    let mut term = AgentTerm::begin(agent).await.unwrap();
    term.complete = true;
    term.seen(record("1", "1", None));
    assert_eq!(term.queue.len(), 1);
    term
}

/// Event of the lease's record.
fn record(uid: &str, version: &str, deleted: Option<&str>) -> RecordEvent {
    RecordEvent::Is(Box::new(stored(uid, version, deleted)))
}

/// Stored record of the lease. `uid`: UID of the record, which differs if the record was deleted
/// and created again. `deleted`: time at which the deletion of the record was requested.
fn stored(uid: &str, version: &str, deleted: Option<&str>) -> DHCPLease {
    let record = json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1alpha1", "kind": "DHCPLease",
        "metadata": {
            "name": "web", "namespace": "default", "uid": uid, "resourceVersion": version,
            "finalizers": [DHCP_FINALIZER], "deletionTimestamp": deleted,
        },
        "spec": {
            "network": "default/absent", "macAddress": MAC.to_string(), "clientID": "",
            "hostname": "web",
        },
    });
    serde_json::from_value(record).unwrap()
}

/// Handles the next deadline of the lease as if it had come, and returns the deadline. `None`: the
/// lease has no deadline.
fn next_deadline(term: &mut AgentTerm<'_>) -> Option<Duration> {
    let (at, mac) = term.timers.pop_first()?;
    term.deadline_passed(mac, at);
    Some(at)
}

/// Fails the queued write. The next deadline comes during the write: if the link is being made, it
/// fails again. After the write, there is a pause of a second before the write is queued again.
async fn fail_write(term: &mut AgentTerm<'_>) {
    term.write_some();
    assert_eq!(term.writes.len(), 1);
    next_deadline(term);
    term.write_some();
    let failed = term.writes.join_next().await.unwrap().unwrap();
    let began = clock::now();
    term.written(failed);
    assert!(term.queue.is_empty(), "no pause after the write");
    let at = (0..9).find_map(|_| next_deadline(term).filter(|_| !term.queue.is_empty()));
    assert!(at.expect("the write is not queued") >= began + Duration::from_secs(1));
}

#[tokio::test]
async fn a_failed_report_of_a_link_is_written_again_while_the_link_cannot_be_made() {
    let agent = leader().await;
    let mut term = term(&agent).await;
    for _ in 0..3 {
        fail_write(&mut term).await;
        let pending = &term.leases[&MAC].pending;
        assert!(matches!(pending, Some(PendingWrite::LinkFailed(_))), "{pending:?}");
    }
}

/// The state of a client is not lost when the link fails during the write of this state.
#[tokio::test]
async fn a_failed_write_of_a_state_is_written_again_while_the_link_cannot_be_made() {
    let agent = leader().await;
    let mut term = term(&agent).await;
    let state = LeaseRecord {
        serial: 1,
        state: LeaseState::Bound,
        lease: None,
        trouble: None,
        keeps: false,
        announced: None,
        still_announced: None,
    };
    term.act(MAC, vec![ClientAction::Record(state)]);
    for _ in 0..3 {
        fail_write(&mut term).await;
        let pending = &term.leases[&MAC].pending;
        assert!(matches!(pending, Some(PendingWrite::Record(_))), "{pending:?}");
    }
}

/// The deletion of the record is requested during the failed write of the report, or after it.
#[tokio::test]
async fn a_failed_report_of_a_link_does_not_keep_the_finalizer() {
    let agent = leader().await;
    for is_under_way in [true, false] {
        let mut term = term(&agent).await;
        let deleted = || record("1", "2", Some("2026-01-01T00:00:00Z"));
        term.write_some();
        if is_under_way {
            term.seen(deleted());
        }
        let failed = term.writes.join_next().await.unwrap().unwrap();
        term.written(failed);
        if !is_under_way {
            term.seen(deleted());
        }
        assert_eq!(term.leases[&MAC].link, LinkState::Removing, "{is_under_way}");
        let removed = term.link_worker.done.recv().await.unwrap();
        term.linked(removed);
        for _ in 0..3 {
            assert_eq!(term.queue.len(), 1);
            let pending = &term.leases[&MAC].pending;
            assert!(matches!(pending, Some(PendingWrite::Finish)), "{pending:?}");
            fail_write(&mut term).await;
        }
    }
}

/// The record is replaced by another one of the same name, which is deleted before the lease of the
/// first one has ended.
#[tokio::test]
async fn a_record_that_is_gone_is_not_served_after_the_former_one() {
    let agent = leader().await;
    for is_gone in [false, true] {
        let mut term = term(&agent).await;
        term.seen(record("2", "2", None));
        if is_gone {
            term.seen(RecordEvent::Gone("default/web".to_owned()));
        }
        assert_eq!(term.leases[&MAC].link, LinkState::Removing, "{is_gone}");
        let removed = term.link_worker.done.recv().await.unwrap();
        term.linked(removed);
        let served = term.leases.get(&MAC).and_then(|lease| lease.record.metadata.uid.as_deref());
        assert_eq!(served, (!is_gone).then_some("2"));
    }
}

/// The lease expires while no agent runs, and the deletion of the record is requested.
#[test]
fn an_address_that_expired_before_its_release_is_reported_as_lost() {
    for up in [true, false] {
        let mut lease = ManagedLease::read(stored("1", "1", None)).unwrap();
        lease.stored.address = Some("10.0.0.9".to_owned());
        lease.stored.server = Some("10.0.0.1".to_owned());
        lease.stored.lease_seconds = Some(3600);
        lease.stored.expires_at = Some("2020-01-01T00:00:00Z".to_owned());
        let said = lease.release(ClientOptions::default(), 1, moment(), up).unwrap();
        let address = Ipv4Addr::new(10, 0, 0, 9);
        let lost = ClientEvent::Lost { address, why: ClientTrouble::Expired };
        assert!(said.contains(&ClientAction::Event(lost)), "{said:?}");
        assert_eq!(said.last(), Some(&ClientAction::Done));
    }
}

/// Begins to release the address of the lease. `probe`: timing of the ARP questions before the
/// RELEASE.
fn release(term: &mut AgentTerm<'_>, probe: ProbeTiming) {
    let lease = term.leases.get_mut(&MAC).unwrap();
    lease.stored.address = Some("10.0.0.9".to_owned());
    lease.stored.server = Some("10.0.0.1".to_owned());
    lease.retry = None;
    let options = ClientOptions { probe, ..ClientOptions::default() };
    let said = lease.release(options, 1, moment(), true).unwrap();
    term.act(MAC, said);
}

/// A RELEASE is not repeated, and an agent that does not lead sends none.
#[tokio::test]
async fn a_release_waits_for_the_leadership() {
    let leader = leader().await;
    let other = DhcpAgent { leadership: Arc::default(), ..self::leader().await };
    let mut term = term(&leader).await;
    release(&mut term, ProbeTiming::OFF);
    for agent in [&other, &other, &leader] {
        term.agent = agent;
        assert!(!term.leases[&MAC].done);
        next_deadline(&mut term).expect("the second RELEASE is never due");
    }
    assert!(term.leases[&MAC].done);
}

/// The network failed, and with it the API server. So the questions by ARP and the first RELEASE
/// may be lost.
#[tokio::test]
async fn a_release_that_waited_begins_again_with_its_questions() {
    let leader = leader().await;
    let other = DhcpAgent { leadership: Arc::default(), ..self::leader().await };
    let mut term = term(&leader).await;
    release(&mut term, ProbeTiming::QUICK);
    // The agent leads for the questions and the first RELEASE, does not lead for one deadline, and
    // leads again for the questions and both RELEASEs.
    for (agent, deadlines, state) in [
        (&leader, 3, LeaseState::Released),
        (&other, 1, LeaseState::Probing),
        (&leader, 5, LeaseState::Released),
    ] {
        term.agent = agent;
        for _ in 0..deadlines {
            assert!(!term.leases[&MAC].done);
            next_deadline(&mut term).expect("the release does not go on");
        }
        assert_eq!(term.leases[&MAC].client.as_ref().unwrap().state(), state);
    }
    assert!(term.leases[&MAC].done);
}

/// The interface is replaced while a client asks by ARP before a RELEASE. Its next question opens
/// the socket again, and must not miss the answer.
#[tokio::test]
async fn a_socket_that_was_closed_accepts_the_answers_to_the_next_question() {
    if may_open("lo").is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
        eprintln!("skipped: no right to open packet sockets (CAP_NET_RAW)");
        return;
    }
    let leader = leader().await;
    let mut term = term(&leader).await;
    term.socket = PacketSocket::new("lo");
    release(&mut term, ProbeTiming::QUICK);
    assert_eq!(term.socket.accepted(), FrameFilter::DhcpAndArp);
    term.socket.close();
    next_deadline(&mut term).expect("the release does not go on");
    assert_eq!(term.socket.accepted(), FrameFilter::DhcpAndArp);
}

/// The future of a term is dropped when another agent has taken the network's Lease.
#[tokio::test]
async fn the_end_of_a_term_leaves_the_metrics_of_a_standby() {
    let agent = leader().await;
    let mut term = Box::pin(agent.term());
    assert!((&mut term).now_or_never().is_none());
    agent.set_first_expiry(Some(clock::now()));
    agent.dhcp.leases.with_label_values(&["Bound"]).set(1);
    agent.dhcp.servers.set(1);
    agent.dhcp.still_announced.set(1);
    drop(term);
    assert_eq!(agent.first_expiry.load(Ordering::Relaxed), 0);
    assert!(agent.dhcp.leases.collect().iter().all(|family| family.get_metric().is_empty()));
    assert_eq!((agent.dhcp.servers.get(), agent.dhcp.still_announced.get()), (0, 0));
}
