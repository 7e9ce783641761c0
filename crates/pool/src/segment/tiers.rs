//! Tiers whose devices fail.

use super::Segment;
use crate::clock;
use crate::layout::TierId;
use crate::sync::Ordering;
use rustix::io::Errno;

impl Segment {
    /// Whether tier `tier` may be given new blocks: its device has not failed.
    #[inline]
    pub fn is_sound(&self, tier: TierId) -> bool {
        self.header().failed_tiers.load(Ordering::Relaxed) >> tier.index() & 1 == 0
    }

    /// Takes tier `tier` out of the hierarchy because its device fails or is full, if that is what
    /// `errno` says. True for the first to say so.
    pub fn fail_tier(&self, tier: TierId, errno: Errno) -> bool {
        if tier.is_ram() || is_own_fault(errno) || !self.is_sound(tier) {
            return false;
        }
        let header = &self.header().tier[tier];
        header.failed_errno.store(errno.raw_os_error() as u32, Ordering::Relaxed);
        let now = clock::stamp(clock::realtime_coarse_ns());
        header.failed_at.store(now, Ordering::Relaxed);
        let bit = 1u32 << tier.index();
        self.header().failed_tiers.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// Why nothing new goes to tier `tier`, and since when in milliseconds of [`clock::stamp`];
    /// `None` if it is sound.
    pub fn tier_failure(&self, tier: TierId) -> Option<(Errno, u32)> {
        let header = &self.header().tier[tier];
        let errno = header.failed_errno.load(Ordering::Relaxed) as i32;
        (!self.is_sound(tier))
            .then(|| (Errno::from_raw_os_error(errno), header.failed_at.load(Ordering::Relaxed)))
    }

    /// Lets tier `tier` take new blocks again.
    pub fn restore_tier(&self, tier: TierId) {
        self.header().failed_tiers.fetch_and(!(1 << tier.index()), Ordering::AcqRel);
    }
}

/// Whether an error is about the calling process, its limits and memory, and says nothing of the
/// device.
pub fn is_own_fault(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::FAULT
            | Errno::MFILE
            | Errno::NFILE
            | Errno::NOMEM
            | Errno::INTR
            | Errno::AGAIN
            | Errno::FBIG
            | Errno::ACCESS
            | Errno::PERM
    )
}
