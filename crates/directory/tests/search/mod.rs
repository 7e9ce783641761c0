//! A breadth-first search over all that can happen, as far as a bound, and what is searched in both
//! cases: nodes of a group, and what is on its way between them.

use forebay_directory::{Ahead, Body, Directory, Level, Message, Tuning};
use forebay_membership::{FileId, Incarnation, Member, NodeId, Partition, Places, View};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

/// What is explored.
pub trait Model {
    /// All that there is at one moment.
    type State: Clone + Hash;
    /// What can happen next.
    type Step: Copy + Debug;

    /// All that can happen in a state.
    fn steps(&self, state: &Self::State) -> Vec<Self::Step>;

    /// Lets it happen.
    fn take(&self, state: &mut Self::State, step: Self::Step);

    /// What is wrong with a state, if anything is.
    fn wrong(&self, state: &Self::State) -> Option<String>;
}

/// What is wrong, and the steps to it.
pub type Wrong<S> = (String, Vec<S>);

/// Explores all that can happen in so many steps, or in as many as there are states of. Returns
/// how many states there were, and the deepest; with a violation, what it is and the steps to it.
pub fn explore<M: Model>(
    model: &M,
    begin: M::State,
    depth: usize,
    most: usize,
) -> Result<(usize, usize), Wrong<M::Step>> {
    let hash = |state: &M::State| {
        let mut hasher = DefaultHasher::new();
        state.hash(&mut hasher);
        hasher.finish()
    };
    let mut seen = HashSet::from([hash(&begin)]);
    // Each with the step that led to it, and the place of the state before it.
    let mut trail: Vec<(usize, Option<M::Step>)> = vec![(0, None)];
    let mut queue = VecDeque::from([(begin, 0, 0)]);
    let mut deepest = 0;
    while let Some((state, at, steps)) = queue.pop_front() {
        if steps == depth || seen.len() >= most {
            continue;
        }
        for step in model.steps(&state) {
            let mut next = state.clone();
            model.take(&mut next, step);
            if !seen.insert(hash(&next)) {
                continue;
            }
            trail.push((at, Some(step)));
            if let Some(why) = model.wrong(&next) {
                return Err((why, steps_to(&trail, trail.len() - 1)));
            }
            deepest = deepest.max(steps + 1);
            queue.push_back((next, trail.len() - 1, steps + 1));
        }
    }
    Ok((seen.len(), deepest))
}

fn steps_to<S: Copy>(trail: &[(usize, Option<S>)], mut at: usize) -> Vec<S> {
    let mut steps = Vec::new();
    while let (before, Some(step)) = trail[at] {
        steps.push(step);
        at = before;
    }
    steps.reverse();
    steps
}

/// How many states are looked at in each test; `FOREBAY_LEASES_STATES` has another number.
pub fn most(usual: usize) -> usize {
    let text = std::env::var("FOREBAY_LEASES_STATES").ok();
    text.map_or(usual, |text| text.parse().expect("FOREBAY_LEASES_STATES is no number"))
}

/// A file of which, among the first `count` nodes, node 0 is the home and node 1 the second place.
pub fn file_of_first(count: u16) -> FileId {
    let places = Places::of(&(0..count).map(NodeId).collect::<Vec<_>>());
    let file = |inode| FileId { store: 0, inode, generation: 0 };
    let is_it = |file: &FileId| {
        places.of_partition(Partition::of_file(*file))[..2] == [NodeId(0), NodeId(1)]
    };
    (1..).map(file).find(is_it).unwrap()
}

/// Nodes, and what is on its way between them.
#[derive(Clone, Hash)]
pub struct Network {
    pub nodes: Vec<Directory>,
    pub links: BTreeMap<(usize, usize), VecDeque<Message>>,
    /// A message that comes late.
    straggler: Option<(usize, usize, Message)>,
    /// How often that may still happen.
    repetitions: u8,
    stragglers: u8,
    /// The views that each node has not seen yet.
    pub views: Vec<u32>,
}

/// What can happen to messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    Deliver(usize, usize),
    Repeat(usize, usize),
    LeaveBehind(usize, usize),
    Straggle,
}

