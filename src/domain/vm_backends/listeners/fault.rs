//! Faults of the listeners in a spec.

use super::super::ports::MOST_LISTENERS;

/// Reason why the listeners of a spec are not valid. The text names the field, the fault and a
/// valid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenerFault {
    /// Spec without a listener.
    #[error("spec.listeners: a load balancer of type vm needs at least one")]
    Missing,
    /// More listeners than a Service can have.
    #[error("spec.listeners: more than {MOST_LISTENERS}: use {MOST_LISTENERS} at most")]
    TooMany,
    /// The number is no port.
    #[error("spec.listeners[{index}].{field}: {value} must be 1 to 65535")]
    NoPort {
        /// Place of the listener in the list.
        index: usize,
        /// Field with the number.
        field: &'static str,
        /// The number.
        value: i32,
    },
    /// The protocol is not supported.
    #[error("spec.listeners[{index}].protocol: {protocol:?} must be TCP or UDP")]
    NoProtocol {
        /// Place of the listener in the list.
        index: usize,
        /// The protocol.
        protocol: String,
    },
    /// The name is not one that a port of a Service can have.
    #[error(
        "spec.listeners[{index}].name: {name:?} must be lower-case letters, digits and dashes, begin and end with a letter or digit, and be at most 63 long; only a single listener may have none"
    )]
    NoName {
        /// Place of the listener in the list.
        index: usize,
        /// The name.
        name: String,
    },
    /// An earlier listener has the same name.
    #[error(
        "spec.listeners[{index}].name: {name:?} is the name of spec.listeners[{earlier}] as well: use another"
    )]
    SameName {
        /// Place of the listener in the list.
        index: usize,
        /// The name.
        name: String,
        /// Place of the earlier listener.
        earlier: usize,
    },
    /// An earlier listener has the same port and protocol.
    #[error(
        "spec.listeners[{index}].port: {protocol} {port} is the port of spec.listeners[{earlier}] as well: use another"
    )]
    SamePort {
        /// Place of the listener in the list.
        index: usize,
        /// The protocol.
        protocol: String,
        /// The port.
        port: u16,
        /// Place of the earlier listener.
        earlier: usize,
    },
}
