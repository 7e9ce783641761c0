//! Containers on plain files: what does not need a node manager.

use super::*;
use crate::records::index::SLOT;
use crate::report::code;
use std::fs;
use std::path::PathBuf;

struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("forebay-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Place(path)
    }

    fn open(&self, settings: Settings) -> Container<u64> {
        Container::open(&self.0, "c", settings, 1000).unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join("c.records").join(name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn value(id: u64, round: u64, at: usize) -> u64 {
    (id + 1) * 1_000_003 + round * 7919 + at as u64
}

fn put(container: &mut Container<u64>, id: u64, round: u64) {
    container.iter_mut().enumerate().for_each(|(at, to)| *to = value(id, round, at));
    container.write(id).unwrap();
}

fn expect(container: &mut Container<u64>, id: u64, round: u64) {
    container.fill(0);
    container.read(id).unwrap();
    let is_right = |(at, &found): (usize, &u64)| found == value(id, round, at);
    assert!(container.iter().enumerate().all(is_right), "record {id}");
}

#[test]
fn each_order_and_layout_gives_the_bytes_that_were_written() {
    let place = Place::new("orders");
    for settings in [Settings::default(), Settings::default().file_per_record()] {
        for (settings, is_back) in
            [(settings, false), (settings.lifo(), true), (settings.detect(), true)]
        {
            for helpers in [0, 1, 3] {
                let settings = settings.helpers(helpers).limits(40_000, None);
                let mut container = place.open(settings);
                let start = container.as_ptr();
                for round in 0..3 {
                    (0..30).for_each(|id| put(&mut container, id, round));
                    let ids: Vec<_> =
                        if is_back { (0..30).rev().collect() } else { (0..30).collect() };
                    ids.into_iter().for_each(|id| expect(&mut container, id, round));
                }
                assert_eq!(container.as_ptr(), start, "elements stay where they are");
                drop(container);
                assert!(!place.file("lock").exists(), "nothing is left");
            }
        }
    }
}

#[test]
fn reads_that_keep_to_the_order_find_their_record_ahead() {
    let place = Place::new("ahead");
    for (settings, is_back) in [(Settings::default(), false), (Settings::default().lifo(), true)] {
        let mut container = place.open(settings.limits(32_000, None));
        (0..100).for_each(|id| put(&mut container, id, 0));
        let ids: Vec<_> = if is_back { (0..100).rev().collect() } else { (0..100).collect() };
        for (at, &id) in ids.iter().enumerate() {
            expect(&mut container, id, 0);
            // The program computes until the next one is there.
            let is_there = |next| {
                let state = container.store.as_ref().unwrap().lock();
                let found = crate::records::store::locate(&state, next).unwrap();
                let reads = state.counts.reads;
                state.window.has(next, found.version.entry.version, true, reads)
                    && state.counts.loaded > at as u64
            };
            if let Some(&next) = ids.get(at + 1) {
                let since = std::time::Instant::now();
                while !is_there(next) {
                    assert!(since.elapsed() < Duration::from_secs(60));
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
        }
        let (reads, hits) = container.hits().unwrap();
        // A helper may still be at it when the program comes.
        assert!(reads == 100 && hits >= 95, "{hits} of {reads}");
        let state = container.store.as_ref().unwrap().lock();
        assert!(state.window.wasted == 0 && state.window.used() <= 32_000);
    }
}

/// Large ones are copied in all ways in turn.
#[test]
fn large_records_are_copied_right_by_one_thread_and_by_several() {
    let place = Place::new("large");
    let settings = Settings::default().limits(64 << 20, None);
    let mut container = Container::<u64>::open(&place.0, "c", settings, (17 << 20) / 8).unwrap();
    for id in 0..6 {
        put(&mut container, id, 0);
    }
    for round in 0..3 {
        for id in 0..6 {
            expect(&mut container, id, 0);
            let store = container.store.as_ref().unwrap();
            // All but the first of each round are read ahead.
            let is_there = || {
                let counts = store.lock().counts;
                id == 5 || counts.loaded + round >= counts.reads
            };
            let since = std::time::Instant::now();
            while !is_there() {
                assert!(since.elapsed() < Duration::from_secs(60));
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let (reads, hits) = container.hits().unwrap();
        assert!(reads == 6 * (round + 1) && hits >= 5 * (round + 1), "{hits} of {reads}");
    }
}

#[test]
fn several_containers_share_records_and_the_last_one_removes_them() {
    let place = Place::new("share");
    let mut one = place.open(Settings::default());
    let mut other = place.open(Settings::default());
    (0..20).for_each(|id| put(&mut one, id, 1));
    (20..40).for_each(|id| put(&mut other, id, 1));
    (0..40).for_each(|id| expect(&mut one, id, 1));
    (0..40).for_each(|id| expect(&mut other, id, 1));
    // A later version of another's record is the one that counts; so is its end.
    put(&mut other, 3, 2);
    expect(&mut one, 3, 2);
    put(&mut one, 3, 3);
    expect(&mut other, 3, 3);
    other.forget(4).unwrap();
    assert_eq!(one.read(4).unwrap_err().code, code::NO_RECORD);
    put(&mut one, 4, 5);
    expect(&mut other, 4, 5);
    assert_eq!(other.ids().unwrap(), (0..40).collect::<Vec<_>>());
    drop(other);
    (0..40).filter(|&id| id != 3 && id != 4).for_each(|id| expect(&mut one, id, 1));
    drop(one);
    assert!(!place.0.join("c.records").exists());
}

#[test]
fn what_is_kept_is_there_the_next_time_with_its_order() {
    let place = Place::new("kept");
    let odd = [5, 1, 7, 0, 3, 6, 2, 4];
    for layout in [Settings::default(), Settings::default().file_per_record()] {
        let settings = layout.keep().detect().limits(16_000, None);
        let mut first = place.open(settings);
        (0..8).for_each(|id| put(&mut first, id, 1));
        (0..8).for_each(|id| put(&mut first, id, 2));
        odd.iter().for_each(|&id| expect(&mut first, id, 2));
        drop(first);
        let mut second = place.open(settings);
        assert_eq!(second.ids().unwrap(), (0..8).collect::<Vec<_>>());
        assert_eq!(second.check().unwrap(), []);
        expect(&mut second, 5, 2);
        let ahead: Vec<_> = second.store.as_ref().unwrap().lock().order.ahead().collect();
        assert_eq!(ahead, odd[1..]);
        odd.iter().for_each(|&id| expect(&mut second, id, 2));
        for id in 0..8 {
            second.forget(id).unwrap();
        }
        assert_eq!(second.ids().unwrap(), []);
        drop(second);
    }
}

#[test]
fn room_is_used_again() {
    let place = Place::new("room");
    let mut container = place.open(Settings::default());
    for round in 0..50 {
        (0..8).for_each(|id| put(&mut container, id, round));
    }
    (0..8).for_each(|id| expect(&mut container, id, 49));
    // 8000 bytes take two pages; one version more while it is written.
    assert!(fs::metadata(place.file("w0000.data")).unwrap().len() <= 9 * 8192);
    assert!(fs::metadata(place.file("w0000.index")).unwrap().len() <= 10 * SLOT as u64);
}

#[test]
fn a_synced_version_stays_until_a_later_one_is_synced() {
    let place = Place::new("synced");
    let settings = Settings::default().keep();
    let mut container = place.open(settings);
    put(&mut container, 7, 1);
    container.sync(7, None).unwrap();
    put(&mut container, 7, 2);
    put(&mut container, 7, 3);
    expect(&mut container, 7, 3);
    drop(container);
    // A loss of power takes what was not synced: bytes of the last version, which is where the
    // second one was not.
    let path = place.file("w0000.data");
    let mut data = fs::read(&path).unwrap();
    let last = value(7, 3, 0).to_le_bytes();
    let at = data.windows(8).position(|bytes| bytes == last).unwrap();
    data[at + 100] ^= 1;
    fs::write(&path, &data).unwrap();
    let mut container = place.open(settings);
    assert_eq!(container.check().unwrap(), [7]);
    expect(&mut container, 7, 1);
    put(&mut container, 7, 4);
    container.sync(7, None).unwrap();
    assert_eq!(container.check().unwrap(), []);
    expect(&mut container, 7, 4);
}

#[test]
fn a_record_that_is_not_whole_is_named_and_never_given_out() {
    let place = Place::new("torn");
    let settings = Settings::default().keep();
    let mut container = place.open(settings);
    (0..4).for_each(|id| put(&mut container, id, 1));
    drop(container);
    let index = place.file("w0000.index");
    let whole = fs::read(&index).unwrap();
    // Slot 1 is record 0: as a kill leaves it before, and in the middle of, its last change.
    for (at, cut) in [(56, 1), (48, 0xff)] {
        let mut torn = whole.clone();
        torn[SLOT + at] ^= cut;
        fs::write(&index, &torn).unwrap();
        let mut container = place.open(settings);
        assert_eq!(container.check().unwrap(), [0]);
        let error = container.read(0).unwrap_err();
        assert_eq!(error.code, code::TORN);
        assert!(error.message.contains("record 0 is not whole"), "{error}");
        (1..4).for_each(|id| expect(&mut container, id, 1));
        put(&mut container, 0, 9);
        expect(&mut container, 0, 9);
        assert_eq!(container.check().unwrap(), []);
    }
    // A file that is shorter than its records, and an index without an end.
    fs::write(&index, &whole[..whole.len() - 10]).unwrap();
    let data = place.file("w0000.data");
    let bytes = fs::read(&data).unwrap();
    fs::write(&data, &bytes[..2 * 8192]).unwrap();
    let container = place.open(settings);
    let torn = container.check().unwrap();
    assert!(torn.contains(&2) && !torn.contains(&1), "{torn:?}");
}

#[test]
fn what_another_process_is_writing_is_not_torn_until_that_has_ended() {
    let place = Place::new("begun");
    let settings = Settings::default().keep();
    let (one, mut other) = (place.open(settings), place.open(settings));
    let kind = crate::records::index::Kind::Begun;
    let (id, version, bytes, element) = (9, 1, 8000, 8);
    let (offset, file, sum) = (0, 0, 0);
    let entry =
        crate::records::index::Entry { kind, id, version, offset, bytes, element, file, sum };
    one.store.as_ref().unwrap().lock().mine.begin(entry, true).unwrap();
    // It raises its count with what it writes next.
    one.write(1).unwrap();
    assert_eq!(other.check().unwrap(), []);
    assert_eq!(other.read(9).unwrap_err().code, code::NO_RECORD);
    drop(one);
    assert_eq!(other.check().unwrap(), [9]);
    assert_eq!(other.read(9).unwrap_err().code, code::TORN);
    other.forget(9).unwrap();
    assert_eq!(other.check().unwrap(), []);
    assert_eq!(other.ids().unwrap(), [1]);
}

#[test]
fn bad_input_is_told_apart() {
    let place = Place::new("bad");
    let opened = |name: &str, settings| Container::<u64>::open(&place.0, name, settings, 10);
    for name in ["", ".", "a/b", &"x".repeat(201)] {
        assert_eq!(opened(name, Settings::default()).unwrap_err().code, -libc::EINVAL, "{name}");
    }
    for (memory, fast, said) in [(0, None, "memory_bytes is 0"), (1, Some(0), "fast_bytes is 0")] {
        let error = opened("c", Settings::default().limits(memory, fast)).unwrap_err();
        assert!(error.code == -libc::EINVAL && error.message.contains(said), "{error}");
    }
    let mut container = opened("c", Settings::default().limits(80, Some(80))).unwrap();
    let error = container.read(5).unwrap_err();
    assert!(error.code == code::NO_RECORD && error.message.contains("record 5"), "{error}");
    container.write(5).unwrap();
    let mut narrow = Container::<u32>::open(&place.0, "c", Settings::default(), 20).unwrap();
    let error = narrow.read(5).unwrap_err();
    assert!(error.code == code::ELEMENT && error.message.contains("of 8 bytes"), "{error}");
    drop(narrow);
    container.resize(11).unwrap();
    let error = container.read(5).unwrap_err();
    assert!(error.code == code::ELEMENT && error.message.contains("10 elements"), "{error}");
    container.resize(21).unwrap();
    let error = container.write(6).unwrap_err();
    assert!(error.code == -libc::EFBIG && error.message.contains("160 bytes"), "{error}");
    let missing = Container::<u64>::open(&place.0.join("none"), "c", Settings::default(), 1);
    assert_eq!(missing.unwrap_err().code, -libc::ENOENT);
    // Its session ends.
    assert_eq!(crate::forebay_end(container.session.pointer()), 0);
    assert_eq!(container.read(5).unwrap_err().code, code::CLOSED);
    assert_eq!(container.write(5).unwrap_err().code, code::CLOSED);
}

#[test]
fn threads_write_and_read_at_once() {
    let place = Place::new("threads");
    for settings in [Settings::default(), Settings::default().file_per_record()] {
        let opened: Vec<_> =
            (0..4).map(|_| place.open(settings.limits(64_000, None).helpers(2))).collect();
        let all_begun = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for (own, mut container) in opened.into_iter().enumerate() {
                let all_begun = &all_begun;
                scope.spawn(move || {
                    for round in 0..20 {
                        if round == 1 {
                            all_begun.wait();
                        }
                        let ids = (0..10).map(|at| at * 4 + own as u64);
                        ids.clone().for_each(|id| put(&mut container, id, round));
                        ids.clone().for_each(|id| expect(&mut container, id, round));
                        // Records of others are some whole version.
                        let of_other = (own as u64 + round) % 4;
                        let found = container.read(of_other);
                        if found.is_ok() || round > 0 {
                            found.unwrap();
                            let first = container[0];
                            assert!((0..20).any(|round| first == value(of_other, round, 0)));
                            let is_whole = |(at, &found): (usize, &u64)| found == first + at as u64;
                            assert!(container.iter().enumerate().all(is_whole));
                        }
                    }
                });
            }
        });
        assert!(!place.0.join("c.records").exists());
    }
}

#[test]
fn what_is_beyond_the_limits_is_left_to_the_store() {
    let place = Place::new("limits");
    let mut container = place.open(Settings::default().lifo().limits(16_000, Some(32_000)));
    (0..30).for_each(|id| put(&mut container, id, 0));
    let since = std::time::Instant::now();
    let spilled = || container.store.as_ref().unwrap().lock().counts.spilled;
    while spilled() < 24 {
        assert!(since.elapsed() < Duration::from_secs(60), "{}", spilled());
        std::thread::sleep(Duration::from_millis(1));
    }
    (0..30).rev().for_each(|id| expect(&mut container, id, 0));
}

/// Steps of a container that is killed.
const STEPS: u64 = 40;

/// What is done to it.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A record, its round, and its elements.
    Write(u64, u64, usize),
    Drop(u64),
    Sync(u64),
}

/// The records that have to be there: round and elements of each.
type Model = std::collections::BTreeMap<u64, (u64, usize)>;

fn after(model: &Model, step: Step) -> Model {
    let mut model = model.clone();
    match step {
        Step::Write(id, round, count) => drop(model.insert(id, (round, count))),
        Step::Drop(id) => drop(model.remove(&id)),
        Step::Sync(_) => {}
    }
    model
}

/// What a container has of a record; `None` if it has none.
fn has(container: &mut Container<u64>, id: u64, rounds: u64) -> Option<(u64, usize)> {
    let count = match container.record_len(id) {
        Ok(count) => count,
        Err(error) => {
            assert!([code::NO_RECORD, code::TORN].contains(&error.code), "{error}");
            return None;
        }
    };
    container.resize(count).unwrap();
    container.read(id).unwrap();
    let is = |round: &u64| {
        container.iter().enumerate().all(|(at, &found)| found == value(id, *round, at))
    };
    let round = (0..rounds).find(is).expect("a record that was never written so");
    Some((round, count))
}

/// A loss of power keeps what was synced, and any of the writes after that.
fn lose_power(
    place: &Place,
    settings: Settings,
    writes: &[files::Write],
    history: &[(core::ops::Range<usize>, Step, Model)],
) {
    let folder = place.0.join("killed/c.records");
    let mut random = 11u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        random >> 40
    };
    let (mut kept, mut lost) = (0, 0);
    for _ in 0..400 {
        let done = &history[..next() as usize % history.len() + 1];
        let end = done.last().unwrap().0.end;
        let synced = done.iter().rposition(|(_, step, _)| matches!(step, Step::Sync(_)));
        let safe = synced.map_or(0, |at| done[at].0.start);
        let odds = next() % 8 + 1;
        let mut found = std::collections::BTreeMap::<PathBuf, Vec<u8>>::new();
        for (at, (path, offset, bytes)) in writes[..end].iter().enumerate() {
            if at >= safe && next() % 8 >= odds {
                continue;
            }
            let file = found.entry(folder.join(path.file_name().unwrap())).or_default();
            let start = *offset as usize;
            file.resize(file.len().max(start + bytes.len()), 0);
            file[start..start + bytes.len()].copy_from_slice(bytes);
        }
        fs::create_dir_all(&folder).unwrap();
        found.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
        fs::write(folder.join("w0000.lock"), "").unwrap();
        let mut container = Container::open(&place.0.join("killed"), "c", settings, 1).unwrap();
        lost += container.check().unwrap().len();
        for id in 0..5 {
            // Never other bytes than some version has had, and one that is as late as the sync.
            let is = has(&mut container, id, STEPS);
            let of = |step: &Step| matches!(step, Step::Sync(synced) if *synced == id);
            let Some(at) = done.iter().rposition(|(_, step, _)| of(step)) else { continue };
            let mut may_be = vec![done[at].2.get(&id).copied()];
            let later = done[at..].iter().map(|(_, step, model)| after(model, *step));
            may_be.extend(later.map(|model| model.get(&id).copied()));
            assert!(may_be.contains(&is), "{id} is {is:?}, and may be {may_be:?}");
            kept += usize::from(is.is_some());
        }
        drop(container);
        fs::remove_dir_all(&folder).unwrap();
    }
    assert!(kept > 100 && lost > 100, "{kept} {lost}");
}

/// Writes that were done before a kill are in the files in their order, and the last one as far as
/// it came.
#[test]
fn a_kill_within_each_write_leaves_all_that_was_acknowledged() {
    let place = Place::new("cut");
    let settings = Settings::default().keep().helpers(0);
    files::WRITES.set(Some(Vec::new()));
    let mut container = place.open(settings);
    let count = || files::WRITES.with_borrow(|writes| writes.as_ref().unwrap().len());
    let (mut model, mut history) = (Model::new(), Vec::new());
    let mut random = 3u64;
    for round in 0..STEPS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (id, kind) = ((random >> 40) % 5, (random >> 33) % 8);
        let step = match kind {
            0 if model.contains_key(&id) => Step::Drop(id),
            1 if model.contains_key(&id) => Step::Sync(id),
            kind => Step::Write(id, round, 300 + 400 * kind as usize),
        };
        let first = count();
        match step {
            Step::Write(id, round, count) => {
                container.resize(count).unwrap();
                put(&mut container, id, round);
            }
            Step::Drop(id) => container.forget(id).unwrap(),
            Step::Sync(id) => container.sync(id, None).unwrap(),
        }
        let next = after(&model, step);
        history.push((first..count(), step, model));
        model = next;
    }
    drop(container);
    let writes = files::WRITES.take().unwrap();
    assert!(writes.len() > 3 * STEPS as usize);
    let folder = place.0.join("killed/c.records");
    let mut found = std::collections::BTreeMap::<PathBuf, Vec<u8>>::new();
    let mut torn_seen = 0;
    for (at, (path, offset, bytes)) in writes.iter().enumerate() {
        let path = folder.join(path.file_name().unwrap());
        let step = history.iter().find(|(range, _, _)| range.contains(&at));
        let put = |files: &mut std::collections::BTreeMap<PathBuf, Vec<u8>>, bytes: &[u8]| {
            let (file, start) = (files.entry(path.clone()).or_default(), *offset as usize);
            file.resize(file.len().max(start + bytes.len()), 0);
            file[start..start + bytes.len()].copy_from_slice(bytes);
        };
        if let Some((_, step, before)) = step {
            for cut in [0, 1, 20, bytes.len() / 2, bytes.len() - 1] {
                fs::create_dir_all(&folder).unwrap();
                let mut killed = found.clone();
                put(&mut killed, &bytes[..cut.min(bytes.len())]);
                killed.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
                fs::write(folder.join("w0000.lock"), "").unwrap();
                let mut container =
                    Container::open(&place.0.join("killed"), "c", settings, 1).unwrap();
                let torn = container.check().unwrap();
                let next = after(before, *step);
                for id in 0..5 {
                    let is = has(&mut container, id, STEPS);
                    let was = [before.get(&id).copied(), next.get(&id).copied()];
                    assert!(was.contains(&is), "write {at}, {cut} bytes, {step:?}: {id} is {is:?}");
                }
                let own = matches!(step, Step::Write(id, ..) | Step::Drop(id) if [*id] == *torn);
                assert!(torn.is_empty() || own, "write {at}, {cut} bytes, {step:?}: {torn:?}");
                torn_seen += torn.len();
                drop(container);
                fs::remove_dir_all(&folder).unwrap();
            }
        }
        put(&mut found, bytes);
    }
    assert!(torn_seen > 50, "{torn_seen}");
    lose_power(&place, settings, &writes, &history);
}

/// In a process of its own: the current directory is that of all threads.
#[test]
fn a_relative_directory_is_that_of_the_open() {
    const SELF: &str = "records::container::tests::a_relative_directory_is_that_of_the_open";
    const VARIABLE: &str = "FOREBAY_TEST_RELATIVE";
    let Some(place) = std::env::var_os(VARIABLE) else {
        let place = Place::new("relative");
        let mut test = std::process::Command::new(std::env::current_exe().unwrap());
        test.args([SELF, "--exact", "--test-threads=1"]).env(VARIABLE, &place.0);
        assert!(test.status().unwrap().success());
        return;
    };
    let place = PathBuf::from(place);
    let (first, second) = (place.join("first"), place.join("second"));
    for (directory, settings) in
        [(".", Settings::default()), ("in", Settings::default().file_per_record())]
    {
        let open = || Container::<u64>::open(Path::new(directory), "c", settings, 1000).unwrap();
        let mut opened = Vec::new();
        for at in [&first, &second] {
            fs::create_dir_all(at.join("in")).unwrap();
            std::env::set_current_dir(at).unwrap();
            opened.push(open());
        }
        let (mut other, mut one) = (opened.pop().unwrap(), opened.pop().unwrap());
        put(&mut other, 1, 7);
        put(&mut one, 1, 5);
        expect(&mut one, 1, 5);
        one.sync(1, None).unwrap();
        drop(one);
        assert!(!first.join(directory).join("c.records").exists(), "its own files are gone");
        expect(&mut other, 1, 7);
        assert_eq!(other.ids().unwrap(), [1]);
    }
}

#[test]
fn a_record_of_its_own_file_is_read_while_others_replace_and_drop_it() {
    let place = Place::new("replace");
    let settings = Settings::default().file_per_record().helpers(0);
    let mut reader = place.open(settings);
    let mut writer = place.open(settings);
    put(&mut writer, 1, 0);
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let order = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            while !is_done.load(order) {
                put(&mut writer, 1, round % 20);
                if round % 100 >= 50 {
                    writer.forget(1).unwrap();
                }
                round += 1;
            }
            put(&mut writer, 1, 19);
        });
        let (mut reads, mut looks) = (0, 0);
        while reads < 500 || looks < 2000 {
            looks += 1;
            match reader.read(1) {
                Ok(()) => {
                    let first = reader[0];
                    assert!((0..20).any(|round| first == value(1, round, 0)));
                    assert!(reader.iter().zip(0..).all(|(&found, at)| found == first + at));
                    reads += 1;
                }
                Err(error) => assert_eq!(error.code, code::NO_RECORD, "{error}"),
            }
            if looks % 100 == 0 {
                match reader.sync(1, None) {
                    Ok(()) => {}
                    Err(error) => assert_eq!(error.code, code::NO_RECORD, "{error}"),
                }
                assert_eq!(reader.check().unwrap(), []);
            }
        }
        is_done.store(true, order);
    });
    // What is gone without a word is named.
    expect(&mut reader, 1, 19);
    for entry in fs::read_dir(place.file("w0001.records")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    assert_eq!(reader.read(1).unwrap_err().code, code::TORN);
    assert_eq!(reader.check().unwrap(), [1]);
}

