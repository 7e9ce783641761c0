//! How a stage-in comes along, for people: one line on a terminal, a line now and then elsewhere.

use crate::drain::{NO_ESTIMATE, Recent};
use crate::progress_bar::{Bar, LINE_EVERY, SHORT};
use crate::text::{bytes, files};
use std::io::IsTerminal;
use std::time::Instant;

/// What there is to do, or what is done.
#[derive(Clone, Copy, Default)]
pub struct Amount {
    pub files: usize,
    pub bytes: u64,
}

impl Amount {
    /// With one more file.
    pub fn and(self, bytes: u64) -> Amount {
        Amount { files: self.files + 1, bytes: self.bytes + bytes }
    }
}

/// The progress of one command.
pub struct Progress {
    all: Amount,
    since: Instant,
    recent: Recent,
    line: Option<Instant>,
    bar: Bar,
}

/// What a line of so many columns says.
fn template(columns: u16) -> &'static str {
    match columns {
        95.. => {
            "{msg} {wide_bar} {prefix}, {binary_bytes}/{binary_total_bytes}, {binary_bytes_per_sec}, {eta} left"
        }
        70.. => "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes}, {eta} left",
        _ => "{wide_bar} {percent} %",
    }
}

impl Progress {
    /// Of so much.
    pub fn of(all: Amount) -> Progress {
        Progress {
            all,
            since: Instant::now(),
            recent: Recent::default(),
            line: None,
            bar: Bar::default(),
        }
    }

    /// Shows what is done, or cannot be done.
    pub fn show(&mut self, done: Amount) {
        let taken = self.since.elapsed();
        let rate = self.recent.rate(taken, done.bytes);
        if taken < SHORT {
            return;
        }
        if std::io::stderr().is_terminal() {
            let prefix = format!("{}/{}", done.files, files(self.all.files));
            self.bar.show("staging in", template, prefix, (done.bytes, self.all.bytes));
        } else if self.line.map_or(taken, |line| line.elapsed()) >= LINE_EVERY {
            self.line = Some(Instant::now());
            let left = self.all.bytes.saturating_sub(done.bytes) as f64 / rate;
            let left = match rate > 0.0 {
                true if self.recent.is_sure(taken) => format!("{} s left", left.ceil()),
                true => NO_ESTIMATE.to_owned(),
                false if Recent::is_beginning(taken, done.bytes) => NO_ESTIMATE.to_owned(),
                false => "no end in sight".to_owned(),
            };
            eprintln!(
                "forebay: staging in: {} of {}, {} of {}, {}/s, {left}",
                done.files,
                files(self.all.files),
                bytes(done.bytes),
                bytes(self.all.bytes),
                bytes(rate as u64),
            );
        }
    }

    /// Says something, above the bar if there is one.
    pub fn tell(&self, text: &str) {
        self.bar.tell(text);
    }

    /// Takes the bar away.
    pub fn end(self) {
        self.bar.end();
    }
}
