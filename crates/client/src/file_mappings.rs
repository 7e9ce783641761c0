//! Mappings of files: a file that processes have mapped is direct, and is buffered again when the
//! last of them is gone.
//!
//! Each mapping has a description of its own, so that it ends as a descriptor does: with the
//! process, and with an exec, and only for one of the two after a fork. This process knows where
//! each of its mappings lies, and gives the description up when all of that is unmapped. What is
//! unmapped in part, or moved, is not followed any further: its description is kept until the
//! process ends. So is one for which there is no place here, and the file then stays direct until
//! it is closed everywhere. See docs/design/open-file.md#mappings.

use crate::later::{Later, Zeros};
use crate::open_file::OpenFile;
use crate::session::Session;
use crate::waiting::surely;
use core::ffi::c_void;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use forebay_pool::layout::*;
use forebay_pool::{Marker, crash};
use rustix::io::Errno;

/// Mappings of a process that are followed. With each unmapping they are looked at.
const FOLLOWED: usize = 256;

const PAGE: usize = 4096;

/// What a mmap returns that fails.
const FAILED: usize = usize::MAX;

/// States of a place.
mod state {
    pub const FREE: u32 = 0;
    /// Some thread is about to map a file, and takes a description for that.
    pub const TAKEN: u32 = 1;
    /// It has one, and the mapping may be there, or not.
    pub const MAPPING: u32 = 2;
    /// The mapping is where the place says, or has been unmapped where that could not be seen.
    pub const MAPPED: u32 = 3;
    /// Some thread unmaps it.
    pub const UNMAPPING: u32 = 4;
    /// Where the mapping is, and whether, is not known: the description is kept.
    pub const KEPT: u32 = 5;
}

struct Place {
    state: AtomicU32,
    description: AtomicU32,
    generation: AtomicU32,
    start: AtomicUsize,
    end: AtomicUsize,
}

impl Place {
    fn is(&self, wanted: u32) -> bool {
        self.state.load(Ordering::Acquire) == wanted
    }

    fn becomes(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn hold(&self, marker: Marker) {
        self.description.store(marker.description, Ordering::Relaxed);
        self.generation.store(marker.generation, Ordering::Relaxed);
        self.state.store(state::MAPPING, Ordering::Release);
    }

    fn marker(&self) -> Marker {
        Marker {
            description: self.description.load(Ordering::Relaxed),
            generation: self.generation.load(Ordering::Relaxed),
        }
    }

    /// Not if a handler has forked meanwhile, and this is the child.
    fn mapped(&self, lies: Range<usize>) {
        self.start.store(lies.start, Ordering::Relaxed);
        self.end.store(lies.end, Ordering::Relaxed);
        self.becomes(state::MAPPING, state::MAPPED);
    }

    fn lies(&self) -> Range<usize> {
        self.start.load(Ordering::Relaxed)..self.end.load(Ordering::Relaxed)
    }
}

/// The mappings of a process that are followed.
pub(crate) struct FileMappings {
    places: Later<Places>,
    /// One more than the last place that was ever taken.
    high: AtomicUsize,
    /// So many may be.
    most: usize,
}

struct Places([Place; FOLLOWED]);

// SAFETY: atomics, and a place of zeros is free.
unsafe impl Zeros for Places {}
const _: () = assert!(state::FREE == 0);

impl FileMappings {
    pub fn new() -> FileMappings {
        FileMappings { places: Later::new(), high: AtomicUsize::new(0), most: FOLLOWED }
    }

    /// None is followed.
    pub fn none() -> FileMappings {
        FileMappings { most: 0, ..FileMappings::new() }
    }

    /// Whether any may be followed.
    pub fn are_followed(&self) -> bool {
        self.most > 0
    }

    fn used(&self) -> &[Place] {
        let high = self.high.load(Ordering::Acquire).min(FOLLOWED);
        self.places.get().map_or(&[], |places| &places.0[..high])
    }

    fn take(&self) -> Option<&Place> {
        let is_taken = |place: &Place| place.becomes(state::FREE, state::TAKEN);
        if !self.are_followed() {
            return None;
        }
        let places = &self.places.get_or_make()?.0[..self.most];
        let at = places.iter().position(is_taken)?;
        self.high.fetch_max(at + 1, Ordering::AcqRel);
        Some(&places[at])
    }

