//! Removing a file that is not to be drained, as what ran on it has said: only one that is as the
//! command has read it, that no process has open, of which its store never had a byte, and that has
//! the one name by which it is known.

use crate::node::Node;
use crate::store::beneath::{Known, Since, Stores};
use forebay_pool::layout::FileFlags;
use forebay_pool::{FileId, Owner, crash};
use std::path::Path;

/// What has become of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Removal {
    /// It has no name any more; its blocks are dropped.
    Done,
    /// Why it cannot be removed at this moment.
    NotYet(String),
    /// Why it is drained instead.
    Never(String),
}

/// Removes it, by the path that leads to it, if it may be.
pub(super) fn remove(node: &Node, file: FileId, path: &Path, owner: Owner) -> Removal {
    let segment = &node.segment;
    let record = segment.file(file);
    let never = |why: &str| Removal::Never(why.to_owned());
    let not_yet = |why: &str| Removal::NotYet(why.to_owned());
    // Before it is seen whether a process has it open.
    let Some(opens) = segment.files().count_opens(file) else {
        return not_yet("a process opens it");
    };
    if record.is_altered() {
        return never("it was changed since");
    }
    if record.is_shared() || node.is_read_by_several(file) {
        return never("other nodes use it");
    }
    if node.actions.is_released(segment, file) {
        return never("its tier was short of room");
    }
    if record.stored() > 0 || record.has(FileFlags::DIRECT) {
        return never("its store has some of it");
    }
    if segment.descriptions().open_files(segment.header().files)[file.index()] {
        return not_yet("a process has it open");
    }
    let store = node.store_of(file);
    let folder = &node.config.backing[store].path;
    let Ok(held) = node.descriptors.of(segment, file, folder) else {
        return never("it cannot be found");
    };
    let table = segment.enter_table(owner);
    let Some(_exclusive) = segment.try_lock_exclusive(&table, file, owner) else {
        return not_yet("a process uses it");
    };
    if !opens.are_still(&record.opens) || record.is_altered() {
        return not_yet("a process has opened it");
    }
    // What the kernel says: of the store's file, whatever was believed of it.
    match rustix::fs::fstat(&*held) {
        Ok(stat) if stat.st_nlink != 1 => return never("it has several names"),
        Ok(stat) if stat.st_blocks > 0 || stat.st_size > 0 => {
            return never("its store has some of it");
        }
        Ok(_) => {}
        Err(errno) => return Removal::Never(errno.to_string()),
    }
    let stores = Stores::of(node.config.backing.iter().map(|backing| &*backing.path));
    crash::point("action.removing");
    // The note comes first, as with a program's unlink: a file that lost its name unnoted would be
    // looked for.
    record.set(FileFlags::UNLINKED);
    match stores.remove(path, &Known::of(record), Since::Boot) {
        Ok(_) => {
            crash::point("action.removed");
            segment.files().touch(file);
            Removal::Done
        }
        Err(errno) => {
            record.clear(FileFlags::UNLINKED);
            Removal::Never(format!("it cannot be removed: {errno}"))
        }
    }
}
