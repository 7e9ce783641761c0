//! Mappings and asynchronous I/O: the file is used behind our back from then on.

use crate::real::real;
use crate::{managed, set_errno};
use forebay_client::probe::memory_changed;
use libc::{c_int, c_void, off_t, size_t};

/// Maps through `call`, a file that is managed once it is clean.
pub(crate) fn map(flags: c_int, fd: c_int, call: impl FnOnce() -> *mut c_void) -> *mut c_void {
    if flags & libc::MAP_FIXED != 0 {
        memory_changed();
    }
    if fd < 0 || flags & libc::MAP_ANONYMOUS != 0 {
        return call();
    }
    let Some((session, handle)) = managed(fd) else { return call() };
    // A private mapping of a file that is being written shows the writes, and the file's growth, until
    // the program changes a page of it.
    let keeps = flags & libc::MAP_TYPE != libc::MAP_PRIVATE || session.may_change(handle);
    let result = if !keeps {
        session.with_clean(handle, call)
    } else {
        session.hold_mapping(handle);
        session.make_direct(handle, call)
    };
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
    map(flags, fd, || {
        real!(c"mmap64"(address => *mut c_void, length => size_t, protection => c_int, flags => c_int, fd => c_int, offset => off_t) -> isize)
            as *mut c_void
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    unsafe { mmap64(address, length, protection, flags, fd, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(address: *mut c_void, length: size_t) -> c_int {
    let result = real!(c"munmap"(address => *mut c_void, length => size_t) -> c_int);
    memory_changed();
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(address: *mut c_void, length: size_t, protection: c_int) -> c_int {
    let result =
        real!(c"mprotect"(address => *mut c_void, length => size_t, protection => c_int) -> c_int);
    memory_changed();
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
    let result = real!(c"mremap"(old => *mut c_void, old_length => size_t, new_length => size_t, flags => c_int, new => *mut c_void) -> isize);
    memory_changed();
    result as *mut c_void
}

/// glibc's and libaio's control blocks, as far as the descriptor.
unsafe fn goes_direct(fd: c_int) {
    if let Some((session, handle)) = managed(fd) {
        // An error stays with the file and is reported at its fsync or close.
        let _ = session.make_direct(handle, || ());
    }
}

macro_rules! asynchronous {
    ($($name:ident $symbol:literal;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(block: *mut c_void) -> c_int {
            if !block.is_null() {
                // SAFETY: struct aiocb begins with the descriptor.
                unsafe { goes_direct(*block.cast::<c_int>()) };
            }
            real!($symbol(block => *mut c_void) -> c_int)
        }
    )* };
}

asynchronous! {
    aio_read c"aio_read";
    aio_read64 c"aio_read64";
    aio_write c"aio_write";
    aio_write64 c"aio_write64";
}

/// aio_fsync answers later; what was written by plain calls is made safe before it begins.
macro_rules! synced {
    ($($name:ident $symbol:literal;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(operation: c_int, block: *mut c_void) -> c_int {
            if !block.is_null()
                // SAFETY: struct aiocb begins with the descriptor.
                && let Some((session, handle)) = managed(unsafe { *block.cast::<c_int>() })
                && let Err(errno) = session.sync(handle, true)
            {
                return crate::status(Err(errno));
            }
            real!($symbol(operation => c_int, block => *mut c_void) -> c_int)
        }
    )* };
}

synced! {
    aio_fsync c"aio_fsync";
    aio_fsync64 c"aio_fsync64";
}

macro_rules! lists {
    ($($name:ident $symbol:literal;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            mode: c_int,
            blocks: *const *mut c_void,
            number: c_int,
            event: *mut c_void,
        ) -> c_int {
            for index in 0..number.max(0) as usize {
                let block = unsafe { *blocks.add(index) };
                if !block.is_null() {
                    unsafe { goes_direct(*block.cast::<c_int>()) };
                }
            }
            real!($symbol(mode => c_int, blocks => *const *mut c_void, number => c_int, event => *mut c_void) -> c_int)
        }
    )* };
}

lists! {
    lio_listio c"lio_listio";
    lio_listio64 c"lio_listio64";
}

/// libaio: struct iocb has its descriptor at byte 20.
#[unsafe(no_mangle)]
unsafe extern "C" fn io_submit(
    context: *mut c_void,
    number: libc::c_long,
    blocks: *mut *mut c_void,
) -> c_int {
    for index in 0..number.max(0) as usize {
        let block = unsafe { *blocks.add(index) };
        if !block.is_null() {
            unsafe { goes_direct(*block.cast::<u8>().add(20).cast::<c_int>()) };
        }
    }
    real!(c"io_submit"(context => *mut c_void, number => libc::c_long, blocks => *mut *mut c_void) -> c_int)
}
