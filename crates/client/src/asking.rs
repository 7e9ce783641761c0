//! Asking the node manager something that it answers: on a connection for the question alone.

use crate::fd::{borrow, hide};
use crate::manager_watch::ManagerState;
use crate::session::Session;
use crate::waiting::Wait;
use core::mem::MaybeUninit;
use forebay_pool::clock::{self, Timer};
use forebay_pool::message::{MESSAGE_BYTES, Message};
use forebay_pool::{crash, interruption};
use rustix::fd::{AsFd, OwnedFd, RawFd};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

/// How long a call waits for a node manager where there is none: a run starts another one.
pub(crate) const SUCCESSOR_TIMEOUT: Timer = Timer::seconds(10);
/// How often it looks whether a signal handler is to run.
pub(crate) const LOOK: Timer = Timer::ms(100);

/// A question about actions that was answered.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    /// Bytes of the answer, also of what had no room.
    pub bytes: usize,
    /// An earlier manager may have carried it out, and was gone before it said so.
    pub is_again: bool,
}

impl Session {
    /// Sends `message` with `sent`, and waits for the answer.
    ///
    /// # Errors
    /// `TIMEDOUT` where the node manager is stopped; `INTR`; any other where there is none.
    pub(crate) fn ask(&self, message: Message, sent: RawFd, wait: &Wait) -> Result<Message, Errno> {
        let address = SocketAddrUnix::new(self.manager.path())?;
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        rustix::net::connect(&socket, &address)?;
        let socket = Hidden(hide(socket));
        let socket = borrow(socket.0);
        rustix::net::sockopt::set_socket_timeout(socket, Timeout::Recv, Some(LOOK.as_duration()))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [borrow(sent)];
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let packet = message.encode();
        let pieces = [std::io::IoSlice::new(&packet)];
        if rustix::net::sendmsg(socket, &pieces, &mut control, SendFlags::NOSIGNAL)? < packet.len()
        {
            return Err(Errno::IO);
        }
        crash::point("manager.asked");
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
        Message::decode(&answer).ok_or(Errno::IO)
    }

    /// Asks what `forebay analyse` asks, in its words (`node/src/actions/registered.rs`), and fills
    /// in as much of the answer as there is room for. A node manager that is killed meanwhile is
    /// not noticed: its successor is asked the same.
    ///
    /// # Errors
    /// `CONNREFUSED` where no node manager comes; `TIMEDOUT` where it is stopped; `INVAL` where it
    /// refuses; `INTR`; errors of a file in memory.
    pub fn ask_of_actions(&self, question: &[u8], answer: &mut [u8]) -> Result<Answered, Errno> {
        let (mut alone_ns, mut is_again) = (None, false);
        loop {
            let wait = Wait::begin();
            // Another one each time: a manager that was killed may have begun its answer.
            let memory = Hidden(hide(memory_of(question)?));
            match self.ask(Message::Analyse, memory.0, &wait) {
                Ok(Message::Told) => {
                    return Ok(Answered { bytes: read_all(memory.0, answer)?, is_again });
                }
                Ok(Message::Refused) => return Err(Errno::INVAL),
                Ok(_) => return Err(Errno::PROTO),
                Err(Errno::INTR) if interruption::restarts() => {
                    is_again = true;
                    continue;
                }
                Err(errno @ (Errno::INTR | Errno::TIMEDOUT)) => return Err(errno),
                // It ends, or there is none.
                Err(Errno::PIPE | Errno::CONNRESET) => is_again = true,
                Err(_) => {}
            }
            let now_ns = clock::monotonic_ns();
            if now_ns - *alone_ns.get_or_insert(now_ns) > SUCCESSOR_TIMEOUT.as_ns() {
                return Err(Errno::CONNREFUSED);
            }
            match wait.look(|| true) {
                Err(_) if interruption::restarts() => {}
                looked => looked?,
            }
            clock::sleep_ns(LOOK.as_ns());
        }
    }
}

/// A file in memory with these bytes.
fn memory_of(bytes: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create(c"forebay-question", flags)?;
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pwrite(memory.as_fd(), &bytes[done..], done as u64) {
            Ok(more) => done += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(memory)
}

/// Reads a file in memory from its beginning; how long it is.
fn read_all(memory: RawFd, to: &mut [u8]) -> Result<usize, Errno> {
    let length = rustix::fs::fstat(borrow(memory))?.st_size as usize;
    let (mut done, end) = (0, length.min(to.len()));
    while done < end {
        match rustix::io::pread(borrow(memory), &mut to[done..end], done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(more) => done += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(length)
}

/// A descriptor of this crate's own that is closed at the end.
struct Hidden(RawFd);

impl Drop for Hidden {
    fn drop(&mut self) {
        // SAFETY: opened here, and known to no other code.
        unsafe { rustix::io::close(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsRawFd;

    #[test]
    fn a_question_is_read_as_it_was_written_and_cut_off_where_there_is_no_room() {
        let memory = memory_of(b"a question").unwrap();
        let mut room = [0; 4];
        assert_eq!(read_all(memory.as_raw_fd(), &mut room), Ok(10));
        assert_eq!(&room, b"a qu");
    }
}
