//! The side of a directory that hands out leases: what is granted, to whom it waits for, and when
//! a file is made direct.
//!
//! What the table says is never less than what nodes have: an entry goes when its holder says that
//! it has no more and will take no grant up to that serial, or has gone and is succeeded.

use crate::directory::{Directory, Task};
use crate::holder::{Reducing, serves};
use crate::level::{Facts, Level, Sized, Why};
use crate::message::Body;
use crate::object::{Ahead, Object, Of, Terms};
use forebay_membership::{FileId, NodeId, Seat};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// For so many times as a message waits for its answer, a node that is back is taken to be about to
/// claim what it had.
const CLAIM_ROUNDS: u64 = 20;
/// So many of the files that were granted longest ago are looked at to make room for another one,
const LOOKED_AT: usize = 256;
/// and so many of them are taken back.
const TAKEN_BACK: usize = 16;

/// How far a part looks back for parts that two nodes use through the kernel, and for how many: one
/// alone is where what two nodes write meets.
const BEFORE: u32 = 8;
const THRASHED: usize = 2;

/// Something that some node has, or wants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Record {
    pub holds: BTreeMap<Seat, Hold>,
    /// First come, first served; one of each seat.
    pub waiters: VecDeque<Waiter>,
    /// Of a whole: what the last writer left, or all that extended it and gave the size back;
    /// `None`: what the store says.
    pub facts: Option<Facts>,
    /// What one of those left that have the size together is not known, but to the store.
    is_vague: bool,
    /// Its writer has the size by itself since: it shares the file already, or is about to, and
    /// what it says then of the size is over.
    is_outrun: bool,
    /// The last one that was granted to write, and when that became another.
    writer: Option<NodeId>,
    moves: VecDeque<u64>,
    /// Until when it is direct because it thrashed.
    direct_until_ms: u64,
    /// The serial under which it is in the order of records.
    last_serial: u64,
    /// When revocations are sent again.
    revoke_due_ms: u64,
}

/// What a node has been granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hold {
    pub level: Level,
    pub serial: u64,
    pub request: u64,
    /// Direct because that was asked for.
    is_asked: bool,
    /// It is to give back what is above this.
    pub revoke: Option<Reducing>,
    /// It was granted, or confirmed, in the seat.
    pub is_firm: bool,
}

impl Hold {
    /// Whether all that others had was given back before it was granted: of a file that is
    /// borrowed the one that lends it has it yet.
    pub(crate) fn ends_what_was_before(&self) -> bool {
        self.is_firm && self.level != Level::Borrowed
    }

    /// What a node claims.
    pub(crate) fn claimed(level: Level, serial: u64, is_firm: bool) -> Self {
        Self { level, serial, request: 0, is_asked: false, revoke: None, is_firm }
    }
}

/// A node that waits for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Waiter {
    pub seat: Seat,
    request: u64,
    level: Level,
    terms: Terms,
    /// The second place knows that this node, which is the home, will write; and these parts.
    is_noted: bool,
    noted: Option<Ahead>,
    until_ms: u64,
}

impl Waiter {
    /// The second place may be another one now.
    pub(crate) fn forget_note(&mut self) {
        (self.is_noted, self.noted) = (false, None);
    }
}

/// A question for a size that was passed on to the node that writes the file, or to those that
/// extend it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Peek {
    object: Object,
    /// Who has not answered, and the serial of what each had of the whole then.
    asked: BTreeMap<Seat, Option<u64>>,
    /// What the others have.
    most: Option<Facts>,
    asker: Seat,
    request: u64,
}

/// What is to become of the first that waits.
enum Next {
    Grant(Level),
    Refuse(Why),
    /// Others are to give back, each down to a level.
    Revoke(Vec<(Seat, Reducing)>),
    /// This node is to be asked to remember it first, and these parts.
    Note(Seat, Level, Ahead),
    Wait,
}

/// Down to nothing.
const NOTHING: Reducing = Reducing { to: Level::None, may_share: false };

