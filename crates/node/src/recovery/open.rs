//! A new segment, or the one that an earlier manager left.

use crate::config::{Config, Mode, Speed, TierKind};
use crate::instance::runtime::Runtime;
use crate::observe::mappers;
use crate::observe::status::Observer;
use crate::recovery::inspect::of_foreign;
use crate::recovery::recorded;
use crate::usage::buckets_of;
use crate::usage::path_of;
use forebay_placement::TierId;
use forebay_placement::evict::Eviction;
use forebay_placement::{Model, schema};
use forebay_pool::free_map::USED;
use forebay_pool::layout::{self, Geometry, Header, RuleRecord, retirement};
use forebay_pool::private::{self, Wrong};
use forebay_pool::segment::{create_pool, is_own_fault, open_pool, set_text};
use forebay_pool::slot_head::Foreign;
use forebay_pool::{Segment, SegmentError, crash, liveness, power_loss};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// Bytes of the RAM tier that are made ready before the first program starts.
const FIRST_PIECE: u64 = 32 << 20;

/// The instance's segment, and whether it was there before.
pub(crate) struct Opened {
    pub segment: Segment,
    pub file: OwnedFd,
    pub slots: Vec<Option<OwnedFd>>,
    pub indexes: Vec<Option<OwnedFd>>,
    pub found: bool,
    /// That with which it goes on.
    pub config: Config,
    /// Of a new one: what there is of it, which goes if the start fails.
    pub fresh: Option<Fresh>,
}

/// The files of an instance whose node manager has not begun to serve: nothing is in them, and they
/// are removed unless it does.
pub(crate) struct Fresh {
    config: Config,
    runtime: Runtime,
    is_served: bool,
}

impl Fresh {
    /// Programs can use them.
    pub fn keep(mut self) {
        self.is_served = true;
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        let is_used = || Observer::of(&self.runtime.pool).is_ok_and(|pool| pool.clients() > 0);
        if self.is_served || is_used() {
            return;
        }
        private::remove(&self.runtime.pool);
        remove_from_tiers(&self.config, &self.runtime);
    }
}

/// Removes what an instance of which nothing counts any more has beside its pool. No client is
/// left.
pub(crate) fn remove_from_tiers(config: &Config, runtime: &Runtime) {
    let tiers = config.tiers.iter().filter_map(|tier| match &tier.kind {
        TierKind::File { path } => Some((path, &*tier.name)),
        TierKind::Ram => None,
    });
    for (path, name) in tiers.clone() {
        private::remove(&runtime.index(path, name));
        crash::point("manager.table-gone");
        private::remove(&runtime.slots(path, name));
        crash::point("manager.slots-gone");
    }
    // After them: it says that nothing else counts.
    for (path, name) in tiers {
        let journal = runtime.journal(path, name);
        if private::look(&journal).is_ok() {
            private::remove(&journal);
        }
    }
    runtime.forget_config(config);
}

/// Removes what is left of a pool in `file` whose manager was killed while it removed it.
/// Returns whether it was so.
fn finish_removal(
    file: &OwnedFd,
    today: &Config,
    kept: Option<&Config>,
    runtime: &Runtime,
) -> bool {
    let Ok(segment) = Segment::attach(file.as_fd()) else { return false };
    if segment.header().retired.load(Ordering::SeqCst) != retirement::REMOVED {
        return false;
    }
    remove_from_tiers(&recorded::of_pool(&segment, kept, today), runtime);
    private::remove(&runtime.pool);
    true
}

