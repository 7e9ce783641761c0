//! The paper's custom solution: one process answers all others. There it used MPI; here a Unix
//! socket.

use super::memcached::put;
use super::{Broker, MESSAGE_BYTES, Place, Store, exchange, expect, message};
use crate::server::Server;
use std::process::Command;
use std::time::Instant;

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

/// Its queue.
pub const BROKER: Broker = Broker {
    name: "single server",
    program: None,
    start: STORE.start,
    has_socket: true,
    configuration: STORE.configuration,
    publish: |place, id, count| {
        let mut stream = place.connect()?;
        (0..count).try_for_each(|turn| {
            let mut request = vec![b'A'];
            request.extend_from_slice(&message(id, turn));
            expect(stream.as_mut(), &request, b".")
        })
    },
    subscribe: |place, count| {
        let mut stream = place.connect()?;
        let since = Instant::now();
        for _ in 0..count {
            let mut answer = [0; MESSAGE_BYTES];
            exchange(stream.as_mut(), b"T", &mut answer)?;
            if !answer.starts_with(b"from ") {
                return Err("the server has lost a message".into());
            }
        }
        Ok(since.elapsed().as_nanos() as f64)
    },
    clear: |_| Ok(()),
    wanted: [12.0, 12.0],
};
