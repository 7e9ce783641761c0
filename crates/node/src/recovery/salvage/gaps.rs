//! Copying from the store what no tier has.

use super::manifest::Source;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Bytes read from a store at once, and so the finest part of it that is given up.
const STORE_PIECE: u64 = 64 << 10;

/// Copies the data in a range of the store's file; holes stay holes.
pub(super) fn save_gap(
    store: &OwnedFd,
    gap: Range<u64>,
    out: &File,
    ranges: &mut Vec<(Range<u64>, Source)>,
) -> io::Result<()> {
    let mut bytes = vec![0; STORE_PIECE as usize];
    let mut at = gap.start;
    while at < gap.end {
        at = match rustix::fs::seek(store, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => return Ok(()),
            Err(_) => at,
        };
        let end = (at / STORE_PIECE + 1).saturating_mul(STORE_PIECE).min(gap.end);
        if at >= end {
            break;
        }
        let part = &mut bytes[..(end - at) as usize];
        let got = rustix::io::pread(store.as_fd(), &mut *part, at);
        let range = at..end;
        match got {
            Ok(0) => return Ok(()),
            Ok(got) => {
                out.write_all_at(&part[..got], at)?;
                at += got as u64;
                ranges.push((range.start..at, Source::Store));
            }
            Err(errno) => {
                ranges.push((range, Source::Missing(io::Error::from(errno).to_string())));
                at = end;
            }
        }
    }
    Ok(())
}

/// What `covered`, in ascending order, leaves of the bytes up to `end`.
pub(super) fn gaps(covered: &[Range<u64>], end: u64) -> Vec<Range<u64>> {
    let mut gaps = Vec::new();
    let mut at = 0;
    for range in covered {
        if at < range.start.min(end) {
            gaps.push(at..range.start.min(end));
        }
        at = at.max(range.end);
    }
    if at < end {
        gaps.push(at..end);
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_what_is_not_covered() {
        let starts_and_ends = |covered: &[Range<u64>]| -> Vec<(u64, u64)> {
            gaps(covered, 10).iter().map(|gap| (gap.start, gap.end)).collect()
        };
        assert_eq!(starts_and_ends(&[]), [(0, 10)]);
        assert_eq!(starts_and_ends(&[2..4, 4..6, 8..20]), [(0, 2), (6, 8)]);
        assert_eq!(starts_and_ends(&[20..30, 30..40]), [(0, 10)]);
        assert_eq!(starts_and_ends(&[0..4, 4..10]), []);
    }
}
