//! A bed works, and no part of it outlives its owner.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, ListParams, PostParams};
use kube::core::ObjectMeta;
use testbed::{Bed, Managed, Options, client_from, eventually};

const SOON: Duration = Duration::from_mins(3);

fn is_running(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn config_map(name: &str) -> ConfigMap {
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    ConfigMap { metadata, ..ConfigMap::default() }
}

#[tokio::test]
async fn two_beds_do_not_know_each_other_and_leave_nothing() {
    let start = || Bed::start(Options::default());
    let (one, two) = tokio::join!(start(), start());
    let (one, two) = (one.unwrap(), two.unwrap());
    let maps = |bed: &Bed| Api::<ConfigMap>::namespaced(bed.admin(), "default");
    maps(&one).create(&PostParams::default(), &config_map("only-here")).await.unwrap();
    assert!(maps(&two).get_opt("only-here").await.unwrap().is_none());

    let [first, second] = [&one, &two].map(|bed| (bed.dir().to_owned(), bed.pids()));
    for (_, pids) in [&first, &second] {
        assert_eq!(pids.len(), 3);
        assert!(pids.iter().all(|&pid| is_running(pid)));
    }
    let is_gone = |(dir, pids): &(PathBuf, Vec<u32>)| {
        !dir.exists() && !pids.iter().any(|&pid| is_running(pid))
    };
    drop(one);
    assert!(is_gone(&first), "a dropped bed");
    assert!(maps(&two).get_opt("only-here").await.unwrap().is_none(), "the other one lives on");
    let version = two.admin().apiserver_version().await.unwrap();
    assert!(version.git_version.starts_with("v1."), "{}", version.git_version);
    an_account_may_do_what_rbac_says_and_no_more(&two).await;
    two.stop().await.unwrap();
    assert!(is_gone(&second), "a stopped bed");
}

async fn an_account_may_do_what_rbac_says_and_no_more(bed: &Bed) {
    bed.apply_yaml(ROLE).await.unwrap();
    assert!(bed.apply_yaml("kind: Nonsense").await.is_err());
    let names = bed.kubectl(&["get", "serviceaccounts", "-o", "name"]).await.unwrap();
    assert!(names.contains("serviceaccount/reader"), "{names}");

    let path = bed.service_account_kubeconfig("default", "reader", None).await.unwrap();
    let client = client_from(&fs::read_to_string(path).unwrap()).await.unwrap();
    let all = ListParams::default();
    let maps = Api::<ConfigMap>::namespaced(client.clone(), "default");
    eventually(SOON, "right to list", async || maps.list(&all).await.map(Some)).await.unwrap();

    let secrets = Api::<Secret>::namespaced(client, "default");
    let refused = secrets.list(&all).await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 403), "{refused}");
    let unknown = bed.service_account_kubeconfig("default", "absent", None).await;
    assert!(unknown.unwrap_err().to_string().contains("default/absent"));
}

const ROLE: &str = r#"
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: default}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: default}
subjects: [{kind: ServiceAccount, name: reader, namespace: default}]
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
"#;

#[tokio::test]
async fn a_failed_start_says_why() {
    let options =
        Options { api_server_args: vec!["--no-such-flag".to_owned()], ..Options::default() };
    let error = Bed::start(options).await.unwrap_err().to_string();
    assert!(error.contains("kube-apiserver ended"), "{error}");
    assert!(error.contains("unknown flag: --no-such-flag"), "{error}");
}

/// `bed up` with its own folder for temporary files, so that every file left behind is found.
struct Up {
    process: Managed,
    temp: tempfile::TempDir,
}

impl Up {
    fn start() -> Self {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("tmp")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_bed"));
        command.arg("up").env("TMPDIR", temp.path().join("tmp"));
        let process = Managed::spawn(&mut command, temp.path().join("log")).unwrap();
        Self { process, temp }
    }

    fn left_behind(&self) -> Vec<std::path::PathBuf> {
        let entries = fs::read_dir(self.temp.path().join("tmp")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// Process ids of the daemons started so far.
    fn pids(&self) -> Vec<u32> {
        let pid = |name: &str| {
            let path = self.left_behind().first()?.join(name);
            fs::read_to_string(path).ok()?.trim().parse().ok()
        };
        ["etcd.pid", "kube-apiserver.pid", "kube-controller-manager.pid"]
            .into_iter()
            .filter_map(pid)
            .collect()
    }

    /// Number of processes whose command line names the folder: guardians.
    fn guardians(&self) -> usize {
        let folder = self.temp.path().join("tmp/").to_string_lossy().into_owned();
        fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok())
            .filter(|line| String::from_utf8_lossy(line).contains(&folder))
            .count()
    }

    async fn all_gone(&self, pids: &[u32]) {
        eventually(SOON, "end of all traces", async || {
            let running = pids.iter().any(|&pid| is_running(pid));
            !running && self.left_behind().is_empty() && self.guardians() == 0
        })
        .await
        .unwrap();
    }
}

#[tokio::test]
async fn a_killed_owner_leaves_nothing() {
    for daemons in [1, 3] {
        let mut up = Up::start();
        let started = async || (up.pids().len() >= daemons).then(|| up.pids());
        let pids = eventually(SOON, "start of the daemons", started).await.unwrap();
        // A shell that is about to become a daemon still has the guardian's command line.
        let one = async || up.guardians() == 1;
        eventually(SOON, "one guardian", one).await.unwrap();
        up.process.kill9().unwrap();
        up.all_gone(&pids).await;
    }
}

#[tokio::test]
async fn bed_up_says_where_it_is_and_stops_when_asked() {
    let mut up = Up::start();
    let said = async || up.process.log().contains("export KUBECONFIG=");
    eventually(SOON, "print of the kubeconfig", said).await.unwrap();
    let pids = up.pids();
    let status = up.process.terminate(SOON).await.unwrap();
    assert!(status.success(), "{status}: {}", up.process.log());
    up.all_gone(&pids).await;
}
