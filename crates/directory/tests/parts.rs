//! All interleavings of leases of parts of one file, as far as a bound: real directories, and with
//! them what the pools of their nodes have of the parts and what the store has.
//!
//! The file is written as a whole or shared when the search begins. From there all orders are taken
//! of what nodes want, of messages, one of which may come twice and one late, of what shells do
//! when something is taken back, of writes, of views, and of the moment from which one that a view
//! has left out cannot act any more. Programs write as soon as they may, and copies are made as
//! soon as they may be: what is wrong shows at once.
//!
//! In each state: no two nodes may use what one of them writes; a node that may read a part has
//! the newest bytes that were acknowledged; and a home grants nothing while a member has what is in
//! the way, or one that has gone had it to write.

use forebay_directory::{Ahead, Body, Directory, Effect, Level, Message, Object, Of, Terms};
use forebay_membership::{FileId, GivenUp, Member, NodeId, Seat, View};
use search::{Model as _, Network, Traffic, are_safe, explore, file_of_first, most};

mod search;

/// How many states are looked at in each search: about a second.
const STATES: usize = 15_000;
/// How many parts are used.
const PARTS: usize = 3;
const NODES: u16 = 3;

/// What a pool has of a part: which write it is, and whether the store has it, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Cached {
    write: u8,
    is_dirty: bool,
}

/// Three nodes, their pools, and what is on its way between them.
#[derive(Clone, Hash)]
struct State {
    network: Network,
    pools: Vec<[Option<Cached>; PARTS]>,
    store: [u8; PARTS],
    /// The newest acknowledged write of each part.
    newest: [u8; PARTS],
    /// What shells have been asked to do and have not done.
    reductions: Vec<(usize, Object, Level, bool)>,
    /// What may still happen.
    wants: Vec<Want>,
    writes: u8,
    releases: u8,
    /// What a home did that it must not, when it did it.
    wrong: Option<String>,
}

/// Who wants what.
type Want = (usize, Of, Level, Terms);

/// What can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Want(usize),
    Message(Traffic),
    Reduce(usize),
    Write(usize, usize),
    Release(usize, Object),
    See(usize),
    /// A node takes it that one that has gone cannot act any more.
    Succeed(usize, Seat),
    /// All that wait ask again.
    Retry(usize),
}

/// What is wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    /// A home does not wait until a holder of a part has given it back.
    RevokeNotAwaited,
    /// A holder gives back a part that it has not flushed.
    NotFlushed,
    /// A holder keeps what it has of a part that it has given back, and believes it when it gets
    /// the part again.
    KeptTooLong,
    /// Parts that others have are granted ahead.
    AheadOfOthers,
    /// What a node had that has gone is taken for given back.
    GoneIsFree,
}

/// What is explored.
struct Model {
    file: FileId,
    views: Vec<View>,
    planted: Option<Planted>,
}

impl Model {
    /// Nodes with a file of which node 0 is the home and node 1 the second place, and views of
    /// which the first is seen by all.
    fn of(views: &[&[u16]]) -> Self {
        let mut made: Vec<View> = Vec::new();
        for (number, nodes) in (1..).zip(views) {
            let seat = |node: &u16| {
                let before = made.last().and_then(|view| view.seat_of(NodeId(*node)));
                before.unwrap_or(Seat { member: Member::new(*node, 1), since: number })
            };
            let seats = nodes.iter().map(seat).collect();
            made.push(View { number, seats, ..View::default() });
        }
        Self { file: file_of_first(NODES), views: made, planted: None }
    }

    fn object(&self, of: Of) -> Object {
        Object { file: self.file, of }
    }

    fn part(&self, part: usize) -> Object {
        Object::part(self.file, part as u32)
    }

