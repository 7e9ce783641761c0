//! The order of the locks, asserted in builds with debug assertions: a thread that is about to wait
//! for a lock holds none that comes later. A release build has nothing of it.
//!
//! The order is that of [`Rank`]; ARCHITECTURE.md gives it under "Lock order". Each thread notes
//! what it holds, by the address of the lock's word, in storage of its own that has no destructor
//! and is never allocated: it is there for whatever a program runs before and after its threads'
//! other storage. Of a lock that a thread takes without waiting for it nothing is asserted, but it
//! counts for what the thread waits for afterwards. A shared lock is asserted once its word is
//! claimed, because it may need none: before that there is nothing to wait for but a free word.
//!
//! What is noted belongs to an owner, which outside of tests is a thread. The tests let one thread
//! be several processes, of which some are dead and hold locks for ever.

use crate::owner::Owner;

/// What a lock is of, outermost first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rank {
    /// The file table, or beside a file: a shared lock that keeps no thread off.
    Table,
    /// The offset of a description.
    Position,
    /// The end of a file.
    Append,
    /// A file that the thread is inside: a shared lock, for which exclusive use waits.
    Inside,
    /// Exclusive use of a file.
    Exclusive,
    /// An index entry whose block is written around the tiers.
    Busy,
    /// A bucket that an index entry may name.
    Bucket,
    /// A bucket that no index entry names yet.
    Fresh,
    /// A stripe of the file table.
    Stripe,
}

impl Rank {
    /// Whether a thread that holds a lock of this rank may wait for one of rank `next`.
    #[cfg(debug_assertions)]
    fn allows(self, next: Rank) -> bool {
        match (self, next) {
            // Another thread may wait until this one has left.
            (Rank::Inside, Rank::Exclusive) => false,
            // Nothing is looked for in the file table under them.
            (Rank::Position | Rank::Append, Rank::Stripe) => false,
            (_, Rank::Stripe) => self <= Rank::Exclusive,
            _ => self < next,
        }
    }

    #[cfg(debug_assertions)]
    fn name(self) -> &'static str {
        match self {
            Rank::Table => "the file table",
            Rank::Position => "a description's position",
            Rank::Append => "a file's end",
            Rank::Inside => "a file that it is inside",
            Rank::Exclusive => "exclusive use of a file",
            Rank::Busy => "a busy index entry",
            Rank::Bucket => "an indexed bucket",
            Rank::Fresh => "a fresh bucket",
            Rank::Stripe => "a stripe of the file table",
        }
    }
}

/// The rank of a [`RobustSeqLock`](crate::seq_lock::RobustSeqLock), as a type.
pub trait Ranked {
    /// The rank.
    const RANK: Rank;
}

macro_rules! ranked {
    ($($name:ident),*) => {$(
        #[doc = concat!("[`Rank::", stringify!($name), "`].")]
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl Ranked for $name {
            const RANK: Rank = Rank::$name;
        }
    )*};
}

ranked!(Position, Append, Bucket, Fresh, Stripe);

/// The assertions themselves. Nothing of them is inlined, so that a count of instructions can leave
/// them out by the name of this module.
#[cfg(debug_assertions)]
mod asserted {
    use super::{Owner, Rank, held};
    use crate::owner::MANAGER_SLOT;

    #[inline(never)]
    pub(super) fn waiting(rank: Rank, owner: Owner, at: usize) {
        let held = |wanted: fn(Rank, Rank) -> bool, is_it: bool| {
            held::find(|place| {
                let held = place.get().filter(|held| held.owner == owner)?;
                ((held.at == at) == is_it && wanted(held.rank, rank)).then_some(held.rank)
            })
        };
        // It stays its own.
        if held(|had, rank| had == rank, true).is_some() {
            return;
        }
        if let Some(had) = held(|had, rank| !had.allows(rank), false) {
            panic!("lock order: a thread waits for {} while it holds {}", rank.name(), had.name());
        }
    }

    #[inline(never)]
    pub(super) fn taken(rank: Rank, owner: Owner, at: usize) {
        held::forget(|held| held.at == at);
        let now = held::Held { at, owner, rank };
        // Tests leave more locked than there are places.
        held::find(|place| place.get().is_none().then(|| place.set(Some(now))));
    }

    #[inline(never)]
    pub(super) fn released(at: usize) {
        held::forget(|held| held.at == at);
    }

    #[inline(never)]
    pub(super) fn becomes(rank: Rank, at: usize) {
        held::change(rank, at);
    }

