//! What changes of the view do: who answers for what, what others held, and what is lost with
//! those that have gone.
//!
//! A node is the home of a partition either because it was, in the last view that it has seen, and
//! knew all leases there, in the same seat; or after all members have said what they hold, in this
//! view: see [`roll`](crate::roll). Either way no other node can know them all at the same time: it
//! would need what this one holds, in a view that this one has seen.

use crate::directory::{Directory, Group, Task};
use crate::home::{Hold, Waiter};
use crate::level::Level;
use crate::message::{Body, Claim, ITEMS_MAX, parts_of};
use crate::object::Object;
use crate::partitions::Partitions;
use forebay_membership::{GivenUp, Incarnation, Member, PARTITIONS, Partition, Seat, View};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Lives that have ended with nothing: so many are remembered.
const ENDED_MAX: usize = 1 << 16;

/// What is known of a member that a view has left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Gone {
    /// It cannot act any more.
    pub is_succeeded: bool,
    /// What it wrote and did not flush is forgotten.
    pub is_given_up: bool,
}

/// A question to a home for what it writes itself: this node is the second place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Recall {
    partitions: Partitions,
    attempt: u32,
    /// The next part of the answer.
    next: u16,
    every_ms: u64,
    due_ms: u64,
}

impl Directory {
    /// There is a view, which this node may be in or not. Views come in order; some may be missed.
    ///
    /// Each names the [seats](View::lost) that earlier ones have left out and that did not come
    /// back with what they had, say good-bye, or were given up: a node that begins, or has missed
    /// views, knows them from nowhere else, and would take what they may have written for the
    /// store's.
    pub fn view(&mut self, view: &View, now_ms: u64) {
        let number = self.group.as_ref().map_or(0, |group| group.view.number);
        if view.number > number {
            self.enter(&Group::new(view.clone()), now_ms);
        }
    }

    /// As [`Directory::view`], with the homes that follow from it: a simulator computes them once
    /// for all of its nodes.
    pub fn enter(&mut self, group: &Group, now_ms: u64) {
        let view = Arc::clone(&group.view);
        let number = self.group.as_ref().map_or(0, |group| group.view.number);
        if view.number <= number {
            return;
        }
        let before = self.group.replace(group.clone());
        self.viewed_ms = now_ms;
        self.has_seen = before.is_some();
        self.someone_has_seen = self.has_seen;
        let own = view.seat_of(self.me.node).filter(|seat| seat.member == self.me);
        let seat_before = std::mem::replace(&mut self.seat, own);
        let is_same = own.is_some() && seat_before == own;
        self.serials = 0;
        self.local.clear();

        let seats = before.as_ref().map_or(&[][..], |group| &group.view.seats);
        let left: Vec<Seat> = seats.iter().copied().filter(|seat| !self.is_in(*seat)).collect();
        for seat in left {
            if !self.ended.contains(&seat.member) {
                self.gone.entry(seat).or_default();
            }
        }
        self.back.retain(|seat| view.lost.contains(seat));
        for seat in view.lost.iter().filter(|seat| !self.back.contains(*seat)) {
            if !self.ended.contains(&seat.member) && !self.was_given_up(*seat) {
                self.gone.entry(*seat).or_default();
            }
        }
        let is_here = |seat: &Seat| view.seat_of(seat.member.node) == Some(*seat);
        self.gone.retain(|seat, _| !is_here(seat));

        self.change_places(before.as_ref(), is_same, own);
        self.ask_homes(now_ms);
        if own.is_some() {
            self.hold_on(!is_same, now_ms);
        }
        self.begin_roll(before.as_ref(), is_same, now_ms);
        self.process_all(now_ms);
        self.settle(now_ms);
    }