    /// The group has formed, and these wants were granted one after the other.
    fn begin(&self, before: &[Want], wants: &[Want], trouble: u8) -> State {
        let mut state = State {
            network: Network::of(NODES, trouble),
            pools: vec![[None; PARTS]; NODES.into()],
            store: [0; PARTS],
            newest: [0; PARTS],
            reductions: Vec::new(),
            wants: Vec::new(),
            writes: 1,
            releases: trouble,
            wrong: None,
        };
        for node in 0..state.network.nodes.len() {
            self.take(&mut state, Step::See(node));
        }
        self.go_on(&mut state);
        for want in before {
            state.wants.push(*want);
            self.take(&mut state, Step::Want(0));
            self.go_on(&mut state);
            assert!(self.wrong(&state).is_none());
        }
        for (node, of, level, _) in before {
            let has = state.network.nodes[*node].held(self.object(*of));
            let is_later = |other: &&Want| other.1 == *of && other.0 != *node;
            assert!(has != Level::None || before.iter().any(|want| is_later(&want)), "{level:?}");
        }
        state.wants = wants.to_vec();
        state
    }

    /// Delivers what is on its way, and does what is asked, until nothing is left.
    fn go_on(&self, state: &mut State) {
        loop {
            if let Some(first) = state.network.first() {
                self.take(state, Step::Message(first));
            } else if !state.reductions.is_empty() {
                self.take(state, Step::Reduce(0));
            } else {
                return;
            }
        }
    }

    /// The first want is on its way as far as messages bring it: what others have is being taken
    /// back.
    fn under_way(&self, mut state: State) -> State {
        self.take(&mut state, Step::Want(0));
        while let Some(first) = state.network.first() {
            self.take(&mut state, Step::Message(first));
        }
        assert!(!state.reductions.is_empty());
        state
    }

    /// What a node has of a part by a lease of that. Where it does not share the whole it may use
    /// none, and takes none that is granted: a want of it may come to the home after that.
    fn has(&self, node: &Directory, part: usize) -> Level {
        match node.held(Object::whole(self.file)) {
            Level::Shared => node.held(self.part(part)),
            _ => Level::None,
        }
    }

    fn usable(&self, node: &Directory, of: Of) -> Level {
        node.usable(self.object(of))
    }

    fn may_write(&self, node: &Directory, part: usize) -> bool {
        let level = self.usable(node, Of::Part(part as u32));
        matches!(level, Level::Write | Level::Direct)
    }

    fn parts(&self, object: Object) -> Vec<usize> {
        match object.of {
            Of::Whole => (0..PARTS).collect(),
            Of::Size => Vec::new(),
            Of::Part(part) => vec![part as usize],
        }
    }

    fn write(&self, state: &mut State, node: usize, part: usize) {
        state.newest[part] += 1;
        let write = state.newest[part];
        match self.usable(&state.network.nodes[node], Of::Part(part as u32)) {
            // Through the kernel.
            Level::Direct => state.store[part] = write,
            _ => state.pools[node][part] = Some(Cached { write, is_dirty: true }),
        }
    }

    /// A node may use a part from now on.
    fn granted(&self, state: &mut State, node: usize, object: Object, level: Level) {
        for part in self.parts(object) {
            match level {
                Level::Read => {
                    let copy = Cached { write: state.store[part], is_dirty: false };
                    state.pools[node][part].get_or_insert(copy);
                }
                Level::Write => self.write(state, node, part),
                Level::Direct => state.pools[node][part] = None,
                // No part is lent or borrowed.
                Level::Borrowed | Level::Lent | Level::None | Level::Shared => {}
            }
        }
    }

    /// A shell brings something down, and says so.
    fn reduce(&self, state: &mut State, node: usize, object: Object, to: Level) {
        let forgets_to_flush = self.planted == Some(Planted::NotFlushed) && !object.in_all();
        let keeps = self.planted == Some(Planted::KeptTooLong) && !object.in_all();
        for part in self.parts(object) {
            let Some(cached) = &mut state.pools[node][part] else { continue };
            if cached.is_dirty && !forgets_to_flush {
                state.store[part] = cached.write;
            }
            cached.is_dirty = false;
            if to != Level::Read && !keeps {
                state.pools[node][part] = None;
            }
        }
        state.network.nodes[node].reduced(object, to, None, 0);
        self.carry_out(state, node);
    }

