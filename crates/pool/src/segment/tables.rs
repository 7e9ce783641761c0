//! The tables of a segment, as views: see docs/design/views.md.

use super::Segment;
use crate::buckets::{BucketStates, Buckets};
use crate::clients::Clients;
use crate::crash;
use crate::datasets::DatasetTable;
use crate::descriptions::{Descriptions, GivenUp, Marker};
use crate::files::{Files, Names};
use crate::free_map::FreeMap;
use crate::glimpses::AnswerTable;
use crate::index::{Index, IndexNodes, NodeStates};
use crate::layout::{
    BucketMeta, ClientSlot, Description, DescriptionFlags, FileRecord, PART_LEASES, RuleRecord,
    STRIPES, SlotChecksums, SparsePages, TierId, slot_state,
};
use crate::owner::{MANAGER_SLOT, Owner};
use crate::parts::PartLeases;
use crate::queue::Queue;
use crate::slot_bits::SlotBits;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::watches::Watches;
use crate::{BucketId, FileId, Identity, liveness};
use forebay_placement::mix;
use forebay_placement::schema::{RULES_MAX, Trigger};

impl Segment {
    /// The rules of the buffering schema: the first that matches a file holds.
    pub fn rules(&self) -> &[RuleRecord] {
        let count = (self.header().rules as usize).min(RULES_MAX);
        // SAFETY: the section holds RULES_MAX records of plain integers; they never change after
        // `create`.
        unsafe {
            core::slice::from_raw_parts(self.base.as_ptr().add(self.offsets.rules).cast(), count)
        }
    }

    /// The rule that holds for the file of a record.
    #[inline]
    pub fn rule_of(&self, record: &FileRecord) -> Option<&RuleRecord> {
        let rule = record.rule.load(Ordering::Relaxed).checked_sub(1)?;
        self.rules().get(usize::from(rule))
    }

    /// Whether a block stays in `tier`, where it lies, whatever wants the room, because its file is
    /// staged there and the store does not have all of the block yet.
    pub fn is_staged_in(&self, record: &FileRecord, tier: TierId, meta: &BucketMeta) -> bool {
        let is_named = |rule: &RuleRecord| rule.settings().tier == Some(tier.index() as u8);
        record.is_staged() && self.rule_of(record).is_some_and(is_named) && meta.pending() != 0
    }

    /// What starts a flush of a record's file: as its rule or run says, else as configured. A
    /// staged file is flushed once it is closed.
    #[inline]
    pub fn trigger_of(&self, record: &FileRecord) -> Trigger {
        if record.is_staged() {
            return Trigger::PerFile;
        }
        let set = Trigger::from_code(record.trigger.load(Ordering::Relaxed));
        set.unwrap_or_else(|| self.header().flush_trigger())
    }

    /// What clients tell the node manager that needs no descriptor.
    #[inline]
    pub fn queue(&self) -> &Queue {
        self.at(self.offsets.queue, 0)
    }

    /// The files that the node manager is to find by their paths.
    #[inline]
    pub fn registrations(&self) -> &Queue {
        self.at(self.offsets.registrations, 0)
    }

    /// What clients ask of other nodes of the group by way of the node manager.
    #[inline]
    pub fn asks(&self) -> &Queue {
        self.at(self.offsets.asks, 0)
    }

    /// What other nodes say of files that this one may not have.
    #[inline]
    pub fn glimpses(&self) -> &AnswerTable {
        self.at(self.offsets.glimpses, 0)
    }

