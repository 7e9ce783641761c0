//! What homes and holders say to each other, and how it is written: little-endian, a version, a
//! kind, and one form only for each message.

use crate::level::{Facts, Level, Sized, Why};
use crate::object::{AHEAD_MAX, Ahead, Object, Of, Terms};
use crate::partitions::Partitions;
use forebay_membership::{FileId, Incarnation, Member, NodeId, PARTITIONS, Seat};
use std::fmt;

/// Bytes of a message at most.
pub const MESSAGE_MAX: usize = 64 << 10;
/// The version of what is written, and of what it means: nodes of a group have the same.
pub const MESSAGE_VERSION: u8 = 4;
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
        /// Of what.
        object: Object,
        /// Of the sender, rising; the same when it is sent again.
        request: u64,
        /// What is wanted.
        level: Level,
        /// The sender has it from before it came into this view.
        is_claim: bool,
        /// What else it says.
        terms: Terms,
    },
    /// From the home: it is the receiver's, of that request.
    Granted {
        /// Of what.
        object: Object,
        /// That of the open.
        request: u64,
        /// Rises with each grant of the file, over all its homes.
        serial: u64,
        /// What it may do: what it wanted, or Direct, or Shared or Borrowed, if that is as good.
        level: Level,
        /// What the last writer left; `None`: what the store says.
        facts: Option<Facts>,
        /// These parts, too.
        ahead: Ahead,
    },
    /// From the home: it will not be.
    Refused {
        /// Of what.
        object: Object,
        /// That of the open.
        request: u64,
        /// Why. Never [`Why::Late`] or [`Why::Unshared`].
        why: Why,
    },
    /// From the home: give back what was granted with this serial, and before.
    Revoke {
        /// Of what.
        object: Object,
        /// That of the newest grant.
        serial: u64,
        /// What may be kept.
        to: Level,
        /// [`Level::Shared`] may be, too.
        may_share: bool,
    },
    /// To the home: the sender has no more than this, and takes no grant with this serial.
    Released {
        /// Of what.
        object: Object,
        /// That of the revocation, or of the grant.
        serial: u64,
        /// What it still has.
        level: Level,
        /// What it left, if it has written.
        facts: Option<Facts>,
        /// The same is true of these parts.
        ahead: Ahead,
    },
    /// From the second place of these partitions to their home: what does it write there itself?
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
        /// What the sender says it holds goes back to this life of it without a break.
        oldest: Incarnation,
        /// What it has to say.
        items: Vec<Claim>,
    },
    /// A part of the roll call of a view: up, what a member and all below it know; down, what all
    /// members know.
    Roll {
        /// Which of its steps.
        step: Step,
        /// To the member above, or to those below.
        is_up: bool,
        /// Which part, from 0.
        part: u16,
        /// Of how many.
        parts: u16,
        /// Whether one of them has seen an earlier view: it would know which homes have gone.
        has_seen: bool,
        /// What they know.
        items: Vec<Claim>,
    },
    /// To a home: a part of what the sender has of its partitions.
    Tell {
        /// Rises when all is told again.
        attempt: u32,
        /// From 0, without a gap.
        index: u16,
        /// Whether it is the last part.
        is_last: bool,
        /// What the sender says it holds goes back to this life of it without a break.
        oldest: Incarnation,
        /// What it has.
        items: Vec<Claim>,
    },
    /// The answer to the last part.
    Told,
    /// From a home to the next place: the home is to write, or share, this itself, or no more.
    Note {
        /// Of what.
        object: Object,
        /// That by which it wants, or wanted, to.
        request: u64,
        /// What it is to have, or had.
        level: Level,
        /// Whether it is to.
        is_held: bool,
        /// The same is true of these parts.
        ahead: Ahead,
    },
    /// The answer to the first.
    Noted {
        /// Of what.
        object: Object,
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
    /// From the home to a node that writes, or extends: which size has the file?
    Peek {
        /// Of what.
        object: Object,
        /// Of the home.
        request: u64,
    },
    /// The answer; `None` if the sender does neither.
    Peeked {
        /// Of what.
        object: Object,
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
    /// This node has this: the sender, or one that has gone and that the sender was home or witness
    /// of.
    Holds {
        /// Of what.
        object: Object,
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
    /// The homes of these partitions do not know all leases there.
    Frozen(Partitions),
    /// Some home has not heard yet those that are members since this view, or a later one.
    Unheard(u32),
    /// What this member says it holds goes back to this life of its node without a break.
    Since(Member, Incarnation),
}

/// The steps of a roll call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Step {
    /// Of which partitions do homes have to be told?
    Ask,
    /// All has been told.
    Told,
}

/// The kinds of messages, for counts.
pub const KINDS: [&str; 18] = [
    "open", "granted", "refused", "revoke", "released", "recall", "claims", "note", "noted",
    "glimpse", "size", "peek", "peeked", "view", "farewell", "roll", "tell", "told",
];

/// Divides items among messages.
pub(crate) fn parts_of(items: Vec<Claim>) -> Vec<Vec<Claim>> {
    let mut parts: Vec<Vec<Claim>> = vec![Vec::new()];
    let mut bytes = 0;
    for item in items {
        bytes += item.bytes();
        let is_full = parts.last().is_none_or(|part| part.len() == ITEMS_MAX);
        if is_full || bytes > ITEM_BYTES_MAX {
            bytes = item.bytes();
            parts.push(Vec::new());
        }
        if let Some(part) = parts.last_mut() {
            part.push(item);
        }
    }
    parts
}

impl Claim {
    /// How many bytes it has when it is written.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Claim::Holds { .. } => 1 + 27 + 10 + 2,
            Claim::Keeps(_) => 1 + PARTITIONS / 8,
            Claim::Gone(_) => 1 + 10,
            Claim::Doubt(..) => 1 + 10 + PARTITIONS / 8,
            Claim::Frozen(_) => 1 + PARTITIONS / 8,
            Claim::Unheard(_) => 1 + 4,
            Claim::Since(..) => 1 + 6 + 4,
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
            Body::Roll { .. } => 15,
            Body::Tell { .. } => 16,
            Body::Told => 17,
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
                "the message has version {version}, this is {MESSAGE_VERSION}: all nodes of a group need \
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
        to.u8(MESSAGE_VERSION);
        to.u8(self.body.kind() as u8);
        to.u32(self.view);
        match &self.body {
            Body::Open { object, request, level, is_claim, terms } => {
                to.object(*object, *request);
                to.level(*level);
                to.u8(u8::from(*is_claim));
                to.u8(u8::from(terms.may_share));
                to.u8(u8::from(terms.may_borrow));
                to.u8(terms.ahead);
                to.u32(terms.stride);
            }
            Body::Granted { object, request, serial, level, facts, ahead } => {
                to.object(*object, *request);
                to.u64(*serial);
                to.level(*level);
                to.facts(*facts);
                to.ahead(*ahead);
            }
            Body::Refused { object, request, why } => {
                to.object(*object, *request);
                to.why(*why);
            }
            Body::Revoke { object, serial, to: level, may_share } => {
                to.object(*object, *serial);
                to.level(*level);
                to.u8(u8::from(*may_share));
            }
            Body::Released { object, serial, level, facts, ahead } => {
                to.object(*object, *serial);
                to.level(*level);
                to.facts(*facts);
                to.ahead(*ahead);
            }
            Body::Recall { attempt, partitions } => {
                to.u32(*attempt);
                to.partitions(partitions);
            }
            Body::Claims { attempt, index, is_last, oldest, items }
            | Body::Tell { attempt, index, is_last, oldest, items } => {
                to.u32(*attempt);
                to.u16(*index);
                to.u8(u8::from(*is_last));
                to.u32(oldest.0);
                to.claims(items);
            }
            Body::Roll { step, is_up, part, parts, has_seen, items } => {
                to.u8(*step as u8);
                to.u8(u8::from(*is_up));
                to.u16(*part);
                to.u16(*parts);
                to.u8(u8::from(*has_seen));
                to.claims(items);
            }
            Body::Note { object, request, level, is_held, ahead } => {
                to.object(*object, *request);
                to.level(*level);
                to.u8(u8::from(*is_held));
                to.ahead(*ahead);
            }
            Body::Noted { object, request, is_kept } => {
                to.object(*object, *request);
                to.u8(u8::from(*is_kept));
            }
            Body::Glimpse { file, request } => to.file(*file, *request),
            Body::Peek { object, request } => to.object(*object, *request),
            Body::Size { file, request, sized } => {
                to.file(*file, *request);
                match sized {
                    Sized::Known(facts) => to.facts(Some(*facts)),
                    Sized::Store => to.facts(None),
                    Sized::Refused(why) => {
                        to.u8(2);
                        to.why(*why);
                    }
                    Sized::AtLeast(facts) => {
                        to.u8(3);
                        to.some_facts(*facts);
                    }
                }
            }
            Body::Peeked { object, request, facts } => {
                to.object(*object, *request);
                to.facts(*facts);
            }
            Body::View | Body::Farewell | Body::Told => {}
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
        if version != MESSAGE_VERSION {
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

    fn object(&mut self, object: Object, number: u64) {
        self.file(object.file, number);
        match object.of {
            Of::Whole => self.u8(0),
            Of::Size => self.u8(1),
            Of::Part(part) => {
                self.u8(2);
                self.u32(part);
            }
        }
    }

    fn ahead(&mut self, ahead: Ahead) {
        let (stride, bits) = ahead.form();
        self.u32(stride);
        if stride > 0 {
            self.u64(bits);
        }
    }

    fn some_facts(&mut self, facts: Facts) {
        self.u64(facts.size);
        self.u64(facts.mtime_ns as u64);
    }

    fn facts(&mut self, facts: Option<Facts>) {
        self.u8(u8::from(facts.is_some()));
        if let Some(facts) = facts {
            self.some_facts(facts);
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
            Why::Unshared => self.u8(4),
        }
    }

    fn member(&mut self, member: Member) {
        self.u16(member.node.0);
        self.u32(member.incarnation.0);
    }

    fn seat(&mut self, seat: Seat) {
        self.member(seat.member);
        self.u32(seat.since);
    }

    fn claims(&mut self, items: &[Claim]) {
        self.u16(items.len() as u16);
        items.iter().for_each(|item| self.claim(item));
    }

    fn partitions(&mut self, partitions: &Partitions) {
        partitions.0.iter().for_each(|word| self.u64(*word));
    }

    fn claim(&mut self, claim: &Claim) {
        match claim {
            Claim::Holds { object, seat, level, serial, is_firm } => {
                self.u8(0);
                self.object(*object, *serial);
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
            Claim::Frozen(partitions) => {
                self.u8(4);
                self.partitions(partitions);
            }
            Claim::Unheard(view) => {
                self.u8(5);
                self.u32(*view);
            }
            Claim::Since(member, oldest) => {
                self.u8(6);
                self.member(*member);
                self.u32(oldest.0);
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

    /// What something is about, and its number.
    fn object(&mut self) -> Result<(Object, u64), DecodeError> {
        let (file, number) = (self.file()?, self.u64()?);
        let of = match self.u8()? {
            0 => Of::Whole,
            1 => Of::Size,
            2 => Of::Part(self.u32()?),
            _ => return Err(DecodeError::Value),
        };
        Ok((Object { file, of }, number))
    }

    /// What an object can be had at.
    fn level_of(&mut self, object: Object) -> Result<Level, DecodeError> {
        let level = self.level()?;
        object.may_have(level).then_some(level).ok_or(DecodeError::Value)
    }

    fn some_level_of(&mut self, object: Object) -> Result<Level, DecodeError> {
        match self.level_of(object)? {
            Level::None => Err(DecodeError::Value),
            level => Ok(level),
        }
    }

    fn terms(&mut self, object: Object, level: Level) -> Result<Terms, DecodeError> {
        let (may_share, may_borrow, ahead) = (self.bool()?, self.bool()?, self.u8()?);
        let terms = Terms { may_share, may_borrow, ahead, stride: self.u32()? };
        let is_form = ahead <= AHEAD_MAX && terms.of(object, level) == terms;
        is_form.then_some(terms).ok_or(DecodeError::Value)
    }

    /// Parts besides an object, which is a part then.
    fn ahead(&mut self, object: Object) -> Result<Ahead, DecodeError> {
        let stride = self.u32()?;
        if stride == 0 {
            return Ok(Ahead::default());
        }
        let bits = self.u64()?;
        let ahead = Ahead::of(stride, bits);
        let is_form = matches!(object.of, Of::Part(_)) && ahead.form() == (stride, bits);
        is_form.then_some(ahead).ok_or(DecodeError::Value)
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
            3 => Ok(Sized::AtLeast(self.some_facts()?)),
            _ => Err(DecodeError::Value),
        }
    }

    fn member(&mut self) -> Result<Member, DecodeError> {
        Ok(Member { node: NodeId(self.u16()?), incarnation: Incarnation(self.u32()?) })
    }

    fn seat(&mut self) -> Result<Seat, DecodeError> {
        Ok(Seat { member: self.member()?, since: self.u32()? })
    }

    fn claims(&mut self) -> Result<Vec<Claim>, DecodeError> {
        match usize::from(self.u16()?) {
            count if count > ITEMS_MAX => Err(DecodeError::Value),
            count => (0..count).map(|_| self.claim()).collect(),
        }
    }

    fn step(&mut self) -> Result<Step, DecodeError> {
        match self.u8()? {
            0 => Ok(Step::Ask),
            1 => Ok(Step::Told),
            _ => Err(DecodeError::Value),
        }
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
                let (object, serial) = self.object()?;
                let (seat, level) = (self.seat()?, self.some_level_of(object)?);
                let is_firm = self.bool()?;
                Ok(Claim::Holds { object, seat, level, serial, is_firm })
            }
            1 => Ok(Claim::Gone(self.seat()?)),
            2 => Ok(Claim::Doubt(self.seat()?, self.partitions()?)),
            3 => Ok(Claim::Keeps(self.partitions()?)),
            4 => Ok(Claim::Frozen(self.partitions()?)),
            5 => Ok(Claim::Unheard(self.u32()?)),
            6 => Ok(Claim::Since(self.member()?, Incarnation(self.u32()?))),
            _ => Err(DecodeError::Value),
        }
    }

    fn body(&mut self, kind: u8) -> Result<Body, DecodeError> {
        Ok(match kind {
            0 => {
                let (object, request) = self.object()?;
                let (level, is_claim) = (self.some_level_of(object)?, self.bool()?);
                let terms = self.terms(object, level)?;
                Body::Open { object, request, level, is_claim, terms }
            }
            1 => {
                let ((object, request), serial) = (self.object()?, self.u64()?);
                let (level, facts) = (self.some_level_of(object)?, self.facts()?);
                let ahead = self.ahead(object)?;
                Body::Granted { object, request, serial, level, facts, ahead }
            }
            2 => {
                let (object, request) = self.object()?;
                Body::Refused { object, request, why: self.why()? }
            }
            3 => {
                let (object, serial) = self.object()?;
                let to = self.level_of(object)?;
                Body::Revoke { object, serial, to, may_share: self.bool()? }
            }
            4 => {
                let (object, serial) = self.object()?;
                let (level, facts) = (self.level_of(object)?, self.facts()?);
                Body::Released { object, serial, level, facts, ahead: self.ahead(object)? }
            }
            5 => Body::Recall { attempt: self.u32()?, partitions: self.partitions()? },
            6 | 16 => {
                let (attempt, index, is_last) = (self.u32()?, self.u16()?, self.bool()?);
                let (oldest, items) = (Incarnation(self.u32()?), self.claims()?);
                match kind {
                    6 => Body::Claims { attempt, index, is_last, oldest, items },
                    _ => Body::Tell { attempt, index, is_last, oldest, items },
                }
            }
            7 => {
                let (object, request) = self.object()?;
                let (level, is_held) = (self.some_level_of(object)?, self.bool()?);
                Body::Note { object, request, level, is_held, ahead: self.ahead(object)? }
            }
            8 => {
                let (object, request) = self.object()?;
                Body::Noted { object, request, is_kept: self.bool()? }
            }
            9 => Body::Glimpse { file: self.file()?, request: self.u64()? },
            10 => Body::Size { file: self.file()?, request: self.u64()?, sized: self.sized()? },
            11 => {
                let (object, request) = self.object()?;
                Body::Peek { object, request }
            }
            12 => {
                let (object, request) = self.object()?;
                Body::Peeked { object, request, facts: self.facts()? }
            }
            13 => Body::View,
            14 => Body::Farewell,
            15 => {
                let (step, is_up) = (self.step()?, self.bool()?);
                let (part, parts, has_seen) = (self.u16()?, self.u16()?, self.bool()?);
                if part >= parts {
                    return Err(DecodeError::Value);
                }
                Body::Roll { step, is_up, part, parts, has_seen, items: self.claims()? }
            }
            17 => Body::Told,
            _ => return Err(DecodeError::Kind(kind)),
        })
    }
}
