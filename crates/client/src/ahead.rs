//! Reading ahead of programs that do not say what they will read: the prefetch predictors of
//! `placement` see the reads that do not come from RAM, and the first ones of blocks that were brought
//! up ahead; the node manager brings up what they expect.

use crate::access::EnteredFile;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};
use forebay_placement::prefetch::{Ahead, Touches, pays};
use forebay_placement::{Destination, mix};
use forebay_pool::layout::DescriptionFlags;
use forebay_pool::message::Message;

/// Readers that a process's predictors follow at a time: more than it has threads that read one
/// after the other. Two that share a place begin anew at each other's reads.
const READERS: usize = 64;

/// Whom a predictor follows: a description (with its generation), and a thread, for those that share a
/// description read different parts.
type Reader = (u64, u32);

/// The predictors of one process: 6 KiB.
pub(crate) struct Predictors([Predictor; READERS]);

#[derive(Default)]
struct Predictor {
    /// A thread that finds it in use goes without: it may be a signal handler that interrupted its user.
    busy: AtomicBool,
    state: UnsafeCell<(Reader, Touches)>,
}

// SAFETY: the state is touched only by the thread that set `busy`.
unsafe impl Sync for Predictor {}

impl Predictors {
    pub fn new() -> Predictors {
        Predictors(core::array::from_fn(|_| Predictor::default()))
    }

    fn touch(&self, reader: Reader, offset: u64, bytes: u64, block: u64) -> Option<Ahead> {
        let place = mix(reader.0 ^ u64::from(reader.1).rotate_left(32)) as usize % READERS;
        let predictor = &self.0[place];
        if predictor.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: see `busy`.
        let (whose, touches) = unsafe { &mut *predictor.state.get() };
        if *whose != reader {
            (*whose, *touches) = (reader, Touches::default());
        }
        let ahead = touches.on_touch(offset, bytes, block);
        predictor.busy.store(false, Ordering::Release);
        ahead
    }

    /// In a forked child: a thread of the parent may have been at it.
    pub fn forked(&self) {
        self.0.iter().for_each(|predictor| predictor.busy.store(false, Ordering::Release));
    }
}

impl EnteredFile<'_> {
    /// Notes that `bytes` at `offset` are read and that the first of them lie in `from`, or have come
    /// up from below; asks for what will probably be read next, where waiting for it would take long.
    #[inline(never)]
    pub(crate) fn foresee(&self, offset: u64, bytes: usize, from: Destination) {
        let header = self.session.segment.header();
        let description = self.description;
        // Who has said how it will read is answered by `Session::advise`.
        let told = DescriptionFlags::RANDOM | DescriptionFlags::SEQUENTIAL;
        if header.prefetch.load(Ordering::Relaxed) == 0
            || description.flags.load(Ordering::Relaxed).intersects(told)
        {
            return;
        }
        let word = description.word.load(Ordering::Relaxed);
        let reader = (word >> 32 << 32 | u64::from(self.description_id()), self.owner.raw());
        let block = self.session.segment.bucket_bytes() as u64;
        let Some(ahead) = self.session.predictors.touch(reader, offset, bytes as u64, block) else {
            return;
        };
        let record = self.record;
        let store = record.store.load(Ordering::Relaxed) as usize;
        if ahead.offset >= record.size.load(Ordering::Relaxed)
            || !pays(&crate::place::hierarchy(&self.session.segment, store), from, block)
        {
            return;
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
    }
}
