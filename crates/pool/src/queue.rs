//! A bounded queue of [`Message`]s in shared memory: many producers, in any process, tell the node
//! manager what needs no descriptor.
//!
//! Each place has a state word: the lap in which it may be used, and the owner that is at it. A
//! producer claims the place at the tail by its [`Owner`] stamp, writes the packet, and publishes
//! it; a thread that finds the tail behind moves it on, so that no thread waits for one that was
//! killed in between. The consumer passes over places that are claimed and not yet published: one
//! stopped producer does not hold up the others. What a dead producer claimed is given back by
//! [`Queue::take_back`].
//!
//! Zeroed memory is an empty queue. A push is about ten nanoseconds where no other thread pushes,
//! and makes no system call unless the consumer sleeps.
//!
//! ```
//! use forebay_pool::message::Message;
//! use forebay_pool::{Owner, Queue};
//!
//! let queue = Queue::<4>::new();
//! assert!(queue.push(Owner::new(1, 0), &Message::Hold));
//! assert_eq!(queue.pop(), Some(Message::Hold));
//! assert_eq!(queue.pop(), None);
//! ```

use crate::futex;
use crate::message::{MESSAGE_BYTES, Message};
use crate::owner::Owner;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Places of the queue in a segment: 64 KiB. One for each client process that may wait for a sync.
pub const PLACES: usize = 1024;

/// No owner, in the lower half of a state word.
const EMPTY: u32 = 0;
/// A message lies there. No owner's stamp: slot 4095 has no such thread.
const READY: u32 = u32::MAX;

/// A message and its state: one cache line, so that producers do not disturb each other.
#[repr(C, align(64))]
struct Place {
    /// Lap in the upper half; [`EMPTY`], [`READY`] or the claiming owner in the lower.
    state: AtomicU64,
    packet: [AtomicU64; MESSAGE_BYTES / 8],
}

/// A word in a cache line of its own.
#[repr(C, align(64))]
struct Alone<T>(T);

/// A bounded queue with `N` places, a power of two.
#[repr(C)]
pub struct Queue<const N: usize = PLACES> {
    /// The next ticket to be claimed; it may lag behind.
    tail: Alone<AtomicU64>,
    /// No ticket below is waiting to be taken; it may lag behind.
    head: Alone<AtomicU64>,
    /// Futex: 1 while the consumer sleeps, or is about to.
    asleep: Alone<AtomicU32>,
    /// A thread found the queue full: what was to be said has to be looked for.
    missed: AtomicU32,
    places: [Place; N],
}

const _: () = assert!(core::mem::align_of::<Queue>() == 64);

impl<const N: usize> Default for Queue<N> {
    fn default() -> Queue<N> {
        Queue::new()
    }
}

impl<const N: usize> Queue<N> {
    /// An empty queue.
    pub fn new() -> Queue<N> {
        const { assert!(N.is_power_of_two()) };
        let place = |_| Place {
            state: AtomicU64::new(0),
            packet: core::array::from_fn(|_| AtomicU64::new(0)),
        };
        Queue {
            tail: Alone(AtomicU64::new(0)),
            head: Alone(AtomicU64::new(0)),
            asleep: Alone(AtomicU32::new(0)),
            missed: AtomicU32::new(0),
            places: core::array::from_fn(place),
        }
    }

    fn place(&self, ticket: u64) -> &Place {
        &self.places[ticket as usize % N]
    }

    fn lap(ticket: u64) -> u32 {
        (ticket / N as u64) as u32
    }

    fn word(lap: u32, holder: u32) -> u64 {
        u64::from(lap) << 32 | u64::from(holder)
    }

    /// Puts `message` at the end and wakes a sleeping consumer. False if the queue is full.
    ///
    /// `owner` is the calling thread's stamp; its process must be able to say so when asked whether
    /// it lives. A claim is a lock: the caller has a shared lock, see `docs/design/main-job.md`.
    #[inline]
    pub fn push(&self, owner: Owner, message: &Message) -> bool {
        let Some(ticket) = self.claim(owner) else { return false };
        let place = self.place(ticket);
        let packet = message.encode();
        for (word, bytes) in place.packet.iter().zip(packet.as_chunks::<8>().0) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        place.state.store(Self::word(Self::lap(ticket), READY), Ordering::Release);
        self.ring();
        true
    }

