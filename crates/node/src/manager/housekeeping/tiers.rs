//! Tiers that were left out, or were full: whether they take blocks again.

use super::{Housekeeper, is_full};
use forebay_device::{Span, Target, Transfer};
use forebay_pool::clock::Timer;
use forebay_pool::layout::*;
use std::sync::Arc;

/// A tier that was full is tried again after this, when its file system has room for so many
/// blocks.
pub(super) const RETRY_FULL: Timer = Timer::seconds(1);

pub(super) const ROOM_BLOCKS: u64 = 16;

impl Housekeeper {
    /// Tells of tiers that take nothing new, and tries those again now and then that were full.
    pub(super) fn look_at_tiers(&mut self, now: u32) {
        let node = Arc::clone(&self.node);
        for tier in node.file_tiers() {
            let name = node.tier_name(tier);
            let Some((errno, _)) = node.segment.tier_failure(tier) else {
                self.failed.remove(&tier);
                continue;
            };
            let is_full = is_full(errno);
            let Some(&tried) = self.failed.get(&tier) else {
                self.failed.insert(tier, now);
                let why = if is_full { "it is full" } else { "its device fails" };
                error!(
                    "tier {name}: {why} ({errno}): no more blocks go there, and what can be read is drained"
                );
                continue;
            };
            if !is_full || forebay_pool::clock::stamp_age(now, tried) < RETRY_FULL.as_stamp() {
                continue;
            }
            self.failed.insert(tier, now);
            if self.takes_a_block(tier) {
                node.segment.restore_tier(tier);
                self.failed.remove(&tier);
                info!("tier {name}: there is room again");
                node.segment.want_room();
            }
        }
    }

    /// Whether a free slot of a tier can be written, and its file system has room for some more.
    pub(super) fn takes_a_block(&self, tier: TierId) -> bool {
        let segment = &self.node.segment;
        let Some(file) = self.node.slots[tier].as_ref() else { return false };
        let bytes = segment.bucket_bytes();
        let room = rustix::fs::fstatvfs(file).map_or(0, |found| found.f_bavail * found.f_frsize);
        if room < ROOM_BLOCKS * bytes as u64 {
            return false;
        }
        let files = (&self.node.slots[tier], &self.node.indexes[tier]);
        if crate::recovery::open::give_heads(segment, tier, files).is_err()
            || self.node.keep_config(tier).is_err()
        {
            return false;
        }
        // Without one nothing that lies in slots could get a checkpoint. What it lies on may have
        // been full, too.
        if self
            .node
            .journal
            .as_ref()
            .is_some_and(|journal| journal.make(self.node.context()).is_err())
        {
            return false;
        }
        let Some(slot) = segment.take_slot(tier, self.owner, &mut 0) else { return false };
        let mut zeros = vec![0u8; bytes];
        let buffer = Span::of(&mut zeros);
        let target = Target::Slot(segment.slot_in_tier(slot));
        // SAFETY: the buffer outlives the run; the slot was taken and is no other thread's.
        let mut writes = [unsafe { Transfer::write(target, 0, vec![buffer]) }];
        self.node.tier_client(tier).run(&mut writes);
        segment.free_bucket(slot);
        writes[0].result() == Ok(bytes as u64)
    }
}
