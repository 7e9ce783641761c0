//! Asking a node manager something that it answers in a file in memory.

use forebay_node::Connection;
use forebay_node::runtime::Runtime;
use forebay_pool::message::Message;
use rustix::fs::MemfdFlags;
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Says something, with a text if it takes one, and returns the answer, which is JSON; `None` where
/// the manager says nothing, or refuses.
pub fn ask(runtime: &Runtime, message: Message, text: &str, limit: Duration) -> Option<Value> {
    serde_json::from_slice(&ask_in_words(runtime, message, text, limit)?).ok()
}

/// The same of an answer in any form.
pub fn ask_in_words(
    runtime: &Runtime,
    message: Message,
    text: &str,
    limit: Duration,
) -> Option<Vec<u8>> {
    let connection = Connection::to(&runtime.socket()).ok()?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory: OwnedFd = rustix::fs::memfd_create(c"forebay-answer", flags).ok()?;
    let mut memory = File::from(memory);
    memory.write_all(text.as_bytes()).ok()?;
    connection.send_with(message, memory.as_fd()).ok()?;
    match connection.receive(limit) {
        Ok(Some(Message::Told)) => {
            let mut answer = Vec::new();
            // The manager, too, has moved the position that both share.
            memory.rewind().ok()?;
            memory.read_to_end(&mut answer).ok()?;
            Some(answer)
        }
        _ => None,
    }
}
