//! What a build without the interpreter says.

#![cfg(not(feature = "wasm"))]

use forebay_sandbox::Program;

#[test]
fn a_build_without_the_interpreter_names_the_feature_that_it_lacks() {
    let error = Program::of(b"\0asm\x01\0\0\0").unwrap_err();
    assert!(error.contains("cargo feature `wasm`"), "{error}");
}
