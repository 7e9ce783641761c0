//! Tests of the descriptions on plain memory. Not in descriptions.rs, which the models include.

use crate::FileId;
use crate::descriptions::Descriptions;
use crate::layout::{Description, DescriptionFlags, FileRecord};
use crate::owner::Owner;
use crate::plain::zeroed;
use crate::slot_bits::SlotBits;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The first record.
const FILE: FileId = FileId::from_raw(0);
/// Client slots, that of the manager included.
const SLOTS: u32 = 4;

/// Descriptions, and the record of which they are.
struct Plain {
    record: Box<[FileRecord]>,
    all: Box<[Description]>,
    held: Box<[AtomicU64]>,
    ready: AtomicU32,
    forks: AtomicU32,
    taken: [AtomicU64; 1],
    high: AtomicU32,
    cursor: AtomicU32,
}

impl Plain {
    fn new(count: usize) -> Plain {
        Plain {
            record: zeroed(1),
            all: zeroed(count),
            held: zeroed(SLOTS as usize * count.div_ceil(64)),
            ready: AtomicU32::new(count as u32),
            forks: AtomicU32::new(0),
            taken: [AtomicU64::new((1 << SLOTS) - 1)],
            high: AtomicU32::new(SLOTS),
            cursor: AtomicU32::new(0),
        }
    }

    fn view(&self) -> Descriptions<'_> {
        let Plain { all, held, ready, forks, taken, high, cursor, .. } = self;
        let slots = SlotBits { words: taken, high, count: SLOTS };
        Descriptions { all, held, ready, forks, slots, cursor }
    }

    fn open(&self, file: u32, owner: Owner) -> Option<crate::Marker> {
        let flags = DescriptionFlags::READ;
        self.view().open(FileId::from_raw(file), &self.record[0], flags, owner)
    }
}

#[test]
fn a_description_in_flight_lives_without_a_holder_for_a_while() {
    let plain = Plain::new(128);
    let descriptions = plain.view();
    let (sender, receiver) = (Owner::new(1, 0), Owner::new(2, 0));
    let marker = plain.open(3, sender).unwrap();
    descriptions.take_off(marker.description, 10);
    descriptions.release(1, marker.description);
    for now in [20, 30, 40] {
        descriptions.sweep(now, 0, 100, |_| {});
    }
    assert!(descriptions.adopt(marker, receiver));
    descriptions.land(marker.description);
    descriptions.land(marker.description);
    descriptions.release(2, marker.description);
    descriptions.take_off(marker.description, 50);
    for now in [60, 160] {
        descriptions.sweep(now, 0, 100, |_| {});
    }
    let again = || plain.open(4, sender);
    while again().is_some_and(|other| other.description != marker.description) {}
    assert!(!descriptions.adopt(marker, receiver), "used for another file by now");
}

#[test]
fn a_description_lives_as_long_as_a_slot_holds_it() {
    let plain = Plain::new(128);
    let descriptions = plain.view();
    let (parent, child) = (Owner::new(1, 0), Owner::new(2, 0));
    let marker = plain.open(3, parent).unwrap();
    assert!(descriptions.adopt(marker, child));
    descriptions.release(1, marker.description);
    descriptions.sweep(1, 0, 0, |_| {});
    assert!(descriptions.held_elsewhere(1, marker.description));
    descriptions.release(2, marker.description);

    descriptions.sweep(2, 5, 0, |_| {});
    descriptions.sweep(3, 5, 0, |_| {});
    assert!(descriptions.adopt(marker, child), "a zombie can be revived");
    descriptions.release(2, marker.description);
    descriptions.sweep(4, 5, 0, |_| {});
    descriptions.sweep(10, 5, 0, |_| {});
    assert!(descriptions.adopt(marker, child), "so can a freed one that was not used again");
    descriptions.release(2, marker.description);
    descriptions.sweep(20, 0, 0, |_| {});
    descriptions.sweep(21, 0, 0, |_| {});
    plain.cursor.store(marker.description, Ordering::Relaxed);
    plain.open(4, parent).unwrap();
    assert!(!descriptions.adopt(marker, child));
}

#[test]
fn all_descriptions_in_use_is_reported() {
    let plain = Plain::new(64);
    let me = Owner::new(1, 0);
    assert!((0..64).all(|_| plain.open(0, me).is_some()));
    assert!(plain.open(0, me).is_none());
}

