//! What will be read next: one detector for each open-file description.
//!
//! As in Linux' readahead (mm/readahead.c), a window doubles while reading goes on as expected, and
//! the next window is asked for when reading enters the latest one, so that it arrives while that
//! is still being read. Unlike there, reads at a constant distance from each other (a column of a
//! matrix, one variable of many) are followed too, in both directions.
//!
//! ```
//! use forebay_placement::prefetch::{Reach, Stream};
//!
//! let reach = Reach { first: 4096, most: 65_536 };
//! let mut stream = Stream::default();
//! let ahead = stream.on_read(0, 4096, reach).expect("read from the beginning on");
//! assert_eq!((ahead.offset, ahead.count), (4096, 1));
//! // A read somewhere else ends the sequence.
//! assert_eq!(stream.on_read(1 << 30, 4096, reach), None);
//! ```

use crate::cost::Speeds;
use crate::{Destination, Hierarchy};

/// Blocks in the largest window.
pub const WINDOW_BLOCKS: u64 = 16;
/// How many times longer than from the fastest tier it must take to read a block for bringing it up
/// ahead to pay: that copies the block once more.
const PAYS: f64 = 8.0;

/// Whether blocks that are read one after the other from this place should come to the fastest tier
/// before they are asked for.
pub fn pays(hierarchy: &Hierarchy, from: Destination, block_bytes: u64) -> bool {
    let speeds = Speeds::of(hierarchy);
    let paces = speeds.paces();
    let place = match from {
        Destination::Tier(tier) => tier.min(paces.len() - 1),
        Destination::Store => paces.len() - 1,
    };
    paces[place].reading(block_bytes) >= PAYS * paces[0].reading(block_bytes)
}

/// What to stage in: `count` pieces of `bytes`, each `stride` further than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// Offset of the first piece.
    pub offset: u64,
    /// Bytes of each piece.
    pub bytes: u64,
    /// From each piece to the next; negative when reading backwards.
    pub stride: i64,
    /// How many pieces.
    pub count: u64,
}

impl Ahead {
    /// The pieces: offset and bytes; none before the file's begin.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        (0..self.count).map_while(|n| {
            let distance = i64::try_from(n).ok()?.checked_mul(self.stride)?;
            Some((self.offset.checked_add_signed(distance)?, self.bytes))
        })
    }
}

/// How far to look ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Bytes of the first window: one bucket.
    pub first: u64,
    /// Bytes of the largest window.
    pub most: u64,
}

/// The reads of one open-file description, and what they lead one to expect: 48 bytes, no
/// allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// The last read.
    offset: u64,
    bytes: u64,
    /// Distance from the read before it to the last one, 0 if there was none.
    stride: i64,
    /// Reads in a row at this distance, the first two not counted.
    expected: u32,
    /// The latest window: bytes of a sequence, or pieces of a pattern.
    window: u64,
    /// How much of what was asked for is still to be read, likewise.
    ahead: u64,
}

impl Stream {
    /// A read happens; returns what should be staged in for the next ones.
    pub fn on_read(&mut self, offset: u64, bytes: u64, reach: Reach) -> Option<Ahead> {
        if bytes == 0 {
            return None;
        }
        // A file that is read from its beginning is expected to be read on.
        let end = self.offset.checked_add(self.bytes);
        let is_sequential = end == Some(offset) && (self.bytes > 0 || offset == 0);
        let stride = distance(self.offset, offset).filter(|_| self.bytes > 0).unwrap_or(0);
        let is_repeated = stride != 0 && stride == self.stride && bytes == self.bytes;
        let was_sequential = u64::try_from(self.stride) == Ok(self.bytes) && self.bytes > 0;
        if is_sequential {
            // A pattern may turn out to be one, of windows counted in pieces.
            let goes_on = self.bytes == 0 || was_sequential;
            let (window, ahead) = if goes_on { (self.window, self.ahead) } else { (0, 0) };
            let ahead = ahead.saturating_sub(bytes);
            let forward = i64::try_from(bytes).unwrap_or(0);
            *self = Self { offset, bytes, stride: forward, expected: 0, window, ahead };
            return self.sequence_ahead(reach);
        }
        let (expected, window, ahead) = match is_repeated {
            true => (self.expected.saturating_add(1), self.window, self.ahead.saturating_sub(1)),
            false => (0, 0, 0),
        };
        *self = Self { offset, bytes, stride, expected, window, ahead };
        // Three reads with the same distance between them make a pattern.
        if expected == 0 { None } else { self.pattern_ahead(reach) }
    }

