//! The side of a directory that has leases, and wants them.

use crate::directory::{Directory, Effect, Task};
use crate::level::{Facts, Level, Sized, Why};
use crate::message::Body;
use crate::object::{Ahead, Object, Of, Run, Terms};
use forebay_membership::{FileId, Member};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeBounds;

/// What this node has, or wants.
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
    pub reducing: Option<Reducing>,
    pub want: Option<Want>,
}

impl Held {
    /// It is to be confirmed before anything else is asked.
    fn is_claim(&self) -> bool {
        self.level.is_dirty() && !self.is_firm
    }
}

/// How much of something is to be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reducing {
    /// All above this,
    pub to: Level,
    /// but it may be shared.
    pub may_share: bool,
}

impl Reducing {
    /// Whether who has this has given back enough.
    pub(crate) fn is_met(self, level: Level) -> bool {
        level <= self.to || self.may_share && level == Level::Shared
    }

    /// Whether more is to be given back than by an earlier word.
    pub(crate) fn is_more(self, before: Self) -> bool {
        self.to < before.to || before.may_share && !self.may_share
    }

    /// As much as both ask for.
    pub(crate) fn and(self, before: Option<Self>) -> Self {
        before.map_or(self, |before| Self {
            to: self.to.min(before.to),
            may_share: self.may_share && before.may_share,
        })
    }
}

/// What this node has asked a home for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Want {
    pub level: Level,
    pub terms: Terms,
    pub request: u64,
    /// Grants up to this serial were revoked before they came.
    pub void: u64,
    /// When it is given up; `None`: programs do not wait for it, it is a claim to be confirmed.
    pub until_ms: Option<u64>,
    pub due_ms: u64,
    /// After how long it is sent again.
    pub every_ms: u64,
}

/// What a home has granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub request: u64,
    pub serial: u64,
    pub level: Level,
    pub facts: Option<Facts>,
    pub ahead: Ahead,
}

/// A question for a file's size.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Glimpse {
    pub file: FileId,
    pub until_ms: u64,
    pub due_ms: u64,
    pub every_ms: u64,
}

/// Whether who has the one level need not ask for the other.
pub(crate) fn serves(level: Level, wanted: Level, terms: Terms) -> bool {
    level.covers(wanted)
        || terms.may_share && level == Level::Shared
        || terms.may_borrow && level == Level::Borrowed
}

impl Directory {
    /// What programs of this node may do with this now: with a part, or the size, what they may do
    /// with the whole, unless that is shared; then what its own lease says. Copies of a node that
    /// is fenced may be out of date; what it alone writes is not.
    pub fn usable(&self, object: Object) -> Level {
        match self.own(object.in_whole()) {
            Level::Shared if !object.is_whole() => match self.own(object) {
                level if level.is_dirty() || self.is_sure(object.in_whole()) => level,
                _ => Level::None,
            },
            level => level,
        }
    }

    /// What its own lease says that may be done with it now.
    fn own(&self, object: Object) -> Level {
        match self.held(object) {
            level if level.is_dirty() || self.is_sure(object) => level,
            _ => Level::None,
        }
    }

    fn is_sure(&self, object: Object) -> bool {
        let is_firm = self.held.get(&object).is_some_and(|held| held.is_firm);
        is_firm && !self.is_fenced && self.seat.is_some()
    }

    /// The lease that this node has of this, whether it may be used now or not.
    pub fn held(&self, object: Object) -> Level {
        self.held.get(&object).map_or(Level::None, |held| held.level)
    }

    /// All that this node has: what a later life [adopts](Directory::adopt).
    pub fn all_held(&self) -> Vec<(Object, Level)> {
        let levels = self.held.iter().map(|(object, held)| (*object, held.level));
        levels.filter(|(_, level)| *level != Level::None).collect()
    }

