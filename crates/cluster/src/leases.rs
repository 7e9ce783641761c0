//! The directory of leases: what the node manager asks for and has done comes in, what it is to do
//! goes out, and messages go between members. It is a [`Strand`]: an answer does not wait for a
//! thread that has to be woken.

use crate::clock::now_ms;
use crate::error::GroupError;
use crate::group::{Parted, Shared};
use crate::links::LinkEvent;
use crate::strand::{Strand, Taker};
use forebay_directory::{
    Body, Directory, Effect, Facts, Level, Message, Object, Of, Run, Sized, Status, Terms, Tuning,
    Why,
};
use forebay_fabric::{Header, Kind};
use forebay_membership::{FileId, GivenUp, Incarnation, Member, Rank};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// Messages about leases.
const LEASES: Kind = Kind(1);

/// Messages of peers that wait for the thread at most: more are dropped, and sent again.
const MESSAGES_MAX: usize = 1 << 14;

/// How often a thread that has something to wait for looks what this node is in its group.
const LOOK: Duration = Duration::from_millis(50);

/// What the node manager asks of the group, or has done for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseCommand {
    /// A pool that was found has this of a file. Before [`LeaseCommand::Begin`].
    Adopt {
        /// Of what.
        object: Object,
        /// What it has.
        level: Level,
    },
    /// All that was found is said.
    Begin,
    /// Programs wait for this. What this node has of other files that have had the inode is
    /// released: the record is this file's by now.
    Want {
        /// Of what.
        object: Object,
        /// How much of it.
        level: Level,
        /// What else would do, or is wanted with it.
        terms: Terms,
    },
    /// What [`LeaseOrder::Reduce`] asked for is done.
    Reduced {
        /// Of what.
        object: Object,
        /// What is left.
        level: Level,
        /// What the store's file is now.
        facts: Option<Facts>,
    },
    /// Nothing is kept of it, and nothing wanted.
    Release {
        /// Of what.
        object: Object,
    },
    /// Nothing is kept of other files than these, and nothing wanted.
    ReleaseOthers {
        /// The files.
        kept: BTreeSet<FileId>,
    },
    /// A program waits for the size of a file that this node may not have. The answer is
    /// [`LeaseOrder::Glimpsed`], once, however often it is asked meanwhile.
    Glimpse {
        /// Of which file.
        file: FileId,
        /// Comes back with the answer.
        number: u64,
    },
    /// The answer to [`LeaseOrder::Measure`].
    Sized {
        /// As it came.
        object: Object,
        /// As it came.
        token: (Member, u64),
        /// `None` if the store has all that was acknowledged.
        facts: Option<Facts>,
    },
}

/// What the group has decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseOrder {
    /// Programs may do this.
    Granted {
        /// Of what.
        object: Object,
        /// What they may.
        level: Level,
        /// What others know of the file's size, if they know more than the store.
        facts: Option<Facts>,
    },
    /// This node, a file's home, has told another one just now that it may read it.
    Reads {
        /// The file.
        file: FileId,
        /// Who may.
        by: Member,
    },
    /// These parts were granted, too, right after the one that was wanted.
    Ahead {
        /// Of which file.
        file: FileId,
        /// What programs may do with them.
        level: Level,
        /// In order.
        runs: Vec<Run>,
    },
    /// What programs wait for is not to be had.
    Refused {
        /// Of what.
        object: Object,
        /// Why.
        why: Why,
    },
    /// Give it back but for this.
    Reduce {
        /// Of what.
        object: Object,
        /// What may be kept.
        to: Level,
        /// Of a whole: to share it is as good.
        may_share: bool,
    },
    /// Say how large a file is.
    Measure {
        /// The file, or its size.
        object: Object,
        /// To come back.
        token: (Member, u64),
    },
    /// The answer to [`LeaseCommand::Glimpse`].
    Glimpsed {
        /// As it came.
        number: u64,
        /// What is known.
        known: Sized,
    },
    /// Others were given this while this node was out of the group: what it has of it may reach
    /// neither programs nor the store.
    Lost {
        /// Of what.
        object: Object,
    },
    /// This node has not looked for too long, or is in no view: what it has beside others may be
    /// out of date, and no program may use it.
    Unsure,
    /// This node was given up with all that it has: others may be given that.
    GivenUp,
    /// It has looked, and has this still, as before.
    Sure {
        /// The file.
        file: FileId,
    },
}

