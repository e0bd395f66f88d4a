//! Faults that a test sets, and the record of calls.

use std::time::{Duration, Instant};

use serde_json::json;
use testbed::Verdict;
use testbed::rancher::Version;

use super::Site;
use super::client::{ask, send};

const MINT: &str = "POST /v3/tokens";

#[tokio::test(flavor = "multi_thread")]
async fn each_fault_does_what_it_says() {
    let site = Site::new(Version::Main).await;
    let key = site.key(&site.user);
    let count = || site.rancher.tokens().len();
    let if_post = |verdict: fn() -> Verdict| {
        site.rancher.set_rule(
            move |call| {
                if call.method == "POST" { verdict() } else { Verdict::Pass }
            },
        );
    };
    let before = count();

    if_post(|| Verdict::Refuse { code: 500, reason: "ServerError", message: "a fault".to_owned() });
    let refused = ask(&site.rancher, &key, MINT, "{}").await;
    assert_eq!((refused.status, &refused.body["code"]), (500, &json!("ServerError")));
    assert_eq!((&refused.body["message"], count()), (&json!("a fault"), before));

    if_post(|| Verdict::CutBefore);
    assert!(send(&site.rancher, Some(&key), MINT, "{}").await.is_err());
    assert_eq!(count(), before);

    if_post(|| Verdict::CutAfter);
    assert!(send(&site.rancher, Some(&key), MINT, "{}").await.is_err());
    assert_eq!(count(), before + 1, "the act was done");

    if_post(|| Verdict::Delay(Duration::from_millis(100)));
    let start = Instant::now();
    assert_eq!(ask(&site.rancher, &key, MINT, "{}").await.status, 201);
    assert!(start.elapsed() >= Duration::from_millis(100));
    site.rancher.clear_rule();

    let calls = site.rancher.calls();
    let seen: Vec<_> = calls.iter().map(|record| (record.forwarded, record.status)).collect();
    let expected = [(false, Some(500)), (false, None), (true, Some(201)), (true, Some(201))];
    assert_eq!(seen, expected);
    site.rancher.reset();
    assert!(site.rancher.calls().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_down_gives_no_answer() {
    let site = Site::new(Version::V2_8).await;
    let key = site.key(&site.user);
    site.rancher.stop();
    assert!(send(&site.rancher, Some(&key), "GET /v3/tokens", "").await.is_err());
    assert!(site.rancher.calls().is_empty());
    site.rancher.restart();
    assert_eq!(ask(&site.rancher, &key, "GET /v3/tokens", "").await.status, 200);
}
