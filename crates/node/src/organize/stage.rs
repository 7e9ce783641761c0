//! Stage-in ahead of the reader: blocks that a program has said it will read are brought from the
//! store to RAM, as long as RAM has room that no writer wants. So are those that it will probably
//! read, also from file tiers; they may take the place of what the same reader has left behind.

pub(crate) mod orders;
pub(crate) mod predict;

use crate::node::{BlockRef, Node};
use crate::organize::mover::Mover;
use crate::store::descriptors::StoreHandle;
use forebay_device::{Batch, Span, Stat, Transfer};
use forebay_placement::Destination;
use forebay_placement::admission::{Origin, Part, Trail};
use forebay_placement::hotness::AccessStats;
use forebay_placement::prefetch::{DEPTH_MAX, KEPT, WINDOW_BLOCKS, batch, pace_of, pays};
use forebay_placement::promote::{Block, Level, promotes};
use forebay_pool::backoff::Backoff;
use forebay_pool::free_map::USED;
use forebay_pool::guards::{BlockGuard, SharedGuard};
use forebay_pool::layout::*;
use forebay_pool::lease::Access;
use forebay_pool::message::{EXPECT_UNIT, Message};
use forebay_pool::moves::Place;
use forebay_pool::{BucketId, Entry, FileId, Identity, Owner, PageSet, Segment, clock};
use rustix::fd::OwnedFd;
use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Requests that wait at a time; what comes beyond is only a hint, and forgotten.
const REQUESTS_MAX: usize = 64;
/// Blocks on their way at once: 4 MiB in one read.
const BATCH: u64 = 16;
/// Blocks behind a reader that are looked at when its next ones need room, besides those that it
/// has not come to.
const BEHIND: u64 = 4 * WINDOW_BLOCKS;

/// Blocks of a request that lie in no pieces.
#[derive(Default)]
struct List {
    /// Those that will be read, in this order.
    next: Vec<u64>,
    /// Those that their reader has left behind, the latest first.
    behind: Vec<u64>,
}

/// Blocks that will be read.
pub(crate) struct Request {
    file: FileId,
    generation: u32,
    /// Where the first piece begins, in bytes, and how far the next one is.
    offset: u64,
    stride: i64,
    /// Bytes of each piece.
    bytes: u64,
    pieces: u16,
    list: List,
    /// No program has said that they will be read.
    is_guess: bool,
    /// Can be read.
    held: StoreHandle,
}

impl Request {
    /// What a message asks for, with its descriptor; none if it asks for nothing of the kind.
    pub fn of(message: &Message, fd: OwnedFd, bucket: u64) -> Option<Request> {
        match *message {
            Message::Stage { file, generation, first, blocks } => Some(Request {
                file,
                generation,
                offset: first.checked_mul(bucket)?,
                stride: 0,
                bytes: u64::from(blocks).checked_mul(bucket)?,
                pieces: 1,
                list: List::default(),
                is_guess: false,
                held: fd.into(),
            }),
            Message::Expect { file, generation, offset, stride, units, pieces } => Some(Request {
                file,
                generation,
                offset,
                stride,
                bytes: u64::from(units) * EXPECT_UNIT,
                pieces,
                list: List::default(),
                is_guess: true,
                held: fd.into(),
            }),
            _ => None,
        }
    }

    /// A guess that these blocks will be read, after those behind them.
    fn listed((file, generation): (FileId, u32), list: List, fd: OwnedFd) -> Request {
        Request {
            file,
            generation,
            offset: 0,
            stride: 0,
            bytes: 0,
            pieces: 0,
            list,
            is_guess: true,
            held: fd.into(),
        }
    }

    /// The blocks' numbers. A guess for more than `placement` makes is none of its.
    fn numbers(&self, bucket: u64) -> impl Iterator<Item = u64> + use<> {
        let most = if self.is_guess { DEPTH_MAX as usize } else { usize::MAX };
        let pieces = (0..i64::from(self.pieces)).flat_map(self.of_piece(bucket));
        pieces.chain(self.list.next.clone()).take(most)
    }

