//! An instance on this machine: its name, its folder with socket, lock, log and configuration, the
//! pools that are found in /dev/shm, the marks that keep two managers off one directory, and the
//! service manager of the host.
//!
//! May use `config` and `observe`.

pub(crate) mod discovery;
pub(crate) mod guard;
pub mod launch;
pub mod neighbours;
pub mod runtime;
pub mod service;
