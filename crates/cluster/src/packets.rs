//! The packets of a group: who sends which to whom, with a keyed sum by which only those that
//! know the group's secret are heard.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | version |
//! | 1 | kind: 1 of the failure detector, 2 a question, 3 its answer, 4 a request to read a card |
//! | 2..8 | sender: node, incarnation |
//! | 8..10 | receiver's node |
//! | 10..18 | the group, from its secret, and but for kind 4 from what its nodes have alike |
//! | .. | what it says |
//! | last 16 | the first half of HMAC-SHA256 over all before |
//!
//! Numbers are little-endian, or, in views and pleas, of as many bytes as they need (7 bits each,
//! the lowest first, the highest bit set in all but the last). These are written as runs: of nodes
//! that follow each other, in a view with one life and one seat alike,
//!
//! | number | of a run |
//! |---|---|
//! | first | twice how many nodes are left out before it, and 1 more if it has several nodes |
//! | second | how many more than two it has then |
//! | of a view | its incarnation; since how many views before this one |
//!
//! So 10,000 nodes that have begun together take 10 bytes, and 20,000 of which each is different
//! 60,000, as long as lives and views are below 128; a view that no packet carries is not sent.
//!
//! The version is that of the table and of kind 4, by which nodes of different builds find each
//! other: what else differs between builds is told by their [`Protocol`](crate::Protocol).
//!
//! A packet that is recorded and sent again passes: the failure detector
//! and [`forebay_membership::Views`] take one of an earlier life, of an earlier state or of another
//! question for what it is, and decide nothing that the folder does not.

use forebay_membership::{Found, GivenUp, Incarnation, Member, NodeId, Seat, View};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use ring::hmac::{self, HMAC_SHA256};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Of what nodes of all builds understand.
const VERSION: u8 = 1;
/// Of all other packets: one of the parts of [`Protocol`](crate::Protocol).
pub(crate) const BODIES: u8 = 3;
const HEAD: usize = 18;
const SUM: usize = 16;
/// The largest packet, in bytes: what UDP carries, with room.
pub(crate) const PACKET_MAX: usize = 60 << 10;

const SWIM: u8 = 1;
const INQUIRE: u8 = 2;
const ANSWER: u8 = 3;
const HEED: u8 = 4;

/// How the view of an answer is told.
const NO_VIEW: u8 = 0;
const SAME_VIEW: u8 = 1;
const WHOLE_VIEW: u8 = 2;

/// What a packet says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// For the failure detector.
    Swim(Vec<u8>),
    /// What have you last seen? With the number of the asker's own view, 0 if it has none.
    Inquire { question: u64, view: u32 },
    /// What was last seen, and how many ms before: nothing, if `None`.
    Answer { question: u64, seen: Option<(u64, Seen)> },
    /// Read my card: it says why I am not of your group.
    Heed,
}

/// A [`Found`] for one that may have its view already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub newest: Newest,
    pub pleas: Vec<NodeId>,
    pub looks: u64,
}

/// The newest view of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Newest {
    None,
    /// It has the number of the question.
    Same,
    Whole(View),
}

impl Seen {
    /// For one that has the view of this number.
    pub fn of(found: Found, view: u32) -> Self {
        let newest = match found.newest {
            None => Newest::None,
            Some(newest) if newest.number == view => Newest::Same,
            Some(newest) => Newest::Whole(Arc::unwrap_or_clone(newest)),
        };
        Self { newest, pleas: found.pleas, looks: found.looks }
    }

    /// For one that has asked with this view and has it still.
    pub fn into_found(self, view: Option<&View>) -> Found {
        let newest = match self.newest {
            Newest::None => None,
            Newest::Same => view.cloned().map(Arc::new),
            Newest::Whole(newest) => Some(Arc::new(newest)),
        };
        Found { newest, pleas: self.pleas, looks: self.looks, ..Found::default() }
    }
}

/// Why a packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Too short, too long, or not a message.
    Malformed,
    /// Another version of its form.
    Version,
    /// Of another group, or of one that knows another secret.
    Group,
    /// Its keyed sum is wrong.
    Sum,
    /// For another node.
    Astray,
}

/// What makes and reads the packets of one life of a node.
pub(crate) struct Packets {
    me: Member,
    key: hmac::Key,
    tag: [u8; 8],
    /// The same of all who know the secret, whatever else they have: of [`Message::Heed`] alone.
    all: (hmac::Key, [u8; 8]),
}

struct TagBytes;

