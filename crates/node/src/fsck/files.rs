//! The files that the store lacks data of: still those that were written to.

use super::{Finding, path_of};
use crate::descriptors::{open_checked, same_birth};
use forebay_pool::Segment;
use forebay_pool::check::Remedy;
use forebay_pool::layout::file_flag;
use rustix::fs::OFlags;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// Files that have moved are looked for by recovery; here only what lies at its path is looked at.
pub(super) fn check(segment: &Segment, findings: &mut Vec<Finding>) {
    let header = segment.header();
    let stores = &header.store[..header.stores as usize];
    for file in segment.live_files() {
        let record = segment.file(file);
        if !record.has(file_flag::AHEAD) || record.has(file_flag::UNLINKED) {
            continue;
        }
        let path = PathBuf::from(OsString::from_vec(record.path()));
        if !stores.iter().any(|store| path.starts_with(path_of(&store.path))) {
            continue;
        }
        let Ok(fd) = open_checked(&path, OFlags::RDONLY, record.identity()) else { continue };
        if !same_birth(&fd, record.born_ns.load(Ordering::Acquire)) {
            let place = format!("file {file} ({})", path.display());
            let what = "another file has its inode number now, or its record is damaged".to_owned();
            findings.push(Finding { place, what, remedy: Remedy::Kept });
        }
    }
}
