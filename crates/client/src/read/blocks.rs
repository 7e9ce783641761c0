//! Reading block by block.

use crate::access::EnteredFile;
use crate::part::Part;
use crate::range::READ_AHEAD_BLOCKS;
use crate::readahead::Seen;
use crate::sharing::Need;
use crate::span::{Cursor, Span, Writable};
use crate::store::STORE_IS_BEHIND;
use core::sync::atomic::{AtomicU64, Ordering};
use forebay_placement::Destination;
use forebay_placement::admission::{Origin, Verdict};
use forebay_pool::layout::*;
use forebay_pool::lease::Access;
use forebay_pool::moves::Place;
use forebay_pool::parts::PART_BYTES;
use forebay_pool::{BucketId, Entry};
use rustix::io::Errno;

/// How a read of a file goes on that several nodes write, or that is borrowed.
enum Shared {
    /// The thread was outside of it.
    Changed,
    /// Its block may be buffered.
    Buffered,
    /// So many bytes were read.
    Read(usize),
}

impl EnteredFile<'_> {
    #[inline(never)]
    pub(super) fn read_on_slowly(
        &self,
        pieces: &[Span<'_, Writable>],
        offset: u64,
        length: usize,
    ) -> Option<Result<usize, Errno>> {
        let record = self.record;
        let end = offset.checked_add(length as u64).filter(|&end| end <= i64::MAX as u64)?;
        let lacks = || self.may_ask_others(offset) && self.lacks_any(offset, length);
        if !record.allows(Access::Read) || lacks() {
            return None;
        }
        // To look at the store for more may take the file exclusively.
        let through = self.goes_through(offset, length);
        if !through && self.may_have_grown(end) {
            return None;
        }
        let result = self.read_blocks(pieces, offset, length, through);
        if record.rule.load(Ordering::Relaxed) != 0 {
            self.note_read(offset, &result);
        }
        Some(result)
    }

    /// Whether a read up to `end` of what is buffered may find more of the file on the store than
    /// is known here: another node may be appending to it.
    pub(super) fn may_have_grown(&self, end: u64) -> bool {
        end > self.record.size.load(Ordering::Acquire)
            && !self.record.has(FileFlags::METADATA_DIRTY)
            && !self.record.has(FileFlags::SHARED)
            && !self.record.is_borrowed()
    }

    /// Whether a read is one of the store's file alone, and brings nothing up: what the kernel says
    /// is true then, the file's end included.
    pub(super) fn goes_through(&self, offset: u64, length: usize) -> bool {
        self.record.has(FileFlags::DIRECT)
            // Another node may have more of it than the store.
            || self.is_unbuffered()
                && !self.record.has(FileFlags::SHARED)
                && !self.record.is_borrowed()
                && !self.admits_any(offset, self.known_of(offset, length))
    }

    /// How many of `length` bytes from `offset` on the store has, as far as known.
    fn known_of(&self, offset: u64, length: usize) -> usize {
        let known = self.record.store_size.load(Ordering::Acquire).saturating_sub(offset);
        (length as u64).min(known) as usize
    }

    /// Copies a part of a block that lies in RAM and that no thread is writing, and says in which
    /// bucket that is.
    #[inline(always)]
    fn copy_resident(
        &self,
        piece: &Span<'_, Writable>,
        part: Part,
    ) -> Option<(BucketId, &BucketMeta)> {
        let segment = &self.session.segment;
        let entry = segment.entry(self.record, part.block)?;
        let word = entry.load(Ordering::Acquire);
        let Entry::Resident { tier: TierId::RAM, bucket, .. } = Entry::decode(word) else {
            return None;
        };
        let meta = segment.bucket(bucket)?;
        let first = meta.lock.read_begin()?;
        let touched = part.pages(segment);
        if meta.valid.load(Ordering::Acquire) & touched != touched {
            return None;
        }
        piece.copy_from(self.session.ram(bucket).after(part.within).readable());
        // Equal entry first, equal version second: see the design page.
        let is_same = entry.load(Ordering::Acquire) == word && !meta.lock.read_retry(first);
        is_same.then_some((bucket, meta))
    }

    /// The first bytes of the file, if they lie in RAM and no thread is writing them.
    pub(crate) fn head<const BYTES: usize>(&self) -> Option<[u8; BYTES]> {
        let record = self.record;
        let flags = record.flags.load(Ordering::Acquire);
        if flags.intersects(FileFlags::DIRECT | FileFlags::SHARED)
            || record.size.load(Ordering::Acquire) < BYTES as u64
        {
            return None;
        }
        let (block, within) = self.session.segment.block_at(0);
        let mut head = [0; BYTES];
        let part = Part { block, within, bytes: BYTES };
        self.copy_resident(&Span::from(&mut head[..]), part)?;
        Some(head)
    }

    /// The usual read, inside the file: one piece of one block that lies in RAM and that no thread
    /// is writing. False, and nothing was done that shows, where it is not that.
    #[inline(always)]
    pub(super) fn read_at_once(&self, piece: &Span<'_, Writable>, offset: u64) -> bool {
        let record = self.record;
        let segment = &self.session.segment;
        let (block, within) = segment.block_at(offset);
        let part = Part { block, within, bytes: piece.len() };
        let flags = record.flags.load(Ordering::Acquire);
        let unusual = flags.intersects(FileFlags::DIRECT | FileFlags::SHARED)
            || record.rule.load(Ordering::Relaxed) != 0
            || piece.len() == 0
            || part.end() > segment.bucket_bytes()
            // No overflow: a bucket is smaller than what is left of an offset's range.
            || offset > i64::MAX as u64
            || offset + piece.len() as u64 > record.size.load(Ordering::Acquire);
        if unusual {
            return false;
        }
        let Some((bucket, meta)) = self.copy_resident(piece, part) else { return false };
        if self.used(TierId::RAM, bucket, meta) {
            self.predict_after(TierId::RAM, part, piece.len(), false);
        }
        let counters = self.session.counters();
        self.session.count_up(&counters.reads, 1);
        self.session.count_up(&counters.read_bytes, piece.len() as u64);
        true
    }

    #[inline(never)]
    pub(super) fn read_blocks(
        &self,
        pieces: &[Span<'_, Writable>],
        offset: u64,
        length: usize,
        through: bool,
    ) -> Result<usize, Errno> {
        let record = self.record;
        let mut cursor = Cursor::new(pieces);
        if through {
            return self.read_around(&mut cursor, offset, length);
        }
        if offset + length as u64 > record.size.load(Ordering::Acquire)
            && self.direct_part(offset).is_some()
        {
            // A program of this node may be writing there, of which `stat` tells already.
            self.learn_stored_size()?;
        }
        let size = record.size.load(Ordering::Acquire);
        let mut length = (length as u64).min(size.saturating_sub(offset)) as usize;
        let mut done = 0;
        let (mut buffered, mut missed) = (false, 0);
        while done < length {
            let at = offset + done as u64;
            let mut left = length - done;
            if !record.allows(Access::Read) {
                match self.read_shared(&mut cursor, at, left) {
                    Ok(Shared::Read(bytes)) => {
                        done += bytes;
                        continue;
                    }
                    // What is read at once ends with the part.
                    Ok(Shared::Buffered) => {
                        left = (left as u64).min(PART_BYTES - at % PART_BYTES) as usize
                    }
                    // It may be shorter by now.
                    Ok(Shared::Changed) => {
                        let size = record.size.load(Ordering::Acquire);
                        length = length.min(size.saturating_sub(offset) as usize);
                        continue;
                    }
                    // It may be outside.
                    Err(errno) => return if done > 0 { Ok(done) } else { Err(errno) },
                }
            }
            let part = Part::first(&self.session.segment, at, left);
            let start = cursor.position();
            let mut bytes = part.bytes;
            let mut entry = self.session.segment.entry(record, part.block);
            let mut ahead = None;
            if is_absent(entry) {
                let expected = self.predict(from_store(at, left));
                ahead = expected.ahead;
                let verdict = match self.admits(part) {
                    Verdict::Through if expected.is_late => Verdict::First,
                    verdict => verdict,
                };
                if verdict != Verdict::Through {
                    self.want_next(part.block + 1);
                    if self.stage_in(part.block, verdict == Verdict::Again) {
                        entry = self.session.segment.entry(record, part.block);
                    }
                } else {
                    bytes = self.absent_run(part, left);
                }
            }
            let resident = match entry {
                Some(entry) => self.read_resident(entry, &mut cursor, part, left),
                None => Ok(false),
            };
            if matches!(resident, Ok(false) | Err(STORE_IS_BEHIND)) && record.is_borrowed() {
                // It has gone since it was looked for, or a page of it is no good.
                cursor.rewind(start);
                match self.hold(&Need::Whole(Access::Read)) {
                    Ok(_) => continue,
                    Err(errno) => return if done > 0 { Ok(done) } else { Err(errno) },
                }
            }
            let result = match resident {
                Ok(true) => {
                    buffered = true;
                    Ok(part.bytes)
                }
                Ok(false) => self.read_store(&mut cursor, at, bytes).map(|origin| {
                    if let (Origin::Device, Some(ahead)) = (origin, ahead) {
                        self.read_ahead(&ahead);
                    }
                    missed += bytes;
                    bytes
                }),
                Err(errno) => Err(errno),
            };
            match result {
                Ok(bytes) => done += bytes,
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        if buffered {
            let counters = self.session.counters();
            self.session.count_up(&counters.reads, 1);
            self.session.count_up(&counters.read_bytes, done as u64);
            if missed > 0 {
                self.session.note_moved(Place::Missed, Place::Programs, missed);
            }
        }
        Ok(done)
    }

    /// Before a block of a file is read that several nodes write: waits for its part, and reads
    /// what is used through the kernel. Of one that is borrowed the block is brought.
    #[cold]
    fn read_shared(
        &self,
        cursor: &mut Cursor<'_, Writable>,
        at: u64,
        length: usize,
    ) -> Result<Shared, Errno> {
        if self.hold(&Need::read(at, length))? {
            return Ok(Shared::Changed);
        }
        if self.record.is_borrowed() {
            let (block, _) = self.session.segment.block_at(at);
            let is_here = || !is_absent(self.session.segment.entry(self.record, block));
            if is_here() {
                return Ok(Shared::Buffered);
            }
            self.step_outside(|file| file.bring_from_others(at, length))?;
            if self.record.is_borrowed() && !is_here() {
                // The node that lends it does not give it: it brings all to the store.
                self.hold(&Need::Whole(Access::Read))?;
            }
            return Ok(Shared::Changed);
        }
        let Some(end) = self.direct_part(at) else { return Ok(Shared::Buffered) };
        self.learn_stored_size()?;
        let bytes = (length as u64).min(end - at) as usize;
        self.read_store(cursor, at, bytes)?;
        Ok(Shared::Read(bytes))
    }

    /// Reads the store's file, without what is buffered.
    fn read_around(
        &self,
        cursor: &mut Cursor<'_, Writable>,
        offset: u64,
        length: usize,
    ) -> Result<usize, Errno> {
        let known = self.known_of(offset, length);
        if self.record.has(FileFlags::DIRECT) || known == 0 {
            let result = self.read_through(cursor, offset, length, None);
            if self.record.has(FileFlags::UNMAPPED) {
                let _ = self.outside(|file| {
                    file.buffer_again();
                    Ok(())
                });
            }
            return result;
        }
        let ahead = self.predict(from_store(offset, known)).ahead;
        self.want_next(self.session.segment.block_at(offset + known as u64 - 1).0 + 1);
        self.read_through(cursor, offset, length, ahead)
    }

    /// Bytes, of `left` that are read from where `part` begins on, of that block, which no tier
    /// has, and of those behind it that none has either, and that are not worth a bucket.
    fn absent_run(&self, part: Part, left: usize) -> usize {
        let segment = &self.session.segment;
        let mut bytes = part.bytes;
        while bytes < left {
            let next = Part::first(segment, part.offset(segment) + bytes as u64, left - bytes);
            if !is_absent(segment.entry(self.record, next.block))
                || self.admits(next) != Verdict::Through
            {
                break;
            }
            bytes += next.bytes;
        }
        bytes
    }

    /// Asks for the blocks from `block` on, of a program that has said that it reads from front to
    /// back, where the kernel does not see to that.
    fn want_next(&self, block: u64) {
        if self.may(DescriptionFlags::SEQUENTIAL) && self.is_worth_reading_ahead() {
            self.want_staged(block, READ_AHEAD_BLOCKS);
        }
    }

    /// Of a read that has `left` bytes to go, `part` was found in a bucket of `tier`; it `waits`
    /// where another thread was bringing that up.
    #[inline(never)]
    pub(super) fn predict_after(&self, tier: TierId, part: Part, left: usize, waits: bool) {
        // What was brought up to RAM came from where it takes long to read.
        let from = match tier {
            TierId::RAM => Destination::Store,
            tier => Destination::Tier(tier.index()),
        };
        let (offset, is_up) = (part.offset(&self.session.segment), tier.is_ram());
        // The kernel has nothing to read ahead of what tiers have.
        let _ = self.predict(Seen { offset, bytes: left, from, is_up, waits: waits || !is_up });
    }
}

/// A read of what only the store has.
fn from_store(offset: u64, bytes: usize) -> Seen {
    Seen { offset, bytes, from: Destination::Store, is_up: false, waits: true }
}

/// Whether no tier has the block of this entry.
pub(super) fn is_absent(entry: Option<&AtomicU64>) -> bool {
    entry.is_none_or(|entry| entry.load(Ordering::Acquire) == Entry::EMPTY)
}