    /// A program waits for this. The answer is [`Effect::Granted`] or [`Effect::Refused`], once;
    /// [`Why::Late`] after [`Tuning::wait_ms`](crate::Tuning) at the latest. A second want of the
    /// same goes with the first, and has its deadline; a higher one replaces it, and so does one
    /// that does not share.
    ///
    /// With the want of a whole, what this node has of other files that have had its inode is
    /// [released](Directory::release): they are gone, and their record is this one's.
    ///
    /// A part, or the size, has a lease of its own only while this node shares the whole, or writes
    /// it and is asked to share it. Where it has the whole at another level, that is the answer, at
    /// once; else it is [`Why::Unshared`]. That is the answer, too, when the whole is taken away
    /// before the part comes, or has a level that a part cannot have.
    pub fn want(&mut self, object: Object, level: Level, terms: Terms, now_ms: u64) {
        if level == Level::None {
            return;
        }
        if object.is_whole() {
            for namesakes in Object::of_namesakes(object.file) {
                self.release_all(namesakes, |_| true, now_ms);
            }
        }
        let mut level = level;
        if !(object.is_whole() || object.may_have(level) && self.has_parts(object)) {
            let has = self.usable(object.in_whole());
            let is_had = object.may_have(level) && has != Level::Shared && has.covers(level);
            self.effects.push(match is_had {
                true => Effect::Granted { object, level: has, facts: None },
                false => Effect::Refused { object, why: Why::Unshared },
            });
            return;
        }
        if !self.held.contains_key(&object) && self.held.len() >= self.tuning.files {
            self.effects.push(Effect::Refused { object, why: Why::Full });
            return;
        }
        if object.is_whole() && level == Level::Read && self.held(object) == Level::Shared {
            // What it has may be nowhere else: only alone it has more.
            level = Level::Write;
        }
        let terms = terms.of(object, level);
        let until_ms = Some(now_ms + self.tuning.wait_ms);
        // Who shares a whole and wants it is told whether it is alone by now.
        let is_usable = self.own(object).covers(level) && !self.is_blocked(object);
        let held = self.held.entry(object).or_default();
        if held.is_firm && held.reducing.is_none() && is_usable {
            self.effects.push(Effect::Granted { object, level: held.level, facts: None });
            return;
        }
        // A want that could be answered by less than this one needs does not do.
        let does = |want: &Want| {
            serves(want.level, level, terms)
                && (terms.may_share || !want.terms.may_share)
                && (terms.may_borrow || !want.terms.may_borrow)
        };
        match &mut held.want {
            Some(want) if does(want) => want.until_ms = want.until_ms.or(until_ms),
            before => {
                // Those that wait already wait no longer for it.
                let since = before.as_ref().and_then(|want| want.until_ms);
                let most = before.as_ref().map_or(level, |want| want.level.max(level));
                self.begin_want(object, (most, terms), since.or(until_ms), now_ms);
            }
        }
        self.settle(now_ms);
    }

    /// Whether leases of parts are to be had: the whole is shared, or may be soon.
    fn has_parts(&self, object: Object) -> bool {
        self.held.get(&object.in_whole()).is_some_and(|whole| match whole.level {
            Level::Shared => true,
            Level::Write => whole.reducing.is_some(),
            _ => false,
        })
    }

    /// Whether the file of a part is being given back: nothing new comes.
    fn is_blocked(&self, object: Object) -> bool {
        let whole = self.held.get(&object.in_whole()).filter(|_| !object.is_whole());
        whole.is_some_and(|whole| whole.level == Level::Shared && whole.reducing.is_some())
    }

    fn begin_want(
        &mut self,
        object: Object,
        (level, terms): (Level, Terms),
        until_ms: Option<u64>,
        now_ms: u64,
    ) {
        self.drop_want(object);
        self.requests += 1;
        let (request, every_ms) = (self.requests, self.tuning.retry_ms);
        if let Some(held) = self.held.get_mut(&object) {
            let void = held.serial;
            let due_ms = now_ms;
            held.want = Some(Want { level, terms, request, void, until_ms, due_ms, every_ms });
            if terms.ahead > 0 {
                self.asking.insert(object, 0);
            }
            self.ask(object, now_ms);
        }
    }

