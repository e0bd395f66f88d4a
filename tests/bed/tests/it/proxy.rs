//! The proxy forwards everything, and each fault has its documented effect.
//!
//! One bed serves all cases; each case has its own proxy.

use std::fs;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _, future::join_all};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams, WatchEvent, WatchParams};
use kube::core::ObjectMeta;
use testbed::{Bed, Call, Options, Proxy, Verdict, client_from, eventually};

const SOON: Duration = Duration::from_mins(3);

const ACCOUNT: &str = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: writer, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: writer}
subjects: [{kind: ServiceAccount, name: writer, namespace: default}]
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
";

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_passes_calls_and_fails_as_configured() {
    let bed = Bed::start(Options::default()).await.unwrap();
    bed.apply_yaml(ACCOUNT).await.unwrap();
    eventually(SOON, "right to write", async || {
        Setup::new(&bed).await.maps.get_opt("x").await.map(|_| true)
    })
    .await
    .unwrap();

    passes_and_records(&Setup::new(&bed).await).await;
    passes_many_at_once(&Setup::new(&bed).await).await;
    passes_watches_until_cut(&Setup::new(&bed).await).await;
    freezes_what_is_open(&Setup::new(&bed).await).await;
    refuses(&Setup::new(&bed).await).await;
    cuts_before(&Setup::new(&bed).await).await;
    cuts_after(&Setup::new(&bed).await).await;
    hangs_until_the_rule_goes(&Setup::new(&bed).await).await;
    delays(&Setup::new(&bed).await).await;
    cuts_from_the_kth_write_on(&Setup::new(&bed).await).await;
    ends_with_its_proxy(Setup::new(&bed).await).await;
    bed.stop().await.unwrap();
}

struct Setup {
    proxy: Proxy,
    /// API through the proxy.
    maps: Api<ConfigMap>,
    /// API without the proxy.
    truth: Api<ConfigMap>,
}

impl Setup {
    async fn new(bed: &Bed) -> Self {
        let proxy = Proxy::start(bed).await.unwrap();
        let path = proxy.kubeconfig_for_service_account(bed, "default", "writer").await.unwrap();
        let through: Client = client_from(&fs::read_to_string(path).unwrap()).await.unwrap();
        let maps = Api::namespaced(through, "default");
        Self { proxy, maps, truth: Api::namespaced(bed.admin(), "default") }
    }

    async fn create(&self, name: &str) -> kube::Result<ConfigMap> {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let map = ConfigMap { metadata, ..ConfigMap::default() };
        self.maps.create(&PostParams::default(), &map).await
    }

    async fn exists(&self, name: &str) -> bool {
        self.truth.get_opt(name).await.unwrap().is_some()
    }

    /// Outcome of the last call: whether it was forwarded, and its status.
    fn last(&self) -> (bool, Option<u16>) {
        let calls = self.proxy.calls();
        let last = calls.last().unwrap();
        (last.forwarded, last.status)
    }
}

fn if_write(verdict: impl Fn() -> Verdict) -> impl Fn(&Call) -> Verdict {
    move |call| if call.is_write() { verdict() } else { Verdict::Pass }
}

async fn passes_and_records(setup: &Setup) {
    setup.create("passed").await.unwrap();
    let again = setup.create("passed").await.unwrap_err();
    assert!(matches!(&again, kube::Error::Api(status) if status.is_already_exists()), "{again}");
    setup.maps.delete("passed", &DeleteParams::default()).await.unwrap();

    let calls = setup.proxy.calls();
    let seen: Vec<_> = calls.iter().map(|r| (r.call.method.as_str(), r.status)).collect();
    assert_eq!(seen, [("POST", Some(201)), ("POST", Some(409)), ("DELETE", Some(200))]);
    assert_eq!(calls[2].call.name(), Some("passed"));
    assert_eq!(setup.proxy.writes(|call| call.resource() == Some("configmaps")), 3);
    assert_eq!(setup.proxy.writes(|call| call.resource() == Some("leases")), 0);
    setup.proxy.reset();
    assert!(setup.proxy.calls().is_empty());
}

async fn passes_many_at_once(setup: &Setup) {
    let names: Vec<_> = (0..150).map(|number| format!("many-{number}")).collect();
    for result in join_all(names.iter().map(|name| setup.create(name))).await {
        result.unwrap();
    }
    assert_eq!(setup.proxy.writes(|call| call.method == "POST"), names.len());
    assert!(setup.proxy.calls().iter().all(|record| record.status == Some(201)));
}

async fn passes_watches_until_cut(setup: &Setup) {
    let only = WatchParams::default().fields("metadata.name=watched");
    let mut events = pin!(setup.maps.watch(&only, "0").await.unwrap());
    setup.create("watched").await.unwrap();
    let added = async {
        // Bookmarks may come at any time.
        while let Some(event) = events.try_next().await.unwrap() {
            if matches!(event, WatchEvent::Added(_)) {
                return true;
            }
        }
        false
    };
    assert!(tokio::time::timeout(SOON, added).await.unwrap(), "the watch ended without the event");
    assert_eq!(setup.proxy.watches().len(), 1);
    assert_eq!(setup.proxy.calls().len(), 1, "a watch is not among the calls");

    setup.proxy.cut_all();
    let end = async { while let Some(Ok(_)) = events.next().await {} };
    tokio::time::timeout(SOON, end).await.unwrap();
    // A client may use a connection once more before it notices its end.
    let created = async || setup.create("after-the-cut").await.map(|_| true);
    eventually(SOON, "a call on a new connection", created).await.unwrap();
}

