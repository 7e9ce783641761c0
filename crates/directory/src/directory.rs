//! The directory of one node: what it knows, what the shell calls, and what it asks for.

use crate::changes::{Gone, Recall};
use crate::holder::{Glimpse, Grant, Held, Reducing};
use crate::home::{Peek, Record};
use crate::level::{Facts, Level, Sized, Tuning, Why};
use crate::message::{Body, KINDS, Message};
use crate::object::{Object, Run};
use crate::partitions::Partitions;
use crate::roll::{Roll, Word};
use forebay_membership::{FileId, Incarnation, Member, NodeId, Partition, Places, Seat, View};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// What the shell is to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Send this; it may be lost, late or come twice.
    Send(Member, Message),
    /// Programs of this node may use this: at least what was wanted, or, of a whole that may be
    /// [shared](crate::Terms::may_share), its parts. With `Direct`, flush and drop what is kept of
    /// it, which is clean, before they do. The facts are what the last writer left, where that is
    /// known; else they are the store's. Those of a whole that is shared say nothing. Those of a
    /// size that is shared are the least that it has: it grows only while nodes share the file,
    /// and so they are for a node that shared the file and has the whole to write now, if what it
    /// made of the size itself is not more.
    Granted {
        /// Of what.
        object: Object,
        /// What may be done.
        level: Level,
        /// Size and time of the file.
        facts: Option<Facts>,
    },
    /// These parts, too, which were asked for ahead: right after [`Effect::Granted`] of the first.
    Ahead {
        /// The file.
        file: FileId,
        /// What may be done.
        level: Level,
        /// In order.
        runs: Vec<Run>,
    },
    /// Bring this down: flush it, keep programs from more, drop what may not be kept; then call
    /// [`Directory::reduced`].
    Reduce {
        /// Of what.
        object: Object,
        /// What may be kept.
        to: Level,
        /// Of a whole that this node writes: it may go on sharing it. What is not flushed by then
        /// needs a lease of its part, or of the size; these can be had meanwhile.
        may_share: bool,
    },
    /// Say by [`Directory::sized`] which size the file has here, of all that was acknowledged.
    Measure {
        /// The whole, or the size, which this node has.
        object: Object,
        /// Comes back with the answer.
        token: (Member, u64),
    },
    /// The answer to [`Directory::glimpse`].
    Glimpsed {
        /// The file.
        file: FileId,
        /// What that call returned.
        token: u64,
        /// What is known.
        sized: Sized,
    },
    /// What was wanted is not to be had.
    Refused {
        /// Of what.
        object: Object,
        /// Why.
        why: Why,
    },
    /// Others have been given this while this node was out of the group: what it has of it must
    /// reach neither programs nor the store. Set it aside: of a whole all parts and the size, too;
    /// of a size what this node made of it.
    Lost {
        /// Of what.
        object: Object,
    },
    /// There is a newer view than this node's: look at once.
    Behind {
        /// Its number.
        view: u32,
    },
}

/// Files, sizes and parts that may be lost are named by [`Status`] up to so many.
pub const LOST_NAMED: usize = 64;

/// Counts, for status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Status {
    /// The view, if this node is in one.
    pub view: Option<u32>,
    /// It grants nothing, as home, until it has looked.
    pub is_fenced: bool,
    /// Leases of others and its own that it knows as home, by level as of [`Level::ALL`].
    pub granted: [usize; Level::ALL.len()],
    /// Leases that it has, and what it wants, in the same way.
    pub held: [usize; Level::ALL.len()],
    /// Wants without an answer, and the deadline of the first in the caller's milliseconds.
    pub wants: (usize, Option<u64>),
    /// Wants of all nodes that wait here, at their home.
    pub waits: usize,
    /// Leases that it has asked to be given back, as home.
    pub revoking: usize,
    /// Leases that it is giving back.
    pub reducing: usize,
    /// Partitions of which it is the home, and those of them in which it grants nothing until all
    /// members have said what they hold.
    pub partitions: (usize, usize),
    /// Members that have not said so.
    pub silent: Vec<Member>,
    /// Nodes that have gone and whose leases hold until they are succeeded.
    pub awaited: Vec<Seat>,
    /// Files, sizes and parts that a node that has gone may have written, as home, by node.
    pub lost: BTreeMap<NodeId, usize>,
    /// The first of these, at most [`LOST_NAMED`].
    pub lost_objects: Vec<(NodeId, Object)>,
    /// Partitions in which all files that no member holds may have been, as home, by node.
    pub doubted: BTreeMap<NodeId, usize>,
    /// Messages sent, by kind: see [`KINDS`].
    pub sent: [u64; KINDS.len()],
    /// Messages received, by kind.
    pub received: [u64; KINDS.len()],
    /// Those received of another view, of no member, or that made no sense.
    pub dropped: u64,
}