#[test]
fn a_version_that_is_read_by_others_keeps_its_bytes_and_not_its_slot() {
    let place = Place::new("held");
    let (mut one, mut other) = (place.open(Settings::default()), place.open(Settings::default()));
    put(&mut one, 1, 1);
    let held = {
        let store = one.store.as_ref().unwrap();
        let mut state = store.lock();
        let found = crate::records::store::locate(&state, 1).unwrap();
        state.hold(&found);
        found
    };
    one.forget(1).unwrap();
    assert_eq!(other.read(1).unwrap_err().code, code::NO_RECORD, "dropped for all");
    put(&mut one, 2, 2);
    let store = Arc::clone(one.store.as_ref().unwrap());
    let mut state = store.lock();
    let now = crate::records::store::locate(&state, 2).unwrap();
    assert_ne!(now.version.entry.offset, held.version.entry.offset);
    state.release(&held, store.folder());
    drop(state);
    drop(store);
    put(&mut one, 3, 3);
    expect(&mut other, 2, 2);
    expect(&mut other, 3, 3);
}

#[test]
fn links_are_not_followed_and_a_failed_open_leaves_nothing() {
    use std::os::unix::fs::symlink;
    let place = Place::new("links");
    let open = |settings| Container::<u64>::open(&place.0, "c", settings, 10);
    let (away, folder) = (place.0.join("away"), place.0.join("c.records"));
    fs::create_dir(&away).unwrap();
    fs::write(away.join("file"), "mine").unwrap();
    let fails = |settings: Settings, link: &Path| {
        let error = open(settings).unwrap_err();
        let name = link.display().to_string();
        assert!(error.code == -libc::ELOOP && error.message.contains(&name), "{error}");
        assert_eq!(fs::read(away.join("file")).unwrap(), b"mine");
        assert_eq!(fs::read_dir(&away).unwrap().count(), 1);
    };
    symlink(&away, &folder).unwrap();
    fails(Settings::default(), &folder);
    fs::remove_file(&folder).unwrap();
    for name in ["lock", "kept", "w0000.index", "w0000.data", "w0000.records"] {
        fs::create_dir(&folder).unwrap();
        if name.starts_with('w') {
            fs::write(folder.join("w0000.lock"), "").unwrap();
        }
        let link = folder.join(name);
        let to = if name.ends_with("records") { away.clone() } else { away.join("file") };
        symlink(to, &link).unwrap();
        fails(Settings::default().keep().file_per_record(), &link);
        fs::remove_dir_all(&folder).unwrap();
    }
    // A file where the folder is to be.
    fs::write(&folder, "").unwrap();
    assert_eq!(open(Settings::default()).unwrap_err().code, -libc::ENOTDIR);
    fs::remove_file(&folder).unwrap();
    let session = Handle::of(handles::begin_session().unwrap());
    crate::forebay_end(session.pointer());
    // Its files cannot be opened, as the session has ended.
    let options = options_of(&DEFAULTS).unwrap();
    let made = Store::open(session, Folder::of_name(&place.0, "c").unwrap(), options);
    assert_eq!(made.unwrap_err(), code::CLOSED);
    assert!(!folder.exists());
}

