//! How the programs are linked.

fn main() {
    println!("cargo::rerun-if-changed=src/build.rs");
    // Half a megabyte of relocations, of which the loader reads every page, becomes a few of them. Debian's
    // C library knows the form since 2.36.
    println!("cargo::rustc-link-arg-bin=lease-agent=-Wl,-z,pack-relative-relocs");
}
