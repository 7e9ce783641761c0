//! Open-file descriptions, shared by dup, fork and exec, and the marker by which a new image
//! recognizes the ones it inherited.

use crate::FileId;
use crate::crash;
use crate::layout::*;
use crate::owner::Owner;
use crate::segment::Segment;
use crate::sync::{AtomicU64, Ordering};

const MARKER_BASE: u64 = 1 << 42;
const GENERATION_BITS: u32 = 24;

/// A description and its generation, as carried by the kernel's offset of the descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marker {
    /// The description.
    pub description: u32,
    /// Its generation, 24 bits.
    pub generation: u32,
}

impl Marker {
    /// The kernel offset to set.
    pub fn encode(self) -> u64 {
        MARKER_BASE | u64::from(self.generation) << 16 | u64::from(self.description)
    }

    /// The marker in a kernel offset, if it is one.
    pub fn decode(offset: u64) -> Option<Marker> {
        if offset >> (16 + GENERATION_BITS) != MARKER_BASE >> (16 + GENERATION_BITS) {
            return None;
        }
        Some(Marker {
            description: offset as u32 & 0xffff,
            generation: (offset >> 16) as u32 & ((1 << GENERATION_BITS) - 1),
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

impl Segment {
    fn held_bit(&self, slot: u32, description: u32) -> (&AtomicU64, u64) {
        (self.held(slot, description / 64), 1 << (description % 64))
    }

    /// Notes that `slot` holds `description`.
    pub fn hold(&self, slot: u32, description: u32) {
        let (place, bit) = self.held_bit(slot, description);
        place.fetch_or(bit, Ordering::SeqCst);
    }

    /// Notes that `slot` no longer holds `description`; the manager frees what no process holds.
    pub fn release(&self, slot: u32, description: u32) {
        let (place, bit) = self.held_bit(slot, description);
        place.fetch_and(!bit, Ordering::SeqCst);
    }

    /// Whether some other slot than `slot` holds `description`.
    pub fn held_elsewhere(&self, slot: u32, description: u32) -> bool {
        (1..self.header().clients_high.load(Ordering::Acquire)).any(|other| {
            let (place, bit) = self.held_bit(other, description);
            other != slot && place.load(Ordering::SeqCst) & bit != 0
        })
    }

    /// Whether the description of `marker` may still be used: some process holds it, or it is on
    /// its way to one, or a program without Forebay has it.
    pub fn is_wanted(&self, marker: Marker) -> bool {
        let description = self.description(marker.description);
        self.marker(marker.description) == marker
            && (self.held_elsewhere(0, marker.description)
                || description.in_flight.load(Ordering::SeqCst) > 0
                || description
                    .flags
                    .load(Ordering::SeqCst)
                    .contains(DescriptionFlags::KERNEL_OFFSET))
    }

    /// Takes a free description for `file` and notes that `owner`'s process holds it. `None` when
    /// all are in use. The caller has a shared lock, and holds the stripe of the record, see
    /// [`crate::opens`], or another description of the file.
    pub fn open_description(
        &self,
        file: FileId,
        flags: DescriptionFlags,
        owner: Owner,
    ) -> Option<Marker> {
        if crash::refused("description") {
            return None;
        }
        let count = self.header().descriptions;
        for _ in 0..count {
            let cursor = &self.header().description_cursor;
            let id = cursor.fetch_add(1, Ordering::Relaxed) % count;
            let description = self.description(id);
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
            let record = self.file(file);
            description.file.store(file, Ordering::Relaxed);
            description
                .file_generation
                .store(record.generation.load(Ordering::Relaxed), Ordering::Relaxed);
            description.flags.store(flags, Ordering::Relaxed);
            description.offset.store(0, Ordering::Relaxed);
            description.in_flight.store(0, Ordering::Relaxed);
            description.error_seen.store(record.sample_errors(), Ordering::Release);
            crash::point("description.named");
            // Last: a live one says what it is of, and who holds it.
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
    pub fn adopt(&self, marker: Marker, owner: Owner) -> bool {
        if marker.description >= self.header().descriptions {
            return false;
        }
        let place = &self.description(marker.description).word;
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

    /// Lets live what dead processes of `slot` were opening or taking part in: the sweep then frees
    /// it, unless others hold it. `reaper` has made sure that they are dead.
    pub(crate) fn reap_openings(&self, slot: u32) {
        let dead = opening_by(Owner::new(slot, 0));
        for id in 0..self.header().descriptions {
            let place = &self.description(id).word;
            let seen = place.load(Ordering::SeqCst);
            if seen as u32 == dead {
                let live = word(generation(seen), description_state::LIVE);
                let _ = place.compare_exchange(seen, live, Ordering::SeqCst, Ordering::Relaxed);
            }
        }
    }

    /// The marker of a description that is held.
    pub fn marker(&self, description: u32) -> Marker {
        let word = self.description(description).word.load(Ordering::Relaxed);
        Marker { description, generation: generation(word) }
    }

    /// Whether some process holds a description of `file` that can write.
    pub fn is_open_for_writing(&self, file: FileId) -> bool {
        let slots = self.header().clients_high.load(Ordering::Acquire);
        let writes = |&id: &u32| {
            let description = self.description(id);
            state(description.word.load(Ordering::Acquire)) != description_state::FREE
                && description.file.load(Ordering::Acquire) == file
                && description.flags.load(Ordering::Relaxed).contains(DescriptionFlags::WRITE)
        };
        let held = |id: u32| {
            (1..slots)
                .any(|slot| self.held(slot, id / 64).load(Ordering::Acquire) >> (id % 64) & 1 == 1)
        };
        (0..self.header().descriptions).filter(writes).any(held)
    }

    /// Which files some process has open, by file record. For the node manager.
    pub fn open_files(&self) -> Vec<bool> {
        let mut open = vec![false; self.header().files as usize];
        let slots = self.header().clients_high.load(Ordering::SeqCst);
        for word in 0..self.header().descriptions / 64 {
            let held =
                (1..slots).fold(0, |all, slot| all | self.held(slot, word).load(Ordering::SeqCst));
            for bit in (0..64).filter(|bit| held >> bit & 1 == 1) {
                let file = self.description(word * 64 + bit).file.load(Ordering::Acquire);
                if let Some(open) = open.get_mut(file.index()) {
                    *open = true;
                }
            }
        }
        open
    }

    /// The processes that hold a description of `file`.
    pub fn holders(&self, file: FileId) -> impl Iterator<Item = u32> {
        let holds = move |slot: &u32| {
            let held = |word| self.held(*slot, word).load(Ordering::SeqCst);
            let of_file =
                |description| self.description(description).file.load(Ordering::Acquire) == file;
            (0..self.header().descriptions / 64).any(|word| {
                let held = held(word);
                (0..64).any(|bit| held >> bit & 1 == 1 && of_file(word * 64 + bit))
            })
        };
        let slots = 1..self.header().clients_high.load(Ordering::SeqCst);
        slots.filter(holds).map(|slot| self.client(slot).pid.load(Ordering::Acquire))
    }

    /// Notes at `now` that a descriptor of a held description is about to be sent to another
    /// process. It then lives without a holder until it is received, or until the sweep loses
    /// patience.
    pub fn take_off(&self, description: u32, now: u32) {
        let description = self.description(description);
        description.sent.store(now, Ordering::Relaxed);
        description.in_flight.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes that a descriptor of a held description was received, or could not be sent.
    pub fn land(&self, description: u32) {
        let in_flight = &self.description(description).in_flight;
        let one_less = |count: u32| count.checked_sub(1);
        let _ = in_flight.fetch_update(Ordering::SeqCst, Ordering::Relaxed, one_less);
    }

    /// Frees descriptions that no process has held for `grace_ms`, nor sent to another for
    /// `flight_ms`: first they become zombies, which an exec under way can still adopt. For the
    /// node manager. `named` is called with each description that is not free, afterwards.
    pub fn sweep_descriptions(
        &self,
        now: u32,
        grace_ms: u32,
        flight_ms: u32,
        mut named: impl FnMut(u32),
    ) {
        for chunk in 0..self.header().descriptions / 64 {
            // A process may have joined, and hold one, since the last look.
            let held = || {
                let slots = self.header().clients_high.load(Ordering::SeqCst);
                (1..slots).fold(0, |all, slot| all | self.held(slot, chunk).load(Ordering::SeqCst))
            };
            let before = held();
            for bit in 0..64 {
                let id = chunk * 64 + bit;
                let description = self.description(id);
                let seen = description.word.load(Ordering::SeqCst);
                let state = state(seen);
                if state == description_state::FREE {
                    continue;
                }
                named(id);
                // One that is being opened is its opener's, for as long as that lives.
                if before >> bit & 1 == 1 || state == description_state::OPENING {
                    continue;
                }
                let next = match state {
                    description_state::LIVE => description_state::ZOMBIE,
                    _ => {
                        let since = description.zombie_since.load(Ordering::Relaxed);
                        if crate::clock::stamp_age(now, since) < grace_ms
                            || description.in_flight.load(Ordering::SeqCst) > 0
                                && crate::clock::stamp_age(
                                    now,
                                    description.sent.load(Ordering::Relaxed),
                                ) < flight_ms
                        {
                            continue;
                        }
                        description_state::FREE
                    }
                };
                if next == description_state::ZOMBIE {
                    description.zombie_since.store(now, Ordering::Relaxed);
                }
                let swapped = word(generation(seen), next);
                crash::point("description.sweep");
                let done = description
                    .word
                    .compare_exchange(seen, swapped, Ordering::SeqCst, Ordering::Relaxed)
                    .is_ok();
                // A process may have taken part between the look at the bitmaps and the exchange.
                if done && held() >> bit & 1 == 1 {
                    let live = word(generation(seen), description_state::LIVE);
                    let _ = description.word.compare_exchange(
                        swapped,
                        live,
                        Ordering::SeqCst,
                        Ordering::Relaxed,
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::anonymous;

    /// The first record.
    const FILE: FileId = FileId::from_raw(0);

    #[test]
    fn markers_are_recognized_and_nothing_else_is() {
        let marker = Marker { description: 65535, generation: (1 << 24) - 1 };
        assert_eq!(Marker::decode(marker.encode()), Some(marker));
        for offset in [0, 1, 4096, 1 << 41, (1 << 42) - 1, 1 << 43, u64::MAX] {
            assert_eq!(Marker::decode(offset), None, "{offset}");
        }
    }

    #[test]
    fn a_description_in_flight_lives_without_a_holder_for_a_while() {
        let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
        segment.header().clients_high.store(4, Ordering::Relaxed);
        let (sender, receiver) = (Owner::new(1, 0), Owner::new(2, 0));
        let marker =
            segment.open_description(FileId::from_raw(3), DescriptionFlags::READ, sender).unwrap();
        segment.take_off(marker.description, 10);
        segment.release(1, marker.description);
        for now in [20, 30, 40] {
            segment.sweep_descriptions(now, 0, 100, |_| {});
        }
        assert!(segment.adopt(marker, receiver));
        segment.land(marker.description);
        segment.land(marker.description);
        segment.release(2, marker.description);
        segment.take_off(marker.description, 50);
        for now in [60, 160] {
            segment.sweep_descriptions(now, 0, 100, |_| {});
        }
        let again =
            || segment.open_description(FileId::from_raw(4), DescriptionFlags::READ, sender);
        while again().is_some_and(|other| other.description != marker.description) {}
        assert!(!segment.adopt(marker, receiver), "used for another file by now");
    }

    #[test]
    fn a_description_lives_as_long_as_a_slot_holds_it() {
        let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
        segment.header().clients_high.store(4, Ordering::Relaxed);
        let (parent, child) = (Owner::new(1, 0), Owner::new(2, 0));
        let marker =
            segment.open_description(FileId::from_raw(3), DescriptionFlags::READ, parent).unwrap();
        assert!(segment.adopt(marker, child));
        segment.release(1, marker.description);
        segment.sweep_descriptions(1, 0, 0, |_| {});
        assert!(segment.held_elsewhere(1, marker.description));
        segment.release(2, marker.description);

        segment.sweep_descriptions(2, 5, 0, |_| {});
        segment.sweep_descriptions(3, 5, 0, |_| {});
        assert!(segment.adopt(marker, child), "a zombie can be revived");
        segment.release(2, marker.description);
        segment.sweep_descriptions(4, 5, 0, |_| {});
        segment.sweep_descriptions(10, 5, 0, |_| {});
        assert!(segment.adopt(marker, child), "so can a freed one that was not used again");
        segment.release(2, marker.description);
        segment.sweep_descriptions(20, 0, 0, |_| {});
        segment.sweep_descriptions(21, 0, 0, |_| {});
        segment.header().description_cursor.store(marker.description, Ordering::Relaxed);
        segment.open_description(FileId::from_raw(4), DescriptionFlags::NONE, parent).unwrap();
        assert!(!segment.adopt(marker, child));
    }

    #[test]
    fn all_descriptions_in_use_is_reported() {
        let mut geometry = Geometry::for_tiers(4096, &[64 << 18]);
        geometry.descriptions = 64;
        let (segment, _file) = anonymous(&geometry).unwrap();
        let me = Owner::new(1, 0);
        assert!(
            (0..64).all(|_| segment.open_description(FILE, DescriptionFlags::NONE, me).is_some())
        );
        assert!(segment.open_description(FILE, DescriptionFlags::NONE, me).is_none());
    }
}