#[test]
fn drops_take_no_longer_where_there_are_many_records() {
    let place = Place::new("drops");
    let settings = Settings::default().helpers(0);
    let mut container = Container::<u64>::open(&place.0, "c", settings, 1).unwrap();
    let time = |container: &mut Container<u64>, count: u64| {
        (0..count).for_each(|id| container.write(id).unwrap());
        let since = std::time::Instant::now();
        (0..200).for_each(|id| container.forget(id).unwrap());
        since.elapsed()
    };
    let few = time(&mut container, 200);
    let many = time(&mut container, 20_000);
    // It was a hundred times as long.
    assert!(many < few * 20, "{few:?} {many:?}");
}

#[test]
fn a_reader_beside_a_busy_writer_looks_twice_and_finds_what_is_there() {
    let place = Place::new("busy");
    let settings = Settings::default().helpers(0);
    let open = || Container::<u64>::open(&place.0, "c", settings, 1).unwrap();
    let (mut writer, mut reader) = (open(), open());
    const RECORDS: u64 = 40_000;
    for id in 0..RECORDS {
        writer[0] = id;
        writer.write(id).unwrap();
    }
    let since = std::time::Instant::now();
    reader.read(RECORDS - 1).unwrap();
    let pass = since.elapsed();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let order = std::sync::atomic::Ordering::Relaxed;
    let mut longest = Duration::ZERO;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for id in (0..8).cycle().take_while(|_| !is_done.load(order)) {
                writer[0] = id;
                writer.write(id).unwrap();
            }
        });
        for id in (1..31).map(|turn| turn * 1000) {
            let since = std::time::Instant::now();
            let read = reader.read(id);
            longest = longest.max(since.elapsed());
            assert_eq!((read, reader[0]), (Ok(()), id));
        }
        is_done.store(true, order);
    });
    // It was a hundred passes.
    assert!(longest < pass * 30, "{longest:?} {pass:?}");
}
