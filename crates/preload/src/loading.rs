//! dlopen: before a library of MPI or HDF5 comes into a process that was started without, as an
//! extension of Python does, its adapter comes, so that the loader finds the adapter's functions
//! first. See docs/design/adapters.md.

// Where the processor is another one, adapters come with programs alone.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

use crate::errno::{errno, restore_errno};
use crate::real::Symbol;
use crate::session::session_or_parents;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU8, Ordering};
use forebay_client::Needs;
use forebay_client::user_memory::UserPath;
use libc::{c_char, c_int, c_void};

/// The adapters that this process has, or has tried to load: bits of [`Needs`].
#[unsafe(link_section = ".data")]
static LOADED: AtomicU8 = AtomicU8::new(0);

/// Notes adapters that were loaded with the program.
pub(crate) fn are_loaded(adapters: Needs) {
    LOADED.fetch_or(adapters.among(Needs::ALL).bits(), Ordering::Relaxed);
}

static DLOPEN: Symbol = Symbol::new(c"dlopen");

/// A C library without the function.
unsafe extern "C" fn none(_: *const c_char, _: c_int) -> *mut c_void {
    core::ptr::null_mut()
}

/// Before a library is loaded: returns the real function, which the caller is to go on with, with
/// the flags that are left where they were saved.
///
/// # Safety
/// The path is the program's, and `saved` the place of a register.
unsafe extern "C" fn before(path: *const c_char, flags: c_int, saved: *mut usize) -> *mut c_void {
    let real = match DLOPEN.address() {
        address if address.is_null() => none as *mut c_void,
        address => address,
    };
    if flags & libc::RTLD_NOLOAD == 0 && LOADED.load(Ordering::Relaxed) != Needs::ALL.bits() {
        let before = errno();
        // SAFETY: the program's path.
        unsafe { load_adapters(path, real) };
        restore_errno(before);
    }
    if flags & libc::RTLD_DEEPBIND != 0 && clears_deepbind() {
        // SAFETY: as the caller says.
        unsafe { saved.write((flags & !libc::RTLD_DEEPBIND) as usize) };
    }
    real
}

/// Whether a library that was to find its own names first finds ours: else it would see the store's
/// old bytes of files that are buffered.
fn clears_deepbind() -> bool {
    if session_or_parents().is_none() {
        return false;
    }
    // SAFETY: an entry of the environment, which stays as it is.
    let given = unsafe { libc::getenv(c"FOREBAY_DEEPBIND".as_ptr()) };
    // SAFETY: the same.
    given.is_null() || unsafe { CStr::from_ptr(given) } != c"keep"
}

/// Loads the adapters that the library at `path` wants, by the real `dlopen`.
///
/// # Safety
/// The path is the program's.
unsafe fn load_adapters(path: *const c_char, real: *mut c_void) {
    let Some(session) = session_or_parents() else { return };
    // SAFETY: as the caller says.
    let Some(path) = unsafe { UserPath::at(path) }.get() else { return };
    // SAFETY: an entry of the environment, which stays as it is.
    let library_path = unsafe {
        let given = libc::getenv(c"LD_LIBRARY_PATH".as_ptr());
        if given.is_null() { c"" } else { CStr::from_ptr(given) }
    };
    let has = LOADED.load(Ordering::Relaxed);
    let needs = session.library_needs(path, library_path.to_bytes(), Needs::from_bits(has));
    if needs.is_empty() {
        return;
    }
    // One that cannot be loaded is not tried again.
    let needs = needs.without(Needs::from_bits(LOADED.fetch_or(needs.bits(), Ordering::Relaxed)));
    // SAFETY: the C library's function, which has this signature.
    let real: unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void =
        unsafe { core::mem::transmute(real) };
    // The part for later ones uses symbols of the other one.
    let in_order = [needs.without(Needs::HDF5_LATER), needs.among(Needs::HDF5_LATER)];
    for adapter in in_order.into_iter().flat_map(|needs| session.adapters(needs)) {
        // SAFETY: a library of ours, which stays.
        unsafe { real(adapter.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL | libc::RTLD_NODELETE) };
    }
}

/// The real function is entered by a jump: it asks by its return address which library it is called
/// from, the folders of which it looks in, and that has to be the caller's.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "mov rdx, rsp",
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        before = sym before,
    )
}
