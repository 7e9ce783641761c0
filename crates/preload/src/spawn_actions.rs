//! What a child of posix_spawn will have as its standard error, by the actions on its descriptors
//! as glibc keeps them (`posix_spawn_file_actions_t`, the same since its version 2.2).

use core::ptr::NonNull;
use libc::c_int;

/// The actions, in the order in which the child takes them.
#[repr(C)]
pub(crate) struct Actions {
    allocated: c_int,
    used: c_int,
    list: *const Action,
}

/// A tag, and a union of what belongs to each kind: the longest is an open, with a path and flags.
#[repr(C)]
struct Action {
    tag: c_int,
    _hole: c_int,
    fd: c_int,
    new: c_int,
    _rest: [u64; 2],
}

const _: () = assert!(size_of::<Action>() == 32);

const CLOSE: c_int = 0;
const DUP2: c_int = 1;
const OPEN: c_int = 2;
const CLOSE_FROM: c_int = 5;

/// The calling process's descriptor that the child will have as its standard error; `None` where
/// that is none of these.
///
/// # Safety
/// `actions` is null or the program's, made by glibc's functions.
pub(crate) unsafe fn standard_error_of(actions: *const Actions) -> Option<c_int> {
    let mut wanted = libc::STDERR_FILENO;
    // SAFETY: as the caller says.
    let Some(actions) = NonNull::new(actions.cast_mut()).map(|actions| unsafe { actions.as_ref() })
    else {
        return Some(wanted);
    };
    // From the last one to the first: what it is made of was made by one before.
    for number in (0..usize::try_from(actions.used).ok()?).rev() {
        // SAFETY: so many there are.
        let action = unsafe { &*actions.list.add(number) };
        match action.tag {
            DUP2 if action.new == wanted => wanted = action.fd,
            CLOSE | OPEN if action.fd == wanted => return None,
            CLOSE_FROM if action.fd <= wanted => return None,
            _ => {}
        }
    }
    Some(wanted)
}
