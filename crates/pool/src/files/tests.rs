use super::*;
use crate::clients::Clients;
use crate::index::{Index, IndexNodes, NodeStates};
use crate::plain::zeroed;
use crate::ranks::Stripe;
use crate::segment::{anonymous, set_text};
use crate::seq_lock::RobustSeqLock;
use crate::slot_bits::SlotBits;
use crate::sync::{AtomicU32, AtomicU64};
use rustix::fd::AsFd;

/// A table of files on plain memory.
struct Plain {
    records: Box<[FileRecord]>,
    heads: Box<[AtomicU32]>,
    stripes: Box<[RobustSeqLock<Stripe>]>,
    touched: Box<[AtomicU64]>,
    free: Box<[AtomicU64]>,
    ready: AtomicU32,
    cursor: AtomicU32,
    high: AtomicU32,
}

impl Plain {
    fn new(files: usize) -> Plain {
        Plain {
            records: zeroed(files),
            heads: zeroed((files * 2).next_power_of_two()),
            stripes: zeroed(4),
            touched: zeroed(files.div_ceil(64)),
            free: zeroed(files.div_ceil(64)),
            ready: AtomicU32::new(files as u32),
            cursor: AtomicU32::new(0),
            high: AtomicU32::new(0),
        }
    }

    fn view(&self) -> Files<'_> {
        let Plain { records, heads, stripes, touched, free, ready, cursor, high } = self;
        Files { records, heads, stripes, touched, free, ready, cursor, high }
    }

    fn lock(&self, identity: Identity, owner: Owner) -> Chain<'_> {
        let chain = self.view().chain_of(identity);
        self.view().locked(chain, self.view().stripe(chain).guard(owner).unwrap())
    }

    /// The record of `identity`, and whether it is new.
    fn open(&self, identity: Identity, owner: Owner) -> Option<(FileId, bool)> {
        let insert = |chain: &Chain<'_>| chain.insert(identity, owner, |_| ());
        self.lock(identity, owner).open(identity, insert, |file, new| (file, new))
    }

    fn remove(&self, file: FileId, owner: Owner) -> bool {
        let opens = self.view().count_opens(file).unwrap();
        let chain = self.lock(self.view().get(file).identity(), owner);
        chain.remove(file, owner, opens, || true, no_nodes())
    }
}

/// An index in which nothing is.
fn no_nodes() -> IndexNodes<'static> {
    let (index, states) = (Index::of(&[]), NodeStates(&[]));
    IndexNodes { index, states, bits: &[], cache: &[] }
}

/// The first record.
const FILE: FileId = FileId::from_raw(0);

#[test]
fn changes_of_a_name_by_others_are_told_from_those_of_other_names() {
    let changes = AtomicU64::new(0);
    let last = [const { AtomicU64::new(0) }; CHANGED_NAMES];
    let names = Names { changes: &changes, last: &last };
    let change = |path: &str| names.changed(names.changes(), path.as_bytes());
    let before = names.changes();
    assert!(!names.may_others_have_changed(before, b"file"));
    change("folder/file");
    assert!(!names.may_others_have_changed(before, b"/else/where/file"));
    change("folder/files");
    change("file/other/");
    assert!(!names.may_others_have_changed(before, b"file"));
    change("file//");
    assert!(names.may_others_have_changed(before, b"file"));
    assert!(!names.may_others_have_changed(before, b"files"));
    // Which names they were is not known any more.
    (0..CHANGED_NAMES).for_each(|number| _ = change(&number.to_string()));
    assert!(names.may_others_have_changed(before, b"files"));
    // One is being noted.
    let before = names.changes();
    changes.fetch_add(1, Ordering::SeqCst);
    change("files");
    assert!(names.may_others_have_changed(before, b"files"));
}

/// A path of `length` bytes below `root`.
fn path_below(root: &str, length: usize) -> Vec<u8> {
    let name = "0123456789".repeat(length / 10 + 1);
    [root.as_bytes(), b"/folder/", name.as_bytes()].concat()[..length].to_vec()
}

