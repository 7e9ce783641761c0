//! Syncs: those that clients tell of, and what a drain asks for. A sync is answered by the journal,
//! or by the store.

use crate::drain::flusher::{AwaitedCheckpoint, FlushScope, Flusher, Retry};
use crate::drain::reconcile::reconcile;
use crate::journal::Checkpoint;
use crate::store::descriptors::StoreHandle;
use forebay_placement::rounds::sync_passes;
use forebay_pool::backoff::Backoff;
use forebay_pool::clock::Timer;
use forebay_pool::layout::FileFlags;
use forebay_pool::message::Message;
use forebay_pool::{FileId, crash, futex};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// How often all files are looked at for syncs that no message told of.
const LOOK_EVERYWHERE: Timer = Timer::seconds(1);
/// How often a thread that waits for requests looks whether it shall end.
const QUEUE_LOOK: Timer = Timer::ms(250);

/// A sync that waits for what a client holds is tried again after this, doubled each time up to the
/// second value.
const DEFERRED_RETRY: (Timer, Timer) = (Timer::ms(2), Timer::ms(100));

impl Flusher {
    /// The life of the thread that serves syncs: those that clients tell of, and, now and then and
    /// when a client found the queue full, all.
    pub fn serve_syncs(mut self) {
        let node = Arc::clone(&self.node);
        let queue = node.segment.queue();
        let mut looked: Option<Instant> = None;
        while !node.stopping() {
            // All that is there, so that one commit of the journal serves many.
            let mut wanted: Vec<FileId> = std::iter::from_fn(|| queue.pop())
                .take(forebay_pool::queue::PLACES)
                .filter_map(|message| match message {
                    // Whatever it says, it is only a hint.
                    Message::Sync { file } if node.header().has_file(file) => Some(file),
                    _ => None,
                })
                .collect();
            let deferred = self.deferred.iter();
            let due = deferred.filter(|(_, retry)| retry.is_due()).map(|(&file, _)| file);
            wanted.extend(due);
            wanted.sort_unstable();
            wanted.dedup();
            if queue.has_missed()
                || wanted.is_empty()
                    && looked.is_none_or(|at| at.elapsed() > LOOK_EVERYWHERE.as_duration())
            {
                looked = Some(Instant::now());
                let files = node.segment.files().touched();
                wanted = files.filter(|&file| self.behind(file)).collect();
                for queue in [queue, node.segment.asks()] {
                    queue.take_back(|owner| node.segment.clients().is_dead(owner));
                }
            }
            self.serve(&wanted);
            if !self.make_room_in_journal() && wanted.is_empty() {
                let next = self.deferred.values().map(|retry| retry.at).min();
                let rests = next.is_none() && node.resting.load(Ordering::SeqCst);
                let look = if rests { node.wait_ms(0) } else { QUEUE_LOOK.as_ms() };
                let wait = next.map_or(look, |at| {
                    let left = at.saturating_duration_since(Instant::now());
                    look.min(left.as_millis() as u64 + 1)
                });
                // The end of the rest may have come before.
                queue.wait(wait, || {
                    node.stopping() || rests && !node.resting.load(Ordering::SeqCst)
                });
            }
        }
    }

    fn behind(&self, file: FileId) -> bool {
        let record = self.node.segment.file(file);
        record.has(FileFlags::TO_RECORD_TRUNCATE) || record.awaits_sync()
    }

    /// Serves the syncs of some files: those that only the journal is wanted for together, with one
    /// sync of its device.
    fn serve(&mut self, files: &[FileId]) {
        let node = Arc::clone(&self.node);
        let mut logged = Vec::new();
        for &file in files {
            self.serve_truncate(file);
            // One that was deferred has been waited for.
            self.backoff = match self.deferred.contains_key(&file) {
                true => Backoff::nearly_spent(),
                false => Backoff::default(),
            };
            let record = node.segment.file(file);
            // First: a process that asks for more from here on is answered the next time.
            let ticket = record.sync_wanted.load(Ordering::Acquire);
            let wanted = record.flags.load(Ordering::Acquire);
            let store = FileFlags::DURABLE
                | FileFlags::TO_FLUSH
                | FileFlags::TO_CHECKPOINT
                | FileFlags::RELEASE;
            if !wanted.contains(FileFlags::TO_LOG) || wanted.intersects(store) {
                self.sync(file);
                continue;
            }
            record.clear(FileFlags::TO_LOG);
            if self.is_removed(file) {
                // What the journal has of it, or got now, a recovery would keep.
                self.sync_with(file, ticket, FileFlags::DURABLE);
                continue;
            }
            crash::point("sync.logging");
            match self.log(file) {
                Ok(first) => logged.push((file, ticket, first)),
                Err(_) if node.stopping() => return,
                // The log is full, or its records would not tell what the store has.
                Err(_) => self.sync_with(file, ticket, FileFlags::DURABLE),
            }
        }
        self.end_checkpoints();
        let commit = match &node.journal {
            Some(journal) if !logged.is_empty() => {
                journal.lock().commit(true, &mut *self.tiers[journal.tier])
            }
            _ => Ok(()),
        };
        for (file, ticket, first) in logged {
            let done = commit.is_ok() && self.is_safe_with_journal(file, first);
            match done {
                true => {
                    self.answer(file, ticket);
                    crash::point("sync.logged");
                }
                false => self.sync_with(file, ticket, FileFlags::DURABLE),
            }
        }
    }

