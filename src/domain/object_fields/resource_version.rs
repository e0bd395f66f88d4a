//! Order of resourceVersions.
//!
//! Versions of one resource are decimal numbers, and each write makes a greater one: by KEP-5504
//! since Kubernetes 1.35, and by etcd's revisions before. A version that is not a number has no
//! order, so the version that arrives later counts as newer. A view of objects with such versions
//! may accept an older state, but it cannot get stuck: it always accepts the next state.

/// Parses a resourceVersion as a number of at most 128 bits. `None`: the text is not such a number,
/// so the version cannot be ordered.
pub fn number(version: &str) -> Option<u128> {
    version.parse().ok()
}

/// Whether `version` is older than `known`, the version that was seen before. `false` if one of the
/// two is not a number.
pub fn is_older(version: &str, known: &str) -> bool {
    number(version).zip(number(known)).is_some_and(|(version, known)| version < known)
}

/// Whether `version` is newer than `known`, the version that was seen before. If one of the two is
/// not a number, each `version` other than `known` counts as newer.
pub fn is_newer(version: &str, known: &str) -> bool {
    version != known && !is_older(version, known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_as_numbers() {
        let most = u128::MAX.to_string();
        for (older, newer) in [("9", "10"), ("0", "1"), ("18446744073709551616", &most)] {
            assert!(is_older(older, newer) && !is_newer(older, newer), "{older} {newer}");
            assert!(is_newer(newer, older) && !is_older(newer, older), "{older} {newer}");
        }
        assert!(!is_older("7", "7") && !is_newer("7", "7"));
    }

    #[test]
    fn of_versions_that_are_no_numbers_the_later_to_arrive_is_newer() {
        for (version, known) in
            [("a", "b"), ("b", "a"), ("7", "a"), ("a", "7"), ("7", ""), ("", "7")]
        {
            assert!(is_newer(version, known) && !is_older(version, known), "{version} {known}");
        }
        assert!(!is_older("a", "a") && !is_newer("a", "a"));
    }
}