    /// Sends a want to its home, and again later.
    fn ask(&mut self, object: Object, now_ms: u64) {
        let home = self.home(object).filter(|_| !self.is_fenced);
        let whole = self.held.get(&object.in_whole());
        let (is_kept, is_sure) = whole.map_or((false, false), |whole| {
            (whole.level.is_dirty(), whole.is_firm && self.has_parts(object))
        });
        let is_blocked = self.is_blocked(object);
        let Some(held) = self.held.get_mut(&object) else { return };
        let is_claim = held.is_claim();
        // What is given back is gone before anything new comes. A part is claimed with its whole,
        // and wanted under one that is sure.
        let may_ask = held.reducing.is_none()
            && match object.of {
                Of::Whole => true,
                _ if is_claim => is_kept,
                _ => is_sure && !is_blocked,
            };
        let Some(want) = &mut held.want else { return };
        let due_ms = now_ms + want.every_ms;
        (want.due_ms, want.every_ms) = (due_ms, (2 * want.every_ms).min(8 * self.tuning.retry_ms));
        // A claim is of what it has, whatever is wanted of it: that is asked when this is sure.
        let level = if is_claim { held.level } else { want.level };
        let (request, terms) = (want.request, want.terms.of(object, level));
        self.at(due_ms, Task::Want(object));
        if let Some(home) = home.filter(|_| may_ask) {
            self.send(home.member, Body::Open { object, request, level, is_claim, terms });
        }
    }

    pub(crate) fn want_due(&mut self, object: Object, due_ms: u64, now_ms: u64) {
        let Some(held) = self.held.get_mut(&object) else { return };
        let is_claim = held.is_claim();
        let Some(want) = held.want.as_mut().filter(|want| want.due_ms == due_ms) else { return };
        if want.until_ms.is_some_and(|until_ms| until_ms <= now_ms) {
            self.effects.push(Effect::Refused { object, why: Why::Late });
            match is_claim {
                true => want.until_ms = None,
                false => {
                    self.end_want(object);
                    return;
                }
            }
        }
        self.ask(object, now_ms);
    }

    /// Forgets a want.
    fn end_want(&mut self, object: Object) {
        self.drop_want(object);
        self.tidy(object);
    }

    fn drop_want(&mut self, object: Object) {
        let Some(held) = self.held.get_mut(&object) else { return };
        let Some(want) = held.want.take() else { return };
        let is_kept = held.level.is_dirty();
        self.asking.remove(&object);
        let ahead = want.terms.all().filter(object, |part| !self.held(part).is_dirty());
        match (is_kept, ahead.is_empty()) {
            (false, _) => self.forget_notes(object, want.request, ahead),
            (true, true) => {}
            (true, false) => {
                ahead.from(object).for_each(|part| {
                    self.forget_notes(part, want.request, Ahead::default());
                });
            }
        }
    }

    /// Forgets what is not held and not wanted.
    fn tidy(&mut self, object: Object) {
        let is_over = |held: &Held| held.level == Level::None && held.want.is_none();
        if self.held.get(&object).is_some_and(is_over) {
            self.held.remove(&object);
        }
    }

    /// This node does not write these any more, of which it is the home: the second place need not
    /// know it.
    fn forget_notes(&mut self, object: Object, request: u64, ahead: Ahead) {
        let group = self.group.as_ref().filter(|_| self.home(object) == self.seat);
        let witness = group.and_then(|group| group.place(object.partition(), 1));
        if let Some(witness) = witness.filter(|_| self.seat.is_some()) {
            let level = Level::Write;
            let note = Body::Note { object, request, level, is_held: false, ahead };
            self.send(witness.member, note);
        }
    }

