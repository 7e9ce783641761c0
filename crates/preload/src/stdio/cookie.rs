//! Which streams are ours, and what belongs to them.

use super::layout::*;
use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use libc::{FILE, c_int, c_void};

/// glibc's `struct _IO_wide_data`, and some bytes more: its size differs from version to version.
pub(super) type WideData = [u64; 48];

/// That of a stream without any operation so far, from when the process starts.
#[unsafe(link_section = ".data")]
static FRESH_WIDE_DATA: [AtomicU64; 48] = [const { AtomicU64::new(0) }; 48];

/// Notes that of a stream that no program has used.
pub(super) fn note_wide_data(fresh: WideData) {
    FRESH_WIDE_DATA.iter().zip(fresh).for_each(|(to, word)| to.store(word, Ordering::Release));
}

/// What belongs to one of our streams. It is used under the stream's lock.
pub(super) struct Cookie {
    /// The stream itself.
    stream: Cell<*mut FILE>,
    /// The descriptor; -1 when a standard stream was closed.
    fd: AtomicI32,
    /// Standard streams are never freed: programs use them after they have closed them.
    pub(super) standard: bool,
    /// Whether glibc has it for as long as its descriptor is not managed, see
    /// [`super::standard`].
    pub(super) lent: AtomicBool,
    /// Whether it is line-buffered because its descriptor was a terminal.
    pub(super) by_terminal: Cell<bool>,
    /// The buffer that was chosen for it; null if it is glibc's.
    buffer: Cell<*mut u8>,
    /// `_wide_data` of the stream, for when it becomes one of glibc's own.
    wide: UnsafeCell<WideData>,
}

impl Cookie {
    /// A cookie of no stream, from malloc; null if memory is short.
    pub(super) fn allocate(fd: c_int, standard: bool) -> *mut Cookie {
        // SAFETY: takes any number.
        let place = unsafe { libc::malloc(size_of::<Cookie>()) }.cast::<Cookie>();
        if !place.is_null() {
            let fresh = Cookie {
                stream: Cell::new(core::ptr::null_mut()),
                fd: AtomicI32::new(fd),
                standard,
                lent: AtomicBool::new(false),
                by_terminal: Cell::new(false),
                buffer: Cell::new(core::ptr::null_mut()),
                wide: UnsafeCell::new(
                    FRESH_WIDE_DATA.each_ref().map(|it| it.load(Ordering::Acquire)),
                ),
            };
            // SAFETY: room for a cookie.
            unsafe { place.write(fresh) };
        }
        place
    }

    /// Frees a cookie, and the buffer that was chosen for its stream.
    ///
    /// # Safety
    /// From [`Cookie::allocate`], and neither it nor the buffer is used any more.
    pub(super) unsafe fn free(cookie: *mut Cookie) {
        // SAFETY: both from malloc, and not used any more.
        unsafe {
            libc::free((*cookie).buffer.get().cast());
            libc::free(cookie.cast());
        }
    }

    /// The cookie belongs to a `stream` that was just made with it: from now on that is known as
    /// one of ours.
    pub(super) fn belongs_to(&self, stream: Stream) {
        self.stream.set(stream.as_ptr());
        stream.set(FILENO_AT, self.descriptor());
        // A cookie stream is one of bytes; ours become so by their first use, as others do.
        stream.set(ORIENTATION_AT, 0);
        stream.set(WIDE_DATA_AT, self.wide.get().cast());
        COOKIE_READER.store(stream.get(READER_AT), Ordering::Relaxed);
        COOKIE_JUMPS.store(stream.get(JUMPS_AT), Ordering::Release);
    }

    pub(super) fn stream(&self) -> *mut FILE {
        self.stream.get()
    }

    #[inline]
    pub(super) fn descriptor(&self) -> c_int {
        self.fd.load(Ordering::Relaxed)
    }

    /// Notes that the `stream` uses `fd` from now on.
    pub(super) fn change_descriptor(&self, stream: Stream, fd: c_int) {
        self.fd.store(fd, Ordering::Relaxed);
        stream.set(FILENO_AT, fd);
    }

    pub(super) fn buffer(&self) -> *mut u8 {
        self.buffer.get()
    }

    /// Frees the buffer that was chosen, from which the stream was just taken, for `new`.
    pub(super) fn change_buffer(&self, new: *mut u8) {
        let old = self.buffer.replace(new);
        // SAFETY: from malloc, or null; the stream uses it no more.
        unsafe { libc::free(old.cast()) };
    }
}

/// glibc's function table of cookie streams, and our reading function as they have it: by these
/// ours are recognized.
#[unsafe(link_section = ".data")]
static COOKIE_JUMPS: AtomicUsize = AtomicUsize::new(0);
#[unsafe(link_section = ".data")]
static COOKIE_READER: AtomicUsize = AtomicUsize::new(0);

/// That table.
pub(super) fn cookie_jumps() -> usize {
    COOKIE_JUMPS.load(Ordering::Acquire)
}

/// What belongs to the stream if it is one of ours.
#[inline]
pub(super) fn ours<'a>(stream: Stream<'a>) -> Option<&'a Cookie> {
    let jumps = COOKIE_JUMPS.load(Ordering::Acquire);
    // The program may have cookie streams too.
    let is_ours = jumps != 0
        && stream.get(JUMPS_AT) == jumps
        && stream.get(READER_AT) == COOKIE_READER.load(Ordering::Relaxed);
    // SAFETY: only `cookie_stream` makes streams with this function, and their cookies live as long
    // as they.
    is_ours.then(|| unsafe { cookie_of(stream.get(COOKIE_AT)) })
}

/// What belongs to a stream that is one of ours, or was before it was handed back.
pub(super) fn ours_or_former<'a>(stream: Stream<'a>) -> Option<&'a Cookie> {
    let reader = COOKIE_READER.load(Ordering::Relaxed);
    let cookie = stream.get(COOKIE_AT);
    if reader == 0 || stream.get(READER_AT) != reader || cookie.is_null() {
        return None;
    }
    // SAFETY: a stream of glibc's has its lock there, or other data of the library's, which are no
    // function of ours; only `cookie_stream` makes streams with that one, and their cookies live as
    // long as they.
    let cookie = unsafe { cookie_of(cookie) };
    (cookie.stream() == stream.as_ptr()).then_some(cookie)
}

/// The cookie that glibc keeps in a stream, and hands to the stream's functions.
///
/// # Safety
/// Of one of our streams, which is not freed for `'a`.
#[inline]
pub(super) unsafe fn cookie_of<'a>(cookie: *mut c_void) -> &'a Cookie {
    // SAFETY: as the caller promises.
    unsafe { &*cookie.cast::<Cookie>() }
}
