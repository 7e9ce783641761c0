//! The node manager's socket: descriptors from clients, requests from commands.

use crate::encoded::{Desk, Dropping, Task, Work};
use crate::group::records::with_record;
use crate::manager::jobs::{Beginning, Limits};
use crate::manager::leases::committed;
use crate::node::Node;
use crate::observe::trace::Recording;
use crate::organize::stage::orders::{Order, Orders};
use crate::organize::stage::predict::Told;
use crate::organize::stage::{Request, Requests};
use crate::store::beneath::Known;
use crate::store::descriptors::is_shortage;
use forebay_pool::clock::Timer;
use forebay_pool::encoded::{is_marked, may_be_marked};
use forebay_pool::layout::FileRecord;
use forebay_pool::layout::{FileFlags, job_state};
use forebay_pool::message::{MESSAGE_BYTES, Message, StageEnd};
use forebay_pool::stay::UNTIL_TOLD;
use forebay_pool::{FileId, Owner};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Connections at a time: each client process has one, each command one.
const CONNECTIONS_MAX: usize = 4096;
/// Messages of one peer in one round: more than fit in a socket's buffer, so that a round reads all
/// that was sent before it began.
const ROUND_MAX: usize = 4096;
/// How long a drain tries files that cannot be written before it gives up on them.
const GIVE_UP: Timer = Timer::seconds(3);

/// A command's end of the socket.
pub struct Connection(OwnedFd);

impl Connection {
    /// Connects to the node manager at `path`.
    ///
    /// # Errors
    /// The system's errno; `CONNREFUSED` or `NOENT` when no manager listens.
    pub fn to(path: &Path) -> Result<Connection, Errno> {
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Connection(socket))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The system's errno; `PIPE` when the manager is gone.
    pub fn send(&self, message: Message) -> Result<(), Errno> {
        rustix::net::send(&self.0, &message.encode(), SendFlags::NOSIGNAL).map(|_| ())
    }

    /// Sends a message that a descriptor comes with.
    ///
    /// # Errors
    /// The system's errno; `PIPE` when the manager is gone.
    pub fn send_with(&self, message: Message, sent: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let sent = [sent];
        control.push(SendAncillaryMessage::ScmRights(&sent));
        let packet = message.encode();
        let sent = rustix::net::sendmsg(
            &self.0,
            &[IoSlice::new(&packet)],
            &mut control,
            SendFlags::NOSIGNAL,
        )?;
        if sent == packet.len() { Ok(()) } else { Err(Errno::IO) }
    }

    /// Waits up to `timeout` for a message. `None` if none came.
    ///
    /// # Errors
    /// `PIPE` when the manager is gone; `PROTO` when it said something else.
    pub fn receive(&self, timeout: Duration) -> Result<Option<Message>, Errno> {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        let limit = rustix::event::Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos() as _,
        };
        match rustix::event::poll(&mut fds, Some(&limit)) {
            Ok(0) | Err(Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(errno) => return Err(errno),
        }
        let mut packet = [0u8; MESSAGE_BYTES];
        let (length, _) = rustix::net::recv(&self.0, &mut packet[..], RecvFlags::WAITALL)?;
        if length < MESSAGE_BYTES {
            return Err(Errno::PIPE);
        }
        Message::decode(&packet).map(Some).ok_or(Errno::PROTO)
    }
}

/// A drain that a process waits for.
struct Drain {
    asked: Instant,
    /// What was written up to here is waited for; others may go on writing.
    until: u32,
    /// Rounds of the control thread until then.
    round: u64,
    /// Where the manager is to end behind it: runs that had joined by then.
    stop: Option<u64>,
}

impl Drain {
    /// Files that could not be written are tried again at once: their store may be repaired.
    fn asked_now(node: &Node, stop: Option<u64>) -> Drain {
        for file in node.segment.files().touched() {
            node.retry_now(file);
        }
        let round = node.rounds.count();
        Drain { asked: Instant::now(), until: node.now(), round, stop }
    }

