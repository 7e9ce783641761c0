//! What killed writers leave behind the end of a file.
//!
//! A writer that extends a file copies its bytes into a page first and raises the size last, both
//! under the bucket's lock. If it is killed in between, a valid page has bytes behind the end.
//! Nothing shows them while the end stays where it is; but a size that is raised past them, to
//! leave a gap, would. Therefore a process that takes such a bucket's lock from a dead one counts
//! that in the file's record before, and a process that is about to raise the size with a gap first
//! makes what lies behind the end zero, if anything was counted.
//!
//! The same may be left on the store's file, by a process that was killed while it wrote around the
//! tiers, or made the file longer in another way. Therefore it puts its owner into the record
//! before, and takes it out when the record has the new size. A thread that finds a dead one there
//! takes the file exclusively, so that no living process is at it, and makes the store's file as
//! long as the record says, or, where the store's size is the truth, the record as long as the
//! store's file is: before the size is raised, and before the store's file counts as the truth.

use crate::FileId;
use crate::backoff::Backoff;
use crate::checksums::SlotFiles;
use crate::crash;
use crate::entry::Entry;
use crate::layout::*;
use crate::owner::{MANAGER_SLOT, Owner};
use crate::segment::Segment;
use crate::sync::{AtomicU32, Ordering};
use rustix::io::Errno;

impl Segment {
    /// Notes that the lock of `bucket` is about to be taken from a dead process: before it is, so
    /// that it can always be seen from the lock or from the record. One time too many does no harm.
    #[cold]
    pub(crate) fn note_dirty_tail(&self, bucket: &BucketMeta) {
        let file = bucket.file.load(Ordering::Relaxed);
        if !self.header().has_file(file) {
            return;
        }
        let record = self.file(file);
        let after = bucket.block.load(Ordering::Relaxed).saturating_add(1);
        let end = after.saturating_mul(self.bucket_bytes() as u64);
        if end > record.size.load(Ordering::Acquire) {
            record.dirty_tails.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Before the size of `file` is raised while nothing was written from its end up to `start`:
    /// makes zero what killed writers left there. What a living one writes at the same time stays.
    /// The caller is inside the file, or has it exclusively, and holds no bucket.
    ///
    /// # Errors
    /// A tier's errno, or as of [`Segment::ends_wait_in_time`]; the size must not be raised then.
    pub fn clear_tail(
        &self,
        file: FileId,
        start: u64,
        owner: Owner,
        files: &impl SlotFiles,
    ) -> Result<(), Errno> {
        let record = self.file(file);
        if start <= record.size.load(Ordering::Acquire) {
            return Ok(());
        }
        self.take_tail_over(file, start, owner)?;
        let dirty = record.dirty_tails.load(Ordering::Acquire);
        if dirty == 0 {
            return Ok(());
        }
        crash::point("tail.dirty");
        if self.zero_tail(file, owner, files)? {
            // Unless there was another one meanwhile.
            let (relaxed, done) = (Ordering::Relaxed, Ordering::AcqRel);
            let _ = record.dirty_tails.compare_exchange(dirty, 0, done, relaxed);
        }
        Ok(())
    }

    /// Takes the locks of dead processes on what lies between the end of `file` and `start`, or
    /// waits until the manager has, which counts them, too.
    fn take_tail_over(&self, file: FileId, start: u64, owner: Owner) -> Result<(), Errno> {
        let (record, bytes) = (self.file(file), self.bucket_bytes() as u64);
        let first = record.size.load(Ordering::Acquire) / bytes;
        let mut result = Ok(());
        self.for_each_entry(record, first, |block, place| {
            if block > start / bytes {
                return false;
            }
            if let Entry::Resident { bucket, .. } = Entry::decode(place.load(Ordering::Acquire))
                && let Some(meta) = self.bucket(bucket)
            {
                result = self.take_over_bucket(meta, owner);
            }
            result.is_ok()
        });
        result
    }

    fn take_over_bucket(&self, bucket: &BucketMeta, owner: Owner) -> Result<(), Errno> {
        let mut backoff = Backoff::default();
        while let Some(holder) = bucket.lock.holder().filter(|&holder| holder != owner) {
            if self.clients().is_dead(holder) {
                crash::point("tail.dead");
                let taken = self.lock_bucket_within(bucket, owner, &mut Backoff::spent());
                if let Ok(mut lock) = taken {
                    lock.changed();
                    break;
                }
                // Others took it, or the manager began to take back everything of the dead process,
                // and has not counted this yet.
            } else if !self.clients().is_being_reaped(holder) {
                break;
            }
            if backoff.wait() {
                // It may be stopped at that.
                self.ends_wait_in_time(Owner::new(MANAGER_SLOT, 0), &backoff)?;
            }
        }
        Ok(())
    }

    /// Notes in `record` that `owner` is about to give the store's file bytes behind its end: the
    /// place is to be given to [`Segment::end_lengthening`]. `None` if there is no place because a
    /// dead process has not been cleaned up after. The caller is inside the file, or has it
    /// exclusively, and then there is a place.
    ///
    /// # Errors
    /// `INTR` if the threads that have the places do not go on, as of [`Segment::ends_wait`].
    pub fn begin_lengthening<'a>(
        &self,
        record: &'a FileRecord,
        owner: Owner,
    ) -> Result<Option<&'a AtomicU32>, Errno> {
        let mut backoff = Backoff::default();
        loop {
            let free = record.lengtheners.iter().find(|place| {
                let (free, taken) = (Ordering::AcqRel, Ordering::Relaxed);
                place.load(Ordering::Relaxed) == 0
                    && place.compare_exchange(0, owner.raw(), free, taken).is_ok()
            });
            if free.is_some() {
                crash::point("lengthen.begun");
                return Ok(free);
            }
            if backoff.wait() {
                if self.was_lengthened(record) {
                    return Ok(None);
                }
                let raw = record.lengtheners.iter().map(|place| place.load(Ordering::Acquire));
                for other in raw.filter_map(Owner::from_raw) {
                    self.ends_wait(other, &backoff)?;
                }
            }
        }
    }

