//! The lock file of the fuzz targets, a workspace of its own.

use std::collections::BTreeSet;

use super::read;

/// Names in an array of a lock file, without versions.
fn names(list: &toml::Value) -> BTreeSet<String> {
    let entries = list.as_array().into_iter().flatten().filter_map(toml::Value::as_str);
    entries.filter_map(|entry| entry.split(' ').next()).map(str::to_owned).collect()
}

/// `make fuzz` refuses a lock file that lacks one of the operator's dependencies.
#[test]
fn the_fuzz_targets_are_locked_to_what_the_operator_is_made_of() {
    let parse = |file| read(file).parse::<toml::Table>().unwrap();
    let lock = parse("tests/fuzz/Cargo.lock");
    let packages = lock["package"].as_array().unwrap();
    let name = toml::Value::from(env!("CARGO_PKG_NAME"));
    let operator = packages.iter().find(|package| package["name"] == name).unwrap();
    let manifest = parse("Cargo.toml");
    // Of another workspace's optional dependencies, a lock file has only those that are requested.
    let dependencies = manifest["dependencies"].as_table().unwrap();
    let is_optional = |name: &str| dependencies[name].get("optional").is_some();
    let wanted: BTreeSet<String> =
        dependencies.keys().filter(|name| !is_optional(name)).cloned().collect();
    let mut locked = names(&operator["dependencies"]);
    locked.retain(|name| !dependencies.contains_key(name) || !is_optional(name));
    assert_eq!(
        locked, wanted,
        "run `cargo metadata --manifest-path tests/fuzz/Cargo.toml` and commit the lock file"
    );
}
