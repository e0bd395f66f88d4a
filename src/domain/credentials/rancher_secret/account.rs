//! Objects that `rancher-secret` prints for a cloud credential:
//!
//! * A new ServiceAccount with its rights, unless the options name an existing account.
//! * The TokenRotation that puts the account's token into the cloud credential.
//! * The TokenRotation that renews the API key, if the key expires and may list the tokens of its
//!   user.
//!
//! Invariant: a new account gets only the rights that Rancher's node driver uses. The account gets
//! [`RIGHTS`] in one namespace, and [`READS`] in all namespaces.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::guest_account::{is_object_name, namespace_fault};
use super::super::minter::is_server;
use super::super::node_driver::{DriverRight, READS, RIGHTS};
use api::{
    CloudCredentialTarget, Minter, RancherServer, RancherToken, SecretTarget, ServiceAccountToken,
    Source, Target, TokenRotation, TokenRotationSpec,
};

/// Name of the ClusterRole with [`RIGHTS`]: the account may manage virtual machines in one
/// namespace.
const DRIVER: &str = "harvester-guest-operator:node-driver";
/// Name of the ClusterRole with [`READS`]: the account may get, in all namespaces, the objects that
/// a machine's configuration can name.
const READER: &str = "harvester-guest-operator:node-driver-reader";
/// Maximum length of a cloud credential's name, in bytes.
const LONGEST: usize = 63;

/// Options of `rancher-secret` for a ServiceAccount whose token is put into a cloud credential.
#[derive(Clone, Copy, Debug)]
pub struct AccountOptions<'a> {
    /// Name of the cloud credential's Secret in Rancher.
    pub credential: &'a str,
    /// URL at which Rancher reaches this cluster. `None`: the option is missing, and
    /// [`Self::faults`] reports this.
    pub server: Option<&'a str>,
    /// Namespace of the virtual machines, where a new account gets [`RIGHTS`]. `None`: no new
    /// account is made.
    pub vm_namespace: Option<&'a str>,
    /// Name of an existing account in `namespace`. `None`: a new account gets the cloud
    /// credential's name.
    pub account: Option<&'a str>,
    /// Namespace of the account, the Secret and the TokenRotation.
    pub namespace: &'a str,
    /// Name of the Secret with the Rancher's API key.
    pub secret: &'a str,
}

