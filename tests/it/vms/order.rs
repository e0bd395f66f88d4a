//! Endpoints do not depend on the order in which others write.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use kube::Client;
use kube::api::PostParams;
use serde_json::json;
use testbed::kubevirt::{Launcher, Nic, Phase, Ready, Vm};
use testbed::{Proxy, Start, eventually};

use super::raw;
use crate::support::{Cluster, LATER, lb};

/// A write of virt-controller, of the kubelet, or of the owner of the load balancer.
enum Write {
    Create(Vm),
    Change(Vm),
    Delete(Vm),
    LetGo(Vm),
    /// A pod of the VM's run with this number.
    Pod(Vm, usize, Launcher),
    PodStatus(Vm, Launcher),
    /// Whether it is gone at once.
    PodDelete(Vm, Launcher, bool),
    LoadBalancer,
}

/// Writes that keep their order: those of a VMI, or of its pods.
type Lane = Vec<Write>;

/// Result that every order must have.
const END: [(&str, &str); 6] = [
    ("deleted-later", "10.52.0.5 serving, terminating on node-1"),
    ("failed-move", "10.52.0.3 ready on node-1"),
    ("moved", "10.52.0.2 ready on node-2"),
    ("paused", "10.52.0.8 not ready on node-1"),
    ("plain", "10.52.0.1 ready on node-1"),
    ("restarted", "10.52.0.7 ready on node-2"),
];

fn running(name: &str, address: &str, node: &str) -> Vm {
    Vm {
        phase: Phase::Running,
        ready: Some(Ready::yes()),
        agent: true,
        node: Some(node.to_owned()),
        ..Vm::new("", name).label("app", "web").nic(Nic::pod("eth0", &[address]))
    }
}

/// Writes from nothing to a running VM: the VMI's and those of its first pod.
fn start(vm: &Vm, run: usize) -> (Lane, Lane) {
    let node = vm.node.clone().unwrap_or_default();
    let asked = Vm {
        phase: Phase::Pending,
        ready: Some(Ready::no("PodNotExists")),
        agent: false,
        node: None,
        ..vm.clone()
    };
    let scheduled = Vm {
        phase: Phase::Scheduled,
        ready: Some(Ready::no("GuestNotRunning")),
        node: vm.node.clone(),
        ..asked.clone()
    };
    let without_agent = Vm { agent: false, ..vm.clone() };
    let vmi = vec![
        Write::Create(asked),
        Write::Change(scheduled),
        Write::Change(without_agent),
        Write::Change(vm.clone()),
    ];
    let pod = raw::launcher(vm, run, &node, true);
    let waiting =
        Launcher { phase: "Pending", ready: Ready::no("ContainersNotReady"), ..pod.clone() };
    let pods = vec![
        Write::Pod(vm.clone(), run, pod.clone()),
        Write::PodStatus(vm.clone(), waiting),
        Write::PodStatus(vm.clone(), pod),
    ];
    (vmi, pods)
}

