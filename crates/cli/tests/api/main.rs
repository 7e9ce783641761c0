//! The C library: what C and C++ programs get from `include/forebay/forebay.h`, under
//! `forebay run` and without it.

#[path = "../harness/mod.rs"]
mod harness;

mod actions;
mod c_library;
mod containers;
mod interface;
mod pins;
mod tracing;
mod wheel;

use std::path::{Path, PathBuf};

/// The root of the sources.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A library that was built with the command.
fn built(name: &str) -> PathBuf {
    let folder = Path::new(harness::FOREBAY).parent().unwrap();
    let places = [folder.join("deps").join(name), folder.join(name)];
    let found = places.iter().find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("none of {places:?}")).clone()
}
