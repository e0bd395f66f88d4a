//! The steps of the demo. Each step checks its output before it prints it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use kube::api::DeleteParams;
use testbed::kubevirt::install_kubevirt;
use testbed::{Announcer, Balancer, Bed, Operator, Start, eventually, install};
use tokio::time::interval;

use crate::objects::{balancers, create};
use crate::scene::Scene;
use crate::table::{Changes, Table};
use crate::world::{self, World};
use crate::{burst, folder, vms};

const STEPS: usize = 9;
const PATIENCE: Duration = Duration::from_secs(30);
const LEASE: &str = "kube-system/harvester-load-balancer";
/// Each LoadBalancer of the samples, its pool and its final reason; the three of the pool of two
/// addresses are checked separately.
const EXPECTED: [(&str, &str, &str); 5] = [
    ("default/dev-default-web", "global", "Allocated"),
    ("demo/vm-web", "demo-vlan100", "NoRunningBackends"),
    ("demo/named-pool", "demo-vlan100", "Allocated"),
    ("demo/six", "ipv6", "Allocated"),
    ("demo/missing-pool", "no-such-pool", "IPPoolNotFound"),
];
/// Invalid ranges: one that ends before it begins, and one that overlaps another pool's.
const REVERSED: &str = "{subnet: 10.20.0.0/24, rangeStart: 10.20.0.9, rangeEnd: 10.20.0.8}";
const OVERLAPPING: &str = "{subnet: 10.20.0.128/25}";
/// Start of kubectl's refusal message.
const REFUSED: &str = "The IPPool \"mistake\" is invalid";
const TINY: [&str; 3] = ["demo/tiny-1", "demo/tiny-2", "demo/tiny-3"];
const LATE: &str = "tiny-0-late";
const AFTER: &str = "after-failover";

/// A control plane with a running operator, and the watches on it.
pub(crate) struct Stage {
    operator: Operator,
    world: World,
    _announcer: Announcer,
    _balancer: Balancer,
}

pub(crate) fn announce(number: usize, what: &str, how_long: &str) {
    println!("\n[{number}/{STEPS}] {what} ({how_long})");
}

impl Stage {
    /// Shows all steps; the remaining operator continues to run.
    pub(crate) async fn show(bed: &Bed, binary: &Path) -> Result<Self> {
        announce(2, "The operator, installed under its own account, twice", "2 to 5 seconds");
        let balancer = Balancer::start().await?;
        let (leader, standby) =
            start_operators(bed, binary, &balancer).await.context("step 2 did not hold")?;
        let mut world = World::watch(&bed.admin());

        announce(3, "kubectl apply -f config/samples", "a second or two");
        show_samples(bed, &mut world).await.context("step 3 did not hold")?;

        announce(4, "A pool that overlaps another: refused, with the reason", "a second");
        show_refusal(bed).await.context("step 4 did not hold")?;

        announce(5, "200 LoadBalancers at once from the global pool", "a few seconds");
        burst::run(bed, &mut world).await.context("step 5 did not hold")?;

        announce(6, "Free one address of a full pool: who waited longest gets it", "a second");
        free_one(bed, &mut world).await.context("step 6 did not hold")?;

        announce(7, "Two VMs behind demo/vm-web; one is paused, one stops", "a second or two");
        let announcer = vms::run(bed).await.context("step 7 did not hold")?;

        announce(8, "kill -9 the leader: the standby takes over", "about 5 seconds");
        fail_over(bed, &mut world, leader, &standby).await.context("step 8 did not hold")?;

        announce(9, "What to try next", "as long as you like");
        say_what_next(bed, &standby, &world.scene)?;
        Ok(Self { operator: standby, world, _announcer: announcer, _balancer: balancer })
    }

    /// Prints changes; ends only when the operator ends.
    pub(crate) async fn stay(&mut self) -> Result<()> {
        println!("\nRunning until Ctrl-C. What changes from here on is printed below.");
        let mut changes = Changes::from_here(&self.world.scene);
        let mut look = interval(Duration::from_secs(1));
        loop {
            tokio::select! {
                news = self.world.change() => news?,
                _ = look.tick() => {
                    if !self.operator.process.is_running() {
                        bail!("the operator has ended; it said:\n{}", self.operator.process.log());
                    }
                }
            }
            changes.show(&self.world.scene);
        }
    }
}

