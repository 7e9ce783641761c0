//! The links of groups of real threads and sockets on one machine.

mod support;

use forebay_cluster::{
    Group, GroupConfig, GroupStatus, LinkEvent, LinkState, LinkStatus, MESH_MAX, Post, SendError,
    Staging, Standing,
};
use forebay_fabric::{
    BODY_MAX, Down, Fabric, Fault, FaultScript, Header, Identity, Kind, Operation, Outcome, Region,
    RemoteSpan, Rule, Tls, When,
};
use forebay_membership::{Member, NodeId, Rank};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};
use support::{Site, wait, wait_agreed};

const PATIENCE: Duration = Duration::from_secs(60);

/// What a handler was told.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Heard {
    Up(Member),
    Down(Member),
    Room(Member),
    Message(Member, Header, Vec<u8>),
    Pulled(u64, Outcome),
}

/// A group with what its handler is told.
struct Node {
    group: Group,
    heard: Receiver<Heard>,
}

/// A question is answered with the same body and the next kind.
const QUESTION: Kind = Kind(7);
const ANSWER: Kind = Kind(8);
/// What the receiver is to be slow about.
const SLOW: Kind = Kind(9);

fn handler(sender: mpsc::Sender<Heard>) -> impl FnMut(&Post, LinkEvent<'_>) + Send {
    move |post, event| {
        let heard = match event {
            LinkEvent::Up(member) => Heard::Up(member),
            LinkEvent::Down(member) => Heard::Down(member),
            LinkEvent::Room(member) => Heard::Room(member),
            LinkEvent::Pulled { token, outcome } => Heard::Pulled(token, outcome),
            LinkEvent::Message { from, header, body } => {
                if header.kind == QUESTION {
                    let answer = Header { kind: ANSWER, ..*header };
                    assert_eq!(post.send(from, &answer, body), Ok(()));
                } else if header.kind == SLOW {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Heard::Message(from, *header, body.to_vec())
            }
        };
        // A test that has ended does not listen any more.
        let _ = sender.send(heard);
    }
}

impl Node {
    fn start(site: &Site, node: u16) -> Node {
        Node::start_with(site.config(node))
    }

    fn start_with(config: GroupConfig) -> Node {
        let (sender, heard) = mpsc::channel();
        let config = GroupConfig { handler: Box::new(handler(sender)), ..config };
        Node { group: Group::start(config).unwrap(), heard }
    }

    fn me(&self) -> Member {
        self.group.status().me
    }

    /// Waits until this was heard; what is heard before it is dropped.
    fn hear(&self, what: &str, is_it: impl Fn(&Heard) -> bool) -> Heard {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let heard = self.heard.recv_timeout(left).unwrap_or_else(|_| panic!("{what}"));
            if is_it(&heard) {
                return heard;
            }
        }
    }

    fn hear_message(&self, request: u64) -> (Member, Header, Vec<u8>) {
        let is_it = |heard: &Heard| matches!(heard, Heard::Message(..));
        match self.hear("a message", is_it) {
            Heard::Message(from, header, body) if header.request == request => (from, header, body),
            other => panic!("{other:?} instead of {request}"),
        }
    }
}

fn start_all(site: &Site) -> Vec<Node> {
    (0..site.hosts.names().len() as u16).map(|node| Node::start(site, node)).collect()
}

fn groups(nodes: &[Node]) -> impl Iterator<Item = &Group> {
    nodes.iter().map(|node| &node.group)
}

fn header(kind: Kind, request: u64) -> Header {
    Header { kind, request, ..Header::default() }
}

fn link(status: &GroupStatus, node: u16) -> Option<&LinkStatus> {
    status.links.iter().find(|link| link.peer.node == NodeId(node))
}

/// Waits until all links of these nodes are up.
fn wait_linked(nodes: &[Node]) -> Vec<GroupStatus> {
    wait_agreed(groups(nodes));
    wait("all links", groups(nodes), |all| {
        all.iter().all(|status| {
            status.links.len() == all.len() - 1
                && status.links.iter().all(|link| link.state == LinkState::Up)
        })
    })
}

