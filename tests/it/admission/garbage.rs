//! Other traffic to the port: every caller gets a clean answer or a closed connection, and valid
//! calls are answered meanwhile.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use testbed::{Authority, Operator};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::wire::{connect, post};
use super::{Probe, itself};
use crate::support::{Cluster, SOON};

const VALIDATION: &str = "/v1/webhook/validation";
const CONVERSION: &str = "/v1/webhook/conversion";

fn review() -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u-1", "operation": "DELETE", "name": "absent", "namespace": "",
            "resource": {
                "group": "loadbalancer.harvesterhci.io", "version": "v1beta1", "resource": "ippools",
            },
            "userInfo": {"username": "eve"},
            "oldObject": {"metadata": {"name": "absent"}, "spec": {"ranges": []}},
        },
    })
}

async fn started(cluster: &Cluster) -> Result<(Operator, String)> {
    let operator = cluster.standby(itself()).await?;
    operator.ready().await?;
    cluster.registered().await?;
    Ok((operator, cluster.material().await?.bundle()))
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_gets_a_sentence_or_a_closed_connection() -> Result<()> {
    let cluster = Cluster::start().await?;
    let (operator, bundle) = started(&cluster).await?;
    let address = operator.admission.context("no admission")?;

    // Plain text instead of TLS.
    let mut plain = TcpStream::connect(address).await?;
    plain.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await?;
    let mut said = Vec::new();
    timeout(SOON, plain.read_to_end(&mut said)).await??;
    assert!(!said.starts_with(b"HTTP"), "{said:?}");

    let good = review().to_string();
    let changed = |change: fn(&mut Value)| {
        let mut review = review();
        change(&mut review);
        review.to_string()
    };
    let long = "x".repeat(10 << 20);
    let nested = format!("{}{}", "[".repeat(50_000), "]".repeat(50_000));
    let nested = changed(|r| r["request"]["oldObject"] = json!({"a": 0}))
        .replace("{\"a\":0}", &format!("{{\"a\":{nested}}}"));
    for (what, path, body, code, expected) in [
        ("truncated", VALIDATION, good[..good.len() / 2].to_owned(), 400, "not an AdmissionReview"),
        ("empty", VALIDATION, String::new(), 400, "EOF"),
        ("deep", VALIDATION, nested, 400, "recursion limit"),
        ("large", VALIDATION, long, 413, "larger than"),
        (
            "kind",
            VALIDATION,
            changed(|r| r["kind"] = json!("Pod")),
            400,
            "must be kind AdmissionReview",
        ),
        ("uid", VALIDATION, changed(|r| r["request"]["uid"] = json!("")), 400, "request.uid"),
        (
            "uid's type",
            VALIDATION,
            changed(|r| r["request"]["uid"] = json!(7)),
            400,
            "invalid type",
        ),
        (
            "resource",
            VALIDATION,
            changed(|r| r["request"]["resource"]["resource"] = json!("secrets")),
            400,
            "must be loadbalancers or ippools",
        ),
        ("conversion", CONVERSION, "{".to_owned(), 400, ""),
        ("path", "/other", good.clone(), 404, ""),
    ] {
        let mut stream = connect(address, &bundle, None).await?;
        let (found, stays, said) = post(&mut stream, path, body.as_bytes()).await?;
        assert_eq!((found, stays), (code, false), "{what}: {said}");
        assert!(said.contains(expected), "{what}: {said}");
    }

    // A valid review is answered, with its own UID, and the connection stays open.
    let mut stream = connect(address, &bundle, None).await?;
    for uid in ["u-1", "u-2"] {
        let mut review = review();
        review["request"]["uid"] = json!(uid);
        let body = review.to_string();
        let (code, stays, said) = post(&mut stream, VALIDATION, body.as_bytes()).await?;
        assert_eq!((code, stays), (200, true), "{said}");
        assert_eq!(serde_json::from_str::<Value>(&said)?["response"]["uid"], uid);
    }
    Probe::new(&cluster.client)?.once().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_slow_connections_cost_little_and_delay_no_request() -> Result<()> {
    let cluster = Cluster::start().await?;
    let (operator, bundle) = started(&cluster).await?;
    let address = operator.admission.context("no admission")?;
    let before = operator.process.peak_rss_kib().context("no RSS")?;

    let mut silent = Vec::new();
    for _ in 0..700 {
        silent.push(TcpStream::connect(address).await?);
    }
    // Some complete the handshake and send a little of a request: more than the head and the body
    // may take.
    let slow = (0..300).map(|number| {
        let bundle = bundle.clone();
        tokio::spawn(async move {
            let mut stream = connect(address, &bundle, None).await.ok()?;
            let head =
                format!("POST {VALIDATION} HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n");
            stream.write_all(head.as_bytes()).await.ok()?;
            if number % 2 == 0 {
                stream.write_all(b"\r\n").await.ok()?;
                stream.write_all(&vec![b' '; 200_000]).await.ok()?;
            }
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
            Some(String::from_utf8_lossy(&rest).into_owned())
        })
    });
    let slow: Vec<_> = slow.collect();
    let began = Instant::now();
    let probe = Probe::new(&cluster.client)?;
    let mut slowest = Duration::ZERO;
    while began.elapsed() < Duration::from_secs(12) {
        let call = Instant::now();
        probe.once().await?;
        slowest = slowest.max(call.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (mut ended, mut said) = (0, String::new());
    for slow in slow {
        let answer = timeout(SOON, slow).await.context("still connected")??.unwrap_or_default();
        // The API server may have been slow because the machine stalled: it asks again.
        let asks_again = answer.starts_with("HTTP/1.1 503 ")
            && answer.to_ascii_lowercase().contains("\r\nretry-after: 0\r\n");
        ensure!(answer.is_empty() || asks_again, "{answer}");
        said.push_str(&answer);
        ended += 1;
    }
    for text in ["the body did not arrive in time", "the operator did not answer in time"] {
        ensure!(said.contains(text), "no caller got: {text}");
    }
    for mut stream in silent {
        let mut rest = Vec::new();
        let read = timeout(SOON, stream.read_to_end(&mut rest)).await;
        ensure!(read.is_ok(), "a silent connection is still there");
    }
    let after = operator.process.peak_rss_kib().context("no RSS")?;
    println!("slowest good call {slowest:?}; peak RSS {before} -> {after} KiB; {ended} slow ended");
    assert!(after - before < 100 * 1024, "{before} -> {after} KiB");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_an_authority_for_callers_reviews_need_a_certificate() -> Result<()> {
    let cluster = Cluster::start().await?;
    let authority = Authority::new("callers")?;
    let stranger = Authority::new("others")?.issue(&[])?;
    let path = cluster.bed.dir().join("callers.pem");
    std::fs::write(&path, authority.pem())?;
    let mut start = itself();
    start.options = vec!["--admission-client-ca".to_owned(), path.display().to_string()];
    let operator = cluster.standby(start).await?;
    operator.ready().await?;
    let address = operator.admission.context("no admission")?;
    let bundle = cluster.material().await?.bundle();
    let body = review().to_string();

    let known = authority.issue(&["apiserver"])?;
    let mut stream = connect(address, &bundle, Some(&known)).await?;
    let (code, _, said) = post(&mut stream, VALIDATION, body.as_bytes()).await?;
    assert_eq!(code, 200, "{said}");
    let mut stream = connect(address, &bundle, None).await?;
    let (code, _, said) = post(&mut stream, VALIDATION, body.as_bytes()).await?;
    assert_eq!((code, said.as_str()), (403, "a client certificate is required\n"));
    // The API server shows no certificate when it asks for a conversion.
    let mut stream = connect(address, &bundle, None).await?;
    assert_ne!(post(&mut stream, CONVERSION, b"{").await?.0, 403);
    // A certificate by another authority is rejected; with TLS 1.3 that shows in the first answer.
    let refused = async {
        let mut stream = connect(address, &bundle, Some(&stranger)).await?;
        post(&mut stream, VALIDATION, body.as_bytes()).await
    };
    assert!(refused.await.is_err());
    Ok(())
}
