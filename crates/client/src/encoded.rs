//! Files whose bytes on the store are an encoded form of what they are: before a program gets one,
//! the node manager makes the bytes the original ones, see docs/design/encoded.md. So nothing else
//! in this crate knows of them.

use crate::fd::{borrow, hide, reopen};
use crate::manager_watch::ManagerState;
use crate::session::Session;
use crate::waiting::Wait;
use core::mem::MaybeUninit;
use forebay_pool::clock::{self, Timer};
use forebay_pool::crash;
use forebay_pool::encoded::{is_marked, may_be_marked};
use forebay_pool::message::{BUSY, MESSAGE_BYTES, Message, Outcome};
use rustix::fd::{AsRawFd, RawFd};
use rustix::fs::{OFlags, Stat};
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

/// How long a call waits for a node manager where there is none: a run starts another one.
const SUCCESSOR_TIMEOUT: Timer = Timer::seconds(10);
/// How often it looks whether a signal handler is to run.
const LOOK: Timer = Timer::ms(100);

impl Session {
    /// Sees to it that the file behind `fd`, just opened, has its original bytes; or none, where
    /// the open `empties` it. `stat` is what the kernel has just said of it. Returns whether it has
    /// been changed.
    ///
    /// # Errors
    /// `IO` if it is encoded, and it cannot be restored, or no node manager is there to do it;
    /// `NOSPC` or `DQUOT` if its store has no room for it; `INTR`.
    #[inline]
    pub(crate) fn restore_encoded(
        &self,
        fd: RawFd,
        stat: &Stat,
        empties: bool,
    ) -> Result<bool, Errno> {
        if !may_be_marked(stat) || !is_marked(borrow(fd)) {
            return Ok(false);
        }
        self.have_restored(fd, empties)
    }

    #[cold]
    #[inline(never)]
    fn have_restored(&self, fd: RawFd, empties: bool) -> Result<bool, Errno> {
        // Of the program's description the manager is to have nothing.
        let file = reopen(fd, OFlags::PATH).map_err(|_| Errno::IO)?;
        let (wait, mut alone_ns) = (Wait::begin(), None);
        loop {
            match self.ask_to_restore(file.as_raw_fd(), empties, &wait) {
                Ok(Outcome::Done | Outcome::Plain) => return Ok(true),
                Ok(Outcome::Error(errno)) => {
                    return Err(Errno::from_raw_os_error(i32::from(errno)));
                }
                Ok(Outcome::Refused(why)) if why != BUSY => return Err(Errno::IO),
                // It ends, or has too much to do: as if there was none.
                Ok(Outcome::Refused(_)) => {}
                Err(errno @ (Errno::INTR | Errno::TIMEDOUT)) => return Err(errno),
                Err(_) => {}
            }
            crash::point("encoded.unanswered");
            let now_ns = clock::monotonic_ns();
            if now_ns - *alone_ns.get_or_insert(now_ns) > SUCCESSOR_TIMEOUT.as_ns() {
                return Err(Errno::IO);
            }
            wait.look(|| true)?;
            clock::sleep_ns(LOOK.as_ns());
        }
    }

    /// Asks the node manager, on a connection for this alone, and waits for the answer.
    fn ask_to_restore(&self, file: RawFd, empties: bool, wait: &Wait) -> Result<Outcome, Errno> {
        let address = SocketAddrUnix::new(self.manager.path())?;
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        rustix::net::connect(&socket, &address)?;
        let socket = Hidden(hide(socket));
        let socket = borrow(socket.0);
        rustix::net::sockopt::set_socket_timeout(socket, Timeout::Recv, Some(LOOK.as_duration()))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [borrow(file)];
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let packet = Message::Restore { empties }.encode();
        let pieces = [std::io::IoSlice::new(&packet)];
        if rustix::net::sendmsg(socket, &pieces, &mut control, SendFlags::NOSIGNAL)? < packet.len()
        {
            return Err(Errno::IO);
        }
        crash::point("encoded.asked");
        let (mut answer, mut got) = ([0u8; MESSAGE_BYTES], 0);
        while got < MESSAGE_BYTES {
            match rustix::net::recv(socket, &mut answer[got..], RecvFlags::empty()) {
                Ok((0, _)) => return Err(Errno::PIPE),
                Ok((bytes, _)) => got += bytes,
                Err(Errno::AGAIN | Errno::INTR) => {
                    wait.look(|| true)?;
                    if self.manager_watch.look(&self.segment) == ManagerState::Stopped {
                        return Err(Errno::TIMEDOUT);
                    }
                }
                Err(errno) => return Err(errno),
            }
        }
        match Message::decode(&answer) {
            Some(Message::Exchanged { outcome }) => Ok(outcome),
            _ => Err(Errno::IO),
        }
    }
}

/// A descriptor of this crate's own that is closed at the end.
struct Hidden(RawFd);

impl Drop for Hidden {
    fn drop(&mut self) {
        // SAFETY: opened here, and known to no other code.
        unsafe { rustix::io::close(self.0) };
    }
}
