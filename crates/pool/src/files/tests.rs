use super::*;
use crate::segment::anonymous;

/// The first record.
const FILE: FileId = FileId::from_raw(0);

#[test]
fn changes_of_a_name_by_others_are_told_from_those_of_other_names() {
    let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
    let change = |path: &str| segment.name_changed(segment.name_changes(), path.as_bytes());
    let before = segment.name_changes();
    assert!(!segment.may_others_have_changed(before, b"file"));
    change("folder/file");
    assert!(!segment.may_others_have_changed(before, b"/else/where/file"));
    change("folder/files");
    change("file/other/");
    assert!(!segment.may_others_have_changed(before, b"file"));
    change("file//");
    assert!(segment.may_others_have_changed(before, b"file"));
    assert!(!segment.may_others_have_changed(before, b"files"));
    // Which names they were is not known any more.
    (0..CHANGED_NAMES).for_each(|number| _ = change(&number.to_string()));
    assert!(segment.may_others_have_changed(before, b"files"));
    // One is being noted.
    let before = segment.name_changes();
    segment.header().name_changes.fetch_add(1, Ordering::SeqCst);
    change("files");
    assert!(segment.may_others_have_changed(before, b"files"));
}

#[test]
fn a_record_is_called_by_the_last_part_of_its_path() {
    let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
    let record = segment.file(FILE);
    record.set_path(b"/folder/file");
    assert!(record.is_called(b"file"));
    for other in [&b"ile"[..], b"files", b"folder", b"", b"older/file", b"/folder/file"] {
        assert!(!record.is_called(other), "{other:?}");
    }
    let mut path = [1; PATH_BYTES + 1];
    assert_eq!(record.copy_path(&mut path), Some(c"/folder/file"));
}

#[test]
fn a_record_is_found_by_identity_until_it_is_removed() {
    let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
    let me = Owner::new(1, 0);
    let inside = segment.enter_table(me);
    let alone = |file| segment.try_lock_exclusive(&inside, file, me).unwrap();
    let identities: Vec<_> = (0..500).map(|n| Identity { device: n % 3, inode: n * 7 }).collect();
    for &id in &identities {
        let new = segment.with_file_or_new(id, me, |_, new| new);
        assert_eq!(new, Some(true));
    }
    for &id in &identities {
        let file = segment.with_file(id, me, |file| file).unwrap().unwrap();
        assert_eq!(segment.file(file).identity(), id);
        let opens = segment.count_opens(file).unwrap();
        assert!(!segment.remove_file(file, alone(file), me, opens, || false));
        if id.inode % 2 == 0 {
            assert!(segment.remove_file(file, alone(file), me, opens, || true));
        }
    }
    for &id in &identities {
        assert_eq!(segment.may_have(id), id.inode % 2 == 1);
    }
}

#[test]
fn a_sync_of_a_file_that_loses_its_record_is_not_waited_for() {
    let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
    let me = Owner::new(1, 0);
    let inside = segment.enter_table(me);
    let alone = |file| segment.try_lock_exclusive(&inside, file, me).unwrap();
    let make = |inode| {
        segment.with_file_or_new(Identity { device: 1, inode }, me, |file, _| file).unwrap()
    };
    let ask = |file| {
        let found = segment.found(file);
        (found, segment.request_sync(file, None, true))
    };
    let file = make(1);
    let (found, first) = ask(file);
    let (_, second) = ask(file);
    segment.file(file).sync_done.store(first, Ordering::Release);
    assert_eq!(segment.sync_state(found, first), SyncState::Done);
    assert_eq!(segment.sync_state(found, second), SyncState::Waiting);
    let opens = segment.count_opens(file).unwrap();
    assert!(segment.remove_file(file, alone(file), me, opens, || true));
    assert_eq!(segment.sync_state(found, second), SyncState::Gone);
    // Asked for when it has none already.
    let (late, third) = ask(file);
    assert_eq!(segment.sync_state(late, third), SyncState::Gone);
    segment.header().file_cursor.store(0, Ordering::Relaxed);
    assert_eq!(make(2), file, "not used again");
    for (found, ticket) in [(found, second), (late, third)] {
        assert_eq!(segment.sync_state(found, ticket), SyncState::Gone);
    }
    let (found, ticket) = ask(file);
    assert_eq!(segment.sync_state(found, ticket), SyncState::Waiting);
}

#[test]
fn each_bit_of_an_identity_says_which_chain_it_is_in() {
    let heads = Geometry::for_tiers(4096, &[64 << 18]).files.next_power_of_two();
    let identity = Identity { device: 0xfd02, inode: 6_014_233 };
    let flipped = |bit: u32| {
        let (one, Identity { device, inode }) = (1u64 << bit, identity);
        [Identity { device, inode: inode ^ one }, Identity { device: device ^ one, inode }]
    };
    for other in (0..64).flat_map(flipped) {
        assert_ne!(other.head(heads), identity.head(heads), "{other:?}");
    }
}