/// Starts two and returns the leader first. The API server calls both for admission through a
/// balancer, which stands for the Service of a cluster.
async fn start_operators(
    bed: &Bed,
    binary: &Path,
    balancer: &Balancer,
) -> Result<(Operator, Operator)> {
    install(bed).await?;
    install_kubevirt(bed).await?;
    world::watchable(&bed.admin()).await?;
    println!("      applied: crds, config/rbac, and KubeVirt's kinds without KubeVirt");
    let start = |identity: &str| Start {
        // Set here so that the user's environment variables do not override it.
        lease: Some(LEASE.to_owned()),
        log: Some("info".to_owned()),
        identity: Some(identity.to_owned()),
        admission: Some(format!("https://{}", balancer.address())),
        ..Start::default()
    };
    let leader = Operator::start(bed, binary, start("operator-a")).await?;
    leader.leads().await?;
    let standby = Operator::start(bed, binary, start("operator-b")).await?;
    standby.ready().await?;
    for operator in [&leader, &standby] {
        balancer.add(operator.admission.context("admission does not listen")?, operator.http);
    }
    eventually(PATIENCE, "answer of admission", async || {
        let said = refusal(bed, REVERSED).await;
        if said.contains(REFUSED) { Ok(true) } else { Err(said) }
    })
    .await?;
    let leads = [leader.metric("hgo_leader", &[]).await?, standby.metric("hgo_leader", &[]).await?];
    ensure!(leads[0] > 0.5 && leads[1] < 0.5, "hgo_leader of a and b: {leads:?}");
    let holder = holder(bed).await?;
    ensure!(holder == "operator-a", "the Lease is held by {holder:?}");
    println!(
        "      operator-a (process {}) leads, operator-b (process {}) stands by; both answer for \
         admission",
        leader.process.pid(),
        standby.process.pid()
    );
    Ok((leader, standby))
}

async fn holder(bed: &Bed) -> Result<String> {
    let (namespace, name) = LEASE.split_once('/').context("the Lease has no namespace")?;
    let path = "jsonpath={.spec.holderIdentity}";
    bed.kubectl(&["-n", namespace, "get", "lease", name, "-o", path]).await
}

async fn show_samples(bed: &Bed, world: &mut World) -> Result<()> {
    println!("      MS: from seeing the LoadBalancer to seeing its address, in milliseconds\n");
    let mut table = Table::new();
    let start = Instant::now();
    let samples = folder("config/samples")?;
    let look = |scene: &Scene| {
        table.show(scene);
        as_expected(scene).map(|()| true)
    };
    let waited = world.until(PATIENCE, "expected state of all samples", look);
    let ((), ()) = tokio::try_join!(bed.apply_file(samples), waited)?;
    let took = start.elapsed().as_millis();
    // The command may have ended after the last address came.
    as_expected(&world.scene).map_err(anyhow::Error::msg)?;
    table.finish(&world.scene);
    let (with, all) = (world.scene.addresses().len(), world.scene.balancers.len());
    println!(
        "\n      {with} of {all} have an address, the others a reason why not, {took} ms after the \
         start of kubectl"
    );
    Ok(())
}

/// kubectl's output for a pool of this range. Empty: the pool is accepted.
async fn refusal(bed: &Bed, range: &str) -> String {
    let pool = format!(
        "apiVersion: loadbalancer.harvesterhci.io/v1beta1\nkind: IPPool\nmetadata: {{name: mistake}}\n\
         spec: {{ranges: [{range}]}}\n"
    );
    let dry_run = ["create", "--dry-run=server", "-f", "-"];
    let said = bed.kubectl_with_input(&dry_run, &pool).await;
    said.err().map(|error| error.to_string()).unwrap_or_default()
}

async fn show_refusal(bed: &Bed) -> Result<()> {
    let said = refusal(bed, OVERLAPPING).await;
    let at = said.find(REFUSED).with_context(|| format!("it was not refused: {said:?}"))?;
    let once = said.matches("spec.ranges[0]: ").count() == 1;
    ensure!(once && said.contains("IPPool global"), "it was refused for something else: {said}");
    println!("      a pool of 10.20.0.128/25, while the global one goes up to 10.20.0.200:");
    println!("      {}", said.get(at..).unwrap_or_default().trim());
    Ok(())
}

/// Checks that every sample has its final state; the error is the first difference.
fn as_expected(scene: &Scene) -> Result<(), String> {
    for (key, pool, reason) in EXPECTED {
        let seen = scene.balancers.get(key).ok_or(format!("{key} is not there"))?;
        let held = seen.now.address.is_some() == (reason != "IPPoolNotFound");
        if (seen.now.pool.as_str(), seen.now.reason.as_str()) != (pool, reason) || !held {
            return Err(format!("{:?} instead of {pool}, {reason}", seen.now));
        }
    }
    let missing = TINY.iter().any(|key| !scene.balancers.contains_key(*key));
    if missing || waiters(scene).len() != 1 || scene.holders("tiny").len() != 2 {
        return Err("of three, one does not wait for the two others' pool".to_owned());
    }
    match scene.balancers.values().find(|seen| !seen.settled()) {
        Some(seen) => Err(format!("{} is not settled", seen.now.key)),
        None if scene.pools.len() < 4 => Err("a pool is missing".to_owned()),
        None => match scene.pools.values().find(|pool| pool.ready != "True") {
            Some(pool) => Err(format!("{} is not ready", pool.name)),
            None => Ok(()),
        },
    }
}

