//! Probes over real sockets, to servers in a network namespace.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fixture;
mod namespace;
mod network;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use harvester_guest_operator::domain::vm_backends::health::{
    BackendProbe, CheckSettings, ProbeRequest, ProbeTarget,
};
use testbed::{Authority, eventually};

use crate::support::SOON;
use fixture::{Bed, Manner, Server, http, request, target, tcp};
use network::{TcpState, isolated, isolated_with, sockets};

const A: &str = "10.210.0.1";
const B: &str = "10.210.0.2";
/// Address that drops every packet.
const HOLE: &str = "10.211.0.9";

impl Bed {
    /// Verdict on the target `id` of the LoadBalancer `lb`. `None`: there is no such target.
    fn is_healthy(&self, lb: &str, id: &str) -> Option<bool> {
        self.prober.verdicts(lb).get(id).copied()
    }

    /// Waits for a verdict on a target of `lb`.
    async fn says(&self, id: &str, healthy: bool) -> Result<()> {
        eventually(SOON, &format!("{id} healthy: {healthy}"), async || {
            let verdict = self.is_healthy("lb", id);
            if verdict == Some(healthy) { Ok(true) } else { Err(format!("{verdict:?}")) }
        })
        .await
    }

    /// Waits for so many probes with the result.
    async fn counted(&self, result: &str, count: f64) -> Result<()> {
        eventually(SOON, &format!("{count} probes: {result}"), async || {
            let seen = self.results(result);
            if seen >= count { Ok(true) } else { Err(format!("{seen}")) }
        })
        .await
    }
}

async fn hits(server: &Server, address: &str, more: usize) -> Result<()> {
    let goal = server.seen.hits(address) + more;
    eventually(SOON, &format!("{more} more connections to {address}"), async || {
        server.seen.hits(address) >= goal
    })
    .await
}

#[test]
fn a_backend_comes_goes_and_comes_back_and_each_flip_is_reported_once() -> Result<()> {
    isolated(async || {
        let mut bed = Bed::start()?;
        let check = CheckSettings { success_threshold: 2, ..tcp(80) };
        bed.prober.set("lb", &check, &[target(A)])?;
        assert_eq!(bed.is_healthy("lb", A), Some(false));
        bed.counted("refused", 4.0).await?;
        assert_eq!(bed.is_healthy("lb", A), Some(false));
        for _ in 0..2 {
            let server = Server::start(80, Manner::Close).await?;
            bed.says(A, true).await?;
            hits(&server, A, 5).await?;
            drop(server);
            bed.says(A, false).await?;
        }
        assert!(bed.results("success") >= 4.0);
        let changed = std::iter::from_fn(|| bed.changed.try_recv().ok()).collect::<Vec<_>>();
        assert_eq!(changed, ["lb"; 4]);
        assert_eq!(bed.metric("hgo_probe_verdicts_total", "verdict=\"healthy\""), 2.0);
        assert_eq!(bed.metric("hgo_probe_targets", ""), 1.0);
        assert_eq!(sockets(TcpState::TimeWait)?, 0, "connections stay behind");
        Ok(())
    })
}

#[test]
fn a_flapping_backend_keeps_its_verdict() -> Result<()> {
    isolated(async || {
        let mut bed = Bed::start()?;
        let _good = Server::start(80, Manner::Script(Arc::new(vec![200, 500, 503]))).await?;
        let _bad = Server::start(81, Manner::Script(Arc::new(vec![500, 200]))).await?;
        let check = CheckSettings { success_threshold: 2, ..http(80, "/") };
        let healthy = ProbeTarget { assume_healthy: true, ..target(A) };
        bed.prober.set("good", &check, &[healthy])?;
        bed.prober.set("bad", &CheckSettings { port: 81, ..check }, &[target(A)])?;
        bed.counted("status", 60.0).await?;
        assert_eq!(bed.is_healthy("good", A), Some(true));
        assert_eq!(bed.is_healthy("bad", A), Some(false));
        assert!(bed.changed.try_recv().is_err());
        Ok(())
    })
}

