//! Who reads a block from the store first, and so has it. Each run of blocks has one member that
//! all ask: it sends the first of them to the store, and the others to the first. What it knows is
//! a hint: lost with its node, forgotten when there is too much, and wrong where a block has left
//! the memory of its holder, which then says so.

use super::hints::Holders;
use forebay_membership::{FileId, NodeId};
use std::collections::{HashMap, VecDeque};

/// Blocks that are asked about together.
pub const RUN_BLOCKS: u64 = 64;

/// What no node has.
const NONE: u16 = u16::MAX;

/// See the module. Pure; used by one thread.
///
/// ```
/// use forebay_cluster::Finder;
/// use forebay_membership::{FileId, NodeId};
///
/// let mut finder = Finder::new(1000);
/// let file = FileId { store: 0, inode: 7, generation: 1 };
/// let first = finder.find(file, 3, NodeId(4), None);
/// assert_eq!(first, None, "it is the first, and reads the store");
/// assert_eq!(finder.find(file, 3, NodeId(5), None), Some(NodeId(4)));
/// // Node 4 has it no more: node 5 reads it then.
/// assert_eq!(finder.find(file, 3, NodeId(5), Some(NodeId(4))), None);
/// assert_eq!(finder.find(file, 3, NodeId(4), None), Some(NodeId(5)));
/// ```
pub struct Finder {
    /// Of each run, by whom each of its blocks was read; as long as the last one that was.
    runs: HashMap<(FileId, u64), Vec<u16>>,
    /// Them in the order in which they came.
    order: VecDeque<(FileId, u64)>,
    most: usize,
}

impl Finder {
    /// One that knows so many runs at most; the oldest are forgotten.
    pub fn new(most: usize) -> Self {
        Self { runs: HashMap::new(), order: VecDeque::new(), most: most.max(1) }
    }

    /// Which node is to be asked for a block; `None`: the asking one reads it from the store, and
    /// others are sent to it from now on. `not` is a node that was named before, and did not have
    /// it.
    pub fn find(
        &mut self,
        file: FileId,
        block: u64,
        asks: NodeId,
        not: Option<NodeId>,
    ) -> Option<NodeId> {
        let has = self.who(file, block);
        let known = Some(NodeId(*has)).filter(|_| *has != NONE);
        let found = known.filter(|&node| node != asks && Some(node) != not);
        if found.is_none() {
            *has = asks.0;
        }
        found
    }

    /// A node has written a block, and has it: who has read it before has something older.
    pub fn kept(&mut self, file: FileId, block: u64, by: NodeId) {
        *self.who(file, block) = by.0;
    }

    /// Who has which blocks of a run, but for the one that asks: it has what it knows of, or has
    /// lost it.
    pub fn holders(&self, file: FileId, run: u64, asks: NodeId) -> Holders {
        let mut holders = Holders::new();
        for (at, &node) in self.runs.get(&(file, run)).into_iter().flatten().enumerate() {
            if node == NONE || node == asks.0 {
                continue;
            }
            match holders.iter_mut().find(|(known, _)| known.0 == node) {
                Some((_, mask)) => *mask |= 1 << at,
                None => holders.push((NodeId(node), 1 << at)),
            }
        }
        holders
    }

    /// Who has a block.
    fn who(&mut self, file: FileId, block: u64) -> &mut u16 {
        let key = (file, block / RUN_BLOCKS);
        if !self.runs.contains_key(&key) {
            if self.order.len() >= self.most
                && let Some(oldest) = self.order.pop_front()
            {
                self.runs.remove(&oldest);
            }
            self.order.push_back(key);
        }
        let run = self.runs.entry(key).or_default();
        let at = (block % RUN_BLOCKS) as usize;
        if run.len() <= at {
            run.resize(at + 1, NONE);
        }
        &mut run[at]
    }