    /// The blocks of piece `n`, which may be one before the first.
    fn of_piece(&self, bucket: u64) -> impl Fn(i64) -> Range<u64> + use<> {
        let (offset, stride, bytes) = (self.offset, self.stride, self.bytes);
        move |n| {
            let at = stride.checked_mul(n).and_then(|by| offset.checked_add_signed(by));
            let end = at.and_then(|at| at.checked_add(bytes));
            let (Some(at), Some(end)) = (at, end) else { return 0..0 };
            at / bucket..end.div_ceil(bucket)
        }
    }
}

/// Blocks that one thread stages at once.
struct Portion {
    request: Arc<Request>,
    blocks: Vec<u64>,
}

/// Requests that wait, each with how many of its blocks were taken.
#[derive(Default)]
pub(crate) struct Requests {
    waiting: Mutex<Waiting>,
    woken: Condvar,
    guesses: Guesses,
    /// Reads of which predictors are to be told.
    pub told: predict::Reads,
}

/// Buckets of RAM with blocks that were brought up for a guess, and that may not have been read.
/// Of an earlier manager's they are not known.
#[derive(Default)]
struct Guesses(Mutex<HashSet<u32>>);

impl Guesses {
    /// Whether so many more leave half of RAM to what is no guess, of all readers: beyond that each
    /// would displace another before that is read.
    fn has_room(&self, segment: &Segment, blocks: usize) -> bool {
        let most = segment.header().tier[TierId::RAM].buckets as usize / 2;
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() + blocks > most {
            buckets.retain(|&bucket| {
                let meta = segment.bucket(BucketId::from_raw(bucket));
                meta.is_some_and(|meta| {
                    let access_stats = AccessStats(meta.access_stats.load(Ordering::Relaxed));
                    meta.state.load(Ordering::Relaxed) == USED && access_stats.is_ahead()
                })
            });
        }
        buckets.len() + blocks <= most
    }

    fn note(&self, bucket: BucketId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(bucket.raw());
    }
}

#[derive(Default)]
struct Waiting {
    requests: VecDeque<(Arc<Request>, usize)>,
    is_over: bool,
}

impl Requests {
    /// Adds a request, or forgets it if there are too many.
    pub fn push(&self, request: Request) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.requests.len() < REQUESTS_MAX {
            waiting.requests.push_back((Arc::new(request), 0));
            // One that was woken may find more than it takes.
            self.woken.notify_all();
        }
    }

    /// No request counts any more.
    pub fn end(&self) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_over = true;
        self.woken.notify_all();
        self.told.end();
    }

    /// Waits for the next blocks, `size` of them for a request; `None` at the end. Guesses about
    /// one file that follow each other are taken together: the rows of a tile may be short.
    fn next(&self, bucket: u64, size: impl Fn(&Request) -> usize) -> Option<Portion> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let is_idle = |waiting: &mut Waiting| waiting.requests.is_empty() && !waiting.is_over;
        let mut woken =
            self.woken.wait_while(waiting, is_idle).unwrap_or_else(PoisonError::into_inner);
        if woken.is_over {
            return None;
        }
        let request = Arc::clone(&woken.requests.front()?.0);
        let (size, mut blocks) = (size(&request), Vec::new());
        while let Some((next, taken)) = woken.requests.front_mut() {
            let is_same = Arc::ptr_eq(next, &request)
                || next.is_guess
                    && request.is_guess
                    && (next.file, next.generation) == (request.file, request.generation);
            if !is_same || blocks.len() >= size {
                break;
            }
            let wanted = size - blocks.len();
            let before = blocks.len();
            blocks.extend(next.numbers(bucket).skip(*taken).take(wanted));
            *taken += blocks.len() - before;
            if blocks.len() - before < wanted {
                woken.requests.pop_front();
            }
        }
        Some(Portion { request, blocks })
    }

    /// Forgets what is left of a request.
    fn forget(&self, request: &Arc<Request>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.requests.retain(|(waiting, _)| !Arc::ptr_eq(waiting, request));
    }
}

/// A block whose bucket is locked and filled from the store.
struct Filling<'a> {
    locked: BlockGuard<'a>,
    /// Bytes of it that the store has.
    bytes: usize,
}

/// The worker that stages blocks in.
pub(crate) struct Stager {
    requests: Arc<Requests>,
    node: Arc<Node>,
    owner: Owner,
    mover: Mover,
    stores: Vec<Box<dyn Batch>>,
    hint: u32,
}

