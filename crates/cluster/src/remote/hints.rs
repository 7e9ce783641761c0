//! Where the blocks of runs are, as this node was told when it asked for one of them: the others
//! need no question then. It is a hint as the [`Finder`](super::Finder)'s own, and older: who has a
//! block no more says so.

use forebay_membership::{FileId, NodeId};
use std::collections::{HashMap, VecDeque};

/// Nodes that have blocks of a run, and bit n: its block n.
pub type Holders = Vec<(NodeId, u64)>;

/// See the module. Pure; used by one thread.
///
/// ```
/// use forebay_cluster::Hints;
/// use forebay_membership::{FileId, NodeId};
///
/// let mut hints = Hints::new(1000);
/// let file = FileId { store: 0, inode: 7, generation: 1 };
/// hints.put(file, 0, 5, vec![(NodeId(4), 0b1100)]);
/// assert_eq!(hints.who(file, 3, 5), Some(NodeId(4)));
/// assert_eq!(hints.who(file, 3, 6), None, "the file was given back since");
/// ```
pub struct Hints {
    /// Of each run, under which epoch of the file it was told, and what.
    runs: HashMap<(FileId, u64), (u32, Holders)>,
    /// Them in the order in which they came.
    order: VecDeque<(FileId, u64)>,
    most: usize,
}

impl Hints {
    /// One that knows so many runs at most; the oldest are forgotten.
    pub fn new(most: usize) -> Self {
        Self { runs: HashMap::new(), order: VecDeque::new(), most: most.max(1) }
    }

    /// Who has which blocks of a run, as was told now. `epoch` is another one when this node has
    /// given the file back.
    pub fn put(&mut self, file: FileId, run: u64, epoch: u32, holders: Holders) {
        let key = (file, run);
        if !self.runs.contains_key(&key) {
            if holders.is_empty() {
                return;
            }
            if self.order.len() >= self.most
                && let Some(oldest) = self.order.pop_front()
            {
                self.runs.remove(&oldest);
            }
            self.order.push_back(key);
        }
        self.runs.insert(key, (epoch, holders));
    }

    /// Who has a block, as far as this node knows.
    pub fn who(&self, file: FileId, block: u64, epoch: u32) -> Option<NodeId> {
        let (told, holders) = self.runs.get(&(file, block / super::RUN_BLOCKS))?;
        holder_of(holders, block).filter(|_| *told == epoch)
    }

    /// Who was said to have a block has it not.
    pub fn forget(&mut self, file: FileId, block: u64) {
        if let Some((_, holders)) = self.runs.get_mut(&(file, block / super::RUN_BLOCKS)) {
            holders.iter_mut().for_each(|(_, mask)| *mask &= !(1 << (block % super::RUN_BLOCKS)));
        }
    }
}

/// Which of the holders of its run has a block.
pub fn holder_of(holders: &Holders, block: u64) -> Option<NodeId> {
    let has = |(_, mask): &&(NodeId, u64)| mask >> (block % super::RUN_BLOCKS) & 1 != 0;
    holders.iter().find(has).map(|(node, _)| *node)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(inode: u64) -> FileId {
        FileId { store: 0, inode, generation: 0 }
    }

    #[test]
    fn what_is_told_last_counts() {
        let mut hints = Hints::new(2);
        hints.put(file(0), 1, 0, vec![(NodeId(3), 1), (NodeId(4), 2)]);
        assert_eq!(hints.who(file(0), 64, 0), Some(NodeId(3)));
        assert_eq!(hints.who(file(0), 65, 0), Some(NodeId(4)));
        assert_eq!(hints.who(file(0), 66, 0), None);
        assert_eq!(hints.who(file(0), 0, 0), None, "another run");
        hints.put(file(0), 1, 1, vec![(NodeId(5), 2)]);
        assert_eq!(hints.who(file(0), 64, 1), None);
        assert_eq!(hints.who(file(0), 65, 1), Some(NodeId(5)));
        hints.put(file(0), 1, 1, Vec::new());
        assert_eq!(hints.who(file(0), 65, 1), None);
    }

    #[test]
    fn a_block_that_its_holder_has_no_more_is_forgotten_alone() {
        let mut hints = Hints::new(2);
        hints.put(file(0), 0, 0, vec![(NodeId(3), 0b11)]);
        hints.forget(file(0), 1);
        assert_eq!(hints.who(file(0), 1, 0), None);
        assert_eq!(hints.who(file(0), 0, 0), Some(NodeId(3)));
    }

    #[test]
    fn the_oldest_runs_are_forgotten() {
        let mut hints = Hints::new(2);
        (0..3).for_each(|inode| hints.put(file(inode), 0, 0, vec![(NodeId(1), 1)]));
        // One that is told anew takes no other's place.
        hints.put(file(2), 0, 0, vec![(NodeId(2), 1)]);
        let known = [0, 1, 2].map(|inode| hints.who(file(inode), 0, 0));
        assert_eq!(known, [None, Some(NodeId(1)), Some(NodeId(2))]);
    }
}
