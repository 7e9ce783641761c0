//! The side of a directory that has leases, and wants them.

use crate::directory::{Directory, Effect, Task};
use crate::level::{Facts, Level, Sized, Why};
use crate::message::Body;
use forebay_membership::{FileId, Member, Partition};

/// A file that this node has, or wants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Held {
    pub level: Level,
    /// That of the newest grant that has come, or was revoked.
    pub serial: u64,
    /// The request by which it has it.
    pub request: u64,
    /// It was granted, or confirmed, in the seat that the node has now.
    pub is_firm: bool,
    /// The shell is bringing it down to this.
    pub reducing: Option<Level>,
    pub want: Option<Want>,
}

/// What this node has asked a home for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Want {
    pub level: Level,
    pub request: u64,
    /// Grants up to this serial were revoked before they came.
    pub void: u64,
    /// When it is given up; `None`: programs do not wait for it, it is a claim to be confirmed.
    pub until_ms: Option<u64>,
    pub due_ms: u64,
    /// After how long it is sent again.
    pub every_ms: u64,
}

/// A question for a file's size.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Glimpse {
    pub file: FileId,
    pub until_ms: u64,
    pub due_ms: u64,
    pub every_ms: u64,
}

impl Directory {
    /// What programs of this node may do with a file now. Copies of a node that is fenced may be
    /// out of date; what it alone writes is not.
    pub fn usable(&self, file: FileId) -> Level {
        let Some(held) = self.held.get(&file) else { return Level::None };
        match held.level {
            Level::Write => Level::Write,
            level if held.is_firm && !self.is_fenced && self.seat.is_some() => level,
            _ => Level::None,
        }
    }

    /// What this node has of a file, whether it may be used now or not.
    pub fn held(&self, file: FileId) -> Level {
        self.held.get(&file).map_or(Level::None, |held| held.level)
    }

    /// All that this node has: what a later life [adopts](Directory::adopt).
    pub fn all_held(&self) -> Vec<(FileId, Level)> {
        let levels = self.held.iter().map(|(file, held)| (*file, held.level));
        levels.filter(|(_, level)| *level != Level::None).collect()
    }

    /// A program waits for this. The answer is [`Effect::Granted`] or [`Effect::Refused`], once;
    /// [`Why::Late`] after [`Tuning::wait_ms`](crate::Tuning) at the latest. A second want of the
    /// same file goes with the first, and has its deadline; a higher one replaces it.
    pub fn want(&mut self, file: FileId, level: Level, now_ms: u64) {
        let is_new = !self.held.contains_key(&file);
        if level == Level::None {
            return;
        }
        if is_new && self.held.len() >= self.tuning.files {
            self.effects.push(Effect::Refused { file, why: Why::Full });
            return;
        }
        let until_ms = Some(now_ms + self.tuning.wait_ms);
        let is_usable = self.usable(file).covers(level);
        let held = self.held.entry(file).or_default();
        if held.is_firm && held.reducing.is_none() && is_usable {
            self.effects.push(Effect::Granted { file, level: held.level, facts: None });
            return;
        }
        match &mut held.want {
            Some(want) if want.level.covers(level) => want.until_ms = want.until_ms.or(until_ms),
            before => {
                // Those that wait already wait no longer for it.
                let since = before.as_ref().and_then(|want| want.until_ms);
                self.begin_want(file, level, since.or(until_ms), now_ms);
            }
        }
        self.settle(now_ms);
    }

    fn begin_want(&mut self, file: FileId, level: Level, until_ms: Option<u64>, now_ms: u64) {
        self.requests += 1;
        let (request, every_ms) = (self.requests, self.tuning.retry_ms);
        if let Some(held) = self.held.get_mut(&file) {
            let void = held.serial;
            let due_ms = now_ms;
            held.want = Some(Want { level, request, void, until_ms, due_ms, every_ms });
            self.ask(file, now_ms);
        }
    }