impl Directory {
    /// A member wants something.
    pub(crate) fn open(
        &mut self,
        from: Seat,
        object: Object,
        request: u64,
        (level, terms): (Level, Terms),
        now_ms: u64,
    ) {
        let partition = object.partition();
        if !self.thawed.has(partition) && !self.frozen.has(partition) {
            self.counts.dropped += 1;
            return;
        }
        if self.is_fenced {
            return;
        }
        if !self.records.contains_key(&object) && self.records.len() >= self.tuning.files {
            // While others give back, it is asked again.
            if !self.make_room(now_ms) {
                self.send(from.member, Body::Refused { object, request, why: Why::Full });
            }
            return;
        }
        let record = self.records.entry(object).or_default();
        if let Some(hold) = record.holds.get(&from).filter(|hold| hold.request >= request) {
            let is_it = hold.request == request && hold.revoke.is_none();
            if hold.request > request {
                return;
            }
            if is_it && serves(hold.level, level, terms) {
                let hold = *hold;
                let is_same = |part: Object| {
                    let hold_of = self.records.get(&part).and_then(|of| of.holds.get(&from));
                    hold_of.is_some_and(|of| {
                        (of.serial, of.request, of.level) == (hold.serial, request, hold.level)
                            && of.revoke.is_none()
                    })
                };
                let ahead = terms.all().filter(object, is_same);
                self.send_grant(from, object, hold, ahead);
                return;
            }
        }
        let until_ms = now_ms + self.tuning.wait_ms;
        let (is_noted, noted) = (false, None);
        let new = Waiter { seat: from, request, level, terms, is_noted, noted, until_ms };
        match record.waiters.iter_mut().find(|waiter| waiter.seat == from) {
            Some(waiter) if waiter.request > request => return,
            Some(waiter) if waiter.request == request => waiter.until_ms = until_ms,
            Some(waiter) => *waiter = new,
            None => record.waiters.push_back(new),
        }
        self.process(object, now_ms);
    }

    /// A member says that it writes, or shares, something since before it had this seat.
    pub(crate) fn reclaim(
        &mut self,
        from: Seat,
        object: Object,
        request: u64,
        (level, terms): (Level, Terms),
        now_ms: u64,
    ) {
        let is_known =
            self.thawed.has(object.partition()) && !self.is_unheard(from) && !self.is_fenced;
        if !is_known {
            // It asks again.
            return;
        }
        let hold = self.records.get(&object).and_then(|record| record.holds.get(&from));
        match hold.filter(|hold| hold.level.is_dirty()).copied() {
            None => {
                let why = Why::Superseded;
                self.send(from.member, Body::Refused { object, request, why });
            }
            // An old one that comes late: it has asked for more since, perhaps by the same request.
            Some(hold) if (hold.request, hold.level) > (request, level) => {}
            Some(hold) if level > hold.level => {
                self.open(from, object, request, (level, terms), now_ms);
            }
            // Also one that was confirmed: the word of that may have been revoked before it came.
            // One that others wait for is revoked with the new serial, which its holder takes.
            Some(_) => {
                self.grant(object, (from, request), level, false, Ahead::default(), now_ms);
                self.process(object, now_ms);
            }
        }
    }

    /// A holder has no more than this.
    pub(crate) fn released(
        &mut self,
        from: Seat,
        object: Object,
        serial: u64,
        (level, facts): (Level, Option<Facts>),
        now_ms: u64,
    ) {
        let Some(record) = self.records.get_mut(&object) else { return };
        let Some(hold) = record.holds.get_mut(&from) else { return };
        let stays = level == Level::Direct && hold.level != Level::None;
        if hold.serial != serial || level > hold.level && !stays {
            return;
        }
        let was = hold.level;
        hold.level = level;
        hold.revoke = hold.revoke.filter(|to| !to.is_met(level) && !stays);
        // A mapping that cannot be taken away: all others use the kernel from now on, too.
        hold.is_asked |= stays;
        if level == Level::None {
            record.holds.remove(&from);
        }
        match object.of {
            // It has said so before.
            Of::Whole if (was, level) == (Level::Lent, Level::Lent) => {}
            // Without them what it left is on the store.
            Of::Whole if was.is_its_own() => {
                let facts = facts.filter(|_| !record.is_outrun && !stays);
                record.is_outrun = false;
                self.set_facts(object.file, facts);
            }
            Of::Size if was.is_dirty() => self.size_released(object.file, facts),
            _ => {}
        }
        if object.is_whole() && was.is_dirty() && !level.is_dirty() {
            // With the whole it has given back the size: word of that was lost, or is late.
            self.take_size(from, object.file, now_ms);
        }
        self.end_direct(object, now_ms);
        self.process(object, now_ms);
    }

    /// One that extended a file says what it left of its size: the largest of all counts.
    fn size_released(&mut self, file: FileId, facts: Option<Facts>) {
        let is_last = !self.is_extended(file);
        let Some(whole) = self.records.get_mut(&Object::whole(file)) else { return };
        whole.is_vague |= facts.is_none();
        whole.facts = facts
            .filter(|_| !whole.is_vague && !whole.is_outrun)
            .map(|facts| whole.facts.map_or(facts, |before| before.most(facts)));
        whole.is_vague &= !is_last;
    }