async fn freezes_what_is_open(setup: &Setup) {
    let only = WatchParams::default().fields("metadata.name=frozen");
    let mut events = pin!(setup.maps.watch(&only, "0").await.unwrap());
    setup.exists("nothing").await;
    setup.proxy.freeze_all();
    // Without the proxy, so that the change happens.
    let metadata = ObjectMeta { name: Some("frozen".to_owned()), ..ObjectMeta::default() };
    let map = ConfigMap { metadata, ..ConfigMap::default() };
    setup.truth.create(&PostParams::default(), &map).await.unwrap();
    // Neither an event nor an end. A bookmark may have come before.
    let word = async { while let Some(Ok(WatchEvent::Bookmark(_))) = events.next().await {} };
    let silence = tokio::time::timeout(Duration::from_secs(1), word).await;
    assert!(silence.is_err(), "the watch has continued or ended");
    let mut new = pin!(setup.maps.watch(&only, "0").await.unwrap());
    let added = async {
        while let Some(event) = new.try_next().await.unwrap() {
            if matches!(event, WatchEvent::Added(_)) {
                return true;
            }
        }
        false
    };
    assert!(
        tokio::time::timeout(SOON, added).await.unwrap(),
        "a new watch ended without the event"
    );
}

async fn refuses(setup: &Setup) {
    setup.proxy.set_rule(if_write(|| Verdict::Refuse {
        code: 409,
        reason: "Conflict",
        message: "another writer was faster".to_owned(),
    }));
    let refused = setup.create("refused").await.unwrap_err();
    let kube::Error::Api(status) = &refused else { panic!("{refused}") };
    assert!(status.is_conflict());
    assert_eq!(status.message, "another writer was faster");
    assert!(!setup.exists("refused").await);
    assert_eq!(setup.last(), (false, Some(409)));
    assert!(setup.maps.get_opt("refused").await.unwrap().is_none(), "reads pass");
    setup.proxy.clear_rule();
    setup.create("refused").await.unwrap();
}

async fn cuts_before(setup: &Setup) {
    setup.proxy.set_rule(if_write(|| Verdict::CutBefore));
    let cut = setup.create("cut-before").await.unwrap_err();
    assert!(!matches!(cut, kube::Error::Api(_)), "{cut}");
    assert!(!setup.exists("cut-before").await);
    assert_eq!(setup.last(), (false, None));
}

async fn cuts_after(setup: &Setup) {
    setup.proxy.set_rule(if_write(|| Verdict::CutAfter));
    let cut = setup.create("cut-after").await.unwrap_err();
    assert!(!matches!(cut, kube::Error::Api(_)), "{cut}");
    assert!(setup.exists("cut-after").await, "the server did it all the same");
    assert_eq!(setup.last(), (true, Some(201)));
}

async fn hangs_until_the_rule_goes(setup: &Setup) {
    setup.proxy.set_rule(if_write(|| Verdict::Hang));
    let mut hanging = pin!(setup.create("hanging"));
    still_waits(&mut hanging, setup).await;
    setup.proxy.clear_rule();
    tokio::time::timeout(SOON, hanging).await.unwrap().unwrap_err();
    assert!(!setup.exists("hanging").await);
    assert_eq!(setup.last(), (false, None));
}

/// Polls the call until it is at the proxy and reads were answered since, and checks that it was
/// not answered.
async fn still_waits<T>(call: &mut (impl Future<Output = T> + Unpin), setup: &Setup) {
    let others = async {
        eventually(SOON, "write", async || setup.proxy.writes(|_| true) == 1).await.unwrap();
        for _ in 0..5 {
            setup.truth.get_opt("hanging").await.unwrap();
        }
    };
    tokio::select! {
        _ = call => panic!("the call was answered"),
        () = others => {}
    }
}

async fn delays(setup: &Setup) {
    let delay = Duration::from_millis(200);
    setup.proxy.set_rule(if_write(move || Verdict::Delay(delay)));
    let start = Instant::now();
    setup.create("delayed").await.unwrap();
    assert!(start.elapsed() >= delay);
}

async fn cuts_from_the_kth_write_on(setup: &Setup) {
    let left = AtomicUsize::new(3);
    setup.proxy.set_rule(move |call| {
        if !call.is_write() {
            return Verdict::Pass;
        }
        let take = |left: usize| left.checked_sub(1);
        match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Verdict::Pass,
            Err(_) => Verdict::CutBefore,
        }
    });
    let names: Vec<_> = (0..6).map(|number| format!("kth-{number}")).collect();
    let results = join_all(names.iter().map(|name| setup.create(name))).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 3);
    for (name, result) in names.iter().zip(results) {
        assert_eq!(setup.exists(name).await, result.is_ok(), "{name}");
    }
}

async fn ends_with_its_proxy(setup: Setup) {
    setup.proxy.set_rule(if_write(|| Verdict::Hang));
    let Setup { proxy, maps, truth } = setup;
    let metadata = ObjectMeta { name: Some("orphan".to_owned()), ..ObjectMeta::default() };
    let map = ConfigMap { metadata, ..ConfigMap::default() };
    let create = async { maps.create(&PostParams::default(), &map).await };
    let drop_it = async {
        eventually(SOON, "write", async || proxy.writes(|_| true) == 1).await.unwrap();
        drop(proxy);
    };
    let both = async { tokio::join!(create, drop_it).0 };
    tokio::time::timeout(SOON, both).await.unwrap().unwrap_err();
    assert!(truth.get_opt("orphan").await.unwrap().is_none());
}
