//! Model checking of the lock-free protocols with loom, in plain `cargo test`.
//!
//! The production sources `seq_lock.rs`, `free_map.rs`, `entry.rs`, `dirty_pages.rs`,
//! `block_guard.rs`, `buckets.rs`, `descriptions.rs`, `clients/slots.rs`, `files/table.rs`,
//! `files/record.rs`, `files/names.rs`, `files/shared_lock.rs`, `file_guards.rs`, `lock_scope.rs`,
//! `index.rs`, `opens.rs` and `queue.rs` are compiled again here, against the [`sync`] module below
//! instead of the crate's. What cannot be included because it needs a mapped segment is written out
//! with the same operations and orderings, and names the function that it mirrors.
//!
//! Loom tries the interleavings of a model, and for each load the values that the C11 memory model
//! allows. (It treats `SeqCst` accesses as a little weaker than they are, which can only cause
//! false alarms.) Models that are too large to be explored to the end have a bound on the number of
//! preemptions; it stands at the call of [`explore`].
//!
//! Loom 0.7 overlooks a race between a load and another thread's store if the storing thread has
//! loaded the same word in between, as every lock does before its exchange: it compares a store
//! with the last access only, which is then the thread's own. Therefore each model is explored
//! twice: as it is, and with all loads but those of lock-free readers made exchanges (that fail),
//! so that no interleaving is overlooked.

use block_guard::BlockGuard;
use buckets::{Buckets, Locking};
use clients::Clients;
use descriptions::{Descriptions, Marker};
use dirty_pages::DirtyPages;
use entry::Entry;
use files::{Chain, Files, Identity, Names};
use forebay_placement::TierId;
use free_map::{FREE, FreeMap, States, USED};
use ids::{AtomicFileId, BucketId, FileId};
use index::{Index, IndexNodes, NodeStates};
use layout::{
    BucketMeta, CACHED_NODES, CHANGED_NAMES, ClientSlot, Description, DescriptionFlags, FileFlags,
    FileRecord, IndexNode, SlotChecksums, SparseHeader, TierHeader, description_state, file_state,
    slot_state,
};
use lease::{Access, Lease};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use message::Message;
use opens::Opens;
use owner::Owner;
use queue::Queue;
use ranks::{Ranked, Stripe};
use seq_lock::{LockGuard, RobustSeqLock};
use slot_bits::SlotBits;
use std::cell::Cell;
use sync::{AtomicU32, AtomicU64, Ordering, pause};

/// The model needs no crash points: it stops at every step anyway.
mod crash {
    pub fn point(_name: &'static str) {}
    pub fn refused(_name: &'static str) -> bool {
        false
    }
    pub fn planted(_name: &str) -> bool {
        false
    }
}
/// Whether another thread lives is asked each time that it is waited for.
mod backoff {
    #[derive(Default)]
    pub struct Backoff {}

    impl Backoff {
        pub fn wait(&mut self) -> bool {
            crate::sync::pause();
            true
        }

        pub fn is_spent(&self) -> bool {
            false
        }
    }
}
#[allow(dead_code)]
#[path = "../src/block_guard.rs"]
mod block_guard;
#[allow(dead_code)]
#[path = "../src/buckets.rs"]
mod buckets;
#[allow(dead_code)]
#[path = "../src/checksum.rs"]
mod checksum;
mod clients {
    pub use crate::slots::Clients;
}
/// Of [`descriptions`], which are told the time.
mod clock {
    pub fn stamp_age(later: u32, earlier: u32) -> u32 {
        later - earlier
    }
}
#[allow(dead_code)]
#[path = "../src/descriptions.rs"]
mod descriptions;
#[allow(dead_code)]
#[path = "../src/dirty_pages.rs"]
mod dirty_pages;
#[allow(dead_code)]
#[path = "../src/entry.rs"]
mod entry;
#[allow(dead_code)]
#[path = "../src/file_guards.rs"]
mod file_guards;
mod files {
    pub use crate::names::Names;
    pub use crate::table::{Chain, Files, Identity};
}
#[allow(dead_code)]
#[path = "../src/flags.rs"]
mod flags;
#[allow(dead_code)]
#[path = "../src/free_map.rs"]
mod free_map;
#[allow(dead_code)]
#[path = "../src/ids.rs"]
mod ids;
#[allow(dead_code)]
#[path = "../src/index.rs"]
mod index;
/// No signal handler runs in a model.
mod interruption {
    pub struct Thread;

    impl Thread {
        pub fn is_nested(&self) -> bool {
            false
        }
    }

    pub fn enter() -> *const Thread {
        &Thread
    }

    /// # Safety
    /// None is asked for.
    pub unsafe fn leave(_: *const Thread) {}
    pub fn run_held_off() {}
    pub fn is_held_off() -> bool {
        false
    }
}
/// All processes live.
mod liveness {
    pub fn is_alive(_: u32, _: u64) -> bool {
        true
    }

    pub fn is_stopped(_: u32) -> bool {
        false
    }
}
#[allow(dead_code)]
#[path = "../src/lease.rs"]
mod lease;
#[path = "../src/lock_scope.rs"]
mod lock_scope;
#[allow(dead_code)]
#[path = "../src/message.rs"]
mod message;
#[allow(dead_code)]
#[path = "../src/files/names.rs"]
mod names;
#[allow(dead_code)]
#[path = "../src/opens.rs"]
mod opens;
#[allow(dead_code)]
#[path = "../src/owner.rs"]
mod owner;
#[allow(dead_code)]
#[path = "../src/parts.rs"]
mod parts;
#[allow(dead_code)]
#[path = "../src/queue.rs"]
mod queue;
/// The order of locks is asserted of threads, and a model's are none.
mod ranks {
    macro_rules! ranked {
        ($($name:ident),*) => {
            #[derive(Clone, Copy)]
            pub enum Rank {
                Table,
                Inside,
                Exclusive,
                $($name,)*
            }

            $(
                pub struct $name;

                impl Ranked for $name {
                    const RANK: Rank = Rank::$name;
                }
            )*
        };
    }

    pub trait Ranked {
        const RANK: Rank;
    }

    ranked!(Bucket, Fresh, Position, Stripe);

    pub fn waiting<T>(_: Rank, _: crate::Owner, _: &T) {}
    pub fn taken<T>(_: Rank, _: crate::Owner, _: &T) {}
    pub fn released<T>(_: &T) {}
    pub fn becomes<T>(_: Rank, _: &T) {}
    pub fn indexed<T>(_: &T) {}
}
#[allow(dead_code)]
#[path = "../src/files/record.rs"]
mod record;
#[allow(dead_code)]
#[path = "../src/seq_lock.rs"]
mod seq_lock;
// A slot has one word of them here.
#[allow(dead_code, clippy::modulo_one)]
#[path = "../src/files/shared_lock.rs"]
mod shared_lock;
#[allow(dead_code)]
#[path = "../src/slot_bits.rs"]
mod slot_bits;
#[allow(dead_code)]
#[path = "../src/clients/slots.rs"]
mod slots;
#[allow(dead_code)]
#[path = "../src/files/table.rs"]
mod table;

/// Nodes of two entries, file records, client slots, descriptions and buckets: what the included
/// sources need of the layout. Eight levels are enough for the blocks of a model.
mod layout {
    use crate::dirty_pages::DirtyPages;
    use crate::flags::AtomicFlags;
    pub use crate::flags::{DescriptionFlags, FileFlags};
    use crate::lease::AtomicLease;
    pub use crate::lock_scope::{LockScope, SharedLock};
    use crate::ranks::Position;
    use crate::seq_lock::RobustSeqLock;
    use crate::sync::{AtomicU32, AtomicU64};
    use crate::{AtomicFileId, FileId, IN_MODEL};
    pub use forebay_placement::TierId;
    use std::sync::atomic::{AtomicU8, AtomicU16};

    pub const NODE_BITS: u32 = 1;
    pub const NODE_ENTRIES: usize = 1 << NODE_BITS;
    pub const CACHED_NODES: usize = 2;

    pub struct IndexNode {
        pub entry: [AtomicU64; NODE_ENTRIES],
    }

    pub const CHANGED_NAMES: usize = 4;
    pub const LENGTHENERS: usize = 1;
    pub const SHARED_LOCKS: usize = 1;
    pub const UNRECORDED: usize = 1;
    pub const DESCRIPTIONS_PIECE: u32 = 1 << 14;
    pub const DESCRIPTIONS_MAX: u32 = 1 << 18;

    /// What is made once for each field of a structure.
    trait Field {
        fn new() -> Self;
    }

    macro_rules! fields {
        ($($type:ty: $new:expr;)*) => {$(
            impl Field for $type {
                fn new() -> $type {
                    $new
                }
            }
        )*};
    }

    fields! {
        AtomicU8: AtomicU8::new(0);
        AtomicU16: AtomicU16::new(0);
        AtomicU32: AtomicU32::new(0);
        AtomicU64: AtomicU64::new(0);
        AtomicFileId: AtomicFileId::new(FileId::from_raw(0));
        AtomicFlags<FileFlags>: AtomicFlags::new(FileFlags::NONE);
        AtomicLease: AtomicLease::default();
        AtomicFlags<DescriptionFlags>: AtomicFlags::new(DescriptionFlags::NONE);
        RobustSeqLock<Position>: RobustSeqLock::unheld();
    }

    impl<T: Field, const N: usize> Field for [T; N] {
        fn new() -> [T; N] {
            std::array::from_fn(|_| T::new())
        }
    }

    /// A structure of which `explored` are the fields that threads of a model share. The others are
    /// plain words, of which loom knows nothing.
    macro_rules! structure {
        ($name:ident {
            explored { $($field:ident: $type:ty,)* }
            others { $($other:ident: $other_type:ty,)* }
        }) => {
            pub struct $name {
                $(pub $field: $type,)*
                $(pub $other: $other_type,)*
            }

            impl $name {
                pub fn new() -> $name {
                    let in_model = IN_MODEL.replace(false);
                    $(let $other = Field::new();)*
                    IN_MODEL.set(in_model);
                    $name { $($field: Field::new(),)* $($other,)* }
                }
            }
        };
    }

