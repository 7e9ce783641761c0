//! The elevator: the worker that passes staged files from state to state, and takes them to their
//! stores once no process writes them, stripe by stripe (Data Elevator, section III;
//! docs/design/staged.md).
//!
//! Two workers take batches of a file in turn: while one reads a batch from its tier, the other
//! writes, syncs and compares the one before, so that tier and store are busy at the same time.
//!
//! What it does is a flush like any other, so that at every step programs, syncs and the end of the
//! manager may come in between. A state says what a file waits for, and no byte depends on it.

use crate::drain::flusher::{FlushScope, Flusher};
use crate::journal::log::LogError;
use crate::node::{BlockRef, Node};
use crate::store::layout;
use forebay_placement::TierId;
use forebay_placement::staged::{self, Seen, Stage, goes_early, next};
use forebay_pool::clock::{Timer, stamp_age};
use forebay_pool::layout::{FileFlags, RuleRecord};
use forebay_pool::{FileId, crash, futex};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// How often files are looked at that some process writes, or that have not come to the store yet.
const LOOK: Timer = Timer::ms(200);
/// The same of staged files of which nothing is known: until it is woken, as a close does.
const LOOK_IDLE: Timer = Timer::seconds(1);

/// After what time without a write a whole stripe goes to the store before its file is closed, and
/// where its tier is short of room.
const EARLY: Timer = Timer::ms(staged::EARLY_MS);
const EARLY_SHORT: Timer = Timer::ms(staged::EARLY_SHORT_MS);

/// The worker that drains staged files.
pub(crate) struct Elevator {
    flusher: Flusher,
    /// Takes every other batch, in a thread that lives as long as the flush of a file.
    beside: Flusher,
    /// The state of which the journal was told last, and the generation of the record.
    told: HashMap<FileId, (u32, Stage)>,
    /// That a file could not be laid out was said.
    is_refused: bool,
}

/// What a look has come to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Looked {
    /// No file is on its way.
    Idle,
    /// Some file waits for a process, or for its store.
    Waits,
    /// Some file has gone on.
    GoesOn,
}

impl Elevator {
    pub fn new(node: &Arc<Node>) -> Elevator {
        let flusher = Flusher::new(node);
        let beside = flusher.beside();
        Elevator { flusher, beside, told: HashMap::new(), is_refused: false }
    }

    /// The elevator's life.
    pub fn run(mut self) {
        let node = Arc::clone(&self.flusher.node);
        while !node.stopping() {
            let seen = node.header().work_wanted.load(Ordering::Acquire);
            let wait_ms = match self.look() {
                Looked::GoesOn => continue,
                Looked::Waits => LOOK.as_ms(),
                Looked::Idle => {
                    self.flusher.release();
                    self.beside.release();
                    node.wait_ms(LOOK_IDLE.as_ms())
                }
            };
            futex::wait(&node.header().work_wanted, seen, wait_ms);
        }
    }

    /// Takes all staged files as far as they can go, those of a high priority first.
    fn look(&mut self) -> Looked {
        let node = Arc::clone(&self.flusher.node);
        let segment = &node.segment;
        let is_staged = |file: &FileId| segment.file(*file).is_staged();
        let mut files: Vec<FileId> = segment.files().touched().filter(is_staged).collect();
        let priority = |file: &FileId| {
            let rule = segment.rule_of(segment.file(*file)).map(RuleRecord::settings);
            Reverse(rule.map_or(0, |set| set.priority))
        };
        files.sort_by_key(|file| (priority(file), *file));
        self.told.retain(|file, _| segment.file(*file).is_staged());
        self.flusher.forget_unequal(|file| !segment.file(file).is_staged());
        let mut looked = Looked::Idle;
        for file in files {
            if node.stopping() {
                break;
            }
            looked = looked.max(self.take(file));
        }
        looked
    }

    /// Takes a file as far as it can go.
    fn take(&mut self, file: FileId) -> Looked {
        let node = Arc::clone(&self.flusher.node);
        let record = node.segment.file(file);
        let mut looked = Looked::Idle;
        // A file that goes round is one that programs open and close meanwhile.
        for _ in Stage::ALL {
            let stage = record.stage();
            let seen = Seen {
                is_written: node.segment.descriptions().is_open_for_writing(file),
                is_held: self.is_held(file),
                is_behind: self.is_behind(file),
            };
            let Some(to) = next(stage, seen) else { break };
            if !record.pass_on(stage, to) {
                continue;
            }
            crash::point("staged.passed");
            looked = Looked::GoesOn;
        }
        self.tell_journal(file);
        match record.stage() {
            None | Some(Stage::Drained) => looked,
            Some(Stage::Draining) if self.drain(file) => Looked::GoesOn,
            Some(Stage::Writing) if self.drain_early(file) => Looked::GoesOn,
            // The journal is told by the thread that serves syncs.
            Some(_) => looked.max(Looked::Waits),
        }
    }

