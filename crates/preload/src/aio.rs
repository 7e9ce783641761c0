//! glibc's asynchronous I/O on managed files: done when it is asked for, at the speed of memory,
//! and reported as glibc reports it.
//!
//! The results go into the control block, where `aio_error`, `aio_return`, `aio_suspend` and
//! `aio_cancel` look for them. glibc itself delivers the notifications.

use crate::errno::{errno, restore_errno, set_errno, status};
use crate::real::real;
use crate::rw;
use crate::session::managed;
use core::mem::offset_of;
use forebay_client::user_memory::is_readable;
use libc::{c_int, c_void, off_t, sigevent, size_t, ssize_t};
use rustix::io::Errno;

/// glibc's `struct aiocb`, which is also its `aiocb64`, with the members that it keeps to itself:
/// programs have them compiled in, so that they cannot change.
#[repr(C)]
struct Block {
    fd: c_int,
    operation: c_int,
    priority: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    event: sigevent,
    next: *mut Block,
    absolute_priority: c_int,
    policy: c_int,
    error: c_int,
    result: ssize_t,
    offset: off_t,
    reserved: [u8; 32],
}

// Arrays of two lengths are of two types.
const _: [(); size_of::<libc::aiocb>()] = [(); size_of::<Block>()];
const _: [(); offset_of!(libc::aiocb, aio_sigevent)] = [(); offset_of!(Block, event)];
const _: [(); offset_of!(libc::aiocb, aio_offset)] = [(); offset_of!(Block, offset)];
const _: [(); 112] = [(); offset_of!(Block, error)];
const _: [(); 120] = [(); offset_of!(Block, result)];

/// glibc's AIO_PRIO_DELTA_MAX.
const PRIORITY_MAX: c_int = 20;

/// Has glibc deliver a notification, in a thread of its own if that is wanted: what it does when
/// a list of no requests is done.
fn notify(event: &sigevent) {
    if event.sigev_notify != libc::SIGEV_NONE {
        let nothing: *const *mut Block = core::ptr::null();
        real!(c"lio_listio"(libc::LIO_NOWAIT => c_int, nothing => *const *mut Block, 0 => c_int, event => *const sigevent) -> c_int);
    }
}

/// Does the request, and says so in its block. False if glibc would not have taken it.
fn perform(block: &mut Block, operation: c_int, act: impl FnOnce(&Block) -> ssize_t) -> bool {
    let kept = errno();
    let accepted = (0..=PRIORITY_MAX).contains(&block.priority);
    block.operation = operation;
    block.result = if accepted {
        act(block)
    } else {
        set_errno(Errno::INVAL);
        -1
    };
    block.error = if block.result < 0 { errno() } else { 0 };
    if accepted {
        restore_errno(kept);
        notify(&block.event);
    }
    accepted
}

/// Reads or writes as the program's block says.
///
/// # Safety
/// As pread or pwrite of what `block` names.
unsafe fn transfer(block: &mut Block, operation: c_int) -> bool {
    // SAFETY: the program's buffer, which it leaves to the request until that is done.
    let act = |block: &Block| unsafe {
        match operation {
            libc::LIO_READ => rw::pread64(block.fd, block.buffer, block.bytes, block.offset),
            libc::LIO_WRITE => rw::pwrite64(block.fd, block.buffer, block.bytes, block.offset),
            _ => {
                set_errno(Errno::INVAL);
                -1
            }
        }
    };
    crate::real::without_cancellation(|| perform(block, operation, act))
}

/// The program's block, if its descriptor is managed.
///
/// # Safety
/// Null, or a block that only this request uses.
unsafe fn ours<'a>(block: *mut Block) -> Option<&'a mut Block> {
    // SAFETY: null, or the program's, which it leaves to the request until that is done.
    let block = unsafe { block.as_mut() }?;
    managed(block.fd).map(|_| block)
}

macro_rules! single {
    ($($name:ident $symbol:literal $operation:expr;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(block: *mut Block) -> c_int {
            // SAFETY: the program's block.
            match unsafe { ours(block) } {
                // SAFETY: the buffer is the one that the program's block names.
                Some(block) => if unsafe { transfer(block, $operation) } { 0 } else { -1 },
                None => real!($symbol(block => *mut Block) -> c_int),
            }
        }
    )* };
}

single! {
    aio_read c"aio_read" libc::LIO_READ;
    aio_read64 c"aio_read64" libc::LIO_READ;
    aio_write c"aio_write" libc::LIO_WRITE;
    aio_write64 c"aio_write64" libc::LIO_WRITE;
}

