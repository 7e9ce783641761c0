//! Which nodes answer for a file: rendezvous hashing (Thaler and Ravishankar 1998) over the members
//! of a view. All nodes compute the same from the same view, without a message.
//!
//! What is hashed, and how, is a contract between nodes: those of a group may have different
//! versions of this code. With `mix` the finalizer of SplitMix64 (a bijection), `G` =
//! 0x9e3779b97f4a7c15, and all sums and products modulo 2^64:
//!
//! - the weight of a node in a partition is `mix((partition << 16 | node) + G)`; the node with the
//!   largest weight is the partition's home, the two next ones are its second and third place;
//! - a file's key is `mix(mix(inode + G) ^ (store << 32 | generation))`;
//! - its part n (4096 blocks) is in the partition that the upper 12 bits of `mix(key + n * G)`
//!   name; the file itself is where its part 0 is.

use crate::node::NodeId;

/// Into how many partitions all files are divided.
pub const PARTITIONS: usize = 1 << PARTITION_BITS;
const PARTITION_BITS: u32 = 12;
/// How many nodes a partition has, if there are so many.
pub const PLACES: usize = 3;
/// A part of a file has two to the power of this many blocks.
const PART_BITS: u32 = 12;
/// SplitMix64's increment.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A share of all files and parts of files, below [`PARTITIONS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(u16);

impl Partition {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..PARTITIONS as u16).map(Self)
    }

    /// That of a file: of its first 4096 blocks, so that one home knows all of a small file.
    pub fn of_file(file: FileId) -> Self {
        Self::of_block(file, 0)
    }

    /// That of a block of a file, which is counted in buckets: parts of a large file have different
    /// ones.
    pub fn of_block(file: FileId, block: u64) -> Self {
        let owner = u64::from(file.store) << 32 | u64::from(file.generation);
        let key = mix(mix(file.inode.wrapping_add(GAMMA)) ^ owner);
        let part = block >> PART_BITS;
        let hash = mix(key.wrapping_add(part.wrapping_mul(GAMMA)));
        Self((hash >> (u64::BITS - PARTITION_BITS)) as u16)
    }

    /// That of a part of a file that nodes lease by itself, which is counted in parts of one size
    /// that `directory` fixes: 4096 that follow each other have one home, and the first 4096 that
    /// of the file.
    pub fn of_part(file: FileId, part: u32) -> Self {
        Self::of_block(file, part.into())
    }

    /// The one of this number, if it is below [`PARTITIONS`].
    pub fn of_number(number: u16) -> Option<Self> {
        (usize::from(number) < PARTITIONS).then_some(Self(number))
    }

    /// Its number.
    pub fn number(self) -> u16 {
        self.0
    }

    fn weight(self, node: NodeId) -> u64 {
        mix((u64::from(self.0) << 16 | u64::from(node.0)).wrapping_add(GAMMA))
    }
}

/// A file, the same on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// The number of its store in the group.
    pub store: u16,
    /// Its inode there.
    pub inode: u64,
    /// Tells it from others that had that inode before.
    pub generation: u32,
}

/// Which nodes each partition has, with given members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// How many of the places of each partition are taken: as many as there are members.
    taken: usize,
    each: Vec<[NodeId; PLACES]>,
}

impl Places {
    /// With these members, in any order; one that is named twice counts once. Work: 4096 hashes
    /// for each member.
    pub fn of(members: &[NodeId]) -> Self {
        let mut members = members.to_vec();
        members.sort_unstable();
        members.dedup();
        let each = Partition::all().map(|partition| {
            // The hash is a bijection: two nodes have no equal weights.
            let mut best = [(0, NodeId(0)); PLACES];
            for node in &members {
                let entry = (partition.weight(*node), *node);
                if entry <= best[PLACES - 1] {
                    continue;
                }
                let mut place = PLACES - 1;
                while place > 0 && best[place - 1] < entry {
                    best[place] = best[place - 1];
                    place -= 1;
                }
                best[place] = entry;
            }
            best.map(|(_, node)| node)
        });
        Self { taken: members.len().min(PLACES), each: each.collect() }
    }

    /// The nodes of a partition: up to three, the home first. None if there are no members.
    pub fn of_partition(&self, partition: Partition) -> &[NodeId] {
        &self.each[usize::from(partition.0)][..self.taken]
    }

    /// The node that answers for a file. `None` if there are no members.
    pub fn home_of_file(&self, file: FileId) -> Option<NodeId> {
        self.of_partition(Partition::of_file(file)).first().copied()
    }

    /// The node that answers for a block of a file, which is counted in buckets. `None` if there
    /// are no members.
    pub fn home_of_block(&self, file: FileId, block: u64) -> Option<NodeId> {
        self.of_partition(Partition::of_block(file, block)).first().copied()
    }
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood 2014; the constants are Stafford's "Mix13").
const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed;
    use rand::seq::SliceRandom;

    fn nodes(count: u16) -> Vec<NodeId> {
        (0..count).map(NodeId).collect()
    }

    fn homes(places: &Places) -> Vec<NodeId> {
        Partition::all().map(|partition| places.of_partition(partition)[0]).collect()
    }

