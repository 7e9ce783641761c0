//! Reading a part of one block from the bucket where it is.

use crate::access::EnteredFile;
use crate::part::Part;
use crate::span::{Cursor, Writable};
use crate::store::elsewhere;
use core::sync::atomic::{AtomicU64, Ordering};
use forebay_pool::BucketId;
use forebay_pool::Entry;
use forebay_pool::guards::BlockGuard;
use forebay_pool::layout::*;
use forebay_pool::moves::Place;
use rustix::io::Errno;

/// Tries without the lock before a reader takes it.
const LOCKLESS_TRIES: u32 = 16;

impl EnteredFile<'_> {
    /// Reads a part, with which a read of `left` bytes goes on, from the bucket that `entry` names;
    /// false when the store has it.
    #[inline]
    pub(super) fn read_resident(
        &self,
        entry: &AtomicU64,
        cursor: &mut Cursor<'_, Writable>,
        part: Part,
        left: usize,
    ) -> Result<bool, Errno> {
        let start = cursor.position();
        for _ in 0..LOCKLESS_TRIES {
            let word = entry.load(Ordering::Acquire);
            let (tier, bucket) = match Entry::decode(word) {
                Entry::Resident { tier, bucket } => (tier, bucket),
                Entry::Elsewhere { node, .. } => return Err(elsewhere(node)),
                Entry::Empty | Entry::Busy(_) => return Ok(false),
            };
            let meta = self.session.segment.bucket(bucket).ok_or(Errno::IO)?;
            let Some(first) = meta.lock.read_begin() else {
                core::hint::spin_loop();
                continue;
            };
            let valid = meta.valid.load(Ordering::Acquire);
            let result = self.copy_bucket(tier, bucket, valid, cursor, part);
            // Equal entry first, equal version second: see the design page.
            let same = entry.load(Ordering::Acquire) == word && !meta.lock.read_retry(first);
            if same && (result.is_ok() || tier.is_ram()) {
                if self.used(tier, bucket, meta) {
                    self.predict_after(tier, part, left, false);
                }
                return result.map(|()| true);
            }
            cursor.rewind(start);
            if same {
                // A corrupt page, or a device that fails: to be looked at while no thread writes.
                break;
            }
        }
        let held = self.session.segment.lock_block_unless_interrupted(entry, self.owner)?;
        let Some(mut held) = held else { return Ok(false) };
        let valid = held.meta().valid.load(Ordering::Acquire);
        let result = self.copy_locked(&held, cursor, part);
        if held.meta().valid.load(Ordering::Acquire) != valid {
            held.changed();
        }
        let tier = held.tier();
        // A reader that has caught up with those who bring blocks up reads on as well.
        let is_seen = result.is_ok() && self.used(tier, held.bucket(), held.meta());
        drop(held);
        if is_seen {
            self.predict_after(tier, part, left, true);
        }
        result.map(|()| true)
    }

    #[inline(never)]
    fn copy_locked(
        &self,
        held: &BlockGuard<'_>,
        cursor: &mut Cursor<'_, Writable>,
        part: Part,
    ) -> Result<(), Errno> {
        let meta = held.meta();
        let touched = part.pages(&self.session.segment);
        self.session.segment.verify_pages(self.session, held.bucket(), touched)?;
        let valid = meta.valid.load(Ordering::Acquire);
        self.copy_bucket(held.tier(), held.bucket(), valid, cursor, part)
    }

    /// Copies valid pages from the bucket and the others from the store.
    #[inline]
    fn copy_bucket(
        &self,
        tier: TierId,
        bucket: BucketId,
        valid: u64,
        cursor: &mut Cursor<'_, Writable>,
        part: Part,
    ) -> Result<(), Errno> {
        let touched = part.pages(&self.session.segment);
        if tier.is_ram() && valid & touched == touched {
            let from = self.session.ram(bucket).after(part.within).first(part.bytes);
            cursor.copy_in(from.readable());
            return Ok(());
        }
        self.copy_runs(tier, bucket, valid, cursor, part)
    }

    /// The same, run by run of pages that are alike.
    #[inline(never)]
    fn copy_runs(
        &self,
        tier: TierId,
        bucket: BucketId,
        valid: u64,
        cursor: &mut Cursor<'_, Writable>,
        part: Part,
    ) -> Result<(), Errno> {
        let end = part.end();
        let page = self.session.segment.page_bytes();
        let block_start = part.block * self.session.segment.bucket_bytes() as u64;
        let mut at = part.within;
        while at < end {
            let number = at / page;
            let here = valid >> number & 1 == 1;
            // The run of pages that are alike.
            let same = if here { valid >> number } else { !(valid >> number) };
            let run = same.trailing_ones() as usize;
            let upto = ((number + run) * page).min(end);
            if !here {
                self.read_store(cursor, block_start + at as u64, upto - at)?;
                self.session.note_moved(Place::Missed, Place::Programs, upto - at);
            } else if tier.is_ram() {
                cursor.copy_in(self.session.ram(bucket).first(upto).after(at).readable());
            } else {
                self.session.read_pages(bucket, cursor, at, upto - at)?;
                self.session.note_moved(Place::Tier(tier), Place::Programs, upto - at);
            }
            at = upto;
        }
        Ok(())
    }
}