#[test]
fn what_is_assumed_healthy_stays_so_until_enough_failures() -> Result<()> {
    isolated(async || {
        let bed = Bed::start()?;
        let healthy = ProbeTarget { assume_healthy: true, ..target(A) };
        bed.prober.set("lb", &tcp(80), &[healthy])?;
        eventually(SOON, "the verdict", async || {
            // No event can come between these two: there is one thread.
            let (failures, healthy) = (bed.results("refused"), bed.is_healthy("lb", A));
            assert_eq!(healthy, Some(failures < 3.0), "after {failures} failures");
            failures >= 3.0
        })
        .await
    })
}

#[test]
fn ipv6_is_probed() -> Result<()> {
    isolated(async || {
        let bed = Bed::start()?;
        let server = Server::start(80, Manner::Status).await?;
        bed.prober.set("lb", &http(80, "/status/200"), &[target("fd00:210::7")])?;
        bed.says("fd00:210::7", true).await?;
        assert!(server.seen.heads()[0].contains("host: [fd00:210::7]\r\n"));
        drop(server);
        bed.says("fd00:210::7", false).await
    })
}

#[test]
fn statuses_count_as_the_check_says_and_redirects_are_not_followed() -> Result<()> {
    isolated(async || {
        let bed = Bed::start()?;
        let server = Server::start(80, Manner::Status).await?;
        let elsewhere = Server::start(81, Manner::Status).await?;
        let cases = [
            ("/status/204", vec![], true),
            ("/status/404", vec![], false),
            ("/status/500", vec![], false),
            ("/status/404", vec![404, 410], true),
            ("/status/204", vec![200], false),
            ("/away", vec![], true),
            ("/away", vec![200], false),
            ("/away", vec![302], true),
        ];
        for (at, (path, expected, healthy)) in cases.into_iter().enumerate() {
            let probe = BackendProbe::Http(ProbeRequest { expected, ..request(path) });
            let opposite = ProbeTarget { assume_healthy: !healthy, ..target(A) };
            bed.prober.set("lb", &CheckSettings { probe, ..tcp(80) }, &[opposite])?;
            bed.says(A, healthy).await.map_err(|e| e.context(format!("case {at}: {path}")))?;
            bed.prober.remove("lb");
        }
        assert_eq!(elsewhere.seen.hits("10.210.9.9"), 0);
        assert!(server.seen.heads().len() >= 8);
        Ok(())
    })
}

#[test]
fn a_request_says_who_asks_for_what_and_nothing_else() -> Result<()> {
    isolated(async || {
        let bed = Bed::start()?;
        let server = Server::start(8080, Manner::Status).await?;
        let named = ProbeRequest {
            server_name: Some("www.example.com".into()),
            ..request("/status/200?a=b")
        };
        let check = CheckSettings { probe: BackendProbe::Http(named), ..tcp(8080) };
        bed.prober.set("lb", &check, &[target(A)])?;
        bed.says(A, true).await?;
        bed.prober.set("lb", &http(8080, "/status/204"), &[target(A)])?;
        eventually(SOON, "the other request", async || {
            server.seen.heads().iter().any(|head| head.contains("204"))
        })
        .await?;
        let heads = server.seen.heads();
        let agent = concat!("harvester-guest-operator/", env!("CARGO_PKG_VERSION"));
        let expected = |path: &str, host: &str| {
            format!(
                "GET {path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: {agent}\r\nconnection: close\r\n\r\n"
            )
        };
        assert_eq!(heads[0], expected("/status/200?a=b", "www.example.com:8080"));
        assert_eq!(*heads.last().unwrap(), expected("/status/204", "10.210.0.1:8080"));
        Ok(())
    })
}