#[test]
fn each_member_has_a_link_to_each_that_carries_messages_both_ways() {
    for count in [2, 3] {
        let site = Site::of(count);
        let nodes = start_all(&site);
        wait_linked(&nodes);
        let mut request = 0;
        for from in &nodes {
            for to in &nodes {
                if from.me() == to.me() {
                    assert_eq!(
                        from.group.send(to.me(), &header(QUESTION, 0), b""),
                        Err(SendError::NotMember)
                    );
                    continue;
                }
                request += 1;
                let body = vec![request as u8; 1000 * request as usize];
                from.group.send(to.me(), &header(QUESTION, request), &body).unwrap();
                let (sender, question, found) = to.hear_message(request);
                assert_eq!((sender, question.sender, found == body), (from.me(), from.me(), true));
                let (sender, answer, found) = from.hear_message(request);
                assert_eq!((sender, answer.kind, found == body), (to.me(), ANSWER, true));
            }
        }
        let statuses = wait("links are measured", groups(&nodes), |all| {
            all.iter().flat_map(|status| &status.links).all(|link| {
                link.round_trip.is_some() && link.bytes_in > 1000 && link.bytes_out > 1000
            })
        });
        for status in &statuses {
            for link in &status.links {
                assert!(link.round_trip.unwrap() < PATIENCE && link.last_down.is_none());
                assert_eq!(link.waiting, 0);
            }
        }
    }
}

/// Each pull is told to have ended, once, whether there was anything to be pulled or not.
#[test]
fn bytes_are_pulled_from_the_staging_of_a_member() {
    const BYTES: usize = 256 << 10;
    let site = Site::of(2);
    let stagings: Vec<Arc<Staging>> = (0..2).map(|_| Arc::new(Staging::new(4, BYTES))).collect();
    let mut nodes: Vec<Node> = (0..2)
        .map(|node| {
            let staging = Some(Arc::clone(&stagings[node as usize]));
            Node::start_with(GroupConfig { staging, ..site.config(node) })
        })
        .collect();
    wait_linked(&nodes);
    let content: Vec<u8> = (0..BYTES).map(|at| ((at * at) >> 7) as u8).collect();
    // SAFETY: the slot is this test's, and nothing pulls from it yet.
    unsafe { stagings[1].at(2).copy_from_nonoverlapping(content.as_ptr(), BYTES) };
    let (of, post) = (nodes[1].me(), nodes[0].group.post());
    assert_eq!(post.members(), [of]);
    let region = stagings[1].region().unwrap();
    let ended = |token: u64| {
        let is_end = |heard: &Heard| matches!(heard, Heard::Pulled(..));
        match nodes[0].hear("the end of a pull", is_end) {
            Heard::Pulled(of, outcome) if of == token => outcome,
            other => panic!("{other:?} instead of {token}"),
        }
    };
    let span = RemoteSpan { region, offset: stagings[1].offset(2), bytes: BYTES as u64 };
    post.pull(of, span, stagings[0].offset(3), 1, PATIENCE);
    assert_eq!(ended(1), Outcome::Ok);
    // SAFETY: the pull has ended.
    let found = unsafe { std::slice::from_raw_parts(stagings[0].at(3), BYTES) };
    assert!(found == content);
    assert!(stagings[0].at(4).is_null());
    // What is not exposed, or beyond the end, is refused; from one that is no member nothing comes.
    let strange = RemoteSpan { region: Region::from_number(u64::MAX), ..span };
    post.pull(of, strange, 0, 2, PATIENCE);
    assert_eq!(ended(2), Outcome::Refused);
    post.pull(of, RemoteSpan { offset: 4 * BYTES as u64, ..span }, 0, 3, PATIENCE);
    assert_eq!(ended(3), Outcome::Refused);
    post.pull(Member::new(7, 1), span, 0, 4, PATIENCE);
    assert_eq!(ended(4), Outcome::Gone);
    drop(nodes.pop());
    post.pull(of, span, 0, 5, PATIENCE);
    let is_end = |heard: &Heard| matches!(heard, Heard::Pulled(5, Outcome::Gone));
    nodes[0].hear("the end of the last pull", is_end);
}

