//! Flipped bits in a small segment: each is found, or does no harm.

use super::*;
use crate::BucketId;
use crate::FileId;
use crate::entry::Entry;
use crate::files::Identity;
use crate::segment::{SegmentError, anonymous};
use rustix::fd::AsFd;

/// The first record.
const FILE: FileId = FileId::from_raw(0);

/// A segment with a file of three dirty blocks, one of them far away, and an open description.
fn filled() -> (Segment, rustix::fd::OwnedFd) {
    let (segment, file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18, 100 << 18])).unwrap();
    let me = Owner::new(1, 0);
    let identity = Identity { device: 7, inode: 9 };
    let inside = segment.enter_table(me);
    let record = segment.with_file_or_new(identity, me, |record, _| record).unwrap();
    for block in [0, 5, 70_000] {
        let bucket = segment.take_bucket(me).unwrap();
        core::mem::forget(segment.init_bucket(bucket, record, block, me).unwrap());
        let meta = segment.bucket(bucket).unwrap();
        meta.valid.store(0b1111, Ordering::Relaxed);
        meta.pages.reset(0b0110);
        let place = segment.entry_or_insert(segment.file(record), block, me).unwrap();
        place.store(Entry::resident(TierId::RAM, bucket).encode(), Ordering::Release);
        meta.lock.unlock_changed();
    }
    segment.file(record).size.store(70_001 << 18, Ordering::Relaxed);
    drop(inside);
    (segment, file)
}

fn refuses(segment: &Segment) -> bool {
    segment.check().iter().any(|finding| finding.remedy == Remedy::Refused)
}

#[test]
fn a_sound_segment_has_no_findings() {
    let (segment, file) = filled();
    assert_eq!(segment.check(), []);
    assert!(Segment::attach(file.as_fd()).is_ok());
    segment.recover(|_, _| ());
    assert_eq!(segment.check(), []);
}

#[test]
fn each_flipped_bit_of_what_never_changes_is_found() {
    let (segment, file) = filled();
    let header = segment.header();
    let base = std::ptr::from_ref(header).cast::<u8>().cast_mut();
    let offset = |field: *const u8| field as usize - base as usize;
    let mut bytes: Vec<usize> = (8..52).chain(56..64).collect();
    for tier in &header.tier {
        bytes.extend((0..8).map(|at| offset(std::ptr::from_ref(tier).cast()) + at));
        bytes.extend((0..56).map(|at| offset(tier.name.as_ptr()) + at));
        bytes.extend((0..LONG_PATH_BYTES).step_by(511).map(|at| offset(tier.path.as_ptr()) + at));
    }
    for store in &header.store {
        bytes.extend((0..12).map(|at| offset(std::ptr::from_ref(store).cast()) + at));
        bytes.extend(
            (0..SHARED_PATH_BYTES).step_by(51).map(|at| offset(store.shared.as_ptr()) + at),
        );
        bytes.extend((0..LONG_PATH_BYTES).step_by(511).map(|at| offset(store.path.as_ptr()) + at));
    }
    for (turn, at) in bytes.into_iter().enumerate() {
        let bit = 1u8 << (turn % 8);
        // SAFETY: a byte of the test's own segment.
        let byte = unsafe { &mut *base.add(at) };
        *byte ^= bit;
        let attached = Segment::attach(file.as_fd());
        *byte ^= bit;
        assert!(attached.is_err(), "bit {bit:#x} of byte {at} of the header was not missed");
    }
    assert!(Segment::attach(file.as_fd()).is_ok());
}

#[test]
fn marks_beyond_their_tables_are_refused_or_repaired() {
    let (segment, file) = filled();
    for mark in [&segment.header().files_high, &segment.header().ram_ready] {
        let before = mark.load(Ordering::Relaxed);
        mark.fetch_xor(1 << 30, Ordering::Relaxed);
        assert!(matches!(Segment::attach(file.as_fd()), Err(SegmentError::Damaged(_))));
        let (copy, wrong) = Segment::attach_copy(file.as_fd()).unwrap();
        assert!(wrong.is_none() && copy.check().is_empty());
        assert!(mark.load(Ordering::Relaxed) > 1 << 29, "a copy has changed what it copies");
        assert!(Segment::attach_repairing(file.as_fd()).unwrap().check().is_empty());
        mark.store(before, Ordering::Relaxed);
    }
    // One that is too low hides records until recovery looks for them.
    segment.header().files_high.store(0, Ordering::Relaxed);
    assert_eq!(segment.check().len(), 1);
    segment.recover(|_, _| ());
    assert_eq!((segment.check().len(), segment.files().live().count()), (0, 1));
}

