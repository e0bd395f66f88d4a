//! The steps of the demo. Each step checks its output before it prints it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use kube::api::DeleteParams;
use testbed::kubevirt::install_kubevirt;
use testbed::net::obstacle;
use testbed::{
    Announcer, Balancer, Bed, Operator, Start, agent_template, eventually, install,
    install_credentials,
};
use tokio::time::interval;

use crate::objects::{balancers, create};
use crate::scene::Scene;
use crate::table::{Changes, Table};
use crate::tour::Tour;
use crate::world::{self, World};
use crate::{PATIENCE, burst, folder, guest, lan, renewal, vms};

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
const IDENTITIES: [&str; 2] = ["operator-a", "operator-b"];
const AFTER: &str = "after-failover";

/// A control plane with a running operator, the watches on it, and the parts of a cluster that are
/// played.
pub(crate) struct Stage {
    operator: Operator,
    world: World,
    _lan: Option<lan::Lan>,
    _guest: guest::Guest,
    _announcer: Announcer,
    _balancer: Balancer,
}

impl Stage {
    /// Shows all steps but the first; the remaining operator continues to run.
    pub(crate) async fn show(
        tour: &mut Tour,
        host: &Bed,
        guest: &Bed,
        binary: &Path,
    ) -> Result<Self> {
        let balancer = Balancer::start().await?;
        let title = "The operator, installed under its own account, twice";
        let operators =
            tour.step("operator", title, start_operators(host, binary, &balancer)).await?;
        let mut world = World::watch(&host.admin());

        let title = "Pools and LoadBalancers: kubectl apply -f config/samples";
        tour.step("pools", title, show_samples(host, &mut world)).await?;

        let title = "A pool that overlaps another one is refused, with the reason";
        tour.step("refusal", title, show_refusal(host)).await?;

        let title = "200 LoadBalancers at once from the global pool";
        tour.step("burst", title, burst::run(host, &mut world)).await?;

        let title = "An address of a full pool is freed: the one that waited longest gets it";
        tour.step("full pool", title, free_one(host, &mut world)).await?;

        let title = "Two VMs behind demo/vm-web; one is paused, one stops";
        let announcer = Box::pin(tour.step("VMs", title, vms::run(host))).await?;

        let title = "A Service in a guest cluster";
        let guest = tour.step("guest cluster", title, guest::run(host, guest, binary)).await?;

        let title = "An address of a DHCP server";
        let lan = match obstacle(&lan::PROGRAMS).await? {
            None => Some(tour.step("DHCP", title, lan::run(host, &mut world, binary)).await?),
            Some(why) => {
                tour.skip("DHCP", title, &why);
                None
            }
        };

        let title = "A credential is renewed while a client uses it (about 15 seconds)";
        tour.step("credential", title, renewal::run(host)).await?;

        let title = "kill -9 the leader: the standby takes over";
        let operator = tour.step("failover", title, fail_over(host, &mut world, operators)).await?;

        Ok(Self {
            operator,
            world,
            _lan: lan,
            _guest: guest,
            _announcer: announcer,
            _balancer: balancer,
        })
    }

    /// Commands to look around with, while everything runs. They use a file of variables.
    pub(crate) fn what_next(&self, host: &Bed, guest: &Bed) -> Result<String> {
        let kubectl = host.programs().path("kubectl");
        let dir = kubectl.parent().unwrap_or(kubectl).display();
        let (of_host, of_guest) = (host.kubeconfig().display(), guest.kubeconfig().display());
        let env = host.dir().join("env");
        let variables =
            format!("export KUBECONFIG={of_host} GUEST={of_guest}\nexport PATH=\"{dir}:$PATH\"\n");
        std::fs::write(&env, variables)?;
        let holder = self.world.scene.holders("tiny").first().map(|holder| holder.key.clone());
        let holder = holder.context("no address of the pool tiny is in use")?;
        let lines = [
            (format!(". {}", env.display()), "kubectl, and the kubeconfigs of both clusters"),
            ("kubectl get pool,lb,dhcpl,rotation -A".to_owned(), ""),
            ("kubectl -n demo describe lb missing-pool".to_owned(), "its condition and its Events"),
            (
                format!("kubectl -n demo delete lb {}", holder.trim_start_matches("demo/")),
                "the next that waits gets its address",
            ),
            (
                "kubectl --kubeconfig $GUEST expose pod web --name my --port 80 --type LoadBalancer"
                    .to_owned(),
                "",
            ),
            ("kubectl --kubeconfig $GUEST get service".to_owned(), ""),
            (format!("curl -s http://{}/metrics | grep hgo_", self.operator.http), ""),
        ];
        Ok(next("Try next, in another terminal", &lines))
    }

