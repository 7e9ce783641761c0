//! The files that the store lacks data of: still those that were written to.

use crate::store::beneath::{Known, Since, Stores};
use crate::usage::{path_of, path_of_file};
use forebay_pool::Segment;
use forebay_pool::check::{Finding, Remedy};
use forebay_pool::layout::FileFlags;
use std::path::PathBuf;

/// Files that have moved are looked for by recovery; here only what lies at its path is looked at.
pub(super) fn check(segment: &Segment, findings: &mut Vec<Finding>) {
    let header = segment.header();
    let stores = &header.store[..header.stores as usize];
    let stores = Stores::of(stores.iter().map(|store| path_of(&store.path)));
    for file in segment.files().live() {
        let record = segment.file(file);
        if !record.has(FileFlags::METADATA_DIRTY) || record.has(FileFlags::UNLINKED) {
            continue;
        }
        let path = path_of_file(segment, record);
        let known = Known::of(record);
        let place = || format!("file {file} ({})", path.display());
        if !stores.hold(&path) {
            if path != PathBuf::new() {
                let what = "its path leads out of the managed directories".to_owned();
                findings.push(Finding { place: place(), what, remedy: Remedy::Kept });
            }
            continue;
        }
        let Ok(seen) = stores.seen(&path) else { continue };
        let same_number = (known.device, known.inode) == (seen.device, seen.inode);
        if same_number && !known.is(&seen, Since::Boot) {
            let what = "another file has its inode number now, or its record is damaged".to_owned();
            findings.push(Finding { place: place(), what, remedy: Remedy::Kept });
        }
    }
}