#[test]
fn a_search_that_stands_on_a_record_of_another_chain_begins_again() {
    let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
    let me = Owner::new(1, 0);
    let inside = segment.enter_table(me);
    let alone = |file| segment.try_lock_exclusive(&inside, file, me).unwrap();
    let heads = segment.header().heads;
    let head = Identity { device: 1, inode: 1 }.head(heads);
    let mut same = (1..).map(|inode| Identity { device: 1, inode });
    let mut next = |is: bool| same.find(|id| (id.head(heads) == head) == is).unwrap();
    let (behind, before, elsewhere) = (next(true), next(true), next(false));
    let make = |id| segment.with_file_or_new(id, me, |file, _| file).unwrap();
    let (behind_at, before_at) = (make(behind), make(before));
    // Another thread has come as far as this.
    let link = segment.head(head).load(Ordering::Acquire);
    assert_eq!(link, before_at.link());
    let opens = segment.count_opens(before_at).unwrap();
    assert!(segment.remove_file(before_at, alone(before_at), me, opens, || true));
    segment.header().file_cursor.store(0, Ordering::Relaxed);
    assert_eq!(make(elsewhere), before_at, "not used again");
    assert_eq!(segment.search_from(link, head, behind), Some(behind_at));
    assert_eq!(segment.search_from(link, head, before), None);
}

#[test]
fn threads_that_are_inside_wait_for_no_second_shared_lock() {
    let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
    let id = Identity { device: 1, inode: 1 };
    segment.header().clients_high.store(2, Ordering::SeqCst);
    let owners: Vec<_> = (0..SHARED_LOCKS as u32).map(|thread| Owner::new(1, thread)).collect();
    let outer: Vec<_> = owners.iter().map(|&owner| segment.enter_table(owner)).collect();
    let file = segment.with_file_or_new(id, owners[0], |file, _| file).unwrap();
    let other = Owner::new(2, 0);
    let may_exclude = || segment.try_lock_exclusive_record(file, other).is_some();
    for (&owner, table) in owners.iter().zip(outer) {
        let again = segment.enter_table(owner);
        let inside = segment.try_enter(file, owner).unwrap();
        let twice = segment.try_enter(file, owner).unwrap();
        assert!(!may_exclude());
        drop(twice);
        segment.step_out(file, owner, &inside);
        let exclusive = segment.try_lock_exclusive_record(file, other).unwrap();
        assert_eq!(segment.try_step_in(file, owner, &inside), Err(other));
        drop(exclusive);
        segment.try_step_in(file, owner, &inside).unwrap();
        assert!(!may_exclude());
        drop(inside);
        drop(again);
        assert!(may_exclude());
        drop(table);
    }
    let words = &segment.client(1).shared_locks;
    assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
}

#[test]
fn a_full_table_says_so() {
    let mut geometry = Geometry::for_tiers(4096, &[64 << 18]);
    geometry.files = 8;
    let (segment, _file) = anonymous(&geometry).unwrap();
    let me = Owner::new(1, 0);
    let made: Vec<_> = (0..9)
        .map(|inode| segment.with_file_or_new(Identity { device: 1, inode }, me, |_, new| new))
        .collect();
    assert_eq!(made[..8], [Some(true); 8]);
    assert_eq!(made[8], None);
}

#[test]
fn an_error_is_told_once_to_each_and_unseen_to_one_later() {
    let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
    let record = segment.file(FILE);
    let open = || AtomicU32::new(record.sample_errors());
    let (one, two) = (open(), open());
    assert_eq!(record.check_errors(&one), None);
    record.report(28);
    // No program has learned of it: a description opened now will.
    let three = open();
    assert_eq!(record.check_errors(&one), Some(28));
    assert_eq!(record.check_errors(&one), None);
    // Opened after one has: no news.
    let four = open();
    assert_eq!([&two, &three, &four].map(|d| record.check_errors(d)), [Some(28), Some(28), None]);
    record.report(5);
    record.report(28);
    assert_eq!((record.failures(), record.last_errno()), (3, 28));
    let told = [&one, &two, &three, &four].map(|d| record.check_errors(d));
    assert_eq!(told, [Some(28); 4], "two errors are told as one, the last");
    assert_eq!(record.check_errors(&four), None);
}

#[test]
fn errors_of_a_file_before_are_told_to_none_that_has_the_new_one_open() {
    let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
    let record = segment.file(FILE);
    let open = |file, slot| {
        segment.open_description(file, DescriptionFlags::NONE, Owner::new(slot, 0)).unwrap()
    };
    let [one, two, other] = [open(FILE, 1), open(FILE, 2), open(FileId::from_raw(1), 1)]
        .map(|marker| marker.description);
    let seen = |id: u32| &segment.description(id).error_seen;
    record.report(5);
    segment.file(FileId::from_raw(1)).report(5);
    segment.have_errors_seen(FILE);
    let told = [one, two].map(|id| record.check_errors(seen(id)));
    assert_eq!(told, [None, None]);
    assert_eq!(segment.file(FileId::from_raw(1)).check_errors(seen(other)), Some(5));
    record.report(28);
    let told = [one, two].map(|id| record.check_errors(seen(id)));
    assert_eq!(told, [Some(28), Some(28)]);
}

#[test]
fn exclusive_use_waits_for_those_inside() {
    let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
    segment.header().clients_high.store(3, Ordering::Relaxed);
    let (reader, truncater) = (Owner::new(1, 0), Owner::new(2, 0));
    let inside = segment.try_enter(FileId::from_raw(5), reader).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let table = segment.enter_table(truncater);
            core::mem::forget(
                segment.lock_exclusive(&table, FileId::from_raw(5), truncater).unwrap(),
            );
        });
        while segment.file(FileId::from_raw(5)).exclusive.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(
            segment.try_enter(FileId::from_raw(5), Owner::new(1, 1)).unwrap_err(),
            truncater
        );
        assert!(!waiting.is_finished());
        drop(inside);
        waiting.join().unwrap();
    });
    assert!(segment.try_enter(FileId::from_raw(5), reader).is_err());
    drop(segment.take_exclusive(FileId::from_raw(5), truncater, truncater).unwrap());
    assert!(segment.try_enter(FileId::from_raw(5), reader).is_ok());
}
