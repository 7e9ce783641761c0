//! Whether the application's buffers are its memory. Programs pass bad pointers on purpose and
//! expect EFAULT, and we may install no signal handler to catch a fault.
//!
//! The kernel is asked once for each page of a buffer, and of a mapped file in every call, because
//! another process may truncate it: see [`crate::mappings`]. What it said is remembered until the
//! program unmaps, protects or maps something else there.
//!
//! ```
//! use forebay_client::user_memory::{is_readable, is_writable};
//!
//! let mut buffer = vec![0u8; 8192];
//! assert!(is_writable(buffer.as_mut_ptr(), buffer.len()));
//! assert!(!is_writable(std::ptr::null_mut(), 1));
//! // Code can be read, and not written.
//! let code = is_readable as *const u8;
//! assert!(is_readable(code, 1) && !is_writable(code, 1));
//! ```

use crate::mappings::mapping_at;
use core::cell::Cell;
use core::ffi::{CStr, c_char, c_void};
use core::marker::PhantomData;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

const PAGE: usize = 4096;
/// PATH_MAX.
const LONGEST_PATH: usize = 4096;
/// What a text of a program's arguments or environment takes at most: MAX_ARG_STRLEN, 32 pages of
/// the largest size that a kernel has.
const LONGEST_TEXT: usize = 32 * (64 << 10);
/// Above it lies the kernel's half.
const USER_END: usize = 1 << 47;

/// Raised when the program takes away so much memory from itself that everything is asked anew.
static EPOCH: AtomicU32 = AtomicU32::new(0);

/// The last ranges that the program has changed.
static CHANGES: Changes = Changes::none();

/// How many changes are remembered. A thread that has found something out before more of them asks
/// again.
const REMEMBERED: usize = 64;

/// A log of ranges that the program has unmapped, protected or mapped, for all its threads.
struct Changes {
    /// How many there were.
    count: AtomicU64,
    last: [Change; REMEMBERED],
}

/// One of them. `number` is that of the change plus one while `from` and `to` are its.
struct Change {
    number: AtomicU64,
    from: AtomicUsize,
    to: AtomicUsize,
}

impl Changes {
    const fn none() -> Changes {
        let last = [const {
            let (from, to) = (AtomicUsize::new(0), AtomicUsize::new(0));
            Change { number: AtomicU64::new(0), from, to }
        }; REMEMBERED];
        Changes { count: AtomicU64::new(0), last }
    }

    #[inline]
    fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// To be called before what is remembered of `range` is forgotten.
    fn note(&self, range: &Range<usize>) {
        // From here on a thread that asked before finds that something was changed, and may not
        // rely on what it has not read yet.
        let number = self.count.fetch_add(1, Ordering::SeqCst);
        let place = &self.last[number as usize % REMEMBERED];
        place.number.store(0, Ordering::SeqCst);
        place.from.store(range.start, Ordering::SeqCst);
        place.to.store(range.end, Ordering::SeqCst);
        place.number.store(number + 1, Ordering::SeqCst);
    }

    /// How many changes there are, if none since there were `since` may have touched `range`.
    fn spare(&self, range: &Range<usize>, since: u64) -> Option<u64> {
        let now = self.count.load(Ordering::SeqCst);
        let spares = |number: u64| {
            let place = &self.last[number as usize % REMEMBERED];
            let is_it = || place.number.load(Ordering::SeqCst) == number + 1;
            let known = is_it();
            let (from, to) = (place.from.load(Ordering::SeqCst), place.to.load(Ordering::SeqCst));
            known && is_it() && (to <= range.start || range.end <= from)
        };
        (now - since <= REMEMBERED as u64 && (since..now).all(spares)).then_some(now)
    }
}

/// Pages that one word knows of: 64 KiB.
const WORD_PAGES: usize = 16;
/// Words: 256 MiB of buffers, of which no two that lie closer push each other out.
const WORDS: usize = 4096;
const EPOCH_BITS: u32 = 29;