    fn sequence_ahead(&mut self, reach: Reach) -> Option<Ahead> {
        let bytes = self.next_window(reach.first, reach.most)?;
        let offset = self.offset.checked_add(self.bytes)?.checked_add(self.ahead)?;
        self.ahead = self.ahead.saturating_add(bytes);
        Some(Ahead { offset, bytes, stride: 0, count: 1 })
    }

    fn pattern_ahead(&mut self, reach: Reach) -> Option<Ahead> {
        let pieces = |bytes: u64| bytes.div_ceil(self.bytes);
        let count = self.next_window(pieces(reach.first), pieces(reach.most))?;
        let skipped = i64::try_from(self.ahead).ok()?.checked_add(1)?.checked_mul(self.stride)?;
        let offset = self.offset.checked_add_signed(skipped)?;
        self.ahead = self.ahead.saturating_add(count);
        Some(Ahead { offset, bytes: self.bytes, stride: self.stride, count })
    }

    /// The size of the next window, if the latest is half read.
    fn next_window(&mut self, first: u64, most: u64) -> Option<u64> {
        if self.ahead > self.window / 2 {
            return None;
        }
        let most = most.max(1);
        self.window = match self.window {
            0 => first.clamp(1, most),
            window => window.saturating_mul(2).min(most),
        };
        Some(self.window)
    }
}

/// A [`Stream`] for a caller that sees reads only when they come to a block that lies below, or
/// that has come up ahead and is read for the first time: what else is read from the fastest tier
/// is not worth the time to look.
///
/// Blocks that follow each other are a sequence, however they are read. Other reads count with
/// their own offsets, so that a pattern is followed whose distance is no multiple of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touches {
    stream: Stream,
    /// The block behind the last one that was touched; 0 before the first.
    next: u64,
}

impl Touches {
    /// A read of `bytes` at `offset` was seen. As [`Stream::on_read`], but the bytes that are named
    /// begin anywhere in a block; the caller brings up whole blocks, counted from that one.
    pub fn on_touch(&mut self, offset: u64, bytes: u64, block_bytes: u64) -> Option<Ahead> {
        let end = offset.checked_add(bytes.checked_sub(1)?)?;
        let (mut first, last) = (offset / block_bytes, end / block_bytes);
        if self.next == last + 1 {
            return None;
        }
        // The last read may have ended in the middle of a block.
        let goes_on = self.next > 0 && first + 1 >= self.next && first <= self.next;
        let goes_on = goes_on && last >= self.next;
        if goes_on {
            first = self.next;
        }
        self.next = last + 1;
        let blocks = last + 1 - first;
        let (offset, bytes) = match goes_on || offset.is_multiple_of(block_bytes) {
            true => (first.checked_mul(block_bytes)?, blocks.checked_mul(block_bytes)?),
            false => (offset, (bytes / block_bytes + 1).checked_mul(block_bytes)?),
        };
        let most = WINDOW_BLOCKS.checked_mul(block_bytes)?;
        self.stream.on_read(offset, bytes, Reach { first: bytes, most })
    }
}

