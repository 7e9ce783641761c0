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

use forebay_directory::{Ahead, Body, Directory, Effect, Level, Message, Object, Terms, Tuning};
use forebay_membership::{FileId, Incarnation, Member, NodeId, Partition, Places, Seat, View};
use search::{Model as _, most};
use std::collections::{BTreeMap, VecDeque};

mod search;

/// How many states are looked at in each test.
const STATES: usize = 25_000;

/// Three nodes and what is on its way between them.
#[derive(Clone, Hash)]
struct State {
    nodes: Vec<Directory>,
    links: BTreeMap<(usize, usize), VecDeque<Message>>,
    /// A message that comes late.
    straggler: Option<(usize, usize, Message)>,
    /// What shells have been asked to do and have not done.
    reductions: Vec<(usize, Level)>,
    /// What may still happen.
    wants: Vec<(usize, Level)>,
    releases: u8,
    repetitions: u8,
    stragglers: u8,
    /// The views that each node has not seen yet.
    views: Vec<u32>,
}

/// What can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Want(usize),
    Deliver(usize, usize),
    Repeat(usize, usize),
    LeaveBehind(usize, usize),
    Straggle,
    Reduce(usize),
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
}

impl Model {
    /// Nodes with a file whose home is node 0, and views of which the first is seen by all.
    fn of(count: u16, views: &[&[u16]]) -> Self {
        let places = Places::of(&(0..count).map(NodeId).collect::<Vec<_>>());
        let file = |inode| FileId { store: 0, inode, generation: 0 };
        let is_it = |file: &FileId| {
            places.of_partition(Partition::of_file(*file))[..2] == [NodeId(0), NodeId(1)]
        };
        let file = (1..).map(file).find(is_it).map(Object::whole).unwrap();
        let seat = |node: &u16| Seat { member: Member::new(*node, 1), since: 1 };
        let view = |(number, nodes): (u32, &&[u16])| View {
            number,
            seats: nodes.iter().map(seat).collect(),
        };
        Self { file, views: (1..).zip(views).map(view).collect(), is_faulty: false }
    }

    fn begin(&self, count: u16, wants: &[(usize, Level)], trouble: u8) -> State {
        let new = |node| Directory::new(Member::new(node, 1), Incarnation(1), Tuning::default());
        let mut state = State {
            nodes: (0..count).map(new).collect(),
            links: BTreeMap::new(),
            straggler: None,
            reductions: Vec::new(),
            wants: wants.to_vec(),
            releases: 1,
            repetitions: trouble,
            stragglers: trouble,
            views: vec![1; count.into()],
        };
        // The first view is there; the group has formed.
        for node in 0..state.nodes.len() {
            self.see(&mut state, node);
        }
        while let Some((from, to)) = state.links.keys().next().copied() {
            self.take(&mut state, Step::Deliver(from, to));
        }
        state
    }

    fn see(&self, state: &mut State, node: usize) {
        let Some(view) = self.views.iter().find(|view| view.number == state.views[node]) else {
            return;
        };
        state.views[node] += 1;
        state.nodes[node].view(view, 0);
        self.carry_out(state, node);
    }

    fn deliver(&self, state: &mut State, from: usize, to: usize, message: Message) {
        if let (true, &Body::Revoke { object, serial, .. }) = (self.is_faulty, &message.body) {
            let body = Body::Released {
                object,
                serial,
                level: Level::None,
                facts: None,
                ahead: Ahead::default(),
            };
            let holder = state.nodes[to].me();
            state.nodes[from].message(holder, Message { view: message.view, body }, 0);
            self.carry_out(state, from);
            return;
        }
        let from = state.nodes[from].me();
        state.nodes[to].message(from, message, 0);
        self.carry_out(state, to);
    }

    fn carry_out(&self, state: &mut State, node: usize) {
        for effect in state.nodes[node].effects() {
            match effect {
                Effect::Send(to, message) => {
                    let link = (node, usize::from(to.node.0));
                    state.links.entry(link).or_default().push_back(message);
                }
                Effect::Reduce { to, .. } => state.reductions.push((node, to)),
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
        for (from, to) in state.links.keys() {
            steps.push(Step::Deliver(*from, *to));
            if state.repetitions > 0 {
                steps.push(Step::Repeat(*from, *to));
            }
            if state.stragglers > 0 {
                steps.push(Step::LeaveBehind(*from, *to));
            }
        }
        if state.straggler.is_some() {
            steps.push(Step::Straggle);
        }
        steps.extend((0..state.reductions.len()).map(Step::Reduce));
        for (node, directory) in state.nodes.iter().enumerate() {
            if state.releases > 0 && directory.held(self.file) != Level::None {
                steps.push(Step::Release(node));
            }
            if self.views.iter().any(|view| view.number == state.views[node]) {
                steps.push(Step::See(node));
            }
            if state.stragglers == 0 && state.straggler.is_none() && state.links.is_empty() {
                steps.push(Step::Retry(node));
            }
        }
        steps
    }

    fn take(&self, state: &mut State, step: Step) {
        let pop = |state: &mut State, link: (usize, usize)| {
            let queue = state.links.get_mut(&link).unwrap();
            let message = queue.pop_front().unwrap();
            if queue.is_empty() {
                state.links.remove(&link);
            }
            message
        };
        match step {
            Step::Want(index) => {
                let (node, level) = state.wants.remove(index);
                state.nodes[node].want(self.file, level, Terms::default(), 0);
                self.carry_out(state, node);
            }
            Step::Deliver(from, to) => {
                let message = pop(state, (from, to));
                self.deliver(state, from, to, message);
            }
            Step::Repeat(from, to) => {
                state.repetitions -= 1;
                let message = state.links[&(from, to)][0].clone();
                self.deliver(state, from, to, message);
            }
            Step::LeaveBehind(from, to) => {
                state.stragglers -= 1;
                let message = pop(state, (from, to));
                state.straggler = Some((from, to, message));
            }
            Step::Straggle => {
                let (from, to, message) = state.straggler.take().unwrap();
                self.deliver(state, from, to, message);
            }
            Step::Reduce(index) => {
                let (node, to) = state.reductions.remove(index);
                state.nodes[node].reduced(self.file, to, None, 0);
                self.carry_out(state, node);
            }
            Step::Release(node) => {
                state.releases -= 1;
                state.nodes[node].release(self.file, 0);
                self.carry_out(state, node);
            }
            Step::See(node) => self.see(state, node),
            Step::Retry(node) => {
                if let Some(due_ms) = state.nodes[node].next_timer() {
                    state.nodes[node].timer(due_ms);
                    self.carry_out(state, node);
                }
            }
        }
    }

    /// At most one node may write the file, and no other may use it then.
    fn wrong(&self, state: &State) -> Option<String> {
        let levels: Vec<Level> = state.nodes.iter().map(|node| node.usable(self.file)).collect();
        let is_safe = (0..levels.len()).all(|a| (0..a).all(|b| !levels[a].conflicts(levels[b])));
        (!is_safe).then(|| format!("two nodes may use what one writes: {levels:?}"))
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
