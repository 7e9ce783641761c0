//! The side of a directory that hands out leases: what is granted, to whom it waits for, and when
//! a file is made direct.
//!
//! What the table says is never less than what nodes have: an entry goes when its holder says that
//! it has no more and will take no grant up to that serial, or has gone and is succeeded.

use crate::directory::{Directory, Task};
use crate::level::{Facts, Level, Sized, Why};
use crate::message::Body;
use forebay_membership::{FileId, NodeId, Partition, Seat};
use std::collections::{BTreeMap, VecDeque};

/// So many of the files that were granted longest ago are looked at to make room for another one,
const LOOKED_AT: usize = 256;
/// and so many of them are taken back.
const TAKEN_BACK: usize = 16;

/// A file of which some node has, or wants, something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Record {
    pub holds: BTreeMap<Seat, Hold>,
    /// First come, first served; one of each seat.
    pub waiters: VecDeque<Waiter>,
    /// What the last writer left; `None`: what the store says.
    pub facts: Option<Facts>,
    /// The last one that was granted to write, and when that became another.
    writer: Option<NodeId>,
    moves: VecDeque<u64>,
    /// Until when the file is direct because it thrashed.
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
    pub revoke: Option<Level>,
    /// It was granted, or confirmed, in the seat.
    pub is_firm: bool,
}

impl Hold {
    /// What a node claims.
    pub(crate) fn claimed(level: Level, serial: u64, is_firm: bool) -> Self {
        Self { level, serial, request: 0, is_asked: false, revoke: None, is_firm }
    }
}

/// A node that waits for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Waiter {
    pub seat: Seat,
    request: u64,
    level: Level,
    /// The second place knows that this node, which is the home, will write.
    pub is_noted: bool,
    until_ms: u64,
}

/// A question for a size that was passed on to the node that writes the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Peek {
    file: FileId,
    writer: Seat,
    asker: Seat,
    request: u64,
}

/// What is to become of the first that waits.
enum Next {
    Grant(Level),
    Refuse(Why),
    /// Others are to give back, each down to a level.
    Revoke(Vec<(Seat, Level)>),
    Note(Seat),
    Wait,
}

impl Directory {
    /// A member wants a file.
    pub(crate) fn open(
        &mut self,
        from: Seat,
        file: FileId,
        request: u64,
        level: Level,
        now_ms: u64,
    ) {
        let partition = Partition::of_file(file);
        if !self.thawed.has(partition) && !self.frozen.has(partition) {
            self.counts.dropped += 1;
            return;
        }
        if self.is_fenced {
            return;
        }
        if !self.records.contains_key(&file) && self.records.len() >= self.tuning.files {
            // While others give back, it is asked again.
            if !self.make_room(now_ms) {
                self.send(from.member, Body::Refused { file, request, why: Why::Full });
            }
            return;
        }
        let record = self.records.entry(file).or_default();
        if let Some(hold) = record.holds.get(&from).filter(|hold| hold.request >= request) {
            let is_it = hold.request == request && hold.revoke.is_none();
            if hold.request > request {
                return;
            }
            if is_it && hold.level.covers(level) {
                let (serial, level, facts) = (hold.serial, hold.level, record.facts);
                let granted = Body::Granted { file, request, serial, level, facts };
                self.send(from.member, granted);
                return;
            }
        }
        let until_ms = now_ms + self.tuning.wait_ms;
        let new = Waiter { seat: from, request, level, is_noted: false, until_ms };
        match record.waiters.iter_mut().find(|waiter| waiter.seat == from) {
            Some(waiter) if waiter.request > request => return,
            Some(waiter) if waiter.request == request => waiter.until_ms = until_ms,
            Some(waiter) => *waiter = new,
            None => record.waiters.push_back(new),
        }
        self.process(file, now_ms);
    }

