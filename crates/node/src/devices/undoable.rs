//! The writes of node managers, as tests undo them to simulate a loss of power (`forebay_pool::undo`).

use forebay_device::{Batch, Direction, Errno, StoreFile, Target, Transfer};
use forebay_pool::{clock, undo};
use forebay_posix::{Positional, descriptor};

/// A batch whose writes a test can undo. Without debug assertions it adds nothing.
pub(crate) struct Undoable(Box<dyn Batch>);

impl Undoable {
    pub fn new(inner: Box<dyn Batch>) -> Undoable {
        Undoable(inner)
    }

    /// One system call at a time, for what is written rarely.
    pub fn plain() -> Undoable {
        Undoable(Box::new(Positional))
    }
}

impl Batch for Undoable {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn run(&mut self, transfers: &mut [Transfer]) {
        for write in transfers.iter().filter(|transfer| transfer.direction() == Direction::Write) {
            let Target::File(file) = write.target();
            if let Ok(file) = descriptor(file) {
                undo::writing(file, write.offset(), write.len());
            }
        }
        self.0.run(transfers);
    }

    fn sync(&mut self, file: StoreFile) -> Result<(), Errno> {
        let began = clock::monotonic_ns();
        self.0.sync(file)?;
        undo::synced(descriptor(file)?, began);
        Ok(())
    }
}
