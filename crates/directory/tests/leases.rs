//! Leases of files and of their parts, in groups whose messages arrive at once.

use forebay_directory::{
    Ahead, Body, Claim, Directory, Effect, Facts, Level, Message, Object, Partitions, Sized, Step,
    Terms, Tuning, Why,
};
use forebay_membership::{
    FileId, GivenUp, Incarnation, Member, NodeId, Partition, Places, Seat, View,
};
use std::collections::{BTreeSet, VecDeque};

/// Nodes whose messages arrive in order, and what their shells were asked for but messages.
struct Group {
    nodes: Vec<Directory>,
    view: View,
    seen: Vec<Vec<Effect>>,
    now_ms: u64,
    /// Messages to and from these are lost.
    cut: Vec<usize>,
    /// Shells give back what they are asked for at once.
    is_willing: bool,
}

fn facts(size: u64) -> Facts {
    Facts { size, mtime_ns: 7 }
}

fn seats(lives: &[(u16, u32, u32)]) -> Vec<Seat> {
    let seat = |(node, life, since): &(u16, u32, u32)| Seat {
        member: Member::new(*node, *life),
        since: *since,
    };
    lives.iter().map(seat).collect()
}

impl Group {
    fn with(count: u16, tuning: Tuning) -> Self {
        let lives: Vec<_> = (0..count).map(|node| (node, 1, 1)).collect();
        let view = View { number: 1, seats: seats(&lives), ..View::default() };
        let new = |member| Directory::new(member, Incarnation(1), tuning);
        let nodes: Vec<Directory> = view.members().map(new).collect();
        let seen = nodes.iter().map(|_| Vec::new()).collect();
        let mut group = Group { nodes, view, seen, now_ms: 0, cut: vec![], is_willing: true };
        group.show();
        group
    }

    fn of(count: u16) -> Self {
        Self::with(count, Tuning::default())
    }

    /// All that are not cut off see the view.
    fn show(&mut self) {
        for node in (0..self.nodes.len()).filter(|node| !self.cut.contains(node)) {
            self.nodes[node].view(&self.view, self.now_ms);
        }
        self.run();
    }

    fn change(&mut self, number: u32, lives: &[(u16, u32, u32)]) {
        self.view = View { number, seats: seats(lives), ..View::default() };
        self.show();
    }

    /// Carries out everything.
    fn run(&mut self) {
        let mut queue: VecDeque<(usize, Member, Message)> = VecDeque::new();
        loop {
            let mut is_quiet = true;
            for node in 0..self.nodes.len() {
                for effect in self.nodes[node].effects() {
                    is_quiet = false;
                    match effect {
                        Effect::Send(to, message) => {
                            let to = usize::from(to.node.0);
                            let is_there = to < self.nodes.len() && !self.cut.contains(&to);
                            if is_there && !self.cut.contains(&node) {
                                queue.push_back((to, self.nodes[node].me(), message));
                            }
                        }
                        Effect::Reduce { object, to, may_share } if self.is_willing => {
                            let facts = Some(facts(100 + node as u64));
                            self.nodes[node].reduced(object, to, facts, self.now_ms);
                            self.seen[node].push(Effect::Reduce { object, to, may_share });
                        }
                        effect => self.seen[node].push(effect),
                    }
                }
            }
            while let Some((to, from, message)) = queue.pop_front() {
                is_quiet = false;
                self.nodes[to].message(from, message, self.now_ms);
            }
            if is_quiet {
                return;
            }
        }
    }

    fn pass(&mut self, ms: u64) {
        let until_ms = self.now_ms + ms;
        while let Some(due_ms) = self.nodes.iter().filter_map(Directory::next_timer).min() {
            if due_ms > until_ms {
                break;
            }
            self.now_ms = self.now_ms.max(due_ms);
            for node in &mut self.nodes {
                node.timer(self.now_ms);
            }
            self.run();
        }
        self.now_ms = until_ms;
    }

    fn want(&mut self, node: usize, object: Object, level: Level) -> Vec<Effect> {
        self.want_with(node, object, level, Terms::default())
    }

    fn want_with(
        &mut self,
        node: usize,
        object: Object,
        level: Level,
        terms: Terms,
    ) -> Vec<Effect> {
        self.seen[node].clear();
        self.nodes[node].want(object, level, terms, self.now_ms);
        self.run();
        std::mem::take(&mut self.seen[node])
    }

    fn messages(&self) -> u64 {
        self.nodes.iter().map(|node| node.status().sent.iter().sum::<u64>()).sum()
    }
}

/// A file whose home is this one of so many nodes.
fn file_of(home: u16, count: u16) -> Object {
    file_with(home, None, count)
}

fn file_with(home: u16, second: Option<u16>, count: u16) -> Object {
    let places = Places::of(&(0..count).map(NodeId).collect::<Vec<_>>());
    let file = |inode| FileId { store: 0, inode, generation: 0 };
    let fits = |file: &FileId| {
        let of = places.of_partition(Partition::of_file(*file));
        of[0].0 == home && second.is_none_or(|second| of[1].0 == second)
    };
    (1..).map(file).find(fits).map(Object::whole).unwrap()
}

fn granted(file: Object, level: Level) -> Effect {
    Effect::Granted { object: file, level, facts: None }
}

/// So many leases of these levels, and none of others.
fn counts(of: &[(Level, usize)]) -> [usize; Level::ALL.len()] {
    Level::ALL.map(|level| of.iter().find(|(of, _)| *of == level).map_or(0, |(_, count)| *count))
}

fn reduce(object: Object, to: Level) -> Effect {
    Effect::Reduce { object, to, may_share: false }
}

#[test]
fn a_node_alone_sends_nothing() {
    let mut group = Group::of(1);
    for inode in 0..100 {
        let file = Object::whole(FileId { store: 0, inode, generation: 0 });
        assert_eq!(group.want(0, file, Level::Write), [granted(file, Level::Write)]);
    }
    assert_eq!(group.messages(), 0);
    assert_eq!(group.nodes[0].status().held, counts(&[(Level::Write, 100)]));
}

#[test]
fn an_open_costs_two_messages_and_none_at_home_to_read() {
    let mut group = Group::of(3);
    let cases =
        [(0, Level::Read, 0), (1, Level::Read, 2), (1, Level::Write, 2), (0, Level::Write, 2)];
    for (node, level, messages) in cases {
        let file = file_of(0, 3);
        let before = group.messages();
        assert_eq!(group.want(node, file, level), [granted(file, level)]);
        assert_eq!(group.messages() - before, messages, "{node} {level:?}");
        assert_eq!(group.nodes[node].usable(file), level);
        // A second want under the lease costs nothing.
        assert_eq!(group.want(node, file, level), [granted(file, level)]);
        assert_eq!(group.messages() - before, messages, "{node} {level:?}");
        (0..3).for_each(|node| group.nodes[node].release(file, group.now_ms));
        group.run();
        assert!(group.nodes.iter().all(|node| node.status().granted == counts(&[])));
    }
}

