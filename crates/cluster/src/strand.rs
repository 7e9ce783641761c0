//! A strand: events that are taken one at a time, each on the thread that brings it, so that no
//! other one has to be woken, which takes longer than most of them. What comes while a thread is at
//! it, that one takes, too. A thread of its own does what is due at some moment, and takes what may
//! take longer, with all that has come after it.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Events that a thread takes for others before it leaves them to the strand's own, and that one
/// before it looks around.
const TURN: usize = 64;
/// Room for so many events stays when none waits.
const KEPT: usize = 1024;

/// What takes the events of a [`Strand`]. One thread at a time is at it.
pub trait Taker: Send {
    /// What happens.
    type Event: Send;

    /// Does what an event asks for, on any thread that brings one, if that waits for nothing and is
    /// soon over. Else gives it back, for [`Taker::take`].
    fn take_at_once(&mut self, event: Self::Event) -> Option<Self::Event>;

    /// Does what an event asks for, on the strand's own thread.
    fn take(&mut self, event: Self::Event);

    /// Does what is due, on the strand's own thread, which may wait.
    fn look_around(&mut self);

    /// When something is.
    fn due(&self) -> Option<Instant>;

    /// The strand ends, and all that came before it is taken.
    fn end(&mut self);
}

impl<T: Taker + ?Sized> Taker for Box<T> {
    type Event = T::Event;

    fn take_at_once(&mut self, event: T::Event) -> Option<T::Event> {
        (**self).take_at_once(event)
    }

    fn take(&mut self, event: T::Event) {
        (**self).take(event);
    }

    fn look_around(&mut self) {
        (**self).look_around();
    }

    fn due(&self) -> Option<Instant> {
        (**self).due()
    }

    fn end(&mut self) {
        (**self).end();
    }
}

/// See the module. Used by several threads.
pub struct Strand<T: Taker> {
    /// Locked before `book` where both are.
    taker: Mutex<Option<T>>,
    book: Mutex<Book<T::Event>>,
    wakes: Condvar,
}

struct Book<E> {
    events: VecDeque<E>,
    /// When the strand's own thread looks; `None`: when it is woken.
    looks_at: Option<Instant>,
    ends: bool,
}

