//! How many messages leases cost, in a group of any size in which nothing goes wrong: for opens of
//! files, and for a change of the view. Messages arrive at once.

use forebay_directory::{Directory, Effect, Group, KINDS, Level, Message, Object, Terms, Tuning};
use forebay_membership::{FileId, Member, Seat, View};
use std::collections::VecDeque;

/// Each node opens so many files in each way,
const FILES: u64 = 64;
/// but all nodes of a large group together no more than this, or each one.
const FILES_MOST: u64 = 16_384;

/// What some opens of files cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opens {
    /// How the nodes use the files.
    pub pattern: &'static str,
    /// How many opens there were.
    pub opens: u64,
    /// Messages for them, by kind, as [`KINDS`] has them.
    pub messages: [u64; KINDS.len()],
}

/// What a change of the view costs, until all homes grant again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What has changed.
    pub what: &'static str,
    /// Messages of all nodes together, by kind, as [`KINDS`] has them.
    pub messages: [u64; KINDS.len()],
    /// Their bytes.
    pub bytes: u64,
    /// Messages that one node has sent at most.
    pub most: u64,
}

/// What leases cost in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Of files that one node has, and of files that all have, each to read and to write.
    pub opens: Vec<Opens>,
    /// Of its first view; and when each node has the files of these opens, one leaves, and comes
    /// back.
    pub changes: Vec<Change>,
}

/// Counts the messages of leases in a group of so many nodes, from 1. 10,000 nodes take a minute
/// or two.
pub fn traffic(nodes: u16) -> Traffic {
    let mut network = Network::of(nodes);
    let seats = (0..nodes).map(|node| Seat { member: Member::new(node, 1), since: 1 });
    let mut view = View { number: 1, seats: seats.collect(), ..View::default() };
    let mut changes = vec![network.change("the first view", &view)];
    let patterns = [
        ("a file of its own, to read", Level::Read, false),
        ("a file of its own, to write", Level::Write, false),
        ("a file that all read", Level::Read, true),
        ("a file that all write in turn", Level::Write, true),
    ];
    let opens = (0..).zip(patterns).map(|(store, (pattern, level, is_shared))| {
        network.opens(store, pattern, level, is_shared)
    });
    let opens = opens.collect();
    if nodes > 1 {
        let last = nodes - 1;
        (view.number, view.seats) = (2, view.seats[..usize::from(last)].to_vec());
        changes.push(network.change("one node leaves", &view));
        let again = Member::new(last, 2);
        view.number = 3;
        view.seats.push(Seat { member: again, since: 3 });
        network.all[usize::from(last)] = new(again);
        changes.push(network.change("one node joins", &view));
    }
    Traffic { opens, changes }
}

fn new(member: Member) -> Directory {
    // A file that changes its writer for each of many nodes would be direct.
    let tuning = Tuning { thrash: usize::MAX, ..Tuning::default() };
    Directory::new(member, member.incarnation, tuning)
}

/// Directories, and what has been sent between them.
struct Network {
    all: Vec<Directory>,
    /// Those that may have something to be carried out.
    ready: VecDeque<usize>,
    sent: Vec<u64>,
    messages: [u64; KINDS.len()],
    bytes: u64,
}

impl Network {
    fn of(nodes: u16) -> Self {
        Self {
            all: (0..nodes).map(|node| new(Member::new(node, 1))).collect(),
            ready: VecDeque::new(),
            sent: vec![0; nodes.into()],
            messages: [0; KINDS.len()],
            bytes: 0,
        }
    }

    fn clear(&mut self) {
        self.sent.fill(0);
        (self.messages, self.bytes) = ([0; KINDS.len()], 0);
    }

    /// All members see a view.
    fn change(&mut self, what: &'static str, view: &View) -> Change {
        self.clear();
        let group = Group::new(view.clone());
        for member in view.members() {
            let node = usize::from(member.node.0);
            self.all[node].enter(&group, 0);
            self.ready.push_back(node);
        }
        // Which of them is the first to see it is not known; here all see it before any message.
        self.run(true);
        let is_over = view.members().all(|member| {
            let status = self.all[usize::from(member.node.0)].status();
            status.partitions.1 == 0 && status.silent.is_empty()
        });
        assert!(is_over, "{what}: a home does not know all leases though all messages have come");
        let most = self.sent.iter().copied().max().unwrap_or(0);
        Change { what, messages: self.messages, bytes: self.bytes, most }
    }

    fn opens(&mut self, store: u16, pattern: &'static str, level: Level, is_shared: bool) -> Opens {
        self.clear();
        let nodes = self.all.len() as u64;
        let files = FILES.min(FILES_MOST / nodes).max(1);
        for number in 0..files {
            for node in 0..self.all.len() {
                let inode = if is_shared { number } else { number << 16 | node as u64 };
                let file = FileId { store, inode, generation: 0 };
                self.all[node].want(Object::whole(file), level, Terms::default(), 0);
                self.ready.push_back(node);
                self.run(false);
            }
        }
        Opens { pattern, opens: files * nodes, messages: self.messages }
    }

    /// Until nothing is left to be done.
    fn run(&mut self, has_bytes: bool) {
        let mut bytes = Vec::new();
        while let Some(node) = self.ready.pop_front() {
            for effect in self.all[node].effects() {
                match effect {
                    Effect::Send(to, message) => {
                        if has_bytes {
                            bytes.clear();
                            message.encode(&mut bytes);
                            self.bytes += bytes.len() as u64;
                        }
                        self.deliver(node, to, message);
                    }
                    Effect::Reduce { object, to, .. } => {
                        self.all[node].reduced(object, to, None, 0);
                        self.ready.push_back(node);
                    }
                    _ => {}
                }
            }
        }
    }

    fn deliver(&mut self, from: usize, to: Member, message: Message) {
        self.messages[message.body.kind()] += 1;
        self.sent[from] += 1;
        let (me, node) = (self.all[from].me(), usize::from(to.node.0));
        self.all[node].message(me, message, 0);
        self.ready.push_back(node);
    }
}
