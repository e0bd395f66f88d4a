//! Reading of `spec.healthCheck` of a LoadBalancer: its defaults, bounds and faults.

use std::time::Duration;

use super::super::listeners::is_label;
use super::{BackendProbe, CheckSettings, ProbeRequest};
use api::{HealthCheck, LoadBalancerSpec, WorkloadType};

/// Largest number of consecutive successes, or failures, that a health check may demand for a
/// verdict. A larger number is reduced to this value.
pub const MOST_IN_A_ROW: u32 = 1_000;
/// Longest time between two probes of a backend. A longer period is reduced to this value, because
/// a rarer check is of no use.
pub const LONGEST_PERIOD: Duration = Duration::from_hours(1);
/// Longest timeout of a probe. A longer timeout is reduced to this value, because each open probe
/// holds a socket.
pub const LONGEST_TIMEOUT: Duration = Duration::from_mins(1);
/// Largest number of HTTP statuses in `expectedStatuses`. A longer list is refused, by this module
/// and by the CRD's schema.
pub const MOST_STATUSES: usize = 32;
/// Longest path, in bytes. A longer path is refused, by this module and by the CRD's schema.
pub const LONGEST_PATH: usize = 1024;
/// Longest CA bundle, in bytes. A few certificates fit. A longer bundle is refused, by this module
/// and by the CRD's schema.
pub const LONGEST_BUNDLE: usize = 8 * 1024;

/// Fault in `spec.healthCheck` that prevents probes of the backends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("spec.healthCheck.{field}: {wrong}: {right}")]
pub struct HealthSpecFault {
    /// Field below `spec.healthCheck`.
    pub field: &'static str,
    /// Text that describes the fault.
    pub wrong: String,
    /// Text that says how to correct the fault.
    pub right: &'static str,
}

impl HealthSpecFault {
    /// Fault of the field `field`. `wrong` describes the fault, and `right` says how to correct it.
    pub fn new(field: &'static str, wrong: impl Into<String>, right: &'static str) -> Self {
        Self { field, wrong: wrong.into(), right }
    }
}

/// Settings for probes of the LoadBalancer's backends. `None`: the backends are not probed, for one
/// of these reasons:
///
/// * The spec has no health check.
/// * The health check has no port.
/// * The LoadBalancer is of type cluster. The guest cluster checks its backends itself.
///
/// Defaults of the fields that are zero or unset: 1 success, 3 failures, 5 s between probes, 3 s
/// timeout, TCP, path `/`.
///
/// The error is the first fault of the health check. It is also a fault if the port is no backend
/// port of a TCP listener.
pub fn check(spec: &LoadBalancerSpec) -> Result<Option<CheckSettings>, HealthSpecFault> {
    let Some(asked) = spec.health_check.as_ref() else { return Ok(None) };
    let number = asked.port.unwrap_or(0);
    if number == 0 || spec.workload_type == Some(WorkloadType::Cluster) {
        return Ok(None);
    }
    let is_backend_port = |l: &api::Listener| {
        l.protocol == "TCP" && l.backend_port.filter(|p| *p != 0).unwrap_or(l.port) == number
    };
    let port = u16::try_from(number)
        .ok()
        .filter(|_| spec.listeners.iter().any(is_backend_port))
        .ok_or_else(|| {
            HealthSpecFault::new(
                "port",
                format!("{number} is no backend port of a TCP listener"),
                "use the backendPort of one of spec.listeners (its port, if that is unset)",
            )
        })?;
    read(asked, port).map(Some)
}

/// Checks the fields of a health check, even if no probe uses them. The error is the first fault.
/// The CRD has these rules in v1beta1 only, and does not check the content of `caBundle`. So a
/// stored health check may break the rules.
pub fn form(asked: &HealthCheck) -> Result<(), HealthSpecFault> {
    let number = asked.port.unwrap_or(0);
    let port = u16::try_from(number).map_err(|_| {
        HealthSpecFault::new("port", format!("{number} is no port"), "use 0 to 65535")
    })?;
    if port == 0 && asked.protocol.is_some() {
        let right = "must be set to a backend port when spec.healthCheck.protocol is set";
        return Err(HealthSpecFault::new("port", "it is 0 or unset", right));
    }
    read(asked, port).map(drop)
}

fn read(asked: &HealthCheck, port: u16) -> Result<CheckSettings, HealthSpecFault> {
    let seconds = |field, value, default, most: Duration| {
        let most = u32::try_from(most.as_secs()).unwrap_or(u32::MAX);
        amount(field, value, default, most).map(|s| Duration::from_secs(s.into()))
    };
    Ok(CheckSettings {
        probe: probe(asked)?,
        port,
        success_threshold: amount("successThreshold", asked.success_threshold, 1, MOST_IN_A_ROW)?,
        failure_threshold: amount("failureThreshold", asked.failure_threshold, 3, MOST_IN_A_ROW)?,
        period: seconds("periodSeconds", asked.period_seconds, 5, LONGEST_PERIOD)?,
        timeout: seconds("timeoutSeconds", asked.timeout_seconds, 3, LONGEST_TIMEOUT)?,
    })
}

