//! What the threads of a run spend their time on, for `forebay trace`: phases that programs mark,
//! and stretches of calls on buffered files. Calls of a kind that follow each other closely are one
//! span; the fuller the memory, the further apart they may be. So a million small calls take a few
//! places, and a run of any length has room.
//!
//! It lies behind the places of [`Calls`](crate::calls::Calls), in the same memory of the run. Each
//! thread has a lane, which it alone changes: no thread waits for another one, and what a process
//! that is killed has noted is there.
//!
//! ```
//! use forebay_pool::calls::{Calls, Wanted};
//! use forebay_pool::spans::{SpanKind, Spans};
//!
//! let memory = Calls::memory(Wanted::SPANS)?;
//! let (run, program) = (Spans::of(&memory)?.unwrap(), Spans::of(&memory)?.unwrap());
//! let lane = program.lane(70, 71, b"app", 1_000).unwrap();
//! program.begin(lane, b"forward", 1_000);
//! (0..100).for_each(|call| program.call(lane, SpanKind::Write, 2_000 + call, 2_001 + call, 4096));
//! program.end(lane, 9_000);
//! let spans = run.spans();
//! assert_eq!((spans[0].kind, spans[0].calls, spans[0].bytes), (SpanKind::Write, 100, 409_600));
//! assert_eq!((spans[1].kind, spans[1].end_ns), (SpanKind::Phase, 9_000));
//! assert_eq!(run.name(spans[1].name), "forward");
//! # Ok::<(), rustix::io::Errno>(())
//! ```

use crate::calls::{BYTES as CALLS_BYTES, TOTAL_BYTES, Wanted, check};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Spans that a run can note: 16 MiB of memory, of which those have some that are used.
pub const SPANS_MAX: usize = 1 << 18;
/// Threads that have a lane.
pub const LANES_MAX: usize = 4096;
/// Names of phases that are told apart.
pub const NAMES_MAX: usize = 1024;
/// Bytes of a phase's name that are kept.
pub const NAME_BYTES: usize = 63;
/// Phases of a thread within each other that are noted.
pub const DEPTH_MAX: usize = 16;

/// Calls of a kind that are no further apart are one span, as long as hardly any are noted.
const GAP_NS: u64 = 100_000;
/// The gap doubles with each such part of the places that is taken.
const GAP_STEPS: usize = 16;

/// What a span is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum SpanKind {
    /// Reads.
    #[default]
    Read = 1,
    /// Writes.
    Write = 2,
    /// Syncs: `fsync` and the like.
    Sync = 3,
    /// Opens.
    Open = 4,
    /// Closes.
    Close = 5,
    /// Changes of a file's size.
    Resize = 6,
    /// Calls of several kinds, where so much was noted that these are not told apart any more.
    Mixed = 7,
    /// A phase that the program has marked.
    Phase = 8,
}

impl SpanKind {
    /// All of them.
    pub const ALL: [SpanKind; 8] = [
        Self::Read,
        Self::Write,
        Self::Sync,
        Self::Open,
        Self::Close,
        Self::Resize,
        Self::Mixed,
        Self::Phase,
    ];

    fn of(number: u64) -> Option<SpanKind> {
        Self::ALL.into_iter().find(|kind| *kind as u64 == number)
    }
}

/// A stretch of a thread's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// What was done.
    pub kind: SpanKind,
    /// The thread, see [`Spans::lanes`].
    pub lane: u32,
    /// Of a phase: its name, see [`Spans::name`].
    pub name: u32,
    /// Of a phase: how many others it lies in.
    pub depth: u32,
    /// When it began and ended, in nanoseconds of CLOCK_REALTIME; of one that goes on, `end_ns` is
    /// that of its last call, and of a phase 0.
    pub start_ns: u64,
    /// See `start_ns`.
    pub end_ns: u64,
    /// Bytes that were read or written.
    pub bytes: u64,
    /// The nanoseconds that its calls took; the rest of its time lies between them.
    pub busy_ns: u64,
    /// How many calls it has.
    pub calls: u64,
}

/// What all calls of a kind came to, however many spans were noted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// Calls; of phases those that ended.
    pub calls: u64,
    /// Bytes that were read or written.
    pub bytes: u64,
    /// Nanoseconds that they took; of phases, those that lie in no other.
    pub busy_ns: u64,
}

