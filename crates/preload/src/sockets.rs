//! Descriptors that go from process to process.

use crate::errno::status;
use crate::real::{cancellable, real};
use crate::session::{managed, session};
use forebay_client::Session;
use forebay_client::user_memory::is_readable;
use libc::{c_int, c_uint, cmsghdr, mmsghdr, msghdr, ssize_t, timespec};

/// The control data of a message.
struct Control {
    start: *mut u8,
    length: usize,
}

impl Control {
    /// That of `message`; `None` if it cannot be read, or is more than the kernel takes.
    ///
    /// # Safety
    /// `message` can be read. If its control data can, it stays for as long as this is used.
    unsafe fn of(message: *const msghdr) -> Option<Control> {
        // The kernel takes far less.
        const MOST: usize = 1 << 20;
        // SAFETY: it can be read.
        let (start, length) = unsafe { ((*message).msg_control, (*message).msg_controllen) };
        let start = start.cast::<u8>();
        (length <= MOST && is_readable(start, length)).then_some(Control { start, length })
    }

    /// The headers that carry descriptors.
    fn rights(&self) -> impl Iterator<Item = Rights> {
        let mut next = 0;
        core::iter::from_fn(move || {
            loop {
                let left = self.length.saturating_sub(next);
                if left < size_of::<cmsghdr>() {
                    return None;
                }
                let header = self.start.wrapping_add(next).cast::<cmsghdr>();
                // SAFETY: a whole header is left of what was found readable.
                let said = unsafe { header.read_unaligned() };
                let bytes = said.cmsg_len.checked_next_multiple_of(size_of::<usize>());
                next = match bytes {
                    Some(bytes) if said.cmsg_len >= size_of::<cmsghdr>() => {
                        next.saturating_add(bytes)
                    }
                    _ => self.length,
                };
                if said.cmsg_level == libc::SOL_SOCKET && said.cmsg_type == libc::SCM_RIGHTS {
                    let bytes = said.cmsg_len.min(left).saturating_sub(size_of::<cmsghdr>());
                    return Some(Rights { header, number: bytes / size_of::<c_int>() });
                }
            }
        })
    }
}

/// A header of control data, with the descriptors that follow it.
struct Rights {
    header: *mut cmsghdr,
    number: usize,
}

impl Rights {
    fn fds(&self) -> impl Iterator<Item = c_int> {
        // SAFETY: the control data has room for all that are counted, and was found readable.
        (0..self.number).map(|index| unsafe { self.place(index).read_unaligned() })
    }

    /// Where a descriptor is.
    fn place(&self, index: usize) -> *const c_int {
        self.header.wrapping_add(1).cast::<c_int>().wrapping_add(index).cast_const()
    }
}

/// The process that connected `socket`'s other end, or listened there, or made both; 0 if unknown.
fn peer(socket: c_int) -> u32 {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    let at = (&raw mut peer).cast();
    // SAFETY: `peer` has room for so many bytes.
    unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, at, &mut bytes) };
    peer.pid as u32
}

/// Before a message is sent: the process that receives its descriptors either shares what they
/// refer to, or finds them the kernel's.
fn before(socket: c_int, control: &Control) {
    let mut shared = None;
    for rights in control.rights() {
        for file in rights.fds().filter_map(managed).filter(|file| !file.uses_kernel_offset()) {
            if *shared.get_or_insert_with(|| file.may_pass(peer(socket))) {
                file.sending();
            } else {
                // An error stays with the file.
                let _ = file.release_to_kernel();
            }
        }
    }
}

/// After a message could not be sent.
fn not_sent(control: &Control) {
    for rights in control.rights() {
        for file in rights.fds().filter_map(managed).filter(|file| !file.uses_kernel_offset()) {
            file.not_passed();
        }
    }
}

