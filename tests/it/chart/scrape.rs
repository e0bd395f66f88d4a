//! A real Prometheus scrapes the operator while LoadBalancers come and go, and an agent that leases
//! for one of them. It has the chart's rules, and gets the dashboard's queries.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use testbed::kubevirt::{Guest, Nic, Vm, create_node};
use testbed::net::dhcp::{Kind, Scope};
use testbed::{
    Managed, Programs, Start, eventually, http_post, install_credentials, repository, tools,
};
use tokio::net::TcpListener;

use super::{monitoring, read};
use crate::dhcp::fixture::{NETWORK, Site, on_site_with_webhooks};
use crate::leases::Agent;
use crate::support::{Cluster, LATER, SOON};

const AT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);
/// Metrics that only appear after a fault.
const RARE: [&str; 6] = [
    "hgo_connections_evicted_total",
    "hgo_ledger_repairs_total",
    "hgo_other_controller_leads",
    "hgo_registration_repairs_total",
    "hgo_unreadable_objects_total",
    "hgo_watch_errors_total",
];

/// Options of an operator with every feature that has metrics.
fn start() -> Start {
    let admission = Some("https://127.0.0.1:0".to_owned());
    let mut start = Start { admission, ..crate::rotation::start() };
    start.options.extend(["--dhcp-networks", NETWORK].map(str::to_owned));
    start
}

#[test]
fn a_prometheus_finds_every_metric_and_an_answer_to_every_query() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tools = runtime.block_on(tools())?;
    on_site_with_webhooks(Kind::Dnsmasq, Scope::new([10, 77, 0, 1]), async move |site: Site| {
        let Site { cluster, host, .. } = &site;
        install_credentials(&cluster.bed).await?;
        let operator = cluster.standby(start()).await?;
        operator.leads().await?;
        let real = site.agent().await?;
        let targets = [("operator", operator.http), ("agent", real.http)];
        let prometheus = Prometheus::start(cluster, &tools, &targets)?;

        // A VM that answers its health check, then does not.
        host.ip("address add 10.200.0.11/32 dev lo").await?;
        let backend = TcpListener::bind("10.200.0.11:8080").await?;
        create_node(&cluster.client, "node-1", &[], "10.200.0.1").await?;
        let vm = Vm::new("default", "vm").label("app", "web");
        let vm = vm.nic(Nic::pod("eth0", &["10.200.0.11"]));
        let _guest = Guest::run(&cluster.client, vm, "node-1").await?;
        cluster.pool("small", json!({"subnet": "10.1.0.0/30", "gateway": "10.1.0.1"})).await?;
        let listeners = json!([{"name": "a", "port": 80, "protocol": "TCP", "backendPort": 8080}]);
        let check = json!({"port": 8080, "periodSeconds": 1, "timeoutSeconds": 1,
            "failureThreshold": 1});
        cluster
            .lb_with(
                "web",
                json!({"listeners": listeners, "healthCheck": check, "ipam": "dhcp",
                "backendServerSelector": {"app": ["web"]}}),
            )
            .await?;
        cluster.waits_for_endpoints("web", (1, 1)).await?;
        drop(backend);
        cluster.waits_for_endpoints("web", (1, 0)).await?;

        // A lease by the real agent, and one by a played agent: moved by the server.
        site.ask("really-leased").await?;
        site.has("really-leased").await?;
        let agent = Agent::start(cluster, "default/vlan7").await?;
        cluster.dhcp_lb("leased", &[]).await?;
        for ip in ["10.7.0.20", "10.7.0.21"] {
            cluster.grant("leased", ip).await?;
            cluster.publishes("leased", ip).await?;
        }

        let _rancher = crate::rotation::watched(cluster).await?;

        // 500 are created, some wait, all are deleted.
        cluster
            .patch_pool(
                "small",
                json!({"spec": {"ranges": [
            {"subnet": "10.2.0.0/23", "gateway": "10.2.0.1", "rangeEnd": "10.2.1.235"}]}}),
            )
            .await?;
        for part in 0..5 {
            cluster.lbs_at_once((0..100).map(|n| format!("lb-{part}-{n}"))).await?;
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        let waiters = "hgo:waiters:leader";
        eventually(LATER, "waiters", async || prometheus.any(waiters).await).await?;

        // Each query has a value of its own, not only the zero that it falls back to.
        for (title, query) in monitoring::queries() {
            let query = query.replace("$pool", ".*").replace("$__rate_interval", "5m");
            let own = query.split(" or ").next().unwrap_or_default();
            let query = if RARE.iter().any(|name| own.contains(name)) { &query } else { own };
            let what = format!("an answer to {title}: {query}");
            eventually(SOON, &what, async || prometheus.any(query).await).await?;
        }
        for rule in ["hgo:pool_used:ratio", "hgo:pool_addresses_available:leader"] {
            eventually(SOON, rule, async || prometheus.any(rule).await).await?;
        }
        ensure!(!prometheus.any("{__name__=~\"hgo_.+\"} < 0").await?, "a metric is negative");
        for (_, target) in targets {
            prometheus.lint(&testbed::http_get(target, "/metrics").await?.1)?;
        }
        let failed = "sum(prometheus_rule_evaluation_failures_total) > 0";
        ensure!(!prometheus.any(failed).await?, "a rule could not be evaluated");
        let bounds = documented();
        let documented: BTreeSet<String> = bounds.keys().cloned().collect();
        eventually(SOON, "sight of all that is in the reference", async || {
            let names = prometheus.names().await.map_err(|e| format!("{e:#}"))?;
            let missing: Vec<_> = documented
                .difference(&names)
                .filter(|name| !RARE.contains(&name.as_str()))
                .collect();
            if missing.is_empty() { Ok(true) } else { Err(format!("{missing:?}")) }
        })
        .await?;
        let names = prometheus.names().await?;
        let unknown: Vec<_> = names.difference(&documented).collect();
        ensure!(unknown.is_empty(), "not in the reference: {unknown:?}");

        // A series ends with its object, and the number of series does not grow with the number of
        // objects. There are one pool and one API key, two networks and two TokenRotations.
        for (job, _) in targets {
            prometheus.bounded(job, &bounds).await?;
        }
        cluster.delete_all().await?;
        drop(agent);
        cluster.bed.kubectl(&["delete", "ippool", "small"]).await?;
        eventually(SOON, "end of the pool's series", async || {
            prometheus.any("hgo_pool_addresses").await.map(|any| !any)
        })
        .await
    })
}