/// As the pool of a default hierarchy is: its mapping is private, and was counted as memory.
#[test]
fn a_pool_that_is_larger_than_the_machine_is_copied() {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap();
    let words = |line: &str| line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok());
    let totals = memory.lines().filter(|line| line.contains("Total:"));
    let all = totals.take(2).filter_map(words).sum::<u64>() << 10;
    let tier = (2 * all).next_multiple_of(1 << 30);
    let file = rustix::fs::memfd_create("pool", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let geometry = Geometry::for_tiers(4096, &[tier]);
    let _segment = Segment::create(file.as_fd(), &geometry, |_| {}).unwrap();
    let (copy, wrong) = Segment::attach_copy(file.as_fd()).unwrap();
    assert!(wrong.is_none() && copy.check().is_empty());
}

type Damage = fn(&Segment);

#[test]
fn damage_that_could_lose_data_is_refused() {
    let damages: [(&str, Damage); 18] = [
        ("a bucket of another file", |s| {
            s.bucket(BucketId::from_raw(0))
                .unwrap()
                .file
                .store(FileId::from_raw(1), Ordering::Relaxed)
        }),
        ("a bucket of another block", |s| {
            s.bucket(BucketId::from_raw(0)).unwrap().block.store(9, Ordering::Relaxed)
        }),
        ("a bucket that counts as free", |s| {
            s.bucket(BucketId::from_raw(0)).unwrap().state.store(0, Ordering::Relaxed)
        }),
        ("a bucket taken by a process", |s| {
            s.bucket(BucketId::from_raw(0))
                .unwrap()
                .state
                .store(Owner::new(2, 3).raw(), Ordering::Relaxed)
        }),
        ("a lock without a holder", |s| {
            s.bucket(BucketId::from_raw(0)).unwrap().lock.try_lock(Owner::new(2, 3)).unwrap();
        }),
        ("a bucket of another file, under the lock of a manager", |s| {
            let meta = s.bucket(BucketId::from_raw(0)).unwrap();
            meta.lock.try_lock(Owner::new(MANAGER_SLOT, 3)).unwrap();
            meta.file.store(FileId::from_raw(77), Ordering::Relaxed);
        }),
        ("an entry lost", |s| s.file(FILE).entry0.store(0, Ordering::Relaxed)),
        ("an entry of another bucket", |s| {
            s.file(FILE).entry0.store(
                Entry::resident(TierId::RAM, BucketId::from_raw(1)).encode(),
                Ordering::Relaxed,
            );
        }),
        ("an entry of another tier", |s| {
            s.file(FILE).entry0.fetch_xor(1 << 56, Ordering::Relaxed);
        }),
        ("an entry of another node", |s| {
            s.file(FILE).entry0.fetch_xor(1 << 40, Ordering::Relaxed);
        }),
        ("a tree too high", |s| {
            s.file(FILE).root.fetch_xor(1 << 63, Ordering::Relaxed);
        }),
        ("a tree lower than it is", |s| {
            s.file(FILE).root.fetch_xor(1 << 56, Ordering::Relaxed);
        }),
        ("a tree in a ring", |s| {
            let (_, node) =
                crate::index::unpack(s.file(FILE).root.load(Ordering::Relaxed)).unwrap();
            let entry = &s.index().node(node).unwrap().entry;
            entry.iter().for_each(|e| e.store(u64::from(node) + 1, Ordering::Relaxed));
        }),
        ("a record without a holder", |s| s.file(FILE).state.store(1 << 20, Ordering::Relaxed)),
        ("another inode", |s| {
            s.file(FILE).inode.fetch_xor(1 << 3, Ordering::Relaxed);
        }),
        ("another store", |s| s.file(FILE).store.store(5, Ordering::Relaxed)),
        ("a truncate without an owner", |s| s.file(FILE).intent.store(1, Ordering::Relaxed)),
        ("an empty file table", |s| {
            (0..s.header().heads).for_each(|head| s.files().head(head).store(0, Ordering::Relaxed));
        }),
    ];
    for (what, damage) in damages {
        let (segment, _file) = filled();
        assert_eq!(segment.file(FILE).identity().inode, 9);
        damage(&segment);
        assert!(refuses(&segment), "{what}: {:?}", segment.check());
    }
}

#[test]
fn what_a_killed_process_leaves_is_no_finding() {
    let (segment, _file) = filled();
    let dead = Owner::new(3, 1);
    segment.clients().taken.set(3);
    segment.client(3).state.store(slot_state::LIVE, Ordering::Relaxed);
    let _inside = segment.enter_table(dead);
    // In the middle of filling a fresh bucket that no entry names yet.
    let bucket = segment.take_bucket(dead).unwrap();
    core::mem::forget(segment.init_bucket(bucket, FILE, 7, dead).unwrap());
    segment.bucket(bucket).unwrap().pages.reset(1);
    core::mem::forget(segment.lock_chain(3, Owner::new(dead.slot(), 2)));
    segment.file(FILE).exclusive.store(dead.raw(), Ordering::Relaxed);
    segment.file(FILE).intent.store(1, Ordering::Relaxed);
    assert_eq!(segment.check(), []);
}

