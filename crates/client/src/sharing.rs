//! What calls need of a file that several nodes write: parts of it, and its size.
//!
//! Each call goes part by part, in ascending order, and has only one part at a time, so that none
//! waits for a part while it keeps another one from a node that waits for this one: what one call
//! writes to several parts, another node may see part by part. An append alone has the size and all
//! its parts at once. The size comes before the parts.

use crate::access::EnteredFile;
use crate::changed::raise;
use crate::open_file::OpenFile;
use crate::session::Session;
use crate::store;
use core::ops::Range;
use core::sync::atomic::Ordering;
use forebay_pool::lease::{Access, Lease};
use forebay_pool::parts::{PART_BYTES, Part, PartLevel, PartsAhead};
use forebay_pool::{FileId, crash};
use rustix::io::Errno;

/// The most parts that are asked for ahead of one that is needed.
const AHEAD_MAX: u32 = 63;
/// Parts held one after the other behind which a call seems to go on as far as that.
const RUN_MAX: u32 = 32;
/// Parts further from each other are no run.
const STRIDE_MAX: u32 = 64;
/// So many distances at most are looked at, the shortest first.
const STRIDES: usize = 8;

/// What a call needs of a file that other nodes may have, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// The file as a whole.
    Whole(Access),
    /// To read these bytes, as far as the file has them, or the first part of them.
    Read(Range<u64>),
    /// To write these bytes, or the first part of them.
    Write(Range<u64>),
    /// To write so many bytes at the end of the file.
    Append(u64),
}

impl Need {
    /// `length` bytes from `offset` on, to be read.
    pub fn read(offset: u64, length: usize) -> Need {
        Need::Read(offset..offset.saturating_add(length as u64))
    }

    /// `length` bytes from `offset` on, to be written.
    pub fn write(offset: u64, length: usize) -> Need {
        Need::Write(offset..offset.saturating_add(length as u64))
    }

    /// What that takes of the whole file.
    #[inline(always)]
    pub const fn access(&self) -> Access {
        match self {
            Need::Whole(access) => *access,
            Need::Read(_) => Access::Read,
            Need::Write(_) | Need::Append(_) => Access::Write,
        }
    }

    /// Calls `each` with what that takes of a file that is shared and has `known` bytes at least,
    /// in order, until it returns false: which part, how, and how many parts come behind it.
    /// Returns whether parts are enough.
    fn each_part(&self, known: u64, each: &mut impl FnMut(Part, PartLevel, u32) -> bool) -> bool {
        match self {
            Need::Whole(_) => return false,
            Need::Read(range) => {
                let goes_on = range.end <= known || each(Part::SIZE, PartLevel::Read, 0);
                if goes_on && range.start < range.end.min(known) {
                    let Some(part) = Part::at(range.start) else { return false };
                    each(part, PartLevel::Read, parts_behind(part, range.end.min(known)));
                }
            }
            Need::Write(range) => {
                let Some(part) = Part::at(range.start) else { return false };
                let grows = range.end.min(part.bytes().end) > known;
                if !grows || each(Part::SIZE, PartLevel::Shared, 0) {
                    each(part, PartLevel::Write, parts_behind(part, range.end));
                }
            }
            Need::Append(bytes) => {
                let mut goes_on = each(Part::SIZE, PartLevel::Write, 0);
                let (mut at, end) = (known, known.saturating_add(*bytes));
                while at < end && goes_on {
                    let Some(part) = Part::at(at) else { return false };
                    goes_on = each(part, PartLevel::Write, parts_behind(part, end));
                    at = part.bytes().end;
                }
            }
        }
        true
    }
}

/// How many parts begin behind `part` and before `end`.
fn parts_behind(part: Part, end: u64) -> u32 {
    let parts = end.saturating_sub(part.bytes().end).div_ceil(PART_BYTES);
    parts.min(AHEAD_MAX.into()) as u32
}

/// What a call has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lacking {
    /// The whole file.
    Whole(Access),
    /// A part of it, or its size.
    Part {
        part: Part,
        level: PartLevel,
        /// How many parts the call will need behind it.
        behind: u32,
    },
}

impl Lacking {
    /// The same whatever lies behind it.
    pub fn object(self) -> Lacking {
        match self {
            Lacking::Part { part, level, .. } => Lacking::Part { part, level, behind: 0 },
            whole => whole,
        }
    }
}

impl Session {
    /// The first thing that this node lacks of a file that is shared before it may do that.
    #[cold]
    pub(crate) fn lacking(&self, file: FileId, need: &Need) -> Option<Lacking> {
        let leases = self.segment.part_leases();
        let known = self.segment.file(file).size.load(Ordering::Acquire);
        let mut lacking = None;
        let is_enough = need.each_part(known, &mut |part, level, behind| {
            if !leases.load(file, part).level().covers(level) {
                lacking = Some(Lacking::Part { part, level, behind });
            }
            lacking.is_none()
        });
        if is_enough { lacking } else { Some(Lacking::Whole(Access::Alone)) }
    }

