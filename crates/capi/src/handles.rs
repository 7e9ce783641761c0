//! Handles of sessions and files: numbers, in the form of pointers that lead nowhere, so that one
//! that was closed, or never was one, is seen. All threads may use all of them at once; a file is
//! closed when no call uses it any more.

use crate::report::{code, fail};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use rustix::fd::RawFd;

/// Files that can be open at a time: 96 bytes each, once they were used.
const FILES: usize = 1 << 16;
/// Sessions that can be there at a time.
const SESSIONS: usize = 1024;

/// What a word of a place says beside the generation.
const OPEN: u64 = 1 << 19;
/// The lowest bits are the calls that use it.
const USERS: u64 = OPEN - 1;
const GENERATION: u64 = 1 << 20;

/// A place of a table. Zero is a free one.
pub(crate) struct Place {
    word: AtomicU64,
}

impl Place {
    pub const fn free() -> Place {
        Place { word: AtomicU64::new(0) }
    }

    /// Takes a free place, for `fill` to be called before another thread can use it. Its
    /// generation, which no handle had before.
    pub fn take(&self, fill: impl FnOnce()) -> Option<u64> {
        let word = self.word.load(Ordering::Relaxed);
        let is_free = word & (OPEN | USERS) == 0;
        let taken = is_free
            && self
                .word
                .compare_exchange(word, word + 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        taken.then(|| {
            fill();
            self.word.store(word | OPEN, Ordering::Release);
            word / GENERATION
        })
    }

    /// Counts a call in, if the place is that of `generation` and open.
    pub fn enter(&self, generation: u64) -> bool {
        let enter = |word: u64| {
            let is_it = word / GENERATION == generation && word & OPEN != 0;
            (is_it && word & USERS != USERS).then_some(word + 1)
        };
        self.word.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).is_ok()
    }

    /// Lets no further call in; this one leaves it as any other. False if it is not open.
    pub fn shut(&self, generation: u64) -> bool {
        let shut = |word: u64| {
            let is_it = word / GENERATION == generation && word & OPEN != 0;
            (is_it && word & USERS != USERS).then_some((word & !OPEN) + 1)
        };
        self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, shut).is_ok()
    }

    /// Counts a call out. The last one of a place that is shut calls `last` first.
    pub fn leave<R>(&self, last: impl FnOnce() -> R) -> Option<R> {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if word & (OPEN | USERS) == 1 {
                // No call comes in any more, and this is the last one.
                let result = last();
                self.word.store((word / GENERATION + 1) * GENERATION, Ordering::Release);
                return Some(result);
            }
            match self.word.compare_exchange_weak(
                word,
                word - 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return None,
                Err(now) => word = now,
            }
        }
    }

    fn generation(&self) -> u64 {
        self.word.load(Ordering::Acquire) / GENERATION
    }

    /// The generation that a handle has to have, or one more where the place was shut and is used.
    pub fn now(&self) -> u64 {
        let word = self.word.load(Ordering::Acquire);
        let is_ending = word & OPEN == 0 && word & USERS != 0;
        word / GENERATION + u64::from(is_ending)
    }
}

/// What is known of a file that is open.
pub(crate) struct File {
    place: Place,
    /// The handle of its session.
    session: AtomicU64,
    /// The descriptor plus one: all zeros take no room in the library's file.
    fd: AtomicI32,
    /// The descriptor is the program's, and stays when the handle is closed.
    is_borrowed: AtomicBool,
    /// A call through this handle has written since the last flush began: a wait begins another.
    pub has_written: AtomicBool,
    /// The last flush to the store, see `flushes.rs`.
    pub to_store: AtomicU64,
    /// The last one to any level.
    pub to_any: AtomicU64,
    /// What was missing on the store before the last one to `FOREBAY_DURABLE`.
    pub seen: AtomicU64,
    /// Which file of the pool the last flush was of.
    pub flushed_file: AtomicU64,
    /// Of a file of the kernel's: when its status was last changed, before the last sync.
    pub synced_ns: AtomicU64,
    /// Something may be pinned for it: since it was opened, and until it is closed.
    pub has_pins: AtomicBool,
    /// Which file the descriptor was of when the handle was made: device and inode.
    pub device: AtomicU64,
    pub inode: AtomicU64,
}

impl File {
    const fn free() -> File {
        File {
            place: Place::free(),
            session: AtomicU64::new(0),
            fd: AtomicI32::new(0),
            is_borrowed: AtomicBool::new(false),
            has_written: AtomicBool::new(false),
            to_store: AtomicU64::new(0),
            to_any: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            flushed_file: AtomicU64::new(0),
            synced_ns: AtomicU64::new(0),
            has_pins: AtomicBool::new(false),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
        }
    }

