//! Files and blocks: where each piece of data is, and what the store does not have yet.

use forebay_placement::TIERS_MAX;
use forebay_placement::hotness::{AccessStats, Score};

/// The number of a block in [`Blocks`].
pub(crate) type BlockId = u32;
const NONE: BlockId = BlockId::MAX;

/// Where a block's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In a tier of the node that is its home.
    Tier(u8),
    /// Only on the backing store, or nowhere yet.
    Store,
}

/// A block of a file.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub file: u32,
    pub number: u32,
    /// The node whose tier has it, or has reserved the shared tier's space for it.
    pub home: u32,
    pub place: Place,
    /// Its position in its shelf's list.
    pub at: u32,
    /// Bytes that have content.
    pub valid: u64,
    /// Bytes that the store does not have yet.
    pub dirty: u64,
    /// Rises when content changes.
    pub version: u32,
    /// Writers that are copying into it.
    pub writers: u16,
    /// Being copied to another tier.
    pub moving: bool,
    /// Being written to the store.
    pub flushing: bool,
    /// What was acknowledged is gone, and nothing was written since.
    pub lost: bool,
    pub written_ns: u64,
    /// Since when it has been dirty.
    pub dirtied_ns: u64,
    /// In RAM, and on its way down to this level.
    pub bound: Option<u8>,
    pub access_stats: AccessStats,
}

/// A file.
#[derive(Clone, Debug, Default)]
pub(crate) struct File {
    blocks: Vec<BlockId>,
    /// Blocks in each level.
    pub levels: [u32; TIERS_MAX],
    /// Ranks that have it open.
    pub open: u32,
    /// It has no name any more.
    pub is_removed: bool,
    /// How often its blocks were used, and how lately.
    pub score: Score,
    /// Where it ends, and the levels in which some of it has ever been, one bit each: as its record
    /// in a node's segment says.
    end: u64,
    pub seen_in: u8,
}

impl File {
    /// Which levels hold some of it, one bit each.
    pub fn dispersion(&self) -> u8 {
        let bit = |(level, count): (usize, &u32)| u8::from(*count > 0) << level;
        self.levels.iter().enumerate().map(bit).fold(0, |mask, bit| mask | bit)
    }

    /// Blocks that are in some tier.
    pub fn placed(&self) -> u64 {
        self.levels.iter().map(|count| u64::from(*count)).sum()
    }
}

/// All files and blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks {
    files: Vec<File>,
    all: Vec<Block>,
}

impl Blocks {
    /// The file of this number, which is made if it is new.
    pub fn file(&mut self, file: u32) -> &mut File {
        let index = file as usize;
        if self.files.len() <= index {
            self.files.resize_with(index + 1, File::default);
        }
        &mut self.files[index]
    }

    /// The hotness of a file of blocks of this size; of a file that is not there, none.
    pub fn hotness(&self, file: u32, block: u64, now_ms: u32, half_life_ms: u32) -> f32 {
        let file = self.files.get(file as usize);
        file.map_or(0.0, |file| {
            // What is written, where that is followed: a write under way has blocks already.
            let bytes = match file.end {
                0 => file.blocks.len() as u64 * block,
                end => end,
            };
            file.score.per_byte(now_ms, half_life_ms, bytes, block)
        })
    }

    /// Bytes of a file of blocks of this size.
    pub fn bytes(&self, file: u32, block: u64) -> u64 {
        self.files.get(file as usize).map_or(0, |file| file.blocks.len() as u64 * block)
    }

    /// Where a file ends, as far as it was written.
    pub fn written_end(&self, file: u32) -> u64 {
        self.files.get(file as usize).map_or(0, |file| file.end)
    }

    /// Notes that a file is written up to here.
    pub fn grows(&mut self, file: u32, end: u64) {
        let file = self.file(file);
        file.end = file.end.max(end);
    }

    /// Notes that a file has this size now.
    pub fn resize(&mut self, file: u32, size: u64) {
        let file = self.file(file);
        file.end = size;
        if size == 0 {
            file.seen_in = 0;
        }
    }

    /// The files without a name.
    pub fn removed(&self) -> Vec<u32> {
        let files = self.files.iter().enumerate().filter(|(_, file)| file.is_removed);
        files.map(|(number, _)| number as u32).collect()
    }

    /// Whether a file has no name any more.
    pub fn is_removed(&self, file: u32) -> bool {
        self.files.get(file as usize).is_some_and(|file| file.is_removed)
    }

    /// The levels in which some of a file has ever been, one bit each.
    pub fn seen_in(&self, file: u32) -> u8 {
        self.files.get(file as usize).map_or(0, |file| file.seen_in)
    }

    /// All blocks of a file, in order.
    pub fn of_file(&self, file: u32) -> Vec<BlockId> {
        let file = self.files.get(file as usize);
        let blocks = file.map_or(&[][..], |file| &file.blocks);
        blocks.iter().copied().filter(|id| *id != NONE).collect()
    }

    /// The block of a file, if there is one.
    pub fn known(&self, file: u32, number: u64) -> Option<BlockId> {
        let id = *self.files.get(file as usize)?.blocks.get(usize::try_from(number).ok()?)?;
        (id != NONE).then_some(id)
    }

    /// All blocks.
    pub fn all_mut(&mut self) -> &mut [Block] {
        &mut self.all
    }

    /// Whether a rank has the file open.
    pub fn is_open(&self, file: u32) -> bool {
        self.files.get(file as usize).is_some_and(|file| file.open > 0)
    }

    /// The block of a file, which is made if it is new; `home` is then its home.
    pub fn find(&mut self, file: u32, number: u32, home: u32) -> BlockId {
        let next = self.all.len() as BlockId;
        let blocks = &mut self.file(file).blocks;
        let index = number as usize;
        if blocks.len() <= index {
            blocks.resize(index + 1, NONE);
        }
        if blocks[index] != NONE {
            return blocks[index];
        }
        blocks[index] = next;
        self.all.push(Block {
            file,
            number,
            home,
            place: Place::Store,
            at: 0,
            valid: 0,
            dirty: 0,
            version: 0,
            writers: 0,
            moving: false,
            flushing: false,
            lost: false,
            written_ns: 0,
            dirtied_ns: 0,
            bound: None,
            access_stats: AccessStats::default(),
        });
        next
    }
}

impl std::ops::Index<BlockId> for Blocks {
    type Output = Block;

    fn index(&self, id: BlockId) -> &Block {
        &self.all[id as usize]
    }
}

impl std::ops::IndexMut<BlockId> for Blocks {
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.all[id as usize]
    }
}