    structure!(FileRecord {
        explored {
            state: AtomicU32,
            next: AtomicU32,
            device: AtomicU64,
            inode: AtomicU64,
            generation: AtomicU32,
            flags: AtomicFlags<FileFlags>,
            lease: AtomicLease,
            opens: AtomicU32,
            entry0: AtomicU64,
            root: AtomicU64,
            exclusive: AtomicU32,
            error: AtomicU32,
        }
        others {
            store: AtomicU32,
            size: AtomicU64,
            store_size: AtomicU64,
            mtime_ns: AtomicU64,
            store_mtime_ns: AtomicU64,
            rule: AtomicU16,
            mode: AtomicU8,
            trigger: AtomicU8,
            consistency: AtomicU8,
            predictor_fault: AtomicU8,
            stage: AtomicU8,
            altered: AtomicU8,
            steps: AtomicU8,
            small: AtomicU8,
            intent: AtomicU64,
            path_length: AtomicU32,
            placed: AtomicU32,
            retry_at: AtomicU32,
            born_ns: AtomicU64,
            hotness: AtomicU64,
            rule_review: AtomicU64,
            range_start: AtomicU64,
            range_end: AtomicU64,
            changed_ns: AtomicU64,
            store_changed_ns: AtomicU64,
            job: AtomicU32,
            handle: AtomicU32,
            dirty_tails: AtomicU32,
            lengtheners: [AtomicU32; LENGTHENERS],
        }
    });

    structure!(ClientSlot {
        explored {
            state: AtomicU32,
            pid: AtomicU32,
            start: AtomicU64,
            generation: AtomicU32,
            shared_locks: [AtomicU64; SHARED_LOCKS],
            opening: AtomicU32,
            joining: AtomicU32,
        }
        others {
            bucket_hint: AtomicU32,
            child: AtomicU32,
            job: AtomicU32,
            unrecorded: AtomicU64,
            told: AtomicU64,
            mpi_job: AtomicU64,
        }
    });

    structure!(Description {
        explored {
            word: AtomicU64,
            position: RobustSeqLock<Position>,
            offset: AtomicU64,
            file: AtomicFileId,
            file_generation: AtomicU32,
            flags: AtomicFlags<DescriptionFlags>,
            error_seen: AtomicU32,
            zombie_since: AtomicU32,
            in_flight: AtomicU32,
            sent: AtomicU32,
        }
        others {
        }
    });

    pub mod file_state {
        pub const FREE: u32 = 0;
        pub const LIVE: u32 = u32::MAX;
    }

    pub mod slot_state {
        pub const FREE: u32 = 0;
        pub const RESERVED: u32 = 1;
        pub const LIVE: u32 = 2;
        pub const REAPING: u32 = 3;
    }

    pub mod description_state {
        pub const FREE: u32 = 0;
        pub const LIVE: u32 = 1;
        pub const ZOMBIE: u32 = 2;
        pub const OPENING: u32 = 3;
        pub const CLOSING: u32 = 4;
    }

    pub struct BucketMeta {
        pub lock: RobustSeqLock,
        pub state: AtomicU32,
        pub file: AtomicFileId,
        pub block: AtomicU64,
        pub valid: AtomicU64,
        pub pages: DirtyPages,
        pub written: AtomicU32,
        pub dirtied: AtomicU32,
        pub reserved: AtomicU32,
        pub bound_for: AtomicU16,
        pub access_stats: AtomicU32,
    }

    pub struct SlotChecksums {
        pub corrupt: AtomicU64,
        pub claimed: AtomicU32,
    }

    pub struct SparseHeader {
        pub idle: AtomicU32,
    }

    pub struct TierHeader {
        pub first_bucket: u32,
        pub buckets: u32,
        pub free: AtomicU32,
        pub sparse: SparseHeader,
    }

    pub struct JobRecord {
        pub free: AtomicU32,
    }
}

/// A futex in a model: a thread that is not woken waits for ever, which loom reports.
mod futex {
    use crate::sync::{AtomicU32, Ordering};

    pub fn wait(word: &AtomicU32, seen: u32, _timeout_ms: u64) {
        while word.load(Ordering::Relaxed) == seen {
            if super::IN_MODEL.get() { loom::thread::yield_now() } else { std::thread::yield_now() }
        }
    }

    pub fn wake_all(_: &AtomicU32) {}
}

/// What the sources import as `crate::sync`: loom's atomics within a model. The unit tests that
/// come along with the included sources run outside of any model, where loom's would panic, and get
/// the real ones.
#[allow(dead_code)]
mod sync {
    pub use core::sync::atomic::Ordering;

