//! What takes the movements between tiers, which the run's node manager writes: the file of
//! `forebay run --trace`, or memory of `forebay trace`.

use crate::signals;
use crate::watch::Watch;
use forebay_node::Connection;
use forebay_node::runtime::Runtime;
use forebay_pool::message::Message;
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

/// A file that takes the movements between tiers while a run is connected to its manager.
pub struct Movements {
    /// How errors name it.
    name: String,
    file: File,
}

impl Movements {
    /// Makes the file.
    pub fn to(path: &Path) -> Result<Movements, String> {
        let failed = |error| format!("--trace: {}: {error}; give another file", path.display());
        let file = File::create(path).map_err(failed)?;
        Ok(Movements { name: format!("--trace: {}", path.display()), file })
    }

    /// To a file that this process reads.
    ///
    /// # Errors
    /// The system's.
    pub fn to_memory(memory: &File) -> std::io::Result<Movements> {
        Ok(Movements { name: "forebay trace".to_owned(), file: memory.try_clone()? })
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
        let refused = |why: &str| format!("{}: {why}", self.name);
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
