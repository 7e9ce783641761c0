//! The link to the node manager: a socket, made when first needed and made again when it broke.

use crate::fd::{borrow, hide};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use forebay_pool::clock::{self, Timer};
use forebay_pool::message::Message;
use forebay_pool::{crash, interruption};
use rustix::fd::RawFd;
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

/// Longest path of a socket.
const PATH_MAX: usize = 108;

/// How long a manager that does not read is waited for: without the descriptor it opens the file by
/// its name, or as the program has it.
const SEND_TIMEOUT: Timer = Timer::seconds(2);
/// How long one is waited for that did not read the last one: as long as it takes a manager that
/// does to accept.
const LATE_TIMEOUT: Timer = Timer::ms(50);

pub(crate) struct ManagerLink {
    path: [u8; PATH_MAX],
    path_length: usize,
    socket: AtomicI32,
    busy: AtomicU32,
    /// The manager did not read the last message in time: it is not waited for before it has read
    /// one.
    is_late: AtomicBool,
}

/// How long a caller of [`manager_stays`] waits.
const LOOK: Timer = Timer::ms(10);

/// Whether a node manager listens at the socket `path`. Then it returns after a moment, for callers
/// that look again whether it ends.
pub fn manager_stays(path: &CStr) -> bool {
    let link = ManagerLink::new(path.to_bytes());
    let answers = link.connected().is_ok();
    link.disconnect();
    if answers {
        clock::sleep_ns(LOOK.as_ns());
    }
    answers
}

impl ManagerLink {
    pub fn new(path: &[u8]) -> ManagerLink {
        let mut link = ManagerLink {
            path: [0; PATH_MAX],
            path_length: path.len().min(PATH_MAX),
            socket: AtomicI32::new(-1),
            busy: AtomicU32::new(0),
            is_late: AtomicBool::new(false),
        };
        link.path[..link.path_length].copy_from_slice(&path[..link.path_length]);
        link
    }

    /// The path of the socket.
    pub fn path(&self) -> &[u8] {
        &self.path[..self.path_length]
    }

    pub fn owns(&self, fd: RawFd) -> bool {
        self.socket.load(Ordering::Relaxed) == fd
    }

    /// Gives number `fd`, which is the socket's, up to the program.
    pub fn make_way(&self, fd: RawFd) -> bool {
        self.alone(|| {
            if self.socket.load(Ordering::Relaxed) == fd {
                self.disconnect();
            }
            let _ = self.connected();
        })
        .is_ok()
    }

    /// Connects before it may not be possible any more.
    pub fn connect(&self) {
        let _ = self.alone(|| self.connected());
    }

    /// Calls `act` while no other thread uses the socket.
    fn alone<R>(&self, act: impl FnOnce() -> R) -> Result<R, Errno> {
        // Bounded: a thread may have been cancelled while it was sending.
        let mut turns = 0;
        while self.busy.swap(1, Ordering::Acquire) != 0 {
            turns += 1;
            if turns > 10_000 {
                return Err(Errno::AGAIN);
            }
            rustix::thread::sched_yield();
        }
        let result = act();
        self.busy.store(0, Ordering::Release);
        Ok(result)
    }

    /// Sends `fd` with `message`. An error means that no manager listens, or reads, or that a
    /// signal handler is to run before it does.
    pub fn send_descriptor(&self, message: Message, fd: RawFd) -> Result<(), Errno> {
        self.alone(|| {
            let result = match self.send_waiting(message, fd) {
                // Of another manager, which is gone.
                Err(errno) if !matches!(errno, Errno::AGAIN | Errno::INTR) => {
                    self.disconnect();
                    self.send_waiting(message, fd)
                }
                other => other,
            };
            if result.is_err() {
                self.disconnect();
            }
            self.is_late.store(result == Err(Errno::AGAIN), Ordering::Relaxed);
            result
        })?
    }

    fn send_waiting(&self, message: Message, fd: RawFd) -> Result<(), Errno> {
        match self.is_late.load(Ordering::Relaxed) {
            true => self.try_send(message, fd, SendFlags::NOSIGNAL | SendFlags::DONTWAIT),
            false => self.try_send(message, fd, SendFlags::NOSIGNAL),
        }
    }