    /// Claims the place at the tail; `None` if the queue is full.
    pub(crate) fn claim(&self, owner: Owner) -> Option<u64> {
        if crate::crash::refused("place") {
            return None;
        }
        let tail = &self.tail.0;
        let mut ticket = tail.load(Ordering::Acquire);
        // Bounded: in a damaged queue no place may ever be free.
        for _ in 0..4 * N {
            let (place, lap) = (self.place(ticket), Self::lap(ticket));
            let empty = Self::word(lap, EMPTY);
            let claimed = Self::word(lap, owner.raw());
            let seen = match place.state.compare_exchange(
                empty,
                claimed,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    let _ = self.pass(tail, ticket);
                    return Some(ticket);
                }
                Err(seen) => seen,
            };
            let ahead = ((seen >> 32) as u32).wrapping_sub(lap) as i32;
            if ahead >= 0 {
                // Claimed by a thread that has not come to move the tail on.
                ticket = self.pass(tail, ticket);
                continue;
            }
            let now = tail.load(Ordering::Acquire);
            if now == ticket {
                return None;
            }
            ticket = now;
        }
        None
    }

    /// Moves an end of the queue on from `ticket`, and says where it is now.
    fn pass(&self, end: &AtomicU64, ticket: u64) -> u64 {
        let next = ticket.wrapping_add(1);
        match end.compare_exchange(ticket, next, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => next,
            Err(now) => now,
        }
    }

    /// Takes the oldest message that is there. What is no message is passed over.
    pub fn pop(&self) -> Option<Message> {
        while let Some((ticket, seen)) = self.oldest() {
            let place = self.place(ticket);
            let mut packet = [0; MESSAGE_BYTES];
            for (bytes, word) in packet.as_chunks_mut::<8>().0.iter_mut().zip(&place.packet) {
                *bytes = word.load(Ordering::Relaxed).to_le_bytes();
            }
            let free = Self::word(Self::lap(ticket).wrapping_add(1), EMPTY);
            let taken =
                place.state.compare_exchange(seen, free, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_ok() {
                self.pass(&self.head.0, ticket);
                if let Some(message) = Message::decode(&packet) {
                    return Some(message);
                }
            }
        }
        None
    }

    /// The oldest message that is there: its ticket and state.
    fn oldest(&self) -> Option<(u64, u64)> {
        let head = &self.head.0;
        let mut ticket = head.load(Ordering::Acquire);
        let mut end = ticket.wrapping_add(N as u64);
        for _ in 0..2 * N {
            if ticket == end {
                break;
            }
            let seen = self.place(ticket).state.load(Ordering::Acquire);
            let lap = Self::lap(ticket);
            if seen == Self::word(lap, READY) {
                return Some((ticket, seen));
            }
            match ((seen >> 32) as u32).wrapping_sub(lap) as i32 {
                // Claimed, or the end.
                0 if seen as u32 != EMPTY => {}
                1.. => end = self.pass(head, ticket).wrapping_add(N as u64),
                _ => return None,
            }
            ticket = ticket.wrapping_add(1);
        }
        None
    }

    /// Gives back the places that dead owners claimed, as `is_dead` says. Returns how many.
    pub fn take_back(&self, mut is_dead: impl FnMut(Owner) -> bool) -> u32 {
        let mut count = 0;
        for place in &self.places {
            let seen = place.state.load(Ordering::Acquire);
            if seen as u32 == READY {
                continue;
            }
            if Owner::from_raw(seen as u32).is_some_and(&mut is_dead) {
                let free = Self::word(((seen >> 32) as u32).wrapping_add(1), EMPTY);
                let taken =
                    place.state.compare_exchange(seen, free, Ordering::AcqRel, Ordering::Relaxed);
                count += u32::from(taken.is_ok());
            }
        }
        count
    }

    /// Notes that something could not be said, and wakes the consumer to look for it.
    pub fn miss(&self) {
        self.missed.store(1, Ordering::Release);
        self.ring();
    }

    /// Whether something could not be said since the last call.
    pub fn has_missed(&self) -> bool {
        self.missed.load(Ordering::Relaxed) != 0 && self.missed.swap(0, Ordering::AcqRel) != 0
    }

    /// Wakes the consumer if it sleeps.
    #[inline]
    pub fn ring(&self) {
        // Either the consumer sees what was said before, or we see that it sleeps.
        fence(Ordering::SeqCst);
        if self.asleep.0.load(Ordering::Relaxed) != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        if self.asleep.0.swap(0, Ordering::AcqRel) != 0 {
            futex::wake_all(&self.asleep.0);
        }
    }

    /// Sleeps until there is a message, at most `timeout_ms`, unless `awake` says that there is
    /// something else to do. The thread that makes it say so rings afterwards. May return early for
    /// no reason.
    pub fn wait(&self, timeout_ms: u64, awake: impl FnOnce() -> bool) {
        self.asleep.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let something = self.oldest().is_some() || self.missed.load(Ordering::Relaxed) != 0;
        if !something && !awake() {
            futex::wait(&self.asleep.0, 1, timeout_ms);
        }
        self.asleep.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileId;

    const ME: fn() -> Owner = || Owner::new(1, 0);

    fn sync(file: u32) -> Message {
        Message::Sync { file: FileId::from_raw(file) }
    }

    #[test]
    fn messages_come_out_in_order_for_many_laps() {
        let queue = Queue::<4>::new();
        for file in 0..100 {
            assert_eq!(queue.pop(), None);
            assert!(queue.push(ME(), &sync(file)) && queue.push(ME(), &sync(file + 1000)));
            assert_eq!(queue.pop(), Some(sync(file)));
            assert_eq!(queue.pop(), Some(sync(file + 1000)));
        }
    }

    #[test]
    fn a_full_queue_says_so_and_goes_on_when_there_is_room() {
        let queue = Queue::<4>::new();
        assert!((0..4).all(|file| queue.push(ME(), &sync(file))));
        assert!(!queue.push(ME(), &sync(4)));
        assert!(!queue.has_missed());
        queue.miss();
        assert!(queue.has_missed() && !queue.has_missed());
        assert_eq!(queue.pop(), Some(sync(0)));
        assert!(queue.push(ME(), &sync(5)));
        assert!(!queue.push(ME(), &sync(6)));
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(rest, [1, 2, 3, 5].map(sync));
    }

    #[test]
    fn a_claim_left_open_holds_up_no_other_and_is_given_back() {
        let queue = Queue::<4>::new();
        let (dead, alive) = (Owner::new(2, 0), Owner::new(3, 0));
        assert!(queue.claim(dead).is_some() && queue.claim(alive).is_some());
        for file in 0..2 {
            assert!(queue.push(ME(), &sync(file)));
            assert_eq!(queue.pop(), Some(sync(file)));
        }
        assert!(!queue.push(ME(), &sync(2)), "the ring cannot pass a claim");
        assert_eq!(queue.take_back(|owner| owner == dead), 1);
        assert!(queue.push(ME(), &sync(3)));
        assert_eq!(queue.pop(), Some(sync(3)));
        assert_eq!(queue.take_back(|owner| owner == alive), 1);
        for file in 0..20 {
            assert!(queue.push(ME(), &sync(file)));
            assert_eq!(queue.pop(), Some(sync(file)));
        }
    }

    #[test]
    fn rubbish_is_passed_over() {
        let queue = Queue::<4>::new();
        assert!(queue.push(ME(), &sync(1)) && queue.push(ME(), &sync(2)));
        queue.places[0].packet[0].store(u64::MAX, Ordering::Relaxed);
        assert_eq!(queue.pop(), Some(sync(2)));
        assert_eq!(queue.pop(), None);
        // States that no protocol leaves: whatever comes, it ends.
        for state in [u64::MAX, 1 << 63, u64::from(u32::MAX) << 32, 7] {
            let queue = Queue::<4>::new();
            queue.head.0.store(state, Ordering::Relaxed);
            queue.places.iter().for_each(|place| place.state.store(state, Ordering::Relaxed));
            queue.push(ME(), &sync(1));
            queue.pop();
            queue.take_back(|_| true);
        }
    }

    #[test]
    fn a_sleeping_consumer_is_woken() {
        let queue = Queue::<4>::new();
        std::thread::scope(|scope| {
            let consumer = scope.spawn(|| {
                let mut seen = [false; 1000];
                for _ in 0..seen.len() {
                    let popped = loop {
                        match queue.pop() {
                            Some(message) => break message,
                            None => queue.wait(60_000, || false),
                        }
                    };
                    let Message::Sync { file } = popped else { panic!("{popped:?}") };
                    // Each once. A consumer that is interrupted between two places may find a later
                    // message first.
                    assert!(!std::mem::replace(&mut seen[file.index()], true), "{file} twice");
                }
            });
            for file in 0..1000 {
                while !queue.push(ME(), &sync(file)) {
                    assert!(!consumer.is_finished(), "the consumer gave up");
                    std::thread::yield_now();
                }
            }
            consumer.join().unwrap();
        });
    }
}