    /// Who wrote all of it says what it left.
    fn set_facts(&mut self, file: FileId, facts: Option<Facts>) {
        let is_vague = facts.is_none() && self.is_extended(file);
        if let Some(whole) = self.records.get_mut(&Object::whole(file)) {
            (whole.facts, whole.is_vague) = (facts, is_vague);
        }
    }

    /// A size is granted, whose file is known to be written as a whole.
    fn outrun_writer(&mut self, file: FileId) {
        if let Some(whole) = self.records.get_mut(&Object::whole(file))
            && whole.holds.values().any(|hold| hold.level == Level::Write)
        {
            (whole.facts, whole.is_outrun) = (None, true);
        }
    }

    /// Whether a node has the size and may make more of it.
    fn is_extended(&self, file: FileId) -> bool {
        let size = self.records.get(&Object::size(file));
        size.is_some_and(|size| size.holds.values().any(|hold| hold.level.is_dirty()))
    }

    /// Only the store knows what became of an object that a node wrote, or extended.
    pub(crate) fn forget_facts(&mut self, object: Object) {
        match object.of {
            Of::Whole => self.set_facts(object.file, None),
            Of::Size => self.size_released(object.file, None),
            Of::Part(_) => {}
        }
    }

    fn take_size(&mut self, from: Seat, file: FileId, now_ms: u64) {
        let size = Object::size(file);
        let hold = self.records.get_mut(&size).and_then(|record| record.holds.remove(&from));
        if let Some(hold) = hold {
            if hold.level.is_dirty() {
                self.size_released(file, None);
            }
            self.process(size, now_ms);
        }
    }

    /// What is direct, and only one node has left that did not ask for it, need not be direct.
    fn end_direct(&mut self, object: Object, now_ms: u64) {
        let Some(record) = self.records.get_mut(&object) else { return };
        let is_alone = record.holds.len() == 1 && record.waiters.is_empty();
        let is_direct = |hold: &Hold| hold.level == Level::Direct && !hold.is_asked;
        if is_alone && record.holds.values().all(is_direct) {
            record.direct_until_ms = now_ms;
            self.direct_due(object, now_ms);
        }
    }

    /// The time of something direct may have ended: all give it back, and ask again when a program
    /// wants it.
    pub(crate) fn direct_due(&mut self, object: Object, now_ms: u64) {
        let Some(record) = self.records.get(&object) else { return };
        let is_asked = record.holds.values().any(|hold| hold.is_asked);
        if now_ms >= record.direct_until_ms && !is_asked {
            let direct = record.holds.iter().filter(|(_, hold)| hold.level == Level::Direct);
            let revoked = direct.map(|(seat, _)| (*seat, NOTHING)).collect();
            self.take_back(object, revoked, now_ms);
            self.process(object, now_ms);
        }
    }

    /// Takes back what is only read, what was granted longest ago first. Whether any is on its way.
    fn make_room(&mut self, now_ms: u64) -> bool {
        let is_read = |object: &Object| {
            self.records.get(object).is_some_and(|record| {
                record.waiters.is_empty()
                    && record.holds.values().all(|hold| hold.level <= Level::Read)
            })
        };
        let oldest = self.order.iter().map(|(_, object)| *object).take(LOOKED_AT);
        let objects: Vec<Object> = oldest.filter(is_read).take(TAKEN_BACK).collect();
        for object in &objects {
            let holds = self.records.get(object).into_iter().flat_map(|record| record.holds.keys());
            let revoked = holds.map(|seat| (*seat, NOTHING)).collect();
            self.take_back(*object, revoked, now_ms);
        }
        !objects.is_empty()
    }

    /// Asks holders to give back, those that have not been asked, and later again.
    fn take_back(&mut self, object: Object, revoked: Vec<(Seat, Reducing)>, now_ms: u64) {
        for (seat, to) in revoked {
            let is_in = self.is_in(seat);
            let Some(record) = self.records.get_mut(&object) else { return };
            let Some(hold) = record.holds.get_mut(&seat) else { continue };
            if hold.revoke.is_some_and(|before| !to.is_more(before)) {
                continue;
            }
            let to = to.and(hold.revoke);
            hold.revoke = Some(to);
            let serial = hold.serial;
            if record.revoke_due_ms <= now_ms {
                record.revoke_due_ms = now_ms + self.tuning.retry_ms;
                let due_ms = record.revoke_due_ms;
                self.at(due_ms, Task::Revoke(object));
            }
            if is_in {
                self.send_revoke(seat, object, serial, to);
            }
        }
    }

    fn send_revoke(&mut self, seat: Seat, object: Object, serial: u64, to: Reducing) {
        let Reducing { to, may_share } = to;
        self.send(seat.member, Body::Revoke { object, serial, to, may_share });
    }

