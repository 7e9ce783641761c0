//! Closed files that are nowhere in the stores any more, of which the tiers have what no store has:
//! others removed them, or moved them out, before the manager had a descriptor. What there is of
//! each is set aside beside the fastest file tier, and the pool is rid of it.

use super::Housekeeper;
use crate::drain::{is_lost, may_be_lost};
use crate::node::Node;
use crate::observe::log::shown;
use crate::profile::mounts::may_hide_part_of;
use crate::recovery::inspect::{Inspected, inspect};
use crate::recovery::removed::Keeper;
use crate::recovery::salvage::copy_resident;
use crate::store::beneath::Known;
use crate::usage::path_of_file;
use forebay_pool::clock::{Timer, stamp_age};
use forebay_pool::layout::*;
use forebay_pool::opens::Opens;
use forebay_pool::{FileId, Owner, crash};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// How long a file has to be missing.
const MISSING: Timer = Timer::seconds(1);

/// A file that a flush did not find.
#[derive(Clone, Copy)]
struct Missed {
    generation: u32,
    since: u32,
    /// Flushes that had failed by then.
    failures: u32,
}

/// Files that flushes do not find, and the thread that sets them aside: that may take long.
#[derive(Default)]
pub(super) struct Aside {
    missed: HashMap<FileId, Missed>,
    pass: Option<JoinHandle<()>>,
}

impl Drop for Aside {
    fn drop(&mut self) {
        if let Some(pass) = self.pass.take() {
            let _ = pass.join();
        }
    }
}

impl Housekeeper {
    /// Whether flushes have not found a closed file at least twice, and for long enough; or one of
    /// which nothing is left to be flushed has waited as long for its end.
    pub(super) fn is_missing(&self, file: FileId) -> bool {
        let segment = &self.node.segment;
        let record = segment.file(file);
        let missed = &mut self.aside.borrow_mut().missed;
        let is_hollow = is_hollow(&self.node, file);
        let may_be_missing = is_hollow || is_lost(&self.node, file);
        if !may_be_missing || segment.holders(file).next().is_some() {
            missed.remove(&file);
            return false;
        }
        let generation = record.generation.load(Ordering::Acquire);
        let now = Missed { generation, since: self.node.now(), failures: record.failures() };
        let first = missed.entry(file).or_insert(now);
        if first.generation != generation {
            *first = now;
        }
        stamp_age(now.since, first.since) >= MISSING.as_stamp()
            && (is_hollow || now.failures != first.failures)
    }

    /// What cannot be set aside now is missing again after further flushes.
    pub(super) fn forget_missing(&self, file: FileId) {
        self.aside.borrow_mut().missed.remove(&file);
    }

    /// Sets files aside that were missing when their opens were counted, unless that is being done.
    pub(super) fn set_aside(&mut self, files: Vec<(FileId, Opens)>) {
        let aside = self.aside.get_mut();
        if let Some(pass) = aside.pass.take_if(|pass| pass.is_finished()) {
            let _ = pass.join();
        }
        if files.is_empty() || aside.pass.is_some() {
            return;
        }
        let node = Arc::clone(&self.node);
        let pass = move || pass(&node, &files);
        aside.pass = std::thread::Builder::new().name("aside".to_owned()).spawn(pass).ok();
    }
}

/// Whether nothing is left of a file to be flushed, and its end waits for a descriptor.
fn is_hollow(node: &Node, file: FileId) -> bool {
    let record = node.segment.file(file);
    (record.has(FileFlags::METADATA_DIRTY) || record.is_tracked())
        && may_be_lost(node, file)
        && !node.is_pending(file)
}

fn pass(node: &Arc<Node>, files: &[(FileId, Opens)]) {
    let pool = match inspect(&node.runtime.pool) {
        Ok(pool) => pool,
        Err(error) => return error!("{}: {error}", node.runtime.pool.display()),
    };
    let mut keeper = Keeper::of(&node.config, &node.runtime);
    let owner = Node::new_owner();
    for &(file, opens) in files {
        if node.stopping() {
            break;
        }
        set_aside(node, &pool, &mut keeper, (file, opens), owner);
    }
}

/// Sets one file aside while it is held, if no process has opened it since `opens` were counted,
/// and it is still nowhere.
fn set_aside(
    node: &Node,
    pool: &Inspected,
    keeper: &mut Keeper,
    (file, opens): (FileId, Opens),
    owner: Owner,
) {
    let segment = &node.segment;
    let record = segment.file(file);
    let table = segment.enter_table(owner);
    let Some(_exclusive) = segment.try_lock_exclusive(&table, file, owner) else { return };
    let folder = &node.config.backing[node.store_of(file)].path;
    let unchanged = || opens.are_still(&record.opens);
    // It may have become another file's since, which has other opens.
    if record.state.load(Ordering::Acquire) != file_state::LIVE
        || record.exclusive.load(Ordering::SeqCst) != owner.raw()
        || !unchanged()
        || !may_be_lost(node, file)
        || node.descriptors.of(segment, file, folder).map(drop) != Err(Errno::STALE)
    {
        return;
    }
    let path = path_of_file(segment, record);
    let keeps = |why: &str| {
        error!(
            "{}: it is nowhere, and what the tiers have of it cannot be set aside: {why}; it stays there",
            shown(&path)
        );
        node.not_set_aside().insert((file, record.generation.load(Ordering::Acquire)));
    };
    if let Some(why) = hidden(node) {
        return keeps(&why);
    }
    crash::point("aside.begin");
    // The store has had all else.
    let copy = match node.is_pending(file) {
        true => match keep(pool, keeper, file, (&path, folder), &Known::of(record)) {
            Ok(copy) => Some(copy),
            Err(why) => return keeps(&why),
        },
        false => None,
    };
    crash::point("aside.kept");
    if !unchanged() {
        copy.map(fs::remove_file);
        return;
    }
    if let Some(journal) = &node.journal {
        journal.gone(node.context(), file);
    }
    segment.drop_all_blocks(file, owner, node);
    crash::point("aside.dropped");
    record.clear(FileFlags::METADATA_DIRTY | FileFlags::DIRTY | FileFlags::FAILING);
    match copy {
        Some(copy) => eprintln!(
            "{} was removed, or moved away, by a program without Forebay before its data was on the store: the \
             data is in {}; remove that if it is not wanted",
            shown(&path),
            shown(&copy)
        ),
        None => eprintln!("{} was removed, or moved away", shown(&path)),
    }
}

/// Why a file may be where no search sees it: another directory has a store's name, or something
/// is mounted in one.
fn hidden(node: &Node) -> Option<String> {
    let stores = node.segment.header().store.iter().zip(&node.config.backing);
    stores.filter_map(|(store, backing)| hidden_in(store, &backing.path)).next()
}

fn hidden_in(store: &StoreHeader, folder: &Path) -> Option<String> {
    let found = fs::metadata(folder).map(|found| (found.dev(), found.ino()));
    if found.ok() != Some((store.device, store.inode)) {
        return Some(format!("{} is another directory than it was", folder.display()));
    }
    let hides = may_hide_part_of(folder);
    hides.then(|| format!("something is mounted in {}, and may hide it", folder.display()))
}

/// Writes what the tiers have of a file to one that says which it was.
///
/// # Errors
/// Why it cannot be kept whole.
fn keep(
    pool: &Inspected,
    keeper: &mut Keeper,
    file: FileId,
    place: (&Path, &Path),
    known: &Known,
) -> Result<PathBuf, String> {
    let bytes = pool.segment.pending_bytes(file);
    keeper.set_aside(place, known, bytes, |out| copy_resident(pool, file, out))
}