/// Whether what a pool has may be flushed: others are given the files of a node that was given up,
/// and what that has is older.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushing {
    /// What begins before this moment of CLOCK_BOOTTIME, in milliseconds.
    Until(u64),
    /// Nothing, from now on.
    GivenUp,
}

/// What is told when a pool may be flushed. Called by the thread "group"; does not wait.
pub type ToldFlushing = Box<dyn Fn(Flushing) + Send + Sync>;

/// What the directory is told.
pub(crate) enum Event {
    Command(LeaseCommand),
    /// A message of another member, as it came.
    Message(Member, Vec<u8>),
    /// There may be a newer view, or this node may be another thing in it.
    Look,
    Status(Sender<Status>),
}

/// How others reach the directory of this node, also before that begins. May be used by several
/// threads.
#[derive(Clone, Default)]
pub struct LeaseDesk {
    strand: Arc<Strand<Leases>>,
    /// Messages of peers that wait.
    messages: Arc<AtomicUsize>,
}

impl LeaseDesk {
    /// Never waits, and may call [`Sharing::order`]: the caller is inside no file. After the end it
    /// does nothing.
    pub fn tell(&self, command: LeaseCommand) {
        self.strand.dispatch(Event::Command(command));
    }

    /// Counts of leases. `None` if the directory does not answer in a second, or has ended.
    pub fn status(&self) -> Option<Status> {
        let (answer, answered) = channel();
        self.strand.post(Event::Status(answer));
        answered.recv_timeout(Duration::from_secs(1)).ok()
    }

    /// Takes what the links have brought, if that is about leases.
    pub(crate) fn takes(&self, event: &LinkEvent<'_>) -> bool {
        match event {
            LinkEvent::Message { from, header, body } if header.kind == LEASES => {
                let is_full = self.messages.load(Ordering::Relaxed) >= MESSAGES_MAX;
                if !is_full {
                    self.messages.fetch_add(1, Ordering::Relaxed);
                    self.strand.dispatch(Event::Message(*from, body.to_vec()));
                }
                true
            }
            _ => false,
        }
    }

    /// The caller may hold what the group shares.
    pub(crate) fn look(&self) {
        self.strand.post(Event::Look);
    }

    /// The life of the thread "group-leases".
    pub(crate) fn keep(&self, leases: Leases) {
        self.strand.keep(leases);
    }

    pub(crate) fn stop(&self) {
        self.strand.end();
    }

    /// There is no group, and will be none: what waits for it is dropped.
    pub fn abandon(&self) {
        self.strand.abandon();
    }
}

/// What a group needs to share files.
pub struct Sharing {
    /// How the directory is reached.
    pub desk: LeaseDesk,
    /// The life of this node whose pool it goes on with, if it does not begin with an empty one.
    pub oldest: Option<Incarnation>,
    /// Called with the life that begins, before it can be granted anything.
    pub begun: Box<dyn FnOnce(Incarnation) + Send>,
    /// Called with each moment until which the pool may be flushed, on the group's thread; does not
    /// wait.
    pub flushing: ToldFlushing,
    /// Periods and sizes.
    pub tuning: Tuning,
    /// Called with each decision, by the thread that has brought it about, which may be one that
    /// has told the desk something; does not wait.
    pub order: Box<dyn FnMut(LeaseOrder) + Send>,
}

/// See the module.
pub(crate) struct Leases {
    directory: Directory,
    shared: Arc<Shared>,
    /// Messages of peers that wait.
    messages: Arc<AtomicUsize>,
    /// All that was found is said.
    has_begun: bool,
    /// The newest view that the directory knows.
    seen: u32,
    is_fenced: bool,
    /// This node was given up, and has been told so.
    is_given_up: bool,
    /// What was given up so long ago that others may have it.
    forgotten: BTreeSet<GivenUp>,
    /// What programs wait for, by the directory's tokens.
    glimpses: BTreeMap<u64, u64>,
    order: Box<dyn FnMut(LeaseOrder) + Send>,
}

impl Taker for Leases {
    type Event = Event;