#[test]
fn the_timeout_covers_everything_from_connecting_to_the_status() -> Result<()> {
    isolated(async || {
        let bed = Bed::start()?;
        let _silent = Server::start(80, Manner::Silent).await?;
        let _dribble = Server::start(81, Manner::Dribble).await?;
        let quick = Duration::from_millis(100);
        let healthy = |address| ProbeTarget { assume_healthy: true, ..target(address) };
        for (lb, check, address) in [
            ("silent", http(80, "/"), A),
            ("dribble", http(81, "/"), A),
            ("tls", CheckSettings { probe: BackendProbe::Https(request("/"), None), ..tcp(80) }, B),
            ("hole", tcp(80), HOLE),
        ] {
            bed.prober.set(lb, &CheckSettings { timeout: quick, ..check }, &[healthy(address)])?;
            eventually(SOON, lb, async || {
                bed.is_healthy(lb, address).map(|healthy| !healthy).filter(|v| *v)
            })
            .await?;
            bed.prober.remove(lb);
        }
        assert!(bed.results("timeout") >= 12.0);
        assert_eq!(bed.results("timeout"), bed.metric("hgo_probe_seconds_count", ""));
        // The machine may stall during some of them, but not all.
        assert!(bed.metric("hgo_probe_seconds_bucket", "le=\"0.5\"") >= 1.0);
        // Twelve or a few more that took a tenth of a second each.
        let mean = bed.metric("hgo_probe_seconds_sum", "") / bed.results("timeout");
        assert!((0.1..60.0).contains(&mean), "{mean}");
        Ok(())
    })
}

#[test]
fn an_answer_without_end_and_one_that_is_no_http_are_cut_off() -> Result<()> {
    isolated(async || {
        let bed = Bed::start()?;
        let flood = Server::start(80, Manner::Flood).await?;
        let _nonsense = Server::start(81, Manner::Nonsense).await?;
        for (port, goal) in [(80, 3.0), (81, 6.0)] {
            let healthy = ProbeTarget { assume_healthy: true, ..target(A) };
            bed.prober.set("lb", &http(port, "/"), &[healthy])?;
            // Long before the timeout.
            bed.counted("broken", goal).await?;
            bed.says(A, false).await?;
            bed.prober.remove("lb");
        }
        eventually(SOON, "end of the flood", async || flood.seen.hung_up() >= 3).await
    })
}

#[test]
fn certificates_are_judged_by_the_checks_own_bundle_and_name() -> Result<()> {
    isolated(async || {
        let bed = Bed::start()?;
        let (ours, others) = (Authority::new("ours")?, Authority::new("others")?);
        let issued = ours.issue(&[A, "www.example.com"])?;
        let server = Server::start_tls(443, Manner::Status, &issued).await?;
        let named =
            |name: &str| ProbeRequest { server_name: Some(name.into()), ..request("/status/200") };
        let plain = || request("/status/200");
        for (what, request, bundle, address, healthy) in [
            ("unchecked", plain(), None, B, true),
            ("right CA and address", plain(), Some(ours.pem()), A, true),
            ("right CA and name", named("www.example.com"), Some(ours.pem()), B, true),
            ("several CAs", plain(), Some(format!("{}{}", others.pem(), ours.pem())), A, true),
            ("wrong CA", plain(), Some(others.pem()), A, false),
            ("wrong address", plain(), Some(ours.pem()), B, false),
            ("wrong name", named("www.example.org"), Some(ours.pem()), A, false),
        ] {
            let tls_failures = bed.results("tls");
            let check = CheckSettings { probe: BackendProbe::Https(request, bundle), ..tcp(443) };
            let opposite = ProbeTarget { assume_healthy: !healthy, ..target(address) };
            bed.prober.set("lb", &check, &[opposite])?;
            bed.says(address, healthy).await.map_err(|e| e.context(what))?;
            assert_eq!(bed.results("tls") > tls_failures, !healthy, "{what}");
            bed.prober.remove("lb");
        }
        let heads = server.seen.heads();
        assert!(heads[0].contains("host: 10.210.0.2\r\n"), "{heads:?}");
        // TLS to a server without TLS.
        let _plain = Server::start(80, Manner::Close).await?;
        let check = CheckSettings { probe: BackendProbe::Https(plain(), None), ..tcp(80) };
        let tls_failures = bed.results("tls");
        bed.prober.set("lb", &check, &[ProbeTarget { assume_healthy: true, ..target(A) }])?;
        bed.says(A, false).await?;
        assert!(bed.results("tls") >= tls_failures + 3.0);
        Ok(())
    })
}

