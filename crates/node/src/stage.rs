//! Stage-in ahead of the reader: blocks that a program has said it will read are brought from the
//! store to RAM, as long as RAM has room that nobody else wants.

use crate::node::Node;
use forebay_pool::buckets::Patience;
use forebay_pool::layout::*;
use forebay_pool::{Entry, Identity, Owner, clock};
use forebay_tiers::{IoClient, Transfer};
use libc::iovec;
use rustix::fd::{AsRawFd, OwnedFd};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Requests that wait at a time; what comes beyond is only a hint, and forgotten.
const REQUESTS_MAX: usize = 64;
/// Blocks on their way at once: 4 MiB in one read.
const BATCH: u64 = 16;
/// How often the thread looks whether it shall end.
const LOOK: Duration = Duration::from_millis(250);

/// Blocks that will be read.
pub(crate) struct Request {
    pub file: u32,
    pub generation: u32,
    pub first: u64,
    pub blocks: u32,
    /// Can be read.
    pub fd: OwnedFd,
}

/// Requests that wait.
#[derive(Default)]
pub(crate) struct Requests(Mutex<VecDeque<Request>>, Condvar);

impl Requests {
    /// Adds a request, or forgets it if there are too many.
    pub fn push(&self, request: Request) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < REQUESTS_MAX {
            waiting.push_back(request);
            self.1.notify_one();
        }
    }

    fn next(&self) -> Option<Request> {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let woken = self.1.wait_timeout_while(waiting, LOOK, |waiting| waiting.is_empty());
        woken.unwrap_or_else(PoisonError::into_inner).0.pop_front()
    }
}

/// A block whose bucket is locked and filled from the store.
struct Filling {
    bucket: u32,
    /// Bytes of it that the store has.
    bytes: usize,
}

/// The worker that stages blocks in.
pub(crate) struct Stager {
    node: Arc<Node>,
    owner: Owner,
    stores: Vec<Box<dyn IoClient>>,
    hint: u32,
}

impl Stager {
    pub fn new(node: &Arc<Node>) -> Stager {
        Stager {
            owner: Node::new_owner(),
            stores: (0..node.config.backing.len()).map(|store| node.store_client(store)).collect(),
            hint: 0,
            node: Arc::clone(node),
        }
    }

    /// The stager's life.
    pub fn run(mut self) {
        let node = Arc::clone(&self.node);
        while !node.stopping() {
            if let Some(request) = node.stage_requests.next() {
                self.stage(&request);
            }
        }
    }

    fn stage(&mut self, request: &Request) {
        let last = request.first.saturating_add(request.blocks.into());
        let mut at = request.first;
        while at < last && !self.node.stopping() {
            let upto = (at + BATCH).min(last);
            if !self.stage_batch(request, at..upto) {
                return;
            }
            at = upto;
        }
    }

    /// Whether the request is still about a file that is buffered, and about that one.
    fn is_current(&self, request: &Request) -> bool {
        let segment = &self.node.segment;
        if request.file >= segment.header().files {
            return false;
        }
        let record = segment.file(request.file);
        let same = |stat: rustix::fs::Stat| {
            Identity { device: stat.st_dev, inode: stat.st_ino } == record.identity()
        };
        record.generation.load(Ordering::Acquire) == request.generation
            && record.state.load(Ordering::Acquire) == file_state::LIVE
            && !record.has(file_flag::DIRECT)
            && rustix::fs::fstat(&request.fd).is_ok_and(same)
    }

    /// False when no more is to be staged for this request.
    fn stage_batch(&mut self, request: &Request, blocks: std::ops::Range<u64>) -> bool {
        let node = Arc::clone(&self.node);
        let segment = &node.segment;
        let start = clock::realtime_ns();
        // Inside the file: nobody truncates or punches it meanwhile.
        let mut patience = Patience::default();
        let inside = loop {
            match segment.try_enter(request.file.min(segment.header().files - 1), self.owner) {
                Ok(inside) => break inside,
                Err(_) if node.stopping() => return false,
                Err(_) => drop(patience.wait()),
            }
        };
        let mut filling = Vec::new();
        let mut go_on = self.is_current(request);
        if go_on {
            let known = segment.file(request.file).store_size.load(Ordering::Acquire);
            let mut reads = Vec::new();
            for block in blocks {
                let offset = block.saturating_mul(segment.bucket_bytes() as u64);
                let bytes = known.saturating_sub(offset).min(segment.bucket_bytes() as u64);
                go_on = bytes > 0 && self.has_room();
                if !go_on {
                    break;
                }
                if let Some(bucket) = self.claim(request.file, block) {
                    let base = segment.bucket_data(bucket).cast();
                    let piece = iovec { iov_base: base, iov_len: bytes as usize };
                    // SAFETY: the bucket is ours until it is unlocked.
                    reads.push(unsafe {
                        Transfer::read(request.fd.as_raw_fd(), offset, vec![piece])
                    });
                    filling.push(Filling { bucket, bytes: bytes as usize });
                }
            }
            let store = segment.file(request.file).store.load(Ordering::Relaxed) as usize;
            if let Some(client) = self.stores.get_mut(store) {
                client.run(&mut reads);
            }
            forebay_pool::crash::point("stage.read");
            let mut moved = 0;
            for (block, read) in filling.iter().zip(&reads) {
                let got = read.result().unwrap_or(0);
                moved += got;
                self.fill(block, got as usize);
            }
            node.trace.moved(start, "stage", "store", node.tier_name(0), moved);
        }
        segment.leave(self.owner, inside);
        go_on
    }

    fn has_room(&self) -> bool {
        let low = self.node.header().tier[0].low.load(Ordering::Relaxed);
        self.node.segment.free_in(0) > low + 1
    }

    /// A bucket for a block that only the store has: locked, and named by the index.
    fn claim(&mut self, file: u32, block: u64) -> Option<u32> {
        let segment = &self.node.segment;
        let place = segment.entry_or_insert(segment.file(file), block, self.owner)?;
        if place.load(Ordering::Acquire) != Entry::EMPTY {
            return None;
        }
        let bucket = segment.take_slot(0, self.owner, &mut self.hint)?;
        segment.dress_bucket(bucket, file, block, self.owner);
        let entry = Entry::resident(0, bucket).encode();
        let put = place
            .compare_exchange(Entry::EMPTY, entry, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if put {
            segment.file(file).note_tier(0);
        } else {
            segment.undress_bucket(bucket);
        }
        put.then_some(bucket)
    }

    /// Marks what arrived as valid and lets readers in.
    fn fill(&self, block: &Filling, got: usize) {
        let segment = &self.node.segment;
        let Some(meta) = segment.bucket(block.bucket) else { return };
        let (page, got) = (segment.page_bytes(), got.min(block.bytes));
        let end = got.next_multiple_of(page);
        // SAFETY: inside the bucket, which is locked.
        unsafe { segment.bucket_data(block.bucket).add(got).write_bytes(0, end - got) };
        let pages = end / page;
        let valid = if pages >= 64 { u64::MAX } else { (1 << pages) - 1 };
        meta.written.store(self.node.now(), Ordering::Relaxed);
        meta.valid.store(valid, Ordering::Release);
        forebay_pool::crash::point("stage.valid");
        meta.lock.unlock_changed();
    }
}