    pub(crate) fn granted(&mut self, home: Member, object: Object, grant: Grant, now_ms: u64) {
        let Grant { request, serial, level, facts, .. } = grant;
        let is_reducing = self.held.get(&object).is_some_and(|held| held.reducing.is_some());
        if self.is_fenced || is_reducing || self.is_blocked(object) {
            // It is sent again when this node asks again.
            return;
        }
        let is_it = |want: &mut Want| {
            want.request == request && serial > want.void && serves(level, want.level, want.terms)
        };
        let is_confirmed = |held: &Held| {
            let wants = held.want.as_ref().is_some_and(|want| {
                want.request == request
                    && serial > want.void
                    && !serves(level, want.level, want.terms)
            });
            wants && held.is_claim() && level == held.level
        };
        let mut void = None;
        if let Some(held) = self.held.get_mut(&object).filter(|held| is_confirmed(held)) {
            // Now that it is sure, what is wanted of it can be asked.
            (held.serial, held.request, held.is_firm) = (serial, request, true);
            match held.want.take() {
                Some(want) if want.until_ms.is_some() => {
                    self.begin_want(object, (want.level, want.terms), want.until_ms, now_ms);
                }
                _ => {}
            }
        } else if let Some(held) = self.held.get_mut(&object) {
            if let Some(want) = held.want.take_if(is_it) {
                (held.level, held.serial, held.request) = (level, serial, request);
                held.is_firm = true;
                if want.until_ms.is_some() {
                    self.effects.push(Effect::Granted { object, level, facts });
                }
                void = Some(self.asking.remove(&object).unwrap_or(0));
            } else if serial > held.serial {
                // One that is not wanted any more: the home must not wait for it.
                held.serial = serial;
                let level = held.level;
                self.say_released(home, object, serial, level);
            }
        } else {
            self.say_released(home, object, serial, Level::None);
        }
        self.take_ahead(home, object, grant, void, now_ms);
        if void.is_some() && object.is_whole() {
            self.whole_granted(object, now_ms);
        }
    }

    fn say_released(&mut self, home: Member, object: Object, serial: u64, level: Level) {
        let ahead = Ahead::default();
        self.send(home, Body::Released { object, serial, level, facts: None, ahead });
    }

    /// Takes parts that were granted together with one, if that was wanted, and they were not
    /// revoked before they came.
    fn take_ahead(
        &mut self,
        home: Member,
        object: Object,
        grant: Grant,
        void: Option<u64>,
        now_ms: u64,
    ) {
        let Grant { request, serial, level, .. } = grant;
        let is_wanted = void.is_some_and(|void| serial > void);
        let (mut taken, mut answered) = (Vec::new(), Vec::new());
        for part in grant.ahead.from(object) {
            let known = self.held.get_mut(&part);
            let is_new = known.is_none();
            if known.as_ref().is_some_and(|held| held.serial >= serial) {
                continue;
            }
            let is_free = known
                .as_ref()
                .is_none_or(|held| held.level == Level::None && held.reducing.is_none());
            let has_room = !is_new || self.held.len() < self.tuning.files;
            if !(is_wanted && is_free && has_room) {
                let level = self.held.get_mut(&part).map_or(Level::None, |held| {
                    held.serial = serial;
                    held.level
                });
                self.say_released(home, part, serial, level);
                continue;
            }
            let held = self.held.entry(part).or_default();
            (held.level, held.serial, held.request) = (level, serial, request);
            held.is_firm = true;
            if let Of::Part(number) = part.of {
                taken.push(number);
            }
            answered.extend(held.want.as_ref().map(|_| part));
        }
        if !taken.is_empty() {
            let runs = Run::of(taken);
            self.effects.push(Effect::Ahead { file: object.file, level, runs });
        }
        for part in answered {
            // Its own request is older for the home than this grant.
            let Some(want) = self.held.get(&part).and_then(|held| held.want.clone()) else {
                continue;
            };
            if !level.covers(want.level) {
                self.begin_want(part, (want.level, want.terms), want.until_ms, now_ms);
                continue;
            }
            if want.until_ms.is_some() {
                self.effects.push(Effect::Granted { object: part, level, facts: None });
            }
            self.end_want(part);
        }
    }

