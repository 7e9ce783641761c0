//! Random operations: the differential fuzzer, and `forebay torture`.

#[path = "../harness/mod.rs"]
mod harness;

mod fuzz;
mod lists;
mod mixture;