/// A taker has panicked, and may have done half of something: what it would do next is not known.
fn torn() -> ! {
    eprintln!("a part of the group's threads has failed: this process ends");
    std::process::abort();
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Taker> Default for Strand<T> {
    fn default() -> Self {
        let book = Book { events: VecDeque::new(), looks_at: None, ends: false };
        Self { taker: Mutex::new(None), book: Mutex::new(book), wakes: Condvar::new() }
    }
}

impl<T: Taker> Strand<T> {
    /// An event, which is taken on this thread unless another one is at it, or the strand's own has
    /// not begun. The caller holds nothing that the taker may need. After the end it is dropped.
    pub fn dispatch(&self, event: T::Event) {
        if self.put(event) {
            self.take_all();
        }
    }

    /// An event that is not taken on this thread, which may hold anything: the strand's own is
    /// woken, and takes it if no other one has before. After the end it is dropped.
    pub fn post(&self, event: T::Event) {
        if self.put(event) {
            self.look_at(Instant::now());
        }
    }

    fn put(&self, event: T::Event) -> bool {
        let mut book = lock(&self.book);
        if !book.ends {
            book.events.push_back(event);
        }
        !book.ends
    }

    fn next(&self) -> Option<T::Event> {
        let mut book = lock(&self.book);
        if book.events.is_empty() && book.events.capacity() > KEPT {
            book.events = VecDeque::new();
        }
        book.events.pop_front()
    }

    /// Locks the taker, if no thread is at it.
    fn try_taker(&self) -> Option<MutexGuard<'_, Option<T>>> {
        match self.taker.try_lock() {
            Ok(taker) => Some(taker),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => torn(),
        }
    }

    fn own_taker(&self) -> MutexGuard<'_, Option<T>> {
        self.taker.lock().unwrap_or_else(|_| torn())
    }

    fn look_at(&self, due: Instant) {
        let mut book = lock(&self.book);
        if book.looks_at.is_none_or(|at| due < at) {
            book.looks_at = Some(due);
            self.wakes.notify_one();
        }
    }

    /// Takes what there is, unless another thread is at it.
    fn take_all(&self) {
        let mut left = TURN;
        // What comes while this thread still has the taker, is left to it.
        while !lock(&self.book).events.is_empty() {
            let Some(mut taker) = self.try_taker() else { return };
            // They wait until the strand's own thread has begun.
            let Some(taker) = taker.as_mut() else { return };
            while left > 0
                && let Some(event) = self.next()
            {
                left -= 1;
                if let Some(event) = taker.take_at_once(event) {
                    // Before what has come since: in their order.
                    lock(&self.book).events.push_front(event);
                    left = 0;
                }
            }
            let due = if left == 0 { Some(Instant::now()) } else { taker.due() };
            due.into_iter().for_each(|due| self.look_at(due));
            if left == 0 {
                return;
            }
        }
    }

    /// The life of the strand's own thread: it looks when something is due, until the end. Once.
    pub fn keep(&self, taker: T) {
        *self.own_taker() = Some(taker);
        loop {
            if let Some(taker) = self.own_taker().as_mut() {
                let mut left = TURN;
                while left > 0
                    && let Some(event) = self.next()
                {
                    taker.take(event);
                    left -= 1;
                }
                taker.look_around();
                let due = taker.due();
                let mut book = lock(&self.book);
                book.looks_at = if book.events.is_empty() { due } else { Some(Instant::now()) };
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
        let taker = self.own_taker().take();
        if let Some(mut taker) = taker {
            while let Some(event) = self.next() {
                taker.take(event);
            }
            taker.end();
        }
    }

    /// Ends the strand: its own thread takes what has come, and returns.
    pub fn end(&self) {
        lock(&self.book).ends = true;
        self.wakes.notify_one();
    }

    /// There will be no taker: what waits for one is dropped.
    pub fn abandon(&self) {
        let mut book = lock(&self.book);
        book.ends = true;
        book.events = VecDeque::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    /// Counts what it is told, and is asked to look once after each event.
    struct Counter {
        taken: Arc<AtomicU64>,
        looked: Arc<AtomicU64>,
        due: Option<Instant>,
    }

    impl Taker for Counter {
        type Event = u64;

        fn take_at_once(&mut self, event: u64) -> Option<u64> {
            if event % 7 == 3 {
                return Some(event);
            }
            self.take(event);
            None
        }

        fn take(&mut self, _: u64) {
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
        let strand = Strand::<Counter>::default();
        let [taken, looked] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let tell = || (0..EACH / 2).for_each(|n| (strand.dispatch(n), strand.post(n)).1);
        // Before the thread begins, too.
        tell();
        let counter = Counter { taken: Arc::clone(&taken), looked: Arc::clone(&looked), due: None };
        thread::scope(|scope| {
            scope.spawn(|| strand.keep(counter));
            thread::scope(|scope| (0..3).for_each(|_| drop(scope.spawn(tell))));
            let is_done = || {
                let seen = looked.load(Ordering::Relaxed);
                seen > 0 && taken.load(Ordering::Relaxed) == 4 * EACH
            };
            while !is_done() {
                thread::yield_now();
            }
            strand.end();
        });
        assert_eq!(taken.load(Ordering::Relaxed), 1_000_000 + 4 * EACH);
        // Nothing is kept of what comes later.
        strand.dispatch(0);
        strand.post(0);
        assert!(lock(&strand.book).events.is_empty());
    }

    const LONG: u64 = 9;

    /// Tells where each event is taken, and itself of another one for each 1.
    struct Echo {
        strand: Arc<Strand<Echo>>,
        taken: Arc<Mutex<Vec<(u64, thread::ThreadId)>>>,
    }

    impl Taker for Echo {
        type Event = u64;

        fn take_at_once(&mut self, event: u64) -> Option<u64> {
            if event == LONG {
                return Some(event);
            }
            self.take(event);
            None
        }

        fn take(&mut self, event: u64) {
            lock(&self.taken).push((event, thread::current().id()));
            if event == 1 {
                self.strand.dispatch(2);
            }
        }

        fn look_around(&mut self) {}

        fn due(&self) -> Option<Instant> {
            None
        }

        fn end(&mut self) {}
    }

    #[test]
    fn what_is_dispatched_is_taken_here_and_what_is_posted_there() {
        let strand = Arc::<Strand<Echo>>::default();
        let taken = Arc::<Mutex<Vec<(u64, thread::ThreadId)>>>::default();
        let echo = Echo { strand: Arc::clone(&strand), taken: Arc::clone(&taken) };
        let (here, there) = thread::scope(|scope| {
            let own = scope.spawn(|| strand.keep(echo));
            let there = own.thread().id();
            while lock(&strand.taker).is_none() {
                thread::yield_now();
            }
            let here = thread::current().id();
            // Its own thread may be at it for a moment yet.
            let is_taken_here = || {
                strand.dispatch(1);
                thread::sleep(Duration::from_millis(1));
                std::mem::take(&mut *lock(&taken)) == [(1, here), (2, here)]
            };
            assert!((0..1000).any(|_| is_taken_here()));
            let told = |events: &[u64], by: fn(&Strand<Echo>, u64)| {
                events.iter().for_each(|event| by(&strand, *event));
                while lock(&taken).len() < events.len() {
                    thread::yield_now();
                }
                std::mem::take(&mut *lock(&taken))
            };
            assert_eq!(told(&[3], Strand::post), [(3, there)]);
            // What takes long, too, and what has come after it stays behind it.
            let order = told(&[LONG, 4, 5], Strand::dispatch);
            assert_eq!(order.iter().map(|(event, _)| *event).collect::<Vec<_>>(), [LONG, 4, 5]);
            assert_eq!(order[0].1, there);
            strand.end();
            (here, there)
        });
        assert_ne!(here, there);
    }

    #[test]
    fn nothing_is_kept_for_a_taker_that_never_comes() {
        let strand = Strand::<Counter>::default();
        strand.dispatch(0);
        strand.abandon();
        strand.dispatch(1);
        assert_eq!(lock(&strand.book).events.capacity(), 0);
    }
}
