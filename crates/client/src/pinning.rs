//! Pins: a program says that blocks of a file are to stay in a tier. See docs/design/capi.md#pins.

use crate::access::EnteredFile;
use crate::open_file::OpenFile;
use crate::session::Session;
use crate::sharing::Need;
use crate::waiting::surely;
use core::ops::Range;
use core::sync::atomic::Ordering;
use forebay_pool::layout::*;
use forebay_pool::lease::Access;
use forebay_pool::pins::{NotPinned, Room};
use forebay_pool::{Entry, Marker};
use rustix::io::Errno;

/// How often a block is brought to RAM that leaves it meanwhile, or for which other threads were
/// faster, before the pin fails.
const TRIES: u32 = 16;

/// Why a range is not pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinRefused {
    /// There is no tier of this number.
    NoTier,
    /// The file is used through the kernel.
    Direct,
    /// The job would have pinned more of the tier than it may.
    JobLimit(Pinned),
    /// All jobs together would have.
    TierLimit(Pinned),
    /// More would be pinned of the tier than the quota of the job for which the file counts.
    Quota(Pinned),
    /// The quota of that job had no room for seconds: `pinned` is what it uses of it.
    QuotaRoom(Pinned),
    /// The node manager is stopped or dead, and makes no room.
    Unserved,
    /// Something else.
    Failed(Errno),
}

/// Why a block is not where it was to be brought.
#[derive(Clone, Copy, Debug)]
enum Missing {
    /// Quotas had no room for seconds.
    Quota,
    /// Something else.
    Other(Errno),
}

impl From<Errno> for Missing {
    fn from(errno: Errno) -> Missing {
        Missing::Other(errno)
    }
}

/// What is pinned of a tier, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// So much was to be.
    pub asked: u64,
    /// So much is already.
    pub pinned: u64,
    /// So much may be.
    pub most: u64,
}

impl From<Errno> for PinRefused {
    fn from(errno: Errno) -> PinRefused {
        PinRefused::Failed(errno)
    }
}

impl OpenFile<'_> {
    /// The blocks that `bytes` from `offset` on touch; up to the end if `bytes` is 0.
    fn blocks_of(&self, offset: u64, bytes: u64) -> Range<u64> {
        let bucket = self.session.segment.bucket_bytes() as u64;
        let end = match bytes {
            0 => self.record.size.load(Ordering::Acquire).max(offset),
            bytes => offset.saturating_add(bytes),
        };
        offset / bucket..end.div_ceil(bucket).max(offset / bucket)
    }

    /// Pins `bytes` from `offset` on, all up to the end if `bytes` is 0, in tier `tier` or a
    /// faster one: what is not there is brought to RAM. It ends with [`Session::unpin`] of
    /// `handle`, and with the process.
    ///
    /// # Errors
    /// See [`PinRefused`]; `AGAIN` if not all could be brought up; `BADF` if the store has some of
    /// it, and the file is not open for reading. Nothing is pinned then.
    pub fn pin(&self, offset: u64, bytes: u64, tier: u32, handle: u32) -> Result<(), PinRefused> {
        let segment = &self.session.segment;
        let tiers = segment.header().tiers_in_use();
        let tier =
            tiers.into_iter().find(|id| id.index() == tier as usize).ok_or(PinRefused::NoTier)?;
        if self.record.is_written_through() {
            self.buffer_again();
        }
        if self.record.has(FileFlags::DIRECT) {
            return Err(PinRefused::Direct);
        }
        self.to_stage()?;
        let blocks = self.blocks_of(offset, bytes);
        if blocks.is_empty() {
            return Ok(());
        }
        let unit = segment.bucket_bytes() as u64;
        let asked = (blocks.end - blocks.start).saturating_mul(unit);
        let in_bytes = |Room { pinned, most }: Room| Pinned {
            asked,
            pinned: pinned * unit,
            most: most * unit,
        };
        let refused = |refused| match refused {
            NotPinned::NoDescription => PinRefused::Failed(Errno::NFILE),
            NotPinned::TooLong => PinRefused::Failed(Errno::INVAL),
            NotPinned::JobLimit(room) => PinRefused::JobLimit(in_bytes(room)),
            NotPinned::TierLimit(room) => PinRefused::TierLimit(in_bytes(room)),
            NotPinned::Quota(room) => PinRefused::Quota(in_bytes(room)),
        };
        let marker = self.note_pin(&blocks, tier, handle)?.map_err(refused)?;
        segment.confirm_pin(marker, self.session.owner()).map_err(refused)?;
        // Many at a time, while this thread brings up what the node manager has not.
        self.want_staged(blocks.start, (blocks.end - blocks.start).min(64) as u32);
        let brought = blocks.clone().try_for_each(|block| self.bring_for_pin(block, tier));
        if let Err(missing) = brought {
            segment.unpin(marker, self.session.owner());
            return Err(self.why_not_brought(missing, asked, tier));
        }
        match self.record.has(FileFlags::DIRECT) {
            true => {
                segment.unpin(marker, self.session.owner());
                Err(PinRefused::Direct)
            }
            false => Ok(()),
        }
    }

    fn note_pin(
        &self,
        blocks: &Range<u64>,
        tier: TierId,
        handle: u32,
    ) -> Result<Result<Marker, NotPinned>, Errno> {
        let (segment, identity) = (&self.session.segment, self.record.identity());
        let noted = surely(|| {
            let owner = self.session.owner();
            let _inside = segment.enter_table(owner);
            let pin = |file| segment.pin((file, blocks.clone()), tier, handle, owner);
            segment.reopen_file(identity, owner, pin)
        })?;
        noted.ok_or(Errno::BADF)
    }

    /// Sees to it that a block which is pinned is in `tier` or a faster one, if it is anywhere.
    fn bring_for_pin(&self, block: u64, tier: TierId) -> Result<(), Missing> {
        for _ in 0..TRIES {
            let inside = self.enter_for(Need::Whole(Access::Read))?;
            if self.record.has(FileFlags::DIRECT) || inside.is_pinned_there(block, tier)? {
                return Ok(());
            }
            let is_counted = match tier.is_ram() {
                true => self.session.await_quota_for_pin(self.record),
                // By way of RAM: one block at a time may be there beyond the quota.
                false => {
                    self.session.segment.claim_quota(self.record, TierId::RAM, PAGES_PER_BUCKET)
                }
            };
            if !is_counted && tier.is_ram() {
                return Err(Missing::Quota);
            }
            if !is_counted {
                let segment = &self.session.segment;
                segment.note_quota(self.record, TierId::RAM, PAGES_PER_BUCKET);
            }
            inside.bring_up_pinned(block)?;
            drop(inside);
            if !is_counted && !self.session.await_within_quota(self.record) {
                return Err(Missing::Quota);
            }
        }
        Err(Missing::Other(Errno::AGAIN))
    }

    /// What to say of blocks that could not be brought to a tier.
    fn why_not_brought(&self, missing: Missing, asked: u64, tier: TierId) -> PinRefused {
        let segment = &self.session.segment;
        let lacks_room = matches!(missing, Missing::Quota | Missing::Other(Errno::AGAIN));
        if lacks_room && (!segment.manager_is_alive() || segment.manager_is_stopped()) {
            return PinRefused::Unserved;
        }
        let page = segment.page_bytes() as u64;
        let quota = segment.quota_job(self.record).map(|job| &job.quota[tier]);
        match (missing, quota.and_then(|quota| Some((quota.used(), quota.limit()?)))) {
            (Missing::Quota, Some((used, limit))) => PinRefused::QuotaRoom(Pinned {
                asked,
                pinned: u64::from(used) * page,
                most: u64::from(limit) * page,
            }),
            (Missing::Quota, None) => PinRefused::Failed(Errno::AGAIN),
            (Missing::Other(errno), _) => PinRefused::Failed(errno),
        }
    }
}

