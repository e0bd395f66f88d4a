//! Identity of a LoadBalancer as the owner of its Service and EndpointSlices.

use serde_json::{Value, json};

use api::GROUP;

/// Identity of a LoadBalancer in references from its Service and EndpointSlices.
#[derive(Clone, Copy, Debug)]
pub struct LbIdentity<'a> {
    /// `metadata.namespace`.
    pub namespace: &'a str,
    /// `metadata.name`.
    pub name: &'a str,
    /// `metadata.uid`.
    pub uid: &'a str,
}

/// Owner reference to the LoadBalancer `lb`, for its Service and its EndpointSlices.
pub(super) fn owner_reference(lb: LbIdentity<'_>) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1beta1"),
        "kind": "LoadBalancer",
        "name": lb.name,
        "uid": lb.uid,
    })
}
