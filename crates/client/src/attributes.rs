//! Sizes, times and offsets as programs see them.

use crate::session::{Handle, Session};
use core::sync::atomic::Ordering;
use forebay_pool::Identity;
use forebay_pool::layout::*;
use rustix::io::Errno;

/// The fields of a `stat` that buffering changes. The caller fills in what the kernel said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFields {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    /// Last modification, nanoseconds of CLOCK_REALTIME; status changes follow it.
    pub mtime_ns: u64,
}

impl Session {
    /// Brings what the kernel said about a regular file up to date. Returns whether anything
    /// changed.
    pub fn correct(&self, fields: &mut StatFields) -> bool {
        let identity = Identity { device: fields.device, inode: fields.inode };
        if !self.is_store_device(fields.device) || !self.segment.may_have(identity) {
            return false;
        }
        let owner = self.owner();
        let inside = self.segment.enter_table(owner);
        let changed = self.segment.with_file(identity, owner, |file| {
            let Some(record) = file.map(|file| self.segment.file(file)) else { return false };
            if !record.has(file_flag::AHEAD) || record.has(file_flag::DIRECT) {
                return false;
            }
            let size = record.size.load(Ordering::Acquire);
            let beyond = size.saturating_sub(fields.size);
            fields.blocks += beyond.div_ceil(4096) * 8;
            fields.size = size;
            fields.mtime_ns = fields.mtime_ns.max(record.mtime_ns.load(Ordering::Relaxed));
            true
        });
        self.segment.leave(owner, inside);
        changed
    }

    /// Notes that a program set the times of a file itself: a flush restores `mtime_ns` after it.
    pub fn timed(&self, device: u64, inode: u64, mtime_ns: u64) {
        if !self.knows(device, inode) {
            return;
        }
        let owner = self.owner();
        let inside = self.segment.enter_table(owner);
        self.segment.with_file(Identity { device, inode }, owner, |file| {
            if let Some(file) = file {
                self.segment.file(file).mtime_ns.store(mtime_ns, Ordering::Release);
            }
        });
        self.segment.leave(owner, inside);
    }

    /// Notes that the last name of a file was removed.
    pub fn unlinked(&self, device: u64, inode: u64) {
        let owner = self.owner();
        let inside = self.segment.enter_table(owner);
        self.segment.with_file(Identity { device, inode }, owner, |file| {
            if let Some(file) = file {
                self.segment.file(file).set(file_flag::UNLINKED);
            }
        });
        self.segment.leave(owner, inside);
    }

    /// Moves the description's offset. `end_of_data` answers SEEK_DATA and SEEK_HOLE through the
    /// kernel once the file is clean.
    ///
    /// # Errors
    /// `INVAL` for a negative or overflowing result or an unknown `whence`; `NXIO` from the
    /// kernel.
    pub fn seek(
        &self,
        handle: Handle,
        offset: i64,
        whence: Whence,
        end_of_data: impl FnOnce(i64) -> Result<u64, Errno>,
    ) -> Result<u64, Errno> {
        let description = self.description(handle);
        if self.may(handle, description_flag::KERNEL_OFFSET) {
            return end_of_data(offset);
        }
        self.positioned(handle, |current| {
            let base = match whence {
                Whence::Start => 0,
                Whence::Current => current,
                Whence::End => self.size(handle)?,
                Whence::DataOrHole => {
                    let found = self.with_clean(handle, || end_of_data(offset))?;
                    let marker = self.segment.marker(handle.description).encode();
                    let start = rustix::fs::SeekFrom::Start(marker);
                    let _ = rustix::fs::seek(crate::session::borrow(handle.fd), start);
                    let found = found?;
                    description.offset.store(found, Ordering::Release);
                    return Ok(found);
                }
            };
            let target = i64::try_from(base)
                .ok()
                .and_then(|base| base.checked_add(offset))
                .ok_or(Errno::OVERFLOW)?;
            let target = u64::try_from(target).map_err(|_| Errno::INVAL)?;
            description.offset.store(target, Ordering::Release);
            Ok(target)
        })
    }

    /// The file's size in bytes.
    ///
    /// # Errors
    /// The store's errno, for a file of which nothing is buffered.
    pub fn size(&self, handle: Handle) -> Result<u64, Errno> {
        let record = self.record(handle);
        if record.has(file_flag::AHEAD) && !record.has(file_flag::DIRECT) {
            return Ok(record.size.load(Ordering::Acquire));
        }
        Ok(rustix::fs::fstat(crate::session::borrow(handle.fd))?.st_size as u64)
    }

    /// Whether implicit-offset calls on the descriptor go to the kernel: a program without
    /// Forebay shares its offset.
    pub fn uses_kernel_offset(&self, handle: Handle) -> bool {
        self.may(handle, description_flag::KERNEL_OFFSET)
    }

    /// The flags that F_GETFL shall show besides the kernel's: those kept from it.
    pub fn hidden_flags(&self, handle: Handle) -> rustix::fs::OFlags {
        let mut flags = rustix::fs::OFlags::empty();
        if self.may(handle, description_flag::APPEND) {
            flags |= rustix::fs::OFlags::APPEND;
        }
        if self.may(handle, description_flag::UNCACHED) {
            flags |= rustix::fs::OFlags::DIRECT;
        }
        flags
    }

    /// Notes that the description is about to be locked.
    pub fn locking(&self, handle: Handle) {
        self.description(handle).flags.fetch_or(description_flag::LOCKED, Ordering::AcqRel);
    }

    /// Takes over O_APPEND and O_DIRECT from an F_SETFL call.
    pub fn set_hidden_flags(&self, handle: Handle, flags: rustix::fs::OFlags) {
        let place = &self.description(handle).flags;
        for (flag, ours) in [
            (rustix::fs::OFlags::APPEND, description_flag::APPEND),
            (rustix::fs::OFlags::DIRECT, description_flag::UNCACHED),
        ] {
            if flags.contains(flag) {
                place.fetch_or(ours, Ordering::AcqRel);
            } else {
                place.fetch_and(!ours, Ordering::AcqRel);
            }
        }
    }
}

/// From where an offset counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// The beginning.
    Start,
    /// The description's offset.
    Current,
    /// The file's size.
    End,
    /// The next data or hole, as the kernel knows them.
    DataOrHole,
}
