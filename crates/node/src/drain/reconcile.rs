//! Once nothing of a file is dirty, its size and times are reconciled with those of the store's file.

use crate::node::Node;
use forebay_pool::layout::{FileFlags, FileRecord};
use forebay_pool::{Owner, clock, crash};
use rustix::fd::OwnedFd;
use rustix::fs::{Timespec, Timestamps};
use std::sync::atomic::Ordering;

/// If nothing of the file is dirty any more, gives the store its times, ends the state "ahead
/// of the store", and closes the manager's descriptor. Done with the file held, so that no writer is in the middle of it.
pub(crate) fn reconcile(node: &Node, file: u32, owner: Owner) {
    let segment = &node.segment;
    let record = segment.file(file);
    let settled = !record.has(FileFlags::METADATA_DIRTY)
        && !record.has(FileFlags::ANNOUNCED)
        && !record.is_tracked()
        && node.descriptors.at_hand(segment, file).is_none();
    if settled || node.is_pending(file) {
        return;
    }
    let table = segment.enter_table(owner);
    if let Some(_exclusive) = segment.try_lock_exclusive(&table, file, owner) {
        crash::point("settle.begin");
        reconcile_held(node, file);
    }
}

/// The same, of a file that the caller has exclusively.
pub(crate) fn reconcile_held(node: &Node, file: u32) {
    let record = node.segment.file(file);
    if record.has_intent() || node.is_pending(file) {
        return;
    }
    let held = node.descriptors.at_hand(&node.segment, file);
    let agrees = !record.has(FileFlags::METADATA_DIRTY)
        || held.is_some_and(|fd| agree_with_store(node, record, &fd));
    if agrees && record.clear(FileFlags::CONFLICT) {
        // Clean blocks may hold what another program has changed on the store.
        node.segment.drop_clean_blocks(file, Node::new_owner());
    }
    if agrees && record.is_tracked() {
        // The sync thread comes back to it when journal and slots count no more.
        let failing = record.has(FileFlags::FAILING)
            && clock::stamp_age(node.now(), record.retry_at.load(Ordering::Relaxed)) == 0;
        if !record.has(FileFlags::TO_SETTLE) && !failing {
            node.segment.request(file, Some(Node::new_owner()), FileFlags::TO_SETTLE);
        }
    } else if agrees {
        // A program that is open for writing cannot be executed. The next writer sends his own.
        record.clear(FileFlags::ANNOUNCED);
        crash::point("settle.closing");
        node.descriptors.close(file);
    }
}

/// Gives the store's file its size and times. Returns whether both agree now.
fn agree_with_store(node: &Node, record: &FileRecord, fd: &OwnedFd) -> bool {
    let Ok(stat) = rustix::fs::fstat(fd) else { return false };
    let (size, stored) = (record.size.load(Ordering::Acquire), stat.st_size as u64);
    let is_littered = stored > size && record.has_lengtheners();
    if stored < size || is_littered {
        forebay_pool::undo::resizing(rustix::fd::AsFd::as_fd(fd), size);
        if rustix::fs::ftruncate(fd, size).is_err() {
            return false;
        }
        record.clear(FileFlags::SYNCED);
    }
    crash::point("settle.sized");
    node.segment.forget_lengtheners(record);
    let (seconds, nanoseconds) = clock::parted_ns(record.mtime_ns.load(Ordering::Acquire));
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ },
    };
    // Only the owner of a file may set its times; others see the time of the flush.
    let _ = rustix::fs::futimens(fd, &times);
    crash::point("settle.timed");
    let Ok(stat) = rustix::fs::fstat(fd) else { return false };
    let mtime = clock::joined_ns(stat.st_mtime, stat.st_mtime_nsec as i64);
    let changed = clock::joined_ns(stat.st_ctime, stat.st_ctime_nsec as i64);
    record.store_mtime_ns.store(mtime, Ordering::Release);
    record.store_changed_ns.store(changed, Ordering::Release);
    record.store_size.store(stat.st_size as u64, Ordering::Release);
    record.size.store(stat.st_size as u64, Ordering::Release);
    crash::point("settle.noted");
    record.clear(
        FileFlags::METADATA_DIRTY
            | FileFlags::DIRTY
            | FileFlags::STORE_WRITTEN
            | FileFlags::CONFLICT_CHECKED,
    );
    true
}
