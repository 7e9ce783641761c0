//! The calls of this process, where its run records them (`forebay run --record`) or shows what its
//! threads spend their time on (`forebay trace`). What is opened meanwhile says so in its
//! description's flags, which every call looks at anyway: where nothing is recorded, no call does
//! anything more.

use crate::open::link_of;
use crate::open_file::OpenFile;
use crate::session::Session;
use core::cell::Cell;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use forebay_pool::calls::{Call, CallKind, Calls};
use forebay_pool::clock;
use forebay_pool::layout::DescriptionFlags;
use forebay_pool::spans::{LaneId, SpanKind, Spans};
use rustix::fd::{OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags, Stat};
use std::io::Write;

/// Never freed: a thread may be at it.
static CALLS: AtomicPtr<Calls> = AtomicPtr::new(core::ptr::null_mut());

fn calls() -> Option<&'static Calls> {
    // SAFETY: set once, never freed.
    unsafe { CALLS.load(Ordering::Acquire).as_ref() }
}

/// The same.
static SPANS: AtomicPtr<Spans> = AtomicPtr::new(core::ptr::null_mut());

fn spans() -> Option<&'static Spans> {
    // SAFETY: set once, never freed.
    unsafe { SPANS.load(Ordering::Acquire).as_ref() }
}

thread_local! {
    /// The lane of this thread among the spans, plus one, and in the upper half the client slot of
    /// the process that had it, plus one: a child has another slot, and looks for another lane.
    static LANE: Cell<u64> = const { Cell::new(0) };
}

/// The rank of this process in a parallel job, plus one; 0 is none.
static RANK: AtomicU64 = AtomicU64::new(0);

/// Of a thread that found all lanes taken.
const NO_LANE: u64 = u32::MAX as u64;

/// Whether either is there: one look.
static ON: AtomicBool = AtomicBool::new(false);

/// Whether the calls of this process are recorded.
#[inline]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// When a call begins that is noted by [`OpenFile::note_since`] if calls are recorded.
#[inline]
pub(crate) fn begin_ns() -> u64 {
    if is_on() { clock::realtime_ns() } else { 0 }
}

/// What descriptions have whose calls are recorded.
pub(crate) fn flags() -> DescriptionFlags {
    if is_on() { DescriptionFlags::RECORDED } else { DescriptionFlags::NONE }
}

/// Where the calls of this process are kept one by one: notes one on a file that ends now.
fn note(
    kind: CallKind,
    thread: u32,
    file: (u64, u64),
    at: (u64, u64),
    (start_ns, end_ns): (u64, u64),
) {
    let Some(calls) = calls() else { return };
    calls.add(&Call {
        kind,
        process: rustix::process::getpid().as_raw_nonzero().get() as u32,
        thread,
        device: file.0,
        inode: file.1,
        offset: at.0,
        bytes: at.1,
        start_ns,
        end_ns,
    });
}

/// What a call is among the spans; those that note themselves there are none.
fn span_kind(kind: CallKind) -> Option<SpanKind> {
    match kind {
        CallKind::Read => Some(SpanKind::Read),
        CallKind::Write => Some(SpanKind::Write),
        CallKind::Truncate => Some(SpanKind::Resize),
        CallKind::Open | CallKind::Create | CallKind::Close | CallKind::Remove | CallKind::Path => {
            None
        }
    }
}

/// Looks for the lane of this thread, which has client slot `slot`.
#[cold]
#[inline(never)]
fn find_lane(spans: &Spans, slot: u32) -> Option<LaneId> {
    let process = rustix::process::getpid().as_raw_nonzero().get() as u32;
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let mut name = [0; 16];
    let length = name_of_thread(&mut name);
    let found = spans.lane(process, thread, &name[..length], clock::realtime_ns());
    if let (Some(lane), Some(rank)) = (found, RANK.load(Ordering::Relaxed).checked_sub(1)) {
        spans.set_rank(lane, rank as u32);
    }
    let lane = found.map_or(NO_LANE, |lane| u64::from(lane.raw()) + 1);
    LANE.set((u64::from(slot) + 1) << 32 | lane);
    found
}

/// The name of this thread, as far as it can be read; the C library may not be there yet.
fn name_of_thread(name: &mut [u8; 16]) -> usize {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let read = |path: &CStr, name: &mut [u8; 16]| {
        let file = rustix::fs::openat(rustix::fs::CWD, path, flags, Mode::empty())?;
        rustix::io::read(&file, &mut name[..])
    };
    let length = read(c"/proc/thread-self/comm", name).unwrap_or(0);
    name[..length].iter().position(|&byte| byte == b'\n').unwrap_or(length)
}

/// The spans of the run and the lane of this thread there, if they are noted.
#[inline]
fn lane(session: &Session) -> Option<(&'static Spans, LaneId)> {
    let spans = spans()?;
    let (slot, known) = (session.slot(), LANE.get());
    if known >> 32 != u64::from(slot) + 1 {
        return find_lane(spans, slot).map(|lane| (spans, lane));
    }
    let lane = (known as u32).checked_sub(1).and_then(LaneId::from_raw)?;
    Some((spans, lane))
}

