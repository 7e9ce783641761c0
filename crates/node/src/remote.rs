//! Blocks that other nodes have in memory: how the parts of the manager reach the thread that
//! brings them here and gives them away (`manager/remote.rs`), and what it counts.

use forebay_cluster::{LinkEvent, LinkHandler, Outcome, Post, REMOTE, Staging};
use forebay_membership::{Member, NodeId, Rank};
use forebay_pool::clock::Timer;
use forebay_pool::{BucketId, FileId};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

/// Blocks that may be on their way to this node at once, and as many away from it.
pub(crate) const SLOTS: usize = 16;
/// Messages of other nodes that wait for the thread at most: more are dropped, and who sent them
/// goes to the store.
const MESSAGES_MAX: usize = 1 << 14;
/// Fetches that wait for it at most: those of more read from the store.
const FETCHES_MAX: usize = 1 << 13;
/// Words that say whether files were given back; several files share one.
const EPOCHS: usize = 256;
/// Buckets of which it is known that their blocks have come from other nodes: 16 GiB of RAM, in 512
/// KiB. In a larger one some are not known.
const PULLED: usize = 1 << 16;
/// How long a stager waits for what the group has to say.
const PLACED: Timer = Timer::ms(1_500);

/// What the thread is told.
pub(crate) enum RemoteEvent {
    /// There is a group: how it is reached, and what this node is in it.
    Begun(Post, Box<dyn Fn() -> Rank + Send>),
    /// Blocks are wanted.
    Fetch { file: FileId, generation: u32, blocks: Vec<u64>, wanted: Wanted },
    /// This node has written a file, or these bytes of it, and keeps them for others to read.
    Kept { file: FileId, bytes: Range<u64> },
    /// A message of another member.
    Message(Member, Vec<u8>),
    /// A pull has ended.
    Pulled(u64, Outcome),
    /// A read of a file tier has ended; whether all of it is there.
    SlotRead(u64, bool),
    /// There is no link to this member any more.
    Down(Member),
    /// The manager ends.
    End,
}

/// Who waits for blocks.
pub(crate) enum Wanted {
    /// A program: until they are here, or to be read from the store.
    Ticket(u16),
    /// The stager: until it is known which ones come from other nodes.
    Placed(Sender<Vec<u64>>),
}

/// How much waits for the thread.
#[derive(Default)]
pub(crate) struct Waiting {
    messages: AtomicUsize,
    fetches: AtomicUsize,
}

impl Waiting {
    /// Whether there is room for one more of `most`, which it takes.
    fn takes(count: &AtomicUsize, most: usize) -> bool {
        let has_room = count.fetch_add(1, Ordering::Relaxed) < most;
        if !has_room {
            count.fetch_sub(1, Ordering::Relaxed);
        }
        has_room
    }

