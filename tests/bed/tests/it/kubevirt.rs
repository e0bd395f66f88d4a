//! KubeVirt as the bed plays it: VMIs and virt-launcher pods through a VM's life.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use testbed::kubevirt::{
    Guest, Nic, Outcome, Ready, Vm, create_node, install_kubevirt, instances, machines, networks,
    vlan,
};
use testbed::{Bed, Options, eventually};

const SOON: Duration = Duration::from_mins(3);
const CREATED_BY: &str = "kubevirt.io/created-by";

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

/// Two nodes, a namespace with a network, and the VM `web` on the first node.
async fn world(client: &Client) -> Guest {
    for (node, address) in [("node-1", "10.0.0.1"), ("node-2", "10.0.0.2")] {
        let zone = [("topology.kubernetes.io/zone", "a")];
        create_node(client, node, &zone, address).await.unwrap();
    }
    let shop: Namespace = serde_json::from_value(json!({"metadata": {"name": "shop"}})).unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &shop).await.unwrap();
    let lan = object(vlan("shop", "lan", 7));
    networks(client, "shop").create(&PostParams::default(), &lan).await.unwrap();

    let vm = Vm::new("shop", "web").label("app", "web").nic(Nic::attached(
        "nic-1",
        "shop/lan",
        &["192.168.7.5", "192.168.7.6"],
    ));
    let created = machines(client, "shop")
        .create(&PostParams::default(), &object(vm.machine()))
        .await
        .unwrap();
    assert_eq!(created.name_any(), "web");
    Guest::run(client, vm, "node-1").await.unwrap()
}

async fn vmi(guest: &Guest) -> Value {
    serde_json::to_value(guest.instance().await.unwrap()).unwrap()
}

/// Node, phase and readiness of the pods with the VMI's UID, the oldest first.
async fn pods(client: &Client, guest: &Guest) -> Vec<(String, String, bool)> {
    let api = Api::<Pod>::namespaced(client.clone(), "shop");
    let selector = format!("kubevirt.io=virt-launcher,{CREATED_BY}={}", guest.uid());
    let mut pods = api.list(&ListParams::default().labels(&selector)).await.unwrap().items;
    pods.sort_by_key(ResourceExt::name_any);
    pods.into_iter()
        .map(|pod| {
            assert_eq!(pod.labels()["app"], "web");
            let owner = &pod.owner_references()[0];
            assert_eq!((owner.uid.as_str(), owner.controller), (guest.uid(), Some(true)));
            let status = pod.status.unwrap();
            let ready =
                status.conditions.unwrap().into_iter().find(|c| c.type_ == "Ready").unwrap();
            let node = pod.spec.unwrap().node_name.unwrap();
            (node, status.phase.unwrap(), ready.status == "True")
        })
        .collect()
}

fn pod(node: &str, phase: &str, ready: bool) -> (String, String, bool) {
    (node.to_owned(), phase.to_owned(), ready)
}

#[tokio::test]
async fn a_vm_lives_as_in_kubevirt() {
    let bed = Bed::start(Options::default()).await.unwrap();
    install_kubevirt(&bed).await.unwrap();
    let client = bed.admin();
    let mut web = world(&client).await;
    runs_and_fails(&client, &mut web).await;
    migrates(&client, &mut web).await;
    ends(&client, &mut web).await;
    bed.stop().await.unwrap();
}