impl KeyType for TagBytes {
    fn len(&self) -> usize {
        8
    }
}

/// A number of the group's that all who know its secret have; it does not tell the secret.
pub(crate) fn tag_of(secret: &[u8; 32]) -> [u8; 8] {
    tag_under(secret, "")
}

/// The same of those who have these terms, too.
fn tag_under(secret: &[u8; 32], terms: &str) -> [u8; 8] {
    let mut tag = [0; 8];
    let root = root_of(secret);
    let info = [b"forebay group tag 1", terms.as_bytes()];
    let derived = root.expand(&info, TagBytes);
    derived.and_then(|derived| derived.fill(&mut tag)).expect("8 bytes are less than HKDF gives");
    tag
}

fn root_of(secret: &[u8; 32]) -> Prk {
    Salt::new(HKDF_SHA256, &[]).extract(secret)
}

impl Packets {
    /// `terms` is what all nodes of the group have to have alike.
    pub fn new(secret: &[u8; 32], terms: &str, me: Member) -> Self {
        let root = root_of(secret);
        let key_under = |terms: &str| {
            let info = [b"forebay group packets 1", terms.as_bytes()];
            let key = root.expand(&info, HMAC_SHA256);
            hmac::Key::from(key.expect("the length of SHA-256 is one that HKDF gives"))
        };
        let all = (key_under(""), tag_of(secret));
        Self { me, key: key_under(terms), tag: tag_under(secret, terms), all }
    }

    /// A packet for a node; `None` if the message is too large for one.
    pub fn seal(&self, to: NodeId, message: &Message) -> Option<Vec<u8>> {
        let kind = match message {
            Message::Swim(_) => SWIM,
            Message::Inquire { .. } => INQUIRE,
            Message::Answer { .. } => ANSWER,
            Message::Heed => HEED,
        };
        let (key, tag) = match message {
            Message::Heed => (&self.all.0, self.all.1),
            _ => (&self.key, self.tag),
        };
        let mut packet = vec![VERSION, kind];
        put_member(&mut packet, self.me);
        packet.extend(to.0.to_le_bytes());
        packet.extend(tag);
        match message {
            Message::Swim(bytes) => packet.extend(bytes),
            Message::Inquire { question, view } => {
                packet.extend(question.to_le_bytes());
                packet.extend(view.to_le_bytes());
            }
            Message::Answer { question, seen } => {
                packet.extend(question.to_le_bytes());
                put_seen(&mut packet, seen.as_ref());
            }
            Message::Heed => {}
        }
        let sum = hmac::sign(key, &packet);
        packet.extend(&sum.as_ref()[..SUM]);
        (packet.len() <= PACKET_MAX).then_some(packet)
    }

    /// Who has sent a packet, and what it says.
    pub fn open(&self, packet: &[u8]) -> Result<(Member, Message), Refusal> {
        if !(HEAD + SUM..=PACKET_MAX).contains(&packet.len()) {
            return Err(Refusal::Malformed);
        }
        let (signed, sum) = packet.split_at(packet.len() - SUM);
        if signed[0] != VERSION {
            return Err(Refusal::Version);
        }
        let (key, tag) = match signed[1] {
            HEED => (&self.all.0, &self.all.1),
            _ => (&self.key, &self.tag),
        };
        if signed[10..HEAD] != *tag {
            return Err(Refusal::Group);
        }
        let right = hmac::sign(key, signed);
        // How long this takes does not tell where they differ.
        if right.as_ref().iter().zip(sum).fold(0, |all, (a, b)| all | (a ^ b)) != 0 {
            return Err(Refusal::Sum);
        }
        let mut reader = Reader(&signed[2..]);
        let from = reader.member().ok_or(Refusal::Malformed)?;
        let to = reader.u16().ok_or(Refusal::Malformed)?;
        if to != self.me.node.0 {
            return Err(Refusal::Astray);
        }
        let message = message(signed[1], &signed[HEAD..]).ok_or(Refusal::Malformed)?;
        Ok((from, message))
    }
}

fn message(kind: u8, body: &[u8]) -> Option<Message> {
    let mut reader = Reader(body);
    let message = match kind {
        SWIM => return Some(Message::Swim(body.to_vec())),
        INQUIRE => Message::Inquire { question: reader.u64()?, view: reader.u32()? },
        ANSWER => Message::Answer { question: reader.u64()?, seen: reader.seen()? },
        HEED => Message::Heed,
        _ => return None,
    };
    reader.0.is_empty().then_some(message)
}

