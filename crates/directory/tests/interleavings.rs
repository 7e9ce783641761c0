//! All interleavings of messages, losses and repetitions of a few nodes and one file, as far as a
//! bound: a breadth-first search over the states of real directories.
//!
//! The search is its own 60 lines and not `stateright` 0.31, which brings 12 crates, with a web
//! server (`tiny_http`), into every build of the tests, and whose network of actors has no links
//! that are in order, break and are made again, as those of `fabric` do. What it would do is done
//! here: states are told apart by their hash, and a violation is printed with the steps to it.
//!
//! Time stands still, so nothing is sent again by itself: a message may be delivered twice instead,
//! which is the same to the one that gets it. A link delivers in order, but for one message in
//! each run that a broken link has left behind and that comes at any later time.

use forebay_directory::{Effect, Facts, Level, Message, Object, Terms};
use forebay_membership::{Member, Seat, View};
use search::{Model as _, Network, Traffic, are_safe, file_of_first, most};

mod search;

/// How many states are looked at in each test.
const STATES: usize = 25_000;

/// Three nodes and what is on its way between them.
#[derive(Clone, Hash)]
struct State {
    network: Network,
    /// What shells have been asked to do and have not done.
    reductions: Vec<(usize, Level)>,
    /// What may still happen.
    wants: Vec<(usize, Level)>,
    /// Nodes that have something that the store has not: they have written, and not flushed.
    ahead: Vec<bool>,
    /// A node may have read what was not the newest.
    has_old: bool,
    releases: u8,
}

/// What can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Want(usize),
    Message(Traffic),
    Reduce(usize),
    /// A node lends what it was asked to give back.
    Lend(usize),
    /// One that may write does.
    Write(usize),
    Release(usize),
    See(usize),
    /// All that wait ask again.
    Retry(usize),
}

/// What is explored.
struct Model {
    file: Object,
    views: Vec<View>,
    /// A home does not wait until a holder has given back, as a fault on purpose.
    is_faulty: bool,
    /// Who gives back to be read keeps what it has not flushed, as another one.
    keeps_back: bool,
    /// Files are borrowed.
    may_borrow: bool,
}

impl Model {
    /// Nodes with a file whose home is node 0, and views of which the first is seen by all.
    fn of(count: u16, views: &[&[u16]]) -> Self {
        let file = Object::whole(file_of_first(count));
        let seat = |node: &u16| Seat { member: Member::new(*node, 1), since: 1 };
        let view = |(number, nodes): (u32, &&[u16])| View {
            number,
            seats: nodes.iter().map(seat).collect(),
            ..View::default()
        };
        let views = (1..).zip(views).map(view).collect();
        Self { file, views, is_faulty: false, keeps_back: false, may_borrow: false }
    }

    fn begin(&self, count: u16, wants: &[(usize, Level)], trouble: u8) -> State {
        let mut state = State {
            network: Network::of(count, trouble),
            reductions: Vec::new(),
            wants: wants.to_vec(),
            ahead: vec![false; count.into()],
            has_old: false,
            releases: 1,
        };
        // The first view is there; the group has formed.
        for node in 0..state.network.nodes.len() {
            self.take(&mut state, Step::See(node));
        }
        while let Some(first) = state.network.first() {
            self.take(&mut state, Step::Message(first));
        }
        state
    }

    fn deliver(&self, state: &mut State, from: usize, to: usize, message: Message) {
        if self.is_faulty && state.network.await_no_holder(from, to, &message) {
            return self.carry_out(state, from);
        }
        state.network.deliver(from, to, message);
        self.carry_out(state, to);
    }

    fn carry_out(&self, state: &mut State, node: usize) {
        for effect in state.network.nodes[node].effects() {
            match effect {
                Effect::Send(to, message) => state.network.send(node, to, message),
                Effect::Reduce { to, .. } => state.reductions.push((node, to)),
                // Who may read the store's file finds all of it there.
                Effect::Granted { level: Level::Read | Level::Write, .. } => {
                    let mut others = state.ahead.iter().enumerate();
                    state.has_old |= others.any(|(other, is_ahead)| *is_ahead && other != node);
                }
                _ => {}
            }
        }
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
        let lends = |index: &usize| state.reductions[*index].1 == Level::Lent;
        steps.extend((0..state.reductions.len()).filter(lends).map(Step::Lend));
        for (node, directory) in state.network.nodes.iter().enumerate() {
            if state.releases > 0 && directory.held(self.file) != Level::None {
                steps.push(Step::Release(node));
            }
            if directory.usable(self.file) == Level::Write && !state.ahead[node] {
                steps.push(Step::Write(node));
            }
            if state.network.is_behind(node, &self.views) {
                steps.push(Step::See(node));
            }
            if state.network.is_idle() {
                steps.push(Step::Retry(node));
            }
        }
        steps
    }

