//! What each call promises, on managed files as on others.

#[path = "../harness/mod.rs"]
mod harness;

mod aliases;
mod descriptors;
mod folders;
mod locks;
mod names;
mod posix_edge_cases;
mod ranges;
mod regressions;
mod scm_rights;
mod shared_files;
mod sharing;
mod standard_error;
mod starting;
mod streams;
mod suites;
mod written_through;
