//! Builds the C shim for variadic functions and asks the loader to start this library first.

fn main() {
    println!("cargo::rerun-if-changed=src/variadic.c");
    cc::Build::new().file("src/variadic.c").opt_level(2).compile("forebay_variadic");
    // Standard streams on managed files are replaced before any other library takes a copy of
    // their pointers.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst");
}
