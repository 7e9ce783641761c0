//! Why a file's bytes are where they are, and where the next ones would go: for `forebay explain`.
//!
//! What is said of new data is what a program would decide: the same questions to the same
//! policies.

use crate::observe::in_force::InForce;
use crate::observe::markers::{are_refused, taken_by};
use crate::observe::status::Observer;
use forebay_client::{hierarchy, question};
use forebay_placement::cost::Speeds;
use forebay_placement::schema::{Consistency, FileMeta, Mode, Settings, consistency, mismatch};
use forebay_placement::staged::Stage;
use forebay_placement::{Destination, Piece, Plan, Policy};
use forebay_pool::encoded::{MARK, MARK_MAX, Mark};
use forebay_pool::layout::*;
use forebay_pool::pins::Pin;
use forebay_pool::segment::text;
use forebay_pool::{Entry, FileId, Identity, Segment};
use std::ffi::OsStr;
use std::fs::Metadata;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// What an instance knows of a file.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The canonical path.
    pub path: PathBuf,
    /// The managed directory it lies in.
    pub directory: PathBuf,
    /// The directory's files are not buffered.
    pub bypass: bool,
    /// It is to be buffered, and cannot be: see [`crate::markers`].
    pub unbufferable: bool,
    /// The directory's files have this mode where neither rule nor run say anything.
    pub mode: Option<Mode>,
    /// New small files of the directory are written through.
    pub writes_through: bool,
    /// Nanoseconds in which its store takes a small file; `None` if that was not measured.
    pub small_file_ns: Option<u64>,
    /// Its state, if it is in the file table.
    pub file: Option<FileState>,
    /// Bytes of the file, as programs see it; 0 if there is none.
    pub size: u64,
    /// What it is replaced by on the store, if it is.
    pub encoded: Option<Mark>,
    /// All rules in order.
    pub rules: Vec<RuleVerdict>,
    /// What the rule that holds sets.
    pub settings: Settings,
    /// Policy, mode and trigger, and who says so.
    pub in_force: InForce,
    /// When programs of other nodes see what is written; `None` where nodes do not share files.
    pub consistency: Option<Consistency>,
    /// Where the bytes are.
    pub extents: Vec<Extent>,
    /// The dataset that was asked about, if any: all else is of its part of the file then.
    pub dataset: Option<String>,
    /// The datasets of the file that are known: all, or the one that was asked about.
    pub datasets: Vec<DatasetState>,
    /// What programs have pinned of the file: bytes, and the name of the tier.
    pub pins: Vec<(Range<u64>, String)>,
    /// Where new bytes would go.
    pub placement: Placement,
}

/// What the file table says of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileState {
    /// Bytes that the store's file has.
    pub store_size: u64,
    /// The store lags behind.
    pub ahead: bool,
    /// All processes use it through the kernel.
    pub direct: bool,
    /// The same, because it is new and small.
    pub written_through: bool,
    /// Its buffering mode; `None` before any program opened it.
    pub mode: Option<Mode>,
    /// The job whose scratch it is.
    pub job: Option<u32>,
    /// Where it stands, if it is staged.
    pub stage: Option<Stage>,
    /// The errno of its last flush, if that failed.
    pub errno: Option<i32>,
}

/// A dataset of a file, as programs have told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetState {
    /// Its path in the file.
    pub name: String,
    /// Where the rule is written that asks for it, if one holds.
    pub rule: Option<String>,
    /// Its bytes, in whole blocks.
    pub ranges: Vec<Range<u64>>,
}

/// A rule, and whether it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleVerdict {
    /// What its writer called it; may be empty.
    pub name: String,
    /// File and line.
    pub source: String,
    /// It is the one that holds.
    pub holds: bool,
    /// The program that predicts what is read of its files; empty: there is none.
    pub predictor: String,
    /// The first condition that does not hold for us: users and processes differ.
    pub mismatch: Option<&'static str>,
}

/// Neighbouring bytes in one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first byte.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Name of the tier; `None` is the store.
    pub tier: Option<String>,
    /// Name of the tier that they are on their way to.
    pub bound_for: Option<String>,
    /// Bytes that the store does not have yet.
    pub dirty: u64,
    /// Bytes that the tier has; the others are on the store.
    pub valid: u64,
}

/// Where new bytes would go, and the numbers that say so.
#[derive(Clone, Debug)]
pub struct Placement {
    /// Name of the policy.
    pub policy: &'static str,
    /// Bytes that it was asked about.
    pub bytes: u64,
    /// The file's hotness: its accesses, each counting half after every half-life.
    pub hotness: f32,
    /// How much of a move between tiers counts as waiting, see [`forebay_placement::exposure`].
    pub exposed: f64,
    /// Every place they could go to, the store last.
    pub candidates: Vec<Candidate>,
    /// The answer.
    pub plan: Plan,
    /// Who brings the piece of each tier there.
    pub ways: Vec<Way>,
}