    /// Whose pins are those of this handle, among all of the process: another copy of this library
    /// has its places elsewhere. 64 GiB apart two would have the same.
    pub fn pin_handle(&'static self) -> u32 {
        (core::ptr::from_ref(self).addr() >> 4) as u32
    }
}

static OF_FILES: [File; FILES] = [const { File::free() }; FILES];
static OF_SESSIONS: [Place; SESSIONS] = [const { Place::free() }; SESSIONS];
/// One more than the highest place that was ever taken.
static FILES_HIGH: AtomicU32 = AtomicU32::new(0);
/// Where the next search for a free place begins.
static FILES_NEXT: AtomicU32 = AtomicU32::new(0);

/// The kinds of handles: the lowest bits of each.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File = 1,
    Session = 2,
    Records = 3,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::File => "a file",
            Kind::Session => "a session",
            Kind::Records => "a container",
        }
    }
}

const KIND_BITS: u32 = 2;
const PLACE_BITS: u32 = 16;

pub(crate) fn handle(kind: Kind, at: usize, generation: u64) -> u64 {
    (generation << PLACE_BITS | at as u64) << KIND_BITS | kind as u64
}

/// The place and the generation that a handle names.
pub(crate) fn parts(kind: Kind, handle: u64, places: usize) -> Result<(usize, u64), c_int> {
    let at = (handle >> KIND_BITS) as usize & ((1 << PLACE_BITS) - 1);
    let is_kind = handle & ((1 << KIND_BITS) - 1) == kind as u64 && at < places;
    match is_kind {
        true => Ok((at, handle >> (KIND_BITS + PLACE_BITS))),
        false if handle == 0 => Err(fail(
            code::HANDLE,
            format_args!(
                "the handle of {} is NULL; look at what the call that made it returned",
                kind.name()
            ),
        )),
        false => Err(fail(
            code::HANDLE,
            format_args!("{handle:#x} is not the handle of {}", kind.name()),
        )),
    }
}

/// Why a handle of the right form is none now: `now` is the generation of its place.
pub(crate) fn not_there(kind: Kind, now: u64, generation: u64) -> c_int {
    if generation < now {
        let name = kind.name();
        return fail(
            code::CLOSED,
            format_args!("the handle of {name} was closed, or its session ended"),
        );
    }
    let text = format_args!(
        "this handle of {} was never given out, or is in use by too many calls at once",
        kind.name()
    );
    fail(code::HANDLE, text)
}

/// A session, for the length of a call.
pub(crate) struct OpenSession {
    at: usize,
    handle: u64,
}

impl Drop for OpenSession {
    fn drop(&mut self) {
        if let Some(place) = OF_SESSIONS.get(self.at) {
            place.leave(|| close_files_of(self.handle, &crate::close_now));
        }
    }
}

/// A new session; its handle.
pub(crate) fn begin_session() -> Result<*mut c_void, c_int> {
    for (at, place) in OF_SESSIONS.iter().enumerate() {
        if let Some(generation) = place.take(|| ()) {
            return Ok(pointer(handle(Kind::Session, at, generation)));
        }
    }
    let text = format_args!("{SESSIONS} sessions were started and not ended; end some of them");
    Err(fail(code::TOO_MANY, text))
}

pub(crate) fn pointer(handle: u64) -> *mut c_void {
    core::ptr::without_provenance_mut(handle as usize)
}

/// The session of a handle.
pub(crate) fn session(given: *mut c_void) -> Result<OpenSession, c_int> {
    let given = given.addr() as u64;
    let (at, generation) = parts(Kind::Session, given, SESSIONS)?;
    match OF_SESSIONS.get(at) {
        Some(place) if place.enter(generation) => Ok(OpenSession { at, handle: given }),
        place => Err(not_there(Kind::Session, place.map_or(0, Place::generation), generation)),
    }
}

/// Whether a session is open, without a change of its place: threads that ask all the time do not
/// get in each other's way. It may be ended a moment later.
pub(crate) fn look_at_session(given: *mut c_void) -> Result<(), c_int> {
    let (at, generation) = parts(Kind::Session, given.addr() as u64, SESSIONS)?;
    let word = OF_SESSIONS.get(at).map_or(0, |place| place.word.load(Ordering::Acquire));
    match word / GENERATION == generation && word & OPEN != 0 {
        true => Ok(()),
        false => Err(not_there(Kind::Session, word / GENERATION, generation)),
    }
}

