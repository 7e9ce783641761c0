//! Views: numbered lists of members on the backing store, of which each number can be made once.
//! A node acts only on a view that it has looked at lately, so that a node that is not in a view
//! any more has stopped when others take over from it, whatever the network between them does.
//!
//! With the grace period T of [`Times`]: a look is valid for T/2 from the moment at which it
//! *began*, and a node that a view leaves out is succeeded T after that view was *seen*. A look
//! that began before the view was made is over T/2 after it at the latest. So clocks need not
//! agree, and may even differ in speed by almost a factor of two.

use crate::node::{Incarnation, Member, NodeId};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// For how many grace periods it is known when a view has left out whom. Who asks later waits for
/// one more.
const KEPT: u64 = 400;
/// Those whose turn it is to make a view after so many others that could have try at once: the
/// store decides.
const TURNS: usize = 3;

/// For how many milliseconds each host is waited for where they join, and all of them at least.
const EACH_SETTLES: u64 = 10;
const SETTLE_LEAST: u64 = 50;

/// The periods of views, in milliseconds, and how many look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// T: how long a node that is left out has to notice it.
    pub grace: u64,
    /// How long a look is valid: with clocks that differ in speed less than `grace`.
    pub valid: u64,
    /// How often each node looks.
    pub look: u64,
    /// How long a part of a group that is no majority waits for one that is.
    pub patience: u64,
    /// For how long nothing has to join any more before those that have joined are taken in; and,
    /// at first, how often a node looks that waits for being so.
    pub settle: u64,
    /// Of so many members one looks at the store, and answers the others.
    pub looked_for: usize,
}

impl Times {
    /// Those that follow from a grace period.
    pub const fn of(grace: u64) -> Self {
        Self {
            grace,
            valid: grace / 2,
            look: grace / 8,
            patience: 2 * grace,
            settle: grace / 20,
            looked_for: 32,
        }
    }

    /// The usual ones in a group of at most so many hosts: few that begin together are not waited
    /// for as long as many.
    pub fn of_hosts(hosts: usize) -> Self {
        let times = Self::default();
        Self { settle: (EACH_SETTLES * hosts as u64).clamp(SETTLE_LEAST, times.settle), ..times }
    }
}

impl Default for Times {
    fn default() -> Self {
        Self::of(10_000)
    }
}

/// A member's time in a group without a break. What it held in an earlier one, others may have
/// taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seat {
    /// One life of a node.
    pub member: Member,
    /// The view that took it in.
    pub since: u32,
}

/// Lives of a node that an operator has given up: what they wrote and did not flush is gone for
/// good, and others may write its files. Such a life takes no seat any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GivenUp {
    /// The newest of these lives.
    pub member: Member,
    /// The first view that says so.
    pub view: u32,
}

impl GivenUp {
    /// Whether a life is one of them, or goes on with the pool of one of them, which is as bad:
    /// `oldest` is the life of the node that had the pool first.
    pub fn covers(&self, oldest: Member) -> bool {
        oldest.node == self.member.node && oldest.incarnation <= self.member.incarnation
    }
}

/// Who is in the group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// From 1.
    pub number: u32,
    /// One for each node, by ascending node.
    pub seats: Vec<Seat>,
    /// Seats that views have left out, and that may have written what is nowhere else: they did not
    /// end by themselves, and their nodes have not come back with their pools. Ascending. A group
    /// that shares no files keeps none.
    pub lost: Vec<Seat>,
    /// Nodes of which lives were given up, by ascending node.
    pub given_up: Vec<GivenUp>,
}

impl View {
    /// Whether this life of a node is in it.
    pub fn has(&self, member: Member) -> bool {
        self.seat_of(member.node).is_some_and(|seat| seat.member == member)
    }

    /// What it has of a node.
    pub fn seat_of(&self, node: NodeId) -> Option<Seat> {
        let found = self.seats.binary_search_by_key(&node, |seat| seat.member.node);
        found.ok().map(|index| self.seats[index])
    }

    /// Its members, by ascending node.
    pub fn members(&self) -> impl Iterator<Item = Member> {
        self.seats.iter().map(|seat| seat.member)
    }

    /// Whether it can be: with one seat at least, each list in its order, and nothing of a later
    /// view.
    pub fn is_good(&self) -> bool {
        let of_views = self.seats.iter().chain(&self.lost).map(|seat| seat.since);
        let mut of_views = of_views.chain(self.given_up.iter().map(|given| given.view));
        of_views.all(|view| (1..=self.number).contains(&view))
            && !self.seats.is_empty()
            && self.seats.is_sorted_by(|one, next| one.member.node < next.member.node)
            && self.lost.is_sorted_by(|one, next| one < next)
            && self.given_up.is_sorted_by(|one, next| one.member.node < next.member.node)
    }

    /// Which lives of a node were given up.
    pub fn given_up_of(&self, node: NodeId) -> Option<GivenUp> {
        let found = self.given_up.binary_search_by_key(&node, |given| given.member.node);
        found.ok().map(|index| self.given_up[index])
    }