    /// Sends the want of a file to its home, and again later.
    fn ask(&mut self, file: FileId, now_ms: u64) {
        let home = self.home(file).filter(|_| !self.is_fenced);
        let Some(held) = self.held.get_mut(&file) else { return };
        let is_claim = held.level == Level::Write && !held.is_firm;
        // What is given back is gone before anything new comes.
        let is_reducing = held.reducing.is_some();
        let Some(want) = &mut held.want else { return };
        let due_ms = now_ms + want.every_ms;
        (want.due_ms, want.every_ms) = (due_ms, (2 * want.every_ms).min(8 * self.tuning.retry_ms));
        let open = Body::Open { file, request: want.request, level: want.level, is_claim };
        self.at(due_ms, Task::Want(file));
        if let Some(home) = home.filter(|_| !is_reducing) {
            self.send(home.member, open);
        }
    }

    pub(crate) fn want_due(&mut self, file: FileId, due_ms: u64, now_ms: u64) {
        let Some(held) = self.held.get_mut(&file) else { return };
        let Some(want) = held.want.as_mut().filter(|want| want.due_ms == due_ms) else { return };
        if want.until_ms.is_some_and(|until_ms| until_ms <= now_ms) {
            self.effects.push(Effect::Refused { file, why: Why::Late });
            let is_claim = held.level == Level::Write && !held.is_firm;
            match is_claim {
                true => want.until_ms = None,
                false => {
                    self.end_want(file);
                    return;
                }
            }
        }
        self.ask(file, now_ms);
    }

    /// Forgets the want of a file.
    fn end_want(&mut self, file: FileId) {
        let Some(held) = self.held.get_mut(&file) else { return };
        let Some(want) = held.want.take() else { return };
        if held.level != Level::Write {
            self.forget_note(file, want.request);
        }
        self.tidy(file);
    }

    /// Forgets a file of which nothing is held and nothing wanted.
    fn tidy(&mut self, file: FileId) {
        let is_over = |held: &Held| held.level == Level::None && held.want.is_none();
        if self.held.get(&file).is_some_and(is_over) {
            self.held.remove(&file);
        }
    }

    /// This node does not write a file of its own any more: the second place need not know it.
    fn forget_note(&mut self, file: FileId, request: u64) {
        let group = self.group.as_ref().filter(|_| self.home(file) == self.seat);
        let witness = group.and_then(|group| group.place(Partition::of_file(file), 1));
        if let Some(witness) = witness.filter(|_| self.seat.is_some()) {
            self.send(witness.member, Body::Note { file, request, is_held: false });
        }
    }

    pub(crate) fn granted(
        &mut self,
        home: Member,
        file: FileId,
        request: u64,
        serial: u64,
        (level, facts): (Level, Option<Facts>),
    ) {
        if self.is_fenced {
            return;
        }
        let Some(held) = self.held.get_mut(&file) else {
            self.send(home, Body::Released { file, serial, level: Level::None, facts: None });
            return;
        };
        if held.reducing.is_some() {
            // It is sent again when this node asks again.
            return;
        }
        let is_it = |want: &mut Want| {
            want.request == request && serial > want.void && level.covers(want.level)
        };
        if let Some(want) = held.want.take_if(is_it) {
            (held.level, held.serial, held.request) = (level, serial, request);
            held.is_firm = true;
            if want.until_ms.is_some() {
                self.effects.push(Effect::Granted { file, level, facts });
            }
        } else if serial > held.serial {
            // One that is not wanted any more: the home must not wait for it.
            held.serial = serial;
            let level = held.level;
            self.send(home, Body::Released { file, serial, level, facts: None });
        }
    }

