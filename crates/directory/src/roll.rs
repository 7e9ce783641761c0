//! The roll call of a view: how the homes of a view learn that each member has told them what it
//! holds.
//!
//! The members of a view are a tree, by their place in it: each has up to
//! [`Tuning::below`](crate::Tuning) below it. Of two steps each goes up, from those that have no
//! member below them, and down again from the first member of the view:
//!
//! | step | up, of a member and all below it | down, of all |
//! |---|---|---|
//! | ask | partitions whose homes do not know all leases; who has gone | the same |
//! | told | the homes have answered | a home has heard all, and grants |
//!
//! Between the steps each member tells those homes what it has of those partitions, if anything.
//!
//! A member that is new in the view tells all homes what it has, at once. What went up is sent
//! again until something comes down, and that until it is not asked for any more. With n members
//! these are 4 (n - 1) messages, and two for each member and home of which the one has something to
//! tell the other.

use crate::directory::{Directory, Group, Task};
use crate::message::{Body, Claim, ITEMS_MAX, Step, parts_of};
use crate::partitions::Partitions;
use forebay_membership::{Incarnation, Member, NodeId, Seat};
use std::collections::{BTreeMap, BTreeSet};

/// What members know that all are to know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Summary {
    has_seen: bool,
    frozen: Partitions,
    keeps: Partitions,
    unheard: Option<u32>,
    gone: BTreeSet<Seat>,
    /// Of which members what they hold goes back to an earlier life.
    since: BTreeMap<Member, Incarnation>,
    doubts: BTreeMap<Seat, Partitions>,
}

impl Summary {
    fn add(&mut self, has_seen: bool, items: Vec<Claim>) {
        self.has_seen |= has_seen;
        for item in items {
            match item {
                Claim::Holds { .. } => {}
                Claim::Keeps(partitions) => self.keeps.add(&partitions),
                Claim::Gone(seat) => drop(self.gone.insert(seat)),
                Claim::Doubt(seat, partitions) => {
                    self.doubts.entry(seat).or_default().add(&partitions);
                }
                Claim::Frozen(partitions) => self.frozen.add(&partitions),
                Claim::Unheard(view) => {
                    self.unheard = Some(self.unheard.map_or(view, |before| before.min(view)));
                }
                Claim::Since(member, oldest) => drop(self.since.insert(member, oldest)),
            }
        }
    }

    fn items(&self) -> Vec<Claim> {
        let some = |partitions: &Partitions| Some(partitions.clone()).filter(|all| !all.is_empty());
        let frozen = some(&self.frozen).map(Claim::Frozen);
        let keeps = some(&self.keeps).map(Claim::Keeps);
        let mut items: Vec<Claim> = frozen.into_iter().chain(keeps).collect();
        items.extend(self.unheard.map(Claim::Unheard));
        items.extend(self.gone.iter().map(|seat| Claim::Gone(*seat)));
        items.extend(self.since.iter().map(|(member, oldest)| Claim::Since(*member, *oldest)));
        let doubts = self.doubts.iter();
        items.extend(doubts.map(|(seat, partitions)| Claim::Doubt(*seat, partitions.clone())));
        items
    }

    /// What is said of it, in one direction.
    fn bodies(&self, is_up: bool) -> Vec<Body> {
        let (step, has_seen) = (Step::Ask, self.has_seen);
        let all = parts_of(self.items());
        let parts = all.len() as u16;
        let body = |(part, items)| Body::Roll { step, is_up, part, parts, has_seen, items };
        (0..).zip(all).map(body).collect()
    }
}

/// A part of what a member says.
pub(crate) struct Word {
    pub step: Step,
    pub part: u16,
    pub parts: u16,
    pub has_seen: bool,
    pub items: Vec<Claim>,
}

/// How far a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stage {
    /// It does not know yet what is asked.
    Asks,
    /// It tells homes what it has.
    Tells,
    /// All have told.
    Over,
}

/// What has come from a member below.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Below {
    /// Parts of its first word.
    parts: BTreeSet<u16>,
    has_asked: bool,
    has_told: bool,
}

/// The roll call of the newest view, at one member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Roll {
    stage: Stage,
    above: Option<Member>,
    below: BTreeMap<Member, Below>,
    /// What this member and those below it know, and then what all do.
    known: Summary,
    /// Its word of this stage has gone up.
    is_up: bool,
    /// Parts of what has come down of the first step.
    parts: BTreeSet<u16>,
    /// Homes that have not answered what this member has told them,
    telling: BTreeSet<Member>,
    /// of these partitions,
    told: Partitions,
    /// so often.
    attempt: u32,
    /// What members are telling this one: the attempt, and the next part.
    hears: BTreeMap<Member, (u32, u16)>,
    /// Who has told this home what it has, back to a life.
    heard: BTreeMap<Seat, Incarnation>,
    /// Of those since this view it had not heard what they have when the view began,
    unheard: u32,
    /// but from these.
    heard_before: BTreeSet<Seat>,
    /// Who has told it more than it has room for.
    unknown: BTreeSet<NodeId>,
    every_ms: u64,
    due_ms: u64,
}

