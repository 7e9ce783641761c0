//! Datasets of a file: a library that knows its structure says where each lies, so that rules hold
//! for parts of files. See docs/design/hdf5.md.

use crate::access::EnteredFile;
use crate::open_file::OpenFile;
use crate::session::Session;
use crate::sharing::Need;
use crate::waiting::surely;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use forebay_placement::schema::{FileMeta, METADATA, Settings, first_match};
use forebay_pool::datasets::{Noted, RuledBlocks};
use forebay_pool::layout::*;
use forebay_pool::lease::Access;
use forebay_pool::{Entry, FileId, Identity};
use rustix::fd::RawFd;
use rustix::io::Errno;

impl Session {
    /// A descriptor of a file that this process has open and buffers, or may again while it has it
    /// open; the lowest.
    pub fn descriptor_of(&self, identity: Identity) -> Option<RawFd> {
        let mut files = self.files().filter(|file| file.record.identity() == identity);
        files.find(|file| !file.record.stays_direct()).map(|file| file.fd)
    }

    /// What [`Session::settings`] gives for a block of file `id`: as the rule of a dataset says
    /// that has bytes there, if one holds.
    #[inline]
    pub(crate) fn settings_at(&self, id: FileId, record: &FileRecord, block: u64) -> Settings {
        let of_file = self.settings(record);
        if !self.segment.may_have_datasets(id) {
            return of_file;
        }
        let rule = self.segment.rule_at(id, record, block);
        let of_block = rule.map_or_else(Settings::default, RuleRecord::settings);
        Settings { mode: of_file.mode, trigger: of_file.trigger, ..of_block }
    }

    /// Forgets the datasets of a file that is empty now. The caller may have it exclusively.
    pub(crate) fn forget_datasets(&self, id: FileId, record: &FileRecord) {
        if self.segment.may_have_datasets(id) {
            let forget = |file| self.segment.forget_datasets(file);
            // The stripe of a record is never waited for in vain but by a thread that ends.
            let _ = surely(|| self.segment.reopen_file(record.identity(), self.owner(), forget));
        }
    }
}

