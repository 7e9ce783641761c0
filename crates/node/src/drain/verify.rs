//! Whether the store has what was written of a staged file: it is made durable, read back, and
//! compared, before any page counts as clean. So the staged copy goes only when the store's is
//! right, and a drain that is killed goes on with the first stripe that was not compared.
//!
//! What is written was compared with the checksums that programs have left for it when it was read
//! from its tier (`slots`): from the program to the store nothing changes unseen.

use crate::drain::flusher::Flusher;
use crate::store::beneath::reopen;
use crate::store::descriptors::StoreHandle;
use forebay_device::{Span, Transfer};
use forebay_pool::{FileId, crash};
use forebay_posix::store_file;
use rustix::fd::OwnedFd;
use rustix::fs::{Advice, OFlags};
use rustix::io::Errno;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

/// So often in a row the store had other bytes of a batch before programs are told.
const UNEQUAL_TOLD: u32 = 4;

/// What has become of a write to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// So many bytes are there.
    Bytes(u64),
    /// It is to be made again, and there is no error to tell yet.
    Again,
    /// It has failed.
    Failed(Errno),
}

impl Written {
    /// By its result alone.
    pub fn of(write: &Transfer) -> Written {
        write.result().map_or_else(Written::Failed, Written::Bytes)
    }
}

impl Flusher {
    /// Counts writes of a staged file, whose requests are stripes of so many bytes, and looks
    /// whether the store has their bytes. Where it has others they are to be written again, and
    /// have failed (`IO`) when that was so of the batch [`UNEQUAL_TOLD`] times in a row.
    pub(super) fn verify(
        &mut self,
        file: FileId,
        stripe: u64,
        held: &StoreHandle,
        writes: &[Transfer],
    ) -> Vec<Written> {
        let mut results: Vec<_> = writes.iter().map(Written::of).collect();
        self.count_requests(file, stripe, writes);
        let record = self.node.segment.file(file);
        // Other nodes write there, too.
        if record.is_shared() || writes.is_empty() {
            return results;
        }
        let store = self.store_of(file);
        crash::point("staged.syncing");
        if let Err(errno) = self.stores[store].sync(held.file()) {
            results.fill(Written::Failed(errno));
            return results;
        }
        crash::point("staged.synced");
        // A file that its owner may not read is as good as the store says.
        let Ok(readable) = reopen(held, OFlags::RDONLY) else { return results };
        self.compare(file, store, &readable, writes, &mut results);
        crash::point("staged.compared");
        results
    }

    fn count_requests(&self, file: FileId, stripe: u64, writes: &[Transfer]) {
        let size = self.node.segment.file(file).size.load(Ordering::Acquire);
        let is_whole = |write: &&Transfer| {
            let end = write.offset() + write.len();
            let is_end = end.is_multiple_of(stripe) || end == size;
            write.offset().is_multiple_of(stripe) && write.len() <= stripe && is_end
        };
        let counts = &self.node.header().staged;
        add(&counts.requests, writes.len() as u64);
        add(&counts.whole, writes.iter().filter(is_whole).count() as u64);
    }

    /// Reads what was written, and was not refused, back from the store.
    fn compare(
        &mut self,
        file: FileId,
        store: usize,
        readable: &OwnedFd,
        writes: &[Transfer],
        results: &mut [Written],
    ) {
        let mut stored = std::mem::take(&mut self.stored);
        let bytes = writes.iter().map(|write| write.len() as usize).sum();
        if stored.len() < bytes {
            stored.resize(bytes, 0);
        }
        // Nothing is read ahead: another worker may write there past the page cache at this moment.
        let _ = rustix::fs::fadvise(readable, 0, None, Advice::Random);
        let mut rest = &mut stored[..];
        let mut reads = Vec::with_capacity(writes.len());
        for write in writes {
            // What the page cache has proves nothing.
            let length = NonZeroU64::new(write.len());
            let _ = rustix::fs::fadvise(readable, write.offset(), length, Advice::DontNeed);
            let (place, others) = std::mem::take(&mut rest).split_at_mut(write.len() as usize);
            rest = others;
            let buffer = vec![Span::of(place)];
            // SAFETY: a part of this flusher's buffer for each, which outlives the run below.
            reads.push(unsafe { Transfer::read(store_file(readable), write.offset(), buffer) });
        }
        self.stores[store].run(&mut reads);
        let (counts, record) = (&self.node.header().staged, self.node.segment.file(file));
        let batch = (file, writes.first().map_or(0, Transfer::offset));
        let times = self.unequal().get(&batch).map_or(1, |times| times + 1);
        let mut is_unequal = false;
        for ((write, read), result) in writes.iter().zip(&reads).zip(results) {
            if !matches!(result, Written::Bytes(_)) {
                continue;
            }
            match read.result() {
                Ok(_) if is_same(write, read) => add(&counts.compared, write.len()),
                // It was cut meanwhile.
                Ok(got) if write.offset() + got >= record.size.load(Ordering::Acquire) => {}
                Ok(_) => {
                    add(&counts.unequal, 1);
                    is_unequal = true;
                    let path = self.node.shown_path(record);
                    let (start, end) = (write.offset(), write.offset() + write.len());
                    error!(
                        "{path}: bytes {start}..{end} of the store's file are not what was written; \
                         they are written again"
                    );
                    // Once it may be what a program has done to the store's file meanwhile: cut it
                    // and made it longer, for one.
                    *result = match times < UNEQUAL_TOLD {
                        true => Written::Again,
                        false => Written::Failed(Errno::IO),
                    };
                }
                Err(errno) => *result = Written::Failed(errno),
            }
        }
        match is_unequal {
            true => drop(self.unequal().insert(batch, times)),
            false => drop(self.unequal().remove(&batch)),
        }
        self.stored = stored;
    }
}

/// Whether a read has found what was written.
fn is_same(write: &Transfer, read: &Transfer) -> bool {
    let [place] = read.buffers() else { return false };
    if read.result() != Ok(write.len()) {
        return false;
    }
    let mut at = 0;
    write.buffers().iter().all(|buffer| {
        // SAFETY: pages under writeback do not change, staged ones and those of the read are the
        // flusher's; the read has filled as many bytes as were written.
        let (written, stored) = unsafe {
            let written = std::slice::from_raw_parts(buffer.base.cast_const(), buffer.bytes);
            (written, std::slice::from_raw_parts(place.base.add(at).cast_const(), buffer.bytes))
        };
        at += buffer.bytes;
        written == stored
    })
}

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}
