//! The form of messages: what is written is read again, and nothing else is read.

use forebay_directory::{
    Ahead, Body, Claim, DecodeError, Facts, KINDS, Level, MESSAGE_MAX, Message, Object, Of,
    Partitions, Sized, Step, Terms, Why,
};
use forebay_membership::{FileId, Incarnation, Member, NodeId, Partition, Seat};

/// SplitMix64: the same numbers from the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let bits = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ bits >> 31
    }

    fn is(&mut self) -> bool {
        self.next().is_multiple_of(2)
    }

    fn file(&mut self) -> FileId {
        let (store, inode, generation) = (self.next() as u16, self.next(), self.next() as u32);
        FileId { store, inode, generation }
    }

    fn facts(&mut self) -> Option<Facts> {
        self.is().then(|| Facts { size: self.next(), mtime_ns: self.next() as i64 })
    }

    fn object(&mut self) -> Object {
        let of = match self.next() % 3 {
            0 => Of::Whole,
            1 => Of::Size,
            _ => Of::Part(self.next() as u32),
        };
        Object { file: self.file(), of }
    }

    /// Some level of an object.
    fn level(&mut self, object: Object) -> Level {
        loop {
            let level = Level::ALL[1 + self.next() as usize % (Level::ALL.len() - 1)];
            if object.may_have(level) {
                return level;
            }
        }
    }

    fn terms(&mut self, object: Object, level: Level) -> Terms {
        match object.of {
            Of::Whole if level == Level::Read && self.is() => Terms::borrow(),
            Of::Whole if matches!(level, Level::Read | Level::Write) && self.is() => Terms::share(),
            Of::Part(_) if self.is() => {
                Terms::strided(1 + (self.next() % 63) as u8, (self.next() as u32).max(1))
            }
            _ => Terms::default(),
        }
    }

    fn ahead(&mut self, object: Object) -> Ahead {
        match object.of {
            Of::Part(_) if self.is() => Ahead::of(self.next() as u32, self.next()),
            _ => Ahead::default(),
        }
    }

    fn why(&mut self) -> Why {
        match self.next() % 3 {
            0 => Why::Lost(NodeId(self.next() as u16)),
            1 => Why::Full,
            _ => Why::Superseded,
        }
    }

    fn seat(&mut self) -> Seat {
        let member = Member::new(self.next() as u16, self.next() as u32);
        Seat { member, since: self.next() as u32 }
    }

    fn claim(&mut self) -> Claim {
        match self.next() % 7 {
            0 => {
                let object = self.object();
                let (seat, level, serial) = (self.seat(), self.level(object), self.next());
                Claim::Holds { object, seat, level, serial, is_firm: self.is() }
            }
            1 => Claim::Gone(self.seat()),
            2 => Claim::Doubt(self.seat(), self.partitions()),
            3 => Claim::Frozen(self.partitions()),
            4 => Claim::Unheard(self.next() as u32),
            5 => Claim::Since(self.seat().member, Incarnation(self.next() as u32)),
            _ => Claim::Keeps(self.partitions()),
        }
    }

    fn partitions(&mut self) -> Partitions {
        let mut partitions = Partitions::default();
        for partition in Partition::all() {
            partitions.set(partition, self.is());
        }
        partitions
    }

    fn body(&mut self, kind: usize) -> Body {
        let (object, request) = (self.object(), self.next());
        let level = self.level(object);
        match kind {
            0 => {
                let (is_claim, terms) = (self.is(), self.terms(object, level));
                Body::Open { object, request, level, is_claim, terms }
            }
            1 => {
                let (serial, facts, ahead) = (self.next(), self.facts(), self.ahead(object));
                Body::Granted { object, request, serial, level, facts, ahead }
            }
            2 => Body::Refused { object, request, why: self.why() },
            3 => Body::Revoke { object, serial: request, to: level, may_share: self.is() },
            4 => {
                let (facts, ahead) = (self.facts(), self.ahead(object));
                Body::Released { object, serial: request, level, facts, ahead }
            }
            5 => Body::Recall { attempt: self.next() as u32, partitions: self.partitions() },
            6 => Body::Claims {
                attempt: self.next() as u32,
                index: self.next() as u16,
                is_last: self.is(),
                oldest: Incarnation(self.next() as u32),
                items: (0..self.next() % 200).map(|_| self.claim()).collect(),
            },
            7 => {
                let (is_held, ahead) = (self.is(), self.ahead(object));
                Body::Note { object, request, level, is_held, ahead }
            }
            8 => Body::Noted { object, request, is_kept: self.is() },
            9 => Body::Glimpse { file: object.file, request },
            10 => {
                let file = object.file;
                let sized = match self.next() % 4 {
                    0 => Sized::Store,
                    1 => Sized::Known(Facts { size: self.next(), mtime_ns: -1 }),
                    2 => Sized::AtLeast(Facts { size: self.next(), mtime_ns: 1 }),
                    _ => Sized::Refused(self.why()),
                };
                Body::Size { file, request, sized }
            }
            11 => Body::Peek { object, request },
            12 => Body::Peeked { object, request, facts: self.facts() },
            13 => Body::View,
            14 => Body::Farewell,
            15 => {
                let parts = 1 + (self.next() % 9) as u16;
                Body::Roll {
                    step: [Step::Ask, Step::Told][(self.next() % 2) as usize],
                    is_up: self.is(),
                    part: (self.next() % u64::from(parts)) as u16,
                    parts,
                    has_seen: self.is(),
                    items: (0..self.next() % 50).map(|_| self.claim()).collect(),
                }
            }
            16 => Body::Tell {
                attempt: self.next() as u32,
                index: self.next() as u16,
                is_last: self.is(),
                oldest: Incarnation(self.next() as u32),
                items: (0..self.next() % 200).map(|_| self.claim()).collect(),
            },
            _ => Body::Told,
        }
    }
}

