//! What is made for a TokenRotation, and why it may not be.

use super::super::Account;
use super::*;

fn guest() -> Guest {
    Guest::new("blue", "guests").unwrap()
}

fn found() -> Found {
    let account = Account { uid: "u1".to_owned(), ..Account::default() };
    Found { account: Some(account), ..Found::default() }
}

fn ground() -> Ground {
    Ground {
        rotations: Some(Vec::new()),
        operator: Some("ServiceAccount harvester-system/operator".to_owned()),
        ..Ground::default()
    }
}

fn ours() -> Rotation {
    Rotation {
        namespace: "guests".to_owned(),
        name: "blue".to_owned(),
        account: Some("blue".to_owned()),
        secret: Some("blue-cloud-config".to_owned()),
    }
}

fn names(ground: &Ground) -> Vec<String> {
    let steps = rotation(&guest(), 30, &found(), ground, "config").unwrap();
    steps.iter().map(|step| step.object.to_string()).collect()
}

fn said(ground: &Ground) -> String {
    rotation(&guest(), 30, &found(), ground, "config").unwrap_err().to_string()
}

#[test]
fn what_is_missing_is_made_and_goes_with_the_account() {
    let (secret, rotation_) = ("Secret guests/blue-cloud-config", "TokenRotation guests/blue");
    assert_eq!(names(&ground()), [secret, rotation_]);
    let there = Ground { secret: Some(Some("blue".to_owned())), ..ground() };
    assert_eq!(names(&there), [rotation_]);
    let there = Ground { rotations: Some(vec![ours()]), ..there };
    assert!(names(&there).is_empty());
    for step in rotation(&guest(), 30, &found(), &ground(), "config").unwrap() {
        assert_eq!(step.body["metadata"]["ownerReferences"][0]["uid"], "u1");
        assert_eq!(step.body["metadata"]["annotations"][ANNOTATION_GUEST], "blue");
    }
}

#[test]
fn where_nobody_would_carry_it_out_every_reason_is_given() {
    let text = said(&Ground::default());
    assert!(text.contains("CRDs") && text.contains("credentials.namespaces"), "{text}");
    let lacks = vec!["a".to_owned(), "b".to_owned()];
    let text = said(&Ground { lacks, ..ground() });
    assert!(text.contains("harvester-system/operator may not a, nor b"), "{text}");
}

#[test]
fn what_is_anothers_is_refused_by_name() {
    let changes: [fn(&mut Rotation); 4] = [
        |there| there.account = Some("red".to_owned()),
        |there| there.account = None,
        |there| there.secret = Some("other".to_owned()),
        |there| there.secret = None,
    ];
    for change in changes {
        let mut there = ours();
        change(&mut there);
        let text = said(&Ground { rotations: Some(vec![there]), ..ground() });
        assert!(text.contains("TokenRotation guests/blue"), "{text}");
    }
    let other = Rotation { name: "other".to_owned(), ..ours() };
    let text = said(&Ground { rotations: Some(vec![other]), ..ground() });
    assert!(text.contains("TokenRotation guests/other"), "{text}");
    for made_for in [None, Some("red".to_owned())] {
        let text = said(&Ground { secret: Some(made_for), ..ground() });
        assert!(text.contains("Secret guests/blue-cloud-config"), "{text}");
    }
}
