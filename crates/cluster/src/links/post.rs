//! What other threads see of the links: messages to be sent, and how each link is.

use super::TICK;
use crate::clock::now_ms;
use crate::error::GroupError;
use crate::status::{LinkState, LinkStatus};
use forebay_fabric::{BODY_MAX, Down, HEADER_BYTES, Header, Outcome, RemoteSpan};
use forebay_membership::{Member, NodeId};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Messages that wait for a member at most, and their bytes with headers.
const MESSAGES_MAX: usize = 1024;
const BYTES_MAX: usize = 256 << 10;

/// What happens on the links of a group, in the order of each member.
#[derive(Debug)]
pub enum LinkEvent<'m> {
    /// There is a link to this member.
    Up(Member),
    /// There is none any more, or none could be made: what was sent and not answered may be lost.
    Down(Member),
    /// There is room for this member's messages again, of which one was refused with
    /// [`SendError::Full`].
    Room(Member),
    /// A member, or one that this node does not know to be one yet, has sent a message.
    Message {
        /// Who.
        from: Member,
        /// What stands before the body.
        header: &'m Header,
        /// At most 64 KiB.
        body: &'m [u8],
    },
    /// A [`Post::pull`] has ended: nothing writes to its slot any more.
    Pulled {
        /// As given to it.
        token: u64,
        /// How.
        outcome: Outcome,
    },
}

/// What is told of links. Called on the thread "group-links", which does nothing else meanwhile: it
/// has to return soon. It may send.
pub type LinkHandler = Box<dyn FnMut(&Post, LinkEvent<'_>) + Send>;

/// Why a message was not taken. It was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The receiver is no member of the newest view that this node has seen, or this node is none.
    NotMember,
    /// No link could be made to it; it is tried again in a while.
    Unreachable,
    /// So much waits for it already. [`LinkEvent::Room`] tells when there is room.
    Full,
    /// A body of more than 64 KiB.
    Length,
    /// A kind that links keep for themselves: 0, or one of the fabric's own.
    Kind,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::NotMember => "it is no member of the group's newest view",
            Self::Unreachable => "there is no link to it, and none can be made",
            Self::Full => "too much waits for it",
            Self::Length => "a message has at most 64 KiB",
            Self::Kind => "the kind is one that links keep for themselves",
        })
    }
}

impl std::error::Error for SendError {}

/// Sends messages to the members of a group. Clones send on the same links; any thread may.
#[derive(Clone)]
pub struct Post(Arc<Shared>);

struct Shared {
    book: Mutex<Book>,
    wake: OwnedFd,
}

/// What the thread and those that use it both know.
#[derive(Default)]
pub(crate) struct Book {
    /// The members of the newest view but this node, if that is one; none else.
    pub members: BTreeMap<NodeId, Entry>,
    /// They are others than when the thread last looked.
    pub has_changed: bool,
    /// A message has come since then, or a pull.
    pub has_mail: bool,
    /// What is to be pulled.
    pub pulls: Vec<Pull>,
    pub stops: bool,
    /// The thread sleeps until it is woken.
    sleeps: bool,
}

/// A member.
pub(crate) struct Entry {
    pub member: Member,
    /// Where it listens, if that is known.
    pub at: Option<SocketAddr>,
    pub queue: VecDeque<Waiting>,
    bytes: usize,
    /// One was refused.
    is_full: bool,
    pub shown: Shown,
}

/// Bytes of a member that are wanted.
pub(crate) struct Pull {
    pub of: Member,
    pub from: RemoteSpan,
    /// Where in this node's staging.
    pub to: u64,
    pub token: u64,
    pub within: Duration,
}

/// A message that waits.
pub(crate) struct Waiting {
    pub header: Header,
    pub body: Vec<u8>,
    pub since_ms: u64,
}

/// How a link is.
#[derive(Clone, Copy, Default)]
pub(crate) struct Shown {
    pub state: LinkState,
    pub since_ms: u64,
    pub round_trip: Option<Duration>,
    pub bytes: [u64; 2],
    pub rates: [u64; 2],
    pub last_down: Option<(u64, Down)>,
}

impl Book {
    fn has_news(&self) -> bool {
        self.has_changed || self.has_mail || self.stops
    }
}

impl Waiting {
    fn bytes(&self) -> usize {
        HEADER_BYTES + self.body.len()
    }
}

impl Entry {
    fn new(member: Member, at: Option<SocketAddr>) -> Self {
        let (queue, shown) = (VecDeque::new(), Shown::default());
        Self { member, at, queue, bytes: 0, is_full: false, shown }
    }

    /// Takes what waits. It makes room; whether a refused one is to be told of that.
    pub fn take(&mut self) -> (VecDeque<Waiting>, bool) {
        self.bytes = 0;
        (std::mem::take(&mut self.queue), std::mem::take(&mut self.is_full))
    }