    fn deliver(&self, state: &mut State, from: usize, to: usize, mut message: Message) {
        match (self.planted, &mut message.body) {
            (Some(Planted::RevokeNotAwaited), Body::Revoke { object, .. }) if !object.in_all() => {
                state.network.await_no_holder(from, to, &message);
                return self.carry_out(state, from);
            }
            (Some(Planted::AheadOfOthers), Body::Granted { object, level, ahead, .. })
                if !object.in_all() && *level == Level::Write =>
            {
                *ahead = Ahead::of(1, 1);
            }
            _ => {}
        }
        state.network.deliver(from, to, message);
        self.carry_out(state, to);
    }

    fn carry_out(&self, state: &mut State, node: usize) {
        for effect in state.network.nodes[node].effects() {
            match effect {
                Effect::Send(to, message) => {
                    self.look_at(state, node, usize::from(to.node.0), &message.body);
                    state.network.send(node, to, message);
                }
                Effect::Reduce { object, to, may_share } => {
                    state.reductions.push((node, object, to, may_share));
                }
                Effect::Granted { object, level, .. } => self.granted(state, node, object, level),
                Effect::Ahead { file, level, runs } => {
                    let parts = runs.iter().flat_map(|run| run.first..run.first + run.count);
                    for part in parts.filter(|part| (*part as usize) < PARTS) {
                        self.granted(state, node, Object::part(file, part), level);
                    }
                }
                Effect::Lost { object } => {
                    for part in self.parts(object) {
                        state.pools[node][part] = None;
                    }
                }
                _ => {}
            }
        }
    }

    /// What a home sends: a grant has to wait for every other node that has what is in its way.
    fn look_at(&self, state: &mut State, home: usize, to: usize, body: &Body) {
        let Body::Granted { object, level, ahead, .. } = body else { return };
        let (stride, bits) = ahead.form();
        let first = match object.of {
            Of::Part(part) => part,
            Of::Whole | Of::Size => 0,
        };
        let others = (0..63).filter(|bit| bits >> bit & 1 == 1);
        let others = others.map(|bit| self.part((first + stride * (bit + 1)) as usize));
        for object in std::iter::once(*object).chain(others.collect::<Vec<_>>()) {
            for other in (0..state.network.nodes.len()).filter(|other| *other != to) {
                let has = match object.of {
                    Of::Part(part) => self.has(&state.network.nodes[other], part as usize),
                    _ => state.network.nodes[other].held(object),
                };
                // Copies of one that has gone, and cannot use them, are in no way.
                let uses =
                    state.network.nodes[other].usable(object) != Level::None || has.is_dirty();
                if uses && has.conflicts(*level) {
                    let of = object.of;
                    let why = format!("{home} grants {of:?} at {level:?}, {other} has {has:?}");
                    state.wrong.get_or_insert(why);
                }
            }
        }
    }
}

/// What of a file an object is.
trait InAll {
    fn in_all(&self) -> bool;
}

impl InAll for Object {
    /// It is no part.
    fn in_all(&self) -> bool {
        !matches!(self.of, Of::Part(_))
    }
}

impl search::Model for Model {
    type State = State;
    type Step = Step;

    fn steps(&self, state: &State) -> Vec<Step> {
        let mut steps = Vec::new();
        steps.extend((0..state.wants.len()).map(Step::Want));
        steps.extend(state.network.traffic().into_iter().map(Step::Message));
        steps.extend((0..state.reductions.len()).map(Step::Reduce));
        for (node, directory) in state.network.nodes.iter().enumerate() {
            let writes = (0..PARTS).filter(|_| state.writes > 0);
            let writes = writes.filter(|part| self.may_write(directory, *part));
            steps.extend(writes.map(|part| Step::Write(node, part)));
            if state.releases > 0 {
                let held = directory.all_held().into_iter();
                steps.extend(held.map(|(object, _)| Step::Release(node, object)));
            }
            if state.network.is_behind(node, &self.views) {
                steps.push(Step::See(node));
            }
            // Who is left out has seen it by then, as it may act for half of the time only.
            let (awaited, views) = (directory.awaited().into_iter(), &state.network.views);
            let is_over = |seat: &Seat| views[usize::from(seat.member.node.0)] >= views[node];
            steps.extend(awaited.filter(is_over).map(|seat| Step::Succeed(node, seat)));
            if state.network.is_idle() {
                steps.push(Step::Retry(node));
            }
        }
        steps
    }