/// How a piece of a plan gets where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The program writes it there.
    Written,
    /// The program writes to RAM, and the node manager takes it to its tier.
    Moved,
    /// The program writes to RAM, and the node manager takes as much of what leaves RAM to all
    /// lower tiers at once.
    Spread,
}

/// How the pieces of a plan get where they go, while RAM has or gets room.
fn ways(segment: &Segment, policy: &dyn Policy, plan: &Plan) -> Vec<Way> {
    let way = |piece: &Piece| match piece.to {
        Destination::Tier(tier)
            if tier > 0 && policy.stages() && segment.is_sound(TierId::new(tier)) =>
        {
            if policy.spreads() { Way::Spread } else { Way::Moved }
        }
        _ => Way::Written,
    };
    plan.pieces().iter().map(way).collect()
}

/// A place for new bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The tier's name, or "store".
    pub name: String,
    /// Bytes free, and in all; `None` for the store.
    pub space: Option<(u64, u64)>,
    /// Bytes that may not leave.
    pub pinned: u64,
    /// The lowest hotness among what may leave.
    pub coldest: f32,
    /// Bytes per second written.
    pub write_bandwidth: u64,
    /// Nanoseconds until the first byte.
    pub latency_ns: u64,
    /// Nanoseconds to write all of the request there: latency + size / bandwidth.
    pub cost_ns: f64,
}

impl Observer {
    /// Explains the file at `path`, which need not exist: where its bytes are, and where `bytes`
    /// more would go; or the same of a `dataset` of it. `None` if it lies in no managed directory
    /// of this instance.
    pub fn explain(&self, path: &Path, dataset: Option<&str>, bytes: u64) -> Option<Explanation> {
        let segment = self.segment();
        let header = segment.header();
        let stores = &header.store[..header.stores as usize];
        let folder =
            |store: &StoreHeader| PathBuf::from(OsStr::from_bytes(text(&store.path).to_bytes()));
        let store = stores.iter().position(|store| path.starts_with(folder(store)))?;
        let directory = folder(&stores[store]);
        let metadata = std::fs::metadata(path).ok();
        let file = metadata.as_ref().and_then(|found| find(segment, found));
        let record = file.map(|file| segment.file(file));
        let on_store = metadata.map_or(0, |found| found.len());
        // One that is used through the kernel is as long as the store's.
        let buffered = record.filter(|record| !record.has(FileFlags::DIRECT));
        let size = buffered.map_or(on_store, |record| record.size.load(Ordering::Acquire));
        let mut datasets = file.map_or_else(Vec::new, |file| datasets(segment, file));
        datasets.retain(|known| dataset.is_none_or(|dataset| known.name == dataset));
        let (rules, settings) = judge(segment, record, (path, dataset), &directory, size);
        let mut extents = record.map_or_else(Vec::new, |record| extents(segment, record, size));
        if dataset.is_some() {
            let ranges = datasets.first().map_or(&[][..], |known| &known.ranges);
            extents = ranges.iter().flat_map(|range| within(&extents, range)).collect();
        }
        let (policy, request) = question(segment, record, settings, bytes);
        let tiers = hierarchy(segment, store);
        let policy = policy.policy();
        let paces = Speeds::of(&tiers);
        let candidates = tiers.tiers().iter().chain([&tiers.store]).zip(paces.paces());
        let candidates = candidates.enumerate().map(|(index, (tier, pace))| Candidate {
            name: place_name(segment, TierId::new(index)),
            space: (index < tiers.len()).then_some((tier.free, tier.capacity)),
            pinned: tier.pinned,
            coldest: tier.coldest,
            write_bandwidth: (1e9 / pace.write_ns) as u64,
            latency_ns: pace.latency_ns as u64,
            cost_ns: pace.latency_ns + request.bytes as f64 * pace.write_ns,
        });
        let plan = policy.plan(&tiers, &request);
        Some(Explanation {
            path: path.to_owned(),
            bypass: stores[store].bypass != 0,
            unbufferable: stores[store].bypass == 0
                && taken_by(path).map_or_else(|| are_refused(&stores[store]), |taken| !taken),
            mode: Mode::from_code(stores[store].mode as u8),
            writes_through: stores[store].writes_through.load(Ordering::Relaxed) != 0,
            small_file_ns: Some(stores[store].small_file_ns.load(Ordering::Relaxed))
                .filter(|&ns| ns > 0),
            directory,
            file: record.map(state_of),
            size,
            encoded: mark_of(path, on_store),
            rules,
            in_force: InForce::of(segment, record, &settings, Some(store)),
            settings,
            consistency: (header.shares_files.load(Ordering::Acquire) != 0)
                .then(|| consistency_of(segment, record, path, &folder(&stores[store]))),
            extents,
            dataset: dataset.map(str::to_owned),
            datasets,
            pins: file.map_or_else(Vec::new, |file| pins(segment, file)),
            placement: Placement {
                policy: policy.name(),
                bytes: request.bytes,
                hotness: request.file_hotness,
                exposed: segment.header().costs().exposed(),
                candidates: candidates.collect(),
                ways: ways(segment, policy, &plan),
                plan,
            },
        })
    }