/// The pages that a process was found to be able to use, for all its threads and handlers.
///
/// A word has all that it says of 16 pages, so that no two loads need to agree:
///
/// ```text
/// 63                  35 34                     16 15         0
/// +---------------------+-------------------------+------------+
/// | epoch               | address / 64 KiB / 4096 | pages      |
/// +---------------------+-------------------------+------------+
/// ```
struct KnownPages([AtomicU64; WORDS]);

/// Pages of one word: which word, what its upper bits say, and their bits.
#[derive(Clone, Copy)]
struct WordPages {
    word: usize,
    key: u64,
    pages: u64,
}

impl WordPages {
    /// Pages `first ..= last`, both of one word, in `epoch`.
    #[inline]
    fn new(first: usize, last: usize, epoch: u32) -> WordPages {
        let (number, from, count) = (first / WORD_PAGES, first % WORD_PAGES, last - first + 1);
        let epoch = u64::from(epoch) & ((1 << EPOCH_BITS) - 1);
        let tag = (number / WORDS) as u64;
        WordPages {
            word: number % WORDS,
            key: (epoch << (48 - EPOCH_BITS) | tag) << WORD_PAGES,
            pages: ((1 << count) - 1) << from,
        }
    }
}

/// The pages of `start .. start + bytes`, at least one, by words.
fn by_words(start: usize, bytes: usize, epoch: u32) -> impl Iterator<Item = WordPages> {
    let (mut next, last) = (start / PAGE, (start + bytes - 1) / PAGE);
    core::iter::from_fn(move || {
        let first = next;
        let end = last.min(first / WORD_PAGES * WORD_PAGES + WORD_PAGES - 1);
        next = end + 1;
        (first <= last).then(|| WordPages::new(first, end, epoch))
    })
}

impl KnownPages {
    const fn none() -> KnownPages {
        KnownPages([const { AtomicU64::new(0) }; WORDS])
    }

    #[inline]
    fn has_word(&self, WordPages { word, key, pages }: WordPages) -> bool {
        let known = self.0[word].load(Ordering::Relaxed);
        known & !0xffff == key && known & pages == pages
    }

    /// Whether `bytes`, at least one, at `start` are known to be usable in `epoch`.
    #[inline]
    fn has(&self, start: usize, bytes: usize, epoch: u32) -> bool {
        let end = start.wrapping_add(bytes);
        if end <= start || end > USER_END {
            return false;
        }
        let (first, last) = (start / PAGE, (end - 1) / PAGE);
        match first / WORD_PAGES == last / WORD_PAGES {
            true => self.has_word(WordPages::new(first, last, epoch)),
            false => self.has_words(start, bytes, epoch),
        }
    }

    #[inline(never)]
    fn has_words(&self, start: usize, bytes: usize, epoch: u32) -> bool {
        by_words(start, bytes, epoch).all(|pages| self.has_word(pages))
    }

    /// Forgets the pages of `bytes` at `start`, and some beside them.
    fn forget(&self, start: usize, bytes: usize) {
        for WordPages { word, .. } in by_words(start, bytes, 0) {
            self.0[word].store(0, Ordering::SeqCst);
        }
    }

    /// Notes that the pages of `bytes` at `start` were usable in `epoch`, unless the program has
    /// changed some memory since there were `changes`.
    fn note(&self, start: usize, bytes: usize, (epoch, changes): (u32, u64)) {
        self.set(start, bytes, epoch);
        // A thread that has changed some since has forgotten what was noted before its change was
        // counted, and perhaps not what is noted here.
        fence(Ordering::SeqCst);
        if CHANGES.count() != changes {
            self.forget(start, bytes);
        }
    }

    fn set(&self, start: usize, bytes: usize, epoch: u32) {
        for WordPages { word, key, pages } in by_words(start, bytes, epoch) {
            let known = self.0[word].load(Ordering::Relaxed);
            let before = if known & !0xffff == key { known & 0xffff } else { 0 };
            // What another thread notes at the same time may be lost, and is asked for again.
            self.0[word].store(key | before | pages, Ordering::Relaxed);
        }
    }
}

static READABLE: KnownPages = KnownPages::none();
static WRITABLE: KnownPages = KnownPages::none();