impl Network {
    /// So many nodes that have seen no view; so many messages may come twice, and as many late.
    pub fn of(count: u16, trouble: u8) -> Self {
        let new = |node| Directory::new(Member::new(node, 1), Incarnation(1), Tuning::default());
        Self {
            nodes: (0..count).map(new).collect(),
            links: BTreeMap::new(),
            straggler: None,
            repetitions: trouble,
            stragglers: trouble,
            views: vec![1; count.into()],
        }
    }

    pub fn send(&mut self, from: usize, to: Member, message: Message) {
        self.links.entry((from, usize::from(to.node.0))).or_default().push_back(message);
    }

    /// All that can happen to messages.
    pub fn traffic(&self) -> Vec<Traffic> {
        let mut traffic = Vec::new();
        for &(from, to) in self.links.keys() {
            traffic.push(Traffic::Deliver(from, to));
            if self.repetitions > 0 {
                traffic.push(Traffic::Repeat(from, to));
            }
            if self.stragglers > 0 {
                traffic.push(Traffic::LeaveBehind(from, to));
            }
        }
        traffic.extend(self.straggler.is_some().then_some(Traffic::Straggle));
        traffic
    }

    /// Lets it happen. Returns the message that is to be delivered, from whom and to whom.
    pub fn take(&mut self, traffic: Traffic) -> Option<(usize, usize, Message)> {
        match traffic {
            Traffic::Deliver(from, to) => Some((from, to, self.pop((from, to)))),
            Traffic::Repeat(from, to) => {
                self.repetitions -= 1;
                Some((from, to, self.links[&(from, to)][0].clone()))
            }
            Traffic::LeaveBehind(from, to) => {
                self.stragglers -= 1;
                self.straggler = Some((from, to, self.pop((from, to))));
                None
            }
            Traffic::Straggle => self.straggler.take(),
        }
    }

    fn pop(&mut self, link: (usize, usize)) -> Message {
        let queue = self.links.get_mut(&link).unwrap();
        let message = queue.pop_front().unwrap();
        if queue.is_empty() {
            self.links.remove(&link);
        }
        message
    }

    /// A message is on its way first of all.
    pub fn first(&self) -> Option<Traffic> {
        self.links.keys().next().map(|&(from, to)| Traffic::Deliver(from, to))
    }

    /// Nothing is on its way, and nothing can be left behind: who waits may ask again.
    pub fn is_idle(&self) -> bool {
        self.stragglers == 0 && self.straggler.is_none() && self.links.is_empty()
    }

    /// Whether a node has not seen all of these views.
    pub fn is_behind(&self, node: usize, views: &[View]) -> bool {
        views.iter().any(|view| view.number == self.views[node])
    }

    /// A node sees the next of these views, if there is one.
    pub fn see(&mut self, node: usize, views: &[View]) {
        if let Some(view) = views.iter().find(|view| view.number == self.views[node]) {
            self.views[node] += 1;
            self.nodes[node].view(view, 0);
        }
    }

    /// A node gets a message.
    pub fn deliver(&mut self, from: usize, to: usize, message: Message) {
        let from = self.nodes[from].me();
        self.nodes[to].message(from, message, 0);
    }

    /// A fault on purpose: what a home takes back is given back to it before its holder, to whom
    /// this goes, knows of that. Whether the message is such a one.
    pub fn await_no_holder(&mut self, home: usize, holder: usize, message: &Message) -> bool {
        let Body::Revoke { object, serial, .. } = message.body else { return false };
        let (level, facts, ahead) = (Level::None, None, Ahead::default());
        let body = Body::Released { object, serial, level, facts, ahead };
        let holder = self.nodes[holder].me();
        self.nodes[home].message(holder, Message { view: message.view, body }, 0);
        true
    }

    /// A node that waits asks again.
    pub fn retry(&mut self, node: usize) {
        if let Some(due_ms) = self.nodes[node].next_timer() {
            self.nodes[node].timer(due_ms);
        }
    }
}

/// Two of these may be used at once by different nodes.
pub fn are_safe(levels: &[Level]) -> bool {
    (0..levels.len()).all(|a| (0..a).all(|b| !levels[a].conflicts(levels[b])))
}
