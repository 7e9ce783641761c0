//! The pieces of a file that a view makes of consecutive units: where they lie, and how they follow
//! each other.
//!
//! The MPI library says of a unit where it lies (`MPI_File_get_byte_offset`), whatever the type is
//! that the view is made of. Units of a view never go back, so that those between two which lie as
//! far apart as so many units take lie together: the end of a piece is found in a few questions.

/// Pieces that are looked at one by one; where all of them are alike, so are those behind them.
const LOOKED_AT: u64 = 64;

/// Pieces of one length, each as far from the one before it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Where the first begins.
    pub offset: u64,
    /// Bytes of each.
    pub bytes: u64,
    /// Bytes from each to the next; of one piece its length.
    pub stride: i64,
    /// How many.
    pub count: u64,
}

/// The units from 0 to `end`, each of `unit` bytes, where `place` says where one lies: `None` where
/// they are more than `MOST` rows or more pieces than `most`, or `place` does not know them all.
pub(crate) fn all_rows<const MOST: usize>(
    end: i64,
    unit: u64,
    most: u64,
    mut place: impl FnMut(i64) -> Option<u64>,
) -> Option<([Row; MOST], usize)> {
    let none = Row { offset: 0, bytes: 0, stride: 0, count: 0 };
    let (mut found, mut count) = ([none; MOST], 0);
    let (mut at, mut length, mut seen) = (0, 0, 0);
    while at < end {
        seen += 1;
        let offset = place(at).filter(|_| seen <= most)?;
        length = length_of_piece(at, end, unit, offset, length, &mut place)?;
        let bytes = length as u64 * unit;
        if !extend(&mut found[..count], offset, bytes) {
            *found.get_mut(count)? = Row { offset, bytes, stride: bytes as i64, count: 1 };
            count += 1;
        }
        at += length;
    }
    Some((found, count))
}

/// The units from `first` to `end`, each of `unit` bytes, where `place` says where one lies: rows
/// in the order of the file, `MOST` at most. Ends where `place` knows no more.
pub(crate) fn rows<const MOST: usize>(
    first: i64,
    end: i64,
    unit: u64,
    mut place: impl FnMut(i64) -> Option<u64>,
) -> ([Row; MOST], usize) {
    let none = Row { offset: 0, bytes: 0, stride: 0, count: 0 };
    let (mut found, mut count) = ([none; MOST], 0);
    let (mut at, mut length, mut seen) = (first, 0, 0);
    while at < end {
        if seen == LOOKED_AT && count == 1 {
            // All of them were alike: so are the others.
            let row = &mut found[0];
            let units = (end - first) as u64;
            row.count = (units * unit).div_ceil(row.bytes.max(1));
            break;
        }
        let Some(offset) = place(at).filter(|_| seen < LOOKED_AT) else { break };
        let Some(units) = length_of_piece(at, end, unit, offset, length, &mut place) else { break };
        length = units;
        let bytes = units as u64 * unit;
        if !extend(&mut found[..count], offset, bytes) {
            let Some(row) = found.get_mut(count) else { break };
            *row = Row { offset, bytes, stride: bytes as i64, count: 1 };
            count += 1;
        }
        at += units;
        seen += 1;
    }
    (found, count)
}

/// Whether the piece continues the last row, to which it then belongs.
fn extend(rows: &mut [Row], offset: u64, bytes: u64) -> bool {
    let Some(row) = rows.last_mut() else { return false };
    let end = row.offset.checked_add_signed(row.stride.saturating_mul(row.count as i64 - 1));
    let Some(stride) = end.and_then(|last| offset.checked_sub(last)) else { return false };
    let fits = row.count == 1 || row.stride == stride as i64;
    if row.bytes == bytes && fits {
        row.stride = stride as i64;
        row.count += 1;
        return true;
    }
    false
}