    /// Which partitions this node answers for now, and what it knows of them.
    fn change_places(&mut self, before: Option<&Group>, is_same: bool, own: Option<Seat>) {
        let Some(group) = self.group.clone() else { return };
        let before_number = before.map_or(0, |before| before.view.number);
        let is_since = own.is_some_and(|own| own.since < group.view.number);
        let has_skipped = is_since && before_number + 1 < group.view.number;
        let (mut thawed, mut frozen) = (Partitions::default(), Partitions::default());
        self.unsure = Partitions::default();
        self.kept = Partitions::default();
        self.former.take(&self.handed);
        if !is_same {
            self.former = Partitions::default();
        }
        let mut witnessed = Partitions::default();
        // Where it still knows what it doubts; where it doubts all that have gone; and where it
        // does, but for the home itself.
        let (mut kept, mut unknown) = (Partitions::default(), Partitions::default());
        let mut witnessed_homes: BTreeMap<Seat, Partitions> = BTreeMap::new();
        for partition in Partition::all() {
            let old = |place| before.and_then(|before| before.place(partition, place));
            let (home, witness) = (old(0), old(1));
            let was_mine = is_same && home.is_some() && home == own;
            let was_witness = is_same && witness.is_some() && witness == own;
            let is_mine = own.is_some() && group.place(partition, 0) == own;
            // Also as the last one that knew: a home that was one for a moment was told nothing.
            kept.set(partition, was_mine || self.former.has(partition));
            if was_mine && self.thawed.has(partition) {
                self.former.set(partition, !is_mine);
            } else if was_mine {
                unknown.set(partition, !is_mine);
            } else if let Some(home) = home.filter(|home| !group.has(*home)) {
                unknown.set(partition, true);
                let is_known = witness.is_some_and(|witness| group.has(witness))
                    && (!was_witness || self.witnessed.has(partition));
                if is_known {
                    witnessed_homes.entry(home).or_default().set(partition, true);
                }
            }
            if own.is_none() {
                continue;
            }
            if is_mine {
                let is_known = was_mine && self.thawed.has(partition);
                self.unsure.set(partition, !is_known && (was_mine || has_skipped));
                if is_known { &mut thawed } else { &mut frozen }.set(partition, true);
            }
            if group.place(partition, 1) == own {
                let is_known = was_witness
                    && home == group.place(partition, 0)
                    && self.witnessed.has(partition);
                witnessed.set(partition, is_known);
            }
        }
        self.doubts.values_mut().for_each(|partitions| partitions.keep(&kept));
        for seat in self.gone.keys() {
            let mut doubted = unknown.clone();
            if let Some(known) = witnessed_homes.get(seat) {
                doubted.take(known);
            }
            self.doubts.entry(*seat).or_default().add(&doubted);
        }
        self.doubts.retain(|_, partitions| !partitions.is_empty());
        self.cautious.keep(&thawed);
        (self.thawed, self.frozen, self.witnessed) = (thawed, frozen, witnessed);
        self.keep_what_is_known();
    }

    /// Of files of which it is not the home any more, or not sure, it knows what those have
    /// written that have gone; of what homes write, that of those.
    fn keep_what_is_known(&mut self) {
        let handed = std::mem::take(&mut self.handed);
        self.testimony.retain(|object, _| !handed.has(object.partition()));
        self.peeks.clear();
        let objects: Vec<Object> = self.records.keys().copied().collect();
        for object in objects {
            let partition = object.partition();
            if self.thawed.has(partition) {
                let group = self.group.as_ref();
                if let Some(record) = self.records.get_mut(&object) {
                    let is_in = |seat| group.is_some_and(|group| group.has(seat));
                    record.waiters.retain(|waiter| is_in(waiter.seat));
                    record.waiters.iter_mut().for_each(Waiter::forget_note);
                }
                continue;
            }
            let holds = self.records.get(&object).map(|record| record.holds.clone());
            for (seat, hold) in holds.unwrap_or_default() {
                let is_known = self.former.has(partition) || !self.is_in(seat);
                if hold.level.is_dirty() && is_known && Some(seat) != self.seat {
                    let known = self.testimony.entry(object).or_default();
                    known.insert(seat, (hold.serial, hold.level));
                }
            }
            self.drop_record(object);
        }
        let group = self.group.as_ref();
        let (me, testimony) = (self.seat, &mut self.testimony);
        self.notes.retain(|object, seats| {
            let place = |at| group.and_then(|group| group.place(object.partition(), at));
            seats.retain(|seat, (_, level)| {
                let is_noted = place(0) == Some(*seat) && place(1) == me;
                if !is_noted {
                    let known = testimony.entry(*object).or_default();
                    let known = known.entry(*seat).or_insert((0, *level));
                    if is_more(known.1, *level) {
                        *known = (0, *level);
                    }
                }
                is_noted
            });
            !seats.is_empty()
        });
    }