    macro_rules! atomic {
        ($name:ident, $int:ty) => {
            #[derive(Debug)]
            pub enum $name {
                Model(loom::sync::atomic::$name),
                Real(core::sync::atomic::$name),
            }

            impl $name {
                pub fn new(value: $int) -> Self {
                    if super::IN_MODEL.get() {
                        Self::Model(loom::sync::atomic::$name::new(value))
                    } else {
                        Self::Real(core::sync::atomic::$name::new(value))
                    }
                }

                pub fn load(&self, order: Ordering) -> $int {
                    match self {
                        Self::Model(atomic) if super::loads_are_exchanges() => {
                            let never = 0xdead_beef;
                            let seen = atomic.compare_exchange(never, never, order, order);
                            seen.unwrap_or_else(|seen| seen)
                        }
                        Self::Model(atomic) => atomic.load(order),
                        Self::Real(atomic) => atomic.load(order),
                    }
                }

                forward!($int: swap(value: $int));
                forward!($int: fetch_add(value: $int));
                forward!($int: fetch_sub(value: $int));
                forward!($int: fetch_and(value: $int));
                forward!($int: fetch_or(value: $int));
                forward!($int: fetch_max(value: $int));
                forward!($int: fetch_min(value: $int));

                pub fn store(&self, value: $int, order: Ordering) {
                    match self {
                        Self::Model(atomic) => atomic.store(value, order),
                        Self::Real(atomic) => atomic.store(value, order),
                    }
                }

                pub fn compare_exchange(
                    &self,
                    from: $int,
                    to: $int,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$int, $int> {
                    match self {
                        Self::Model(atomic) => atomic.compare_exchange(from, to, success, failure),
                        Self::Real(atomic) => atomic.compare_exchange(from, to, success, failure),
                    }
                }

                pub fn fetch_update(
                    &self,
                    success: Ordering,
                    failure: Ordering,
                    mut next: impl FnMut($int) -> Option<$int>,
                ) -> Result<$int, $int> {
                    let mut seen = self.load(failure);
                    while let Some(new) = next(seen) {
                        match self.compare_exchange(seen, new, success, failure) {
                            Ok(seen) => return Ok(seen),
                            Err(now) => seen = now,
                        }
                    }
                    Err(seen)
                }

                pub fn compare_exchange_weak(
                    &self,
                    from: $int,
                    to: $int,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$int, $int> {
                    self.compare_exchange(from, to, success, failure)
                }
            }
        };
    }

    macro_rules! forward {
        ($int:ty: $method:ident($($value:ident: $type:ty)?)) => {
            pub fn $method(&self, $($value: $type,)? order: Ordering) -> $int {
                match self {
                    Self::Model(atomic) => atomic.$method($($value,)? order),
                    Self::Real(atomic) => atomic.$method($($value,)? order),
                }
            }
        };
    }

    atomic!(AtomicU32, u32);
    atomic!(AtomicU64, u64);

    pub fn fence(order: Ordering) {
        if super::IN_MODEL.get() {
            loom::sync::atomic::fence(order);
        } else {
            core::sync::atomic::fence(order);
        }
    }

    pub fn pause() {
        loom::thread::yield_now();
    }
}

thread_local! {
    /// Loom runs all threads of a model on the operating system's thread of the test.
    static IN_MODEL: Cell<bool> = const { Cell::new(false) };
    /// The second exploration: see above.
    static EXCHANGE: Cell<bool> = const { Cell::new(false) };
}

loom::thread_local! {
    /// This thread of the model reads without a lock.
    static READER: Cell<bool> = Cell::new(false);
}

fn loads_are_exchanges() -> bool {
    EXCHANGE.get() && !READER.with(Cell::get)
}

/// Runs the lock-free read `act`.
fn reading<R>(act: impl FnOnce() -> R) -> R {
    READER.with(|reader| reader.set(true));
    let result = act();
    READER.with(|reader| reader.set(false));
    result
}

/// Explores the executions of `model` with at most `preemptions` involuntary switches.
fn explore(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    use std::sync::atomic::AtomicU64;
    let model = std::sync::Arc::new((model, AtomicU64::new(0)));
    for exchange in [false, true] {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = preemptions;
        builder.max_branches = 10_000;
        let start = std::time::Instant::now();
        IN_MODEL.set(true);
        EXCHANGE.set(exchange);
        let run = model.clone();
        builder.check(move || {
            run.1.fetch_add(1, Ordering::Relaxed);
            (run.0)();
        });
        IN_MODEL.set(false);
        EXCHANGE.set(false);
        let count = model.1.swap(0, Ordering::Relaxed);
        println!("exchange {exchange}: {count} executions in {:.1?}", start.elapsed());
        assert!(count > 1 || !exchange, "nothing was explored");
    }
}

fn owner(slot: u32) -> Owner {
    Owner::new(slot, 0)
}

/// Mirrors the patient part of `Segment::lock`.
fn lock<R: Ranked>(lock: &RobustSeqLock<R>, owner: Owner) {
    while lock.try_lock(owner).is_err() {
        pause();
    }
}

// ---------------------------------------------------------------------------------------------
// The free map.

/// Items with their states, and a content that only an item's owner may touch: loom reports two
/// owners at once, and an owner that does not see what the previous one did.
struct Items {
    bits: [AtomicU64; 1],
    states: Vec<AtomicU32>,
    content: Vec<UnsafeCell<u32>>,
}

impl States for &Items {
    fn state(&self, item: u32) -> &AtomicU32 {
        &self.states[item as usize]
    }
}

impl Items {
    /// `count` items; those in `held` belong to the given owners, the others are free.
    fn new(count: u32, held: &[(u32, Owner)]) -> Arc<Items> {
        let holder = |item| held.iter().find(|(other, _)| *other == item).map(|(_, owner)| *owner);
        let free = (0..count).filter(|&item| holder(item).is_none());
        Arc::new(Items {
            bits: [AtomicU64::new(free.map(|item| 1 << item).sum())],
            states: (0..count)
                .map(|item| AtomicU32::new(holder(item).map_or(FREE, Owner::raw)))
                .collect(),
            content: (0..count).map(|_| UnsafeCell::new(0)).collect(),
        })
    }

    fn map(&self) -> FreeMap<'_, &Items> {
        FreeMap { bits: &self.bits, states: self, first: 0, count: self.states.len() as u32 }
    }

    /// Takes up to `most` items and uses them.
    fn take(&self, owner: Owner, most: u32) -> Vec<u32> {
        let mut mine = Vec::new();
        self.map().take(owner, 0, most, |item| mine.push(item));
        for &item in &mine {
            // SAFETY: loom fails the model if another thread is here.
            self.content[item as usize].with_mut(|content| unsafe { *content += 1 });
        }
        mine
    }

    /// Every item is either in exactly one of `owned` with its owner's stamp, or free with its bit.
    fn check(&self, owned: &[(Owner, Vec<u32>)]) {
        let bits = self.bits[0].load(Ordering::Relaxed);
        for item in 0..self.states.len() as u32 {
            let owners: Vec<Owner> = owned
                .iter()
                .filter(|(_, items)| items.contains(&item))
                .map(|(owner, _)| *owner)
                .collect();
            let state = self.states[item as usize].load(Ordering::Relaxed);
            match owners[..] {
                [] => assert!(state == FREE && bits >> item & 1 == 1, "item {item} is lost"),
                [owner] => assert_eq!(state, owner.raw(), "item {item}"),
                _ => panic!("item {item} belongs to {owners:?}"),
            }
        }
    }
}

/// (a) Two takers, one of which gives everything back, and a giver.
#[test]
fn an_item_of_the_free_map_has_one_owner_and_is_never_lost() {
    explore(Some(3), || {
        let items = Items::new(3, &[(2, owner(3))]);
        let greedy = {
            let items = items.clone();
            thread::spawn(move || items.take(owner(1), 2))
        };
        let generous = {
            let items = items.clone();
            thread::spawn(move || {
                for item in items.take(owner(2), 2) {
                    items.map().give(item);
                }
            })
        };
        // SAFETY: loom fails the model if another thread is here.
        items.content[2].with_mut(|content| unsafe { *content += 1 });
        items.map().give(2);
        let taken = greedy.join().unwrap();
        generous.join().unwrap();
        items.check(&[(owner(1), taken)]);
    });
}

/// (b) A taker killed between clearing the bit and taking the item: a repair restores the bit.
#[test]
fn a_repair_brings_back_what_a_killed_taker_lost() {
    explore(None, || {
        let items = Items::new(2, &[]);
        // The first half of `FreeMap::take_from_word`, and no second half.
        let killed = {
            let items = items.clone();
            thread::spawn(move || {
                items.bits[0].fetch_and(!1, Ordering::Acquire);
            })
        };
        let taker = {
            let items = items.clone();
            thread::spawn(move || items.take(owner(1), 1))
        };
        killed.join().unwrap();
        items.map().repair(2);
        let taken = taker.join().unwrap();
        items.check(&[(owner(1), taken)]);
    });
}

/// (b) A repair while others take and give: still one owner, and nothing is lost.
#[test]
fn a_repair_at_any_time_makes_no_second_owner() {
    explore(Some(3), || {
        let items = Items::new(2, &[(1, owner(2))]);
        let taker = {
            let items = items.clone();
            thread::spawn(move || items.take(owner(1), 2))
        };
        let giver = {
            let items = items.clone();
            thread::spawn(move || {
                // SAFETY: loom fails the model if another thread is here.
                items.content[1].with_mut(|content| unsafe { *content += 1 });
                items.map().give(1);
                items.take(owner(2), 1)
            })
        };
        items.map().repair(2);
        let taken = taker.join().unwrap();
        let again = giver.join().unwrap();
        items.check(&[(owner(1), taken), (owner(2), again)]);
    });
}

/// Neighbours are taken together or not at all, while another thread takes one of them and gives it
/// back.
#[test]
fn neighbours_of_the_free_map_are_taken_together_or_not_at_all() {
    explore(Some(3), || {
        let items = Items::new(3, &[]);
        let other = {
            let items = items.clone();
            thread::spawn(move || {
                for item in items.take(owner(2), 1) {
                    items.map().give(item);
                }
                items.take(owner(1), 1)
            })
        };
        let all = items.map().take_all(0, 2, owner(3).raw());
        if all {
            for item in 0..2 {
                // SAFETY: loom fails the model if another thread is here.
                items.content[item].with_mut(|content| unsafe { *content += 1 });
            }
        }
        let taken = other.join().unwrap();
        items.check(&[(owner(1), taken), (owner(3), if all { vec![0, 1] } else { Vec::new() })]);
    });
}

// ---------------------------------------------------------------------------------------------
// The lock.

/// A lock and two words that change together.
struct Guarded {
    lock: RobustSeqLock,
    words: [AtomicU64; 2],
}

impl Guarded {
    fn new() -> Arc<Guarded> {
        let words = [AtomicU64::new(0), AtomicU64::new(0)];
        Arc::new(Guarded { lock: RobustSeqLock::unheld(), words })
    }

