//! Which rule of the buffering schema holds for a file, and what follows from it.

use crate::open_file::OpenFile;
use crate::process::Process;
use crate::session::Session;
use crate::small::SMALL;
use core::sync::atomic::Ordering;
use forebay_placement::schema::{FileMeta, Mode, Settings, consistency, first_match, next_review};
use forebay_pool::FileId;
use forebay_pool::layout::*;
use forebay_pool::segment::text;

impl OpenFile<'_> {
    /// Finds the rule that holds now that this process has opened the file, or let it grow.
    pub(crate) fn follow_rule(&self) {
        self.find_rule(false, false);
    }

    /// The same; `created`: the file came into being with this open. Returns, of an `empty` one,
    /// whether a rule holds for it, or will from a size on that small files have.
    pub(crate) fn find_rule(&self, created: bool, empty: bool) -> bool {
        let (record, header) = (self.record, self.session.segment.header());
        let job = self.session.job();
        if let Some(job) = job
            && job.is_limited.load(Ordering::Relaxed) != 0
        {
            forebay_pool::quota::note(&record.quota_job, job.number.load(Ordering::Relaxed));
        }
        let Some(process) = &self.session.process else {
            let store = record.store.load(Ordering::Relaxed) as usize % STORES_MAX;
            let plain = job.is_none()
                && header.store[store].mode == 0
                && record.mode.load(Ordering::Relaxed) == 0
                && record.trigger.load(Ordering::Relaxed) == 0
                && !self.session.has_watches();
            if !plain {
                self.apply(Settings::default(), job, created);
            }
            return false;
        };
        let mut buffer = core::mem::MaybeUninit::uninit();
        let (path, store) = self.session.managed_path(self.fd, &mut buffer);
        let store = store.unwrap_or(record.store.load(Ordering::Relaxed) as usize % STORES_MAX);
        let size = record.size.load(Ordering::Acquire);
        let file_meta = FileMeta {
            path,
            directory: text(&header.store[store].path).to_bytes(),
            size,
            dataset: None,
            user: rustix::process::geteuid().as_raw(),
            command: &process.command,
            program: &process.program,
            rank: process.rank,
        };
        let rules = || self.session.segment.rules().iter().map(RuleRecord::rule);
        let found = first_match(rules(), &file_meta);
        forebay_pool::crash::point("rule.found");
        record.rule.store(found.map_or(0, |rule| rule as u16 + 1), Ordering::Release);
        record.rule_review.store(next_review(rules(), size), Ordering::Release);
        let rule = self
            .session
            .segment
            .rule_of(record)
            .map_or_else(Settings::default, RuleRecord::settings);
        self.apply(rule, job, created);
        let sizes = core::iter::successors(Some(0), |&size| Some(next_review(rules(), size)));
        let holds = |size| first_match(rules(), &FileMeta { size, ..file_meta }).is_some();
        empty && sizes.take_while(|&size| size <= SMALL).any(holds)
    }

    /// Notes mode and trigger of a file for which a rule sets `rule`. Where it says nothing, what
    /// `job`, the run, was told holds, then what the managed directory says, then the
    /// configuration.
    fn apply(&self, rule: Settings, job: Option<&JobRecord>, created: bool) {
        let (record, header) = (self.record, self.session.segment.header());
        let store = record.store.load(Ordering::Relaxed) as usize % STORES_MAX;
        let of_job = job.and_then(|job| Mode::from_code(job.mode.load(Ordering::Relaxed)));
        let of_store = Mode::from_code(header.store[store].mode as u8);
        let mode = rule.mode.or(of_job).or(of_store).unwrap_or(Mode::Async);
        let trigger = rule.trigger.map_or_else(
            || job.map_or(0, |job| job.trigger.load(Ordering::Relaxed)),
            |trigger| trigger as u8,
        );
        record.trigger.store(trigger, Ordering::Relaxed);
        self.find_watches();
        let mode = match mode {
            // What was there before is no job's scratch file, whatever the rules say of its name.
            Mode::Scratch if created && job.is_some() && !record.has(FileFlags::SCRATCH) => {
                let number = job.map_or(0, |job| job.number.load(Ordering::Relaxed));
                record.job.store(number, Ordering::Release);
                record.set(FileFlags::SCRATCH);
                Mode::Scratch
            }
            _ if record.has(FileFlags::SCRATCH) => Mode::Scratch,
            Mode::Scratch => Mode::Async,
            other => other,
        };
        record.mode.store(mode as u8, Ordering::Release);
        if mode == Mode::Staged && self.may(DescriptionFlags::WRITE) {
            record.begin_stage();
            forebay_pool::crash::point("staged.begun");
        }
        if mode == Mode::Bypass && !record.stays_direct() {
            // What cannot be flushed stays buffered.
            let _ = self.turn_direct();
        }
    }

    /// Looks for another rule once the file has grown to a size that a rule names.
    #[inline]
    pub(crate) fn review_rule(&self) {
        let record = self.record;
        if record.size.load(Ordering::Relaxed) >= record.rule_review.load(Ordering::Relaxed) {
            self.follow_rule();
        }
    }
}