/// How many units lie together from the one at `at` on, whose place is `offset`. `like` is how many
/// they were in the piece before.
fn length_of_piece(
    at: i64,
    end: i64,
    unit: u64,
    offset: u64,
    like: i64,
    place: &mut impl FnMut(i64) -> Option<u64>,
) -> Option<i64> {
    let left = end - at;
    let mut lies_together =
        |more: i64| place(at + more).map(|found| found == offset + more as u64 * unit);
    // Mostly pieces have one length.
    if (1..left).contains(&like) && lies_together(like - 1)? && !lies_together(like)? {
        return Some(like);
    }
    if lies_together(left - 1)? {
        return Some(left);
    }
    // The last that is known to lie together, and the first that does not.
    let (mut good, mut bad) = (0, left - 1);
    let mut step = 1;
    while good + step < bad {
        match lies_together(good + step)? {
            true => good += step,
            false => {
                bad = good + step;
                break;
            }
        }
        step *= 2;
    }
    while good + 1 < bad {
        let middle = good + (bad - good) / 2;
        if lies_together(middle)? { good = middle } else { bad = middle }
    }
    Some(good + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Rows of a view whose tile has these pieces, in units, and this extent.
    fn of_view(pieces: &[(u64, u64)], extent: u64, unit: u64, first: i64, end: i64) -> Vec<Row> {
        let size: u64 = pieces.iter().map(|piece| piece.1).sum();
        let place = |at: i64| {
            let (tile, mut inside) = (at as u64 / size, at as u64 % size);
            for (start, length) in pieces {
                if inside < *length {
                    return Some((tile * extent + start + inside) * unit);
                }
                inside -= length;
            }
            None
        };
        let (found, count) = rows::<8>(first, end, unit, place);
        found[..count].to_vec()
    }

    #[test]
    fn a_view_without_holes_is_one_piece() {
        let row = Row { offset: 800, bytes: 8000, stride: 8000, count: 1 };
        assert_eq!(of_view(&[(0, 1)], 1, 8, 100, 1100), [row]);
    }

    #[test]
    fn equal_distances_make_one_row() {
        // Three of ten units.
        let row = |offset, count| Row { offset, bytes: 12, stride: 40, count };
        assert_eq!(of_view(&[(2, 3)], 10, 4, 0, 30), [row(8, 10)]);
        // More than are looked at.
        assert_eq!(of_view(&[(2, 3)], 10, 4, 0, 3000), [row(8, 1000)]);
        // It begins and ends in the middle of a piece.
        let part = |offset, bytes| Row { offset, bytes, stride: bytes as i64, count: 1 };
        assert_eq!(of_view(&[(2, 3)], 10, 4, 1, 8), [part(12, 8), part(48, 12), part(88, 8)]);
    }

    #[test]
    fn unequal_pieces_are_found_as_they_are() {
        let pieces = [(0, 1), (5, 100), (200, 7)];
        let found = of_view(&pieces, 1000, 8, 0, 108);
        let wanted = pieces.map(|(start, length)| Row {
            offset: start * 8,
            bytes: length * 8,
            stride: length as i64 * 8,
            count: 1,
        });
        assert_eq!(found, wanted);
        // No more than there is room for.
        assert_eq!(of_view(&pieces, 1000, 8, 0, 108_000).len(), 8);
    }

    #[test]
    fn what_is_found_is_what_a_view_has() {
        let mut seed = 7u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..500 {
            let (mut at, mut pieces) = (0, Vec::new());
            for _ in 0..1 + random(4) {
                at += random(5);
                let length = 1 + random(9);
                pieces.push((at, length));
                at += length;
            }
            let (extent, unit) = (at + random(6), 1 + random(8));
            let first = random(50) as i64;
            let end = first + 1 + random(60) as i64;
            let size: u64 = pieces.iter().map(|piece| piece.1).sum();
            let bytes = |at: i64| -> Vec<u64> {
                let (tile, mut inside) = (at as u64 / size, at as u64 % size);
                for (start, length) in &pieces {
                    if inside < *length {
                        let from = (tile * extent + start + inside) * unit;
                        return (from..from + unit).collect();
                    }
                    inside -= length;
                }
                Vec::new()
            };
            let all: Vec<u64> = (first..end).flat_map(bytes).collect();
            let of_row = |row: &Row| -> Vec<u64> {
                let begin = |n: u64| row.offset + row.stride as u64 * n;
                (0..row.count).flat_map(|n| begin(n)..begin(n) + row.bytes).collect()
            };
            let found: Vec<u64> =
                of_view(&pieces, extent, unit, first, end).iter().flat_map(of_row).collect();
            assert_eq!(found, all[..found.len()], "{pieces:?} {extent} {unit} {first}..{end}");
        }
    }
}
