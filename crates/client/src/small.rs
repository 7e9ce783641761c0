//! New small files on a store that takes them as quickly as the tiers do: they are written through
//! to the kernel, and buffered as soon as they are no such files any more. See
//! docs/design/small-files.md.

use crate::access::{EnteredFile, ExclusiveFile};
use crate::open_file::OpenFile;
use crate::session::Session;
use core::sync::atomic::Ordering;
use forebay_placement::schema::Mode;
use forebay_pool::crash;
use forebay_pool::layout::*;
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Up to where a new file counts as small: half a bucket of the usual pages, as in the tiers.
pub(crate) const SMALL: u64 = 128 << 10;

/// Whether so many bytes at `offset` make a file more than a small one.
pub(crate) fn outgrows_small(offset: u64, length: usize) -> bool {
    offset.saturating_add(length as u64) > SMALL
}

impl OpenFile<'_> {
    /// Has a file written through that this open, with `flags`, has made a record of, that is
    /// empty, or about to be emptied, and for which no rule will hold as long as it is small: where
    /// its store is as quick, and nothing is said of such files. Not where another process was
    /// inside it before.
    pub(crate) fn begin_small(&self, flags: OFlags) {
        let (record, segment) = (self.record, &self.session.segment);
        let store = record.store.load(Ordering::Relaxed) as usize % STORES_MAX;
        let is_quick = segment.header().store[store].writes_through.load(Ordering::Relaxed) != 0;
        if !is_quick || !self.may(DescriptionFlags::WRITE) || !self.is_usual(flags) {
            return;
        }
        let owner = self.session.owner();
        self.try_alone(owner, |file: &ExclusiveFile<'_>| {
            // What is buffered by now stays so.
            let begun = !(FileFlags::OWNER_WRITES
                | FileFlags::FINDABLE
                | FileFlags::EXECUTABLE
                | FileFlags::SET_ID
                | FileFlags::FCNTL_LOCKED
                | FileFlags::LOOKED_AT
                | FileFlags::UNLINKED
                | FileFlags::WATCHED);
            let is_begun = record.flags.load(Ordering::Acquire).intersects(begun)
                || record.has_intent()
                || record.has_lengtheners();
            if is_begun || !segment.drop_clean_blocks(self.id, file.owner) {
                return;
            }
            crash::point("small.turning");
            record.turn_small();
            crash::point("small.turned");
        });
    }

    /// Whether it is a file of which nothing is said, by its open, a rule, its run, or the
    /// configuration: data that may be on the store as early as that takes it.
    fn is_usual(&self, flags: OFlags) -> bool {
        let (record, header) = (self.record, self.session.segment.header());
        let mode = Mode::from_code(record.mode.load(Ordering::Relaxed)).unwrap_or(Mode::Async);
        mode == Mode::Async
            && !flags.intersects(OFlags::DIRECT | OFlags::DSYNC)
            && record.rule.load(Ordering::Relaxed) == 0
            && record.trigger.load(Ordering::Relaxed) == 0
            && header.flush_trigger() == Trigger::Periodic
            && header.fsync_durability() == Durability::Store
            && !self.session.shares_files()
    }
}

impl Session {
    /// Whether new small files of some store are written through.
    pub(crate) fn writes_some_through(&self) -> bool {
        let header = self.segment.header();
        let mut stores = header.store[..header.stores as usize].iter();
        stores.any(|store| store.writes_through.load(Ordering::Relaxed) != 0)
    }
}

impl EnteredFile<'_> {
    /// Before so many bytes are written through at `offset`: if they make it a file that is not
    /// small any more, they are to be buffered, as far as others do not stand in the way.
    ///
    /// # Errors
    /// As of [`EnteredFile::outside`].
    pub(crate) fn write_small(&self, offset: u64, length: usize) -> Result<(), Errno> {
        if outgrows_small(offset, length) {
            return self.outside(|file| {
                file.buffer_again();
                Ok(())
            });
        }
        if self.record.begin_writing_through() {
            self.session.counters().small_files.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}
