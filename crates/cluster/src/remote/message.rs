//! What nodes say about blocks, as bytes: little-endian, and checked as if an enemy had sent it.

use super::hints::Holders;
use forebay_membership::{FileId, NodeId};

/// Blocks of so many bytes at most go in the answer itself.
pub const INLINE_MAX: usize = 16 << 10;

/// The number of the form of these messages: one of the parts of
/// [`Protocol`](crate::Protocol), which all nodes of a group have alike. No message has it.
pub(crate) const REMOTE_VERSION: u8 = 1;

/// A message of kind [`super::REMOTE`]. `ticket` is a number of the one that asks, which comes back
/// with the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteMessage {
    /// Who has these blocks? Those of a run, `mask` from `first` on.
    Find {
        /// Of the sender.
        ticket: u64,
        /// The file.
        file: FileId,
        /// The number of the run.
        run: u64,
        /// Bit n: its block n is meant.
        mask: u64,
        /// A node that did not have them, or `u16::MAX`.
        not: u16,
        /// Where it is one block: as of [`RemoteMessage::Get`], if the receiver, should it have the
        /// block itself, is to give it at once, by the answers to that; else 0.
        budget_ns: u64,
    },
    /// The answer: who has which blocks of the run, those that were not asked for, too. What was
    /// asked for and no node has, the one that asks reads from the store.
    Found {
        /// That of the question.
        ticket: u64,
        /// At most 64; no block twice.
        holders: Holders,
    },
    /// The sender wants the bytes of a block.
    Get {
        /// Of the sender.
        ticket: u64,
        /// The file.
        file: FileId,
        /// Counted in buckets.
        block: u64,
        /// Nanoseconds within which the answer has to be there for it to be sooner than the
        /// store's.
        budget_ns: u64,
    },
    /// They wait to be pulled.
    Have {
        /// That of the question.
        ticket: u64,
        /// The file.
        file: FileId,
        /// The block.
        block: u64,
        /// How many they are.
        bytes: u32,
        /// Their CRC-32C.
        sum: u32,
        /// The number of the region that they are in.
        region: u64,
        /// Where in it.
        offset: u64,
    },
    /// They are few, and here.
    Bytes {
        /// That of the question.
        ticket: u64,
        /// The file.
        file: FileId,
        /// The block.
        block: u64,
        /// Their CRC-32C.
        sum: u32,
        /// At most [`INLINE_MAX`].
        bytes: Vec<u8>,
    },
    /// The sender does not have the block, may not give it, or takes longer than the store.
    No {
        /// That of the question.
        ticket: u64,
    },
    /// What [`RemoteMessage::Have`] has said is not needed any more.
    Fetched {
        /// That of the question.
        ticket: u64,
    },
    /// Who has which blocks of a run, as of [`RemoteMessage::Found`]: the receiver may read the
    /// file from now on, and has not asked. It is not answered.
    Holders {
        /// The file.
        file: FileId,
        /// The number of the run.
        run: u64,
        /// At most 64; no block twice.
        holders: Holders,
    },
    /// The sender has written these blocks, and has them still, for others to read: those of a
    /// run, as of [`RemoteMessage::Find`]. It is not answered.
    Kept {
        /// The file.
        file: FileId,
        /// The number of the run.
        run: u64,
        /// Bit n: its block n is meant.
        mask: u64,
    },
}

struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn short(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn file(&mut self) -> Option<FileId> {
        Some(FileId { store: self.short()?, inode: self.long()?, generation: self.word()? })
    }

    /// All that is left.
    fn holders(&mut self) -> Option<Holders> {
        let (mut holders, mut blocks) = (Holders::new(), 0);
        while !self.0.is_empty() {
            let (node, mask) = (NodeId(self.short()?), self.long()?);
            // So there are 64 at most.
            if mask == 0 || mask & blocks != 0 {
                return None;
            }
            blocks |= mask;
            holders.push((node, mask));
        }
        Some(holders)
    }
}

fn put_file(to: &mut Vec<u8>, file: FileId) {
    to.extend(file.store.to_le_bytes());
    to.extend(file.inode.to_le_bytes());
    to.extend(file.generation.to_le_bytes());
}

fn put_holders(to: &mut Vec<u8>, holders: &Holders) {
    for (node, mask) in holders {
        to.extend(node.0.to_le_bytes());
        to.extend(mask.to_le_bytes());
    }
}

