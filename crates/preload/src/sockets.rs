//! Descriptors in messages between processes.

use crate::managed;
use crate::real::cancellable;
use crate::session;
use forebay_client::Session;
use forebay_client::user_memory::is_readable;
use libc::{c_int, c_uint, cmsghdr, mmsghdr, msghdr, ssize_t, timespec};

/// Calls `act` with each header of control data that carries descriptors, and with the place and
/// number of those.
unsafe fn each_rights(
    message: *const msghdr,
    mut act: impl FnMut(*mut cmsghdr, *mut c_int, usize) -> bool,
) {
    // The kernel takes far less.
    const MOST: usize = 1 << 20;
    let (start, length) = unsafe { ((*message).msg_control, (*message).msg_controllen) };
    if length > MOST || !is_readable(start.cast(), length) {
        return;
    }
    let end = start as usize + length;
    let mut control = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !control.is_null() {
        let header = unsafe { &*control };
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            let data = unsafe { libc::CMSG_DATA(control) }.cast::<c_int>();
            let length = header.cmsg_len.min(end - control as usize);
            let bytes = length.saturating_sub(data as usize - control as usize);
            if !act(control, data, bytes / size_of::<c_int>()) {
                return;
            }
        }
        control = unsafe { libc::CMSG_NXTHDR(message, control) };
    }
}

/// The process that connected `socket`'s other end, or listened there, or made both; 0 if unknown.
fn peer(socket: c_int) -> u32 {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    let at = (&raw mut peer).cast();
    unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, at, &mut bytes) };
    peer.pid as u32
}

/// Before a message is sent: the process that receives its descriptors either shares what they
/// refer to, or finds them the kernel's.
unsafe fn before(socket: c_int, message: *const msghdr) {
    let mut shared = None;
    let each = |_, fds: *mut c_int, number| {
        for index in 0..number {
            if let Some(file) = managed(unsafe { fds.add(index).read_unaligned() })
                && !file.uses_kernel_offset()
            {
                if *shared.get_or_insert_with(|| file.may_pass(peer(socket))) {
                    file.sending();
                } else {
                    // An error stays with the file.
                    let _ = file.release_to_kernel();
                }
            }
        }
        true
    };
    unsafe { each_rights(message, each) };
}

/// After a message could not be sent.
unsafe fn not_sent(message: *const msghdr) {
    let each = |_, fds: *mut c_int, number| {
        for index in 0..number {
            if let Some(file) = managed(unsafe { fds.add(index).read_unaligned() })
                && !file.uses_kernel_offset()
            {
                file.not_passed();
            }
        }
        true
    };
    unsafe { each_rights(message, each) };
}

/// After a message was received. One of which a part came too late ends before that part.
unsafe fn after(session: &Session, message: *mut msghdr, flags: c_int) {
    let again = flags & libc::MSG_PEEK != 0;
    let each = |control: *mut cmsghdr, fds: *mut c_int, number| {
        let fd = |index| unsafe { fds.add(index).read_unaligned() };
        let Some(lost) = (0..number).find(|&index| !session.received(fd(index), again)) else {
            return true;
        };
        for index in lost..number {
            unsafe { crate::descriptors::close(fd(index)) };
        }
        let end = unsafe { fds.add(lost) } as usize;
        let from = if lost == 0 { control as usize } else { end };
        unsafe {
            (*control).cmsg_len = end - control as usize;
            (*message).msg_controllen = from - (*message).msg_control as usize;
            (*message).msg_flags |= libc::MSG_CTRUNC;
        }
        false
    };
    unsafe { each_rights(message, each) };
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmsg(
    socket: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    let carries = session().is_some()
        && is_readable(message.cast(), size_of::<msghdr>())
        && unsafe { (*message).msg_controllen } > 0;
    if carries {
        unsafe { before(socket, message) };
    }
    let sent = cancellable!(c"sendmsg"(socket => c_int, message => *const msghdr, flags => c_int) -> ssize_t);
    if sent < 0 && carries {
        unsafe { not_sent(message) };
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
    let each = |index: c_uint| unsafe { &raw const (*messages.add(index as usize)).msg_hdr };
    // More than that in one call is not sent.
    let number = number.min(libc::UIO_MAXIOV as c_uint);
    let readable = is_readable(messages.cast(), number as usize * size_of::<mmsghdr>());
    if session().is_some() && readable {
        for index in 0..number {
            unsafe { before(socket, each(index)) };
        }
    }
    let sent = cancellable!(c"sendmmsg"(socket => c_int, messages => *mut mmsghdr, number => c_uint, flags => c_int) -> c_int);
    if session().is_some() && readable {
        for index in sent.max(0) as c_uint..number {
            unsafe { not_sent(each(index)) };
        }
    }
    sent
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let got = cancellable!(c"recvmsg"(socket => c_int, message => *mut msghdr, flags => c_int) -> ssize_t);
    if let (0.., Some(session)) = (got, session()) {
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
            unsafe { after(session, &raw mut (*messages.add(index)).msg_hdr, flags) };
        }
    }
    got
}