/// Ends a session, and closes all files that were opened in it by `close`. Returns the first error
/// of that.
pub(crate) fn end_session(given: *mut c_void, close: impl Fn(RawFd) -> c_int) -> c_int {
    let given = given.addr() as u64;
    let (at, generation) = match parts(Kind::Session, given, SESSIONS) {
        Ok(parts) => parts,
        Err(code) => return code,
    };
    let Some(place) = OF_SESSIONS.get(at) else { return 0 };
    if !place.shut(generation) {
        return not_there(Kind::Session, place.generation(), generation);
    }
    // A call that opens a file in it closes that, too, where it is the last one to leave.
    place.leave(|| close_files_of(given, &close)).unwrap_or(0)
}

/// Closes the files of a session, which no call uses any more. The first error.
fn close_files_of(session: u64, close: &impl Fn(RawFd) -> c_int) -> c_int {
    let mut result = 0;
    let high = FILES_HIGH.load(Ordering::SeqCst) as usize;
    for file in OF_FILES.iter().take(high) {
        if file.session.load(Ordering::SeqCst) != session {
            continue;
        }
        let generation = file.place.generation();
        // Another thread may have closed it, and opened another one.
        if file.session.load(Ordering::SeqCst) == session && file.place.shut(generation) {
            let closed = leave(file, close);
            if result == 0 {
                result = closed;
            }
        }
    }
    result
}

/// A file, for the length of a call.
pub(crate) struct OpenFile {
    pub file: &'static File,
}

impl OpenFile {
    pub fn fd(&self) -> RawFd {
        self.file.fd.load(Ordering::Relaxed) - 1
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        leave(self.file, &crate::close_now);
    }
}

/// Leaves a file, and closes it if it is shut and this is the last call.
fn leave(file: &'static File, close: &impl Fn(RawFd) -> c_int) -> c_int {
    let last = || {
        if file.has_pins.swap(false, Ordering::Relaxed) {
            crate::unpin_all(file.pin_handle());
        }
        let fd = file.fd.swap(0, Ordering::Relaxed) - 1;
        file.session.store(0, Ordering::SeqCst);
        if file.is_borrowed.load(Ordering::Relaxed) { 0 } else { close(fd) }
    };
    file.place.leave(last).unwrap_or(0)
}

/// A new file of `session`, whose descriptor is `fd`; its handle.
pub(crate) fn add_file(
    session: &OpenSession,
    fd: RawFd,
    is_borrowed: bool,
) -> Result<*mut c_void, c_int> {
    let (device, inode) = crate::kernel::status(fd).map_or((0, 0), |found| found.identity());
    let first = FILES_NEXT.load(Ordering::Relaxed) as usize;
    for at in (first..FILES).chain(0..first) {
        let Some(file) = OF_FILES.get(at) else { continue };
        // The calls of an ending session look at all places below it.
        if file.place.word.load(Ordering::Relaxed) & (OPEN | USERS) != 0 {
            continue;
        }
        FILES_HIGH.fetch_max(at as u32 + 1, Ordering::SeqCst);
        let fill = || {
            file.fd.store(fd.saturating_add(1), Ordering::Relaxed);
            file.is_borrowed.store(is_borrowed, Ordering::Relaxed);
            file.has_written.store(false, Ordering::Relaxed);
            file.to_store.store(0, Ordering::Relaxed);
            file.to_any.store(0, Ordering::Relaxed);
            file.synced_ns.store(0, Ordering::Relaxed);
            file.device.store(device, Ordering::Relaxed);
            file.inode.store(inode, Ordering::Relaxed);
            file.session.store(session.handle, Ordering::SeqCst);
        };
        if let Some(generation) = file.place.take(fill) {
            FILES_NEXT.store((at as u32 + 1) % FILES as u32, Ordering::Relaxed);
            return Ok(pointer(handle(Kind::File, at, generation)));
        }
    }
    let text = format_args!("{FILES} files are open; close some of them with forebay_close()");
    Err(fail(code::TOO_MANY, text))
}

/// The file of a handle.
pub(crate) fn file(given: *mut c_void) -> Result<OpenFile, c_int> {
    let (at, generation) = parts(Kind::File, given.addr() as u64, FILES)?;
    match OF_FILES.get(at) {
        Some(file) if file.place.enter(generation) => Ok(OpenFile { file }),
        file => {
            let now = file.map_or(0, |file| file.place.generation());
            Err(not_there(Kind::File, now.max(closing(file)), generation))
        }
    }
}

/// Closes the file of a handle by `close`. 0 if a call that uses it is to close it at its end.
pub(crate) fn close_file(given: *mut c_void, close: impl Fn(RawFd) -> c_int) -> c_int {
    let (at, generation) = match parts(Kind::File, given.addr() as u64, FILES) {
        Ok(parts) => parts,
        Err(code) => return code,
    };
    let Some(file) = OF_FILES.get(at) else { return 0 };
    match file.place.shut(generation) {
        true => leave(file, &close),
        false => {
            not_there(Kind::File, file.place.generation().max(closing(Some(file))), generation)
        }
    }
}