/// A range of memory, and what a thread found out about it after so many changes.
struct Noted {
    from: Cell<usize>,
    to: Cell<usize>,
    changes: Cell<u64>,
    what: Cell<bool>,
}

impl Noted {
    const fn nothing() -> Noted {
        let (from, to) = (Cell::new(0), Cell::new(0));
        Noted { from, to, changes: Cell::new(0), what: Cell::new(false) }
    }

    fn note(&self, range: Range<usize>, what: bool, changes: u64) {
        // A handler in between finds a range without an end.
        self.to.set(0);
        compiler_fence(Ordering::SeqCst);
        self.from.set(range.start);
        self.changes.set(changes);
        self.what.set(what);
        compiler_fence(Ordering::SeqCst);
        self.to.set(range.end);
    }

    /// Where the range that has `address` ends, and what it is, if this is it.
    fn at(&self, address: usize) -> Option<(usize, bool)> {
        let (range, noted) = (self.from.get()..self.to.get(), self.changes.get());
        let what = self.what.get();
        // Another beginning: a handler came between the loads, and found another range.
        compiler_fence(Ordering::SeqCst);
        let is_it = range.contains(&address) && range.start == self.from.get();
        let now = CHANGES.spare(&range, noted).filter(|_| is_it)?;
        // What a handler has noted since, it has noted after no fewer changes.
        self.changes.set(now);
        Some((range.end, what))
    }
}

/// What a thread found out last.
struct Ranges<const N: usize>([Noted; N], Cell<usize>);

impl<const N: usize> Ranges<N> {
    const fn nothing() -> Ranges<N> {
        Ranges([const { Noted::nothing() }; N], Cell::new(0))
    }

    fn at(&self, address: usize) -> Option<(usize, bool)> {
        self.0.iter().find_map(|noted| noted.at(address))
    }

    fn note(&self, range: Range<usize>, what: bool, changes: u64) {
        let place = self.1.get() % N;
        self.1.set(place + 1);
        self.0[place].note(range, what, changes);
    }
}

/// Larger buffers would push everything else out of [`KnownPages`].
const LARGE: usize = 64 << 20;

thread_local! {
    /// Mappings, and whether what lies in them stays.
    static MAPPINGS: Ranges<6> = const { Ranges::nothing() };
    /// Buffers above [`LARGE`], and whether they can be written.
    static LARGE_BUFFERS: Ranges<2> = const { Ranges::nothing() };
}

/// Whether what lies at `start .. end` stays usable until the program takes it away: a file that is
/// mapped may be truncated by another process.
fn stays(start: usize, end: usize, changes: u64) -> bool {
    let mut at = start;
    while at < end {
        let known = MAPPINGS.with(|mappings| {
            mappings.at(at).or_else(|| {
                let found = mapping_at(at)?;
                mappings.note(found.range.clone(), found.stays, changes);
                Some((found.range.end, found.stays))
            })
        });
        match known {
            Some((to, true)) => at = to,
            _ => return false,
        }
    }
    true
}

/// To be called after munmap, mprotect and mremap of `bytes` at `start`, and after a mapping there
/// that is fixed, shared, of a file or not both readable and writable: it may lie where memory was
/// that a thread has found usable.
pub fn memory_changed(start: *const c_void, bytes: usize) {
    let (start, end) = (start.addr(), start.addr().saturating_add(bytes).min(USER_END));
    let (start, end) = (start / PAGE * PAGE, end.next_multiple_of(PAGE));
    if bytes == 0 || start >= end {
        return;
    }
    CHANGES.note(&(start..end));
    if end - start > LARGE {
        EPOCH.fetch_add(1, Ordering::AcqRel);
    } else {
        READABLE.forget(start, end - start);
        WRITABLE.forget(start, end - start);
    }
}

/// Whether `bytes` at `base` can be read.
#[inline]
pub fn is_readable(base: *const u8, bytes: usize) -> bool {
    is_known(&READABLE, base as usize, bytes, Advice::LinuxPopulateRead)
}

/// Whether `bytes` at `base` can be written.
#[inline]
pub fn is_writable(base: *const u8, bytes: usize) -> bool {
    is_known(&WRITABLE, base as usize, bytes, Advice::LinuxPopulateWrite)
}

