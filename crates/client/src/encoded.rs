//! Files whose bytes on the store are an encoded form of what they are: before a program gets one,
//! the node manager makes the bytes the original ones, see docs/design/encoded.md. So nothing else
//! in this crate knows of them.

use crate::asking::{LOOK, SUCCESSOR_TIMEOUT};
use crate::fd::{borrow, reopen};
use crate::session::Session;
use crate::waiting::Wait;
use forebay_pool::clock;
use forebay_pool::crash;
use forebay_pool::encoded::{is_marked, may_be_marked};
use forebay_pool::message::{BUSY, Message, Outcome};
use rustix::fd::{AsRawFd, RawFd};
use rustix::fs::{OFlags, Stat};
use rustix::io::Errno;

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
            let asked = Message::Restore { empties };
            let outcome = match self.ask(asked, file.as_raw_fd(), &wait) {
                Ok(Message::Exchanged { outcome }) => Ok(outcome),
                Ok(_) => Err(Errno::IO),
                Err(errno) => Err(errno),
            };
            match outcome {
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
}
