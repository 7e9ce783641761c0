//! Handles of containers, as those of files: a number that is seen to be none once it was closed.

use super::helper;
use super::store::Store;
use crate::handles::{Kind, Place, handle, not_there, parts, pointer};
use crate::report::{code, fail};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Containers that a process may have open.
const CONTAINERS: usize = 1024;

/// A container and its threads.
struct Open {
    store: Arc<Store>,
    helpers: Vec<JoinHandle<()>>,
}

struct Container {
    place: Place,
    open: AtomicPtr<Open>,
}

impl Container {
    const fn free() -> Container {
        Container { place: Place::free(), open: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// The container of an open place.
    ///
    /// # Safety
    /// The caller has entered the place, and does not leave it while it uses this.
    unsafe fn open(&self) -> Option<&Open> {
        // SAFETY: it was stored before the place was opened, and is freed by the last to leave.
        unsafe { self.open.load(Ordering::Acquire).as_ref() }
    }

    /// Ends a container that no call uses any more.
    fn end(&self) {
        let open = self.open.swap(core::ptr::null_mut(), Ordering::AcqRel);
        if open.is_null() {
            return;
        }
        // SAFETY: made by `add`, and taken out of the table here.
        let Open { store, helpers } = *unsafe { Box::from_raw(open) };
        helper::finish(store, helpers);
    }
}

static CONTAINERS_OPEN: [Container; CONTAINERS] = [const { Container::free() }; CONTAINERS];

/// Starts the helpers of a container; its handle.
pub(crate) fn add(store: Store) -> Result<*mut c_void, c_int> {
    let (store, helpers) = helper::begin(store)?;
    let open = Box::into_raw(Box::new(Open { store, helpers }));
    for (at, container) in CONTAINERS_OPEN.iter().enumerate() {
        let fill = || container.open.store(open, Ordering::Release);
        if let Some(generation) = container.place.take(fill) {
            return Ok(pointer(handle(Kind::Records, at, generation)));
        }
    }
    // SAFETY: made above, and in no place of the table.
    let Open { store, helpers } = *unsafe { Box::from_raw(open) };
    helper::stop(&store, helpers);
    helper::abandon(store);
    let text = format_args!(
        "{CONTAINERS} containers are open; close some of them with forebay_records_close()"
    );
    Err(fail(code::TOO_MANY, text))
}

/// The result of a call with a container.
pub(crate) fn with(given: *mut c_void, act: impl FnOnce(&Store) -> Result<(), c_int>) -> c_int {
    let (at, generation) = match parts(Kind::Records, given.addr() as u64, CONTAINERS) {
        Ok(parts) => parts,
        Err(code) => return code,
    };
    let Some(container) = CONTAINERS_OPEN.get(at) else { return -libc::EINVAL };
    if !container.place.enter(generation) {
        return not_there(Kind::Records, container.place.now(), generation);
    }
    // SAFETY: entered, and left below.
    let result = match unsafe { container.open() } {
        Some(open) => act(&open.store).err().unwrap_or(0),
        None => -libc::EINVAL,
    };
    container.place.leave(|| container.end());
    result
}

/// Closes a container; the last call that uses it ends it.
pub(crate) fn close(given: *mut c_void) -> c_int {
    let (at, generation) = match parts(Kind::Records, given.addr() as u64, CONTAINERS) {
        Ok(parts) => parts,
        Err(code) => return code,
    };
    let Some(container) = CONTAINERS_OPEN.get(at) else { return -libc::EINVAL };
    if !container.place.shut(generation) {
        return not_there(Kind::Records, container.place.now(), generation);
    }
    container.place.leave(|| container.end());
    0
}