/// After a message was received. One of which a part came too late ends before that part.
///
/// # Safety
/// The kernel has just filled `message` and its control data.
unsafe fn after(session: &Session, message: *mut msghdr, flags: c_int) {
    let again = flags & libc::MSG_PEEK != 0;
    // SAFETY: the kernel has just filled it.
    let Some(control) = (unsafe { Control::of(message) }) else { return };
    for rights in control.rights() {
        let Some(lost) = rights.fds().position(|fd| !session.received(fd, again)) else {
            continue;
        };
        for fd in rights.fds().skip(lost) {
            // SAFETY: it came with this message, and the program does not know it yet.
            unsafe { crate::descriptors::close(fd) };
        }
        let (start, end) = (rights.header as usize, rights.place(lost) as usize);
        let from = if lost == 0 { start } else { end };
        // SAFETY: the kernel has just written both the header and the message.
        unsafe {
            (&raw mut (*rights.header).cmsg_len).write_unaligned(end - start);
            (*message).msg_controllen = from - control.start as usize;
            (*message).msg_flags |= libc::MSG_CTRUNC;
        }
        return;
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmsg(
    socket: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    let carries = session().is_some()
        && is_readable(message.cast(), size_of::<msghdr>())
        // SAFETY: just found readable.
        && unsafe { (*message).msg_controllen } > 0;
    // SAFETY: found readable; it is the call's to read until it returns.
    let control = || if carries { unsafe { Control::of(message) } } else { None };
    if let Some(control) = control() {
        before(socket, &control);
    }
    let sent = cancellable!(c"sendmsg"(socket => c_int, message => *const msghdr, flags => c_int) -> ssize_t);
    if sent < 0
        && let Some(control) = control()
    {
        not_sent(&control);
    }
    sent
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmmsg(
    socket: c_int,
    messages: *mut mmsghdr,
    number: c_uint,
    flags: c_int,
) -> c_int {
    // More than that in one call is not sent.
    let number = number.min(libc::UIO_MAXIOV as c_uint);
    let readable = is_readable(messages.cast(), number as usize * size_of::<mmsghdr>());
    let control = |index: c_uint| {
        // SAFETY: asked for those below `number`, if they were found readable.
        unsafe { Control::of(&raw const (*messages.add(index as usize)).msg_hdr) }
    };
    if session().is_some() && readable {
        for control in (0..number).filter_map(control) {
            before(socket, &control);
        }
    }
    let sent = cancellable!(c"sendmmsg"(socket => c_int, messages => *mut mmsghdr, number => c_uint, flags => c_int) -> c_int);
    if session().is_some() && readable {
        for control in (sent.max(0) as c_uint..number).filter_map(control) {
            not_sent(&control);
        }
    }
    sent
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let got = cancellable!(c"recvmsg"(socket => c_int, message => *mut msghdr, flags => c_int) -> ssize_t);
    if let (0.., Some(session)) = (got, session()) {
        // SAFETY: the kernel has just filled it.
        unsafe { after(session, message, flags) };
    }
    got
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmmsg(
    socket: c_int,
    messages: *mut mmsghdr,
    number: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let got = cancellable!(c"recvmmsg"(socket => c_int, messages => *mut mmsghdr, number => c_uint, flags => c_int, timeout => *mut timespec) -> c_int);
    if let Some(session) = session() {
        for index in 0..got.max(0) as usize {
            // SAFETY: the kernel has just filled so many.
            unsafe { after(session, &raw mut (*messages.add(index)).msg_hdr, flags) };
        }
    }
    got
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pidfd_getfd(process: c_int, fd: c_int, flags: c_uint) -> c_int {
    copied(real!(c"pidfd_getfd"(process => c_int, fd => c_int, flags => c_uint) -> c_int))
}

/// Takes over `fd`, a copy of another process's descriptor, if there is one.
pub(crate) fn copied(fd: c_int) -> c_int {
    if fd >= 0
        && let Some(session) = session()
        && let Err(errno) = session.copied(fd)
    {
        // SAFETY: the program does not know it yet.
        unsafe { crate::descriptors::close(fd) };
        return status(Err(errno));
    }
    fd
}