    fn fill(&self, value: u64) {
        for word in &self.words {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn copy(&self) -> [u64; 2] {
        [self.words[0].load(Ordering::Relaxed), self.words[1].load(Ordering::Relaxed)]
    }

    /// A lock-free read; `None` when it has to be tried again.
    fn read(&self) -> Option<[u64; 2]> {
        reading(|| {
            let first = self.lock.read_begin()?;
            let pair = self.copy();
            (!self.lock.read_retry(first)).then_some(pair)
        })
    }
}

/// (c) A reader never accepts a pair of which one word is older than the other.
#[test]
fn a_reader_accepts_no_torn_pair() {
    explore(None, || {
        let pair = Guarded::new();
        let writer = {
            let pair = pair.clone();
            thread::spawn(move || {
                for value in 1..=2 {
                    lock(&pair.lock, owner(1));
                    pair.fill(value);
                    pair.lock.unlock_changed();
                }
            })
        };
        if let Some([first, second]) = pair.read() {
            assert_eq!(first, second);
        }
        writer.join().unwrap();
        assert_eq!(pair.read(), Some([2, 2]));
    });
}

/// (c) Two writers exclude each other, and each sees what the other did.
#[test]
fn writers_exclude_each_other() {
    explore(None, || {
        let guarded = Arc::new((RobustSeqLock::unheld(), UnsafeCell::new(0)));
        let add = |slot: u32, guarded: &(RobustSeqLock, UnsafeCell<u32>)| {
            lock(&guarded.0, owner(slot));
            // SAFETY: loom fails the model if another thread is here.
            guarded.1.with_mut(|count| unsafe { *count += 1 });
            guarded.0.unlock_changed();
        };
        let other = {
            let guarded = guarded.clone();
            thread::spawn(move || add(1, &guarded))
        };
        add(2, &guarded);
        other.join().unwrap();
        // SAFETY: loom fails the model if another thread is here.
        guarded.1.with(|count| assert_eq!(unsafe { *count }, 2));
    });
}

/// (c) A writer killed within its change: the lock is taken over by a thread that changes nothing
/// (as `Buckets::lock` does when the entry is another), and by one that changes something. A reader
/// that looked before the killed writer came must not accept what it left.
#[test]
fn a_reader_notices_a_writer_that_was_killed() {
    for changes in [false, true] {
        explore(None, move || {
            let pair = Guarded::new();
            let (dead, heir) = (owner(1), owner(2));
            let writer = {
                let pair = pair.clone();
                thread::spawn(move || {
                    lock(&pair.lock, dead);
                    pair.fill(1);
                    // No thread takes a lock over before its holder is dead: one after the other.
                    assert!(pair.lock.take_over(dead, heir));
                    if changes {
                        pair.fill(2);
                        pair.lock.unlock_changed();
                    } else {
                        pair.lock.unlock_unchanged();
                    }
                })
            };
            if let Some([first, second]) = pair.read() {
                assert_eq!(first, second);
            }
            writer.join().unwrap();
        });
    }
}

/// A dead holder's lock is found by the reaper and by a waiting client at once: only one of them
/// gets it. Mirrors `reap_buckets` and `Segment::lock`.
#[test]
fn a_dead_holders_lock_goes_to_one_heir() {
    explore(Some(3), || {
        let guarded = Arc::new((RobustSeqLock::unheld(), UnsafeCell::new(0)));
        let (dead, reaper) = (owner(1), owner(0));
        guarded.0.try_lock(dead).unwrap();
        let client = move |slot: u32, guarded: &(RobustSeqLock, UnsafeCell<u32>)| {
            let mine =
                guarded.0.try_lock(owner(slot)).is_ok() || guarded.0.take_over(dead, owner(slot));
            if mine {
                // SAFETY: loom fails the model if another thread is here.
                guarded.1.with_mut(|count| unsafe { *count += 1 });
                guarded.0.unlock_changed();
            }
            mine
        };
        let clients = [2, 3].map(|slot| {
            let guarded = guarded.clone();
            thread::spawn(move || client(slot, &guarded))
        });
        let reaped = guarded.0.holder() == Some(dead) && guarded.0.take_over(dead, reaper);
        if reaped {
            // SAFETY: loom fails the model if another thread is here.
            guarded.1.with_mut(|count| unsafe { *count += 1 });
            guarded.0.unlock_changed();
        }
        let mut heirs = u32::from(reaped);
        for client in clients {
            heirs += u32::from(client.join().unwrap());
        }
        assert!(heirs > 0);
        assert_eq!(guarded.0.holder(), None);
        // SAFETY: loom fails the model if another thread is here.
        guarded.1.with(|count| assert_eq!(unsafe { *count }, heirs));
    });
}

// ---------------------------------------------------------------------------------------------
// Blocks: entries, buckets and the free map together.

/// First bucket of the second tier. Those between the tiers are no model's: nothing touches them.
const SLOTS: u32 = 64;

/// Entries of a few blocks, buckets of two tiers, and two words of data for each.
struct Pool {
    entry: Vec<AtomicU64>,
    metas: Vec<BucketMeta>,
    data: Vec<[AtomicU64; 2]>,
    sums: Vec<SlotChecksums>,
    bits: [AtomicU64; 2],
    tiers: Vec<TierHeader>,
}

impl Pool {
    /// `buckets` of RAM, all free, and `slots` that the free map of the second tier does not offer.
    fn new(blocks: usize, buckets: u32, slots: u32) -> Pool {
        let meta = || BucketMeta {
            lock: RobustSeqLock::unheld(),
            state: AtomicU32::new(FREE),
            file: AtomicFileId::new(FileId::from_raw(0)),
            block: AtomicU64::new(0),
            valid: AtomicU64::new(0),
            pages: DirtyPages::new(0),
            written: AtomicU32::new(0),
            dirtied: AtomicU32::new(0),
            reserved: AtomicU32::new(0),
            bound_for: 0.into(),
            access_stats: AtomicU32::new(0),
        };
        let data = || [AtomicU64::new(0), AtomicU64::new(0)];
        let in_use = |id: u32| id < buckets || (SLOTS..SLOTS + slots).contains(&id);
        let last = if slots > 0 { SLOTS + slots } else { buckets };
        let (mut metas, mut all_data) = (Vec::new(), Vec::new());
        for id in 0..last {
            let in_model = IN_MODEL.replace(IN_MODEL.get() && in_use(id));
            metas.push(meta());
            all_data.push(data());
            IN_MODEL.set(in_model);
        }
        let tier = |first_bucket, buckets| TierHeader {
            first_bucket,
            buckets,
            free: AtomicU32::new(buckets),
            sparse: SparseHeader { idle: AtomicU32::new(0) },
        };
        let sums = || SlotChecksums { corrupt: AtomicU64::new(0), claimed: AtomicU32::new(0) };
        Pool {
            entry: (0..blocks).map(|_| AtomicU64::new(Entry::EMPTY)).collect(),
            metas,
            data: all_data,
            sums: (0..slots).map(|_| sums()).collect(),
            bits: [AtomicU64::new((1 << buckets) - 1), AtomicU64::new(0)],
            tiers: vec![tier(0, buckets), tier(SLOTS, slots)],
        }
    }

    fn view(&self) -> Buckets<'_> {
        Buckets {
            metas: &self.metas,
            sums: &self.sums,
            bits: &self.bits,
            tiers: &self.tiers,
            jobs: &[],
        }
    }

    fn bucket(&self, bucket: BucketId) -> &BucketMeta {
        self.view().meta(bucket).unwrap()
    }

    /// `Segment::take_bucket`, without the cache.
    fn take(&self, owner: Owner) -> Option<BucketId> {
        let mut taken = None;
        let map = self.view().free_map(TierId::RAM);
        map.take(owner, 0, 1, |bucket| taken = Some(BucketId::from_raw(bucket)));
        taken
    }

    /// `Segment::try_init_bucket`.
    fn init(&self, bucket: BucketId, block: usize, owner: Owner) {
        let meta = self.bucket(bucket);
        lock(&meta.lock, owner);
        self.view().init(meta, FileId::from_raw(0), block as u64, 0);
    }

    /// `FreshBucket::publish`, and its end if another thread was faster.
    fn publish(&self, block: usize, bucket: BucketId) -> bool {
        let published = Entry::resident(TierId::RAM, bucket).publish(&self.entry[block]).is_some();
        if !published {
            self.view().free(bucket);
            self.bucket(bucket).lock.unlock_changed();
        }
        published
    }

    fn fill(&self, bucket: BucketId, value: u64) {
        for word in &self.data[bucket.index()] {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn copy(&self, bucket: BucketId) -> [u64; 2] {
        let data = &self.data[bucket.index()];
        [data[0].load(Ordering::Relaxed), data[1].load(Ordering::Relaxed)]
    }

    fn lock(&self, block: usize, owner: Owner) -> Option<BlockGuard<'_>> {
        let place = &self.entry[block];
        let slow = || self.view().lock(place, owner, Patient(self));
        let Ok(locked) = buckets::lock_or(place, owner, |id| self.view().meta(id), slow);
        locked
    }

    fn discard(&self, block: usize, locked: BlockGuard<'_>) {
        self.view().discard(&self.entry[block], locked);
    }

    /// The client's `write_part` for a whole block. Returns whether there was a bucket for it.
    fn write(&self, block: usize, value: u64, owner: Owner) -> bool {
        loop {
            if let Some(mut locked) = self.lock(block, owner) {
                self.fill(locked.bucket(), value);
                locked.changed();
                return true;
            }
            let Some(bucket) = self.take(owner) else { return false };
            self.init(bucket, block, owner);
            if self.publish(block, bucket) {
                self.fill(bucket, value);
                self.bucket(bucket).lock.unlock_changed();
                return true;
            }
        }
    }

    /// One turn of the client's `read_resident`; `None` when it has to be tried again, or when
    /// the store has the block.
    fn read(&self, block: usize) -> Option<[u64; 2]> {
        reading(|| {
            let word = self.entry[block].load(Ordering::Acquire);
            let Entry::Resident { bucket, .. } = Entry::decode(word) else { return None };
            let lock = &self.bucket(bucket).lock;
            let first = lock.read_begin()?;
            let pair = self.copy(bucket);
            let entry = self.entry[block].load(Ordering::Acquire);
            (entry == word && !lock.read_retry(first)).then_some(pair)
        })
    }

    /// The value of a resident block, once no thread is at work any more.
    fn value_at_rest(&self, block: usize) -> Option<u64> {
        let pair = self.read(block)?;
        assert_eq!(pair[0], pair[1]);
        Some(pair[0])
    }

    /// Every bucket is either named by one entry, used and unlocked, or free with its bit.
    fn check(&self) {
        let ids = |tier: &TierHeader| {
            BucketId::range(tier.first_bucket, tier.first_bucket + tier.buckets)
        };
        for id in self.tiers.iter().flat_map(ids) {
            let bucket = self.bucket(id);
            assert_eq!(bucket.lock.holder(), None, "bucket {id}");
            let names = |entry: &&AtomicU64| {
                let entry = Entry::decode(entry.load(Ordering::Relaxed));
                matches!(entry, Entry::Resident { bucket, .. } if bucket == id)
            };
            let named = self.entry.iter().filter(names).count();
            let state = bucket.state.load(Ordering::Relaxed);
            let word = self.bits[id.index() / 64].load(Ordering::Relaxed);
            let is_offered = word >> (id.raw() % 64) & 1 == 1 || id.raw() >= SLOTS;
            let free = state == FREE && is_offered;
            assert!(named == 1 && state == USED || named == 0 && free, "bucket {id}");
        }
    }
}

/// Waits for others, which all live.
struct Patient<'a>(&'a Pool);

impl Locking for Patient<'_> {
    type End = std::convert::Infallible;

    fn lock<'m>(
        &mut self,
        bucket: &'m BucketMeta,
        owner: Owner,
    ) -> Result<LockGuard<'m>, Self::End> {
        lock(&bucket.lock, owner);
        bucket.pages.repair(&bucket.valid);
        Ok(LockGuard::of(&bucket.lock, true))
    }

    fn wait_for_busy(&mut self, _: Owner) -> Result<bool, Self::End> {
        unreachable!("no block is written around here")
    }

    fn is_indexed(&self, bucket: BucketId) -> bool {
        let block = self.0.bucket(bucket).block.load(Ordering::Relaxed);
        let entry = Entry::decode(self.0.entry[block as usize].load(Ordering::Acquire));
        matches!(entry, Entry::Resident { bucket: named, .. } if named == bucket)
    }
}

/// (d) The only bucket goes from block 0 to block 1 and back: the reader of block 0 sees the first
/// or the last content, whole, and never block 1's.
#[test]
fn a_reader_accepts_no_foreign_bytes_when_the_bucket_comes_back() {
    explore(Some(3), || {
        let pool = Arc::new(Pool::new(2, 1, 0));
        assert!(pool.write(0, 10, owner(1)));
        let mover = {
            let pool = pool.clone();
            thread::spawn(move || {
                for (from, to, value) in [(0, 1, 21), (1, 0, 12)] {
                    let locked = pool.lock(from, owner(1)).unwrap();
                    pool.discard(from, locked);
                    assert!(pool.write(to, value, owner(1)));
                }
            })
        };
        if let Some(pair) = pool.read(0) {
            assert!(pair == [10, 10] || pair == [12, 12], "{pair:?}");
        }
        mover.join().unwrap();
        assert_eq!(pool.value_at_rest(0), Some(12));
        pool.check();
    });
}

