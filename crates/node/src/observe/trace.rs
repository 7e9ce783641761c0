//! A record of every movement, for timelines.

use forebay_pool::clock;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Mutex;

/// Writes one line for each movement: `start_us,end_us,action,from,to,bytes`.
pub(crate) struct Trace(Option<Mutex<BufWriter<File>>>);

impl Trace {
    pub fn to(path: Option<&Path>) -> io::Result<Trace> {
        let Some(path) = path else { return Ok(Trace(None)) };
        let mut file = BufWriter::new(File::create(path)?);
        writeln!(file, "start_us,end_us,action,from,to,bytes")?;
        file.flush()?;
        Ok(Trace(Some(Mutex::new(file))))
    }

    /// Notes a movement that began at `start_ns` (CLOCK_REALTIME) and ends now.
    pub fn moved(&self, start_ns: u64, action: &str, from: &str, to: &str, bytes: u64) {
        if let (Some(file), true) = (&self.0, bytes > 0) {
            let end = clock::realtime_ns() / 1000;
            let mut file = file.lock().unwrap_or_else(|poison| poison.into_inner());
            // A trace that cannot be written is not worth stopping for.
            let _ = writeln!(file, "{},{end},{action},{from},{to},{bytes}", start_ns / 1000);
            let _ = file.flush();
        }
    }
}
