//! What one reader will read next.

use super::Ahead;
use super::nest::{Nest, Place};

/// Pieces that a reader may leave out, because they are in memory already, and be followed still.
const LEFT_OUT: u32 = 16;
/// Reads in a row that make a sequence, where none before was wrong.
const IN_A_ROW: u32 = 2;
/// How much longer than that a sequence has to be, at most, where others have ended.
const DOUBTS_MAX: u32 = 6;
/// Blocks that were guessed and read after which one doubt less is left.
const RIGHT: u32 = 16;
/// Blocks of one read that are looked ahead whatever the depth.
const READ_MAX: u64 = 64;
/// The first window, in blocks.
const FIRST: u64 = 2;

/// How far a reader may be looked ahead of, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Between the reader and the last block that is asked for.
    pub depth: u64,
    /// More of them now: what [`super::Account`] has, and what there is room for.
    pub more: u64,
}

/// What a read of blocks means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Blocks that are read.
    pub blocks: u64,
    /// Of them, how many were charged for and are there, for [`super::Account::was_used`]: the
    /// first, or none. The others are seen when the read comes to them.
    pub used: u64,
    /// The first was charged for and is not there: it is not brought up yet, or was displaced, so
    /// the reader is to bring it up itself. The guess was in vain.
    pub is_late: bool,
}

/// What one thread reads of one open-file description, and what follows from that. It sees a read
/// only when it comes to a block that lies below, or that has come up ahead and is read for the
/// first time: what else is read from the fastest tier is not worth the time to look.
///
/// Blocks that are read one after the other are a *piece*, however they are read. Two reads in a
/// row make a sequence, and pieces at a distance that repeats, or at distances within each other
/// (tiles), a pattern: records that are read from the last to the first are one, too. Whatever is
/// neither is random, and nothing is guessed. The window begins with two blocks and doubles up to
/// the depth; wrong guesses make it begin anew, later.
///
/// ```
/// use forebay_placement::prefetch::{Limit, Predictor};
///
/// const BLOCK: u64 = 256 << 10;
/// let (mut reader, limit) = (Predictor::default(), Limit { depth: 16, more: 16 });
/// reader.on_touch(0, 4096, false, BLOCK);
/// assert_eq!(reader.ask(limit, BLOCK), None, "one read says nothing");
/// reader.on_touch(BLOCK, 4096, false, BLOCK);
/// let ahead = reader.ask(limit, BLOCK).expect("two in a row are a sequence");
/// assert_eq!((ahead.offset, ahead.bytes), (2 * BLOCK, 2 * BLOCK));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Predictor {
    nest: Nest,
    /// Where the present piece begins, and its first read ended, in bytes.
    start: u64,
    end: u64,
    /// The block behind the last one that was touched; 0 before the first.
    next: u64,
    /// Reads of the present piece.
    touches: u32,
    /// Blocks from the first to the last of the piece before; 0: there was none.
    last: u64,
    /// Of a pattern: bytes from the first to the last one of the longest piece.
    piece: u64,
    /// The last piece that was asked for, and how many of its blocks were.
    front: Place,
    done: u64,
    /// Blocks that were asked for, and not passed by the reader.
    ahead: u64,
    /// Those of them that cost something, see [`Predictor::charge`].
    charged: u64,
    /// Those of them that the latest read is about to come to, and the block that it has come to.
    due: u64,
    came_to: u64,
    window: u64,
    /// Whether more of the window is to be asked for.
    fills: bool,
    doubts: u32,
    right: u32,
}