    /// A member says that it writes a file since before it had this seat.
    pub(crate) fn reclaim(
        &mut self,
        from: Seat,
        file: FileId,
        request: u64,
        level: Level,
        now_ms: u64,
    ) {
        let is_known = self.thawed.has(Partition::of_file(file))
            && !self.recalls.contains_key(&from.member)
            && !self.is_fenced;
        if !is_known {
            // It asks again.
            return;
        }
        let hold = self.records.get(&file).and_then(|record| record.holds.get(&from));
        match hold.filter(|hold| hold.level == Level::Write).copied() {
            None => {
                let why = Why::Superseded;
                self.send(from.member, Body::Refused { file, request, why });
            }
            Some(_) if level == Level::Direct => self.open(from, file, request, level, now_ms),
            Some(hold) if hold.is_firm && hold.request == request => {
                let (serial, facts) = (hold.serial, None);
                let level = hold.level;
                self.send(from.member, Body::Granted { file, request, serial, level, facts });
            }
            // One that others wait for is revoked with the new serial, which its holder takes.
            Some(_) => {
                self.grant(file, from, request, Level::Write, false, now_ms);
                self.process(file, now_ms);
            }
        }
    }

    /// A holder has no more than this.
    pub(crate) fn released(
        &mut self,
        from: Seat,
        file: FileId,
        serial: u64,
        level: Level,
        facts: Option<Facts>,
        now_ms: u64,
    ) {
        let Some(record) = self.records.get_mut(&file) else { return };
        let Some(hold) = record.holds.get_mut(&from) else { return };
        let stays = level == Level::Direct && hold.level != Level::None;
        if hold.serial != serial || level > hold.level && !stays {
            return;
        }
        if hold.level == Level::Write {
            // Without them what it left is on the store.
            record.facts = facts.filter(|_| !stays);
        }
        hold.level = level;
        hold.revoke = hold.revoke.filter(|to| level > *to && !stays);
        // A mapping that cannot be taken away: all others use the kernel from now on, too.
        hold.is_asked |= stays;
        if level == Level::None {
            record.holds.remove(&from);
        }
        self.end_direct(file, now_ms);
        self.process(file, now_ms);
    }

    /// A direct file that only one node has left, and did not ask for, need not be one.
    fn end_direct(&mut self, file: FileId, now_ms: u64) {
        let Some(record) = self.records.get_mut(&file) else { return };
        let is_alone = record.holds.len() == 1 && record.waiters.is_empty();
        let is_direct = |hold: &Hold| hold.level == Level::Direct && !hold.is_asked;
        if is_alone && record.holds.values().all(is_direct) {
            record.direct_until_ms = now_ms;
            self.direct_due(file, now_ms);
        }
    }

    /// The time of a direct file may have ended: all give it back, and ask again when a program
    /// wants it.
    pub(crate) fn direct_due(&mut self, file: FileId, now_ms: u64) {
        let Some(record) = self.records.get(&file) else { return };
        let is_asked = record.holds.values().any(|hold| hold.is_asked);
        if now_ms >= record.direct_until_ms && !is_asked {
            let direct = record.holds.iter().filter(|(_, hold)| hold.level == Level::Direct);
            let revoked = direct.map(|(seat, _)| (*seat, Level::None)).collect();
            self.take_back(file, revoked, now_ms);
            self.process(file, now_ms);
        }
    }

    /// Takes back files that are only read, those that were granted longest ago first. Whether any
    /// are on their way.
    fn make_room(&mut self, now_ms: u64) -> bool {
        let is_read = |file: &FileId| {
            self.records.get(file).is_some_and(|record| {
                record.waiters.is_empty()
                    && record.holds.values().all(|hold| hold.level == Level::Read)
            })
        };
        let oldest = self.order.iter().map(|(_, file)| *file).take(LOOKED_AT);
        let files: Vec<FileId> = oldest.filter(is_read).take(TAKEN_BACK).collect();
        for file in &files {
            let holds = self.records.get(file).into_iter().flat_map(|record| record.holds.keys());
            let revoked = holds.map(|seat| (*seat, Level::None)).collect();
            self.take_back(*file, revoked, now_ms);
        }
        !files.is_empty()
    }

