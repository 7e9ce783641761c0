//! The table of files: records, chained by what identifies their files.
//!
//! It is slices, and knows no segment: see docs/design/views.md.

use crate::FileId;
use crate::crash;
use crate::index::IndexNodes;
use crate::layout::FileRecord;
use crate::layout::file_state::{FREE, LIVE};
use crate::opens::Opens;
use crate::owner::Owner;
use crate::ranks::Stripe;
use crate::seq_lock::{LockGuard, RobustSeqLock};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use core::ops::Range;

/// What makes a file this file, whatever its names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Identity {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
}

/// Files whose inode numbers differ in so many low bits are near each other.
const NEAR_BITS: u32 = 6;

impl Identity {
    /// Its chain of the file table, of which there are `heads`, a power of two. By the highest bits
    /// of the product, which all bits of the identity change: a check of a damaged pool goes by
    /// that. Those of files that are [near](Identity::near) each other, which programs use at one
    /// time, lie in few pages of memory: a process meets each with a page fault. From where those
    /// of a group lie on is as good as random, so that no step from number to number leaves chains
    /// out.
    pub(crate) fn head(self, heads: u32) -> u32 {
        let (group, within) = self.near();
        let mixed = group.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let first = mixed.rotate_left(heads.trailing_zeros()) as u32;
        first.wrapping_add(within) & (heads - 1)
    }

    /// What it has in common with files that were probably made together with it, as file systems
    /// number what is made one after the other; and which of those it is, below 64.
    pub(crate) fn near(self) -> (u64, u32) {
        let group = self.inode >> NEAR_BITS ^ self.device.rotate_left(32);
        (group, self.inode as u32 & ((1 << NEAR_BITS) - 1))
    }
}

/// The files of a node, as slices of shared memory. All threads of all processes may use them at
/// once.
#[derive(Clone, Copy)]
pub struct Files<'a> {
    /// All records.
    pub records: &'a [FileRecord],
    /// The first record of each chain, plus one: a power of two of them.
    pub heads: &'a [AtomicU32],
    /// The locks of the chains, each of several.
    pub stripes: &'a [RobustSeqLock<Stripe>],
    /// A bit for each record: something may be left to be done for its file, see
    /// [`Files::touch`].
    pub touched: &'a [AtomicU64],
    /// A bit for each record below `high`: it is probably free. Its state decides.
    pub free: &'a [AtomicU64],
    /// How many of the records have memory; the first ones.
    pub ready: &'a AtomicU32,
    /// Where the next search for a free record starts: below it none is, as far as is known.
    pub cursor: &'a AtomicU32,
    /// One past the highest record ever used.
    pub high: &'a AtomicU32,
}