    /// Whether a life, or the oldest one that had its pool, was given up.
    pub fn has_given_up(&self, oldest: Member) -> bool {
        self.given_up_of(oldest.node).is_some_and(|given| given.covers(oldest))
    }

    fn life_of(&self, node: NodeId) -> Option<Incarnation> {
        self.seat_of(node).map(|seat| seat.member.incarnation)
    }
}

/// What a look at the store finds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The view with the highest number; shared, as a large group hands one to many.
    pub newest: Option<Arc<View>>,
    /// Those that have pleaded in that view: they live, and others cannot reach them.
    pub pleas: Vec<NodeId>,
    /// A number that becomes another with each look of a member of that view: the view is alive,
    /// whether this node reaches its members or not.
    pub looks: u64,
    /// Members of that view that have ended with nothing, as far as the folder was listed.
    pub left: Vec<Member>,
}

/// What a node wants done; one at a time, and each is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Look at the store. Answer: [`Views::looked`].
    Look,
    /// Ask this member what it has [last seen](Views::last_seen). The number tells the question
    /// from others, and comes back with the answer: [`Views::heard`].
    Inquire(NodeId, u64),
    /// Make this view, if none has its number. Answer: [`Views::proposed`]; its members are then
    /// [told](Views::told).
    Propose(View),
    /// Note on the store, beside the view of this number, that this node lives. Answer:
    /// [`Views::pleaded`].
    Plead(u32),
}

/// What a node is in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// In no view: it waits until it is taken in.
    Outside,
    /// In the newest view that it has seen, too long ago: it may not flush, grant or acknowledge.
    Fenced,
    /// In the newest view.
    Inside,
}

/// Why a node cannot be given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotGivenUp {
    /// This node is not in the group itself, or has not looked lately.
    NotInside,
    /// It is a member of the newest view.
    Member,
    /// No view has left it out with anything that may be lost.
    NothingLost,
}

/// Why a view should be another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    since_ms: u64,
    changed_ms: u64,
}

/// The life in which each node answers, by its number: an entry of each view is looked up again and
/// again, and in a group of thousands each node has as many.
#[derive(Clone, Debug, Default)]
struct Lives(Vec<Option<Incarnation>>);

impl Lives {
    fn get(&self, node: NodeId) -> Option<Incarnation> {
        self.0.get(usize::from(node.0)).copied().flatten()
    }

    /// Returns what was there before.
    fn insert(&mut self, node: NodeId, life: Incarnation) -> Option<Incarnation> {
        let place = usize::from(node.0);
        if place >= self.0.len() {
            self.0.resize(place + 1, None);
        }
        self.0[place].replace(life)
    }

    fn remove(&mut self, node: NodeId) -> Option<Incarnation> {
        self.0.get_mut(usize::from(node.0)).and_then(Option::take)
    }

    /// Those that answer, ascending.
    fn nodes(&self) -> impl Iterator<Item = NodeId> {
        let all = (0..).map(NodeId).zip(&self.0);
        all.filter(|(_, life)| life.is_some()).map(|(node, _)| node)
    }
}

/// What one node knows of its group's views. Times are milliseconds of its own clock, which never
/// goes back and goes on while the machine sleeps.
#[derive(Clone, Debug)]
pub struct Views {
    me: Member,
    times: Times,
    /// Others that answer, each with its newest life.
    living: Lives,
    view: Option<Arc<View>>,
    /// When that view was seen first.
    seen_ms: u64,
    /// The number of the first view that it has seen, and when that was.
    first: (u32, u64),
    /// When the newest good look began.
    looked_ms: Option<u64>,
    /// Those that have pleaded in the view, with the moment from which that no longer counts.
    pleas: BTreeMap<NodeId, u64>,
    /// The view in which this node has pleaded.
    pleaded: Option<u32>,
    /// What views have left out, and when that was seen.
    gone: BTreeMap<Seat, u64>,
    /// What the newest look has seen of others' looks, and since when it is that.
    others: (u64, u64),
    /// After the store has refused something nothing but looks is tried until then.
    rests_until_ms: u64,
    /// Nodes of which the next view is to have another life than this one: which, if any.
    differ: BTreeMap<NodeId, Option<Incarnation>>,
    /// How many of these are to have none.
    absent: usize,
    /// Members of the view that answer, in whichever life; this node is one.
    present: usize,
    /// The newest life of each node that has ended with nothing: it is in no other part of the
    /// view, and nothing that it had is lost.
    left: BTreeMap<NodeId, Incarnation>,
    /// Since when the view is not as it should be.
    wanted: Option<Wanted>,
    /// Since when those of the view that live are no majority.
    scattered_ms: Option<u64>,
    /// What is under way, and since when.
    asked: Option<(Ask, u64)>,
    began_ms: u64,
    next_look_ms: u64,
    /// When it last looked for a view to be made.
    looked_again_ms: u64,
    /// The member that looks for this one does not answer.
    looks_itself: bool,
    /// Views name what may be lost.
    remembers: bool,
    /// Of the seats that the view names as lost those whose nodes have come back with all they had.
    back: BTreeSet<Seat>,
    /// Lives that the next view is to give up.
    to_give_up: BTreeMap<NodeId, Incarnation>,
    /// What the view gives up, and when that was seen first.
    given_up: BTreeMap<GivenUp, u64>,
}

