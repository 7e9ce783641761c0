//! Messages to the node manager, on its socket or in the segment's queue: 32 bytes each, versioned.
//!
//! ```
//! use forebay_pool::message::Message;
//!
//! let message = Message::Drained { failing: 0, bytes: 4096 };
//! let packet = message.encode();
//! assert_eq!(Message::decode(&packet), Some(message));
//! // What another version sends is no message.
//! assert_eq!(Message::decode(&packet[..31]), None);
//! ```

use crate::FileId;
use crate::parts::{Part, PartLevel, PartsAhead};

/// Raised when the format changes.
pub const MESSAGE_VERSION: u16 = 19;
/// What the length of an expected piece is counted in: 4 KiB.
pub const EXPECT_UNIT: u64 = 4096;
/// Bytes of a message.
pub const MESSAGE_BYTES: usize = 32;

/// Blocks that one `StageIn` asks for at most.
pub const STAGE_IN_BLOCKS: u16 = 16;

/// How a stage-in by command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StageEnd {
    /// The blocks are in the tier or in a faster one.
    Done,
    /// The tier has no room that could be taken without displacing something.
    Full,
    /// The tier's device fails: it takes nothing.
    TierFailed,
    /// The file is used through the kernel, or another node has what the store lacks.
    Direct,
    /// The record is not of this file any more, or this node may not read the file any more.
    Changed,
    /// A process has had the file, or a block of it, for itself for a moment: to be asked again,
    /// but not for ever.
    Held,
    /// There are too many questions, or another thread of the manager brings a block: to be asked
    /// again.
    Busy,
    /// The manager ends.
    Ends,
    /// Of the last block of those that need no further question a program has written a part that
    /// the store lacks: the rest of the block is not there.
    Partial,
    /// The store failed with this errno.
    Store(u16),
}

impl StageEnd {
    /// Kinds without an errno; their place is their code.
    const PLAIN: [StageEnd; 9] = [
        StageEnd::Done,
        StageEnd::Full,
        StageEnd::TierFailed,
        StageEnd::Direct,
        StageEnd::Changed,
        StageEnd::Held,
        StageEnd::Busy,
        StageEnd::Ends,
        StageEnd::Partial,
    ];
    const STORE: u16 = 0x8000;

    fn code(self) -> u16 {
        match self {
            StageEnd::Store(errno) => StageEnd::STORE | errno,
            plain => StageEnd::PLAIN.iter().position(|end| *end == plain).unwrap_or(0) as u16,
        }
    }

    fn of(code: u16) -> Option<StageEnd> {
        match code & StageEnd::STORE {
            0 => StageEnd::PLAIN.get(usize::from(code)).copied(),
            _ => Some(StageEnd::Store(code & !StageEnd::STORE)),
        }
    }
}

/// How an exchange of a file's bytes ended, see [`crate::encoded`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The bytes were exchanged.
    Done,
    /// The file has no mark that is true: its bytes are the original ones.
    Plain,
    /// It failed with this errno; the node manager's log says more.
    Error(u16),
    /// It was not done, for the reason with this number.
    Refused(u16),
}

/// The number of the reason that there is too much to do, or that the manager ends: to be asked
/// again.
pub const BUSY: u16 = 1;

impl Outcome {
    fn code(self) -> (u32, u32) {
        match self {
            Outcome::Done => (0, 0),
            Outcome::Plain => (1, 0),
            Outcome::Error(errno) => (2, errno.into()),
            Outcome::Refused(why) => (3, why.into()),
        }
    }

    fn of(kind: u32, value: u32) -> Option<Outcome> {
        let value = u16::try_from(value).ok()?;
        Some(match kind {
            0 => Outcome::Done,
            1 => Outcome::Plain,
            2 => Outcome::Error(value),
            3 => Outcome::Refused(value),
            _ => return None,
        })
    }
}

