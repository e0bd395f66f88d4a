//! Faults of the listeners in a spec.

use super::super::ports::MOST_LISTENERS;

/// Reason why the listeners of a spec are not valid. The text names the field, the fault and a
/// valid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenerFault {
    /// The spec has no listener.
    #[error("spec.listeners: a load balancer of type vm needs at least one")]
    Missing,
    /// The spec has more listeners than are allowed.
    #[error("spec.listeners: more than {MOST_LISTENERS}: use {MOST_LISTENERS} at most")]
    TooMany,
    /// A port of the listener is not between 1 and 65535.
    #[error("spec.listeners[{index}].{field}: {value} must be 1 to 65535")]
    NoPort {
        /// Index of the listener in `spec.listeners`.
        index: usize,
        /// Field of the listener: `port` or `backendPort`.
        field: &'static str,
        /// Value of the field.
        value: i32,
    },
    /// The protocol of the listener is neither TCP nor UDP.
    #[error("spec.listeners[{index}].protocol: {protocol:?} must be TCP or UDP")]
    NoProtocol {
        /// Index of the listener in `spec.listeners`.
        index: usize,
        /// Protocol of the listener.
        protocol: String,
    },
    /// The listener has a name that a Service's port cannot have.
    #[error(
        "spec.listeners[{index}].name: {name:?} must be lower-case letters, digits and dashes, begin and end with a letter or digit, and be at most 63 long; only a single listener may have none"
    )]
    NoName {
        /// Index of the listener in `spec.listeners`.
        index: usize,
        /// Name of the listener.
        name: String,
    },
    /// An earlier listener has the same name.
    #[error(
        "spec.listeners[{index}].name: {name:?} is the name of spec.listeners[{earlier}] as well: use another"
    )]
    SameName {
        /// Index of the listener in `spec.listeners`.
        index: usize,
        /// Name of the listener.
        name: String,
        /// Index of the earlier listener in `spec.listeners`.
        earlier: usize,
    },
    /// An earlier listener has the same port and protocol.
    #[error(
        "spec.listeners[{index}].port: {protocol} {port} is the port of spec.listeners[{earlier}] as well: use another"
    )]
    SamePort {
        /// Index of the listener in `spec.listeners`.
        index: usize,
        /// Protocol of the listener.
        protocol: String,
        /// Port of the listener.
        port: u16,
        /// Index of the earlier listener in `spec.listeners`.
        earlier: usize,
    },
}