    /// Whether the control thread has not looked around since it was asked.
    fn is_new(&self, node: &Node) -> bool {
        node.rounds.count() == self.round
    }
}

struct Peer {
    /// Those that answer its orders have it, too.
    socket: Arc<OwnedFd>,
    /// The message that is being received: its first `received` bytes, and what came with them.
    packet: [u8; MESSAGE_BYTES],
    received: usize,
    sent: Vec<OwnedFd>,
    /// It tells of files: with their descriptors.
    registers: bool,
    holds: bool,
    /// For how long the manager is to stay after this connection, in nanoseconds.
    keep_ns: u64,
    drain: Option<Drain>,
    awaits_end: bool,
    beginning: Option<Beginning>,
    /// What the run that begins next was told that it may have.
    limits: Limits,
    recording: Option<Recording>,
}

impl Peer {
    fn new(socket: OwnedFd) -> Peer {
        let packet = [0; MESSAGE_BYTES];
        Peer {
            socket: Arc::new(socket),
            packet,
            received: 0,
            sent: Vec::new(),
            registers: false,
            holds: false,
            keep_ns: 0,
            drain: None,
            awaits_end: false,
            beginning: None,
            limits: Limits::default(),
            recording: None,
        }
    }

    /// The next message and the descriptors that came with it; `Ok(None)` when there is none yet.
    ///
    /// # Errors
    /// What to say of a peer that is gone (nothing) or talks rubbish.
    fn next(&mut self) -> Result<Option<(Message, Vec<OwnedFd>)>, Option<&'static str>> {
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let rest = &mut self.packet[self.received..];
            let received = rustix::net::recvmsg(
                &self.socket,
                &mut [IoSliceMut::new(rest)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            );
            match received {
                Ok(received) if received.bytes > 0 => self.received += received.bytes,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
                _ => return Err(None),
            }
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    self.sent.extend(fds);
                }
            }
            if self.sent.len() > 1 {
                return Err(Some("too many descriptors"));
            }
            if self.received == MESSAGE_BYTES {
                self.received = 0;
                let message = Message::decode(&self.packet).ok_or(Some("rubbish"))?;
                return Ok(Some((message, std::mem::take(&mut self.sent))));
            }
        }
    }
}

/// The manager's end.
pub(crate) struct Control {
    node: Arc<Node>,
    /// Blocks that clients will read.
    requests: Arc<Requests>,
    /// Blocks that commands want in a tier.
    orders: Arc<Orders>,
    /// Files whose bytes are to be exchanged.
    desk: Arc<Desk>,
    listener: OwnedFd,
    /// No descriptor is left for another connection: those that wait are looked at in each round,
    /// but begin none.
    is_full: bool,
    /// The manager ends by itself when no run needs it, unless it is asked to stay.
    ends_by_itself: bool,
    peers: Vec<Peer>,
    /// Runs that have joined so far. A manager that some have joined, and that none wants any more,
    /// ends.
    pub joined: u64,
    /// Descriptors came in the last round: more are probably on their way.
    pub is_busy: bool,
    owner: Owner,
}