#[test]
fn messages_keep_their_order_and_wait_for_room() {
    let site = Site::of(2);
    let nodes = start_all(&site);
    wait_linked(&nodes);
    let to = nodes[1].me();
    let body = vec![3; BODY_MAX];
    let (mut refused, mut number) = (0, 0);
    let begin = Instant::now();
    while number < 200 || refused == 0 {
        match nodes[0].group.send(to, &header(SLOW, number), &body) {
            Ok(()) => number += 1,
            Err(error) => {
                assert_eq!(error, SendError::Full);
                refused += 1;
                nodes[0].hear("room", |heard| *heard == Heard::Room(to));
            }
        }
        assert!(begin.elapsed() < PATIENCE, "{number} sent, {refused} refused");
    }
    for request in 0..number {
        let (_, _, found) = nodes[1].hear_message(request);
        assert!(found == body, "{request}");
    }
}

#[test]
fn one_that_dies_is_told_at_once_and_its_next_life_gets_a_link() {
    let site = Site::of(3);
    let mut nodes = start_all(&site);
    wait_linked(&nodes);
    let dead = nodes.pop().unwrap();
    let member = dead.me();
    drop(dead.group);
    for node in &nodes {
        node.hear("the end of the link", |heard| *heard == Heard::Down(member));
    }
    // Until it is left out it is a member that cannot be reached.
    wait("it is suspected and left out", groups(&nodes), |all| {
        all.iter().all(|status| {
            status.nodes[2].standing == Standing::LeftOut && link(status, 2).is_none()
        })
    });
    let answer = nodes[0].group.send(member, &header(QUESTION, 1), b"");
    assert_eq!(answer, Err(SendError::NotMember));
    nodes.push(Node::start(&site, 2));
    wait_linked(&nodes);
    let later = nodes[2].me();
    assert_eq!(later, Member::new(2, 2));
    nodes[0].group.send(later, &header(QUESTION, 2), b"again").unwrap();
    let (_, _, body) = nodes[0].hear_message(2);
    assert_eq!(body, b"again");
}

#[test]
fn a_lost_link_is_made_again_and_evicts_none() {
    let site = Site::of(2);
    let script = FaultScript::new();
    let mut config = site.config(0);
    config.faults.links = Some(script.clone());
    let nodes = [Node::start_with(config), Node::start(&site, 1)];
    let before = wait_linked(&nodes);
    let cut = Rule::new(Operation::Send, When::Next(1), Fault::Cut).unwrap();
    for round in 0..3 {
        script.replace(vec![cut.clone()]);
        nodes[0].group.send(nodes[1].me(), &header(QUESTION, round), b"lost").unwrap();
        nodes[0].hear("the end", |heard| *heard == Heard::Down(nodes[1].me()));
        nodes[1].hear("the end", |heard| *heard == Heard::Down(nodes[0].me()));
        nodes[0].hear("a new link", |heard| *heard == Heard::Up(nodes[1].me()));
        nodes[1].hear("a new link", |heard| *heard == Heard::Up(nodes[0].me()));
        assert_eq!(script.hits(), round + 1);
    }
    let statuses = wait_linked(&nodes);
    assert_eq!(link(&statuses[0], 1).unwrap().last_down.unwrap().1, Down::Injected);
    // It has answered that it lives.
    assert_eq!(statuses[0].view.0, before[0].view.0);
    assert!(statuses.iter().all(|status| status.rank == Rank::Inside));
    nodes[0].group.send(nodes[1].me(), &header(QUESTION, 9), b"there").unwrap();
    assert_eq!(nodes[0].hear_message(9).2, b"there");
}

