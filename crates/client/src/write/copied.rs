//! Writing what the kernel copies from another file: to one that is used through the kernel, as
//! without Forebay.

use crate::copy::Copied;
use crate::open_file::OpenFile;
use crate::sharing::Need;
use crate::small::SMALL;
use core::sync::atomic::Ordering;
use forebay_pool::clock;
use forebay_pool::layout::*;
use forebay_pool::moves::Place;
use rustix::fd::RawFd;
use rustix::io::Errno;

/// Bytes that are copied at once: handlers of signals, and who wants the file alone, wait for it.
const PIECE: usize = 1 << 20;

impl OpenFile<'_> {
    /// Has the kernel copy up to `bytes` from `from`, at `at` or, without one, at its own offset,
    /// by one call: to `offset` of this file, or to the description's, which moves behind them.
    /// `None`, and nothing was done, where the file is not used through the kernel, or the kernel
    /// refuses: a copy through memory says why.
    ///
    /// # Errors
    /// `INTR`; `BADF` if the descriptor is not what it was; those of what the file's rule asks for
    /// after a write.
    pub(crate) fn copy_in(
        &self,
        from: RawFd,
        at: Option<u64>,
        offset: Option<u64>,
        bytes: usize,
    ) -> Result<Option<Copied>, Errno> {
        if !self.takes_copies() {
            return Ok(None);
        }
        let (start, copied) = self.session.restarting(|| match offset {
            Some(offset) => Ok((offset, self.copy_to(from, at, offset, bytes)?)),
            None => {
                let copied = self.positioned(|offset| {
                    let copied = self.copy_to(from, at, offset, bytes)?;
                    let end = offset + copied.as_ref().map_or(0, |copied| copied.bytes) as u64;
                    self.description.offset.store(end, Ordering::Release);
                    Ok((offset, copied))
                })?;
                Ok(copied.unwrap_or_default())
            }
        })?;
        if let Some(Copied { bytes: bytes @ 1.., .. }) = copied {
            self.after_write(start..start + bytes as u64)?;
        }
        Ok(copied)
    }

    /// Whether the kernel may copy to the file, as far as that is seen from outside of it.
    fn takes_copies(&self) -> bool {
        let takes = DescriptionFlags::WRITE | DescriptionFlags::APPEND | DescriptionFlags::RECORDED;
        let flags = self.description.flags.load(Ordering::Acquire) & takes;
        flags == DescriptionFlags::WRITE && self.record.has(FileFlags::DIRECT)
    }

    fn copy_to(
        &self,
        from: RawFd,
        at: Option<u64>,
        offset: u64,
        bytes: usize,
    ) -> Result<Option<Copied>, Errno> {
        let record = self.record;
        let most = match record.is_written_through() {
            true => SMALL.saturating_sub(offset) as usize,
            false => PIECE,
        };
        let bytes = bytes.min(most);
        // At a limit it counts how much there is to be copied.
        if bytes == 0 || !self.session.is_within_limit(offset.saturating_add(bytes as u64 + 1)) {
            return Ok(None);
        }
        let inside = self.enter_for(Need::write(offset, bytes))?;
        if record.is_written_through() {
            inside.write_small(offset, bytes)?;
        }
        if !record.has(FileFlags::DIRECT) {
            return Ok(None);
        }
        let now = clock::realtime_coarse_ns();
        let Ok(copied) = inside.store_copy(from, at, offset, bytes) else { return Ok(None) };
        self.session.note_moved(Place::Programs, Place::Store, copied);
        inside.end_write(now, copied);
        Ok(Some(Copied { bytes: copied, whole: copied == bytes }))
    }
}
