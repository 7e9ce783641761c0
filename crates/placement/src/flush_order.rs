//! In what order, and in which pieces, dirty bytes go to the store: neighbours together, ascending
//! in each file, with borders on those of the store's stripes.
//!
//! ```
//! use forebay_placement::flush_order::{Extent, Limits, order};
//!
//! let extent = |offset| Extent { file: 1, offset, bytes: 4, id: 0 };
//! let mut dirty = [extent(8), extent(0), extent(4), extent(20)];
//! let writes = order(&mut dirty, Limits { most: 16, stripe: 0 });
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a write at most.
    pub most: u64,
    /// Bytes of a stripe or block of the store; 0 or 1 = no matter.
    pub stripe: u64,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix;

    fn extent(file: u32, offset: u64, bytes: u64) -> Extent {
        Extent { file, offset, bytes, id: 0 }
    }

    fn writes(extents: &mut [Extent], most: u64, stripe: u64) -> Vec<(u32, u64, u64)> {
        let writes = order(extents, Limits { most, stripe });
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
            let limits = Limits { most: lot(2, 30), stripe: lot(3, 12) };
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
                assert!(!goes_on || on_border || is_full, "seed {seed}: {found:?}");
            }
        }
    }
}