/// Attaches to the instance's pool, or makes one of configuration `today`: under another name if
/// another user has taken the usual one. What is found goes on with the tiers that it has; `kept`
/// is what its last manager has left in the folder.
///
/// # Errors
/// A message that names the pool, what is wrong with it, and what to do.
pub(crate) fn open(
    today: &Config,
    kept: Option<&Config>,
    runtime: &mut Runtime,
) -> Result<Opened, String> {
    let (file, found) = match open_pool(&runtime.pool) {
        Ok(file) if finish_removal(&file, today, kept, runtime) => (make_file(runtime)?, false),
        Ok(file) => (file, true),
        Err(Wrong::System(Errno::NOENT) | Wrong::Owner(_)) => (make_file(runtime)?, false),
        Err(wrong) => return Err(format!("{}: {wrong}", runtime.pool.display())),
    };
    let name = runtime.pool.display();
    let explain = |error: SegmentError| match error {
        SegmentError::OtherVersion(..) | SegmentError::NotAPool | SegmentError::Damaged(_) => {
            format!(
                "{name}: {error}. It may hold data that was not drained: run `forebay recover` of \
                 the version that made it, or move it away if you are sure that it holds none"
            )
        }
        other => format!("{name}: {other}"),
    };
    let unfinished = !found || Segment::is_unfinished(file.as_fd()).map_err(explain)?;
    let (mut fresh, mut refused) = (None, Vec::new());
    let mut segment = if !unfinished {
        Segment::attach_repairing(file.as_fd()).map_err(explain)?
    } else {
        refused = claim(today, runtime).inspect_err(|_| {
            unclaim(today, runtime);
            private::remove(&runtime.pool);
        })?;
        let (config, runtime) = (today.clone(), runtime.clone());
        let fresh = fresh.insert(Fresh { config, runtime, is_served: false });
        make(today, &fresh.runtime, &file).map_err(explain)?
    };
    segment.header().set_folder(runtime.folder.as_os_str().as_bytes());
    let config = match unfinished {
        true => today.clone(),
        false => recorded::of_pool(&segment, kept, today),
    };
    if !unfinished && let Some(refusal) = crate::recovery::fsck::refusal(&segment) {
        return Err(format!("{name}: {refusal}"));
    }
    if !unfinished && !is_within_sight(&segment, &file) {
        return Err(format!(
            "{name}: it was served in another PID namespace, a container's for instance, and which of its programs still \
             live is not known here; run `forebay recover` there, or outside of all containers"
        ));
    }
    if let Err((store, error)) = segment.make_shared_devices() {
        let path = path_of(&segment.header().store[store].shared).display();
        return Err(format!("{path} (backing[{store}].emulate.shared): {error}"));
    }
    let of_found = |tier: &str| {
        let pool = runtime.pool.display();
        format!(
            "pool {pool} was found, and its tier {tier} lies there: have the directory again, or save what the \
             other tiers hold with `forebay salvage --to DIR`"
        )
    };
    for &(tier, errno) in &refused {
        segment.fail_tier(tier, errno);
    }
    let is_without = |tier| match unfinished {
        true => refused.iter().any(|(refused, _)| *refused == tier),
        false => !segment.is_sound(tier) && has_no_files(&segment, tier),
    };
    let beside = |name: &dyn Fn(&Path, &str) -> PathBuf| {
        let open = |(number, tier): (usize, &crate::config::Tier)| match &tier.kind {
            TierKind::Ram => Ok(None),
            TierKind::File { .. } if is_without(TierId::new(number)) => Ok(None),
            TierKind::File { path } => {
                open_slots(&name(path, &tier.name)).map(Some).map_err(|error| match unfinished {
                    true => error,
                    false => format!("{error}; {}", of_found(&tier.name)),
                })
            }
        };
        config.tiers.iter().enumerate().map(open).collect::<Result<Vec<_>, _>>()
    };
    let slots = beside(&|folder, tier| runtime.slots(folder, tier))?;
    let indexes = beside(&|folder, tier| runtime.index(folder, tier))?;
    if unfinished {
        // There may be heads for a pool that was never finished.
        for file in slots.iter().chain(&indexes).flatten() {
            power_loss::resizing(file.as_fd(), 0);
            rustix::fs::ftruncate(file, 0).map_err(|errno| format!("{name}: {errno}"))?;
        }
    }
    if unfinished && segment.grow(file.as_fd(), FIRST_PIECE).is_err() {
        let bucket = segment.bucket_bytes() as u64;
        if segment.grow(file.as_fd(), 16 * bucket).is_err() {
            return Err(format!(
                "{name}: /dev/shm is full; free some of it (`df /dev/shm`, `ls /dev/shm`) or ask \
                 for a smaller RAM tier"
            ));
        }
    }
    for tier in TierId::RAM.below(slots.len()) {
        let files = (&slots[tier], &indexes[tier]);
        match give_heads(&segment, tier, files) {
            Err(Foreign::System(errno)) => {
                // One that is full gets them when there is room again, before anything else.
                segment.fail_tier(tier, errno);
            }
            Err(foreign) => {
                let tier = &config.tiers[tier].name;
                return Err(format!("{name}: the files of tier {tier}: {}", of_foreign(&foreign)));
            }
            Ok(()) => {}
        }
    }
    Ok(Opened { segment, file, slots, indexes, found: !unfinished, config, fresh })
}