#[test]
fn a_writer_gives_back_before_another_node_reads() {
    let mut group = Group::of(3);
    group.is_willing = false;
    let file = file_of(0, 3);
    group.want(1, file, Level::Write);
    assert_eq!(group.want(2, file, Level::Read), []);
    assert_eq!(group.seen[1], [reduce(file, Level::Read)]);
    assert_eq!(group.nodes[1].usable(file), Level::Write);
    group.nodes[1].reduced(file, Level::Read, Some(facts(42)), 0);
    group.run();
    let facts = Some(facts(42));
    assert_eq!(group.seen[2], [Effect::Granted { object: file, level: Level::Read, facts }]);
    // Readers stay beside each other, and all give back before one writes.
    assert_eq!(group.want(0, file, Level::Write), []);
    for node in [1, 2] {
        assert_eq!(group.seen[node].last(), Some(&reduce(file, Level::None)));
        assert_eq!(group.seen[0], []);
        group.nodes[node].reduced(file, Level::None, None, 0);
        group.run();
    }
    assert_eq!(group.seen[0], [Effect::Granted { object: file, level: Level::Write, facts }]);
}

/// A group of three in which node 1 has written a file of 42 bytes, and lends it to node 2.
fn lending() -> (Group, Object) {
    let mut group = Group::of(3);
    group.is_willing = false;
    let file = file_of(0, 3);
    group.want(1, file, Level::Write);
    assert_eq!(group.want_with(2, file, Level::Read, Terms::borrow()), []);
    assert_eq!(group.seen[1], [Effect::Reduce { object: file, to: Level::Lent, may_share: true }]);
    group.nodes[1].reduced(file, Level::Lent, Some(facts(42)), 0);
    group.run();
    let facts = Some(facts(42));
    assert_eq!(group.seen[2], [Effect::Granted { object: file, level: Level::Borrowed, facts }]);
    group.seen.iter_mut().for_each(Vec::clear);
    (group, file)
}

#[test]
fn a_writer_lends_what_it_has_not_flushed() {
    let (mut group, file) = lending();
    let borrowed = Effect::Granted { object: file, level: Level::Borrowed, facts: Some(facts(42)) };
    // A second one costs the writer nothing.
    assert_eq!(group.want_with(0, file, Level::Read, Terms::borrow()), [borrowed]);
    assert_eq!(group.seen[1], []);
    assert_eq!(group.nodes[1].usable(file), Level::Lent);
    // Who needs the store's file has the writer flush it; those that borrow it keep what they have.
    assert_eq!(group.want(2, file, Level::Read), []);
    assert_eq!(group.seen[1], [reduce(file, Level::Read)]);
    group.nodes[1].reduced(file, Level::Read, Some(facts(42)), 0);
    group.run();
    let read = Effect::Granted { object: file, level: Level::Read, facts: Some(facts(42)) };
    assert_eq!(group.seen[2], [read]);
    assert_eq!(group.nodes[0].usable(file), Level::Borrowed);
    // All give back before one writes.
    assert_eq!(group.want(1, file, Level::Write), []);
    for node in [0, 2] {
        assert_eq!(group.seen[node].last(), Some(&reduce(file, Level::None)));
        group.nodes[node].reduced(file, Level::None, None, 0);
        group.run();
    }
    assert_eq!(group.nodes[1].usable(file), Level::Write);
}

/// A word that comes twice, and a claim that comes late, take nothing from what is known since.
#[test]
fn what_is_said_again_changes_nothing() {
    let (mut group, file) = lending();
    let lender = group.nodes[1].me();
    let (view, ahead) = (1, Ahead::default());
    let serial = 1 << 32 | 1;
    let (level, facts) = (Level::Lent, None);
    let body = Body::Released { object: file, serial, level, facts, ahead };
    group.nodes[0].message(lender, Message { view, body }, 0);
    let known = Some(self::facts(42));
    let borrowed = Effect::Granted { object: file, level: Level::Borrowed, facts: known };
    assert_eq!(group.want_with(0, file, Level::Read, Terms::borrow()), [borrowed]);
    // Node 1 writes it, by a request by which it has claimed less, before.
    group.is_willing = true;
    group.want(1, file, Level::Write);
    let (request, level, terms) = (2, Level::Shared, Terms::default());
    let body = Body::Open { object: file, request, level, is_claim: true, terms };
    group.nodes[0].message(lender, Message { view, body }, 0);
    group.run();
    group.is_willing = false;
    assert_eq!(group.want_with(2, file, Level::Read, Terms::share()), []);
    let first = Effect::Reduce { object: file, to: Level::Read, may_share: true };
    assert_eq!(group.seen[1].last(), Some(&first));
}

#[test]
fn a_writer_that_lends_writes_on_when_all_have_given_back() {
    let (mut group, file) = lending();
    assert_eq!(group.want(1, file, Level::Write), []);
    assert_eq!(group.seen[2], [reduce(file, Level::None)]);
    assert_eq!(group.nodes[1].usable(file), Level::Lent);
    group.nodes[2].reduced(file, Level::None, None, 0);
    group.run();
    assert_eq!(group.nodes[1].usable(file), Level::Write);
    // It may flush instead of lending, and is not asked to lend what has changed hands.
    assert_eq!(group.want_with(2, file, Level::Read, Terms::borrow()), []);
    group.nodes[1].reduced(file, Level::Read, Some(facts(43)), 0);
    group.run();
    let read = Effect::Granted { object: file, level: Level::Read, facts: Some(facts(43)) };
    assert_eq!(group.seen[2].last(), Some(&read));
}

/// What the one that lends has is lost with it, though others have copies; when it is given up they
/// drop these, which the store will never have.
#[test]
fn what_is_lent_is_lost_with_the_node_that_lends_it() {
    let (mut group, file) = lending();
    group.is_willing = true;
    group.cut = vec![1];
    group.change(2, &[(0, 1, 1), (2, 1, 1)]);
    assert_eq!(group.nodes[2].usable(file), Level::Borrowed);
    assert_eq!(group.want_with(0, file, Level::Read, Terms::borrow()), []);
    let gone = Seat { member: Member::new(1, 1), since: 1 };
    for node in [0, 2] {
        group.nodes[node].succeeded(gone, group.now_ms);
    }
    group.run();
    let why = Why::Lost(NodeId(1));
    assert_eq!(group.seen[0], [Effect::Refused { object: file, why }]);
    assert_eq!(group.nodes[2].usable(file), Level::Borrowed);
    for node in [2, 0] {
        group.nodes[node].give_up(given_up(1), group.now_ms);
    }
    assert_eq!(group.nodes[2].usable(file), Level::None);
    group.run();
    assert_eq!(group.want(0, file, Level::Read), [granted(file, Level::Read)]);
}

