//! Tests of the block index in a segment. Not in index.rs, which the models include.

use crate::BucketId;
use crate::FileId;
use crate::entry::Entry;
use crate::index::height_for;
use crate::layout::Geometry;
use crate::owner::Owner;
use crate::segment::{Segment, anonymous};
use crate::sync::Ordering;
use forebay_placement::TierId;

/// The first record.
const FILE: FileId = FileId::from_raw(0);

fn small() -> (Segment, rustix::fd::OwnedFd) {
    let mut geometry = Geometry::for_tiers(4096, &[64 << 18]);
    geometry.nodes = 256;
    anonymous(&geometry).unwrap()
}

#[test]
fn heights_follow_the_block_number() {
    for (block, height) in [(0, 1), (1, 1), (63, 1), (64, 2), (4095, 2), (4096, 3)] {
        assert_eq!(height_for(block), height, "block {block}");
    }
    assert_eq!(height_for((1 << 46) - 1), 8);
}

#[test]
fn entries_stay_in_place_while_the_tree_grows() {
    let (segment, _file) = small();
    let (file, me) = (segment.file(FILE), Owner::new(1, 0));
    let blocks = [0, 5, 63, 64, 70, 4095, 4096, 300_000, 1 << 30, 1 << 45];
    for (count, &block) in blocks.iter().enumerate() {
        segment.entry_or_insert(file, block, me).unwrap().store(block + 1, Ordering::Relaxed);
        for &earlier in &blocks[..=count] {
            let entry = segment.entry(file, earlier).unwrap();
            assert_eq!(entry.load(Ordering::Relaxed), earlier + 1);
        }
    }
    assert!(segment.entry(file, 1 << 44).is_none());
    let mut seen = Vec::new();
    segment.for_each_entry(file, 0, |block, _| {
        seen.push(block);
        true
    });
    assert_eq!(seen, blocks);
    seen.clear();
    segment.for_each_entry(file, 65, |block, _| {
        seen.push(block);
        true
    });
    assert_eq!(seen, blocks[4..]);
}

#[test]
fn pruning_gives_every_node_back() {
    let (segment, _file) = small();
    let (file, me) = (segment.file(FILE), Owner::new(1, 0));
    let blocks: Vec<u64> = (0..40).map(|n| n * n * n * 17).collect();
    for &block in &blocks {
        segment.entry_or_insert(file, block, me).unwrap().store(9, Ordering::Relaxed);
    }
    let mut used = 0;
    segment.index().for_each_node(file, &mut |_| used += 1);
    assert!(used > 20);
    assert_eq!(segment.index_nodes(1).prune(file), 0);
    for &block in &blocks {
        segment.entry(file, block).unwrap().store(0, Ordering::Relaxed);
    }
    assert_eq!(segment.index_nodes(1).prune(file), used);
    assert_eq!(file.root.load(Ordering::Relaxed), 0);
    let cached = segment.client(1).nodes.iter().filter(|n| n.load(Ordering::Relaxed) != 0).count();
    assert_eq!(segment.index_nodes(1).free().available() as usize + cached, 256);
}

#[test]
fn a_full_index_says_so() {
    let (segment, _file) = small();
    let (file, me) = (segment.file(FILE), Owner::new(1, 0));
    let made = (1..1000).take_while(|n| segment.entry_or_insert(file, n << 20, me).is_some());
    assert!((40..256).contains(&made.count()));
    assert!(segment.entry_or_insert(file, 0, me).is_some());
}

#[test]
fn a_block_is_not_found_in_a_bucket_that_became_anothers() {
    let (segment, _file) = small();
    let me = Owner::new(1, 0);
    let put = |block: u64, word: u64| {
        let place = segment.entry_or_insert(segment.file(FileId::from_raw(3)), block, me).unwrap();
        place.store(word, Ordering::Relaxed);
    };
    let place_of =
        |block, bucket| segment.index().place_of(segment.file(FileId::from_raw(3)), block, bucket);
    put(1, Entry::resident(TierId::RAM, BucketId::from_raw(5)).encode());
    assert!(place_of(1, BucketId::from_raw(5)).is_some());
    // The block moved to another bucket, and its old one has block 2 now.
    put(1, Entry::resident(TierId::RAM, BucketId::from_raw(6)).encode());
    put(2, Entry::resident(TierId::RAM, BucketId::from_raw(5)).encode());
    assert!(place_of(1, BucketId::from_raw(5)).is_none());
    assert!(place_of(2, BucketId::from_raw(5)).is_some());
    put(1, 0);
    assert!(place_of(1, BucketId::from_raw(5)).is_none());
    assert!(place_of(1 << 30, BucketId::from_raw(5)).is_none());
}