    /// Runs that are known.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(inode: u64) -> FileId {
        FileId { store: 0, inode, generation: 0 }
    }

    /// Of any order of questions, each block is read by exactly one node as long as none of those
    /// that read it loses it, and once more for each loss.
    #[test]
    fn each_block_is_read_once_and_once_more_for_each_loss() {
        let seed: u64 = std::env::var("FOREBAY_FINDER_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok())
            .unwrap_or_else(|| std::process::id().into());
        println!("FOREBAY_FINDER_SEED={seed}");
        let mut state = seed;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let mut finder = Finder::new(1 << 10);
        let mut readers: HashMap<(u64, u64), u16> = HashMap::new();
        let (mut reads, mut losses) = (0, 0);
        for _ in 0..20_000 {
            let (inode, block, asks) = (random(8), random(200), random(5) as u16);
            let reader = readers.get(&(inode, block)).copied();
            let found = finder.find(file(inode), block, NodeId(asks), None);
            match found {
                Some(node) => assert_eq!(Some(node.0), reader, "seed {seed}"),
                None => {
                    // The one that has it asks only if it has lost it.
                    assert!(reader.is_none_or(|reader| reader == asks), "seed {seed}");
                    losses += u32::from(reader.is_some());
                    reads += 1;
                    readers.insert((inode, block), asks);
                }
            }
            if let Some(node) = found.filter(|_| random(10) == 0) {
                let again = finder.find(file(inode), block, NodeId(asks), Some(node));
                assert_eq!(again, None, "seed {seed}");
                readers.insert((inode, block), asks);
                (reads, losses) = (reads + 1, losses + 1);
            }
        }
        assert_eq!(reads, readers.len() as u32 + losses, "seed {seed}");
    }

    #[test]
    fn the_oldest_runs_are_forgotten() {
        let mut finder = Finder::new(2);
        for inode in 0..3 {
            assert_eq!(finder.find(file(inode), 0, NodeId(1), None), None);
        }
        assert_eq!(finder.len(), 2);
        assert_eq!(finder.find(file(0), 0, NodeId(2), None), None, "it is forgotten");
        assert_eq!(finder.find(file(2), 0, NodeId(2), None), Some(NodeId(1)));
    }

    #[test]
    fn a_writer_is_asked_for_what_it_has_kept() {
        let mut finder = Finder::new(2);
        assert_eq!(finder.find(file(0), 7, NodeId(1), None), None);
        finder.kept(file(0), 7, NodeId(2));
        assert_eq!(finder.find(file(0), 7, NodeId(1), None), Some(NodeId(2)));
        assert_eq!(finder.find(file(0), 8, NodeId(1), None), None);
    }

    #[test]
    fn holders_are_those_that_each_block_is_asked_of() {
        let mut finder = Finder::new(2);
        for (block, node) in [(64, 1), (65, 2), (66, 1), (127, 3), (128, 4)] {
            assert_eq!(finder.find(file(0), block, NodeId(node), None), None);
        }
        let of_run = [(NodeId(1), 0b101), (NodeId(2), 0b10), (NodeId(3), 1 << 63)];
        assert_eq!(finder.holders(file(0), 1, NodeId(9)), of_run);
        assert_eq!(finder.holders(file(0), 1, NodeId(2)), [of_run[0], of_run[2]]);
        assert_eq!(finder.holders(file(1), 1, NodeId(9)), []);
        assert_eq!(finder.len(), 2, "a run that nobody knows of is not made by it");
    }

    #[test]
    fn what_another_node_has_read_meanwhile_stays() {
        let mut finder = Finder::new(2);
        assert_eq!(finder.find(file(0), 0, NodeId(1), None), None);
        assert_eq!(finder.find(file(0), 0, NodeId(2), Some(NodeId(1))), None);
        // Node 3 was sent to node 1 before that.
        assert_eq!(finder.find(file(0), 0, NodeId(3), Some(NodeId(1))), Some(NodeId(2)));
    }
}