    #[inline(never)]
    pub(super) fn indexed(at: usize) {
        held::change(Rank::Bucket, at);
        let owner = held::find(|place| Some(place.get().filter(|held| held.at == at)?.owner));
        let mut count = 0;
        held::find(|place| {
            let is_one = |held: held::Held| (Some(held.owner), held.rank) == (owner, Rank::Bucket);
            count += u32::from(place.get().is_some_and(is_one));
            None::<()>
        });
        let most = if owner.is_some_and(|owner| owner.slot() == MANAGER_SLOT) { 16 } else { 1 };
        assert!(count <= most, "lock order: a thread holds {count} indexed buckets");
    }

    #[inline(never)]
    pub(super) fn unmapped(memory: core::ops::Range<usize>) {
        held::forget(|held| memory.contains(&held.at));
    }
}

#[cfg(debug_assertions)]
mod held {
    use super::{Owner, Rank};
    use core::cell::Cell;

    /// A lock that a thread holds.
    #[derive(Clone, Copy)]
    pub(super) struct Held {
        /// The address of its word.
        pub at: usize,
        pub owner: Owner,
        pub rank: Rank,
    }

    /// The stager holds the most: 16 buckets, and it is inside a file.
    const PLACES: usize = 32;

    thread_local! {
        static HELD: [Cell<Option<Held>>; PLACES] = const { [const { Cell::new(None) }; PLACES] };
    }

    /// Calls `act` with each place of the calling thread until it returns something.
    pub(super) fn find<R>(act: impl FnMut(&Cell<Option<Held>>) -> Option<R>) -> Option<R> {
        HELD.with(|held| held.iter().find_map(act))
    }

    /// Forgets the locks that are `gone`.
    pub(super) fn forget(gone: impl Fn(Held) -> bool) {
        find(|place| {
            if place.get().is_some_and(&gone) {
                place.set(None);
            }
            None::<()>
        });
    }

    /// Gives the lock whose word is at `at` another rank.
    pub(super) fn change(rank: Rank, at: usize) {
        find(|place| {
            let held = place.get().filter(|held| held.at == at)?;
            place.set(Some(Held { rank, ..held }));
            Some(())
        });
    }
}

/// Before the calling thread waits, as `owner`, for the lock whose word is `lock`.
///
/// # Panics
/// In a build with debug assertions, if the thread holds a lock that must not be waited under.
#[inline(always)]
pub fn waiting<T>(rank: Rank, owner: Owner, lock: &T) {
    #[cfg(debug_assertions)]
    asserted::waiting(rank, owner, core::ptr::from_ref(lock).addr());
    #[cfg(not(debug_assertions))]
    let _ = (rank, owner, lock);
}

/// Notes that the calling thread has the lock whose word is `lock`, as `owner`.
#[inline(always)]
pub fn taken<T>(rank: Rank, owner: Owner, lock: &T) {
    #[cfg(debug_assertions)]
    asserted::taken(rank, owner, core::ptr::from_ref(lock).addr());
    #[cfg(not(debug_assertions))]
    let _ = (rank, owner, lock);
}

/// Notes that the calling thread no longer has the lock whose word is `lock`.
#[inline(always)]
pub fn released<T>(lock: &T) {
    #[cfg(debug_assertions)]
    asserted::released(core::ptr::from_ref(lock).addr());
    #[cfg(not(debug_assertions))]
    let _ = lock;
}

/// Notes that what the calling thread holds by `lock` is of another rank now.
#[inline(always)]
pub fn becomes<T>(rank: Rank, lock: &T) {
    #[cfg(debug_assertions)]
    asserted::becomes(rank, core::ptr::from_ref(lock).addr());
    #[cfg(not(debug_assertions))]
    let _ = (rank, lock);
}

/// Notes that an index entry names the bucket whose lock, a fresh one's, the calling thread has.
///
/// # Panics
/// In a build with debug assertions, if the thread has as many of them as it may have.
#[inline(always)]
pub fn indexed<T>(lock: &T) {
    #[cfg(debug_assertions)]
    asserted::indexed(core::ptr::from_ref(lock).addr());
    #[cfg(not(debug_assertions))]
    let _ = lock;
}