    pub(crate) fn refused(&mut self, file: FileId, request: u64, why: Why) {
        let Some(held) = self.held.get_mut(&file) else { return };
        let Some(want) = held.want.as_ref().filter(|want| want.request == request) else { return };
        if want.until_ms.is_some() {
            self.effects.push(Effect::Refused { file, why });
        }
        if why == Why::Superseded && held.level == Level::Write && !held.is_firm {
            (held.level, held.reducing) = (Level::None, None);
            self.effects.push(Effect::Lost { file });
        }
        self.end_want(file);
    }

    pub(crate) fn revoke(&mut self, home: Member, file: FileId, serial: u64, to: Level) {
        let none = Body::Released { file, serial, level: Level::None, facts: None };
        let Some(held) = self.held.get_mut(&file) else {
            self.send(home, none);
            return;
        };
        if serial < held.serial {
            return;
        }
        if let Some(want) = &mut held.want {
            want.void = want.void.max(serial);
        }
        held.serial = serial;
        if held.level <= to && held.level != Level::Direct {
            let level = held.level;
            self.send(home, Body::Released { file, serial, level, facts: None });
        } else if held.reducing.is_none_or(|reducing| to < reducing) {
            held.reducing = Some(to);
            self.effects.push(Effect::Reduce { file, to });
        }
    }

    /// The shell has brought a file down to this level: what is above is flushed, and dropped. The
    /// facts are those of a file that it has written. It may do so unasked. Of a direct file
    /// nothing is left, unless the level is direct: then the kernel uses the file for a mapping,
    /// which cannot be taken away, nothing is kept of it here, and programs wait until this node
    /// [wants](Directory::want) it direct and was granted it.
    pub fn reduced(&mut self, file: FileId, level: Level, facts: Option<Facts>, now_ms: u64) {
        let stays = level == Level::Direct;
        let is_it = |held: &&mut Held| held.level != Level::None && (stays || level < held.level);
        let Some(held) = self.held.get_mut(&file).filter(is_it) else { return };
        let was_written = held.level == Level::Write;
        let level = if held.level == Level::Direct && !stays { Level::None } else { level };
        held.level = level;
        held.is_firm &= !stays;
        held.reducing = held.reducing.filter(|to| !stays && level > *to);
        let (serial, request) = (held.serial, held.request);
        let facts = facts.filter(|_| was_written);
        if was_written {
            self.forget_note(file, request);
        }
        if let Some(home) = self.home(file) {
            self.send(home.member, Body::Released { file, serial, level, facts });
        }
        let is_done = self.held.get(&file).is_some_and(|held| held.reducing.is_none());
        self.tidy(file);
        if is_done && let Some(want) = self.held.get_mut(&file).and_then(|held| held.want.as_mut())
        {
            want.every_ms = self.tuning.retry_ms;
            self.ask(file, now_ms);
        }
        self.settle(now_ms);
    }

    /// No program of this node has the file any more, and nothing is kept of it: all of it is given
    /// back, and nothing wanted.
    pub fn release(&mut self, file: FileId, now_ms: u64) {
        self.end_want(file);
        self.reduced(file, Level::None, None, now_ms);
    }

    /// A pool that this node's manager goes on with has this of a file, from an earlier life. To
    /// be called before the first view. The shell is told to drop copies, which others may have
    /// overwritten; what it was writing is claimed, and refused as [lost](Effect::Lost) where
    /// others have been given it.
    pub fn adopt(&mut self, file: FileId, level: Level) {
        if level != Level::None {
            self.held.insert(file, Held { level, ..Held::default() });
            self.unsettle_file(file);
        }
    }

    /// What was held before is not sure any more: copies are dropped, the rest is claimed.
    fn unsettle_file(&mut self, file: FileId) {
        let Some(held) = self.held.get_mut(&file) else { return };
        held.is_firm = false;
        if matches!(held.level, Level::Read | Level::Direct) && held.reducing != Some(Level::None) {
            held.reducing = Some(Level::None);
            self.effects.push(Effect::Reduce { file, to: Level::None });
        }
    }