/// A thread of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// The process.
    pub process: u32,
    /// The thread's id, as the kernel has it.
    pub id: u32,
    /// The rank of its process in a parallel job.
    pub rank: Option<u32>,
    /// Its name when it was first seen.
    pub name: Vec<u8>,
    /// When it was first seen, in nanoseconds of CLOCK_REALTIME.
    pub seen_ns: u64,
    /// By [`SpanKind::ALL`].
    pub totals: [Total; SpanKind::ALL.len()],
}

impl Thread {
    /// What its calls of a kind came to.
    pub fn total(&self, kind: SpanKind) -> Total {
        self.totals[kind as usize - 1]
    }
}

/// What there was no room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    /// Spans without a place.
    pub spans: u64,
    /// Threads without a lane: nothing of them is noted.
    pub threads: u64,
    /// Phases too deep within others.
    pub depth: u64,
    /// Ends of phases that had not begun.
    pub ends: u64,
    /// Phases whose names are not told apart.
    pub names: u64,
}

/// A thread's place in the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneId(u32);

impl LaneId {
    /// Its number.
    pub fn raw(self) -> u32 {
        self.0
    }

    /// The lane of a number that [`LaneId::raw`] gave.
    pub fn from_raw(raw: u32) -> Option<LaneId> {
        ((raw as usize) < LANES_MAX).then_some(LaneId(raw))
    }
}

#[repr(C)]
struct Head {
    spans: AtomicU64,
    lanes: AtomicU64,
    missed: [AtomicU64; 5],
    spare: AtomicU64,
}

/// A name is there once its hash is, but for the lowest bit, and complete with that.
#[repr(C)]
struct Name {
    hash: AtomicU64,
    bytes: [AtomicU64; NAME_WORDS],
}

const NAME_WORDS: usize = (NAME_BYTES + 1) / 8;

#[repr(C)]
struct Sum {
    calls: AtomicU64,
    bytes: AtomicU64,
    busy_ns: AtomicU64,
}

#[repr(C)]
struct Begun {
    name: AtomicU64,
    start_ns: AtomicU64,
}

#[repr(C)]
struct Lane {
    /// 0 until the rest is there.
    process: AtomicU32,
    thread: AtomicU32,
    seen_ns: AtomicU64,
    name: [AtomicU64; 2],
    /// Plus one; 0 is none.
    rank: AtomicU64,
    /// The thread is within a change of what follows: a handler of a signal finds it so.
    changing: AtomicU32,
    depth: AtomicU32,
    /// The span of calls that may go on; 0 is none.
    kind: AtomicU64,
    start_ns: AtomicU64,
    end_ns: AtomicU64,
    bytes: AtomicU64,
    busy_ns: AtomicU64,
    calls: AtomicU64,
    totals: [Sum; SpanKind::ALL.len()],
    phases: [Begun; DEPTH_MAX],
}

/// What is written last says that the rest is there.
#[repr(C)]
struct Place {
    kind: AtomicU32,
    lane: AtomicU32,
    name: AtomicU32,
    depth: AtomicU32,
    numbers: [AtomicU64; 6],
}

#[repr(C)]
struct Layout {
    head: Head,
    names: [Name; NAMES_MAX],
    lanes: [Lane; LANES_MAX],
    places: [Place; SPANS_MAX],
}

/// Bytes of it.
pub(crate) const BYTES: usize = size_of::<Layout>();

/// The noted spans, as one process has them mapped.
#[derive(Debug)]
pub struct Spans {
    base: *mut Layout,
}

// SAFETY: a mapping of atomics, which stays as long as this does.
unsafe impl Send for Spans {}
// SAFETY: as above.
unsafe impl Sync for Spans {}