/// From one offset to another.
fn distance(from: u64, to: u64) -> Option<i64> {
    i64::try_from(i128::from(to) - i128::from(from)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix;
    use std::collections::BTreeSet;

    const REACH: Reach = Reach { first: 16 * 1024, most: 128 * 1024 };
    const READ: u64 = 4096;

    /// Reads at these offsets; returns what was staged, what of the reads was staged before, and
    /// how often something was asked for.
    fn follow(offsets: impl Iterator<Item = u64>) -> (BTreeSet<u64>, usize, usize) {
        let mut stream = Stream::default();
        let mut staged = BTreeSet::new();
        let (mut hits, mut asked) = (0, 0);
        for offset in offsets {
            hits += usize::from(staged.contains(&offset));
            let Some(ahead) = stream.on_read(offset, READ, REACH) else { continue };
            asked += 1;
            for (offset, bytes) in ahead.pieces() {
                staged.extend((offset..offset + bytes).step_by(READ as usize));
            }
        }
        (staged, hits, asked)
    }

    #[test]
    fn a_sequence_is_staged_before_it_is_read_in_doubling_windows() {
        let (staged, hits, asked) = follow((0..1_000).map(|n| n * READ));
        assert_eq!(hits, 999);
        assert!(staged.len() <= 1_000 + 64, "at most two windows too far: {}", staged.len());
        assert!(asked <= 1_000 / 32 + 8, "{asked} for 1000 reads");
        let mut stream = Stream::default();
        let windows: Vec<_> = (0..200)
            .filter_map(|n| stream.on_read(n * READ, READ, REACH))
            .map(|ahead| ahead.bytes / READ)
            .collect();
        assert_eq!(windows[..5], [4, 8, 16, 32, 32]);
    }

    #[test]
    fn strides_are_followed_both_ways() {
        let column = (0..500).map(|row| row * 1_000_000 + 8);
        let (staged, hits, _) = follow(column);
        assert!(hits >= 496, "{hits}");
        assert!(staged.iter().all(|offset| offset % 1_000_000 == 8));
        let (_, hits, _) = follow((0..500).rev().map(|n| n * READ));
        assert!(hits >= 496, "backwards: {hits}");
    }

    #[test]
    fn random_reads_stage_nothing() {
        let (staged, ..) = follow((1..2_000).map(|n| mix(n) >> 20));
        assert!(staged.is_empty(), "{}", staged.len());
    }

    #[test]
    fn reading_the_same_again_stages_nothing_more() {
        let (staged, ..) = follow(std::iter::repeat_n(77 * READ, 100));
        assert!(staged.is_empty());
    }

    #[test]
    fn a_jump_begins_anew_with_a_small_window() {
        let mut stream = Stream::default();
        for n in 0..100 {
            stream.on_read(n * READ, READ, REACH);
        }
        assert_eq!(stream.on_read(1 << 40, READ, REACH), None);
        let ahead = stream.on_read((1 << 40) + READ, READ, REACH).unwrap();
        assert_eq!((ahead.offset, ahead.bytes), ((1 << 40) + 2 * READ, REACH.first));
    }

    #[test]
    fn changing_sizes_stay_a_sequence() {
        let mut stream = Stream::default();
        let (mut offset, mut end, mut late) = (0, 0, 0);
        for n in 0..1_000 {
            let bytes = 1 + mix(n) % 10_000;
            late += u32::from(n > 0 && offset + bytes > end);
            if let Some(ahead) = stream.on_read(offset, bytes, REACH) {
                assert_eq!(ahead.count, 1);
                end = end.max(ahead.offset + ahead.bytes);
            }
            offset += bytes;
        }
        assert!(late < 100, "{late} of 1000 reads were not staged");
    }

    const BLOCK: u64 = 256 << 10;

    /// Reads; returns how many of the touched blocks had been brought up, how many had not, and how
    /// many were brought up in vain. A read is seen as a client sees it.
    fn touch(reads: impl Iterator<Item = (u64, u64)>) -> (usize, usize, usize) {
        let (mut touches, mut up, mut read) =
            (Touches::default(), BTreeSet::new(), BTreeSet::new());
        let (mut hits, mut misses) = (0, 0);
        for (offset, bytes) in reads {
            for block in offset / BLOCK..=(offset + bytes - 1) / BLOCK {
                if !read.insert(block) {
                    continue;
                }
                let hit = up.contains(&block);
                (hits, misses) = (hits + usize::from(hit), misses + usize::from(!hit));
                let from = offset.max(block * BLOCK);
                let Some(ahead) = touches.on_touch(from, offset + bytes - from, BLOCK) else {
                    continue;
                };
                for (offset, bytes) in ahead.pieces() {
                    up.extend((0..bytes.div_ceil(BLOCK)).map(|n| offset / BLOCK + n));
                }
            }
        }
        (hits, misses, up.difference(&read).count())
    }

    #[test]
    fn blocks_in_a_row_are_brought_up_however_they_are_read() {
        for bytes in [1, 4096, 100_000, BLOCK, BLOCK + 1, 1 << 20, 3_000_000] {
            let (hits, misses, vain) = touch((0..(64 << 20) / bytes).map(|n| (n * bytes, bytes)));
            let first = bytes.div_ceil(BLOCK) as usize;
            // Half a window is asked for at a time: little for reads of nearly as much.
            let late = misses.saturating_sub(first + 1);
            let most = if bytes > 1 << 20 { hits / 10 } else { 0 };
            assert!(late <= most && hits >= 200, "{bytes}: {hits} hits, {misses} misses");
            assert!(vain <= 2 * WINDOW_BLOCKS as usize, "{bytes}: {vain}");
        }
        let (hits, misses, _) = touch((64..256).map(|n| (n * BLOCK + 7, 4096)));
        assert!(misses <= 3 && hits >= 189, "from the middle: {hits} hits, {misses} misses");
    }

    #[test]
    fn strides_that_are_no_multiple_of_a_block_are_followed() {
        for (stride, bytes) in [(1_000_000, 8), (700_001, 4096), (2 << 20, BLOCK)] {
            let (hits, misses, _) = touch((0..300).map(|n| (12 + n * stride, bytes)));
            assert!(hits >= 9 * misses, "{stride}: {hits} hits, {misses} misses");
        }
        let (hits, misses, _) = touch((0..300).rev().map(|n| (n * 1_000_000, 8)));
        assert!(hits >= 290, "backwards: {hits} hits, {misses} misses");
    }

    #[test]
    fn random_touches_bring_up_nothing() {
        let (hits, _, vain) = touch((1..2_000).map(|n| (mix(n) >> 20, 4096)));
        assert_eq!((hits, vain), (0, 0));
    }

    #[test]
    fn only_slow_places_are_read_ahead() {
        let tier = |bandwidth, latency_ns| crate::TierSnapshot {
            read_bandwidth: bandwidth,
            latency_ns,
            ..crate::TierSnapshot::default()
        };
        let ram = tier(10_000_000_000, 100);
        let hierarchy = Hierarchy::new(&[ram, tier(5_000_000_000, 20_000), tier(500_000_000, 0)]);
        let hierarchy = hierarchy.unwrap().with_store(tier(5_000_000_000, 4_000_000));
        let answers = [0, 1, 2].map(|tier| pays(&hierarchy, Destination::Tier(tier), BLOCK));
        assert_eq!(answers, [false, false, true]);
        assert!(pays(&hierarchy, Destination::Store, BLOCK), "its latency is enough");
        assert!(!pays(&Hierarchy::default(), Destination::Store, BLOCK), "nowhere to bring it");
    }

    #[test]
    fn nothing_overflows() {
        let mut touches = Touches::default();
        let extremes = [0, 1, 4096, 1 << 62, 1 << 63, u64::MAX - 1, u64::MAX];
        for n in 0..50_000 {
            let pick = |n: u64| extremes[(mix(n) % 7) as usize];
            if let Some(ahead) = touches.on_touch(pick(n), pick(n + 1_000_000), BLOCK) {
                assert!(ahead.pieces().take(10).all(|(_, bytes)| bytes > 0));
            }
        }
        let mut stream = Stream::default();
        let extremes = [0, 1, 4096, 1 << 62, 1 << 63, u64::MAX - 1, u64::MAX];
        for n in 0..50_000 {
            let pick = |n: u64| extremes[(mix(n) % 7) as usize];
            let (offset, bytes) = (pick(n), pick(n + 1_000_000));
            let reach = Reach { first: pick(n + 2_000_000), most: pick(n + 3_000_000) };
            if let Some(ahead) = stream.on_read(offset, bytes, reach) {
                assert!(ahead.pieces().take(10).all(|(_, bytes)| bytes > 0));
            }
        }
    }
}