impl Predictor {
    /// A read of `bytes` at `offset` was seen; whether its first block had been brought up.
    pub fn on_touch(&mut self, offset: u64, bytes: u64, is_up: bool, block_bytes: u64) -> Touched {
        let Some(end) = bytes.checked_sub(1).and_then(|more| offset.checked_add(more)) else {
            return Touched::default();
        };
        let (first, last) = (offset / block_bytes, end / block_bytes);
        if self.next == last + 1 {
            // The rest of the read that was seen last: only now it is known that it is read.
            let was_due = self.due > 0 && first > self.came_to;
            self.came_to = self.came_to.max(first);
            self.due -= u64::from(was_due);
            return self.touched(0, was_due, is_up);
        }
        // The read before may have ended in the middle of this one's first block.
        let fresh = if self.next == first + 1 { self.next } else { first };
        let passed = match self.next {
            0 => None,
            _ => self
                .in_piece(first, last, block_bytes)
                .or_else(|| self.turn(first, last, block_bytes)),
        };
        let mut was_due = false;
        match passed {
            Some(passed) => {
                let blocks = last + 1 - fresh;
                // What was left out is not read any more; this may be the first not asked for.
                let asked = self.ahead.saturating_sub(passed.saturating_sub(blocks));
                let due = blocks.min(asked).min(self.charged);
                was_due = due > 0;
                self.due = due.saturating_sub(1);
                self.ahead = self.ahead.saturating_sub(passed);
                self.charged = (self.charged - due).min(self.ahead);
            }
            None => {
                self.due = 0;
                self.begin(offset, block_bytes);
            }
        }
        self.touches = self.touches.saturating_add(1);
        (self.end, self.next) = (self.end.max(end.saturating_add(1)), last + 1);
        self.came_to = first;
        self.touched(last + 1 - fresh, was_due, is_up)
    }

    /// What a read of so many blocks means, whose first one was charged for or not, and is up or
    /// not. One that was right leaves fewer doubts.
    fn touched(&mut self, blocks: u64, was_due: bool, is_up: bool) -> Touched {
        let is_used = was_due && is_up;
        self.right += u32::from(is_used);
        if self.right >= RIGHT {
            (self.right, self.doubts) = (0, self.doubts.saturating_sub(1));
        }
        Touched { blocks, used: is_used.into(), is_late: was_due && !is_up }
    }

    /// How many blocks, of those that were asked for at most, the reader passes with a read of
    /// these, if that goes on with the present piece.
    fn in_piece(&mut self, first: u64, last: u64, block_bytes: u64) -> Option<u64> {
        let begin = self.start / block_bytes;
        let is_pattern = self.nest.is_pattern();
        // Blocks that are left out are in memory already.
        let known = match is_pattern {
            true => self.piece_blocks(self.start, block_bytes).saturating_sub(1),
            false => self.done,
        };
        let known = begin.saturating_add(known).max(self.next);
        if first + 1 < self.next || first > known || last < self.next {
            return None;
        }
        let length = last + 1 - begin;
        let piece = self.piece_blocks(self.start, block_bytes);
        if is_pattern && length > 2 * piece + 1 {
            // Pieces are no more what is read.
            self.nest = Nest::new(self.start);
            (self.last, self.piece) = (0, 0);
            (self.ahead, self.charged, self.window, self.done) = (0, 0, 0, length);
            return Some(0);
        }
        if is_pattern && length > piece {
            // Those that were asked for were too short.
            self.piece = (last + 1).saturating_mul(block_bytes) - self.start;
            (self.ahead, self.charged, self.due) = (0, 0, 0);
            (self.front, self.done) = (self.nest.place(), length);
            return Some(0);
        }
        Some(last + 1 - self.next)
    }

    /// The same if it begins one of the pieces that a pattern goes on with.
    fn turn(&mut self, first: u64, last: u64, block_bytes: u64) -> Option<u64> {
        let end = self.start / block_bytes + self.piece_blocks(self.start, block_bytes);
        let (mut place, mut passed) = (self.nest.place(), end.saturating_sub(self.next));
        for _ in 0..LEFT_OUT {
            (place, _) = self.nest.after(&place)?;
            let begin = place.offset() / block_bytes;
            let length = self.piece_blocks(place.offset(), block_bytes);
            if !(begin..begin + length).contains(&first) {
                passed += length;
                continue;
            }
            self.nest.go_to(place);
            (self.start, self.end, self.touches) = (place.offset(), place.offset(), 0);
            if self.ahead > passed {
                return Some(passed + last + 1 - begin);
            }
            (self.front, self.done, self.ahead) = (place, 0, 0);
            return Some(0);
        }
        None
    }

