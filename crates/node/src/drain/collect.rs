//! What a flush takes: the blocks that are due, by the trigger of their file, or those of one file.

use crate::drain::flusher::{FlushScope, Flusher, Retry};
use crate::node::BlockRef;
use crate::usage::{buckets_of, for_each_bucket_of, have_few_blocks};
use forebay_placement::TierId;
use forebay_placement::schema::Trigger;
use forebay_pool::BucketId;
use forebay_pool::free_map::USED;
use forebay_pool::layout::{BucketMeta, FileFlags, JobRecord};
use forebay_pool::{Entry, FileId, clock};
use std::collections::HashSet;
use std::sync::atomic::Ordering;

impl Flusher {
    /// Whether any file's blocks can be due without a request.
    pub(super) fn may_be_due(&self) -> bool {
        let segment = &self.node.segment;
        let rules = segment.rules().iter().filter_map(|rule| rule.settings().trigger);
        let of_job = |job: &JobRecord| Trigger::from_code(job.trigger.load(Ordering::Relaxed));
        let triggers = rules.chain(segment.jobs().filter_map(of_job));
        let (ages, is_drain) = (self.node.config.flush.ages(), self.is_drain());
        triggers
            .chain([self.node.header().flush_trigger()])
            .any(|trigger| ages.after_ms(trigger, is_drain).is_some())
    }

    fn is_drain(&self) -> bool {
        self.node.draining.load(Ordering::Acquire)
    }

    /// What starts the flush of a file's blocks; `None` of one that is never flushed.
    fn trigger_of(&self, file: FileId) -> Option<Trigger> {
        let record = self.node.segment.file(file);
        if record.has(FileFlags::SCRATCH) {
            return None;
        }
        Some(self.node.segment.trigger_of(record))
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
        // Also for a drain of everything, which waits for them.
        let is_held = |file: &&FileId| {
            segment.file(**file).is_staged() && self.node.actions.holds(segment, **file)
        };
        let held: HashSet<FileId> = dirty.iter().filter(is_held).copied().collect();
        let now = self.node.now();
        let ages = self.node.config.flush.ages();
        let mut look = |bucket: BucketId, meta: &BucketMeta| {
            if meta.pages.dirty() == 0 || meta.state.load(Ordering::Acquire) != USED {
                return;
            }
            let file = meta.file.load(Ordering::Relaxed);
            let age = clock::stamp_age(now, meta.written.load(Ordering::Relaxed));
            let dirty_for = clock::stamp_age(now, meta.dirtied.load(Ordering::Relaxed));
            let is_due = |file| {
                let is_due = |of| ages.is_due(of, self.is_drain(), age.into(), dirty_for.into());
                self.trigger_of(file).is_some_and(is_due)
            };
            if segment.header().has_file(file)
                && !held.contains(&file)
                && is_due(file)
                && self.may_try(file)
            {
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

    /// Whether a file is to be written now: one that this worker could not write only when its time
    /// has come. What keeps another worker from its part of the file, such as rot in a slot, may
    /// be none of this one's, and where this one succeeds, that is as it was.
    pub(super) fn may_try(&self, file: FileId) -> bool {
        self.retries.get(&file).is_none_or(Retry::is_due) || self.node.may_retry(file)
    }
}
