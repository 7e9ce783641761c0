//! What a flush takes: the blocks that are due, by the trigger of their file, or those of one file.

use crate::drain::flusher::{FlushScope, Flusher};
use crate::node::BlockRef;
use crate::usage::{buckets_of, for_each_bucket_of, have_few_blocks};
use forebay_placement::TierId;
use forebay_placement::schema::Trigger;
use forebay_pool::BucketId;
use forebay_pool::free_map::USED;
use forebay_pool::layout::{BucketMeta, FileFlags, JobRecord};
use forebay_pool::{Entry, FileId, clock};
use std::sync::atomic::Ordering;

impl Flusher {
    /// Milliseconds for which a block must not have been written, where flushes are periodic.
    fn period(&self) -> u32 {
        self.node.config.flush.period.as_millis().clamp(1, 60_000) as u32
    }

    /// Milliseconds for which a block may be dirty at most.
    fn max_age(&self) -> u32 {
        self.node.config.flush.max_age.as_millis().min(u32::MAX.into()) as u32
    }

    /// Milliseconds between two looks.
    pub(super) fn pause(&self) -> u32 {
        self.period().min(self.max_age() / 4).max(1)
    }

    /// Whether any file's blocks can be due without a request.
    pub(super) fn may_be_due(&self) -> bool {
        let segment = &self.node.segment;
        let rules = segment.rules().iter().filter_map(|rule| rule.settings().trigger);
        let of_job = |job: &JobRecord| Trigger::from_code(job.trigger.load(Ordering::Relaxed));
        let triggers = rules.chain(segment.jobs().filter_map(of_job));
        triggers
            .chain([self.node.header().flush_trigger()])
            .any(|trigger| self.age(trigger).is_some())
    }

    /// Milliseconds after its last write at which a block of this file is flushed; `None` if only
    /// on demand.
    fn due_after(&self, file: FileId) -> Option<u32> {
        let record = self.node.segment.file(file);
        if record.has(FileFlags::SCRATCH) {
            return None;
        }
        let own = Trigger::from_code(record.trigger.load(Ordering::Relaxed));
        self.age(own.unwrap_or_else(|| self.node.header().flush_trigger()))
    }

    fn age(&self, trigger: Trigger) -> Option<u32> {
        match trigger {
            _ if self.node.draining.load(Ordering::Acquire) => Some(0),
            Trigger::PerOperation => Some(0),
            Trigger::Periodic => Some(self.period()),
            Trigger::PerFile | Trigger::OnExit => None,
        }
    }

    pub(super) fn collect(&self, which: &FlushScope) -> Vec<BlockRef> {
        let segment = &self.node.segment;
        let mut found = Vec::new();
        match *which {
            FlushScope::Blocks(file, ref blocks) => {
                let dirty = |&(block, bucket): &(u64, BucketId)| BlockRef { file, block, bucket };
                found.extend(blocks.iter().map(dirty));
            }
            FlushScope::File(file) => segment.for_each_entry(segment.file(file), 0, |block, place| {
                if let Entry::Resident { bucket, .. } = Entry::decode(place.load(Ordering::Acquire))
                    && let Some(meta) = segment.bucket(bucket)
                    // What is on its way already is waited for when its turn comes.
                    && meta.pending() != 0
                {
                    found.push(BlockRef { file, block, bucket });
                }
                true
            }),
            FlushScope::Due(tier) => self.collect_due(tier, &mut found),
        }
        found
    }

    /// Adds the blocks of tier `tier` whose time has come: those of a few files are found through
    /// their index, those of many by a look at all buckets.
    fn collect_due(&self, tier: TierId, found: &mut Vec<BlockRef>) {
        let segment = &self.node.segment;
        let is_dirty = |file: &FileId| {
            let record = segment.file(*file);
            record.has(FileFlags::DIRTY) && !record.has(FileFlags::SCRATCH)
        };
        let dirty: Vec<FileId> = segment.files().touched().filter(is_dirty).collect();
        let now = self.node.now();
        // What would be too old at the next look goes now.
        let oldest = self.max_age().saturating_sub(self.pause());
        let mut look = |bucket: BucketId, meta: &BucketMeta| {
            if meta.pages.dirty() == 0 || meta.state.load(Ordering::Acquire) != USED {
                return;
            }
            let file = meta.file.load(Ordering::Relaxed);
            let age = clock::stamp_age(now, meta.written.load(Ordering::Relaxed));
            let dirty_for = clock::stamp_age(now, meta.dirtied.load(Ordering::Relaxed));
            let is_due = |file| {
                self.due_after(file).is_some_and(|after| age >= after || dirty_for >= oldest)
            };
            if segment.header().has_file(file) && is_due(file) && self.may_try(file, now) {
                let block = meta.block.load(Ordering::Relaxed);
                found.push(BlockRef { file, block, bucket });
            }
        };
        if have_few_blocks(segment, &dirty, buckets_of(segment, tier).size_hint().0) {
            for_each_bucket_of(segment, &dirty, |of, bucket, meta| {
                if of == tier {
                    look(bucket, meta);
                }
            });
        } else {
            for bucket in buckets_of(segment, tier) {
                if let Some(meta) = segment.bucket(bucket) {
                    look(bucket, meta);
                }
            }
        }
    }

    /// Whether a failing file's time has come.
    pub fn may_try(&self, file: FileId, now: u32) -> bool {
        let record = self.node.segment.file(file);
        !record.has(FileFlags::FAILING)
            || clock::stamp_age(now, record.retry_at.load(Ordering::Relaxed)) > 0
    }
}
