//! Guests' cloud providers during a take-over and the way back. A cloud provider is played by its
//! rules (harvester/cloud-provider-harvester, `loadbalancer.go`): a LoadBalancer without
//! `status.address` does not exist; one that gets no `allocatedAddress` within ten seconds is deleted;
//! the announced address is written with a plain update of the whole object; nothing is watched.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harvester_guest_operator::api::LoadBalancer;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, Error};
use serde_json::json;
use testbed::{Stalls, client_from, eventually};

use super::harvester::Harvester;
use crate::cloud_config::roles::Release;
use crate::support::{Cluster, SOON, address, beside_bare_writes, lb};

/// Time after which a cloud provider gives up on an address, if the API server answers at once.
const GIVES_UP: Duration = Duration::from_secs(10);
/// Pause of a cloud provider between two reads of its LoadBalancer.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Services of a guest at one time.
const SERVICES: usize = 5;

const ACCOUNT: &str = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: guest, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: guest, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: 'harvesterhci.io:cloudprovider'}
subjects: [{kind: ServiceAccount, name: guest, namespace: default}]
";

/// A guest's cloud provider, with the rights that Harvester gives it.
struct Provider<'a> {
    /// Beginning of the names of its Services.
    name: &'a str,
    lbs: Api<LoadBalancer>,
    stalls: &'a Stalls,
    /// Addresses of the guest's Services.
    services: BTreeMap<String, String>,
    made: usize,
    /// Calls that failed: they would be in the Events of the guest's Services.
    failed: Vec<String>,
    longest: Duration,
}

impl<'a> Provider<'a> {
    async fn new(name: &'a str, cluster: &Cluster, stalls: &'a Stalls) -> Result<Self> {
        cluster.bed.apply_yaml(&Release::newest().roles()).await?;
        cluster.bed.apply_yaml(ACCOUNT).await?;
        let file = cluster.bed.service_account_kubeconfig("default", "guest", None).await?;
        let client: Client = client_from(&std::fs::read_to_string(file)?).await?;
        let lbs: Api<LoadBalancer> = Api::namespaced(client, "default");
        eventually(SOON, "rights of the guest", async || lbs.get_opt("none").await.map(|_| true))
            .await?;
        let (services, failed) = (BTreeMap::new(), Vec::new());
        Ok(Self { name, lbs, stalls, services, made: 0, failed, longest: Duration::ZERO })
    }