impl<'a> Files<'a> {
    /// Record `file`.
    #[inline(always)]
    pub fn get(self, file: FileId) -> &'a FileRecord {
        debug_assert!(file.raw() < self.count());
        &self.records[file.index().min(self.count() as usize - 1)]
    }

    #[inline(always)]
    fn count(self) -> u32 {
        self.ready.load(Ordering::Acquire).min(self.records.len() as u32)
    }

    /// The chain that a file is in.
    #[inline(always)]
    pub(crate) fn chain_of(self, identity: Identity) -> u32 {
        identity.head(self.heads.len() as u32)
    }

    /// The first record of chain `chain`, plus one.
    #[inline(always)]
    pub fn head(self, chain: u32) -> &'a AtomicU32 {
        &self.heads[chain as usize & (self.heads.len() - 1)]
    }

    /// The lock of chain `chain`.
    #[inline(always)]
    pub fn stripe(self, chain: u32) -> &'a RobustSeqLock<Stripe> {
        &self.stripes[chain as usize % self.stripes.len()]
    }

    /// Chain `chain`, of which the calling thread has the lock.
    #[inline(always)]
    pub(crate) fn locked(self, chain: u32, stripe: LockGuard<'a, Stripe>) -> Chain<'a> {
        Chain { files: self, chain, _stripe: stripe }
    }

    /// Whether the table has `identity`, without a lock.
    pub fn may_have(self, identity: Identity) -> bool {
        self.search(self.chain_of(identity), identity).is_some()
    }

    /// How often `file` has been opened, if no thread may be opening it now. The caller then looks
    /// at the descriptions, and has seen all of the file's if the count is the same afterwards.
    pub fn count_opens(self, file: FileId) -> Option<Opens> {
        let record = self.get(file);
        Opens::counted(&record.opens, self.stripe(self.chain_of(record.identity())))
    }

    /// All files in the table.
    pub fn live(self) -> impl Iterator<Item = FileId> {
        self.live_from(0, u32::MAX)
    }

    #[inline]
    fn touched_bit(self, file: FileId) -> (&'a AtomicU64, u64) {
        bit_of(self.touched, file)
    }

    /// Notes of those of the `count` records from number `first` on that are free that they are: a
    /// process that was killed may have left one of which it is not noted.
    pub fn note_free(self, first: u32, count: u32) {
        let high = self.high.load(Ordering::Acquire).min(self.count());
        for file in FileId::range(first.min(high), first.saturating_add(count).min(high)) {
            if self.get(file).state.load(Ordering::Acquire) == FREE {
                self.note_one_free(file);
            }
        }
    }

    /// Has the node manager look at `file`: its sweeps pass over all others. To be called after
    /// what it is to see there. Each open does it; a thread that has the file open need not, nor
    /// one that is inside it.
    #[inline]
    pub fn touch(self, file: FileId) {
        let (word, bit) = self.touched_bit(file);
        // A manager that takes the bit away sees what was done before, or we see that it is gone.
        fence(Ordering::SeqCst);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::AcqRel);
        }
    }

    /// Has the node manager look at all files, and at what dead processes have left half linked.
    pub(crate) fn touch_all(self) {
        let is_used = |file: &FileId| self.get(*file).state.load(Ordering::Acquire) != FREE;
        FileId::range(0, self.count()).filter(is_used).for_each(|file| self.touch(file));
    }

    /// Ends the looks at `file`, which the caller has exclusively, and has seen to be closed since
    /// it counted `opens`, if `is_settled` says that nothing is left to be done for it. Only for
    /// the node manager.
    pub fn settle(self, file: FileId, opens: Opens, is_settled: impl FnOnce() -> bool) {
        let (word, bit) = self.touched_bit(file);
        // First: what a thread has done that found the bit set is seen below.
        word.fetch_and(!bit, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        crash::point("file.settling");
        if !opens.are_still(&self.get(file).opens) || !is_settled() {
            self.touch(file);
        }
    }

    /// Whether the node manager will look at `file`.
    pub fn is_touched(self, file: FileId) -> bool {
        let (word, bit) = self.touched_bit(file);
        word.load(Ordering::Acquire) & bit != 0
    }

    /// The files that something may be left to be done for.
    pub fn touched(self) -> impl Iterator<Item = FileId> {
        let high = self.high.load(Ordering::Acquire).min(self.count());
        self.touched_below(high).filter(move |file| self.is_live(*file))
    }

    /// The same, and those whose records are being linked or unlinked.
    pub(crate) fn touched_or_left(self) -> impl Iterator<Item = FileId> {
        let is_used = move |file: &FileId| self.get(*file).state.load(Ordering::Acquire) != FREE;
        self.touched_below(self.count()).filter(is_used)
    }

    fn touched_below(self, high: u32) -> impl Iterator<Item = FileId> {
        let words = self.touched.iter().take(high.div_ceil(64) as usize);
        let words = words.enumerate().map(|(at, word)| (at, word.load(Ordering::Acquire)));
        words.filter(|(_, word)| *word != 0).flat_map(move |(at, word)| {
            let first = at as u32 * 64;
            let all = FileId::range(first, (first + 64).min(high));
            all.filter(move |file| word >> (file.raw() % 64) & 1 == 1)
        })
    }

    /// The files in the table whose records are among the `count` from number `first` on.
    pub fn live_from(self, first: u32, count: u32) -> impl Iterator<Item = FileId> {
        let high = self.high.load(Ordering::Acquire).min(self.count());
        let range = FileId::range(first.min(high), first.saturating_add(count).min(high));
        range.filter(move |file| self.is_live(*file))
    }

    fn is_live(self, file: FileId) -> bool {
        self.get(file).state.load(Ordering::Acquire) == LIVE
    }

    /// The records that threads of `slot` were linking or unlinking.
    pub(crate) fn left_by(self, slot: u32) -> impl Iterator<Item = (FileId, &'a FileRecord)> {
        let is_left = move |record: &FileRecord| {
            let state = record.state.load(Ordering::Acquire);
            !matches!(state, FREE | LIVE)
                && Owner::from_raw(state).is_some_and(|owner| owner.slot() == slot)
        };
        let all = self.touched_or_left().map(move |file| (file, self.get(file)));
        all.filter(move |(_, record)| is_left(record))
    }

    #[inline]
    fn search(self, chain: u32, identity: Identity) -> Option<FileId> {
        self.search_from(self.head(chain).load(Ordering::Acquire), chain, identity)
    }

    /// Also without the lock, which a thread that goes on from `link` needs not have had then.
    pub(super) fn search_from(
        self,
        mut link: u32,
        chain: u32,
        identity: Identity,
    ) -> Option<FileId> {
        // A chain that a damaged link made into a ring must not hold us for ever.
        for _ in 0..self.count() {
            let file = FileId::from_link(link)?;
            let record = self.get(file);
            if record.identity() == identity && record.state.load(Ordering::Acquire) != 0 {
                return Some(file);
            }
            link = record.next.load(Ordering::Acquire);
            // Without the stripe: the record may be one of another chain by now.
            if self.chain_of(record.identity()) != chain {
                link = self.head(chain).load(Ordering::Acquire);
            }
        }
        None
    }

    /// Takes a free record for `owner`.
    fn take(self, owner: Owner) -> Option<FileId> {
        if crash::refused("file") {
            return None;
        }
        let ready = self.count();
        let high = self.high.load(Ordering::Relaxed).min(ready);
        let words = high.div_ceil(64).min(self.free.len() as u32);
        let noted = |mut words: Range<u32>| words.find_map(|at| self.take_noted(at, owner));
        let from = self.cursor.load(Ordering::Relaxed);
        let start = (from / 64).min(words);
        // The lowest first: what is looked at in turn stays short.
        if let Some(file) = noted(start..words) {
            let _ = self.cursor.compare_exchange(
                from,
                file.raw(),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            return Some(file);
        }
        // The next search need not find the same.
        let _ = self.cursor.compare_exchange(from, high, Ordering::Relaxed, Ordering::Relaxed);
        let fresh = FileId::range(high, ready).find(|&file| self.claim(file, owner));
        if let Some(file) = fresh {
            self.high.fetch_max(file.next().raw(), Ordering::AcqRel);
        }
        fresh.or_else(|| noted(0..words))
    }

    /// Takes a record of those that word `at` says are free.
    fn take_noted(self, at: u32, owner: Owner) -> Option<FileId> {
        let word = &self.free[at as usize];
        loop {
            let seen = word.load(Ordering::Acquire);
            if seen == 0 {
                return None;
            }
            let first = seen.trailing_zeros();
            let file = FileId::from_raw(at * 64 + first);
            // Its bit goes, whichever thread gets the record.
            let is_ours = word.fetch_and(!(1 << first), Ordering::AcqRel) >> first & 1 == 1;
            if is_ours && file.raw() < self.count() && self.claim(file, owner) {
                return Some(file);
            }
        }
    }

    fn claim(self, file: FileId, owner: Owner) -> bool {
        let state = &self.get(file).state;
        if state.load(Ordering::Relaxed) != FREE {
            return false;
        }
        // Before it is stamped: what a killed process leaves is looked for among these.
        self.touch(file);
        state.compare_exchange(FREE, owner.raw(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Leaves a record that is in no chain to another file.
    fn give_up(self, file: FileId) {
        self.get(file).give_up();
        self.note_one_free(file);
    }

    fn note_one_free(self, file: FileId) {
        let (word, bit) = bit_of(self.free, file);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Release);
        }
        if self.cursor.load(Ordering::Relaxed) > file.raw() {
            self.cursor.fetch_min(file.raw(), Ordering::Relaxed);
        }
    }
}

/// The bit of a file in a map of them.
#[inline]
fn bit_of(map: &[AtomicU64], file: FileId) -> (&AtomicU64, u64) {
    let last = map.len().saturating_sub(1);
    (&map[(file.index() / 64).min(last)], 1 << (file.raw() % 64))
}

/// A chain of the table of which the calling thread has the lock: it does not change otherwise.
#[must_use]
pub struct Chain<'a> {
    files: Files<'a>,
    chain: u32,
    _stripe: LockGuard<'a, Stripe>,
}

impl Chain<'_> {
    /// The file of `identity`, if the table has it.
    pub fn find(&self, identity: Identity) -> Option<FileId> {
        self.files.search(self.chain, identity)
    }

    /// Finds the record of `identity`, or has `make` make it, counts an open of it, and calls `act`
    /// with it and whether it is new. `None` if there is none.
    pub(crate) fn open<R>(
        &self,
        identity: Identity,
        make: impl FnOnce(&Self) -> Option<FileId>,
        act: impl FnOnce(FileId, bool) -> R,
    ) -> Option<R> {
        let found = match self.find(identity) {
            Some(file) => Some((file, false)),
            None => make(self).map(|file| (file, true)),
        };
        found.map(|(file, new)| {
            let record = self.files.get(file);
            // Linked by one that died before it said so, or stayed linked when one died that
            // removed it.
            if record.state.load(Ordering::Acquire) != LIVE {
                record.state.store(LIVE, Ordering::Release);
            }
            record.opens.fetch_add(1, Ordering::SeqCst);
            self.files.touch(file);
            crash::point("file.found");
            let result = act(file, new);
            crash::point("file.described");
            result
        })
    }

    /// Makes a record of `identity`, which the table does not have. `begin` is given it all zero,
    /// before another thread can find it. `None` when the table is full.
    pub(crate) fn insert(
        &self,
        identity: Identity,
        owner: Owner,
        begin: impl FnOnce(&FileRecord),
    ) -> Option<FileId> {
        let file = self.files.take(owner)?;
        crash::point("file.taken");
        let record = self.files.get(file);
        record.generation.fetch_add(1, Ordering::Relaxed);
        record.wipe();
        record.device.store(identity.device, Ordering::Relaxed);
        record.inode.store(identity.inode, Ordering::Relaxed);
        begin(record);
        // Complete before it can be found: one that dies here leaves nothing, or a record of this
        // file.
        let head = self.files.head(self.chain);
        // After the identity: see `search_from`.
        record.next.store(head.load(Ordering::Relaxed), Ordering::Release);
        crash::point("file.linking");
        head.store(file.link(), Ordering::Release);
        crash::point("file.linked");
        record.state.store(LIVE, Ordering::Release);
        Some(file)
    }

    /// Removes `file` if no thread has opened it since `opens` were counted, and `unwanted` says
    /// so. Frees its `nodes`.
    pub(crate) fn remove(
        &self,
        file: FileId,
        owner: Owner,
        opens: Opens,
        unwanted: impl FnOnce() -> bool,
        nodes: IndexNodes<'_>,
    ) -> bool {
        let record = self.files.get(file);
        let removed = opens.are_still(&record.opens) && unwanted() && self.has(file);
        if removed {
            // Stamped, so that a thread that finds us dead in between completes or undoes it.
            record.state.store(owner.raw(), Ordering::Release);
            crash::point("file.removing");
            self.unlink(file);
            crash::point("file.unlinked");
            nodes.prune(record);
            crash::point("file.pruned");
            // Before another thread can take it.
            let (word, bit) = self.files.touched_bit(file);
            word.fetch_and(!bit, Ordering::AcqRel);
            self.files.give_up(file);
        }
        removed
    }

    /// Brings a record that a dead process was linking or unlinking to a state: in the table if it
    /// is linked, else free.
    pub(crate) fn reap(&self, file: FileId, nodes: IndexNodes<'_>) {
        let record = self.files.get(file);
        if self.has(file) {
            record.state.store(LIVE, Ordering::Release);
        } else {
            nodes.prune(record);
            self.files.give_up(file);
        }
    }

    fn has(&self, file: FileId) -> bool {
        let mut link = self.files.head(self.chain).load(Ordering::Acquire);
        for _ in 0..self.files.count() {
            match FileId::from_link(link) {
                Some(at) if at == file => return true,
                Some(at) => link = self.files.get(at).next.load(Ordering::Acquire),
                None => break,
            }
        }
        false
    }

    fn unlink(&self, file: FileId) {
        let mut link: &AtomicU32 = self.files.head(self.chain);
        for _ in 0..self.files.count() {
            let Some(at) = FileId::from_link(link.load(Ordering::Acquire)) else { return };
            let record = self.files.get(at);
            if at == file {
                return link.store(record.next.load(Ordering::Relaxed), Ordering::Release);
            }
            link = &record.next;
        }
    }
}
