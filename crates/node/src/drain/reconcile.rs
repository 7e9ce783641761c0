//! Once nothing of a file is dirty, its size and times are reconciled with those of the store's
//! file.

use crate::node::Node;
use forebay_device::{BackingStore, StoreFile};
use forebay_pool::fence::Flushing;
use forebay_pool::layout::{FileFlags, FileRecord};
use forebay_pool::{FileId, Owner, crash};
use std::sync::atomic::Ordering;

/// If nothing of the file is dirty any more, gives the store its times, ends the state "ahead of
/// the store", and closes the manager's descriptor. Done with the file held, so that no writer is
/// in the middle of it.
pub(crate) fn reconcile(node: &Node, file: FileId, owner: Owner) {
    let segment = &node.segment;
    let record = segment.file(file);
    let agrees = !record.has(FileFlags::METADATA_DIRTY)
        && !record.has(FileFlags::REGISTERED)
        && !record.is_tracked()
        && !node.descriptors.has(segment, file);
    if agrees || node.is_pending(file) {
        return;
    }
    let table = segment.enter_table(owner);
    if let Some(_exclusive) = segment.try_lock_exclusive(&table, file, owner) {
        crash::point("reconcile.begin");
        reconcile_held(node, file);
    }
}

/// The same, of a file that the caller has exclusively.
pub(crate) fn reconcile_held(node: &Node, file: FileId) {
    let record = node.segment.file(file);
    if record.has_intent() || node.is_pending(file) {
        return;
    }
    if record.has(FileFlags::METADATA_DIRTY) {
        match node.flushing() {
            Flushing::Free => {}
            Flushing::Fenced => return,
            Flushing::GivenUp => {
                record.set(FileFlags::FAILING);
                return;
            }
        }
    }
    let held = || node.descriptors.at_hand(&node.segment, file);
    let agrees = !record.has(FileFlags::METADATA_DIRTY)
        || held().is_some_and(|held| agree_with_store(node, file, held.file()));
    if agrees && record.clear(FileFlags::CONFLICT) {
        // Clean blocks may hold what another program has changed on the store.
        node.segment.drop_clean_blocks(file, Node::new_owner());
    }
    if agrees && record.is_tracked() {
        // The sync thread comes back to it when journal and slots count no more.
        let failing = record.has(FileFlags::FAILING) && !node.may_retry(file);
        if !record.has(FileFlags::TO_CHECKPOINT) && !failing {
            node.segment.request(file, Some(Node::new_owner()), FileFlags::TO_CHECKPOINT);
        }
    } else if agrees {
        // A program that is open for writing cannot be executed. The next writer registers its own.
        record.clear(FileFlags::REGISTERED);
        crash::point("reconcile.closing");
        node.descriptors.close(&node.segment, file);
    }
}

/// Gives the store's file its size and times. Returns whether both agree now.
fn agree_with_store(node: &Node, file: FileId, held: StoreFile) -> bool {
    let record = node.segment.file(file);
    let store = &*node.stores[node.store_of(file)];
    if record.is_shared() {
        return agree_with_shared(node, file, held);
    }
    let size = record.size.load(Ordering::Acquire);
    // What the flushes have left is known, unless others have changed it.
    let known = record.store_size.load(Ordering::Acquire);
    if known != size || record.has_lengtheners() {
        let Ok(stat) = store.stat(held) else { return false };
        if !resize(store, record, held, stat.size) {
            return false;
        }
    }
    crash::point("reconcile.sized");
    node.segment.forget_lengtheners(record);
    let mtime_ns = record.mtime_ns.load(Ordering::Acquire) as i64;
    // Only the owner of a file may set its times; others see the time of the flush.
    let _ = store.set_modified(held, mtime_ns);
    crash::point("reconcile.timed");
    let Ok(mut stat) = store.stat(held) else { return false };
    if stat.size < size {
        if !resize(store, record, held, stat.size) {
            return false;
        }
        let _ = store.set_modified(held, mtime_ns);
        let Ok(again) = store.stat(held) else { return false };
        stat = again;
    }
    record.note_store_file(stat.size, stat.modified_ns as u64, stat.changed_ns as u64);
    record.size.store(stat.size, Ordering::Release);
    crash::point("reconcile.noted");
    record.end_ahead();
    true
}

/// The same of a file that other nodes write, too: its size on the store is theirs as well, and the
/// bytes of this node's have made it as long as this node has. Its times are those of the flushes.
fn agree_with_shared(node: &Node, file: FileId, held: StoreFile) -> bool {
    let record = node.segment.file(file);
    let Ok(stat) = node.stores[node.store_of(file)].stat(held) else { return false };
    node.segment.forget_lengtheners(record);
    record.note_store_file(stat.size, stat.modified_ns as u64, stat.changed_ns as u64);
    record.size.fetch_max(stat.size, Ordering::AcqRel);
    crash::point("reconcile.noted");
    record.end_ahead();
    true
}

/// Gives the store's file, which has `stored` bytes, those that it lacks, or takes those away that
/// a dead process has left behind its end. False if the store refuses.
fn resize(store: &dyn BackingStore, record: &FileRecord, held: StoreFile, stored: u64) -> bool {
    let size = record.size.load(Ordering::Acquire);
    let is_littered = stored > size && record.has_lengtheners();
    if stored < size || is_littered {
        if store.truncate(held, size).is_err() {
            return false;
        }
        record.clear(FileFlags::SYNCED);
    }
    true
}