impl Roll {
    /// The seat of a member that has told what it holds, and back to which life.
    pub(crate) fn continued(&self, group: &Group, node: NodeId) -> Option<(Seat, Incarnation)> {
        let seat = group.view.seat_of(node).filter(|_| !self.unknown.contains(&node))?;
        if let Some(oldest) = self.heard.get(&seat) {
            return Some((seat, *oldest));
        }
        let oldest = self.known.since.get(&seat.member).copied();
        (self.stage == Stage::Over).then(|| (seat, oldest.unwrap_or(seat.member.incarnation)))
    }

    fn is_unheard(&self, seat: Seat) -> bool {
        let is_new = seat.since >= self.unheard
            && !self.heard_before.contains(&seat)
            && !self.heard.contains_key(&seat);
        self.unknown.contains(&seat.member.node) || is_new && self.stage < Stage::Over
    }

    fn has_all_below(&self) -> bool {
        match self.stage {
            Stage::Asks => self.below.values().all(|below| below.has_asked),
            Stage::Tells => {
                self.telling.is_empty() && self.below.values().all(|below| below.has_told)
            }
            Stage::Over => false,
        }
    }

    fn told_body(is_up: bool) -> Body {
        let (step, part, parts) = (Step::Told, 0, 1);
        Body::Roll { step, is_up, part, parts, has_seen: false, items: Vec::new() }
    }

    /// What has gone up in this stage.
    fn word(&self) -> Vec<Body> {
        match self.stage {
            Stage::Asks => self.known.bodies(true),
            Stage::Tells => vec![Self::told_body(true)],
            Stage::Over => Vec::new(),
        }
    }
}

impl Directory {
    /// The members of a new view are about to tell its homes what they have.
    pub(crate) fn begin_roll(&mut self, before: Option<&Group>, is_same: bool, now_ms: u64) {
        let last = self.roll.take();
        let Some((own, group)) = self.seat.zip(self.group.clone()) else { return };
        let seats = &group.view.seats;
        let place = seats.iter().position(|seat| *seat == own).unwrap_or(0);
        let below = self.tuning.below.max(1);
        let member = |place: usize| seats.get(place).map(|seat| seat.member);
        let above = place.checked_sub(1).and_then(|before| member(before / below));
        let all_below = (place * below + 1..).take(below).map_while(member);

        let number = before.map_or(0, |before| before.view.number);
        let open = last.filter(|last| is_same && last.stage < Stage::Over);
        let mut heard_before = BTreeSet::new();
        let mut unheard = if is_same { number + 1 } else { 0 };
        if let Some(open) = open {
            unheard = unheard.min(open.unheard);
            heard_before = open.heard_before;
            heard_before.extend(open.heard.into_keys());
            heard_before.retain(|seat| group.has(*seat));
        }
        let mut roll = Roll {
            stage: Stage::Asks,
            above,
            below: all_below.map(|member| (member, Below::default())).collect(),
            known: self.known(),
            is_up: false,
            parts: BTreeSet::new(),
            telling: BTreeSet::new(),
            told: Partitions::default(),
            attempt: 0,
            hears: BTreeMap::new(),
            heard: BTreeMap::from([(own, self.oldest)]),
            unheard,
            heard_before,
            unknown: BTreeSet::new(),
            every_ms: self.tuning.retry_ms,
            due_ms: 0,
        };
        // Those that are new in this view tell all homes by themselves.
        let is_missed = |seat: &Seat| seat.since < group.view.number && roll.is_unheard(*seat);
        if !self.thawed.is_empty() && unheard < group.view.number && seats.iter().any(is_missed) {
            roll.known.unheard = Some(unheard);
        }
        self.roll = Some(roll);
        if own.since == group.view.number {
            self.tell_homes(Partitions::all());
        }
        self.roll_again_later(now_ms);
        self.call(now_ms);
    }

    /// What this node knows that all are to know.
    fn known(&self) -> Summary {
        let acting = self.gone.iter().filter(|(_, gone)| !gone.is_succeeded);
        let is_older = self.oldest < self.me.incarnation;
        Summary {
            has_seen: self.has_seen,
            frozen: self.frozen.clone(),
            keeps: self.former.clone(),
            unheard: None,
            gone: acting.map(|(seat, _)| *seat).collect(),
            since: is_older.then_some((self.me, self.oldest)).into_iter().collect(),
            doubts: self.doubts.clone(),
        }
    }