/// A view, and the homes that follow from it. A copy shares both.
#[derive(Clone, Debug)]
pub struct Group {
    pub(crate) view: Arc<View>,
    /// The seats of the first node of each partition, and of the second.
    places: Arc<Vec<[Option<Seat>; 2]>>,
}

impl PartialEq for Group {
    fn eq(&self, other: &Self) -> bool {
        self.view == other.view
    }
}

impl Eq for Group {}

impl Hash for Group {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // A number has one view.
        self.view.number.hash(state);
    }
}

impl Group {
    /// Work: 4096 hashes for each member.
    pub fn new(view: View) -> Self {
        let nodes: Vec<NodeId> = view.seats.iter().map(|seat| seat.member.node).collect();
        let places = Places::of(&nodes);
        let seats_of = |partition| {
            let of = places.of_partition(partition);
            [0, 1].map(|place| of.get(place).and_then(|node| view.seat_of(*node)))
        };
        let places = Arc::new(Partition::all().map(seats_of).collect());
        Self { view: Arc::new(view), places }
    }

    /// The seat of the first node of a partition, or of the second.
    pub(crate) fn place(&self, partition: Partition, place: usize) -> Option<Seat> {
        self.places[usize::from(partition.number())][place]
    }

    pub(crate) fn has(&self, seat: Seat) -> bool {
        self.view.seat_of(seat.member.node) == Some(seat)
    }
}

/// What is to be done at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Task {
    Want(Object),
    Glimpse(u64),
    Revoke(Object),
    Direct(Object),
    Peek(u64),
    Recall,
    Roll,
}

/// What one node knows of leases: those it has, and those it has given as home. Not for several
/// threads at once: the shell calls it from one, or under a lock. Times are milliseconds of a
/// clock that does not go back.
///
/// Each method may add [effects](Directory::effects), which the shell carries out in their order
/// before it calls another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Directory {
    pub(crate) me: Member,
    pub(crate) oldest: Incarnation,
    pub(crate) tuning: Tuning,
    pub(crate) is_fenced: bool,
    /// The newest view that it has seen.
    pub(crate) group: Option<Group>,
    /// When it has seen that.
    pub(crate) viewed_ms: u64,
    /// What it has in it.
    pub(crate) seat: Option<Seat>,
    /// Members that views have left out.
    pub(crate) gone: BTreeMap<Seat, Gone>,
    /// Of the seats that the view names as lost those whose nodes have come back with all they had.
    pub(crate) back: BTreeSet<Seat>,
    /// Lives that have said that they end with nothing.
    pub(crate) ended: BTreeSet<Member>,
    /// Nodes that were given up: everything up to this life and this view.
    pub(crate) given_up: BTreeMap<NodeId, (Incarnation, u32)>,

    /// Partitions of which it is the home and knows all leases.
    pub(crate) thawed: Partitions,
    /// Those of which it is the home and does not.
    pub(crate) frozen: Partitions,
    /// Those that were frozen while one that has gone could still act.
    pub(crate) cautious: Partitions,
    /// Those of which it is the second place and knows what the home writes.
    pub(crate) witnessed: Partitions,
    pub(crate) records: BTreeMap<Object, Record>,
    /// The records by their last grant.
    pub(crate) order: BTreeSet<(u64, Object)>,
    /// Those of which it was the home, knew all leases, and told no other home since.
    pub(crate) former: Partitions,
    /// Those of which it has told another home in this view.
    pub(crate) handed: Partitions,
    /// Frozen ones of which it may have been the home before without knowing all leases.
    pub(crate) unsure: Partitions,
    /// Frozen ones of which a member was the last home.
    pub(crate) kept: Partitions,
    /// It has seen an earlier view than the newest.
    pub(crate) has_seen: bool,
    /// Some member has, as far as is known.
    pub(crate) someone_has_seen: bool,
    /// Members that have gone together with those who knew what they wrote, and where.
    pub(crate) doubts: BTreeMap<Seat, Partitions>,
    pub(crate) recalls: BTreeMap<Member, Recall>,
    pub(crate) recall_due_ms: u64,
    /// That of the newest view, if it is in it.
    pub(crate) roll: Option<Roll>,
    /// What homes write themselves, for which this node is the second place, with their request.
    pub(crate) notes: BTreeMap<Object, BTreeMap<Seat, (u64, Level)>>,
    /// What others were writing, of partitions whose home is another now: it counts when they have
    /// gone. With their serial.
    pub(crate) testimony: BTreeMap<Object, BTreeMap<Seat, (u64, Level)>>,
    pub(crate) peeks: BTreeMap<u64, Peek>,
    pub(crate) serials: u32,

    pub(crate) held: BTreeMap<Object, Held>,
    /// Parts that are wanted together with others, and up to which serial those were revoked before
    /// they came.
    pub(crate) asking: BTreeMap<Object, u64>,
    pub(crate) glimpses: BTreeMap<u64, Glimpse>,
    pub(crate) requests: u64,

    pub(crate) timers: BTreeSet<(u64, Task)>,
    pub(crate) effects: Vec<Effect>,
    /// Messages to itself.
    pub(crate) local: VecDeque<Message>,
    pub(crate) counts: Counts,
}

