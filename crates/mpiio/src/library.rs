//! The MPI library behind the adapter: the next one in the loader's order, or, where it has come by
//! `dlopen` with an extension that keeps its names to itself, the one that the process has
//! initialized.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

/// A machine word of a call: a handle, a number or an address.
pub(crate) type Word = usize;

/// What a function returns that the library does not have: no success in any MPI.
const MPI_ERR_OTHER: c_int = 15;

/// A function of the library, looked up at first use.
pub(crate) struct Symbol {
    /// Ends with a zero.
    name: &'static str,
    address: AtomicPtr<c_void>,
}

impl Symbol {
    /// The function of this name, which ends with a zero.
    pub(crate) const fn new(name: &'static str) -> Symbol {
        Symbol { name, address: AtomicPtr::new(null_mut()) }
    }

    /// Its address; null if there is none.
    pub(crate) fn address(&self) -> *mut c_void {
        let mut address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            address = find(self.name.as_ptr().cast());
            self.address.store(address, Ordering::Relaxed);
        }
        address
    }

    /// Calls it with these words; an error of MPI if there is none.
    ///
    /// # Safety
    /// The function takes so many words, and they are what it takes.
    pub(crate) unsafe fn call<const N: usize>(&self, words: [Word; N]) -> c_int {
        let address = self.address();
        if address.is_null() {
            return MPI_ERR_OTHER;
        }
        // SAFETY: as the caller says; more words than it takes are not looked at.
        unsafe { call(address, &words) }
    }
}

impl Symbol {
    /// Whether it is there and has succeeded, called with these words.
    ///
    /// # Safety
    /// As of [`Symbol::call`].
    pub(crate) unsafe fn succeeds<const N: usize>(&self, words: [Word; N]) -> bool {
        // SAFETY: as the caller says.
        !self.address().is_null() && unsafe { self.call(words) } == 0
    }
}

/// The most words that are passed on.
const WORDS: usize = 10;

/// # Safety
/// See [`Symbol::call`].
pub(crate) unsafe fn call(address: *mut c_void, words: &[Word]) -> c_int {
    let at = |place: usize| words.get(place).copied().unwrap_or_default();
    macro_rules! with {
        ($($place:literal)*) => {{
            // SAFETY: as the caller says.
            unsafe {
                let function: unsafe extern "C" fn($(with!(@ $place)),*) -> c_int =
                    transmute(address);
                function($(at($place)),*)
            }
        }};
        (@ $place:literal) => { Word };
    }
    match words.len() {
        0..=6 => with!(0 1 2 3 4 5),
        _ => with!(0 1 2 3 4 5 6 7 8 9),
    }
}

const _: () = assert!(WORDS == 10);

/// The library's definition of `name`: the next one in the order of the loader, so that another
/// tool that stands before MPI keeps its place.
pub(crate) fn find(name: *const c_char) -> *mut c_void {
    // SAFETY: a look-up by name.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name) };
    if !next.is_null() {
        return next;
    }
    let library = library();
    if library.is_null() {
        return null_mut();
    }
    // SAFETY: a handle of the loader's that is never closed.
    unsafe { libc::dlsym(library, name) }
}

/// Objects of a process that are looked at.
const OBJECTS: usize = 1024;

/// Names of the loader's for its objects.
struct Names {
    names: [*const c_char; OBJECTS],
    count: usize,
}

unsafe extern "C" fn add_name(
    info: *mut libc::dl_phdr_info,
    _: libc::size_t,
    names: *mut c_void,
) -> c_int {
    // SAFETY: what `dl_iterate_phdr` was given, and what it gives.
    let (names, name) = unsafe { (&mut *names.cast::<Names>(), (*info).dlpi_name) };
    if let Some(place) = names.names.get_mut(names.count) {
        *place = name;
        names.count += 1;
    }
    0
}

/// A handle of the library that this process uses, once there is one.
static LIBRARY: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

#[cold]
fn library() -> *mut c_void {
    let known = LIBRARY.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let mut names = Names { names: [core::ptr::null(); OBJECTS], count: 0 };
    // SAFETY: the names are collected into `names`; the libraries that they name are not looked at
    // under the loader's lock.
    unsafe { libc::dl_iterate_phdr(Some(add_name), (&raw mut names).cast()) };
    let mut found: *mut c_void = null_mut();
    for &name in &names.names[..names.count] {
        let candidate = candidate(name);
        if !candidate.is_null() && (found.is_null() || is_initialized(candidate)) {
            found = candidate;
            if is_initialized(found) {
                break;
            }
        }
    }
    LIBRARY.store(found, Ordering::Release);
    found
}

/// The object of this name, if it has or needs an MPI library.
fn candidate(name: *const c_char) -> *mut c_void {
    // SAFETY: the loader's text.
    if name.is_null() || unsafe { CStr::from_ptr(name) }.is_empty() {
        return null_mut();
    }
    // SAFETY: an object that is there is opened once more, which changes nothing.
    unsafe {
        let handle = libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if handle.is_null() {
            return handle;
        }
        if libc::dlsym(handle, c"PMPI_File_open".as_ptr()).is_null() {
            libc::dlclose(handle);
            return null_mut();
        }
        handle
    }
}

/// Whether the program has initialized this library.
fn is_initialized(library: *mut c_void) -> bool {
    // SAFETY: a handle of the loader's; the function takes the address of a flag.
    unsafe {
        let function = libc::dlsym(library, c"PMPI_Initialized".as_ptr());
        if function.is_null() {
            return false;
        }
        let initialized: unsafe extern "C" fn(*mut c_int) -> c_int = transmute(function);
        let mut flag = 0;
        initialized(&mut flag) == 0 && flag != 0
    }
}

/// Whether the library is Open MPI, whose Fortran functions call none of C.
pub(crate) fn is_open_mpi() -> bool {
    const YES: u8 = 2;
    const NO: u8 = 1;
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    let mut known = KNOWN.load(Ordering::Relaxed);
    if known == 0 {
        known = if find(c"ompi_mpi_comm_world".as_ptr()).is_null() { NO } else { YES };
        KNOWN.store(known, Ordering::Relaxed);
    }
    known == YES
}

/// A function without a look at its result, of which only what it writes is of use: false where
/// there is none, or it has failed.
macro_rules! ask {
    ($name:literal, $($word:expr),* $(,)?) => {{
        static FUNCTION: $crate::library::Symbol =
            $crate::library::Symbol::new(concat!($name, "\0"));
        // SAFETY: the function of MPI of this name, which takes these words.
        unsafe { FUNCTION.succeeds([$($word),*]) }
    }};
}
pub(crate) use ask;
