//! Owns the rules that kube-vip 1.2.3 sets for an address with `enable_service_security`, as on
//! Harvester (`AddIP`, `insertCommonIPTablesRules`, `insertIPTablesRulesForServicePorts` and
//! `DeleteIP` in pkg/vip/address.go): after it binds the address, three kinds of rules at the head
//! of INPUT, before all rules of kube-proxy. It writes them by iptables, whatever kube-proxy uses.

use anyhow::Result;

use super::Key;
use crate::net::Netns;

/// Rules for one address of a Service.
#[derive(Clone, Debug)]
pub(super) struct PacketFilter {
    program: &'static str,
    /// Position and rule, in the order of insertion.
    rules: Vec<(&'static str, Vec<String>)>,
}

impl PacketFilter {
    /// Builds the rules for these ports, each with its protocol.
    pub(super) fn new((namespace, name): &Key, address: &str, ports: &[(String, i32)]) -> Self {
        let comment = format!("{namespace}/{name} kube-vip load balancer IP");
        let rule = |matches: &[&str], verdict: &str| {
            let all = [&["-d", address], matches, &["-m", "comment", "--comment", &comment]];
            all.concat().into_iter().chain(["-j", verdict]).map(str::to_owned).collect()
        };
        let mut rules =
            vec![("1", rule(&["-p", "UDP", "--dport", "68"], "ACCEPT")), ("2", rule(&[], "DROP"))];
        for (protocol, port) in ports {
            rules.push(("1", rule(&["-p", protocol, "--dport", &port.to_string()], "ACCEPT")));
        }
        let program = if address.contains(':') { "ip6tables" } else { "iptables" };
        Self { program, rules }
    }

    pub(super) async fn insert(&self, host: &Netns) -> Result<()> {
        for (position, rule) in &self.rules {
            self.run(host, &["-I", "INPUT", position], rule).await?;
        }
        Ok(())
    }

    pub(super) async fn remove(&self, host: &Netns) -> Result<()> {
        for (_, rule) in &self.rules {
            self.run(host, &["-D", "INPUT"], rule).await?;
        }
        Ok(())
    }

    async fn run(&self, host: &Netns, what: &[&str], rule: &[String]) -> Result<()> {
        let args: Vec<&str> =
            ["-w"].iter().chain(what).copied().chain(rule.iter().map(String::as_str)).collect();
        host.command(self.program, &args).await?;
        Ok(())
    }
}
