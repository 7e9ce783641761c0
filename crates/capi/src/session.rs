//! The session of the process, which the preload library has: found once, by the symbol of its
//! table.

use core::ffi::{CStr, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use forebay_client::services::{SERVICES, Services};

/// Null before the first look; [`ABSENT`] where the process has no such library.
static FOUND: AtomicPtr<Services> = AtomicPtr::new(null_mut());

/// A preload library was found, and no table that is long enough.
static OTHER_BUILD: AtomicBool = AtomicBool::new(false);

/// A part of the names that the preload library's file has.
const PRELOAD: &[u8] = b"forebay_preload";

/// No table has such an address.
const ABSENT: *mut Services = core::ptr::without_provenance_mut(1);

/// The preload library's table, if the process runs under Forebay now.
pub(crate) fn services() -> Option<&'static Services> {
    let mut table = FOUND.load(Ordering::Acquire);
    if table.is_null() {
        table = look();
        FOUND.store(table, Ordering::Release);
    }
    if table == ABSENT {
        return None;
    }
    // SAFETY: a table that its library exports, which was loaded with the program and stays.
    let services = unsafe { &*table };
    ((services.is_active)() == 1).then_some(services)
}

/// Whether the process has a preload library that lacks the table: of another build. What the C
/// library's functions then say of a sync is what that library's rules make of it.
pub(crate) fn is_of_another_build() -> bool {
    let (table, found) = (FOUND.load(Ordering::Acquire), OTHER_BUILD.load(Ordering::Relaxed));
    table == ABSENT && found
}

#[cold]
fn look() -> *mut Services {
    // SAFETY: a look-up by name, in all that was loaded with the program.
    let table: *mut c_void = unsafe { libc::dlsym(libc::RTLD_DEFAULT, SERVICES.as_ptr()) };
    let table = table.cast::<Services>();
    // SAFETY: all tables begin with their length.
    let is_whole = !table.is_null() && unsafe { (*table).bytes } >= size_of::<Services>();
    if is_whole {
        return table;
    }
    // Before the table counts as looked for.
    OTHER_BUILD.store(!table.is_null() || fsync_is_preloaded(), Ordering::Relaxed);
    ABSENT
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
