//! How fast messages between the ranks of MPI programs are: `[mpi]`, which `forebay profile --mpi`
//! measures. The file beside this one, `mpi.rs`, is about the launchers of MPI.

use super::Errors;
use super::reader::{self, Value};
use forebay_pool::layout::{Header, LinkSpeed};
use std::fmt::Write;
use std::sync::atomic::Ordering;

const KEYS: &[&str] = &["between", "within"];
const LINK_KEYS: &[&str] = &["latency", "bandwidth"];
const EXAMPLE: &str = "a table such as { latency = \"2us\", bandwidth = \"10GB/s\" }";

/// A message between two ranks. Zero where it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageSpeed {
    /// Nanoseconds of a message without bytes: T_s.
    pub latency_ns: u64,
    /// Bytes per second: 1 / T_w.
    pub bandwidth: u64,
}

/// Messages between the ranks of MPI programs, as
/// [`forebay_placement::collective::Network`] wants them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Messages {
    /// Between ranks of different nodes.
    pub between: MessageSpeed,
    /// Between ranks of one node.
    pub within: MessageSpeed,
}

impl Messages {
    /// Says it to programs.
    pub(crate) fn set(&self, header: &Header) {
        let set = |place: &LinkSpeed, speed: MessageSpeed| {
            place.latency_ns.store(speed.latency_ns, Ordering::Relaxed);
            place.bandwidth.store(speed.bandwidth, Ordering::Relaxed);
        };
        set(&header.between_nodes, self.between);
        set(&header.within_node, self.within);
    }

    /// As a part of a configuration's text; nothing where nothing is known.
    pub fn write(&self, text: &mut String) {
        if *self == Messages::default() {
            return;
        }
        *text += "[mpi]\n";
        for (key, speed) in [("between", self.between), ("within", self.within)] {
            let MessageSpeed { latency_ns, bandwidth } = speed;
            if bandwidth > 0 {
                let _ = writeln!(
                    text,
                    "{key} = {{ latency = \"{latency_ns}ns\", bandwidth = {bandwidth} }}"
                );
            }
        }
    }
}

impl Value<'_> {
    /// The table `[mpi]`.
    pub(super) fn messages(&self, errors: &Errors) -> reader::Result<Messages> {
        let section = self.table(KEYS, "a table: [mpi]")?;
        let one = |key| match section.get(key) {
            Some(entry) => errors.or(entry.message_speed(), MessageSpeed::default()),
            None => MessageSpeed::default(),
        };
        Ok(Messages { between: one("between"), within: one("within") })
    }

    fn message_speed(&self) -> reader::Result<MessageSpeed> {
        let section = self.table(LINK_KEYS, EXAMPLE)?;
        let bandwidth = section.require("bandwidth", "... (such as \"10GB/s\")")?;
        let latency = section.require("latency", "... (such as \"2us\")")?;
        Ok(MessageSpeed {
            latency_ns: latency.duration_ns("2us")?,
            bandwidth: bandwidth.bytes("/s", "a bandwidth such as \"10GB/s\"")?,
        })
    }
}
