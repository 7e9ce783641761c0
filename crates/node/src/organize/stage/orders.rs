//! Stage-in by command: blocks of a file are brought from the store to the tier that is asked for,
//! or from slower ones up to it, and the command is told how far that came. They take room that is
//! free above the tier's low watermark, so that nothing has to leave for them; those for a file
//! tier do not pass through RAM, which may be full.

use super::{Filling, List, Requests, Stager, enter_within, stored_bytes};
use crate::node::{BlockRef, Node};
use crate::organize::mover::BACK_AT_ONCE;
use crate::organize::stage::Request;
use forebay_device::{Batch, Span, Target, Transfer};
use forebay_placement::TierId;
use forebay_placement::room::room_to_spare;
use forebay_pool::backoff::Backoff;
use forebay_pool::checksum::checksum_of;
use forebay_pool::clock::Timer;
use forebay_pool::guards::BlockGuard;
use forebay_pool::layout::*;
use forebay_pool::message::{Message, STAGE_IN_BLOCKS, StageEnd};
use forebay_pool::moves::Place;
use forebay_pool::segment::MANAGER_SLOT;
use forebay_pool::{BucketId, Entry, FileId, Owner, PageSet, clock};
use rustix::fd::OwnedFd;
use rustix::net::SendFlags;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

/// Threads that carry out orders: a file of one block keeps one of them for as long as the store
/// takes to answer, so that many small files come no faster than that by one.
pub(crate) const ORDER_THREADS: usize = 4;
/// Orders that wait at a time; to others it is said that there are too many. A command waits for
/// the answers to a few before it sends more.
const ORDERS_MAX: usize = 512;
/// Bytes that are on their way to slots of a file tier at once, but for one block.
const MEMORY: usize = 4 << 20;
/// How long a tier may have room, and no bucket to take: RAM gets its memory as it is needed.
const BUCKET_TIMEOUT: Timer = Timer::seconds(2);
/// How often it is tried meanwhile.
const BUCKET_LOOK: Timer = Timer::ms(5);

/// Blocks that a command wants in a tier.
pub(crate) struct Order {
    request: Request,
    tier: TierId,
    ticket: u32,
    /// The connection on which it is answered, until that ends: then nothing is to be done.
    asker: Weak<OwnedFd>,
}

impl Order {
    /// What a message asks for, with its descriptor; none if it asks for nothing of the kind, or
    /// for a tier that there is not.
    pub fn of(message: &Message, fd: OwnedFd, node: &Node, asker: &Arc<OwnedFd>) -> Option<Order> {
        let Message::StageIn { file, generation, first, blocks, tier, ticket } = *message else {
            return None;
        };
        let tier = node.tiers().nth(usize::from(tier))?;
        let bucket = node.segment.bucket_bytes() as u64;
        let request = Request {
            file,
            generation,
            offset: first.checked_mul(bucket)?,
            stride: 0,
            bytes: u64::from(blocks.min(STAGE_IN_BLOCKS)) * bucket,
            pieces: 1,
            list: List::default(),
            is_guess: false,
            held: fd.into(),
        };
        Some(Order { request, tier, ticket, asker: Arc::downgrade(asker) })
    }

    /// Tells the asker that nothing was done.
    pub fn refuse(&self, end: StageEnd) {
        self.answer(&Done { end, ..Done::default() });
    }

    fn answer(&self, done: &Done) {
        let answer = Message::StagedIn {
            ticket: self.ticket,
            blocks: done.blocks as u16,
            end: done.end,
            came: u32::try_from(done.came).unwrap_or(u32::MAX),
        };
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        if let Some(asker) = self.asker.upgrade() {
            // One that does not read has no use for it.
            let _ = rustix::net::send(&asker, &answer.encode(), flags);
        }
    }
}

/// Orders that wait.
#[derive(Default)]
pub(crate) struct Orders {
    waiting: Mutex<Waiting>,
    comes: Condvar,
    /// Held by the thread that looks how much room there is, and takes it: buckets of each tier for
    /// blocks that others are about to bring up.
    promised: Mutex<[usize; TIERS_MAX]>,
}

#[derive(Default)]
struct Waiting {
    orders: VecDeque<Order>,
    is_over: bool,
}