impl Stager {
    pub fn new(node: &Arc<Node>, requests: Arc<Requests>) -> Stager {
        Stager {
            requests,
            owner: Node::new_owner(),
            mover: Mover::new(node, Node::new_owner()),
            stores: (0..node.config.backing.len()).map(|store| node.store_client(store)).collect(),
            hint: 0,
            node: Arc::clone(node),
        }
    }

    /// The stager's life. There are several ([`forebay_placement::prefetch::UNDER_WAY`]): while one
    /// waits for a device's latency, others move bytes.
    pub fn run(mut self) {
        let node = Arc::clone(&self.node);
        let bucket = node.segment.bucket_bytes() as u64;
        let requests = Arc::clone(&self.requests);
        while let Some(Portion { request, blocks }) = requests.next(bucket, |next| self.batch(next))
        {
            if node.stopping() {
                return;
            }
            let (from_others, blocks) = self.ask_others(&request, blocks);
            let is_over = blocks.is_empty() && !from_others;
            if is_over || !blocks.is_empty() && !self.stage_batch(&request, &blocks) {
                requests.forget(&request);
            }
        }
    }

    /// How many blocks of a request are read at once: of a slow store few, so that the first ones
    /// are soon there.
    fn batch(&self, request: &Request) -> usize {
        if !request.is_guess || !self.node.segment.header().has_file(request.file) {
            return BATCH as usize;
        }
        let hierarchy =
            forebay_client::hierarchy(&self.node.segment, self.node.store_of(request.file));
        let store = pace_of(&hierarchy, Destination::Store);
        batch(&store, self.node.segment.bucket_bytes() as u64) as usize
    }

    /// Has what other nodes have, or are about to read, be brought from there, as far as RAM has
    /// room for it. Whether that is any, and what is left to be read from the store.
    fn ask_others(&self, request: &Request, blocks: Vec<u64>) -> (bool, Vec<u64>) {
        let Some(remote) = &self.node.group.remote else { return (false, blocks) };
        let segment = &self.node.segment;
        if !segment.header().has_file(request.file) || !self.node.is_read_by_several(request.file) {
            return (false, blocks);
        }
        let coming = || remote.coming.load(Ordering::Acquire) as usize;
        if request.is_guess
            && !self.has_room(blocks.len() + coming())
            && let Ok(_inside) = segment.try_enter(request.file, self.owner)
        {
            self.leave_behind(request, &blocks);
        }
        let lacks = |&block: &u64| {
            let entry = segment.entry(segment.file(request.file), block);
            entry.is_none_or(|entry| entry.load(Ordering::Acquire) == Entry::EMPTY)
        };
        let (lacking, here): (Vec<u64>, Vec<u64>) = blocks.into_iter().partition(lacks);
        let room = (1..=lacking.len()).take_while(|count| self.has_room(count + coming())).count();
        // What there is no room for is only a hint: the store is not read for it instead.
        let asked = lacking[..room].to_vec();
        let others = remote.placed(request.file, request.generation, asked.clone());
        let left = asked.into_iter().filter(|block| !others.contains(block));
        let mut left: Vec<u64> = left.chain(here).collect();
        left.sort_unstable();
        (room < lacking.len() || !others.is_empty(), left)
    }

    /// Whether the request is still about a file that is buffered, and about that one.
    fn is_current(&self, request: &Request) -> bool {
        let segment = &self.node.segment;
        if !segment.header().has_file(request.file) {
            return false;
        }
        let record = segment.file(request.file);
        let same = |stat: Stat| {
            Identity { device: stat.identity.store, inode: stat.identity.id } == record.identity()
        };
        record.generation.load(Ordering::Acquire) == request.generation
            && record.state.load(Ordering::Acquire) == file_state::LIVE
            && !record.has(FileFlags::DIRECT)
            && record.allows(Access::Read)
            && self.node.stores[self.node.store_of(request.file)]
                .stat(request.held.file())
                .is_ok_and(same)
    }

