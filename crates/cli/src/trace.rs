//! The file of `forebay run --trace`, to which the run's node manager writes.

use crate::signals;
use crate::watch::Watch;
use forebay_node::Connection;
use forebay_node::runtime::Runtime;
use forebay_pool::message::Message;
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A file that takes the movements between tiers while a run is connected to its manager.
pub struct Trace {
    path: PathBuf,
    file: File,
}

impl Trace {
    /// Makes the file.
    pub fn to(path: &Path) -> Result<Trace, String> {
        let failed = |error| format!("--trace: {}: {error}; give another file", path.display());
        Ok(Trace { path: path.to_owned(), file: File::create(path).map_err(failed)? })
    }

    /// Has the manager at the other end of `connection` record in it from now on, also one that was
    /// running already. One that dies meanwhile is noticed with the next message.
    ///
    /// # Errors
    /// That nothing can be recorded, or the manager is stopped.
    pub fn begin(&self, connection: &Connection, runtime: &Runtime) -> Result<(), String> {
        if connection.send_with(Message::Record, self.file.as_fd()).is_err() {
            return Ok(());
        }
        let refused = |why: &str| format!("--trace: {}: {why}", self.path.display());
        let mut watch = Watch::default();
        while signals::early().is_none() {
            watch.look(runtime.manager())?;
            match connection.receive(Duration::from_millis(200)) {
                Ok(Some(Message::Recording)) => break,
                Ok(Some(Message::Refused)) => {
                    return Err(refused("nothing can be recorded there; give a regular file"));
                }
                Err(Errno::PROTO) => {
                    return Err(refused("the node manager is of another version"));
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
        Ok(())
    }
}
