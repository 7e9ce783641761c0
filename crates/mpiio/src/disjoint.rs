//! Whether the views of several ranks are disjoint: for all offsets, not only for those of a call.
//! Pure. What is not proved counts as overlapping.

use crate::pieces::Row;

/// Rows that one rank says of its tile, at most.
pub(crate) const ROWS: usize = 64;
/// Pieces of a tile that are looked at: about a millisecond of questions.
pub(crate) const PIECES: u64 = 1 << 14;
/// Pieces of all ranks that are compared: about 15 milliseconds on one rank.
const COMPARED: u64 = 1 << 18;

/// The pieces of a rank's view in its first tile. The view goes on with the same pieces `extent`
/// bytes further on, for ever.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile {
    /// Bytes from one tile to the next; 0 where the pieces are not known.
    pub extent: u64,
    /// How many of the rows count.
    pub count: u64,
    /// In bytes of the file.
    pub rows: [Row; ROWS],
}

impl Tile {
    /// One of which nothing is known.
    pub(crate) const UNKNOWN: Tile = Tile {
        extent: 0,
        count: 0,
        rows: [Row { offset: 0, bytes: 0, stride: 0, count: 0 }; ROWS],
    };

    fn rows(&self) -> &[Row] {
        self.rows.get(..self.count as usize).unwrap_or_default()
    }
}

/// Whether no byte is in the views of two ranks. Needs tiles of one length: two views are disjoint
/// if their tiles are, each byte taken by its place in a tile (modulo the length).
pub(crate) fn are_disjoint(tiles: &[Tile]) -> bool {
    let Some(extent) = tiles.first().map(|tile| tile.extent) else { return false };
    let is_sound = |tile: &Tile| tile.extent == extent && tile.count >= 1;
    if extent == 0 || !tiles.iter().all(is_sound) {
        return false;
    }
    let period = period(tiles, extent);
    let all = tiles.iter().flat_map(|tile| tile.rows());
    let compared = all.fold(0u64, |sum, row| sum.saturating_add(count_within(row, period)));
    if compared > COMPARED {
        return false;
    }
    let mut pieces: Vec<(u64, u64, usize)> = Vec::with_capacity(compared as usize * 2);
    for (rank, tile) in tiles.iter().enumerate() {
        for row in tile.rows() {
            for number in 0..count_within(row, period) {
                let far = (row.stride as u64).checked_mul(number);
                let Some(start) = far.and_then(|far| row.offset.checked_add(far)) else {
                    return false;
                };
                if row.bytes > period {
                    return false;
                }
                let start = start % period;
                let end = start + row.bytes;
                pieces.push((start, end.min(period), rank));
                if end > period {
                    pieces.push((0, end - period, rank));
                }
            }
        }
    }
    pieces.sort_unstable();
    // The furthest end so far, and the furthest one of another rank than that.
    let (mut first, mut second) = ((0, usize::MAX), 0);
    for (start, end, rank) in pieces {
        let reached = if first.1 == rank { second } else { first.0 };
        if start < reached {
            return false;
        }
        if first.1 == rank {
            first.0 = first.0.max(end);
        } else if end > first.0 {
            (second, first) = (first.0, (end, rank));
        } else {
            second = second.max(end);
        }
    }
    true
}

/// A length after which all views repeat: that of the tiles, or, where each row goes through all of
/// a tile with one distance from piece to piece, that distance. So a column of a large matrix is
/// one piece.
fn period(tiles: &[Tile], extent: u64) -> u64 {
    let mut rows = tiles.iter().flat_map(|tile| tile.rows());
    let Some(stride) = tiles[0].rows().first().map(|row| row.stride as u64) else { return extent };
    let is_one = rows.all(|row| {
        row.count > 1
            && row.stride as u64 == stride
            && stride.checked_mul(row.count) == Some(extent)
    });
    if is_one && stride > 0 { stride } else { extent }
}