    /// Sends revocations that have no answer again.
    pub(crate) fn revoke_due(&mut self, object: Object, due_ms: u64, now_ms: u64) {
        let Some(record) = self.records.get_mut(&object) else { return };
        if record.revoke_due_ms != due_ms {
            return;
        }
        let open: Vec<(Seat, u64, Reducing)> = record
            .holds
            .iter()
            .filter_map(|(seat, hold)| hold.revoke.map(|to| (*seat, hold.serial, to)))
            .collect();
        if open.is_empty() {
            return;
        }
        record.revoke_due_ms = now_ms + self.tuning.retry_ms;
        let due_ms = record.revoke_due_ms;
        self.at(due_ms, Task::Revoke(object));
        for (seat, serial, to) in open {
            if self.is_in(seat) && !self.is_fenced {
                self.send_revoke(seat, object, serial, to);
            }
        }
        self.process(object, now_ms);
    }

    /// Looks at all that is waited for.
    pub(crate) fn process_all(&mut self, now_ms: u64) {
        let objects: Vec<Object> = self.records.keys().copied().collect();
        objects.into_iter().for_each(|object| self.process(object, now_ms));
    }

    /// Grants what can be granted of an object, and asks for what is in the way.
    pub(crate) fn process(&mut self, object: Object, now_ms: u64) {
        let is_thawed = self.thawed.has(object.partition());
        while is_thawed && !self.is_fenced {
            let Some(record) = self.records.get_mut(&object) else { return };
            record.waiters.retain(|waiter| now_ms < waiter.until_ms);
            let Some(waiter) = record.waiters.front().copied() else { break };
            match self.next(object, &waiter, now_ms) {
                Next::Grant(level) => {
                    self.pop_waiter(object);
                    self.grant_waiter(object, waiter, level, now_ms);
                }
                Next::Refuse(why) => {
                    self.pop_waiter(object);
                    let request = waiter.request;
                    self.send(waiter.seat.member, Body::Refused { object, request, why });
                }
                Next::Revoke(revoked) => {
                    self.take_back(object, revoked, now_ms);
                    return;
                }
                Next::Note(witness, level, ahead) => {
                    let request = waiter.request;
                    if let Some(record) = self.records.get_mut(&object)
                        && let Some(waiter) = record.waiters.front_mut()
                    {
                        waiter.noted = Some(ahead);
                    }
                    let note = Body::Note { object, request, level, is_held: true, ahead };
                    self.send(witness.member, note);
                    return;
                }
                Next::Wait => return,
            }
        }
        self.tidy_record(object, now_ms);
    }

    fn pop_waiter(&mut self, object: Object) {
        if let Some(record) = self.records.get_mut(&object) {
            record.waiters.pop_front();
        }
    }

    /// Forgets an object of which nothing is known that matters.
    fn tidy_record(&mut self, object: Object, now_ms: u64) {
        let is_over = |record: &Record| {
            record.holds.is_empty() && record.waiters.is_empty() && now_ms >= record.direct_until_ms
        };
        if self.records.get(&object).is_some_and(is_over) {
            self.drop_record(object);
        }
    }

    pub(crate) fn drop_record(&mut self, object: Object) {
        if let Some(record) = self.records.remove(&object) {
            self.order.remove(&(record.last_serial, object));
        }
    }

    /// Whether a node that has gone has just come back, and may be about to claim what it had.
    fn may_claim(&self, gone: Seat, now_ms: u64) -> bool {
        let seat = self.group.as_ref().and_then(|group| group.view.seat_of(gone.member.node));
        let is_back = seat.is_some_and(|seat| seat.since > gone.since);
        is_back && now_ms < self.viewed_ms + CLAIM_ROUNDS * self.tuning.retry_ms
    }

