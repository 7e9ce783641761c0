//! Reading ahead of programs that do not say what they will read: the prefetch predictors of
//! `placement` see the reads that do not come from RAM, and the first ones of blocks that were
//! brought up ahead; the node manager brings up what they expect.

use crate::access::EnteredFile;
use core::sync::atomic::Ordering;
use forebay_placement::Destination;
use forebay_placement::prefetch::{
    Ahead, Limit, Touched, WINDOW_BLOCKS, depth, pace_of, pays, room,
};
use forebay_pool::layout::{DescriptionFlags, RuleRecord, TierId};
use forebay_pool::message::{EXPECT_UNIT, Message};
use forebay_pool::{Entry, clock};

/// Requests that one read leads to at most: rows of a tile.
const REQUESTS_MAX: usize = 8;

/// A read that a predictor is to see.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    pub offset: u64,
    pub bytes: usize,
    /// Where the first of them lie, or where they have come up from.
    pub from: Destination,
    /// They lie in RAM, and have come up ahead.
    pub is_up: bool,
    /// The read waits, or has waited, for what is slower than RAM.
    pub waits: bool,
}

/// What follows from it.
#[derive(Default)]
pub(crate) struct Expected {
    /// What the kernel is to read ahead, if reading turns out to wait for the store at all: of a
    /// store of which it keeps copies.
    pub ahead: Option<Ahead>,
    /// The block was asked for and is on its way: it belongs into RAM, so that it is read once.
    pub is_late: bool,
}

