//! The session of the process, which the preload library has.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use forebay_client::services::{Found, Services, is_whole};

static FOUND: Found = Found::new();

/// A preload library was found, and no table that is long enough.
static OTHER_BUILD: AtomicBool = AtomicBool::new(false);

/// A part of the names that the preload library's file has.
const PRELOAD: &[u8] = b"forebay_preload";

/// The preload library's table, if the process runs under Forebay now.
pub(crate) fn services() -> Option<&'static Services> {
    FOUND.get(look)
}

/// Whether the process has a preload library that lacks the table: of another build. What the C
/// library's functions then say of a sync is what that library's rules make of it.
pub(crate) fn is_of_another_build() -> bool {
    FOUND.is_absent() && OTHER_BUILD.load(Ordering::Relaxed)
}

#[cold]
fn look(name: &CStr) -> *mut c_void {
    // SAFETY: a look-up by name, in all that was loaded with the program.
    let table = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: what its library exports by this name.
    if !unsafe { is_whole(table.cast()) } {
        // Before the table counts as looked for.
        OTHER_BUILD.store(!table.is_null() || fsync_is_preloaded(), Ordering::Relaxed);
    }
    table
}

/// Whether `fsync` is that of a preload library of Forebay's.
fn fsync_is_preloaded() -> bool {
    // SAFETY: a look-up by name; all zeros are a value of the struct.
    let (fsync, mut found) = unsafe {
        (libc::dlsym(libc::RTLD_DEFAULT, c"fsync".as_ptr()), core::mem::zeroed::<libc::Dl_info>())
    };
    // SAFETY: `found` is written to.
    if fsync.is_null() || unsafe { libc::dladdr(fsync, &mut found) } == 0 {
        return false;
    }
    if found.dli_fname.is_null() {
        return false;
    }
    // SAFETY: the loader's text.
    let name = unsafe { CStr::from_ptr(found.dli_fname) }.to_bytes();
    name.windows(PRELOAD.len()).any(|part| part == PRELOAD)
}