    /// Asks homes for what they write themselves, where this node is the second place and does not
    /// know it.
    fn ask_homes(&mut self, now_ms: u64) {
        self.recalls.clear();
        let Some(group) = self.group.clone().filter(|_| self.seat.is_some()) else { return };
        let every_ms = self.tuning.retry_ms;
        let unknown = Partition::all().filter(|partition| {
            group.place(*partition, 1) == self.seat && !self.witnessed.has(*partition)
        });
        for partition in unknown {
            let Some(home) = group.place(partition, 0) else { continue };
            let partitions = Partitions::default();
            let new = Recall { partitions, attempt: 0, next: 0, every_ms, due_ms: 0 };
            let recall = self.recalls.entry(home.member).or_insert(new);
            recall.partitions.set(partition, true);
        }
        self.recall_due_ms = now_ms;
        self.recall_due(now_ms, now_ms);
    }

    /// Asks those again that have not answered.
    pub(crate) fn recall_due(&mut self, due_ms: u64, now_ms: u64) {
        if due_ms != self.recall_due_ms || self.recalls.is_empty() {
            return;
        }
        let most_ms = 16 * self.tuning.retry_ms;
        let mut asked = Vec::new();
        for (member, recall) in &mut self.recalls {
            if recall.due_ms <= now_ms {
                (recall.attempt, recall.next) = (recall.attempt + 1, 0);
                recall.due_ms = now_ms + recall.every_ms;
                recall.every_ms = (2 * recall.every_ms).min(most_ms);
                let (attempt, partitions) = (recall.attempt, recall.partitions.clone());
                asked.push((*member, Body::Recall { attempt, partitions }));
            }
        }
        let next_ms = self.recalls.values().map(|recall| recall.due_ms).min();
        self.recall_due_ms = next_ms.unwrap_or(now_ms + most_ms);
        self.at(self.recall_due_ms, Task::Recall);
        asked.into_iter().for_each(|(member, body)| self.send(member, body));
    }

    /// The second place of these partitions does not know what this node writes in them.
    pub(crate) fn recall(&mut self, to: Member, attempt: u32, partitions: &Partitions) {
        let items = self.held_in(partitions);
        let (oldest, parts) = (self.oldest, parts_of(items));
        let last = parts.len() - 1;
        for (index, items) in parts.into_iter().enumerate() {
            let Ok(number) = u16::try_from(index) else { return };
            let is_last = index == last;
            self.send(to, Body::Claims { attempt, index: number, is_last, oldest, items });
        }
    }

    /// What this node has of these partitions.
    fn held_in(&self, partitions: &Partitions) -> Vec<Claim> {
        let Some(own) = self.seat else { return Vec::new() };
        let mut items = Vec::new();
        for (object, held) in self.held.iter().filter(|(_, held)| held.level != Level::None) {
            // Nothing of a file is claimed that this node does not share.
            let may_have = object.is_whole() || self.held(object.in_whole()).is_dirty();
            if partitions.has(object.partition()) && may_have {
                let (object, seat, level) = (*object, own, held.level);
                let (serial, is_firm) = (held.serial, held.is_firm);
                items.push(Claim::Holds { object, seat, level, serial, is_firm });
            }
        }
        items
    }

    /// What this node has of these partitions, and what those had that have gone, of whom it was
    /// home or second place.
    pub(crate) fn claims_in(&self, partitions: &Partitions) -> Vec<Claim> {
        let mut items = self.held_in(partitions);
        for (object, seats) in self.testimony.iter().filter(|_| self.seat.is_some()) {
            if partitions.has(object.partition()) {
                let gone = seats.iter().filter(|(seat, _)| !self.is_in(**seat));
                items.extend(gone.map(|(seat, (serial, level))| {
                    let (object, seat, level, serial) = (*object, *seat, *level, *serial);
                    Claim::Holds { object, seat, level, serial, is_firm: false }
                }));
            }
        }
        items
    }

