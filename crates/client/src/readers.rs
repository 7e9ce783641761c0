//! Descriptors of our own through which files are read that the program has open for writing only.

use crate::fd::{hide, reopen};
use crate::open_file::OpenFile;
use crate::session::{KEPT_READERS, Session};
use core::sync::atomic::Ordering;
use forebay_pool::FileId;
use forebay_pool::layout::FileFlags;
use rustix::fd::{IntoRawFd, RawFd};
use rustix::fs::OFlags;
use rustix::io::Errno;

impl OpenFile<'_> {
    /// Calls `act` with a descriptor of our own through which the file can be read. It is
    /// kept until the program closes the description: closing any descriptor of a file ends all
    /// fcntl locks that the process has on it.
    ///
    /// # Errors
    /// The errno of opening the file again, or that of `act`.
    pub(crate) fn reader<R>(
        &self,
        act: impl FnOnce(RawFd) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        for reader in &self.session.readers {
            let word = reader.load(Ordering::Acquire);
            if word as u32 != self.description_id() + 1 {
                continue;
            }
            let fd = (word >> 32) as RawFd;
            if self.session.is_of(fd, self.id) {
                return act(fd);
            }
            let _ = reader.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
        let flags = OFlags::RDONLY;
        let own = reopen(self.fd, flags)?;
        // To move it out of the program's way is to close the one that was opened.
        let fd = match self.record.has(FileFlags::FCNTL_LOCKED) {
            true => own.into_raw_fd(),
            false => hide(own),
        };
        let word = (fd as u64) << 32 | u64::from(self.description_id() + 1);
        let keeps = self.session.readers.iter().zip(1..).any(|(reader, number)| {
            self.session.readers_high.fetch_max(number, Ordering::SeqCst);
            reader.compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        let result = act(fd);
        if !keeps {
            // SAFETY: just opened here, known to no other thread.
            unsafe { rustix::io::close(fd) };
        }
        result
    }
}

impl Session {
    /// Closes what [`OpenFile::reader`] has opened for a description of `file` that is given up.
    pub(crate) fn close_readers(&self, description: u32, file: FileId) {
        let high = self.readers_high.load(Ordering::SeqCst) as usize;
        for reader in &self.readers[..high.min(KEPT_READERS)] {
            let word = reader.load(Ordering::Relaxed);
            if word as u32 == description + 1
                && reader.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
                && self.is_of((word >> 32) as RawFd, file)
            {
                // SAFETY: our own descriptor, which no thread uses any more.
                unsafe { rustix::io::close((word >> 32) as RawFd) };
            }
        }
    }
}