#[test]
fn what_a_process_holds_its_child_holds_until_it_gives_all_up() {
    let plain = Plain::new(128);
    let descriptions = plain.view();
    let ids: Vec<u32> =
        (0..100).map(|file| plain.open(file, Owner::new(1, 0)).unwrap().description).collect();
    descriptions.inherit(1, 2);
    assert!(descriptions.holders(FileId::from_raw(70)).eq([1, 2]));
    assert_eq!(descriptions.open_files(200), [[true; 100], [false; 100]].concat());
    descriptions.release_all(1);
    assert!(ids.iter().all(|&id| descriptions.held_elsewhere(1, id)));
    assert!(!ids.iter().any(|&id| descriptions.held_elsewhere(2, id)));
}

#[test]
fn what_a_process_died_opening_is_freed_by_the_sweep() {
    let plain = Plain::new(64);
    let descriptions = plain.view();
    let dead = Owner::new(3, 9);
    let marker = plain.open(0, dead).unwrap();
    let description = descriptions.get(marker.description);
    // As it is before it lives.
    let live = description.word.load(Ordering::Relaxed);
    let opening = live & !0xffff_ffff | u64::from(3u32 << 8 | 3);
    description.word.store(opening, Ordering::Relaxed);
    description.position.try_lock(dead).unwrap();
    descriptions.release_all(3);
    let count = || {
        let mut count = 0;
        descriptions.sweep(1, 0, 0, |_| count += 1);
        count
    };
    assert_eq!([count(), count()], [1, 1], "its opener may live");
    descriptions.reap(3);
    assert_eq!(description.position.holder(), None);
    assert_eq!([count(), count(), count()], [1, 1, 0]);
}

#[test]
fn a_number_beyond_the_table_is_held_by_no_process() {
    let plain = Plain::new(64);
    let beyond = crate::Marker { description: 64, generation: 0 };
    let far = crate::Marker { description: 0xffff, generation: 0 };
    assert!(![beyond, far].iter().any(|&marker| plain.view().is_wanted(marker)));
    assert!(!plain.view().adopt(beyond, Owner::new(1, 0)));
    assert!(plain.view().holders(FILE).next().is_none());
}

#[test]
fn slots_beyond_those_that_there_are_hold_nothing() {
    let plain = Plain::new(128);
    let marker = plain.open(0, Owner::new(SLOTS - 1, 0)).unwrap();
    let last = plain.view().held(SLOTS - 1, 1);
    last.store(1, Ordering::Relaxed);
    plain.taken[0].store(u64::MAX, Ordering::Relaxed);
    plain.high.store(u32::MAX, Ordering::Relaxed);
    assert!(plain.view().holders(FILE).eq([SLOTS - 1]));
    assert!(!plain.view().held_elsewhere(SLOTS - 1, 64));
    assert!(plain.view().is_wanted(marker));
    assert!(!plain.view().is_open_for_writing(FILE));
    assert_eq!(plain.view().open_files(1), [true]);
}

#[test]
fn what_is_given_up_is_freed_at_once_unless_a_process_may_come_to_it() {
    let plain = Plain::new(64);
    let descriptions = plain.view();
    let (one, other) = (Owner::new(1, 0), Owner::new(2, 0));
    let state = |marker: crate::Marker| {
        descriptions.get(marker.description).word.load(Ordering::Relaxed) as u32
    };
    let give_up = |marker: crate::Marker| descriptions.give_up(1, marker.description);
    let none = |_| false;

    let marker = plain.open(0, one).unwrap();
    assert!(descriptions.free(give_up(marker), one, none));
    assert_eq!(state(marker), 0);

    let held = plain.open(0, one).unwrap();
    assert!(descriptions.adopt(held, other));
    assert!(!descriptions.free(give_up(held), one, none), "another process has it");

    let sent = plain.open(0, one).unwrap();
    descriptions.take_off(sent.description, 1);
    assert!(!descriptions.free(give_up(sent), one, none), "a message has it");

    let forked = plain.open(0, one).unwrap();
    assert!(!descriptions.free(give_up(forked), one, |slot| slot == 2), "a child may have it");

    let begun = plain.open(0, one).unwrap();
    let given = give_up(begun);
    plain.forks.fetch_add(1, Ordering::Relaxed);
    assert!(!descriptions.free(given, one, none), "a child may have got it");

    let kernels = plain.open(0, one).unwrap();
    let flags = &descriptions.get(kernels.description).flags;
    flags.set(DescriptionFlags::KERNEL_OFFSET, Ordering::Relaxed);
    assert!(!descriptions.free(give_up(kernels), one, none), "a program without us may have it");

    for marker in [held, sent, forked, begun, kernels] {
        assert_eq!(state(marker), 1, "the sweep looks at it");
    }
    // One that died over it.
    let word = &descriptions.get(begun.description).word;
    word.store(word.load(Ordering::Relaxed) + 3 + (1 << 8), Ordering::Relaxed);
    descriptions.sweep(1, 0, 0, |_| {});
    assert_eq!(state(begun), 1 << 8 | 4);
    descriptions.reap(1);
    assert_eq!(state(begun), 1);
}