    /// Tells the journal where a file stands that is not drained; the checkpoint of one that is was
    /// noted. A state that it cannot take is not missed.
    fn tell_journal(&mut self, file: FileId) {
        let node = Arc::clone(&self.flusher.node);
        let record = node.segment.file(file);
        let generation = record.generation.load(Ordering::Acquire);
        // Nor of one that programs use through the kernel: no tier has anything of it.
        let is_told = |stage: &Stage| *stage != Stage::Drained && !record.has(FileFlags::DIRECT);
        let (Some(stage), Some(journal)) = (record.stage().filter(is_told), &node.journal) else {
            self.told.remove(&file);
            return;
        };
        if self.told.get(&file) == Some(&(generation, stage)) {
            return;
        }
        let io = &mut *self.flusher.tiers[journal.tier];
        if journal.note_stage(node.context(), file, stage, io) != Err(LogError::Held) {
            self.told.insert(file, (generation, stage));
        }
    }

    /// Whether the store lacks some of a file, or journal and slots do not know yet that it has all
    /// of it, durably.
    fn is_behind(&self, file: FileId) -> bool {
        let record = self.flusher.node.segment.file(file);
        record.has(FileFlags::METADATA_DIRTY)
            || record.is_tracked()
            || self.flusher.node.is_pending(file)
    }

    /// Whether a file waits for what runs on it. Not where one of its tiers is short of room:
    /// programs never wait for a command.
    fn is_held(&self, file: FileId) -> bool {
        let node = &self.flusher.node;
        if !node.actions.holds(&node.segment, file) {
            return false;
        }
        let placed = node.segment.file(file).placed.load(Ordering::Relaxed);
        let is_in = |tier: &TierId| placed & 1 << tier.index() != 0;
        let Some(tier) = node.tiers().filter(is_in).find(|tier| self.is_short_in(*tier)) else {
            return true;
        };
        if node.actions.release(&node.segment, file) {
            let path = node.shown_path(node.segment.file(file));
            let tier = node.tier_name(tier);
            eprintln!(
                "{path}: {tier} is short of room: it is drained before what runs on it has ended"
            );
        }
        crash::point("staged.released");
        false
    }

    /// Takes what a file has to its store, in order, as long as no process writes it. Returns
    /// whether something came there.
    fn drain(&mut self, file: FileId) -> bool {
        let node = Arc::clone(&self.flusher.node);
        if !self.may_go(file) {
            return false;
        }
        let mut found = self.flusher.collect(&FlushScope::File(file));
        found.sort_unstable();
        self.flush(file, &found, || !node.segment.descriptions().is_open_for_writing(file))
    }

    /// Whether a file may go to its store now. What has no name any more is dropped when no process
    /// has it open.
    fn may_go(&self, file: FileId) -> bool {
        let is_named = !self.flusher.node.segment.file(file).has(FileFlags::UNLINKED);
        is_named && self.flusher.may_try(file)
    }

    /// Takes those stripes of a file to its store that were written as a whole, and to which
    /// nothing was written for a while, though the file is not closed. Returns whether something
    /// came there.
    fn drain_early(&mut self, file: FileId) -> bool {
        let node = Arc::clone(&self.flusher.node);
        let segment = &node.segment;
        let unit = segment.bucket_bytes() as u64;
        let Some(stripe) = self.flusher.stripe_of_staged(file) else { return false };
        let per_stripe = (stripe / unit).max(1);
        let is_divided = stripe.is_multiple_of(unit) || unit.is_multiple_of(stripe);
        if !is_divided || !self.may_go(file) || self.is_held(file) {
            return false;
        }
        let mut found = self.flusher.collect(&FlushScope::File(file));
        found.sort_unstable();
        let now = node.now();
        let goes = |blocks: &&[BlockRef]| {
            let metas = || blocks.iter().filter_map(|found| segment.bucket(found.bucket));
            let is_whole = blocks.len() as u64 == per_stripe
                && metas().all(|meta| meta.pages.dirty() == u64::MAX);
            let ages = metas().map(|meta| stamp_age(now, meta.written.load(Ordering::Relaxed)));
            let after = if self.is_short(blocks[0]) { EARLY_SHORT } else { EARLY };
            goes_early(is_whole, ages.min().unwrap_or(0).into(), after.as_ms())
        };
        let stripes = found.chunk_by(|a, b| a.block / per_stripe == b.block / per_stripe);
        let ripe: Vec<BlockRef> = stripes.filter(goes).flatten().copied().collect();
        self.flush(file, &ripe, || true)
    }

