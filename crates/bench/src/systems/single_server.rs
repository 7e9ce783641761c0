//! The paper's custom solution: one process answers all others. There it used MPI; here a Unix socket.

use super::memcached::put;
use super::{Place, Store};
use crate::server::Server;
use std::process::Command;

const PROGRAM: (&str, &str) = ("single_server", include_str!("../../kernels/single_server.c"));

pub const STORE: Store = Store {
    name: "single server",
    program: None,
    start: |site, place, log| {
        let Place::Socket(path) = place else { return Err("it has a Unix socket only".into()) };
        let program = site.path(PROGRAM.0);
        let program = if program.exists() { program } else { site.compile(PROGRAM.0, PROGRAM.1)? };
        Server::start(PROGRAM.0, Command::new(program).arg(path), log)
    },
    configuration: "crates/bench/kernels/single_server.c, one thread; a client waits for each answer",
    get: |request, key| put(request, &[b"G", key]),
    set: |request, key, value| put(request, &[b"S", key, value]),
    got: |answer, _, value| put(answer, &[value]),
    done: |answer| put(answer, &[b"."]),
    wanted: 7.0,
};