/// One that has borrowed it and wants to write it drops what it has first, also where it has not
/// heard yet that the one that lent it was given up. What that has given back itself it keeps.
#[test]
fn what_is_lent_and_lost_is_dropped_by_one_that_is_to_write_it() {
    let (mut group, file) = lending();
    group.is_willing = true;
    group.cut = vec![1];
    group.change(2, &[(0, 1, 1), (2, 1, 1)]);
    let gone = Seat { member: Member::new(1, 1), since: 1 };
    for node in [0, 2] {
        group.nodes[node].succeeded(gone, group.now_ms);
    }
    group.nodes[0].give_up(given_up(1), group.now_ms);
    assert_eq!(group.nodes[2].usable(file), Level::Borrowed);
    let wanted = group.want(2, file, Level::Write);
    assert_eq!(wanted, [reduce(file, Level::None), granted(file, Level::Write)]);

    let (mut group, file) = lending();
    group.is_willing = true;
    let wanted = group.want(2, file, Level::Write);
    assert!(matches!(wanted[..], [Effect::Granted { level: Level::Write, .. }]), "{wanted:?}");
    assert!(group.seen[1].contains(&reduce(file, Level::None)));
}

/// A home that comes to it knows from all what they have, and not what size that is: it is flushed
/// then.
#[test]
fn what_is_lent_outlives_its_home() {
    let (mut group, file) = lending();
    group.cut = vec![0];
    group.change(2, &[(1, 1, 1), (2, 1, 1)]);
    assert_eq!(group.nodes[1].usable(file), Level::Lent);
    assert_eq!(group.nodes[2].usable(file), Level::Borrowed);
    group.nodes[1].release(file, 0);
    group.run();
    group.cut.clear();
    group.change(3, &[(0, 1, 3), (1, 1, 1), (2, 1, 1)]);
    assert_eq!(group.nodes[2].usable(file), Level::Borrowed);
    // Of what was lent nothing is left but copies: these go first.
    assert_eq!(group.want(0, file, Level::Read), []);
    assert_eq!(group.seen[2].last(), Some(&reduce(file, Level::None)));
    group.nodes[2].reduced(file, Level::None, None, 0);
    group.run();
    assert_eq!(group.nodes[0].usable(file), Level::Read);
}

/// What one has noted of a node that has gone, as it shared a file, does not hide that it wrote all
/// of it since.
#[test]
fn an_old_word_of_a_shared_file_hides_no_write() {
    let home = Member::new(0, 1);
    let mut node = Directory::new(home, Incarnation(1), Tuning::default());
    let seats = seats(&[(0, 1, 2), (1, 1, 1), (2, 1, 1)]);
    node.view(&View { number: 2, seats, ..View::default() }, 0);
    let file = file_of(0, 3);
    let gone = Seat { member: Member::new(3, 1), since: 1 };
    let members = [Member::new(1, 1), Member::new(2, 1)];
    let roll = |step, items| {
        let (is_up, part, parts, has_seen) = (true, 0, 1, true);
        Body::Roll { step, is_up, part, parts, has_seen, items }
    };
    let mut hear = |from, body| node.message(from, Message { view: 2, body }, 0);
    members.iter().for_each(|from| hear(*from, roll(Step::Ask, vec![Claim::Gone(gone)])));
    for (from, level) in members.into_iter().zip([Level::Shared, Level::Write]) {
        let (serial, is_firm) = (0, false);
        let holds = Claim::Holds { object: file, seat: gone, level, serial, is_firm };
        let (attempt, index, is_last, oldest) = (1, 0, true, Incarnation(1));
        hear(from, Body::Tell { attempt, index, is_last, oldest, items: vec![holds] });
    }
    members.iter().for_each(|from| hear(*from, roll(Step::Told, Vec::new())));
    node.succeeded(gone, 0);
    node.effects();
    let asker = Member::new(1, 1);
    let glimpse = Body::Glimpse { file: file.file, request: 9 };
    node.message(asker, Message { view: 2, body: glimpse }, 0);
    let (request, sized) = (9, Sized::Refused(Why::Lost(NodeId(3))));
    let body = Body::Size { file: file.file, request, sized };
    assert_eq!(node.effects(), [Effect::Send(asker, Message { view: 2, body })]);
}

#[test]
fn a_revocation_that_overtakes_its_grant_makes_it_void() {
    let tuning = Tuning::default();
    let [home, holder] = [Member::new(0, 1), Member::new(1, 1)];
    let mut node = Directory::new(holder, Incarnation(1), tuning);
    let view = View { number: 1, seats: seats(&[(0, 1, 1), (1, 1, 1)]), ..View::default() };
    node.view(&view, 0);
    let file = file_of(0, 2);
    node.want(file, Level::Write, Terms::default(), 0);
    let sent = node.effects();
    let request = sent.iter().find_map(|effect| match effect {
        Effect::Send(_, Message { body: Body::Open { request, .. }, .. }) => Some(*request),
        _ => None,
    });
    let request = request.unwrap();
    let message = |body| Message { view: 1, body };
    node.message(
        home,
        message(Body::Revoke { object: file, serial: 9, to: Level::None, may_share: false }),
        0,
    );
    let released = Body::Released {
        object: file,
        serial: 9,
        level: Level::None,
        facts: None,
        ahead: Ahead::default(),
    };
    assert_eq!(node.effects(), [Effect::Send(home, message(released))]);
    let grant = |serial| Body::Granted {
        object: file,
        request,
        serial,
        level: Level::Write,
        facts: None,
        ahead: Ahead::default(),
    };
    node.message(home, message(grant(9)), 0);
    assert_eq!(node.effects(), []);
    assert_eq!(node.usable(file), Level::None);
    node.message(home, message(grant(10)), 0);
    assert_eq!(node.effects(), [granted(file, Level::Write)]);
    // Another node than the home cannot take it back, nor in another view.
    let revoke = Body::Revoke { object: file, serial: 10, to: Level::None, may_share: false };
    node.message(Member::new(2, 1), message(revoke.clone()), 0);
    node.message(home, Message { view: 2, body: revoke }, 0);
    assert_eq!(node.effects(), [Effect::Behind { view: 2 }]);
    assert_eq!(node.status().dropped, 2);
}

