//! Mappings: the file is used behind our back from then on.

use crate::errno::set_errno;
use crate::real::{aliases, real};
use crate::session::{managed, session_of_table};
use forebay_client::user_memory::memory_changed;
use libc::{c_int, c_void, off_t, size_t};

/// Maps `length` bytes through `call`, a file that is managed once it is clean. `address` is where
/// the program wants them.
pub(crate) fn map(
    (address, length): (*mut c_void, size_t),
    protection: c_int,
    flags: c_int,
    fd: c_int,
    call: impl FnOnce() -> *mut c_void,
) -> *mut c_void {
    let mapped = match flags & libc::MAP_FIXED != 0 {
        true => unmapping(
            (address, length),
            || map_clean(length, flags, fd, call),
            |&mapped| mapped != libc::MAP_FAILED,
        ),
        false => map_clean(length, flags, fd, call),
    };
    // What was unmapped where it cannot be seen, in free for instance, may have been there, and
    // have been found usable. Memory as any other needs no second look.
    let usable = libc::PROT_READ | libc::PROT_WRITE;
    let alike = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let is_other =
        protection & usable != usable || flags & alike != alike || flags & libc::MAP_FIXED != 0;
    if is_other {
        // A fixed mapping that fails may have unmapped what was there.
        memory_changed(if mapped == libc::MAP_FAILED { address } else { mapped }, length);
    }
    mapped
}

/// Makes `call`, which takes away what is mapped in `memory` if `is_done` says so of its result.
pub(crate) fn unmapping<R>(
    memory: (*mut c_void, size_t),
    call: impl FnOnce() -> R,
    is_done: impl FnOnce(&R) -> bool,
) -> R {
    match session_of_table() {
        Some(session) => session.unmapping(memory.0, memory.1, call, is_done),
        None => call(),
    }
}

fn map_clean(
    length: size_t,
    flags: c_int,
    fd: c_int,
    call: impl FnOnce() -> *mut c_void,
) -> *mut c_void {
    if fd < 0 || flags & libc::MAP_ANONYMOUS != 0 {
        return call();
    }
    let Some(file) = managed(fd) else { return call() };
    // A private mapping of a file that is being written shows the writes, and the file's growth,
    // until the program changes a page of it.
    let keeps = flags & libc::MAP_TYPE != libc::MAP_PRIVATE || file.may_change();
    let result = if !keeps { file.with_stored(call) } else { file.map(length, call) };
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        libc::MAP_FAILED
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    map((address, length), protection, flags, fd, || {
        real!(c"mmap64"(address => *mut c_void, length => size_t, protection => c_int, flags => c_int, fd => c_int, offset => off_t) -> isize)
            as *mut c_void
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(address: *mut c_void, length: size_t) -> c_int {
    let result = unmapping(
        (address, length),
        || real!(c"munmap"(address => *mut c_void, length => size_t) -> c_int),
        |&result| result == 0,
    );
    memory_changed(address, length);
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(address: *mut c_void, length: size_t, protection: c_int) -> c_int {
    let result =
        real!(c"mprotect"(address => *mut c_void, length => size_t, protection => c_int) -> c_int);
    memory_changed(address, length);
    result
}

/// The fifth argument is there only with MREMAP_FIXED; the register is passed on either way.
#[unsafe(no_mangle)]
unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_length: size_t,
    new_length: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    remapping((old, old_length), (new, new_length), flags);
    let result = real!(c"mremap"(old => *mut c_void, old_length => size_t, new_length => size_t, flags => c_int, new => *mut c_void) -> isize)
        as *mut c_void;
    remapped((old, old_length), (new, new_length), flags, result);
    result
}

/// Notes what mremap is about to do: `old` is what there is, `new` what the program wants.
pub(crate) fn remapping(old: (*mut c_void, size_t), new: (*mut c_void, size_t), flags: c_int) {
    let Some(session) = session_of_table() else { return };
    session.moving_mapping(old.0, old.1);
    if flags & libc::MREMAP_FIXED != 0 {
        session.moving_mapping(new.0, new.1);
    }
}

/// Notes what mremap has done: `old` is what there was, `new` what the program wants, where only
/// MREMAP_FIXED says the address.
pub(crate) fn remapped(
    old: (*mut c_void, size_t),
    new: (*mut c_void, size_t),
    flags: c_int,
    result: *mut c_void,
) {
    memory_changed(old.0, old.1);
    if result != libc::MAP_FAILED {
        memory_changed(result, new.1);
    } else if flags & libc::MREMAP_FIXED != 0 {
        memory_changed(new.0, new.1);
    }
}

aliases! {
    "C" mmap = mmap64(address: *mut c_void, length: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void;
}