    /// Whether a file has lost its last name, as far as was noted, and no process has it open:
    /// housekeeping has not come to it yet.
    fn is_removed(&self, file: FileId) -> bool {
        let segment = &self.node.segment;
        segment.file(file).has(FileFlags::UNLINKED) && segment.holders(file).next().is_none()
    }

    /// Does for one file what is wanted of it, and answers all syncs wanted so far. An error is
    /// noted in the record and answers them too.
    fn sync(&mut self, file: FileId) {
        let record = self.node.segment.file(file);
        let ticket = record.sync_wanted.load(Ordering::Acquire);
        if !self.behind(file) && !self.deferred.contains_key(&file) {
            return;
        }
        let all = FileFlags::DURABLE
            | FileFlags::RELEASE
            | FileFlags::TO_LOG
            | FileFlags::TO_FLUSH
            | FileFlags::TO_CHECKPOINT;
        crash::point("sync.begin");
        let wanted = record.flags.clear(all, Ordering::AcqRel) & all;
        crash::point("sync.taken");
        self.sync_with(file, ticket, wanted);
    }

    /// Leaves a sync, for which `wanted` is to be done, for later: not answered, and to be tried
    /// again.
    fn defer(&mut self, file: FileId, wanted: FileFlags) {
        self.node.segment.file(file).set(wanted);
        // Trying all of them is never to take more than a tenth of the time.
        let share = Timer::ms(10).as_duration() * self.deferred.len() as u32;
        let pauses = (DEFERRED_RETRY.0.as_duration(), DEFERRED_RETRY.1.as_duration().max(share));
        let retry = Retry::after(self.deferred.get(&file), pauses);
        self.deferred.insert(file, retry);
        crash::point("sync.deferred");
    }

    pub(super) fn sync_with(&mut self, file: FileId, ticket: u32, wanted: FileFlags) {
        let node = Arc::clone(&self.node);
        let record = node.segment.file(file);
        // The store has it, then, and a process that asked for the journal has more than that.
        let durable = wanted.intersects(FileFlags::DURABLE | FileFlags::TO_LOG);
        let release = wanted.contains(FileFlags::RELEASE);
        let born = record.born_ns.load(Ordering::Acquire);
        let errors = record.errors();
        let only_clean = wanted == FileFlags::TO_CHECKPOINT;
        // Slots that are filled from here on are not covered by this checkpoint, and their file has
        // the flag.
        let was_logged = record.has(FileFlags::LOGGED);
        let slotted = (durable || only_clean) && self.take_slotted(file);
        let tracked = was_logged || slotted;
        let sequence = if tracked { node.segment.next_sequence() } else { 0 };
        // Taken now: once the file is checkpointed it may be the only one of a file without a name.
        let held = (durable || tracked).then(|| self.descriptor(file));
        for _ in 0..sync_passes(node.tiers().count()) {
            if only_clean {
                break;
            }
            self.was_held = false;
            self.flush(FlushScope::File(file));
            let failed = record.errors() != errors;
            if failed || !self.node.is_pending(file) {
                break;
            }
            if self.was_held {
                // All but what is held is on the store. Others do not wait for its holder.
                self.defer(file, wanted);
                return;
            }
            if node.stopping() {
                // Not answered: the client sees the manager gone and flushes the file itself.
                return;
            }
        }
        let checkpoints = tracked && (durable || only_clean && !self.node.is_pending(file));
        if (durable || checkpoints && was_logged)
            && let Some(held) = held
            && record.errors() == errors
            && let Err(errno) = self.sync_held(file, held)
        {
            self.failed(file, born, errno);
        }
        if checkpoints && record.errors() == errors {
            let checkpoint = Checkpoint { file, sequence };
            if only_clean {
                self.checkpoints.push(AwaitedCheckpoint { checkpoint, ticket });
                return;
            }
            // A program that waits for a sync must not find older bytes after a power loss.
            let result = self.note_checkpoints(&[checkpoint])[0];
            self.end_checkpoint(file, result, true);
        }
        crash::point("sync.synced");
        if release {
            node.await_messages();
        }
        if release || checkpoints {
            reconcile(&node, file, self.owner);
        }
        self.answer(file, ticket);
        crash::point("sync.answered");
    }

    /// Makes durable what the store has of a file.
    pub(super) fn sync_store(&mut self, file: FileId) -> Result<(), Errno> {
        let held = self.descriptor(file);
        self.sync_held(file, held)
    }

    fn sync_held(
        &mut self,
        file: FileId,
        held: Result<Arc<StoreHandle>, Errno>,
    ) -> Result<(), Errno> {
        let node = Arc::clone(&self.node);
        let record = node.segment.file(file);
        let store = self.store_of(file);
        // Before: a process that changes the store's file meanwhile takes it away again.
        record.set(FileFlags::SYNCED);
        let result = match held {
            Ok(held) => self.stores[store].sync(held.file()),
            // Its last writer's descriptor is closed, and it cannot be found by its name.
            Err(_) => self.node.stores[store].sync_all(),
        };
        if result.is_err() {
            record.clear(FileFlags::SYNCED);
        }
        result
    }

    pub(super) fn answer(&mut self, file: FileId, ticket: u32) {
        self.deferred.remove(&file);
        self.node.segment.file(file).sync_done.store(ticket, Ordering::Release);
        self.post_done();
    }

    pub(super) fn post_done(&self) {
        let done = &self.node.header().work_done;
        done.fetch_add(1, Ordering::AcqRel);
        futex::wake_all(done);
    }
}
