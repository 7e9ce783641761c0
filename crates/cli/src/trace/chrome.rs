//! A traced run in the JSON trace event format that Perfetto and chrome://tracing open: processes
//! and threads, complete events (`X`), counters (`C`), and the model's numbers beside them.

use super::ledger::Ledger;
use super::model::Said;
use super::story::{Deed, Story, Stretch};
use forebay_node::log::shown;
use forebay_pool::spans::{SpanKind, Spans};
use serde_json::{Value, json};
use std::fmt::Display;
use std::io::{self, Write};

/// What calls are called.
pub fn name_of(kind: SpanKind) -> &'static str {
    match kind {
        SpanKind::Read => "read",
        SpanKind::Write => "write",
        SpanKind::Sync => "sync",
        SpanKind::Open => "open",
        SpanKind::Close => "close",
        SpanKind::Resize => "resize",
        SpanKind::Mixed => "I/O",
        SpanKind::Phase => "phase",
    }
}

/// Writes all of it. Times are microseconds since the command was started.
///
/// # Errors
/// The system's.
pub fn write(
    mut to: impl Write,
    command: &str,
    (story, spans, ledger): (&Story, &Spans, &Ledger),
    said: &Said,
) -> io::Result<()> {
    let about = json!({
        "command": command,
        "forebay": env!("CARGO_PKG_VERSION"),
        "begin_ns": story.begin_ns,
        "seconds": (story.end_ns - story.begin_ns) as f64 / 1e9,
        "left_out": story.describe_missed(),
    });
    writeln!(to, "{{\"displayTimeUnit\":\"ms\",\"otherData\":{about},\"model\":{},", said.json())?;
    write!(to, "\"traceEvents\":[")?;
    let mut events = Events { to, origin_ns: story.begin_ns, is_first: true };
    let manager = ledger.manager();
    events.named("process_name", manager, 0, "node manager")?;
    let mut process = None;
    for deeds in &story.threads {
        let (id, thread) = (deeds.thread.process, deeds.thread.id);
        let name = shown(&String::from_utf8_lossy(&deeds.thread.name).into_owned());
        if process != Some(id) {
            process = Some(id);
            let rank = deeds.thread.rank.map_or(String::new(), |rank| format!(" (rank {rank})"));
            events.named("process_name", id, id, &format!("{name}{rank}"))?;
        }
        events.named("thread_name", id, thread, &name)?;
        for (deed, stretch) in &deeds.deeds {
            let name = match deed {
                Deed::Calls(kind) => name_of(*kind).to_owned(),
                Deed::Phase { name, .. } => spans.name(*name),
                Deed::Compute => "compute".to_owned(),
            };
            let kind = match deed {
                Deed::Calls(_) => "io",
                Deed::Phase { .. } => "phase",
                Deed::Compute => "compute",
            };
            events.complete((id, thread), (&name, kind), stretch)?;
        }
    }
    for (row, way) in ledger.ways().enumerate() {
        let thread = row as u32 + 1;
        events.named("thread_name", manager, thread, &way.name())?;
        for span in way.spans() {
            let (start_ns, end_ns) = (span.start_us * 1000, span.end_us * 1000);
            let stretch = Stretch {
                start_ns,
                end_ns: end_ns.max(start_ns),
                bytes: span.bytes,
                ..<_>::default()
            };
            events.complete((manager, thread), (&way.name(), way.action()), &stretch)?;
        }
    }
    for (name, points) in ledger.fills().levels() {
        for (at_us, bytes) in points {
            events.counter(manager, &format!("tier {name}"), at_us * 1000, bytes)?;
        }
    }
    let mut to = events.to;
    writeln!(to, "\n]}}")?;
    to.flush()
}

struct Events<W: Write> {
    to: W,
    origin_ns: u64,
    is_first: bool,
}

impl<W: Write> Events<W> {
    fn event(&mut self, event: impl Display) -> io::Result<()> {
        let comma = if std::mem::take(&mut self.is_first) { "" } else { "," };
        write!(self.to, "{comma}\n{event}")
    }

    fn named(&mut self, what: &str, process: u32, thread: u32, name: &str) -> io::Result<()> {
        let name = Value::from(name);
        self.event(format_args!(
            r#"{{"ph":"M","name":"{what}","pid":{process},"tid":{thread},"args":{{"name":{name}}}}}"#
        ))
    }

    fn complete(
        &mut self,
        (process, thread): (u32, u32),
        (name, kind): (&str, &str),
        stretch: &Stretch,
    ) -> io::Result<()> {
        let name = Value::from(name);
        let (at, length) = (self.us(stretch.start_ns), Micros(stretch.length_ns()));
        let Stretch { bytes, calls, .. } = *stretch;
        let busy = Micros(stretch.busy_ns);
        let amounts = match kind {
            "io" => format!(r#","args":{{"bytes":{bytes},"calls":{calls},"busy_us":{busy}}}"#),
            "phase" | "compute" => String::new(),
            _ => format!(r#","args":{{"bytes":{bytes}}}"#),
        };
        self.event(format_args!(
            r#"{{"ph":"X","name":{name},"cat":"{kind}","pid":{process},"tid":{thread},"ts":{at},"dur":{length}{amounts}}}"#
        ))
    }

    fn counter(&mut self, process: u32, name: &str, at_ns: u64, bytes: u64) -> io::Result<()> {
        let (name, at) = (Value::from(name), self.us(at_ns));
        self.event(format_args!(
            r#"{{"ph":"C","name":{name},"pid":{process},"ts":{at},"args":{{"bytes":{bytes}}}}}"#
        ))
    }

    fn us(&self, at_ns: u64) -> Micros {
        Micros(at_ns.saturating_sub(self.origin_ns))
    }
}

/// Nanoseconds, written as microseconds: to the last digit, so that what lies in something else
/// does so in the file.
struct Micros(u64);

impl Display for Micros {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}