    /// Before the first byte of a file goes to its store: now that it is known how long it is, its
    /// layout is set. Where it cannot be, its requests are stripes all the same.
    fn lay_out(&mut self, file: FileId) {
        let node = Arc::clone(&self.flusher.node);
        let record = node.segment.file(file);
        let backing = &node.config.backing[self.flusher.store_of(file)];
        if backing.stripe_count == 0 || record.stored() > 0 {
            return;
        }
        let Ok(held) = self.flusher.descriptor(file) else { return };
        let stripes = record.size.load(Ordering::Acquire).div_ceil(backing.stripe);
        let count = stripes.clamp(1, backing.stripe_count.into()) as u32;
        if let Err(why) = layout::lay_out(&*held, backing.stripe, count)
            && !std::mem::replace(&mut self.is_refused, true)
        {
            let path = node.shown_path(record);
            eprintln!("{path}: its layout stays that of its directory, and others' do: {why}");
        }
        crash::point("staged.laid-out");
    }

    /// Whether the tier in which a block lies has less free than its low watermark.
    fn is_short(&self, found: BlockRef) -> bool {
        self.is_short_in(self.flusher.node.segment.tier_of(found.bucket))
    }

    fn is_short_in(&self, tier: TierId) -> bool {
        let segment = &self.flusher.node.segment;
        segment.free_in(tier) < segment.header().tier[tier].low.load(Ordering::Relaxed)
    }

    /// Takes blocks of a file to its store, in order, as long as it `goes_on`. Returns whether
    /// something came there.
    fn flush(
        &mut self,
        file: FileId,
        found: &[BlockRef],
        goes_on: impl Fn() -> bool + Sync,
    ) -> bool {
        if found.is_empty() {
            return false;
        }
        self.lay_out(file);
        let batches = self.flusher.batches(found);
        let shared = Batches { file, batches, next: AtomicUsize::new(0), has_failed: false.into() };
        if shared.batches.len() == 1 {
            return shared.take(&mut self.flusher, &goes_on);
        }
        let Elevator { flusher, beside, .. } = self;
        let came = thread::scope(|scope| {
            let (shared, goes_on) = (&shared, &goes_on);
            let work = || shared.take(beside, goes_on);
            // Without a thread one worker takes all of them.
            let other = thread::Builder::new().name("elevator 2".into()).spawn_scoped(scope, work);
            let came = shared.take(flusher, goes_on);
            let other_came = other.is_ok_and(|other| match other.join() {
                Ok(came) => came,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            came | other_came
        });
        self.flusher.take_retries(&mut self.beside);
        let node = &self.flusher.node;
        if shared.has_failed.load(Ordering::Acquire) && node.is_pending(file) {
            // The other worker's success may have cleared it.
            node.segment.file(file).set(FileFlags::FAILING);
        }
        came
    }
}

/// The batches of a file that two workers take in turn.
struct Batches<'b> {
    file: FileId,
    batches: Vec<&'b [BlockRef]>,
    /// The first that no worker has taken.
    next: AtomicUsize,
    /// A worker could not write what it took.
    has_failed: AtomicBool,
}

impl Batches<'_> {
    /// Takes one after the other to the store, as long as it `goes_on`. Returns whether something
    /// came there.
    fn take(&self, flusher: &mut Flusher, goes_on: &(impl Fn() -> bool + Sync)) -> bool {
        let node = Arc::clone(&flusher.node);
        let mut came = false;
        while !node.stopping() && !self.has_failed.load(Ordering::Acquire) && goes_on() {
            let Some(batch) = self.batches.get(self.next.fetch_add(1, Ordering::Relaxed)) else {
                break;
            };
            node.await_turn(flusher.dirty_bytes(batch));
            let blocks = batch.iter().map(|found| (found.block, found.bucket)).collect();
            let bytes = flusher.flush(FlushScope::Blocks(self.file, blocks));
            crash::point("staged.batch");
            came |= bytes > 0;
            if flusher.retries.contains_key(&self.file) {
                self.has_failed.store(true, Ordering::Release);
            }
        }
        came
    }
}