fn bytes(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}

#[test]
fn what_is_written_is_read_again_and_no_part_of_it() {
    let mut random = Random(1);
    for round in 0..40 {
        for (kind, name) in KINDS.into_iter().enumerate() {
            let message = Message { view: random.next() as u32, body: random.body(kind) };
            assert_eq!(message.body.kind(), kind);
            let bytes = bytes(&message);
            assert!(bytes.len() <= MESSAGE_MAX, "{name} has {} bytes", bytes.len());
            assert_eq!(Message::decode(&bytes).as_ref(), Ok(&message), "round {round}");
            let cut = random.next() as usize % bytes.len();
            assert_eq!(Message::decode(&bytes[..cut]), Err(DecodeError::Short), "{message:?}");
            let longer = [&bytes[..], &[0]].concat();
            assert_eq!(Message::decode(&longer), Err(DecodeError::Long));
        }
    }
}

/// A message has one form: bytes that are read are those that it is written as.
#[test]
fn rubbish_is_refused_or_means_what_it_says() {
    let mut random = Random(2);
    let mut read = 0;
    for round in 0..60_000 {
        let mut rubbish = match round % 2 {
            0 => (0..random.next() % 80).map(|_| random.next() as u8).collect(),
            _ => bytes(&Message { view: 1, body: random.body(round / 2 % 5) }),
        };
        if round % 4 == 0 && rubbish.len() > 1 {
            (rubbish[0], rubbish[1]) = (2, random.next() as u8 % 16);
        }
        for _ in 0..random.next() % 3 {
            let length = rubbish.len().max(1) as u64;
            if let Some(byte) = rubbish.get_mut((random.next() % length) as usize) {
                *byte = random.next() as u8;
            }
        }
        if let Ok(message) = Message::decode(&rubbish) {
            read += 1;
            assert_eq!(bytes(&message), rubbish, "round {round}");
        }
    }
    assert!(read > 1_000, "{read}");
}

#[test]
fn the_form_is_the_one_that_other_versions_have() {
    let file = FileId { store: 1, inode: 2, generation: 3 };
    let (object, level) = (Object::part(file, 6), Level::Write);
    let terms = Terms::strided(7, 8);
    let body = Body::Open { object, request: 4, level, is_claim: true, terms };
    let expected = [
        &[4, 0, 5, 0, 0, 0][..],
        &[1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0],
        &[4, 0, 0, 0, 0, 0, 0, 0, 2, 6, 0, 0, 0],
        &[5, 1, 0, 0, 7, 8, 0, 0, 0],
    ];
    let bytes = bytes(&Message { view: 5, body });
    assert_eq!(bytes, expected.concat());
    assert_eq!(Message::decode(&[1, 0]), Err(DecodeError::Version(1)));
    assert_eq!(Message::decode(&[4, 18, 0, 0, 0, 0]), Err(DecodeError::Kind(18)));
    // A part is not shared or borrowed, a whole has no parts ahead, and none are named without a
    // stride.
    let levels = [0, 1, 3, 4, 7].map(|level| (33, level));
    let others = [(28, 3), (35, 1), (36, 1), (37, 64), (37, 0), (38, 0)];
    for (at, value) in levels.into_iter().chain(others) {
        let mut wrong = bytes.clone();
        wrong[at] = value;
        assert_eq!(Message::decode(&wrong), Err(DecodeError::Value), "{at}: {value}");
    }
    let long = vec![0; MESSAGE_MAX + 1];
    assert_eq!(Message::decode(&long), Err(DecodeError::Long));
}