    /// Which parts are asked for with `part` by a call that needs so many behind it: of a program
    /// that goes from part to part, as many again as it has come by, also where it leaves out as
    /// many parts each time.
    pub(crate) fn worth_asking_ahead(
        &self,
        file: FileId,
        part: Part,
        level: PartLevel,
        behind: u32,
    ) -> PartsAhead {
        if part == Part::SIZE {
            return PartsAhead::default();
        }
        let leases = self.segment.part_leases();
        let has = |distance: u32| {
            let before = part.raw().checked_sub(distance).map(Part::from_raw);
            before.is_some_and(|before| leases.load(file, before).level().covers(level))
        };
        let run = |stride: u32| (1..=RUN_MAX).take_while(|&step| has(step * stride)).count() as u32;
        let strides = (1..=STRIDE_MAX).filter(|&stride| behind == 0 && has(stride));
        let runs = strides.take(STRIDES).map(|stride| (run(stride), u32::MAX - stride));
        let (run, stride) = match runs.max() {
            Some((run, stride)) if run > 1 => (run, u32::MAX - stride),
            _ => (run(1), 1),
        };
        PartsAhead { count: behind.max(2 * run).min(AHEAD_MAX), stride }
    }
}

impl OpenFile<'_> {
    /// Whether this node may do that with the file, which is shared, or borrowed. What was granted
    /// for it is taken up. The caller is inside the file.
    ///
    /// # Errors
    /// The store's errno.
    #[cold]
    pub(crate) fn has_parts(&self, need: &Need) -> Result<bool, Errno> {
        let (record, leases) = (self.record, self.session.segment.part_leases());
        loop {
            let lease = record.lease.load();
            if lease.commits() {
                return self.has_committing(need);
            }
            if lease.is_unsure() {
                return Ok(false);
            }
            match lease.held() {
                Lease::Shared => {}
                // What is not here is asked for when it is reached.
                Lease::Borrowed => return Ok(matches!(need, Need::Read(_))),
                _ => return Ok(false),
            }
            let known = record.size.load(Ordering::Acquire);
            let (mut has_all, mut is_taken) = (true, true);
            let is_enough = need.each_part(known, &mut |part, level, _| {
                let word = leases.load(self.id, part);
                has_all &= word.level().covers(level);
                is_taken &= word.is_taken();
                has_all
            });
            has_all &= is_enough;
            if !has_all || is_taken {
                return Ok(has_all);
            }
            crash::point("part.granted");
            // In this order: what others had of it is on the store now.
            self.learn_stored_size()?;
            crash::point("part.sized");
            need.each_part(known, &mut |part, _, _| {
                if let Some(lease) = leases.find(self.id, part) {
                    lease.take_up();
                }
                true
            });
            crash::point("part.taken");
        }
    }

    /// Notes how long the store's file is, of a file that no node makes shorter.
    ///
    /// # Errors
    /// The store's errno.
    pub(crate) fn learn_stored_size(&self) -> Result<(), Errno> {
        let stored = store::stat(self.fd)?.size;
        raise(&self.record.store_size, stored);
        raise(&self.record.size, stored);
        Ok(())
    }

    /// Whether the part that has `offset`, which this node may use, is used through the kernel. Its
    /// end. The caller is inside the file.
    pub(crate) fn direct_part(&self, offset: u64) -> Option<u64> {
        let is_direct = self.record.lease.load().held() == Lease::Shared
            && self.part_level(offset) == PartLevel::Direct;
        Part::at(offset).filter(|_| is_direct).map(|part| part.bytes().end)
    }

    /// What this node has of the part that has `offset`, where the file is shared.
    pub(crate) fn part_level(&self, offset: u64) -> PartLevel {
        let leases = self.session.segment.part_leases();
        Part::at(offset).map_or(PartLevel::None, |part| leases.load(self.id, part).level())
    }
}

impl EnteredFile<'_> {
    /// Waits until this node may do that with the file, which a call goes on with. After an error
    /// it may be outside. Returns whether it was outside meanwhile.
    ///
    /// # Errors
    /// As of [`OpenFile::enter_for`].
    #[cold]
    pub(crate) fn hold(&self, need: &Need) -> Result<bool, Errno> {
        let mut was_outside = false;
        while !self.record.allows(need.access()) && !self.has_parts(need)? {
            was_outside = true;
            self.step_outside(|file| file.obtain(need))?;
        }
        Ok(was_outside)
    }
}