    /// Repeats a call of the guest until it succeeds, as the controller of its Services does, and
    /// notes each failure except a conflict.
    async fn insist<T>(
        &mut self,
        what: &str,
        call: impl AsyncFn() -> Result<T, Error>,
    ) -> Result<T> {
        let since = Instant::now();
        loop {
            match call().await {
                Ok(done) => return Ok(done),
                Err(Error::Api(status)) if status.is_conflict() => {}
                Err(error) => self.failed.push(format!("{what}: {error}")),
            }
            ensure!(since.elapsed() < SOON, "{what} fails for good: {:?}", self.failed);
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// A Service is created (`EnsureLoadBalancer`).
    async fn create(&mut self) -> Result<()> {
        // Padded, so that the first key is the oldest.
        let name = format!("{}-{:03}", self.name, self.made);
        self.made += 1;
        let (lbs, stalls) = (self.lbs.clone(), self.stalls);
        let new = lb(&name, &json!({"workloadType": "cluster", "ipam": "pool"}))?;
        self.insist(&format!("creation of {name}"), async || {
            match lbs.create(&PostParams::default(), &new).await {
                Err(Error::Api(status)) if status.is_already_exists() => Ok(()),
                made => made.map(drop),
            }
        })
        .await?;
        let since = Instant::now();
        let ip = loop {
            let seen =
                self.insist(&format!("look at {name}"), async || lbs.get(&name).await).await?;
            if let Some(ip) = address(&seen) {
                break ip;
            }
            ensure!(since.elapsed() < SOON, "{name} gets no address");
            tokio::time::sleep(POLL_INTERVAL).await;
        };
        self.longest = self.longest.max(stalls.elapsed(since));
        self.services.insert(name, ip);
        Ok(())
    }

    /// A Service is reconciled (`EnsureLoadBalancer` of one that is announced): the address is the one
    /// that the guest announces, and is written back.
    async fn update(&mut self, name: &str, ip: &str) -> Result<()> {
        let lbs = self.lbs.clone();
        let description = format!("update {}", self.made);
        let seen = self
            .insist(&format!("update of {name}"), async || {
                let mut lb = lbs.get(name).await?;
                lb.spec.description = Some(description.clone());
                lb.status.get_or_insert_default().address = Some(ip.to_owned());
                lbs.replace(name, &PostParams::default(), &lb).await
            })
            .await?;
        ensure!(address(&seen).as_deref() == Some(ip), "{name} moved from {ip}: {seen:?}");
        Ok(())
    }

    /// A Service is deleted (`EnsureLoadBalancerDeleted`).
    async fn delete(&mut self, name: &str) -> Result<()> {
        let lbs = self.lbs.clone();
        let seen = self.insist(&format!("look at {name}"), async || lbs.get(name).await).await?;
        let announced = seen.status.and_then(|status| status.address).unwrap_or_default();
        ensure!(!announced.is_empty(), "{name} does not exist for its guest, and stays for ever");
        self.insist(&format!("deletion of {name}"), async || {
            match lbs.delete(name, &DeleteParams::default()).await {
                Err(Error::Api(status)) if status.is_not_found() => Ok(()),
                gone => gone.map(drop),
            }
        })
        .await?;
        self.services.remove(name);
        Ok(())
    }

    /// Creates, changes and deletes Services until the end.
    async fn work(&mut self, over: &AtomicBool) -> Result<()> {
        while !over.load(Ordering::Relaxed) || self.services.len() < SERVICES {
            self.create().await?;
            for (name, ip) in self.services.clone() {
                self.update(&name, &ip).await?;
            }
            if self.services.len() > SERVICES
                && let Some(oldest) = self.services.keys().next().cloned()
            {
                self.delete(&oldest).await?;
            }
        }
        Ok(())
    }
}

/// Writes of a guest while none of the operator's programs runs any more and their pods are still there: from
/// then on admission must not be needed. Without this, the pods would be gone within a moment.
async fn between(harvester: &Harvester, guest: &mut Provider<'_>) -> Result<()> {
    harvester.operator_ended().await?;
    let written = async {
        for (name, ip) in guest.services.clone() {
            guest.update(&name, &ip).await?;
        }
        Ok(())
    };
    let written = written.await;
    harvester.pods_stay(false).await;
    written
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_sees_nothing_of_a_take_over_and_of_the_way_back() -> Result<()> {
    let stalls = Stalls::watch()?;
    let harvester = Harvester::start().await?;
    let cluster = harvester.cluster.clone();
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24", "gateway": "10.1.0.1"})).await?;
    let mut guest = Provider::new("service", &cluster, &stalls).await?;
    // Its Service keeps its address throughout.
    let mut other = Provider::new("other", &cluster, &stalls).await?;
    other.create().await?;
    harvester.install().await?;
    let ways = async {
        for (way, options) in [("operator", &["--apply"][..]), ("go", &["--undo", "--apply"])] {
            let over = AtomicBool::new(false);
            let made = guest.made;
            harvester.pods_stay(way == "go").await;
            let command = async {
                let ran = harvester.takeover(options).await;
                over.store(true, Ordering::Relaxed);
                ran
            };
            let written = async {
                match way {
                    "go" => between(&harvester, &mut other).await,
                    _ => Ok(()),
                }
            };
            let (ran, worked, written) = tokio::join!(command, guest.work(&over), written);
            written?;
            worked?;
            ensure!(ran?.0, "{options:?} failed");
            harvester.leads(way).await?;
            ensure!(guest.made > made, "no Service was created meanwhile");
            println!(
                "{options:?}: {} Services, the slowest address after {:?}, failed calls: {:#?}",
                guest.made, guest.longest, guest.failed
            );
            for provider in [&guest, &other] {
                ensure!(provider.failed.is_empty(), "{options:?}: {:#?}", provider.failed);
            }
        }
        Ok(())
    };
    let ((), most) = beside_bare_writes(&cluster, &stalls, GIVES_UP, Box::pin(ways)).await?;
    let longest = guest.longest.max(other.longest);
    ensure!(longest < most, "a Service had no address for {longest:?}, more than {most:?}");
    let services = guest.services.into_iter().chain(other.services);
    let services: BTreeMap<String, String> = services.collect();
    harvester.addresses_are(&services).await?;
    eventually(SOON, "end of the deleted LoadBalancers", async || {
        anyhow::Ok(cluster.addresses().await?.len() == services.len())
    })
    .await?;
    harvester.end().await;
    Ok(())
}