#[test]
fn what_a_home_granted_is_known_to_the_next_one() {
    let mut group = Group::of(3);
    let files: Vec<Object> =
        (0..200).map(|inode| Object::whole(FileId { store: 0, inode, generation: 0 })).collect();
    for (index, file) in files.iter().enumerate() {
        group.want(index % 3, *file, Level::Write);
    }
    // The first node leaves, and a fourth one was never there.
    group.cut = vec![0];
    group.change(2, &[(1, 1, 1), (2, 1, 1)]);
    let gone = Seat { member: Member::new(0, 1), since: 1 };
    assert_eq!(group.nodes[1].awaited(), [gone]);
    assert_eq!(group.nodes[1].status().partitions.1, 0);
    group.is_willing = false;
    for (index, file) in files.iter().enumerate() {
        let other = if index % 3 == 1 { 2 } else { 1 };
        assert_eq!(group.want(other, *file, Level::Write), [], "{index}");
    }
    // Those that live give back; of the one that has gone it is said when it cannot act any more.
    for node in [1, 2] {
        let files =
            std::mem::take(&mut group.seen[node]).into_iter().filter_map(|effect| match effect {
                Effect::Reduce { object, to, .. } => Some((object, to)),
                _ => None,
            });
        for (file, to) in files {
            group.nodes[node].reduced(file, to, None, 0);
        }
    }
    group.run();
    group.seen.iter_mut().for_each(Vec::clear);
    for node in [1, 2] {
        group.nodes[node].succeeded(gone, 0);
    }
    group.pass(5_000);
    for (index, file) in files.iter().enumerate() {
        let lost = Effect::Refused { object: *file, why: Why::Lost(NodeId(0)) };
        assert_eq!(group.seen[1].contains(&lost), index % 3 == 0, "{index}");
    }
    // What it wrote is free when it is given up.
    assert_eq!(
        group.want(2, files[0], Level::Read),
        [Effect::Refused { object: files[0], why: Why::Lost(NodeId(0)) }]
    );
    for node in [1, 2] {
        group.nodes[node].give_up(given_up(0), group.now_ms);
    }
    assert_eq!(group.want(2, files[0], Level::Read), [granted(files[0], Level::Read)]);
}

/// A home that writes its own file and dies is remembered by the second place.
#[test]
fn what_a_dead_home_wrote_itself_is_lost_by_name() {
    for second in [1, 2] {
        let mut group = Group::of(3);
        let (mine, free) = (
            file_with(0, Some(second), 3),
            Object::whole(FileId { inode: 1 << 40, ..file_of(0, 3).file }),
        );
        assert_eq!(group.want(0, mine, Level::Write), [granted(mine, Level::Write)]);
        group.cut = vec![0];
        group.change(2, &[(1, 1, 1), (2, 1, 1)]);
        let gone = group.nodes[1].awaited()[0];
        (1..3).for_each(|node| group.nodes[node].succeeded(gone, 0));
        let why = Why::Lost(NodeId(0));
        assert_eq!(group.want(1, mine, Level::Read), [Effect::Refused { object: mine, why }]);
        assert_eq!(group.want(1, free, Level::Write), [granted(free, Level::Write)]);
        // It comes back with what it had.
        group.cut.clear();
        let me = Member::new(0, 2);
        group.nodes[0] = Directory::new(me, Incarnation(1), Tuning::default());
        group.nodes[0].adopt(mine, Level::Write);
        group.change(3, &[(0, 2, 3), (1, 1, 1), (2, 1, 1)]);
        group.pass(5_000);
        let read = group.want(1, mine, Level::Read);
        let facts = Some(facts(100));
        assert_eq!(read, [Effect::Granted { object: mine, level: Level::Read, facts }]);
    }
}

/// When a home dies together with all who knew what it granted, nothing is given out blindly.
#[test]
fn what_only_the_dead_knew_is_doubted() {
    let mut group = Group::of(4);
    let (home, second) = (0, 1);
    let file = file_with(home, Some(second), 4);
    group.want(1, file, Level::Write);
    group.cut = vec![0, 1];
    group.change(2, &[(2, 1, 1), (3, 1, 1)]);
    for gone in group.nodes[2].awaited() {
        (2..4).for_each(|node| group.nodes[node].succeeded(gone, 0));
    }
    let refused = group.want(2, file, Level::Read);
    assert!(matches!(refused[..], [Effect::Refused { why: Why::Lost(_), .. }]), "{refused:?}");
    (2..4).for_each(|node| {
        group.nodes[node].give_up(given_up(0), 0);
        group.nodes[node].give_up(given_up(1), 0);
    });
    assert_eq!(group.want(2, file, Level::Read), [granted(file, Level::Read)]);
}

/// The first life of a node, in the second view.
fn given_up(node: u16) -> GivenUp {
    GivenUp { member: Member::new(node, 1), view: 2 }
}

#[test]
fn what_was_given_up_does_not_come_back() {
    let mut group = Group::of(3);
    let file = file_of(1, 3);
    group.want(0, file, Level::Write);
    group.cut = vec![0];
    group.change(2, &[(1, 1, 1), (2, 1, 1)]);
    let gone = group.nodes[1].awaited()[0];
    for node in [1, 2] {
        group.nodes[node].succeeded(gone, 0);
        group.nodes[node].give_up(given_up(0), 0);
    }
    assert_eq!(group.want(2, file, Level::Write), [granted(file, Level::Write)]);
    group.cut.clear();
    // The node itself was alive all the time, and comes back.
    group.seen[0].clear();
    group.change(3, &[(0, 1, 3), (1, 1, 1), (2, 1, 1)]);
    group.pass(5_000);
    assert_eq!(group.seen[0], [Effect::Lost { object: file }]);
    assert_eq!(group.nodes[0].usable(file), Level::None);
    assert_eq!(group.nodes[2].usable(file), Level::Write);
}

#[test]
fn a_file_that_thrashes_is_direct_for_a_time() {
    let mut group = Group::of(3);
    let file = file_of(0, 3);
    let mut levels = Vec::new();
    for turn in 0..8 {
        for effect in group.want(1 + turn % 2, file, Level::Write) {
            if let Effect::Granted { level, .. } = effect {
                levels.push(level);
            }
        }
        group.pass(100);
    }
    assert_eq!(levels[..5], [Level::Write; 5]);
    assert_eq!(levels[5..], [Level::Direct; 3]);
    assert_eq!(group.nodes[0].status().granted, counts(&[(Level::Direct, 2)]));
    group.pass(20_000);
    assert_eq!(group.nodes[0].status().granted, counts(&[]));
    assert_eq!(group.want(1, file, Level::Read), [granted(file, Level::Read)]);
}