impl Control {
    /// Listens at `path`, in place of a socket that a dead manager left.
    pub fn listen(
        node: &Arc<Node>,
        (requests, orders, desk): (&Arc<Requests>, &Arc<Orders>, &Arc<Desk>),
        path: &Path,
        ends_by_itself: bool,
    ) -> Result<Control, Errno> {
        let _ = std::fs::remove_file(path);
        let listener = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        rustix::net::bind(&listener, &SocketAddrUnix::new(path)?)?;
        rustix::fs::chmod(path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
        rustix::net::listen(&listener, 1024)?;
        Ok(Control {
            node: Arc::clone(node),
            requests: Arc::clone(requests),
            orders: Arc::clone(orders),
            desk: Arc::clone(desk),
            listener,
            is_full: false,
            ends_by_itself,
            peers: Vec::new(),
            joined: 0,
            is_busy: false,
            owner: Node::new_owner(),
        })
    }

    /// What to wait for.
    pub fn watched(&self) -> impl Iterator<Item = PollFd<'_>> {
        let listener =
            (!self.is_full).then(|| PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN));
        // Another round comes when there is room.
        let peers = self
            .peers
            .iter()
            .filter(|peer| !is_to_wait(&self.node, peer))
            .map(|peer| PollFd::from_borrowed_fd(peer.socket.as_fd(), PollFlags::IN));
        listener.into_iter().chain(peers)
    }

    /// Connections that keep the manager from ending.
    pub fn holders(&self) -> usize {
        self.peers.iter().filter(|peer| peer.holds).count()
    }

    /// Whether a process waits for a drain.
    pub fn is_draining(&self) -> bool {
        self.drains().next().is_some()
    }

    fn drains(&self) -> impl Iterator<Item = &Drain> {
        self.peers.iter().filter_map(|peer| peer.drain.as_ref())
    }

    /// Whether files are to be looked at before a drain begins: some have lost a name, and nothing
    /// of them need come to the store if that was the last one.
    pub fn wants_sweep(&self) -> bool {
        let is_unlinked = |file| self.node.segment.file(file).has(FileFlags::UNLINKED);
        self.drains().any(|drain| drain.is_new(&self.node))
            && self.node.segment.files().touched().any(is_unlinked)
    }

    /// Whether a drain was asked before the last look around, which it waits for, and not before
    /// the one before: it may be answered now.
    pub fn has_looked(&self) -> bool {
        let last = self.node.rounds.count();
        self.drains().any(|drain| drain.round + 1 == last)
    }

    /// Whether a run waits for its reservation.
    pub fn is_beginning(&self) -> bool {
        self.peers.iter().any(|peer| peer.beginning.is_some())
    }

    fn answer_beginnings(&mut self) {
        for peer in &mut self.peers {
            let answer = peer.beginning.as_mut().and_then(|job| job.go_on(&self.node, self.owner));
            if let Some(answer) = answer {
                peer.beginning = None;
                let _ = rustix::net::send(&peer.socket, &answer.encode(), SendFlags::NOSIGNAL);
            }
        }
    }

    /// Accepts, reads and answers what is there. When the manager shall stop, returns how many runs
    /// had joined when that was asked: one that has joined since wants it to go on.
    pub fn serve(&mut self) -> Option<u64> {
        self.accept();
        self.node.descriptors.share.note_processes(self.peers.len());
        let mut receiver = Receiver {
            node: &self.node,
            requests: &self.requests,
            orders: &self.orders,
            desk: &self.desk,
            owner: self.owner,
            ends_by_itself: self.ends_by_itself,
            has_descriptors: false,
            joined: self.joined,
        };
        let stays = &self.node.header().stays_until;
        self.peers.retain_mut(|peer| {
            let is_there = receiver.receive(peer);
            if !is_there {
                stays.extend(peer.keep_ns);
            }
            is_there
        });
        self.is_busy = receiver.has_descriptors;
        self.joined = receiver.joined;
        self.answer_beginnings();
        self.answer_drains()
    }

    /// Whether a process waits for the manager's end.
    pub fn is_end_awaited(&self) -> bool {
        self.peers.iter().any(|peer| peer.awaits_end)
    }

    /// Tells processes that wait for the manager's end what has become of it.
    pub fn answer_end(&mut self, answer: Message) {
        for peer in self.peers.iter_mut().filter(|peer| peer.awaits_end) {
            peer.awaits_end = false;
            let _ = rustix::net::send(&peer.socket, &answer.encode(), SendFlags::NOSIGNAL);
        }
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        self.is_full = false;
        for _ in 0..CONNECTIONS_MAX {
            let accept = || rustix::net::accept_with(&self.listener, flags);
            let socket = match self.node.descriptors.with_room(&self.node.segment, accept) {
                Ok(socket) => socket,
                Err(errno) => {
                    self.is_full = is_shortage(errno);
                    break;
                }
            };
            let ours = rustix::net::sockopt::socket_peercred(&socket)
                .is_ok_and(|peer| peer.uid == rustix::process::geteuid());
            if !ours {
                eprintln!("refused a connection of another user");
            } else if self.peers.len() < CONNECTIONS_MAX {
                self.peers.push(Peer::new(socket));
            } else {
                eprintln!("refused a connection: {CONNECTIONS_MAX} are open");
            }
        }
    }

    fn answer_drains(&mut self) -> Option<u64> {
        let node = Arc::clone(&self.node);
        let waiting = self.is_draining();
        // What was removed right before is forgotten first, see `is_new`. A run that waits for its
        // reservation needs room, of whichever job.
        let flushes = self.drains().any(|drain| !drain.is_new(&node)) || self.is_beginning();
        node.draining.store(flushes, Ordering::Release);
        if !waiting {
            return None;
        }
        node.want_work();
        let failing = failing_files(&node);
        let ending = crate::manager::jobs::is_any_ending(&node);
        let mut stop = None;
        for peer in &mut self.peers {
            let Some(drain) = &peer.drain else { continue };
            let bytes = node.dirty_bytes_until(drain.until);
            let waited = drain.asked.elapsed();
            let stuck = failing > 0
                && waited > GIVE_UP.as_duration()
                && all_pending_are_failing(&node)
                && (waited > crate::drain::FADING || !crate::drain::is_any_fading(&node));
            let done = bytes == 0
                && !crate::manager::housekeeping::is_any_littered(&node)
                && !node.has_actions_left();
            // What a process that has died left behind is taken back in a round.
            if !ending && !drain.is_new(&node) && (done || stuck) {
                let answer = Message::Drained { failing: failing as u32, bytes };
                forebay_pool::crash::point("message.answering");
                let _ = rustix::net::send(&peer.socket, &answer.encode(), SendFlags::NOSIGNAL);
                stop = stop.max(drain.stop);
                peer.drain = None;
            }
        }
        stop
    }
}