/// What a client or a command says to the node manager, and what it answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// A descriptor of `file` comes with it; the manager flushes through it.
    Register {
        /// File record.
        file: FileId,
        /// Its generation.
        generation: u32,
        /// It only says which file it is (O_PATH): the manager opens that for each flush.
        to_open: bool,
    },
    /// Blocks of `file` will be read: bring them to RAM while there is room. A descriptor that can
    /// be read comes with this packet.
    Stage {
        /// File record.
        file: FileId,
        /// Its generation.
        generation: u32,
        /// First block.
        first: u64,
        /// How many.
        blocks: u32,
    },
    /// Blocks of `file` will probably be read, as `forebay_placement::prefetch` found out: bring
    /// them to RAM while there is room. A descriptor that can be read comes with this packet.
    Expect {
        /// File record.
        file: FileId,
        /// Its generation.
        generation: u32,
        /// Offset in the file; the block that it lies in is the first.
        offset: u64,
        /// Bytes to the next piece, and so on.
        stride: i64,
        /// Bytes of each piece, in units of [`EXPECT_UNIT`].
        units: u16,
        /// How many pieces.
        pieces: u16,
    },
    /// Blocks of `file` are read, whose rule names a predictor that is to be told of it. A
    /// descriptor that can be read comes with this packet.
    Read {
        /// File record.
        file: FileId,
        /// Its generation.
        generation: u32,
        /// The thread that reads: an [`crate::Owner`].
        reader: u32,
        /// First block.
        block: u64,
        /// How many.
        blocks: u16,
        /// The first was brought up to RAM ahead, and is read there.
        is_up: bool,
    },
    /// A command wants blocks of `file` in a tier, or in a faster one. A descriptor that can be
    /// read comes with this packet. Answered by `StagedIn`, or, where there is no such tier or
    /// block, by `Refused`.
    StageIn {
        /// File record.
        file: FileId,
        /// Its generation.
        generation: u32,
        /// First block.
        first: u64,
        /// How many; what is beyond [`STAGE_IN_BLOCKS`] is not looked at.
        blocks: u16,
        /// The tier: 0 is RAM.
        tier: u8,
        /// What is to be answered.
        ticket: u32,
    },
    /// Answer to `StageIn`.
    StagedIn {
        /// That of the question.
        ticket: u32,
        /// Blocks that need no further question: the first ones of those that were asked for.
        blocks: u16,
        /// Why there are others, if so.
        end: StageEnd,
        /// Bytes that have come to the tier by this question.
        came: u32,
    },
    /// A file comes with it whose bytes are to be the original ones again, see
    /// [`crate::encoded`]. Answered by `Exchanged`.
    Restore {
        /// A program truncates it: it is to have no bytes.
        empties: bool,
    },
    /// A file comes with it whose bytes are to be those that were encoded of it. Answered by
    /// `Exchanged`.
    Replace {
        /// What the encoded file is named by.
        number: u64,
    },
    /// Answer to `Restore` and `Replace`.
    Exchanged {
        /// How it ended.
        outcome: Outcome,
    },
    /// This connection keeps the manager from ending: a run is under way. Answered by `Held`.
    Hold,
    /// Answer to `Hold`.
    Held,
    /// The manager is to stay for so long once this connection has ended, if no run needs it then.
    /// Not answered.
    Keep {
        /// Nanoseconds; [`crate::stay::UNTIL_TOLD`] holds from now on.
        time_ns: u64,
    },
    /// A regular file comes with it, in which every movement is recorded from now on until this
    /// connection ends. Answered by `Recording`, or by `Refused`.
    Record,
    /// Answer to `Record`.
    Recording,
    /// A file in memory comes with it, into which what the manager knows of its group of nodes is
    /// written as JSON. Answered by `Told`, or by `Refused`.
    Group,
    /// A file in memory comes with it that says which analyses are to be registered, listed or
    /// removed; what has become of that is written into it as JSON. Answered by `Told`, or by
    /// `Refused`.
    Analyse,
    /// Answer to `Group`, `GiveUp` and `Analyse`.
    Told,
    /// The group is to give up what a node that has gone wrote and did not flush. A file in memory
    /// comes with it, into which what becomes of that is written as JSON. Answered by `Told`, or by
    /// `Refused` where this node is in no group.
    GiveUp {
        /// The node's number in the group.
        node: u16,
    },
    /// Flush everything; answered by `Drained` as soon as nothing is dirty, or what is cannot be
    /// written.
    Drain,
    /// Drain, then end.
    Stop,
    /// Answer to `Drain` and `Stop`.
    Drained {
        /// Files that could not be drained.
        failing: u32,
        /// Bytes that are still dirty.
        bytes: u64,
    },
    /// The sender waits for the end of a manager that was told to end, or that ends by itself, and
    /// holds it no longer. Answered by `GoesOn` or `InUse`; the end of the connection says that it
    /// has ended.
    AwaitEnd,
    /// Answer to `AwaitEnd`: the manager is not to end now, a run has joined it, or it stays.
    GoesOn,
    /// Answer to `AwaitEnd`: everything is on the store. The manager ends with the last process
    /// that uses its files.
    InUse,
    /// The sender is a `forebay run` whose command is about to start. Answered by `JobBegun`, by
    /// `NoRoom`, or, when there are too many, by `Refused`.
    BeginJob {
        /// Buffering mode of files whose rule gives none: a code, or 0.
        mode: u8,
        /// The same for the flush trigger.
        trigger: u8,
        /// Bytes to set aside for all of its files; 0 is what the rules say.
        reserve: u64,
        /// What [`crate::layout::JobRecord::recording`] is to say.
        recording: u32,
    },
    /// What the run of the `BeginJob` that the sender sends next may have of a tier. Not answered.
    Quota {
        /// The tier's number.
        tier: u8,
        /// Bytes; 0 is all.
        bytes: u64,
    },
    /// The same of what of its files the store may lack. Not answered.
    Cap {
        /// Bytes; 0 is all.
        bytes: u64,
        /// For how many milliseconds at most; 0 is for ever.
        max_age_ms: u32,
    },
    /// Answer to `BeginJob`: the processes of the run are to name this job.
    JobBegun {
        /// The job.
        number: u32,
    },
    /// Answer to `BeginJob`: so much cannot be set aside.
    NoRoom {
        /// Bytes that could be.
        bytes: u64,
        /// Bytes that were asked for.
        asked: u64,
    },
    /// The sender's command has ended.
    EndJob {
        /// The job.
        number: u32,
    },
    /// The message before was not understood or not allowed.
    Refused,
    /// A sync of `file` is wanted, see [`crate::Segment::request_sync`]. Comes through the queue.
    Sync {
        /// File record.
        file: FileId,
    },
    /// Processes wait for more of `file` than this node has, see [`crate::lease`]. Comes through
    /// the queue of [`crate::Segment::asks`], as do those that follow.
    Lease {
        /// File record.
        file: FileId,
    },
    /// Processes wait for a part of `file`, which several nodes write, or for its size, see
    /// [`crate::parts`].
    Part {
        /// File record.
        file: FileId,
        /// Which part.
        part: Part,
        /// What they need of it.
        level: PartLevel,
        /// Others that will be needed next.
        ahead: PartsAhead,
    },
    /// A process waits for a block of `file` that another node may have in memory, see
    /// [`crate::Segment::ask_others`].
    Fetch {
        /// File record.
        file: FileId,
        /// Its generation.
        generation: u32,
        /// The block.
        block: u64,
        /// What is to be answered.
        ticket: u16,
    },
    /// A program that was to read a block of `file` from the store, for others too, keeps none of
    /// it.
    Unkept {
        /// File record.
        file: FileId,
        /// Its generation.
        generation: u32,
        /// The block.
        block: u64,
    },
    /// A process waits for the size of a file that this node may not have, see
    /// [`crate::glimpses`].
    Glimpse {
        /// Which store.
        store: u16,
        /// The file's inode there.
        inode: u64,
        /// What [`crate::glimpses::group_generation`] makes of its time of birth.
        generation: u32,
        /// What is to be answered: never 0.
        number: u64,
    },
}

