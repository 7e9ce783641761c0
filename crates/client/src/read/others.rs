//! Blocks that other nodes may have in memory: before a read goes to the store for them, the node
//! manager is asked, which finds out and brings them here.
//!
//! One block at a time: a process that others wait for, since it is the first to read a block from
//! the store, waits for none itself.

use super::blocks::is_absent;
use crate::open_file::OpenFile;
use crate::part::Part;
use crate::sharing::Need;
use crate::sync::WORK_LOOK;
use core::sync::atomic::Ordering;
use forebay_placement::admission::Verdict;
use forebay_pool::clock::Timer;
use forebay_pool::layout::FileFlags;
use forebay_pool::lease::Lease;
use forebay_pool::parts::PartLevel;
use forebay_pool::{clock, crash, futex};
use rustix::io::Errno;

/// How long a read waits for other nodes; the manager answers earlier.
const OTHERS_TIMEOUT: Timer = Timer::ms(1_500);
/// After this it looks whether the manager is stopped.
const STOPPED_AFTER: Timer = Timer::ms(100);
/// Blocks of one read that are asked for: 64 MiB. What is behind them is read from the store.
const BLOCKS_MAX: u64 = 256;

impl OpenFile<'_> {
    /// Whether another node may have in memory what this one misses at `offset`: several read the
    /// file, or the part of it, and none writes it.
    #[inline]
    pub(super) fn may_ask_others(&self, offset: u64) -> bool {
        self.session.shares_files()
            && match self.record.lease.load().held() {
                Lease::Read | Lease::Borrowed => true,
                Lease::Shared => self.part_level(offset) == PartLevel::Read,
                Lease::Whole | Lease::Lent | Lease::Nothing | Lease::Direct | Lease::Commit => {
                    false
                }
            }
            && !self.record.has(FileFlags::DIRECT)
    }

    /// Whether there is a block between these bytes that no tier has. The caller is inside the
    /// file.
    pub(super) fn lacks_any(&self, offset: u64, length: usize) -> bool {
        let segment = &self.session.segment;
        let end = self.record.stored().min(offset.saturating_add(length as u64));
        let first = segment.block_at(offset).0;
        offset < end
            && (first..=segment.block_at(end - 1).0)
                .take(BLOCKS_MAX as usize)
                .any(|block| is_absent(segment.entry(self.record, block)))
    }

    /// Brings blocks of a read that no tier has here: from the memory of other nodes, or from the
    /// store where this node is the one that reads them for all. What it leaves is read as usual.
    /// The caller is not inside the file.
    ///
    /// # Errors
    /// As of [`OpenFile::enter_for`].
    #[cold]
    pub(super) fn bring_from_others(&self, offset: u64, length: usize) -> Result<(), Errno> {
        let inside = self.enter_for(Need::read(offset, length))?;
        let may_have = |lease| matches!(lease, Lease::Read | Lease::Shared | Lease::Borrowed);
        if !may_have(self.record.lease.load().held()) || !self.lacks_any(offset, length) {
            return Ok(());
        }
        drop(inside);
        let end = self.record.stored().min(offset.saturating_add(length as u64));
        let mut at = offset;
        for _ in 0..BLOCKS_MAX {
            if at >= end {
                break;
            }
            let part = Part::first(&self.session.segment, at, (end - at) as usize);
            let from = at;
            at += part.bytes as u64;
            let need = || Need::read(from, part.bytes);
            let inside = self.enter_for(need())?;
            let is_there = !is_absent(self.session.segment.entry(self.record, part.block));
            let asks = !is_there && self.may_ask_others(from);
            // What was borrowed the store may not have.
            let is_borrowed = self.record.is_borrowed();
            if !asks || !is_borrowed && inside.admits(part) == Verdict::Through {
                continue;
            }
            // A handler that ran in a wait may have forked.
            let owner = inside.owner;
            drop(inside);
            crash::point("others.asking");
            let generation = self.record.generation.load(Ordering::Acquire);
            let segment = &self.session.segment;
            let ticket = segment.ask_others(owner, self.id, generation, part.block);
            // Too many ask: the store is as good.
            let Some(ticket) = ticket else { continue };
            let (done_word, began_ns) = (&segment.header().work_done, clock::monotonic_ns());
            loop {
                let done = done_word.load(Ordering::Acquire);
                let waited_ns = clock::monotonic_ns() - began_ns;
                if segment.is_answered(ticket)
                    || waited_ns > OTHERS_TIMEOUT.as_ns()
                    || !segment.manager_is_alive()
                    || waited_ns > STOPPED_AFTER.as_ns() && segment.manager_is_stopped()
                {
                    break;
                }
                futex::wait(done_word, done, WORK_LOOK.as_ms());
            }
            let inside = self.enter_for(need())?;
            let is_there = !is_absent(self.session.segment.entry(self.record, part.block));
            if self.record.is_borrowed() {
                match is_there {
                    true => continue,
                    false => break,
                }
            }
            let verdict = inside.admits(part);
            let is_kept = is_there
                || verdict != Verdict::Through
                    && inside.stage_in(part.block, verdict == Verdict::Again);
            if !is_kept {
                segment.tell_unkept(inside.owner, self.id, generation, part.block);
            }
        }
        Ok(())
    }
}
