//! What a segment is sized by, and where its sections lie.

use super::{
    BucketMeta, CLIENTS_MAX, ClientSlot, DESCRIPTIONS_MAX, Description, FILES_MAX, FILES_PIECE,
    FileRecord, Header, IndexNode, LONGER_PATH_BYTES, PAGES_PER_BUCKET, PART_LEASES, PATH_BYTES,
    RuleRecord, STRIPES, SlotChecksums, SparsePages,
};
use crate::datasets::DatasetTable;
use crate::glimpses::AnswerTable;
use crate::parts::PartLease;
use crate::queue::Queue;
use crate::ranks::Stripe;
use crate::seq_lock::RobustSeqLock;
use forebay_placement::schema::RULES_MAX;

/// What the segment is sized by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a page: 4 KiB to 64 KiB, a power of two.
    pub page_size: u32,
    /// Buckets of each tier, RAM first.
    pub tier_buckets: Vec<u32>,
    /// Sparse buckets of each tier, multiples of 64; tiers that are missing here have none.
    pub sparse_buckets: Vec<u32>,
    /// Client slots, at most 4096.
    pub clients: u32,
    /// File records, at most [`super::FILES_MAX`]: where they are more than
    /// [`super::FILES_PIECE`], the others get memory when they are used.
    pub files: u32,
    /// Open-file descriptions, at most [`DESCRIPTIONS_MAX`]: where they are more than
    /// [`super::DESCRIPTIONS_PIECE`], a multiple of that, which get memory when they are used.
    pub descriptions: u32,
    /// Index nodes.
    pub nodes: u32,
}

impl Geometry {
    /// Sizes for tiers of the given bytes: tables grow with the buckets, because every dirty file
    /// needs at least one. A limit of 1024 processes and the first 16,384 open descriptions cost
    /// 4 MiB.
    pub fn for_tiers(page_size: u32, tier_bytes: &[u64]) -> Geometry {
        let bucket = u64::from(page_size) * u64::from(PAGES_PER_BUCKET);
        let tier_buckets: Vec<u32> = tier_bytes
            .iter()
            .map(|bytes| u32::try_from(bytes / bucket).unwrap_or(u32::MAX / 16))
            .collect();
        let total: u32 = tier_buckets.iter().sum();
        let files = total.clamp(FILES_PIECE, FILES_MAX);
        Geometry {
            page_size,
            tier_buckets,
            sparse_buckets: Vec::new(),
            clients: CLIENTS_MAX,
            files,
            descriptions: DESCRIPTIONS_MAX,
            // Of a file of more than one block.
            nodes: (total / 16 + files.min(NODES_FOR_FILES)).next_multiple_of(64),
        }
    }

    /// The same with sparse buckets for small files, but on tiers that are so small that these are
    /// not worth what is lent to them: docs/design/small-files.md has the numbers.
    pub fn with_sparse(self) -> Geometry {
        let sparse_of = |&buckets: &u32| match buckets < SPARSE_BUCKETS_MIN {
            true => 0,
            false => buckets.saturating_mul(SPARSE_PER_BUCKET).min(SPARSE_MAX).next_multiple_of(64),
        };
        let sparse: Vec<u32> = self.tier_buckets.iter().map(sparse_of).collect();
        let files = self.files.saturating_add(sparse.iter().sum()).min(FILES_MAX);
        Geometry { sparse_buckets: sparse, files, ..self }
    }

    /// Sparse buckets of tier `tier`.
    pub(crate) fn sparse_of(&self, tier: usize) -> u32 {
        self.sparse_buckets.get(tier).copied().unwrap_or_default()
    }

    /// Bytes of a bucket.
    pub fn bucket_bytes(&self) -> u64 {
        u64::from(self.page_size) * u64::from(PAGES_PER_BUCKET)
    }
}

/// Byte offsets of the sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offsets {
    pub(crate) rules: usize,
    pub(crate) queue: usize,
    pub(crate) registrations: usize,
    pub(crate) asks: usize,
    pub(crate) glimpses: usize,
    pub(crate) clients: usize,
    pub(crate) bitmaps: usize,
    pub(crate) stripes: usize,
    pub(crate) heads: usize,
    pub(crate) touched: usize,
    pub(crate) file_bits: usize,
    pub(crate) files: usize,
    pub(crate) longer_paths: usize,
    pub(crate) longest_paths: usize,
    pub(crate) descriptions: usize,
    pub(crate) nodes: usize,
    pub(crate) node_states: usize,
    pub(crate) node_bits: usize,
    pub(crate) buckets: usize,
    pub(crate) bucket_bits: usize,
    pub(crate) sums: usize,
    pub(crate) trails: usize,
    pub(crate) sparse: usize,
    pub(crate) parts: usize,
    pub(crate) datasets: usize,
    /// End of the sections that are reserved at start; behind it lie those that get memory when
    /// they are used.
    pub(crate) fixed_end: usize,
    /// The RAM tier's data.
    pub(crate) data: usize,
    /// Bytes of the whole segment.
    pub(crate) end: usize,
}