    /// The descriptions of all mappings that there may be.
    fn held(&self) -> impl Iterator<Item = Marker> {
        let has_one = |place: &&Place| !place.is(state::FREE) && !place.is(state::TAKEN);
        self.used().iter().filter(has_one).map(Place::marker)
    }

    /// In a forked child: the threads that were about to map or unmap are not here.
    pub fn forked(&self) {
        for place in self.used() {
            place.becomes(state::TAKEN, state::FREE);
            place.becomes(state::MAPPING, state::KEPT);
            place.becomes(state::UNMAPPING, state::KEPT);
        }
    }

    /// Follows none any further that lies in `range`, and not as a whole if `but_whole`.
    fn keep(&self, range: &Range<usize>, but_whole: bool) {
        for place in self.used().iter().filter(|place| place.is(state::MAPPED)) {
            let lies = place.lies();
            let is_touched = lies.start < range.end && range.start < lies.end;
            let is_whole = range.start <= lies.start && lies.end <= range.end;
            if is_touched && !(but_whole && is_whole) {
                place.becomes(state::MAPPED, state::KEPT);
            }
        }
    }
}

/// The pages of `length` bytes at `address`.
fn pages(address: *const c_void, length: usize) -> Range<usize> {
    let start = address.addr();
    start..start.saturating_add(length.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX))
}

impl OpenFile<'_> {
    /// Maps `length` bytes of the file through `call`, a mmap, in a way that shows what is written
    /// from now on, or lets the program write: the file is direct for as long as the mapping, or a
    /// child's, is there.
    ///
    /// # Errors
    /// The errno of the flush; `call` was not called then.
    pub fn map(
        &self,
        length: usize,
        call: impl FnOnce() -> *mut c_void,
    ) -> Result<*mut c_void, Errno> {
        let Some(place) = self.session.mappings.take() else {
            self.hold_mapping();
            return self.make_direct(call);
        };
        let Some(marker) = self.describe_mapping() else {
            place.becomes(state::TAKEN, state::FREE);
            return self.make_direct(call);
        };
        // Before there is a mapping: a child that another thread forks finds it here.
        place.hold(marker);
        crash::point("mapping.held");
        let mapped = self.make_mapped(call);
        match mapped {
            Ok(address) if address.addr() != FAILED => place.mapped(pages(address, length)),
            _ if place.becomes(state::MAPPING, state::UNMAPPING) => self.session.unmapped(place),
            _ => {}
        }
        mapped
    }

    /// Keeps the file direct for as long as this process or a child of it may have it mapped, or
    /// open where that cannot be seen. The caller turns it direct.
    pub fn hold_mapping(&self) {
        let generation = self.record.generation.load(Ordering::Relaxed).wrapping_add(1);
        let held = self.session.mapped.get(self.id.index());
        if held.is_some_and(|held| held.swap(generation, Ordering::AcqRel) == generation) {
            return;
        }
        let _ = self.describe_mapping();
    }

    /// Takes a description for a mapping of the file. `None` if all are in use; later records of
    /// the file are direct then, for as long as this process lives.
    fn describe_mapping(&self) -> Option<Marker> {
        let identity = self.record.identity();
        let open = |file| {
            let owner = self.session.owner();
            let held =
                self.session.segment.open_description(file, DescriptionFlags::MAPPING, owner);
            if held.is_none() {
                self.session.segment.clients().note_unrecorded(identity, owner);
            }
            held
        };
        let opened = surely(|| {
            let owner = self.session.owner();
            let _inside = self.session.segment.enter_table(owner);
            self.session.segment.reopen_file(identity, owner, open)
        });
        opened.ok().flatten().flatten()
    }
}

impl Session {
    /// Calls `call`, which unmaps `length` bytes at `address`, perhaps to map something else there,
    /// if `is_done` says so of its result.
    #[inline]
    pub fn unmapping<R>(
        &self,
        address: *const c_void,
        length: usize,
        call: impl FnOnce() -> R,
        is_done: impl FnOnce(&R) -> bool,
    ) -> R {
        if self.mappings.used().is_empty() {
            return call();
        }
        let range = pages(address, length);
        self.mappings.keep(&range, true);
        // Before the call: after it another thread may have mapped a file there.
        let within = |place: &&Place| {
            let lies = place.lies();
            place.is(state::MAPPED) && range.start <= lies.start && lies.end <= range.end
        };
        let mut places = [None; FOLLOWED];
        let found = self.mappings.used().iter().filter(within);
        for (mine, place) in places.iter_mut().zip(found) {
            *mine = place.becomes(state::MAPPED, state::UNMAPPING).then_some(place);
        }
        let result = call();
        let done = is_done(&result);
        for place in places.into_iter().flatten() {
            match done {
                true => self.unmapped(place),
                // Some of it may be gone.
                false => _ = place.becomes(state::UNMAPPING, state::KEPT),
            }
        }
        result
    }

