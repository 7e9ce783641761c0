//! Redis, the values as its strings.

use super::{Place, Store};
use crate::server::Server;
use std::process::Command;

pub const STORE: Store = Store {
    name: "Redis",
    program: Some("redis-server"),
    start: |site, place, log| {
        let mut command = Command::new("redis-server");
        command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
        match place {
            Place::Network(at) => {
                // Nodes of a benchmark have a network of their own.
                command.args(["--protected-mode", "no", "--bind", &at.ip().to_string()]);
                command.args(["--port", &at.port().to_string()])
            }
            Place::Socket(path) => command.args(["--port", "0", "--unixsocket"]).arg(path),
        };
        Server::start("redis-server", command.arg("--dir").arg(site.path("")), log)
    },
    configuration: "redis-server --save \"\" --appendonly no",
    get: |request, key| command(request, &[b"GET", key]),
    set: |request, key, value| command(request, &[b"SET", key, value]),
    got: |answer, _, value| bulk(answer, value),
    done: |answer| answer.extend_from_slice(b"+OK\r\n"),
    wanted: 2.0,
};

fn command(request: &mut Vec<u8>, words: &[&[u8]]) {
    request.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    words.iter().for_each(|word| bulk(request, word));
}

fn bulk(text: &mut Vec<u8>, word: &[u8]) {
    text.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
    text.extend_from_slice(word);
    text.extend_from_slice(b"\r\n");
}