impl Spans {
    /// Maps the memory of a run, `None` if it wants no spans.
    ///
    /// # Errors
    /// The system's; `INVAL` if it is not memory of a run.
    pub fn of(memory: impl AsFd) -> Result<Option<Spans>, Errno> {
        if !check(&memory)?.contains(Wanted::SPANS) {
            return Ok(None);
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let (nowhere, at) = (core::ptr::null_mut(), CALLS_BYTES as u64);
        const { assert!(TOTAL_BYTES == CALLS_BYTES + BYTES) };
        // SAFETY: a new mapping, of a size that the memory has.
        let base = unsafe { mmap(nowhere, BYTES, access, MapFlags::SHARED, memory, at)? };
        Ok(Some(Spans { base: base.cast() }))
    }

    fn layout(&self) -> &Layout {
        // SAFETY: the mapping; zeros are valid.
        unsafe { &*self.base }
    }

    /// The lane of a thread: the one that it has, or a new one. `None` if all are taken, which is
    /// counted.
    pub fn lane(&self, process: u32, thread: u32, name: &[u8], now_ns: u64) -> Option<LaneId> {
        let layout = self.layout();
        let taken = (layout.head.lanes.load(Ordering::Acquire) as usize).min(LANES_MAX);
        let is_its = |lane: &Lane| {
            lane.process.load(Ordering::Acquire) == process
                && lane.thread.load(Ordering::Relaxed) == thread
        };
        if let Some(at) = layout.lanes[..taken].iter().position(is_its) {
            return Some(LaneId(at as u32));
        }
        let number = layout.head.lanes.fetch_add(1, Ordering::AcqRel) as usize;
        let Some(lane) = layout.lanes.get(number) else {
            layout.head.lanes.fetch_sub(1, Ordering::AcqRel);
            layout.head.missed[1].fetch_add(1, Ordering::Relaxed);
            return None;
        };
        lane.thread.store(thread, Ordering::Relaxed);
        lane.seen_ns.store(now_ns, Ordering::Relaxed);
        let words = words_of::<2>(&name[..name.len().min(15)]);
        lane.name.iter().zip(words).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
        lane.process.store(process, Ordering::Release);
        Some(LaneId(number as u32))
    }

    /// Says which rank of a parallel job the process of a thread is.
    pub fn set_rank(&self, lane: LaneId, rank: u32) {
        self.at(lane).rank.store(u64::from(rank) + 1, Ordering::Relaxed);
    }

    /// Ends what a process had under way before an exec: its threads are gone, and the image that
    /// now begins has marked nothing.
    pub fn begin_image(&self, process: u32, now_ns: u64) {
        let lanes = self.layout().head.lanes.load(Ordering::Acquire) as usize;
        for number in 0..lanes.min(LANES_MAX) {
            let lane = LaneId(number as u32);
            if self.at(lane).process.load(Ordering::Acquire) == process {
                self.at(lane).changing.store(0, Ordering::Relaxed);
                self.end_calls(lane);
                while self.at(lane).depth.load(Ordering::Relaxed) > 0 {
                    self.end(lane, now_ns);
                }
            }
        }
    }

    fn at(&self, lane: LaneId) -> &Lane {
        &self.layout().lanes[lane.0 as usize % LANES_MAX]
    }

    /// How far apart calls of one span may be now, and whether they may be of several kinds.
    fn gap(&self) -> (u64, bool) {
        let noted = self.layout().head.spans.load(Ordering::Relaxed) as usize;
        let step = (noted / (SPANS_MAX / GAP_STEPS)).min(GAP_STEPS);
        (GAP_NS << step, step >= GAP_STEPS / 2)
    }

    /// Notes a call of the thread that has the lane.
    #[inline]
    pub fn call(&self, id: LaneId, kind: SpanKind, start_ns: u64, end_ns: u64, bytes: u64) {
        let lane = self.at(id);
        let took_ns = end_ns.saturating_sub(start_ns);
        lane.totals[kind as usize - 1].add(bytes, took_ns);
        if lane.changing.load(Ordering::Relaxed) != 0 {
            let calls = 1;
            let (lane, busy_ns) = (id.0, took_ns);
            let span =
                Span { kind, lane, start_ns, end_ns, bytes, busy_ns, calls, ..<_>::default() };
            return self.put(&span);
        }
        lane.changing.store(1, Ordering::Relaxed);
        let open = lane.kind.load(Ordering::Relaxed);
        let (gap_ns, mixes) = self.gap();
        let since_ns = start_ns.wrapping_sub(lane.end_ns.load(Ordering::Relaxed));
        let is_next = open == kind as u64 || mixes;
        if open != 0 && is_next && since_ns <= gap_ns {
            if open != kind as u64 {
                lane.kind.store(SpanKind::Mixed as u64, Ordering::Relaxed);
            }
            lane.end_ns.store(end_ns, Ordering::Relaxed);
            raise(&lane.bytes, bytes);
            raise(&lane.busy_ns, took_ns);
            raise(&lane.calls, 1);
        } else {
            self.put_open(id);
            lane.start_ns.store(start_ns, Ordering::Relaxed);
            lane.end_ns.store(end_ns, Ordering::Relaxed);
            lane.bytes.store(bytes, Ordering::Relaxed);
            lane.busy_ns.store(took_ns, Ordering::Relaxed);
            lane.calls.store(1, Ordering::Relaxed);
            lane.kind.store(kind as u64, Ordering::Release);
        }
        lane.changing.store(0, Ordering::Relaxed);
    }

    /// Notes that a phase of this name begins in the thread that has the lane.
    pub fn begin(&self, id: LaneId, name: &[u8], now_ns: u64) {
        self.end_calls(id);
        let lane = self.at(id);
        let depth = lane.depth.load(Ordering::Relaxed);
        match lane.phases.get(depth as usize) {
            Some(begun) => {
                begun.name.store(self.number_of(name).into(), Ordering::Relaxed);
                begun.start_ns.store(now_ns, Ordering::Relaxed);
            }
            None => raise_shared(&self.layout().head.missed[2]),
        }
        lane.depth.store(depth.saturating_add(1), Ordering::Release);
    }

    /// Notes that the innermost phase of the thread ends.
    pub fn end(&self, id: LaneId, now_ns: u64) {
        self.end_calls(id);
        let lane = self.at(id);
        let Some(depth) = lane.depth.load(Ordering::Relaxed).checked_sub(1) else {
            return raise_shared(&self.layout().head.missed[3]);
        };
        lane.depth.store(depth, Ordering::Release);
        let Some(begun) = lane.phases.get(depth as usize) else { return };
        let start_ns = begun.start_ns.load(Ordering::Relaxed);
        let took_ns = now_ns.saturating_sub(start_ns);
        let outermost_ns = if depth == 0 { took_ns } else { 0 };
        lane.totals[SpanKind::Phase as usize - 1].add(0, outermost_ns);
        self.put(&Span {
            kind: SpanKind::Phase,
            lane: id.0,
            name: begun.name.load(Ordering::Relaxed) as u32,
            depth,
            start_ns,
            end_ns: now_ns,
            busy_ns: took_ns,
            calls: 1,
            bytes: 0,
        });
    }

    fn end_calls(&self, id: LaneId) {
        let lane = self.at(id);
        if lane.kind.load(Ordering::Relaxed) != 0 && lane.changing.swap(1, Ordering::Relaxed) == 0 {
            self.put_open(id);
            lane.changing.store(0, Ordering::Relaxed);
        }
    }

    fn put_open(&self, id: LaneId) {
        let lane = self.at(id);
        if let Some(span) = lane.open(id.0) {
            lane.kind.store(0, Ordering::Release);
            self.put(&span);
        }
    }

    fn put(&self, span: &Span) {
        let head = &self.layout().head;
        let number = head.spans.fetch_add(1, Ordering::Relaxed) as usize;
        let Some(place) = self.layout().places.get(number) else {
            // The count stays near its limit: it never comes round.
            head.spans.fetch_sub(1, Ordering::Relaxed);
            return raise_shared(&head.missed[0]);
        };
        place.lane.store(span.lane, Ordering::Relaxed);
        place.name.store(span.name, Ordering::Relaxed);
        place.depth.store(span.depth, Ordering::Relaxed);
        let Span { start_ns, end_ns, bytes, busy_ns, calls, .. } = *span;
        for (to, number) in place.numbers.iter().zip([start_ns, end_ns, bytes, busy_ns, calls]) {
            to.store(number, Ordering::Relaxed);
        }
        place.kind.store(span.kind as u32, Ordering::Release);
    }

    /// The number of a name: its place, counted from one; 0 where there is no place for it.
    fn number_of(&self, name: &[u8]) -> u32 {
        let name = &name[..name.len().min(NAME_BYTES)];
        let hash = hash(name);
        let names = &self.layout().names;
        for turn in 0..NAMES_MAX {
            let at = (hash as usize >> 1).wrapping_add(turn) % NAMES_MAX;
            let known = &names[at].hash;
            let found = match known.load(Ordering::Acquire) {
                0 => known
                    .compare_exchange(0, hash, Ordering::AcqRel, Ordering::Acquire)
                    .map_or_else(|other| other, |_| hash),
                found => found,
            };
            if found | 1 != hash | 1 {
                continue;
            }
            if found & 1 == 0 {
                // Also where the thread that took the place was killed: it is the same text.
                let words = words_of::<NAME_WORDS>(name);
                let to = names[at].bytes.iter();
                to.zip(words).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
                known.store(hash | 1, Ordering::Release);
            }
            return at as u32 + 1;
        }
        raise_shared(&self.layout().head.missed[4]);
        0
    }

    /// The name of a number.
    pub fn name(&self, number: u32) -> String {
        let place = (number as usize).checked_sub(1).and_then(|at| self.layout().names.get(at));
        match place.filter(|name| name.hash.load(Ordering::Acquire) & 1 == 1) {
            Some(name) => String::from_utf8_lossy(&bytes_of(&name.bytes)).into_owned(),
            None => "(phase)".to_owned(),
        }
    }

    /// The threads, by number of their lanes.
    pub fn lanes(&self) -> Vec<Thread> {
        let lanes = self.layout().head.lanes.load(Ordering::Acquire) as usize;
        let lanes = self.layout().lanes[..lanes.min(LANES_MAX)].iter();
        let thread = |lane: &Lane| Thread {
            process: lane.process.load(Ordering::Acquire),
            id: lane.thread.load(Ordering::Relaxed),
            rank: lane.rank.load(Ordering::Relaxed).checked_sub(1).map(|rank| rank as u32),
            name: bytes_of(&lane.name),
            seen_ns: lane.seen_ns.load(Ordering::Relaxed),
            totals: core::array::from_fn(|kind| lane.totals[kind].now()),
        };
        lanes.map(thread).collect()
    }

    /// All that was noted, and what goes on: first what ended first, as far as one thread is
    /// concerned.
    pub fn spans(&self) -> Vec<Span> {
        let layout = self.layout();
        let lanes = (layout.head.lanes.load(Ordering::Acquire) as usize).min(LANES_MAX);
        let under_way: Vec<Span> = (0..lanes)
            .flat_map(|number| {
                let (lane, number) = (&layout.lanes[number], number as u32);
                let depth = (lane.depth.load(Ordering::Acquire) as usize).min(DEPTH_MAX);
                let phases = lane.phases[..depth].iter().enumerate().rev();
                let phases = phases.map(move |(depth, begun)| Span {
                    kind: SpanKind::Phase,
                    lane: number,
                    name: begun.name.load(Ordering::Relaxed) as u32,
                    depth: depth as u32,
                    start_ns: begun.start_ns.load(Ordering::Relaxed),
                    calls: 1,
                    ..Span::default()
                });
                lane.open(number).into_iter().chain(phases)
            })
            .collect();
        let noted = (layout.head.spans.load(Ordering::Acquire) as usize).min(SPANS_MAX);
        let mut spans: Vec<Span> = layout.places[..noted].iter().filter_map(Place::span).collect();
        // What has ended since it was looked at is noted already.
        let known: std::collections::HashSet<_> =
            spans.iter().map(|span| (span.lane, span.kind, span.start_ns, span.depth)).collect();
        let is_new =
            |span: &Span| !known.contains(&(span.lane, span.kind, span.start_ns, span.depth));
        spans.extend(under_way.into_iter().filter(is_new));
        spans
    }

    /// How many spans were noted.
    pub fn count(&self) -> u64 {
        self.layout().head.spans.load(Ordering::Relaxed).min(SPANS_MAX as u64)
    }

    /// What there was no room for.
    pub fn missed(&self) -> Missed {
        let missed = |at: usize| self.layout().head.missed[at].load(Ordering::Relaxed);
        Missed {
            spans: missed(0),
            threads: missed(1),
            depth: missed(2),
            ends: missed(3),
            names: missed(4),
        }
    }
}

impl Drop for Spans {
    fn drop(&mut self) {
        // SAFETY: the mapping, which nothing refers to any more.
        let _ = unsafe { munmap(self.base.cast(), BYTES) };
    }
}

impl Lane {
    fn open(&self, number: u32) -> Option<Span> {
        let kind = SpanKind::of(self.kind.load(Ordering::Acquire))?;
        let start_ns = self.start_ns.load(Ordering::Relaxed);
        Some(Span {
            kind,
            lane: number,
            start_ns,
            end_ns: self.end_ns.load(Ordering::Relaxed).max(start_ns),
            bytes: self.bytes.load(Ordering::Relaxed),
            busy_ns: self.busy_ns.load(Ordering::Relaxed),
            calls: self.calls.load(Ordering::Relaxed),
            ..Span::default()
        })
    }
}

impl Place {
    fn span(&self) -> Option<Span> {
        let kind = SpanKind::of(self.kind.load(Ordering::Acquire).into())?;
        let number = |at: usize| self.numbers[at].load(Ordering::Relaxed);
        Some(Span {
            kind,
            lane: self.lane.load(Ordering::Relaxed),
            name: self.name.load(Ordering::Relaxed),
            depth: self.depth.load(Ordering::Relaxed),
            start_ns: number(0),
            end_ns: number(1),
            bytes: number(2),
            busy_ns: number(3),
            calls: number(4),
        })
    }
}

impl Sum {
    fn add(&self, bytes: u64, took_ns: u64) {
        raise(&self.calls, 1);
        raise(&self.bytes, bytes);
        raise(&self.busy_ns, took_ns);
    }