/// Where a node's links listen.
fn listens(group: &Group) -> SocketAddr {
    support::socket_of(group)
}

#[test]
fn who_has_another_secret_or_another_life_gets_no_link() {
    let site = Site::of(2);
    let nodes = start_all(&site);
    let before = wait_linked(&nodes);
    let at = listens(&nodes[0].group);
    let secret: [u8; 32] = std::fs::read(site.folder.join("secret")).unwrap().try_into().unwrap();
    let tag = "0000000000000000";
    for (secret, to, group, wanted) in [
        ([7; 32], nodes[0].me(), tag, Down::Tls),
        // The right secret with the wrong name of the group.
        (secret, nodes[0].me(), tag, Down::Mismatch(forebay_fabric::Differs::Group)),
    ] {
        let member = Member::new(1, 9);
        let identity = Identity { member, group: group.to_owned() };
        let own: IpAddr = at.ip();
        let mut stranger = Tls::new(identity, &secret, &[SocketAddr::new(own, 0)]).unwrap();
        stranger.connect(to, &at.to_string()).unwrap();
        let (mut events, begin) = (Vec::new(), Instant::now());
        while stranger.poll(&mut events) == 0 {
            assert!(begin.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
        match &events[0] {
            forebay_fabric::Event::Down { why, .. } => assert_eq!(*why, wanted),
            other => panic!("{other:?}"),
        }
    }
    // The others have heard nothing of it.
    nodes[1].group.send(nodes[0].me(), &header(QUESTION, 1), b"well").unwrap();
    assert_eq!(nodes[1].hear_message(1).2, b"well");
    let after = wait_linked(&nodes);
    assert_eq!(after[0].view.0, before[0].view.0);
    let quiet = |heard: &Heard| !matches!(heard, Heard::Up(member) if member.incarnation.0 == 9);
    assert!(nodes[0].heard.try_iter().all(|heard| quiet(&heard)));
}

#[test]
fn in_a_large_view_links_are_made_when_something_is_sent() {
    let count = MESH_MAX as u16 + 1;
    let site = Site::of(count);
    let nodes = start_all(&site);
    let statuses = wait_agreed(groups(&nodes));
    assert!(statuses.iter().all(|status| status.links.len() == MESH_MAX));
    // Those that formed smaller views before may have links.
    let unused = |status: &GroupStatus| {
        let link = status.links.iter().find(|link| link.state == LinkState::Unused);
        link.map(|link| link.peer)
    };
    // The higher number may be the first to send, too.
    let from = nodes.iter().rev().find(|node| unused(&node.group.status()).is_some());
    let from = from.expect("one that has no link to some member");
    let to = unused(&from.group.status()).unwrap();
    from.group.send(to, &header(QUESTION, 5), b"first").unwrap();
    assert_eq!(from.hear_message(5).2, b"first");
}

#[test]
fn what_waits_for_a_member_that_is_not_there_ends() {
    let site = Site::of(2);
    let mut nodes = start_all(&site);
    wait_linked(&nodes);
    let gone = nodes.pop().unwrap();
    let member = gone.me();
    drop(gone.group);
    let node = &nodes[0];
    node.hear("the end of the link", |heard| *heard == Heard::Down(member));
    // Each message is refused, or its loss is told, until the member is left out.
    let (mut told, begin) = (0, Instant::now());
    loop {
        match node.group.send(member, &header(QUESTION, 1), b"hello") {
            Ok(()) => {
                let is_down = |heard: &Heard| *heard == Heard::Down(member);
                if node.heard.recv_timeout(PATIENCE).is_ok_and(|heard| is_down(&heard)) {
                    told += 1;
                }
            }
            Err(SendError::Unreachable) => std::thread::sleep(Duration::from_millis(1)),
            Err(SendError::NotMember) => break,
            Err(other) => panic!("{other}"),
        }
        assert!(begin.elapsed() < PATIENCE);
    }
    println!("{told} messages were taken, and their loss told");
    wait_agreed(groups(&nodes));
}
