//! Records of every movement, for timelines.

use forebay_pool::clock;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::FileType;
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The first line of a recording.
pub const HEADING: &str = "start_us,end_us,action,from,to,bytes";

/// Writes one line for each movement, as the heading says, to every recording.
#[derive(Default)]
pub(crate) struct Trace(Mutex<Vec<Weak<File>>>);

/// Lines are written to its file as long as it lives.
pub(crate) struct Recording {
    _file: Arc<File>,
}

impl Trace {
    /// Begins a recording in the file at `path`.
    pub fn record_at(&self, path: &Path) -> io::Result<Recording> {
        self.record(File::create(path)?)
    }

    /// Begins a recording in a file that a run has opened: behind what one has written there that
    /// was cut off with a manager before.
    ///
    /// # Errors
    /// The system's, or that it is not a regular file: others may make the writer wait.
    pub fn record_to(&self, file: OwnedFd) -> io::Result<Recording> {
        let found = rustix::fs::fstat(file.as_fd())?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => self.record(File::from(file)),
            _ => Err(Errno::INVAL.into()),
        }
    }

    fn record(&self, mut file: File) -> io::Result<Recording> {
        if file.metadata()?.len() == 0 {
            file.write_all(format!("{HEADING}\n").as_bytes())?;
        }
        let file = Arc::new(file);
        self.recordings().push(Arc::downgrade(&file));
        Ok(Recording { _file: file })
    }

    fn recordings(&self) -> MutexGuard<'_, Vec<Weak<File>>> {
        self.0.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Notes a movement that began at `start_ns` (CLOCK_REALTIME) and ends now.
    pub fn moved(&self, start_ns: u64, action: &str, from: &str, to: &str, bytes: u64) {
        let mut recordings = self.recordings();
        if recordings.is_empty() || bytes == 0 {
            return;
        }
        let (start, end) = (start_ns / 1000, clock::realtime_ns() / 1000);
        let line = format!("{start},{end},{action},{from},{to},{bytes}\n");
        recordings.retain(|recording| match recording.upgrade() {
            Some(file) => {
                // A trace that cannot be written is not worth stopping for.
                let _ = (&*file).write_all(line.as_bytes());
                true
            }
            None => false,
        });
    }
}