    fn take_at_once(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::Look | Event::Status(_) | Event::Command(LeaseCommand::Begin) => Some(event),
            _ if !self.is_as_seen() => Some(event),
            _ => {
                self.take_seen(event);
                None
            }
        }
    }

    fn take(&mut self, event: Event) {
        // Before what has come: as home it acts only while it may.
        if self.has_begun {
            self.look();
        }
        self.take_seen(event);
    }

    fn look_around(&mut self) {
        if self.has_begun {
            self.look();
        }
        self.directory.timer(now_ms());
        self.carry_out();
    }

    fn due(&self) -> Option<Instant> {
        self.wait().map(|wait| Instant::now() + wait)
    }

    fn end(&mut self) {
        self.leave();
    }
}

impl Leases {
    /// Whether a look would find nothing new: what has changed may be about all files. Not where
    /// the thread "group" is at it, which may take long.
    fn is_as_seen(&self) -> bool {
        if !self.has_begun {
            return true;
        }
        let is_fenced = self.shared.rank() != Rank::Inside;
        if is_fenced != self.is_fenced
            || self.shared.is_given_up() != self.is_given_up
            || !self.directory.awaited().is_empty()
        {
            return false;
        }
        let Some(state) = self.shared.try_lock() else { return false };
        state.views.view().is_none_or(|view| view.number <= self.seen)
            && state.views.lost().all(|seat| self.directory.has_gone(seat))
    }

    fn take_seen(&mut self, event: Event) {
        match event {
            Event::Command(LeaseCommand::Begin) => {
                self.has_begun = true;
                self.look();
            }
            Event::Command(command) => self.command(command),
            Event::Message(from, body) => {
                self.messages.fetch_sub(1, Ordering::Relaxed);
                self.message(from, &body);
            }
            Event::Status(answer) => _ = answer.send(self.directory.status()),
            Event::Look => {}
        }
        self.directory.timer(now_ms());
        self.carry_out();
    }

    /// Of a node that has a life in its group.
    pub fn new(sharing: Sharing, shared: Arc<Shared>, me: Member) -> Self {
        let Sharing { desk, oldest, begun, tuning, order, .. } = sharing;
        begun(me.incarnation);
        Self {
            directory: Directory::new(me, oldest.unwrap_or(me.incarnation), tuning),
            shared,
            messages: desk.messages,
            has_begun: false,
            seen: 0,
            is_fenced: true,
            is_given_up: false,
            forgotten: BTreeSet::new(),
            glimpses: BTreeMap::new(),
            order,
        }
    }

    /// For how long nothing is to be done, if nothing comes.
    fn wait(&self) -> Option<Duration> {
        let due_ms = self.directory.next_timer().map(|at_ms| at_ms.saturating_sub(now_ms()));
        let due = due_ms.map(Duration::from_millis);
        // Time alone ends these.
        let gives_up =
            self.shared.try_lock().is_none_or(|state| state.views.is_giving_up(now_ms()));
        let looks = self.is_fenced || gives_up || !self.directory.awaited().is_empty();
        let fence = self.shared.acts_until_ms().map(|at_ms| at_ms.saturating_sub(now_ms()));
        let fence = fence.filter(|_| !looks).map(Duration::from_millis);
        due.into_iter().chain(looks.then_some(LOOK)).chain(fence).min()
    }

