//! The repository itself: its rules and pages, what a call may cost, and the commands that measure.

#[path = "../harness/mod.rs"]
mod harness;

mod bench;
mod instructions;
mod packaging;
mod profile;
mod readme;
mod simulate;
mod syscalls;
mod version;
mod workspace;
