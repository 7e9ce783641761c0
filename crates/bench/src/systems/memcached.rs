//! memcached, with its text protocol.

use super::{Broker, Place, Store, exchange, expect, message};
use crate::server::Server;
use std::process::Command;
use std::time::Instant;

pub const STORE: Store = Store {
    name: "memcached",
    program: Some("memcached"),
    start: |_, place, log| {
        let mut command = Command::new("memcached");
        command.args(["-m", "256", "-t", "4", "-R", "64"]);
        if rustix::process::getuid().is_root() {
            // It refuses to serve as root unless told so.
            command.args(["-u", "root"]);
        }
        match place {
            Place::Network(at) => {
                command.args(["-l", &at.ip().to_string(), "-U", "0"]);
                command.args(["-p", &at.port().to_string()])
            }
            Place::Socket(path) => command.arg("-s").arg(path),
        };
        Server::start("memcached", &mut command, log)
    },
    configuration: "memcached -m 256 -t 4 -R 64",
    get: |request, key| put(request, &[b"get ", key, b"\r\n"]),
    set: |request, key, value| {
        let length = format!(" 0 0 {}\r\n", value.len());
        put(request, &[b"set ", key, length.as_bytes(), value, b"\r\n"]);
    },
    got: |answer, key, value| {
        let length = format!(" 0 {}\r\n", value.len());
        put(answer, &[b"VALUE ", key, length.as_bytes(), value, b"\r\nEND\r\n"]);
    },
    done: |answer| put(answer, &[b"STORED\r\n"]),
    wanted: 2.0,
};

/// A queue on it, as the paper has it: each message is a value under its number. Two counters are
/// head and tail.
pub const BROKER: Broker = Broker {
    name: "queue on memcached",
    program: STORE.program,
    start: STORE.start,
    has_socket: true,
    configuration: "memcached -m 256 -t 4 -R 64; incr and set, incr and get and delete, 64 of each at \
                    a time",
    publish: |place, id, count| {
        let mut stream = place.connect()?;
        for first in (0..count).step_by(PIPELINE) {
            let turns = first..(first + PIPELINE).min(count);
            let numbers = advance(stream.as_mut(), b"tail", turns.len())?;
            let (mut request, mut due) = (Vec::new(), Vec::new());
            for (number, turn) in numbers.chunks(NUMBER).zip(turns) {
                (STORE.set)(&mut request, number, &message(id, turn));
                (STORE.done)(&mut due);
            }
            expect(stream.as_mut(), &request, &due)?;
        }
        Ok(())
    },
    subscribe: |place, count| {
        let mut stream = place.connect()?;
        let since = Instant::now();
        for first in (0..count).step_by(PIPELINE) {
            let turns = first..(first + PIPELINE).min(count);
            let numbers = advance(stream.as_mut(), b"head", turns.len())?;
            let (mut request, mut due) = (Vec::new(), Vec::new());
            for number in numbers.chunks(NUMBER) {
                (STORE.get)(&mut request, number);
                put(&mut request, &[b"delete ", number, b"\r\n"]);
                (STORE.got)(&mut due, number, &message(0, 0));
                due.extend_from_slice(b"DELETED\r\n");
            }
            let mut answer = vec![0; due.len()];
            exchange(stream.as_mut(), &request, &mut answer)?;
            // The publisher is not known before.
            let is_message = |found: &[u8]| {
                found.starts_with(b"VALUE ")
                    && found.windows(5).any(|word| word == b"from ")
                    && found.ends_with(b"DELETED\r\n")
            };
            if !answer.chunks(due.len() / numbers.chunks(NUMBER).len()).all(is_message) {
                return Err("memcached has lost a message".into());
            }
        }
        Ok(since.elapsed().as_nanos() as f64)
    },
    clear: |place| {
        let mut stream = place.connect()?;
        expect(stream.as_mut(), b"flush_all\r\n", b"OK\r\n")?;
        for counter in [b"head", b"tail"] {
            let mut request = Vec::new();
            (STORE.set)(&mut request, counter, b"1000000000");
            expect(stream.as_mut(), &request, b"STORED\r\n")?;
        }
        Ok(())
    },
    wanted: [8.0, 8.0],
};

const PIPELINE: usize = 64;
/// Digits of a message's number, which has as many always.
const NUMBER: usize = 10;

/// The next numbers of a counter, one behind the other.
fn advance(
    stream: &mut dyn super::Stream,
    counter: &[u8],
    count: usize,
) -> Result<Vec<u8>, String> {
    let mut request = Vec::new();
    (0..count).for_each(|_| put(&mut request, &[b"incr ", counter, b" 1\r\n"]));
    let mut answer = vec![0; count * (NUMBER + 2)];
    exchange(stream, &request, &mut answer)?;
    Ok(answer.chunks(NUMBER + 2).flat_map(|line| &line[..NUMBER]).copied().collect())
}

pub(super) fn put(text: &mut Vec<u8>, parts: &[&[u8]]) {
    parts.iter().for_each(|part| text.extend_from_slice(part));
}
