//! The calls of this process, where its run records them (`forebay run --record`). What is opened
//! meanwhile says so in its description's flags, which every call looks at anyway: where nothing
//! is recorded, no call does anything more.

use crate::open::link_of;
use crate::open_file::OpenFile;
use crate::session::Session;
use core::sync::atomic::{AtomicPtr, Ordering};
use forebay_pool::calls::{Call, CallKind, Calls};
use forebay_pool::clock;
use forebay_pool::layout::DescriptionFlags;
use rustix::fd::{OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags, Stat};
use std::io::Write;

/// Never freed: a thread may be at it.
static CALLS: AtomicPtr<Calls> = AtomicPtr::new(core::ptr::null_mut());

fn calls() -> Option<&'static Calls> {
    // SAFETY: set once, never freed.
    unsafe { CALLS.load(Ordering::Acquire).as_ref() }
}

/// Whether the calls of this process are recorded.
pub(crate) fn is_on() -> bool {
    calls().is_some()
}

/// When a call begins that is noted by [`OpenFile::note_since`] if calls are recorded.
pub(crate) fn begin_ns() -> u64 {
    if is_on() { clock::realtime_ns() } else { 0 }
}

/// What descriptions have whose calls are recorded.
pub(crate) fn flags() -> DescriptionFlags {
    if is_on() { DescriptionFlags::RECORDED } else { DescriptionFlags::NONE }
}

/// Notes a call on a file that ends now.
fn note(kind: CallKind, thread: u32, file: (u64, u64), at: (u64, u64), start_ns: u64) {
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
        end_ns: clock::realtime_ns(),
    });
}

/// Opens memory that a run has: as process `run`, with descriptor `number`, plus one; 0 is none.
pub(crate) fn memory_of_run(run: u32, number: u32, access: OFlags) -> Option<OwnedFd> {
    let number = number.checked_sub(1)?;
    let mut path = [0; 64];
    write!(&mut path[..63], "/proc/{run}/fd/{number}").ok()?;
    let path = core::ffi::CStr::from_bytes_until_nul(&path).ok()?;
    let access = access | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    rustix::fs::open(path, access, Mode::empty()).ok()
}

impl Session {
    /// Has the calls of this process recorded, if its run wants that. Without a word if they cannot
    /// be: the program's work comes first.
    pub(crate) fn join_recording(&self) {
        let Some(job) = self.job() else { return };
        let number = job.recording.load(Ordering::Relaxed) & 0xffff;
        let memory = memory_of_run(job.pid.load(Ordering::Relaxed), number, OFlags::RDWR);
        if let Some(calls) = memory.and_then(|memory| Calls::of(memory).ok()) {
            CALLS.store(Box::into_raw(Box::new(calls)), Ordering::Release);
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
        note(kind, self.owner().thread(), file, (0, 0), clock::realtime_ns());
    }

    /// Notes, where calls are recorded, that a file has lost its last name.
    pub(crate) fn note_removed(&self, stat: &Stat) {
        if is_on() && stat.st_nlink == 1 {
            let file = (stat.st_dev, stat.st_ino);
            let thread = self.owner().thread();
            note(CallKind::Remove, thread, file, (0, 0), clock::realtime_ns());
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
        note(kind, thread, file, (offset, bytes as u64), start_ns);
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
        if self.is_recorded() {
            self.note_call(CallKind::Close, clock::realtime_ns(), 0, 0);
        }
    }
}
