//! DHCP client identity that users request by annotations. If kube-vip has an annotation for the
//! same purpose, kube-vip's annotation is used.
//!
//! kube-vip's client sends only two values by which a DHCP server can recognise it: its hardware
//! address, and its host name as the client identifier. To the server, a client with the same two
//! values is therefore the same client. Invariants:
//!
//! * An identity changes only with a new record.
//! * A requested hardware address is locally administered, or begins as kube-vip's do. Any other
//!   hardware address may belong to a machine.

use std::net::Ipv4Addr;

use serde_json::{Map, Value, json};

use super::is_host;
use crate::dhcp::{ClientId, ClientIdForm, ClientIdentity, Mac};
use crate::vm_backends::service;
use api::{
    ANNOTATION_DHCP_CLIENT_ID, DHCPLease, KUBE_VIP_BROADCAST, KUBE_VIP_HOSTNAME, KUBE_VIP_HWADDR,
    KUBE_VIP_REQUESTED_IP, LoadBalancer,
};

/// First octets of the hardware addresses that kube-vip generates. Source: `GenerateMac` in
/// pkg/vip/util.go.
const KUBE_VIP: [u8; 3] = [0x00, 0x00, 0x6c];
/// Bit in the first octet of a hardware address. The bit is set if no vendor assigned the address.
const LOCAL: u8 = 0x02;
/// Maximum length of a host name, in characters.
const LONGEST_HOSTNAME: usize = 253;
/// First octet of client identifiers of the form `duid`, in hexadecimal.
const DUID: &str = "ff";

/// Annotations by which a LoadBalancer requests a client identity.
pub const ASKING: [&str; 5] = [
    KUBE_VIP_HWADDR,
    KUBE_VIP_REQUESTED_IP,
    KUBE_VIP_HOSTNAME,
    KUBE_VIP_BROADCAST,
    ANNOTATION_DHCP_CLIENT_ID,
];

/// Client identity that a LoadBalancer requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestedIdentity {
    mac: Option<Mac>,
    form: Option<ClientIdForm>,
    hostname: Option<String>,
    /// IPv4 address that the user requests. A client without a former address asks the server for
    /// this address.
    pub(super) address: Option<Ipv4Addr>,
    /// Whether the client is to ask servers to broadcast their answers.
    pub(super) broadcast: bool,
}

/// Client identifier that a LoadBalancer requests.
enum AskedId {
    /// The LoadBalancer requests neither a form nor a hardware address, so the network's form of
    /// client identifiers is used.
    Any,
    /// The LoadBalancer requests a form of client identifiers.
    Form(ClientIdForm),
    /// The LoadBalancer requests this client identifier.
    Is(ClientId),
}

/// Fault of an annotation that is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnotationFault {
    /// Path of the annotation in the LoadBalancer: `metadata.annotations[key]`.
    pub field: String,
    /// Description of the fault, and of the values that are valid.
    pub message: String,
}

impl AnnotationFault {
    /// Text with the field and the message.
    pub fn text(&self) -> String {
        format!("{}: {}", self.field, self.message)
    }
}

/// Reads the client identity that a LoadBalancer requests.
///
/// # Errors
/// The first annotation that is not valid.
pub fn asked(lb: &LoadBalancer) -> Result<RequestedIdentity, AnnotationFault> {
    read(|key| lb.metadata.annotations.as_ref()?.get(key).map(String::as_str))
}

fn read<'a>(said: impl Fn(&str) -> Option<&'a str>) -> Result<RequestedIdentity, AnnotationFault> {
    fn field<T>(
        key: &str,
        said: Option<&str>,
        parsed: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, AnnotationFault> {
        let text = said.map(str::trim).filter(|text| !text.is_empty());
        let fault =
            |message| AnnotationFault { field: format!("metadata.annotations[{key}]"), message };
        text.map(parsed).transpose().map_err(fault)
    }
    let broadcast = field(KUBE_VIP_BROADCAST, said(KUBE_VIP_BROADCAST), flag)?;
    Ok(RequestedIdentity {
        mac: field(KUBE_VIP_HWADDR, said(KUBE_VIP_HWADDR), mac)?,
        address: field(KUBE_VIP_REQUESTED_IP, said(KUBE_VIP_REQUESTED_IP), address)?,
        hostname: field(KUBE_VIP_HOSTNAME, said(KUBE_VIP_HOSTNAME), hostname)?,
        form: field(ANNOTATION_DHCP_CLIENT_ID, said(ANNOTATION_DHCP_CLIENT_ID), str::parse)?,
        broadcast: broadcast.unwrap_or_default(),
    })
}

fn mac(text: &str) -> Result<Mac, String> {
    let mac = text.parse::<Mac>()?;
    let [first, ..] = mac.0;
    if mac.is_unicast() && (first & LOCAL != 0 || mac.0.starts_with(&KUBE_VIP)) {
        return Ok(mac);
    }
    Err(format!(
        "{mac} may be another machine's: it must be a locally administered unicast address, such as 02:00:5e:10:00:01, or begin with 00:00:6c as kube-vip's do"
    ))
}

fn address(text: &str) -> Result<Ipv4Addr, String> {
    let address = text.parse().ok().filter(|address| is_host(*address));
    address.ok_or_else(|| format!("{text:?} must be the IPv4 address of one host"))
}

fn hostname(text: &str) -> Result<String, String> {
    let edge = |c: char| c.is_ascii_alphanumeric();
    let fits = text.len() <= LONGEST_HOSTNAME
        && text.starts_with(edge)
        && text.ends_with(edge)
        && text.chars().all(|c| edge(c) || matches!(c, '-' | '.'));
    let wrong = || {
        format!(
            "{text:?} must be a DNS name: at most {LONGEST_HOSTNAME} letters, digits, dashes and dots"
        )
    };
    fits.then(|| text.to_owned()).ok_or_else(wrong)
}

/// Parses `true` or `false`. `Err`: the text is neither of them.
pub(super) fn flag(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| format!("{text:?} must be true or false"))
}

