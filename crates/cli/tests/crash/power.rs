//! A loss of power: what was written and not synced is put back, in part (`forebay_pool::undo`).

use crate::script::Rng;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const PAGE: u64 = 4096;

/// What one page was before a write.
struct Kept {
    time: u64,
    offset: u64,
    size: u64,
    bytes: Vec<u8>,
}

/// What was kept of a file since its last sync, oldest first.
fn kept_since_sync(path: &Path) -> Vec<Kept> {
    let Ok(all) = fs::read(path) else { return Vec::new() };
    let (mut kept, mut synced, mut at) = (Vec::new(), 0, 0);
    while at + 40 <= all.len() {
        let word =
            |number: usize| u64::from_ne_bytes(all[at + 8 * number..][..8].try_into().unwrap());
        let (time, kind, offset, count, size) = (word(0), word(1), word(2), word(3), word(4));
        let end = (at + 40 + count as usize).min(all.len());
        match kind {
            1 => synced = synced.max(time),
            _ => kept.push(Kept { time, offset, size, bytes: all[at + 40..end].to_vec() }),
        }
        at = end;
    }
    kept.retain(|kept| kept.time > synced);
    kept
}

/// Puts a random part of what was not synced back in all files of `folder`; returns how many pieces.
pub fn lose_power(folder: &Path, undo: &Path, rng: &mut Rng) -> usize {
    let mut pieces = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let found = fs::metadata(&path).unwrap();
        let kept = kept_since_sync(&undo.join(format!("{}-{}", found.dev(), found.ino())));
        if kept.is_empty() {
            continue;
        }
        let mut bytes = fs::read(&path).unwrap();
        // Each page, on its own, is as it was before one of the writes to it, or as it is.
        let mut pages: BTreeMap<u64, Vec<&Kept>> = BTreeMap::new();
        for kept in &kept {
            pages.entry(kept.offset / PAGE).or_default().push(kept);
        }
        for of_page in pages.values() {
            let from = rng.below(of_page.len() + 1);
            for kept in of_page[from..].iter().rev() {
                let (start, end) = (kept.offset as usize, kept.offset as usize + kept.bytes.len());
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[start..end].copy_from_slice(&kept.bytes);
                pieces += 1;
            }
        }
        // So is the size.
        let number = rng.below(kept.len() + 1);
        let size = kept.get(number).map_or(found.len(), |kept| kept.size);
        bytes.resize(size as usize, 0);
        fs::write(&path, bytes).unwrap();
    }
    pieces
}
