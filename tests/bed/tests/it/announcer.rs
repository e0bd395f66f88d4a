//! The announcer follows kube-vip's rule, its fault included.

use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::{Announcer, Announcing, Bed, Options, eventually};

const SOON: Duration = Duration::from_mins(3);

struct World {
    client: Client,
}

impl World {
    async fn service(&self, name: &str, type_: &str, annotations: Value) {
        let service = json!({
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"type": type_, "ports": [{"port": 80}]},
        });
        let service = serde_json::from_value(service).unwrap();
        self.services().create(&PostParams::default(), &service).await.unwrap();
    }

    /// Gives the Service a slice with one endpoint, ready or not, or with none.
    async fn slice(&self, service: &str, ready: Option<bool>) {
        let endpoint =
            |ready| json!({"addresses": ["192.168.1.9"], "conditions": {"ready": ready}});
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": service, "labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4",
            "endpoints": ready.into_iter().map(endpoint).collect::<Vec<_>>(),
            "ports": [{"port": 80}],
        });
        let all = Api::<EndpointSlice>::default_namespaced(self.client.clone());
        let apply = PatchParams::apply("test").force();
        all.patch(service, &apply, &Patch::Apply(slice)).await.unwrap();
    }

    async fn ask(&self, name: &str, address: &str) {
        let patch = json!({"metadata": {"annotations": {"kube-vip.io/loadbalancerIPs": address}}});
        let patch = Patch::Merge(patch);
        self.services().patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    fn services(&self) -> Api<Service> {
        Api::default_namespaced(self.client.clone())
    }

    async fn published(&self, name: &str) -> Option<String> {
        let service = self.services().get(name).await.unwrap();
        service.status?.load_balancer?.ingress?.into_iter().next()?.ip
    }

    async fn publishes(&self, name: &str, address: &str) {
        let what = format!("{address} of {name}");
        eventually(SOON, &what, async || self.published(name).await.as_deref() == Some(address))
            .await
            .unwrap();
    }
}

fn asks(address: &str) -> Value {
    json!({"kube-vip.io/loadbalancerIPs": address})
}

#[tokio::test]
async fn an_address_is_published_once_there_is_an_endpoint() {
    let bed = Bed::start(Options::default()).await.unwrap();
    let world = World { client: bed.admin() };
    let how = Announcing { leased: Some("192.168.1.77".to_owned()), ..Announcing::default() };
    let announcer = Announcer::start(bed.admin(), how);

    world.service("early", "LoadBalancer", asks("192.168.1.50")).await;
    world.service("plain", "ClusterIP", asks("192.168.1.51")).await;
    world.service("silent", "LoadBalancer", json!({})).await;
    world.slice("early", None).await;
    world.slice("plain", Some(true)).await;
    world.slice("silent", Some(true)).await;
    // The announcer processes events in order, so this one shows that it has processed the others.
    world.service("leased", "LoadBalancer", asks("0.0.0.0")).await;
    world.slice("leased", Some(false)).await;
    world.publishes("leased", "192.168.1.77").await;
    for name in ["early", "plain", "silent"] {
        assert_eq!(world.published(name).await, None, "{name}");
    }

    world.slice("early", Some(true)).await;
    world.publishes("early", "192.168.1.50").await;
    // kube-vip does not survive a change in place, and the status does not show it. A later Service
    // is processed later.
    world.ask("early", "192.168.1.60").await;
    world.service("marker", "LoadBalancer", asks("192.168.1.59")).await;
    world.slice("marker", Some(true)).await;
    world.publishes("marker", "192.168.1.59").await;
    assert_eq!(world.published("early").await.unwrap(), "192.168.1.50");
    world.services().delete("early", &DeleteParams::default()).await.unwrap();
    world.service("early", "LoadBalancer", asks("192.168.1.60")).await;
    world.publishes("early", "192.168.1.60").await;

    announcer.away(true);
    world.ask("early", "192.168.1.61").await;
    // The old field for the address, for a Service without the annotation.
    let old = Patch::Merge(json!({"spec": {"loadBalancerIP": "192.168.1.62"}}));
    world.services().patch("silent", &PatchParams::default(), &old).await.unwrap();
    assert_eq!(world.published("early").await.unwrap(), "192.168.1.60");
    announcer.away(false);
    world.publishes("early", "192.168.1.61").await;
    world.publishes("silent", "192.168.1.62").await;

    drop(announcer);
    world.ask("leased", "192.168.1.64").await;
    world.ask("early", "192.168.1.63").await;
    let how = Announcing { serving_only: true, ..Announcing::default() };
    let _later = Announcer::start(bed.admin(), how);
    world.publishes("early", "192.168.1.63").await;
    assert_eq!(world.published("leased").await.unwrap(), "192.168.1.77", "no endpoint serves");
    world.slice("leased", Some(true)).await;
    world.publishes("leased", "192.168.1.64").await;
    bed.stop().await.unwrap();
}