/// A tier of fewer buckets has no sparse ones: 16 MiB. Of RAM an eighth is lent at least.
const SPARSE_BUCKETS_MIN: u32 = 64;
/// Sparse buckets for each other one: one for each 16 KiB.
const SPARSE_PER_BUCKET: u32 = 16;
/// The most index nodes for the first blocks of files.
const NODES_FOR_FILES: u32 = 1 << 17;
/// The most sparse buckets of a tier: their tables take 72 MiB of RAM, and 337 MiB for a file tier
/// when all are in use; those of RAM take 256 GiB of address space.
const SPARSE_MAX: u32 = 1 << 20;

/// Alignment of the RAM tier's data: a huge page.
pub const DATA_ALIGN: usize = 2 << 20;

/// Counts from which the offsets follow.
pub(crate) struct Counts {
    pub clients: u32,
    pub descriptions: u32,
    pub heads: u32,
    pub files: u32,
    pub nodes: u32,
    pub buckets: u32,
    pub ram_buckets: u32,
    /// Of RAM.
    pub sparse_buckets: u32,
    /// Of all file tiers.
    pub sparse_slots: u32,
    pub bucket_bytes: u64,
}

impl Counts {
    /// Places for what is known of blocks that no tier has.
    pub(crate) fn trails(&self) -> u32 {
        self.buckets.saturating_sub(self.sparse_slots).max(1)
    }

    /// The first sparse bucket: behind the last of RAM's others.
    pub(crate) fn first_sparse(&self) -> u32 {
        self.ram_buckets.next_multiple_of(64)
    }
}

impl Offsets {
    pub(crate) fn of(counts: &Counts) -> Offsets {
        let mut at = core::mem::size_of::<Header>();
        let mut section = |bytes: usize| {
            let start = at;
            at = (at + bytes).next_multiple_of(4096);
            start
        };
        let count = |n: u32, each: usize| n as usize * each;
        let rules = section(RULES_MAX * size_of::<RuleRecord>());
        let queue = section(size_of::<Queue>());
        let registrations = section(size_of::<Queue>());
        let asks = section(size_of::<Queue>());
        let glimpses = section(size_of::<AnswerTable>());
        let clients = section(count(counts.clients, size_of::<ClientSlot>()));
        let stripes = section(STRIPES * size_of::<RobustSeqLock<Stripe>>());
        let heads = section(count(counts.heads, 4));
        let touched = section(count(counts.files.div_ceil(64), 8));
        let file_bits = section(count(counts.files.div_ceil(64), 8));
        let nodes = section(count(counts.nodes, size_of::<IndexNode>()));
        let node_states = section(count(counts.nodes, 4));
        let node_bits = section(count(counts.nodes.div_ceil(64), 8));
        let buckets = section(count(counts.buckets, size_of::<BucketMeta>()));
        let bucket_bits = section(count(counts.buckets.div_ceil(64), 8));
        let in_memory = counts.first_sparse() + counts.sparse_buckets;
        let slots = counts.buckets - in_memory.min(counts.buckets);
        let sums = section(count(slots, size_of::<SlotChecksums>()));
        let trails = section(count(counts.trails(), 8));
        let sparse = section(count(counts.sparse_buckets, size_of::<SparsePages>()));
        let parts = section(PART_LEASES * size_of::<PartLease>());
        let datasets = section(size_of::<DatasetTable>());
        let fixed_end = section(0);
        let files = section(count(counts.files, size_of::<FileRecord>()));
        let longer_paths = section(count(counts.files, LONGER_PATH_BYTES));
        let longest_paths = section(count(counts.files, PATH_BYTES));
        let descriptions = section(count(counts.descriptions, size_of::<Description>()));
        let bitmaps = section(count(counts.clients, counts.descriptions as usize / 8));
        let data = section(0).next_multiple_of(DATA_ALIGN);
        let with_data = if counts.sparse_buckets == 0 { counts.ram_buckets } else { in_memory };
        let bytes = u64::from(with_data) * counts.bucket_bytes;
        let end = data + (bytes as usize).next_multiple_of(DATA_ALIGN);
        Offsets {
            rules,
            queue,
            registrations,
            asks,
            glimpses,
            clients,
            bitmaps,
            stripes,
            heads,
            touched,
            file_bits,
            files,
            longer_paths,
            longest_paths,
            descriptions,
            nodes,
            node_states,
            node_bits,
            buckets,
            bucket_bits,
            sums,
            trails,
            sparse,
            parts,
            datasets,
            fixed_end,
            data,
            end,
        }
    }
}
