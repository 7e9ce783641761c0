//! Blocks that other nodes have in memory: how the parts of the manager reach what brings them here
//! and gives them away (`manager/remote.rs`), and what it counts.

use forebay_cluster::{LinkEvent, LinkHandler, Outcome, Post, REMOTE, Staging};
use forebay_membership::{FileId as GroupFile, Member, NodeId, Rank};
use forebay_pool::clock::Timer;
use forebay_pool::{BucketId, FileId};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

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
/// Events that a thread takes for others before it leaves them to the thread "remote".
const TURN: usize = 64;

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

/// What brings blocks here and gives them away. One thread at a time is at it.
pub(crate) trait Bringer: Send {
    /// Does what an event asks for. Waits for nothing but, a moment, for threads inside files.
    fn take(&mut self, event: RemoteEvent);
    /// Does what is due.
    fn look_around(&mut self);
    /// When something is.
    fn due(&self) -> Option<Instant>;
    /// The manager ends: what is under way does not come.
    fn end(&mut self);
}

/// How much waits to be taken.
#[derive(Default)]
struct Waiting {
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
    fn taken(&self, event: &RemoteEvent) {
        let count = match event {
            RemoteEvent::Message(..) => &self.messages,
            RemoteEvent::Fetch { .. } => &self.fetches,
            _ => return,
        };
        count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where events meet the [`Bringer`]. Each is taken on the thread that brings it, so that no other
/// one has to be woken, which takes longer than most of them; what comes while a thread is at it,
/// that one takes, too.
#[derive(Default)]
pub(crate) struct Desk {
    /// Locked before `book` where both are.
    bringer: Mutex<Option<Box<dyn Bringer>>>,
    book: Mutex<Book>,
    waiting: Waiting,
    wakes: Condvar,
}

#[derive(Default)]
struct Book {
    events: VecDeque<RemoteEvent>,
    /// When the thread "remote" looks; `None`: when it is woken.
    looks_at: Option<Instant>,
    ends: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Desk {
    /// Something has happened. The caller is inside no file, and holds nothing.
    fn tell(&self, event: RemoteEvent) {
        self.put(event);
        self.take_all();
    }

    fn put(&self, event: RemoteEvent) {
        let mut book = lock(&self.book);
        if !book.ends {
            book.events.push_back(event);
        }
    }

    fn next(&self) -> Option<RemoteEvent> {
        let event = lock(&self.book).events.pop_front();
        event.inspect(|event| self.waiting.taken(event))
    }

    /// Takes what there is, unless another thread is at it.
    fn take_all(&self) {
        let mut left = TURN;
        // What is told while this thread still has the bringer, is left to it.
        while !lock(&self.book).events.is_empty() {
            let mut bringer = match self.bringer.try_lock() {
                Ok(bringer) => bringer,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            // They wait until the thread "remote" has begun.
            let Some(bringer) = bringer.as_mut() else { return };
            while left > 0
                && let Some(event) = self.next()
            {
                bringer.take(event);
                left -= 1;
            }
            let due = if left == 0 { Some(Instant::now()) } else { bringer.due() };
            let mut book = lock(&self.book);
            if due.is_some_and(|due| book.looks_at.is_none_or(|at| due < at)) {
                book.looks_at = due;
                self.wakes.notify_one();
            }
            if left == 0 {
                return;
            }
        }
    }

    /// The life of the thread "remote": it looks when something is due, until the manager ends.
    pub fn keep(&self, bringer: Box<dyn Bringer>) {
        *lock(&self.bringer) = Some(bringer);
        loop {
            if let Some(bringer) = lock(&self.bringer).as_mut() {
                while let Some(event) = self.next() {
                    bringer.take(event);
                }
                bringer.look_around();
                let due = bringer.due();
                lock(&self.book).looks_at = due;
            }
            // What came meanwhile was left to this thread.
            self.take_all();
            let mut book = lock(&self.book);
            while !book.ends {
                let left = book.looks_at.map(|at| at.saturating_duration_since(Instant::now()));
                book = match left {
                    Some(Duration::ZERO) => break,
                    Some(left) => {
                        let woken = self.wakes.wait_timeout(book, left);
                        woken.unwrap_or_else(PoisonError::into_inner).0
                    }
                    None => self.wakes.wait(book).unwrap_or_else(PoisonError::into_inner),
                };
            }
            if book.ends {
                break;
            }
        }
        let bringer = lock(&self.bringer).take();
        if let Some(mut bringer) = bringer {
            while let Some(event) = self.next() {
                bringer.take(event);
            }
            bringer.end();
        }
    }

    fn end(&self) {
        lock(&self.book).ends = true;
        self.wakes.notify_one();
    }
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
    desk: Arc<Desk>,
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
            desk: Arc::default(),
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
        let desk = self.desk();
        let handler: LinkHandler = Box::new(move |_, event| {
            let event = match event {
                LinkEvent::Message { from, header, body } if header.kind == REMOTE => {
                    if !Waiting::takes(&desk.waiting.messages, MESSAGES_MAX) {
                        return;
                    }
                    RemoteEvent::Message(from, body.to_vec())
                }
                LinkEvent::Pulled { token, outcome } => RemoteEvent::Pulled(token, outcome),
                LinkEvent::Down(member) => RemoteEvent::Down(member),
                _ => return,
            };
            desk.tell(event);
        });
        let desk = self.desk();
        (Arc::clone(&self.staging), handler, move |event| desk.tell(event))
    }

    /// Where events meet what takes them.
    pub fn desk(&self) -> Arc<Desk> {
        Arc::clone(&self.desk)
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
        if !Waiting::takes(&self.desk.waiting.fetches, FETCHES_MAX) {
            return Err(wanted);
        }
        self.desk.tell(RemoteEvent::Fetch { file, generation, blocks, wanted });
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
        self.desk.tell(RemoteEvent::Kept { file, bytes });
    }

    /// A program of this node, which was to read a block from the store for other nodes, too, keeps
    /// none of it. The caller is inside no file.
    pub fn unkept(&self, file: FileId, generation: u32, block: u64) {
        self.desk.tell(RemoteEvent::Unkept { file, generation, block });
    }

    /// Another member may read a file from now on, of which this node is the home: it is told what
    /// this node knows of who has its blocks. The caller is inside no file.
    pub fn granted(&self, file: GroupFile, to: Member) {
        self.desk.tell(RemoteEvent::Granted { file, to });
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
        self.desk.tell(RemoteEvent::SlotRead(number, is_read));
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
        self.desk.end();
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Counts what it is told, and is asked to look once after each event.
    struct Counter {
        taken: Arc<AtomicU64>,
        looked: Arc<AtomicU64>,
        due: Option<Instant>,
    }

    impl Bringer for Counter {
        fn take(&mut self, event: RemoteEvent) {
            assert!(matches!(event, RemoteEvent::Pulled(..)));
            // Not in one step: only one thread at a time is here.
            let taken = self.taken.load(Ordering::Relaxed);
            thread::yield_now();
            self.taken.store(taken + 1, Ordering::Relaxed);
            self.due = Some(Instant::now());
        }

        fn look_around(&mut self) {
            if self.due.take().is_some() {
                self.looked.fetch_add(1, Ordering::Relaxed);
            }
        }

        fn due(&self) -> Option<Instant> {
            self.due
        }

        fn end(&mut self) {
            self.taken.fetch_add(1_000_000, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_event_is_taken_by_one_thread_or_another() {
        const EACH: u64 = 2_000;
        let desk = Desk::default();
        let [taken, looked] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let tell = || (0..EACH).for_each(|n| desk.tell(RemoteEvent::Pulled(n, Outcome::Ok)));
        // Before the thread begins, too.
        tell();
        let counter = Counter { taken: Arc::clone(&taken), looked: Arc::clone(&looked), due: None };
        thread::scope(|scope| {
            scope.spawn(|| desk.keep(Box::new(counter)));
            thread::scope(|scope| (0..3).for_each(|_| drop(scope.spawn(tell))));
            let is_done = || {
                let seen = looked.load(Ordering::Relaxed);
                seen > 0 && taken.load(Ordering::Relaxed) == 4 * EACH
            };
            while !is_done() {
                thread::yield_now();
            }
            desk.end();
        });
        assert_eq!(taken.load(Ordering::Relaxed), 1_000_000 + 4 * EACH);
        // Nothing is kept of what comes later.
        desk.tell(RemoteEvent::Pulled(0, Outcome::Ok));
        assert!(lock(&desk.book).events.is_empty());
    }
}