impl AccountOptions<'_> {
    /// Errors about the options, each with the option's name. Empty: all options are valid.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if !is_object_name(self.credential)
            || self.credential.contains('.')
            || self.credential.len() > LONGEST
        {
            faults.push(format!(
                "--cloud-credential {:?}: must be the name of the cloud credential's Secret in \
                 Rancher's namespace cattle-global-data, such as cc-abcde",
                self.credential
            ));
        }
        if !self.server.is_some_and(is_server) {
            faults.push(format!(
                "--server {:?}: must be https://HOST or https://HOST:PORT, at which Rancher \
                 reaches this cluster, such as https://192.168.5.10:6443",
                self.server.unwrap_or_default()
            ));
        }
        match (self.vm_namespace, self.account) {
            (Some(namespace), None) => faults.extend(
                namespace_fault(namespace).map(|why| why.replacen("--namespace", "--vm-namespace", 1)),
            ),
            (None, Some(account)) if is_object_name(account) => {}
            (None, Some(account)) => faults.push(format!(
                "--service-account {account:?}: must be the name of a ServiceAccount in the \
                 namespace {:?}",
                self.namespace
            )),
            (None, None) => faults.push(
                "--vm-namespace: must be given: the namespace of the virtual machines, where a new \
                 ServiceAccount gets its rights. Or --service-account must name an existing \
                 ServiceAccount"
                    .to_owned(),
            ),
            (Some(_), Some(_)) => faults.push(
                "--vm-namespace: is only for a new ServiceAccount, and --service-account names an \
                 existing one: leave one of the two out"
                    .to_owned(),
            ),
        }
        faults
    }

    fn account(&self) -> &str {
        self.account.unwrap_or(self.credential)
    }

    /// YAML of the objects to print: the account and its rights if the account is new, and the
    /// TokenRotation for the account's token. `renews`: whether the TokenRotation that renews the
    /// API key is printed too.
    pub fn text(&self, renews: bool) -> String {
        let mut all = self.vm_namespace.map(|machines| self.rights(machines)).unwrap_or_default();
        all.push(self.account_rotation());
        if renews {
            all.push(self.key_rotation());
        }
        let document = |one: &Value| {
            format!("---\n{}\n", serde_saphyr::to_string(one).unwrap_or_default().trim_end())
        };
        all.iter().map(document).collect()
    }

    fn rights(&self, machines: &str) -> Vec<Value> {
        let name = self.account();
        let (group, namespace) = ("rbac.authorization.k8s.io", self.namespace);
        let version = format!("{group}/v1");
        let subjects = json!([{"kind": "ServiceAccount", "name": name, "namespace": namespace}]);
        let role = |name: &str, rules: Vec<Value>| json!({"apiVersion": version, "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules});
        let bound = |kind: &str, metadata: Value, role: &str| {
            json!({
                "apiVersion": version, "kind": kind, "metadata": metadata, "subjects": subjects,
                "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            })
        };
        // The names of the bindings contain the account's namespace, because accounts of two
        // namespaces may share a name.
        let [driver, reader] = [DRIVER, READER].map(|role| format!("{role}:{namespace}:{name}"));
        vec![
            json!({"apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": name, "namespace": namespace}}),
            role(DRIVER, rules(&RIGHTS)),
            role(READER, rules(&READS)),
            bound("RoleBinding", json!({"name": driver, "namespace": machines}), DRIVER),
            bound("ClusterRoleBinding", json!({"name": reader}), READER),
        ]
    }

    fn rotation(&self, name: &str, source: Source, target: Target) -> Value {
        let spec = TokenRotationSpec {
            source: Some(source),
            target,
            rancher: Some(RancherServer { minter: self.minter(), ..RancherServer::default() }),
            ..TokenRotationSpec::default()
        };
        let mut rotation = TokenRotation::new(name, spec);
        rotation.metadata.namespace = Some(self.namespace.to_owned());
        json!(rotation)
    }

    /// TokenRotation that puts the account's token into the cloud credential.
    fn account_rotation(&self) -> Value {
        let account = ServiceAccountToken {
            service_account_name: self.account().to_owned(),
            lifetime_seconds: None,
        };
        let credential = CloudCredentialTarget {
            name: self.credential.to_owned(),
            server: self.server.map(str::to_owned),
        };
        let source = Source { service_account_token: Some(account), ..Source::default() };
        let target = Target { cloud_credential: Some(credential), ..Target::default() };
        self.rotation(self.credential, source, target)
    }

    /// TokenRotation that renews the API key.
    fn key_rotation(&self) -> Value {
        let Minter { secret_name, key } = self.minter();
        let secret = SecretTarget { name: secret_name, key, kubeconfig_user: None };
        let token = RancherToken::default();
        let source = Source { rancher_token: Some(token), ..Source::default() };
        let target = Target { secret: Some(secret), ..Target::default() };
        self.rotation(&format!("{}-api-key", self.secret), source, target)
    }

    fn minter(&self) -> Minter {
        Minter { secret_name: self.secret.to_owned(), key: "token".to_owned() }
    }

    /// Report about the printed objects, and about the steps that the user must take next.
    pub fn report(&self) -> String {
        let Self { credential, namespace, secret, .. } = *self;
        let account = self.account();
        let rights = self.vm_namespace.map_or_else(String::new, |machines| {
            format!(
                "ServiceAccount {namespace}/{account} with the rights of Rancher's node driver in the namespace {machines}, "
            )
        });
        format!(
            "printed: Secret {namespace}/{secret} with the API key, {rights}and TokenRotation \
             {namespace}/{credential}\n\
             next: create these objects with kubectl apply --server-side -f -\n\
             next: add {{name: {namespace}, serviceAccounts: [{account}]}} to the chart's value \
             credentials.namespaces\n\
             next: look at the condition Ready of the TokenRotation\n\
             The token that is in {credential} now stays valid for a day beside the new one"
        )
    }
}

/// Rules of a role with these rights: one rule for each resource, or for each single object that a
/// right names.
fn rules(rights: &[DriverRight]) -> Vec<Value> {
    let mut verbs: BTreeMap<(&str, &str, Option<&str>), Vec<&str>> = BTreeMap::new();
    for right in rights {
        verbs.entry((right.group, right.resource, right.name)).or_default().push(right.verb);
    }
    let mut rules = Vec::new();
    for ((group, resource, name), verbs) in verbs {
        let mut rule = json!({"apiGroups": [group], "resources": [resource], "verbs": verbs});
        if let Some(name) = name {
            rule["resourceNames"] = json!([name]);
        }
        rules.push(rule);
    }
    rules
}
