//! Transfers one after the other, with preadv and pwritev.

use crate::{FileSlots, descriptor};
use forebay_device::{Batch, Direction, Errno, Span, StoreFile, Target, Transfer};
use std::io::{IoSlice, IoSliceMut};
use std::slice;

const _: () = assert!(size_of::<Span>() == size_of::<IoSlice<'_>>());
const _: () = assert!(align_of::<Span>() == align_of::<IoSlice<'_>>());

/// The batch that works everywhere; one system call at a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Positional {
    slots: Option<FileSlots>,
}

impl Positional {
    /// A [`MakeBatch`](crate::MakeBatch); its transfers are never under way together.
    pub fn open(slots: Option<FileSlots>, _depth: u32) -> Box<dyn Batch> {
        Box::new(Positional { slots })
    }
}

impl Batch for Positional {
    fn name(&self) -> &'static str {
        "positional"
    }

    fn run(&mut self, transfers: &mut [Transfer]) {
        for transfer in transfers {
            begin(transfer, self.slots);
            carry_on(transfer, self.slots);
        }
    }

    fn sync(&mut self, file: StoreFile) -> Result<(), Errno> {
        let file = descriptor(file)?;
        rustix::io::retry_on_intr(|| rustix::fs::fdatasync(file))
    }
}

/// Begins a transfer of files, or of these slots; what is none of them ends at once.
pub fn begin(transfer: &mut Transfer, slots: Option<FileSlots>) {
    transfer.begin();
    if transfer.is_finished() || !matches!(transfer.target(), Target::Slot(_)) {
        return;
    }
    match slots {
        None => transfer.finish(Err(Errno::BADF)),
        Some(slots) if slots.has(transfer.offset(), transfer.len()) => {}
        Some(_) => transfer.finish(Err(Errno::INVAL)),
    }
}

/// The file with the rest of a begun transfer, and where in it that is.
pub fn locate(transfer: &Transfer, slots: Option<FileSlots>) -> (StoreFile, u64) {
    let position = transfer.position();
    match (transfer.target(), slots) {
        (Target::File(file), _) => (file, position),
        (Target::Slot(slot), Some(slots)) => slots.locate(slot, position),
        (Target::Slot(_), None) => (StoreFile::NONE, position),
    }
}

/// Carries a begun transfer to its end.
pub fn carry_on(transfer: &mut Transfer, slots: Option<FileSlots>) {
    while !transfer.is_finished() {
        let answer = step(transfer, slots);
        transfer.complete(answer);
    }
}

fn step(transfer: &Transfer, slots: Option<FileSlots>) -> Result<usize, Errno> {
    let (file, position) = locate(transfer, slots);
    let file = descriptor(file)?;
    let spans = transfer.remaining();
    match transfer.direction() {
        Direction::Write => {
            // SAFETY: IoSlice has the layout of iovec, as Span; the buffers are valid for reads.
            let slices =
                unsafe { slice::from_raw_parts(spans.as_ptr().cast::<IoSlice>(), spans.len()) };
            rustix::io::pwritev(file, slices, position)
        }
        Direction::Read => {
            let mut spans = spans.to_vec();
            // SAFETY: IoSliceMut has the layout of iovec, as Span; the buffers are valid for
            // writes.
            let slices = unsafe {
                slice::from_raw_parts_mut(spans.as_mut_ptr().cast::<IoSliceMut>(), spans.len())
            };
            rustix::io::preadv(file, slices, position)
        }
    }
}
