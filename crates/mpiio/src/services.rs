//! The session of the process, which the preload library has; see docs/design/capi.md.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, Ordering};
use forebay_client::services::{SERVICES, Services};

/// Null before the first look; [`ABSENT`] where the process has no such library.
static FOUND: AtomicPtr<Services> = AtomicPtr::new(core::ptr::null_mut());

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

#[cold]
fn look() -> *mut Services {
    // SAFETY: a look-up by name, in all that was loaded with the program.
    let table: *mut c_void = unsafe { libc::dlsym(libc::RTLD_DEFAULT, SERVICES.as_ptr()) };
    let table = table.cast::<Services>();
    // SAFETY: all tables begin with their length.
    let is_whole = !table.is_null() && unsafe { (*table).bytes } >= size_of::<Services>();
    if is_whole { table } else { ABSENT }
}