    /// What programs wait for of parts can be asked, or is answered by what the whole is now.
    fn whole_granted(&mut self, whole: Object, now_ms: u64) {
        let level = self.held(whole);
        let wanted = self.held.range(Object::below(whole.file));
        let wanted = wanted.filter_map(|(part, held)| Some((*part, held.want.as_ref()?.level)));
        let wanted: Vec<(Object, Level)> = wanted.collect();
        for (object, wanted) in wanted {
            if level == Level::Shared {
                self.ask(object, now_ms);
                continue;
            }
            self.effects.push(match level.covers(wanted) {
                true => Effect::Granted { object, level, facts: None },
                false => Effect::Refused { object, why: Why::Unshared },
            });
            self.end_want(object);
        }
    }

    /// The whole is not shared any more: gives back all parts, and the size, and says what was made
    /// of that.
    fn drop_parts(&mut self, file: FileId, facts: Option<Facts>) {
        let below = self.held.range(Object::below(file)).map(|(object, _)| *object);
        let below: Vec<Object> = below.collect();
        let mut parts: BTreeMap<_, Vec<u32>> = BTreeMap::new();
        for object in below {
            let want = self.held.get(&object).and_then(|held| held.want.as_ref());
            if want.is_some_and(|want| want.until_ms.is_some()) {
                self.effects.push(Effect::Refused { object, why: Why::Unshared });
            }
            self.drop_want(object);
            let Some(held) = self.held.remove(&object) else { continue };
            let (serial, request, level) = (held.serial, held.request, held.level);
            match object.of {
                _ if level == Level::None => {}
                Of::Part(part) => {
                    let of = (object.partition(), serial, request, level);
                    parts.entry(of).or_default().push(part);
                }
                Of::Whole | Of::Size => {
                    let facts = facts.filter(|_| level.is_dirty());
                    if level.is_dirty() {
                        self.forget_notes(object, request, Ahead::default());
                    }
                    if let Some(home) = self.home(object) {
                        let (level, ahead) = (Level::None, Ahead::default());
                        let body = Body::Released { object, serial, level, facts, ahead };
                        self.send(home.member, body);
                    }
                }
            }
        }
        for ((_, serial, request, level), parts) in parts {
            for (first, ahead) in Ahead::groups(&parts) {
                let object = Object::part(file, first);
                if level.is_dirty() {
                    self.forget_notes(object, request, ahead);
                }
                if let Some(home) = self.home(object) {
                    let (level, facts) = (Level::None, None);
                    let body = Body::Released { object, serial, level, facts, ahead };
                    self.send(home.member, body);
                }
            }
        }
    }

    pub(crate) fn refused(&mut self, object: Object, request: u64, why: Why) {
        let Some(held) = self.held.get_mut(&object) else { return };
        let Some(want) = held.want.as_ref().filter(|want| want.request == request) else { return };
        if want.until_ms.is_some() {
            self.effects.push(Effect::Refused { object, why });
        }
        if why == Why::Superseded && held.is_claim() {
            (held.level, held.reducing) = (Level::None, None);
            self.effects.push(Effect::Lost { object });
            if object.is_whole() {
                self.drop_parts(object.file, None);
            }
        }
        self.end_want(object);
    }