/// What was sent and received: two directories that differ in nothing else are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    sent: [u64; KINDS.len()],
    received: [u64; KINDS.len()],
    pub dropped: u64,
}

impl PartialEq for Counts {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Counts {}

impl Hash for Counts {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Directory {
    /// Of a node that is in no view yet. `oldest` is the life of the node whose pool it goes on
    /// with: its own, if it begins with an empty one.
    pub fn new(me: Member, oldest: Incarnation, tuning: Tuning) -> Self {
        Self {
            me,
            oldest: oldest.min(me.incarnation),
            tuning,
            is_fenced: false,
            group: None,
            viewed_ms: 0,
            seat: None,
            gone: BTreeMap::new(),
            back: BTreeSet::new(),
            ended: BTreeSet::new(),
            given_up: BTreeMap::new(),
            thawed: Partitions::default(),
            frozen: Partitions::default(),
            cautious: Partitions::default(),
            witnessed: Partitions::default(),
            records: BTreeMap::new(),
            order: BTreeSet::new(),
            former: Partitions::default(),
            handed: Partitions::default(),
            unsure: Partitions::default(),
            kept: Partitions::default(),
            has_seen: false,
            someone_has_seen: false,
            doubts: BTreeMap::new(),
            recalls: BTreeMap::new(),
            recall_due_ms: 0,
            roll: None,
            notes: BTreeMap::new(),
            testimony: BTreeMap::new(),
            peeks: BTreeMap::new(),
            serials: 0,
            held: BTreeMap::new(),
            asking: BTreeMap::new(),
            glimpses: BTreeMap::new(),
            requests: 0,
            timers: BTreeSet::new(),
            effects: Vec::new(),
            local: VecDeque::new(),
            counts: Counts::default(),
        }
    }

    /// The newest view that it has seen, if it is in that.
    pub fn view_number(&self) -> Option<u32> {
        self.seat.and(self.group.as_ref()).map(|group| group.view.number)
    }

    /// Whose it is.
    pub fn me(&self) -> Member {
        self.me
    }

    /// What the shell is to do since it asked last.
    pub fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// When [`Directory::timer`] has something to do, if nothing happens before.
    pub fn next_timer(&self) -> Option<u64> {
        self.timers.first().map(|(due_ms, _)| *due_ms)
    }