#[test]
fn a_bundle_that_cannot_be_used_is_a_fault_and_nothing_is_probed() -> Result<()> {
    isolated(async || {
        let bed = Bed::start()?;
        let server = Server::start(443, Manner::Close).await?;
        bed.prober.set("lb", &tcp(443), &[target(A)])?;
        bed.says(A, true).await?;
        let bundle = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_owned();
        let check =
            CheckSettings { probe: BackendProbe::Https(request("/"), Some(bundle)), ..tcp(443) };
        let fault = bed.prober.set("lb", &check, &[target(A)]).unwrap_err().to_string();
        assert!(fault.starts_with("spec.healthCheck.caBundle: certificate 1: "), "{fault}");
        assert_eq!(bed.is_healthy("lb", A), None);
        bed.prober.set("other", &tcp(443), &[target(B)])?;
        // An earlier connection may still be waiting to be accepted.
        hits(&server, B, 2).await?;
        let before = server.seen.hits(A);
        hits(&server, B, 10).await?;
        assert_eq!(server.seen.hits(A), before);
        Ok(())
    })
}

#[test]
fn a_target_that_is_no_longer_listed_is_left_alone() -> Result<()> {
    isolated(async || {
        let bed = Bed::start()?;
        let server = Server::start(80, Manner::Close).await?;
        let silent = Server::start(81, Manner::Silent).await?;
        bed.prober.set("lb", &tcp(80), &[target(A), target(B)])?;
        bed.prober.set("slow", &http(81, "/"), &[target(A)])?;
        hits(&server, A, 3).await?;
        hits(&server, B, 3).await?;
        eventually(SOON, "a slow probe", async || silent.seen.heads().len() == 1).await?;

        bed.prober.set("lb", &tcp(80), &[target(B)])?;
        bed.prober.remove("slow");
        assert_eq!(bed.is_healthy("lb", A), None);
        assert_eq!(bed.prober.verdicts("lb").len(), 1);
        // The probe under way is cancelled, long before its timeout.
        eventually(SOON, "its end", async || silent.seen.hung_up() == 1).await?;
        // An earlier connection may still be waiting to be accepted.
        hits(&server, B, 2).await?;
        let before = server.seen.hits(A);
        hits(&server, B, 20).await?;
        assert_eq!((server.seen.hits(A), silent.seen.heads().len()), (before, 1));
        bed.prober.remove("lb");
        assert_eq!(bed.metric("hgo_probe_targets", ""), 0.0);
        Ok(())
    })
}

#[test]
fn another_address_of_the_same_vm_is_believed_nothing() -> Result<()> {
    isolated(async || {
        let bed = Bed::start()?;
        let server = Server::start(80, Manner::Close).await?;
        let vm = |address: &str| [ProbeTarget { id: "vm".into(), ..target(address) }, target(B)];
        bed.prober.set("lb", &tcp(80), &vm(A))?;
        bed.says("vm", true).await?;
        bed.prober.set("lb", &tcp(80), &vm(HOLE))?;
        assert_eq!(bed.is_healthy("lb", "vm"), Some(false));
        // An earlier connection may still be waiting to be accepted.
        hits(&server, B, 2).await?;
        let before = server.seen.hits(A);
        hits(&server, B, 10).await?;
        assert_eq!(server.seen.hits(A), before);
        assert_eq!(bed.is_healthy("lb", "vm"), Some(false));
        Ok(())
    })
}