    /// The thread has this.
    pub fn taken(&self, event: &RemoteEvent) {
        let count = match event {
            RemoteEvent::Message(..) => &self.messages,
            RemoteEvent::Fetch { .. } => &self.fetches,
            _ => return,
        };
        count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What is counted.
#[derive(Default)]
pub(crate) struct RemoteCounts {
    /// Blocks that came from other nodes.
    pub fetched: AtomicU64,
    /// Blocks that this node was the one to read from the store.
    pub own: AtomicU64,
    /// Blocks that were to come from another node, and did not.
    pub failed: AtomicU64,
    /// Blocks that were given to other nodes from file tiers.
    pub given_from_tiers: AtomicU64,
    /// Blocks that this node has, and that those who asked have sooner from the store.
    pub declined: AtomicU64,
    /// Bytes that the manager has read from the store ahead of programs.
    pub staged: AtomicU64,
    /// Of each node, bytes that came from it, and that were given to it.
    pub nodes: Mutex<BTreeMap<NodeId, [u64; 2]>>,
}

impl RemoteCounts {
    /// So many bytes came from a node, or were given to it.
    pub fn moved(&self, node: NodeId, given: bool, bytes: usize) {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.entry(node).or_default()[usize::from(given)] += bytes as u64;
    }
}

/// See the module. Used by several threads.
pub(crate) struct RemotePost {
    events: Sender<RemoteEvent>,
    /// Messages, and fetches, that wait for the thread.
    waiting: Arc<Waiting>,
    /// The other end, until it is taken.
    received: Mutex<Option<Receiver<RemoteEvent>>>,
    pub staging: Arc<Staging>,
    epochs: [AtomicU32; EPOCHS],
    /// Blocks that are wanted from other nodes, and not here yet.
    pub coming: AtomicU32,
    /// Of each bucket, what has come to it from another node.
    pulled: Box<[AtomicU64]>,
    pub counts: RemoteCounts,
}

/// A block in a word; 0 is none.
fn name_of(file: FileId, block: u64) -> u64 {
    u64::from(file.raw()) << 40 ^ block.wrapping_add(1)
}

impl RemotePost {
    /// For blocks of so many bytes at most.
    pub fn new(block_bytes: usize) -> Self {
        let (events, received) = mpsc::channel();
        Self {
            events,
            waiting: Arc::default(),
            received: Mutex::new(Some(received)),
            staging: Arc::new(Staging::new(2 * SLOTS, block_bytes)),
            epochs: std::array::from_fn(|_| AtomicU32::new(0)),
            coming: AtomicU32::new(0),
            pulled: (0..PULLED).map(|_| AtomicU64::new(0)).collect(),
            counts: RemoteCounts::default(),
        }
    }

    /// What a group that begins needs: memory, what is told of links, and where to say that there
    /// is one.
    pub fn ends(&self) -> (Arc<Staging>, LinkHandler, Sender<RemoteEvent>) {
        let (events, waiting) = (self.events.clone(), Arc::clone(&self.waiting));
        let handler: LinkHandler = Box::new(move |_, event| {
            let event = match event {
                LinkEvent::Message { from, header, body } if header.kind == REMOTE => {
                    if !Waiting::takes(&waiting.messages, MESSAGES_MAX) {
                        return;
                    }
                    RemoteEvent::Message(from, body.to_vec())
                }
                LinkEvent::Pulled { token, outcome } => RemoteEvent::Pulled(token, outcome),
                LinkEvent::Down(member) => RemoteEvent::Down(member),
                _ => return,
            };
            // It has ended only if the manager does.
            let _ = events.send(event);
        });
        (Arc::clone(&self.staging), handler, self.events.clone())
    }

    /// What the thread is told. Once.
    pub fn received(&self) -> Option<Receiver<RemoteEvent>> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Wants blocks of a file; `generation` is that of its record. Gives the question back if too
    /// many wait: the store is as good then.
    ///
    /// # Errors
    /// What was wanted.
    pub fn fetch(
        &self,
        file: FileId,
        generation: u32,
        blocks: Vec<u64>,
        wanted: Wanted,
    ) -> Result<(), Wanted> {
        if !Waiting::takes(&self.waiting.fetches, FETCHES_MAX) {
            return Err(wanted);
        }
        let _ = self.events.send(RemoteEvent::Fetch { file, generation, blocks, wanted });
        Ok(())
    }

    /// What waits for the thread.
    pub fn waiting(&self) -> Arc<Waiting> {
        Arc::clone(&self.waiting)
    }

    /// Has blocks be brought from other nodes that have them, and returns these.
    pub fn placed(&self, file: FileId, generation: u32, blocks: Vec<u64>) -> Vec<u64> {
        let (answer, answered) = mpsc::channel();
        // One that is given back is dropped, which is an answer.
        let _ = self.fetch(file, generation, blocks, Wanted::Placed(answer));
        answered.recv_timeout(PLACED.as_duration()).unwrap_or_default()
    }

    /// This node has written these bytes of a file, which are clean now, and keeps them: others
    /// that read them are sent here.
    pub fn kept(&self, file: FileId, bytes: Range<u64>) {
        let _ = self.events.send(RemoteEvent::Kept { file, bytes });
    }

    /// A block has come from another node, which goes on having it.
    pub fn note_pulled(&self, bucket: BucketId, file: FileId, block: u64) {
        self.pulled_to(bucket).store(name_of(file, block), Ordering::Relaxed);
    }

    /// Whether a block has come from another node. One that is dropped here others do not miss.
    pub fn is_pulled(&self, bucket: BucketId, file: FileId, block: u64) -> bool {
        self.pulled_to(bucket).load(Ordering::Relaxed) == name_of(file, block)
    }

    fn pulled_to(&self, bucket: BucketId) -> &AtomicU64 {
        &self.pulled[bucket.raw() as usize % PULLED]
    }

    /// A read of a file tier for another node has ended; whether all of it is there.
    pub fn slot_read(&self, number: u64, is_read: bool) {
        let _ = self.events.send(RemoteEvent::SlotRead(number, is_read));
    }

    /// Bytes were read from the store ahead of programs.
    pub fn note_staged(&self, bytes: u64) {
        self.counts.staged.fetch_add(bytes, Ordering::Relaxed);
    }

    /// This node gives a file back, which it holds exclusively: what others have sent of it until
    /// now is not taken any more.
    pub fn void_pulls(&self, file: FileId) {
        self.epoch(file).fetch_add(1, Ordering::AcqRel);
    }

    /// Differs from an earlier value if the file was given back since. Means something inside the
    /// file.
    pub fn epoch(&self, file: FileId) -> &AtomicU32 {
        &self.epochs[file.raw() as usize % EPOCHS]
    }

    /// The thread is to end.
    pub fn end(&self) {
        let _ = self.events.send(RemoteEvent::End);
    }

    /// What was counted, for people and programs.
    pub fn report(&self) -> Value {
        let RemoteCounts { fetched, own, failed, given_from_tiers, declined, staged, nodes } =
            &self.counts;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let nodes = nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let each = nodes.iter().map(|(node, [pulled, given])| {
            json!({ "node": node.0, "pulled_bytes": pulled, "given_bytes": given })
        });
        json!({
            "from_nodes": of(fetched),
            "from_store": of(own),
            "failed": of(failed),
            "given_from_tiers": of(given_from_tiers),
            "declined": of(declined),
            "staged_bytes": of(staged),
            "nodes": each.collect::<Vec<_>>(),
        })
    }
}