    /// Does what is due.
    pub fn timer(&mut self, now_ms: u64) {
        while let Some((due_ms, task)) = self.timers.first().copied().filter(|due| due.0 <= now_ms)
        {
            self.timers.remove(&(due_ms, task));
            match task {
                Task::Want(object) => self.want_due(object, due_ms, now_ms),
                Task::Glimpse(token) => self.glimpse_due(token, due_ms, now_ms),
                Task::Revoke(object) => self.revoke_due(object, due_ms, now_ms),
                Task::Direct(object) => self.direct_due(object, now_ms),
                Task::Peek(id) => drop(self.peeks.remove(&id)),
                Task::Recall => self.recall_due(due_ms, now_ms),
                Task::Roll => self.roll_due(due_ms, now_ms),
            }
        }
        self.settle(now_ms);
    }

    /// A message has come. It may say anything; `from` is certain.
    pub fn message(&mut self, from: Member, message: Message, now_ms: u64) {
        let kind = message.body.kind();
        self.counts.received[kind] += 1;
        let mine = self.group.as_ref().map_or(0, |group| group.view.number);
        if message.view > mine {
            self.effects.push(Effect::Behind { view: message.view });
        }
        if message.body == Body::Farewell {
            // Of whichever view: its sender says no more.
            self.farewell_of(from, now_ms);
            return self.settle(now_ms);
        }
        if message.view != mine || self.seat.is_none() {
            self.counts.dropped += 1;
            if message.view < mine && message.body != Body::View {
                self.send(from, Body::View);
            }
            return;
        }
        let seat = self.group.as_ref().and_then(|group| group.view.seat_of(from.node));
        match seat.filter(|seat| seat.member == from && from != self.me) {
            Some(seat) => self.take(seat, message.body, now_ms),
            None => self.counts.dropped += 1,
        }
        self.settle(now_ms);
    }

    /// Takes what another member, or this node itself, says.
    fn take(&mut self, from: Seat, body: Body, now_ms: u64) {
        match body {
            Body::Open { object, request, level, is_claim, terms } => match is_claim {
                false => self.open(from, object, request, (level, terms), now_ms),
                true => self.reclaim(from, object, request, (level, terms), now_ms),
            },
            Body::Released { object, serial, level, facts, ahead } => {
                self.released(from, object, serial, (level, facts), now_ms);
                for part in ahead.from(object) {
                    self.released(from, part, serial, (level, None), now_ms);
                }
            }
            Body::Granted { object, request, serial, level, facts, ahead } => {
                if self.is_home(from, object) {
                    let grant = Grant { request, serial, level, facts, ahead };
                    self.granted(from.member, object, grant, now_ms);
                }
            }
            Body::Refused { object, request, why } => {
                if self.is_home(from, object) {
                    self.refused(object, request, why);
                }
            }
            Body::Revoke { object, serial, to, may_share } => {
                if self.is_home(from, object) {
                    self.revoke(from.member, object, serial, Reducing { to, may_share });
                }
            }
            Body::Recall { attempt, partitions } => self.recall(from.member, attempt, &partitions),
            Body::Claims { attempt, index, is_last, oldest, items } => {
                self.claims(from, (attempt, index, is_last), oldest, &items);
            }
            Body::Roll { step, is_up, part, parts, has_seen, items } => {
                let word = Word { step, part, parts, has_seen, items };
                match is_up {
                    true => self.roll_from_below(from.member, word, now_ms),
                    false => self.roll_from_above(from.member, word, now_ms),
                }
            }
            Body::Tell { attempt, index, is_last, oldest, items } => {
                self.tell(from, (attempt, index, is_last), oldest, &items, now_ms);
            }
            Body::Told => self.told(from.member, now_ms),
            Body::Note { object, request, level, is_held, ahead } => {
                self.note(from, object, (request, level), is_held, ahead);
            }
            Body::Noted { object, request, is_kept } => {
                self.noted(from, object, request, is_kept, now_ms);
            }
            Body::Glimpse { file, request } => self.glimpse_asked(from, file, request, now_ms),
            Body::Size { file, request, sized } => {
                if self.is_home(from, Object::whole(file)) {
                    self.glimpsed(file, request, sized);
                }
            }
            Body::Peek { object, request } => {
                if self.is_home(from, object) {
                    self.peek(from.member, object, request);
                }
            }
            Body::Peeked { object, request, facts } => {
                self.peeked(from, object, (request, facts), now_ms);
            }
            Body::View => {}
            Body::Farewell => self.farewell_from(from, now_ms),
        }
    }