/// Whether `bytes` at `base` can be memory of a program's at all.
#[inline]
pub fn is_possible(base: *const u8, bytes: usize) -> bool {
    (base as usize).checked_add(bytes).is_some_and(|end| end <= USER_END)
}

/// How many of `bytes` at `base` can be read before the first that cannot.
#[inline]
pub fn readable_part(base: *const u8, bytes: usize) -> usize {
    match is_readable(base, bytes) {
        true => bytes,
        false => part(base as usize, bytes, Advice::LinuxPopulateRead),
    }
}

/// How many of `bytes` at `base` can be written before the first that cannot.
#[inline]
pub fn writable_part(base: *const u8, bytes: usize) -> usize {
    match is_writable(base, bytes) {
        true => bytes,
        false => part(base as usize, bytes, Advice::LinuxPopulateWrite),
    }
}

/// The bytes before the first page that cannot be used, of a buffer that has one.
#[cold]
fn part(start: usize, bytes: usize, advice: Advice) -> usize {
    let end = start.saturating_add(bytes).min(USER_END);
    let first = start / PAGE * PAGE;
    // Pages that can be used, and pages of which one cannot.
    let (mut good, mut bad) = (0, end.div_ceil(PAGE).saturating_sub(start / PAGE));
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        let upto = first + middle * PAGE;
        if can_be_used(start.max(first + good * PAGE), upto, advice) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    (first + good * PAGE).saturating_sub(start)
}

fn can_be_used(start: usize, end: usize, advice: Advice) -> bool {
    let (from, to) = (start / PAGE * PAGE, end.next_multiple_of(PAGE));
    // SAFETY: populating changes no content.
    match unsafe { madvise(from as *mut _, to - from, advice) } {
        Ok(()) => true,
        Err(Errno::NOMEM | Errno::FAULT) => false,
        Err(_) => matches!(touch(start, end, advice), Ok(true) | Err(_)),
    }
}

#[inline]
fn is_known(known: &KnownPages, start: usize, bytes: usize, advice: Advice) -> bool {
    bytes == 0
        || known.has(start, bytes, EPOCH.load(Ordering::Acquire))
        || ask(known, start, bytes, advice)
}

/// Asks the kernel, for no more than these pages: what lies beyond may be memory that the program
/// has not touched, and would have to be given to it.
#[cold]
fn ask(known: &KnownPages, start: usize, bytes: usize, advice: Advice) -> bool {
    let Some(end) = start.checked_add(bytes).filter(|&end| end <= USER_END) else { return false };
    let (epoch, changes) = (EPOCH.load(Ordering::Acquire), CHANGES.count());
    let (is_large, writes) = (bytes > LARGE, matches!(advice, Advice::LinuxPopulateWrite));
    let known_large = || LARGE_BUFFERS.with(|buffers| buffers.at(start));
    if is_large && known_large().is_some_and(|(to, written)| to >= end && written == writes) {
        return true;
    }
    let from = start / PAGE * PAGE;
    // SAFETY: populating changes no content.
    match unsafe { madvise(from as *mut _, end.next_multiple_of(PAGE) - from, advice) } {
        Ok(()) => {
            match (stays(start, end, changes), is_large) {
                (true, true) => {
                    LARGE_BUFFERS.with(|buffers| buffers.note(start..end, writes, changes));
                }
                (true, false) => known.note(start, bytes, (epoch, changes)),
                (false, _) => {}
            }
            true
        }
        // Not mapped, in part at least.
        Err(Errno::NOMEM | Errno::FAULT) => false,
        // Not allowed, or memory of a device, or a kernel before 5.14.
        Err(_) => matches!(touch(start, end, advice), Ok(true) | Err(_)),
    }
}