fn amount(
    field: &'static str,
    value: Option<i32>,
    default: u32,
    most: u32,
) -> Result<u32, HealthSpecFault> {
    match u32::try_from(value.unwrap_or(0)) {
        Ok(0) => Ok(default),
        Ok(n) => Ok(n.min(most)),
        Err(_) => Err(HealthSpecFault::new(
            field,
            format!("{} is negative", value.unwrap_or(0)),
            "use a whole number; 0 or unset means the default",
        )),
    }
}

fn probe(asked: &HealthCheck) -> Result<BackendProbe, HealthSpecFault> {
    let bundle = asked.ca_bundle.as_ref().filter(|pem| !pem.is_empty());
    let protocol = asked.protocol.as_deref().unwrap_or("tcp");
    if protocol != "https" && bundle.is_some() {
        let right = "set spec.healthCheck.protocol to https, or remove it";
        return Err(HealthSpecFault::new("caBundle", "it belongs to https", right));
    }
    match protocol {
        "tcp" => no_request(asked).map(|()| BackendProbe::Tcp),
        "http" => request(asked).map(BackendProbe::Http),
        "https" => {
            if bundle.is_some_and(|pem| pem.len() > LONGEST_BUNDLE || !has_certificate(pem)) {
                let right = "give certificates between BEGIN CERTIFICATE and END CERTIFICATE, 8 KiB at most";
                return Err(HealthSpecFault::new("caBundle", "no certificate in PEM", right));
            }
            Ok(BackendProbe::Https(request(asked)?, bundle.cloned()))
        }
        other => {
            let wrong = format!("{} is unknown", shown(other));
            Err(HealthSpecFault::new("protocol", wrong, "use tcp, http or https (unset means tcp)"))
        }
    }
}

/// Refuses a health check by TCP with fields that only HTTP and HTTPS use, because these fields
/// would have no effect.
fn no_request(asked: &HealthCheck) -> Result<(), HealthSpecFault> {
    let statuses = asked.expected_statuses.as_ref().is_some_and(|list| !list.is_empty());
    let present = [
        ("path", asked.path.is_some()),
        ("expectedStatuses", statuses),
        ("serverName", asked.server_name.as_ref().is_some_and(|name| !name.is_empty())),
    ];
    match present.into_iter().find(|(_, is_set)| *is_set) {
        Some((field, _)) => {
            let right = "set spec.healthCheck.protocol, or remove it";
            Err(HealthSpecFault::new(field, "it belongs to http and https", right))
        }
        None => Ok(()),
    }
}

fn request(asked: &HealthCheck) -> Result<ProbeRequest, HealthSpecFault> {
    let path = asked.path.as_deref().unwrap_or("/");
    let printable = path.bytes().all(|byte| byte.is_ascii_graphic());
    if !path.starts_with('/') || !printable || path.len() > LONGEST_PATH {
        let right = "begin with / and percent-encode spaces, control and non-ASCII characters, 1024 characters at most";
        return Err(HealthSpecFault::new("path", format!("{} is no path", shown(path)), right));
    }
    let listed = asked.expected_statuses.as_deref().unwrap_or_default();
    if listed.len() > MOST_STATUSES {
        let wrong = format!("{} statuses", listed.len());
        return Err(HealthSpecFault::new("expectedStatuses", wrong, "list at most 32"));
    }
    let expected = listed
        .iter()
        .map(|status| {
            u16::try_from(*status).ok().filter(|s| (100..600).contains(s)).ok_or_else(|| {
                HealthSpecFault::new(
                    "expectedStatuses",
                    format!("{status} is no status"),
                    "use 100 to 599",
                )
            })
        })
        .collect::<Result<_, _>>()?;
    let server_name = asked.server_name.clone().filter(|name| !name.is_empty());
    if let Some(name) = server_name.as_deref().filter(|name| !is_name(name)) {
        let wrong = format!("{} is no DNS name", shown(name));
        return Err(HealthSpecFault::new("serverName", wrong, "use one such as www.example.com"));
    }
    Ok(ProbeRequest { path: path.to_owned(), expected, server_name })
}

/// Whether `name` is a DNS name as in certificates: labels of letters, digits and inner dashes. The
/// result is also `true` for an IPv4 address.
fn is_name(name: &str) -> bool {
    name.len() <= 253 && name.to_ascii_lowercase().split('.').all(is_label)
}

/// Whether `pem` contains at least one PEM block for a certificate. Between its markers, the block
/// must not be empty, and may have only base64 characters and white space. A probe that uses the
/// certificate checks its content later.
fn has_certificate(pem: &str) -> bool {
    pem.split("-----BEGIN CERTIFICATE-----").skip(1).any(|rest| {
        rest.split_once("-----END CERTIFICATE-----").is_some_and(|(body, _)| {
            let mut bytes = body.bytes().filter(|byte| !byte.is_ascii_whitespace()).peekable();
            bytes.peek().is_some()
                && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'='))
        })
    })
}

/// Quotes a text for a message: escaped, so that the message stays on one line, and cut to 64
/// characters.
fn shown(text: &str) -> String {
    let cut: String = text.chars().take(64).collect();
    let more = if cut.len() < text.len() { "..." } else { "" };
    format!("\"{}{more}\"", cut.escape_default())
}

#[cfg(test)]
mod tests;