    /// Carries out what this node has said to itself.
    pub(crate) fn settle(&mut self, now_ms: u64) {
        while let Some(message) = self.local.pop_front() {
            let view = self.group.as_ref().map_or(0, |group| group.view.number);
            if let Some(seat) = self.seat.filter(|_| message.view == view) {
                self.take(seat, message.body, now_ms);
            }
        }
    }

    pub(crate) fn send(&mut self, to: Member, body: Body) {
        let view = self.group.as_ref().map_or(0, |group| group.view.number);
        let message = Message { view, body };
        if to == self.me {
            self.local.push_back(message);
        } else {
            self.counts.sent[message.body.kind()] += 1;
            self.effects.push(Effect::Send(to, message));
        }
    }

    pub(crate) fn at(&mut self, due_ms: u64, task: Task) {
        self.timers.insert((due_ms, task));
    }

    /// The home of an object, where this node is a member.
    pub(crate) fn home(&self, object: Object) -> Option<Seat> {
        self.seat?;
        self.group.as_ref()?.place(object.partition(), 0)
    }

    fn is_home(&mut self, seat: Seat, object: Object) -> bool {
        let is_home = self.home(object) == Some(seat);
        self.counts.dropped += u64::from(!is_home);
        is_home
    }

    /// Whether a seat is of the newest view.
    pub(crate) fn is_in(&self, seat: Seat) -> bool {
        self.group.as_ref().is_some_and(|group| group.has(seat))
    }

    /// The shell has looked, or has not for too long: a node that is fenced grants nothing as
    /// home, takes nothing new, and may not [use](Directory::usable) copies. To be said by the
    /// clock before each message: a node that was stopped reads what has come meanwhile.
    pub fn fenced(&mut self, is_fenced: bool, now_ms: u64) {
        if std::mem::replace(&mut self.is_fenced, is_fenced) && !is_fenced {
            self.process_all(now_ms);
            self.settle(now_ms);
        }
    }

    /// Counts. The work is that of a walk over all files.
    pub fn status(&self) -> Status {
        let by_level = |levels: &mut dyn Iterator<Item = Level>| {
            let mut counts = [0; Level::ALL.len()];
            levels.for_each(|level| counts[level as usize] += 1);
            counts
        };
        let holds = || self.records.values().flat_map(|record| &record.holds);
        let wants = || self.held.values().filter_map(|held| held.want.as_ref());
        let is_lost = |seat: &Seat| !self.is_in(*seat);
        let (mut lost, mut lost_objects) = (BTreeMap::new(), Vec::new());
        for (object, record) in &self.records {
            let holds = record.holds.iter();
            for (seat, _) in holds.filter(|(seat, hold)| is_lost(seat) && hold.level.is_dirty()) {
                *lost.entry(seat.member.node).or_default() += 1;
                if lost_objects.len() < LOST_NAMED {
                    lost_objects.push((seat.member.node, *object));
                }
            }
        }
        let mut doubted = BTreeMap::new();
        for (seat, partitions) in &self.doubts {
            let mut mine = self.thawed.clone();
            mine.add(&self.frozen);
            mine.keep(partitions);
            if !mine.is_empty() {
                let count = doubted.entry(seat.member.node).or_default();
                *count = mine.count().max(*count);
            }
        }
        Status {
            view: self.view_number(),
            is_fenced: self.is_fenced,
            granted: by_level(&mut holds().map(|(_, hold)| hold.level)),
            held: by_level(&mut self.held.values().map(|held| held.level)),
            wants: (wants().count(), wants().filter_map(|want| want.until_ms).min()),
            waits: self.records.values().map(|record| record.waiters.len()).sum(),
            revoking: holds().filter(|(_, hold)| hold.revoke.is_some()).count(),
            reducing: self.held.values().filter(|held| held.reducing.is_some()).count(),
            partitions: (self.thawed.count() + self.frozen.count(), self.frozen.count()),
            silent: self.silent(),
            awaited: self.awaited(),
            lost,
            lost_objects,
            doubted,
            sent: self.counts.sent,
            received: self.counts.received,
            dropped: self.counts.dropped,
        }
    }
}