#[test]
fn a_node_that_asks_for_direct_makes_it_so_for_all_until_it_releases() {
    let mut group = Group::of(3);
    let file = file_of(0, 3);
    group.want(1, file, Level::Write);
    let direct = group.want(2, file, Level::Direct);
    assert_eq!(direct, [granted(file, Level::Direct)]);
    assert!(group.seen[1].contains(&reduce(file, Level::None)));
    assert_eq!(group.want(1, file, Level::Write), [granted(file, Level::Direct)]);
    group.pass(60_000);
    assert_eq!(group.nodes[0].status().granted, counts(&[(Level::Direct, 2)]));
    group.nodes[2].release(file, group.now_ms);
    group.run();
    assert_eq!(group.nodes[0].status().granted, counts(&[]));
    assert_eq!(group.want(1, file, Level::Write), [granted(file, Level::Write)]);
}

#[test]
fn a_size_is_asked_of_the_node_that_writes() {
    let mut group = Group::of(3);
    let file = file_of(0, 3);
    let glimpse = |group: &mut Group, knows: Option<Facts>| {
        group.seen.iter_mut().for_each(Vec::clear);
        let token = group.nodes[2].glimpse(file.file, group.now_ms);
        group.run();
        if let [Effect::Measure { object: file, token }] = group.seen[1][..] {
            group.nodes[1].sized(file, token, knows, group.now_ms);
            group.run();
        }
        match group.seen[2][..] {
            [Effect::Glimpsed { token: other, sized, .. }] if token == other => sized,
            ref other => panic!("{other:?}"),
        }
    };
    assert_eq!(glimpse(&mut group, None), Sized::Store);
    group.want(1, file, Level::Write);
    assert_eq!(glimpse(&mut group, Some(facts(55))), Sized::Known(facts(55)));
    assert_eq!(glimpse(&mut group, None), Sized::Store, "all of it is there");
    assert_eq!(group.nodes[1].held(file), Level::Write, "nothing was taken");
    group.want(0, file, Level::Read);
    assert_eq!(glimpse(&mut group, None), Sized::Store);
    assert_eq!(group.nodes[2].held(file), Level::None, "nothing is left");
}

#[test]
fn nothing_waits_for_ever() {
    let mut group = Group::of(3);
    let file = file_of(0, 3);
    group.want(1, file, Level::Write);
    group.cut = vec![1];
    assert_eq!(group.want(2, file, Level::Write), []);
    let token = group.nodes[2].glimpse(file.file, group.now_ms);
    assert_eq!(group.nodes[2].status().wants, (1, Some(60_000)));
    group.pass(70_000);
    let late = Effect::Refused { object: file, why: Why::Late };
    let sized = Sized::Refused(Why::Late);
    assert!(group.seen[2].contains(&late), "{:?}", group.seen[2]);
    assert!(group.seen[2].contains(&Effect::Glimpsed { file: file.file, token, sized }));
    // The home keeps one that does not ask again for as long.
    group.pass(70_000);
    assert_eq!((group.nodes[0].status().waits, group.nodes[2].status().wants.0), (0, 0));
    // A node in no view has a deadline, too.
    let mut alone = Directory::new(Member::new(9, 1), Incarnation(1), Tuning::default());
    alone.want(file, Level::Read, Terms::default(), 0);
    while let Some(due_ms) = alone.next_timer() {
        alone.timer(due_ms);
    }
    assert_eq!(alone.effects(), [late]);
}

#[test]
fn a_full_home_takes_back_what_was_read_longest_ago() {
    let tuning = Tuning { files: 8, ..Tuning::default() };
    let mut group = Group::with(2, tuning);
    let mut files = (1..).map(|inode| FileId { store: 0, inode, generation: 0 });
    let mut file = || {
        files
            .by_ref()
            .find(|file| Places::of(&[NodeId(0), NodeId(1)]).home_of_file(*file) == Some(NodeId(0)))
    };
    let mut file = || Object::whole(file().unwrap());
    let first = file();
    group.want(0, first, Level::Read);
    (0..4).for_each(|_| drop(group.want(0, file(), Level::Read)));
    let written: Vec<Object> = (0..3).map(|_| file()).collect();
    written.iter().for_each(|file| drop(group.want(1, *file, Level::Write)));
    let one_more = file();
    group.want(1, one_more, Level::Read);
    group.pass(3_000);
    assert!(group.nodes[1].usable(one_more) == Level::Read);
    assert_eq!(group.nodes[0].usable(first), Level::None);
    assert_eq!(group.nodes[1].status().held[Level::Write as usize], 3);
    // With nothing to take back it is refused.
    let mut full = 0;
    for _ in 0..8 {
        let file = file();
        full += usize::from(
            group
                .want(1, file, Level::Write)
                .contains(&Effect::Refused { object: file, why: Why::Full }),
        );
        group.pass(3_000);
    }
    assert!(full > 0);
    assert!(group.nodes[0].status().granted.iter().sum::<usize>() <= 8);
}

#[test]
fn a_fenced_home_grants_nothing_and_a_fenced_reader_reads_nothing() {
    let mut group = Group::of(2);
    let file = file_of(0, 2);
    group.want(1, file, Level::Read);
    group.nodes[1].fenced(true, 0);
    assert_eq!(group.nodes[1].usable(file), Level::None);
    group.nodes[1].fenced(false, 0);
    assert_eq!(group.nodes[1].usable(file), Level::Read);
    group.nodes[0].fenced(true, 0);
    assert_eq!(group.want(1, file, Level::Write), []);
    group.nodes[0].fenced(false, 0);
    group.pass(3_000);
    assert_eq!(group.seen[1], [granted(file, Level::Write)]);
}

/// The record of a file that was removed is taken by the next one with its inode, and no call tells
/// of that.
#[test]
fn what_a_node_has_of_a_removed_file_goes_when_the_inode_is_used_again() {
    let mut group = Group::of(2);
    let of = |inode, generation| FileId { store: 0, inode, generation };
    let others = [of(6, 1), of(8, 1)];
    for file in others {
        group.want(1, Object::whole(file), Level::Write);
    }
    for generation in 1..5 {
        let file = Object::whole(of(7, generation));
        assert_eq!(group.want(1, file, Level::Write), [granted(file, Level::Write)]);
        assert_eq!(group.nodes[1].status().held, counts(&[(Level::Write, 3)]));
        // To want it again releases nothing.
        let again = group.want(1, file, Level::Write);
        assert_eq!(again, [granted(file, Level::Write)]);
        assert_eq!(group.want(0, Object::whole(of(7, generation - 1)), Level::Write).len(), 1);
    }
    // The other node has the last one but one by then.
    assert_eq!(group.nodes[0].status().held, counts(&[(Level::Write, 1)]));
}