    /// Asks holders to give back, those that have not been asked, and later again.
    fn take_back(&mut self, file: FileId, revoked: Vec<(Seat, Level)>, now_ms: u64) {
        for (seat, to) in revoked {
            let is_in = self.is_in(seat);
            let Some(record) = self.records.get_mut(&file) else { return };
            let Some(hold) = record.holds.get_mut(&seat) else { continue };
            if hold.revoke.is_some_and(|before| before <= to) {
                continue;
            }
            hold.revoke = Some(to);
            let serial = hold.serial;
            if record.revoke_due_ms <= now_ms {
                record.revoke_due_ms = now_ms + self.tuning.retry_ms;
                let due_ms = record.revoke_due_ms;
                self.at(due_ms, Task::Revoke(file));
            }
            if is_in {
                self.send(seat.member, Body::Revoke { file, serial, to });
            }
        }
    }

    /// Sends revocations that have no answer again.
    pub(crate) fn revoke_due(&mut self, file: FileId, due_ms: u64, now_ms: u64) {
        let Some(record) = self.records.get_mut(&file) else { return };
        if record.revoke_due_ms != due_ms {
            return;
        }
        let open: Vec<(Seat, u64, Level)> = record
            .holds
            .iter()
            .filter_map(|(seat, hold)| hold.revoke.map(|to| (*seat, hold.serial, to)))
            .collect();
        if open.is_empty() {
            return;
        }
        record.revoke_due_ms = now_ms + self.tuning.retry_ms;
        let due_ms = record.revoke_due_ms;
        self.at(due_ms, Task::Revoke(file));
        for (seat, serial, to) in open {
            if self.is_in(seat) && !self.is_fenced {
                self.send(seat.member, Body::Revoke { file, serial, to });
            }
        }
        self.process(file, now_ms);
    }

    /// Looks at all files that are waited for.
    pub(crate) fn process_all(&mut self, now_ms: u64) {
        let files: Vec<FileId> = self.records.keys().copied().collect();
        files.into_iter().for_each(|file| self.process(file, now_ms));
    }

    /// Grants what can be granted of a file, and asks for what is in the way.
    pub(crate) fn process(&mut self, file: FileId, now_ms: u64) {
        let is_thawed = self.thawed.has(Partition::of_file(file));
        while is_thawed && !self.is_fenced {
            let Some(record) = self.records.get_mut(&file) else { return };
            record.waiters.retain(|waiter| now_ms < waiter.until_ms);
            let Some(waiter) = record.waiters.front().copied() else { break };
            match self.next(file, &waiter, now_ms) {
                Next::Grant(level) => {
                    self.pop_waiter(file);
                    let (seat, request) = (waiter.seat, waiter.request);
                    let is_asked = waiter.level == Level::Direct;
                    self.grant(file, seat, request, level, is_asked, now_ms);
                }
                Next::Refuse(why) => {
                    self.pop_waiter(file);
                    let request = waiter.request;
                    self.send(waiter.seat.member, Body::Refused { file, request, why });
                }
                Next::Revoke(revoked) => {
                    self.take_back(file, revoked, now_ms);
                    return;
                }
                Next::Note(witness) => {
                    let request = waiter.request;
                    self.send(witness.member, Body::Note { file, request, is_held: true });
                    return;
                }
                Next::Wait => return,
            }
        }
        self.tidy_record(file, now_ms);
    }

    fn pop_waiter(&mut self, file: FileId) {
        if let Some(record) = self.records.get_mut(&file) {
            record.waiters.pop_front();
        }
    }

    /// Forgets a file of which nothing is known that matters.
    fn tidy_record(&mut self, file: FileId, now_ms: u64) {
        let is_over = |record: &Record| {
            record.holds.is_empty() && record.waiters.is_empty() && now_ms >= record.direct_until_ms
        };
        if self.records.get(&file).is_some_and(is_over) {
            self.drop_record(file);
        }
    }

    pub(crate) fn drop_record(&mut self, file: FileId) {
        if let Some(record) = self.records.remove(&file) {
            self.order.remove(&(record.last_serial, file));
        }
    }