/// Pieces of a row that are at different places of the period.
fn count_within(row: &Row, period: u64) -> u64 {
    if row.count > 1 && row.stride as u64 == period { 1 } else { row.count }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tile(extent: u64, rows: &[(u64, u64, i64, u64)]) -> Tile {
        let mut tile = Tile { extent, count: rows.len() as u64, ..Tile::UNKNOWN };
        for (to, &(offset, bytes, stride, count)) in tile.rows.iter_mut().zip(rows) {
            *to = Row { offset, bytes, stride, count };
        }
        tile
    }

    #[test]
    fn columns_of_a_matrix_are_disjoint() {
        let columns = |width: u64| {
            [0u64, 1, 2].map(|rank| tile(300 * 1000, &[(rank * 100, width, 300, 1000)]))
        };
        assert!(are_disjoint(&columns(100)));
        assert!(!are_disjoint(&columns(101)));
    }

    #[test]
    fn a_tile_that_begins_again_in_anothers_pieces_overlaps() {
        // A vector whose last piece is not followed by its hole: the second tile is shifted.
        let vectors = [0u64, 1].map(|rank| tile(500, &[(rank * 100, 100, 200, 3)]));
        assert!(!are_disjoint(&vectors));
        let resized = [0u64, 1].map(|rank| tile(600, &[(rank * 100, 100, 200, 3)]));
        assert!(are_disjoint(&resized));
    }

    #[test]
    fn what_is_not_known_is_not_proved() {
        let one = tile(100, &[(0, 10, 10, 1)]);
        assert!(!are_disjoint(&[]));
        assert!(!are_disjoint(&[one, Tile::UNKNOWN]));
        assert!(!are_disjoint(&[one, tile(200, &[(50, 10, 10, 1)])]));
        assert!(are_disjoint(&[one, tile(100, &[(50, 10, 10, 1)])]));
        // Far away, but in the same place of a tile.
        assert!(!are_disjoint(&[one, tile(100, &[(1005, 10, 10, 1)])]));
        // Around the end of a tile.
        assert!(!are_disjoint(&[tile(100, &[(5, 10, 10, 1)]), tile(100, &[(95, 11, 11, 1)])]));
        assert!(are_disjoint(&[tile(100, &[(5, 10, 10, 1)]), tile(100, &[(95, 10, 10, 1)])]));
    }

    #[test]
    fn what_is_proved_is_so() {
        let mut seed = 11u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        let (mut proved, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let extent = 20 + random(60);
            let tiles: Vec<Tile> = (0..2 + random(2))
                .map(|_| {
                    let rows: Vec<_> = (0..1 + random(2))
                        .map(|_| {
                            let bytes = 1 + random(4);
                            let stride = (bytes + random(12)) as i64;
                            (random(120), bytes, stride, 1 + random(4))
                        })
                        .collect();
                    tile(extent, &rows)
                })
                .collect();
            let bytes = |tile: &Tile| -> std::collections::BTreeSet<u64> {
                let of_row = |row: &Row| {
                    let row = *row;
                    (0..row.count).flat_map(move |n| {
                        let start = row.offset + row.stride as u64 * n;
                        start..start + row.bytes
                    })
                };
                let first: Vec<u64> = tile.rows().iter().flat_map(of_row).collect();
                (0..12).flat_map(|k| first.iter().map(move |at| at + k * extent)).collect()
            };
            let sets: Vec<_> = tiles.iter().map(bytes).collect();
            let overlap = (0..sets.len())
                .any(|a| (0..a).any(|b| sets[a].intersection(&sets[b]).next().is_some()));
            let found = are_disjoint(&tiles);
            assert!(!(found && overlap), "{:?}", tiles.iter().map(Tile::rows).collect::<Vec<_>>());
            // Enough tiles were laid side by side for an overlap to show.
            assert_eq!(found, !overlap);
            if found { proved += 1 } else { refused += 1 }
        }
        assert!(proved > 500 && refused > 500, "{proved} {refused}");
    }
}