#[test]
fn this_host_is_never_probed() -> Result<()> {
    isolated(async || {
        let bed = Bed::start()?;
        let server = Server::start(80, Manner::Close).await?;
        let here = ["127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::"];
        let targets: Vec<ProbeTarget> = here.iter().chain(&[A]).map(|a| target(a)).collect();
        bed.prober.set("lb", &tcp(80), &targets)?;
        hits(&server, A, 10).await?;
        for (target, address) in targets.iter().zip(here) {
            assert_eq!(bed.is_healthy("lb", &target.id), Some(false));
            assert_eq!(
                server.seen.hits(&target.address.to_canonical().to_string()),
                0,
                "{address}"
            );
        }
        Ok(())
    })
}

#[test]
fn the_end_of_the_run_closes_every_socket() -> Result<()> {
    isolated(async || {
        let bed = Bed::start()?;
        let silent = Server::start(80, Manner::Silent).await?;
        let holes: Vec<ProbeTarget> = (1..=50).map(|n| target(&format!("10.211.1.{n}"))).collect();
        bed.prober.set("holes", &tcp(80), &holes)?;
        bed.prober.set("lb", &http(80, "/"), &[target(A), target(B)])?;
        eventually(SOON, "52 probes under way", async || {
            sockets(TcpState::SynSent).map(|n| n == 50 && silent.seen.heads().len() == 2)
        })
        .await?;
        bed.run.abort();
        eventually(SOON, "no socket", async || {
            let open = sockets(TcpState::SynSent)? + sockets(TcpState::Established)?;
            anyhow::Ok(open == 0)
        })
        .await?;
        assert_eq!(silent.seen.heads().len(), 2);
        assert_eq!(bed.metric("hgo_probe_targets", ""), 0.0);
        Ok(())
    })
}

#[test]
fn probes_at_a_time_are_bounded_and_those_that_wait_have_their_turn() -> Result<()> {
    // 400 descriptors less 256 for others: 144 probes.
    isolated_with("ulimit -n 400", async || {
        let bed = Bed::start()?;
        // Long enough for 100 probes to begin on a busy machine before the first of them ends.
        let timeout = Duration::from_secs(2);
        let check = CheckSettings { timeout, failure_threshold: 1, ..tcp(80) };
        let holes: Vec<ProbeTarget> = (0..500)
            .map(|n| target(&format!("10.211.{}.{}", n / 250 + 1, n % 250)))
            .map(|target| ProbeTarget { assume_healthy: true, ..target })
            .collect();
        bed.prober.set("lb", &check, &holes)?;
        let mut most = 0;
        eventually(SOON, "a verdict on each", async || {
            most = most.max(sockets(TcpState::SynSent)?);
            anyhow::Ok(bed.prober.verdicts("lb").values().all(|healthy| !healthy))
        })
        .await?;
        assert!((100..=144).contains(&most), "{most}");
        assert!(bed.metric("hgo_probes_late_total", "") > 0.0);
        assert_eq!(bed.results("error"), 0.0);
        Ok(())
    })
}

#[test]
fn a_lack_of_descriptors_is_not_the_backends_fault() -> Result<()> {
    isolated_with("ulimit -n 40", async || {
        let bed = Bed::start()?;
        let check = CheckSettings { failure_threshold: 1, ..tcp(80) };
        let holes: Vec<ProbeTarget> = (1..=60)
            .map(|n| ProbeTarget { assume_healthy: true, ..target(&format!("10.211.1.{n}")) })
            .collect();
        bed.prober.set("lb", &check, &holes)?;
        bed.counted("error", 50.0).await?;
        assert!(bed.prober.verdicts("lb").values().all(|healthy| *healthy));
        Ok(())
    })
}
