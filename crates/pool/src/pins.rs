//! Pins: blocks of files that stay in a tier for as long as a program wants that.
//!
//! A pin is an open-file description of its own, as a mapping is: it ends with the last process
//! that holds it, however that ends, and there is nothing to repair after a kill. Who takes blocks
//! out of a tier looks at all pins once in each round, and again under the lock of the block where
//! [`Header::pins`] has changed since. A process that pins raises that first, and then takes the
//! lock of each block once: so either it finds the block gone, or the other finds the pin.

use crate::layout::*;
use crate::owner::Owner;
use crate::segment::Segment;
use crate::sync::Ordering;
use crate::{FileId, Marker};
use core::ops::Range;
use std::vec::Vec;

/// What all pins of all jobs together leave of a tier beside reservations: a quarter, so that what
/// programs write has room, whatever is pinned.
const ALL_PERMILLE: u64 = 750;

const TIER_BITS: u32 = 3;
const BLOCK_BITS: u32 = 32;
const COUNT_BITS: u32 = 64 - BLOCK_BITS - TIER_BITS;
const _: () = assert!(TIERS_MAX <= 1 << TIER_BITS);

/// A range of a file that is pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pin {
    /// The record of the file.
    pub file: FileId,
    /// Generation of that record.
    pub generation: u32,
    /// The number of the first block.
    pub first: u64,
    /// How many blocks.
    pub count: u64,
    /// The slowest tier in which they may be.
    pub tier: TierId,
}

impl Pin {
    /// The pin in the offset of a description: first block, tier, number of blocks.
    fn word(first: u64, count: u64, tier: TierId) -> Option<u64> {
        let fits = first < 1 << BLOCK_BITS && count < 1 << COUNT_BITS;
        let low = (tier.index() as u64) << COUNT_BITS | count;
        fits.then_some(first << (TIER_BITS + COUNT_BITS) | low)
    }

    /// The blocks.
    pub fn blocks(&self) -> Range<u64> {
        self.first..self.first + self.count
    }
}

/// Why blocks cannot be pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotPinned {
    /// All open-file descriptions are in use.
    NoDescription,
    /// The range is beyond what a pin can say.
    TooLong,
    /// The processes of the job would have pinned more of the tier than one job may.
    JobLimit(Room),
    /// All jobs together would have pinned more of the tier than leaves room for what is written.
    TierLimit(Room),
    /// More would be pinned of the tier than the job for which the file counts may have of it.
    Quota(Room),
}

/// What is pinned of a tier, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// So many are pinned already.
    pub pinned: u64,
    /// So many may be.
    pub most: u64,
}

/// All pins at one time, for threads that take blocks out of tiers.
#[derive(Debug, Default)]
pub struct Pins {
    seen: u32,
    sorted: Vec<Pin>,
    /// The most blocks that one of them has: no pin that begins earlier reaches a block.
    longest: u64,
}

impl Pins {
    /// Looks at the pins again, for a new round: one that ended has changed no count.
    pub fn look(&mut self, segment: &Segment) {
        self.sorted.clear();
        self.longest = 0;
        // Before the descriptions: what is pinned after this has another count.
        self.seen = segment.header().pins.load(Ordering::SeqCst);
        if self.seen == 0 {
            return;
        }
        self.sorted.extend(segment.pins());
        self.sorted.sort_unstable();
        self.longest = self.sorted.iter().map(|pin| pin.count).max().unwrap_or(0);
    }

    /// The slowest tier in which a block may be; `None`: it is not pinned. To be asked under the
    /// lock of the block before it leaves its bucket.
    pub fn limit_now(&mut self, segment: &Segment, file: FileId, block: u64) -> Option<TierId> {
        if segment.header().pins.load(Ordering::SeqCst) != self.seen {
            self.look(segment);
        }
        self.limit(segment, file, block)
    }