    fn next(&self, object: Object, waiter: &Waiter, now_ms: u64) -> Next {
        let Some(record) = self.records.get(&object) else { return Next::Wait };
        let is_direct = waiter.level == Level::Direct
            || now_ms < record.direct_until_ms
            || record.holds.values().any(|hold| hold.is_asked)
            || waiter.level == Level::Write && self.will_thrash(object, now_ms);
        let mut others = record.holds.iter().filter(|(seat, _)| **seat != waiter.seat);
        let is_shared =
            waiter.terms.may_share && others.any(|(_, hold)| hold.level == Level::Shared);
        // What it has for all that is known, and may have by now, is not made less by a grant.
        let is_own_write =
            record.holds.get(&waiter.seat).is_some_and(|hold| hold.level == Level::Write);
        // Who borrows it has to know its size.
        let knows_size = record.facts.is_some() && !self.is_extended(object.file);
        let may_lend = |(seat, hold): (&Seat, &Hold)| {
            let may_lend = match hold.level {
                Level::Write => true,
                Level::Lent => knows_size && hold.revoke.is_none(),
                _ => false,
            };
            may_lend && *seat != waiter.seat && self.is_in(*seat)
        };
        let is_lent = waiter.terms.may_borrow && record.holds.iter().any(may_lend);
        let level = match waiter.level {
            _ if is_direct => Level::Direct,
            _ if is_own_write => Level::Write,
            _ if is_shared => Level::Shared,
            _ if is_lent => Level::Borrowed,
            level => level,
        };
        if let Some(why) = self.doubt(object, level) {
            return why.map_or(Next::Wait, Next::Refuse);
        }
        if let Some(seat) = self.who_took_the_size(object) {
            return match self.is_succeeded(seat) {
                true => Next::Refuse(Why::Lost(seat.member.node)),
                false => Next::Wait,
            };
        }
        // Of whom others have borrowed it, has gone, and was given up: they may have what the
        // store will never have. One that has given it back has said how long it is.
        let is_left =
            !record.holds.values().any(|hold| matches!(hold.level, Level::Read | Level::Lent));
        let is_orphaned = match level {
            Level::Read => is_left,
            Level::Write => is_left && record.facts.is_none(),
            _ => false,
        };
        let mut revoked = Vec::new();
        for (seat, hold) in &record.holds {
            // What it keeps itself is flushed before it, or another one, goes to the store's file,
            // or to parts of it; and what it has only a part of before it has all. One that uses
            // the store's file does until it hears of the grant: others may read it by then.
            let stays = match (hold.level, level) {
                (Level::Borrowed | Level::Read | Level::Lent | Level::Direct, Level::Shared)
                | (Level::Shared | Level::Direct, Level::Read | Level::Borrowed) => false,
                (_, Level::Direct) => hold.level == level,
                _ => true,
            };
            let is_own = *seat == waiter.seat;
            let is_orphan = hold.level == Level::Borrowed && is_orphaned;
            if !is_orphan && (is_own && stays || !hold.level.conflicts(level)) {
                continue;
            }
            if self.is_in(*seat) {
                let to = if is_orphan { Level::None } else { hold.level.beside(level) };
                let may_share = !is_own && waiter.terms.may_share && hold.level == Level::Write;
                revoked.push((*seat, Reducing { to, may_share }));
            } else if hold.level.is_dirty() && self.is_succeeded(*seat) {
                return match self.may_claim(*seat, now_ms) {
                    true => Next::Wait,
                    false => Next::Refuse(Why::Lost(seat.member.node)),
                };
            } else {
                return Next::Wait;
            }
        }
        if !revoked.is_empty() {
            return Next::Revoke(revoked);
        }
        let partition = object.partition();
        if self.cautious.has(partition) {
            // One that has gone may still read, or use the store's file, and those who knew it
            // have gone, too.
            return Next::Wait;
        }
        let witness = self.group.as_ref().and_then(|group| group.place(partition, 1));
        let witness = witness.filter(|_| Some(waiter.seat) == self.seat && level.is_dirty());
        match witness.filter(|_| !waiter.is_noted) {
            Some(witness) => {
                let all = if level == waiter.level { waiter.terms.all() } else { Ahead::default() };
                let is_free = |part| self.is_free(part, waiter.seat, level, now_ms);
                // Sent again it says the same.
                let free = waiter.noted.unwrap_or_else(|| all.filter(object, is_free));
                Next::Note(witness, level, free)
            }
            None => Next::Grant(level),
        }
    }

    /// Whether a part that is to be written will go to and fro between nodes: those before it are
    /// direct, and some of them two nodes use so. They write small records next to each other, from
    /// part to part.
    fn will_thrash(&self, object: Object, now_ms: u64) -> bool {
        let Of::Part(number) = object.of else { return false };
        let before = (number.saturating_sub(BEFORE)..number).rev();
        before
            .map_while(|before| self.records.get(&Object::part(object.file, before)))
            .take_while(|record| now_ms < record.direct_until_ms)
            .filter(|record| record.holds.len() > 1)
            .nth(THRASHED - 1)
            .is_some()
    }

    /// One that has gone and may have extended a file: neither its size is known, nor, by one that
    /// comes to it now, what it is.
    fn who_took_the_size(&self, object: Object) -> Option<Seat> {
        let size = Object::size(object.file);
        let record = self.records.get(&size).filter(|_| matches!(object.of, Of::Whole | Of::Size));
        let holds = record.into_iter().flat_map(|record| &record.holds);
        let mut gone = holds.filter(|(seat, hold)| hold.level.is_dirty() && !self.is_in(**seat));
        gone.next().map(|(seat, _)| *seat)
    }

