//! Times of a credential: conversion between seconds and the text in a status, and the earliest of
//! several times.

use chrono::DateTime;

use crate::object_fields::rfc3339;

/// Duration in seconds, or point in time in seconds since the Unix epoch.
pub type Seconds = i64;

/// Earliest of the times that were passed to `or`. `None`: `or` was not called yet.
#[derive(Default)]
pub(super) struct EarliestTime(pub(super) Option<Seconds>);

impl EarliestTime {
    pub(super) fn or(&mut self, at: Seconds) {
        self.0 = Some(self.0.map_or(at, |until| until.min(at)));
    }
}

/// Text of a time in RFC 3339, in UTC and whole seconds. A time out of the range of `DateTime`
/// becomes the Unix epoch.
pub fn rfc3339(at: Seconds) -> String {
    rfc3339::to_second(DateTime::from_timestamp(at, 0).unwrap_or_default())
}

/// Parses a time in RFC 3339. `None`: the text is not a time in RFC 3339.
pub fn parse_rfc3339(text: &str) -> Option<Seconds> {
    rfc3339::parse(text).map(|at| at.timestamp())
}