#[test]
fn a_record_is_known_by_its_path() {
    let memory = rustix::fs::memfd_create("paths", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let geometry = Geometry::for_tiers(4096, &[64 << 18]);
    let roots = ["/store", "/", "/storehouse/deep"];
    let segment = Segment::create(memory.as_fd(), &geometry, |header| {
        header.stores = roots.len() as u32;
        for (store, root) in header.store.iter_mut().zip(roots) {
            set_text(&mut store.path, root.as_bytes());
        }
    });
    let segment = segment.unwrap();
    let (record, neighbour) = (segment.file(FILE), segment.file(FILE.next()));
    // In the record, in either table, and as it fits just so into each.
    let lengths = [20, 78, 79, 80, 81, 150, 198, 199, 200, 300, 759, PATH_BYTES];
    let mut text = [1; PATH_BYTES + 1];
    for (store, root) in roots.into_iter().enumerate() {
        record.store.store(store as u32, Ordering::Relaxed);
        for (&length, other) in lengths.iter().zip(lengths.iter().rev()) {
            for root in [root, "/elsewhere"] {
                let (path, beside) = (path_below(root, length), path_below(root, *other));
                segment.set_path(neighbour, &beside);
                segment.set_path(record, &path);
                assert_eq!(segment.path_of(record), path);
                assert_eq!(segment.path_of(neighbour), beside);
                assert_eq!(segment.copy_path(record, &mut text).unwrap().to_bytes(), path);
                assert!(segment.has_path(record, &path) && !segment.has_path(record, &path[1..]));
                let name = last_part(&path);
                assert!(segment.is_called(record, name));
                let wrong = [&name[1..], b"folder", b"", &path[..], &path[1..]];
                assert!(!wrong.iter().any(|other| segment.is_called(record, other)));
                let renamed = [&path[..length - name.len()], b"new"].concat();
                assert!(!segment.rename_last(record, b"other", b"new"));
                assert!(segment.rename_last(record, name, b"new"));
                assert_eq!(segment.path_of(record), renamed);
                let back = renamed.len() - 3 + name.len() <= PATH_BYTES;
                assert_eq!(segment.rename_last(record, b"new", name), back);
                assert_eq!(segment.path_of(record), path);
            }
        }
    }
    // One directly in its store's directory, and one in another's.
    record.store.store(0, Ordering::Relaxed);
    segment.set_path(record, b"/store/file");
    assert!(segment.is_called(record, b"file") && segment.rename_last(record, b"file", b"f"));
    segment.set_path(record, b"/storehouse/deep/file");
    assert_eq!(segment.path_of(record), b"/storehouse/deep/file");
    segment.move_path(record, 2, b"/storehouse/deep/file");
    assert_eq!(segment.path_of(record), b"/storehouse/deep/file");
    assert_eq!(record.path_length.load(Ordering::Relaxed), 4);
    // No path is better than a part of one.
    segment.set_path(record, &path_below("/store", PATH_BYTES + 1));
    assert_eq!(segment.copy_path(record, &mut text), Some(c""));
    record.path_length.store(u32::MAX, Ordering::Relaxed);
    assert_eq!(segment.path_of(record), b"");
    segment.set_path(record, &path_below("/store", 100));
    assert!(!segment.rename_last(record, last_part(&path_below("/store", 100)), &[b'x'; 800]));
}

#[test]
fn the_table_of_files_grows_until_it_is_full() {
    let files = 2 * FILES_PIECE + 100;
    let geometry = Geometry { files, ..Geometry::for_tiers(4096, &[64 << 18]) };
    let (segment, _file) = anonymous(&geometry).unwrap();
    let me = Owner::new(1, 0);
    let _inside = segment.enter_table(me);
    assert_eq!(segment.header().files_ready(), FILES_PIECE);
    let make = |inode| {
        let identity = Identity { device: 1, inode };
        segment.with_file_or_new(identity, me, |file, new| new.then_some(file)).flatten()
    };
    for inode in 0..u64::from(files) {
        let file = make(inode).unwrap();
        segment.set_path(segment.file(file), format!("/{inode}").as_bytes());
    }
    assert_eq!((make(u64::from(files)), segment.header().files_ready()), (None, files));
    assert_eq!(segment.files().live().count() as u32, files);
    assert_eq!(segment.check(), []);
    for inode in [0, 1, u64::from(FILES_PIECE), u64::from(files) - 1] {
        let file = segment.with_file(Identity { device: 1, inode }, me, |file| file).unwrap();
        assert_eq!(segment.path_of(segment.file(file.unwrap())), format!("/{inode}").as_bytes());
    }
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
        let opens = segment.files().count_opens(file).unwrap();
        assert!(!segment.remove_file(file, alone(file), me, opens, || false));
        if id.inode % 2 == 0 {
            assert!(segment.remove_file(file, alone(file), me, opens, || true));
        }
    }
    for &id in &identities {
        assert_eq!(segment.files().may_have(id), id.inode % 2 == 1);
    }
}