/// LoadBalancers that wait for an address of the pool of two, by name.
fn waiters(scene: &Scene) -> Vec<String> {
    let all = scene.balancers.values().map(|seen| &seen.now);
    let waiting = all.filter(|lb| {
        lb.pool == "tiny"
            && lb.address.is_none()
            && lb.ready == "False"
            && lb.reason == "NoAvailableIP"
    });
    waiting.map(|lb| lb.key.clone()).collect()
}

async fn free_one(bed: &Bed, world: &mut World) -> Result<()> {
    let oldest = waiters(&world.scene).pop().context("no LoadBalancer waits")?;
    let holder = world.scene.holders("tiny").first().copied().cloned().context("no holder")?;
    let freed = holder.address.context("no address to free")?;
    let api = balancers(&bed.admin(), "demo");
    create(&api, LATE, Some("tiny")).await?;
    let late = format!("demo/{LATE}");
    world.until(PATIENCE, "second waiter", |scene| waiters(scene).contains(&late)).await?;
    println!("      {oldest} waits since step 3, {late} since now; deleting {}", holder.key);

    let start = Instant::now();
    let name = holder.key.trim_start_matches("demo/");
    api.delete(name, &DeleteParams::default()).await?;
    let (address, at) = world
        .until(PATIENCE, &format!("address of {oldest}"), |scene| {
            let seen = scene.balancers.get(&oldest)?;
            Some((seen.now.address.clone()?, seen.addressed?))
        })
        .await?;
    ensure!(address == freed, "{oldest} got {address} instead of {freed}");
    ensure!(waiters(&world.scene) == [late.clone()], "{late} does not wait any more");
    // An object that is being deleted shows its former address until it is gone.
    let gone = |scene: &Scene| !scene.balancers.contains_key(&holder.key);
    world.until(PATIENCE, &format!("end of {}", holder.key), gone).await?;
    let took = at.saturating_duration_since(start).as_millis();
    println!(
        "      {oldest} got {address} {took} ms after the deletion was sent; {late} still waits"
    );
    Ok(())
}

async fn fail_over(
    bed: &Bed,
    world: &mut World,
    mut leader: Operator,
    standby: &Operator,
) -> Result<()> {
    let before = owned(&world.scene);
    let start = Instant::now();
    leader.process.kill9()?;
    // Until the balancer notices, some requests still go to the dead operator and fail.
    let api = balancers(&bed.admin(), "default");
    eventually(PATIENCE, "creation", async || create(&api, AFTER, None).await.map(|()| true))
        .await?;
    let key = format!("default/{AFTER}");
    let (address, at) = world
        .until(PATIENCE, "address from the standby", |scene| {
            let seen = scene.balancers.get(&key)?;
            Some((seen.now.address.clone()?, seen.addressed?))
        })
        .await?;
    let took = at.saturating_duration_since(start).as_millis();
    eventually(PATIENCE, "standby that leads", async || {
        standby.metric("hgo_leader", &[]).await.map(|leads| leads > 0.5)
    })
    .await?;
    let holder = holder(bed).await?;
    ensure!(holder == "operator-b", "the Lease is held by {holder:?}");
    println!("      operator-b gave {key} {address} {took} ms after the kill");

    let mut after = owned(&world.scene);
    after.remove(&key);
    ensure!(after == before, "addresses have moved: {before:?} became {after:?}");
    println!("      checked: the {} addresses given before are where they were", before.len());
    Ok(())
}

fn owned(scene: &Scene) -> BTreeMap<String, String> {
    let all = scene.addresses().into_iter();
    all.map(|(key, address)| (key.to_owned(), address.to_owned())).collect()
}

fn say_what_next(bed: &Bed, operator: &Operator, scene: &Scene) -> Result<()> {
    let samples = folder("config/samples")?;
    println!("      export KUBECONFIG={}", bed.kubeconfig().display());
    let kubectl = bed.programs().path("kubectl");
    let dir = kubectl.parent().unwrap_or(kubectl).display();
    println!("      export PATH=\"{dir}:$PATH\"    # kubectl is there");
    println!("      kubectl get lb,pool -A");
    println!("      kubectl describe pool tiny");
    println!("      kubectl -n demo get vmi,svc,endpointslices");
    println!("      kubectl -n demo describe lb missing-pool    # its condition and its Events");
    println!("      curl -s http://{}/metrics | grep hgo_", operator.http);
    println!("      # Another LoadBalancer:");
    println!(
        "      sed s/dev-default-web/mine/ {samples}/20-loadbalancer-guest.yaml | kubectl apply -f -"
    );
    if let Some(holder) = scene.holders("tiny").first() {
        println!("      # An address for demo/{LATE}, which still waits:");
        println!("      kubectl -n demo delete lb {}", holder.key.trim_start_matches("demo/"));
    }
    Ok(())
}
