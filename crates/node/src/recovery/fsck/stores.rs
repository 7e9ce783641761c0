//! The stores: there, and the file systems that they were.

use super::finding::repaired;
use crate::usage::path_of;
use forebay_pool::Segment;
use forebay_pool::check::Finding;
use std::os::unix::fs::MetadataExt;

pub(super) fn check(segment: &Segment, findings: &mut Vec<Finding>) {
    let header = segment.header();
    for store in &header.store[..header.stores as usize] {
        let path = path_of(&store.path);
        let place = format!("store {}", path.display());
        // Neither is the pool's fault: its data waits until they are back.
        match std::fs::metadata(path) {
            Ok(found) if found.is_dir() && found.dev() == store.device => {}
            Ok(found) if found.is_dir() => {
                findings.push(repaired(&place, "is on another device than it was: is it mounted?"));
            }
            Ok(_) => findings.push(repaired(&place, "is not a directory")),
            Err(error) => findings.push(repaired(&place, error)),
        }
    }
}