/// Who makes the next view.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// None yet, or another node.
    Other,
    /// This one, when it has looked once more.
    Looks,
    Proposes,
}

impl Views {
    /// Of a node that has seen nothing yet.
    pub fn new(me: Member, times: Times, now_ms: u64) -> Self {
        Self {
            me,
            times,
            living: Lives::default(),
            view: None,
            seen_ms: now_ms,
            first: (0, now_ms),
            looked_ms: None,
            pleas: BTreeMap::new(),
            pleaded: None,
            gone: BTreeMap::new(),
            others: (0, now_ms),
            rests_until_ms: now_ms,
            differ: BTreeMap::new(),
            absent: 0,
            present: 0,
            left: BTreeMap::new(),
            wanted: Some(Wanted { since_ms: now_ms, changed_ms: now_ms }),
            scattered_ms: None,
            asked: None,
            began_ms: now_ms,
            next_look_ms: now_ms,
            looked_again_ms: 0,
            looks_itself: false,
            remembers: false,
            back: BTreeSet::new(),
            to_give_up: BTreeMap::new(),
            given_up: BTreeMap::new(),
        }
    }

    /// Views that this node makes name the [seats](View::lost) that may have lost something: nodes
    /// share files.
    pub fn remember_lost(&mut self) {
        self.remembers = true;
    }

    /// A node has come back and said what it had in a seat that was lost: the next view need not
    /// name it.
    pub fn came_back(&mut self, seat: Seat) {
        self.back.insert(seat);
    }

    /// The seats of the newest view that may have lost something, and have not come back.
    pub fn lost(&self) -> impl Iterator<Item = Seat> {
        let lost = self.view.iter().flat_map(|view| view.lost.iter().copied());
        lost.filter(|seat| !self.back.contains(seat))
    }

    /// Has the next view give up what a node wrote in the seats that are lost; that is so from the
    /// view on that says so. Returns the newest of those lives.
    ///
    /// # Errors
    /// See [`NotGivenUp`].
    pub fn give_up(&mut self, node: NodeId, now_ms: u64) -> Result<Member, NotGivenUp> {
        if self.rank(now_ms) != Rank::Inside {
            return Err(NotGivenUp::NotInside);
        }
        let lost = self.lost().filter(|seat| seat.member.node == node);
        let newest = lost.map(|seat| seat.member).max();
        let seat = self.view.as_ref().and_then(|view| view.seat_of(node));
        match newest {
            None if seat.is_some() => Err(NotGivenUp::Member),
            None => Err(NotGivenUp::NothingLost),
            // It has come back, and says just now what it had.
            Some(life) if seat.is_some_and(|seat| seat.member <= life) => Err(NotGivenUp::Member),
            Some(life) => {
                self.to_give_up.insert(node, life.incarnation);
                Ok(life)
            }
        }
    }

    /// What was given up long enough ago: all that a node which lives still may have begun to flush
    /// has ended, so that others may have what it wrote.
    pub fn forgotten(&self, now_ms: u64) -> impl Iterator<Item = GivenUp> {
        let wait_ms = self.times.patience;
        let given_up = self.given_up.iter();
        given_up.filter(move |(_, since)| now_ms >= **since + wait_ms).map(|(given, _)| *given)
    }

    /// Whether something was given up of which it is not yet [so long](Views::forgotten).
    pub fn is_giving_up(&self, now_ms: u64) -> bool {
        self.forgotten(now_ms).count() < self.given_up.len()
    }

    /// The newest view that it has seen.
    pub fn view(&self) -> Option<&View> {
        self.view.as_deref()
    }

    /// What it is, and so what it may do, at this moment.
    pub fn rank(&self, now_ms: u64) -> Rank {
        match (self.seat(), self.valid_until()) {
            (None, _) => Rank::Outside,
            (Some(_), Some(until_ms)) if now_ms < until_ms => Rank::Inside,
            (Some(_), _) => Rank::Fenced,
        }
    }

    /// Until when the last look is valid.
    pub fn valid_until(&self) -> Option<u64> {
        self.looked_ms.map(|looked_ms| looked_ms + self.times.valid)
    }

    /// What this node has in the newest view that it has seen. When `since` becomes another, it was
    /// left out in between, and what it held before is not its own any more.
    pub fn seat(&self) -> Option<Seat> {
        let seat = self.view.as_ref()?.seat_of(self.me.node)?;
        (seat.member == self.me).then_some(seat)
    }