    /// The client slots, and the processes that have them.
    #[inline(always)]
    pub fn clients(&self) -> Clients<'_> {
        let header = self.header();
        Clients {
            slots: self.slice(self.offsets.clients, header.clients as usize),
            taken: self.slot_bits(),
            manager: (&header.manager_pid, &header.manager_start),
            manager_epoch: &header.manager_epoch,
            unrecorded: &header.unrecorded,
        }
    }

    #[inline(always)]
    fn slot_bits(&self) -> SlotBits<'_> {
        let header = self.header();
        let (words, high) = (&header.clients_taken, &header.clients_high);
        SlotBits { words, high, count: header.clients }
    }

    /// [`Clients::get`], without what else belongs to the view, as of [`Segment::bucket`].
    #[inline]
    pub fn client(&self, slot: u32) -> &ClientSlot {
        let slot = if slot < self.header().clients { slot } else { MANAGER_SLOT };
        self.at(self.offsets.clients, slot)
    }

    /// [`Clients::manager_is_alive`].
    pub fn manager_is_alive(&self) -> bool {
        self.clients().manager_is_alive()
    }

    /// Whether the numbers of processes in the slots are what they are here: in another PID
    /// namespace they are others. Also where /proc does not tell.
    pub fn has_numbers_of_here(&self) -> bool {
        let (theirs, ours) =
            (self.header().namespace.load(Ordering::Relaxed), liveness::namespace());
        theirs == ours || theirs == 0 || ours == 0
    }

    /// Datasets of files.
    #[inline]
    pub(crate) fn dataset_table(&self) -> &DatasetTable {
        self.at(self.offsets.datasets, 0)
    }

    /// The leases of parts of files.
    pub fn part_leases(&self) -> PartLeases<'_> {
        PartLeases::new(self.slice(self.offsets.parts, PART_LEASES))
    }

    /// The table of files.
    #[inline(always)]
    pub fn files(&self) -> Files<'_> {
        let header = self.header();
        Files {
            records: self.slice(self.offsets.files, header.files as usize),
            heads: self.slice(self.offsets.heads, header.heads as usize),
            stripes: self.slice(self.offsets.stripes, STRIPES),
            touched: self.words(self.offsets.touched, header.files),
            free: self.words(self.offsets.file_bits, header.files),
            ready: &header.files_ready,
            cursor: &header.file_cursor,
            high: &header.files_high,
        }
    }

    /// [`Files::get`], without what else belongs to the view, as of [`Segment::bucket`].
    #[inline]
    pub fn file(&self, file: FileId) -> &FileRecord {
        let ready = self.header().files_ready();
        debug_assert!(file.raw() < ready);
        self.at(self.offsets.files, file.raw().min(ready - 1))
    }

    /// Which names of files were changed.
    #[inline(always)]
    pub fn names(&self) -> Names<'_> {
        Names { changes: &self.header().name_changes, last: &self.header().changed_names }
    }

    /// What programs watch.
    #[inline(always)]
    pub fn watches(&self) -> Watches<'_> {
        Watches { count: &self.header().watches, all: &self.header().watched }
    }

    /// The open-file descriptions, and which processes hold them.
    #[inline(always)]
    pub fn descriptions(&self) -> Descriptions<'_> {
        let header = self.header();
        let (count, slots) = (header.descriptions as usize, header.clients as usize);
        Descriptions {
            all: self.slice(self.offsets.descriptions, count),
            held: self.slice(self.offsets.bitmaps, slots * (count / 64)),
            ready: &header.descriptions_ready,
            forks: &header.forks,
            slots: self.slot_bits(),
            cursor: &header.description_cursor,
        }
    }

    /// [`Descriptions::get`], without what else belongs to the view, as of [`Segment::bucket`].
    #[inline]
    pub fn description(&self, description: u32) -> &Description {
        debug_assert!(description < self.header().descriptions);
        self.at(self.offsets.descriptions, description.min(self.header().descriptions - 1))
    }

    /// [`Descriptions::open`] of `file`; where all are in use, there are more afterwards. `None` if
    /// there cannot be.
    pub fn open_description(
        &self,
        file: FileId,
        flags: DescriptionFlags,
        owner: Owner,
    ) -> Option<Marker> {
        if crash::refused("description") {
            return None;
        }
        loop {
            let ready = self.descriptions().ready();
            let opened = self.descriptions().open(file, self.file(file), flags, owner);
            if opened.is_some() || !self.grow_descriptions(ready) {
                return opened;
            }
        }
    }

    /// [`Descriptions::free`].
    pub fn free_description(&self, given: GivenUp, owner: Owner) -> bool {
        let _inside = self.enter_table(owner);
        self.descriptions().free(given, owner, |slot| {
            let client = self.client(slot);
            client.state.load(Ordering::SeqCst) == slot_state::RESERVED
                || client.joining.load(Ordering::SeqCst) != 0
        })
    }

    /// Frees the descriptions of mappings whose processes have ended, or executed another program.
    /// For the node manager.
    pub fn free_left_mappings(&self, owner: Owner) {
        for given in self.descriptions().left_mappings() {
            self.free_description(given, owner);
        }
    }

    /// The processes that hold a description of `file`.
    pub fn holders(&self, file: FileId) -> impl Iterator<Item = u32> {
        let holders = self.descriptions().holders(file);
        holders.map(|slot| self.client(slot).pid.load(Ordering::Acquire))
    }

    /// The block index, to look something up.
    #[inline(always)]
    pub fn index(&self) -> Index<'_> {
        Index::of(self.slice(self.offsets.nodes, self.header().nodes as usize))
    }

    /// The block index, to let it grow or shrink for the process of client slot `slot`.
    pub fn index_nodes(&self, slot: u32) -> IndexNodes<'_> {
        let nodes = self.header().nodes;
        IndexNodes {
            index: self.index(),
            states: NodeStates(self.slice(self.offsets.node_states, nodes as usize)),
            bits: self.words(self.offsets.node_bits, nodes),
            cache: &self.client(slot).nodes,
        }
    }

    /// [`Index::entry`].
    #[inline(always)]
    pub fn entry<'a>(&'a self, file: &'a FileRecord, block: u64) -> Option<&'a AtomicU64> {
        self.index().entry(file, block)
    }

    /// [`IndexNodes::entry_or_insert`].
    #[inline]
    pub fn entry_or_insert<'a>(
        &'a self,
        file: &'a FileRecord,
        block: u64,
        owner: Owner,
    ) -> Option<&'a AtomicU64> {
        match self.entry(file, block) {
            None => self.index_nodes(owner.slot()).entry_or_insert(file, block, owner),
            there => there,
        }
    }

    /// [`Index::for_each_entry`].
    pub fn for_each_entry(
        &self,
        file: &FileRecord,
        first: u64,
        visit: impl FnMut(u64, &AtomicU64) -> bool,
    ) {
        self.index().for_each_entry(file, first, visit);
    }

    /// The buckets of all tiers.
    #[inline(always)]
    pub fn buckets(&self) -> Buckets<'_> {
        let header = self.header();
        let (tiers, buckets) = (header.tiers as usize, header.buckets);
        let slots = buckets - self.sparse.end.min(buckets);
        Buckets {
            metas: self.slice(self.offsets.buckets, buckets as usize),
            sums: self.slice(self.offsets.sums, slots as usize),
            bits: self.words(self.offsets.bucket_bits, buckets),
            tiers: header.tier.get(..tiers).unwrap_or(&header.tier),
            jobs: &header.job,
        }
    }

    /// [`Buckets::meta`], without what else belongs to the view: with debug assertions that takes
    /// instructions although it is not used.
    #[inline]
    pub fn bucket(&self, bucket: BucketId) -> Option<&BucketMeta> {
        let number = bucket.raw();
        (number < self.header().buckets).then(|| self.at(self.offsets.buckets, number))
    }

    /// [`Buckets::free_map`].
    pub fn free_buckets(&self, tier: TierId) -> FreeMap<'_, BucketStates<'_>> {
        self.buckets().free_map(tier)
    }

    /// [`Buckets::tier_of`].
    pub fn tier_of(&self, bucket: BucketId) -> TierId {
        self.buckets().tier_of(bucket)
    }

    /// The free sparse buckets of a tier.
    pub fn free_sparse(&self, tier: TierId) -> FreeMap<'_, BucketStates<'_>> {
        let header = self.header();
        let sparse = header.sparse_in_use(tier);
        FreeMap {
            bits: self.words(self.offsets.bucket_bits, header.buckets),
            states: BucketStates::of(self.slice(self.offsets.buckets, header.buckets as usize)),
            first: sparse.start,
            count: sparse.len() as u32,
        }
    }

    /// Whether a bucket is a sparse one of any tier.
    pub fn is_of_pages(&self, bucket: BucketId) -> bool {
        self.header().sparse(self.tier_of(bucket)).contains(&bucket.raw())
    }

    /// How many pages of a sparse bucket of any tier are counted as in use; `None` for another.
    pub fn claimed(&self, bucket: BucketId) -> Option<&AtomicU32> {
        match self.sparse_pages(bucket) {
            Some(pages) => Some(&pages.claimed),
            None => self
                .checksums(bucket)
                .filter(|_| self.is_of_pages(bucket))
                .map(|sums| &sums.claimed),
        }
    }

    /// Whether a bucket is one of RAM's sparse ones.
    #[inline]
    pub fn is_sparse(&self, bucket: BucketId) -> bool {
        self.sparse.contains(&bucket.raw())
    }

    /// What is known of the memory of a sparse bucket of RAM; `None` for any other.
    #[inline]
    pub fn sparse_pages(&self, bucket: BucketId) -> Option<&SparsePages> {
        let number = bucket.raw().checked_sub(self.sparse.start)?;
        (number < self.sparse.len() as u32).then(|| self.at(self.offsets.sparse, number))
    }

    /// [`Buckets::checksums`].
    #[inline]
    pub fn checksums(&self, bucket: BucketId) -> Option<&SlotChecksums> {
        if bucket.raw() < self.sparse.end { None } else { self.buckets().checksums(bucket) }
    }

    /// What reads of a block have cost that no tier had, and how it is told from others there: a
    /// [`forebay_placement::admission::Trail`] and its key. A hint, written without a lock. Blocks
    /// that follow each other lie beside each other, and so do the first ones, which are all of a
    /// small file, of files that are near each other.
    #[inline]
    pub fn trail(&self, file: Identity, block: u64) -> (&AtomicU64, u16) {
        let whose = mix(mix(file.device) ^ file.inode);
        let (from, beside) = match (block, file.near()) {
            (0, (group, within)) => (mix(group), within.into()),
            _ => (whose, block),
        };
        let place = (from >> 32).wrapping_add(beside) % u64::from(self.trails);
        (self.at(self.offsets.trails, place as u32), (mix(whose ^ block) >> 48) as u16)
    }
}
