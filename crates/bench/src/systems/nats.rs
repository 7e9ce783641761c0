//! NATS, without persistence, as the paper has it and as it is by default.

use super::memcached::put;
use super::{Broker, MESSAGE_BYTES, Place, Stream, expect, message};
use crate::server::Server;
use std::io::Read;
use std::process::Command;
use std::thread;
use std::time::Instant;

const HELLO: &[u8] = b"CONNECT {\"verbose\":false,\"pedantic\":false}\r\nPING\r\n";

pub const BROKER: Broker = Broker {
    name: "NATS",
    program: Some("nats-server"),
    start: |_, place, log| {
        let Place::Network(at) = place else { return Err("it has no Unix socket".into()) };
        let mut command = Command::new("nats-server");
        Server::start(
            "nats-server",
            command.args(["-a", &at.ip().to_string(), "-p", &at.port().to_string()]),
            log,
        )
    },
    has_socket: false,
    configuration: "nats-server -a ADDRESS; many messages in one write, as nats bench sends them",
    publish: |place, id, count| publish(connect(place)?.as_mut(), "alone", id, count),
    subscribe: |place, count| {
        let mut subscriber = connect(place)?;
        expect(subscriber.as_mut(), b"SUB heard 1\r\nPING\r\n", b"PONG\r\n")?;
        let mut publisher = connect(place)?;
        thread::scope(|scope| {
            let sent = scope.spawn(move || publish(publisher.as_mut(), "heard", 0, count));
            let received = receive(subscriber.as_mut(), count);
            sent.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            received
        })
    },
    clear: |_| Ok(()),
    wanted: [2.0, 3.0],
};

/// Messages in one write.
const BATCH: usize = 512;

/// Reads the server's greeting, which has no fixed length, and introduces itself.
fn connect(place: &Place) -> Result<Box<dyn Stream>, String> {
    let mut stream = place.connect()?;
    let failed = |e: std::io::Error| format!("talking to NATS: {e}");
    let mut byte = [0];
    while byte != *b"\n" {
        stream.read_exact(&mut byte).map_err(failed)?;
    }
    expect(stream.as_mut(), HELLO, b"PONG\r\n")?;
    Ok(stream)
}

/// Returns when the server has taken all.
fn publish(stream: &mut dyn Stream, subject: &str, id: usize, count: usize) -> Result<(), String> {
    let head = format!("PUB {subject} {MESSAGE_BYTES}\r\n");
    let mut request = Vec::new();
    for turn in 0..count {
        put(&mut request, &[head.as_bytes(), &message(id, turn), b"\r\n"]);
        if turn % BATCH == BATCH - 1 {
            stream.write_all(&request).map_err(|e| format!("talking to NATS: {e}"))?;
            request.clear();
        }
    }
    request.extend_from_slice(b"PING\r\n");
    expect(stream, &request, b"PONG\r\n")
}

/// Nanoseconds from the first message to the last.
fn receive(stream: &mut dyn Stream, count: usize) -> Result<f64, String> {
    let mut since = None;
    let mut due = Vec::new();
    for first in (0..count).step_by(BATCH) {
        due.clear();
        for turn in first..(first + BATCH).min(count) {
            let head = format!("MSG heard 1 {MESSAGE_BYTES}\r\n");
            put(&mut due, &[head.as_bytes(), &message(0, turn), b"\r\n"]);
        }
        // The clock starts with the first byte.
        if since.is_none() {
            expect(stream, b"", &due[..1])?;
            since = Some(Instant::now());
            due.remove(0);
        }
        expect(stream, b"", &due)?;
    }
    Ok(since.map_or(0.0, |since| since.elapsed().as_nanos() as f64))
}