    /// Whether a part can be granted to a node besides what it asked for: for this nothing is taken
    /// back from others, and they do not wait for it.
    fn is_free(&self, part: Object, seat: Seat, level: Level, now_ms: u64) -> bool {
        let is_free = |record: &Record| {
            let is_quiet = record.waiters.is_empty() && now_ms >= record.direct_until_ms;
            let is_new = !record.holds.contains_key(&seat);
            is_quiet && is_new && !record.holds.values().any(|hold| hold.level.conflicts(level))
        };
        self.doubt(part, level).is_none()
            && match self.records.get(&part) {
                Some(record) => is_free(record),
                None => self.records.len() < self.tuning.files,
            }
    }

    /// Whether something that no member has may have been written by one that has gone; and if so,
    /// whether that is to be said, or waited for. What members share may be shared on.
    fn doubt(&self, object: Object, level: Level) -> Option<Option<Why>> {
        let partition = object.partition();
        let doubted = || self.doubts.iter().filter(|(_, partitions)| partitions.has(partition));
        let (seat, _) = doubted().next()?;
        let record = self.records.get(&object);
        let is_held = |record: &Record| {
            record.holds.iter().any(|(seat, hold)| {
                let is_known = match hold.level {
                    Level::Shared => level == Level::Shared,
                    // The one that lends it is another.
                    Level::Borrowed => false,
                    _ => true,
                };
                self.is_in(*seat) && hold.is_firm && is_known
            })
        };
        if record.is_some_and(is_held) {
            return None;
        }
        let is_over = doubted().all(|(seat, _)| self.is_succeeded(*seat));
        Some(is_over.then_some(Why::Lost(seat.member.node)))
    }

    /// Grants what is waited for, and what else of it was asked for and is free.
    fn grant_waiter(&mut self, object: Object, waiter: Waiter, level: Level, now_ms: u64) {
        let (seat, request) = (waiter.seat, waiter.request);
        let is_asked = waiter.level == Level::Direct;
        // What is not known to the second place this node does not write itself.
        let asked = match waiter.is_noted {
            true => waiter.noted.unwrap_or_default(),
            false => waiter.terms.all(),
        };
        let may_have = level == waiter.level;
        let free = asked.filter(object, |part| may_have && self.is_free(part, seat, level, now_ms));
        if waiter.is_noted {
            let taken = asked.filter(object, |part| free.from(object).all(|free| free != part));
            let witness = self.group.as_ref().and_then(|group| group.place(object.partition(), 1));
            for part in taken.from(object) {
                if let Some(witness) = witness {
                    let (object, ahead) = (part, Ahead::default());
                    let note = Body::Note { object, request, level, is_held: false, ahead };
                    self.send(witness.member, note);
                }
            }
        }
        self.grant(object, (seat, request), level, is_asked, free, now_ms);
    }

    fn grant(
        &mut self,
        object: Object,
        (seat, request): (Seat, u64),
        level: Level,
        is_asked: bool,
        ahead: Ahead,
        now_ms: u64,
    ) {
        let number = self.group.as_ref().map_or(0, |group| group.view.number);
        self.serials += 1;
        let serial = u64::from(number) << 32 | u64::from(self.serials);
        let hold = Hold { level, serial, request, is_asked, revoke: None, is_firm: true };
        let Some(record) = self.records.get_mut(&object) else { return };
        let before = record.holds.get(&seat).copied();
        let node = seat.member.node;
        // A size that moves costs no flush of bytes.
        let is_counted = level == Level::Write && object.of != Of::Size;
        let mut direct_until_ms = None;
        let is_part = matches!(object.of, Of::Part(_));
        if is_part && level == Level::Direct && now_ms >= record.direct_until_ms {
            // As those before it are.
            record.direct_until_ms = now_ms + self.tuning.part_direct_ms;
            direct_until_ms = Some(record.direct_until_ms);
        }
        if is_counted && record.writer != Some(node) {
            let is_move = record.writer.replace(node).is_some();
            record.moves.extend(is_move.then_some(now_ms));
            while record.moves.front().is_some_and(|at| at + self.tuning.thrash_ms < now_ms)
                || record.moves.len() > self.tuning.thrash
            {
                record.moves.pop_front();
            }
            if record.moves.len() >= self.tuning.thrash {
                record.moves.clear();
                let direct_ms = match object.of {
                    Of::Part(_) => self.tuning.part_direct_ms,
                    Of::Whole | Of::Size => self.tuning.direct_ms,
                };
                record.direct_until_ms = now_ms + direct_ms;
                direct_until_ms = Some(record.direct_until_ms);
            }
        }
        self.enter_hold(object, seat, hold);
        match object.of {
            Of::Size => self.outrun_writer(object.file),
            Of::Whole => {
                let record = self.records.get_mut(&object);
                record.into_iter().for_each(|record| record.is_outrun = false);
            }
            Of::Part(_) => {}
        }
        // The kernel changes it from now on; or it was written, and what its holder said when it
        // gave it back was lost.
        if level == Level::Direct || before.is_some_and(|before| self.leaves_facts(object, before))
        {
            self.forget_facts(object);
        }
        if let Some(until_ms) = direct_until_ms {
            self.at(until_ms, Task::Direct(object));
        }
        for part in ahead.from(object) {
            self.enter_hold(part, seat, hold);
            if let Some(record) = self.records.get_mut(&part).filter(|_| is_counted) {
                record.writer = Some(node);
            }
        }
        self.send_grant(seat, object, hold, ahead);
    }