    /// Whether a member's time in the group has ended, and what it held may be taken over.
    pub fn may_take_over(&self, from: Seat, now_ms: u64) -> bool {
        let Some(view) = self.view.as_deref() else { return false };
        // One that is taken in by a view that this node has not seen yet has only begun.
        let is_known = from.since <= view.number;
        let is_over = view.seat_of(from.member.node) != Some(from);
        // One that has come and gone between two looks was left out by the view seen last; one that
        // was there before, by the first at the latest.
        let (first, first_ms) = self.first;
        let unseen_ms = if from.since <= first { first_ms } else { self.seen_ms };
        let since_ms = self.gone.get(&from).copied().unwrap_or(unseen_ms);
        let is_late = now_ms >= since_ms + self.times.grace;
        is_known && is_over && is_late && self.rank(now_ms) == Rank::Inside
    }

    /// What it has last seen, and how many milliseconds ago that look began, for one that
    /// [inquires](Ask::Inquire).
    pub fn last_seen(&self, now_ms: u64) -> Option<(u64, Found)> {
        let age_ms = now_ms.saturating_sub(self.looked_ms?);
        let pleas = self.pleas.keys().copied().collect();
        let (newest, looks) = (self.view.clone(), self.others.0);
        Some((age_ms, Found { newest, pleas, looks, ..Found::default() }))
    }

    /// The failure detector says that a node lives.
    pub fn up(&mut self, member: Member, now_ms: u64) {
        let before = self.living.get(member.node);
        if before < Some(member.incarnation) {
            self.answers(member.node, Some(member.incarnation), now_ms);
        }
    }

    /// The failure detector says that a node does not answer.
    pub fn down(&mut self, member: Member, now_ms: u64) {
        if self.lives(member) {
            self.answers(member.node, None, now_ms);
        }
    }

    /// A member has said that it ends: the next view is without it, and the others need not wait
    /// for a majority that it would be part of.
    pub fn left(&mut self, member: Member, now_ms: u64) {
        if member != self.me {
            let newest = self.left.entry(member.node).or_insert(member.incarnation);
            *newest = member.incarnation.max(*newest);
        }
        match self.lives(member) {
            true => self.answers(member.node, None, now_ms),
            false => self.note(false, now_ms),
        }
    }

    /// Whether it is known that a life has ended with nothing.
    pub fn has_left(&self, member: Member) -> bool {
        self.left.get(&member.node) == Some(&member.incarnation)
    }

    /// What is to be done now, if anything is.
    pub fn poll(&mut self, now_ms: u64) -> Option<Ask> {
        match &self.asked {
            // An answer by another member may be lost; the store's always comes.
            Some((Ask::Inquire(..), since_ms)) if now_ms >= since_ms + self.times.look => {
                self.look_at_once(now_ms);
            }
            Some(_) => return None,
            None => {}
        }
        for node in self.pleas.keys().copied().collect::<Vec<_>>() {
            // Its time may have come.
            self.compare(node, now_ms);
        }
        let ask = self.next(now_ms);
        self.asked = ask.clone().map(|ask| (ask, now_ms));
        ask
    }

    /// When [`Views::poll`] may have something again, if nothing happens before.
    pub fn next_ms(&self, now_ms: u64) -> u64 {
        match (&self.asked, self.wanted) {
            (Some((Ask::Inquire(..), since_ms)), _) => since_ms + self.times.look,
            (Some(_), _) => now_ms + self.times.look,
            (None, Some(_)) => self.next_look_ms.min(now_ms + self.times.settle / 2),
            (None, None) => self.next_look_ms,
        }
        .max(now_ms + 1)
    }

    fn next(&mut self, now_ms: u64) -> Option<Ask> {
        if now_ms >= self.next_look_ms {
            self.next_look_ms = now_ms + self.after_look(now_ms);
            let other = self.looker().filter(|_| !std::mem::take(&mut self.looks_itself));
            return Some(other.map_or(Ask::Look, |other| Ask::Inquire(other, now_ms)));
        }
        if now_ms < self.rests_until_ms {
            return None;
        }
        let view = self.view.as_deref();
        if let Some(view) = view.filter(|view| view.has(self.me))
            && self.scattered_ms.is_some()
            && self.pleaded != Some(view.number)
        {
            return Some(Ask::Plead(view.number));
        }
        let number = view.map_or(1, |view| view.number + 1);
        // An operator waits: none else need have its turn, as the members stay.
        if let Some(view) = view
            && !self.to_give_up.is_empty()
            && self.rank(now_ms) == Rank::Inside
            && now_ms >= self.seen_ms + self.times.settle
        {
            return Some(Ask::Propose(self.view_of(number, view.seats.clone(), now_ms)));
        }
        match self.turn(now_ms) {
            Turn::Other => None,
            Turn::Looks => {
                self.looked_again_ms = now_ms;
                Some(Ask::Look)
            }
            Turn::Proposes => {
                let seats = self.wanted_seats(number, now_ms);
                Some(Ask::Propose(self.view_of(number, seats, now_ms)))
            }
        }
    }