    /// A home says what it writes itself.
    pub(crate) fn claims(
        &mut self,
        from: Seat,
        (attempt, index, is_last): (u32, u16, bool),
        oldest: Incarnation,
        items: &[Claim],
    ) {
        let Some(recall) = self.recalls.get_mut(&from.member) else { return };
        if recall.attempt != attempt || recall.next != index {
            return;
        }
        if self.notes.len() + items.len() > 2 * self.tuning.files + ITEMS_MAX {
            self.counts.dropped += 1;
            return;
        }
        recall.next += 1;
        self.learn(from, false, oldest, items);
        if !is_last {
            return;
        }
        if let Some(recall) = self.recalls.remove(&from.member) {
            for partition in recall.partitions.iter() {
                let group = self.group.as_ref();
                let place = |at| group.and_then(|group| group.place(partition, at));
                if place(0) == Some(from) && place(1) == self.seat {
                    self.witnessed.set(partition, true);
                }
            }
        }
    }

    /// Takes what a member, or this node itself, has to say; whether it is new here.
    pub(crate) fn learn(&mut self, from: Seat, is_new: bool, oldest: Incarnation, items: &[Claim]) {
        for item in items {
            let Claim::Holds { object, seat, level, serial, is_firm } = *item else { continue };
            if seat == from {
                let hold = Hold::claimed(level, serial, is_firm);
                self.learn_own(from, is_new, oldest, object, hold);
            } else if level.is_dirty()
                && self.frozen.has(object.partition())
                && self.notice_gone(seat)
            {
                let record = self.records.entry(object).or_default();
                let hold = Hold::claimed(level, serial, false);
                let known = record.holds.entry(seat).or_insert(hold);
                if is_more(known.level, level) {
                    *known = hold;
                }
            }
        }
    }

    /// Takes what members know of those that have gone, and of homes.
    pub(crate) fn learn_of_others(&mut self, items: impl IntoIterator<Item = Claim>) {
        for item in items {
            match item {
                Claim::Keeps(partitions) => self.kept.add(&partitions),
                Claim::Gone(seat) => {
                    self.notice_gone(seat);
                }
                Claim::Doubt(seat, mut partitions) => {
                    partitions.keep(&self.frozen);
                    if !partitions.is_empty() && self.notice_gone(seat) {
                        self.doubts.entry(seat).or_default().add(&partitions);
                    }
                }
                _ => {}
            }
        }
    }

    /// A member says what it has itself.
    fn learn_own(
        &mut self,
        from: Seat,
        is_new: bool,
        oldest: Incarnation,
        object: Object,
        hold: Hold,
    ) {
        let partition = object.partition();
        let given_up = self.given_up.get(&from.member.node);
        // A life that began with an empty pool has only what is its own.
        let is_old = given_up
            .is_some_and(|(life, view)| oldest <= *life && (hold.serial >> 32) as u32 <= *view);
        if is_old && !hold.is_firm && hold.level.is_dirty() {
            return;
        }
        if self.frozen.has(partition) {
            self.records.entry(object).or_default().holds.insert(from, hold);
        } else if self.thawed.has(partition) && is_new {
            // What an earlier seat of the node had is the new one's.
            let is_earlier = |seat: &&Seat| {
                seat.member.node == from.member.node
                    && **seat != from
                    && seat.member.incarnation >= oldest
            };
            let mut doubts = self.doubts.iter().filter(|(seat, _)| is_earlier(seat));
            let is_doubted = doubts.any(|(_, partitions)| partitions.has(partition));
            let group = self.group.as_ref();
            let is_in = |seat: &Seat| group.is_some_and(|group| group.has(*seat));
            if is_doubted {
                // Nothing was known of what it wrote, and nothing else was granted.
                let record = self.records.entry(object).or_default();
                let is_shared =
                    |other: &Hold| (other.level, hold.level) == (Level::Shared, Level::Shared);
                let mut others = record.holds.iter();
                if !others.any(|(seat, other)| {
                    is_in(seat) && other.ends_what_was_before() && !is_shared(other)
                }) {
                    record.holds.entry(from).or_insert(hold);
                }
            }
            if is_doubted {
                self.forget_facts(object);
            }
            let Some(record) = self.records.get_mut(&object) else { return };
            let earlier = record.holds.keys().rfind(is_earlier).copied();
            if let Some(held) = earlier.and_then(|seat| record.holds.remove(&seat)) {
                let level = held.level.min(hold.level);
                // What it was granted in this seat meanwhile is newer.
                let claimed = Hold::claimed(level, held.serial, false);
                record.holds.entry(from).or_insert(claimed);
                if level < held.level {
                    self.forget_facts(object);
                }
            }
        } else if hold.level.is_dirty() {
            let group = self.group.as_ref();
            let place = |at| group.and_then(|group| group.place(partition, at));
            if place(0) == Some(from) && place(1) == self.seat {
                let known = self.notes.entry(object).or_default();
                known.entry(from).or_insert((0, hold.level));
            }
        }
    }

