//! The commands, and what the node manager does for them: runs, configuration, rules, flush, stop,
//! status.

#[path = "../harness/mod.rs"]
mod harness;

mod active;
mod analyse;
mod bad_input;
mod batch;
mod caps;
mod discovery;
mod encoded;
mod explain;
mod flush;
mod groups;
mod keep;
mod logs;
mod memory;
mod modes;
mod movers;
mod organizer;
mod placement;
mod predictors;
mod prefetch;
mod quotas;
mod read_only;
mod replay;
mod report;
mod runs;
mod schema;
mod service;
mod signals;
mod small_files;
mod staged;
mod staging;
mod stop;
mod sweeps;
mod top;
mod truthful;
mod verbs;
mod watching;
mod web;