    fn next(&self, file: FileId, waiter: &Waiter, now_ms: u64) -> Next {
        let Some(record) = self.records.get(&file) else { return Next::Wait };
        let partition = Partition::of_file(file);
        let is_direct = waiter.level == Level::Direct
            || now_ms < record.direct_until_ms
            || record.holds.values().any(|hold| hold.is_asked);
        let level = if is_direct { Level::Direct } else { waiter.level };
        if let Some(why) = self.doubt(file) {
            return why.map_or(Next::Wait, Next::Refuse);
        }
        let mut revoked = Vec::new();
        for (seat, hold) in &record.holds {
            // What it keeps itself is flushed before it, or another one, goes to the store's file.
            let is_own = *seat == waiter.seat && (level != Level::Direct || hold.level == level);
            if is_own || !hold.level.conflicts(level) {
                continue;
            }
            if self.is_in(*seat) {
                revoked.push((*seat, hold.level.beside(level)));
            } else if hold.level == Level::Write && self.is_succeeded(*seat) {
                return Next::Refuse(Why::Lost(seat.member.node));
            } else {
                return Next::Wait;
            }
        }
        if !revoked.is_empty() {
            return Next::Revoke(revoked);
        }
        if self.cautious.has(partition) {
            // One that has gone may still read, or use the kernel, and those who knew it have
            // gone, too.
            return Next::Wait;
        }
        let witness = self.group.as_ref().and_then(|group| group.place(partition, 1));
        match witness.filter(|_| Some(waiter.seat) == self.seat && level == Level::Write) {
            Some(witness) if !waiter.is_noted => Next::Note(witness),
            _ => Next::Grant(level),
        }
    }

    /// Whether a file that no member has may have been written by one that has gone; and if so,
    /// whether that is to be said, or waited for.
    fn doubt(&self, file: FileId) -> Option<Option<Why>> {
        let partition = Partition::of_file(file);
        let doubted = || self.doubts.iter().filter(|(_, partitions)| partitions.has(partition));
        let (seat, _) = doubted().next()?;
        let record = self.records.get(&file);
        let is_held = |record: &crate::home::Record| {
            record.holds.iter().any(|(seat, hold)| self.is_in(*seat) && hold.is_firm)
        };
        if record.is_some_and(is_held) {
            return None;
        }
        let is_over = doubted().all(|(seat, _)| self.is_succeeded(*seat));
        Some(is_over.then_some(Why::Lost(seat.member.node)))
    }

    fn grant(
        &mut self,
        file: FileId,
        seat: Seat,
        request: u64,
        level: Level,
        is_asked: bool,
        now_ms: u64,
    ) {
        let number = self.group.as_ref().map_or(0, |group| group.view.number);
        self.serials += 1;
        let serial = u64::from(number) << 32 | u64::from(self.serials);
        let Some(record) = self.records.get_mut(&file) else { return };
        self.order.remove(&(record.last_serial, file));
        record.last_serial = serial;
        self.order.insert((serial, file));
        let hold = Hold { level, serial, request, is_asked, revoke: None, is_firm: true };
        let before = record.holds.insert(seat, hold);
        // The kernel changes it from now on; or it was written, and what its holder said when it
        // gave it back was lost.
        if level == Level::Direct || before.is_some_and(|before| before.level == Level::Write) {
            record.facts = None;
        }
        let facts = record.facts;
        let node = seat.member.node;
        let mut direct_until_ms = None;
        if level == Level::Write && record.writer != Some(node) {
            let is_move = record.writer.replace(node).is_some();
            record.moves.extend(is_move.then_some(now_ms));
            while record.moves.front().is_some_and(|at| at + self.tuning.thrash_ms < now_ms)
                || record.moves.len() > self.tuning.thrash
            {
                record.moves.pop_front();
            }
            if record.moves.len() >= self.tuning.thrash {
                record.moves.clear();
                record.direct_until_ms = now_ms + self.tuning.direct_ms;
                direct_until_ms = Some(record.direct_until_ms);
            }
        }
        if let Some(until_ms) = direct_until_ms {
            self.at(until_ms, Task::Direct(file));
        }
        self.send(seat.member, Body::Granted { file, request, serial, level, facts });
    }