    /// The same as of the last look.
    pub fn limit(&self, segment: &Segment, file: FileId, block: u64) -> Option<TierId> {
        if self.sorted.is_empty() || !segment.header().has_file(file) {
            return None;
        }
        let generation = segment.file(file).generation.load(Ordering::Acquire);
        let end = self.sorted.partition_point(|pin| {
            (pin.file, pin.generation, pin.first) <= (file, generation, block)
        });
        let reaches = |pin: &&Pin| {
            pin.file == file && pin.generation == generation && pin.first + self.longest > block
        };
        let before = self.sorted[..end].iter().rev().take_while(reaches);
        before.filter(|pin| pin.blocks().contains(&block)).map(|pin| pin.tier).min()
    }
}

impl Segment {
    /// The pin that description `id` is, if it is one.
    fn pin_of(&self, id: u32) -> Option<Pin> {
        let description = self.description(id);
        if !description.flags.load(Ordering::Acquire).contains(DescriptionFlags::PIN) {
            return None;
        }
        let word = description.offset.load(Ordering::Acquire);
        let count = word & ((1 << COUNT_BITS) - 1);
        let tier = (word >> COUNT_BITS) as usize & ((1 << TIER_BITS) - 1);
        (count > 0).then(|| Pin {
            file: description.file.load(Ordering::Acquire),
            generation: description.file_generation.load(Ordering::Relaxed),
            first: word >> (TIER_BITS + COUNT_BITS),
            count,
            tier: TierId::new(tier),
        })
    }

    /// The pins that processes hold whose client slots `counts` accepts, each once.
    fn pins_of(&self, counts: impl Fn(u32) -> bool) -> impl Iterator<Item = Pin> {
        let descriptions = self.descriptions();
        let words =
            if self.header().pins.load(Ordering::SeqCst) == 0 { 0 } else { descriptions.words() };
        let held = move |word: u32| {
            let slots = descriptions.slots.iter().filter(|&slot| counts(slot));
            slots.fold(0, |all, slot| all | descriptions.held(slot, word).load(Ordering::SeqCst))
        };
        (0..words)
            .flat_map(move |word| {
                let held = held(word);
                (0..64).filter(move |bit| held >> bit & 1 == 1).map(move |bit| word * 64 + bit)
            })
            .filter_map(|id| self.pin_of(id))
    }

    /// All pins that some process holds.
    pub fn pins(&self) -> impl Iterator<Item = Pin> {
        self.pins_of(|_| true)
    }

    /// The same of job `number`; of 0: of processes that no job has.
    pub fn pins_of_job(&self, number: u32) -> impl Iterator<Item = Pin> {
        self.pins_of(move |slot| self.client(slot).job.load(Ordering::SeqCst) == number)
    }

    /// The slowest tier in which a block may be; `None`: it is not pinned. For programs, which
    /// remember no pins.
    pub fn pinned_to(&self, file: FileId, block: u64) -> Option<TierId> {
        if self.header().pins.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let generation = self.file(file).generation.load(Ordering::Acquire);
        let holds = |pin: &Pin| {
            (pin.file, pin.generation) == (file, generation) && pin.blocks().contains(&block)
        };
        self.pins().filter(holds).map(|pin| pin.tier).min()
    }

    /// What may be pinned of a tier, in blocks: by one job, and by all together.
    pub fn pinnable(&self, tier: TierId) -> (u64, u64) {
        let header = self.header();
        let buckets = match tier {
            // What is lent to small files counts, as it comes and goes.
            TierId::RAM => self.ram_capacity() + self.lent(),
            tier => header.tier[tier].buckets,
        };
        let free = buckets.saturating_sub(header.set_aside[tier].load(Ordering::Relaxed));
        let share = u64::from(header.pin_permille.load(Ordering::Relaxed).min(1000));
        (u64::from(buckets) * share / 1000, u64::from(free) * ALL_PERMILLE / 1000)
    }