fn put_member(packet: &mut Vec<u8>, member: Member) {
    packet.extend(member.node.0.to_le_bytes());
    packet.extend(member.incarnation.0.to_le_bytes());
}

fn put_seen(packet: &mut Vec<u8>, seen: Option<&(u64, Seen)>) {
    packet.push(seen.is_some().into());
    let Some((age_ms, Seen { newest, pleas, looks })) = seen else { return };
    packet.extend(age_ms.to_le_bytes());
    packet.extend(looks.to_le_bytes());
    let pleas: BTreeSet<NodeId> = pleas.iter().copied().collect();
    put_runs(packet, &pleas.into_iter().map(|node| (node, ())).collect::<Vec<_>>(), |_, ()| {});
    match newest {
        Newest::None => packet.push(NO_VIEW),
        Newest::Same => packet.push(SAME_VIEW),
        Newest::Whole(view) => {
            packet.push(WHOLE_VIEW);
            packet.extend(view.number.to_le_bytes());
            let seats = view.seats.iter().map(|seat| {
                let ago = view.number.saturating_sub(seat.since);
                (seat.member.node, (seat.member.incarnation, ago))
            });
            put_runs(packet, &seats.collect::<Vec<_>>(), |packet, (incarnation, ago)| {
                put_number(packet, incarnation.0);
                put_number(packet, ago);
            });
            put_seats(packet, view.lost.iter().map(|seat| (seat.member, seat.since)));
            put_seats(packet, view.given_up.iter().map(|given| (given.member, given.view)));
        }
    }
}

/// Members in any order, each with the number of a view.
fn put_seats(packet: &mut Vec<u8>, of: impl ExactSizeIterator<Item = (Member, u32)>) {
    put_number(packet, of.len() as u32);
    for (member, view) in of {
        put_member(packet, member);
        put_number(packet, view);
    }
}

/// Nodes in ascending order with what is said of them, which is written once for each run.
fn put_runs<T: Copy + PartialEq>(
    packet: &mut Vec<u8>,
    nodes: &[(NodeId, T)],
    put: impl Fn(&mut Vec<u8>, T),
) {
    let follows = |(before, said): &(NodeId, T), (node, other): &(NodeId, T)| {
        before.0.checked_add(1) == Some(node.0) && said == other
    };
    let runs: Vec<&[(NodeId, T)]> = nodes.chunk_by(follows).collect();
    put_number(packet, runs.len() as u32);
    let mut next = 0;
    for run in runs {
        let ((first, said), length) = (run[0], run.len() as u32);
        let left_out = u32::from(first.0) - next;
        put_number(packet, left_out << 1 | u32::from(length > 1));
        if length > 1 {
            put_number(packet, length - 2);
        }
        put(packet, said);
        next = u32::from(first.0) + length;
    }
}

fn put_number(packet: &mut Vec<u8>, mut number: u32) {
    while number >= 0x80 {
        packet.push(number as u8 | 0x80);
        number >>= 7;
    }
    packet.push(number as u8);
}

/// What is left of a packet.
struct Reader<'p>(&'p [u8]);