    /// Goes on as far as it can: says up that all below this member have said it, or down, if no
    /// member is above.
    fn call(&mut self, now_ms: u64) {
        let Some(roll) = self.roll.as_mut().filter(|roll| !roll.is_up && roll.has_all_below())
        else {
            return;
        };
        if let Some(above) = roll.above {
            roll.is_up = true;
            let word = roll.word();
            word.into_iter().for_each(|body| self.send(above, body));
            return;
        }
        match roll.stage {
            Stage::Asks => self.is_asked(now_ms),
            Stage::Tells => self.all_have_told(now_ms),
            Stage::Over => {}
        }
    }

    fn send_down(&mut self, bodies: &[Body]) {
        let below = self.roll.iter().flat_map(|roll| roll.below.keys().copied());
        let below: Vec<Member> = below.collect();
        for member in below {
            bodies.iter().for_each(|body| self.send(member, body.clone()));
        }
    }

    /// It is known what all know, and of what homes have to be told.
    fn is_asked(&mut self, now_ms: u64) {
        let Some((roll, own)) = self.roll.as_mut().zip(self.seat) else { return };
        (roll.stage, roll.is_up) = (Stage::Tells, false);
        let (bodies, items) = (roll.known.bodies(false), roll.known.items());
        let is_missed = roll.known.unheard.is_some_and(|since| own.since >= since);
        let asked = if is_missed { Partitions::all() } else { roll.known.frozen.clone() };
        self.someone_has_seen |= roll.known.has_seen;
        self.send_down(&bodies);
        self.learn_of_others(items);
        self.tell_homes(asked);
        self.call(now_ms);
    }

    /// Tells other homes what this node has of these partitions, those that it has not told yet.
    fn tell_homes(&mut self, mut partitions: Partitions) {
        let Some((roll, group)) = self.roll.as_mut().zip(self.group.clone()) else { return };
        partitions.take(&roll.told);
        roll.told.add(&partitions);
        let is_other = |partition| group.place(partition, 0) != self.seat;
        for partition in partitions.iter().filter(|partition| is_other(*partition)) {
            self.handed.set(partition, true);
        }
        let homes = self.claims_by_home(&partitions);
        if let Some(roll) = &mut self.roll {
            roll.telling.extend(homes.keys().copied());
            roll.attempt += 1;
        }
        self.tell_parts(homes);
    }

    fn claims_by_home(&self, partitions: &Partitions) -> BTreeMap<Member, Vec<Claim>> {
        let mut homes = BTreeMap::<Member, Vec<Claim>>::new();
        for item in self.claims_in(partitions) {
            let Claim::Holds { object, .. } = &item else { continue };
            if let Some(home) = self.home(*object).filter(|home| home.member != self.me) {
                homes.entry(home.member).or_default().push(item);
            }
        }
        homes
    }

    fn tell_parts(&mut self, homes: BTreeMap<Member, Vec<Claim>>) {
        let attempt = self.roll.as_ref().map_or(0, |roll| roll.attempt);
        let oldest = self.oldest;
        for (home, items) in homes {
            let parts = parts_of(items);
            let last = parts.len() - 1;
            for (at, items) in parts.into_iter().enumerate() {
                let (index, is_last) = (at as u16, at == last);
                self.send(home, Body::Tell { attempt, index, is_last, oldest, items });
            }
        }
    }

    fn roll_again_later(&mut self, now_ms: u64) {
        let most_ms = 8 * self.tuning.retry_ms;
        if let Some(roll) = self.roll.as_mut().filter(|roll| roll.stage < Stage::Over) {
            roll.due_ms = now_ms + roll.every_ms;
            roll.every_ms = (2 * roll.every_ms).min(most_ms);
            let due_ms = roll.due_ms;
            self.at(due_ms, Task::Roll);
        }
    }

    /// Says again what has no answer.
    pub(crate) fn roll_due(&mut self, due_ms: u64, now_ms: u64) {
        let Some(roll) = self.roll.as_mut().filter(|roll| roll.due_ms == due_ms) else { return };
        if let Some(above) = roll.above.filter(|_| roll.is_up) {
            let word = roll.word();
            word.into_iter().for_each(|body| self.send(above, body));
        }
        self.tell_again();
        self.roll_again_later(now_ms);
    }

    fn tell_again(&mut self) {
        let Some(roll) = self.roll.as_mut().filter(|roll| !roll.telling.is_empty()) else { return };
        roll.attempt += 1;
        let (telling, told) = (roll.telling.clone(), roll.told.clone());
        let mut claims = self.claims_by_home(&told);
        let homes =
            telling.into_iter().map(|home| (home, claims.remove(&home).unwrap_or_default()));
        let homes = homes.collect();
        self.tell_parts(homes);
    }

