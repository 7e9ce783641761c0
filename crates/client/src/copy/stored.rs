//! What of a copy needs no memory in between: the kernel copies what the store has, and what only
//! RAM has is written from there.

use super::Copied;
use super::end::End;
use crate::access::EnteredFile;
use crate::fd::borrow;
use crate::open_file::OpenFile;
use crate::part::Part;
use crate::recording;
use crate::sharing::Need;
use crate::user_memory::UserOffset;
use core::ops::Range;
use core::sync::atomic::Ordering;
use forebay_pool::Entry;
use forebay_pool::calls::CallKind;
use forebay_pool::layout::*;
use rustix::fd::RawFd;
use rustix::io::{Errno, IoSlice, ReadWriteFlags, pwritev2};

/// Looks at a bucket while others have its lock, before it counts as one that the store lacks.
const TRIES: u32 = 16;
/// Pages that the store lacks and that are written from RAM each time they are copied: to bring
/// them to the store takes longer. Of more, the store is to get them anyway.
const FEW_PAGES: u32 = 4;
/// Bytes that are brought to the store at once, ahead of a copy.
const AHEAD: usize = 1 << 20;
/// Where a stream is written: at its own position.
const OWN_POSITION: u64 = u64::MAX;

impl End<'_> {
    /// Has the kernel copy, by `call`, what the store has of up to `length` bytes from `offset` on,
    /// and notes where it ended. `call` gets where to begin, and how much; it may wait, and so the
    /// thread is inside of nothing meanwhile: what others write during the call may or may not be
    /// copied, as in the kernel, and the descriptor is what its number means at that moment.
    /// `None`, and nothing was done, where what comes first has to be copied in another way, or
    /// there is nothing, which has to be found out in another way.
    ///
    /// # Errors
    /// Those of `call`; `FAULT`; `INTR`.
    pub fn copied_by_kernel(
        self,
        offset: Option<UserOffset<'_>>,
        length: usize,
        call: impl FnOnce(&mut u64, usize) -> Result<usize, Errno>,
    ) -> Result<Option<Copied>, Errno> {
        if length == 0 || self.session.file(self.fd).is_none() {
            return Ok(None);
        }
        let place = self.place(offset)?;
        let Ok(at) = super::from_start(place.at, length).map(|at| at as u64) else {
            return Ok(None);
        };
        let bytes = self.stored(at, length)?;
        if bytes == 0 {
            return Ok(None);
        }
        let mut moved = at;
        let start_ns = recording::begin_ns();
        let copied = call(&mut moved, bytes)?;
        if copied == 0 {
            return Ok(None);
        }
        self.note_copied(at, copied, start_ns);
        place.set((at + copied as u64) as i64)?;
        Ok(Some(Copied { bytes: copied, whole: copied == bytes }))
    }

    /// [`OpenFile::stored`]; 0 of what no session has.
    ///
    /// # Errors
    /// `INTR`.
    pub fn stored(self, at: u64, length: usize) -> Result<usize, Errno> {
        self.with_file(false, |file| match file {
            Some(file) => file.session.restarting(|| file.stored(at, length)),
            None => Ok(0),
        })
    }

    /// Notes that so many bytes from `at` on were copied from the store, by a call that began at
    /// `start_ns`.
    pub fn note_copied(self, at: u64, bytes: usize, start_ns: u64) {
        let Some(file) = self.session.file(self.fd) else { return };
        file.note_since(CallKind::Read, start_ns, at, bytes);
        file.missed(bytes);
        if file.record.rule.load(Ordering::Relaxed) != 0 {
            file.note_read(at, &Ok(bytes));
        }
    }

    /// Writes what RAM has from `at` on, up to `length` bytes and the end of a block, to `to`, as
    /// far as that takes it at once. `None`, and nothing was done, where that cannot be.
    ///
    /// # Errors
    /// Those of writing.
    pub fn put_from_ram(self, at: u64, to: RawFd, length: usize) -> Result<Option<usize>, Errno> {
        self.with_file(false, |file| match file {
            Some(file) => {
                let start_ns = recording::begin_ns();
                let put = || file.enter_for(Need::read(at, length))?.write_from_ram(at, to, length);
                let put = file.session.restarting(put)?;
                if let Some(bytes) = put.filter(|&bytes| bytes > 0) {
                    file.note_since(CallKind::Read, start_ns, at, bytes);
                }
                Ok(put)
            }
            None => Ok(None),
        })
    }
}

impl OpenFile<'_> {
    /// How many of `length` bytes from `at` on the store has as programs see them, from the first
    /// on; what it has behind them need not be the file's. What it lacks is brought there before,
    /// where it would have to be copied once more otherwise.
    fn stored(&self, at: u64, length: usize) -> Result<usize, Errno> {
        if !self.may(DescriptionFlags::READ) {
            return Ok(0);
        }
        let need = || Need::read(at, length);
        let stored = self.enter_for(need())?.stored(at, length);
        if stored > 0 {
            return Ok(stored);
        }
        let ahead = at..at.saturating_add(length.min(AHEAD) as u64);
        if !self.enter_for(need())?.is_worth_storing(ahead.clone())
            || !self.write_back_range(&ahead)?
        {
            return Ok(0);
        }
        Ok(self.enter_for(need())?.stored(at, length))
    }
}

