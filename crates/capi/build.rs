//! Gives the library the name that programs are linked to. Its number rises when a program that was
//! compiled for an older one would not work with it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libforebay.so.0");
}