    /// To be called before what is mapped in `length` bytes at `address` is moved, or its length
    /// changed.
    #[inline]
    pub fn moving_mapping(&self, address: *const c_void, length: usize) {
        // A mapping of which no byte is moved is duplicated.
        self.mappings.keep(&pages(address, length.max(1)), false);
    }

    /// Gives up the description of a mapping that is gone.
    fn unmapped(&self, place: &Place) {
        crash::point("mapping.gone");
        let descriptions = self.segment.descriptions();
        let marker = place.marker();
        let file = self.segment.description(marker.description).file.load(Ordering::Acquire);
        let identity = self.segment.file(file).identity();
        let given = descriptions.give_up(self.slot(), marker.description);
        crash::point("mapping.given-up");
        let freed = self.segment.free_description(given, self.owner());
        place.becomes(state::UNMAPPING, state::FREE);
        if freed {
            // Where it was not freed, or a process dies before this, the node manager finds out.
            let note = |known: Option<_>| {
                if known == Some(file) && self.segment.file(file).has(FileFlags::MAPPED) {
                    self.segment.file(file).set(FileFlags::UNMAPPED);
                }
            };
            let _ = surely(|| self.with_record(identity, note));
        }
    }

    /// Notes that client slot `slot`, a child's, has the mappings that this process has. The child
    /// counts as one that is on its way.
    pub(crate) fn hold_mapped(&self, slot: u32) {
        let descriptions = self.segment.descriptions();
        for marker in self.mappings.held().filter(|&marker| descriptions.is_in_use(marker)) {
            descriptions.hold(slot, marker.description);
        }
    }

    /// Before this process gives up all that it holds: what it has mapped stays direct.
    pub(crate) fn keep_mapped_direct(&self) {
        for marker in self.mappings.held() {
            let file = self.segment.description(marker.description).file.load(Ordering::Acquire);
            self.segment.file(file).clear(FileFlags::MAPPED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped_at(mappings: &FileMappings, lies: Range<usize>) -> &Place {
        let place = mappings.take().unwrap();
        place.hold(Marker { description: 1, generation: 1 });
        place.mapped(lies);
        place
    }

    #[test]
    fn what_is_touched_in_part_is_not_followed_any_further() {
        let mappings = FileMappings::new();
        let place = mapped_at(&mappings, 2 * PAGE..4 * PAGE);
        for (range, whole) in
            [(0..2 * PAGE, false), (4 * PAGE..9 * PAGE, false), (0..8 * PAGE, true)]
        {
            mappings.keep(&range, whole);
            assert!(place.is(state::MAPPED), "{range:?}");
        }
        mappings.keep(&(3 * PAGE..8 * PAGE), true);
        assert!(place.is(state::KEPT));
        let other = mapped_at(&mappings, 8 * PAGE..9 * PAGE);
        mappings.keep(&pages(core::ptr::without_provenance(8 * PAGE), 1), false);
        assert!(other.is(state::KEPT));
    }

    #[test]
    fn a_forked_child_keeps_what_other_threads_were_about_to_change() {
        let mappings = FileMappings::new();
        let taken = mappings.take().unwrap();
        let mapping = mappings.take().unwrap();
        mapping.hold(Marker { description: 7, generation: 3 });
        let unmapping = mapped_at(&mappings, 0..PAGE);
        assert!(unmapping.becomes(state::MAPPED, state::UNMAPPING));
        mappings.forked();
        assert!(taken.is(state::FREE) && mapping.is(state::KEPT) && unmapping.is(state::KEPT));
        assert_eq!(mappings.held().count(), 2);
        // The thread that forked in the middle of it, by a signal handler, goes on.
        mapping.mapped(0..PAGE);
        assert!(mapping.is(state::KEPT));
    }

    #[test]
    fn a_process_follows_so_many_mappings_and_no_more() {
        let mappings = FileMappings::new();
        assert!((0..FOLLOWED).all(|_| mappings.take().is_some()));
        assert!(mappings.take().is_none() && FileMappings::none().take().is_none());
    }
}