/// Files whose last flush failed.
pub(crate) fn failing_files(node: &Node) -> usize {
    node.segment
        .files()
        .touched()
        .filter(|&file| {
            let record = node.segment.file(file);
            record.has(FileFlags::FAILING)
                && !record.has(FileFlags::SCRATCH)
                && node.is_pending(file)
        })
        .count()
}

/// Whether nothing is left to flush but files that cannot be written now.
pub(crate) fn all_pending_are_failing(node: &Node) -> bool {
    node.segment.files().touched().all(|file| {
        let record = node.segment.file(file);
        record.has(FileFlags::FAILING) || record.has(FileFlags::SCRATCH) || !node.is_pending(file)
    })
}

/// Whether what a peer sends is left where it is: there is no room for more descriptors. Not while
/// a thread waits for one that may be on its way.
fn is_to_wait(node: &Node, peer: &Peer) -> bool {
    peer.registers && node.descriptors.are_too_many() && !node.rounds.are_awaited()
}

/// A round of reading from all peers.
struct Receiver<'a> {
    node: &'a Node,
    requests: &'a Requests,
    orders: &'a Orders,
    desk: &'a Desk,
    owner: Owner,
    ends_by_itself: bool,
    /// Some peer has sent a descriptor.
    has_descriptors: bool,
    /// Runs that have joined so far.
    joined: u64,
}