/// Whether a tier of a pool that was found has no files: it was left out from the start, and holds
/// nothing.
fn has_no_files(segment: &Segment, tier: TierId) -> bool {
    let is_free = |bucket| {
        segment.bucket(bucket).is_none_or(|meta| meta.state.load(Ordering::Acquire) != USED)
    };
    let slots = path_of(&segment.header().tier[tier].path);
    !private::is_there(slots) && buckets_of(segment, tier).all(is_free)
}

/// Whether it is known which processes of those that a left pool names still live. A living one
/// must not be taken for dead: it would go on with what was taken back from it.
fn is_within_sight(segment: &Segment, file: &OwnedFd) -> bool {
    if segment.has_numbers_of_here() {
        return true;
    }
    // From the first one all are seen, and there their numbers are others: none may be left.
    liveness::namespace() == liveness::FIRST_NAMESPACE
        && mappers::of(file, segment.header().segment_bytes)
            .is_ok_and(|mut left| left.next().is_none())
}

fn make(config: &Config, runtime: &Runtime, file: &OwnedFd) -> Result<Segment, SegmentError> {
    rustix::fs::ftruncate(file, 0)
        .map_err(|errno| SegmentError::System("emptying the pool", errno))?;
    let bytes: Vec<u64> = config.tiers.iter().map(|tier| tier.capacity).collect();
    let geometry = Geometry::for_tiers(config.page_size, &bytes).with_sparse();
    let rules: Vec<_> = config
        .rules
        .iter()
        .map(|rule| {
            RuleRecord::new(&rule.compiled(), &rule.name, &rule.source)
                .expect("the configuration's patterns are no longer than the segment's")
                .with_predictor(&rule.predictor)
        })
        .collect();
    Segment::create_with_rules(file.as_fd(), &geometry, &rules, |header| {
        describe(header, config, runtime);
    })
}

fn describe(header: &mut Header, config: &Config, runtime: &Runtime) {
    header.instance.copy_from_slice(runtime.instance.as_bytes());
    header.number = crate::instance::discovery::unguessable();
    // Before a process can take the pool for finished.
    header.set_folder(runtime.folder.as_os_str().as_bytes());
    header.trigger.store(config.flush.trigger as u32, Ordering::Relaxed);
    header.durability.store(config.flush.durability as u32, Ordering::Relaxed);
    let number = config.placement.policy.number();
    header.policy.store(u32::from(number), Ordering::Relaxed);
    let is_paper = config.placement.costs != Model::Physical;
    header.cost_model.store(u32::from(is_paper), Ordering::Relaxed);
    header.set_exposed(config.placement.exposed);
    header.half_life.store(config.placement.half_life.as_millis() as u32, Ordering::Relaxed);
    let way = Eviction::ALL.iter().position(|&way| way == config.placement.eviction);
    header.eviction.store(way.unwrap_or(0) as u32, Ordering::Relaxed);
    header.prefetch.store(config.placement.prefetch.into(), Ordering::Relaxed);
    header.pin_permille.store(config.placement.pin_permille.into(), Ordering::Relaxed);
    header.granularity.store(config.granularity(), Ordering::Relaxed);
    for (place, tier) in header.tier.iter_mut().zip(&config.tiers) {
        set_text(&mut place.name, tier.name.as_bytes());
        if let TierKind::File { path } = &tier.kind {
            let slots = runtime.slots(path, &tier.name);
            set_text(&mut place.path, slots.as_os_str().as_bytes());
        }
        emulate(&mut place.emulation, tier.emulate);
        set_speed(&place.speed, tier.known_speed());
    }
    header.stores = config.backing.len() as u32;
    for (place, backing) in header.store.iter_mut().zip(&config.backing) {
        set_text(&mut place.path, backing.path.as_os_str().as_bytes());
        place.bypass = u32::from(backing.mode == Mode::Bypass);
        place.mode = match backing.mode {
            Mode::Buffered | Mode::Bypass => 0,
            Mode::Sync => schema::Mode::Sync as u32,
            Mode::Scratch => schema::Mode::Scratch as u32,
        };
        (place.device, place.inode) =
            std::fs::metadata(&backing.path).map_or((0, 0), |found| (found.dev(), found.ino()));
        emulate(&mut place.emulation, backing.emulate);
        if let Some(shared) = &backing.shared {
            set_text(&mut place.shared, shared.as_os_str().as_bytes());
        }
        set_speed(&place.speed, backing.known_speed());
    }
}

