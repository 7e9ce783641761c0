//! Which files and directories programs watch (inotify). They know no segment: see
//! docs/design/views.md.
//!
//! ```
//! use forebay_pool::layout::Geometry;
//! use forebay_pool::segment::anonymous;
//!
//! let (segment, _memory) = anonymous(&Geometry::for_tiers(4096, &[16 << 20]))?;
//! let watches = segment.watches();
//! assert!(!watches.any() && watches.add(3, b"/store/logs"));
//! // The directory's files, and not what lies further down.
//! assert!(watches.has(b"/store/logs/a") && !watches.has(b"/store/logs/b/c"));
//! watches.remove_of(3);
//! assert!(!watches.any());
//! # Ok::<(), forebay_pool::SegmentError>(())
//! ```

use crate::checksum::checksum_of;
use crate::layout::WATCHES;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// What programs watch, as words of shared memory. All threads of all processes may use them at
/// once.
///
/// A place has the client slot of a watching process in its upper half, and the sum of a path in
/// its lower. Paths with equal sums are watched together, which costs a flush and nothing else.
#[derive(Clone, Copy)]
pub struct Watches<'a> {
    /// At least as many as places are taken.
    pub count: &'a AtomicU32,
    /// The places; 0 is free.
    pub all: &'a [AtomicU64; WATCHES],
}

fn word(slot: u32, sum: u32) -> u64 {
    u64::from(slot) << 32 | u64::from(sum)
}

/// The directory in which `path` lies.
fn parent(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
    &path[..end.max(1).min(path.len())]
}

impl Watches<'_> {
    /// Whether there may be any.
    #[inline]
    pub fn any(self) -> bool {
        self.count.load(Ordering::SeqCst) != 0
    }

    /// Notes that the process of `slot` watches `path`, a file or a directory. Files that come into
    /// the table later see that; the caller looks for those that are there. False if there is no
    /// place for it.
    pub fn add(self, slot: u32, path: &[u8]) -> bool {
        let wanted = word(slot, checksum_of(path));
        if self.all.iter().any(|place| place.load(Ordering::SeqCst) == wanted) {
            return true;
        }
        // Before: what a killed process leaves has others look for nothing, and no more.
        self.count.fetch_add(1, Ordering::SeqCst);
        let taken = self.all.iter().any(|place| {
            place.compare_exchange(0, wanted, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        });
        if !taken {
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
        taken
    }

    /// Whether the file at `path`, or its directory, is watched.
    pub fn has(self, path: &[u8]) -> bool {
        let sums = [checksum_of(path), checksum_of(parent(path))];
        self.any()
            && self.all.iter().any(|place| {
                let seen = place.load(Ordering::SeqCst);
                seen != 0 && sums.contains(&(seen as u32))
            })
    }

    /// Forgets what the process of `slot` watched, which has ended.
    pub fn remove_of(self, slot: u32) {
        if !self.any() {
            return;
        }
        for place in self.all {
            let seen = place.load(Ordering::SeqCst);
            if seen != 0
                && (seen >> 32) as u32 == slot
                && place.compare_exchange(seen, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok()
            {
                self.count.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_taken_once_and_given_back() {
        let all = [const { AtomicU64::new(0) }; WATCHES];
        let count = AtomicU32::new(0);
        let watches = Watches { count: &count, all: &all };
        for number in 0..WATCHES as u32 {
            assert!(watches.add(1, &number.to_le_bytes()));
            assert!(watches.add(1, &number.to_le_bytes()), "the same again");
        }
        assert!(!watches.add(2, b"/another"), "all are taken");
        assert_eq!(count.load(Ordering::Relaxed), WATCHES as u32);
        watches.remove_of(1);
        assert!(!watches.any() && watches.add(2, b"/another") && watches.has(b"/another"));
    }

    #[test]
    fn a_file_is_found_by_its_directory() {
        assert_eq!(parent(b"/a/b"), b"/a");
        assert_eq!(parent(b"/a"), b"/");
        assert_eq!(parent(b""), b"");
    }
}