impl Message {
    /// The packet.
    pub fn encode(self) -> [u8; MESSAGE_BYTES] {
        let (mut e, mut f) = (0, 0);
        let (kind, a, b, c, d) = match self {
            Message::Register { file, generation, to_open } => {
                (1, file.raw(), generation, to_open.into(), 0)
            }
            Message::Hold => (2, 0, 0, 0, 0),
            Message::Drain => (3, 0, 0, 0, 0),
            Message::Stop => (4, 0, 0, 0, 0),
            Message::Drained { failing, bytes } => (5, failing, 0, bytes, 0),
            Message::Refused => (6, 0, 0, 0, 0),
            Message::Held => (7, 0, 0, 0, 0),
            Message::Keep { time_ns } => (33, 0, 0, time_ns, 0),
            Message::Stage { file, generation, first, blocks } => {
                (8, file.raw(), generation, first, blocks)
            }
            Message::BeginJob { mode, trigger, reserve, recording } => {
                (9, mode.into(), trigger.into(), reserve, recording)
            }
            Message::Quota { tier, bytes } => (30, tier.into(), 0, bytes, 0),
            Message::Cap { bytes, max_age_ms } => (34, max_age_ms, 0, bytes, 0),
            Message::JobBegun { number } => (10, number, 0, 0, 0),
            Message::NoRoom { bytes, asked } => {
                e = asked;
                (11, 0, 0, bytes, 0)
            }
            Message::EndJob { number } => (12, number, 0, 0, 0),
            Message::Sync { file } => (13, file.raw(), 0, 0, 0),
            Message::Expect { file, generation, offset, stride, units, pieces } => {
                e = stride as u64;
                f = u32::from(units) | u32::from(pieces) << 16;
                (14, file.raw(), generation, offset, 0)
            }
            Message::AwaitEnd => (15, 0, 0, 0, 0),
            Message::GoesOn => (16, 0, 0, 0, 0),
            Message::InUse => (17, 0, 0, 0, 0),
            Message::Record => (18, 0, 0, 0, 0),
            Message::Recording => (19, 0, 0, 0, 0),
            Message::Group => (20, 0, 0, 0, 0),
            Message::Told => (21, 0, 0, 0, 0),
            Message::Lease { file } => (22, file.raw(), 0, 0, 0),
            Message::Part { file, part, level, ahead } => {
                let level = level as u64 | u64::from(ahead.stride) << 32;
                (23, file.raw(), part.raw(), level, ahead.count)
            }
            Message::Fetch { file, generation, block, ticket } => {
                (24, file.raw(), generation, block, ticket.into())
            }
            Message::Glimpse { store, inode, generation, number } => {
                (e, f) = (number, store.into());
                (25, 0, generation, inode, 0)
            }
            Message::Analyse => (32, 0, 0, 0, 0),
            Message::GiveUp { node } => (26, node.into(), 0, 0, 0),
            Message::StageIn { file, generation, first, blocks, tier, ticket } => {
                f = u32::from(blocks) | u32::from(tier) << 16;
                (27, file.raw(), generation, first, ticket)
            }
            Message::StagedIn { ticket, blocks, end, came } => {
                f = u32::from(blocks) | u32::from(end.code()) << 16;
                (28, ticket, came, 0, 0)
            }
            Message::Unkept { file, generation, block } => (29, file.raw(), generation, block, 0),
            Message::Read { file, generation, reader, block, blocks, is_up } => {
                f = u32::from(blocks) | u32::from(is_up) << 16;
                (31, file.raw(), generation, block, reader)
            }
            Message::Restore { empties } => (40, empties.into(), 0, 0, 0),
            Message::Replace { number } => (41, 0, 0, number, 0),
            Message::Exchanged { outcome } => {
                let (kind, value) = outcome.code();
                (42, kind, value, 0, 0)
            }
        };
        let mut packet = [0; MESSAGE_BYTES];
        packet[0..2].copy_from_slice(&MESSAGE_VERSION.to_le_bytes());
        packet[2..4].copy_from_slice(&u16::to_le_bytes(kind));
        packet[4..8].copy_from_slice(&u32::to_le_bytes(a));
        packet[8..12].copy_from_slice(&u32::to_le_bytes(b));
        packet[12..16].copy_from_slice(&u32::to_le_bytes(f));
        packet[16..24].copy_from_slice(&u64::to_le_bytes(c));
        packet[24..28].copy_from_slice(&u32::to_le_bytes(d));
        if e != 0 {
            packet[24..32].copy_from_slice(&u64::to_le_bytes(e));
        }
        packet
    }