    /// This node is in a new view. Of a new seat nothing that it had is sure.
    pub(crate) fn hold_on(&mut self, is_new_seat: bool, now_ms: u64) {
        let files: Vec<FileId> = self.held.keys().copied().collect();
        for file in files {
            if is_new_seat {
                self.unsettle_file(file);
            }
            let Some(held) = self.held.get_mut(&file) else { continue };
            let is_claim = held.level == Level::Write && !held.is_firm;
            match &mut held.want {
                Some(want) => {
                    want.every_ms = self.tuning.retry_ms;
                    self.ask(file, now_ms);
                }
                None if is_claim => self.begin_want(file, Level::Write, None, now_ms),
                None => {}
            }
        }
        let glimpses: Vec<u64> = self.glimpses.keys().copied().collect();
        glimpses.into_iter().for_each(|token| self.ask_size(token, now_ms));
    }

    /// Asks for size and time of a file that this node does not hold. Returns what the answer,
    /// [`Effect::Glimpsed`], has; it comes within [`Tuning::wait_ms`](crate::Tuning).
    pub fn glimpse(&mut self, file: FileId, now_ms: u64) -> u64 {
        self.requests += 1;
        let token = self.requests;
        if self.glimpses.len() >= self.tuning.glimpses {
            let sized = Sized::Refused(Why::Full);
            self.effects.push(Effect::Glimpsed { file, token, sized });
            return token;
        }
        let (until_ms, every_ms) = (now_ms + self.tuning.wait_ms, self.tuning.retry_ms);
        self.glimpses.insert(token, Glimpse { file, until_ms, due_ms: now_ms, every_ms });
        self.ask_size(token, now_ms);
        self.settle(now_ms);
        token
    }

    fn ask_size(&mut self, token: u64, now_ms: u64) {
        let Some(glimpse) = self.glimpses.get_mut(&token) else { return };
        // Not later than it is given up, however often the view changes.
        glimpse.due_ms = (now_ms + glimpse.every_ms).min(glimpse.until_ms.max(now_ms));
        glimpse.every_ms = (2 * glimpse.every_ms).min(8 * self.tuning.retry_ms);
        let (file, due_ms) = (glimpse.file, glimpse.due_ms);
        self.at(due_ms, Task::Glimpse(token));
        if let Some(home) = self.home(file).filter(|_| !self.is_fenced) {
            self.send(home.member, Body::Glimpse { file, request: token });
        }
    }

    pub(crate) fn glimpse_due(&mut self, token: u64, due_ms: u64, now_ms: u64) {
        let is_it = |glimpse: &&Glimpse| glimpse.due_ms == due_ms;
        let Some(glimpse) = self.glimpses.get(&token).filter(is_it) else { return };
        match glimpse.until_ms <= now_ms {
            true => self.glimpsed(glimpse.file, token, Sized::Refused(Why::Late)),
            false => self.ask_size(token, now_ms),
        }
    }

    pub(crate) fn glimpsed(&mut self, file: FileId, token: u64, sized: Sized) {
        if self.glimpses.get(&token).is_some_and(|glimpse| glimpse.file == file) {
            self.glimpses.remove(&token);
            self.effects.push(Effect::Glimpsed { file, token, sized });
        }
    }

    pub(crate) fn peek(&mut self, home: Member, file: FileId, request: u64) {
        match self.held.get(&file).is_some_and(|held| held.level == Level::Write) {
            true => self.effects.push(Effect::Measure { file, token: (home, request) }),
            false => self.send(home, Body::Peeked { file, request, facts: None }),
        }
    }

    /// The answer to [`Effect::Measure`], with the token from there.
    pub fn sized(&mut self, file: FileId, token: (Member, u64), facts: Facts, now_ms: u64) {
        let is_mine = self.held.get(&file).is_some_and(|held| held.level == Level::Write);
        let facts = Some(facts).filter(|_| is_mine);
        self.send(token.0, Body::Peeked { file, request: token.1, facts });
        self.settle(now_ms);
    }
}