    fn take(&self, state: &mut State, step: Step) {
        match step {
            Step::Want(index) => {
                let (node, level) = state.wants.remove(index);
                let terms = if self.may_borrow { Terms::borrow() } else { Terms::default() };
                state.network.nodes[node].want(self.file, level, terms, 0);
                self.carry_out(state, node);
            }
            Step::Message(traffic) => {
                if let Some((from, to, message)) = state.network.take(traffic) {
                    self.deliver(state, from, to, message);
                }
            }
            Step::Reduce(index) => {
                let (node, to) = state.reductions.remove(index);
                // All of it is flushed, whatever may be kept.
                let to = if to == Level::Lent { Level::Read } else { to };
                state.ahead[node] &= self.keeps_back;
                state.network.nodes[node].reduced(self.file, to, None, 0);
                self.carry_out(state, node);
            }
            Step::Lend(index) => {
                let (node, to) = state.reductions.remove(index);
                let facts = Some(Facts { size: 1, mtime_ns: 1 });
                let has_it = state.network.nodes[node].held(self.file) == Level::Write;
                let to = if has_it { to } else { Level::None };
                state.ahead[node] &= has_it;
                state.network.nodes[node].reduced(self.file, to, facts, 0);
                self.carry_out(state, node);
            }
            Step::Write(node) => state.ahead[node] = true,
            Step::Release(node) => {
                state.releases -= 1;
                state.ahead[node] = false;
                state.network.nodes[node].release(self.file, 0);
                self.carry_out(state, node);
            }
            Step::See(node) => {
                state.network.see(node, &self.views);
                self.carry_out(state, node);
            }
            Step::Retry(node) => {
                state.network.retry(node);
                self.carry_out(state, node);
            }
        }
    }

    /// At most one node may write the file, and no other may use it then.
    fn wrong(&self, state: &State) -> Option<String> {
        let nodes = state.network.nodes.iter();
        let levels: Vec<Level> = nodes.map(|node| node.usable(self.file)).collect();
        let two = || format!("two nodes may use what one writes: {levels:?}");
        let old = || "a node was granted what another one has not flushed".to_owned();
        (!are_safe(&levels)).then(two).or_else(|| state.has_old.then(old))
    }
}

fn explore(model: &Model, wants: &[(usize, Level)], trouble: u8) {
    match search::explore(model, model.begin(3, wants, trouble), 40, most(STATES)) {
        Ok((states, deepest)) => {
            println!("{wants:?}: {states} states, {deepest} steps");
            assert!(states > 1_000 && deepest >= 7, "{states} states, {deepest} steps");
        }
        Err((why, steps)) => panic!("{wants:?}: {why} after {steps:#?}"),
    }
}

#[test]
fn two_writers_and_a_reader() {
    let model = Model::of(3, &[&[0, 1, 2]]);
    explore(&model, &[(1, Level::Write), (2, Level::Write), (0, Level::Read)], 1);
}

#[test]
fn readers_that_want_to_write() {
    let model = Model::of(3, &[&[0, 1, 2]]);
    explore(
        &model,
        &[(1, Level::Read), (2, Level::Read), (1, Level::Write), (2, Level::Write)],
        40,
    );
}

#[test]
fn the_home_writes_itself_and_one_asks_for_direct() {
    let model = Model::of(3, &[&[0, 1, 2]]);
    explore(&model, &[(0, Level::Write), (1, Level::Direct), (2, Level::Write)], 1);
}

/// The home leaves, or comes: what it has granted is known to the next one, whenever each node sees
/// the view.
#[test]
fn the_home_moves_while_a_file_is_wanted() {
    let model = Model::of(3, &[&[1, 2], &[0, 1, 2]]);
    explore(&model, &[(1, Level::Write), (2, Level::Write)], 0);
    let model = Model::of(3, &[&[0, 1, 2], &[0, 2], &[0, 1, 2]]);
    explore(&model, &[(0, Level::Write), (2, Level::Write)], 0);
}

/// What a node has not flushed it lends, or flushes; one borrows it, one reads the store, and one
/// writes after that, the home or another one. The home moves meanwhile.
#[test]
fn a_file_is_lent_and_borrowed() {
    let mut model = Model::of(3, &[&[0, 1, 2]]);
    model.may_borrow = true;
    explore(&model, &[(1, Level::Write), (2, Level::Read), (0, Level::Read)], 1);
    explore(&model, &[(0, Level::Write), (1, Level::Read), (0, Level::Write)], 1);
    let wants = [(1, Level::Write), (2, Level::Read), (1, Level::Write), (2, Level::Write)];
    explore(&model, &wants, 1);
    let mut model = Model::of(3, &[&[0, 1, 2], &[1, 2], &[0, 1, 2]]);
    model.may_borrow = true;
    explore(&model, &[(1, Level::Write), (2, Level::Read)], 0);
}

/// The search finds what is wrong.
#[test]
fn one_that_keeps_back_what_others_read_is_found() {
    let wants = [(1, Level::Write), (2, Level::Read)];
    let mut model = Model::of(3, &[&[0, 1, 2]]);
    (model.keeps_back, model.may_borrow) = (true, true);
    let found = search::explore(&model, model.begin(3, &wants, 1), 40, most(STATES));
    let (_, steps) = found.expect_err("the search has not found what is wrong");
    println!("{steps:?}");
    assert!(steps.len() >= 4, "{steps:?}");
}

/// The search finds what is wrong.
#[test]
fn a_home_that_does_not_wait_is_found() {
    let wants = [(1, Level::Write), (2, Level::Write)];
    let mut model = Model::of(3, &[&[0, 1, 2]]);
    model.is_faulty = true;
    let found = search::explore(&model, model.begin(3, &wants, 1), 40, most(STATES));
    let (_, steps) = found.expect_err("the search has not found what is wrong");
    println!("{steps:?}");
    assert!(steps.len() >= 4, "{steps:?}");
}