    /// The message in a packet; `None` for rubbish or another version.
    pub fn decode(packet: &[u8]) -> Option<Message> {
        let packet: &[u8; MESSAGE_BYTES] = packet.try_into().ok()?;
        let word = |at: usize| packet[at..at + 4].try_into().map(u32::from_le_bytes);
        let long = |at: usize| packet[at..at + 8].try_into().map(u64::from_le_bytes);
        let file = || word(4).map(FileId::from_raw);
        if u16::from_le_bytes([packet[0], packet[1]]) != MESSAGE_VERSION {
            return None;
        }
        Some(match u16::from_le_bytes([packet[2], packet[3]]) {
            1 => Message::Register {
                file: file().ok()?,
                generation: word(8).ok()?,
                to_open: long(16).ok()? != 0,
            },
            2 => Message::Hold,
            3 => Message::Drain,
            4 => Message::Stop,
            5 => Message::Drained { failing: word(4).ok()?, bytes: long(16).ok()? },
            6 => Message::Refused,
            7 => Message::Held,
            33 => Message::Keep { time_ns: long(16).ok()? },
            8 => Message::Stage {
                file: file().ok()?,
                generation: word(8).ok()?,
                first: long(16).ok()?,
                blocks: word(24).ok()?,
            },
            9 => Message::BeginJob {
                mode: packet[4],
                trigger: packet[8],
                reserve: long(16).ok()?,
                recording: word(24).ok()?,
            },
            30 => Message::Quota { tier: packet[4], bytes: long(16).ok()? },
            34 => Message::Cap { bytes: long(16).ok()?, max_age_ms: word(4).ok()? },
            10 => Message::JobBegun { number: word(4).ok()? },
            11 => Message::NoRoom { bytes: long(16).ok()?, asked: long(24).ok()? },
            12 => Message::EndJob { number: word(4).ok()? },
            13 => Message::Sync { file: file().ok()? },
            14 => Message::Expect {
                file: file().ok()?,
                generation: word(8).ok()?,
                offset: long(16).ok()?,
                stride: long(24).ok()? as i64,
                units: word(12).ok()? as u16,
                pieces: (word(12).ok()? >> 16) as u16,
            },
            15 => Message::AwaitEnd,
            16 => Message::GoesOn,
            17 => Message::InUse,
            18 => Message::Record,
            19 => Message::Recording,
            20 => Message::Group,
            21 => Message::Told,
            22 => Message::Lease { file: file().ok()? },
            23 => Message::Part {
                file: file().ok()?,
                part: Part::from_raw(word(8).ok()?),
                level: PartLevel::from_bits(word(16).ok()?)?,
                ahead: PartsAhead { count: word(24).ok()?, stride: word(20).ok()? },
            },
            24 => Message::Fetch {
                file: file().ok()?,
                generation: word(8).ok()?,
                block: long(16).ok()?,
                ticket: word(24).ok()? as u16,
            },
            25 => Message::Glimpse {
                store: word(12).ok()? as u16,
                inode: long(16).ok()?,
                generation: word(8).ok()?,
                number: long(24).ok()?,
            },
            26 => Message::GiveUp { node: word(4).ok()?.try_into().ok()? },
            27 => Message::StageIn {
                file: file().ok()?,
                generation: word(8).ok()?,
                first: long(16).ok()?,
                blocks: word(12).ok()? as u16,
                tier: (word(12).ok()? >> 16) as u8,
                ticket: word(24).ok()?,
            },
            28 => Message::StagedIn {
                ticket: word(4).ok()?,
                blocks: word(12).ok()? as u16,
                end: StageEnd::of((word(12).ok()? >> 16) as u16)?,
                came: word(8).ok()?,
            },
            29 => Message::Unkept {
                file: file().ok()?,
                generation: word(8).ok()?,
                block: long(16).ok()?,
            },
            32 => Message::Analyse,
            31 => Message::Read {
                file: file().ok()?,
                generation: word(8).ok()?,
                reader: word(24).ok()?,
                block: long(16).ok()?,
                blocks: word(12).ok()? as u16,
                is_up: word(12).ok()? >> 16 != 0,
            },
            40 => Message::Restore { empties: word(4).ok()? != 0 },
            41 => Message::Replace { number: long(16).ok()? },
            42 => Message::Exchanged { outcome: Outcome::of(word(4).ok()?, word(8).ok()?)? },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_their_packet_and_rubbish_does_not_become_one() {
        let all = [
            Message::Register { file: FileId::from_raw(7), generation: u32::MAX, to_open: false },
            Message::Register { file: FileId::from_raw(8), generation: 1, to_open: true },
            Message::Hold,
            Message::Drain,
            Message::Stop,
            Message::Drained { failing: 3, bytes: u64::MAX },
            Message::Refused,
            Message::Held,
            Message::Keep { time_ns: u64::MAX - 6 },
            Message::Stage {
                file: FileId::from_raw(1),
                generation: 2,
                first: u64::MAX - 3,
                blocks: 4,
            },
            Message::BeginJob { mode: 3, trigger: 4, reserve: u64::MAX, recording: 5 },
            Message::Quota { tier: 7, bytes: u64::MAX - 9 },
            Message::Cap { bytes: u64::MAX - 10, max_age_ms: u32::MAX - 11 },
            Message::JobBegun { number: u32::MAX },
            Message::NoRoom { bytes: 1, asked: u64::MAX },
            Message::EndJob { number: 33 },
            Message::Sync { file: FileId::from_raw(5) },
            Message::AwaitEnd,
            Message::GoesOn,
            Message::InUse,
            Message::Record,
            Message::Recording,
            Message::Group,
            Message::Told,
            Message::GiveUp { node: u16::MAX },
            Message::Analyse,
            Message::StageIn {
                file: FileId::from_raw(3),
                generation: 4,
                first: u64::MAX - 5,
                blocks: u16::MAX,
                tier: 7,
                ticket: u32::MAX - 6,
            },
            Message::StagedIn {
                ticket: 5,
                blocks: u16::MAX,
                end: StageEnd::Store(28),
                came: u32::MAX - 1,
            },
            Message::StagedIn { ticket: 0, blocks: 1, end: StageEnd::Ends, came: 0 },
            Message::StagedIn { ticket: 1, blocks: 16, end: StageEnd::Partial, came: 9 },
            Message::Lease { file: FileId::from_raw(6) },
            Message::Part {
                file: FileId::from_raw(6),
                part: Part::SIZE,
                level: PartLevel::Shared,
                ahead: PartsAhead { count: 7, stride: 9 },
            },
            Message::Fetch {
                file: FileId::from_raw(9),
                generation: 3,
                block: u64::MAX - 1,
                ticket: u16::MAX,
            },
            Message::Glimpse {
                store: 3,
                inode: u64::MAX - 4,
                generation: u32::MAX - 1,
                number: u64::MAX - 2,
            },
            Message::Unkept { file: FileId::from_raw(9), generation: 3, block: u64::MAX - 1 },
            Message::Read {
                file: FileId::from_raw(2),
                generation: 3,
                reader: u32::MAX - 4,
                block: u64::MAX - 5,
                blocks: u16::MAX,
                is_up: true,
            },
            Message::Restore { empties: true },
            Message::Restore { empties: false },
            Message::Replace { number: u64::MAX - 2 },
            Message::Exchanged { outcome: Outcome::Done },
            Message::Exchanged { outcome: Outcome::Plain },
            Message::Exchanged { outcome: Outcome::Error(28) },
            Message::Exchanged { outcome: Outcome::Refused(3) },
            Message::Expect {
                file: FileId::from_raw(1),
                generation: 2,
                offset: u64::MAX - 3,
                stride: -4,
                units: 5,
                pieces: u16::MAX,
            },
        ];
        for message in all {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
        assert_eq!(Message::decode(&[]), None);
        assert_eq!(Message::decode(&[0; MESSAGE_BYTES]), None);
        assert_eq!(Message::decode(&[255; MESSAGE_BYTES]), None);
        assert_eq!(Message::decode(&[1; MESSAGE_BYTES + 1]), None);
    }
}
