//! Files that others changed on the store while Forebay had data for them: found before the first
//! flush after the file last agreed with the store, and told.
//!
//! The rule: what Forebay has is written over what others wrote, and what it has not is theirs, as
//! with two writers that take no lock. A file that was deleted or replaced is the one that was
//! written to, whether it still has a name or not.

use crate::node::Node;
use crate::usage::path_of_file;
use forebay_device::{Stat, StoreFile};
use forebay_pool::layout::{FileFlags, FileRecord};
use forebay_pool::{FileId, Segment};
use std::sync::atomic::Ordering;

/// Looks at the store's file before the first of `file`'s blocks goes to it. The caller has blocks
/// in writeback, so that no thread reconciles the file meanwhile.
pub(crate) fn check(node: &Node, file: FileId, held: StoreFile) {
    let record = node.segment.file(file);
    if record.has(FileFlags::CONFLICT_CHECKED) {
        return;
    }
    let Ok(stat) = node.stores[node.store_of(file)].stat(held) else { return };
    // In this order: a client that finds it checked may write, which is no change by others.
    if record.set(FileFlags::CONFLICT_CHECKED) {
        return;
    }
    if !is_theirs(record) {
        return;
    }
    if let Some(what) = change(node, record, &stat) {
        tell(node, file, &what);
    }
}

/// Before what is left of a file without a name and without readers is dropped.
pub(crate) fn check_dropped(node: &Node, file: FileId) {
    let record = node.segment.file(file);
    if !record.has(FileFlags::UNLINKED)
        && tells_of_removed(node)
        && is_theirs(record)
        && !has_temporary_name(&node.segment, record)
        && node.is_pending(file)
    {
        tell(
            node,
            file,
            "it was deleted or replaced; no process can read what was not yet written",
        );
    }
}

/// Whether a change can be told from our own.
fn is_theirs(record: &FileRecord) -> bool {
    ![FileFlags::STORE_WRITTEN, FileFlags::DIRECT, FileFlags::SCRATCH]
        .into_iter()
        .any(|flag| record.has(flag))
        && !record.is_shared()
}

/// Whether a file that others have removed is told of. Programs of another node that shares files
/// with this one remove them as ours do.
fn tells_of_removed(node: &Node) -> bool {
    node.header().shares_files.load(Ordering::Acquire) == 0
}

fn change(node: &Node, record: &FileRecord, stat: &Stat) -> Option<String> {
    let (size, known) = (stat.size, record.store_size.load(Ordering::Acquire));
    let mtime = stat.modified_ns as u64;
    if stat.links == 0
        && !record.has(FileFlags::UNLINKED)
        && !has_temporary_name(&node.segment, record)
    {
        let what = "it was deleted or replaced; the file that was written to has no name";
        return tells_of_removed(node).then(|| what.into());
    }
    match size.cmp(&known) {
        std::cmp::Ordering::Less => Some(format!("it was cut from {known} to {size} bytes")),
        std::cmp::Ordering::Greater => Some(format!("it grew from {known} to {size} bytes")),
        std::cmp::Ordering::Equal => (mtime != record.store_mtime_ns.load(Ordering::Acquire))
            .then(|| "it was written".into()),
    }
}

/// Whether the file had no name from the beginning: O_TMPFILE.
fn has_temporary_name(segment: &Segment, record: &FileRecord) -> bool {
    let path = path_of_file(segment, record);
    let name = format!("#{}", record.identity().inode);
    path.file_name().is_some_and(|last| last.to_string_lossy() == name)
}

fn tell(node: &Node, file: FileId, what: &str) {
    let record = node.segment.file(file);
    record.set(FileFlags::CONFLICT);
    node.header().conflicts.fetch_add(1, Ordering::AcqRel);
    let path = node.shown_path(record);
    eprintln!(
        "conflict: {path}: changed on the store by another program: {what}; the pages of 4 KiB that were \
         written here are written over that, the others stay theirs"
    );
}
