//! Making a file clean while it is held exclusively: for the manager's end, and before another node
//! gets it.

use crate::drain::{FlushScope, Flusher, reconcile_held};
use crate::manager::housekeeping::complete_intent;
use crate::node::Node;
use forebay_directory::Level;
use forebay_placement::rounds::sync_passes;
use forebay_pool::clock::Timer;
use forebay_pool::layout::{FileFlags, FileRecord, TIERS_MAX, file_state};
use forebay_pool::parts::Part;
use forebay_pool::{BucketId, Entry, FileId, Owner};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes of a file that are flushed while it is held: more are left to the flushers, which stop
/// no program, at first.
const HELD_BYTES: u64 = 16 << 20;
/// After this a file is held whatever it has.
const LEFT_TO_FLUSHERS: Timer = Timer::seconds(10);

/// What became of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// A process is in the middle of it, or a flush is.
    Busy,
    /// The store, or the journal, does not take it.
    Refused,
}

/// What is kept of a file that is clean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    Nothing,
    /// Blocks, for those that read.
    Copies,
}

/// Whether the store has all of a file, and nothing that a recovery would apply is kept of it.
pub(super) fn is_clean(node: &Node, file: FileId) -> bool {
    let record = node.segment.file(file);
    !record.has(FileFlags::METADATA_DIRTY)
        && !record.is_tracked()
        && !record.has_intent()
        && !node.is_pending(file)
}

/// Bytes that a file, for which was waited so long, has to be flushed, if they are more than are
/// flushed while it is held.
pub(super) fn left_to_flushers(node: &Node, file: FileId, waited: Duration) -> Option<u64> {
    let pending = || node.segment.pending_bytes(file);
    (waited < LEFT_TO_FLUSHERS.as_duration()).then(pending).filter(|&bytes| bytes > HELD_BYTES)
}

/// What the flushers were last asked to bring to the store of a file that is to be given back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    ticket: u32,
    pending: u64,
}

impl Asked {
    /// Whether a file, for which was waited so long, is still left to the flushers, as of
    /// [`left_to_flushers`]. They are asked again where programs have written meanwhile, unless
    /// these write faster than the flushers flush.
    pub fn go_on(asked: &mut Option<Asked>, node: &Node, file: FileId, waited: Duration) -> bool {
        let Some(pending) = left_to_flushers(node, file, waited) else { return false };
        let segment = &node.segment;
        if asked.is_some_and(|asked| !segment.is_synced(file, asked.ticket)) {
            return true;
        }
        if asked.is_some_and(|asked| pending >= asked.pending) {
            return false;
        }
        let ticket = segment.request_sync(file, None, false);
        node.want_work();
        *asked = Some(Asked { ticket, pending });
        true
    }
}

/// Calls `act` with the record of a file while no other thread is inside it.
pub(super) fn while_held(
    node: &Node,
    file: FileId,
    owner: Owner,
    act: impl FnOnce(&FileRecord) -> Outcome,
) -> Outcome {
    let segment = &node.segment;
    let record = segment.file(file);
    let table = segment.enter_table(owner);
    let Some(_exclusive) = segment.try_lock_exclusive(&table, file, owner) else {
        return Outcome::Busy;
    };
    let is_ours = record.state.load(Ordering::Acquire) == file_state::LIVE
        && record.exclusive.load(Ordering::SeqCst) == owner.raw();
    // Else it was removed, and may have become another file's, since it was looked for.
    if is_ours { act(record) } else { Outcome::Busy }
}

/// Brings all of a file that is held to the store, and keeps no more of it than that.
pub(super) fn clean_held(
    node: &Arc<Node>,
    flusher: &mut Flusher,
    file: FileId,
    owner: Owner,
    left: Left,
) -> Outcome {
    let segment = &node.segment;
    let record = segment.file(file);
    // Of an owner that died in the middle of it.
    if record.has_intent() && complete_intent(node, file, owner).is_err() {
        return Outcome::Refused;
    }
    for _ in 0..sync_passes(TIERS_MAX) {
        if !node.is_pending(file) {
            break;
        }
        flusher.renew_backoff();
        flusher.flush(FlushScope::File(file));
        if record.has(FileFlags::FAILING) {
            break;
        }
    }
    let is_done = match left {
        Left::Nothing => segment.drop_clean_blocks(file, owner),
        Left::Copies => !node.is_pending(file),
    };
    if !is_done {
        let refused = record.has(FileFlags::FAILING);
        return if refused { Outcome::Refused } else { Outcome::Busy };
    }
    if record.is_tracked() && flusher.checkpoint_durably(file).is_err() {
        return Outcome::Refused;
    }
    if record.has(FileFlags::METADATA_DIRTY) && flusher.descriptor(file).is_err() {
        return Outcome::Refused;
    }
    reconcile_held(node, file);
    if is_clean(node, file) { Outcome::Done } else { Outcome::Refused }
}

/// Brings a part of a file that is held, and that several nodes write, to the store, and keeps no
/// more of it than `left` says: of a size, what has made the file as long as this node knows it.
pub(super) fn clean_part(
    node: &Arc<Node>,
    flusher: &mut Flusher,
    file: FileId,
    owner: Owner,
    part: Part,
    left: Level,
) -> Outcome {
    let (segment, record) = (&node.segment, node.segment.file(file));
    let end = record.size.load(Ordering::Acquire).saturating_sub(1);
    let range = if part == Part::SIZE { end..end + 1 } else { part.bytes() };
    if record.is_tracked() {
        // What the journal has of it must not be newer than what others write: it tells of files.
        let outcome = clean_held(node, flusher, file, owner, Left::Copies);
        if outcome != Outcome::Done {
            return outcome;
        }
    }
    for _ in 0..sync_passes(TIERS_MAX) {
        let blocks = blocks_of(node, file, &range);
        if !blocks.iter().any(|&(_, bucket)| is_pending(node, bucket)) {
            break;
        }
        flusher.renew_backoff();
        flusher.flush(FlushScope::Blocks(file, blocks));
        if record.has(FileFlags::FAILING) {
            break;
        }
    }
    let is_done = match left {
        Level::None | Level::Direct if part != Part::SIZE => {
            segment.drop_clean_blocks_in(file, range, owner)
        }
        _ => !blocks_of(node, file, &range).iter().any(|&(_, bucket)| is_pending(node, bucket)),
    };
    match is_done {
        true => Outcome::Done,
        false if record.has(FileFlags::FAILING) => Outcome::Refused,
        false => Outcome::Busy,
    }
}

/// The blocks in which bytes of `range` lie, and their buckets.
fn blocks_of(node: &Node, file: FileId, range: &Range<u64>) -> Vec<(u64, BucketId)> {
    let (segment, mut blocks) = (&node.segment, Vec::new());
    let bytes = segment.bucket_bytes() as u64;
    segment.for_each_entry(segment.file(file), range.start / bytes, |block, place| {
        if block * bytes >= range.end {
            return false;
        }
        if let Entry::Resident { bucket, .. } = Entry::decode(place.load(Ordering::Acquire)) {
            blocks.push((block, bucket));
        }
        true
    });
    blocks
}

fn is_pending(node: &Node, bucket: BucketId) -> bool {
    node.segment.bucket(bucket).is_some_and(|meta| meta.pending() != 0)
}