impl OpenFile<'_> {
    /// Notes that dataset `name` of the file lies in these `bytes`, and no longer elsewhere. What
    /// of it is in RAM, is not yet on the store, and belongs on a lower tier by the rule that holds
    /// for the dataset, goes there. Returns whether such a rule holds, and what is known then.
    ///
    /// # Errors
    /// `BADF` if the file has no record any more; what ends a wait.
    pub fn note_dataset(&self, name: &[u8], bytes: &[Range<u64>]) -> Result<(bool, Noted), Errno> {
        let rule = self.dataset_rule(name);
        let noted = self.note(name, rule, bytes, 0)?;
        Ok((rule.is_some(), noted))
    }

    /// Whether a rule may ask for the metadata of files apart.
    pub fn tells_metadata_apart(&self) -> bool {
        let asks = |rule: &RuleRecord| rule.rule().when.dataset == METADATA.as_bytes();
        self.session.process.is_some() && self.session.segment.rules().iter().any(asks)
    }

    /// Notes that from byte `from` on these `bytes` of the file are not of its datasets, but its
    /// metadata, if a rule holds for that. What is known of what is before stays. `None`: no rule
    /// does.
    ///
    /// # Errors
    /// As [`OpenFile::note_dataset`].
    pub fn note_metadata(&self, from: u64, bytes: &[Range<u64>]) -> Result<Option<Noted>, Errno> {
        let Some(rule) = self.dataset_rule(METADATA.as_bytes()) else { return Ok(None) };
        self.note(METADATA.as_bytes(), Some(rule), bytes, from).map(Some)
    }

    /// Notes that what was at path `from` in the file, a dataset or a group, is at path `to` from
    /// now on, or nowhere.
    ///
    /// # Errors
    /// As [`OpenFile::note_dataset`].
    pub fn rename_datasets(&self, from: &[u8], to: Option<&[u8]>) -> Result<usize, Errno> {
        let segment = &self.session.segment;
        let renamed = surely(|| {
            let owner = self.session.owner();
            let _inside = segment.enter_table(owner);
            let rename =
                |file| segment.rename_datasets(file, from, to, |name| self.dataset_rule(name));
            segment.reopen_file(self.record.identity(), owner, rename)
        })?;
        renamed.ok_or(Errno::BADF)
    }

    fn note(
        &self,
        name: &[u8],
        rule: Option<usize>,
        bytes: &[Range<u64>],
        from: u64,
    ) -> Result<Noted, Errno> {
        let segment = &self.session.segment;
        let noted = surely(|| {
            let owner = self.session.owner();
            let _inside = segment.enter_table(owner);
            let note = |file| segment.note_dataset_from(file, name, rule, bytes, from);
            segment.reopen_file(self.record.identity(), owner, note)
        })?;
        let noted = noted.ok_or(Errno::BADF)?;
        let tier = rule.and_then(|rule| segment.rules()[rule].settings().tier);
        let below = tier.map(|tier| TierId::new(usize::from(tier))).filter(|tier| !tier.is_ram());
        let is_there = |below: &TierId| {
            below.index() < segment.header().tiers as usize && segment.is_sound(*below)
        };
        if let Some(below) = below.filter(is_there) {
            let inside = self.enter_for(Need::Whole(Access::Read))?;
            let mut ruled = RuledBlocks::default();
            ruled.look(segment);
            bytes.iter().try_for_each(|bytes| inside.send_down(bytes, below, &ruled))?;
            segment.wake_bound();
        }
        Ok(noted)
    }

    /// The rule of a dataset, if one holds for `name`: the first that matches, and only if it asks
    /// for a dataset. One that does not is the file's.
    fn dataset_rule(&self, name: &[u8]) -> Option<usize> {
        let process = self.session.process.as_ref()?;
        let header = self.session.segment.header();
        let mut buffer = core::mem::MaybeUninit::uninit();
        let (path, store) = self.session.managed_path(self.fd, &mut buffer);
        let store =
            store.unwrap_or(self.record.store.load(Ordering::Relaxed) as usize % STORES_MAX);
        let file_meta = FileMeta {
            path,
            directory: forebay_pool::segment::text(&header.store[store].path).to_bytes(),
            size: self.record.size.load(Ordering::Acquire),
            dataset: Some(name),
            user: rustix::process::geteuid().as_raw(),
            command: &process.command,
            program: &process.program,
            rank: process.rank,
        };
        let rules = self.session.segment.rules();
        let found = first_match(rules.iter().map(RuleRecord::rule), &file_meta)?;
        (!rules[found].rule().when.dataset.is_empty()).then_some(found)
    }
}

impl EnteredFile<'_> {
    /// Marks blocks in RAM that the store lacks, and that nothing else is on the way with, for a
    /// lower tier, but those where a rule that comes first says another one.
    ///
    /// # Errors
    /// What ends a wait.
    fn send_down(
        &self,
        bytes: &Range<u64>,
        below: TierId,
        ruled: &RuledBlocks,
    ) -> Result<(), Errno> {
        let segment = &self.session.segment;
        let unit = segment.bucket_bytes() as u64;
        let end = bytes.end.div_ceil(unit);
        let mut result = Ok(());
        segment.for_each_entry(self.record, bytes.start / unit, |block, entry| {
            let is_in_ram = matches!(
                Entry::decode(entry.load(Ordering::Acquire)),
                Entry::Resident { tier: TierId::RAM, .. }
            );
            let belongs = || {
                let tier = ruled.settings(segment, self.id, block).tier;
                tier.is_some_and(|tier| usize::from(tier) == below.index())
            };
            if block < end && is_in_ram && belongs() {
                result = self.send_block_down(entry, below);
            }
            block < end && result.is_ok()
        });
        result
    }

    fn send_block_down(&self, entry: &AtomicU64, below: TierId) -> Result<(), Errno> {
        let segment = &self.session.segment;
        let Some(held) = segment.lock_block_unless_interrupted(entry, self.owner)? else {
            return Ok(());
        };
        let meta = held.meta();
        let stays = !held.tier().is_ram()
            || segment.is_of_pages(held.bucket())
            || meta.bound_for.load(Ordering::Relaxed) != 0
            || meta.pending() == 0;
        if !stays {
            self.record.note_tier(below);
            segment.bind(meta, below);
        }
        Ok(())
    }
}
