//! Tests with many credentials, of which a few are read at a time.

use super::*;

fn all(names: &[&str]) -> Vec<(String, String)> {
    names.iter().map(|name| ((*name).to_owned(), format!("title of {name}"))).collect()
}

fn expires(end: Seconds) -> TokenClaims {
    TokenClaims { name: "token-a".into(), issued: None, expires: Some(end) }
}

fn watched(inventory: &CredentialInventory) -> Vec<(String, Option<Seconds>, Option<String>)> {
    let watched = inventory.watched(|_| false).listed.into_iter();
    watched
        .map(|one| (one.credential.clone().unwrap(), watched::expiry(&one), one.unknown))
        .collect()
}

#[test]
fn each_is_read_in_its_turn() {
    let mut inventory = CredentialInventory::default();
    inventory.set_list(all(&["a", "b", "c", "d", "e"]));
    let mut read = Vec::new();
    for _ in 0..5 {
        for name in inventory.next_to_read(2) {
            inventory.store_read(&name, Ok(expires(900)), 1);
            read.push(name);
        }
    }
    assert_eq!(read, ["a", "b", "c", "d", "e", "a", "b", "c", "d", "e"]);
    inventory.set_list(all(&["a", "b", "c", "d", "e", "new"]));
    assert_eq!(inventory.next_to_read(1), ["new"], "an unread one comes first");
    assert_eq!((inventory.known.len(), inventory.unread()), (6, 1));
}

#[test]
fn what_is_gone_is_forgotten_and_what_is_not_read_stays_known() {
    let mut inventory = CredentialInventory::default();
    inventory.set_list(all(&["a", "b"]));
    inventory.store_read("a", Ok(expires(900)), 1);
    inventory.store_read("b", Ok(expires(800)), 1);
    let recorded = inventory.watched(|name| name == "b").listed;
    let mut inventory = CredentialInventory::from_status(&recorded);
    inventory.set_list(all(&["b", "c"]));
    assert_eq!(watched(&inventory), [("b".into(), Some(800), None), ("c".into(), None, None)]);
    let counts = (inventory.known.len(), inventory.unread());
    assert_eq!(counts, (2, 2), "read by another process only");
    inventory.store_read("gone", Ok(expires(1)), 1);
    assert_eq!(inventory.known.len(), 2);
}

#[test]
fn one_that_cannot_be_read_is_named_and_keeps_its_expiry() {
    let mut inventory = CredentialInventory::default();
    inventory.set_list(all(&["a", "b"]));
    inventory.store_read("a", Ok(expires(900)), 1);
    inventory.store_read("a", Err("it has no users".into()), 2);
    inventory.store_read("b", Err("not allowed".into()), 2);
    let expected = [
        ("a".into(), Some(900), Some("it has no users".into())),
        ("b".into(), None, Some("not allowed".into())),
    ];
    assert_eq!(watched(&inventory), expected);
    inventory.store_read("a", Ok(expires(950)), 3);
    assert_eq!(watched(&inventory)[0], ("a".into(), Some(950), None));
}

#[test]
fn the_end_of_a_dead_one_is_set_once() {
    let mut inventory = CredentialInventory::default();
    inventory.set_list(all(&["a"]));
    inventory.store_read("a", Ok(expires(100)), 100);
    inventory.store_read("a", Ok(expires(200)), 200);
    assert_eq!(watched(&inventory)[0].1, Some(100));
    inventory.store_read("a", Ok(expires(900)), 300);
    assert_eq!(watched(&inventory)[0].1, Some(900), "it was made to last longer");
    let other = TokenClaims { name: "token-b".into(), issued: None, expires: Some(400) };
    inventory.store_read("a", Ok(expires(100)), 350);
    inventory.store_read("a", Ok(other), 400);
    assert_eq!(watched(&inventory)[0].1, Some(400), "another one by now");
}

#[test]
fn a_replacing_rotation_is_reported() {
    let mut inventory = CredentialInventory::default();
    inventory.set_list(all(&["a", "b"]));
    let watched = inventory.watched(|name| name == "a").listed;
    assert_eq!(watched.iter().map(|one| one.rotated).collect::<Vec<_>>(), [true, false]);
    assert_eq!(watched[0].title.as_deref(), Some("title of a"));
}