    /// A member that another node knows to have gone; whether it has, and was not given up.
    pub(crate) fn notice_gone(&mut self, seat: Seat) -> bool {
        let is_given_up = self.was_given_up(seat);
        let known = self.group.as_ref().and_then(|group| group.view.seat_of(seat.member.node));
        // One of a later seat than the view's has only begun.
        // A later life of a node does not know how the one before has ended.
        let has_ended = self.ended.contains(&seat.member);
        if is_given_up || has_ended || known.is_some_and(|known| known.since <= seat.since) {
            return false;
        }
        if self.gone.len() >= 1 << 16 && !self.gone.contains_key(&seat) {
            self.counts.dropped += 1;
            return false;
        }
        self.gone.entry(seat).or_default();
        true
    }

    /// What was written in this seat, and not flushed, is forgotten.
    fn was_given_up(&self, seat: Seat) -> bool {
        let given_up = self.given_up.get(&seat.member.node);
        given_up.is_some_and(|(life, view)| seat.member.incarnation <= *life && seat.since <= *view)
    }

    /// What a member has said that it holds is all that its earlier lives held, back to one.
    pub(crate) fn forget_earlier_lives(&mut self) {
        let (group, roll) = (self.group.as_ref(), self.roll.as_ref());
        let Some((group, roll)) = group.zip(roll) else { return };
        let is_over = |seat: &Seat| {
            let known = roll.continued(group, seat.member.node);
            known.is_some_and(|(now, oldest)| *seat != now && seat.member.incarnation >= oldest)
        };
        let back = self.gone.keys().copied().filter(is_over);
        self.back.extend(back);
        self.gone.retain(|seat, _| !is_over(seat));
        let mut unknown = Vec::new();
        for (object, record) in &mut self.records {
            let mut over = record.holds.iter().filter(|(seat, _)| is_over(seat));
            if over.any(|(_, hold)| hold.level.is_dirty()) {
                unknown.push(*object);
            }
            record.holds.retain(|seat, _| !is_over(seat));
        }
        self.doubts.retain(|seat, _| !is_over(seat));
        unknown.into_iter().for_each(|object| self.forget_facts(object));
        self.end_caution();
    }

    fn end_caution(&mut self) {
        if self.gone.values().all(|gone| gone.is_succeeded) {
            self.cautious = Partitions::default();
        }
    }

    /// Grants again in partitions that were frozen: all members have told what they hold there.
    pub(crate) fn thaw(&mut self, now_ms: u64) {
        let Some(own) = self.seat.filter(|_| !self.frozen.is_empty()) else { return };
        let items = self.claims_in(&self.frozen);
        self.learn(own, false, self.oldest, &items);
        let former = self.former.clone();
        self.kept.add(&former);
        let frozen = std::mem::take(&mut self.frozen);
        // Where it may have been the home before, in a view that it missed or that was over too
        // soon, what others wrote that have gone is known to the home before that, if it lives.
        // Where all have begun anew, those who knew have gone.
        let mut unsure = std::mem::take(&mut self.unsure);
        unsure.take(&self.kept);
        if !self.someone_has_seen {
            unsure = frozen.clone();
        }
        for seat in self.gone.keys().filter(|_| !unsure.is_empty()) {
            self.doubts.entry(*seat).or_default().add(&unsure);
        }
        self.former.take(&frozen);
        self.testimony.retain(|object, _| !frozen.has(object.partition()));
        self.forget_earlier_lives();
        let objects = self.records.keys().copied();
        let objects: Vec<Object> =
            objects.filter(|object| frozen.has(object.partition())).collect();
        for object in &objects {
            self.resolve(*object);
            // What others have made of it, and given back, is on the store.
            self.forget_facts(*object);
        }
        self.thawed.add(&frozen);
        if self.gone.values().any(|gone| !gone.is_succeeded) {
            self.cautious.add(&frozen);
        }
        objects.into_iter().for_each(|object| self.process(object, now_ms));
    }

