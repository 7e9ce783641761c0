//! A flusher: a worker with batches of its own that brings dirty blocks to their stores, in file
//! order, coalesced, several writes in flight. Each tier has its own, so that all tiers flush
//! concurrently; one more serves syncs.

use crate::drain::reconcile::reconcile;
use crate::journal::Checkpoint;
use crate::node::{BlockRef, Node};
use crate::store::beneath::Roots;
use crate::store::descriptors::StoreHandle;
use forebay_device::Batch;
use forebay_placement::TierId;
use forebay_placement::flush_order::batch_len;
use forebay_placement::leave::BATCH_BYTES;
use forebay_placement::rounds::DRAIN_LOOK_MS;
use forebay_pool::BucketId;
use forebay_pool::backoff::Backoff;
use forebay_pool::clock::Timer;
use forebay_pool::layout::FileFlags;
use forebay_pool::{FileId, Owner, futex};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a drain looks for what has become due.
const DRAIN_LOOK: Timer = Timer::ms(DRAIN_LOOK_MS);

/// Bytes of one write to the store, at most; more only where the store's stripes are larger.
pub(super) const WRITE_BYTES: u64 = 4 << 20;

/// Stripes up to this are flushed in one batch, in so much memory of each flusher that does.
const STRIPE_MOST: u64 = 64 << 20;

/// A worker that flushes, with its own batches.
pub(crate) struct Flusher {
    pub(super) node: Arc<Node>,
    pub(super) owner: Owner,
    pub(super) stores: Vec<Box<dyn Batch>>,
    pub(super) tiers: Vec<Box<dyn Batch>>,
    /// Copies of blocks that lie on file tiers.
    pub(super) staging: Vec<u8>,
    /// What the store has of a batch of a staged file.
    pub(super) stored: Vec<u8>,
    /// How often in a row it was not what had been written, of a file's batch that begins there;
    /// of all workers that take batches of a file in turn.
    pub(super) unequal: Arc<Mutex<HashMap<(FileId, u64), u32>>>,
    /// Files that this worker could not write, and when it tries again.
    pub(super) retries: HashMap<FileId, Retry>,
    /// For how long clients may hold what the sync that is being served needs.
    pub(super) backoff: Backoff,
    /// They have held some of it for longer.
    pub(super) was_held: bool,
    /// Files whose syncs wait for what a client holds, which may be stopped.
    pub(super) deferred: HashMap<FileId, Retry>,
    /// Files that need a checkpoint and nothing else: one commit of the journal notes all of a
    /// round.
    pub(super) checkpoints: Vec<AwaitedCheckpoint>,
}

/// A file that is on the store, which the journal is to be told, and the syncs that this answers.
pub(super) struct AwaitedCheckpoint {
    pub(super) checkpoint: Checkpoint,
    pub(super) ticket: u32,
}

/// When a file whose flush failed, or a deferred sync, is tried again.
pub(super) struct Retry {
    pub(super) at: Instant,
    pub(super) pause: Duration,
}

impl Retry {
    /// After the first of two pauses, or twice as long as the `last` time, up to the second one.
    pub(super) fn after(last: Option<&Retry>, (first, most): (Duration, Duration)) -> Retry {
        let pause = last.map_or(first, |last| (last.pause * 2).min(most));
        Retry { at: Instant::now() + pause, pause }
    }

    pub(super) fn is_due(&self) -> bool {
        self.at <= Instant::now()
    }
}

/// Which blocks to flush.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum FlushScope {
    /// Blocks of one tier whose time has come, see `Flusher::due_after`.
    Due(TierId),
    /// All blocks of one file.
    File(FileId),
    /// These blocks of one file, with their buckets.
    Blocks(FileId, Vec<(u64, BucketId)>),
}

impl Flusher {
    pub fn new(node: &Arc<Node>) -> Flusher {
        Flusher {
            owner: Node::new_owner(),
            stores: (0..node.config.backing.len()).map(|store| node.store_client(store)).collect(),
            tiers: node.tiers().map(|tier| node.tier_client(tier)).collect(),
            staging: Vec::new(),
            stored: Vec::new(),
            unequal: Arc::default(),
            retries: HashMap::new(),
            backoff: Backoff::default(),
            was_held: false,
            deferred: HashMap::new(),
            checkpoints: Vec::new(),
            node: Arc::clone(node),
        }
    }

    /// Another worker, to take batches of the same files at the same time.
    pub(super) fn beside(&self) -> Flusher {
        Flusher { unequal: Arc::clone(&self.unequal), ..Flusher::new(&self.node) }
    }

    /// Gives the memory for batches back, until there is another one.
    pub(super) fn release(&mut self) {
        (self.staging, self.stored) = (Vec::new(), Vec::new());
    }

    /// Takes over when `other` would have tried again, so that only one of the two says it.
    pub(super) fn take_retries(&mut self, other: &mut Flusher) {
        for (file, found) in other.retries.drain() {
            match self.retries.get(&file) {
                Some(own) if own.at >= found.at => {}
                _ => drop(self.retries.insert(file, found)),
            }
        }
    }

