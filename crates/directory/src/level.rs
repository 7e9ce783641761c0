//! What a node may do with a file, and what is known of one.

use forebay_membership::NodeId;

/// What a node may do with a file without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Level {
    /// Nothing.
    #[default]
    None,
    /// Of a whole: keep copies of what the node has that lends it, and read them; so may other
    /// nodes. The store may be behind.
    Borrowed,
    /// Keep copies and read them; so may other nodes.
    Read,
    /// Of a whole: keep what was written, which the store may not have yet, read it, and give it
    /// to the nodes that borrow the file.
    Lent,
    /// Of a whole: lease parts of it, and its size, and use these; of a size: extend the file,
    /// and keep how far. So may other nodes.
    Shared,
    /// Keep copies, read and write them; no other node may have anything of the file.
    Write,
    /// Use the store's file through the kernel and keep nothing; so may other nodes.
    Direct,
}

impl Level {
    /// All of them.
    pub const ALL: [Level; 7] = [
        Level::None,
        Level::Borrowed,
        Level::Read,
        Level::Lent,
        Level::Shared,
        Level::Write,
        Level::Direct,
    ];

    /// Whether a node that has this need not ask for that: what uses the kernel can do all. Who
    /// shares a file may not read what it has no part of.
    pub fn covers(self, wanted: Level) -> bool {
        self >= wanted && (self != Level::Shared || matches!(wanted, Level::None | Level::Shared))
    }

    /// Whether a node that has this may have something that is nowhere else.
    pub fn is_dirty(self) -> bool {
        matches!(self, Level::Lent | Level::Shared | Level::Write)
    }

    /// Whether a node that has a whole so knows its size and content, and no other one changes
    /// them.
    pub fn is_its_own(self) -> bool {
        matches!(self, Level::Lent | Level::Write)
    }

    /// Whether two nodes may not have these at one time.
    pub fn conflicts(self, other: Level) -> bool {
        match (self, other) {
            (Level::None, _) | (_, Level::None) => false,
            (Level::Borrowed, Level::Read | Level::Lent)
            | (Level::Read | Level::Lent, Level::Borrowed) => false,
            _ => self != other || self.is_its_own(),
        }
    }

    /// What may be left to a holder of this when another node is to have that. Of what is shared
    /// nothing: others may share it still.
    pub(crate) fn beside(self, other: Level) -> Level {
        match (self, other) {
            (Level::Write | Level::Lent, Level::Borrowed) => Level::Lent,
            (Level::Write | Level::Lent | Level::Read, Level::Read) => Level::Read,
            (Level::Read, Level::Borrowed) => Level::Read,
            (Level::Borrowed, Level::Borrowed | Level::Read | Level::Lent) => Level::Borrowed,
            _ => Level::None,
        }
    }
}

/// Size and modification time of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Facts {
    /// In bytes.
    pub size: u64,
    /// In nanoseconds since 1970.
    pub mtime_ns: i64,
}

/// Why a node does not get what it wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Why {
    /// This node is gone, and may have had bytes of the file that are nowhere else. It ends when
    /// the node comes back with them, or is [given up](crate::Directory::give_up).
    Lost(NodeId),
    /// A table has no room and nothing that can be taken back: close files, or raise the limit.
    Full,
    /// Others have been given the file since: what this node has of it is out of date.
    Superseded,
    /// No answer within [`Tuning::wait_ms`](crate::Tuning): a node does not give the file back, or
    /// its home is not known.
    Late,
    /// A part or a size was wanted, and the node does not share the file, or not any more: look
    /// again, and want the whole first.
    Unshared,
}

/// What is known of a file that this node does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sized {
    /// What the node that writes it says.
    Known(Facts),
    /// This, or what the store says, if that is more: nodes share the file.
    AtLeast(Facts),
    /// What the store says from now on.
    Store,
    /// It cannot be known.
    Refused(Why),
}

/// Periods in milliseconds, and sizes of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuning {
    /// After how long a message that has no answer is sent again.
    pub retry_ms: u64,
    /// After how long a want or a glimpse is refused as [late](Why::Late).
    pub wait_ms: u64,
    /// A file whose writer became another node so often ...
    pub thrash: usize,
    /// ... in so many milliseconds is made direct ...
    pub thrash_ms: u64,
    /// ... for so long; ...
    pub direct_ms: u64,
    /// ... a part of one for so long.
    pub part_direct_ms: u64,
    /// Files, sizes and parts of which this node is the home, and those that it holds or wants:
    /// each at most.
    pub files: usize,
    /// Glimpses that are under way at most, as home and as asker each.
    pub glimpses: usize,
    /// From so many members at most one takes what they and those below them know, when a view has
    /// changed; all nodes of a group need the same.
    pub below: usize,
}

impl Facts {
    /// The larger size and the later time.
    pub(crate) fn most(self, other: Self) -> Self {
        Self { size: self.size.max(other.size), mtime_ns: self.mtime_ns.max(other.mtime_ns) }
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            retry_ms: 250,
            wait_ms: 60_000,
            thrash: 4,
            thrash_ms: 1_000,
            direct_ms: 10_000,
            part_direct_ms: 1_000,
            files: 1 << 20,
            glimpses: 1 << 12,
            below: 16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_readers_and_direct_nodes_are_beside_each_other() {
        for a in Level::ALL {
            for b in Level::ALL {
                assert_eq!(a.conflicts(b), b.conflicts(a));
                assert!(!a.beside(b).conflicts(b), "{a:?} beside {b:?}");
                assert!(a.beside(b) <= a);
            }
        }
        assert!(Level::Write.conflicts(Level::Read) && Level::Write.conflicts(Level::Write));
        assert!(Level::Direct.conflicts(Level::Read) && Level::Direct.covers(Level::Write));
        let shared = Level::Shared;
        assert!(Level::ALL.iter().all(|other| {
            shared.conflicts(*other) != (*other == Level::None || *other == shared)
        }));
        assert!(!shared.covers(Level::Read) && Level::Write.covers(shared));
        assert!(!shared.covers(Level::Borrowed));
        let lent = Level::Lent;
        let beside = [Level::None, Level::Borrowed];
        assert!(Level::ALL.iter().all(|other| lent.conflicts(*other) != beside.contains(other)));
        assert!(lent.covers(Level::Read) && !Level::Borrowed.covers(Level::Read));
    }
}