    pub(crate) fn revoke(&mut self, home: Member, object: Object, serial: u64, to: Reducing) {
        if let Of::Part(_) = object.of {
            // It may be on its way together with another one.
            let partition = object.partition();
            let asking = self.asking.range_mut(Object::below(object.file));
            let asking = asking.filter(|(other, _)| other.partition() == partition);
            asking.for_each(|(_, void)| *void = serial.max(*void));
        }
        let Some(held) = self.held.get_mut(&object) else {
            self.say_released(home, object, serial, Level::None);
            return;
        };
        if serial < held.serial {
            return;
        }
        if let Some(want) = &mut held.want {
            want.void = want.void.max(serial);
        }
        held.serial = serial;
        let may_share = to.may_share && held.level == Level::Write;
        if to.is_met(held.level) && held.level != Level::Direct {
            let level = held.level;
            self.say_released(home, object, serial, level);
        } else if held.reducing.is_none_or(|before| Reducing { may_share, ..to }.is_more(before)) {
            let to = Reducing { may_share, ..to }.and(held.reducing);
            held.reducing = Some(to);
            let Reducing { to, may_share } = to;
            self.effects.push(Effect::Reduce { object, to, may_share });
        }
    }

    /// The shell has brought this down to this level: what is above is flushed, and dropped. The
    /// facts are those of a file that it has written, or extended. It may do so unasked. Of what
    /// is direct, or shared, nothing is left, whatever the level, unless that is direct, of a
    /// whole: then the kernel uses the file for a mapping, which cannot be taken away, nothing is
    /// kept of it here, and programs wait until this node [wants](Directory::want) it direct and
    /// was granted it. A whole that it wrote may be shared, or lent, from now on; with a whole that
    /// is not shared any more go all parts, and the size.
    pub fn reduced(&mut self, object: Object, level: Level, facts: Option<Facts>, now_ms: u64) {
        let stays = level == Level::Direct && object.is_whole();
        let is_it = |held: &&Held| held.level != Level::None && (stays || level < held.level);
        let Some(held) = self.held.get(&object).filter(is_it) else { return };
        let was = held.level;
        let level = match was {
            _ if stays => Level::Direct,
            Level::Direct | Level::Shared => Level::None,
            _ if level == Level::Shared && !object.is_whole() => Level::None,
            _ => level,
        };
        if object.is_whole() && was.is_dirty() && !level.is_dirty() {
            self.drop_parts(object.file, facts);
        }
        let Some(held) = self.held.get_mut(&object) else { return };
        held.level = level;
        held.is_firm &= !stays;
        held.reducing = held.reducing.filter(|to| !stays && !to.is_met(level));
        let (serial, request) = (held.serial, held.request);
        let has_facts = match object.of {
            Of::Whole => was.is_its_own(),
            Of::Size => was.is_dirty(),
            Of::Part(_) => false,
        };
        let facts = facts.filter(|_| has_facts);
        if was.is_dirty() && !level.is_dirty() {
            self.forget_notes(object, request, Ahead::default());
        }
        if let Some(home) = self.home(object) {
            let ahead = Ahead::default();
            self.send(home.member, Body::Released { object, serial, level, facts, ahead });
        }
        let is_done = self.held.get(&object).is_some_and(|held| held.reducing.is_none());
        self.tidy(object);
        let want = self.held.get_mut(&object).and_then(|held| held.want.as_mut());
        if is_done && let Some(want) = want {
            want.every_ms = self.tuning.retry_ms;
            self.ask(object, now_ms);
        }
        self.settle(now_ms);
    }

    /// No program of this node has this any more, and nothing is kept of it: all of it is given
    /// back, and nothing wanted. Of a whole that is all of the file.
    pub fn release(&mut self, object: Object, now_ms: u64) {
        self.end_want(object);
        self.reduced(object, Level::None, None, now_ms);
    }

    /// [Releases](Directory::release) all that this node has of other files than `kept`.
    pub fn release_others(&mut self, kept: &BTreeSet<FileId>, now_ms: u64) {
        self.release_all(.., |file| !kept.contains(&file), now_ms);
    }