    /// The view with these members, as far as this node knows what else belongs into it.
    fn view_of(&self, number: u32, seats: Vec<Seat>, now_ms: u64) -> View {
        let before = self.view.as_deref();
        let mut given_up: BTreeMap<NodeId, GivenUp> = before
            .into_iter()
            .flat_map(|view| view.given_up.iter().map(|given| (given.member.node, *given)))
            .collect();
        for (&node, &incarnation) in &self.to_give_up {
            let member = Member { node, incarnation };
            if !given_up.get(&node).is_some_and(|given| given.covers(member)) {
                given_up.insert(node, GivenUp { member, view: number });
            }
        }
        let mut view =
            View { number, seats, given_up: given_up.into_values().collect(), ..View::default() };
        view.lost = self.lost_without(&view, now_ms);
        view
    }

    /// What may be lost where this is the next view.
    fn lost_without(&self, next: &View, now_ms: u64) -> Vec<Seat> {
        let Some(before) = self.view.as_deref().filter(|_| self.remembers) else {
            return Vec::new();
        };
        let forgotten: Vec<GivenUp> = self.forgotten(now_ms).collect();
        let is_lost = |seat: &Seat| {
            next.seat_of(seat.member.node) != Some(*seat)
                && !self.has_left(seat.member)
                && !self.back.contains(seat)
                && !forgotten.iter().any(|given| given.covers(seat.member))
        };
        let mut lost: Vec<Seat> =
            before.lost.iter().chain(&before.seats).copied().filter(is_lost).collect();
        lost.sort_unstable();
        lost.dedup();
        lost
    }

    /// The member that looks for this one, if it lives and is another.
    fn looker(&self) -> Option<NodeId> {
        let seats = &self.view.as_ref()?.seats;
        let place = seats.binary_search_by_key(&self.me, |seat| seat.member).ok()?;
        let each = self.times.looked_for.max(1);
        let first = seats[place - place % each].member;
        (self.lives(first) && seats.len() > each).then_some(first.node)
    }

    /// When the next look is due after one at this moment: one that has just begun is not kept
    /// waiting until it finds itself taken in.
    fn after_look(&self, now_ms: u64) -> u64 {
        let hurries = self.seat().is_none() && now_ms < self.began_ms + 2 * self.times.look;
        if hurries { self.times.settle.min(self.times.look) } else { self.times.look }
    }

    /// The next look is this node's own, and now.
    fn look_at_once(&mut self, now_ms: u64) {
        (self.looks_itself, self.next_look_ms) = (true, now_ms);
    }

    /// Whether another node answers in this life.
    fn lives(&self, member: Member) -> bool {
        self.living.get(member.node) == Some(member.incarnation)
    }

    /// Members of the view.
    fn members(&self) -> impl Iterator<Item = Member> {
        self.view.iter().flat_map(|view| view.members())
    }

    /// Nodes of the view, and those that answer, this one among them; ascending.
    fn nodes(&self) -> Vec<NodeId> {
        let in_view = self.members().map(|member| member.node);
        // Two ascending runs and one node, which a stable sort merges.
        let mut nodes: Vec<_> = in_view.chain(self.living.nodes()).chain([self.me.node]).collect();
        nodes.sort();
        nodes.dedup();
        nodes
    }

    /// Who should be in the next view.
    fn wanted_seats(&self, number: u32, now_ms: u64) -> Vec<Seat> {
        let seat = |node| {
            let member = Member { node, incarnation: self.wanted_life(node, now_ms)? };
            let before = self.view.as_ref().and_then(|view| view.seat_of(node));
            let new = Seat { member, since: number };
            Some(before.filter(|seat| seat.member == member).unwrap_or(new))
        };
        self.nodes().into_iter().filter_map(seat).collect()
    }

    /// Members of the view that live in the life that it names, this node among them.
    fn living_members(&self) -> impl Iterator<Item = Member> {
        self.members().filter(|member| *member == self.me || self.lives(*member))
    }

    /// Notes in which life another node answers, if it does.
    fn answers(&mut self, node: NodeId, life: Option<Incarnation>, now_ms: u64) {
        let before = match life {
            Some(life) => {
                // It is heard again, and its plea of this view is spent.
                if let Some(until_ms) = self.pleas.get_mut(&node) {
                    *until_ms = 0;
                }
                self.living.insert(node, life)
            }
            None => self.living.remove(node),
        };
        if self.view.as_ref().is_some_and(|view| view.life_of(node).is_some()) {
            self.present += usize::from(life.is_some());
            self.present -= usize::from(before.is_some());
        }
        self.compare(node, now_ms);
    }

    /// The life of a node that the next view is to have.
    fn wanted_life(&self, node: NodeId, now_ms: u64) -> Option<Incarnation> {
        let is_given_up = |life: &Incarnation| {
            let member = Member { node, incarnation: *life };
            self.view.as_ref().is_some_and(|view| view.has_given_up(member))
        };
        self.life_that_answers(node, now_ms).filter(|life| !is_given_up(life))
    }