    /// Prints changes; ends only when the operator ends.
    pub(crate) async fn stay(&mut self) -> Result<()> {
        println!("Running until Ctrl-C. What changes from here on is printed below.");
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

/// Starts two, of which the first one leads. The API server calls both for admission through a
/// balancer, which stands for the Service of a cluster.
async fn start_operators(
    bed: &Bed,
    binary: &Path,
    balancer: &Balancer,
) -> Result<([Operator; 2], String)> {
    let begun = Instant::now();
    install(bed).await?;
    install_kubevirt(bed).await?;
    install_credentials(bed).await?;
    world::watchable(&bed.admin()).await?;
    println!("      applied: crds, config/rbac, and KubeVirt's kinds without KubeVirt");
    let credentials = ["--credential-namespaces", "default"].map(str::to_owned);
    let options = [credentials, agent_template()?].concat();
    let start = |identity: &str| Start {
        // Set here so that the user's environment variables do not override it.
        lease: Some(LEASE.to_owned()),
        log: Some("info".to_owned()),
        identity: Some(identity.to_owned()),
        admission: Some(format!("https://{}", balancer.address())),
        options: options.clone(),
        ..Start::default()
    };
    let leader = Operator::start(bed, binary, start(IDENTITIES[0])).await?;
    leader.leads().await?;
    let standby = Operator::start(bed, binary, start(IDENTITIES[1])).await?;
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
    ensure!(holder == IDENTITIES[0], "the Lease is held by {holder:?}");
    println!(
        "      operator-a (process {}) leads, operator-b (process {}) stands by; both answer for \
         admission",
        leader.process.pid(),
        standby.process.pid()
    );
    let took = begun.elapsed().as_millis();
    Ok(([leader, standby], format!("installed, one leads and one stands by after {took} ms")))
}

async fn holder(bed: &Bed) -> Result<String> {
    let (namespace, name) = LEASE.split_once('/').context("the Lease has no namespace")?;
    let path = "jsonpath={.spec.holderIdentity}";
    bed.kubectl(&["-n", namespace, "get", "lease", name, "-o", path]).await
}

async fn show_samples(bed: &Bed, world: &mut World) -> Result<((), String)> {
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
    let seen =
        format!("{with} of {all} LoadBalancers have an address, the others a reason why not");
    println!("\n      {seen}, {took} ms after the start of kubectl");
    Ok(((), seen))
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

async fn show_refusal(bed: &Bed) -> Result<((), String)> {
    let said = refusal(bed, OVERLAPPING).await;
    let at = said.find(REFUSED).with_context(|| format!("it was not refused: {said:?}"))?;
    let once = said.matches("spec.ranges[0]: ").count() == 1;
    ensure!(once && said.contains("IPPool global"), "it was refused for something else: {said}");
    println!("      a pool of 10.20.0.128/25, while the global one goes up to 10.20.0.200:");
    println!("      {}", said.get(at..).unwrap_or_default().trim());
    Ok(((), "a pool that overlaps another one is refused, with the reason".to_owned()))
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

async fn free_one(bed: &Bed, world: &mut World) -> Result<((), String)> {
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
    Ok(((), format!("{oldest}, which waited longest, gets {address} after {took} ms")))
}

/// Kills the leader and returns the other one. On a busy machine it may have become the leader
/// before.
async fn fail_over(
    bed: &Bed,
    world: &mut World,
    operators: [Operator; 2],
) -> Result<(Operator, String)> {
    let leads = eventually(PATIENCE, "leader", async || {
        let holder = holder(bed).await.map_err(|error| format!("{error:#}"))?;
        let leads = IDENTITIES.iter().position(|identity| *identity == holder);
        leads.map(Some).ok_or_else(|| format!("the Lease is held by {holder:?}"))
    })
    .await?;
    let [first, second] = operators;
    let (mut leader, standby) = if leads == 0 { (first, second) } else { (second, first) };
    let (former, next) = (IDENTITIES[leads], IDENTITIES[1 - leads]);
    println!("      {former} leads: its process {} is killed", leader.process.pid());
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
    ensure!(holder == next, "the Lease is held by {holder:?}");
    println!("      {next} gave {key} {address} {took} ms after the kill");

    let mut after = owned(&world.scene);
    after.remove(&key);
    ensure!(after == before, "addresses have moved: {before:?} became {after:?}");
    let count = before.len();
    println!("      checked: the {count} addresses given before are where they were");
    Ok((
        standby,
        format!("an address {took} ms after kill -9; {count} others stay where they were"),
    ))
}

fn owned(scene: &Scene) -> BTreeMap<String, String> {
    let all = scene.addresses().into_iter();
    all.map(|(key, address)| (key.to_owned(), address.to_owned())).collect()
}

/// Next things to try after a demo that ends by itself.
pub(crate) fn what_next_without_it() -> String {
    let lines = [
        ("make demo", "without DEMO_ONCE: it stays, with kubectl for both clusters"),
        ("docs/install.md", "the chart, and what it needs"),
        ("docs/take-over.md", "on a Harvester: from the Go controller to this one, and back"),
        ("docs/README.md", "all pages"),
    ];
    next("Next", &lines.map(|(what, why)| (what.to_owned(), why)))
}

/// A heading and its lines, each with a comment or none.
fn next(heading: &str, lines: &[(String, &str)]) -> String {
    let explained = lines.iter().filter(|(_, why)| !why.is_empty());
    let width = explained.map(|(what, _)| what.len()).max().unwrap_or_default();
    let line = |(what, why): &(String, &str)| match *why {
        "" => format!("  {what}\n"),
        why => format!("  {what:<width$}  # {why}\n"),
    };
    format!("\n{heading}:\n") + &lines.iter().map(line).collect::<String>()
}