#[test]
fn a_file_ahead_of_the_store_that_the_manager_passes_over_is_found() {
    let (segment, _file) = filled();
    segment.file(FILE).set(FileFlags::METADATA_DIRTY);
    let opens = segment.files().count_opens(FILE).unwrap();
    segment.files().settle(FILE, opens, || true);
    assert_eq!(segment.check(), [], "a new manager looks at all");
    let (header, pid) = (segment.header(), std::process::id());
    header.manager_start.store(crate::liveness::start_time(pid).unwrap_or(0), Ordering::Relaxed);
    header.manager_pid.store(pid, Ordering::Relaxed);
    let found = segment.check();
    assert!(matches!(&found[..], [one] if one.remedy == Remedy::Repaired), "{found:?}");
    segment.files().touch(FILE);
    assert_eq!(segment.check(), []);
}

#[test]
fn strays_in_free_maps_and_caches_are_repaired() {
    let (segment, _file) = filled();
    // Tier 1 has 100 buckets from 64 on.
    segment.free_buckets(TierId::new(1)).offer(64 + 120);
    segment.client(2).buckets[3].store(u32::MAX, Ordering::Relaxed);
    assert!(segment.bucket(BucketId::from_raw(0)).unwrap().pages.dirty() != 0);
    segment.client(0).buckets[0].store(1, Ordering::Relaxed);
    assert_eq!(segment.check().len(), 2);
    assert!(!refuses(&segment));
    segment.client(2).buckets[3].store(0, Ordering::Relaxed);
    segment.recover(|_, _| ());
    assert_eq!(segment.check(), []);
    assert_eq!(
        segment.bucket(BucketId::from_raw(0)).unwrap().pages.dirty(),
        0b0110,
        "freed in use"
    );
}

/// xorshift64*.
fn next(state: &mut u64) -> usize {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d) as usize >> 8
}

/// Whatever bits flip, looking and recovering end, and no block that was dirty is lost by a
/// recovery that does not refuse.
#[test]
fn random_damage_is_refused_or_costs_nothing() {
    let seed = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| crate::clock::realtime_ns() | 1);
    eprintln!("FOREBAY_SEED={seed}");
    let mut random = seed;
    let (segment, file) = filled();
    let base = std::ptr::from_ref(segment.header()).cast::<u8>().cast_mut();
    let at = |field: *const u8| field as usize - base as usize;
    let tables = at(segment.bucket_data(BucketId::from_raw(0)));
    // SAFETY: the test's own segment, which no other test uses.
    let bytes = unsafe { core::slice::from_raw_parts_mut(base, tables) };
    let used: Vec<usize> = (0..tables).filter(|&at| bytes[at] != 0).collect();
    // Nothing else says which pages are dirty.
    let words = |bucket: BucketId| {
        let meta = segment.bucket(bucket).unwrap();
        at(std::ptr::from_ref(&meta.valid).cast())..at(std::ptr::from_ref(&meta.written).cast())
    };
    let unprotected: Vec<_> = segment.header().bucket_ids().map(words).collect();
    let (mut refused, mut recovered) = (0, 0);
    for case in 0..600 {
        let mut changed = Vec::new();
        for _ in 0..1 + next(&mut random) % 3 {
            let any = next(&mut random) % tables;
            let place = used[next(&mut random) % used.len()] / 8 * 8 + next(&mut random) % 8;
            let place = if next(&mut random).is_multiple_of(4) { any } else { place };
            changed.push((place, bytes[place]));
            bytes[place] ^= 1 << (next(&mut random) % 8);
        }
        let sound = Segment::attach_copy(file.as_fd()).ok().filter(|(_, wrong)| wrong.is_none());
        let sound = sound.map(|(copy, _)| copy).filter(|copy| !refuses(copy));
        if let Some(copy) = sound {
            copy.recover(|_, _| ());
            recovered += 1;
            let known = changed.iter().all(|(at, _)| unprotected.iter().all(|w| !w.contains(at)));
            let left: u64 = copy.files().live().map(|file| copy.pending_bytes(file)).sum();
            assert!(!known || left == 6 * 4096, "case {case}: {left} bytes left, {changed:?}");
        } else {
            refused += 1;
        }
        changed.into_iter().rev().for_each(|(place, byte)| bytes[place] = byte);
    }
    assert!(refused > 10 && recovered > 10, "{refused} refused, {recovered} recovered");
    assert_eq!(segment.check(), []);
}
