//! In what order, and in which pieces, dirty bytes go to the store: neighbours together, ascending
//! in each file, with borders on those of the store's stripes.
//!
//! ```
//! use forebay_placement::flush_order::{Extent, Limits, order};
//!
//! let extent = |offset| Extent { file: 1, offset, bytes: 4, id: 0 };
//! let mut dirty = [extent(8), extent(0), extent(4), extent(20)];
//! let writes = order(&mut dirty, Limits { most: 16, ..Limits::default() });
//! let writes: Vec<_> = writes.map(|write| (write.offset, write.bytes)).collect();
//! assert_eq!(writes, [(0, 12), (20, 4)]);
//! ```

use std::ops::Range;

/// A stretch of dirty bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// The caller's name of the file.
    pub file: u32,
    /// Where it begins.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
    /// The caller's name of the place that it lies in.
    pub id: u32,
}

/// What a single write may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a write at most.
    pub most: u64,
    /// Bytes of a stripe or block of the store; 0 or 1 = no matter.
    pub stripe: u64,
    /// Each write stays in one stripe, so that one server alone has to do with it (Data Elevator,
    /// section III-C); 0 or 1 = no matter.
    pub within: u64,
}

impl Limits {
    /// Those of staged files: a write is a stripe, as far as there are neighbouring bytes.
    pub fn one_stripe(stripe: u64) -> Limits {
        Limits { most: stripe, stripe, within: stripe }
    }
}

/// A write to the store: consecutive bytes of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The file.
    pub file: u32,
    /// Where the write begins.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
    /// The extents it takes its bytes from, in the order of the slice; the first and the last
    /// perhaps only in part.
    pub extents: Range<usize>,
}

/// Sorts extents by file and offset, and cuts them into writes. Extents must not overlap.
///
/// Adjacent extents are joined up to the limit. A write that would end inside a run of them ends at
/// the last border of a stripe before that, if there is one; so of a long run only the first and
/// the last write touch part of a stripe.
pub fn order(extents: &mut [Extent], limits: Limits) -> impl Iterator<Item = Write> + '_ {
    extents.sort_unstable();
    let most = limits.most.max(1);
    let (mut next, mut done) = (0, 0);
    std::iter::from_fn(move || {
        while extents.get(next)?.bytes == done {
            (next, done) = (next + 1, 0);
        }
        let Extent { file, offset, .. } = extents[next];
        let start = offset + done;
        let most = match limits.within {
            0 | 1 => most,
            within => most.min(within - start % within),
        };
        let mut end = start;
        let mut last = next;
        for (index, extent) in extents.iter().enumerate().skip(next) {
            let goes_on = extent.file == file && extent.offset <= end && end - start < most;
            if !goes_on {
                break;
            }
            (last, end) = (index, extent.offset.saturating_add(extent.bytes));
        }
        if end - start > most {
            let limit = start + most;
            let border = limit - limit % limits.stripe.max(1);
            end = if border > start { border } else { limit };
        }
        // Back to the extent that the border lies in.
        while extents[last].offset >= end {
            last -= 1;
        }
        let write = Write { file, offset: start, bytes: end - start, extents: next..last + 1 };
        (next, done) = (last, end - extents[last].offset);
        Some(write)
    })
}