    fn now(&self) -> Total {
        Total {
            calls: self.calls.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            busy_ns: self.busy_ns.load(Ordering::Relaxed),
        }
    }
}

/// Of a word that one thread changes: no locked instruction.
fn raise(word: &AtomicU64, more: u64) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

#[cold]
fn raise_shared(word: &AtomicU64) {
    word.fetch_add(1, Ordering::Relaxed);
}

/// FNV-1a, without its lowest bit, and never 0.
fn hash(name: &[u8]) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    (name.iter().fold(0xcbf2_9ce4_8422_2325, step) & !1).max(2)
}

fn words_of<const WORDS: usize>(bytes: &[u8]) -> [u64; WORDS] {
    core::array::from_fn(|word| {
        let at = |i: usize| bytes.get(word * 8 + i).copied().unwrap_or(0);
        u64::from_le_bytes(core::array::from_fn(at))
    })
}

/// Up to the first zero.
fn bytes_of(words: &[AtomicU64]) -> Vec<u8> {
    let bytes = words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
    bytes.take_while(|&byte| byte != 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::Calls;

    fn spans() -> Spans {
        Spans::of(Calls::memory(Wanted::SPANS).unwrap()).unwrap().unwrap()
    }

    #[test]
    fn calls_become_one_span_until_a_pause_another_kind_or_a_mark() {
        let spans = spans();
        let lane = spans.lane(7, 8, b"app", 0).unwrap();
        let call = |kind, at: u64| spans.call(lane, kind, at, at + 10, 5);
        call(SpanKind::Write, 100);
        call(SpanKind::Write, 120 + GAP_NS - 10);
        call(SpanKind::Write, 200 + 2 * GAP_NS);
        call(SpanKind::Read, 220 + 2 * GAP_NS);
        spans.begin(lane, b"phase", 240 + 2 * GAP_NS);
        call(SpanKind::Read, 250 + 2 * GAP_NS);
        let found: Vec<_> = spans.spans().iter().map(|s| (s.kind, s.calls, s.end_ns)).collect();
        let expected = [
            (SpanKind::Write, 2, 120 + GAP_NS),
            (SpanKind::Write, 1, 210 + 2 * GAP_NS),
            (SpanKind::Read, 1, 230 + 2 * GAP_NS),
            (SpanKind::Read, 1, 260 + 2 * GAP_NS),
            (SpanKind::Phase, 1, 0),
        ];
        assert_eq!(found, expected);
        spans.set_rank(lane, 3);
        assert_eq!(spans.lanes()[0].rank, Some(3));
        let total = spans.lanes()[0].total(SpanKind::Write);
        assert_eq!(total, Total { calls: 3, bytes: 15, busy_ns: 30 });
    }

    #[test]
    fn phases_lie_in_each_other_and_what_does_not_fit_is_counted() {
        let spans = spans();
        let lane = spans.lane(7, 8, b"", 0).unwrap();
        let deep = DEPTH_MAX + 2;
        (0..deep).for_each(|at| spans.begin(lane, format!("{}", at % 3).as_bytes(), at as u64));
        (0..deep + 1).for_each(|at| spans.end(lane, 100 + at as u64));
        let found = spans.spans();
        assert_eq!(found.len(), DEPTH_MAX);
        for span in &found {
            assert_eq!(u64::from(span.depth), span.start_ns);
            assert_eq!(spans.name(span.name), format!("{}", span.depth % 3));
            assert_eq!(span.end_ns, 100 + deep as u64 - 1 - span.start_ns);
        }
        let missed = Missed { depth: 2, ends: 1, ..Missed::default() };
        assert_eq!(spans.missed(), missed);
        assert_eq!(spans.lanes()[0].total(SpanKind::Phase).calls, DEPTH_MAX as u64);
    }

    #[test]
    fn names_are_cut_off_and_kept_apart_as_far_as_there_is_room() {
        let spans = spans();
        let long = [b'x'; 200];
        assert_eq!(spans.number_of(&long), spans.number_of(&long[..NAME_BYTES]));
        assert_eq!(spans.name(spans.number_of(&long)).len(), NAME_BYTES);
        let numbers: std::collections::HashSet<_> =
            (0..2 * NAMES_MAX).map(|n| spans.number_of(format!("n{n}").as_bytes())).collect();
        assert_eq!(numbers.len(), NAMES_MAX, "1023 names beside the long one, and none");
        assert!(numbers.contains(&0));
        assert_eq!(spans.missed().names, NAMES_MAX as u64 + 1);
        assert_eq!(spans.name(0), "(phase)");
        assert_eq!(spans.name(u32::MAX), "(phase)");
    }

    #[test]
    fn a_million_calls_that_do_not_follow_each_other_have_room() {
        let spans = spans();
        let lane = spans.lane(7, 8, b"", 0).unwrap();
        for turn in 0..1_000_000u64 {
            let kind = [SpanKind::Open, SpanKind::Write, SpanKind::Close][turn as usize % 3];
            spans.call(lane, kind, turn * 150_000, turn * 150_000 + 10, 1);
        }
        assert_eq!(spans.missed(), Missed::default());
        let count = spans.count();
        assert!((SPANS_MAX as u64 / 3..SPANS_MAX as u64 * 3 / 4).contains(&count), "{count}");
        let calls: u64 = spans.spans().iter().map(|span| span.calls).sum();
        assert_eq!(calls, 1_000_000);
    }

    #[test]
    fn a_full_memory_counts_what_it_misses() {
        let spans = spans();
        let lane = spans.lane(7, 8, b"", 0).unwrap();
        spans.layout().head.spans.store(SPANS_MAX as u64 - 1, Ordering::Relaxed);
        for at in 0..3 {
            spans.begin(lane, b"a", at);
            spans.end(lane, at);
        }
        assert_eq!((spans.spans().len(), spans.missed().spans), (1, 2));
        for thread in 1..=LANES_MAX as u32 {
            assert_eq!(spans.lane(1, thread, b"", 0).is_some(), thread < LANES_MAX as u32);
        }
        assert_eq!(spans.missed().threads, 1);
    }

    #[test]
    fn an_exec_ends_what_was_under_way() {
        let spans = spans();
        let [mine, other] = [7, 9].map(|process| spans.lane(process, 1, b"", 0).unwrap());
        for lane in [mine, other] {
            spans.begin(lane, b"a", 10);
            spans.call(lane, SpanKind::Read, 11, 12, 1);
        }
        spans.begin_image(7, 50);
        let ended: Vec<_> = spans.spans().iter().map(|s| (s.lane, s.kind, s.end_ns)).collect();
        let expected = [
            (0, SpanKind::Read, 12),
            (0, SpanKind::Phase, 50),
            (1, SpanKind::Read, 12),
            (1, SpanKind::Phase, 0),
        ];
        assert_eq!(ended, expected);
        assert_eq!(spans.lane(7, 1, b"", 60), Some(mine));
    }

    #[test]
    fn a_handler_within_a_change_leaves_the_span_under_way_alone() {
        let spans = spans();
        let lane = spans.lane(7, 8, b"", 0).unwrap();
        spans.call(lane, SpanKind::Read, 1, 2, 3);
        spans.at(lane).changing.store(1, Ordering::Relaxed);
        spans.call(lane, SpanKind::Read, 3, 4, 5);
        spans.at(lane).changing.store(0, Ordering::Relaxed);
        let bytes: Vec<_> = spans.spans().iter().map(|span| span.bytes).collect();
        assert_eq!(bytes, [5, 3]);
    }
}
