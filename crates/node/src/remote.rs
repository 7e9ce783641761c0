//! Blocks that other nodes have in memory: how the parts of the manager reach what brings them here
//! and gives them away (`manager/remote.rs`), and what it counts.

use forebay_cluster::{LinkEvent, LinkHandler, Outcome, Post, REMOTE, Staging, Strand, Taker};
use forebay_membership::{FileId as GroupFile, Member, NodeId, Rank};
use forebay_pool::clock::Timer;
use forebay_pool::{BucketId, FileId};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

/// What happens.
pub(crate) enum RemoteEvent {
    /// There is a group: how it is reached, and what this node is in it.
    Begun(Post, Box<dyn Fn() -> Rank + Send>),
    /// Blocks are wanted.
    Fetch { file: FileId, generation: u32, blocks: Vec<u64>, wanted: Wanted },
    /// This node has written a file, or these bytes of it, and keeps them for others to read.
    Kept { file: FileId, bytes: Range<u64> },
    /// A program that was to read this block from the store keeps none of it.
    Unkept { file: FileId, generation: u32, block: u64 },
    /// Another member may read a file, of which this node is the home.
    Granted { file: GroupFile, to: Member },
    /// A message of another member.
    Message(Member, Vec<u8>),
    /// A pull has ended.
    Pulled(u64, Outcome),
    /// A read of a file tier has ended; whether all of it is there.
    SlotRead(u64, bool),
    /// There is no link to this member any more.
    Down(Member),
}

/// Where events meet what brings blocks here and gives them away (`manager/remote.rs`). A caller
/// that dispatches one is inside no file, and holds nothing.
pub(crate) type RemoteStrand = Strand<Box<dyn Taker<Event = RemoteEvent>>>;

/// How much waits to be taken.
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

    /// This is taken.
    pub fn taken(&self, event: &RemoteEvent) {
        let count = match event {
            RemoteEvent::Message(..) => &self.messages,
            RemoteEvent::Fetch { .. } => &self.fetches,
            _ => return,
        };
        count.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Who waits for blocks.
pub(crate) enum Wanted {
    /// A program: until they are here, or to be read from the store.
    Ticket(u16),
    /// The stager: until it is known which ones come from other nodes.
    Placed(Sender<Vec<u64>>),
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
    /// Questions that this node has sent who has blocks.
    pub finds: AtomicU64,
    /// Those for a block that this node has sent to one that was said to have it.
    pub gets: AtomicU64,
    /// Bytes that the manager has read from the store ahead of programs.
    pub staged: AtomicU64,
    /// Of each node, bytes that came from it, and that were given to it.
    pub nodes: Mutex<BTreeMap<NodeId, [u64; 2]>>,
}

impl RemoteCounts {
    /// So many bytes came from a node, or were given to it.
    pub fn moved(&self, node: NodeId, given: bool, bytes: usize) {
        let mut nodes = lock(&self.nodes);
        nodes.entry(node).or_default()[usize::from(given)] += bytes as u64;
    }
}

/// See the module. Used by several threads.
pub(crate) struct RemotePost {
    strand: Arc<RemoteStrand>,
    pub waiting: Arc<Waiting>,
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
        Self {
            strand: Arc::default(),
            waiting: Arc::default(),
            staging: Arc::new(Staging::new(2 * SLOTS, block_bytes)),
            epochs: std::array::from_fn(|_| AtomicU32::new(0)),
            coming: AtomicU32::new(0),
            pulled: (0..PULLED).map(|_| AtomicU64::new(0)).collect(),
            counts: RemoteCounts::default(),
        }
    }

    /// What a group that begins needs: memory, what is told of links, and how to say that there is
    /// one.
    pub fn ends(&self) -> (Arc<Staging>, LinkHandler, impl Fn(RemoteEvent) + Send + 'static) {
        let (strand, waiting) = (self.strand(), Arc::clone(&self.waiting));
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
            strand.dispatch(event);
        });
        let strand = self.strand();
        (Arc::clone(&self.staging), handler, move |event| strand.dispatch(event))
    }

    /// Where events meet what takes them.
    pub fn strand(&self) -> Arc<RemoteStrand> {
        Arc::clone(&self.strand)
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
        self.strand.dispatch(RemoteEvent::Fetch { file, generation, blocks, wanted });
        Ok(())
    }

    /// Has blocks be brought from other nodes that have them, and returns these.
    pub fn placed(&self, file: FileId, generation: u32, blocks: Vec<u64>) -> Vec<u64> {
        let (answer, answered) = mpsc::channel();
        // One that is given back is dropped, which is an answer.
        let _ = self.fetch(file, generation, blocks, Wanted::Placed(answer));
        answered.recv_timeout(PLACED.as_duration()).unwrap_or_default()
    }

    /// This node has written these bytes of a file, which are clean now, and keeps them: others
    /// that read them are sent here. The caller is inside no file.
    pub fn kept(&self, file: FileId, bytes: Range<u64>) {
        self.strand.dispatch(RemoteEvent::Kept { file, bytes });
    }

    /// A program of this node, which was to read a block from the store for other nodes, too, keeps
    /// none of it. The caller is inside no file.
    pub fn unkept(&self, file: FileId, generation: u32, block: u64) {
        self.strand.dispatch(RemoteEvent::Unkept { file, generation, block });
    }

    /// Another member may read a file from now on, of which this node is the home: it is told what
    /// this node knows of who has its blocks. The caller is inside no file.
    pub fn granted(&self, file: GroupFile, to: Member) {
        self.strand.dispatch(RemoteEvent::Granted { file, to });
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
        self.strand.dispatch(RemoteEvent::SlotRead(number, is_read));
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
        self.strand.end();
    }

    /// What was counted, for people and programs.
    pub fn report(&self) -> Value {
        let RemoteCounts {
            fetched,
            own,
            failed,
            given_from_tiers,
            declined,
            finds,
            gets,
            staged,
            nodes,
        } = &self.counts;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let nodes = lock(nodes);
        let each = nodes.iter().map(|(node, [pulled, given])| {
            json!({ "node": node.0, "pulled_bytes": pulled, "given_bytes": given })
        });
        json!({
            "from_nodes": of(fetched),
            "from_store": of(own),
            "failed": of(failed),
            "given_from_tiers": of(given_from_tiers),
            "declined": of(declined),
            "finds": of(finds),
            "gets": of(gets),
            "staged_bytes": of(staged),
            "nodes": each.collect::<Vec<_>>(),
        })
    }
}
