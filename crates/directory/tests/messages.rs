//! The form of messages: what is written is read again, and nothing else is read.

use forebay_directory::{
    Body, Claim, DecodeError, Facts, KINDS, Level, MESSAGE_MAX, Message, Partitions, Sized, Why,
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

    fn level(&mut self) -> Level {
        [Level::Read, Level::Write, Level::Direct][(self.next() % 3) as usize]
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
        match self.next() % 4 {
            0 => Claim::Holds {
                file: self.file(),
                seat: self.seat(),
                level: self.level(),
                serial: self.next(),
                is_firm: self.is(),
            },
            1 => Claim::Gone(self.seat()),
            2 => Claim::Doubt(self.seat(), self.partitions()),
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
        let (file, request) = (self.file(), self.next());
        match kind {
            0 => Body::Open { file, request, level: self.level(), is_claim: self.is() },
            1 => {
                let (serial, level, facts) = (self.next(), self.level(), self.facts());
                Body::Granted { file, request, serial, level, facts }
            }
            2 => Body::Refused { file, request, why: self.why() },
            3 => Body::Revoke { file, serial: request, to: self.level() },
            4 => {
                let (level, facts) = (self.level(), self.facts());
                Body::Released { file, serial: request, level, facts }
            }
            5 => Body::Recall { attempt: self.next() as u32, partitions: self.partitions() },
            6 => Body::Claims {
                attempt: self.next() as u32,
                index: self.next() as u16,
                is_last: self.is(),
                has_seen: self.is(),
                oldest: Incarnation(self.next() as u32),
                items: (0..self.next() % 200).map(|_| self.claim()).collect(),
            },
            7 => Body::Note { file, request, is_held: self.is() },
            8 => Body::Noted { file, request, is_kept: self.is() },
            9 => Body::Glimpse { file, request },
            10 => {
                let sized = match self.next() % 3 {
                    0 => Sized::Store,
                    1 => Sized::Known(Facts { size: self.next(), mtime_ns: -1 }),
                    _ => Sized::Refused(self.why()),
                };
                Body::Size { file, request, sized }
            }
            11 => Body::Peek { file, request },
            12 => Body::Peeked { file, request, facts: self.facts() },
            13 => Body::View,
            _ => Body::Farewell,
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
            (rubbish[0], rubbish[1]) = (1, random.next() as u8 % 16);
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
    let body = Body::Open { file, request: 4, level: Level::Write, is_claim: true };
    let expected = [
        &[1, 0, 5, 0, 0, 0][..],
        &[1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0],
        &[4, 0, 0, 0, 0, 0, 0, 0, 2, 1],
    ];
    assert_eq!(bytes(&Message { view: 5, body }), expected.concat());
    assert_eq!(Message::decode(&[2, 0]), Err(DecodeError::Version(2)));
    assert_eq!(Message::decode(&[1, 15, 0, 0, 0, 0]), Err(DecodeError::Kind(15)));
    let long = vec![0; MESSAGE_MAX + 1];
    assert_eq!(Message::decode(&long), Err(DecodeError::Long));
}