    /// The name of a plan's destination.
    pub fn name_of(&self, destination: Destination) -> String {
        match destination {
            Destination::Tier(tier) => place_name(self.segment(), TierId::new(tier)),
            Destination::Store => "store".to_owned(),
        }
    }
}

/// The mark of a file of this size on the store, if it is encoded. Opens nothing: an open would be
/// in the way of who replaces it.
fn mark_of(path: &Path, size: u64) -> Option<Mark> {
    let mut text = [0u8; MARK_MAX];
    let length = rustix::fs::getxattr(path, MARK, &mut text[..]).ok()?;
    Mark::parse(text.get(..length)?).filter(|mark| mark.original == size)
}

/// The datasets of a file that are known.
fn datasets(segment: &Segment, file: FileId) -> Vec<DatasetState> {
    let unit = segment.bucket_bytes() as u64;
    let shown = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
    let rule_of = |index: usize| segment.rules().get(index).map(|rule| shown(rule.source()));
    let found = segment.datasets_of(file).into_iter().map(|dataset| DatasetState {
        name: shown(&dataset.name),
        rule: dataset.rule.and_then(rule_of),
        ranges: dataset
            .blocks
            .iter()
            .map(|blocks| blocks.start * unit..blocks.end * unit)
            .collect(),
    });
    found.collect()
}

/// What of the parts of a file lies in a range. Of one that is cut, as much is dirty and valid as
/// of the whole, at most.
fn within(extents: &[Extent], range: &Range<u64>) -> Vec<Extent> {
    let cut = |extent: &Extent| {
        let (start, end) = (extent.start.max(range.start), extent.end.min(range.end));
        let bytes = end.saturating_sub(start);
        (bytes > 0).then(|| Extent {
            start,
            end,
            dirty: extent.dirty.min(bytes),
            valid: extent.valid.min(bytes),
            ..extent.clone()
        })
    };
    extents.iter().filter_map(cut).collect()
}

/// What programs have pinned of a file, in ascending order.
fn pins(segment: &Segment, file: FileId) -> Vec<(Range<u64>, String)> {
    let generation = segment.file(file).generation.load(Ordering::Acquire);
    let is_of = |pin: &Pin| (pin.file, pin.generation) == (file, generation);
    let mut pins: Vec<_> = segment.pins().filter(is_of).collect();
    pins.sort_unstable();
    let unit = segment.bucket_bytes() as u64;
    let bytes = |pin: &Pin| {
        let blocks = pin.blocks();
        blocks.start.saturating_mul(unit)..blocks.end.saturating_mul(unit)
    };
    pins.iter().map(|pin| (bytes(pin), place_name(segment, pin.tier))).collect()
}

fn place_name(segment: &Segment, tier: TierId) -> String {
    let header = segment.header();
    match header.tier[..header.tiers as usize].get(tier.index()) {
        Some(tier) => text(&tier.name).to_string_lossy().into_owned(),
        None => "store".to_owned(),
    }
}

/// The record of a file. Looked for without the table's locks: a tool that only looks holds no
/// process up.
fn find(segment: &Segment, metadata: &Metadata) -> Option<FileId> {
    let identity = Identity { device: metadata.dev(), inode: metadata.ino() };
    segment.files().live().find(|&file| segment.file(file).identity() == identity)
}

fn state_of(record: &FileRecord) -> FileState {
    FileState {
        store_size: record.store_size.load(Ordering::Acquire),
        ahead: record.has(FileFlags::METADATA_DIRTY),
        direct: record.has(FileFlags::DIRECT),
        written_through: record.is_written_through(),
        mode: Mode::from_code(record.mode.load(Ordering::Relaxed)),
        job: record
            .has(FileFlags::SCRATCH)
            .then(|| record.job.load(Ordering::Acquire))
            .filter(|&job| job != 0),
        stage: record.stage(),
        errno: record.failing_errno(),
    }
}