async fn runs_and_fails(client: &Client, web: &mut Guest) {
    let running = vmi(web).await;
    assert_eq!(running["status"]["phase"], "Running");
    assert_eq!(running["status"]["nodeName"], "node-1");
    assert_eq!(running["status"]["interfaces"][0]["ipAddress"], "192.168.7.5");
    assert_eq!(running["spec"]["networks"][0]["multus"]["networkName"], "shop/lan");
    assert_eq!(ready(&running), ("True".to_owned(), Value::Null));
    assert_eq!(pods(client, web).await, [pod("node-1", "Running", true)]);

    web.agent(false).await.unwrap();
    assert!(vmi(web).await["status"]["interfaces"][0].get("ipAddress").is_none());
    web.agent(true).await.unwrap();

    web.pause(true).await.unwrap();
    let paused = vmi(web).await;
    assert_eq!(ready(&paused), ("False".to_owned(), json!("ReadinessGatesNotReady")));
    assert!(paused["status"]["conditions"].to_string().contains("Paused"));
    assert_eq!(pods(client, web).await, [pod("node-1", "Running", false)]);
    web.pause(false).await.unwrap();

    web.ready(Ready::no("ContainersNotReady")).await.unwrap();
    assert_eq!(ready(&vmi(web).await).1, "ContainersNotReady");
    web.ready(Ready::yes()).await.unwrap();

    // Finalizers and labels that others add survive a write.
    let vmis = instances(client, "shop");
    let ours = web.instance().await.unwrap().finalizers().to_vec();
    let both = [&ours[..], &["example.com/mine".to_owned()]].concat();
    let finalizers = async |all: &[String]| {
        let patch = Patch::Merge(json!({"metadata": {"finalizers": all}}));
        vmis.patch("web", &PatchParams::default(), &patch).await.unwrap();
    };
    finalizers(&both).await;
    web.change(|vm| drop(vm.labels.insert("tier".to_owned(), "front".to_owned()))).await.unwrap();
    let changed = web.instance().await.unwrap();
    assert_eq!(changed.finalizers(), both);
    assert_eq!(changed.labels()["tier"], "front");
    finalizers(&ours).await;
}

async fn migrates(client: &Client, web: &mut Guest) {
    for (outcome, flag) in [(Outcome::Failed, "failed"), (Outcome::Aborted, "abortRequested")] {
        web.begin_migration("node-2").await.unwrap();
        let moving = vmi(web).await;
        assert_eq!(moving["status"]["nodeName"], "node-1");
        assert_eq!(moving["metadata"]["labels"]["kubevirt.io/migrationTargetNodeName"], "node-2");
        assert_eq!(moving["status"]["activePods"].as_object().unwrap().len(), 2);
        let both = pods(client, web).await;
        assert_eq!(both.iter().filter(|pod| pod.2).count(), 2, "{both:?}");

        web.end_migration(outcome).await.unwrap();
        let stayed = vmi(web).await;
        assert_eq!(stayed["status"]["nodeName"], "node-1");
        assert_eq!(stayed["status"]["migrationState"][flag], true);
        assert_eq!(ready(&stayed).0, "True");
        assert_eq!(pods(client, web).await.last().unwrap(), &pod("node-2", "Failed", false));
    }
    web.begin_migration("node-2").await.unwrap();
    web.end_migration(Outcome::Succeeded).await.unwrap();
    let moved = vmi(web).await;
    assert_eq!(moved["status"]["nodeName"], "node-2");
    assert_eq!(moved["status"]["migrationState"]["completed"], true);
    assert_eq!(moved["status"]["activePods"].as_object().unwrap().len(), 1);
    let all = pods(client, web).await;
    assert_eq!(all.first().unwrap(), &pod("node-1", "Succeeded", false));
    assert_eq!(all.last().unwrap(), &pod("node-2", "Running", true));
}

async fn ends(client: &Client, web: &mut Guest) {
    web.terminate().await.unwrap();
    let leaving = web.instance().await.unwrap();
    assert!(leaving.metadata.deletion_timestamp.is_some());
    assert_eq!(ready(&vmi(web).await).1, "PodTerminating");
    web.vanish().await.unwrap();
    eventually(SOON, "end of the pods", async || pods(client, web).await.is_empty()).await.unwrap();
    assert!(instances(client, "shop").get_opt("web").await.unwrap().is_none());

    let vm = Vm::new("shop", "web").label("app", "web");
    *web = Guest::run(client, vm, "node-1").await.unwrap();
    let before = web.uid().to_owned();
    web.restart("node-2").await.unwrap();
    assert_ne!(web.uid(), before);
    assert_eq!(pods(client, web).await, [pod("node-2", "Running", true)]);

    web.shut_down().await.unwrap();
    let over = vmi(web).await;
    assert_eq!(over["status"]["phase"], "Succeeded");
    assert_eq!(ready(&over).1, "GuestNotRunning");
    assert_eq!(pods(client, web).await, [pod("node-2", "Succeeded", false)]);
    web.stop().await.unwrap();
}

/// Status and reason of the condition `Ready`.
fn ready(vmi: &Value) -> (String, Value) {
    let conditions = vmi["status"]["conditions"].as_array().unwrap();
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready").unwrap();
    (ready["status"].as_str().unwrap().to_owned(), ready["reason"].clone())
}
