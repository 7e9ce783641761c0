//! What homes and holders say to each other, and how it is written: little-endian, a version, a
//! kind, and one form only for each message.

use crate::level::{Facts, Level, Sized, Why};
use crate::partitions::Partitions;
use forebay_membership::{FileId, Incarnation, Member, NodeId, PARTITIONS, Seat};
use std::fmt;

/// Bytes of a message at most.
pub const MESSAGE_MAX: usize = 64 << 10;
/// The version of what is written.
const VERSION: u8 = 1;
/// Items of one [`Body::Claims`] at most,
pub(crate) const ITEMS_MAX: usize = 1_400;
/// and their bytes: what stands before them has less than a KiB.
pub(crate) const ITEM_BYTES_MAX: usize = MESSAGE_MAX - 1_024;

/// A message of one node's directory to another's. It counts only where both have the same view.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    /// The view that the sender is in.
    pub view: u32,
    /// What it says.
    pub body: Body,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Body {
    /// To the home: the sender wants this.
    Open {
        /// The file.
        file: FileId,
        /// Of the sender, rising; the same when it is sent again.
        request: u64,
        /// What is wanted.
        level: Level,
        /// The sender has it from before it came into this view.
        is_claim: bool,
    },
    /// From the home: the file is the sender's of that request.
    Granted {
        /// The file.
        file: FileId,
        /// That of the open.
        request: u64,
        /// Rises with each grant of the file, over all its homes.
        serial: u64,
        /// What it may do: what it wanted, or Direct.
        level: Level,
        /// What the last writer left; `None`: what the store says.
        facts: Option<Facts>,
    },
    /// From the home: it will not be.
    Refused {
        /// The file.
        file: FileId,
        /// That of the open.
        request: u64,
        /// Why. Never [`Why::Late`].
        why: Why,
    },
    /// From the home: give back what was granted with this serial, and before.
    Revoke {
        /// The file.
        file: FileId,
        /// That of the newest grant.
        serial: u64,
        /// What may be kept.
        to: Level,
    },
    /// To the home: the sender has no more than this, and takes no grant with this serial.
    Released {
        /// The file.
        file: FileId,
        /// That of the revocation, or of the grant.
        serial: u64,
        /// What it still has.
        level: Level,
        /// What it left, if it has written.
        facts: Option<Facts>,
    },
    /// The sender answers for these partitions now: what does the receiver have there?
    Recall {
        /// Tells the question from others.
        attempt: u32,
        /// Which.
        partitions: Partitions,
    },
    /// A part of the answer.
    Claims {
        /// That of the question.
        attempt: u32,
        /// From 0, without a gap.
        index: u16,
        /// Whether it is the last part.
        is_last: bool,
        /// Whether it has seen an earlier view: it would know which homes have gone.
        has_seen: bool,
        /// What the sender says it holds goes back to this life of it without a break.
        oldest: Incarnation,
        /// What it has to say.
        items: Vec<Claim>,
    },
    /// From a home to the next place: the home is to write this file itself, or no more.
    Note {
        /// The file.
        file: FileId,
        /// That by which it wants, or wanted, to.
        request: u64,
        /// Whether it is to.
        is_held: bool,
    },
    /// The answer to the first.
    Noted {
        /// The file.
        file: FileId,
        /// That of the note.
        request: u64,
        /// Whether there was room for it.
        is_kept: bool,
    },
    /// To the home: which size has the file?
    Glimpse {
        /// The file.
        file: FileId,
        /// Of the sender.
        request: u64,
    },
    /// The answer.
    Size {
        /// The file.
        file: FileId,
        /// That of the glimpse.
        request: u64,
        /// What is known.
        sized: Sized,
    },
    /// From the home to the node that writes: which size has the file?
    Peek {
        /// The file.
        file: FileId,
        /// Of the home.
        request: u64,
    },
    /// The answer; `None` if the sender does not write it.
    Peeked {
        /// The file.
        file: FileId,
        /// That of the peek.
        request: u64,
        /// What it has.
        facts: Option<Facts>,
    },
    /// A message of another view than the sender's came.
    View,
    /// The sender has nothing, wants nothing, and goes.
    Farewell,
}

