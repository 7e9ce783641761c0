//! Reading through: what no tier has goes from the store straight to the program's memory, and a
//! note of what that has cost decides when the block is brought up (`placement::admission`).

use crate::access::EnteredFile;
use crate::fd::borrow;
use crate::part::Part;
use crate::span::{Cursor, Span, Writable};
use crate::store::STORE_IS_BEHIND;
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicU32, Ordering};
use forebay_placement::Destination;
use forebay_placement::admission::{self, Origin, Room, Trail, Verdict};
use forebay_placement::cost::{Pace, Speeds};
use forebay_placement::leave::{keeping_pays, keeps_read};
use forebay_placement::prefetch::{Ahead, pays};
use forebay_pool::clock;
use forebay_pool::layout::*;
use rustix::fs::Advice;
use rustix::io::Errno;

/// Bit n: the file system of store n does not say what the kernel has in memory.
static TELLS_NOTHING: AtomicU32 = AtomicU32::new(0);

impl EnteredFile<'_> {
    /// Whether nothing of the file is buffered, so that the store's file is all there is of it.
    pub(crate) fn is_unbuffered(&self) -> bool {
        self.record.entry0.load(Ordering::Acquire) == 0
            && self.record.root.load(Ordering::Acquire) == 0
            && !self.record.has(FileFlags::METADATA_DIRTY)
    }

    /// Whether a block that only the store has, and of which a part is read, is worth a bucket now.
    pub(super) fn admits(&self, part: Part) -> Verdict {
        let advice = self.description.flags.load(Ordering::Relaxed);
        let room = self.room();
        if advice.contains(DescriptionFlags::RANDOM) || room == Room::None {
            return Verdict::Through;
        }
        let part_of = self.admission_part(part);
        // Of a program that reads on from here, the rest of the block will be wanted as well.
        if advice.contains(DescriptionFlags::SEQUENTIAL)
            && part_of.bytes < part_of.stored.saturating_sub(part_of.within)
            && self.is_worth_reading_ahead()
        {
            return Verdict::First;
        }
        let (trail, key) = self.trail(part.block);
        let verdict = trail.admits(key, &part_of, room, || self.pace());
        // Other nodes can be given what is in memory here: who reads on from its start, or all of
        // a small file, brings it up for all of them.
        let at = part.block * self.session.segment.bucket_bytes() as u64;
        if verdict == Verdict::Through && part.within == 0 && self.may_ask_others(at) {
            return Verdict::First;
        }
        verdict
    }

    /// Whether one of the blocks of which `length` bytes from `offset` are read is worth a bucket.
    pub(super) fn admits_any(&self, offset: u64, length: usize) -> bool {
        let mut done = 0;
        while done < length {
            let part = Part::first(&self.session.segment, offset + done as u64, length - done);
            if self.admits(part) != Verdict::Through {
                return true;
            }
            done += part.bytes;
        }
        false
    }

    /// Whether what follows a read from the store should be brought to the tiers: the kernel does
    /// not read ahead, and the store is slow.
    pub(super) fn is_worth_reading_ahead(&self) -> bool {
        let block = self.session.segment.bucket_bytes() as u64;
        self.is_emulated() && pays(&self.hierarchy(), Destination::Store, block)
    }

    fn room(&self) -> Room {
        let tier = &self.session.segment.header().tier[TierId::RAM];
        let free = self.session.segment.free_in(TierId::RAM);
        Room::of(free, tier.low.load(Ordering::Relaxed), tier.buckets, || {
            self.is_emulated() && self.is_kept_below()
        })
    }

    /// Whether the tier below RAM takes what leaves it, though it has been read once.
    fn is_kept_below(&self) -> bool {
        let segment = &self.session.segment;
        let below = TierId::new(1);
        let tier = (segment.header().tiers > 1).then(|| &segment.header().tier[below]);
        tier.is_some_and(|tier| keeps_read(segment.free_in(below).into(), tier.buckets.into()))
            && segment.is_sound(below)
            && keeping_pays(&self.hierarchy(), below.index(), segment.bucket_bytes() as u64)
    }

    fn hierarchy(&self) -> forebay_placement::Hierarchy {
        let store = self.record.store.load(Ordering::Relaxed) as usize;
        crate::placement::hierarchy(&self.session.segment, store)
    }

    fn pace(&self) -> Pace {
        Speeds::of(&self.hierarchy()).paces().last().copied().unwrap_or_default()
    }

    /// Whether a read of the block has waited for its device.
    pub(crate) fn has_come_from_device(&self, block: u64) -> bool {
        let (trail, key) = self.trail(block);
        trail.is_from_device(key)
    }

    fn trail(&self, block: u64) -> (Trail, u16) {
        let (word, key) = self.session.segment.trail(self.record.identity(), block);
        (Trail(word.load(Ordering::Relaxed)), key)
    }

    fn admission_part(&self, part: Part) -> admission::Part {
        let block = self.session.segment.bucket_bytes() as u64;
        let start = part.block.saturating_mul(block);
        let stored = self.record.stored().saturating_sub(start).min(block);
        admission::Part {
            within: part.within as u64,
            bytes: part.bytes as u64,
            stored,
            block,
            is_uncached: self.is_emulated(),
        }
    }

    /// Notes that a whole block was read from its device, which took `took_ns`, to be staged: what
    /// leaves the tiers is known when it is read again.
    pub(super) fn note_staged(&self, block: u64, bytes: usize, took_ns: u64) {
        let offset = block * self.session.segment.bucket_bytes() as u64;
        self.note(offset, bytes, Origin::Device, took_ns);
    }

    /// Notes in the blocks' trails where `bytes` came from that were read from `offset` on.
    fn note(&self, offset: u64, bytes: usize, origin: Origin, took_ns: u64) {
        let Some(all) = NonZeroU64::new(bytes as u64) else { return };
        let mut done = 0;
        while done < bytes {
            let part = Part::first(&self.session.segment, offset + done as u64, bytes - done);
            let part_of = self.admission_part(part);
            if Trail::notes(&part_of, origin) {
                let share = u128::from(took_ns) * part.bytes as u128 / u128::from(all.get());
                let (word, key) = self.session.segment.trail(self.record.identity(), part.block);
                let trail = Trail(word.load(Ordering::Relaxed));
                word.store(trail.after(key, &part_of, origin, share as u64).0, Ordering::Relaxed);
            }
            done += part.bytes;
        }
    }

    /// The same of a read through, which is an access of the file, too.
    fn note_read(&self, offset: u64, bytes: usize, origin: Origin, took_ns: u64) {
        self.note(offset, bytes, origin, took_ns);
        let mut done = 0;
        while done < bytes {
            let part = Part::first(&self.session.segment, offset + done as u64, bytes - done);
            self.accessed_through(part);
            done += part.bytes;
        }
    }

    /// Reads from the store to the program's memory. Returns the bytes, fewer than there is room
    /// for at the end of the file, or where the kernel says so and not `all` have to be there; and
    /// where they came from.
    fn read_noted(
        &self,
        to: Span<'_, Writable>,
        offset: u64,
        all: bool,
    ) -> Result<(usize, Origin), Errno> {
        let mut cached = 0;
        let store = 1 << (self.record.store.load(Ordering::Relaxed) % u32::BITS);
        let emulated = self.is_emulated();
        // At the end of the file a short answer would not say why it is short.
        let asks = !emulated
            && TELLS_NOTHING.load(Ordering::Relaxed) & store == 0
            && self.may(DescriptionFlags::READ)
            && offset.saturating_add(to.len() as u64) <= self.record.stored();
        let mut origin = emulated.then_some(Origin::Device);
        if asks {
            match self.store_read_cached(to, offset) {
                Ok(got) => {
                    self.note_read(offset, got, Origin::Memory, 0);
                    if got == to.len() {
                        return Ok((got, Origin::Memory));
                    }
                    (cached, origin) = (got, Some(Origin::Device));
                }
                Err(Errno::AGAIN) => origin = Some(Origin::Device),
                Err(Errno::FAULT | Errno::INTR) => {}
                Err(_) => drop(TELLS_NOTHING.fetch_or(store, Ordering::Relaxed)),
            }
        }
        let (to, offset) = (to.after(cached), offset + cached as u64);
        let began = clock::monotonic_ns();
        let read = match all {
            true => self.store_read(to, offset),
            false => self.store_read_once(to, offset),
        };
        let got = match read {
            Ok(got) => got,
            Err(_) if cached > 0 => 0,
            Err(errno) => return Err(errno),
        };
        let took = clock::monotonic_ns().saturating_sub(began);
        let origin = origin.unwrap_or_else(|| Origin::of(got as u64, took));
        self.note_read(offset, got, origin, took);
        Ok((cached + got, origin))
    }

    /// Reads a file of which nothing is buffered: what the kernel says is true, its end included.
    #[inline(never)]
    pub(super) fn read_through(
        &self,
        cursor: &mut Cursor<'_, Writable>,
        offset: u64,
        length: usize,
        ahead: Option<Ahead>,
    ) -> Result<usize, Errno> {
        let noted = !self.record.has(FileFlags::DIRECT);
        let (mut done, mut ahead) = (0, ahead);
        while done < length {
            let (to, at) = (cursor.here(), offset + done as u64);
            let read = match noted {
                true => self.read_noted(to, at, false),
                false => self.store_read_once(to, at).map(|got| (got, Origin::Memory)),
            };
            match read {
                Ok((got, origin)) => {
                    if origin == Origin::Device
                        && let Some(ahead) = ahead.take()
                    {
                        self.read_ahead(&ahead);
                    }
                    cursor.advance(got);
                    done += got;
                    if got < to.len() {
                        break;
                    }
                }
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Has the kernel read ahead into its memory, where reading has just waited for the device: one
    /// copy, and it is where a read through finds it.
    pub(super) fn read_ahead(&self, ahead: &Ahead) {
        let size = self.record.stored();
        for (offset, bytes) in ahead.pieces().take_while(|&(offset, _)| offset < size) {
            let _ = rustix::fs::fadvise(
                borrow(self.fd),
                offset,
                NonZeroU64::new(bytes),
                Advice::WillNeed,
            );
        }
    }

    /// Reads bytes below the file's size from the store; what the store does not have is zero.
    /// Returns where they came from.
    ///
    /// # Errors
    /// The store's errno; [`STORE_IS_BEHIND`].
    #[inline(never)]
    pub(super) fn read_store(
        &self,
        cursor: &mut Cursor<'_, Writable>,
        offset: u64,
        bytes: usize,
    ) -> Result<Origin, Errno> {
        if self.record.is_borrowed() {
            return Err(STORE_IS_BEHIND);
        }
        let known = self.record.stored();
        let (mut done, mut from) = (0, Origin::Memory);
        while done < bytes {
            let to = cursor.here().first(bytes - done);
            let at = offset + done as u64;
            let mut got = 0;
            if at < known {
                let (read, origin) = self.read_noted(to, at, true)?;
                got = read;
                if origin == Origin::Device {
                    from = origin;
                }
            }
            to.after(got).zero();
            cursor.advance(to.len());
            done += to.len();
        }
        Ok(from)
    }
}
