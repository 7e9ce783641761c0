//! memcached, with its text protocol.

use super::{Place, Store};
use crate::server::Server;
use std::process::Command;

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
            Place::Loopback(port) => {
                command.args(["-l", "127.0.0.1", "-U", "0", "-p", &port.to_string()])
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

pub(super) fn put(text: &mut Vec<u8>, parts: &[&[u8]]) {
    parts.iter().for_each(|part| text.extend_from_slice(part));
}