    /// Puts back what could not be sent, before what has come meanwhile.
    pub fn put_back(&mut self, mut rest: VecDeque<Waiting>) {
        rest.append(&mut self.queue);
        self.queue = rest;
        self.bytes = self.queue.iter().map(Waiting::bytes).sum();
    }
}

impl Post {
    /// Without members, which come with the first view.
    pub(crate) fn new() -> Result<Self, GroupError> {
        let failed = |errno| GroupError::System(format!("no event descriptor: {errno}"));
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?;
        Ok(Self(Arc::new(Shared { book: Mutex::default(), wake })))
    }

    /// Hands a message to the links: it is sent as soon as there is a link with room, in the order
    /// of those to the same member. Sender and length are filled in.
    ///
    /// It may be lost with its link, which [`LinkEvent::Down`] tells; it waits for a link for 5 s
    /// at most. No wait, one lock, and where the thread sleeps one system call.
    ///
    /// # Errors
    /// See [`SendError`]: nothing was taken.
    pub fn send(&self, to: Member, header: &Header, body: &[u8]) -> Result<(), SendError> {
        if header.kind.is_own() || header.kind == TICK {
            return Err(SendError::Kind);
        }
        if body.len() > BODY_MAX {
            return Err(SendError::Length);
        }
        let mut book = self.book();
        let entry = book.members.get_mut(&to.node).filter(|entry| entry.member == to);
        let entry = entry.ok_or(SendError::NotMember)?;
        if entry.shown.state == LinkState::Waiting {
            return Err(SendError::Unreachable);
        }
        let bytes = HEADER_BYTES + body.len();
        if entry.queue.len() >= MESSAGES_MAX || entry.bytes + bytes > BYTES_MAX {
            entry.is_full = true;
            return Err(SendError::Full);
        }
        entry.bytes += bytes;
        let (header, body, since_ms) = (*header, body.to_vec(), now_ms());
        entry.queue.push_back(Waiting { header, body, since_ms });
        book.has_mail = true;
        self.wake(&mut book);
        Ok(())
    }

    /// Has bytes of a member's region copied into this node's [`crate::Staging`], from `to` on.
    /// Whatever becomes of it, [`LinkEvent::Pulled`] tells its end once, unless the group stops.
    pub fn pull(&self, of: Member, from: RemoteSpan, to: u64, token: u64, within: Duration) {
        let mut book = self.book();
        book.pulls.push(Pull { of, from, to, token, within });
        book.has_mail = true;
        self.wake(&mut book);
    }

    /// The other members of the newest view; none if this node is no member of it.
    pub fn members(&self) -> Vec<Member> {
        self.book().members.values().map(|entry| entry.member).collect()
    }

    /// The round trip of the link to a member, the shortest of the last eight that were measured.
    pub fn round_trip(&self, of: Member) -> Option<Duration> {
        let book = self.book();
        let entry = book.members.get(&of.node).filter(|entry| entry.member == of)?;
        entry.shown.round_trip
    }

    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.0.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What wakes the thread.
    pub(crate) fn wake_fd(&self) -> &OwnedFd {
        &self.0.wake
    }

    /// Wakes the thread, if it sleeps.
    fn wake(&self, book: &mut Book) {
        if std::mem::take(&mut book.sleeps) {
            // One that is full wakes, too.
            let _ = rustix::io::write(&self.0.wake, &1_u64.to_ne_bytes());
        }
    }

    /// Whether there is anything for the thread to do.
    pub(crate) fn has_news(&self) -> bool {
        self.book().has_news()
    }

    /// Whether the thread may sleep: what it was woken for is gone, and nothing has come since.
    pub(crate) fn may_sleep(&self) -> bool {
        let mut book = self.book();
        book.sleeps = !book.has_news();
        book.sleeps
    }

    /// The thread does not sleep any more: what it sends itself needs no wake.
    pub(crate) fn is_awake(&self) {
        self.book().sleeps = false;
    }

    /// These are the other members now, and where they are.
    pub(crate) fn set_members(&self, members: Vec<(Member, Option<SocketAddr>)>) {
        let mut book = self.book();
        let mut before = std::mem::take(&mut book.members);
        for (member, at) in members {
            let known = before.remove(&member.node).filter(|entry| entry.member == member);
            let entry = known.unwrap_or_else(|| Entry::new(member, at));
            book.members.insert(member.node, Entry { at, ..entry });
        }
        book.has_changed = true;
        self.wake(&mut book);
    }