impl Orders {
    /// Adds an order, or refuses it if there are too many.
    pub fn push(&self, order: Order) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.orders.len() < ORDERS_MAX && !waiting.is_over {
            waiting.orders.push_back(order);
            drop(waiting);
            self.comes.notify_one();
        } else {
            let end = if waiting.is_over { StageEnd::Ends } else { StageEnd::Busy };
            drop(waiting);
            order.refuse(end);
        }
    }

    /// No order counts any more.
    pub fn end(&self) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_over = true;
        self.comes.notify_all();
    }

    /// Waits for the next order; `None` at the end.
    fn next(&self) -> Option<Order> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let is_idle = |waiting: &mut Waiting| waiting.orders.is_empty() && !waiting.is_over;
        let woken = self.comes.wait_while(waiting, is_idle);
        let mut woken = woken.unwrap_or_else(PoisonError::into_inner);
        if woken.is_over { None } else { woken.orders.pop_front() }
    }
}

/// A thread that carries out orders.
pub(crate) struct OrderThread {
    orders: Arc<Orders>,
    node: Arc<Node>,
    /// From its first order on.
    means: Option<Means>,
}

impl OrderThread {
    pub fn new(node: &Arc<Node>, orders: &Arc<Orders>) -> OrderThread {
        OrderThread { orders: Arc::clone(orders), node: Arc::clone(node), means: None }
    }

    /// The thread's life.
    pub fn run(mut self) {
        while let Some(order) = self.orders.next() {
            let made = || Means::of(&self.node, &self.orders);
            let means = self.means.get_or_insert_with(made);
            order.answer(&means.carry_out(&order));
        }
    }
}

/// How far an order, or a step of it, came.
struct Done {
    /// Blocks that are where they are to be, or nothing can be done about.
    blocks: usize,
    /// Bytes that have come.
    came: u64,
    end: StageEnd,
    /// No bucket was to be had although there seemed to be room.
    is_starved: bool,
}

impl Default for Done {
    fn default() -> Done {
        Done { blocks: 0, came: 0, end: StageEnd::Done, is_starved: false }
    }
}

/// What an [`OrderThread`] reads, writes and moves with.
struct Means {
    orders: Arc<Orders>,
    stager: Stager,
    tiers: Vec<Box<dyn Batch>>,
    /// Bytes on their way to slots.
    memory: Vec<u8>,
}

impl Means {
    fn of(node: &Arc<Node>, orders: &Arc<Orders>) -> Means {
        Means {
            orders: Arc::clone(orders),
            stager: Stager::new(node, Arc::new(Requests::default())),
            tiers: node.tiers().map(|tier| node.tier_client(tier)).collect(),
            memory: Vec::new(),
        }
    }

    fn carry_out(&mut self, order: &Order) -> Done {
        let bucket = self.stager.node.segment.bucket_bytes() as u64;
        let blocks: Vec<u64> = order.request.numbers(bucket).collect();
        let mut done = Done::default();
        let mut starved: Option<u64> = None;
        while done.blocks < blocks.len()
            && done.end == StageEnd::Done
            && order.asker.strong_count() > 0
        {
            let step = self.step(order, &blocks[done.blocks..]);
            done.blocks += step.blocks;
            done.came += step.came;
            done.end = step.end;
            if !step.is_starved || step.blocks > 0 {
                starved = None;
                continue;
            }
            let since = *starved.get_or_insert_with(clock::monotonic_ns);
            match clock::monotonic_ns().saturating_sub(since) > BUCKET_TIMEOUT.as_ns() {
                true => done.end = StageEnd::Full,
                false => clock::sleep_ns(BUCKET_LOOK.as_ns()),
            }
        }
        done
    }