/// One thing that a node has to say of a partition that another answers for now.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Claim {
    /// This node has this of the file: the sender, or one that has gone and that the sender was
    /// home or witness of.
    Holds {
        /// The file.
        file: FileId,
        /// Who.
        seat: Seat,
        /// What.
        level: Level,
        /// Since which grant; 0: that is not known.
        serial: u64,
        /// Whether it was granted, or confirmed, in the seat that it has now.
        is_firm: bool,
    },
    /// The sender was the last home of these partitions that it knows of, and told no other.
    Keeps(Partitions),
    /// This node has gone and may still act.
    Gone(Seat),
    /// This node has gone, and all who knew what it wrote in these partitions, too.
    Doubt(Seat, Partitions),
}

/// The kinds of messages, for counts.
pub const KINDS: [&str; 15] = [
    "open", "granted", "refused", "revoke", "released", "recall", "claims", "note", "noted",
    "glimpse", "size", "peek", "peeked", "view", "farewell",
];

impl Claim {
    /// How many bytes it has when it is written.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Claim::Holds { .. } => 1 + 22 + 10 + 2,
            Claim::Keeps(_) => 1 + PARTITIONS / 8,
            Claim::Gone(_) => 1 + 10,
            Claim::Doubt(..) => 1 + 10 + PARTITIONS / 8,
        }
    }
}

impl Body {
    /// Its place in [`KINDS`].
    pub fn kind(&self) -> usize {
        match self {
            Body::Open { .. } => 0,
            Body::Granted { .. } => 1,
            Body::Refused { .. } => 2,
            Body::Revoke { .. } => 3,
            Body::Released { .. } => 4,
            Body::Recall { .. } => 5,
            Body::Claims { .. } => 6,
            Body::Note { .. } => 7,
            Body::Noted { .. } => 8,
            Body::Glimpse { .. } => 9,
            Body::Size { .. } => 10,
            Body::Peek { .. } => 11,
            Body::Peeked { .. } => 12,
            Body::View => 13,
            Body::Farewell => 14,
        }
    }
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// It ends too early.
    Short,
    /// Bytes are left, or there are more than [`MESSAGE_MAX`].
    Long,
    /// Another version than this one's.
    Version(u8),
    /// There is no such kind.
    Kind(u8),
    /// A field has a value that it cannot have.
    Value,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Short => write!(to, "the message ends too early"),
            DecodeError::Long => write!(to, "the message is too long"),
            DecodeError::Version(version) => write!(
                to,
                "the message has version {version}, this is {VERSION}: all nodes of a group need \
                 the same version of Forebay"
            ),
            DecodeError::Kind(kind) => write!(to, "there is no kind {kind} of message"),
            DecodeError::Value => write!(to, "a field of the message has no possible value"),
        }
    }
}

impl std::error::Error for DecodeError {}

impl Message {
    /// Appends its bytes, at most [`MESSAGE_MAX`].
    pub fn encode(&self, to: &mut Vec<u8>) {
        let mut to = Writer(to);
        to.u8(VERSION);
        to.u8(self.body.kind() as u8);
        to.u32(self.view);
        match &self.body {
            Body::Open { file, request, level, is_claim } => {
                to.file(*file, *request);
                to.level(*level);
                to.u8(u8::from(*is_claim));
            }
            Body::Granted { file, request, serial, level, facts } => {
                to.file(*file, *request);
                to.u64(*serial);
                to.level(*level);
                to.facts(*facts);
            }
            Body::Refused { file, request, why } => {
                to.file(*file, *request);
                to.why(*why);
            }
            Body::Revoke { file, serial, to: level } => {
                to.file(*file, *serial);
                to.level(*level);
            }
            Body::Released { file, serial, level, facts } => {
                to.file(*file, *serial);
                to.level(*level);
                to.facts(*facts);
            }
            Body::Recall { attempt, partitions } => {
                to.u32(*attempt);
                to.partitions(partitions);
            }
            Body::Claims { attempt, index, is_last, has_seen, oldest, items } => {
                to.u32(*attempt);
                to.u16(*index);
                to.u8(u8::from(*is_last));
                to.u8(u8::from(*has_seen));
                to.u32(oldest.0);
                to.u16(items.len() as u16);
                items.iter().for_each(|item| to.claim(item));
            }
            Body::Note { file, request, is_held: is }
            | Body::Noted { file, request, is_kept: is } => {
                to.file(*file, *request);
                to.u8(u8::from(*is));
            }
            Body::Glimpse { file, request } | Body::Peek { file, request } => {
                to.file(*file, *request);
            }
            Body::Size { file, request, sized } => {
                to.file(*file, *request);
                match sized {
                    Sized::Known(facts) => to.facts(Some(*facts)),
                    Sized::Store => to.facts(None),
                    Sized::Refused(why) => {
                        to.u8(2);
                        to.why(*why);
                    }
                }
            }
            Body::Peeked { file, request, facts } => {
                to.file(*file, *request);
                to.facts(*facts);
            }
            Body::View | Body::Farewell => {}
        }
    }