    /// Of claims that contradict each other those hold that were granted in seats of this view:
    /// before that everything else had been given back. Of others the newest. One that has gone may
    /// have shared what members share, whatever is said of it.
    fn resolve(&mut self, object: Object) {
        let group = self.group.as_ref();
        let is_in = |seat: &Seat| group.is_some_and(|group| group.has(*seat));
        let Some(record) = self.records.get_mut(&object) else { return };
        let here = || record.holds.iter().filter(|(seat, _)| is_in(seat));
        let is_shared = |hold: &Hold| hold.level == Level::Shared;
        let is_firm = here().any(|(_, hold)| hold.ends_what_was_before() && !is_shared(hold));
        let is_firmly_shared = here().any(|(_, hold)| hold.is_firm && is_shared(hold));
        let claims = here().filter(|(_, hold)| !hold.is_firm && hold.level.is_dirty());
        let newest = claims.map(|(seat, hold)| (hold.serial, *seat, hold.level)).max();
        let is_newest_shared = newest.is_some_and(|(_, _, level)| level == Level::Shared);
        let may_share = !is_firm && (is_firmly_shared || is_newest_shared);
        record.holds.retain(|seat, hold| match is_in(seat) {
            _ if !hold.level.is_dirty() || hold.is_firm => true,
            true if may_share => is_shared(hold),
            true => !is_firm && newest.is_some_and(|(_, newest, _)| newest == *seat),
            false if may_share => {
                hold.level = Level::Shared;
                true
            }
            false => !is_firm && newest.is_none(),
        });
    }

    /// Members that have gone and of which the shell is to say when they are
    /// [succeeded](Directory::succeeded).
    pub fn awaited(&self) -> Vec<Seat> {
        let acting = self.gone.iter().filter(|(_, gone)| !gone.is_succeeded);
        acting.map(|(seat, _)| *seat).collect()
    }

    /// Whether a seat has gone, and its node has neither come back with its pool, nor said
    /// good-bye, nor been given up.
    pub fn has_gone(&self, seat: Seat) -> bool {
        self.gone.contains_key(&seat)
    }

    /// Whether one that has gone cannot act any more.
    pub(crate) fn is_succeeded(&self, seat: Seat) -> bool {
        self.gone.get(&seat).is_some_and(|gone| gone.is_succeeded)
    }

    /// One that has gone cannot act any more (`membership::Views::may_take_over`): what it read is
    /// free, and what it wrote is lost until it comes back or is given up.
    pub fn succeeded(&mut self, seat: Seat, now_ms: u64) {
        let Some(gone) = self.gone.get_mut(&seat) else { return };
        gone.is_succeeded = true;
        let is_given_up = gone.is_given_up;
        for record in self.records.values_mut() {
            record.holds.retain(|other, hold| *other != seat || hold.level.is_dirty());
        }
        if is_given_up {
            self.forget(seat);
        }
        self.end_caution();
        self.process_all(now_ms);
        self.settle(now_ms);
    }