    /// The life of a node that answers, or pleads.
    fn life_that_answers(&self, node: NodeId, now_ms: u64) -> Option<Incarnation> {
        if node == self.me.node {
            return Some(self.me.incarnation);
        }
        let pleads = || self.pleas.get(&node).is_some_and(|until_ms| now_ms < *until_ms);
        let in_view = self.view.as_ref().and_then(|view| view.life_of(node));
        match self.living.get(node) {
            // The failure detector has not heard of a life that others have taken in.
            Some(life) => Some(life).max(in_view),
            None => in_view.filter(|_| pleads()),
        }
    }

    /// Notes whether a node is in the view as it should be, and since when one is not.
    fn compare(&mut self, node: NodeId, now_ms: u64) {
        let is = self.view.as_ref().and_then(|view| view.life_of(node));
        let wanted = self.wanted_life(node, now_ms);
        let has_changed = match is == wanted {
            true => self.agrees(node),
            false => self.differs(node, wanted),
        };
        self.note(has_changed, now_ms);
    }

    /// Notes that a node is in the view as it should be; whether that is new.
    fn agrees(&mut self, node: NodeId) -> bool {
        let before = self.differ.remove(&node);
        self.absent -= usize::from(before == Some(None));
        before.is_some()
    }

    /// Notes that a node should be in the view in another life than it is, if in any; whether that
    /// is new.
    fn differs(&mut self, node: NodeId, wanted: Option<Incarnation>) -> bool {
        let before = self.differ.insert(node, wanted);
        self.absent += usize::from(wanted.is_none());
        self.absent -= usize::from(before == Some(None));
        before != Some(wanted)
    }

    /// Whether the next view is to be without a node of this one that has not said that it ends.
    fn leaves_out(&self) -> bool {
        // While a large group forms, all of it differs, and none of that is absent.
        if self.absent == 0 {
            return false;
        }
        let has_left = |node: &NodeId| {
            let life = self.view.as_ref().and_then(|view| view.life_of(*node));
            life.is_some_and(|incarnation| self.has_left(Member { node: *node, incarnation }))
        };
        self.differ.iter().any(|(node, life)| life.is_none() && !has_left(node))
    }

    /// Members of the view that do not answer, and need not.
    fn have_left(&self) -> usize {
        let Some(view) = self.view.as_deref() else { return 0 };
        let left = self.left.iter().map(|(node, life)| Member { node: *node, incarnation: *life });
        left.filter(|member| view.has(*member) && self.living.get(member.node).is_none()).count()
    }

    fn note(&mut self, has_changed: bool, now_ms: u64) {
        let is_right = self.view.is_some() && self.differ.is_empty();
        self.wanted = match self.wanted {
            _ if is_right => None,
            None => Some(Wanted { since_ms: now_ms, changed_ms: now_ms }),
            Some(wanted) if has_changed => Some(Wanted { changed_ms: now_ms, ..wanted }),
            wanted => wanted,
        };
        // A node that has come back in another life is no less there.
        let count = self.view.as_ref().map_or(0, |view| view.seats.len());
        self.scattered_ms = match self.scattered_ms {
            _ if 2 * (self.present + self.have_left()) > count || count == 0 => None,
            None => Some(now_ms),
            since_ms => since_ms,
        };
    }

    /// Compares all nodes with a view that is new.
    fn compare_all(&mut self, now_ms: u64) {
        self.differ.clear();
        self.absent = 0;
        let is_there =
            |member: &Member| member.node == self.me.node || self.living.get(member.node).is_some();
        self.present = self.members().filter(is_there).count();
        for node in self.nodes() {
            let is = self.view.as_ref().and_then(|view| view.life_of(node));
            let wanted = self.wanted_life(node, now_ms);
            if is != wanted {
                self.differs(node, wanted);
            }
        }
        self.note(true, now_ms);
    }