/// Notes that what lies at `memory` will be gone: so are the locks in it that the calling thread
/// holds.
#[inline(always)]
pub(crate) fn unmapped(memory: core::ops::Range<usize>) {
    #[cfg(debug_assertions)]
    asserted::unmapped(memory);
    #[cfg(not(debug_assertions))]
    let _ = memory;
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::FileId;
    use crate::backoff::Backoff;
    use crate::entry::Entry;
    use crate::files::Identity;
    use crate::guards::{BlockGuard, BusyEntry, FreshBucket};
    use crate::layout::{DescriptionFlags, Geometry, SHARED_LOCKS};
    use crate::owner::MANAGER_SLOT;
    use crate::segment::{Segment, anonymous};
    use crate::sync::AtomicU64;
    use forebay_placement::TierId;

    /// A pool with two files and a description of the first, and a thread in the file table.
    struct Pool {
        segment: Segment,
        files: [FileId; 2],
        description: u32,
        owner: Owner,
        _memory: rustix::fd::OwnedFd,
    }

    impl Pool {
        fn new() -> Pool {
            let geometry = Geometry::for_tiers(4096, &[256 << 18]);
            let (segment, _memory) = anonymous(&geometry).unwrap();
            let slot = segment.clients().claim(std::process::id(), 1).unwrap();
            let owner = Owner::new(slot, 0);
            let files = [1, 2].map(|inode| {
                let identity = Identity { device: 1, inode };
                segment.with_file_or_new(identity, owner, |file, _| file).unwrap()
            });
            let description = segment
                .open_description(files[0], DescriptionFlags::NONE, owner)
                .unwrap()
                .description;
            Pool { segment, files, description, owner, _memory }
        }

        fn place(&self, block: u64) -> &AtomicU64 {
            let record = self.segment.file(self.files[0]);
            self.segment.entry_or_insert(record, block, self.owner).unwrap()
        }

        fn fresh(&self, block: u64) -> FreshBucket<'_> {
            let bucket = self.segment.take_bucket(self.owner).unwrap();
            self.segment.init_bucket(bucket, self.files[0], block, self.owner).unwrap()
        }

        fn block(&self, block: u64) -> BlockGuard<'_> {
            self.fresh(block).publish(self.place(block), TierId::RAM).unwrap()
        }
    }

    macro_rules! violations {
        ($($name:ident: $message:literal, |$pool:ident| $body:block)*) => {$(
            #[test]
            #[should_panic(expected = $message)]
            fn $name() {
                let $pool = Pool::new();
                $body
            }
        )*};
    }

    violations! {
        the_table_is_not_entered_with_a_lock:
        "for the file table while it holds a description's position", |pool| {
            let description = pool.segment.description(pool.description);
            let _position = pool.segment.lock_position(description, pool.owner);
            let _table = pool.segment.enter_table(pool.owner);
        }

        no_position_under_an_append:
        "for a description's position while it holds a file's end", |pool| {
            let _end = pool.segment.lock_append(pool.segment.file(pool.files[0]), pool.owner);
            let description = pool.segment.description(pool.description);
            let _position = pool.segment.lock_position(description, pool.owner);
        }

        no_append_inside_a_file:
        "for a file's end while it holds a file that it is inside", |pool| {
            let _inside = pool.segment.try_enter(pool.files[0], pool.owner);
            let _end = pool.segment.lock_append(pool.segment.file(pool.files[0]), pool.owner);
        }

        no_other_file_is_entered_while_one_is_exclusive:
        "for a file that it is inside while it holds exclusive use of a file", |pool| {
            let table = pool.segment.enter_table(pool.owner);
            let _one = pool.segment.lock_exclusive(&table, pool.files[0], pool.owner);
            let _other = pool.segment.try_enter(pool.files[1], pool.owner);
        }

        no_file_is_exclusive_for_a_thread_inside_one:
        "for exclusive use of a file while it holds a file that it is inside", |pool| {
            let inside = pool.segment.try_enter(pool.files[0], pool.owner).unwrap();
            let _exclusive = pool.segment.lock_exclusive(&inside, pool.files[0], pool.owner);
        }

        no_second_file_is_exclusive:
        "for exclusive use of a file while it holds exclusive use of a file", |pool| {
            let table = pool.segment.enter_table(pool.owner);
            let _one = pool.segment.lock_exclusive(&table, pool.files[0], pool.owner);
            let _other = pool.segment.try_lock_exclusive(&table, pool.files[1], pool.owner);
        }

        no_file_is_exclusive_under_a_busy_entry:
        "for exclusive use of a file while it holds a busy index entry", |pool| {
            let table = pool.segment.enter_table(pool.owner);
            let _busy = BusyEntry::take(pool.place(0), pool.owner);
            let _exclusive = pool.segment.lock_exclusive(&table, pool.files[0], pool.owner);
        }

        no_entry_is_busy_under_a_bucket:
        "for a busy index entry while it holds an indexed bucket", |pool| {
            let _block = pool.block(0);
            let _busy = BusyEntry::take(pool.place(1), pool.owner);
        }

        no_indexed_bucket_under_an_indexed_one:
        "for an indexed bucket while it holds an indexed bucket", |pool| {
            drop(pool.block(0));
            let _one = pool.block(1);
            let _other = pool.segment.lock_block(pool.place(0), pool.owner);
        }

        no_fresh_bucket_under_a_fresh_one:
        "for a fresh bucket while it holds a fresh bucket", |pool| {
            let _one = pool.fresh(0);
            let _other = pool.fresh(1);
        }

        no_stripe_under_a_stripe:
        "for a stripe of the file table while it holds a stripe", |pool| {
            let _one = pool.segment.lock_chain(1, pool.owner);
            let _other = pool.segment.lock_chain(2, pool.owner);
        }

        no_stripe_under_a_position:
        "for a stripe of the file table while it holds a description's position", |pool| {
            let _table = pool.segment.enter_table(pool.owner);
            let description = pool.segment.description(pool.description);
            let _position = pool.segment.lock_position(description, pool.owner);
            let _stripe = pool.segment.lock_chain(1, pool.owner);
        }

        no_stripe_under_an_append:
        "for a stripe of the file table while it holds a file's end", |pool| {
            let _table = pool.segment.enter_table(pool.owner);
            let _end = pool.segment.lock_append(pool.segment.file(pool.files[0]), pool.owner);
            let _stripe = pool.segment.lock_chain(1, pool.owner);
        }

        no_stripe_under_a_bucket:
        "for a stripe of the file table while it holds an indexed bucket", |pool| {
            let _block = pool.block(0);
            let _ = pool.segment.lock_chain_within(1, pool.owner, &mut Backoff::spent());
        }

        nothing_under_a_stripe:
        "for an indexed bucket while it holds a stripe of the file table", |pool| {
            drop(pool.block(0));
            let _stripe = pool.segment.lock_chain(1, pool.owner);
            let _block = pool.segment.lock_block(pool.place(0), pool.owner);
        }

        a_writer_publishes_one_bucket_at_a_time: "holds 2 indexed buckets", |pool| {
            let _one = pool.block(0);
            let _other = pool.block(1);
        }
    }

    #[test]
    fn what_the_order_allows_passes() {
        let pool = Pool::new();
        let (segment, owner, files) = (&pool.segment, pool.owner, pool.files);
        let description = segment.description(pool.description);
        let record = segment.file(files[0]);
        drop(pool.block(0));
        {
            let _beside = segment.enter_beside(files[0], owner);
            let _position = segment.lock_position(description, owner).unwrap();
            let _end = segment.lock_append(record, owner).unwrap();
            let again = segment.lock_position(description, owner).unwrap();
            assert!(!again.is_taken(), "it stays the thread's own");
            {
                let inside = segment.try_enter(files[0], owner).unwrap();
                let busy = BusyEntry::take(pool.place(1), owner).unwrap();
                let block = segment.lock_block(pool.place(0), owner).unwrap();
                let fresh = pool.fresh(2);
                drop((busy, block, fresh));
                segment.step_out(files[0], owner, &inside);
                segment.try_step_in(files[0], owner, &inside).unwrap();
            }
            let exclusive = segment.try_lock_exclusive_record(files[0], owner).unwrap();
            let inside = segment.try_enter(files[0], owner).unwrap();
            drop((inside, exclusive));
        }
        // A lock that is not waited for.
        let _inside = segment.try_enter(files[0], owner).unwrap();
        assert!(description.position.guard(owner).is_some());
        let _ = segment.lock_block(pool.place(0), owner);
        assert_eq!(Entry::decode(pool.place(1).load(crate::sync::Ordering::Relaxed)), Entry::Empty);
        held::find(|place| {
            assert!(
                place.get().is_none_or(|held| held.rank == Rank::Inside),
                "nothing else is left"
            );
            None::<()>
        });
    }

    /// As many threads as share a first choice need more than there are words.
    #[test]
    fn a_thread_takes_no_second_word_when_its_first_choice_becomes_free() {
        let pool = Pool::new();
        let (segment, file) = (&pool.segment, pool.files[0]);
        let rival = Owner::new(pool.owner.slot(), SHARED_LOCKS as u32);
        let first = segment.enter_table(rival);
        let outer = segment.enter_beside(file, pool.owner);
        drop(first);
        let inner = segment.enter_beside(file, pool.owner);
        assert!(outer.place.is_some() && inner.place.is_none());
        let inside = segment.try_enter(file, pool.owner).unwrap();
        assert_eq!(inside.place.map(core::ptr::from_ref), outer.place.map(core::ptr::from_ref));
    }

    #[test]
    fn the_stager_may_hold_as_many_as_it_publishes() {
        let pool = Pool { owner: Owner::new(MANAGER_SLOT, 3), ..Pool::new() };
        let _staged: Vec<_> = (0..16).map(|block| pool.block(block)).collect();
    }

    #[test]
    fn locks_are_forgotten_with_their_segment() {
        let pool = Pool::new();
        core::mem::forget(pool.block(0));
        drop(pool);
        assert!(held::find(|place| place.get()).is_none());
    }
}
