//! Builds the C shim, which knows who calls.

fn main() {
    println!("cargo::rerun-if-changed=src/callers.c");
    cc::Build::new().file("src/callers.c").opt_level(2).compile("forebay_hdf5_callers");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libforebay_hdf5.so");
}
