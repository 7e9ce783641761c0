//! Transfers one after the other, with preadv and pwritev.

use crate::descriptor;
use forebay_device::{Batch, Direction, Errno, Span, StoreFile, Target, Transfer};
use std::io::{IoSlice, IoSliceMut};
use std::slice;

const _: () = assert!(size_of::<Span>() == size_of::<IoSlice<'_>>());
const _: () = assert!(align_of::<Span>() == align_of::<IoSlice<'_>>());

/// The batch that works everywhere; one system call at a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Positional;

impl Batch for Positional {
    fn name(&self) -> &'static str {
        "positional"
    }

    fn run(&mut self, transfers: &mut [Transfer]) {
        for transfer in transfers {
            transfer.begin();
            carry_on(transfer);
        }
    }

    fn sync(&mut self, file: StoreFile) -> Result<(), Errno> {
        let file = descriptor(file)?;
        rustix::io::retry_on_intr(|| rustix::fs::fdatasync(file))
    }
}

/// Carries a begun transfer to its end.
pub fn carry_on(transfer: &mut Transfer) {
    while !transfer.is_finished() {
        let answer = step(transfer);
        transfer.settle(answer);
    }
}

fn step(transfer: &Transfer) -> Result<usize, Errno> {
    let Target::File(file) = transfer.target();
    let file = descriptor(file)?;
    let position = transfer.position();
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
            // SAFETY: IoSliceMut has the layout of iovec, as Span; the buffers are valid for writes.
            let slices = unsafe {
                slice::from_raw_parts_mut(spans.as_mut_ptr().cast::<IoSliceMut>(), spans.len())
            };
            rustix::io::preadv(file, slices, position)
        }
    }
}