#[test]
fn who_leaves_with_nothing_is_not_waited_for() {
    let mut group = Group::of(3);
    let file = file_of(0, 3);
    group.want(2, file, Level::Write);
    group.want(2, file_of(1, 3), Level::Read);
    assert!(!group.nodes[2].farewell());
    let kept = BTreeSet::from([file.file]);
    group.nodes[2].release_others(&kept, 0);
    assert_eq!(group.nodes[2].status().held, counts(&[(Level::Write, 1)]));
    assert!(!group.nodes[2].farewell());
    group.nodes[2].release_others(&BTreeSet::new(), 0);
    assert!(group.nodes[2].farewell());
    group.run();
    group.cut = vec![2];
    group.change(2, &[(0, 1, 1), (1, 1, 1)]);
    assert_eq!(group.nodes[0].awaited(), []);
    assert_eq!(group.want(1, file, Level::Write), [granted(file, Level::Write)]);
}

/// A farewell may come in another view than its sender's, or after a view without it.
#[test]
fn who_has_left_with_nothing_is_not_waited_for_in_another_view() {
    for is_late in [false, true] {
        let mut group = Group::of(3);
        let file = file_of(0, 3);
        group.want(2, file, Level::Write);
        group.nodes[2].release(file, 0);
        group.run();
        let farewell = Message { view: 1, body: Body::Farewell };
        group.cut = vec![2];
        if is_late {
            group.change(2, &[(0, 1, 1), (1, 1, 1)]);
            assert_ne!(group.nodes[0].awaited(), []);
        } else {
            group.change(2, &[(0, 1, 1), (1, 1, 1), (2, 1, 1)]);
        }
        for node in [0, 1] {
            group.nodes[node].message(Member::new(2, 1), farewell.clone(), 0);
        }
        if !is_late {
            group.change(3, &[(0, 1, 1), (1, 1, 1)]);
        }
        group.run();
        assert_eq!(group.nodes[0].awaited(), []);
        assert_eq!(group.want(1, file, Level::Write), [granted(file, Level::Write)]);
    }
}

/// A later life of a node, which has seen the view of the one before, does not know that this has
/// ended with nothing; the others do.
#[test]
fn who_has_left_with_nothing_is_not_doubted_for_a_later_life_of_its_node() {
    let mut group = Group::of(2);
    let farewell = Message { view: 1, body: Body::Farewell };
    group.nodes[0].message(Member::new(1, 1), farewell, 0);
    let old = group.view.clone();
    let second = Member::new(1, 2);
    group.nodes[1] = Directory::new(second, second.incarnation, Tuning::default());
    group.nodes[1].view(&old, 0);
    group.change(2, &[(0, 1, 1), (1, 2, 2)]);
    let file = file_of(1, 2);
    // It waits until that one cannot act any more.
    assert_eq!(group.want(1, file, Level::Write), []);
    group.nodes[1].succeeded(Seat { member: Member::new(1, 1), since: 1 }, 0);
    group.run();
    assert_eq!(group.seen[1], [granted(file, Level::Write)]);
    group.nodes[1].release(file, 0);
    group.run();
    let farewell = Message { view: 2, body: Body::Farewell };
    group.nodes[0].message(second, farewell, 0);
    group.cut = vec![1];
    group.change(3, &[(0, 1, 1)]);
    assert_eq!(group.nodes[0].awaited(), []);
    assert_eq!(group.nodes[0].status().doubted.len(), 0);
    assert_eq!(group.want(0, file, Level::Write), [granted(file, Level::Write)]);
}

/// What a peer says is counted and dropped, or means something that it may say.
#[test]
fn nonsense_changes_nothing() {
    let mut group = Group::of(3);
    let file = file_of(0, 3);
    group.want(1, file, Level::Write);
    let seat = Seat { member: Member::new(2, 1), since: 1 };
    let bodies = [
        Body::Open {
            object: file_of(1, 3),
            request: 1,
            level: Level::Write,
            is_claim: false,
            terms: Terms::default(),
        },
        Body::Granted {
            object: file,
            request: 1,
            serial: u64::MAX,
            level: Level::Write,
            facts: None,
            ahead: Ahead::default(),
        },
        Body::Released {
            object: file,
            serial: u64::MAX,
            level: Level::None,
            facts: None,
            ahead: Ahead::default(),
        },
        Body::Released {
            object: file,
            serial: 0,
            level: Level::Direct,
            facts: None,
            ahead: Ahead::default(),
        },
        Body::Refused { object: file, request: 1, why: Why::Full },
        Body::Claims {
            attempt: 1,
            index: 0,
            is_last: true,
            oldest: Incarnation(0),
            items: vec![Claim::Holds {
                object: file,
                seat,
                level: Level::Write,
                serial: 1,
                is_firm: true,
            }],
        },
        Body::Tell {
            attempt: 1,
            index: 0,
            is_last: true,
            oldest: Incarnation(0),
            items: vec![Claim::Holds {
                object: file,
                seat,
                level: Level::Write,
                serial: 1,
                is_firm: true,
            }],
        },
        Body::Told,
        Body::Roll {
            step: Step::Ask,
            is_up: true,
            part: 0,
            parts: 1,
            has_seen: true,
            items: vec![Claim::Frozen(Partitions::default()), Claim::Gone(seat)],
        },
        Body::Roll {
            step: Step::Told,
            is_up: false,
            part: 0,
            parts: 1,
            has_seen: true,
            items: Vec::new(),
        },
        Body::Note {
            object: file,
            request: 1,
            level: Level::Write,
            is_held: false,
            ahead: Ahead::default(),
        },
        Body::Noted { object: file, request: 1, is_kept: false },
        Body::Peeked { object: file, request: 1, facts: None },
        Body::Size { file: file.file, request: 1, sized: Sized::Store },
    ];
    for body in bodies {
        for to in [0, 1] {
            for view in [0, 1] {
                let message = Message { view, body: body.clone() };
                group.nodes[to].message(Member::new(2, 1), message.clone(), 0);
                group.nodes[to].message(Member::new(7, 1), message.clone(), 0);
                group.nodes[to].message(Member::new(2, 9), message, 0);
            }
        }
    }
    group.cut = vec![2];
    group.run();
    assert_eq!(group.nodes[1].usable(file), Level::Write);
    assert_eq!(group.nodes[0].status().granted, counts(&[(Level::Write, 1)]));
}

