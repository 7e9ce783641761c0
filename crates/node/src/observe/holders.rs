//! Processes that hold something in shared memory and do not go on: stopped, in a debugger, or
//! swapped out. What they hold is theirs, and others wait for it: people are told of them.

use crate::observe::log::shown;
use forebay_pool::clock::Timer;
use forebay_pool::free_map::USED;
use forebay_pool::layout::{SharedLock, slot_state};
use forebay_pool::{Entry, FileId, Owner, Segment, clock, liveness};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// A process that has been in one place for less is at work.
const STANDING: Timer = Timer::ms(500);
/// Things of one process that are named.
const NAMED_MAX: usize = 8;

/// A process that holds something and does not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its process id.
    pub pid: u32,
    /// Whether the kernel says that it is stopped, by a signal or a debugger.
    pub is_stopped: bool,
    /// Milliseconds for which it has not gone on.
    pub standing_ms: u32,
    /// What it holds, the first of it.
    pub held: Vec<Held>,
}

/// Something that a process holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Of which file; empty if it is being opened, or made.
    pub path: String,
    /// What others wait for.
    pub what: What,
}

/// What others wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// These bytes.
    Bytes(Range<u64>),
    /// Everything of the file: it is truncated, punched, or brought to the store for the kernel.
    File,
    /// Its end: something is appended.
    End,
    /// The offset of a description that several share.
    Offset,
    /// To open or close some few files.
    Table,
    /// Only a thread that wants the file for itself waits, as for a truncate.
    Inside,
}

impl std::fmt::Display for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = shown(&self.path);
        match &self.what {
            What::Bytes(range) => write!(f, "bytes {}-{} of {path}", range.start, range.end),
            What::File => write!(f, "all of {path}"),
            What::End => write!(f, "the end of {path}"),
            What::Offset => write!(f, "an offset in {path}"),
            What::Table => write!(f, "the opening of files"),
            What::Inside => write!(f, "truncates of {path}"),
        }
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = if self.is_stopped { "is stopped" } else { "does not go on" };
        let seconds = f64::from(self.standing_ms) / 1e3;
        let held: Vec<_> = self.held.iter().map(Held::to_string).collect();
        let held = held.join(", ");
        write!(f, "process {} {state} since {seconds:.1} s and keeps others from {held}", self.pid)
    }
}

/// The processes that hold something in `segment` and have not gone on for half a second, as its
/// node manager sees it. Takes no lock, and little time if there are none.
pub fn holders(segment: &Segment) -> Vec<Holder> {
    let header = segment.header();
    let now = clock::stamp(clock::realtime_coarse_ns());
    let mut found: BTreeMap<u32, Holder> = BTreeMap::new();
    for (slot, client) in segment.clients().used() {
        let since = client.standing.load(Ordering::Relaxed);
        let standing_ms = clock::stamp_age(now, since);
        if since == 0
            || standing_ms < STANDING.as_stamp()
            || client.state.load(Ordering::Acquire) != slot_state::LIVE
        {
            continue;
        }
        let pid = client.pid.load(Ordering::Acquire);
        let is_stopped = liveness::is_stopped(pid);
        found.insert(slot, Holder { pid, is_stopped, standing_ms, held: Vec::new() });
    }
    if found.is_empty() {
        return Vec::new();
    }
    let path =
        |file: FileId| String::from_utf8_lossy(&segment.path_of(segment.file(file))).into_owned();
    let mut note = |owner: Option<Owner>, file: Option<FileId>, what: What| {
        let holder = owner.and_then(|owner| found.get_mut(&owner.slot()));
        if let Some(holder) = holder.filter(|holder| holder.held.len() < NAMED_MAX) {
            holder.held.push(Held { path: file.map_or(String::new(), path), what });
        }
    };
    let bytes = segment.bucket_bytes() as u64;
    let range = |block: u64| {
        What::Bytes(block.saturating_mul(bytes)..block.saturating_mul(bytes).saturating_add(bytes))
    };
    for meta in header.bucket_ids().filter_map(|bucket| segment.bucket(bucket)) {
        let file = meta.file.load(Ordering::Relaxed);
        if meta.state.load(Ordering::Acquire) == USED && header.has_file(file) {
            note(meta.lock.holder(), Some(file), range(meta.block.load(Ordering::Relaxed)));
        }
    }
    for file in segment.files().live() {
        let record = segment.file(file);
        let exclusive = Owner::from_raw(record.exclusive.load(Ordering::Acquire));
        note(exclusive, Some(file), What::File);
        note(record.append.holder(), Some(file), What::End);
        segment.for_each_entry(record, 0, |block, place| {
            if let Entry::Busy(owner) = Entry::decode(place.load(Ordering::Acquire)) {
                note(Some(owner), Some(file), range(block));
            }
            true
        });
    }
    for id in 0..segment.descriptions().ready() {
        let description = segment.description(id);
        let file = description.file.load(Ordering::Relaxed);
        note(description.position.holder(), header.has_file(file).then_some(file), What::Offset);
    }
    segment.files().stripes.iter().for_each(|stripe| note(stripe.holder(), None, What::Table));
    for (&slot, holder) in &mut found {
        // A process that is stopped holds at least its place; one that merely waits holds nothing.
        if !holder.held.is_empty() || !holder.is_stopped {
            continue;
        }
        let inside = segment.client(slot).shared_locks.iter();
        let inside = inside.filter_map(|word| SharedLock::decode(word.load(Ordering::Relaxed)));
        let held = inside
            .filter_map(|seen| seen.scope.as_file())
            .filter(|&file| header.has_file(file))
            .map(|file| Held { path: path(file), what: What::Inside });
        holder.held = held.take(NAMED_MAX).collect();
    }
    found.into_values().filter(|holder| !holder.held.is_empty()).collect()
}