/// How many of these blocks of a file, whose numbers ascend, are flushed together: at most `most`,
/// and as many as end with a stripe, of `per_stripe` blocks each, where any do; so the next begin
/// with one. 0 if there are none.
///
/// ```
/// use forebay_placement::flush_order::batch_len;
///
/// assert_eq!(batch_len(&[0, 1, 2, 3, 4, 5, 6], 6, 4), 4);
/// assert_eq!(batch_len(&[2, 3, 4, 5, 6, 7], 4, 4), 2);
/// assert_eq!(batch_len(&[0, 1, 2, 3], 3, 4), 3, "a stripe that is too long");
/// assert_eq!(batch_len(&[0, 1], 3, 4), 2, "the end of the file");
/// ```
pub fn batch_len(blocks: &[u64], most: usize, per_stripe: u64) -> usize {
    let per_stripe = per_stripe.max(1);
    let most = most.max(1);
    if blocks.len() <= most {
        return blocks.len();
    }
    let is_border = |&len: &usize| blocks[len - 1] / per_stripe != blocks[len] / per_stripe;
    (1..=most).rev().find(is_border).unwrap_or(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix;

    fn extent(file: u32, offset: u64, bytes: u64) -> Extent {
        Extent { file, offset, bytes, id: 0 }
    }

    fn writes(extents: &mut [Extent], most: u64, stripe: u64) -> Vec<(u32, u64, u64)> {
        let writes = order(extents, Limits { most, stripe, within: 0 });
        writes.map(|write| (write.file, write.offset, write.bytes)).collect()
    }

    #[test]
    fn neighbours_go_together_and_files_in_order() {
        let mut extents =
            [extent(2, 0, 4), extent(1, 8, 4), extent(1, 0, 4), extent(1, 4, 4), extent(1, 20, 1)];
        assert_eq!(writes(&mut extents, 100, 0), [(1, 0, 12), (1, 20, 1), (2, 0, 4)]);
    }

    #[test]
    fn long_runs_are_cut_at_the_borders_of_stripes() {
        let mut run = [extent(1, 3, 17), extent(1, 20, 30)];
        assert_eq!(writes(&mut run, 16, 8), [(1, 3, 13), (1, 16, 16), (1, 32, 16), (1, 48, 2)]);
        let mut run = [extent(1, 3, 12)];
        assert_eq!(writes(&mut run, 5, 8), [(1, 3, 5), (1, 8, 5), (1, 13, 2)], "small limit");
        let mut run = [extent(1, 3, 12)];
        assert_eq!(writes(&mut run, 100, 8), [(1, 3, 12)], "one write is no reason to cut");
    }

    #[test]
    fn each_write_of_a_staged_file_is_a_stripe() {
        let mut run = [extent(1, 0, 20), extent(1, 20, 13)];
        let found: Vec<_> = order(&mut run, Limits::one_stripe(8)).collect();
        let found: Vec<_> = found.iter().map(|write| (write.offset, write.bytes)).collect();
        assert_eq!(found, [(0, 8), (8, 8), (16, 8), (24, 8), (32, 1)]);
        // Bytes that begin inside a stripe end with it, also where they would fit into one write.
        let mut run = [extent(1, 6, 4)];
        let found: Vec<_> = order(&mut run, Limits::one_stripe(8)).collect();
        let found: Vec<_> = found.iter().map(|write| (write.offset, write.bytes)).collect();
        assert_eq!(found, [(6, 2), (8, 2)]);
    }

    #[test]
    fn batches_end_with_stripes() {
        for seed in 0..2_000 {
            let lot = |n: u64, below: u64| mix(seed * 1_000 + n) % below;
            let mut blocks = Vec::new();
            let mut next = lot(0, 5);
            for n in 0..lot(1, 40) {
                blocks.push(next);
                next += 1 + if lot(n + 10, 4) == 0 { lot(n + 60, 9) } else { 0 };
            }
            let (most, per_stripe) = (lot(2, 20) as usize, lot(3, 9));
            let mut rest = &blocks[..];
            while !rest.is_empty() {
                let len = batch_len(rest, most, per_stripe);
                assert!((1..=most.max(1)).contains(&len), "seed {seed}");
                let (batch, others) = rest.split_at(len);
                rest = others;
                let per_stripe = per_stripe.max(1);
                let goes_on = others
                    .first()
                    .is_some_and(|other| other / per_stripe == batch[len - 1] / per_stripe);
                let is_one = batch[0] / per_stripe == batch[len - 1] / per_stripe;
                assert!(!goes_on || is_one && len == most.max(1), "seed {seed}: {batch:?}");
            }
        }
        assert_eq!(batch_len(&[], 4, 4), 0);
    }

    #[test]
    fn every_byte_is_written_once_and_limits_hold() {
        for seed in 0..5_000 {
            let lot = |n: u64, below: u64| mix(seed * 1_000 + n) % below;
            let mut extents = Vec::new();
            let mut offset = 0;
            for n in 0..lot(0, 12) {
                offset += if lot(n + 10, 2) == 0 { 0 } else { lot(n + 20, 9) };
                let bytes = lot(n + 30, 20);
                extents.push(Extent { id: n as u32, ..extent(lot(1, 2) as u32, offset, bytes) });
                offset += bytes;
            }
            extents.sort_by_key(|extent| mix(u64::from(extent.id) + seed));
            let within = if lot(4, 2) == 0 { 0 } else { lot(5, 12) };
            let limits = Limits { most: lot(2, 30), stripe: lot(3, 12), within };
            let expected: Vec<_> = {
                let mut bytes: Vec<_> =
                    extents.iter().flat_map(|e| e.offset..e.offset + e.bytes).collect();
                bytes.sort_unstable();
                bytes
            };
            let found: Vec<_> = order(&mut extents, limits).collect();
            let mut bytes = Vec::new();
            for write in &found {
                assert!(write.bytes > 0 && write.bytes <= limits.most.max(1), "seed {seed}");
                let range = write.offset..write.offset + write.bytes;
                if within > 1 {
                    assert_eq!(range.start / within, (range.end - 1) / within, "seed {seed}");
                }
                bytes.extend(range.clone());
                let of = &extents[write.extents.clone()];
                let inside = |e: &Extent| e.offset < range.end && e.offset + e.bytes > range.start;
                assert!(of.iter().all(|e| e.bytes == 0 || inside(e)), "seed {seed}: {write:?}");
                let sum: u64 = of
                    .iter()
                    .map(|e| {
                        (e.offset + e.bytes)
                            .min(range.end)
                            .saturating_sub(e.offset.max(range.start))
                    })
                    .sum();
                assert_eq!(sum, write.bytes, "seed {seed}: {write:?}");
            }
            assert_eq!(bytes, expected, "seed {seed}: {found:?}");
            for pair in found.windows(2) {
                let goes_on = pair[0].offset + pair[0].bytes == pair[1].offset;
                let on_border = pair[1].offset.is_multiple_of(limits.stripe.max(1));
                let is_full = pair[0].bytes == limits.most.max(1);
                let is_next = within > 1 && pair[1].offset.is_multiple_of(within);
                assert!(!goes_on || on_border || is_full || is_next, "seed {seed}: {found:?}");
            }
        }
    }
}