impl RemoteMessage {
    /// The body of the message.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, ticket) = match self {
            Self::Find { ticket, .. } => (1, ticket),
            Self::Found { ticket, .. } => (2, ticket),
            Self::Get { ticket, .. } => (3, ticket),
            Self::Have { ticket, .. } => (4, ticket),
            Self::Bytes { ticket, .. } => (5, ticket),
            Self::No { ticket } => (6, ticket),
            Self::Fetched { ticket } => (7, ticket),
            Self::Kept { .. } => (8, &0),
            Self::Holders { .. } => (9, &0),
        };
        let mut to = vec![kind];
        to.extend(ticket.to_le_bytes());
        match self {
            Self::Find { file, run, mask, not, budget_ns, .. } => {
                put_file(&mut to, *file);
                to.extend(run.to_le_bytes());
                to.extend(mask.to_le_bytes());
                to.extend(not.to_le_bytes());
                to.extend(budget_ns.to_le_bytes());
            }
            Self::Found { holders, .. } => put_holders(&mut to, holders),
            Self::Holders { file, run, holders } => {
                put_file(&mut to, *file);
                to.extend(run.to_le_bytes());
                put_holders(&mut to, holders);
            }
            Self::Get { file, block, budget_ns, .. } => {
                put_file(&mut to, *file);
                to.extend(block.to_le_bytes());
                to.extend(budget_ns.to_le_bytes());
            }
            Self::Have { file, block, bytes, sum, region, offset, .. } => {
                put_file(&mut to, *file);
                to.extend(block.to_le_bytes());
                to.extend(bytes.to_le_bytes());
                to.extend(sum.to_le_bytes());
                to.extend(region.to_le_bytes());
                to.extend(offset.to_le_bytes());
            }
            Self::Bytes { file, block, sum, bytes, .. } => {
                put_file(&mut to, *file);
                to.extend(block.to_le_bytes());
                to.extend(sum.to_le_bytes());
                to.extend(bytes);
            }
            Self::Kept { file, run, mask } => {
                put_file(&mut to, *file);
                to.extend(run.to_le_bytes());
                to.extend(mask.to_le_bytes());
            }
            Self::No { .. } | Self::Fetched { .. } => {}
        }
        to
    }

    /// The message of a body; `None` if it is none.
    pub fn decode(body: &[u8]) -> Option<Self> {
        let mut from = Reader(body);
        let kind = from.take::<1>()?[0];
        let ticket = from.long()?;
        let message = match kind {
            1 => Self::Find {
                ticket,
                file: from.file()?,
                run: from.long()?,
                mask: from.long()?,
                not: from.short()?,
                budget_ns: from.long()?,
            },
            2 => Self::Found { ticket, holders: from.holders()? },
            3 => Self::Get {
                ticket,
                file: from.file()?,
                block: from.long()?,
                budget_ns: from.long()?,
            },
            4 => Self::Have {
                ticket,
                file: from.file()?,
                block: from.long()?,
                bytes: from.word()?,
                sum: from.word()?,
                region: from.long()?,
                offset: from.long()?,
            },
            5 => {
                let (file, block, sum) = (from.file()?, from.long()?, from.word()?);
                let bytes = std::mem::take(&mut from.0).to_vec();
                if bytes.len() > INLINE_MAX {
                    return None;
                }
                Self::Bytes { ticket, file, block, sum, bytes }
            }
            6 => Self::No { ticket },
            7 => Self::Fetched { ticket },
            8 => Self::Kept { file: from.file()?, run: from.long()?, mask: from.long()? },
            9 => Self::Holders { file: from.file()?, run: from.long()?, holders: from.holders()? },
            _ => return None,
        };
        from.0.is_empty().then_some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_their_bytes_and_rubbish_is_none() {
        let file = FileId { store: 3, inode: u64::MAX - 1, generation: 9 };
        let (ticket, block) = (u64::MAX / 3, 1 << 40);
        let all = [
            RemoteMessage::Find {
                ticket,
                file,
                run: 5,
                mask: u64::MAX,
                not: u16::MAX,
                budget_ns: 1,
            },
            RemoteMessage::Found {
                ticket,
                holders: vec![(NodeId(7), 0b101), (NodeId(0), 1 << 63)],
            },
            RemoteMessage::Get { ticket, file, block, budget_ns: 1_000_000 },
            RemoteMessage::Have { ticket, file, block, bytes: 1, sum: 2, region: 3, offset: 4 },
            RemoteMessage::Bytes { ticket, file, block, sum: 8, bytes: vec![1; INLINE_MAX] },
            RemoteMessage::No { ticket },
            RemoteMessage::Fetched { ticket },
            RemoteMessage::Kept { file, run: 5, mask: 1 << 63 },
            RemoteMessage::Holders { file, run: 0, holders: vec![(NodeId(1), u64::MAX)] },
        ];
        // What other nodes of this version understand: another form needs another version.
        let bytes: Vec<u8> = all.iter().flat_map(RemoteMessage::encode).collect();
        let sum = ring::digest::digest(&ring::digest::SHA256, &bytes);
        assert_eq!((REMOTE_VERSION, &sum.as_ref()[..4]), (1, &[156, 209, 125, 179][..]));
        for message in all {
            let body = message.encode();
            assert_eq!(RemoteMessage::decode(&body), Some(message.clone()));
            let has_tail = matches!(
                message,
                RemoteMessage::Found { .. }
                    | RemoteMessage::Holders { .. }
                    | RemoteMessage::Bytes { .. }
            );
            for end in (0..body.len()).filter(|_| !has_tail) {
                assert_eq!(RemoteMessage::decode(&body[..end]), None, "{message:?} to {end}");
            }
            let longer = [&body[..], &[0]].concat();
            let decoded = RemoteMessage::decode(&longer);
            assert!(decoded.is_none(), "{message:?} with a byte more: {decoded:?}");
        }
        for holders in [vec![(NodeId(1), 0)], vec![(NodeId(1), 3), (NodeId(2), 2)]] {
            let wrong = RemoteMessage::Found { ticket, holders };
            assert_eq!(RemoteMessage::decode(&wrong.encode()), None, "{wrong:?}");
        }
        assert_eq!(RemoteMessage::decode(&[99; 40]), None);
    }
}
