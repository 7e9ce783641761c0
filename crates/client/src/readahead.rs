//! Reading ahead of programs that do not say what they will read: the prefetch predictors of
//! `placement` see the reads that do not come from RAM, and the first ones of blocks that were
//! brought up ahead; the node manager brings up what they expect.

use crate::access::EnteredFile;
use core::sync::atomic::Ordering;
use forebay_placement::Destination;
use forebay_placement::prefetch::{Ahead, pays};
use forebay_pool::layout::DescriptionFlags;
use forebay_pool::message::Message;

impl EnteredFile<'_> {
    /// Notes that `bytes` at `offset` are read and that the first of them lie in `from`, or have
    /// come up from below; asks for what will probably be read next, where waiting for it would
    /// take long. Where the kernel keeps a copy of what it reads from the store, returns that for
    /// the kernel to read ahead, if it turns out to wait for the store at all.
    #[inline(never)]
    pub(crate) fn predict(&self, offset: u64, bytes: usize, from: Destination) -> Option<Ahead> {
        let header = self.session.segment.header();
        let description = self.description;
        // A program that has said how it will read is served by `OpenFile::advise`.
        let told = DescriptionFlags::RANDOM | DescriptionFlags::SEQUENTIAL;
        if header.prefetch.load(Ordering::Relaxed) == 0
            || description.flags.load(Ordering::Relaxed).intersects(told)
        {
            return None;
        }
        let word = description.word.load(Ordering::Relaxed);
        let reader = (word >> 32 << 32 | u64::from(self.description_id()), self.owner.raw());
        let block = self.session.segment.bucket_bytes() as u64;
        let ahead = self.session.predictors.touch(reader, offset, bytes as u64, block)?;
        let record = self.record;
        if from == Destination::Store && !self.is_emulated() {
            return Some(ahead);
        }
        let store = record.store.load(Ordering::Relaxed) as usize;
        if ahead.offset >= record.size.load(Ordering::Relaxed)
            || !pays(&crate::placement::hierarchy(&self.session.segment, store), from, block)
        {
            return None;
        }
        let few = |number: u64| u16::try_from(number).unwrap_or(u16::MAX);
        self.ask_to_stage(|file, generation| Message::Expect {
            file,
            generation,
            offset: ahead.offset,
            stride: ahead.stride,
            blocks: few(ahead.bytes.div_ceil(block)),
            pieces: few(ahead.count),
        });
        None
    }
}