#[test]
fn a_thread_that_others_wait_for_does_not_wait_for_one_in_the_table() {
    let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
    let (program, manager) = (Owner::new(1, 0), Owner::new(2, 0));
    let process = segment.client(1);
    segment.clients().taken.set(1);
    process.pid.store(std::process::id(), Ordering::Relaxed);
    process.state.store(slot_state::LIVE, Ordering::Release);
    let [_of_program, _of_manager] = [program, manager].map(|owner| segment.enter_table(owner));
    let id = Identity { device: 1, inode: 7 };
    let found = || segment.with_file_at_once(id, manager, |file| file);
    assert_eq!(found(), Some(None));
    let made = segment.with_file_or_new(id, program, |file, _| {
        // It is stopped here, perhaps.
        assert_eq!(found(), None);
        file
    });
    assert_eq!(found(), Some(made));
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
    let opens = segment.files().count_opens(file).unwrap();
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

/// Inode numbers as file systems give them: one after the other, in steps, and from many places.
#[test]
fn chains_are_short_and_those_of_files_that_are_made_together_lie_in_few_pages() {
    const HEADS: u32 = 1 << 16;
    let identity = |inode: u64| Identity { device: 0xfd02, inode };
    let steps = [1, 2, 3, 7, 8, 16, 40, 63, 64, 65, 128, 256, 4096, 1 << 20, 1 << 32];
    for step in steps {
        let mut chains = vec![0u32; HEADS as usize];
        let all = (0..HEADS.into()).map(|number: u64| identity(12_345 + number * step));
        all.for_each(|one| chains[one.head(HEADS) as usize] += 1);
        let longest = *chains.iter().max().unwrap();
        let used = chains.iter().filter(|length| **length != 0).count();
        assert!(longest <= 16 && used > HEADS as usize / 4, "step {step}: {longest}, {used} used");
    }
    let pages = |inodes: core::ops::Range<u64>| {
        let pages = inodes.map(|inode| identity(inode).head(1 << 20) / 1024);
        pages.collect::<std::collections::BTreeSet<u32>>().len()
    };
    assert!(pages(6_014_233..6_014_633) <= 16);
}

#[test]
fn what_is_known_of_small_files_that_are_made_together_lies_together() {
    let (segment, _memory) = anonymous(&Geometry::for_tiers(4096, &[64 << 20])).unwrap();
    let at = |inode, block| {
        core::ptr::from_ref(segment.trail(Identity { device: 0xfd02, inode }, block).0) as usize
    };
    let first = 6_014_208;
    assert_eq!(first % 64, 0);
    let is_next = |(one, other): (usize, usize)| other.wrapping_sub(one) == size_of::<u64>();
    let neighbours = (first..first + 63).map(|inode| (at(inode, 0), at(inode + 1, 0)));
    // The last place may be in between.
    assert!(neighbours.filter(|pair| is_next(*pair)).count() >= 62);
    let blocks = (1..63).map(|block| (at(first, block), at(first, block + 1)));
    assert!(blocks.filter(|pair| is_next(*pair)).count() >= 61);
    assert_ne!(at(first, 1), at(first + 1, 1), "those of larger files are not all there");
}

#[test]
fn a_search_that_stands_on_a_record_of_another_chain_begins_again() {
    let plain = Plain::new(8);
    let (files, me) = (plain.view(), Owner::new(1, 0));
    let chain = files.chain_of(Identity { device: 1, inode: 1 });
    let mut same = (1..).map(|inode| Identity { device: 1, inode });
    let mut next = |is: bool| same.find(|&id| (files.chain_of(id) == chain) == is).unwrap();
    let (behind, before, elsewhere) = (next(true), next(true), next(false));
    let make = |id| plain.open(id, me).unwrap().0;
    let (behind_at, before_at) = (make(behind), make(before));
    // Another thread has come as far as this.
    let link = files.head(chain).load(Ordering::Acquire);
    assert_eq!(link, before_at.link());
    assert!(plain.remove(before_at, me));
    plain.cursor.store(0, Ordering::Relaxed);
    assert_eq!(make(elsewhere), before_at, "not used again");
    assert_eq!(files.search_from(link, chain, behind), Some(behind_at));
    assert_eq!(files.search_from(link, chain, before), None);
}

#[test]
fn a_record_that_was_opened_since_its_opens_were_counted_is_not_removed() {
    let plain = Plain::new(8);
    let (files, me) = (plain.view(), Owner::new(1, 0));
    let identity = Identity { device: 1, inode: 1 };
    let (file, _) = plain.open(identity, me).unwrap();
    let opens = files.count_opens(file).unwrap();
    assert_eq!(plain.open(identity, me), Some((file, false)));
    let remove = |opens| {
        let chain = plain.lock(identity, me);
        assert_eq!(files.count_opens(file), None, "a thread may be opening it");
        chain.remove(file, me, opens, || true, no_nodes())
    };
    assert!(!remove(opens) && files.may_have(identity));
    assert!(remove(files.count_opens(file).unwrap()) && !files.may_have(identity));
    assert_eq!(files.live().count(), 0);
}

#[test]
fn what_a_process_died_linking_is_in_the_table_if_it_is_linked() {
    let plain = Plain::new(8);
    let (files, dead, reaper) = (plain.view(), Owner::new(3, 1), Owner::reaper(3));
    let (linked, not) = (Identity { device: 1, inode: 1 }, Identity { device: 1, inode: 2 });
    let both = [linked, not].map(|identity| plain.open(identity, dead).unwrap().0);
    assert!(plain.remove(both[1], dead));
    // As of a process that took a record for it, and was killed.
    files.touch(both[1]);
    both.iter().for_each(|&file| files.get(file).state.store(dead.raw(), Ordering::Relaxed));
    let left: Vec<_> = files.left_by(3).map(|(file, _)| file).collect();
    assert_eq!(left, both);
    for &file in &left {
        plain.lock(files.get(file).identity(), reaper).reap(file, no_nodes());
    }
    assert!(files.live().eq([both[0]]) && files.left_by(3).next().is_none());
    assert_eq!(files.get(both[1]).state.load(Ordering::Relaxed), file_state::FREE);
}

#[test]
fn only_files_that_something_happened_to_are_looked_at() {
    let plain = Plain::new(200);
    let (files, me) = (plain.view(), Owner::new(1, 0));
    let identity = |inode| Identity { device: 1, inode };
    let all: Vec<FileId> =
        (0..200).map(|inode| plain.open(identity(inode), me).unwrap().0).collect();
    let settle = |file, settled: bool| {
        let opens = files.count_opens(file).unwrap();
        files.settle(file, opens, || settled);
        files.is_touched(file)
    };
    assert!(files.touched().eq(all.iter().copied()), "new ones are looked at");
    for &file in &all {
        assert!(settle(file, false) && !settle(file, true));
    }
    assert_eq!(files.touched().count(), 0);
    // Opened again, or marked; across words, and in the last one.
    let (opened, marked) = (all[63], all[199]);
    assert_eq!(plain.open(identity(63), me), Some((opened, false)));
    files.touch(marked);
    assert!(files.touched().eq([opened, marked]));
    // One that was opened since is looked at again.
    let opens = files.count_opens(opened).unwrap();
    plain.open(identity(63), me).unwrap();
    files.settle(opened, opens, || true);
    assert!(files.is_touched(opened));
    // What leaves the table leaves nothing to be looked at, and what comes there does.
    assert!(plain.remove(opened, me) && files.touched().eq([marked]));
    assert!(!files.is_touched(opened));
    plain.cursor.store(0, Ordering::Relaxed);
    assert_eq!(plain.open(identity(1000), me), Some((opened, true)));
    assert!(files.touched().eq([opened, marked]));
    assert!(files.live_from(60, 5).eq(all[60..65].iter().copied()));
    assert!(files.live_from(198, u32::MAX).eq(all[198..].iter().copied()));
}

#[test]
fn free_records_are_taken_again_from_the_lowest_on() {
    let plain = Plain::new(200);
    let (files, me) = (plain.view(), Owner::new(1, 0));
    let mut inodes = 0..;
    let mut open = || {
        let identity = Identity { device: 1, inode: inodes.next().unwrap() };
        plain.open(identity, me).map(|(file, _)| file.raw())
    };
    assert!((0..190).all(|number| open() == Some(number)));
    let file = |number| FileId::from_raw(number);
    for number in [130, 3, 64] {
        assert!(plain.remove(file(number), me));
    }
    for number in [3, 64, 130, 190] {
        assert_eq!(open(), Some(number));
    }
    // A process was killed that had taken the note, and not yet the record.
    assert!(plain.remove(file(70), me));
    plain.free[1].fetch_and(!(1 << 6), Ordering::Relaxed);
    assert_eq!(open(), Some(191));
    files.note_free(0, 70);
    assert_eq!(open(), Some(192));
    files.note_free(70, 1);
    assert_eq!(open(), Some(70));
    // A note that is not true does no harm, nor does one of what is not there.
    plain.free.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
    plain.cursor.store(0, Ordering::Relaxed);
    assert!((193..200).all(|number| open() == Some(number)) && open().is_none());
    // Nor does a search that begins too high.
    assert!(plain.remove(file(5), me));
    plain.cursor.store(200, Ordering::Relaxed);
    assert_eq!((open(), open()), (Some(5), None));
}

#[test]
fn a_new_manager_looks_at_all_files() {
    let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
    (1..3).for_each(|slot| segment.clients().taken.set(slot));
    let me = Owner::new(1, 0);
    let open = |inode| {
        let identity = Identity { device: 1, inode };
        segment.with_file_or_new(identity, me, |file, _| file).unwrap()
    };
    let both = [open(1), open(2)];
    for file in both {
        let opens = segment.files().count_opens(file).unwrap();
        segment.files().settle(file, opens, || true);
    }
    assert_eq!(segment.files().touched().count(), 0);
    segment.recover(|_, _| ());
    assert!(segment.files().touched().eq(both));
}

#[test]
fn threads_that_are_inside_wait_for_no_second_shared_lock() {
    let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
    let id = Identity { device: 1, inode: 1 };
    segment.clients().taken.set(1);
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
    let plain = Plain::new(8);
    let open = |inode| plain.open(Identity { device: 1, inode }, Owner::new(1, 0));
    assert!((0..8).all(|inode| open(inode) == Some((FileId::from_raw(inode as u32), true))));
    assert_eq!((open(8), open(7)), (None, Some((FileId::from_raw(7), false))));
}

#[test]
fn an_error_is_told_once_to_each_and_unseen_to_one_later() {
    let plain = Plain::new(1);
    let record = plain.view().get(FILE);
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
    (1..3).for_each(|slot| segment.clients().taken.set(slot));
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

#[test]
fn slots_and_a_record_are_enough_to_enter_a_file_and_to_have_it_alone() {
    let (slots, record) = (zeroed::<ClientSlot>(3), &zeroed::<FileRecord>(1)[0]);
    let (reader, other) = (Owner::new(1, 1), Owner::new(2, 1));
    let (words, high) = ([AtomicU64::new(0b110)], AtomicU32::new(3));
    let manager = (&AtomicU32::new(0), &AtomicU64::new(0));
    let clients = Clients {
        slots: &slots,
        taken: SlotBits { words: &words, high: &high, count: 3 },
        manager,
        manager_epoch: manager.0,
        unrecorded: &[const { AtomicU32::new(0) }; UNRECORDED],
    };
    let enter = || slots[1].try_enter(FILE, record, reader);
    let inside = enter().unwrap();
    assert!(clients.try_lock_exclusive(FILE, record, other).is_none());
    drop(inside);
    let alone = clients.try_lock_exclusive(FILE, record, other).unwrap();
    assert_eq!(enter().unwrap_err(), other);
    assert!(clients.try_lock_exclusive(FileId::from_raw(1), record, reader).is_none());
    drop(alone);
    assert!(enter().is_ok() && !slots[1].is_inside());
}

#[test]
fn files_in_use_are_those_that_are_open_or_to_be_looked_at() {
    let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
    let pid = std::process::id();
    let slot = segment.clients().claim(pid, 1).unwrap();
    let me = Owner::new(slot, 1);
    let make = |inode| {
        let identity = Identity { device: 1, inode };
        segment.with_file_or_new(identity, me, |file, _| file).unwrap()
    };
    let all: Vec<FileId> = (0..500).map(make).collect();
    let (open, marked) = (all[7], all[70]);
    segment.open_description(open, DescriptionFlags::NONE, me).unwrap();
    // As the node manager does for a moment, although one was opened just now.
    for word in segment.files().touched {
        word.store(0, Ordering::Relaxed);
    }
    segment.files().touch(marked);
    assert!(segment.files_in_use().eq([open, marked]), "and none of the 498 others");
}