impl EnteredFile<'_> {
    /// [`OpenFile::stored`], of what the store has now.
    fn stored(&self, at: u64, length: usize) -> usize {
        let record = self.record;
        // What its device would take is to be waited for.
        // What is copied after a look is no node's own where several nodes write.
        let is_shared = record.is_shared() || record.is_borrowed();
        if self.is_emulated() || record.has_intent() || record.has_lengtheners() || is_shared {
            return 0;
        }
        if record.has(FileFlags::DIRECT) || self.is_unbuffered() {
            return length;
        }
        // In this order: a writer sets the flag before it changes the size.
        let size = record.size.load(Ordering::Acquire);
        let is_ahead = record.has(FileFlags::METADATA_DIRTY);
        let known = if is_ahead { size.min(record.stored()) } else { size };
        let wanted = (length as u64).min(known.saturating_sub(at)) as usize;
        let mut done = 0;
        while done < wanted {
            let part = Part::first(&self.session.segment, at + done as u64, wanted - done);
            let stored = self.stored_of(part);
            done += stored;
            if stored < part.bytes {
                return done;
            }
        }
        // Where the record is not ahead the store's file says where it ends.
        if is_ahead { done } else { length }
    }

    /// How many bytes of a part of a block the store has, from the first on.
    fn stored_of(&self, part: Part) -> usize {
        let segment = &self.session.segment;
        let Some(entry) = segment.entry(self.record, part.block) else { return part.bytes };
        for _ in 0..TRIES {
            let word = entry.load(Ordering::Acquire);
            let (tier, bucket) = match Entry::decode(word) {
                Entry::Resident { tier, bucket } => (tier, bucket),
                Entry::Elsewhere { .. } => return 0,
                Entry::Empty | Entry::Busy(_) => return part.bytes,
            };
            let Some(meta) = segment.bucket(bucket) else { return 0 };
            let Some(first) = meta.lock.read_begin() else {
                core::hint::spin_loop();
                continue;
            };
            let pages = part.pages(segment);
            let lacking = meta.pending() & pages;
            let valid = meta.valid.load(Ordering::Acquire);
            // What was dirty here may be so in another bucket by now.
            if entry.load(Ordering::Acquire) != word || meta.lock.read_retry(first) {
                continue;
            }
            if lacking != 0 {
                let page = lacking.trailing_zeros() as usize * segment.page_bytes();
                return page.saturating_sub(part.within);
            }
            // The kernel was told to forget it when it came to RAM.
            let is_here = tier.is_ram() && valid & pages == pages;
            return if is_here && self.has_come_from_device(part.block) { 0 } else { part.bytes };
        }
        0
    }

    /// Whether so much of a range waits to be brought to the store that this is better done now
    /// than after a copy: the write takes less than the copy, and is made either way. Not what may
    /// never be wanted there.
    fn is_worth_storing(&self, range: Range<u64>) -> bool {
        let record = self.record;
        if record.has(FileFlags::SCRATCH) || self.session.trigger(record) == Trigger::OnExit {
            return false;
        }
        let segment = &self.session.segment;
        let (mut at, mut pages) = (range.start, 0);
        while at < range.end && pages <= FEW_PAGES {
            let part = Part::first(segment, at, (range.end - at) as usize);
            if let Some(entry) = segment.entry(record, part.block)
                && let Entry::Resident { bucket, .. } = Entry::decode(entry.load(Ordering::Acquire))
                && let Some(meta) = segment.bucket(bucket)
            {
                pages += (meta.pending() & part.pages(segment)).count_ones();
            }
            at += part.bytes as u64;
        }
        pages > FEW_PAGES
    }

    /// [`End::put_from_ram`], inside the file.
    fn write_from_ram(&self, at: u64, to: RawFd, length: usize) -> Result<Option<usize>, Errno> {
        let record = self.record;
        let left = record.size.load(Ordering::Acquire).saturating_sub(at);
        let length = (length as u64).min(left) as usize;
        if record.has(FileFlags::DIRECT) || length == 0 || !self.may(DescriptionFlags::READ) {
            return Ok(None);
        }
        let segment = &self.session.segment;
        let part = Part::first(segment, at, length);
        let Some(entry) = segment.entry(record, part.block) else { return Ok(None) };
        // Held, so that its bytes stay these: what was written cannot be taken back, as a reader
        // takes a copy back that turns out to be of two moments.
        let Some(held) = segment.lock_block_unless_interrupted(entry, self.owner)? else {
            return Ok(None);
        };
        let valid = held.meta().valid.load(Ordering::Acquire);
        let pages = part.pages(segment);
        if !held.tier().is_ram() || valid & pages != pages {
            return Ok(None);
        }
        let bytes = self.session.ram(held.bucket()).after(part.within).first(part.bytes);
        let piece = [IoSlice::new(bytes.readable().bytes())];
        // Waiting for a reader while others wait for the bucket is left to what comes next.
        match pwritev2(borrow(to), &piece, OWN_POSITION, ReadWriteFlags::NOWAIT) {
            Ok(written) => Ok(Some(written)),
            Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::INVAL | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}