    /// What is pinned of the tier of `pin` in files that count for the same job as its file, where
    /// that job has a quota of the tier.
    fn pinned_of_quota(&self, pin: &Pin) -> Option<Room> {
        let record = |pin: &Pin| {
            let record = self.header().has_file(pin.file).then(|| self.file(pin.file))?;
            (record.generation.load(Ordering::Acquire) == pin.generation).then_some(record)
        };
        let job = self.quota_job(record(pin)?)?;
        let most = u64::from(job.quota[pin.tier].limit()? / PAGES_PER_BUCKET);
        let number = job.number.load(Ordering::Relaxed);
        let counts = |other: &Pin| {
            let of_job = |record: &FileRecord| record.quota_job.load(Ordering::Relaxed) == number;
            other.tier == pin.tier && record(other).is_some_and(of_job)
        };
        let of_job = self.pins().filter(counts);
        let pinned = of_job.fold(0, |all: u64, pin| all.saturating_add(pin.count));
        Some(Room { pinned, most })
    }

    /// Notes for `owner`'s process that blocks of `file` stay in `tier` or a faster one, until
    /// [`Segment::unpin`]. `handle` is whose pin it is within the process. Blocks that are
    /// elsewhere are not brought there. [`Segment::confirm_pin`] follows. The caller has a shared
    /// lock, and holds the stripe of the record, as for an open.
    ///
    /// # Errors
    /// [`NotPinned::NoDescription`], [`NotPinned::TooLong`].
    pub fn pin(
        &self,
        (file, blocks): (FileId, Range<u64>),
        tier: TierId,
        handle: u32,
        owner: Owner,
    ) -> Result<Marker, NotPinned> {
        let count = blocks.end.saturating_sub(blocks.start);
        let word = Pin::word(blocks.start, count, tier).ok_or(NotPinned::TooLong)?;
        let marker = self
            .open_description(file, DescriptionFlags::PIN, owner)
            .ok_or(NotPinned::NoDescription)?;
        let description = self.description(marker.description);
        description.handle.store(handle, Ordering::Relaxed);
        description.offset.store(word, Ordering::SeqCst);
        crate::crash::point("pin.noted");
        let pins = &self.header().pins;
        if pins.fetch_add(1, Ordering::SeqCst) == u32::MAX {
            pins.fetch_add(1, Ordering::SeqCst);
        }
        Ok(marker)
    }

    /// Looks whether as much may be pinned as there is now with the pin of `marker`, the last of
    /// `owner`'s process, which has no shared lock.
    ///
    /// # Errors
    /// [`NotPinned::JobLimit`], [`NotPinned::Quota`], [`NotPinned::TierLimit`]; the pin is given up
    /// then. Of two processes that ask for the last room at the same time both may be refused.
    pub fn confirm_pin(&self, marker: Marker, owner: Owner) -> Result<(), NotPinned> {
        let Some(pin) = self.pin_of(marker.description) else { return Ok(()) };
        let Pin { count, tier, .. } = pin;
        let count_of = |pins: &mut dyn Iterator<Item = Pin>| {
            let of_tier = pins.filter(|pin| pin.tier == tier);
            of_tier.fold(0, |all: u64, pin| all.saturating_add(pin.count))
        };
        let job = self.client(owner.slot()).job.load(Ordering::SeqCst);
        let (of_job, of_all) = self.pinnable(tier);
        let mine = count_of(&mut self.pins_of_job(job));
        let all = count_of(&mut self.pins());
        let room = |most, all: u64| Room { pinned: all.saturating_sub(count), most };
        let quota = self.pinned_of_quota(&pin).filter(|quota| quota.pinned > quota.most);
        let refused = match (mine > of_job, quota, all > of_all) {
            (true, ..) => NotPinned::JobLimit(room(of_job, mine)),
            (_, Some(quota), _) => NotPinned::Quota(room(quota.most, quota.pinned)),
            (.., true) => NotPinned::TierLimit(room(of_all, all)),
            _ => return Ok(()),
        };
        self.unpin(marker, owner);
        Err(refused)
    }

