//! Open-file descriptions, shared by dup, fork and exec, and the marker by which a new image
//! recognizes the ones it inherited.
//!
//! They are slices, and know no segment: see docs/design/views.md.
//!
//! ```
//! use forebay_pool::layout::{DescriptionFlags, Geometry};
//! use forebay_pool::segment::anonymous;
//! use forebay_pool::{Identity, Owner};
//!
//! let (segment, _memory) = anonymous(&Geometry::for_tiers(4096, &[16 << 20]))?;
//! let slot = segment.clients().claim(std::process::id(), 1).expect("one of many is free");
//! let me = Owner::new(slot, 0);
//! let name = Identity { device: 1, inode: 2 };
//! let file = segment.with_file_or_new(name, me, |file, _| file).expect("the table is empty");
//! let opened = segment.open_description(file, DescriptionFlags::READ, me).expect("all are free");
//! // A child has it too, as after a fork.
//! let child = segment.clients().claim(std::process::id(), 2).expect("one of many is free");
//! assert!(segment.descriptions().adopt(opened, Owner::new(child, 0)));
//! segment.descriptions().release(slot, opened.description);
//! assert!(segment.descriptions().is_wanted(opened));
//! segment.descriptions().release(child, opened.description);
//! assert!(!segment.descriptions().is_wanted(opened));
//! # Ok::<(), forebay_pool::SegmentError>(())
//! ```

use crate::FileId;
use crate::clock::stamp_age;
use crate::crash;
use crate::layout::{
    DESCRIPTIONS_MAX, DESCRIPTIONS_PIECE, Description, DescriptionFlags, FileRecord,
    description_state,
};
use crate::owner::Owner;
use crate::slot_bits::SlotBits;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The lowest marker, 1.25 TiB. The highest one is below 1.75 TiB: what files can have at least on
/// ext4 with any size of blocks, on f2fs, and on ext3 with blocks of 4 KiB. A program that hands
/// on a large file is at a power of two rather than here.
const MARKER_BASE: u64 = (1 << 40) + (1 << 38);
const ID_BITS: u32 = DESCRIPTIONS_MAX.trailing_zeros();
const GENERATION_BITS: u32 = 21;
const MARKER_BITS: u32 = ID_BITS + GENERATION_BITS;
/// Words of the bits of one slot that lie side by side: those of a piece of the table.
const PIECE_WORDS: u32 = DESCRIPTIONS_PIECE / 64;

/// Client slots whose bits are looked at rather than the table: a slot's take 2 KiB, and the table
/// has 1 MiB.
const FEW_SLOTS: usize = 128;

/// A description and its generation, as carried by the kernel's offset of the descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marker {
    /// The description.
    pub description: u32,
    /// Its generation, 21 bits.
    pub generation: u32,
}

impl Marker {
    /// The highest offset that is a marker: a file that can have this one can have all.
    pub const HIGHEST: u64 = MARKER_BASE + (1 << MARKER_BITS) - 1;

    /// The kernel offset to set.
    pub fn encode(self) -> u64 {
        MARKER_BASE + (u64::from(self.generation) << ID_BITS | u64::from(self.description))
    }

    /// The marker in a kernel offset, if it is one.
    pub fn decode(offset: u64) -> Option<Marker> {
        let marked = offset.checked_sub(MARKER_BASE).filter(|marked| marked >> MARKER_BITS == 0)?;
        Some(Marker {
            description: marked as u32 & ((1 << ID_BITS) - 1),
            generation: (marked >> ID_BITS) as u32,
        })
    }
}

fn generation(word: u64) -> u32 {
    (word >> 32) as u32 & ((1 << GENERATION_BITS) - 1)
}

fn word(generation: u32, state: u32) -> u64 {
    u64::from(generation & ((1 << GENERATION_BITS) - 1)) << 32 | u64::from(state)
}

fn state(word: u64) -> u32 {
    word as u32 & 0xff
}

/// The lower half of the word while `owner`'s process opens or adopts a description.
fn opening_by(owner: Owner) -> u32 {
    owner.slot() << 8 | description_state::OPENING
}