    /// Sends `fd` with a message that may get lost: never waits for a manager that does not read.
    pub fn send_hint(&self, message: Message, fd: RawFd) {
        let _ = self.alone(|| {
            let result = self.try_send(message, fd, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            if result.is_err_and(|errno| errno != Errno::AGAIN) {
                self.disconnect();
            }
        });
    }

    fn try_send(&self, message: Message, fd: RawFd, flags: SendFlags) -> Result<(), Errno> {
        let socket = self.connected()?;
        let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [borrow(fd)];
        crash::point("message.sending");
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let packet = message.encode();
        let mut done = 0;
        while done < packet.len() {
            let rest = [std::io::IoSlice::new(&packet[done..])];
            // What was begun is brought to its end.
            let flags = if done > 0 { SendFlags::NOSIGNAL } else { flags };
            match rustix::net::sendmsg(borrow(socket), &rest, &mut control, flags) {
                Err(Errno::INTR) if done > 0 || !interruption::is_held_off() => {}
                Err(errno) => return Err(errno),
                Ok(sent) => {
                    done += sent;
                    control.clear();
                }
            }
        }
        crash::point("message.sent");
        Ok(())
    }

    fn connected(&self) -> Result<RawFd, Errno> {
        let socket = self.socket.load(Ordering::Relaxed);
        if socket >= 0 {
            return Ok(socket);
        }
        let address = SocketAddrUnix::new(&self.path[..self.path_length])?;
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let timeout = match self.is_late.load(Ordering::Relaxed) {
            true => LATE_TIMEOUT,
            false => SEND_TIMEOUT,
        };
        let timeout = Some(timeout.as_duration());
        let _ = rustix::net::sockopt::set_socket_timeout(&socket, Timeout::Send, timeout);
        rustix::net::connect(&socket, &address)?;
        let socket = hide(socket);
        self.socket.store(socket, Ordering::Relaxed);
        Ok(socket)
    }

    pub fn disconnect(&self) {
        let socket = self.socket.swap(-1, Ordering::Relaxed);
        if socket >= 0 {
            // SAFETY: the link's own descriptor.
            unsafe { rustix::io::close(socket) };
        }
    }

    /// In a forked child: the socket is the parent's, and a thread of the parent may have been in
    /// the middle of a message.
    pub fn forked(&self) {
        // The kernel copies the descriptors before the memory. Where another thread connected
        // meanwhile, the number is none of the child's, or is what the program had there before.
        let socket = self.socket.load(Ordering::Relaxed);
        if socket >= 0 && !self.is_ours(socket) {
            self.socket.store(-1, Ordering::Relaxed);
        }
        self.disconnect();
        self.busy.store(0, Ordering::Release);
    }

    /// Whether a descriptor is connected to the node manager's socket.
    fn is_ours(&self, fd: RawFd) -> bool {
        let peer = rustix::net::getpeername(borrow(fd)).ok().flatten();
        let peer = peer.and_then(|peer| SocketAddrUnix::try_from(peer).ok());
        peer.is_some_and(|peer| peer.path_bytes() == Some(self.path()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::{AsRawFd, IntoRawFd};
    use std::os::unix::net::UnixListener;

    /// The number may be another descriptor's, or none's, when the memory is copied later than the
    /// descriptors were.
    #[test]
    fn a_forked_child_closes_the_link_alone() {
        let path = std::env::temp_dir().join(format!("fb-link-{}", std::process::id()));
        let _listener = UnixListener::bind(&path).unwrap();
        let link = ManagerLink::new(path.as_os_str().as_encoded_bytes());
        link.connect();
        let socket = link.socket.load(Ordering::Relaxed);
        let is_open = |fd| rustix::io::fcntl_getfd(borrow(fd)).is_ok();
        assert!(socket >= 0 && link.is_ours(socket));
        link.forked();
        assert!(!is_open(socket) && !link.owns(socket));
        let file = std::fs::File::open("/dev/null").unwrap();
        link.socket.store(file.as_raw_fd(), Ordering::Relaxed);
        link.forked();
        assert!(is_open(file.as_raw_fd()) && link.socket.load(Ordering::Relaxed) == -1);
        let gone = file.into_raw_fd();
        // SAFETY: it was the file's.
        unsafe { rustix::io::close(gone) };
        link.socket.store(gone, Ordering::Relaxed);
        link.forked();
        std::fs::remove_file(&path).unwrap();
    }
}
