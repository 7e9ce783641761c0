//! Files outside of the managed directories that this process has opened. One that gets a name in a
//! managed directory while it is open must not be buffered there: what was opened before reads and
//! writes it through the kernel.

use crate::fd::{borrow, each_descriptor};
use crate::open::identity_of;
use crate::session::Session;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use forebay_pool::Identity;
use rustix::fd::RawFd;
use rustix::fs::{FileType, Stat};

/// Numbers of files.
const BITS: u64 = 4096;

/// The numbers of those that were ever opened. Children inherit them.
static OPENED: [AtomicU64; BITS as usize / 64] = [const { AtomicU64::new(0) }; BITS as usize / 64];

/// The word and the bit of a file.
fn place_of(identity: Identity) -> (&'static AtomicU64, u64) {
    let number = identity.inode.wrapping_add(identity.device.rotate_left(7)) % BITS;
    (&OPENED[number as usize / 64], 1 << (number % 64))
}

/// Whether one was opened through a mount by which no store is reached: it may be a store's file
/// all the same. Children inherit it.
static BY_ANOTHER_MOUNT: AtomicBool = AtomicBool::new(false);

/// Notes that a file outside was opened; `by_another_mount`, through one that is no store's.
pub(crate) fn note(identity: Identity, by_another_mount: bool) {
    if by_another_mount {
        BY_ANOTHER_MOUNT.store(true, Ordering::Relaxed);
    }
    let (word, bit) = place_of(identity);
    if word.load(Ordering::Relaxed) & bit == 0 {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

fn may_be_open(identity: Identity) -> bool {
    let (word, bit) = place_of(identity);
    word.load(Ordering::Relaxed) & bit != 0
}

/// Whether a file of a store may have been opened by a name outside of it: another of its links, or
/// one that a bind mount gives it.
pub(crate) fn may_be_open_as_another(stat: &Stat) -> bool {
    (stat.st_nlink > 1 || BY_ANOTHER_MOUNT.load(Ordering::Relaxed))
        && may_be_open(identity_of(stat))
}

impl Session {
    /// To be called before the first open by a name that a file or folder has got; `moved` is that
    /// file or folder, from outside. What this process has open of it without a record is not
    /// buffered by any process until this one ends; but for `opening`, the descriptor that is about
    /// to get one.
    pub(crate) fn comes_from_outside(&self, moved: &Stat, opening: Option<RawFd>) {
        let is_folder = match FileType::from_raw_mode(moved.st_mode) {
            FileType::Directory => true,
            FileType::RegularFile if may_be_open(identity_of(moved)) => false,
            _ => return,
        };
        if !self.is_store_device(moved.st_dev)
            || OPENED.iter().all(|word| word.load(Ordering::Relaxed) == 0)
        {
            return;
        }
        // Of a folder, all that is open: which files lie in it would have to be looked for.
        each_descriptor(|fd| {
            if opening == Some(fd) {
                return;
            }
            let Ok(stat) = rustix::fs::fstat(borrow(fd)) else { return };
            let identity = identity_of(&stat);
            if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                && (is_folder || identity == identity_of(moved))
                && may_be_open(identity)
                && self.is_store_device(stat.st_dev)
                && self.file(fd).is_none()
            {
                self.segment.clients().note_unrecorded(identity, self.owner());
            }
        });
    }
}