impl EnteredFile<'_> {
    /// Whether a pinned block is where it is to stay, or has no bytes. What takes it out of its
    /// bucket from now on knows of the pin.
    fn is_pinned_there(&self, block: u64, tier: TierId) -> Result<bool, Errno> {
        let segment = &self.session.segment;
        let start = block.saturating_mul(segment.bucket_bytes() as u64);
        let stored = self.record.stored().min(self.record.size.load(Ordering::Acquire));
        // Of a file under commit only whole pages are kept.
        let least = match self.record.lease.load().commits() {
            true => segment.page_bytes() as u64,
            false => 1,
        };
        let has_bytes = stored.saturating_sub(start) >= least;
        let Some(entry) = segment.entry(self.record, block) else { return Ok(!has_bytes) };
        let Some(held) = segment.lock_block_unless_interrupted(entry, self.owner)? else {
            return Ok(!has_bytes);
        };
        let meta = held.meta();
        if usize::from(meta.bound_for.load(Ordering::Relaxed)) > tier.index() {
            meta.bound_for.store(0, Ordering::Relaxed);
        }
        let is_filled = meta.valid.load(Ordering::Acquire) != 0 || !has_bytes;
        Ok(held.tier() <= tier && is_filled)
    }

    /// Brings a block to RAM from a lower tier, or from the store. What that takes of a
    /// quota the caller has counted.
    ///
    /// # Errors
    /// `AGAIN` if there is no room; `BADF` if the store has it, and the file is not open for
    /// reading; what ends a wait.
    fn bring_up_pinned(&self, block: u64) -> Result<(), Errno> {
        let segment = &self.session.segment;
        let entry = segment.entry_or_insert(self.record, block, self.owner).ok_or(Errno::AGAIN)?;
        if let Entry::Resident { .. } = Entry::decode(entry.load(Ordering::Acquire)) {
            return self.bring_up_counted(entry, block).map_err(|errno| match errno {
                Errno::NOSPC => Errno::AGAIN,
                errno => errno,
            });
        }
        if !self.may(DescriptionFlags::READ) {
            return Err(Errno::BADF);
        }
        // Room first: what stages a block takes what there is.
        let bucket = self.session.room(self.owner).ok_or(Errno::AGAIN)?;
        segment.free_bucket(bucket);
        self.stage_in_counted(block, true);
        Ok(())
    }
}

impl Session {
    /// Gives up the pins of `handle` that lie in a range whole; all behind `offset` if `bytes` is
    /// 0. Returns how many.
    pub fn unpin(&self, handle: u32, offset: u64, bytes: u64) -> u32 {
        let bucket = self.segment.bucket_bytes() as u64;
        let end = match bytes {
            0 => u64::MAX,
            bytes => offset.saturating_add(bytes).div_ceil(bucket),
        };
        self.segment.unpin_within(handle, offset / bucket..end, self.owner())
    }
}