impl EnteredFile<'_> {
    /// Notes a read, and asks for what will probably be read next, where waiting for it would take
    /// long.
    #[inline(never)]
    pub(crate) fn predict(&self, seen: Seen) -> Expected {
        let segment = &self.session.segment;
        let header = segment.header();
        let description = self.description;
        // A program that has said how it will read is served by `OpenFile::advise`.
        let told = DescriptionFlags::RANDOM | DescriptionFlags::SEQUENTIAL;
        if header.prefetch.load(Ordering::Relaxed) == 0
            || description.flags.load(Ordering::Relaxed).intersects(told)
        {
            return Expected::default();
        }
        if self.is_predicted_by_rule() {
            self.tell_predictor(seen);
            return Expected::default();
        }
        let (record, block) = (self.record, segment.bucket_bytes() as u64);
        let is_emulated = self.is_emulated();
        let by_kernel = seen.from == Destination::Store && !is_emulated;
        // What has come up, and not from a store that the kernel reads ahead of, was in a tier.
        let from = match header.file_tiers().next_back() {
            Some(tier) if by_kernel && seen.is_up => Destination::Tier(tier.index()),
            _ => seen.from,
        };
        let by_kernel = from == Destination::Store && !is_emulated;
        let store = record.store.load(Ordering::Relaxed) as usize;
        let hierarchy = crate::placement::hierarchy(segment, store);
        let pays = by_kernel || pays(&hierarchy, from, block);
        let word = description.word.load(Ordering::Relaxed);
        let reader = (word >> 32 << 32 | u64::from(self.description_id()), self.owner.raw());
        let account = &self.session.predictors.account;
        let now_ms = header.now_ms.load(Ordering::Relaxed);
        let readers = match by_kernel {
            true => 1,
            false => self.session.predictors.count_readers(reader, now_ms),
        };
        let orders = crate::following::orders();
        let number = seen.offset / block;
        let found = orders.and_then(|orders| {
            let known = self.session.predictors.with(reader, |reading| reading.order);
            known?.unwrap_or_else(|| self.order(orders, number))
        });
        let order = found.zip(orders).map_or(&[][..], |(index, orders)| orders.list(index));
        let mut requests = [None; REQUESTS_MAX];
        let late = self.session.predictors.with(reader, |reading| {
            // Whether the kernel has read something ahead is not known.
            let is_up = seen.is_up || by_kernel;
            let touched = reading.predictor.on_touch(seen.offset, seen.bytes as u64, is_up, block);
            reading.order = Some(found);
            let follows = reading.follower.is_followed(order);
            let in_order = match follows {
                true => reading.follower.on_touch(order, number, is_up),
                false => Touched::default(),
            };
            let is_late = touched.is_late || in_order.is_late;
            account.was_used((touched.used + in_order.used) * block);
            account.was_read(touched.blocks * block);
            reading.blocks = reading.blocks.saturating_add(touched.blocks);
            if touched.blocks > 0 {
                // Of reads of less than a block only the first is seen.
                let now_ns = clock::monotonic_ns();
                reading.consumption.on_read(touched.blocks * block, seen.waits, now_ns);
            }
            if !pays {
                return is_late;
            }
            let (depth, room) = match by_kernel {
                true => (WINDOW_BLOCKS, u64::MAX),
                false => {
                    let pace = pace_of(&hierarchy, from);
                    let room = self.room_ahead(readers, reading.blocks);
                    (depth(&pace, reading.consumption.byte_ns(), block, room), room)
                }
            };
            for request in &mut requests[..if by_kernel { 1 } else { REQUESTS_MAX }] {
                // A long read looks ahead by more than the depth.
                let more = room.saturating_sub(reading.predictor.ahead());
                let limit = Limit { depth, more: more.min(account.balance() / block) };
                let ahead = match follows {
                    true => reading.follower.ask(order, limit, block),
                    false => reading.predictor.ask(limit, block),
                };
                let Some(ahead) = ahead else { break };
                let lacking = if by_kernel { ahead.blocks(block) } else { self.lacking(&ahead) };
                if lacking > 0 {
                    let taken = account.take(lacking * block) / block;
                    match follows {
                        true => reading.follower.charge(taken),
                        false => reading.predictor.charge(taken),
                    }
                    *request = Some(ahead);
                }
            }
            is_late
        });
        if by_kernel {
            return Expected { ahead: requests[0], is_late: false };
        }
        for ahead in requests.into_iter().flatten() {
            let few = |number: u64| u16::try_from(number).unwrap_or(u16::MAX);
            self.ask_to_stage(|file, generation| Message::Expect {
                file,
                generation,
                offset: ahead.offset,
                stride: ahead.stride,
                units: few(ahead.bytes.div_ceil(EXPECT_UNIT)),
                pieces: few(ahead.count),
            });
        }
        Expected { ahead: None, is_late: late == Some(true) }
    }

    /// Whether the file's rule names a predictor, which has not failed with it.
    fn is_predicted_by_rule(&self) -> bool {
        self.session.segment.rule_of(self.record).is_some_and(RuleRecord::has_predictor)
            && self.record.predictor_fault.load(Ordering::Relaxed) == 0
    }

    /// Tells the node manager of a read, for the predictor that the file's rule names.
    #[cold]
    fn tell_predictor(&self, seen: Seen) {
        let block = self.session.segment.bucket_bytes() as u64;
        let first = seen.offset / block;
        let last = seen.offset.saturating_add(seen.bytes.max(1) as u64 - 1) / block;
        let word = self.description.word.load(Ordering::Relaxed);
        let reader = (word >> 32 << 32 | u64::from(self.description_id()), self.owner.raw());
        // What it was told of with the begin of a read it has to know again only to see that what
        // it expected was there.
        let is_known = self.session.predictors.with(reader, |reading| {
            let is_known = !seen.is_up && reading.told.contains(&first);
            if !is_known {
                reading.told = first..last + 1;
            }
            is_known
        });
        if is_known == Some(true) {
            return;
        }
        self.ask_to_stage(|file, generation| Message::Read {
            file,
            generation,
            reader: self.owner.raw(),
            block: first,
            blocks: u16::try_from(last + 1 - first).unwrap_or(u16::MAX),
            is_up: seen.is_up,
        });
    }

    /// How many of these blocks the file has and RAM has not.
    pub(crate) fn lacking(&self, ahead: &Ahead) -> u64 {
        let segment = &self.session.segment;
        let block = segment.bucket_bytes() as u64;
        let size = self.record.size.load(Ordering::Relaxed);
        let of_piece = |(offset, bytes): (u64, u64)| {
            let end = offset.saturating_add(bytes).min(size).div_ceil(block);
            let lacks = |&number: &u64| match segment.entry(self.record, number) {
                None => true,
                Some(entry) => match Entry::decode(entry.load(Ordering::Acquire)) {
                    Entry::Empty => true,
                    Entry::Resident { tier, .. } => !tier.is_ram(),
                    Entry::Busy(_) | Entry::Elsewhere { .. } => false,
                },
            };
            (offset / block..end).filter(lacks).count() as u64
        };
        ahead.pieces().map(of_piece).sum()
    }

    /// For how many blocks RAM has room that are looked ahead of a reader that has read so many:
    /// one of `readers` of this process. What all processes guess the node manager bounds.
    fn room_ahead(&self, readers: u64, has_read: u64) -> u64 {
        let segment = &self.session.segment;
        let ram = &segment.header().tier[TierId::RAM];
        let low = ram.low.load(Ordering::Relaxed);
        let free = segment.free_in(TierId::RAM).saturating_sub(low);
        let capacity = ram.buckets.saturating_sub(low);
        room(free.into(), capacity.into(), readers, has_read)
    }
}
