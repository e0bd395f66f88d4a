//! The account of config/preview: its role only reads, and without any one right the command says which
//! is missing and goes on.

use anyhow::{Result, ensure};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use testbed::eventually;

use super::{ACCOUNT, RBAC, granted, preview};
use crate::chart::rights::{said, single};
use crate::support::{Cluster, SOON};

/// Namespace of a role, empty for the ClusterRole, and its rules.
fn roles() -> Result<Vec<(String, Vec<PolicyRule>)>> {
    let mut roles = Vec::new();
    for text in RBAC.split("---\n") {
        let object: Value = serde_saphyr::from_str(text)?;
        if object["kind"] == "ClusterRole" || object["kind"] == "Role" {
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
            roles.push((namespace.to_owned(), serde_json::from_value(object["rules"].clone())?));
        }
    }
    Ok(roles)
}

#[test]
fn the_role_has_no_verb_but_get_and_list_and_no_secrets() -> Result<()> {
    let rules: Vec<PolicyRule> = roles()?.into_iter().flat_map(|(_, rules)| rules).collect();
    ensure!(rules.len() > 15, "{rules:?}");
    for rule in single(&rules) {
        let said = said(&rule);
        ensure!(rule.verbs == ["get"] || rule.verbs == ["list"], "{said}");
        ensure!(!said.contains("secrets"), "{said}");
    }
    Ok(())
}

async fn write(client: &Client, namespace: &str, rules: &[PolicyRule]) -> Result<()> {
    let (params, patch) = (PatchParams::default(), Patch::Merge(json!({"rules": rules})));
    if namespace.is_empty() {
        Api::<ClusterRole>::all(client.clone()).patch(ACCOUNT, &params, &patch).await?;
    } else {
        let api = Api::<Role>::namespaced(client.clone(), namespace);
        api.patch(ACCOUNT, &params, &patch).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_one_right_it_says_which_and_goes_on() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.robbed();
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    cluster.lb("lb").await?;
    cluster.lb_with("web", json!({"backendServerSelector": {"app": ["web"]}})).await?;
    let kubeconfig = cluster.previewer().await?;
    granted(&kubeconfig, &[]).await?;
    let mut missed = 0;
    for (namespace, rules) in roles()? {
        for right in single(&rules) {
            let rest: Vec<_> = single(&rules).into_iter().filter(|rule| *rule != right).collect();
            write(&cluster.client, &namespace, &rest).await?;
            let words = said(&right);
            let verb = &right.verbs[0];
            let resource = right.resources.iter().flatten().next().cloned().unwrap_or_default();
            let group = right.api_groups.iter().flatten().next().cloned().unwrap_or_default();
            let full =
                if group.is_empty() { resource.clone() } else { format!("{resource}.{group}") };
            // Without these two there is nothing to say.
            let is_needed =
                verb == "list" && ["loadbalancers", "ippools"].contains(&resource.as_str());
            eventually(SOON, &format!("a plan that misses {words:?}"), async || {
                let printed =
                    preview(&kubeconfig, &[]).await.map_err(|error| format!("{error:#}"))?;
                let missing = format!("the right to {verb} {full}");
                let is_named = printed.text.lines().any(|line| line.contains(&missing))
                    || printed.text.contains(&format!("cannot {verb} resource \"{resource}\""));
                let goes_on = printed.text.contains("nothing was written: this command only reads")
                    && printed.text.contains("default/lb");
                if is_named && printed.ok != is_needed && goes_on != is_needed {
                    Ok(true)
                } else {
                    Err(printed.text)
                }
            })
            .await?;
            write(&cluster.client, &namespace, &rules).await?;
            granted(&kubeconfig, &[]).await?;
            missed += 1;
        }
    }
    println!("{missed} rights were missed, each by name");
    Ok(())
}