/// Every documented metric, and its largest number of series.
fn documented() -> BTreeMap<String, usize> {
    let page = read("docs/reference/metrics.md");
    let rows = page.lines().filter(|line| line.starts_with("| `hgo_"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let most = match cells[4] {
            "a pool" | "an API key" => "1",
            "a network" | "a rotation" => "2",
            "32 a rotation" => "64",
            most => most,
        };
        (cells[1].trim_matches('`').to_owned(), most.parse().unwrap())
    })
    .collect()
}

struct Prometheus {
    _process: Managed,
    promtool: std::path::PathBuf,
}

impl Prometheus {
    fn start(cluster: &Cluster, tools: &Programs, targets: &[(&str, SocketAddr)]) -> Result<Self> {
        let dir = cluster.bed.dir();
        let rules = repository().join("charts/harvester-guest-operator/files/rules.yaml");
        let jobs = targets.iter().map(|(job, target)| (*job, target.to_string()));
        let jobs = jobs.chain([("prometheus", AT.to_string())]);
        let jobs = jobs.map(
            |(job, target)| json!({"job_name": job, "static_configs": [{"targets": [target]}]}),
        );
        let config = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [rules],
            "scrape_configs": jobs.collect::<Vec<_>>(),
        });
        let file = dir.join("prometheus.yaml");
        fs::write(&file, config.to_string())?;
        let mut command = Command::new(tools.path("prometheus"));
        command
            .arg("--config.file")
            .arg(file)
            .arg("--storage.tsdb.path")
            .arg(dir.join("prometheus"))
            .args(["--web.listen-address", &AT.to_string()]);
        let process = Managed::spawn(&mut command, dir.join("prometheus.log"))?;
        Ok(Self { _process: process, promtool: tools.path("promtool").to_owned() })
    }

    /// Result of a query. The test sends some hundred queries, too many for a process of promtool
    /// each.
    async fn instant(&self, query: &str) -> Result<Vec<Value>> {
        let path = format!("/api/v1/query?query={}", percent_encoded(query));
        let (code, said) = http_post(AT, &path, "").await?;
        ensure!(code == 200, "{query}: {code} {said}");
        let answer: Value = serde_json::from_str(&said)?;
        answer["data"]["result"].as_array().cloned().with_context(|| format!("{query}: {said}"))
    }

    /// Whether the query has a result.
    async fn any(&self, query: &str) -> Result<bool> {
        Ok(!self.instant(query).await?.is_empty())
    }

    /// Checks that no metric of a job has more series than documented.
    async fn bounded(&self, job: &str, bounds: &BTreeMap<String, usize>) -> Result<()> {
        let mut all = 0;
        for (name, most) in bounds {
            let name_of = format!("{name}(_bucket|_sum|_count)?");
            let selector = format!("{{job=\"{job}\",__name__=~\"{name_of}\"}}");
            let series = self.instant(&selector).await?.len();
            ensure!(series <= *most, "{series} series of {name}, more than {most}");
            all += series;
        }
        println!("{all} series of one {job} with one pool and 503 load balancers");
        Ok(())
    }

    /// Checks names, types and helps by promtool.
    fn lint(&self, text: &str) -> Result<()> {
        let mut lint = Command::new(&self.promtool)
            .args(["check", "metrics"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()?;
        lint.stdin.take().context("no standard input")?.write_all(text.as_bytes())?;
        let output = lint.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && said.is_empty(), "promtool check metrics: {said}");
        Ok(())
    }

    /// Names of the operator's metrics seen so far.
    async fn names(&self) -> Result<BTreeSet<String>> {
        let output = tokio::process::Command::new(&self.promtool)
            .args(["query", "labels", &format!("http://{AT}"), "__name__"])
            .output()
            .await?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "promtool query labels: {said}");
        let ends = ["_bucket", "_sum", "_count"];
        Ok(String::from_utf8(output.stdout)?
            .lines()
            .filter(|name| name.starts_with("hgo_"))
            .map(|name| {
                let base = ends.iter().find_map(|end| name.strip_suffix(end));
                base.unwrap_or(name).to_owned()
            })
            .collect())
    }
}

/// Text in the form that a URL's query has it.
fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        let _ = write!(encoded, "%{byte:02X}");
        encoded
    })
}