/// (d) The same with the discarder and the new user in two threads, so that the bucket is taken
/// from the free map before the discarder has released its lock.
#[test]
fn a_reader_accepts_no_foreign_bytes_when_another_takes_the_bucket() {
    explore(Some(3), || {
        let pool = Arc::new(Pool::new(2, 1, 0));
        assert!(pool.write(0, 10, owner(1)));
        let discarder = {
            let pool = pool.clone();
            thread::spawn(move || {
                let locked = pool.lock(0, owner(1)).unwrap();
                pool.discard(0, locked);
                pool.write(0, 12, owner(1));
            })
        };
        let taker = {
            let pool = pool.clone();
            thread::spawn(move || {
                if pool.write(1, 21, owner(2)) {
                    let locked = pool.lock(1, owner(2)).unwrap();
                    pool.discard(1, locked);
                }
            })
        };
        if let Some(pair) = pool.read(0) {
            assert!(pair == [10, 10] || pair == [12, 12], "{pair:?}");
        }
        discarder.join().unwrap();
        taker.join().unwrap();
        pool.check();
    });
}

/// (e) Two writers publish the same block: one bucket stays, the other goes back, and the block
/// has what one of them wrote last.
#[test]
fn two_writers_of_a_new_block_make_one() {
    explore(None, || {
        let pool = Arc::new(Pool::new(1, 2, 0));
        let other = {
            let pool = pool.clone();
            thread::spawn(move || assert!(pool.write(0, 1, owner(1))))
        };
        assert!(pool.write(0, 2, owner(2)));
        other.join().unwrap();
        assert!(matches!(pool.value_at_rest(0), Some(1 | 2)));
        pool.check();
    });
}

/// A demotion into slot `slot`. Mirrors `snapshot`, `copy` and `switch` of the manager's demoter:
/// copies without the lock, then locks, and switches the entry only if the version is the one from
/// before the copy. The slot is locked when the entry begins to name it.
fn demote(pool: &Pool, block: usize, slot: BucketId, owner: Owner) -> bool {
    let word = pool.entry[block].load(Ordering::Acquire);
    let Entry::Resident { tier: TierId::RAM, bucket, .. } = Entry::decode(word) else {
        return false;
    };
    let from = &pool.bucket(bucket).lock;
    let Some(begin) = from.read_begin() else { return false };
    let version = from.version();
    if from.read_retry(begin) || pool.entry[block].load(Ordering::Acquire) != word {
        return false;
    }
    for (place, value) in pool.data[slot.index()].iter().zip(pool.copy(bucket)) {
        place.store(value, Ordering::Relaxed);
    }
    if from.try_lock(owner).is_err() {
        return false;
    }
    if pool.entry[block].load(Ordering::Acquire) != word || from.version() != version {
        from.unlock_unchanged();
        return false;
    }
    let to = pool.bucket(slot);
    lock(&to.lock, owner);
    to.state.store(USED, Ordering::Release);
    pool.entry[block].store(Entry::resident(TierId::new(1), slot).encode(), Ordering::Release);
    pool.view().free(bucket);
    from.unlock_changed();
    to.lock.unlock_changed();
    true
}

/// Mirrors the client's `write_over_slot` for a whole block: a fresh bucket replaces the slot.
fn write_over_slot(pool: &Pool, block: usize, value: u64, owner: Owner) {
    let fresh = pool.take(owner).unwrap();
    let slot = pool.lock(block, owner).unwrap();
    pool.init(fresh, block, owner);
    pool.fill(fresh, value);
    let word = Entry::resident(TierId::RAM, fresh).encode();
    pool.view().replace(&pool.entry[block], word, slot);
    pool.bucket(fresh).lock.unlock_changed();
}

/// (f) A block leaves its slot and comes back to the same one, which is filled without a lock: a
/// reader that had found it there before does not accept what it sees of the filling.
#[test]
fn a_reader_accepts_no_half_filled_slot() {
    explore(Some(3), || {
        let pool = Arc::new(Pool::new(1, 1, 1));
        assert!(
            pool.write(0, 1, owner(1)) && demote(&pool, 0, BucketId::from_raw(SLOTS), owner(0))
        );
        let mover = {
            let pool = pool.clone();
            thread::spawn(move || {
                write_over_slot(&pool, 0, 2, owner(1));
                assert!(demote(&pool, 0, BucketId::from_raw(SLOTS), owner(0)));
            })
        };
        if let Some(pair) = pool.read(0) {
            assert!(pair == [1, 1] || pair == [2, 2], "{pair:?}");
        }
        mover.join().unwrap();
        assert_eq!(pool.value_at_rest(0), Some(2));
        pool.check();
    });
}

/// (f) A block is demoted while it is written: what the writer wrote is never lost.
#[test]
fn a_demotion_loses_no_write() {
    explore(Some(4), || {
        let pool = Arc::new(Pool::new(1, 1, 1));
        assert!(pool.write(0, 1, owner(1)));
        let writer = {
            let pool = pool.clone();
            thread::spawn(move || {
                assert!(pool.write(0, 2, owner(1)));
                if let Some(pair) = pool.read(0) {
                    assert_eq!(pair, [2, 2], "its own write is gone");
                }
            })
        };
        demote(&pool, 0, BucketId::from_raw(SLOTS), owner(0));
        writer.join().unwrap();
        assert_eq!(pool.value_at_rest(0), Some(2));
        pool.check();
    });
}

/// (f) A reader beside a demotion, whose freed bucket goes to another block at once.
#[test]
fn a_reader_sees_the_block_before_or_after_its_demotion() {
    explore(Some(3), || {
        let pool = Arc::new(Pool::new(2, 1, 1));
        assert!(pool.write(0, 1, owner(1)));
        let demoter = {
            let pool = pool.clone();
            thread::spawn(move || {
                assert!(demote(&pool, 0, BucketId::from_raw(SLOTS), owner(0)));
                assert!(pool.write(1, 7, owner(0)));
            })
        };
        for _ in 0..2 {
            if let Some(pair) = pool.read(0) {
                assert_eq!(pair, [1, 1]);
            }
        }
        demoter.join().unwrap();
        assert_eq!((pool.value_at_rest(0), pool.value_at_rest(1)), (Some(1), Some(7)));
        pool.check();
    });
}

// ---------------------------------------------------------------------------------------------
// Shared locks of a file and exclusive use of it.

/// A file's record and the client slots. The content may be read under a shared lock and changed
/// under exclusion.
struct File {
    record: FileRecord,
    slots: [ClientSlot; 4],
    taken: [AtomicU64; 1],
    taken_high: AtomicU32,
    manager: (AtomicU32, AtomicU64, AtomicU32),
    unrecorded: [AtomicU32; 1],
    content: UnsafeCell<u32>,
}

impl File {
    /// Slots 2 and 3 are taken, and slot 1 if `taken` is 1.
    fn new(taken: u64) -> Arc<File> {
        let none = || AtomicU32::new(0);
        let file = File {
            record: FileRecord::new(),
            slots: std::array::from_fn(|_| ClientSlot::new()),
            taken: [AtomicU64::new(0)],
            taken_high: AtomicU32::new(0),
            manager: (AtomicU32::new(1), AtomicU64::new(0), none()),
            unrecorded: [none()],
            content: UnsafeCell::new(0),
        };
        // Loom's guarantees for SeqCst begin with the first SeqCst store.
        file.record.exclusive.store(0, Ordering::SeqCst);
        file.taken[0].store(0b1100 | taken << 1, Ordering::SeqCst);
        file.taken_high.store(4, Ordering::SeqCst);
        for slot in &file.slots {
            slot.shared_locks[0].store(0, Ordering::SeqCst);
        }
        for slot in [0, 1, 2, 3].into_iter().filter(|&slot| slot != 1 || taken == 1) {
            file.slots[slot].state.store(slot_state::LIVE, Ordering::SeqCst);
        }
        Arc::new(file)
    }

    fn clients(&self) -> Clients<'_> {
        let (pid, start, epoch) = &self.manager;
        Clients {
            slots: &self.slots,
            taken: SlotBits { words: &self.taken, high: &self.taken_high, count: 4 },
            manager: (pid, start),
            manager_epoch: epoch,
            unrecorded: &self.unrecorded,
        }
    }

    /// Reads the content if no thread has the file exclusively.
    fn visit(&self, slot: u32) -> bool {
        let client = self.clients().get(slot);
        let inside = reading(|| client.try_enter(FILE, &self.record, owner(slot)));
        if inside.is_ok() {
            // SAFETY: loom fails the model if another thread is here.
            self.content.with(|content| unsafe { *content });
        }
        inside.is_ok()
    }

    /// Reads the content if this node may: as a thread that looks once it is inside, or before.
    fn read_by_lease(&self, looks_inside: bool) {
        let client = self.clients().get(0);
        let may = || reading(|| self.record.allows(Access::Read));
        let may_before = looks_inside || may();
        let inside = reading(|| client.try_enter(FILE, &self.record, owner(0)));
        if inside.is_ok() && if looks_inside { may() } else { may_before } {
            // SAFETY: loom fails the model if another node is here.
            self.content.with(|content| unsafe { *content });
        }
    }

    /// Gives the file back, and another node changes the content.
    fn give_back(&self) {
        let clients = self.clients();
        let look = |_: Owner, _: &_| Ok::<(), ()>(());
        let held = reading(|| clients.lock_exclusive(FILE, &self.record, owner(3), look));
        assert!(held.is_ok());
        self.record.lease.reduce(Lease::Nothing);
        drop(held);
        // SAFETY: loom fails the model if a thread of this node is here.
        self.content.with_mut(|content| unsafe { *content += 1 });
    }

    /// Changes the content, as a thread of slot 2 or 3. False if the other one has the file.
    fn change(&self, slot: u32) -> bool {
        let clients = self.clients();
        let look = |holder: Owner, _: &_| if holder.slot() < 2 { Ok(()) } else { Err(()) };
        let locked = reading(|| clients.lock_exclusive(FILE, &self.record, owner(slot), look));
        if locked.is_ok() {
            // SAFETY: loom fails the model if another thread is here.
            self.content.with_mut(|content| unsafe { *content += 1 });
        }
        locked.is_ok()
    }
}

