//! What killed writers leave behind the end of a file.
//!
//! A writer that extends a file copies its bytes into a page first and raises the size last, both under the
//! bucket's lock. If it is killed in between, a valid page has bytes behind the end. Nothing shows them while
//! the end stays where it is; but a size that is raised past them, to leave a gap, would. Therefore a process
//! that takes such a bucket's lock from a dead one counts that in the file's record before, and a process that
//! is about to raise the size with a gap first makes what lies behind the end zero, if anything was counted.

use crate::buckets::Patience;
use crate::crash;
use crate::entry::Entry;
use crate::layout::*;
use crate::owner::Owner;
use crate::segment::{MANAGER_SLOT, Segment};
use crate::sums::SlotFiles;
use crate::sync::Ordering;
use rustix::io::Errno;

impl Segment {
    /// Notes that the lock of `bucket` is about to be taken from a dead process: before it is, so that it can
    /// always be seen from the lock or from the record. One time too many does no harm.
    #[cold]
    pub(crate) fn note_soiled(&self, bucket: &BucketMeta) {
        let file = bucket.file.load(Ordering::Relaxed);
        if file >= self.header().files {
            return;
        }
        let record = self.file(file);
        let after = bucket.block.load(Ordering::Relaxed).saturating_add(1);
        let end = after.saturating_mul(self.bucket_bytes() as u64);
        if end > record.size.load(Ordering::Acquire) {
            record.soiled.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Before the size of `file` is raised while nothing was written from its end up to `start`: makes
    /// zero what killed writers left there. What a living one writes at the same time stays. The caller is
    /// inside the file, or has it exclusively, and holds no bucket.
    ///
    /// # Errors
    /// A tier's errno, or `INTR`, as of [`Segment::lock_unless_interrupted`]; the size must not be raised
    /// then.
    pub fn clear_tail(
        &self,
        file: u32,
        start: u64,
        owner: Owner,
        files: &impl SlotFiles,
    ) -> Result<(), Errno> {
        let record = self.file(file);
        if start <= record.size.load(Ordering::Acquire) {
            return Ok(());
        }
        self.take_tail_over(file, start, owner);
        let soiled = record.soiled.load(Ordering::Acquire);
        if soiled == 0 {
            return Ok(());
        }
        crash::point("tail.soiled");
        if self.zero_tail(file, owner, files)? {
            // Unless there was another one meanwhile.
            let (relaxed, done) = (Ordering::Relaxed, Ordering::AcqRel);
            let _ = record.soiled.compare_exchange(soiled, 0, done, relaxed);
        }
        Ok(())
    }

    /// Takes the locks of dead processes on what lies between the end of `file` and `start`, or waits until the
    /// manager has, which counts them, too.
    fn take_tail_over(&self, file: u32, start: u64, owner: Owner) {
        let (record, bytes) = (self.file(file), self.bucket_bytes() as u64);
        let first = record.size.load(Ordering::Acquire) / bytes;
        self.for_each_entry(record, first, |block, place| {
            if block > start / bytes {
                return false;
            }
            if let Entry::Resident { bucket, .. } = Entry::decode(place.load(Ordering::Acquire))
                && let Some(meta) = self.bucket(bucket)
            {
                self.take_over_bucket(meta, owner);
            }
            true
        });
    }

    fn take_over_bucket(&self, bucket: &BucketMeta, owner: Owner) {
        let mut patience = Patience::default();
        while let Some(holder) = bucket.lock.holder().filter(|&holder| holder != owner) {
            if self.owner_is_dead(holder) {
                crash::point("tail.dead");
                if self.lock_bucket_within(bucket, owner, &mut Patience::spent()).is_ok() {
                    bucket.lock.unlock_changed();
                    return;
                }
                // Others took it, or the manager began to take back everything of the dead process, and has
                // not counted this yet.
            } else if !self.is_being_reaped(holder) {
                return;
            }
            patience.wait();
        }
    }

    /// Whether `holder` is dead, and the manager is taking back what it held.
    fn is_being_reaped(&self, holder: Owner) -> bool {
        let slot = holder.slot();
        slot != MANAGER_SLOT
            && slot < self.header().clients
            && self.client(slot).state.load(Ordering::Acquire) == slot_state::REAPING
    }

    /// Makes zero what is buffered of `file` behind its end. Waits for living processes that hold some of it,
    /// as those do that write there. False if this very thread holds some of it.
    fn zero_tail(&self, file: u32, owner: Owner, files: &impl SlotFiles) -> Result<bool, Errno> {
        let (record, bytes) = (self.file(file), self.bucket_bytes() as u64);
        let first = record.size.load(Ordering::Acquire) / bytes;
        let (mut whole, mut result) = (true, Ok(()));
        self.for_each_entry(record, first, |block, place| {
            if !matches!(Entry::decode(place.load(Ordering::Acquire)), Entry::Resident { .. }) {
                return true;
            }
            let resident = match self.lock_resident_unless_interrupted(place, owner) {
                Ok(Some(resident)) => resident,
                Ok(None) => return true,
                Err(errno) => {
                    result = Err(errno);
                    return false;
                }
            };
            if !resident.taken {
                whole = false;
                return true;
            }
            // Under the lock: a writer that was here has raised it.
            let size = record.size.load(Ordering::Acquire);
            let within = size.saturating_sub(block * bytes).min(bytes) as usize;
            if within == 0 {
                self.abandon(place, resident, files);
            } else if let Err(errno) = self.cut_bucket(resident, within, files) {
                result = Err(errno);
            }
            crash::point("tail.zeroed");
            true
        });
        result.map(|()| whole)
    }
}