/// Has the kernel copy a byte of each page, and, to see whether it can be written, copy it back.
/// An error means that it could not be found out.
fn touch(start: usize, end: usize, advice: Advice) -> Result<bool, Errno> {
    let scratch = rustix::fs::memfd_create("forebay-user-memory", rustix::fs::MemfdFlags::CLOEXEC)?;
    let pages = (start / PAGE + 1..end.div_ceil(PAGE)).map(|page| page * PAGE);
    for at in core::iter::once(start).chain(pages) {
        // SAFETY: only passed to the kernel, which checks it.
        let copied = unsafe {
            let byte = core::slice::from_raw_parts(at as *const u8, 1);
            rustix::io::pwrite(&scratch, byte, 0).and_then(|_| match advice {
                Advice::LinuxPopulateWrite => {
                    let byte = core::slice::from_raw_parts_mut(at as *mut u8, 1);
                    rustix::io::pread(&scratch, byte, 0).map(|_| ())
                }
                _ => Ok(()),
            })
        };
        match copied {
            Err(Errno::FAULT) => return Ok(false),
            other => other?,
        }
    }
    Ok(true)
}

/// A path at an address that the program gave: it may be no memory of the program's.
#[derive(Clone, Copy)]
pub struct UserPath<'a> {
    start: *const c_char,
    text: PhantomData<&'a CStr>,
}

impl<'a> UserPath<'a> {
    /// The path at `start`, wherever that is.
    ///
    /// # Safety
    /// As far as it can be read, it does not change for as long as the path is used.
    pub unsafe fn at(start: *const c_char) -> UserPath<'a> {
        UserPath { start, text: PhantomData }
    }

    /// Whether it is an absolute one.
    pub fn is_absolute(self) -> bool {
        // SAFETY: just found readable.
        is_readable(self.start.cast(), 1) && unsafe { *self.start } == b'/' as c_char
    }

    /// The path; `None` if it is no memory of the program's, or longer than any path.
    pub fn get(self) -> Option<&'a CStr> {
        // SAFETY: see `UserPath::at`.
        unsafe { text_at(self.start, LONGEST_PATH) }
    }
}

unsafe extern "C" {
    /// The C library's, which looks at many bytes at once.
    fn strnlen(text: *const c_char, longest: usize) -> usize;
}

/// The text at `start`; `None` if it is no memory of the program's, or longer than `longest` and a
/// page.
///
/// # Safety
/// As far as it can be read, it does not change for as long as it is used.
unsafe fn text_at<'a>(start: *const c_char, longest: usize) -> Option<&'a CStr> {
    let mut length = 0;
    while length < longest {
        let at = start.wrapping_add(length).cast::<u8>();
        let page = PAGE - at as usize % PAGE;
        if !is_readable(at, page) {
            return None;
        }
        // SAFETY: just found readable.
        let found = unsafe { strnlen(at.cast(), page) };
        length += found;
        if found < page {
            // SAFETY: readable up to its only zero, and unchanged, as the caller says.
            return Some(unsafe {
                let bytes = core::slice::from_raw_parts(start.cast(), length + 1);
                CStr::from_bytes_with_nul_unchecked(bytes)
            });
        }
    }
    None
}

/// A list of texts that ends with null, as `environ` is one.
pub type Strings = *const *const c_char;

/// How many texts the list at `start` has; `None` if it, or one of them, is no memory of the
/// program's, or one is longer than the kernel takes.
///
/// # Safety
/// As far as they can be read, list and texts do not change meanwhile.
pub(crate) unsafe fn texts_at(start: Strings) -> Option<usize> {
    for number in 0.. {
        let place = start.wrapping_add(number);
        if !is_readable(place.cast(), size_of::<*const c_char>()) {
            return None;
        }
        // SAFETY: just found readable.
        let text = unsafe { place.read_unaligned() };
        if text.is_null() {
            return Some(number);
        }
        // SAFETY: as the caller says.
        unsafe { text_at(text, LONGEST_TEXT) }?;
    }
    None
}

impl<'a> From<&'a CStr> for UserPath<'a> {
    fn from(path: &'a CStr) -> UserPath<'a> {
        UserPath { start: path.as_ptr(), text: PhantomData }
    }
}

/// An offset at an address that the program gave: it may be no memory of the program's.
#[derive(Clone, Copy)]
pub struct UserOffset<'a> {
    at: *mut i64,
    memory: PhantomData<&'a Cell<i64>>,
}