    /// Brings what it can of `blocks` at once.
    fn step(&mut self, order: &Order, blocks: &[u64]) -> Done {
        let node = Arc::clone(&self.stager.node);
        let (segment, request, tier) = (&node.segment, &order.request, order.tier);
        let ended = |end| Done { end, ..Done::default() };
        if node.stopping() {
            return ended(StageEnd::Ends);
        }
        if !segment.is_sound(tier) {
            return ended(StageEnd::TierFailed);
        }
        if !segment.header().has_file(request.file) {
            return ended(StageEnd::Changed);
        }
        // Inside the file: no thread truncates or punches it meanwhile.
        let Some(inside) = enter_within(&node, request.file, self.stager.owner) else {
            return ended(if node.stopping() { StageEnd::Ends } else { StageEnd::Held });
        };
        let record = segment.file(request.file);
        if !self.stager.is_current(request) {
            let is_it = record.generation.load(Ordering::Acquire) == request.generation;
            let is_direct = is_it && record.has(FileFlags::DIRECT);
            return ended(if is_direct { StageEnd::Direct } else { StageEnd::Changed });
        }
        if record.is_borrowed() {
            return ended(StageEnd::Direct);
        }
        let mut done = Done::default();
        let (mut filling, mut below) = (Vec::new(), Vec::new());
        let spare = room(&node, tier);
        for &block in &blocks[..blocks.len().min(spare)] {
            let offset = block.saturating_mul(segment.bucket_bytes() as u64);
            self.empty(&node, request.file, block, stored_bytes(&node, request.file, offset));
        }
        let orders = Arc::clone(&self.orders);
        let mut promised = orders.promised.lock().unwrap_or_else(PoisonError::into_inner);
        let room = room(&node, tier).saturating_sub(promised[tier]);
        let most = match tier.is_ram() {
            true => usize::MAX,
            false => (MEMORY / segment.bucket_bytes()).max(1),
        };
        for &block in blocks {
            let offset = block.saturating_mul(segment.bucket_bytes() as u64);
            let bytes = stored_bytes(&node, request.file, offset);
            let entry = || {
                let place = segment.entry(record, block);
                place.map_or(Entry::EMPTY, |place| place.load(Ordering::Acquire))
            };
            let lacks_room = filling.len() + below.len() >= room;
            let word = entry();
            let mut is_part = false;
            let bucket = match Entry::decode(word) {
                _ if bytes == 0 => None,
                Entry::Resident { tier: there, bucket, .. } => Some((there, bucket)),
                Entry::Busy(owner) => {
                    done.end = waits_for(owner);
                    break;
                }
                _ if word != Entry::EMPTY => None,
                _ if lacks_room => {
                    done.end = StageEnd::Full;
                    break;
                }
                _ if filling.len() == most => break,
                _ => match self.claim(&node, request, (block, bytes), tier) {
                    Some(locked) => {
                        filling.push(Filling { locked, bytes });
                        None
                    }
                    None if entry() == Entry::EMPTY => {
                        done.is_starved = true;
                        break;
                    }
                    // Another thread is bringing it, and may fail.
                    None => {
                        done.end = StageEnd::Busy;
                        break;
                    }
                },
            };
            if let Some((there, bucket)) = bucket {
                match content(&node, bucket, bytes) {
                    Content::Whole => {}
                    Content::Pending => is_part = true,
                    Content::Locked(owner) => {
                        done.end = waits_for(owner);
                        break;
                    }
                    // It was not emptied: for want of room, or it has come since.
                    Content::Part => {
                        done.end = if lacks_room { StageEnd::Full } else { StageEnd::Busy };
                        break;
                    }
                }
                if entry() != word {
                    done.end = StageEnd::Busy;
                    break;
                }
                if there > tier {
                    if lacks_room {
                        done.end = StageEnd::Full;
                        break;
                    }
                    below.push((BlockRef { file: request.file, block, bucket }, bytes as u64));
                }
            }
            if is_part {
                done.blocks += 1;
                done.end = StageEnd::Partial;
                break;
            }
            done.blocks += 1;
        }
        let coming = below.len();
        promised[tier] += coming;
        drop(promised);
        if !filling.is_empty() {
            self.fill(order, filling, &mut done);
            // It may be closed by now, and a version again.
            segment.files().touch(request.file);
        }
        drop(inside);
        done.came += self.bring_up(below, tier);
        if coming > 0 {
            orders.promised.lock().unwrap_or_else(PoisonError::into_inner)[tier] -= coming;
        }
        done
    }

    /// Drops a block of which a tier has only a part, if the store has all of that: programs have
    /// written or read no more, or a node manager was killed before it had filled it. The caller
    /// has no bucket.
    fn empty(&self, node: &Node, file: FileId, block: u64, bytes: usize) {
        let segment = &node.segment;
        let pages = PageSet::span(0..bytes.div_ceil(segment.page_bytes())).0;
        let is_part = |meta: &BucketMeta| {
            meta.valid.load(Ordering::Acquire) & pages != pages && meta.pending_under_lock() == 0
        };
        let Some(place) = segment.entry(segment.file(file), block) else { return };
        let Entry::Resident { bucket, .. } = Entry::decode(place.load(Ordering::Acquire)) else {
            return;
        };
        if !segment.bucket(bucket).is_some_and(is_part) {
            return;
        }
        // A thread that has its lock is filling it.
        let locked = segment.lock_block_within(place, self.stager.owner, &mut Backoff::spent());
        if let Ok(Some(locked)) = locked
            && locked.is_taken()
            && is_part(locked.meta())
        {
            segment.discard_block(place, locked);
        }
    }

