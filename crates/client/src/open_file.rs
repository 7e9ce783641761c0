//! One open file of this process, as one call found it.

use crate::descriptors::{description_of, is_parting};
use crate::session::Session;
use core::sync::atomic::Ordering;
use forebay_pool::FileId;
use forebay_pool::layout::{Description, DescriptionFlags, FileRecord};
use rustix::fd::RawFd;

/// An open file at the time of a call. Whether its descriptor still is what it was is looked at
/// again once the thread is inside the file, or beside it: from then on it stays so until the
/// thread leaves, see `parting.rs`.
///
/// It holds nothing. The thread's stamp is not in it: until the file is entered a signal handler
/// may fork, and the child has another client slot.
#[derive(Clone, Copy)]
pub struct OpenFile<'a> {
    pub(crate) session: &'a Session,
    /// The descriptor.
    pub fd: RawFd,
    /// What the table of descriptors said.
    pub(crate) bound: u32,
    /// The description's generation.
    generation: u32,
    /// The number of the file record.
    pub(crate) id: FileId,
    pub(crate) description: &'a Description,
    pub(crate) record: &'a FileRecord,
}

impl core::fmt::Debug for OpenFile<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "descriptor {} of file record {}", self.fd, self.id)
    }
}

impl<'a> OpenFile<'a> {
    /// The same, where the table says `bound` by now.
    pub(crate) fn bound_as(self, bound: u32) -> OpenFile<'a> {
        OpenFile { bound, ..self }
    }

    pub(crate) fn description_id(&self) -> u32 {
        // There is none without a description.
        description_of(self.bound).unwrap_or(0)
    }

    /// Whether the descriptor is still what it was when it was looked up.
    #[inline(always)]
    pub fn is_current(&self) -> bool {
        let description = self.description;
        self.session.table.load(self.fd as usize) == self.bound
            && (description.word.load(Ordering::Acquire) >> 32) as u32 == self.generation
            && description.file.load(Ordering::Acquire) == self.id
    }

    /// Whether all of `flags` are set for the description.
    #[inline]
    pub(crate) fn may(&self, flags: DescriptionFlags) -> bool {
        self.description.flags.load(Ordering::Relaxed).contains(flags)
    }
}

impl Session {
    /// What `fd` refers to, if it is managed. Waits while another thread closes or replaces it: the
    /// caller is inside of nothing.
    #[inline(always)]
    pub fn file(&self, fd: RawFd) -> Option<OpenFile<'_>> {
        let bound = self.table.load(fd as usize);
        match is_parting(bound) {
            false => self.file_bound(fd, bound),
            true => self.file_later(fd),
        }
    }

    /// What `fd` refers to where the table of descriptors says `bound`.
    #[inline(always)]
    pub(crate) fn file_bound(&self, fd: RawFd, bound: u32) -> Option<OpenFile<'_>> {
        let description = self.segment.description(description_of(bound)?);
        let generation = (description.word.load(Ordering::Acquire) >> 32) as u32;
        let id = description.file.load(Ordering::Acquire);
        let record = self.segment.file(id);
        Some(OpenFile { session: self, fd, bound, generation, id, description, record })
    }

    /// The managed descriptors of this process.
    pub fn files(&self) -> impl Iterator<Item = OpenFile<'_>> {
        (0..=self.highest.load(Ordering::Acquire) as RawFd).filter_map(|fd| self.file(fd))
    }
}
