//! Ownership of a LoadBalancer's status. The status is not a subresource, so every update of the
//! object also replaces the status. The rules:
//! * only the operator changes the operator's fields. Fields that a client omits are restored;
//! * in a guest's LoadBalancer, the cloud provider writes `address`: the claimed address, or the
//!   address that the guest leased. If the cloud provider empties the field, the claimed address is
//!   put back;
//! * the operator owns the condition Ready. Other clients may write other conditions.

use std::net::IpAddr;

use serde_json::{Map, Value};

use super::{AdmissionAnswer, LbRuleFacts, is_blank, is_guest, shown};
use crate::limits::text::{LONGEST_TEXT, cut};
use api::{DHCP_ADDRESS, READY};

/// Maximum number of refusals, in one answer, for differences between the stored and the sent
/// status.
const MOST_REPORTED: usize = 4;

/// Restores the fields of the status that the client omitted or sent blank. Reason: a client whose
/// types lack a field omits the field, and does not want to remove it. If the client sent some
/// conditions, Ready is the only condition that is restored.
///
/// In a guest's LoadBalancer, `address` is changed only in these cases:
/// * the client omitted the whole status, or sent it blank: `address` gets the stored value;
/// * the client emptied only `address`, the stored object has an `address`, and an address is
///   claimed: `address` gets the claimed address;
/// * the guest sent an address that it must not publish: `address` gets the stored value, or is
///   removed if none is stored. The answer gets a warning.
pub(super) fn restore_fields(
    new: &mut Value,
    old: &Value,
    known: &LbRuleFacts,
    answer: &mut AdmissionAnswer,
) {
    let guest = is_guest(old);
    put_back(new, old, guest);
    if guest {
        address_back(new, old);
    }
    if guest && let Err(why) = guests_address(new, old, known) {
        let stored = address(old).map(|stored| Value::String(stored.to_owned()));
        let stays = stored.as_ref().map_or_else(|| "unset".to_owned(), shown);
        answer.warn(format!("status.address stays {stays}: {why}"));
        if let Some(status) = new.get_mut("status").and_then(Value::as_object_mut) {
            match stored {
                Some(stored) => drop(status.insert("address".to_owned(), stored)),
                None => drop(status.remove("address")),
            }
        }
    }
}

fn put_back(new: &mut Value, old: &Value, guest: bool) {
    let Some(stored) = old.get("status").filter(|status| !is_blank(status)) else { return };
    let Some(object) = new.as_object_mut() else { return };
    let status = object.entry("status").or_insert(Value::Null);
    if is_blank(status) {
        *status = stored.clone();
        return;
    }
    let (Some(status), Some(stored)) = (status.as_object_mut(), stored.as_object()) else { return };
    for (field, stored) in stored {
        match field.as_str() {
            // `address_back` restores this field.
            "address" if guest => {}
            "conditions" => conditions_back(status, stored),
            _ => fill_in(status.entry(field).or_insert(Value::Null), stored),
        }
    }
}

/// Puts the stored `status.allocatedAddress.ip` into `address` if a guest has emptied `address`.
/// Reason: the guest's cloud provider treats a LoadBalancer with an empty address as one that does
/// not exist. The reconciler would write the same value, but only later. The value is `0.0.0.0` if
/// the guest leases its address by DHCP. Changes nothing if the stored object has no `address`.
fn address_back(new: &mut Value, old: &Value) {
    let claim = old.pointer("/status/allocatedAddress/ip").and_then(Value::as_str);
    let Some(claim) = claim.filter(|ip| !ip.is_empty() && address(old).is_some()) else { return };
    let Some(status) = new.get_mut("status").and_then(Value::as_object_mut) else { return };
    if status.get("address").is_none_or(is_blank) {
        status.insert("address".to_owned(), Value::String(claim.to_owned()));
    }
}

fn fill_in(new: &mut Value, stored: &Value) {
    if is_blank(new) {
        *new = stored.clone();
    } else if let (Some(new), Some(stored)) = (new.as_object_mut(), stored.as_object()) {
        for (field, stored) in stored {
            fill_in(new.entry(field).or_insert(Value::Null), stored);
        }
    }
}

fn conditions_back(status: &mut Map<String, Value>, stored: &Value) {
    let new = status.entry("conditions").or_insert(Value::Null);
    if is_blank(new) {
        *new = stored.clone();
        return;
    }
    let (Some(new), Some(stored)) = (new.as_array_mut(), stored.as_array()) else { return };
    let Some((place, ready)) = stored.iter().enumerate().find(|(_, c)| is_ready(c)) else { return };
    match new.iter_mut().find(|condition| is_ready(condition)) {
        Some(condition) => fill_in(condition, ready),
        None => new.insert(place.min(new.len()), ready.clone()),
    }
}

/// Removes the status of a new object, except conditions other than Ready. Warns if a value is
/// removed. Reason: a new object has no claim yet. Its status may name one, for example after a
/// restore from a backup.
pub(super) fn strip(new: &mut Value, answer: &mut AdmissionAnswer) {
    let Some(status) = new.get_mut("status").and_then(Value::as_object_mut) else { return };
    let mut dropped = false;
    status.retain(|field, value| {
        let others = field == "conditions";
        dropped |= !others && !is_blank(value);
        others || is_blank(value)
    });
    if let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) {
        let before = conditions.len();
        conditions.retain(|condition| !is_ready(condition));
        dropped |= conditions.len() < before;
    }
    if dropped {
        answer.warn("status: only the operator writes it: the sent status is dropped, an address is claimed again");
        if is_blank(&Value::Object(status.clone()))
            && let Some(object) = new.as_object_mut()
        {
            object.remove("status");
        }
    }
}