    /// Blocks in which a piece of a pattern lies that begins here.
    fn piece_blocks(&self, start: u64, block_bytes: u64) -> u64 {
        self.piece.max(1).saturating_add(start % block_bytes).div_ceil(block_bytes)
    }

    /// What is read was not expected: another piece begins, and what was asked for is forgotten.
    fn begin(&mut self, offset: u64, block_bytes: u64) {
        if self.charged > 0 {
            self.doubts = (self.doubts + 1).min(DOUBTS_MAX);
        }
        (self.ahead, self.charged, self.due, self.window, self.done) = (0, 0, 0, 0, 0);
        self.fills = false;
        if self.next == 0 {
            self.nest = Nest::new(offset);
        } else {
            let length = self.end.saturating_sub(self.start);
            self.last = self.next.saturating_sub(self.start / block_bytes);
            self.nest.learn(offset);
            self.piece = if self.nest.is_pattern() { self.piece.max(length) } else { length };
        }
        (self.start, self.end, self.touches) = (offset, offset, 0);
        self.front = self.nest.place();
    }

    /// What is to be asked for now, if anything; to be called until that is nothing. Each answer is
    /// a part of what the reader will read, in its order.
    pub fn ask(&mut self, limit: Limit, block_bytes: u64) -> Option<Ahead> {
        let is_pattern = self.nest.is_pattern();
        if !is_pattern && self.touches < IN_A_ROW + self.doubts {
            return None;
        }
        // At least as much as the next read is likely to be, and the one after it.
        let blocks = self.next - self.start / block_bytes;
        let read = (blocks / u64::from(self.touches.max(1))).clamp(1, READ_MAX);
        if !self.fills {
            // More once a quarter of the window is read: not with every block.
            if self.window > 0 && self.ahead > self.window * 3 / 4 {
                return None;
            }
            let window = match self.window {
                0 => FIRST.max(read),
                window => window.saturating_mul(2),
            };
            self.window = window.min(limit.depth.max(2 * read));
        }
        let more = self.window.saturating_sub(self.ahead).min(limit.more);
        let ahead = match is_pattern {
            _ if more == 0 => None,
            true => self.ask_pieces(more, block_bytes),
            false => self.ask_in_a_row(more, block_bytes),
        };
        self.fills = ahead.is_some() && self.ahead < self.window;
        ahead
    }

    fn ask_in_a_row(&mut self, more: u64, block_bytes: u64) -> Option<Ahead> {
        let begin = self.start / block_bytes;
        let read = self.next - begin;
        let from = self.done.max(read);
        // The piece before ended somewhere: so may this one, until it is longer.
        let more = if read <= self.last { more.min(self.last.saturating_sub(from)) } else { more };
        if more == 0 {
            return None;
        }
        self.done = from + more;
        self.ahead = self.done - read;
        let offset = (begin + from).checked_mul(block_bytes)?;
        let bytes = more.checked_mul(block_bytes)?;
        Some(Ahead { offset, bytes, stride: i64::try_from(bytes).ok()?, count: 1 })
    }

    fn ask_pieces(&mut self, more: u64, block_bytes: u64) -> Option<Ahead> {
        if self.front == self.nest.place() {
            let read = self.next.saturating_sub(self.start / block_bytes);
            self.done = self.done.max(read);
        }
        let length = self.piece_blocks(self.front.offset(), block_bytes);
        if self.done >= length {
            let (next, _) = self.nest.after(&self.front)?;
            (self.front, self.done) = (next, 0);
        }
        let at = self.front;
        let length = self.piece_blocks(at.offset(), block_bytes);
        let begin = at.offset() / block_bytes;
        if self.done > 0 || length > more {
            // A part of a piece.
            let blocks = (length - self.done).min(more);
            let offset = (begin + self.done).checked_mul(block_bytes)?;
            self.done += blocks;
            self.ahead += blocks;
            let bytes = blocks.checked_mul(block_bytes)?;
            let stride = if self.nest.stride() < 0 { -1 } else { 1 };
            let stride = i64::try_from(bytes).ok()?.checked_mul(stride)?;
            return Some(Ahead { offset, bytes, stride, count: 1 });
        }
        // As many whole pieces as follow each other at one stride.
        let (mut count, mut blocks) = (1, length);
        while let Some((next, 0)) = self.nest.after(&self.front) {
            let length = self.piece_blocks(next.offset(), block_bytes);
            if blocks + length > more {
                break;
            }
            (count, blocks) = (count + 1, blocks + length);
            self.front = next;
        }
        self.done = self.piece_blocks(self.front.offset(), block_bytes);
        self.ahead += blocks;
        Some(Ahead {
            offset: at.offset(),
            bytes: self.piece.max(1),
            stride: self.nest.stride(),
            count,
        })
    }