    /// Whether this node is to make the next view now.
    fn turn(&self, now_ms: u64) -> Turn {
        let Some(wanted) = self.wanted else { return Turn::Other };
        if self.view.as_ref().is_some_and(|view| view.has_given_up(self.me)) {
            return Turn::Other;
        }
        let times = self.times;
        let is_member = self.view.as_ref().is_some_and(|view| view.has(self.me));
        let begin_ms = if is_member {
            match self.scattered_ms {
                Some(since_ms) => since_ms + times.patience,
                // Those that are cut off plead, when they have noticed it.
                None if self.leaves_out() => {
                    (wanted.changed_ms + 2 * times.look).min(wanted.since_ms + 4 * times.look)
                }
                None => (wanted.changed_ms + times.settle).min(wanted.since_ms + 4 * times.settle),
            }
        } else {
            // Of a group that there is, a member takes it in: if any of them still looks.
            let is_other = |member: Member| member.node != self.me.node && !self.has_left(member);
            match &self.view {
                Some(view) if view.members().any(is_other) => self.others.1 + times.patience,
                // There is no group yet, or one of an earlier life of this node alone, or one
                // that has ended.
                _ => wanted.since_ms + times.settle,
            }
        };
        if now_ms < begin_ms {
            return Turn::Other;
        }
        // The first makes it; if it cannot, the next one does. Those behind wait for as long as
        // each other, so no more are counted.
        let place = match is_member {
            true => {
                let before = self.living_members().take_while(|member| *member != self.me);
                before.take(TURNS).count()
            }
            false => {
                let before = self.living.nodes().take_while(|node| *node < self.me.node);
                before.take(TURNS).count()
            }
        };
        if now_ms < begin_ms + place as u64 * times.grace {
            return Turn::Other;
        }
        // What it does not see it must not pass over: a newer view, and pleas.
        let changed_ms = wanted.changed_ms.min(wanted.since_ms + 4 * times.look);
        let has_looked = |looked_ms| looked_ms >= changed_ms && now_ms < looked_ms + times.valid;
        match self.looked_ms.is_some_and(has_looked) {
            true => Turn::Proposes,
            // One that fails is followed by the usual ones.
            false if self.looked_again_ms < changed_ms => Turn::Looks,
            false => Turn::Other,
        }
    }

    /// Takes an answer off the list; returns when it was asked for. `None` if it was not, or comes
    /// too late.
    fn answered(&mut self, is_it: impl Fn(&Ask) -> bool) -> Option<u64> {
        let (_, since_ms) = self.asked.take_if(|(ask, _)| is_it(ask))?;
        Some(since_ms)
    }

    /// A look has ended; `None` if the store did not answer, or with an error.
    pub fn looked(&mut self, found: Option<Found>, now_ms: u64) {
        let Some(began_ms) = self.answered(|ask| *ask == Ask::Look) else { return };
        // However long looks take, there is time for something else between two.
        self.next_look_ms = self.next_look_ms.max(now_ms + self.after_look(now_ms) / 8);
        if let Some(found) = found {
            let _ = self.see(found, began_ms, now_ms);
        }
    }

    /// A member has answered this question: with what it has [last seen](Views::last_seen), and
    /// how long ago; `None` if nothing.
    pub fn heard(&mut self, from: NodeId, question: u64, seen: Option<(u64, Found)>, now_ms: u64) {
        let Some(asked_ms) = self.answered(|ask| *ask == Ask::Inquire(from, question)) else {
            return;
        };
        // It was answered after it was asked: what is older by `age` than the answer is not older
        // by more than the question.
        let is_good = match seen {
            Some((age_ms, found)) if age_ms < self.times.valid => {
                let is_good = self.see(found, asked_ms.saturating_sub(age_ms), now_ms);
                // One that is nearly over would leave a gap before the next.
                is_good && age_ms <= self.times.valid / 2
            }
            _ => false,
        };
        if !is_good {
            self.look_at_once(now_ms);
        }
    }

    /// Another node knows of the view of this number. A member that looks for others, or for itself
    /// alone, looks at once where that is news; the rest learn it in their time.
    pub fn told(&mut self, number: u32, now_ms: u64) {
        let known = self.view.as_ref().map_or(0, |view| view.number);
        if number > known && self.looker().is_none() {
            self.look_at_once(now_ms);
        }
    }

    /// The store has answered a proposal: the view was made, or one of its number was there, which
    /// the next look tells; or it has refused.
    pub fn proposed(&mut self, is_answered: bool, now_ms: u64) {
        if self.answered(|ask| matches!(ask, Ask::Propose(_))).is_some() {
            self.look_at_once(now_ms);
            self.rest(is_answered, now_ms);
        }
    }

    /// The plea is on the store, or it has refused.
    pub fn pleaded(&mut self, is_done: bool, now_ms: u64) {
        let asked = self.asked.take_if(|(ask, _)| matches!(ask, Ask::Plead(_)));
        if let Some((Ask::Plead(number), _)) = asked {
            self.pleaded = self.pleaded.max(Some(number).filter(|_| is_done));
            self.rest(is_done, now_ms);
        }
    }

    /// What the store has refused is not tried again at once.
    fn rest(&mut self, is_answered: bool, now_ms: u64) {
        if !is_answered {
            self.rests_until_ms = now_ms + self.times.look;
        }
    }