    /// A home is to write a file itself, or no more: this node, the second place, remembers it.
    pub(crate) fn note(&mut self, from: Seat, file: FileId, request: u64, is_held: bool) {
        let group = self.group.as_ref();
        let place = |place| group.and_then(|group| group.place(Partition::of_file(file), place));
        if place(0) != Some(from) || place(1) != self.seat {
            self.counts.dropped += 1;
            return;
        }
        if is_held {
            let has_room = self.notes.len() < self.tuning.files || self.notes.contains_key(&file);
            if has_room {
                let known = self.notes.entry(file).or_default().entry(from).or_default();
                *known = request.max(*known);
            }
            self.send(from.member, Body::Noted { file, request, is_kept: has_room });
        } else if let Some(seats) = self.notes.get_mut(&file) {
            // One that was sent later, and came before, stays.
            if seats.get(&from).is_some_and(|known| *known <= request) {
                seats.remove(&from);
            }
            if seats.is_empty() {
                self.notes.remove(&file);
            }
        }
    }

    /// The second place remembers it.
    pub(crate) fn noted(
        &mut self,
        from: Seat,
        file: FileId,
        request: u64,
        is_kept: bool,
        now_ms: u64,
    ) {
        let group = self.group.as_ref();
        let witness = group.and_then(|group| group.place(Partition::of_file(file), 1));
        let (me, record) = (self.seat, self.records.get_mut(&file));
        let waiters = record.map(|record| &mut record.waiters);
        let is_it = |waiter: &&mut Waiter| Some(waiter.seat) == me && waiter.request == request;
        let waiter = waiters.and_then(|waiters| waiters.iter_mut().find(is_it));
        let Some(waiter) = waiter.filter(|_| witness == Some(from)) else { return };
        if is_kept {
            waiter.is_noted = true;
        } else if let Some(record) = self.records.get_mut(&file) {
            record.waiters.retain(|waiter| Some(waiter.seat) != me);
            let why = Why::Full;
            self.send(self.me, Body::Refused { file, request, why });
        }
        self.process(file, now_ms);
    }

    /// A member asks for the size of a file.
    pub(crate) fn glimpse_asked(&mut self, from: Seat, file: FileId, request: u64, now_ms: u64) {
        if !self.thawed.has(Partition::of_file(file)) || self.is_fenced {
            // It asks again.
            return;
        }
        let size = |sized| Body::Size { file, request, sized };
        if let Some(why) = self.doubt(file) {
            if let Some(why) = why {
                self.send(from.member, size(Sized::Refused(why)));
            }
            return;
        }
        let record = self.records.get(&file);
        let holds = record.into_iter().flat_map(|record| &record.holds);
        let writer = holds.into_iter().find(|(_, hold)| hold.level == Level::Write);
        let facts = record.and_then(|record| record.facts);
        match writer.map(|(seat, _)| *seat) {
            None => self.send(from.member, size(facts.map_or(Sized::Store, Sized::Known))),
            Some(writer) if self.is_in(writer) => {
                if self.peeks.len() < self.tuning.glimpses {
                    self.requests += 1;
                    let id = self.requests;
                    self.peeks.insert(id, Peek { file, writer, asker: from, request });
                    self.at(now_ms + self.tuning.wait_ms, Task::Peek(id));
                    self.send(writer.member, Body::Peek { file, request: id });
                }
            }
            Some(writer) if self.is_succeeded(writer) => {
                let why = Why::Lost(writer.member.node);
                self.send(from.member, size(Sized::Refused(why)));
            }
            Some(_) => {}
        }
    }

    /// The node that writes a file has answered. One that does not is asked again when the asker
    /// repeats its question, and the home may know better then.
    pub(crate) fn peeked(&mut self, from: Seat, file: FileId, id: u64, facts: Option<Facts>) {
        let is_it = |peek: &Peek| peek.writer == from && peek.file == file;
        if !self.peeks.get(&id).is_some_and(is_it) {
            return;
        }
        let Some(peek) = self.peeks.remove(&id) else { return };
        // An asker that has it no more has flushed it; only word of that was lost.
        let is_asker = peek.asker == from;
        let sized = facts.map(Sized::Known).or(is_asker.then_some(Sized::Store));
        if let Some(sized) = sized {
            let request = peek.request;
            self.send(peek.asker.member, Body::Size { file, request, sized });
        }
    }
}