    /// False when no more is to be staged for this request.
    fn stage_batch(&mut self, request: &Request, blocks: &[u64]) -> bool {
        let node = Arc::clone(&self.node);
        let segment = &node.segment;
        let start = clock::realtime_ns();
        // Inside the file: no thread truncates or punches it meanwhile.
        let Some(inside) = enter_within(&node, request.file, self.owner) else { return false };
        let (mut filling, mut below) = (Vec::new(), Vec::new());
        let mut go_on = self.is_current(request);
        if go_on && request.is_guess && !self.has_room(blocks.len()) {
            self.leave_behind(request, blocks);
        }
        if go_on {
            let length = |offset| stored_bytes(&node, request.file, offset);
            let mut reads = Vec::new();
            for &block in blocks {
                if request.is_guess
                    && let Some(found) = self.below(request.file, block)
                {
                    below.push(found);
                    continue;
                }
                let offset = block.saturating_mul(segment.bucket_bytes() as u64);
                go_on = length(offset) > 0
                    && self.has_room(1)
                    && (!request.is_guess || self.requests.guesses.has_room(segment, 1));
                if !go_on {
                    break;
                }
                let pages = length(offset).div_ceil(segment.page_bytes()) as u32;
                if let Some(locked) = self.claim(segment, request, block, pages) {
                    if request.is_guess {
                        self.requests.guesses.note(locked.bucket());
                    }
                    // Now that the block is ours: before, a thread may still have written to the
                    // store.
                    let bytes = match segment.is_sparse(locked.bucket()) {
                        true => length(offset).min(pages as usize * segment.page_bytes()),
                        false => length(offset),
                    };
                    let piece = Span { base: segment.bucket_data(locked.bucket()), bytes };
                    // SAFETY: the bucket is ours until it is unlocked.
                    reads.push(unsafe { Transfer::read(request.held.file(), offset, vec![piece]) });
                    filling.push(Filling { locked, bytes });
                }
            }
            let store = segment.file(request.file).store.load(Ordering::Relaxed) as usize;
            let began = clock::monotonic_ns();
            if let Some(client) = self.stores.get_mut(store) {
                client.run(&mut reads);
            }
            let took = clock::monotonic_ns().saturating_sub(began) / reads.len().max(1) as u64;
            forebay_pool::crash::point("stage.read");
            let mut moved = 0;
            if request.is_guess {
                node.count_guessed(filling.len());
            }
            for (block, read) in filling.into_iter().zip(&reads) {
                let got = read.result().unwrap_or(0);
                moved += got;
                self.note(request.file, &block, got, took);
                self.fill(block, got as usize);
            }
            // It may be closed by now, and a version again.
            segment.files().touch(request.file);
            node.moved(start, "stage", Place::Store, Place::Tier(TierId::RAM), moved);
            if let Some(remote) = &node.group.remote {
                remote.note_staged(moved);
            }
        }
        drop(inside);
        self.lift(below);
        go_on
    }

    /// Whether RAM stays above its low mark with so many blocks more.
    fn has_room(&self, blocks: usize) -> bool {
        let low = self.node.header().tier[TierId::RAM].low.load(Ordering::Relaxed);
        self.node.segment.free_in(TierId::RAM) as usize > low as usize + blocks
    }