fn set_speed(place: &layout::DeviceSpeed, speed: Speed) {
    place.read_bandwidth.store(speed.read_bandwidth, Ordering::Relaxed);
    place.write_bandwidth.store(speed.write_bandwidth, Ordering::Relaxed);
    place.latency_ns.store(speed.latency_ns, Ordering::Relaxed);
    place.read_seek_ns.store(speed.read_seek_ns, Ordering::Relaxed);
    place.write_seek_ns.store(speed.write_seek_ns, Ordering::Relaxed);
}

fn emulate(place: &mut layout::Emulation, emulate: Option<crate::config::Emulate>) {
    if let Some(emulate) = emulate {
        place.read_bandwidth = emulate.read_bandwidth;
        place.write_bandwidth = emulate.write_bandwidth;
        place.latency_ns = emulate.latency_ns;
    }
}

/// Writes the heads of a tier's slots and of their table, where they have none.
///
/// # Errors
/// The device's, or why they are not this pool's.
pub(crate) fn give_heads(
    segment: &Segment,
    tier: TierId,
    (slots, index): (&Option<OwnedFd>, &Option<OwnedFd>),
) -> Result<(), Foreign> {
    let ends = [(slots, segment.slots_end(tier)), (index, segment.records_end(tier))];
    for (file, end) in ends {
        let Some(file) = file else { continue };
        match segment.check_head(file.as_fd(), end) {
            Err(Foreign::Headless) => {
                segment.write_head(file.as_fd(), end).map_err(Foreign::System)?;
            }
            other => other?,
        }
    }
    Ok(())
}

fn open_slots(path: &Path) -> Result<OwnedFd, String> {
    private::open_or_create(path, OFlags::RDWR)
        .map_err(|wrong| format!("{}: {wrong}", path.display()))
}

/// How often a name is taken by another user before we give up.
const NAME_TRIES: usize = 16;

/// Makes the file of a new pool.
fn make_file(runtime: &mut Runtime) -> Result<OwnedFd, String> {
    for _ in 0..NAME_TRIES {
        match create_pool(&runtime.pool) {
            Ok(file) => return Ok(file),
            Err(Errno::EXIST) if private::is_planted(&runtime.pool) => {
                runtime.pool = crate::instance::discovery::pool_name(&runtime.instance);
            }
            Err(errno) => return Err(format!("{}: {errno}", runtime.pool.display())),
        }
    }
    Err(format!("{}: another user takes every name", runtime.pool.display()))
}

/// Makes the files of all file tiers, before the pool tells of their names: one that another user
/// knows could be taken by them. Returns the tiers whose devices take none, and why.
fn claim(config: &Config, runtime: &Runtime) -> Result<Vec<(TierId, Errno)>, String> {
    let mut refused = Vec::new();
    // The journal lies on the fastest file tier that takes it.
    let mut has_journal = config.wants_journal();
    for (number, tier) in config.tiers.iter().enumerate() {
        let TierKind::File { path: folder } = &tier.kind else { continue };
        let mut tries = 0;
        loop {
            let Err((path, wrong)) = claim_tier(runtime, folder, &tier.name, has_journal) else {
                has_journal = false;
                break;
            };
            unclaim_tier(runtime, folder, &tier.name);
            tries += 1;
            match wrong {
                Wrong::Owner(_) if tries < NAME_TRIES => {}
                Wrong::System(errno) if !is_own_fault(errno) => {
                    refused.push((TierId::new(number), errno));
                    break;
                }
                _ => return Err(format!("{}: {wrong}", path.display())),
            }
        }
    }
    Ok(refused)
}

fn claim_tier(
    runtime: &Runtime,
    folder: &Path,
    tier: &str,
    has_journal: bool,
) -> Result<(), (PathBuf, Wrong)> {
    // The journal first, which goes last: all are found by the name of one.
    let make = |path: PathBuf| {
        private::open_or_create(&path, OFlags::RDWR).map(drop).map_err(|wrong| (path, wrong))
    };
    if has_journal {
        make(runtime.journal(folder, tier))?;
    }
    make(runtime.slots(folder, tier))?;
    make(runtime.index(folder, tier))
}

/// Removes what [`claim`] has made.
fn unclaim(config: &Config, runtime: &Runtime) {
    for tier in &config.tiers {
        if let TierKind::File { path } = &tier.kind {
            unclaim_tier(runtime, path, &tier.name);
        }
    }
}

fn unclaim_tier(runtime: &Runtime, folder: &Path, tier: &str) {
    let (slots, index) = (runtime.slots(folder, tier), runtime.index(folder, tier));
    for path in [index, slots, runtime.journal(folder, tier)] {
        if private::look(&path).is_ok_and(|found| found.st_size == 0) {
            private::remove(&path);
        }
    }
}