    /// The message that these bytes are. They may say anything.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() > MESSAGE_MAX {
            return Err(DecodeError::Long);
        }
        let mut from = Reader(bytes);
        let version = from.u8()?;
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let kind = from.u8()?;
        let view = from.u32()?;
        let body = from.body(kind)?;
        if !from.0.is_empty() {
            return Err(DecodeError::Long);
        }
        Ok(Self { view, body })
    }
}

struct Writer<'a>(&'a mut Vec<u8>);

impl Writer<'_> {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    fn level(&mut self, level: Level) {
        self.u8(level as u8);
    }

    fn file(&mut self, file: FileId, number: u64) {
        self.u16(file.store);
        self.u64(file.inode);
        self.u32(file.generation);
        self.u64(number);
    }

    fn facts(&mut self, facts: Option<Facts>) {
        match facts {
            None => self.u8(0),
            Some(facts) => {
                self.u8(1);
                self.u64(facts.size);
                self.u64(facts.mtime_ns as u64);
            }
        }
    }

    fn why(&mut self, why: Why) {
        match why {
            Why::Lost(node) => {
                self.u8(0);
                self.u16(node.0);
            }
            Why::Full => self.u8(1),
            Why::Superseded => self.u8(2),
            Why::Late => self.u8(3),
        }
    }

    fn seat(&mut self, seat: Seat) {
        self.u16(seat.member.node.0);
        self.u32(seat.member.incarnation.0);
        self.u32(seat.since);
    }

    fn partitions(&mut self, partitions: &Partitions) {
        partitions.0.iter().for_each(|word| self.u64(*word));
    }

    fn claim(&mut self, claim: &Claim) {
        match claim {
            Claim::Holds { file, seat, level, serial, is_firm } => {
                self.u8(0);
                self.file(*file, *serial);
                self.seat(*seat);
                self.level(*level);
                self.u8(u8::from(*is_firm));
            }
            Claim::Gone(seat) => {
                self.u8(1);
                self.seat(*seat);
            }
            Claim::Doubt(seat, partitions) => {
                self.u8(2);
                self.seat(*seat);
                self.partitions(partitions);
            }
            Claim::Keeps(partitions) => {
                self.u8(3);
                self.partitions(partitions);
            }
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.take::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.take()?))
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    fn bool(&mut self) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Value),
        }
    }

    fn level(&mut self) -> Result<Level, DecodeError> {
        Level::ALL.get(usize::from(self.u8()?)).copied().ok_or(DecodeError::Value)
    }

    fn file(&mut self) -> Result<FileId, DecodeError> {
        Ok(FileId { store: self.u16()?, inode: self.u64()?, generation: self.u32()? })
    }

    fn some_facts(&mut self) -> Result<Facts, DecodeError> {
        Ok(Facts { size: self.u64()?, mtime_ns: self.u64()? as i64 })
    }

    fn facts(&mut self) -> Result<Option<Facts>, DecodeError> {
        self.bool()?.then(|| self.some_facts()).transpose()
    }

    fn why(&mut self) -> Result<Why, DecodeError> {
        match self.u8()? {
            0 => Ok(Why::Lost(NodeId(self.u16()?))),
            1 => Ok(Why::Full),
            2 => Ok(Why::Superseded),
            _ => Err(DecodeError::Value),
        }
    }

    fn sized(&mut self) -> Result<Sized, DecodeError> {
        match self.u8()? {
            0 => Ok(Sized::Store),
            1 => Ok(Sized::Known(self.some_facts()?)),
            2 => Ok(Sized::Refused(self.why()?)),
            _ => Err(DecodeError::Value),
        }
    }

    fn seat(&mut self) -> Result<Seat, DecodeError> {
        let member = Member { node: NodeId(self.u16()?), incarnation: Incarnation(self.u32()?) };
        Ok(Seat { member, since: self.u32()? })
    }

    fn partitions(&mut self) -> Result<Partitions, DecodeError> {
        let mut partitions = Partitions::default();
        for word in partitions.0.iter_mut() {
            *word = self.u64()?;
        }
        Ok(partitions)
    }

    fn claim(&mut self) -> Result<Claim, DecodeError> {
        match self.u8()? {
            0 => {
                let (file, serial) = (self.file()?, self.u64()?);
                let (seat, level) = (self.seat()?, self.level()?);
                let is_firm = self.bool()?;
                match level {
                    Level::None => Err(DecodeError::Value),
                    _ => Ok(Claim::Holds { file, seat, level, serial, is_firm }),
                }
            }
            1 => Ok(Claim::Gone(self.seat()?)),
            2 => Ok(Claim::Doubt(self.seat()?, self.partitions()?)),
            3 => Ok(Claim::Keeps(self.partitions()?)),
            _ => Err(DecodeError::Value),
        }
    }

    fn body(&mut self, kind: u8) -> Result<Body, DecodeError> {
        Ok(match kind {
            0 => {
                let (file, request, level) = (self.file()?, self.u64()?, self.level()?);
                if level == Level::None {
                    return Err(DecodeError::Value);
                }
                Body::Open { file, request, level, is_claim: self.bool()? }
            }
            1 => {
                let (file, request, serial) = (self.file()?, self.u64()?, self.u64()?);
                let (level, facts) = (self.level()?, self.facts()?);
                if level == Level::None {
                    return Err(DecodeError::Value);
                }
                Body::Granted { file, request, serial, level, facts }
            }
            2 => Body::Refused { file: self.file()?, request: self.u64()?, why: self.why()? },
            3 => Body::Revoke { file: self.file()?, serial: self.u64()?, to: self.level()? },
            4 => {
                let (file, serial, level) = (self.file()?, self.u64()?, self.level()?);
                Body::Released { file, serial, level, facts: self.facts()? }
            }
            5 => Body::Recall { attempt: self.u32()?, partitions: self.partitions()? },
            6 => {
                let (attempt, index, is_last) = (self.u32()?, self.u16()?, self.bool()?);
                let has_seen = self.bool()?;
                let (oldest, count) = (Incarnation(self.u32()?), usize::from(self.u16()?));
                if count > ITEMS_MAX {
                    return Err(DecodeError::Value);
                }
                let items = (0..count).map(|_| self.claim()).collect::<Result<_, _>>()?;
                Body::Claims { attempt, index, is_last, has_seen, oldest, items }
            }
            7 => Body::Note { file: self.file()?, request: self.u64()?, is_held: self.bool()? },
            8 => Body::Noted { file: self.file()?, request: self.u64()?, is_kept: self.bool()? },
            9 => Body::Glimpse { file: self.file()?, request: self.u64()? },
            10 => Body::Size { file: self.file()?, request: self.u64()?, sized: self.sized()? },
            11 => Body::Peek { file: self.file()?, request: self.u64()? },
            12 => Body::Peeked { file: self.file()?, request: self.u64()?, facts: self.facts()? },
            13 => Body::View,
            14 => Body::Farewell,
            _ => return Err(DecodeError::Kind(kind)),
        })
    }
}