    /// Drops blocks of the file that the reader has passed: clean ones that were read once. So a
    /// file that is read from end to end, in either direction or at a stride, displaces nothing but
    /// itself.
    fn leave_behind(&self, request: &Request, next: &[u64]) {
        let segment = &self.node.segment;
        let record = segment.file(request.file);
        let is_kept = |block| {
            let rule = segment.rule_at(request.file, record, block);
            rule.is_some_and(|rule| rule.settings().pin)
                || segment.pinned_to(request.file, block).is_some()
        };
        let (of_piece, is_far) =
            (request.of_piece(segment.bucket_bytes() as u64), DEPTH_MAX + BEHIND);
        let pieces = if request.stride == 0 { 0 } else { is_far as i64 };
        let behind = (1..=pieces).map(|n| of_piece(-n)).take_while(|piece| !piece.is_empty());
        let behind = behind.flat_map(Iterator::rev).chain(request.list.behind.iter().copied());
        let (mut left, mut passed) = (next.len(), 0);
        for block in behind.take(is_far as usize) {
            let Some(place) = segment.entry(segment.file(request.file), block) else { continue };
            let Entry::Resident { tier: TierId::RAM, bucket, .. } =
                Entry::decode(place.load(Ordering::Acquire))
            else {
                continue;
            };
            // What this node alone may have of a file that several read goes down to where the
            // others find it, as the demoter decides.
            let is_once = |meta: &BucketMeta| {
                let access_stats = AccessStats(meta.access_stats.load(Ordering::Relaxed));
                meta.pending() == 0
                    && !self.node.is_own_copy(&BlockRef { file: request.file, block, bucket })
                    && access_stats.count() <= 1
                    && !access_stats.is_ahead()
            };
            if !segment.bucket(bucket).is_some_and(is_once) {
                continue;
            }
            passed += 1;
            if passed <= KEPT {
                continue;
            }
            let locked = segment.lock_block_within(place, self.owner, &mut Backoff::spent());
            let Ok(Some(locked)) = locked else { continue };
            let is_pinned = is_kept(block);
            if locked.bucket() == bucket
                && locked.is_taken()
                && !is_pinned
                && is_once(locked.meta())
            {
                segment.discard_block(place, locked);
                left -= 1;
            }
            if left == 0 {
                return;
            }
        }
    }

    /// The block, if it lies in a file tier.
    fn below(&self, file: FileId, block: u64) -> Option<BlockRef> {
        let segment = &self.node.segment;
        let place = segment.entry(segment.file(file), block)?;
        match Entry::decode(place.load(Ordering::Acquire)) {
            Entry::Resident { tier, bucket, .. } if !tier.is_ram() => {
                Some(BlockRef { file, block, bucket })
            }
            _ => None,
        }
    }

    /// The bucket of the block, if it lies in RAM.
    fn in_ram(&self, file: FileId, block: u64) -> Option<BucketId> {
        let segment = &self.node.segment;
        let place = segment.entry(segment.file(file), block)?;
        match Entry::decode(place.load(Ordering::Acquire)) {
            Entry::Resident { tier: TierId::RAM, bucket, .. } => Some(bucket),
            _ => None,
        }
    }

    /// Moves blocks up to RAM that lie in a slow tier, as far as promotion allows that: the read
    /// that is expected counts as a use.
    fn lift(&mut self, mut blocks: Vec<BlockRef>) {
        let node = Arc::clone(&self.node);
        let segment = &node.segment;
        let hierarchy = forebay_client::hierarchy(segment, 0);
        let Some(ram) = node.hierarchy().tier(0) else { return };
        let level = Level::of(&ram, node.watermarks(), 0);
        blocks.retain(|found| {
            let Some(meta) = segment.bucket(found.bucket) else { return false };
            let access_stats = AccessStats(meta.access_stats.load(Ordering::Relaxed));
            let from = Destination::Tier(segment.tier_of(found.bucket).index());
            let rule = segment.rule_at(found.file, segment.file(found.file), found.block);
            let block = Block::of(access_stats, rule.is_some_and(|rule| rule.settings().pin));
            let goes = level.is_roomy
                && meta.reserved.load(Ordering::Relaxed) == 0
                && promotes(&Block { uses: block.uses + 1, ..block }, &level)
                && pays(&hierarchy, from, segment.bucket_bytes() as u64);
            if goes {
                meta.access_stats.store(access_stats.ahead(true).0, Ordering::Relaxed);
            }
            goes
        });
        blocks.sort_unstable_by_key(|found| segment.tier_of(found.bucket));
        for of_tier in
            blocks.chunk_by(|a, b| segment.tier_of(a.bucket) == segment.tier_of(b.bucket))
        {
            if self.has_room(of_tier.len())
                && self.requests.guesses.has_room(segment, of_tier.len())
            {
                node.count_guessed(of_tier.len());
                self.mover.shift(of_tier, segment.tier_of(of_tier[0].bucket), TierId::RAM);
                let up = of_tier.iter().filter_map(|found| self.in_ram(found.file, found.block));
                up.for_each(|bucket| self.requests.guesses.note(bucket));
            }
        }
    }