fn sync(operation: c_int, block: &mut Block) -> c_int {
    if !matches!(operation, libc::O_SYNC | libc::O_DSYNC) {
        return status(Err(Errno::INVAL));
    }
    let act = |block: &Block| match managed(block.fd) {
        Some(file) => status(file.sync(true)) as ssize_t,
        None => 0,
    };
    match perform(block, operation, act) {
        true => 0,
        false => -1,
    }
}

macro_rules! synced {
    ($($name:ident $symbol:literal;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(operation: c_int, block: *mut Block) -> c_int {
            // SAFETY: the program's block.
            match unsafe { ours(block) } {
                Some(block) => sync(operation, block),
                None => real!($symbol(operation => c_int, block => *mut Block) -> c_int),
            }
        }
    )* };
}

synced! {
    aio_fsync c"aio_fsync";
    aio_fsync64 c"aio_fsync64";
}

/// Does the requests on managed files, and leaves the others and the notification to glibc.
///
/// # Safety
/// As of [`ours`], of each of `blocks`, and what they name as of [`transfer`].
unsafe fn list(
    mode: c_int,
    blocks: &[*mut Block],
    pass_on: impl FnOnce(*const *mut Block) -> c_int,
) -> c_int {
    let mut failed = false;
    let mut others = Vec::from(blocks);
    for place in &mut others {
        // SAFETY: one of the program's blocks, or null.
        if let Some(block) = unsafe { ours(*place) } {
            *place = core::ptr::null_mut();
            let operation = block.operation;
            if operation != libc::LIO_NOP {
                // SAFETY: the buffer is the one that the program's block names.
                let accepted = unsafe { transfer(block, operation) };
                failed |= !accepted || mode == libc::LIO_WAIT && block.result < 0;
            }
        }
    }
    match pass_on(others.as_ptr()) {
        0 if failed => status(Err(Errno::IO)),
        other => other,
    }
}

macro_rules! lists {
    ($($name:ident $symbol:literal;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            mode: c_int,
            blocks: *const *mut Block,
            number: c_int,
            event: *const sigevent,
        ) -> c_int {
            let call = |blocks| real!($symbol(mode => c_int, blocks => *const *mut Block, number => c_int, event => *const sigevent) -> c_int);
            let known = matches!(mode, libc::LIO_WAIT | libc::LIO_NOWAIT);
            if !known || blocks.is_null() || number <= 0 {
                return call(blocks);
            }
            // SAFETY: as many pointers as the program says.
            let given = unsafe { core::slice::from_raw_parts(blocks, number as usize) };
            // SAFETY: the program's blocks, or null.
            if !given.iter().any(|&block| unsafe { ours(block) }.is_some()) {
                return call(blocks);
            }
            // SAFETY: the same blocks.
            unsafe { list(mode, given, call) }
        }
    )* };
}

lists! {
    lio_listio c"lio_listio";
    lio_listio64 c"lio_listio64";
}

/// libaio: its completions come out of a ring that the kernel fills, and so must go through the
/// kernel. struct iocb has its descriptor at byte 20.
#[unsafe(no_mangle)]
unsafe extern "C" fn io_submit(
    context: *mut c_void,
    number: libc::c_long,
    blocks: *mut *mut c_void,
) -> c_int {
    const DESCRIPTOR: usize = 20;
    let mut number = number;
    for index in 0..number.max(0) as usize {
        // The kernel stops, too, at the first address that is none.
        let at = blocks.wrapping_add(index);
        if !is_readable(at.cast(), size_of::<*mut c_void>()) {
            break;
        }
        // SAFETY: just found readable.
        let block = unsafe { at.read_unaligned() }.cast::<u8>();
        if !is_readable(block, DESCRIPTOR + size_of::<c_int>()) {
            break;
        }
        // SAFETY: just found readable.
        let fd = unsafe { block.add(DESCRIPTOR).cast::<c_int>().read_unaligned() };
        if let Some(file) = managed(fd)
            && let Err(errno) = file.turn_direct()
        {
            // The kernel does not have what is buffered. As with a block that it refuses, those
            // before it are submitted.
            if index == 0 {
                return -errno.raw_os_error();
            }
            number = index as libc::c_long;
            break;
        }
    }
    real!(c"io_submit"(context => *mut c_void, number => libc::c_long, blocks => *mut *mut c_void) -> c_int)
}