/// Every rule, and which one holds: the one that programs found at open, else the one that we
/// would.
fn judge(
    segment: &Segment,
    record: Option<&FileRecord>,
    (path, dataset): (&Path, Option<&str>),
    directory: &Path,
    size: u64,
) -> (Vec<RuleVerdict>, Settings) {
    let file_meta = FileMeta {
        path: path.as_os_str().as_bytes(),
        directory: directory.as_os_str().as_bytes(),
        size,
        dataset: dataset.map(str::as_bytes),
        user: rustix::process::geteuid().as_raw(),
        ..FileMeta::default()
    };
    let rules = segment.rules();
    let mismatches: Vec<_> =
        rules.iter().map(|rule| mismatch(&rule.rule().when, &file_meta)).collect();
    let found = mismatches.iter().position(Option::is_none);
    let asks_for_dataset = |rule: usize| !rules[rule].rule().when.dataset.is_empty();
    let holds = match record {
        // The part that is asked about has a rule of its own.
        _ if found.is_some_and(asks_for_dataset) => found,
        Some(record) => usize::from(record.rule.load(Ordering::Acquire)).checked_sub(1),
        None => found,
    };
    let verdict = |(index, (rule, mismatch)): (usize, (&RuleRecord, &Option<_>))| RuleVerdict {
        name: String::from_utf8_lossy(rule.name()).into_owned(),
        source: String::from_utf8_lossy(rule.source()).into_owned(),
        holds: holds == Some(index),
        predictor: String::from_utf8_lossy(rule.predictor()).into_owned(),
        mismatch: *mismatch,
    };
    let verdicts = rules.iter().zip(&mismatches).enumerate().map(verdict).collect();
    let settings = holds.and_then(|rule| rules.get(rule)).map(RuleRecord::settings);
    (verdicts, settings.unwrap_or_default())
}

/// When other nodes see what is written to a file: as was found when its record began, else as the
/// rules say of its path.
fn consistency_of(
    segment: &Segment,
    record: Option<&FileRecord>,
    path: &Path,
    directory: &Path,
) -> Consistency {
    match record {
        Some(record) if record.is_to_commit() => Consistency::Commit,
        Some(_) => Consistency::Strict,
        None => {
            let rules = segment.rules().iter().map(RuleRecord::rule);
            consistency(rules, path.as_os_str().as_bytes(), directory.as_os_str().as_bytes())
        }
    }
}

/// Where the bytes of a file are; neighbours that differ only in what is dirty stay apart.
fn extents(segment: &Segment, record: &FileRecord, size: u64) -> Vec<Extent> {
    let bucket = segment.bucket_bytes() as u64;
    let page = segment.page_bytes() as u64;
    let mut found: Vec<Extent> = Vec::new();
    let mut covered = 0;
    segment.for_each_entry(record, 0, |block, place| {
        let Entry::Resident { bucket: id, .. } = Entry::decode(place.load(Ordering::Acquire))
        else {
            return true;
        };
        let (Some(meta), start) = (segment.bucket(id), block * bucket) else { return true };
        let end = (start + bucket).min(size.max(start));
        if start >= end {
            return true;
        }
        let pages = |mask: u64| u64::from(mask.count_ones()) * page;
        let dirty = meta.pending();
        add(&mut found, store_extent(covered, start));
        add(
            &mut found,
            Extent {
                start,
                end,
                tier: Some(place_name(segment, segment.tier_of(id))),
                bound_for: match meta.bound_for.load(Ordering::Relaxed) {
                    0 => None,
                    tier => Some(place_name(segment, TierId::new(usize::from(tier)))),
                },
                dirty: pages(dirty).min(end - start),
                valid: pages(meta.valid.load(Ordering::Acquire)).min(end - start),
            },
        );
        covered = end;
        true
    });
    add(&mut found, store_extent(covered, size));
    found
}

fn store_extent(start: u64, end: u64) -> Extent {
    Extent { start, end, tier: None, bound_for: None, dirty: 0, valid: 0 }
}

/// Adds an extent, joined to the last one if both are alike.
fn add(extents: &mut Vec<Extent>, next: Extent) {
    if next.start >= next.end {
        return;
    }
    match extents.last_mut() {
        Some(last)
            if last.end == next.start
                && last.tier == next.tier
                && last.bound_for == next.bound_for
                && (last.dirty > 0) == (next.dirty > 0) =>
        {
            last.end = next.end;
            last.dirty += next.dirty;
            last.valid += next.valid;
        }
        _ => extents.push(next),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Node;
    use forebay_pool::segment::anonymous;

    #[test]
    fn a_file_that_waits_for_its_checkpoint_has_no_error() {
        let geometry = Geometry::for_tiers(4096, &[64 << 18]);
        let (segment, _file) = anonymous(&geometry).unwrap();
        let identity = Identity { device: 1, inode: 1 };
        let file = segment.with_file_or_new(identity, Node::new_owner(), |file, _| file).unwrap();
        let record = segment.file(file);
        record.set(FileFlags::FAILING);
        assert_eq!(state_of(record).errno, None);
        record.report(libc::EIO as u32);
        assert_eq!(state_of(record).errno, Some(libc::EIO));
        record.clear(FileFlags::FAILING);
        assert_eq!(state_of(record).errno, None);
    }
}
