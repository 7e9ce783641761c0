//! Names that change while files are opened. They know no segment: see docs/design/views.md.

use crate::checksum::checksum_of;
use crate::layout::CHANGED_NAMES;
use crate::sync::{AtomicU64, Ordering, fence};

/// Which names of files were changed, as words of shared memory. All threads of all processes may
/// use them at once.
#[derive(Clone, Copy)]
pub struct Names<'a> {
    /// How many changes there were.
    pub changes: &'a AtomicU64,
    /// What the last ones were about, see [`crate::layout::Header::changed_names`].
    pub last: &'a [AtomicU64; CHANGED_NAMES],
}

/// The last part of a path.
pub fn last_part(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let start = path[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    &path[start..end]
}

impl Names<'_> {
    /// How often programs have changed names of files. A process that makes a record, and finds
    /// this changed since before it looked at the file's name, looks again once the record can be
    /// found: a process that changed the name before that has not found the record, and said
    /// nothing of it. One that changes it later finds it.
    #[inline]
    pub fn changes(self) -> u64 {
        // The record comes before.
        fence(Ordering::SeqCst);
        self.changes.load(Ordering::SeqCst)
    }

    /// Notes that the name `path` was changed, before the caller looks whether the file is in the
    /// table. Returns whether other names were since [`Names::changes`] was `before`.
    pub fn changed(self, before: u64, path: &[u8]) -> bool {
        let seen = self.changes.fetch_add(1, Ordering::SeqCst);
        let change = seen << 32 | u64::from(checksum_of(last_part(path)));
        self.last[seen as usize % CHANGED_NAMES].store(change, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        seen != before
    }

    /// Whether another process may have changed a name like that of `path`, beside one change of
    /// the caller's, since [`Names::changes`] was `before`.
    pub fn may_others_have_changed(self, before: u64, path: &[u8]) -> bool {
        let (now, own) = (self.changes(), 1);
        let changes = now.wrapping_sub(before);
        if changes <= own {
            return false;
        }
        let sum = checksum_of(last_part(path));
        let is_like = |number: u64| {
            let change = self.last[number as usize % CHANGED_NAMES].load(Ordering::SeqCst);
            // Of one that is being noted it is not known.
            change >> 32 != number & u64::from(u32::MAX) || change as u32 == sum
        };
        let range = (0..changes).map(|nth| before.wrapping_add(nth));
        changes > CHANGED_NAMES as u64
            || range.filter(|&number| is_like(number)).count() > own as usize
    }
}