    /// Gives up a pin of `owner`'s process. Children that were forked since keep it.
    pub fn unpin(&self, marker: Marker, owner: Owner) {
        let given = self.descriptions().give_up(owner.slot(), marker.description);
        crate::crash::point("pin.given-up");
        self.free_description(given, owner);
    }

    /// Gives up the pins of `handle` whose blocks all lie in `blocks`, for `owner`'s process;
    /// returns how many.
    pub fn unpin_within(&self, handle: u32, blocks: Range<u64>, owner: Owner) -> u32 {
        let descriptions = self.descriptions();
        let mut count = 0;
        for id in descriptions.held_of(owner.slot()) {
            let is_within = |pin: Pin| blocks.start <= pin.first && pin.blocks().end <= blocks.end;
            let is_of = self.description(id).handle.load(Ordering::Relaxed) == handle;
            if is_of && self.pin_of(id).is_some_and(is_within) {
                self.unpin(descriptions.marker(id), owner);
                count += 1;
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Identity;
    use crate::segment::anonymous;

    const RAM: TierId = TierId::RAM;

    /// Both steps.
    fn pinned(
        segment: &Segment,
        of: (FileId, Range<u64>),
        tier: TierId,
        handle: u32,
        owner: Owner,
    ) -> Result<Marker, NotPinned> {
        let marker = {
            let _inside = segment.enter_table(owner);
            segment.pin(of, tier, handle, owner)?
        };
        segment.confirm_pin(marker, owner).map(|()| marker)
    }

    fn segment() -> Segment {
        let tiers = Geometry::for_tiers(4096, &[64 << 18, 128 << 18]);
        let (segment, _file) = anonymous(&tiers).unwrap();
        segment.header().pin_permille.store(500, Ordering::Relaxed);
        segment
    }

    fn process(segment: &Segment) -> Owner {
        Owner::new(segment.clients().claim(std::process::id(), 1).unwrap(), 0)
    }

    fn file(segment: &Segment, inode: u64, me: Owner) -> FileId {
        segment.with_file_or_new(Identity { device: 1, inode }, me, |file, _| file).unwrap()
    }

    #[test]
    fn blocks_are_pinned_until_the_last_process_lets_go() {
        let segment = segment();
        let me = process(&segment);
        let mine = file(&segment, 7, me);
        let mut pins = Pins::default();
        assert_eq!(pins.limit_now(&segment, mine, 3), None);
        let pin = pinned(&segment, (mine, 3..5), RAM, 9, me).unwrap();
        pinned(&segment, (mine, 4..8), TierId::new(1), 9, me).unwrap();
        let limits: Vec<_> = (2..9).map(|at| pins.limit_now(&segment, mine, at)).collect();
        let below = Some(TierId::new(1));
        assert_eq!(limits, [None, Some(RAM), Some(RAM), below, below, below, None]);
        let seen: Vec<_> = (2..9).map(|block| segment.pinned_to(mine, block)).collect();
        assert_eq!(seen, limits);
        assert_eq!(pins.limit(&segment, file(&segment, 8, me), 4), None);

        // A child shares them, and ends.
        let child = process(&segment);
        segment.descriptions().inherit(me.slot(), child.slot());
        assert_eq!(segment.pins().count(), 2, "each once");
        segment.unpin(pin, me);
        assert_eq!(segment.pins().count(), 2);
        assert_eq!(segment.unpin_within(8, 0..99, child), 0, "another handle's");
        assert_eq!(segment.unpin_within(9, 0..7, child), 1, "not what is only partly within");
        assert_eq!(segment.pinned_to(mine, 3), None);
        pins.look(&segment);
        assert_eq!((pins.limit(&segment, mine, 3), pins.limit(&segment, mine, 4)), (None, below));
        assert_eq!(segment.reap_slot(me.slot(), |_, _| {}), Some(false));
        assert_eq!(segment.pins().count(), 1);
        assert_eq!(segment.reap_slot(child.slot(), |_, _| {}), Some(false));
        assert_eq!(segment.pins().count(), 0);
    }

    #[test]
    fn another_file_in_the_same_record_is_not_pinned() {
        let segment = segment();
        let me = process(&segment);
        let mine = file(&segment, 7, me);
        pinned(&segment, (mine, 0..4), RAM, 1, me).unwrap();
        segment.file(mine).generation.fetch_add(1, Ordering::SeqCst);
        let mut pins = Pins::default();
        assert_eq!((pins.limit_now(&segment, mine, 0), segment.pinned_to(mine, 0)), (None, None));
    }

    #[test]
    fn what_is_pinned_of_a_jobs_files_keeps_to_its_quota() {
        let segment = segment();
        let me = process(&segment);
        let (mine, other) = (file(&segment, 7, me), file(&segment, 8, me));
        let number = segment.begin_job(1, 0).unwrap();
        segment.job(number).unwrap().set_quota(RAM, 4 * u64::from(PAGES_PER_BUCKET) + 1);
        segment.file(mine).quota_job.store(number, Ordering::Relaxed);
        let all = |pinned| Err(NotPinned::Quota(Room { pinned, most: 4 }));
        assert_eq!(pinned(&segment, (mine, 0..5), RAM, 1, me), all(0));
        assert_eq!(segment.pins().count(), 0, "one that is refused is given up");
        pinned(&segment, (mine, 0..3), RAM, 1, me).unwrap();
        assert_eq!(pinned(&segment, (mine, 7..9), RAM, 1, me), all(3));
        pinned(&segment, (mine, 9..10), RAM, 1, me).unwrap();
        pinned(&segment, (mine, 3..20), TierId::new(1), 1, me).unwrap();
        pinned(&segment, (other, 0..5), RAM, 1, me).unwrap();
        // What another file in the same record had pinned counts for none.
        segment.file(mine).generation.fetch_add(1, Ordering::SeqCst);
        pinned(&segment, (mine, 0..4), RAM, 1, me).unwrap();
    }

    #[test]
    fn a_job_pins_its_share_and_all_jobs_leave_a_quarter() {
        let segment = segment();
        let (one, other) = (process(&segment), process(&segment));
        segment.client(other.slot()).job.store(5, Ordering::SeqCst);
        let mine = file(&segment, 7, one);
        pinned(&segment, (mine, 0..20), RAM, 1, one).unwrap();
        let limit = |pinned, most| Room { pinned, most };
        let refused = pinned(&segment, (mine, 0..13), RAM, 1, one);
        assert_eq!(refused, Err(NotPinned::JobLimit(limit(20, 32))));
        pinned(&segment, (mine, 30..42), RAM, 1, one).unwrap();
        pinned(&segment, (mine, 0..64), TierId::new(1), 1, one).unwrap();
        let refused = pinned(&segment, (mine, 0..17), RAM, 1, other);
        assert_eq!(refused, Err(NotPinned::TierLimit(limit(32, 48))));
        pinned(&segment, (mine, 0..16), RAM, 1, other).unwrap();
        assert_eq!(segment.pins_of_job(5).map(|pin| pin.count).sum::<u64>(), 16);
        // What jobs have reserved is not there for all.
        segment.header().set_aside[RAM].store(40, Ordering::Relaxed);
        assert_eq!(segment.pinnable(RAM), (32, 18));
        for range in [1 << 32..(1 << 32) + 1, 0..1 << 29] {
            assert_eq!(pinned(&segment, (mine, range), RAM, 1, other), Err(NotPinned::TooLong));
        }
        assert_eq!(segment.pins().count(), 4, "what was refused is not left");
    }
}