impl Reader<'_> {
    fn take<const COUNT: usize>(&mut self) -> Option<[u8; COUNT]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn member(&mut self) -> Option<Member> {
        Some(Member { node: NodeId(self.u16()?), incarnation: Incarnation(self.u32()?) })
    }

    fn seen(&mut self) -> Option<Option<(u64, Seen)>> {
        match self.u8()? {
            0 => return Some(None),
            1 => {}
            _ => return None,
        }
        let (age_ms, looks) = (self.u64()?, self.u64()?);
        let pleas = self.runs(|_| Some(()))?.into_iter().map(|(node, ())| node).collect();
        let newest = match self.u8()? {
            NO_VIEW => Newest::None,
            SAME_VIEW => Newest::Same,
            WHOLE_VIEW => Newest::Whole(self.view()?),
            _ => return None,
        };
        Some(Some((age_ms, Seen { newest, pleas, looks })))
    }

    /// One that is written with as few bytes as it needs.
    fn number(&mut self) -> Option<u32> {
        let mut number = 0;
        for shift in (0..u32::BITS).step_by(7) {
            let byte = self.u8()?;
            let bits = u32::from(byte & 0x7f);
            number |= bits.checked_shl(shift).filter(|shifted| shifted >> shift == bits)?;
            if byte < 0x80 {
                return (byte > 0 || shift == 0).then_some(number);
            }
        }
        None
    }

    /// Nodes in ascending order with what is said of each, in as few runs as it can be.
    fn runs<T: Copy + PartialEq>(
        &mut self,
        said: impl Fn(&mut Self) -> Option<T>,
    ) -> Option<Vec<(NodeId, T)>> {
        let mut nodes: Vec<(NodeId, T)> = Vec::new();
        let mut next = 0;
        for _ in 0..self.number()? {
            let head = self.number()?;
            let first = u32::checked_add(next, head >> 1)?;
            let length = if head & 1 == 0 { 1 } else { self.number()?.checked_add(2)? };
            let last = u16::try_from(first.checked_add(length - 1)?).ok()?;
            let said = said(self)?;
            let is_same = nodes.last().is_some_and(|(_, before)| *before == said);
            if is_same && head >> 1 == 0 {
                return None;
            }
            nodes.extend((first as u16..=last).map(|node| (NodeId(node), said)));
            next = u32::from(last) + 1;
        }
        Some(nodes)
    }

    /// Members, each with the number of a view.
    fn seats(&mut self) -> Option<Vec<(Member, u32)>> {
        let count = self.number()?;
        (0..count).map(|_| Some((self.member()?, self.number()?))).collect()
    }

    /// A [view that can be](View::is_good).
    fn view(&mut self) -> Option<View> {
        let number = self.u32()?;
        let nodes = self.runs(|reader| Some((Incarnation(reader.number()?), reader.number()?)))?;
        let seat = |(node, (incarnation, ago)): (NodeId, (Incarnation, u32))| {
            let since = number.checked_sub(ago)?;
            Some(Seat { member: Member { node, incarnation }, since })
        };
        let seats: Vec<Seat> = nodes.into_iter().map(seat).collect::<Option<_>>()?;
        let lost = self.seats()?.into_iter();
        let lost = lost.map(|(member, since)| Seat { member, since }).collect();
        let given_up = self.seats()?.into_iter();
        let given_up = given_up.map(|(member, view)| GivenUp { member, view }).collect();
        let view = View { number, seats, lost, given_up };
        view.is_good().then_some(view)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    /// Prints the seed of a test that panics while it is there.
    struct Seed(u64);

    impl Drop for Seed {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("seed {}", self.0);
            }
        }
    }

    fn two() -> (Packets, Packets) {
        let secret = [7; 32];
        let of = |member| Packets::new(&secret, "t", member);
        (of(Member::new(3, 9)), of(Member::new(5, 1)))
    }

    fn random_message(random: &mut SmallRng) -> Message {
        let question = random.random();
        match random.random_range(0..3) {
            0 => {
                let length = random.random_range(0..1280);
                Message::Swim((0..length).map(|_| random.random()).collect())
            }
            1 => Message::Inquire { question, view: random.random() },
            _ => {
                let number = random.random_range(1..=u32::MAX);
                let seats = (0..random.random_range(1..50)).map(|node| Seat {
                    member: Member::new(node, random.random()),
                    since: random.random_range(1..=number),
                });
                let seats: Vec<Seat> = seats.collect();
                let lost = seats.clone();
                let of = |seat: &Seat| GivenUp { member: seat.member, view: seat.since };
                let given_up = seats.iter().map(of).collect();
                let view = View { number, seats, lost, given_up };
                let newest = [Newest::None, Newest::Same, Newest::Whole(view)];
                let newest = newest[random.random_range(0..3)].clone();
                let pleas = (0..random.random_range(0..5)).map(NodeId).collect();
                let seen = Seen { newest, pleas, looks: random.random() };
                let seen = random.random::<bool>().then(|| (random.random(), seen));
                Message::Answer { question, seen }
            }
        }
    }

    #[test]
    fn what_is_sealed_is_opened() {
        let (one, other) = two();
        for seed in 0..1000 {
            let (mut random, _seed) = (SmallRng::seed_from_u64(seed), Seed(seed));
            let message = random_message(&mut random);
            let packet = one.seal(NodeId(5), &message).unwrap();
            assert_eq!(other.open(&packet), Ok((Member::new(3, 9), message)));
            assert_eq!(one.open(&packet), Err(Refusal::Astray));
        }
    }

    #[test]
    fn each_changed_byte_and_each_cut_is_refused() {
        let (one, other) = two();
        for seed in 0..20 {
            let (mut random, _seed) = (SmallRng::seed_from_u64(seed), Seed(seed));
            let packet = one.seal(NodeId(5), &random_message(&mut random)).unwrap();
            for at in 0..packet.len() {
                let mut changed = packet.clone();
                changed[at] ^= random.random_range(1..=u8::MAX);
                let expected = match at {
                    0 => Refusal::Version,
                    10..HEAD => Refusal::Group,
                    _ => Refusal::Sum,
                };
                assert_eq!(other.open(&changed), Err(expected), "byte {at}");
                let cut = other.open(&packet[..at]);
                let expected = if at < HEAD + SUM { Refusal::Malformed } else { Refusal::Sum };
                assert_eq!(cut, Err(expected), "cut at {at}");
            }
            let longer = [&packet[..], &[0]].concat();
            assert_eq!(other.open(&longer), Err(Refusal::Sum));
        }
    }

    #[test]
    fn what_a_member_says_wrong_is_no_message() {
        let (one, other) = two();
        // A body of its own under a right sum, as a member with a fault would send it.
        let seal = |kind: u8, body: &[u8]| {
            let mut packet = one.seal(NodeId(5), &Message::Swim(body.to_vec())).unwrap();
            packet.truncate(packet.len() - SUM);
            packet[1] = kind;
            let key = if kind == HEED { &one.all.0 } else { &one.key };
            if kind == HEED {
                packet[10..HEAD].copy_from_slice(&one.all.1);
            }
            let sum = hmac::sign(key, &packet);
            packet.extend(&sum.as_ref()[..SUM]);
            packet
        };
        for seed in 0..2000 {
            let (mut random, _seed) = (SmallRng::seed_from_u64(seed), Seed(seed));
            let length = random.random_range(0..60);
            let body: Vec<u8> = (0..length).map(|_| random.random_range(0..4)).collect();
            let kind = random.random_range(0..6);
            match other.open(&seal(kind, &body)) {
                // What is understood has this form only.
                Ok((_, message)) => {
                    assert_eq!(one.seal(NodeId(5), &message), Some(seal(kind, &body)));
                }
                Err(refusal) => assert_eq!(refusal, Refusal::Malformed),
            }
        }
        let answer = |view: View| {
            let seen = Seen { newest: Newest::Whole(view), pleas: Vec::new(), looks: 0 };
            let message = Message::Answer { question: 1, seen: Some((0, seen)) };
            other.open(&one.seal(NodeId(5), &message).unwrap())
        };
        let seat = |node, since| Seat { member: Member::new(node, 1), since };
        assert!(
            answer(View { number: 2, seats: vec![seat(1, 1), seat(2, 2)], ..View::default() })
                .is_ok()
        );
        for seats in [vec![], vec![seat(1, 0)]] {
            let view = View { number: 2, seats, ..View::default() };
            assert_eq!(answer(view), Err(Refusal::Malformed));
        }
        let lost = vec![seat(3, 1)];
        let given_up = vec![GivenUp { member: Member::new(4, 1), view: 2 }];
        let seats = vec![seat(1, 1)];
        let view = View { number: 2, seats, lost: lost.clone(), given_up: given_up.clone() };
        assert!(answer(view.clone()).is_ok());
        for (lost, given_up) in [(vec![seat(3, 3)], vec![]), (vec![], [&given_up[..]; 2].concat())]
        {
            assert_eq!(answer(View { lost, given_up, ..view.clone() }), Err(Refusal::Malformed));
        }
        // What is said of a view, after that it is the second one: its runs, and of each what is
        // left out before it, its length, its life, and since when. Each has one form only. None is
        // lost or given up.
        let said = |runs: &[u8]| {
            let head = [&1_u64.to_le_bytes()[..], &[1], &[0; 16], &[0, WHOLE_VIEW], &[2, 0, 0, 0]];
            other.open(&seal(ANSWER, &[&head.concat()[..], runs, &[0, 0]].concat())).map(|_| ())
        };
        assert_eq!(said(&[1, 5, 0, 1, 0]), Ok(()));
        assert_eq!(said(&[1, 0x81, 0x80, 8, 0xfd, 0xff, 3, 1, 0]), Err(Refusal::Malformed));
        let wrong: [&[u8]; 9] = [
            // Since a later view, or none; cut; a number in too many bytes, and one too large.
            &[1, 0, 1, 2],
            &[1, 0, 1],
            &[2, 0, 1, 0],
            &[1, 0x80, 0, 1, 0],
            &[1, 0, 0xff, 0xff, 0xff, 0xff, 0x1f, 0],
            &[1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0],
            // Two runs that are one, behind the last node, and more than there are.
            &[2, 0, 1, 0, 0, 1, 0],
            &[1, 0x80, 0x80, 8, 1, 0],
            &[1, 1, 0xff, 0xff, 0xff, 0xff, 0xf, 1, 0],
        ];
        for runs in wrong {
            assert_eq!(said(runs), Err(Refusal::Malformed), "{runs:?}");
        }
        assert_eq!(said(&[1, 0xfe, 0xff, 7, 1, 0]), Ok(()));
    }

    #[test]
    fn another_secret_is_another_group() {
        let (one, _) = two();
        let stranger = Packets::new(&[8; 32], "t", Member::new(5, 1));
        let packet = one.seal(NodeId(5), &Message::Swim(vec![1])).unwrap();
        assert_eq!(stranger.open(&packet), Err(Refusal::Group));
    }

    #[test]
    fn of_one_with_other_terms_only_the_request_to_read_its_card_is_heard() {
        let (one, _) = two();
        let other = Packets::new(&[7; 32], "u", Member::new(5, 1));
        let swim = Message::Swim(vec![1]);
        assert_eq!(other.open(&one.seal(NodeId(5), &swim).unwrap()), Err(Refusal::Group));
        let heed = one.seal(NodeId(5), &Message::Heed).unwrap();
        assert_eq!(other.open(&heed), Ok((Member::new(3, 9), Message::Heed)));
        let stranger = Packets::new(&[8; 32], "t", Member::new(5, 1));
        assert_eq!(stranger.open(&heed), Err(Refusal::Group));
        // By that key nothing else is said.
        let mut forged = heed[..HEAD].to_vec();
        forged[1] = SWIM;
        let sum = hmac::sign(&one.all.0, &forged);
        forged.extend(&sum.as_ref()[..SUM]);
        assert_eq!(other.open(&forged), Err(Refusal::Group));
    }

    /// A packet with an answer that has this view, and how it is understood.
    fn carried(view: &View) -> Option<usize> {
        let (one, other) = two();
        let (newest, pleas) = (Newest::Whole(view.clone()), vec![NodeId(3), NodeId(65_535)]);
        let seen = Seen { newest, pleas, looks: u64::MAX };
        let message = Message::Answer { question: 1, seen: Some((1, seen)) };
        let packet = one.seal(NodeId(5), &message)?;
        assert_eq!(other.open(&packet), Ok((Member::new(3, 9), message)));
        Some(packet.len())
    }

    #[test]
    fn views_of_twenty_thousand_members_fit_into_a_packet() {
        let view = |number, seat: &mut dyn FnMut(u16) -> (u32, u32)| {
            let seats = (0..20_000).map(|node| {
                let (incarnation, since) = seat(node);
                Seat { member: Member::new(node, incarnation), since }
            });
            View { number, seats: seats.collect(), ..View::default() }
        };
        let together = carried(&view(1, &mut |_| (1, 1))).unwrap();
        assert!(together < 100, "{together}");
        for seed in 0..20 {
            let (mut random, _seed) = (SmallRng::seed_from_u64(seed), Seed(seed));
            // One of ten was started again at some time.
            let worn = carried(&view(5_000, &mut |_| match random.random_range(0..10) {
                0 => (random.random_range(2..500), random.random_range(2..=5_000)),
                _ => (1, 1),
            }));
            assert!(worn.unwrap() < 30_000, "{worn:?}");
            // Each is in another life, since another view.
            let number = random.random_range(128..=u32::MAX);
            let all = carried(&view(number, &mut |_| {
                (random.random_range(1..128), number - random.random_range(0..128))
            }));
            assert!(all.is_some());
        }
        let every_second =
            (0..20_000).map(|node| Seat { member: Member::new(2 * node, 1), since: 1 });
        assert!(
            carried(&View { number: 1, seats: every_second.collect(), ..View::default() })
                .is_some()
        );
    }

    #[test]
    fn a_view_that_no_packet_carries_is_not_sent() {
        let seats = (0..20_000)
            .map(|node| Seat { member: Member::new(node, 70_000 + u32::from(node)), since: 1 });
        let seats: Vec<Seat> = seats.collect();
        assert_eq!(
            carried(&View { number: 70_000, seats: seats.clone(), ..View::default() }),
            None
        );
        // Of lives with numbers so large, and as many seats, 8000 fit.
        assert!(
            carried(&View { number: 70_000, seats: seats[..8_000].to_vec(), ..View::default() })
                .is_some()
        );
    }
}
