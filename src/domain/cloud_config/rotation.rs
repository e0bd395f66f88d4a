//! A TokenRotation for a guest's account, on request: a kubeconfig in a Secret beside the account, whose
//! token the operator replaces.
//!
//! Invariants: it is refused, with every reason, where nobody would carry it out; neither object holds a
//! token when it is made; both go with the account.

use serde_json::{Value, json};

use super::{ANNOTATION_GUEST, Found, Guest, Kind, Object, Refused, Step, owner, safe_name};

/// What the operator's Role and its binding are called where it may replace credentials.
pub const BINDING: &str = "harvester-guest-operator-credentials";
/// The key of the Secret that holds the kubeconfig.
const KEY: &str = "cloud-provider-config";
/// The kubeconfig's user.
const USER: &str = "default";
const DAY: i64 = 24 * 60 * 60;

/// A TokenRotation that is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// Where.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The account whose tokens it makes.
    pub account: Option<String>,
    /// The Secret that it publishes them in.
    pub secret: Option<String>,
}

/// What was seen of the namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ground {
    /// Its TokenRotations. `None`: the cluster does not serve them.
    pub rotations: Option<Vec<Rotation>>,
    /// The account of the operator that may replace credentials here. `None`: none is bound to do so.
    pub operator: Option<String>,
    /// What that one may not do and must, in words.
    pub lacks: Vec<String>,
    /// The Secret under the wanted name: the guest cluster that it says it was made for.
    pub secret: Option<Option<String>>,
}

impl Guest {
    /// The Secret that a TokenRotation publishes the cloud config in.
    pub fn published(&self) -> String {
        safe_name(&[&self.cluster, "cloud-config"])
    }
}

/// What is missing of it. `kubeconfig`: one without a token, for the user `default`.
pub fn rotation(
    guest: &Guest,
    days: u16,
    found: &Found,
    ground: &Ground,
    kubeconfig: &str,
) -> Result<Vec<Step>, Refused> {
    let Guest { namespace, cluster } = guest;
    let published = guest.published();
    let mut faults = Vec::new();
    if ground.rotations.is_none() {
        faults.push(
            "--rotation: this cluster has no TokenRotations: install the CRDs of this operator, and the \
             operator"
                .to_owned(),
        );
    }
    match &ground.operator {
        None => faults.push(format!(
            "--rotation: nobody may replace credentials in {namespace}: there is no RoleBinding \
             {namespace}/{BINDING}. Name the namespace in the chart's value credentials.namespaces"
        )),
        Some(operator) if !ground.lacks.is_empty() => faults.push(format!(
            "--rotation: {operator} may not {}: see the chart's value credentials.namespaces",
            ground.lacks.join(", nor ")
        )),
        Some(_) => {}
    }
    let rotations = ground.rotations.iter().flatten();
    let same = rotations.clone().find(|there| there.name == *cluster);
    let is_ours = |there: &Rotation| {
        there.account.as_ref() == Some(cluster) && there.secret.as_ref() == Some(&published)
    };
    if let Some(there) = same.filter(|there| !is_ours(there)) {
        faults.push(format!(
            "TokenRotation {namespace}/{} is there and is for another account or another Secret: it is not ours",
            there.name
        ));
    }
    for other in rotations.filter(|other| other.name != *cluster) {
        if other.secret.as_ref() == Some(&published) {
            faults.push(format!(
                "Secret {namespace}/{published} is the target of TokenRotation {namespace}/{}: it is not ours",
                other.name
            ));
        }
    }
    if let Some(made_for) = &ground.secret
        && made_for.as_ref() != Some(cluster)
    {
        faults.push(format!(
            "Secret {namespace}/{published} is there and is not this guest's: it is not ours"
        ));
    }
    if !faults.is_empty() {
        return Err(Refused(faults));
    }
    let object = |kind, name: &str| Object {
        kind,
        namespace: Some(namespace.clone()),
        name: name.to_owned(),
    };
    let mut steps = Vec::new();
    if ground.secret.is_none() {
        let body = json!({
            "metadata": of(guest, found), "type": "Opaque", "stringData": {KEY: kubeconfig},
        });
        steps.push(Step { object: object(Kind::Secret, &published), body });
    }
    if same.is_none() {
        let body = json!({"metadata": of(guest, found), "spec": {
            "source": {"serviceAccountToken":
                {"serviceAccountName": cluster, "lifetimeSeconds": i64::from(days) * DAY}},
            "target": {"secret": {"name": published, "key": KEY, "kubeconfigUser": USER}},
            "overlapSeconds": DAY,
        }});
        steps.push(Step { object: object(Kind::TokenRotation, cluster), body });
    }
    Ok(steps)
}

fn of(guest: &Guest, found: &Found) -> Value {
    json!({
        "annotations": {ANNOTATION_GUEST: guest.cluster},
        "ownerReferences": [owner(guest, found)],
    })
}

#[cfg(test)]
mod tests;