/// The lower half of the word while `owner`'s process frees a description that it has given up.
fn closing_by(owner: Owner) -> u32 {
    owner.slot() << 8 | description_state::CLOSING
}

/// A description that a process has given up, from before it did so until it may be freed.
#[must_use]
#[derive(Clone, Copy, Debug)]
pub struct GivenUp {
    marker: Marker,
    /// The forks that had begun.
    forks: u32,
}

/// The descriptions of a node, as slices of shared memory, and which client slots hold each. All
/// threads of all processes may use them at once.
#[derive(Clone, Copy)]
pub struct Descriptions<'a> {
    /// All descriptions.
    pub all: &'a [Description],
    /// A bit for each description that a slot holds: for each [`DESCRIPTIONS_PIECE`] of them the
    /// words of one slot after the other.
    pub held: &'a [AtomicU64],
    /// How many of them, and of the bits, have memory.
    pub ready: &'a AtomicU32,
    /// Raised before a child gets what its parent holds.
    pub forks: &'a AtomicU32,
    /// Which client slots processes have: the others hold none.
    pub slots: SlotBits<'a>,
    /// Where the next search for a free one starts.
    pub cursor: &'a AtomicU32,
}

impl<'a> Descriptions<'a> {
    /// Description `id`.
    #[inline(always)]
    pub fn get(self, id: u32) -> &'a Description {
        debug_assert!((id as usize) < self.all.len());
        &self.all[(id as usize).min(self.all.len() - 1)]
    }

    #[inline(always)]
    fn count(self) -> u32 {
        self.all.len() as u32
    }

    /// Those that can be in use: the first ones.
    #[inline(always)]
    pub fn ready(self) -> u32 {
        self.ready.load(Ordering::Acquire).min(self.count())
    }

    /// Words of a slot's bits that can be in use.
    #[inline(always)]
    pub fn words(self) -> u32 {
        self.ready().div_ceil(64)
    }

    /// Word `word` of the bits of the descriptions that `slot` holds.
    #[inline(always)]
    pub fn held(self, slot: u32, word: u32) -> &'a AtomicU64 {
        debug_assert!(word < self.words());
        let words = self.count().div_ceil(64);
        let piece = (word / PIECE_WORDS) as usize;
        // Mostly there is one.
        let before =
            if piece == 0 { 0 } else { piece * self.slots.count as usize * PIECE_WORDS as usize };
        let at = slot as usize * words.min(PIECE_WORDS) as usize + (word % PIECE_WORDS) as usize;
        &self.held[(before + at).min(self.held.len() - 1)]
    }

    #[inline(always)]
    fn held_bit(self, slot: u32, id: u32) -> (&'a AtomicU64, u64) {
        (self.held(slot, id / 64), 1 << (id % 64))
    }

    /// Word `word` of the bits of those that any slot holds. A process may have joined, and hold
    /// one, since the last look.
    fn held_by_any(self, word: u32) -> u64 {
        self.slots.iter().fold(0, |all, slot| all | self.held(slot, word).load(Ordering::SeqCst))
    }

    /// Those that `slot` holds.
    pub fn held_of(self, slot: u32) -> impl Iterator<Item = u32> {
        let words = (0..self.words()).map(move |word| (word, self.held(slot, word)));
        let some = words.map(|(word, place)| (word, place.load(Ordering::SeqCst)));
        some.filter(|(_, bits)| *bits != 0).flat_map(move |(word, bits)| {
            self.ids_in(word).filter(move |id| bits >> (id % 64) & 1 == 1)
        })
    }

    /// Those of which the bits are in word `word`.
    fn ids_in(self, word: u32) -> impl Iterator<Item = u32> + Clone {
        word * 64..(word * 64 + 64).min(self.ready())
    }

    /// Notes that `slot` holds `id`.
    #[inline(always)]
    pub fn hold(self, slot: u32, id: u32) {
        let (place, bit) = self.held_bit(slot, id);
        place.fetch_or(bit, Ordering::SeqCst);
    }

    /// Notes that `slot` no longer holds `id`; the manager frees what no process holds.
    #[inline(always)]
    pub fn release(self, slot: u32, id: u32) {
        let (place, bit) = self.held_bit(slot, id);
        place.fetch_and(!bit, Ordering::SeqCst);
    }

    /// [`Descriptions::release`] before the kernel closes the process's last descriptor of `id`.
    /// Afterwards [`Descriptions::free`] may free it.
    #[inline]
    pub fn give_up(self, slot: u32, id: u32) -> GivenUp {
        // What a child gets from now on may lack it, and the child have a descriptor of it.
        let forks = self.forks.load(Ordering::SeqCst);
        let given = GivenUp { marker: self.marker(id), forks };
        self.release(slot, id);
        given
    }

    /// Frees what `owner`'s process has given up if no process can take part in it any more. The
    /// kernel has closed the descriptor, no thread of the process is making another one, and the
    /// caller has a shared lock. `joins` says of a client slot whether its process is a child that
    /// does not yet hold all that it was forked with. False: the sweep is to free it.
    ///
    /// A process comes to take part in a description only by a fork, by a message, or from a
    /// descriptor that its image before an exec had, for which its slot holds it until the new
    /// image has looked. So there is none if no slot holds it, no child is on its way, none began
    /// since before it was given up, and no message carries it. What moves from one to the other
    /// meanwhile is seen all the same: who receives a message changes the word.
    pub fn free(self, given: GivenUp, owner: Owner, joins: impl Fn(u32) -> bool) -> bool {
        let id = given.marker.description;
        let description = self.get(id);
        let kernels = DescriptionFlags::KERNEL_OFFSET;
        if description.flags.load(Ordering::Acquire).contains(kernels) {
            return false;
        }
        let exchange = |from, to| {
            let (from, to) =
                (word(given.marker.generation, from), word(given.marker.generation, to));
            let place = &description.word;
            place.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        };
        let (live, closing) = (description_state::LIVE, closing_by(owner));
        if !exchange(live, closing) {
            return false;
        }
        crash::point("description.closing");
        let is_wanted = self.slots.iter().any(|slot| {
            let (place, bit) = self.held_bit(slot, id);
            joins(slot) || place.load(Ordering::SeqCst) & bit != 0
        });
        // After the slots: one that held it may have sent it, and given it up.
        let is_wanted = is_wanted
            || description.in_flight.load(Ordering::SeqCst) > 0
            || self.forks.load(Ordering::SeqCst) != given.forks;
        crash::point("description.closed");
        let next = if is_wanted { live } else { description_state::FREE };
        exchange(closing, next) && !is_wanted
    }

    /// Notes that `slot` holds none any more.
    pub fn release_all(self, slot: u32) {
        for word in 0..self.words() {
            if self.held(slot, word).load(Ordering::Relaxed) != 0 {
                self.held(slot, word).store(0, Ordering::SeqCst);
            }
        }
    }

    /// Notes that `child`, a slot that holds none, holds those that `parent` does. Returns whether
    /// there are any.
    pub fn inherit(self, parent: u32, child: u32) -> bool {
        let mut any = false;
        for word in 0..self.words() {
            let held = self.held(parent, word).load(Ordering::SeqCst);
            if held != 0 {
                self.held(child, word).store(held, Ordering::SeqCst);
                any = true;
            }
        }
        any
    }

    /// Whether `slot` holds any.
    pub fn holds_any(self, slot: u32) -> bool {
        (0..self.words()).any(|word| self.held(slot, word).load(Ordering::SeqCst) != 0)
    }

    /// Whether some other slot than `slot` holds `id`.
    pub fn held_elsewhere(self, slot: u32, id: u32) -> bool {
        self.slots.iter().any(|other| {
            let (place, bit) = self.held_bit(other, id);
            other != slot && place.load(Ordering::SeqCst) & bit != 0
        })
    }

    /// Whether the description of `marker` may still be used: some process holds it, or it is on
    /// its way to one, or a program without Forebay has it. A marker may be of a descriptor that
    /// another process sent, and name none.
    pub fn is_wanted(self, marker: Marker) -> bool {
        if marker.description >= self.ready() {
            return false;
        }
        let description = self.get(marker.description);
        self.marker(marker.description) == marker
            && (self.held_elsewhere(0, marker.description)
                || description.in_flight.load(Ordering::SeqCst) > 0
                || description
                    .flags
                    .load(Ordering::SeqCst)
                    .contains(DescriptionFlags::KERNEL_OFFSET))
    }

    /// Takes a free description for `file`, whose record is `record`, and notes that `owner`'s
    /// process holds it. `None` when all that are ready are in use. The caller has a shared lock,
    /// and holds the stripe of the record, see [`crate::opens`], or another description of the
    /// file.
    pub fn open(
        self,
        file: FileId,
        record: &FileRecord,
        flags: DescriptionFlags,
        owner: Owner,
    ) -> Option<Marker> {
        let ready = self.ready();
        for _ in 0..ready {
            // One after the other, so that long passes before one that was freed is used again.
            let id = self.cursor.fetch_add(1, Ordering::Relaxed) % ready;
            let description = self.get(id);
            let seen = description.word.load(Ordering::Relaxed);
            if state(seen) != description_state::FREE {
                continue;
            }
            let number = generation(seen).wrapping_add(1);
            let opening = word(number, opening_by(owner));
            if description
                .word
                .compare_exchange(seen, opening, Ordering::SeqCst, Ordering::Relaxed)
                .is_err()
            {
                continue;
            }
            crash::point("description.taken");
            description.file.store(file, Ordering::Relaxed);
            description
                .file_generation
                .store(record.generation.load(Ordering::Relaxed), Ordering::Relaxed);
            description.flags.store(flags, Ordering::Relaxed);
            description.offset.store(0, Ordering::Relaxed);
            description.in_flight.store(0, Ordering::Relaxed);
            description.error_seen.store(record.sample_errors(), Ordering::Release);
            crash::point("description.named");
            // Last: a live one says what it is of, and which slots hold it.
            self.hold(owner.slot(), id);
            crash::point("description.held");
            let live = word(number, description_state::LIVE);
            description.word.store(live, Ordering::SeqCst);
            crash::point("description.live");
            return Some(Marker { description: id, generation: generation(live) });
        }
        None
    }

    /// Takes part in the description of a marker found on an inherited descriptor. Fails when it
    /// was freed and used again. The caller holds the stripe of the file's record, as for an open.
    pub fn adopt(self, marker: Marker, owner: Owner) -> bool {
        if marker.description >= self.ready() {
            return false;
        }
        let place = &self.get(marker.description).word;
        let opening = word(marker.generation, opening_by(owner));
        let mut seen = place.load(Ordering::SeqCst);
        // Under the stripe no other process takes part in it: one found being opened was left so by
        // a dead process.
        while generation(seen) == marker.generation {
            let taken = place.compare_exchange(seen, opening, Ordering::SeqCst, Ordering::SeqCst);
            if let Err(now) = taken {
                seen = now;
                continue;
            }
            crash::point("description.adopting");
            self.hold(owner.slot(), marker.description);
            let live = word(marker.generation, description_state::LIVE);
            place.store(live, Ordering::SeqCst);
            return true;
        }
        false
    }

    /// Takes back the offsets that dead processes of `slot` had locked, and lets live what they
    /// were opening or taking part in: the sweep then frees it, unless others hold it. The caller
    /// has made sure that they are dead.
    pub(crate) fn reap(self, slot: u32) {
        let all = &self.all[..self.ready() as usize];
        all.iter().for_each(|description| description.position.take_back(slot));
        let dead = Owner::new(slot, 0);
        for Description { word: place, .. } in all {
            let seen = place.load(Ordering::SeqCst);
            if [opening_by(dead), closing_by(dead)].contains(&(seen as u32)) {
                let live = word(generation(seen), description_state::LIVE);
                let _ = place.compare_exchange(seen, live, Ordering::SeqCst, Ordering::Relaxed);
            }
        }
    }

    /// The marker of a description that is held.
    pub fn marker(self, id: u32) -> Marker {
        let word = self.get(id).word.load(Ordering::Relaxed);
        Marker { description: id, generation: generation(word) }
    }

    /// Whether some process holds a description of `file` that can write.
    pub fn is_open_for_writing(self, file: FileId) -> bool {
        self.is_open_with(file, DescriptionFlags::WRITE)
    }

    /// Whether some process holds a description of `file`.
    pub fn is_open(self, file: FileId) -> bool {
        self.is_open_with(file, DescriptionFlags::NONE)
    }

    fn is_open_with(self, file: FileId, flags: DescriptionFlags) -> bool {
        let is_it = |id: u32| {
            let description = self.get(id);
            state(description.word.load(Ordering::Acquire)) != description_state::FREE
                && description.file.load(Ordering::Acquire) == file
                && description.flags.load(Ordering::Relaxed).contains(flags)
        };
        // The bits of a few slots are less to look at than all descriptions.
        if self.slots.iter().nth(FEW_SLOTS).is_none() {
            return self.slots.iter().any(|slot| self.held_of(slot).any(is_it));
        }
        let is_held = |id: u32| self.held_by_any(id / 64) >> (id % 64) & 1 == 1;
        (0..self.ready()).any(|id| is_it(id) && is_held(id))
    }

    /// Whether some process may have `file` mapped in a way that keeps it direct. Certain for a
    /// thread that has the file exclusively: a process that maps it takes a description before it
    /// waits for that.
    pub fn is_mapped(self, file: FileId) -> bool {
        let maps = |description: &Description| {
            state(description.word.load(Ordering::SeqCst)) != description_state::FREE
                && description.file.load(Ordering::Acquire) == file
                && description.flags.load(Ordering::Relaxed).contains(DescriptionFlags::MAPPING)
        };
        self.all[..self.ready() as usize].iter().any(maps)
    }

    /// Whether the description of `marker` has not been freed since it was that.
    pub fn is_in_use(self, marker: Marker) -> bool {
        let word = self.get(marker.description).word.load(Ordering::SeqCst);
        generation(word) == marker.generation && state(word) != description_state::FREE
    }

    /// Which of the `files` records are of files that some process has open. For the node manager.
    pub fn open_files(self, files: u32) -> Vec<bool> {
        let mut open = vec![false; files as usize];
        for file in self.files() {
            if let Some(open) = open.get_mut(file.index()) {
                *open = true;
            }
        }
        open
    }

    /// The files that some process has open, each once for every description of it.
    pub fn files(self) -> impl Iterator<Item = FileId> {
        (0..self.words()).flat_map(move |word| {
            let held = self.held_by_any(word);
            let ids = self.ids_in(word).filter(move |id| held >> (id % 64) & 1 == 1);
            ids.map(move |id| self.get(id).file.load(Ordering::Acquire))
        })
    }

    /// The slots that hold a description of `file`.
    pub fn holders(self, file: FileId) -> impl Iterator<Item = u32> {
        let is_of = move |id: u32| self.get(id).file.load(Ordering::Acquire) == file;
        let holds = move |slot: &u32| self.held_of(*slot).any(is_of);
        self.slots.iter().filter(holds)
    }

    /// Lets all descriptions of `file` have seen its errors as far as `seen`. The caller holds the
    /// stripe of its record.
    pub fn note_errors_seen(self, file: FileId, seen: u32) {
        let is_of = |one: &&Description| one.file.load(Ordering::Acquire) == file;
        for description in self.all[..self.ready() as usize].iter().filter(is_of) {
            description.error_seen.store(seen, Ordering::Release);
        }
    }

    /// Notes at `now` that a descriptor of a held description is about to be sent to another
    /// process. It then lives without a holder until it is received, or for as long as the sweep
    /// waits for that.
    pub fn take_off(self, id: u32, now: u32) {
        let description = self.get(id);
        description.sent.store(now, Ordering::Relaxed);
        description.in_flight.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes that a descriptor of a held description was received, or could not be sent.
    pub fn land(self, id: u32) {
        let in_flight = &self.get(id).in_flight;
        let one_less = |count: u32| count.checked_sub(1);
        let _ = in_flight.fetch_update(Ordering::SeqCst, Ordering::Relaxed, one_less);
    }

    /// Frees descriptions that no process has held for `grace_ms`, nor sent to another for
    /// `flight_ms`: first they become zombies, which an exec under way can still adopt. For the
    /// node manager. `named` is called with each description that is not free, afterwards.
    pub fn sweep(self, now: u32, grace_ms: u32, flight_ms: u32, mut named: impl FnMut(u32)) {
        for word in 0..self.words() {
            let before = self.held_by_any(word);
            for id in self.ids_in(word) {
                let seen = self.get(id).word.load(Ordering::SeqCst);
                if state(seen) == description_state::FREE {
                    continue;
                }
                named(id);
                if before >> (id % 64) & 1 == 0 {
                    self.age(id, seen, now, grace_ms, flight_ms);
                }
            }
        }
    }

    /// Those of mappings that no process holds: to be [freed](Descriptions::free), which the sweep
    /// does not do.
    pub fn left_mappings(self) -> impl Iterator<Item = GivenUp> {
        // Before the bits, as when a process gives one up.
        let forks = self.forks.load(Ordering::SeqCst);
        let is_left = move |&id: &u32| {
            let description = self.get(id);
            state(description.word.load(Ordering::SeqCst)) == description_state::LIVE
                && description.flags.load(Ordering::Relaxed).contains(DescriptionFlags::MAPPING)
        };
        (0..self.words()).flat_map(move |word| {
            let held = self.held_by_any(word);
            let unheld = self.ids_in(word).filter(move |id| held >> (id % 64) & 1 == 0);
            unheld.filter(is_left).map(move |id| GivenUp { marker: self.marker(id), forks })
        })
    }

    /// Whether each that is not free is held by some process: there is nothing to sweep.
    pub fn are_settled(self) -> bool {
        (0..self.words()).all(|word| {
            let held = self.held_by_any(word);
            self.ids_in(word).all(|id| {
                held >> (id % 64) & 1 == 1
                    || state(self.get(id).word.load(Ordering::SeqCst)) == description_state::FREE
            })
        })
    }

    /// Brings description `id`, of which the word is `seen`, and which no process has held, one
    /// step nearer to being free, if it is time.
    fn age(self, id: u32, seen: u64, now: u32, grace_ms: u32, flight_ms: u32) {
        let description = self.get(id);
        // No exec wants it, and no clock tells when a child is there: see `left_mappings`.
        if description.flags.load(Ordering::Acquire).contains(DescriptionFlags::MAPPING) {
            return;
        }
        let next = match state(seen) {
            // It is its opener's, or that of the process that frees it, for as long as that lives.
            description_state::OPENING | description_state::CLOSING => return,
            description_state::LIVE => description_state::ZOMBIE,
            _ => {
                let since = description.zombie_since.load(Ordering::Relaxed);
                let is_in_flight = description.in_flight.load(Ordering::SeqCst) > 0;
                let sent = || description.sent.load(Ordering::Relaxed);
                if stamp_age(now, since) < grace_ms
                    || is_in_flight && stamp_age(now, sent()) < flight_ms
                {
                    return;
                }
                description_state::FREE
            }
        };
        if next == description_state::ZOMBIE {
            description.zombie_since.store(now, Ordering::Relaxed);
        }
        let exchange = |from, to| {
            let place = &description.word;
            place.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        };
        let swapped = word(generation(seen), next);
        crash::point("description.sweep");
        // A process may have taken part between the look at the bitmaps and the exchange.
        if exchange(seen, swapped) && self.held_by_any(id / 64) >> (id % 64) & 1 == 1 {
            exchange(swapped, word(generation(seen), description_state::LIVE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_recognized_and_nothing_else_is() {
        let marker =
            Marker { description: DESCRIPTIONS_MAX - 1, generation: (1 << GENERATION_BITS) - 1 };
        assert_eq!(Marker::decode(marker.encode()), Some(marker));
        assert_eq!(marker.encode(), Marker::HIGHEST);
        let lowest = Marker { description: 0, generation: 0 };
        assert_eq!(Marker::decode(lowest.encode()), Some(lowest));
        let around = [lowest.encode() - 1, Marker::HIGHEST + 1];
        for offset in
            [0, 1, 4096, 1 << 39, 1 << 40, 1 << 41, 1 << 42, u64::MAX].iter().chain(&around)
        {
            let offset = *offset;
            assert_eq!(Marker::decode(offset), None, "{offset}");
        }
    }
}