    fn take(&self, state: &mut State, step: Step) {
        match step {
            Step::Want(index) => {
                let (node, of, level, terms) = state.wants.remove(index);
                state.network.nodes[node].want(self.object(of), level, terms, 0);
                self.carry_out(state, node);
            }
            Step::Message(traffic) => {
                if let Some((from, to, message)) = state.network.take(traffic) {
                    self.deliver(state, from, to, message);
                }
            }
            Step::Reduce(index) => {
                let (node, object, to, may_share) = state.reductions.remove(index);
                let shares = may_share && state.network.nodes[node].held(object) == Level::Write;
                self.reduce(state, node, object, if shares { Level::Shared } else { to });
            }
            Step::Write(node, part) => {
                state.writes -= 1;
                self.write(state, node, part);
            }
            Step::Release(node, object) => {
                state.releases -= 1;
                self.reduce(state, node, object, Level::None);
                state.network.nodes[node].release(object, 0);
                self.carry_out(state, node);
            }
            Step::See(node) => {
                state.network.see(node, &self.views);
                self.carry_out(state, node);
            }
            Step::Succeed(node, seat) => {
                state.network.nodes[node].succeeded(seat, 0);
                if self.planted == Some(Planted::GoneIsFree) {
                    let given = GivenUp { member: seat.member, view: seat.since };
                    state.network.nodes[node].give_up(given, 0);
                }
                self.carry_out(state, node);
            }
            Step::Retry(node) => {
                state.network.retry(node);
                self.carry_out(state, node);
            }
        }
    }

    fn wrong(&self, state: &State) -> Option<String> {
        if state.wrong.is_some() {
            return state.wrong.clone();
        }
        let parts = (0..PARTS as u32).map(Of::Part);
        for of in [Of::Whole, Of::Size].into_iter().chain(parts) {
            let levels: Vec<Level> =
                state.network.nodes.iter().map(|node| self.usable(node, of)).collect();
            if !are_safe(&levels) {
                return Some(format!("two nodes may use {of:?}, which one writes: {levels:?}"));
            }
        }
        for (node, directory) in state.network.nodes.iter().enumerate() {
            for part in 0..PARTS {
                let level = self.usable(directory, Of::Part(part as u32));
                let pool = state.pools[node][part].filter(|_| level != Level::Direct);
                let reads = pool.map_or(state.store[part], |cached| cached.write);
                let newest = state.newest[part];
                if level.covers(Level::Read) && reads != newest {
                    return Some(format!("{node} reads {reads} of part {part}, not {newest}"));
                }
            }
        }
        None
    }
}

const SHARED: Level = Level::Write;

/// What shares the file: node 1, then others.
fn share(node: usize) -> Want {
    (node, Of::Whole, SHARED, Terms::share())
}

fn part(node: usize, part: u32, level: Level) -> Want {
    (node, Of::Part(part), level, Terms::default())
}

fn ahead(node: usize, part: u32, level: Level, count: u8) -> Want {
    (node, Of::Part(part), level, Terms::ahead(count))
}

fn search_all(model: &Model, before: &[Want], wants: &[Want], trouble: u8) {
    search_from(model, model.begin(before, wants, trouble), wants);
}

fn search_from(model: &Model, begin: State, wants: &[Want]) {
    match explore(model, begin, 60, most(STATES)) {
        Ok((states, deepest)) => {
            println!("{wants:?}: {states} states, {deepest} steps");
            assert!(states > 1_000 && deepest >= 7, "{states} states, {deepest} steps");
        }
        Err((why, steps)) => panic!("{wants:?}: {why} after {steps:#?}"),
    }
}

const ALL: &[&[u16]] = &[&[0, 1, 2]];
use Level::{Read, Write};

/// A file that one node writes turns to parts of several.
#[test]
fn a_whole_turns_to_parts() {
    let wants = [share(2), part(1, 0, Write), part(2, 0, Write)];
    search_all(&Model::of(ALL), &[share(1)], &wants, 1);
    let wants = [share(0), part(0, 1, Write), part(1, 1, Read)];
    search_all(&Model::of(ALL), &[share(1)], &wants, 0);
}