/// (g) No thread is inside a file that another has for itself; two cannot have it at once.
#[test]
fn exclusive_use_is_exclusive() {
    explore(Some(4), || {
        let file = File::new(1);
        let visitor = {
            let file = file.clone();
            thread::spawn(move || file.visit(1))
        };
        let rival = {
            let file = file.clone();
            thread::spawn(move || file.change(2))
        };
        let mine = file.change(3);
        visitor.join().unwrap();
        let theirs = rival.join().unwrap();
        assert!(mine || theirs);
        let changes = u32::from(mine) + u32::from(theirs);
        // SAFETY: loom fails the model if another thread is here.
        file.content.with(|content| assert_eq!(unsafe { *content }, changes));
    });
}

/// (g) A visitor that comes twice: the second visit is as safe as the first.
#[test]
fn a_visitor_may_come_again() {
    explore(None, || {
        let file = File::new(0);
        let visitor = {
            let file = file.clone();
            thread::spawn(move || {
                file.visit(0);
            })
        };
        assert!(file.change(3));
        assert!(file.change(3));
        visitor.join().unwrap();
        assert!(file.visit(0), "no thread has the file any more");
    });
}

/// (g) A process that claims the next client slot and enters the file at
/// once is not overlooked by one that waits for those inside.
#[test]
fn a_new_client_is_not_overlooked() {
    explore(None, || {
        let file = File::new(0);
        let visitor = {
            let file = file.clone();
            thread::spawn(move || {
                assert_eq!(file.clients().claim(7, 1), Some(1));
                file.visit(1)
            })
        };
        file.change(3);
        visitor.join().unwrap();
    });
}

fn read_while_given_back(looks_inside: bool) {
    explore(None, move || {
        let file = File::new(0);
        let reader = {
            let file = file.clone();
            thread::spawn(move || file.read_by_lease(looks_inside))
        };
        file.give_back();
        reader.join().unwrap();
        assert!(!file.record.allows(Access::Read));
    });
}

/// (g) No thread of this node is at a file any more when another node gets it.
#[test]
fn a_file_is_given_back_when_all_threads_have_left_it() {
    read_while_given_back(true);
}

/// What the look is made inside the file for.
#[test]
#[should_panic(expected = "Causality violation")]
fn a_thread_that_looks_before_it_enters_reads_what_was_given_back() {
    read_while_given_back(false);
}

// ---------------------------------------------------------------------------------------------
// Opens, descriptions and the removal of records.

/// How a file was opened and its record removed before, and is now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    /// The opens were read while a thread might be opening, and the description lived before it
    /// said of what.
    Unordered,
    Now,
}

/// What the record is of; a description of anything else names another one.
const FILE: FileId = FileId::from_raw(0);
const OTHER: FileId = FileId::from_raw(1);
const IDENTITY: Identity = Identity { device: 1, inode: 1 };
const MARKER: Marker = Marker { description: 0, generation: 0 };

/// A table of one file, and one description that the opener will take, which the opener's process
/// holds or not.
struct Table {
    protocol: Protocol,
    records: [FileRecord; 1],
    heads: [AtomicU32; 1],
    stripes: [RobustSeqLock<Stripe>; 1],
    touched: [AtomicU64; 1],
    free: [AtomicU64; 1],
    records_cursor: AtomicU32,
    high: AtomicU32,
    all: [Description; 1],
    held: [AtomicU64; 2],
    ready: AtomicU32,
    forks: AtomicU32,
    taken: [AtomicU64; 1],
    taken_high: AtomicU32,
    cursor: AtomicU32,
}

impl Table {
    /// With a description in `state`, of `file`.
    fn new(protocol: Protocol, state: u32, file: FileId) -> Arc<Table> {
        let (zero, none) = (|| AtomicU64::new(0), || AtomicU32::new(0));
        let table = Table {
            protocol,
            records: [FileRecord::new()],
            heads: [none()],
            stripes: [RobustSeqLock::unheld()],
            touched: [zero()],
            free: [zero()],
            records_cursor: none(),
            high: none(),
            all: [Description::new()],
            held: [zero(), zero()],
            ready: AtomicU32::new(1),
            forks: none(),
            taken: [zero()],
            taken_high: none(),
            cursor: none(),
        };
        let chain = table.lock(owner(0));
        chain.insert(IDENTITY, owner(0), |_| ()).expect("there is one free");
        drop(chain);
        // Loom's guarantees for SeqCst begin with the first SeqCst store.
        table.records[0].opens.store(0, Ordering::SeqCst);
        table.taken[0].store(0b10, Ordering::SeqCst);
        table.taken_high.store(2, Ordering::SeqCst);
        table.all[0].word.store(state.into(), Ordering::SeqCst);
        table.all[0].file.store(file, Ordering::SeqCst);
        table.held.iter().for_each(|word| word.store(0, Ordering::SeqCst));
        Arc::new(table)
    }

    fn descriptions(&self) -> Descriptions<'_> {
        let Table { all, held, ready, forks, taken, taken_high: high, cursor, .. } = self;
        let slots = SlotBits { words: taken, high, count: 2 };
        Descriptions { all, held, ready, forks, slots, cursor }
    }

    fn files(&self) -> Files<'_> {
        let Table {
            records,
            heads,
            stripes,
            touched,
            free,
            ready,
            records_cursor: cursor,
            high,
            ..
        } = self;
        Files { records, heads, stripes, touched, free, ready, cursor, high }
    }

    /// `Segment::lock_chain`.
    fn lock(&self, owner: Owner) -> Chain<'_> {
        lock(&self.stripes[0], owner);
        self.files().locked(0, LockGuard::of(&self.stripes[0], true))
    }

    fn generation(&self) -> u32 {
        self.records[0].generation.load(Ordering::Relaxed)
    }

    /// `Segment::open_file`, with a description of the file; the use of the record that it is of.
    fn open(&self, owner: Owner) -> Option<u32> {
        let insert = |chain: &Chain<'_>| chain.insert(IDENTITY, owner, |_| ());
        let describe = |file: FileId, _| {
            let taken = match self.protocol {
                Protocol::Unordered => self.open_unordered(owner),
                Protocol::Now => {
                    let (record, flags) = (self.files().get(file), DescriptionFlags::NONE);
                    self.descriptions().open(file, record, flags, owner).is_some()
                }
            };
            taken.then(|| self.generation())
        };
        self.lock(owner).open(IDENTITY, insert, describe)?
    }

    fn open_unordered(&self, owner: Owner) -> bool {
        self.descriptions().hold(owner.slot(), 0);
        let [description] = &self.all;
        let (free, live) = (description_state::FREE.into(), description_state::LIVE.into());
        let word = &description.word;
        let taken = word.compare_exchange(free, live, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        if taken {
            description.file.store(FILE, Ordering::Relaxed);
        }
        taken
    }

    /// `Session::adopt`, of a description that no process held for a while.
    fn adopt(&self, owner: Owner) -> Option<u32> {
        if self.protocol == Protocol::Unordered {
            self.descriptions().hold(owner.slot(), 0);
            self.all[0].word.store(description_state::LIVE.into(), Ordering::SeqCst);
            let is_live = self.records[0].state.load(Ordering::Acquire) == file_state::LIVE;
            return is_live.then(|| self.generation());
        }
        let adopt = |_, _| {
            assert!(self.descriptions().adopt(MARKER, owner), "it was used again by no process");
            self.generation()
        };
        self.lock(owner).open(IDENTITY, |_| None, adopt)
    }

    /// Whether the record's file is open.
    fn sweep_description(&self) -> bool {
        let mut open = false;
        reading(|| {
            self.descriptions().sweep(0, 0, 0, |id| {
                open |= self.descriptions().get(id).file.load(Ordering::Acquire) == FILE;
            });
        });
        open
    }

    /// `Housekeeper::sweep` and `Segment::remove_file`.
    fn sweep(&self, owner: Owner) {
        let [record] = &self.records;
        match self.protocol {
            Protocol::Unordered => {
                let opens = reading(|| record.opens.load(Ordering::SeqCst));
                if self.sweep_description() {
                    return;
                }
                let chain = self.lock(owner);
                if record.opens.load(Ordering::SeqCst) == opens {
                    let now = Opens::counted(&record.opens, &RobustSeqLock::unheld());
                    self.remove(&chain, owner, now.expect("it is not held"));
                }
            }
            Protocol::Now => {
                let Some(opens) = self.files().count_opens(FILE) else { return };
                if self.sweep_description() {
                    return;
                }
                let Some(stripe) = self.stripes[0].guard(owner) else { return };
                self.remove(&self.files().locked(0, stripe), owner, opens);
            }
        }
    }

    /// `Housekeeper::sweep`, of a file that its record says nothing is left to be done for. A
    /// process that has it open writes as soon as it can: that is held off by exclusive use of the
    /// file, here by nothing.
    fn settle(&self, looks_again: bool) {
        let Some(opens) = self.files().count_opens(FILE) else { return };
        let is_settled = || reading(|| !self.is_changed());
        if self.sweep_description() || !is_settled() {
            return;
        }
        match looks_again {
            true => self.files().settle(FILE, opens, is_settled),
            false => _ = self.touched[0].fetch_and(!1, Ordering::AcqRel),
        }
    }

    fn is_changed(&self) -> bool {
        let flags = self.files().get(FILE).flags.load(Ordering::Acquire);
        flags.intersects(FileFlags::DIRTY | FileFlags::UNLINKED)
    }

    fn remove(&self, chain: &Chain<'_>, owner: Owner, opens: Opens) {
        let nodes =
            IndexNodes { index: Index::of(&[]), states: NodeStates(&[]), bits: &[], cache: &[] };
        chain.remove(FILE, owner, opens, || true, nodes);
    }

    /// A process that has the file open has its record.
    fn check(&self, used: Option<u32>) {
        let Some(used) = used else { return };
        let record = (self.generation(), self.records[0].state.load(Ordering::SeqCst));
        assert_eq!(record, (used, file_state::LIVE), "an open file has lost its record");
        assert!(self.files().may_have(IDENTITY), "an open file has lost its record");
        let state = self.all[0].word.load(Ordering::SeqCst) as u32;
        assert_eq!(state, description_state::LIVE, "a held description was freed");
    }
}