    /// Takes what a look has found; whether it was a good one.
    fn see(&mut self, found: Found, began_ms: u64, now_ms: u64) -> bool {
        let Found { newest, pleas, looks, left } = found;
        let number = |view: &Option<Arc<View>>| view.as_ref().map_or(0, |view| view.number);
        match number(&newest).cmp(&number(&self.view)) {
            // A store, or a member, that shows what is older than what was seen.
            Ordering::Less => return false,
            Ordering::Equal if looks == self.others.0 => {}
            Ordering::Equal => self.others = (looks, now_ms),
            Ordering::Greater => {
                self.others = (looks, now_ms);
                self.enter(newest, now_ms);
            }
        }
        self.looked_ms = self.looked_ms.max(Some(began_ms));
        for member in left {
            if member != self.me && !self.has_left(member) {
                self.left(member, now_ms);
            }
        }
        for node in pleas {
            if self.living.get(node).is_none() {
                self.pleas.entry(node).or_insert(now_ms + self.times.grace);
                self.compare(node, now_ms);
            }
        }
        true
    }

    /// There is a newer view.
    fn enter(&mut self, newest: Option<Arc<View>>, now_ms: u64) {
        let Some(view) = newest else { return };
        (self.seen_ms, self.wanted, self.scattered_ms) = (now_ms, None, None);
        // Who has pleaded is given time once until it is heard, however many views there are.
        self.pleas.retain(|node, until_ms| *until_ms > 0 && view.seat_of(*node).is_some());
        if self.view.is_none() {
            self.first = (view.number, now_ms);
        }
        let before = self.view.take();
        let left = before.iter().flat_map(|before| before.seats.iter().copied());
        let left = left.filter(|seat| view.seat_of(seat.member.node) != Some(*seat));
        self.gone.extend(left.map(|seat| (seat, now_ms)));
        let kept_ms = KEPT * self.times.grace;
        self.gone.retain(|_, since_ms| now_ms - *since_ms < kept_ms);
        self.back.retain(|seat| view.lost.contains(seat));
        self.to_give_up
            .retain(|&node, &mut incarnation| !view.has_given_up(Member { node, incarnation }));
        let known = std::mem::take(&mut self.given_up);
        let since = |given: &GivenUp| (*given, known.get(given).copied().unwrap_or(now_ms));
        self.given_up = view.given_up.iter().map(since).collect();
        self.view = Some(view);
        self.compare_all(now_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When the one of two members that stays proposes a view of its own, after the other one is
    /// gone at 1000 ms; it looks all the time.
    fn proposes_ms(goes: impl Fn(&mut Views, Member, u64)) -> u64 {
        let (me, other) = (Member::new(0, 1), Member::new(1, 1));
        let seats = [me, other].map(|member| Seat { member, since: 1 }).to_vec();
        let view = View { number: 1, seats, ..View::default() };
        let mut views = Views::new(me, Times::default(), 0);
        views.up(other, 0);
        for now_ms in (0..120_000).step_by(10) {
            if now_ms == 1_000 {
                goes(&mut views, other, now_ms);
            }
            match views.poll(now_ms) {
                Some(Ask::Look) => {
                    let newest = Some(Arc::new(view.clone()));
                    let found = Found { newest, looks: now_ms, ..Found::default() };
                    views.looked(Some(found), now_ms);
                }
                Some(Ask::Propose(next)) => {
                    assert_eq!(next.members().collect::<Vec<_>>(), [me]);
                    return now_ms;
                }
                Some(Ask::Plead(_)) => views.pleaded(true, now_ms),
                Some(Ask::Inquire(..)) | None => {}
            }
        }
        panic!("it never proposes");
    }

    #[test]
    fn a_member_that_has_said_that_it_ends_is_not_waited_for() {
        let times = Times::default();
        let left_ms = proposes_ms(|views, member, now_ms| views.left(member, now_ms));
        assert!(left_ms <= 1_000 + times.settle + 2 * times.look, "{left_ms}");
        // One that does not answer may be the half that goes on.
        let lost_ms = proposes_ms(|views, member, now_ms| views.down(member, now_ms));
        assert!(lost_ms >= 1_000 + times.patience, "{lost_ms}");
    }

    /// When a node that is in no view makes one of its own, where the only member of the newest
    /// view does not look any more.
    fn begins_ms(has_left: bool) -> u64 {
        let (me, other) = (Member::new(0, 1), Member::new(1, 1));
        let seats = vec![Seat { member: other, since: 1 }];
        let view = View { number: 1, seats, ..View::default() };
        let mut views = Views::new(me, Times::default(), 0);
        for now_ms in (0..120_000).step_by(10) {
            match views.poll(now_ms) {
                Some(Ask::Look) => {
                    let newest = Some(Arc::new(view.clone()));
                    let left = if has_left { vec![other] } else { Vec::new() };
                    views.looked(Some(Found { newest, left, ..Found::default() }), now_ms);
                }
                Some(Ask::Propose(next)) => {
                    assert_eq!(next.members().collect::<Vec<_>>(), [me]);
                    assert_eq!(views.has_left(other), has_left);
                    return now_ms;
                }
                _ => {}
            }
        }
        panic!("it never proposes");
    }

    #[test]
    fn a_view_whose_members_have_all_ended_is_not_waited_for() {
        let times = Times::default();
        assert!(begins_ms(true) <= 2 * times.settle + 2 * times.look);
        assert!(begins_ms(false) >= times.patience);
    }
}