    fn leaves_facts(&self, object: Object, hold: Hold) -> bool {
        match object.of {
            Of::Whole => hold.level.is_its_own(),
            Of::Size => hold.level.is_dirty(),
            Of::Part(_) => false,
        }
    }

    /// Writes down what a node has from now on.
    fn enter_hold(&mut self, object: Object, seat: Seat, hold: Hold) {
        let record = self.records.entry(object).or_default();
        self.order.remove(&(record.last_serial, object));
        record.last_serial = hold.serial;
        self.order.insert((hold.serial, object));
        record.holds.insert(seat, hold);
    }

    fn send_grant(&mut self, to: Seat, object: Object, hold: Hold, ahead: Ahead) {
        let Hold { request, serial, level, .. } = hold;
        let whole = self.records.get(&object.in_whole());
        // Who shared it, and has it to write now, may have given the size back without word of it.
        let is_extended = object.is_whole() && self.is_extended(object.file);
        let facts = match object.of {
            Of::Whole if level == Level::Shared || is_extended => None,
            Of::Whole | Of::Size => whole.and_then(|whole| whole.facts),
            Of::Part(_) => None,
        };
        let body = Body::Granted { object, request, serial, level, facts, ahead };
        self.send(to.member, body);
    }

    /// A home is to write, or share, something itself, or no more: this node, the second place,
    /// remembers it.
    pub(crate) fn note(
        &mut self,
        from: Seat,
        object: Object,
        (request, level): (u64, Level),
        is_held: bool,
        ahead: Ahead,
    ) {
        let group = self.group.as_ref();
        let place = |place| group.and_then(|group| group.place(object.partition(), place));
        if place(0) != Some(from) || place(1) != self.seat {
            self.counts.dropped += 1;
            return;
        }
        if !is_held {
            // One that was sent later, and came before, stays.
            self.forget_note(from, object, |known| known <= request);
            // Others of these parts it may have by another request.
            for part in ahead.from(object) {
                self.forget_note(from, part, |known| known == request || known == 0);
            }
            return;
        }
        let all: Vec<Object> = std::iter::once(object).chain(ahead.from(object)).collect();
        let new = all.iter().filter(|object| !self.notes.contains_key(object)).count();
        let has_room = new == 0 || self.notes.len() + new <= self.tuning.files;
        for object in all.into_iter().filter(|_| has_room) {
            let known = self.notes.entry(object).or_default().entry(from).or_insert((0, level));
            *known = (request, level).max(*known);
        }
        self.send(from.member, Body::Noted { object, request, is_kept: has_room });
    }

    fn forget_note(&mut self, from: Seat, object: Object, is_it: impl FnOnce(u64) -> bool) {
        let Some(seats) = self.notes.get_mut(&object) else { return };
        if seats.get(&from).is_some_and(|(known, _)| is_it(*known)) {
            seats.remove(&from);
        }
        if seats.is_empty() {
            self.notes.remove(&object);
        }
    }

    /// The second place remembers it.
    pub(crate) fn noted(
        &mut self,
        from: Seat,
        object: Object,
        request: u64,
        is_kept: bool,
        now_ms: u64,
    ) {
        let group = self.group.as_ref();
        let witness = group.and_then(|group| group.place(object.partition(), 1));
        let (me, record) = (self.seat, self.records.get_mut(&object));
        let waiters = record.map(|record| &mut record.waiters);
        let is_it = |waiter: &&mut Waiter| Some(waiter.seat) == me && waiter.request == request;
        let waiter = waiters.and_then(|waiters| waiters.iter_mut().find(is_it));
        let Some(waiter) = waiter.filter(|_| witness == Some(from)) else { return };
        if is_kept {
            waiter.is_noted = true;
        } else if let Some(record) = self.records.get_mut(&object) {
            record.waiters.retain(|waiter| Some(waiter.seat) != me);
            let why = Why::Full;
            self.send(self.me, Body::Refused { object, request, why });
        }
        self.process(object, now_ms);
    }

