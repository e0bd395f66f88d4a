//! Build script: sets a linker option of the program `lease-agent`, so that the program starts
//! faster.

fn main() {
    println!("cargo::rerun-if-changed=src/build.rs");
    // The option packs half a megabyte of relocations into a few pages. The loader reads every page
    // of relocations, so fewer pages make the start faster. Debian's C library supports the format
    // since 2.36. Debian's linker, 2.40, writes the format only for x86, and warns on other
    // architectures.
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64") {
        println!("cargo::rustc-link-arg-bin=lease-agent=-Wl,-z,pack-relative-relocs");
    }
}