/// Nodes 1 and 2 share a file whose home is node 0.
fn sharing() -> (Group, Object) {
    let mut group = Group::of(3);
    let whole = file_of(0, 3);
    group.is_willing = false;
    group.want_with(1, whole, Level::Write, Terms::share());
    assert_eq!(group.want_with(2, whole, Level::Write, Terms::share()), []);
    let asked = Effect::Reduce { object: whole, to: Level::None, may_share: true };
    assert_eq!(group.seen[1].last(), Some(&asked));
    group.nodes[1].reduced(whole, Level::Shared, Some(facts(10)), 0);
    group.run();
    assert_eq!(group.seen[2], [granted(whole, Level::Shared)]);
    group.is_willing = true;
    (group, whole)
}

/// A node that is asked for the size of a file that it shares may have it for itself before it
/// answers, and have made it shorter than what others were told.
#[test]
fn a_size_that_a_node_has_cut_meanwhile_is_asked_for_again() {
    let (mut group, whole) = sharing();
    let size = Object::size(whole.file);
    group.want(1, size, Level::Write);
    group.seen[1].clear();
    let asked = group.nodes[0].glimpse(whole.file, 0);
    group.run();
    let [Effect::Measure { object, token }] = group.seen[1][..] else { panic!("{:?}", group.seen) };
    assert_eq!(object, size);
    group.want(1, whole, Level::Write);
    assert_eq!(group.nodes[1].usable(whole), Level::Write);
    group.nodes[1].sized(size, token, Some(facts(3)), 0);
    group.run();
    let [Effect::Measure { object, token }] = group.seen[1][..] else { panic!("{:?}", group.seen) };
    assert_eq!(object, whole);
    group.nodes[1].sized(whole, token, Some(facts(3)), 0);
    group.run();
    let sized = Sized::Known(facts(3));
    let last = group.seen[0].last();
    assert_eq!(last, Some(&Effect::Glimpsed { file: whole.file, token: asked, sized }));
}

#[test]
fn nodes_that_share_a_file_write_parts_and_give_all_back_with_it() {
    let (mut group, whole) = sharing();
    let part = |number| Object::part(whole.file, number);
    let unshared = Effect::Refused { object: part(0), why: Why::Unshared };
    assert_eq!(group.want(0, part(0), Level::Read), [unshared]);
    let before = group.messages();
    let wanted = group.want_with(1, part(0), Level::Write, Terms::ahead(63));
    let [Effect::Granted { .. }, Effect::Ahead { runs, .. }] = &wanted[..] else {
        panic!("{wanted:?}")
    };
    assert_eq!((runs[0].first, runs[0].count), (1, 63));
    assert_eq!(group.messages() - before, 2);
    // What others have is not taken back for a part that was not wanted itself.
    group.seen[1].clear();
    let wanted = group.want_with(2, part(64), Level::Write, Terms::strided(3, u32::MAX));
    assert_eq!(wanted, [granted(part(64), Level::Write)]);
    assert_eq!(group.want_with(1, part(65), Level::Write, Terms::default()).len(), 1);
    let wanted = group.want_with(2, part(63), Level::Write, Terms::ahead(3));
    assert_eq!(wanted.len(), 2, "{wanted:?}");
    assert_eq!(group.seen[1], [reduce(part(63), Level::None)]);
    assert_eq!(group.nodes[1].usable(part(65)), Level::Write);
    assert_eq!(group.nodes[2].usable(part(66)), Level::Write);
    // One truncates: with the whole go all parts.
    let facts = Some(facts(10));
    let truncating = Effect::Granted { object: whole, level: Level::Write, facts };
    assert_eq!(group.want(2, whole, Level::Write).last(), Some(&truncating));
    assert_eq!(group.nodes[1].held(part(0)), Level::None);
    assert_eq!(group.nodes[1].all_held(), []);
}

/// Small records of two nodes next to each other: after two parts that have thrashed the next ones
/// are direct from the first write on, of either node, and only as long as that goes on.
#[test]
fn parts_behind_those_that_thrashed_are_direct_at_once() {
    let (mut group, whole) = sharing();
    let part = |number| Object::part(whole.file, number);
    let write = |group: &mut Group, node: usize, number| {
        group.pass(5);
        let wanted = group.want_with(node, part(number), Level::Write, Terms::default());
        let granted = wanted.iter().rev().find_map(|effect| match effect {
            Effect::Granted { object, level, .. } if *object == part(number) => Some(*level),
            _ => None,
        });
        granted.unwrap_or(group.nodes[node].usable(part(number)))
    };
    let mut turns = Vec::new();
    for number in 0..4 {
        let levels: Vec<_> = (0..8).map(|turn| write(&mut group, 1 + turn % 2, number)).collect();
        turns.push(levels.iter().filter(|level| **level == Level::Write).count());
    }
    assert_eq!(turns, [5, 5, 0, 0]);
    // One that is ahead of the other, by less than it is looked back for.
    for number in 4..11 {
        assert_eq!(write(&mut group, 1, number), Level::Direct, "part {number}");
    }
    assert_eq!(write(&mut group, 1, 11), Level::Write, "nothing says that two nodes are here");
    // What is used in memory by one node is given up for that.
    assert_eq!(write(&mut group, 2, 4), Level::Direct);
    assert_eq!(write(&mut group, 2, 5), Level::Direct);
    assert_eq!(write(&mut group, 2, 11), Level::Direct);
    assert_eq!(group.nodes[1].usable(part(11)), Level::None);
    // It ends.
    group.pass(5_000);
    assert_eq!(group.nodes[0].status().granted[Level::Direct as usize], 0);
    assert_eq!(write(&mut group, 1, 12), Level::Write);
}

#[test]
fn the_size_of_a_shared_file_is_the_largest_that_was_made() {
    let (mut group, whole) = sharing();
    let size = Object::size(whole.file);
    for node in [1, 2] {
        let shared = group.want(node, size, Level::Shared);
        let facts = Some(facts(10));
        assert_eq!(shared, [Effect::Granted { object: size, level: Level::Shared, facts }]);
    }
    // The shells say 101 and 102 when they give it back.
    group.want_with(0, whole, Level::Read, Terms::share());
    let read = group.want(0, size, Level::Read);
    let facts = Some(facts(102));
    assert_eq!(read, [Effect::Granted { object: size, level: Level::Read, facts }]);
}