/// Runs of parts, some of which others have, or want.
#[test]
fn runs_of_parts_are_asked_for_by_several() {
    let before = [share(1), share(2), part(2, 1, Write)];
    let wants = [ahead(1, 0, Write, 2), part(2, 0, Write), part(2, 2, Read)];
    search_all(&Model::of(ALL), &before, &wants, 1);
    let before = [share(0), share(2), part(2, 2, Write)];
    let wants = [ahead(0, 0, Write, 2), ahead(2, 1, Read, 1), part(0, 2, Read)];
    search_all(&Model::of(ALL), &before, &wants, 0);
}

#[test]
fn a_part_is_taken_back_to_be_read_and_to_be_written() {
    let before = [share(1), share(2), share(0), part(1, 0, Write)];
    let wants = [part(2, 0, Read), part(0, 0, Write), part(1, 0, Write)];
    search_all(&Model::of(ALL), &before, &wants, 1);
}

/// One that needs the file alone takes back all parts.
#[test]
fn parts_turn_to_a_whole() {
    let before = [share(1), share(2), part(1, 0, Write), part(2, 1, Write)];
    let alone = (1, Of::Whole, Write, Terms::default());
    search_all(&Model::of(ALL), &before, &[alone, part(2, 0, Write)], 1);
    let wants = [(0, Of::Whole, Read, Terms::default()), part(2, 0, Write)];
    search_all(&Model::of(ALL), &before, &wants, 0);
}

/// A view leaves out who has a part that is taken back, whenever each node sees that, and takes it
/// in again.
#[test]
fn a_holder_is_left_out_while_a_part_is_taken_back() {
    let before = [share(1), share(2), part(2, 0, Write), part(1, 1, Write)];
    let wants = [part(1, 0, Write), part(2, 1, Read)];
    let model = Model::of(&[&[0, 1, 2], &[0, 1]]);
    search_all(&model, &before, &wants, 0);
    search_from(&model, model.under_way(model.begin(&before, &wants, 0)), &wants);
    let model = Model::of(&[&[0, 1, 2], &[0, 1], &[0, 1, 2]]);
    search_from(&model, model.under_way(model.begin(&before, &wants[..1], 0)), &wants);
}

/// The home of the parts moves while they are asked for.
#[test]
fn the_home_of_parts_moves() {
    let before = [share(1), share(2), part(2, 0, Write)];
    let wants = [part(1, 0, Write), part(2, 0, Read)];
    let model = Model::of(&[&[0, 1, 2], &[1, 2]]);
    search_from(&model, model.under_way(model.begin(&before, &wants, 0)), &wants);
    let model = Model::of(&[&[1, 2], &[0, 1, 2]]);
    search_from(&model, model.under_way(model.begin(&before, &wants, 0)), &wants);
}

/// The search finds what is wrong.
#[test]
fn what_is_wrong_on_purpose_is_found() {
    let before = [share(1), share(2), part(2, 0, Write), part(2, 1, Write)];
    let wants = [part(1, 0, Write), part(2, 0, Read)];
    let found = |model: &Model, begin: State| {
        let found = explore(model, begin, 60, most(STATES));
        let (why, steps) = found.expect_err("the search has not found what is wrong");
        println!("{:?}: {why}: {steps:?}", model.planted);
        assert!(steps.len() >= 2, "{steps:?}");
    };
    let gone: &[&[u16]] = &[&[0, 1, 2], &[0, 1]];
    for planted in [Planted::RevokeNotAwaited, Planted::NotFlushed, Planted::AheadOfOthers] {
        let model = Model::of(ALL);
        let begin = model.begin(&before, &wants, 1);
        let model = Model { planted: Some(planted), ..model };
        found(&model, begin);
    }
    let model = Model { planted: Some(Planted::GoneIsFree), ..Model::of(gone) };
    found(&model, model.under_way(model.begin(&before, &wants[..1], 0)));
    // It shows when the part comes back.
    let model = Model { planted: Some(Planted::KeptTooLong), ..Model::of(ALL) };
    let begin = model.begin(&[&before[..], &wants[..1]].concat(), &wants[1..], 0);
    found(&model, begin);
}