    fn claim<'a>(
        &mut self,
        segment: &'a Segment,
        request: &Request,
        block: u64,
        pages: u32,
    ) -> Option<BlockGuard<'a>> {
        let (owner, hint) = (self.owner, &mut self.hint);
        claim_block(segment, (owner, hint), (request.file, block), pages, request.is_guess)
    }

    /// Notes that a block has come from the store's device: its trail says so when it leaves the
    /// tiers.
    fn note(&self, file: FileId, block: &Filling<'_>, got: u64, took_ns: u64) {
        if Origin::of(got, took_ns) == Origin::Memory {
            return;
        }
        let segment = &self.node.segment;
        let number = block.locked.meta().block.load(Ordering::Relaxed);
        let bucket = segment.bucket_bytes() as u64;
        let part = Part { within: 0, bytes: got, stored: got, block: bucket, is_uncached: false };
        let (word, key) = segment.trail(segment.file(file).identity(), number);
        let trail = Trail(word.load(Ordering::Relaxed));
        word.store(trail.after(key, &part, Origin::Device, took_ns).0, Ordering::Relaxed);
    }

    /// Marks what arrived as valid and lets readers in.
    fn fill(&self, block: Filling<'_>, got: usize) {
        let got = got.min(block.bytes);
        fill_block(&self.node, &block.locked, got);
        forebay_pool::crash::point("stage.valid");
    }
}

/// Bytes of the block at `offset` that the store has.
fn stored_bytes(node: &Node, file: FileId, offset: u64) -> usize {
    let record = node.segment.file(file);
    let known = record.stored().min(record.size.load(Ordering::Acquire));
    known.saturating_sub(offset).min(node.segment.bucket_bytes() as u64) as usize
}

/// Enters a file, unless a thread keeps it for itself for longer than a moment: it may be stopped,
/// and others wait to be staged for.
fn enter_within(node: &Node, file: FileId, owner: Owner) -> Option<SharedGuard<'_>> {
    let mut backoff = Backoff::default();
    loop {
        match node.segment.try_enter(file, owner) {
            Ok(inside) => return Some(inside),
            Err(_) if node.stopping() || backoff.is_spent() => return None,
            Err(_) => drop(backoff.wait()),
        }
    }
}

/// A bucket for a block of so many pages that no tier has: locked, and named by the index. The
/// caller is inside the file. `hint` is where the search begins, as of [`Segment::take_slot`].
pub(crate) fn claim_block<'a>(
    segment: &'a Segment,
    (owner, hint): (Owner, &mut u32),
    (file, block): (FileId, u64),
    pages: u32,
    is_guess: bool,
) -> Option<BlockGuard<'a>> {
    let place = segment.entry_or_insert(segment.file(file), block, owner)?;
    if place.load(Ordering::Acquire) != Entry::EMPTY {
        return None;
    }
    if !segment.claim_quota(segment.file(file), TierId::RAM, pages) {
        return None;
    }
    let is_small = block == 0
        && segment.file(file).size.load(Ordering::Acquire) <= segment.bucket_bytes() as u64 / 2;
    let sparse = if is_small { segment.take_sparse(owner, pages) } else { None };
    let taken = sparse.or_else(|| segment.take_slot(TierId::RAM, owner, hint));
    let fresh = segment.init_bucket(taken?, file, block, owner)?;
    if !segment.back_pages(fresh.bucket(), pages) {
        return None;
    }
    if is_guess {
        let access_stats = &fresh.meta().access_stats;
        let ahead = AccessStats(access_stats.load(Ordering::Relaxed)).ahead(true);
        access_stats.store(ahead.0, Ordering::Relaxed);
    }
    let locked = fresh.publish(place, TierId::RAM)?;
    segment.file(file).note_tier(TierId::RAM);
    Some(locked)
}

/// Marks the first `got` bytes of a claimed block as valid, which are there.
pub(crate) fn fill_block(node: &Node, block: &BlockGuard<'_>, got: usize) {
    let (segment, meta) = (&node.segment, block.meta());
    let page = segment.page_bytes();
    let end = got.next_multiple_of(page);
    // SAFETY: inside the bucket, which is locked.
    unsafe { segment.bucket_data(block.bucket()).add(got).write_bytes(0, end - got) };
    meta.written.store(node.now(), Ordering::Relaxed);
    meta.valid.store(PageSet::span(0..end / page).0, Ordering::Release);
}