    /// Blocks that were asked for, and not passed by the reader.
    pub fn ahead(&self) -> u64 {
        self.ahead
    }

    /// So many blocks of what was asked for are brought up: the others were there, or are none.
    pub fn charge(&mut self, blocks: u64) {
        self.charged = self.charged.saturating_add(blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::super::account::{Account, GRACE};
    use super::*;
    use crate::mix;
    use std::collections::BTreeSet;

    const BLOCK: u64 = 256 << 10;
    const LIMIT: Limit = Limit { depth: 16, more: u64::MAX };

    #[derive(Debug, Default)]
    struct Seen {
        /// Blocks that had been brought up before they were read, that had not, and that were
        /// brought up and not read.
        hits: usize,
        misses: usize,
        vain: usize,
        asked: usize,
        bytes: u64,
    }

    /// Reads, as a client sees and pays them.
    fn read_by(
        reader: &mut Predictor,
        reads: impl Iterator<Item = (u64, u64)>,
        limit: Limit,
    ) -> Seen {
        let account = Account::default();
        let (mut up, mut read, mut total) = (BTreeSet::new(), BTreeSet::new(), 0);
        let mut seen = Seen::default();
        for (offset, bytes) in reads {
            seen.bytes += bytes;
            for block in offset / BLOCK..=(offset + bytes - 1) / BLOCK {
                if !read.insert(block) {
                    continue;
                }
                match up.contains(&block) {
                    true => seen.hits += 1,
                    false => seen.misses += 1,
                }
                let from = offset.max(block * BLOCK);
                let Touched { blocks, used, .. } =
                    reader.on_touch(from, offset + bytes - from, up.contains(&block), BLOCK);
                account.was_used(used * BLOCK);
                account.was_read(blocks * BLOCK);
                total += blocks * BLOCK;
                loop {
                    let more = limit.more.min(account.balance() / BLOCK);
                    let Some(ahead) = reader.ask(Limit { more, ..limit }, BLOCK) else { break };
                    seen.asked += 1;
                    let mut fresh = 0;
                    for (offset, bytes) in ahead.pieces() {
                        for block in offset / BLOCK..=(offset + bytes - 1) / BLOCK {
                            fresh += u64::from(!read.contains(&block) && up.insert(block));
                        }
                    }
                    assert_eq!(account.take(fresh * BLOCK), fresh * BLOCK, "{ahead:?}");
                    reader.charge(fresh);
                }
            }
            let vain = up.difference(&read).count() as u64 * BLOCK;
            let allowed = GRACE as u64 + total / 20;
            assert!(vain <= allowed, "{vain} of {allowed} bytes in vain");
        }
        seen.vain = up.difference(&read).count();
        seen
    }

    fn read(reads: impl Iterator<Item = (u64, u64)>) -> Seen {
        read_by(&mut Predictor::default(), reads, LIMIT)
    }

    #[test]
    fn blocks_in_a_row_are_brought_up_however_they_are_read() {
        for bytes in [4096, 100_000, BLOCK, BLOCK + 1, 1 << 20, 3_000_000] {
            let seen = read((0..(256 << 20) / bytes).map(|n| (n * bytes, bytes)));
            let first = 2 * bytes.div_ceil(BLOCK) as usize;
            assert!(seen.misses <= first + 12, "{bytes}: {seen:?}");
            assert!(seen.hits >= 980 && seen.vain <= 24, "{bytes}: {seen:?}");
        }
        let seen = read((64..256).map(|n| (n * BLOCK + 7, 4096)));
        assert!(seen.misses <= 3 && seen.hits >= 189, "from the middle: {seen:?}");
    }

    #[test]
    fn requests_are_fewer_than_blocks() {
        let seen = read((0..4096).map(|n| (n * BLOCK, BLOCK)));
        assert!(seen.asked < 4096 / 3, "{seen:?}");
    }

    #[test]
    fn strides_are_followed_both_ways_whatever_their_distance() {
        for (stride, bytes) in [(1_000_000, 8), (700_001, 4096), (2 << 20, BLOCK)] {
            let up = (0..400).map(|n| (12 + n * stride, bytes));
            for reads in [up.clone().collect::<Vec<_>>(), up.rev().collect()] {
                let seen = read(reads.into_iter());
                assert!(seen.hits >= 30 * seen.misses && seen.vain <= 16, "{stride}: {seen:?}");
            }
        }
    }

    #[test]
    fn tiles_are_followed_from_row_to_row() {
        // Forty rows of a tile of 8 pieces, 3 blocks apart; rows are 100 blocks apart.
        for bytes in [4096, BLOCK, 2 * BLOCK] {
            let tile = (0..40).flat_map(|row| (0..8).map(move |n| (100 * row + 3 * n) * BLOCK));
            let seen = read(tile.map(|offset| (offset, bytes)));
            assert!(seen.hits >= 14 * seen.misses, "{bytes}: {seen:?}");
            assert!(seen.vain <= 32, "{bytes}: {seen:?}");
        }
    }

    #[test]
    fn pieces_of_a_tile_that_are_read_bit_by_bit_are_followed() {
        // Rows of 600 KiB, 5 MiB apart, in reads of 4 KiB.
        let rows =
            (0..200).flat_map(|row| (0..150).map(move |n| (row * (5 << 20) + n * 4096, 4096)));
        let seen = read(rows);
        assert!(seen.hits >= 30 * seen.misses && seen.vain <= 20, "{seen:?}");
    }

    #[test]
    fn records_from_the_last_to_the_first_are_followed() {
        for record in [BLOCK, 1_000_000, 1 << 20, 2_500_000] {
            for bytes in [4096, 65_536, record] {
                let records = (0..200).rev();
                let reads = records.flat_map(|number| {
                    let reads = (0..record.div_ceil(bytes)).map(move |n| n * bytes);
                    reads.map(move |at| (number * record + at, bytes.min(record - at)))
                });
                let seen = read(reads);
                let all = (200 * record / BLOCK) as usize;
                assert!(seen.hits * 100 >= 94 * all, "{record} by {bytes}: {seen:?} of {all}");
                assert!(seen.vain <= 16, "{record} by {bytes}: {seen:?}");
            }
        }
    }

    #[test]
    fn reads_at_random_bring_up_nothing() {
        for seed in 0..100 {
            let seen = read((0..400).map(|n| (mix(seed << 32 | n) >> 20, 4096)));
            assert_eq!((seen.hits, seen.vain), (0, 0), "seed {seed}");
        }
    }

    #[test]
    fn reads_at_random_of_a_small_file_cost_little() {
        // Neighbours are read one after the other by chance, one time in fifty.
        for seed in 0..100 {
            let seen = read((0..600).map(|n| (mix(seed << 32 | n) % 2000 * BLOCK / 4, 4096)));
            assert!(seen.vain <= 16 + 500 / 20, "seed {seed}: {seen:?}");
        }
    }

    /// Whatever the reads, what is in vain is within the account: `read_by` looks at each step.
    #[test]
    fn patterns_that_are_made_to_mislead_cost_a_twentieth() {
        let far = |n: u64| mix(n) >> 24;
        for length in 2..40 {
            // As many in a row as it takes to be believed, then elsewhere.
            let rows = (0..300)
                .flat_map(|n| (0..length).map(move |at| far(n) / BLOCK * BLOCK + at * BLOCK));
            let seen = read(rows.map(|offset| (offset, BLOCK)));
            assert!(seen.vain <= 16 + (seen.hits + seen.misses) / 20, "{length}: {seen:?}");
            let strides =
                (0..300).flat_map(|n| (0..length).map(move |at| far(n) + at * 10 * BLOCK));
            let seen = read(strides.map(|offset| (offset, 4096)));
            assert!(seen.vain <= 16 + (seen.hits + seen.misses) / 20, "{length}: {seen:?}");
        }
        for seed in 0..100 {
            let mut at = 1 << 40;
            let reads = (0..800).map(|n| {
                let number = mix(seed << 32 | n);
                let step =
                    [BLOCK, BLOCK, 3 * BLOCK, 3 * BLOCK, number >> 40][(number % 5) as usize];
                at = if number & 64 == 0 { at + step } else { at - step / 2 };
                (at, 1 + (number >> 30) % (2 * BLOCK))
            });
            read(reads);
        }
    }

    /// Blocks that come up and are displaced before the reader comes to them are in vain, though
    /// the pattern is right: the account ends that.
    #[test]
    fn blocks_that_are_displaced_before_they_are_read_are_in_vain() {
        for reads in [1_u64, 7] {
            let (mut reader, account) = (Predictor::default(), Account::default());
            let (mut guessed, mut late, mut read) = (0, 0, 0);
            for n in 0..4000 / reads {
                for block in n * reads..(n + 1) * reads {
                    let bytes = (n + 1) * reads - block;
                    let touched = reader.on_touch(block * BLOCK, bytes * BLOCK, false, BLOCK);
                    assert_eq!(touched.used, 0);
                    late += u64::from(touched.is_late);
                    read += touched.blocks;
                    account.was_read(touched.blocks * BLOCK);
                    let limit = Limit { more: account.balance() / BLOCK, ..LIMIT };
                    while let Some(ahead) = reader.ask(limit, BLOCK) {
                        let taken = account.take(ahead.blocks(BLOCK) * BLOCK) / BLOCK;
                        reader.charge(taken);
                        guessed += taken;
                        if account.balance() < BLOCK {
                            break;
                        }
                    }
                }
            }
            assert_eq!(read, 4000 / reads * reads);
            let allowed = (GRACE as u64 / BLOCK) + read / 20;
            assert!((1..=allowed).contains(&guessed), "{guessed} of {allowed}");
            assert!(late > 0 && late <= guessed, "{late} of {guessed} are fetched by the reader");
        }
    }

    #[test]
    fn wrong_guesses_make_a_sequence_have_to_be_longer() {
        let mut reader = Predictor::default();
        let runs = (0..40).flat_map(|n| {
            (0..3 + n % 5).map(move |at| (mix(n) >> 40) / BLOCK * BLOCK + at * BLOCK)
        });
        read_by(&mut reader, runs.map(|offset| (offset, BLOCK)), LIMIT);
        assert!(reader.doubts > 0);
        let asked = |count: u64, reader: &mut Predictor| {
            let reads = (0..count).map(|n| ((1 << 30) + n * BLOCK, BLOCK));
            read_by(reader, reads, LIMIT).asked
        };
        assert_eq!(asked(2, &mut reader.clone()), 0);
        assert!(asked(200, &mut reader) > 10);
        assert_eq!(reader.doubts, 0, "those that were right count, too");
    }

    #[test]
    fn nothing_overflows() {
        let mut reader = Predictor::default();
        let extremes = [0, 1, 4096, 1 << 62, 1 << 63, u64::MAX - 1, u64::MAX];
        for n in 0..100_000 {
            let pick = |n: u64| match mix(n) % 8 {
                7 => mix(n + 1) >> ((mix(n) >> 32) % 60),
                which => extremes[which as usize],
            };
            let Touched { used, .. } =
                reader.on_touch(pick(n), pick(n + 1_000_000), n % 2 == 0, BLOCK);
            assert!(used <= 1);
            let limit = Limit { depth: pick(n + 2_000_000), more: pick(n + 3_000_000) };
            for _ in 0..3 {
                let Some(ahead) = reader.ask(limit, BLOCK) else { break };
                assert!(ahead.pieces().take(10).all(|(_, bytes)| bytes > 0));
                reader.charge(pick(n + 4_000_000));
            }
        }
    }
}