fn open_while_swept(protocol: Protocol) {
    explore(Some(3), move || {
        let table = Table::new(protocol, description_state::FREE, OTHER);
        let opener = {
            let table = table.clone();
            thread::spawn(move || table.open(owner(1)))
        };
        table.sweep(owner(0));
        let used = opener.join().unwrap();
        table.check(used);
        table.sweep(owner(0));
        table.check(used);
    });
}

fn adopt_while_swept(protocol: Protocol) {
    explore(Some(3), move || {
        let table = Table::new(protocol, description_state::ZOMBIE, FILE);
        let adopter = {
            let table = table.clone();
            thread::spawn(move || table.adopt(owner(1)))
        };
        table.sweep(owner(0));
        table.sweep(owner(0));
        let used = adopter.join().unwrap();
        table.check(used);
    });
}

/// (h) A file that is opened while the manager looks which processes have it open keeps its record.
#[test]
fn a_file_that_is_being_opened_keeps_its_record() {
    open_while_swept(Protocol::Now);
}

/// (h) So does one whose description an exec takes part in after all.
#[test]
fn a_file_of_which_a_description_is_adopted_keeps_its_record() {
    adopt_while_swept(Protocol::Now);
}

/// A file is written, or marked, while the manager ends its looks at it.
fn change_while_settled(change: fn(&Table), looks_again: bool) {
    explore(Some(3), move || {
        let table = Table::new(Protocol::Now, description_state::FREE, OTHER);
        let changer = {
            let table = table.clone();
            thread::spawn(move || change(&table))
        };
        table.settle(looks_again);
        changer.join().unwrap();
        let is_seen = table.files().is_touched(FILE);
        assert!(!table.is_changed() || is_seen, "a changed file is looked at no more");
        // What was changed before is seen from the beginning.
        table.settle(looks_again);
        let is_seen = table.files().is_touched(FILE);
        assert!(!table.is_changed() || is_seen, "a changed file is looked at no more");
    });
}

fn open_and_write(table: &Table) {
    if table.open(owner(1)).is_some() {
        table.files().get(FILE).set(FileFlags::DIRTY);
    }
}

/// `Session::set_unlinked`, of a file that the process has not open.
fn mark_unlinked(table: &Table) {
    table.files().get(FILE).set(FileFlags::UNLINKED);
    table.files().touch(FILE);
}

/// (h) A file that is opened and written while the manager ends its looks at it is looked at.
#[test]
fn a_file_that_is_opened_while_it_is_settled_is_looked_at() {
    change_while_settled(open_and_write, true);
}

/// (h) So is one that is only marked.
#[test]
fn a_file_that_is_marked_while_it_is_settled_is_looked_at() {
    change_while_settled(mark_unlinked, true);
}

#[test]
#[should_panic(expected = "a changed file is looked at no more")]
fn a_manager_that_looks_once_overlooks_an_open() {
    change_while_settled(open_and_write, false);
}

#[test]
#[should_panic(expected = "a changed file is looked at no more")]
fn a_manager_that_looks_once_overlooks_a_mark() {
    change_while_settled(mark_unlinked, false);
}

/// The models notice what was wrong.
#[test]
#[should_panic(expected = "an open file has lost its record")]
fn an_unordered_open_loses_its_record() {
    open_while_swept(Protocol::Unordered);
}

#[test]
#[should_panic(expected = "an open file has lost its record")]
fn an_unordered_adoption_loses_its_record() {
    adopt_while_swept(Protocol::Unordered);
}

// ---------------------------------------------------------------------------------------------
// Descriptions that are freed when they are closed.

/// One description, of processes 1 to 3; that of 3 is a child of 1, or receives a message of it.
struct Freed {
    all: [Description; 1],
    held: [AtomicU64; 4],
    joining: AtomicU32,
    is_closed: AtomicU32,
    ready: AtomicU32,
    forks: AtomicU32,
    taken: [AtomicU64; 1],
    taken_high: AtomicU32,
    cursor: AtomicU32,
}

impl Freed {
    fn new(holders: &[u32]) -> Arc<Freed> {
        let freed = Freed {
            all: [Description::new()],
            held: [0; 4].map(AtomicU64::new),
            joining: AtomicU32::new(0),
            is_closed: AtomicU32::new(0),
            ready: AtomicU32::new(1),
            forks: AtomicU32::new(0),
            taken: [AtomicU64::new(0)],
            taken_high: AtomicU32::new(0),
            cursor: AtomicU32::new(0),
        };
        // Loom's guarantees for SeqCst begin with the first SeqCst store.
        freed.held.iter().for_each(|word| word.store(0, Ordering::SeqCst));
        for word in [&freed.joining, &freed.is_closed, &freed.forks] {
            word.store(0, Ordering::SeqCst);
        }
        freed.taken[0].store(0b1110, Ordering::SeqCst);
        freed.taken_high.store(4, Ordering::SeqCst);
        freed.all[0].in_flight.store(0, Ordering::SeqCst);
        freed.all[0].word.store(description_state::LIVE.into(), Ordering::SeqCst);
        holders.iter().for_each(|&slot| freed.view().hold(slot, 0));
        Arc::new(freed)
    }

    fn view(&self) -> Descriptions<'_> {
        let Freed { all, held, ready, forks, taken, taken_high: high, cursor, .. } = self;
        let slots = SlotBits { words: taken, high, count: 4 };
        Descriptions { all, held, ready, forks, slots, cursor }
    }

    /// `Session::while_closing`. Where it can be freed at once, it is soon another file's.
    fn close(&self, slot: u32, is_checked: bool) {
        let given = self.view().give_up(slot, 0);
        self.is_closed.fetch_add(1, Ordering::SeqCst);
        let joins = |slot| slot == 3 && self.joining.load(Ordering::SeqCst) != 0;
        let is_free = reading(|| self.view().free(given, owner(slot), joins));
        if is_free || !is_checked {
            let other = 1 << 32 | u64::from(description_state::LIVE);
            self.all[0].word.store(other, Ordering::SeqCst);
        }
    }

    fn adopt(&self) {
        assert!(self.view().adopt(MARKER, owner(3)), "a description in use was freed");
    }

    fn check(&self) {
        let word = self.all[0].word.load(Ordering::SeqCst);
        assert_eq!(word, description_state::LIVE.into(), "a description in use was freed");
    }
}

fn close_while_sent(is_checked: bool) {
    explore(Some(3), move || {
        let freed = Freed::new(&[1, 2]);
        let sender = {
            let freed = freed.clone();
            thread::spawn(move || {
                freed.view().take_off(0, 0);
                freed.close(1, true);
                freed.adopt();
                freed.view().land(0);
            })
        };
        freed.close(2, is_checked);
        sender.join().unwrap();
        freed.check();
    });
}

/// A thread of process 1 forks, while another one closes the only descriptor.
fn close_while_forked(is_checked: bool) {
    explore(Some(3), move || {
        let freed = Freed::new(&[1]);
        let forker = {
            let freed = freed.clone();
            thread::spawn(move || {
                freed.joining.store(1, Ordering::SeqCst);
                freed.forks.fetch_add(1, Ordering::SeqCst);
                freed.view().inherit(1, 3);
                let has_it = freed.is_closed.fetch_add(0, Ordering::SeqCst) == 0;
                // A child adopts what was being closed when it was forked.
                if has_it {
                    freed.adopt();
                } else {
                    freed.view().release(3, 0);
                }
                freed.joining.store(0, Ordering::SeqCst);
                has_it
            })
        };
        freed.close(1, is_checked);
        if forker.join().unwrap() {
            freed.check();
        }
    });
}

/// (h) What is freed by the process that closes it is not on its way to another process.
#[test]
fn a_description_in_a_message_is_not_freed_by_its_last_holder() {
    close_while_sent(true);
}

/// (h) Nor does a child have it.
#[test]
fn a_description_of_a_child_is_not_freed_by_its_last_holder() {
    close_while_forked(true);
}

#[test]
#[should_panic(expected = "a description in use was freed")]
fn an_unchecked_close_frees_what_was_sent() {
    close_while_sent(false);
}

#[test]
#[should_panic(expected = "a description in use was freed")]
fn an_unchecked_close_frees_what_a_child_has() {
    close_while_forked(false);
}

// ---------------------------------------------------------------------------------------------
// The names of files that are being opened.

/// A file whose name the kernel has, and the name in its record, plus one; 0 while it has none.
struct Named {
    stripe: RobustSeqLock<Stripe>,
    name: AtomicU32,
    record: AtomicU32,
    changes: AtomicU64,
    changed: [AtomicU64; CHANGED_NAMES],
}

impl Named {
    fn names(&self) -> Names<'_> {
        Names { changes: &self.changes, last: &self.changed }
    }

    fn changes(&self) -> u64 {
        self.names().changes()
    }

    /// What the kernel says, in the order of all that it does with the name.
    fn look(&self) -> u32 {
        self.name.fetch_add(0, Ordering::SeqCst)
    }

    fn note(&self, owner: Owner, name: u32) {
        lock(&self.stripe, owner);
        self.record.store(name + 1, Ordering::Release);
        self.stripe.unlock_unchanged();
    }

    /// `Session::opened_as` with `Session::look_for_name`, if it `looks_again`.
    fn open(&self, owner: Owner, looks_again: bool) {
        let mut before = self.changes();
        self.note(owner, self.look());
        while looks_again && self.changes() != before {
            before = self.changes();
            self.note(owner, self.look());
        }
    }

    /// A rename or an unlink, and `Session::named`.
    fn rename(&self, owner: Owner, to: u32) {
        self.name.swap(to, Ordering::SeqCst);
        self.names().changed(0, b"name");
        if reading(|| self.record.load(Ordering::Acquire)) != 0 {
            self.note(owner, to);
        }
    }
}