#[test]
fn a_table_grows_by_whole_pieces_when_all_are_in_use() {
    use crate::layout::{DESCRIPTIONS_PIECE, Geometry};
    let mut geometry = Geometry::for_tiers(4096, &[4 << 20]);
    geometry.descriptions = 2 * DESCRIPTIONS_PIECE;
    let (segment, _file) = crate::segment::anonymous(&geometry).unwrap();
    let identity = crate::Identity { device: 1, inode: 2 };
    let (me, child) = (Owner::new(1, 0), 2);
    (1..3).for_each(|slot| segment.clients().taken.set(slot));
    let file = segment.with_file_or_new(identity, me, |file, _| file).unwrap();
    let open = || segment.open_description(file, DescriptionFlags::READ, me);
    for _ in 0..DESCRIPTIONS_PIECE {
        assert!(open().unwrap().description < DESCRIPTIONS_PIECE);
    }
    assert_eq!(segment.descriptions().ready(), DESCRIPTIONS_PIECE);
    let beyond = open().unwrap();
    assert_eq!(beyond.description, DESCRIPTIONS_PIECE);
    assert_eq!(segment.descriptions().ready(), 2 * DESCRIPTIONS_PIECE);
    segment.descriptions().inherit(1, child);
    assert!(segment.descriptions().held_elsewhere(1, beyond.description));
    assert!(segment.descriptions().holders(file).eq([1, child]));
    segment.descriptions().release_all(child);
    assert!(!segment.descriptions().held_elsewhere(1, beyond.description));
    assert!((1..DESCRIPTIONS_PIECE).all(|_| open().is_some()));
    assert!(open().is_none(), "there are no more");
    segment.descriptions().release(1, 5);
    segment.descriptions().sweep(0, 0, 0, |_| {});
    segment.descriptions().sweep(0, 0, 0, |_| {});
    assert_eq!(open().map(|marker| marker.description), Some(5));
}

#[test]
fn a_mapping_ends_with_the_last_process_that_has_it() {
    let plain = Plain::new(128);
    let descriptions = plain.view();
    let (parent, manager) = (Owner::new(1, 0), Owner::new(0, 0));
    let map = || descriptions.open(FILE, &plain.record[0], DescriptionFlags::MAPPING, parent);
    let marker = map().unwrap();
    plain.open(1, parent).unwrap();
    assert!(descriptions.is_mapped(FILE) && !descriptions.is_mapped(FileId::from_raw(1)));
    descriptions.hold(2, marker.description);
    descriptions.release(1, marker.description);
    assert_eq!(descriptions.left_mappings().count(), 0, "the child has it");
    descriptions.release(2, marker.description);
    // No clock ends it: a child may be on its way that has it.
    for now in [1, 100, 100_000] {
        descriptions.sweep(now, 0, 0, |_| {});
    }
    let left = || descriptions.left_mappings().next().unwrap();
    assert!(!descriptions.free(left(), manager, |slot| slot == 3));
    assert!(descriptions.is_mapped(FILE) && descriptions.is_in_use(marker));
    let before = left();
    plain.forks.fetch_add(1, Ordering::SeqCst);
    assert!(!descriptions.free(before, manager, |_| false), "a fork began");
    assert!(descriptions.free(left(), manager, |_| false));
    assert!(!descriptions.is_mapped(FILE) && !descriptions.is_in_use(marker));
    assert_eq!(descriptions.left_mappings().count(), 0);
}