impl<'a> UserOffset<'a> {
    /// The one at `given`, wherever that is; `None` where it is null.
    ///
    /// # Safety
    /// As far as it can be written, it is the call's to read and write for as long as the offset
    /// is used.
    pub unsafe fn at(given: *mut i64) -> Option<UserOffset<'a>> {
        (!given.is_null()).then_some(UserOffset { at: given, memory: PhantomData })
    }

    /// Its value.
    ///
    /// # Errors
    /// `FAULT` where it cannot be written.
    pub fn get(self) -> Result<i64, Errno> {
        self.check()?;
        // SAFETY: just found writable.
        Ok(unsafe { self.at.read_unaligned() })
    }

    /// Gives it another value.
    ///
    /// # Errors
    /// `FAULT` where it cannot be written.
    pub fn set(self, value: i64) -> Result<(), Errno> {
        self.check()?;
        // SAFETY: just found writable.
        unsafe { self.at.write_unaligned(value) };
        Ok(())
    }

    fn check(self) -> Result<(), Errno> {
        match is_writable(self.at.cast(), size_of::<i64>()) {
            true => Ok(()),
            false => Err(Errno::FAULT),
        }
    }
}

impl<'a> From<&'a Cell<i64>> for UserOffset<'a> {
    fn from(offset: &'a Cell<i64>) -> Self {
        UserOffset { at: offset.as_ptr(), memory: PhantomData }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
    use std::sync::{Barrier, Mutex};

    #[test]
    fn memory_is_told_from_none() {
        assert!(!is_readable(core::ptr::null(), 1));
        assert!(!is_readable(usize::MAX as *const u8, 1));
        assert!(is_readable(core::ptr::null(), 0));
        let buffer = [7u8; 100];
        assert!(is_readable(buffer.as_ptr(), 100));
        assert!(is_writable(buffer.as_ptr(), 100));
        static CONSTANT: [u8; 4] = [1; 4];
        assert!(is_readable(CONSTANT.as_ptr(), 4));
        assert!(!is_writable(CONSTANT.as_ptr(), 4));
    }

    #[test]
    fn pages_are_remembered_by_words_of_sixteen() {
        let (known, word) = (Box::new(KnownPages::none()), WORD_PAGES * PAGE);
        let epoch = 7;
        let has = |start: usize, bytes: usize| known.has(start, bytes, epoch);
        assert!(!has(0, 1) && !has(5 * word, 1));
        known.set(word + 3 * PAGE + 100, 3 * word, epoch);
        assert!(has(word + 3 * PAGE, 3 * word) && has(2 * word, 2 * word));
        assert!(!has(word + 3 * PAGE - 1, 2) && !has(4 * word + 4 * PAGE, 1));
        assert!(has(4 * word + 4 * PAGE - 1, 1));
        // Pages of one word add up; a word of another place, or of another epoch, replaces it.
        known.set(4 * word + 7 * PAGE, 1, epoch);
        assert!(has(4 * word, 1) && has(4 * word + 7 * PAGE, PAGE));
        known.set((4 + WORDS) * word, PAGE, epoch);
        assert!(!has(4 * word, 1) && has((4 + WORDS) * word, PAGE));
        known.set(2 * word, PAGE, epoch - 1);
        assert!(!has(2 * word, 1));
        assert!(!has(USER_END - 1, 2) && !has(usize::MAX, 2));
    }

    #[test]
    fn taken_away_memory_is_noticed() {
        let _turn = TURN.lock();
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a fresh mapping, used here only.
        unsafe {
            let at = rustix::mm::mmap_anonymous(core::ptr::null_mut(), 3 * PAGE, access, flags)
                .unwrap()
                .cast::<u8>();
            assert!(is_readable(at, 3 * PAGE));
            rustix::mm::mprotect(at.add(PAGE).cast(), PAGE, MprotectFlags::empty()).unwrap();
            memory_changed(at.add(PAGE).cast(), PAGE);
            assert!(is_readable(at, PAGE));
            assert!(!is_readable(at, PAGE + 1));
            assert_eq!(readable_part(at.add(10), 2 * PAGE), PAGE - 10);
            assert_eq!(writable_part(at.add(PAGE), 2 * PAGE), 0);
            assert_eq!(readable_part(at, usize::MAX), PAGE);
            assert_eq!(readable_part(usize::MAX as *const u8, 9), 0);
            assert!(is_possible(at, PAGE) && !is_possible(at, usize::MAX));
            assert!(!is_writable(at.add(PAGE), 1));
            rustix::mm::munmap(at.cast(), 3 * PAGE).unwrap();
            memory_changed(at.cast(), 3 * PAGE);
            assert!(!is_readable(at, 1));
        }
    }

    /// One test at a time: what each changes is forgotten by all.
    static TURN: Mutex<()> = Mutex::new(());

    /// A mapping of one page that can be used, at `at` or anywhere.
    ///
    /// # Safety
    /// What is mapped at `at` is used nowhere.
    unsafe fn page_at(at: *mut u8) -> *mut u8 {
        let (access, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let flags = if at.is_null() { private } else { private | MapFlags::FIXED };
        // SAFETY: as of the caller.
        unsafe { rustix::mm::mmap_anonymous(at.cast(), PAGE, access, flags).unwrap().cast() }
    }

    #[test]
    fn what_is_known_of_other_memory_is_kept() {
        let _turn = TURN.lock();
        let buffer = vec![1u8; 8 * PAGE];
        let (start, bytes) = (buffer.as_ptr(), buffer.len());
        let known = || READABLE.has(start.addr(), bytes, EPOCH.load(Ordering::Acquire));
        let mapping = || MAPPINGS.with(|mappings| mappings.at(start.addr()));
        assert!(is_readable(start, bytes) && known() && mapping().is_some());
        let elsewhere = start.wrapping_add(WORDS / 2 * WORD_PAGES * PAGE);
        memory_changed(elsewhere.cast(), 1);
        assert!(known() && mapping().is_some());
        memory_changed(start.wrapping_add(3 * PAGE).cast(), 1);
        assert!(!known() && mapping().is_none());
        assert!(is_readable(start, bytes) && known() && mapping().is_some());
        // More changes than are remembered.
        (0..=REMEMBERED).for_each(|_| memory_changed(elsewhere.cast(), 1));
        assert!(known() && mapping().is_none());
        // More memory than is looked through.
        memory_changed(elsewhere.cast(), LARGE + 1);
        assert!(!known());
    }

    #[test]
    fn a_thread_that_asks_while_memory_is_taken_away_remembers_nothing_of_it() {
        const ROUNDS: u32 = 3000;
        let _turn = TURN.lock();
        // SAFETY: a fresh mapping, of which only addresses are passed on.
        let at = unsafe { page_at(core::ptr::null_mut()) }.addr();
        let here = || core::ptr::with_exposed_provenance_mut::<u8>(at);
        let mut wrong = 0;
        let (round, asks) = (&Barrier::new(2), &AtomicU32::new(ROUNDS));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..ROUNDS {
                    round.wait();
                    asks.store(number, Ordering::Relaxed);
                    is_writable(here(), PAGE);
                    round.wait();
                }
            });
            for number in 0..ROUNDS {
                round.wait();
                while asks.load(Ordering::Relaxed) != number {
                    core::hint::spin_loop();
                }
                (0..number % 500).for_each(|_| core::hint::spin_loop());
                // SAFETY: the page is mapped, and used nowhere. It stays reserved.
                unsafe {
                    rustix::mm::mprotect(here().cast(), PAGE, MprotectFlags::empty()).unwrap();
                }
                memory_changed(here().cast(), PAGE);
                round.wait();
                wrong += u32::from(is_writable(here(), PAGE));
                // SAFETY: as above.
                unsafe { page_at(here()) };
                memory_changed(here().cast(), PAGE);
            }
        });
        assert_eq!(wrong, 0, "of {ROUNDS}");
        // SAFETY: mapped above.
        unsafe { rustix::mm::munmap(here().cast(), PAGE).unwrap() };
        memory_changed(here().cast(), PAGE);
    }
}
