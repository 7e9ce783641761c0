//! A loss of power: what was written and not synced is put back, in part
//! (`forebay_pool::power_loss`).

use forebay_placement::Random;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::UNIX_EPOCH;

const PAGE: u64 = 4096;

/// What one page was before a write, or before the file's size was set.
struct Kept {
    time: u64,
    resized: bool,
    offset: u64,
    size: u64,
    bytes: Vec<u8>,
}

/// The five words at `at`, if they can be the head of something that was kept.
fn head_at(all: &[u8], at: usize) -> Option<[u64; 5]> {
    const FAR: u64 = 1 << 50;
    let words = all.get(at..at + 40)?.as_chunks::<8>().0;
    let head: [u64; 5] = std::array::from_fn(|number| u64::from_ne_bytes(words[number]));
    let [time, kind, offset, count, size] = head;
    let fits = match kind {
        0 | 2 => count <= PAGE,
        1 => count == 0,
        3 => count == 8,
        _ => false,
    };
    (time > 0 && fits && offset < FAR && size < FAR).then_some(head)
}

/// What was kept of a file since its last sync, oldest first.
fn kept_since_sync(path: &Path) -> (Vec<Kept>, u64) {
    let all = fs::read(path).unwrap_or_default();
    let (mut kept, mut synced, mut at): (Vec<Kept>, _, _) = (Vec::new(), 0, 0);
    while at + 40 <= all.len() {
        let Some([time, kind, offset, count, size]) = head_at(&all, at) else {
            at += 1;
            continue;
        };
        let end = (at + 40 + count as usize).min(all.len());
        // A process that is killed while it keeps something writes a part of that, and has written
        // nothing to the file.
        if end + 40 <= all.len() && head_at(&all, end).is_none() {
            at += 1;
            continue;
        }
        let bytes = all[at + 40..end].to_vec();
        match kind {
            1 => synced = synced.max(time),
            3 => {
                // Whole pages, and with them how far the file reaches.
                let bytes = u64::from_ne_bytes(bytes.try_into().unwrap());
                let is_there = |kept: &Kept| {
                    let end = kept.offset + kept.bytes.len() as u64;
                    offset <= kept.offset && end <= offset + bytes
                };
                kept.retain(|kept| kept.time > time || kept.resized || !is_there(kept));
                let earlier = kept.iter_mut().filter(|kept| kept.time <= time && !kept.resized);
                earlier.for_each(|kept| kept.size = kept.size.max(offset + bytes));
            }
            kind => kept.push(Kept { time, resized: kind == 2, offset, size, bytes }),
        }
        at = end;
    }
    kept.retain(|kept| kept.time > synced);
    kept.sort_by_key(|kept| kept.time);
    (kept, synced)
}

/// What becomes of what was not synced of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// A random part of it is lost.
    Any,
    /// All of it is, but the file's size: each byte is what it was at the last sync.
    Old,
    /// Nothing of it is.
    New,
}

/// Puts a part of what was not synced back in all files of the store's `folder` and of `tiers`, as
/// `fate` says of each, and forgets the rest: it has come to the disk. Returns how many pieces were
/// put back.
pub fn lose_power(
    folder: &Path,
    tiers: &Path,
    undo: &Path,
    fate: impl Fn(&Path) -> Fate,
    rng: &mut Random,
) -> usize {
    let mut pieces = 0;
    for (folder, is_store) in [(folder, true), (tiers, false)] {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let found = fs::metadata(&path).unwrap();
            // Where the file system knows no time of birth: 0.
            let born = found
                .created()
                .map_or(0, |born| born.duration_since(UNIX_EPOCH).unwrap().as_nanos());
            let name = format!("{}-{}-{born}", found.dev(), found.ino());
            let (mut kept, _) = kept_since_sync(&undo.join(name));
            // The tiers are taken to be on another file system than the store.
            if is_store {
                let (_, synced) = kept_since_sync(&undo.join(format!("{}-all", found.dev())));
                kept.retain(|kept| kept.time > synced);
            }
            if !kept.is_empty() {
                pieces += lose(&path, &kept, fate(&path), rng);
            }
        }
    }
    fs::remove_dir_all(undo).unwrap();
    fs::create_dir(undo).unwrap();
    pieces
}

fn lose(path: &Path, kept: &[Kept], fate: Fate, rng: &mut Random) -> usize {
    // Files of slots are far longer than what is in them.
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let now = file.metadata().unwrap().len();
    // Sizes that were set are kept or lost as a whole and in order, as file systems do it.
    let mut resized: Vec<_> = kept.iter().filter(|kept| kept.resized).map(|k| k.time).collect();
    resized.dedup();
    let number = rng.index(resized.len() + 1);
    let least = number.checked_sub(1).map_or(0, |last| resized[last]);
    let most = resized.get(number).copied().unwrap_or(u64::MAX);
    // After the last that is kept and before the first that is lost.
    let between = |pieces: &[&Kept], rng: &mut Random| match fate {
        Fate::Old => 0,
        Fate::New => pieces.len(),
        Fate::Any => {
            let first = pieces.iter().take_while(|kept| kept.time <= least).count();
            let last = pieces.iter().take_while(|kept| kept.time < most).count();
            first + rng.index(last - first + 1)
        }
    };
    // Each page, on its own, is as it was before one of the writes to it, or as it is.
    let mut pages: BTreeMap<u64, Vec<&Kept>> = BTreeMap::new();
    for kept in kept {
        pages.entry(kept.offset / PAGE).or_default().push(kept);
    }
    let mut pieces = 0;
    for of_page in pages.values() {
        let from = between(of_page, rng);
        for kept in of_page[from..].iter().rev() {
            file.write_all_at(&kept.bytes, kept.offset).unwrap();
            pieces += 1;
        }
    }
    // So is the size.
    let all: Vec<&Kept> = kept.iter().collect();
    let size = match fate {
        Fate::Any => kept.get(between(&all, rng)).map_or(now, |kept| kept.size),
        Fate::Old | Fate::New => now,
    };
    file.set_len(size).unwrap();
    pieces
}
