//! The node manager as a process: start and end, its threads, its socket, jobs, and what it looks
//! after between requests.
//!
//! May use all other folders; none of them uses this one.

mod asks;
mod clean;
pub(crate) mod control;
pub(crate) mod daemon;
mod exporter;
pub(crate) mod housekeeping;
pub(crate) mod jobs;
pub(crate) mod leases;
mod lend;
mod registrar;
pub(crate) mod remote;
mod rest;
pub(crate) mod retire;
mod runner;
mod small_files;
pub(crate) mod takeover;