/// Opens memory that a run has: as process `run`, with descriptor `number`, plus one; 0 is none.
pub(crate) fn memory_of_run(run: u32, number: u32, access: OFlags) -> Option<OwnedFd> {
    let number = number.checked_sub(1)?;
    let mut path = [0; 64];
    write!(&mut path[..63], "/proc/{run}/fd/{number}").ok()?;
    let path = core::ffi::CStr::from_bytes_until_nul(&path).ok()?;
    let access = access | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    rustix::fs::openat(rustix::fs::CWD, path, access, Mode::empty()).ok()
}

impl Session {
    /// Has the calls of this process recorded, if its run wants that. Without a word if they cannot
    /// be: the program's work comes first.
    pub(crate) fn join_recording(&self) {
        let Some(job) = self.job() else { return };
        let number = job.recording.load(Ordering::Relaxed) & 0xffff;
        let memory = memory_of_run(job.pid.load(Ordering::Relaxed), number, OFlags::RDWR);
        let Some(memory) = memory else { return };
        if let Ok(Some(calls)) = Calls::of(&memory) {
            CALLS.store(Box::into_raw(Box::new(calls)), Ordering::Release);
            ON.store(true, Ordering::Relaxed);
        }
        if let Ok(Some(spans)) = Spans::of(&memory) {
            let process = rustix::process::getpid().as_raw_nonzero().get() as u32;
            spans.begin_image(process, clock::realtime_ns());
            let rank = crate::process::rank().map_or(0, |rank| u64::from(rank) + 1);
            RANK.store(rank, Ordering::Relaxed);
            SPANS.store(Box::into_raw(Box::new(spans)), Ordering::Release);
            ON.store(true, Ordering::Relaxed);
        }
    }

    /// Notes that a phase of the program begins in this thread, where spans are noted: the first
    /// [`NAME_BYTES`](forebay_pool::spans::NAME_BYTES) bytes of its name. Any thread may call it.
    #[inline]
    pub fn begin_phase(&self, name: &[u8]) {
        if let Some((spans, lane)) = lane(self) {
            spans.begin(lane, name, clock::realtime_ns());
        }
    }

    /// Notes that the innermost phase of this thread ends, where spans are noted.
    #[inline]
    pub fn end_phase(&self) {
        if let Some((spans, lane)) = lane(self) {
            spans.end(lane, clock::realtime_ns());
        }
    }

    /// Notes, where spans are, a call that began when [`begin_ns`] was asked and ends now.
    #[inline]
    pub(crate) fn note_span(&self, kind: SpanKind, start_ns: u64) {
        if start_ns != 0 {
            self.put_span(kind, start_ns);
        }
    }

    #[cold]
    #[inline(never)]
    fn put_span(&self, kind: SpanKind, start_ns: u64) {
        if let Some((spans, lane)) = lane(self) {
            spans.call(lane, kind, start_ns, clock::realtime_ns(), 0);
        }
    }

    /// Notes that the file at `fd` was opened, and under which path.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_open(&self, fd: RawFd, stat: &Stat, is_cut: bool) {
        let Some(calls) = calls() else { return };
        let file = (stat.st_dev, stat.st_ino);
        if let Some(path) = link_of(fd, &mut core::mem::MaybeUninit::uninit()) {
            calls.add_path(file.0, file.1, path);
        }
        let kind = if is_cut { CallKind::Create } else { CallKind::Open };
        let now = clock::realtime_ns();
        note(kind, self.owner().thread(), file, (0, 0), (now, now));
    }

    /// Notes, where calls are recorded, that a file has lost its last name.
    pub(crate) fn note_removed(&self, stat: &Stat) {
        if is_on() && stat.st_nlink == 1 {
            let file = (stat.st_dev, stat.st_ino);
            let thread = self.owner().thread();
            let now = clock::realtime_ns();
            note(CallKind::Remove, thread, file, (0, 0), (now, now));
        }
    }
}

impl OpenFile<'_> {
    /// Whether the calls on it are recorded.
    #[inline(always)]
    pub(crate) fn is_recorded(&self) -> bool {
        self.may(DescriptionFlags::RECORDED)
    }

    /// Notes a call on it that began at `start_ns` and ends now.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_call(&self, kind: CallKind, start_ns: u64, offset: u64, bytes: usize) {
        let identity = self.record.identity();
        let file = (identity.device, identity.inode);
        let thread = self.session.owner().thread();
        let end_ns = clock::realtime_ns();
        note(kind, thread, file, (offset, bytes as u64), (start_ns, end_ns));
        if let Some(kind) = span_kind(kind)
            && let Some((spans, lane)) = lane(self.session)
        {
            spans.call(lane, kind, start_ns, end_ns, bytes as u64);
        }
    }

    /// Notes a call that began when [`begin_ns`] was asked, if calls are recorded: of those that do
    /// not look at the description's flags.
    pub(crate) fn note_since(&self, kind: CallKind, start_ns: u64, offset: u64, bytes: usize) {
        if is_on() {
            self.note_call(kind, start_ns, offset, bytes);
        }
    }

    /// Notes that the process gives up its last descriptor of a description.
    pub(crate) fn note_close(&self) {
        self.note_call(CallKind::Close, clock::realtime_ns(), 0, 0);
    }
}