fn stories() -> Vec<Lane> {
    let mut lanes = vec![vec![Write::LoadBalancer]];
    let mut add_story = |vm: &Vm, vmi_goes_on: Lane, pods_go_on: Lane| {
        let (mut vmi, mut pods) = start(vm, 1);
        vmi.extend(vmi_goes_on);
        pods.extend(pods_go_on);
        lanes.extend([vmi, pods]);
    };
    let ended = |launcher: Launcher, phase| Launcher {
        phase,
        ready: Ready::no("PodCompleted"),
        ..launcher
    };
    let vm = running("plain", "10.52.0.1", "node-1");
    add_story(&vm, vec![], vec![]);

    let vm = running("moved", "10.52.0.2", "node-1");
    let (source, target) =
        (raw::launcher(&vm, 1, "node-1", true), raw::launcher(&vm, 2, "node-2", true));
    let there = running("moved", "10.52.0.2", "node-2");
    add_story(
        &vm,
        vec![Write::Change(there)],
        vec![
            Write::Pod(vm.clone(), 1, target.clone()),
            Write::PodStatus(vm.clone(), target),
            Write::PodStatus(vm.clone(), ended(source.clone(), "Succeeded")),
            Write::PodDelete(vm.clone(), source, true),
        ],
    );

    let vm = running("failed-move", "10.52.0.3", "node-1");
    let target = raw::launcher(&vm, 2, "node-2", true);
    add_story(
        &vm,
        vec![],
        vec![
            Write::Pod(vm.clone(), 1, target.clone()),
            Write::PodStatus(vm.clone(), target.clone()),
            Write::PodStatus(vm.clone(), ended(target, "Failed")),
        ],
    );

    // Its guest shut itself down: no endpoint.
    let vm = running("shut-down", "10.52.0.4", "node-1");
    let over =
        Vm { phase: Phase::Succeeded, ready: Some(Ready::no("GuestNotRunning")), ..vm.clone() };
    let pod = raw::launcher(&vm, 1, "node-1", true);
    add_story(
        &vm,
        vec![Write::Change(over)],
        vec![Write::PodStatus(vm.clone(), ended(pod, "Succeeded"))],
    );

    let vm = running("deleted-later", "10.52.0.5", "node-1");
    let leaving = Vm { ready: Some(Ready::no("PodTerminating")), ..vm.clone() };
    let pod = raw::launcher(&vm, 1, "node-1", true);
    add_story(
        &vm,
        vec![Write::Delete(vm.clone()), Write::Change(leaving)],
        vec![Write::PodDelete(vm.clone(), pod, false)],
    );

    // Stopped for good: no endpoint.
    let vm = running("stopped", "10.52.0.6", "node-1");
    let pod = raw::launcher(&vm, 1, "node-1", true);
    add_story(
        &vm,
        vec![Write::Delete(vm.clone()), Write::LetGo(vm.clone())],
        vec![
            Write::PodDelete(vm.clone(), pod.clone(), false),
            Write::PodDelete(vm.clone(), pod, true),
        ],
    );

    let vm = running("restarted", "10.52.0.77", "node-1");
    let (again, more_pods) = start(&running("restarted", "10.52.0.7", "node-2"), 2);
    let pod = raw::launcher(&vm, 1, "node-1", true);
    let mut end = vec![Write::Delete(vm.clone()), Write::LetGo(vm.clone())];
    end.extend(again);
    let mut pods = vec![Write::PodDelete(vm.clone(), pod, true)];
    pods.extend(more_pods);
    add_story(&vm, end, pods);

    let vm = running("paused", "10.52.0.8", "node-1");
    let no = Ready::no("ReadinessGatesNotReady");
    let paused = Vm { paused: true, ready: Some(no.clone()), ..vm.clone() };
    let pod = raw::launcher(&vm, 1, "node-1", true);
    let pod = Launcher { unpaused: false, ready: no, ..pod };
    add_story(&vm, vec![Write::Change(paused)], vec![Write::PodStatus(vm.clone(), pod)]);

    // It belongs to no LoadBalancer in the end: no endpoint.
    let vm = running("relabelled", "10.52.0.9", "node-1");
    let other = vm.clone().label("app", "other");
    add_story(&vm, vec![Write::Change(other)], vec![]);
    lanes
}