    /// An operator has said that lives of a node do not come back: what they wrote and did not
    /// flush is gone for good, and others may have their files. All members have to be told, and
    /// none before what those lives may still flush has ended; the node itself, if it comes back,
    /// has to begin with an empty pool.
    pub fn give_up(&mut self, given: GivenUp, now_ms: u64) {
        let node = given.member.node;
        let new = (given.member.incarnation, given.view);
        let known = self.given_up.entry(node).or_insert(new);
        *known = (known.0.max(new.0), known.1.max(new.1));
        let is_it = |seat: &&Seat| given.covers(seat.member);
        let seats: Vec<Seat> = self.gone.keys().filter(is_it).copied().collect();
        for seat in seats {
            match self.gone.get_mut(&seat) {
                Some(gone) if !gone.is_succeeded => gone.is_given_up = true,
                _ => self.forget(seat),
            }
        }
        // It may have lent what others took from it, and what the store will never have.
        let borrowed = self.held.iter().filter(|(_, held)| held.level == Level::Borrowed);
        let borrowed: Vec<Object> = borrowed.map(|(object, _)| *object).collect();
        borrowed.into_iter().for_each(|object| self.unsettle(object));
        self.process_all(now_ms);
        self.settle(now_ms);
    }

    /// Forgets one that has gone, and all that it had.
    fn forget(&mut self, seat: Seat) {
        self.gone.remove(&seat);
        let mut unknown = Vec::new();
        for (object, record) in &mut self.records {
            unknown.extend(record.holds.remove(&seat).map(|_| *object));
        }
        unknown.into_iter().for_each(|object| self.forget_facts(object));
        self.doubts.remove(&seat);
        for seats in self.testimony.values_mut() {
            seats.remove(&seat);
        }
        self.testimony.retain(|_, seats| !seats.is_empty());
    }

    /// Says good-bye: this node holds nothing, and is about to leave. Returns
    /// whether that is so; what is left has to be [released](Directory::release) before.
    pub fn farewell(&mut self) -> bool {
        // What was wanted, and may be on its way, goes with the word of this at the homes.
        let is_over = self.held.values().all(|held| held.level == Level::None);
        let group = self.group.clone().filter(|_| is_over && self.seat.is_some());
        for member in group.iter().flat_map(|group| group.view.members()) {
            if member != self.me {
                self.send(member, Body::Farewell);
            }
        }
        is_over
    }

    /// A life that has gone has ended with nothing, as the group's folder says: its farewell did
    /// not come here.
    pub fn ended(&mut self, member: Member, now_ms: u64) {
        self.farewell_of(member, now_ms);
        self.settle(now_ms);
    }

    /// A node that this one knows as a member, or as one that has gone, leaves with nothing.
    pub(crate) fn farewell_of(&mut self, from: Member, now_ms: u64) {
        let is_it = |seat: &Seat| seat.member == from && from != self.me;
        let here = self.group.as_ref().and_then(|group| group.view.seat_of(from.node));
        let gone = self.gone.keys().copied().find(is_it);
        match (here.filter(is_it), gone) {
            (Some(seat), _) => self.farewell_from(seat, now_ms),
            (None, Some(seat)) => {
                self.farewell_from(seat, now_ms);
                self.forget(seat);
                self.end_caution();
                self.process_all(now_ms);
            }
            (None, None) => self.counts.dropped += 1,
        }
    }

    /// A member leaves with nothing: no other need wait for it.
    pub(crate) fn farewell_from(&mut self, from: Seat, now_ms: u64) {
        self.ended.insert(from.member);
        if self.ended.len() > ENDED_MAX {
            self.ended.pop_first();
        }
        for record in self.records.values_mut() {
            let held = record.holds.remove(&from);
            if held.is_some_and(|hold| hold.level.is_its_own()) {
                // It has flushed it; only word of that was lost.
                record.facts = None;
            }
            record.waiters.retain(|waiter| waiter.seat != from);
        }
        for seats in self.notes.values_mut() {
            seats.remove(&from);
        }
        self.notes.retain(|_, seats| !seats.is_empty());
        // Nor for what it had in a seat before this one: a life keeps that when it is back.
        let is_earlier = |seat: &Seat| seat.member == from.member && *seat != from;
        let earlier: Vec<Seat> = self.gone.keys().copied().filter(is_earlier).collect();
        earlier.into_iter().for_each(|seat| self.forget(seat));
        self.end_caution();
        self.process_all(now_ms);
    }
}

/// Whether what a node that has gone had of a file may be more than was known: what others noted
/// of it has no order, and of what it alone had nothing is known but that it may be lost.
fn is_more(known: Level, level: Level) -> bool {
    known == Level::Shared && level.is_its_own()
}

const _: () = assert!(PARTITIONS <= 1 << 16);