    /// Tells the directory what this node is in its group now.
    fn look(&mut self) {
        let now_ms = now_ms();
        let directory = &mut self.directory;
        let was_fenced = self.is_fenced;
        self.is_fenced = self.shared.rank() != Rank::Inside;
        if self.is_fenced && !was_fenced {
            (self.order)(LeaseOrder::Unsure);
        }
        directory.fenced(self.is_fenced, now_ms);
        if self.shared.is_given_up() {
            if !std::mem::replace(&mut self.is_given_up, true) {
                (self.order)(LeaseOrder::GivenUp);
            }
            return;
        }
        let mut state = self.shared.lock();
        if let Some(view) = state.views.view().filter(|view| view.number > self.seen) {
            self.seen = view.number;
            directory.view(view, now_ms);
        }
        for seat in directory.awaited() {
            if state.views.has_left(seat.member) {
                directory.ended(seat.member, now_ms);
            } else if state.views.may_take_over(seat, now_ms) {
                directory.succeeded(seat, now_ms);
            }
        }
        for given in state.views.forgotten(now_ms) {
            if self.forgotten.insert(given) {
                directory.give_up(given, now_ms);
            }
        }
        let is_newest = state.views.view().is_some_and(|view| view.number == self.seen);
        let lost = state.views.lost().filter(|seat| is_newest && !directory.has_gone(*seat));
        for seat in lost.collect::<Vec<_>>() {
            state.views.came_back(seat);
        }
        drop(state);
        if was_fenced && !self.is_fenced {
            let held = directory.all_held().into_iter();
            let is_sure = |(object, level): &(Object, Level)| directory.usable(*object) == *level;
            for (object, _) in held.filter(|(object, _)| object.of == Of::Whole).filter(is_sure) {
                (self.order)(LeaseOrder::Sure { file: object.file });
            }
        }
    }

    fn command(&mut self, command: LeaseCommand) {
        let (directory, now_ms) = (&mut self.directory, now_ms());
        match command {
            LeaseCommand::Begin => {}
            LeaseCommand::Adopt { object, level } => directory.adopt(object, level),
            LeaseCommand::Want { object, level, terms } => {
                directory.want(object, level, terms, now_ms);
            }
            LeaseCommand::Reduced { object, level, facts } => {
                directory.reduced(object, level, facts, now_ms);
            }
            LeaseCommand::Release { object } => directory.release(object, now_ms),
            LeaseCommand::ReleaseOthers { kept } => directory.release_others(&kept, now_ms),
            LeaseCommand::Sized { object, token, facts } => {
                directory.sized(object, token, facts, now_ms);
            }
            LeaseCommand::Glimpse { file, number } => {
                if !self.glimpses.values().any(|asked| *asked == number) {
                    self.glimpses.insert(directory.glimpse(file, now_ms), number);
                }
            }
        }
    }

    fn message(&mut self, from: Member, body: &[u8]) {
        match Message::decode(body) {
            Ok(message) => {
                let ends = message.body == Body::Farewell;
                self.directory.message(from, message, now_ms());
                if ends {
                    self.shared.note_parted(Parted::Left(from));
                }
            }
            Err(error) => {
                let text = format!("a message about leases of node {}: {error}", from.node.0);
                self.shared.tell(&GroupError::System(text));
            }
        }
    }

    /// The manager ends. What it holds it has given back, or another life goes on with: then the
    /// folder does not say that it has ended.
    fn leave(&mut self) {
        match self.directory.farewell() {
            true => self.carry_out(),
            false => self.shared.stay(),
        }
    }

    fn carry_out(&mut self) {
        let mut buffer = Vec::new();
        for effect in self.directory.effects() {
            let order = match effect {
                Effect::Send(to, message) => {
                    buffer.clear();
                    message.encode(&mut buffer);
                    // What is lost is sent again.
                    let header = Header { kind: LEASES, view: self.seen, ..Header::default() };
                    let _ = self.shared.post.send(to, &header, &buffer);
                    match message.body {
                        Body::Granted {
                            object: Object { file, of: Of::Whole },
                            level: Level::Read | Level::Borrowed,
                            ..
                        } => LeaseOrder::Reads { file, by: to },
                        _ => continue,
                    }
                }
                // The next look is T/8 away at most.
                Effect::Behind { .. } => continue,
                Effect::Glimpsed { token, sized: known, .. } => {
                    let Some(number) = self.glimpses.remove(&token) else { continue };
                    LeaseOrder::Glimpsed { number, known }
                }
                Effect::Granted { object, level, facts } => {
                    LeaseOrder::Granted { object, level, facts }
                }
                Effect::Ahead { file, level, runs } => LeaseOrder::Ahead { file, level, runs },
                Effect::Refused { object, why } => LeaseOrder::Refused { object, why },
                Effect::Reduce { object, to, may_share } => {
                    LeaseOrder::Reduce { object, to, may_share }
                }
                Effect::Measure { object, token } => LeaseOrder::Measure { object, token },
                Effect::Lost { object } => LeaseOrder::Lost { object },
            };
            (self.order)(order);
        }
    }
}
