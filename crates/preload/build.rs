//! Builds the C shim for variadic functions and asks the loader to start this library first.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Has the linker take libgcc's unwinder from its archive, where the compiler has one: each process
/// would load and relocate a library for it, whose constructor asks the processor what it is.
fn link_unwinder() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let compiler = cc::Build::new().get_compiler();
    let asked = Command::new(compiler.path()).arg("-print-file-name=libgcc_eh.a").output();
    let found = asked.ok().and_then(|asked| String::from_utf8(asked.stdout).ok());
    // A name without a folder is one that it does not have.
    let has = found.is_some_and(|path| {
        let path = Path::new(path.trim());
        path.is_absolute() && path.is_file()
    });
    let script = "INPUT ( -lgcc_eh -lgcc )\n";
    if has && std::fs::write(out.join("libgcc_s.so"), script).is_ok() {
        // For this library alone: a program that contains its crate loads libgcc_s as it is.
        println!("cargo::rustc-cdylib-link-arg=-L{}", out.display());
    }
}

fn main() {
    link_unwinder();
    println!("cargo::rerun-if-changed=src/variadic.c");
    cc::Build::new().file("src/variadic.c").opt_level(2).compile("forebay_variadic");
    // zig's compiler driver refuses what it does not know of `-z`; scripts/build-portable, which
    // says that it is the linker, sets INITFIRST in the finished library.
    println!("cargo::rerun-if-env-changed=FOREBAY_LINKER");
    let is_zig = std::env::var_os("FOREBAY_LINKER").is_some_and(|linker| linker == "zig");
    if !is_zig {
        // Standard streams on managed files are replaced before any other library takes a copy of
        // their pointers. Each segment is a system call of each process.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst,-z,noseparate-code");
        // Nor has it anything to do at the end for which the loader would touch a page: a symbol
        // that is not there stands for no function.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-fini,forebay_has_none");
        // What the library calls of its own the loader need not look for, 800 instructions each:
        // no program's function of the same name is meant.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    }
    // So is the protection of what the loader has written; addresses of functions that are looked
    // up later lie beside that anyway.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,norelro");
}