    /// A member below says what it and those below it know, or that they have told all.
    pub(crate) fn roll_from_below(&mut self, from: Member, word: Word, now_ms: u64) {
        let Some(roll) = &mut self.roll else { return };
        let stage = roll.stage;
        let Some(below) = roll.below.get_mut(&from) else {
            self.counts.dropped += 1;
            return;
        };
        match (word.step, stage) {
            (Step::Ask, Stage::Asks) => {
                if below.has_asked {
                    return;
                }
                below.parts.insert(word.part);
                below.has_asked = below.parts.len() == usize::from(word.parts);
                roll.known.add(word.has_seen, word.items);
            }
            // What has gone down was lost.
            (Step::Ask, _) if word.part == 0 => {
                let bodies = roll.known.bodies(false);
                bodies.into_iter().for_each(|body| self.send(from, body));
            }
            (Step::Told, Stage::Tells) => below.has_told = true,
            (Step::Told, Stage::Over) => self.send(from, Roll::told_body(false)),
            _ => {}
        }
        self.call(now_ms);
    }

    /// The member above says what all know, or that all have told.
    pub(crate) fn roll_from_above(&mut self, from: Member, word: Word, now_ms: u64) {
        let Some(roll) = &mut self.roll else { return };
        if roll.above != Some(from) || !roll.is_up {
            self.counts.dropped += 1;
            return;
        }
        match (word.step, roll.stage) {
            (Step::Ask, Stage::Asks) => {
                roll.parts.insert(word.part);
                roll.known.add(word.has_seen, word.items);
                if roll.parts.len() == usize::from(word.parts) {
                    self.is_asked(now_ms);
                }
            }
            (Step::Told, Stage::Tells) => self.all_have_told(now_ms),
            _ => {}
        }
    }

    /// All members have told all homes what they have.
    fn all_have_told(&mut self, now_ms: u64) {
        let Some(roll) = &mut self.roll else { return };
        (roll.stage, roll.is_up) = (Stage::Over, false);
        let is_known = roll.unknown.is_empty();
        self.send_down(&[Roll::told_body(false)]);
        if is_known {
            self.thaw(now_ms);
        }
        self.forget_earlier_lives();
        self.process_all(now_ms);
    }

    /// A member tells this home what it has.
    pub(crate) fn tell(
        &mut self,
        from: Seat,
        (attempt, index, is_last): (u32, u16, bool),
        oldest: Incarnation,
        items: &[Claim],
        now_ms: u64,
    ) {
        let Some(roll) = &mut self.roll else { return };
        let has_room = self.records.len() + items.len() <= 2 * self.tuning.files + ITEMS_MAX;
        if !has_room && !roll.heard.contains_key(&from) {
            // What it does not know it does not grant, for as long as there is this view.
            roll.unknown.insert(from.member.node);
            self.counts.dropped += 1;
        }
        if roll.heard.contains_key(&from) || roll.unknown.contains(&from.member.node) {
            if is_last {
                self.send(from.member, Body::Told);
            }
            return;
        }
        let next = roll.hears.entry(from.member).or_default();
        if next.0 < attempt {
            *next = (attempt, 0);
        }
        if *next != (attempt, index) {
            return;
        }
        next.1 += 1;
        let is_new = roll.is_unheard(from);
        self.learn(from, is_new, oldest, items);
        if !is_last {
            return;
        }
        if let Some(roll) = &mut self.roll {
            roll.hears.remove(&from.member);
            roll.heard.insert(from, oldest);
        }
        self.send(from.member, Body::Told);
        if is_new {
            self.forget_earlier_lives();
            self.process_all(now_ms);
        }
    }

    /// A home has heard what this node has.
    pub(crate) fn told(&mut self, home: Member, now_ms: u64) {
        if let Some(roll) = &mut self.roll {
            roll.telling.remove(&home);
        }
        self.call(now_ms);
    }

    /// Whether this home has not heard yet what a member has.
    pub(crate) fn is_unheard(&self, seat: Seat) -> bool {
        self.seat != Some(seat) && self.roll.as_ref().is_none_or(|roll| roll.is_unheard(seat))
    }

    /// Members that have not said what this node waits for.
    pub(crate) fn silent(&self) -> Vec<Member> {
        let mut silent: BTreeSet<Member> = self.recalls.keys().copied().collect();
        if let Some(roll) = &self.roll {
            let is_silent = |below: &Below| match roll.stage {
                Stage::Asks => !below.has_asked,
                Stage::Tells => !below.has_told,
                Stage::Over => false,
            };
            let below = roll.below.iter().filter(|(_, below)| is_silent(below));
            silent.extend(below.map(|(member, _)| *member));
            silent.extend(&roll.telling);
            silent.extend(roll.above.filter(|_| roll.is_up));
        }
        silent.into_iter().collect()
    }
}