    /// A bucket of `tier` for a block of which no tier has anything: locked, and named by the
    /// index. The caller is inside the file.
    fn claim<'n>(
        &mut self,
        node: &'n Node,
        request: &Request,
        (block, bytes): (u64, usize),
        tier: TierId,
    ) -> Option<BlockGuard<'n>> {
        let segment = &node.segment;
        let pages = bytes.div_ceil(segment.page_bytes()) as u32;
        let (file, owner) = (request.file, self.stager.owner);
        if tier.is_ram() {
            return self.stager.claim(segment, request, block, pages);
        }
        let record = segment.file(file);
        let place = segment.entry_or_insert(record, block, owner)?;
        if place.load(Ordering::Acquire) != Entry::EMPTY {
            return None;
        }
        if !segment.claim_quota(record, tier, pages) {
            return None;
        }
        let half = segment.bucket_bytes() as u64 / 2;
        let is_small = block == 0 && record.size.load(Ordering::Acquire) <= half;
        let sparse = if is_small { node.take_sparse_slot(tier, owner, pages) } else { None };
        let hint = &mut self.stager.hint;
        let mut take = || segment.take_slot(tier, owner, hint);
        let taken = sparse.or_else(&mut take).or_else(|| {
            // What is lent to small files, and they do not use.
            let is_back = segment.take_back_slots(tier, BACK_AT_ONCE) > 0;
            if is_back { take() } else { None }
        });
        let fresh = segment.init_bucket(taken?, file, block, owner)?;
        if !segment.back_pages(fresh.bucket(), pages) {
            return None;
        }
        // Its pages are not what was there before.
        if let Some(sums) = segment.checksums(fresh.bucket()) {
            sums.forget(u64::MAX);
        }
        let locked = fresh.publish(place, tier)?;
        record.note_tier(tier);
        Some(locked)
    }

    /// Reads claimed blocks from the store, and lets readers in. The caller is inside the file.
    fn fill(&mut self, order: &Order, filling: Vec<Filling<'_>>, done: &mut Done) {
        let node = Arc::clone(&self.stager.node);
        let (segment, request, tier) = (&node.segment, &order.request, order.tier);
        let record = segment.file(request.file);
        let bucket = segment.bucket_bytes();
        let start = clock::realtime_ns();
        if !tier.is_ram() {
            self.memory.resize((filling.len() * bucket).max(self.memory.len()), 0);
        }
        let memory = self.memory.as_mut_ptr();
        let base = |index: usize, block: &Filling<'_>| match tier.is_ram() {
            true => segment.bucket_data(block.locked.bucket()),
            // SAFETY: the memory was just made large enough.
            false => unsafe { memory.add(index * bucket) },
        };
        let number = |block: &Filling<'_>| block.locked.meta().block.load(Ordering::Relaxed);
        let mut reads: Vec<Transfer> = (filling.iter().enumerate())
            .map(|(index, block)| {
                let offset = number(block) * bucket as u64;
                let piece = Span { base: base(index, block), bytes: block.bytes };
                // SAFETY: the bucket is ours until it is unlocked, the memory is this thread's.
                unsafe { Transfer::read(request.held.file(), offset, vec![piece]) }
            })
            .collect();
        let store = record.store.load(Ordering::Relaxed) as usize;
        let began = clock::monotonic_ns();
        if let Some(client) = self.stager.stores.get_mut(store) {
            client.run(&mut reads);
        }
        let took = clock::monotonic_ns().saturating_sub(began) / reads.len().max(1) as u64;
        forebay_pool::crash::point("stage.read");
        let page = segment.page_bytes();
        let mut writes = Vec::new();
        if !tier.is_ram() {
            for (index, (block, read)) in filling.iter().zip(&reads).enumerate() {
                let got = (read.result().unwrap_or(0) as usize).min(block.bytes);
                let end = got.next_multiple_of(page);
                // SAFETY: this block's part of the memory, of which no transfer is under way.
                unsafe { base(index, block).add(got).write_bytes(0, end - got) };
                let slot = Target::Slot(segment.slot_in_tier(block.locked.bucket()));
                let piece = Span { base: base(index, block), bytes: end };
                // SAFETY: the memory stays as it is until the transfers have ended.
                writes.push(unsafe { Transfer::write(slot, 0, vec![piece]) });
            }
            self.tiers[tier].run(&mut writes);
        }
        let mut moved = 0;
        for (index, (block, read)) in filling.into_iter().zip(&reads).enumerate() {
            let got = read.result();
            let written = match writes.get(index).map(|write| (write.result(), write.len())) {
                Some((Ok(bytes), length)) => bytes == length,
                Some((Err(errno), _)) => {
                    let _ = node.note_device(tier, Err(errno));
                    false
                }
                None => true,
            };
            match got {
                Ok(bytes) if bytes > 0 && written => {
                    moved += bytes;
                    self.stager.note(request.file, &block, bytes, took);
                    let bytes = (bytes as usize).min(block.bytes);
                    if tier.is_ram() {
                        self.stager.fill(block, bytes);
                    } else {
                        // SAFETY: this block's part of the memory, which was just written.
                        let content = unsafe {
                            std::slice::from_raw_parts(
                                base(index, &block).cast_const(),
                                bytes.next_multiple_of(page),
                            )
                        };
                        note_slot(&node, &block.locked, content);
                    }
                }
                result => {
                    let place = segment.entry(record, number(&block));
                    if let Some(place) = place {
                        segment.discard_block(place, block.locked);
                    }
                    done.end = match result {
                        Err(errno) => StageEnd::Store(errno.raw_os_error() as u16),
                        Ok(bytes) if bytes > 0 => StageEnd::TierFailed,
                        // It was cut on the store: there is nothing to be staged.
                        Ok(_) => continue,
                    };
                    done.blocks = 0;
                }
            }
        }
        done.came += moved;
        node.moved(start, "stage", Place::Store, Place::Tier(tier), moved);
        if let Some(remote) = &node.group.remote {
            remote.note_staged(moved);
        }
    }

    /// Moves blocks of slower tiers, with as many bytes, up to the one that they are for. Returns
    /// the bytes that came.
    fn bring_up(&mut self, mut blocks: Vec<(BlockRef, u64)>, tier: TierId) -> u64 {
        let node = Arc::clone(&self.stager.node);
        let segment = &node.segment;
        let from = |(found, _): &(BlockRef, u64)| segment.tier_of(found.bucket);
        blocks.sort_unstable_by_key(from);
        let mut came = 0;
        for chunk in blocks.chunk_by(|a, b| from(a) == from(b)) {
            let found: Vec<BlockRef> = chunk.iter().map(|(found, _)| *found).collect();
            // One that has come up since stays where it is.
            let moved = match from(&chunk[0]) > tier {
                true => self.stager.mover.shift(&found, from(&chunk[0]), tier),
                false => 0,
            };
            // Which of them stay, because a program writes to them, is not known.
            came += chunk.iter().take(moved as usize).map(|(_, bytes)| bytes).sum::<u64>();
        }
        came
    }
}