    /// Forgets that the store had other bytes of such files.
    pub(super) fn forget_unequal(&self, is_one: impl Fn(FileId) -> bool) {
        self.unequal().retain(|&(file, _), _| !is_one(file));
    }

    pub(super) fn unequal(&self) -> MutexGuard<'_, HashMap<(FileId, u64), u32>> {
        self.unequal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of a tier's flusher.
    pub fn run(mut self, tier: TierId) {
        let pause = self.node.config.flush.ages().pause_ms();
        while !self.node.stopping() {
            let seen = self.node.header().work_wanted.load(Ordering::Acquire);
            let draining = self.node.draining.load(Ordering::Acquire);
            let moved = if self.may_be_due() { self.flush(FlushScope::Due(tier)) } else { 0 };
            if moved == 0 {
                // Failing files are looked at again even without a request.
                let wait = if draining { DRAIN_LOOK.as_ms() } else { pause };
                futex::wait(&self.node.header().work_wanted, seen, self.node.wait_ms(wait));
            }
        }
    }

    /// Begins to wait anew for what a client holds.
    pub fn renew_backoff(&mut self) {
        self.backoff = Backoff::default();
    }

    /// Flushes the blocks that `which` names. Returns the bytes written.
    pub fn flush(&mut self, which: FlushScope) -> u64 {
        let mut found = self.collect(&which);
        found.sort_unstable();
        let mut written = 0;
        let mut rest = &found[..];
        while let Some(first) = rest.first().copied() {
            let same = rest.iter().take_while(|dirty| dirty.file == first.file).count();
            let (of_file, others) = rest.split_at(same);
            rest = others;
            for batch in self.batches(of_file) {
                match self.flush_batch(first.file, batch, &which) {
                    Some(bytes) => written += bytes,
                    None => break,
                }
                if self.node.stopping() {
                    return written;
                }
            }
            reconcile(&self.node, first.file, self.owner);
        }
        if let FlushScope::File(file) = which {
            let record = self.node.segment.file(file);
            if record.has(FileFlags::METADATA_DIRTY) && !self.node.is_pending(file) {
                // What needs a checkpoint needs a descriptor, of which no flush has made use.
                let _ = self.descriptor(file);
            }
            reconcile(&self.node, file, self.owner);
        }
        written
    }

    /// Blocks of one file, in ascending order, in parts that are flushed together. Those of a
    /// staged file end where a stripe ends.
    pub(super) fn batches<'b>(&self, blocks: &'b [BlockRef]) -> Vec<&'b [BlockRef]> {
        let Some(first) = blocks.first() else { return Vec::new() };
        let unit = self.node.segment.bucket_bytes() as u64;
        let Some(stripe) = self.stripe_of_staged(first.file) else {
            return blocks.chunks((BATCH_BYTES / unit).max(1) as usize).collect();
        };
        let most = (BATCH_BYTES.max(stripe.min(STRIPE_MOST)) / unit) as usize;
        let numbers: Vec<u64> = blocks.iter().map(|block| block.block).collect();
        let (mut batches, mut at) = (Vec::new(), 0);
        while at < blocks.len() {
            let len = batch_len(&numbers[at..], most, stripe / unit);
            batches.push(&blocks[at..at + len]);
            at += len;
        }
        batches
    }

    /// Bytes of the requests in which a file goes to its store, if it is staged: a stripe of the
    /// store as configured, else as many of its blocks as make [`WRITE_BYTES`].
    pub(super) fn stripe_of_staged(&self, file: FileId) -> Option<u64> {
        if !self.node.segment.file(file).is_staged() {
            return None;
        }
        let store = self.store_of(file);
        Some(match self.node.config.backing[store].stripe {
            0 => WRITE_BYTES
                .next_multiple_of(self.node.stripes.get(store).map_or(1, |block| (*block).max(1))),
            stripe => stripe,
        })
    }

    /// The store of a file.
    pub(super) fn store_of(&self, file: FileId) -> usize {
        self.node.store_of(file)
    }

    /// A descriptor of a file, to write it.
    ///
    /// # Errors
    /// Those of [`crate::store::descriptors::Descriptors::of`].
    pub fn descriptor(&self, file: FileId) -> Result<Arc<StoreHandle>, Errno> {
        let (segment, descriptors) = (&self.node.segment, &self.node.descriptors);
        let record = segment.file(file);
        let folder = &self.node.config.backing[self.store_of(file)].path;
        if record.has(FileFlags::TO_FIND) {
            // While it may still be where it was, or open.
            descriptors.with_room(segment, || {
                descriptors.find(segment, file, &mut Roots::default(), self.owner)
            })?;
        }
        // One that is on its way may be the only one there is: the file may have no name.
        if record.has(FileFlags::REGISTERED) && !descriptors.has(segment, file) {
            self.node.await_messages();
        }
        descriptors.of(segment, file, folder)
    }
}
