//! The records of files that the group names.

use forebay_membership::FileId as GroupFile;
use forebay_pool::glimpses::group_generation;
use forebay_pool::layout::FileRecord;
use forebay_pool::{FileId, Identity, Owner, Segment};
use std::sync::atomic::Ordering;

/// The name that a file has in the group.
pub(crate) fn group_file(record: &FileRecord) -> GroupFile {
    GroupFile {
        store: record.store.load(Ordering::Acquire) as u16,
        inode: record.identity().inode,
        generation: group_generation(record.born_ns.load(Ordering::Acquire)),
    }
}

fn identity_in(segment: &Segment, file: GroupFile) -> Option<Identity> {
    let header = segment.header();
    let store = header.store[..header.stores as usize].get(usize::from(file.store))?;
    Some(Identity { device: store.device, inode: file.inode })
}

/// The record that a file of the group has here now, if it has one. For threads that others wait
/// for.
///
/// # Errors
/// Another thread, which may be stopped, is at the table there.
pub(crate) fn find_at_once(
    segment: &Segment,
    owner: Owner,
    file: GroupFile,
) -> Result<Option<FileId>, Busy> {
    let Some(identity) = identity_in(segment, file) else { return Ok(None) };
    let _inside = segment.enter_table(owner);
    let is_it = |found: &FileId| group_file(segment.file(*found)) == file;
    segment.with_file_at_once(identity, owner, |found| found.filter(is_it)).ok_or(Busy)
}

/// See [`find_at_once`].
#[derive(Debug)]
pub(crate) struct Busy;

/// Calls `act` with the record that a file of the group has here, while that cannot become another
/// file's. `None` if there is none. It waits for threads that are at the table there.
pub(crate) fn with_record<R>(
    segment: &Segment,
    owner: Owner,
    file: GroupFile,
    act: impl FnOnce(FileId, &FileRecord) -> R,
) -> Option<R> {
    let identity = identity_in(segment, file)?;
    let _inside = segment.enter_table(owner);
    let found = segment.with_file(identity, owner, |found| {
        let found = found?;
        let record = segment.file(found);
        (group_file(record) == file).then(|| act(found, record))
    });
    found.ok().flatten()
}