/// What a bucket has of a block of which the store has some bytes.
enum Content {
    /// All of it.
    Whole,
    /// A part, of which the store lacks something: a program has written no more.
    Pending,
    /// A part that the store has, too.
    Part,
    /// What will be told when the thread gives it up that has it locked.
    Locked(Owner),
}

/// What `bucket` has of a block of which the store has `bytes`: a claimed one has nothing before
/// the thread that reads it from the store unlocks it.
fn content(node: &Node, bucket: BucketId, bytes: usize) -> Content {
    let segment = &node.segment;
    // A damaged entry.
    let Some(meta) = segment.bucket(bucket) else { return Content::Whole };
    if meta.lock.read_begin().is_none()
        && let Some(holder) = meta.lock.holder()
    {
        return Content::Locked(holder);
    }
    let pages = PageSet::span(0..bytes.div_ceil(segment.page_bytes())).0;
    match meta.valid.load(Ordering::Acquire) & pages == pages {
        true => Content::Whole,
        false if meta.pending() != 0 => Content::Pending,
        false => Content::Part,
    }
}

/// What is said of a block that `owner` keeps locked: of this node manager it is known that it goes
/// on, of a program it is not.
fn waits_for(owner: Owner) -> StageEnd {
    if owner.slot() == MANAGER_SLOT { StageEnd::Busy } else { StageEnd::Held }
}

/// Marks the pages of a claimed slot as valid, to which `content` was written, and notes their
/// checksums.
fn note_slot(node: &Node, block: &BlockGuard<'_>, content: &[u8]) {
    let (segment, meta) = (&node.segment, block.meta());
    let pages = content.chunks_exact(segment.page_bytes());
    let count = pages.len();
    if let Some(sums) = segment.checksums(block.bucket()) {
        pages.enumerate().for_each(|(page, bytes)| sums.set(page, checksum_of(bytes)));
    }
    meta.written.store(node.now(), Ordering::Relaxed);
    meta.valid.store(PageSet::span(0..count).0, Ordering::Release);
    forebay_pool::crash::point("stage.valid");
    segment.record_slot(node, block.bucket());
}

/// Buckets of a tier that can be taken without anything having to leave it.
fn room(node: &Node, tier: TierId) -> usize {
    let unit = node.segment.bucket_bytes() as u64;
    let hierarchy = node.hierarchy();
    let spare = hierarchy
        .tier(tier.index())
        .map_or(0, |snapshot| room_to_spare(&snapshot, node.watermarks(), unit));
    (spare / unit) as usize
}
