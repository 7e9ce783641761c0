//! The first thread beside the first.

use crate::real::real;
use crate::session::{is_attached, settle};
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};
use libc::{c_int, pthread_attr_t, pthread_t};

type Start = extern "C" fn(*mut c_void) -> *mut c_void;

/// Whether a second thread was ever started here.
static SEVERAL: AtomicBool = AtomicBool::new(false);

/// Whether this process may have threads beside the calling one.
pub(crate) fn may_be_others() -> bool {
    SEVERAL.load(Ordering::Relaxed)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    start: Option<Start>,
    argument: *mut c_void,
) -> c_int {
    SEVERAL.store(true, Ordering::Relaxed);
    settle();
    if is_attached() {
        forebay_client::make_room_for_own_descriptors();
    }
    real!(c"pthread_create"(
        thread => *mut pthread_t,
        attributes => *const pthread_attr_t,
        start => Option<Start>,
        argument => *mut c_void,
    ) -> c_int)
}
