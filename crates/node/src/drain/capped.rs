//! The thread that flushes what runs may not have in the tiers any more: because they, or all
//! together, have used most of a cap on what the store lacks, or because it is too old. Each limit
//! gets a piece in turn, so that none waits for what another has.

use crate::drain::flusher::{FlushScope, Flusher};
use crate::node::{BlockRef, Node};
use forebay_placement::caps::{Age, piece_bytes};
use forebay_pool::clock;
use forebay_pool::clock::Timer;
use forebay_pool::free_map::USED;
use forebay_pool::futex;
use forebay_pool::layout::{FileFlags, JobQuota, JobRecord};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How soon it looks again where a cap is used up and nothing could be flushed.
const LOOK_PRESSED: Timer = Timer::ms(20);
/// How often it looks where it is woken for all that there is to do.
const LOOK_IDLE: Timer = Timer::seconds(3600);

/// The thread.
pub(crate) struct CapKeeper {
    node: Arc<Node>,
    flusher: Flusher,
}

/// What is to be flushed for one limit.
struct Wanted {
    /// The number of the job whose files these are; `None`: all files.
    job: Option<u32>,
    /// For how many milliseconds they have been dirty at least.
    age_ms: u64,
    /// Bytes, or as little more as a block has.
    bytes: u64,
    /// The blocks, each with the milliseconds for which it has been dirty, and its dirty bytes.
    found: Vec<(u64, BlockRef, u64)>,
}

impl Wanted {
    fn of(job: Option<u32>, cap: &JobQuota, page: u64) -> Option<Wanted> {
        let limit = cap.limit().filter(|_| cap.is_pressed())?;
        let bytes = piece_bytes(u64::from(limit) * page);
        Some(Wanted { job, age_ms: 0, bytes, found: Vec::new() })
    }

    /// The blocks that are flushed first, in the order in which they lie in their files.
    fn first(mut self) -> Vec<BlockRef> {
        self.found.sort_unstable_by_key(|&(age, block, _)| (std::cmp::Reverse(age), block));
        let mut bytes = 0;
        let fits = |&(_, _, dirty): &(u64, BlockRef, u64)| {
            let before = bytes;
            bytes += dirty;
            before < self.bytes
        };
        let mut blocks: Vec<_> =
            self.found.into_iter().take_while(fits).map(|(_, block, _)| block).collect();
        blocks.sort_unstable();
        blocks
    }
}

/// The age of a job's blocks, if that is limited.
fn age_of(job: &JobRecord) -> Option<Age> {
    let most_ms = u64::from(job.max_age_ms.load(Ordering::Relaxed));
    (most_ms > 0).then_some(Age { most_ms })
}

impl CapKeeper {
    pub fn new(node: &Arc<Node>) -> CapKeeper {
        CapKeeper { node: Arc::clone(node), flusher: Flusher::new(node) }
    }

    /// The life of the thread.
    pub fn run(mut self) {
        while !self.node.stopping() {
            let seen = self.node.header().caps_wanted.load(Ordering::SeqCst);
            if self.round() == 0 {
                let wait = self.node.wait_ms(self.pause_ms());
                futex::wait(&self.node.header().caps_wanted, seen, wait);
            }
        }
    }

    fn pause_ms(&self) -> u64 {
        let segment = &self.node.segment;
        let ages = segment.jobs().filter_map(age_of).map(Age::pause_ms);
        let pressed = segment.are_caps_pressed().then_some(LOOK_PRESSED.as_ms());
        ages.chain(pressed).min().unwrap_or(LOOK_IDLE.as_ms())
    }

    /// Flushes a piece for each limit. Returns the bytes written.
    fn round(&mut self) -> u64 {
        self.node.recount_unsafe();
        let mut wanted = self.wanted();
        if wanted.is_empty() {
            return 0;
        }
        self.look(&mut wanted);
        let mut written = 0;
        for blocks in wanted.into_iter().map(Wanted::first) {
            for of_file in blocks.chunk_by(|one, other| one.file == other.file) {
                let file = of_file[0].file;
                let named = of_file.iter().map(|found| (found.block, found.bucket)).collect();
                written += self.flusher.flush(FlushScope::Blocks(file, named));
                if self.node.stopping() {
                    return written;
                }
            }
        }
        self.node.recount_unsafe();
        written
    }

    fn wanted(&self) -> Vec<Wanted> {
        let segment = &self.node.segment;
        let page = segment.page_bytes() as u64;
        let of_job = |job: &JobRecord| {
            let number = Some(job.number.load(Ordering::Acquire));
            let aged = age_of(job).map(|age| Wanted {
                job: number,
                age_ms: age.due_ms(),
                bytes: piece_bytes(u64::MAX),
                found: Vec::new(),
            });
            [Wanted::of(number, &job.cap, page), aged].into_iter().flatten()
        };
        let all = Wanted::of(None, &self.node.header().cap, page);
        segment.jobs().flat_map(of_job).chain(all).collect()
    }

    /// Finds the dirty blocks that are wanted, in all tiers.
    fn look(&self, wanted: &mut [Wanted]) {
        let node = &self.node;
        let (segment, header, now) = (&node.segment, node.header(), node.now());
        for bucket in header.bucket_ids() {
            let Some(meta) = segment.bucket(bucket) else { continue };
            let dirty = meta.pages.dirty().count_ones();
            let file = meta.file.load(Ordering::Relaxed);
            if dirty == 0
                || meta.state.load(Ordering::Acquire) != USED
                || !header.has_file(file)
                || segment.file(file).has(FileFlags::SCRATCH)
            {
                continue;
            }
            let record = segment.file(file);
            let job = segment.quota_job(record).map(|job| job.number.load(Ordering::Acquire));
            let age = match clock::stamp_age(now, meta.dirtied.load(Ordering::Relaxed)) {
                // Written since the clock was read.
                later if later > u32::MAX / 2 => 0,
                age => u64::from(age),
            };
            let mut meant = wanted
                .iter_mut()
                .filter(|wanted| wanted.age_ms <= age)
                .filter(|wanted| wanted.job.is_none() || wanted.job == job)
                .peekable();
            let is_held = || record.is_staged() && node.actions.holds(segment, file);
            if meant.peek().is_none() || !self.flusher.may_try(file) || is_held() {
                continue;
            }
            let found = BlockRef { file, block: meta.block.load(Ordering::Relaxed), bucket };
            let bytes = u64::from(dirty) * segment.page_bytes() as u64;
            meant.for_each(|wanted| wanted.found.push((age, found, bytes)));
        }
    }
}