    /// The record has what the store's file was given, or it was given nothing.
    pub fn end_lengthening(&self, place: &AtomicU32) {
        crash::point("lengthen.ending");
        place.store(0, Ordering::Release);
    }

    /// Whether a process that was killed may have given the store's file another size than the
    /// record has.
    #[inline]
    pub fn was_lengthened(&self, record: &FileRecord) -> bool {
        let clients = self.clients();
        let is_dead = |place: &AtomicU32| match place.load(Ordering::Acquire) {
            0 => false,
            LENGTHENER_LEFT => true,
            raw => Owner::from_raw(raw)
                .is_some_and(|owner| clients.is_dead(owner) || clients.is_being_reaped(owner)),
        };
        record.lengtheners.iter().any(is_dead)
    }

    /// Store and record agree about the size. The caller has the file exclusively.
    pub fn forget_lengtheners(&self, record: &FileRecord) {
        crash::point("lengthen.repaired");
        record.lengtheners.iter().for_each(|place| place.store(0, Ordering::Release));
    }

    /// The process of `slot` is dead, and the slot will be another's.
    pub(crate) fn note_lengtheners(&self, record: &FileRecord, slot: u32) {
        for place in &record.lengtheners {
            let raw = place.load(Ordering::Acquire);
            if raw != LENGTHENER_LEFT && Owner::from_raw(raw).is_some_and(|o| o.slot() == slot) {
                let (done, not) = (Ordering::AcqRel, Ordering::Relaxed);
                let _ = place.compare_exchange(raw, LENGTHENER_LEFT, done, not);
            }
        }
    }

    /// Makes zero what is buffered of `file` behind its end. Waits for living processes that hold
    /// some of it, as those do that write there. False if this very thread holds some of it.
    fn zero_tail(&self, file: FileId, owner: Owner, files: &impl SlotFiles) -> Result<bool, Errno> {
        let (record, bytes) = (self.file(file), self.bucket_bytes() as u64);
        let first = record.size.load(Ordering::Acquire) / bytes;
        let (mut whole, mut result) = (true, Ok(()));
        self.for_each_entry(record, first, |block, place| {
            if !matches!(Entry::decode(place.load(Ordering::Acquire)), Entry::Resident { .. }) {
                return true;
            }
            let locked = match self.lock_block_unless_interrupted(place, owner) {
                Ok(Some(locked)) => locked,
                Ok(None) => return true,
                Err(errno) => {
                    result = Err(errno);
                    return false;
                }
            };
            if !locked.is_taken() {
                whole = false;
                return true;
            }
            // Under the lock: a writer that was here has raised it.
            let size = record.size.load(Ordering::Acquire);
            let within = size.saturating_sub(block * bytes).min(bytes) as usize;
            if within == 0 {
                self.abandon(place, locked, files);
            } else if let Err(errno) = self.cut_block(place, locked, within, owner, files) {
                result = Err(errno);
            }
            crash::point("tail.zeroed");
            true
        });
        result.map(|()| whole)
    }
}