/// kube-vip 1.2 announces nothing for a Service without endpoints.
#[tokio::test(flavor = "multi_thread")]
async fn slices_are_made_before_the_service() -> Result<()> {
    let cluster = Cluster::start().await?;
    let proxy = Proxy::start(&cluster.bed).await?;
    let via = Some((proxy.url().to_owned(), proxy.ca_pem().to_owned()));
    let operator = cluster.standby(Start { via, ..Start::default() }).await?;
    operator.leads().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    cluster.lb_with("web", json!({})).await?;
    cluster.waits("web", "NoRunningBackends").await?;
    let made = proxy.calls().into_iter().filter(|record| record.call.method == "POST");
    let made: Vec<String> = made
        .filter_map(|record| record.call.resource().map(str::to_owned))
        .filter(|resource| ["endpointslices", "services"].contains(&resource.as_str()))
        .collect();
    assert_eq!(made, ["endpointslices", "services"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn any_order_of_writes_leads_to_the_same_endpoints() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let _operator = cluster.operator().await?;
    let seeds = 1..=8_u64;
    try_join_all(seeds.clone().map(|seed| play(&cluster, seed))).await?;
    let expected: BTreeMap<String, String> =
        END.iter().map(|(name, end)| ((*name).to_owned(), (*end).to_owned())).collect();
    for seed in seeds {
        let namespace = format!("order-{seed}");
        eventually(LATER, &format!("end of seed {seed}: {expected:#?}"), async || {
            let found = cluster.endpoints_in(&namespace, "web").await;
            let found = found.map_err(|e| format!("{e:#}"))?;
            let found: BTreeMap<String, String> = found
                .into_iter()
                .map(|(name, e)| (name, format!("{} {} on {}", e.address, e.state, e.node)))
                .collect();
            if found == expected { Ok(true) } else { Err(format!("{found:#?}")) }
        })
        .await?;
    }
    Ok(())
}

/// Makes all writes, in an order by the seed. Each lane keeps its own order; a pod comes after the
/// run of its VM.
async fn play(cluster: &Cluster, seed: u64) -> Result<()> {
    let namespace = format!("order-{seed}");
    raw::namespace(&cluster.client, &namespace).await?;
    let mut lanes: Vec<std::collections::VecDeque<Write>> =
        stories().into_iter().map(Into::into).collect();
    // UIDs of the runs of each VM.
    let mut runs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut dice = Dice(seed);
    loop {
        let may_go: Vec<usize> = (0..lanes.len())
            .filter(|lane| match lanes[*lane].front() {
                None => false,
                Some(Write::Pod(vm, run, _)) => runs.get(&vm.name).is_some_and(|r| r.len() >= *run),
                Some(_) => true,
            })
            .collect();
        if may_go.is_empty() {
            break;
        }
        let lane = may_go[dice.below(may_go.len())];
        let write = lanes[lane].pop_front().context("an empty lane")?;
        act(cluster, &namespace, write, &mut runs).await?;
    }
    assert!(lanes.iter().all(std::collections::VecDeque::is_empty));
    Ok(())
}

async fn act(
    cluster: &Cluster,
    namespace: &str,
    write: Write,
    runs: &mut BTreeMap<String, Vec<String>>,
) -> Result<()> {
    let client: &Client = &cluster.client;
    let here = |vm: Vm| Vm { namespace: namespace.to_owned(), ..vm };
    match write {
        Write::Create(vm) => {
            let name = vm.name.clone();
            let uid = raw::create(client, &here(vm)).await?;
            runs.entry(name).or_default().push(uid);
        }
        Write::Change(vm) => raw::write(client, &here(vm)).await?,
        Write::Delete(vm) => raw::delete(client, &here(vm)).await?,
        Write::LetGo(vm) => raw::let_go(client, &here(vm)).await?,
        Write::Pod(vm, run, pod) => {
            let uid = runs.get(&vm.name).and_then(|runs| runs.get(run - 1)).context("no run")?;
            raw::create_pod(client, &here(vm), uid, &pod).await?;
        }
        Write::PodStatus(vm, pod) => raw::write_pod(client, &here(vm), &pod).await?,
        Write::PodDelete(vm, pod, at_once) => {
            raw::delete_pod(client, &here(vm), &pod, at_once).await?;
        }
        Write::LoadBalancer => {
            let mut lb = lb("web", &json!({"backendServerSelector": {"app": ["web"]}}))?;
            lb.metadata.namespace = Some(namespace.to_owned());
            let lbs = kube::Api::namespaced(client.clone(), namespace);
            lbs.create(&PostParams::default(), &lb).await?;
        }
    }
    Ok(())
}

/// Random numbers from a seed (xorshift64*).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(number).unwrap_or_default() % bound
    }
}