/// The generation after that of a place which was shut, and is still in use.
fn closing(file: Option<&File>) -> u64 {
    let word = file.map_or(0, |file| file.place.word.load(Ordering::Acquire));
    if word & OPEN == 0 && word & USERS != 0 { word / GENERATION + 1 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn no_close(_: RawFd) -> c_int {
        panic!("it is the program's")
    }

    #[test]
    fn handles_that_are_none_are_told_apart() {
        let null = core::ptr::null_mut();
        let given = begin_session().unwrap();
        let open = session(given).unwrap();
        let one = add_file(&open, 100, true).unwrap();
        assert_eq!(file(one).unwrap().fd(), 100);
        assert_eq!(file(null).err(), Some(code::HANDLE));
        assert_eq!(file(given).err(), Some(code::HANDLE));
        assert_eq!(session(one).err(), Some(code::HANDLE));
        // Never given out, and a number by chance.
        let later = core::ptr::without_provenance_mut(one.addr() + (7 << 18));
        assert_eq!(file(later).err(), Some(code::HANDLE));
        assert_eq!(
            file(core::ptr::without_provenance_mut(usize::MAX - 2)).err(),
            Some(code::HANDLE)
        );
        assert_eq!(close_file(one, no_close), 0);
        assert_eq!(file(one).err(), Some(code::CLOSED));
        assert_eq!(close_file(one, no_close), code::CLOSED);
        drop(open);
        assert_eq!(end_session(given, no_close), 0);
        assert_eq!(session(given).err(), Some(code::CLOSED));
        assert_eq!(end_session(given, no_close), code::CLOSED);
    }

    #[test]
    fn a_file_that_is_in_use_is_closed_by_the_last_call() {
        let given = begin_session().unwrap();
        let open = session(given).unwrap();
        let one = add_file(&open, 101, true).unwrap();
        let used = file(one).unwrap();
        assert_eq!(close_file(one, no_close), 0);
        assert_eq!(file(one).err(), Some(code::CLOSED), "no other call comes in");
        assert_eq!(used.fd(), 101, "the call goes on");
        drop(used);
        assert_eq!(file(one).err(), Some(code::CLOSED));
        drop(open);
        assert_eq!(end_session(given, no_close), 0);
    }

    #[test]
    fn the_end_of_a_session_closes_its_files_and_no_others() {
        let (first, second) = (begin_session().unwrap(), begin_session().unwrap());
        let (one, other) = (session(first).unwrap(), session(second).unwrap());
        let mine = [
            add_file(&one, 201, false).unwrap(),
            add_file(&one, 202, true).unwrap(),
            add_file(&one, 203, false).unwrap(),
        ];
        let theirs = add_file(&other, 204, true).unwrap();
        let closed = Cell::new(0);
        let close = |fd| {
            closed.set(closed.get() + fd);
            if fd == 203 { -5 } else { 0 }
        };
        drop(one);
        assert_eq!(end_session(first, close), -5);
        assert_eq!(closed.get(), 404);
        assert!(mine.iter().all(|&file_| file(file_).err() == Some(code::CLOSED)));
        assert!(file(theirs).is_ok());
        drop(other);
        assert_eq!(end_session(second, no_close), 0);
    }

    #[test]
    fn a_file_that_is_opened_while_its_session_ends_is_closed_with_it() {
        let given = begin_session().unwrap();
        let open = session(given).unwrap();
        assert_eq!(end_session(given, no_close), 0);
        let late = add_file(&open, 301, true).unwrap();
        assert!(file(late).is_ok());
        drop(open);
        assert_eq!(file(late).err(), Some(code::CLOSED));
        assert_eq!(session(given).err(), Some(code::CLOSED));
    }

    #[test]
    fn threads_that_open_and_close_get_handles_of_their_own() {
        let given = begin_session().unwrap();
        let address = given.addr();
        std::thread::scope(|scope| {
            for number in 0..4 {
                scope.spawn(move || {
                    for turn in 0..2000 {
                        let open = session(core::ptr::without_provenance_mut(address)).unwrap();
                        let fd = 1000 + number * 10_000 + turn;
                        let mine = add_file(&open, fd, true).unwrap();
                        assert_eq!(file(mine).unwrap().fd(), fd);
                        assert_eq!(close_file(mine, no_close), 0);
                    }
                });
            }
        });
        assert_eq!(end_session(given, no_close), 0);
    }
}