#[test]
fn a_part_is_lost_by_name_and_others_are_not() {
    let (mut group, whole) = sharing();
    let part = |number| Object::part(whole.file, number);
    group.want(1, part(1), Level::Write);
    group.cut = vec![1];
    group.change(2, &[(0, 1, 1), (2, 1, 1)]);
    let gone = group.nodes[0].awaited()[0];
    [0, 2].into_iter().for_each(|node| group.nodes[node].succeeded(gone, 0));
    let why = Why::Lost(NodeId(1));
    let lost = Effect::Refused { object: part(1), why };
    assert_eq!(group.want(2, part(1), Level::Read), [lost]);
    assert_eq!(group.want(2, part(2), Level::Read), [granted(part(2), Level::Read)]);
    let whole_lost = Effect::Refused { object: whole, why };
    assert_eq!(group.want(0, whole, Level::Read), [whole_lost]);
    let shared = group.want_with(0, whole, Level::Read, Terms::share());
    assert_eq!(shared, [granted(whole, Level::Shared)]);
}

/// A file that this node is the home of, in a group of so many.
fn file_at(home: u16, count: u16) -> Object {
    let places = Places::of(&(0..count).map(NodeId).collect::<Vec<_>>());
    let file = |inode| FileId { store: 0, inode, generation: 0 };
    let is_it = |file: &FileId| places.home_of_file(*file) == Some(NodeId(home));
    Object::whole((1..).map(file).find(is_it).unwrap())
}

/// Members tell homes what they have through each other: a home waits for all of them, also those
/// that have nothing, and that it knows nothing of but by others.
#[test]
fn a_home_waits_until_each_member_has_told_all_homes() {
    for below in [1, 2, 16] {
        let mut group = Group::with(8, Tuning { below, ..Tuning::default() });
        // Of a file of node 7's, which node 6 writes, node 7 tells nothing when it leaves.
        let file = file_at(7, 8);
        let taken = Effect::Granted { object: file, level: Level::Write, facts: None };
        assert_eq!(group.want(6, file, Level::Write), [taken]);
        let lives: Vec<_> = (0..7).map(|node| (node, 1, 1)).collect();
        group.cut = vec![6];
        group.change(2, &lives);
        group.cut = vec![6, 7];
        group.pass(5_000);
        let places = Places::of(&(0..7).map(NodeId).collect::<Vec<_>>());
        let home = usize::from(places.home_of_file(file.file).unwrap().0);
        for node in (0..6).filter(|node| *node != home) {
            assert_eq!(group.want(node, file, Level::Read), [], "{below} below");
        }
        let frozen = |group: &Group| {
            group.nodes[..7]
                .iter()
                .filter(|node| {
                    let (_, frozen) = node.status().partitions;
                    frozen > 0
                })
                .count()
        };
        assert_eq!(frozen(&group), 6, "{below} below");
        // Those that wait for node 6 name it, or one that waits for it.
        assert!(group.nodes[..6].iter().all(|node| !node.status().silent.is_empty()));
        assert!(
            group.nodes[..6]
                .iter()
                .any(|node| { node.status().silent.contains(&Member::new(6, 1)) })
        );
        group.cut = vec![7];
        group.show();
        group.pass(10_000);
        assert_eq!(frozen(&group), 0, "{below} below");
        assert!(group.nodes[..7].iter().all(|node| node.status().silent.is_empty()));
        // The writer has given it back to them by then, if it was not its own home.
        let seen = group.seen[6].iter().any(|effect| matches!(effect, Effect::Reduce { .. }));
        assert!(seen, "{below} below: {:?}", group.seen[6]);
    }
}

/// Where what is said is lost for a second, all is told all the same.
#[test]
fn what_members_tell_homes_is_said_again_until_it_is_heard() {
    for below in [1, 2, 16] {
        let mut group = Group::with(6, Tuning { below, ..Tuning::default() });
        let files: Vec<Object> = (0..6).map(|home| file_at(home, 6)).collect();
        for (node, file) in files.iter().enumerate() {
            assert_eq!(group.want((node + 1) % 6, *file, Level::Write).len(), 1);
        }
        group.cut = vec![5];
        let lives: Vec<_> = (0..5).map(|node| (node, 1, 1)).collect();
        group.view = View { number: 2, seats: seats(&lives), ..View::default() };
        for node in 0..5 {
            group.nodes[node].view(&group.view, group.now_ms);
            // All that it says is lost.
            let lost = group.nodes[node].effects();
            assert!(lost.iter().all(|effect| !matches!(effect, Effect::Granted { .. })));
        }
        for ms in [250, 500, 750, 1_000] {
            for node in &mut group.nodes[..5] {
                node.timer(group.now_ms + ms);
                node.effects();
            }
        }
        group.now_ms += 1_000;
        group.pass(20_000);
        for node in &group.nodes[..5] {
            let status = node.status();
            assert_eq!((status.partitions.1, status.silent.len()), (0, 0), "{below} below");
        }
        // The file of the one that has gone is its writer's still.
        assert_eq!(group.nodes[0].usable(files[5]), Level::Write);
    }
}

/// A home that is told more than it has room for grants nothing in that view, and no other waits.
#[test]
fn a_home_without_room_for_what_it_is_told_grants_nothing() {
    let mut group = Group::with(3, Tuning { files: 8_192, ..Tuning::default() });
    let places = Places::of(&[0, 1, 2].map(NodeId));
    let after = Places::of(&[0, 1].map(NodeId));
    let moves = |file: &FileId| {
        places.home_of_file(*file) == Some(NodeId(2))
            && after.home_of_file(*file) == Some(NodeId(1))
    };
    let files = (1..).map(|inode| FileId { store: 0, inode, generation: 0 }).filter(moves);
    let files: Vec<Object> = files.take(4_096).map(Object::whole).collect();
    for file in &files {
        assert_eq!(group.want(0, *file, Level::Read).len(), 1);
    }
    // It has begun anew with a table that is smaller than what it is told.
    group.nodes[1] = Directory::new(
        Member::new(1, 1),
        Incarnation(1),
        Tuning { files: 1_000, ..Tuning::default() },
    );
    group.cut = vec![2];
    group.change(2, &[(0, 1, 1), (1, 1, 1)]);
    group.pass(5_000);
    let [full, other] = [1, 0].map(|node| group.nodes[node].status());
    assert!(full.partitions.1 > 0 && full.dropped > 0, "{full:?}");
    assert_eq!(other.partitions.1, 0, "{other:?}");
    let gone = seats(&[(2, 1, 1)])[0];
    group.nodes[..2].iter_mut().for_each(|node| node.succeeded(gone, 5_000));
    let refused = Effect::Refused { object: file_at(1, 2), why: Why::Full };
    assert_eq!(group.want(0, file_at(1, 2), Level::Write), [refused]);
    let granted = Effect::Granted { object: file_at(0, 2), level: Level::Write, facts: None };
    assert_eq!(group.want(1, file_at(0, 2), Level::Write), [granted]);
}