fn open_while_renamed(renames: u32, looks_again: bool) {
    explore(Some(3), move || {
        let named = Arc::new(Named {
            stripe: RobustSeqLock::unheld(),
            name: AtomicU32::new(0),
            record: AtomicU32::new(0),
            changes: AtomicU64::new(0),
            changed: std::array::from_fn(|_| AtomicU64::new(0)),
        });
        named.changes.store(0, Ordering::SeqCst);
        let opener = {
            let named = named.clone();
            thread::spawn(move || named.open(owner(1), looks_again))
        };
        (1..=renames).for_each(|to| named.rename(owner(2), to));
        opener.join().unwrap();
        let known = named.record.load(Ordering::SeqCst);
        assert_eq!(known, named.look() + 1, "a record with an old name");
    });
}

/// (i) A file that is renamed while it is opened has its last name in its record.
#[test]
fn a_file_that_is_renamed_while_it_is_opened_keeps_no_old_name() {
    open_while_renamed(1, true);
    open_while_renamed(2, true);
}

#[test]
#[should_panic(expected = "a record with an old name")]
fn an_open_that_looks_once_keeps_an_old_name() {
    open_while_renamed(1, false);
}

// ---------------------------------------------------------------------------------------------
// The block index.

/// A file's index on plain memory, with a cache of free nodes for each of two processes.
struct Tree {
    file: FileRecord,
    nodes: Vec<IndexNode>,
    states: Vec<AtomicU32>,
    bits: [AtomicU64; 1],
    caches: [[AtomicU32; CACHED_NODES]; 2],
}

impl Tree {
    fn new(nodes: u32) -> Arc<Tree> {
        let zero = || AtomicU64::new(0);
        let cache = || std::array::from_fn(|_| AtomicU32::new(0));
        Arc::new(Tree {
            file: FileRecord::new(),
            nodes: (0..nodes).map(|_| IndexNode { entry: [zero(), zero()] }).collect(),
            states: (0..nodes).map(|_| AtomicU32::new(FREE)).collect(),
            bits: [AtomicU64::new((1 << nodes) - 1)],
            caches: [cache(), cache()],
        })
    }

    fn index(&self) -> Index<'_> {
        Index::of(&self.nodes)
    }

    fn nodes_of(&self, process: u32) -> IndexNodes<'_> {
        IndexNodes {
            index: self.index(),
            states: NodeStates(&self.states),
            bits: &self.bits,
            cache: &self.caches[process as usize],
        }
    }

    fn insert(&self, process: u32, block: u64) {
        let place = self.nodes_of(process).entry_or_insert(&self.file, block, owner(process));
        place.expect("there are nodes enough").store(block + 1, Ordering::Release);
    }

    /// Every node is in the tree and in use, cached by its owner, or free.
    fn check(&self) {
        let mut used = Vec::new();
        self.index().for_each_node(&self.file, &mut |node| used.push(node));
        for (node, state) in (0..).zip(&self.states) {
            let state = state.load(Ordering::Relaxed);
            let cached = |slot: u32| {
                let places = &self.caches[slot as usize];
                places.iter().any(|place| place.load(Ordering::Relaxed) == node + 1)
            };
            let in_place = match used.iter().filter(|&&other| other == node).count() {
                0 if state == FREE => self.bits[0].load(Ordering::Relaxed) >> node & 1 == 1,
                0 => Owner::from_raw(state).is_some_and(|owner| cached(owner.slot())),
                1 => state == USED,
                _ => false,
            };
            assert!(in_place, "node {node} is lost, or in two places: {state:#x}");
        }
    }
}

/// (j) Two processes insert blocks, one of which makes the tree higher while the other one hangs a
/// node into it: both blocks are found, and no node is lost.
#[test]
fn blocks_that_two_processes_insert_are_both_found() {
    for (mine, theirs) in [(1, 1), (1, 2), (2, 3), (1, 4)] {
        explore(Some(2), move || {
            let tree = Tree::new(8);
            let other = {
                let tree = tree.clone();
                thread::spawn(move || tree.insert(1, theirs))
            };
            tree.insert(0, mine);
            other.join().unwrap();
            for block in [mine, theirs] {
                let entry = tree.index().entry(&tree.file, block).expect("an entry is lost");
                assert_eq!(entry.load(Ordering::Acquire), block + 1);
            }
            tree.check();
        });
    }
}

/// (j) A reader finds a block that was there before, however the tree grows meanwhile.
#[test]
fn an_entry_stays_in_place_while_the_tree_grows() {
    explore(Some(3), || {
        let tree = Tree::new(8);
        tree.insert(0, 1);
        let grower = {
            let tree = tree.clone();
            thread::spawn(move || tree.insert(1, 4))
        };
        let seen = reading(|| {
            let entry = tree.index().entry(&tree.file, 1).expect("an entry is lost");
            entry.load(Ordering::Acquire)
        });
        assert_eq!(seen, 2);
        grower.join().unwrap();
        tree.check();
    });
}

// ---------------------------------------------------------------------------------------------
// What of a block is pending.

/// A flush of a dirty page begins and fails while another thread looks, under the lock or not,
/// whether the page may go.
fn flush_fails_meanwhile(holds_lock: bool, look: fn(&DirtyPages) -> u64) {
    explore(None, move || {
        let bucket = Arc::new((<RobustSeqLock>::unheld(), DirtyPages::new(1)));
        let flush = {
            let bucket = bucket.clone();
            thread::spawn(move || {
                // `Flusher::begin` and `Flusher::end`.
                lock(&bucket.0, owner(0));
                bucket.1.begin_writeback(1);
                bucket.0.unlock_unchanged();
                bucket.1.end_writeback(1, true);
            })
        };
        if holds_lock {
            lock(&bucket.0, owner(1));
        }
        let pages = look(&bucket.1);
        if holds_lock {
            bucket.0.unlock_unchanged();
        }
        assert_eq!(pages, 1, "a page that the store lacks was taken for clean");
        flush.join().unwrap();
    });
}

/// (i) A page that the store lacks is never taken for clean while a flush of it fails.
#[test]
fn a_page_whose_flush_fails_is_never_taken_for_clean() {
    flush_fails_meanwhile(true, DirtyPages::pending_under_lock);
    flush_fails_meanwhile(true, DirtyPages::pending);
    flush_fails_meanwhile(false, DirtyPages::pending);
}

/// The model notices the other order, and that the lock is needed.
#[test]
#[should_panic(expected = "was taken for clean")]
fn a_page_is_taken_for_clean_by_a_thread_that_reads_dirty_first() {
    flush_fails_meanwhile(true, |pages| pages.dirty() | pages.writeback());
}

#[test]
#[should_panic(expected = "was taken for clean")]
fn a_page_is_taken_for_clean_without_the_lock() {
    flush_fails_meanwhile(false, DirtyPages::pending_under_lock);
}

// ---------------------------------------------------------------------------------------------
// The queue.

fn say(file: u32) -> Message {
    Message::Sync { file: FileId::from_raw(file) }
}

/// (h) Two producers and a consumer that sleeps when there is nothing: every message comes once,
/// whole, and the consumer is woken.
#[test]
fn every_message_arrives_once_and_wakes_the_consumer() {
    explore(Some(2), || {
        let queue = Arc::new(Queue::<2>::new());
        let producers: Vec<_> = (1..=2)
            .map(|slot| {
                let queue = queue.clone();
                thread::spawn(move || assert!(queue.push(owner(slot), &say(slot))))
            })
            .collect();
        let mut sum = 0;
        for _ in 0..2 {
            sum += loop {
                match queue.pop() {
                    Some(Message::Sync { file }) => break file.raw(),
                    Some(other) => panic!("{other:?} was never sent"),
                    None => queue.wait(1, || false),
                }
            };
        }
        assert_eq!(sum, 3);
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        assert_eq!(queue.pop(), None);
    });
}

/// (h) A producer that was killed after its claim costs its place until that is taken back, and
/// no other message, in whatever order that happens.
#[test]
fn a_claim_of_a_killed_producer_loses_no_message() {
    explore(Some(3), || {
        let queue = Arc::new(Queue::<2>::new());
        assert!(queue.claim(owner(3)).is_some());
        let producer = {
            let queue = queue.clone();
            thread::spawn(move || (1..=2).filter(|&file| queue.push(owner(1), &say(file))).count())
        };
        let reaper = {
            let queue = queue.clone();
            thread::spawn(move || queue.take_back(|holder| holder == owner(3)))
        };
        let mut taken = usize::from(queue.pop().is_some());
        let pushed = producer.join().unwrap();
        assert_eq!(reaper.join().unwrap(), 1);
        taken += std::iter::from_fn(|| queue.pop()).count();
        assert_eq!(pushed, taken);
        assert!((0..2).all(|file| queue.push(owner(1), &say(file))), "a place is lost");
    });
}

/// (h) Two consumers, as when a manager that was stopped goes on beside its successor: no message
/// comes twice.
#[test]
fn two_consumers_take_no_message_twice() {
    explore(Some(3), || {
        let queue = Arc::new(Queue::<2>::new());
        assert!(queue.push(owner(1), &say(1)));
        let other = {
            let queue = queue.clone();
            thread::spawn(move || queue.pop())
        };
        assert!(queue.push(owner(1), &say(2)));
        let mine = queue.pop();
        let theirs = other.join().unwrap();
        assert!(mine.is_some() && mine != theirs);
        let rest = usize::from(queue.pop().is_some());
        assert_eq!(rest, usize::from(theirs.is_none()));
    });
}