    fn release_all(
        &mut self,
        of: impl RangeBounds<Object>,
        is_it: impl Fn(FileId) -> bool,
        now_ms: u64,
    ) {
        let found = self.held.range(of).map(|(object, _)| *object);
        let found: Vec<Object> = found.filter(|object| is_it(object.file)).collect();
        // A whole comes before what goes with it.
        found.into_iter().for_each(|object| self.release(object, now_ms));
    }

    /// A pool that this node's manager goes on with has this, from an earlier life. To be called
    /// before the first view. The shell is told to drop copies, which others may have overwritten;
    /// what it was writing is claimed, and refused as [lost](Effect::Lost) where others have been
    /// given it. Of a part whose whole it does not share nothing is claimed: it is lost.
    pub fn adopt(&mut self, object: Object, level: Level) {
        if level != Level::None && object.may_have(level) {
            self.held.insert(object, Held { level, ..Held::default() });
            self.unsettle(object);
        }
    }

    /// What was held before is not sure any more: copies are dropped, the rest is claimed.
    pub(crate) fn unsettle(&mut self, object: Object) {
        let Some(held) = self.held.get_mut(&object) else { return };
        held.is_firm = false;
        let is_kept = matches!(held.level, Level::Borrowed | Level::Read | Level::Direct);
        if is_kept && held.reducing.is_none_or(|to| to.to != Level::None) {
            let (to, may_share) = (Level::None, false);
            held.reducing = Some(Reducing { to, may_share });
            self.effects.push(Effect::Reduce { object, to, may_share });
        }
    }

    /// This node is in a new view. Of a new seat nothing that it had is sure.
    pub(crate) fn hold_on(&mut self, is_new_seat: bool, now_ms: u64) {
        let objects: Vec<Object> = self.held.keys().copied().collect();
        for object in objects {
            if is_new_seat {
                self.unsettle(object);
            }
            let is_alone = !object.is_whole() && !self.held(object.in_whole()).is_dirty();
            if is_alone && self.held(object).is_dirty() {
                self.held.remove(&object);
                self.effects.push(Effect::Lost { object });
            }
            let Some(held) = self.held.get_mut(&object) else { continue };
            let level = held.level;
            let is_claim = held.is_claim();
            match &mut held.want {
                Some(want) => {
                    want.every_ms = self.tuning.retry_ms;
                    self.ask(object, now_ms);
                }
                None if is_claim => {
                    self.begin_want(object, (level, Terms::default()), None, now_ms);
                }
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
        if let Some(home) = self.home(Object::whole(file)).filter(|_| !self.is_fenced) {
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

    pub(crate) fn peek(&mut self, home: Member, object: Object, request: u64) {
        if self.has_size(object) {
            self.effects.push(Effect::Measure { object, token: (home, request) });
        } else if !self.has_turned(object) {
            self.send(home, Body::Peeked { object, request, facts: None });
        }
    }

    /// Whether it may know a size by this that no other node knows.
    fn has_size(&self, object: Object) -> bool {
        match object.of {
            Of::Whole => self.held(object).is_its_own(),
            Of::Size => self.held(object).is_dirty(),
            Of::Part(_) => false,
        }
    }

    /// Whether it shares a whole of which its home believes that it writes it: word of that is on
    /// its way, and what this node has of the size may be nowhere else. It is asked for that then.
    fn has_turned(&self, object: Object) -> bool {
        object.is_whole() && self.held(object) == Level::Shared
    }

    /// The answer to [`Effect::Measure`], with the token from there; `None` if the store has all
    /// that was acknowledged.
    pub fn sized(
        &mut self,
        object: Object,
        token: (Member, u64),
        facts: Option<Facts>,
        now_ms: u64,
    ) {
        let facts = facts.filter(|_| self.has_size(object));
        if !self.has_turned(object) {
            self.send(token.0, Body::Peeked { object, request: token.1, facts });
        }
        self.settle(now_ms);
    }
}