impl Session {
    /// What holds for the file: what its rule sets, and mode and trigger all things considered.
    #[inline]
    pub(crate) fn settings(&self, record: &FileRecord) -> Settings {
        let rule =
            self.segment.rule_of(record).map_or_else(Settings::default, RuleRecord::settings);
        Settings {
            mode: Mode::from_code(record.mode.load(Ordering::Relaxed)),
            trigger: Trigger::from_code(record.trigger.load(Ordering::Relaxed)),
            ..rule
        }
    }

    /// When a file's dirty blocks are flushed: as its rule says, else as configured.
    #[inline]
    pub(crate) fn trigger(&self, record: &FileRecord) -> Trigger {
        self.segment.trigger_of(record)
    }

    /// Whether [`Session::trigger`] says that each write is followed by a flush.
    #[inline]
    pub(crate) fn flushes_each_write(&self, record: &FileRecord) -> bool {
        let each = Trigger::PerOperation as u8;
        let mentioned = record.trigger.load(Ordering::Relaxed) == each
            || self.segment.header().trigger.load(Ordering::Relaxed) == u32::from(each);
        mentioned && self.trigger(record) == Trigger::PerOperation
    }

    /// What fsync of a file waits for: as its rule says, else as configured.
    pub(crate) fn durability(&self, record: &FileRecord) -> Durability {
        let set = self.settings(record).durability;
        match set.unwrap_or_else(|| self.segment.header().fsync_durability()) {
            // Other nodes do not see what only a tier of this one has.
            Durability::NonVolatile if record.lease.load().commits() => Durability::Store,
            durability => durability,
        }
    }

    /// When other nodes see what is written to the file at `path`, in store `store`, whichever
    /// process opens it: the code for its record.
    pub(crate) fn consistency_of(&self, path: &[u8], store: usize) -> u8 {
        if !self.has_commit_rules {
            return 0;
        }
        let directory = text(&self.segment.header().store[store].path).to_bytes();
        let rules = self.segment.rules().iter().map(RuleRecord::rule);
        consistency(rules, path, directory) as u8
    }

    /// The run that this process belongs to.
    #[inline]
    pub(crate) fn job(&self) -> Option<&JobRecord> {
        self.segment.job(self.segment.client(self.slot()).job.load(Ordering::Relaxed))
    }

    /// Whether any file that this process makes may be scratch.
    pub fn makes_scratch(&self) -> bool {
        let scratch = Mode::Scratch as u8;
        let header = self.segment.header();
        let of_store = |store: &StoreHeader| store.mode == u32::from(scratch);
        self.job().is_some_and(|job| {
            job.mode.load(Ordering::Relaxed) == scratch
                || header.store[..header.stores as usize].iter().any(of_store)
                || self.has_scratch_rules
        })
    }

    /// After a scratch file got the name `path`, canonical: one that is not said to be scratch
    /// there is kept, and persistent from now on.
    pub(crate) fn renamed(&self, file: FileId, path: &[u8]) {
        let (record, header) = (self.segment.file(file), self.segment.header());
        let stores = &header.store[..header.stores as usize];
        let directory = |store: &StoreHeader| text(&store.path).to_bytes().to_vec();
        let store = stores.iter().position(|s| crate::open::lies_under(path, &directory(s)));
        let stays = store.is_some_and(|store| {
            let unknown = Process::default();
            let process = self.process.as_deref().unwrap_or(&unknown);
            let directory = directory(&stores[store]);
            let file_meta = FileMeta {
                path,
                directory: &directory,
                size: 0,
                dataset: None,
                user: rustix::process::geteuid().as_raw(),
                command: &process.command,
                program: &process.program,
                rank: process.rank,
            };
            let rule = first_match(self.segment.rules().iter().map(RuleRecord::rule), &file_meta);
            let rule = rule.and_then(|rule| self.segment.rules()[rule].settings().mode);
            let job = self.segment.job(record.job.load(Ordering::Acquire));
            let of_job = job.and_then(|job| Mode::from_code(job.mode.load(Ordering::Relaxed)));
            let of_store = Mode::from_code(stores[store].mode as u8);
            rule.or(of_job).or(of_store) == Some(Mode::Scratch)
        });
        if stays {
            self.segment.set_path(record, path);
        } else {
            record.clear(FileFlags::SCRATCH);
            record.mode.store(Mode::Async as u8, Ordering::Release);
            record.set(FileFlags::DIRTY);
        }
    }
}