    #[test]
    fn the_hash_is_the_one_that_other_versions_have() {
        // The first two outputs of SplitMix64 with the seed 0, as published.
        assert_eq!(mix(GAMMA), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(GAMMA.wrapping_mul(2)), 0x6e78_9e6a_a1b9_65f4);
        assert_eq!(Partition(0).weight(NodeId(65535)), 0xcf0f_635e_85b8_5d76);
        assert_eq!(Partition(1).weight(NodeId(65535)), 0x1737_4ffe_6c11_8825);
        assert_eq!(Partition(4095).weight(NodeId(65535)), 0x7ac4_d016_8887_617a);

        let places = Places::of(&nodes(64));
        let of = |partition| places.of_partition(Partition(partition));
        assert_eq!(of(0), [44, 52, 45].map(NodeId));
        assert_eq!(of(1), [47, 21, 61].map(NodeId));
        assert_eq!(of(2048), [32, 12, 19].map(NodeId));
        assert_eq!(of(4095), [61, 20, 34].map(NodeId));

        let first = FileId { store: 0, inode: 0, generation: 0 };
        let file = FileId { store: 1, inode: 12345, generation: 0xdead_beef };
        let last = FileId { store: u16::MAX, inode: u64::MAX, generation: u32::MAX };
        assert_eq!(Partition::of_file(first).number(), 831);
        assert_eq!(Partition::of_file(file).number(), 4004);
        assert_eq!(Partition::of_block(file, 4095).number(), 4004);
        assert_eq!(Partition::of_block(file, 4096).number(), 747);
        assert_eq!(Partition::of_block(last, u64::MAX).number(), 3198);
    }

    #[test]
    fn each_of_64_nodes_is_home_to_its_share() {
        let homes = homes(&Places::of(&nodes(64)));
        for node in nodes(64) {
            let count = homes.iter().filter(|home| **home == node).count();
            assert!((45..=90).contains(&count), "{node:?} has {count} of 4096");
        }
    }

    #[test]
    fn files_and_their_parts_spread_over_all_partitions() {
        // 16 in each partition on average, with a deviation of 4: none is off by 7 of them.
        let is_fair = |partitions: &mut dyn Iterator<Item = Partition>| {
            let mut counts = [0u32; PARTITIONS];
            partitions.for_each(|partition| counts[usize::from(partition.number())] += 1);
            counts.iter().all(|count| (1..=44).contains(count))
        };
        let file = |inode| FileId { store: 1, inode, generation: 7 };
        let count = 16 * PARTITIONS as u64;
        assert!(is_fair(&mut (0..count).map(|inode| Partition::of_file(file(inode)))));
        assert!(is_fair(&mut (0..count).map(|inode| Partition::of_file(file(inode << 32)))));
        assert!(is_fair(&mut (0..count).map(|part| Partition::of_block(file(9), part << 12))));
        let stores = (0..=u16::MAX).map(|store| FileId { store, ..file(9) });
        assert!(is_fair(&mut stores.map(Partition::of_file)));
        let generations = (0..count as u32).map(|generation| FileId { generation, ..file(9) });
        assert!(is_fair(&mut generations.map(Partition::of_file)));
    }

    #[test]
    fn one_that_leaves_moves_its_own_partitions_and_no_other() {
        let all = Places::of(&nodes(64));
        for gone in nodes(64) {
            let rest: Vec<_> = nodes(64).into_iter().filter(|node| *node != gone).collect();
            let left = Places::of(&rest);
            for partition in Partition::all() {
                let (before, after) = (all.of_partition(partition), left.of_partition(partition));
                let kept = before.iter().filter(|node| **node != gone);
                assert!(kept.zip(after).all(|(kept, after)| kept == after), "{partition:?}");
                assert!(!after.contains(&gone));
            }
        }
    }

    #[test]
    fn the_order_of_the_members_and_repetition_do_not_matter() {
        for seed in 0..20 {
            let (mut random, _seed) = seed::of(seed);
            let mut members = nodes(40);
            members.extend(nodes(5));
            members.shuffle(&mut random);
            assert_eq!(Places::of(&members), Places::of(&nodes(40)), "seed {seed}");
        }
    }

    #[test]
    fn small_and_large_groups_have_different_nodes_in_each_partition() {
        let file = FileId { store: 0, inode: 1, generation: 0 };
        assert_eq!(Places::of(&[]).home_of_file(file), None);
        assert_eq!(Places::of(&[NodeId(9)]).home_of_block(file, 1 << 40), Some(NodeId(9)));
        for (count, taken) in [(1, 1), (2, 2), (3, 3), (1024, 3)] {
            let places = Places::of(&nodes(count));
            for partition in Partition::all() {
                let of = places.of_partition(partition);
                assert_eq!(of.len(), taken, "{count} nodes");
                assert!(of.iter().enumerate().all(|(i, node)| !of[..i].contains(node)));
                assert!(of.iter().all(|node| node.0 < count));
            }
        }
        let mut homes = homes(&Places::of(&nodes(2)));
        homes.sort_unstable();
        let second = homes.partition_point(|home| *home == NodeId(0));
        assert!((1900..=2200).contains(&second), "{second} of 4096");
    }

    #[test]
    fn the_home_is_the_first_node_of_the_partition() {
        let places = Places::of(&nodes(64));
        for inode in 0..1000 {
            let file = FileId { store: 3, inode, generation: 1 };
            let of = places.of_partition(Partition::of_file(file));
            assert_eq!(places.home_of_file(file), Some(of[0]));
            let of = places.of_partition(Partition::of_block(file, inode << 12));
            assert_eq!(places.home_of_block(file, inode << 12), Some(of[0]));
        }
    }
}