    /// Waits until nothing waits for a link that is up, or that may come up, and the thread sleeps,
    /// so that all of it went into the sockets; not longer than this.
    pub(crate) fn settle(&self, limit: Duration) {
        let until_ms = now_ms() + limit.as_millis() as u64;
        let is_settled = || {
            let book = self.book();
            let is_out =
                |entry: &Entry| entry.queue.is_empty() || entry.shown.state == LinkState::Waiting;
            book.sleeps && book.members.values().all(is_out)
        };
        while !is_settled() && now_ms() < until_ms {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn stop(&self) {
        let mut book = self.book();
        book.stops = true;
        book.members.clear();
        self.wake(&mut book);
    }

    pub(crate) fn status(&self, now_ms: u64) -> Vec<LinkStatus> {
        let since = |at_ms: u64| Duration::from_millis(now_ms.saturating_sub(at_ms));
        let book = self.book();
        let of = |entry: &Entry| {
            let Shown { state, since_ms, round_trip, bytes, rates, last_down } = entry.shown;
            LinkStatus {
                peer: entry.member,
                state,
                since: since(since_ms),
                round_trip,
                bytes_in: bytes[0],
                bytes_out: bytes[1],
                rate_in: rates[0],
                rate_out: rates[1],
                last_down: last_down.map(|(at_ms, why)| (since(at_ms), why)),
                waiting: entry.queue.len(),
            }
        };
        book.members.values().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_fabric::Kind;

    fn header(kind: u16) -> Header {
        Header { kind: Kind(kind), ..Header::default() }
    }

    #[test]
    fn what_cannot_be_sent_is_refused_at_once() {
        let post = Post::new().unwrap();
        let (peer, later) = (Member::new(1, 1), Member::new(1, 2));
        assert_eq!(post.send(peer, &header(1), b""), Err(SendError::NotMember));
        post.set_members(vec![(peer, None)]);
        assert_eq!(post.send(peer, &header(1), b""), Ok(()));
        assert_eq!(post.send(later, &header(1), b""), Err(SendError::NotMember));
        assert_eq!(post.send(peer, &header(0), b""), Err(SendError::Kind));
        assert_eq!(post.send(peer, &header(Kind::OWN.0), b""), Err(SendError::Kind));
        assert_eq!(post.send(peer, &header(1), &vec![0; BODY_MAX + 1]), Err(SendError::Length));
        post.book().members.get_mut(&peer.node).unwrap().shown.state = LinkState::Waiting;
        assert_eq!(post.send(peer, &header(1), b""), Err(SendError::Unreachable));
        // Another life begins with nothing.
        post.set_members(vec![(later, None)]);
        assert_eq!(post.send(peer, &header(1), b""), Err(SendError::NotMember));
        assert!(post.book().members[&later.node].queue.is_empty());
        post.stop();
        assert_eq!(post.send(later, &header(1), b""), Err(SendError::NotMember));
    }

    #[test]
    fn queues_are_bounded_by_count_and_bytes() {
        let post = Post::new().unwrap();
        let peer = Member::new(1, 1);
        post.set_members(vec![(peer, None)]);
        for (body, most) in [(0, MESSAGES_MAX), (BODY_MAX, 3)] {
            let body = vec![7; body];
            let mut taken = 0;
            while post.send(peer, &header(1), &body) == Ok(()) {
                taken += 1;
            }
            assert_eq!(taken, most);
            assert_eq!(post.send(peer, &header(1), &body), Err(SendError::Full));
            let mut book = post.book();
            let entry = book.members.get_mut(&peer.node).unwrap();
            let (mut queue, is_full) = entry.take();
            assert!(is_full && queue.len() == most);
            // What is put back counts, and comes first.
            queue.truncate(2);
            entry.put_back(queue);
            assert_eq!((entry.queue.len(), entry.bytes), (2, 2 * (HEADER_BYTES + body.len())));
            let (_, is_full) = entry.take();
            assert!(!is_full);
        }
    }

    #[test]
    fn the_thread_does_not_sleep_over_what_has_come() {
        let post = Post::new().unwrap();
        let peer = Member::new(1, 1);
        assert!(post.may_sleep());
        post.set_members(vec![(peer, None)]);
        assert!(post.has_news() && !post.may_sleep());
        post.book().has_changed = false;
        assert!(!post.has_news());
        assert!(post.may_sleep());
        post.send(peer, &header(1), b"").unwrap();
        let mut count = [0; 8];
        assert_eq!(rustix::io::read(post.wake_fd(), &mut count), Ok(8));
        assert!(!post.may_sleep());
        post.book().has_mail = false;
        assert!(post.may_sleep());
        // Woken by something else, it needs no wake.
        post.is_awake();
        post.send(peer, &header(1), b"").unwrap();
        assert_eq!(rustix::io::read(post.wake_fd(), &mut count), Err(rustix::io::Errno::AGAIN));
    }
}