    /// A member asks for the size of a file.
    pub(crate) fn glimpse_asked(&mut self, from: Seat, file: FileId, request: u64, now_ms: u64) {
        let whole = Object::whole(file);
        if !self.thawed.has(whole.partition()) || self.is_fenced {
            // It asks again.
            return;
        }
        let size = |sized| Body::Size { file, request, sized };
        let is_shared =
            |record: &Record| record.holds.values().any(|hold| hold.level == Level::Shared);
        let is_shared = self.records.get(&whole).is_some_and(is_shared);
        // Where it is shared, it is the size of which it has to be known who extends it.
        let object = if is_shared { Object::size(file) } else { whole };
        let doubt = self.doubt(whole, if is_shared { Level::Shared } else { Level::Read });
        let doubt = doubt.or_else(|| self.doubt(object, Level::Read).filter(|_| is_shared));
        if let Some(why) = doubt {
            if let Some(why) = why {
                self.send(from.member, size(Sized::Refused(why)));
            }
            return;
        }
        let record = self.records.get(&object);
        let holds = record.into_iter().flat_map(|record| &record.holds);
        let is_it = |hold: &Hold| match is_shared {
            true => hold.level.is_dirty(),
            false => hold.level.is_its_own(),
        };
        let writers = holds.filter(|(_, hold)| is_it(hold)).map(|(seat, _)| *seat);
        let writers: BTreeSet<Seat> = writers.collect();
        let facts = self.records.get(&whole).and_then(|record| record.facts);
        if writers.is_empty() {
            // All of it is on the store, which may have changed since otherwise.
            let sized = facts.filter(|_| is_shared).map_or(Sized::Store, Sized::AtLeast);
            return self.send(from.member, size(sized));
        }
        if let Some(gone) = writers.iter().find(|writer| !self.is_in(**writer)) {
            if self.is_succeeded(*gone) {
                let why = Why::Lost(gone.member.node);
                self.send(from.member, size(Sized::Refused(why)));
            }
            return;
        }
        if self.peeks.len() < self.tuning.glimpses {
            self.requests += 1;
            let id = self.requests;
            let asked = writers.iter().map(|seat| (*seat, self.serial_of_peeked(object, *seat)));
            let asked = asked.collect();
            let most = facts.filter(|_| is_shared);
            self.peeks.insert(id, Peek { object, asked, most, asker: from, request });
            self.at(now_ms + self.tuning.wait_ms, Task::Peek(id));
            for writer in writers {
                self.send(writer.member, Body::Peek { object, request: id });
            }
        }
    }

    /// The serial of what a node has of the whole of a file whose size it was asked for, while that
    /// is what it was asked as: one that shares it, or one that has it for itself.
    fn serial_of_peeked(&self, object: Object, seat: Seat) -> Option<u64> {
        let hold = self.records.get(&object.in_whole())?.holds.get(&seat)?;
        let is_it = match object.of {
            Of::Size => hold.level == Level::Shared,
            _ => hold.level.is_its_own(),
        };
        is_it.then_some(hold.serial)
    }

    /// A node that writes, or extends, a file has answered. One that does not is asked again when
    /// the asker repeats its question, and the home may know better then.
    pub(crate) fn peeked(
        &mut self,
        from: Seat,
        object: Object,
        (id, facts): (u64, Option<Facts>),
        now_ms: u64,
    ) {
        let serial = self.serial_of_peeked(object, from);
        let Some(peek) = self.peeks.get_mut(&id).filter(|peek| peek.object == object) else {
            return;
        };
        let Some(asked_as) = peek.asked.remove(&from) else { return };
        if facts.is_some() && serial != asked_as {
            // It has the file for itself since, and may have made it shorter than what others
            // have told; or it does not any more, and others may have made it longer.
            let Some(Peek { asker, request, .. }) = self.peeks.remove(&id) else { return };
            return self.glimpse_asked(asker, object.file, request, now_ms);
        }
        let most = facts.map(|facts| peek.most.map_or(facts, |most| most.most(facts)));
        peek.most = most.or(peek.most);
        if facts.is_some() && !peek.asked.is_empty() {
            return;
        }
        let Some(peek) = self.peeks.remove(&id) else { return };
        let sized = match (object.of, facts) {
            (Of::Size, Some(_)) => peek.most.map(Sized::AtLeast),
            (Of::Size, None) => None,
            // One that has nothing that the store has not: word that it gave the file back was
            // lost, or is on its way.
            _ => Some(facts.map_or(Sized::Store, Sized::Known)),
        };
        if let Some(sized) = sized {
            let (file, request) = (object.file, peek.request);
            self.send(peek.asker.member, Body::Size { file, request, sized });
        }
    }
}