impl Receiver<'_> {
    /// A description of our own of the file that `sent` is to be of, to read it: the sender's may
    /// be open for writing, or locked. `None` if it is of another file.
    fn readable(&self, file: FileId, sent: Option<OwnedFd>) -> Option<OwnedFd> {
        let segment = &self.node.segment;
        let known = segment.header().has_file(file).then(|| Known::of(segment.file(file)))?;
        let fd = sent.filter(|fd| self.node.descriptors.same(&known, fd).is_some())?;
        // What it has is not what its readers are to see.
        let stat = rustix::fs::fstat(&fd).ok()?;
        if may_be_marked(&stat) && is_marked(&fd) {
            return None;
        }
        crate::store::beneath::reopen(&fd, OFlags::RDONLY).ok()
    }

    /// Reads what a peer has sent. False when it is gone or talks rubbish.
    fn receive(&mut self, peer: &mut Peer) -> bool {
        let node = self.node;
        // A client that never stops sending must not keep us from the others.
        for _ in 0..ROUND_MAX {
            if is_to_wait(node, peer) {
                return true;
            }
            let (message, mut sent) = match peer.next() {
                Ok(Some(next)) => next,
                Ok(None) => return true,
                Err(what) => {
                    if let Some(what) = what {
                        eprintln!("cut off a connection that sent {what}");
                    }
                    return false;
                }
            };
            forebay_pool::crash::point("message.received");
            self.has_descriptors |= !sent.is_empty();
            let done = match message {
                Message::Register { file, generation, to_open } => {
                    let (kept, segment) = (&node.descriptors, &node.segment);
                    peer.registers = true;
                    match (sent.pop(), to_open) {
                        (Some(fd), true) => {
                            kept.offer_to_open(segment, file, generation, fd, self.owner)
                        }
                        (Some(fd), false) => kept.offer(segment, file, generation, fd, self.owner),
                        (None, _) => {
                            kept.lost(segment, file, generation);
                            false
                        }
                    }
                }
                Message::Stage { file, .. } | Message::Expect { file, .. } => {
                    let fd = self.readable(file, sent.pop());
                    let bucket = node.segment.bucket_bytes() as u64;
                    if let Some(fd) = fd
                        && let Some(request) = Request::of(&message, fd, bucket)
                    {
                        self.requests.push(request);
                    }
                    true
                }
                Message::Read { file, .. } => {
                    let fd = self.readable(file, sent.pop());
                    if let Some(told) = fd.and_then(|fd| Told::of(&message, fd)) {
                        self.requests.told.push(told);
                    }
                    true
                }
                Message::StageIn { file, ticket, .. } => {
                    let fd = self.readable(file, sent.pop());
                    match fd.map(|fd| Order::of(&message, fd, node, &peer.socket)) {
                        Some(Some(order)) => {
                            self.orders.push(order);
                            true
                        }
                        Some(None) => false,
                        None => {
                            let end = StageEnd::Changed;
                            let refused = Message::StagedIn { ticket, blocks: 0, end, came: 0 };
                            let refused = refused.encode();
                            rustix::net::send(&peer.socket, &refused, SendFlags::NOSIGNAL).is_ok()
                        }
                    }
                }
                Message::Restore { .. } | Message::Replace { .. } => {
                    let task = match message {
                        Message::Replace { number } => Task::Replace(number),
                        Message::Restore { empties: true } => Task::Restore(Dropping::Bytes),
                        _ => Task::Restore(Dropping::Nothing),
                    };
                    let asker = Arc::downgrade(&peer.socket);
                    let work = sent.pop().map(|file| Work { task, file, asker });
                    let is_work = work.is_some();
                    work.into_iter().for_each(|work| self.desk.push(work));
                    is_work
                }
                Message::Hold => {
                    self.joined += u64::from(!peer.holds);
                    peer.holds = true;
                    let held = Message::Held.encode();
                    rustix::net::send(&peer.socket, &held, SendFlags::NOSIGNAL).is_ok()
                }
                Message::Keep { time_ns: UNTIL_TOLD } => {
                    if self.ends_by_itself {
                        node.header().stays_until.extend(UNTIL_TOLD);
                    }
                    true
                }
                Message::Keep { time_ns } => {
                    peer.keep_ns = if self.ends_by_itself { time_ns } else { 0 };
                    true
                }
                Message::Drain | Message::Stop => {
                    let stop = (message == Message::Stop).then_some(self.joined);
                    peer.drain = Some(Drain::asked_now(node, stop));
                    true
                }
                Message::Record => {
                    peer.recording = sent.pop().and_then(|fd| node.trace.record_to(fd).ok());
                    let good = peer.recording.is_some();
                    let begun = Message::Recording.encode();
                    good && rustix::net::send(&peer.socket, &begun, SendFlags::NOSIGNAL).is_ok()
                }
                Message::Group => {
                    let told = Message::Told.encode();
                    let path = |file| {
                        let path = |_, record: &FileRecord| node.shown_path(record);
                        with_record(&node.segment, self.owner, file, path)
                    };
                    let counts = (node.flushing(), committed(node));
                    sent.pop().is_some_and(|file| node.group.report_to(file, counts, path))
                        && rustix::net::send(&peer.socket, &told, SendFlags::NOSIGNAL).is_ok()
                }
                Message::GiveUp { node: gone } => {
                    let told = Message::Told.encode();
                    sent.pop().is_some_and(|file| node.group.give_up(gone, file))
                        && rustix::net::send(&peer.socket, &told, SendFlags::NOSIGNAL).is_ok()
                }
                Message::Analyse => {
                    let told = Message::Told.encode();
                    let answered = sent.pop().is_some_and(|file| node.actions.answer(file));
                    // What was at rest has something to look at now.
                    node.actions.wake();
                    node.want_work();
                    answered && rustix::net::send(&peer.socket, &told, SendFlags::NOSIGNAL).is_ok()
                }
                Message::AwaitEnd => {
                    peer.awaits_end = true;
                    peer.holds = false;
                    true
                }
                Message::Quota { tier, bytes } => {
                    let place = peer.limits.quotas.get_mut(usize::from(tier));
                    let is_tier = place.is_some();
                    place.into_iter().for_each(|place| *place = Some(bytes));
                    is_tier
                }
                Message::Cap { bytes, max_age_ms } => {
                    (peer.limits.max_unsafe, peer.limits.max_age_ms) = (bytes, max_age_ms);
                    true
                }
                Message::BeginJob { mode, trigger, reserve, recording } => {
                    let limits = std::mem::take(&mut peer.limits);
                    let begun =
                        rustix::net::sockopt::socket_peercred(&peer.socket).ok().and_then(|run| {
                            Beginning::of(
                                node,
                                run.pid.as_raw_nonzero().get() as u32,
                                (mode, trigger),
                                (reserve, limits),
                                recording,
                            )
                        });
                    let good = begun.is_some();
                    peer.beginning = begun;
                    good
                }
                Message::EndJob { number } => {
                    let run = rustix::net::sockopt::socket_peercred(&peer.socket).ok();
                    let run = run.map(|run| run.pid.as_raw_nonzero().get() as u32);
                    let theirs = node
                        .segment
                        .job(number)
                        .filter(|job| Some(job.pid.load(Ordering::Relaxed)) == run);
                    theirs.is_some_and(|job| {
                        job.ended.store(1, Ordering::Relaxed);
                        job.state.store(job_state::ENDING, Ordering::SeqCst);
                        true
                    })
                }
                Message::Held
                | Message::Recording
                | Message::Told
                | Message::GoesOn
                | Message::InUse
                | Message::Drained { .. }
                | Message::StagedIn { .. }
                | Message::Exchanged { .. }
                | Message::JobBegun { .. }
                | Message::NoRoom { .. }
                | Message::Refused
                | Message::Sync { .. }
                | Message::Lease { .. }
                | Message::Part { .. }
                | Message::Fetch { .. }
                | Message::Unkept { .. }
                | Message::Glimpse { .. } => {
                    eprintln!("cut off a connection that sent what does not belong there");
                    return false;
                }
            };
            if !done {
                let refused = Message::Refused.encode();
                let _ = rustix::net::send(&peer.socket, &refused, SendFlags::NOSIGNAL);
            }
        }
        true
    }
}
