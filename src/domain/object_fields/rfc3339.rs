//! Times as text in RFC 3339, which is how objects store them.

use chrono::{DateTime, FixedOffset, SecondsFormat, Utc};

/// Parses a time. `None`: the text is not a time in RFC 3339.
pub fn parse(text: &str) -> Option<DateTime<FixedOffset>> {
    DateTime::parse_from_rfc3339(text).ok()
}

/// Text of the time `at` in UTC, to the second.
pub fn to_second(at: impl Into<DateTime<Utc>>) -> String {
    at.into().to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// Text of the time `at` in UTC, to the millisecond.
pub fn to_millisecond(at: impl Into<DateTime<Utc>>) -> String {
    at.into().to_rfc3339_opts(SecondsFormat::Millis, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc() {
        let at = parse("2026-11-25T13:00:00.0625+01:00").unwrap();
        assert_eq!(to_second(at), "2026-11-25T12:00:00Z");
        assert_eq!(to_millisecond(at), "2026-11-25T12:00:00.062Z");
        assert_eq!(parse(&to_second(at)).unwrap().timestamp(), at.timestamp());
    }

    #[test]
    fn other_text_is_no_time() {
        for text in ["", "soon", "2026-11-25", "2026-11-25T12:00:00", "1800000000"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