/// Refuses a change of the status that only the operator may make, and an address that a guest must
/// not publish. Must not be called for a request of the operator.
pub(super) fn check(
    new: &Value,
    old: Option<&Value>,
    known: &LbRuleFacts,
    answer: &mut AdmissionAnswer,
) {
    let nothing = Value::Null;
    let before = old.unwrap_or(&nothing);
    let guest = is_guest(old.unwrap_or(new));
    let (was, is) = (owned(before, guest), owned(new, guest));
    let mut differences = Vec::new();
    compare("status", &was, &is, &mut differences);
    for (field, is, sent) in differences {
        let text = |value| if is_blank(value) { "unset".to_owned() } else { shown(value) };
        let (is, sent) = (text(is), text(sent));
        answer.refuse(
            field,
            format!(
                "only the operator writes it: it is {is}, not {sent}; remove status from what you send"
            ),
        );
    }
    if guest && let Err(why) = guests_address(new, before, known) {
        answer.refuse("status.address", format!("{why}; remove status from what you send"));
    }
}

/// The part of the status that only the operator writes. `guest`: whether a guest writes
/// `address`. If so, the result does not contain this field.
fn owned(object: &Value, guest: bool) -> Value {
    let Some(status) = object.get("status") else { return Value::Null };
    let Some(status) = status.as_object() else { return status.clone() };
    let mut owned = Map::new();
    for (field, value) in status {
        match (field.as_str(), value.as_array()) {
            ("address", _) if guest => {}
            ("conditions", Some(conditions)) => {
                let ready: Vec<&Value> = conditions.iter().filter(|c| is_ready(c)).collect();
                if let [one] = ready.as_slice() {
                    owned.insert("conditions[Ready]".to_owned(), (*one).clone());
                } else if !ready.is_empty() {
                    owned.insert("conditions[Ready]".to_owned(), Value::from(ready.len()));
                }
            }
            _ => drop(owned.insert(field.clone(), value.clone())),
        }
    }
    Value::Object(owned)
}

/// Adds to `found` the paths at which `old` and `new` differ, each with both values, until `found`
/// has `MOST_REPORTED` entries. Two blank values do not differ. `path`: path of `old` and `new` in
/// the object. A path of more than [`LONGEST_TEXT`] bytes is cut, because a client chooses the
/// names in the path.
fn compare<'a>(
    path: &str,
    old: &'a Value,
    new: &'a Value,
    found: &mut Vec<(String, &'a Value, &'a Value)>,
) {
    static UNSET: Value = Value::Null;
    if found.len() >= MOST_REPORTED || old == new || is_blank(old) && is_blank(new) {
        return;
    }
    let fields = |value: &'_ Value| value.is_object() || value.is_null();
    if !fields(old) || !fields(new) {
        return found.push((path.to_owned(), old, new));
    }
    let names = |of: &'a Value| of.as_object().into_iter().flat_map(Map::keys);
    let more = names(new).filter(|field| old.get(field.as_str()).is_none());
    for field in names(old).chain(more) {
        let at = |of: &'a Value| of.get(field.as_str()).unwrap_or(&UNSET);
        let path = cut(format!("{path}.{field}"), LONGEST_TEXT);
        compare(&path, at(old), at(new), found);
    }
}

/// Checks the address that a guest publishes. `Ok`: the guest publishes no new address, or may
/// publish the new address. `Err`: reason why the guest must not publish the address.
fn guests_address(new: &Value, old: &Value, known: &LbRuleFacts) -> Result<(), String> {
    let Some(published) = address(new).filter(|published| address(old) != Some(published)) else {
        return Ok(());
    };
    let text = shown(&Value::String(published.to_owned()));
    let claim = old.pointer("/status/allocatedAddress/ip").and_then(Value::as_str);
    match claim {
        Some(claim) if published == claim => return Ok(()),
        Some(DHCP_ADDRESS) => {}
        Some(claim) => return Err(format!("{text} is not the claimed address, {claim}")),
        None => return Err(format!("{text} is not a claimed address: none is claimed yet")),
    }
    match (published.parse::<IpAddr>(), &known.taken_by) {
        (Err(_), _) => Err(format!("{text} is not an IP address")),
        (Ok(_), Some(whose)) => Err(format!("{published} is {whose}")),
        (Ok(_), None) => Ok(()),
    }
}

/// Address that a guest newly publishes as leased from a DHCP server. `None` in these cases:
/// * the LoadBalancer is not a guest's, or its guest does not lease the address by DHCP;
/// * `status.address` is unset, unchanged, or not an IP address.
///
/// An IPv4 address in the form of an IPv6 address, such as `::ffff:10.0.0.7`, is returned as the
/// IPv4 address that it means.
pub(super) fn new_lease(new: &Value, old: &Value) -> Option<IpAddr> {
    let leased = old.pointer("/status/allocatedAddress/ip").is_some_and(|ip| ip == DHCP_ADDRESS);
    let published = address(new)
        .filter(|published| leased && is_guest(old) && address(old) != Some(published))?;
    published.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

fn address(object: &Value) -> Option<&str> {
    object.pointer("/status/address")?.as_str().filter(|address| !address.is_empty())
}

fn is_ready(condition: &Value) -> bool {
    condition.get("type").is_some_and(|type_| type_ == READY)
}
