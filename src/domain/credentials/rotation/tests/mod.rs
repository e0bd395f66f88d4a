//! What a failure leads to; all else is left to the model.

use super::*;

mod model;

#[test]
fn a_revocation_that_fails_is_tried_ever_later_and_holds_nothing_else_up() {
    let plan = status::plan(&api::TokenRotation::default());
    let old = |name: &str| Old { name: name.to_owned(), after: Some(7), ..Old::default() };
    let mut record = Record { previous: vec![old("a"), old("b")], ..Record::default() };
    for pause in [5, 10, 20, 40, 80, 120, 120] {
        record = failed(&plan, &record, Step::Revoke, "a", 100);
        assert_eq!(record.previous[0].after, Some(100 + pause));
    }
    assert_eq!(record.previous[1], old("b"));
    assert_eq!((record.failures, record.retry_after), (0, None));
}