impl RequestedIdentity {
    /// Identity of the LoadBalancer's client. Each requested value replaces the value in `derived`,
    /// the identity for a LoadBalancer that requests none. `form`: form of client identifiers on
    /// the network.
    pub fn identity(&self, derived: ClientIdentity, form: ClientIdForm) -> ClientIdentity {
        let mut identity = derived;
        identity.mac = self.mac.unwrap_or(identity.mac);
        identity.hostname = self.hostname.clone().unwrap_or(identity.hostname);
        match self.client_id() {
            AskedId::Any => identity.with_form(form),
            AskedId::Form(form) => identity.with_form(form),
            AskedId::Is(id) => ClientIdentity { client_id: Some(id), ..identity },
        }
    }

    /// Client identifier that the LoadBalancer requests. A requested form has precedence. If no
    /// form is requested, a client with a requested hardware address behaves like kube-vip: the
    /// client sends a client identifier only if a host name is also requested. Source: `request` in
    /// kube-vip's pkg/vip/dhcpv4.go.
    fn client_id(&self) -> AskedId {
        match (self.form, self.mac, &self.hostname) {
            (Some(form), _, _) => AskedId::Form(form),
            (None, None, _) => AskedId::Any,
            (None, Some(_), hostname) => {
                let id = hostname.as_ref().and_then(|name| ClientId::of(name.as_bytes()));
                id.map_or(AskedId::Form(ClientIdForm::None), AskedId::Is)
            }
        }
    }

    /// Whether a record has the client identity that the LoadBalancer's annotations request. A
    /// field that no annotation requests may have any value. A requested address must be the
    /// record's `spec.requestedAddress` or `status.address`. `broadcast` is not compared.
    pub fn fits(&self, record: &DHCPLease) -> bool {
        let spec = &record.spec;
        let of_mac = || spec.mac_address.parse().ok().map(|mac| ClientId::of_mac(mac).to_string());
        let same_id = match self.client_id() {
            AskedId::Any => true,
            AskedId::Is(id) => spec.client_id == id.to_string(),
            AskedId::Form(ClientIdForm::None) => spec.client_id.is_empty(),
            AskedId::Form(ClientIdForm::Duid) => spec.client_id.starts_with(DUID),
            AskedId::Form(ClientIdForm::Mac) => of_mac().as_ref() == Some(&spec.client_id),
        };
        let has = record.status.as_ref().and_then(|status| status.address.as_ref());
        let addresses = [spec.requested_address.as_ref(), has];
        same_id
            && self.mac.is_none_or(|mac| spec.mac_address == mac.to_string())
            && self.hostname.as_ref().is_none_or(|name| *name == spec.hostname)
            && self.address.is_none_or(|address| addresses.contains(&Some(&address.to_string())))
    }
}

/// Merge patch that copies annotations of kube-vip from the Service to the LoadBalancer. They give
/// the host's client the identity of kube-vip's client. An annotation that the LoadBalancer already
/// has is not replaced. `None`: there is no annotation to copy.
///
/// # Errors
/// The first annotation, of the LoadBalancer or of the Service, that is not valid.
pub fn adopted(
    lb: &LoadBalancer,
    service: &service::StoredService,
) -> Result<Option<Value>, AnnotationFault> {
    let own = |key: &str| lb.metadata.annotations.as_ref()?.get(key).map(String::as_str);
    let kube_vips = |key: &str| service.annotations.get(key).map(String::as_str);
    let said = |key: &str| own(key).or_else(|| kube_vips(key).filter(|text| !text.is_empty()));
    read(said)?;
    // kube-vip reads or writes all these annotations except `ANNOTATION_DHCP_CLIENT_ID` on the
    // Service for which it leases an address.
    let missing: Map<String, Value> = ASKING
        .iter()
        .filter(|key| **key != ANNOTATION_DHCP_CLIENT_ID && own(key).is_none())
        .filter_map(|key| Some(((*key).to_owned(), json!(said(key)?))))
        .collect();
    Ok((!missing.is_empty()).then(|| {
        json!({"metadata": {
            "resourceVersion": lb.metadata.resource_version,
            "annotations": missing,
        }})
    }))
}

#[cfg(test)]
mod tests;
