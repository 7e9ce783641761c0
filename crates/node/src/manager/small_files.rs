//! Whether new small files are written through: what is configured, or what is found of the store
//! that takes them. See docs/design/small-files.md.

use crate::config::{Backing, Mode, SmallFiles};
use crate::node::Node;
use forebay_pool::clock::{Timer, monotonic_ns, stamp_age};
use forebay_pool::layout::StoreHeader;
use rustix::fs::{Mode as Permissions, OFlags, statfs};
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// Files that are made, written and closed for one answer; they never have a name.
const FILES: usize = 9;
/// And so many at least, where the store needs longer for them than is waited.
const FILES_LEAST: usize = 3;
/// What is written to each.
const BYTES: [u8; 4096] = [0; 4096];
/// A store that takes a file in so much takes it in less than a program needs to buffer it.
const QUICK_NS: u64 = 60_000;
/// And one that takes more than so much, twice in a row, is slower. In between all stays as it is.
const SLOW_NS: u64 = 120_000;
/// After so long no more of them are made.
const ENOUGH_NS: u64 = 5_000_000;
/// How often a store is looked at while programs open files.
const AGAIN: Timer = Timer::seconds(1);

/// Notes of each store, before any program can connect, whether its new small files are written
/// through.
///
/// # Errors
/// The variable that counts for more than the configuration has a value that it cannot have.
pub(super) fn note_small_files(node: &Node) -> Result<(), String> {
    let settings = settings(node)?;
    look(node, &settings);
    Ok(())
}

/// What holds for each store.
fn settings(node: &Node) -> Result<Vec<SmallFiles>, String> {
    let given = std::env::var_os(SmallFiles::VARIABLE);
    let given = given.as_deref().map(|given| given.to_string_lossy());
    node.config.small_files(given.as_deref())
}

/// Looks at stores while programs use them.
pub(super) struct SmallFilesWatch {
    settings: Vec<SmallFiles>,
    /// When it was looked last, and how often files had been opened by then.
    looked: (u32, u64),
    pass: Option<JoinHandle<()>>,
}

impl SmallFilesWatch {
    /// Of a manager that has noted what it has found at its start.
    pub fn of(node: &Node) -> SmallFilesWatch {
        let settings = settings(node).unwrap_or_default();
        SmallFilesWatch { settings, looked: (node.now(), 0), pass: None }
    }

    /// Looks again if that is due, in a thread of its own: a store may take its time. While it
    /// does, it is slow.
    pub fn look(&mut self, node: &Arc<Node>, now: u32) {
        if let Some(pass) = self.pass.take_if(|pass| pass.is_finished()) {
            let _ = pass.join();
        }
        let (at, known) = self.looked;
        let is_due = stamp_age(now, at) >= AGAIN.as_stamp();
        if !is_due || !self.settings.contains(&SmallFiles::Auto) || node.stopping() {
            return;
        }
        if self.pass.is_some() {
            let stores = node.header().store.iter().zip(&self.settings);
            for (store, _) in stores.filter(|(_, setting)| **setting == SmallFiles::Auto) {
                store.writes_through.store(0, Ordering::Relaxed);
            }
            return;
        }
        let opens = opens(node);
        self.looked = (now, opens);
        if opens != known {
            let (node, settings) = (Arc::clone(node), self.settings.clone());
            let pass = move || look(&node, &settings);
            self.pass = std::thread::Builder::new().name("small-files".to_owned()).spawn(pass).ok();
        }
    }
}

/// How often programs have opened files.
fn opens(node: &Node) -> u64 {
    let past = node.header().past.opens.load(Ordering::Relaxed);
    let of =
        |client: &forebay_pool::layout::ClientSlot| client.counters.opens.load(Ordering::Relaxed);
    let live = node.segment.clients().used().map(|(_, client)| of(client));
    live.fold(past, u64::wrapping_add)
}

fn look(node: &Node, settings: &[SmallFiles]) {
    let stores = node.header().store.iter().zip(&node.config.backing).zip(settings);
    for ((store, backing), setting) in stores {
        let writes_through = match setting {
            // Files that nodes share are buffered in any case.
            _ if backing.mode != Mode::Buffered || node.config.shares_files() => false,
            SmallFiles::Buffer => false,
            SmallFiles::WriteThrough => true,
            SmallFiles::Auto => is_quick(node, store, backing),
        };
        store.writes_through.store(writes_through.into(), Ordering::Relaxed);
    }
}

/// Whether a store is found to take small files quickly.
fn is_quick(node: &Node, store: &StoreHeader, backing: &Backing) -> bool {
    // What is emulated, or fails on purpose, is not what the file system below is.
    let found = match node.faults.is_some() {
        true => None,
        false => of_this_host(&backing.path).then(|| taken_ns(&backing.path)).and_then(Result::ok),
    };
    let found = found.map(|ns| ns.saturating_add(emulated_ns(backing)));
    let last = store.small_file_ns.swap(found.unwrap_or(0), Ordering::Relaxed);
    let before = store.writes_through.load(Ordering::Relaxed) != 0;
    found.is_some_and(|ns| stays_quick(before, last, ns))
}

/// Whether small files are written through to a store that takes one in so much, and took `last`
/// at the look before this one, where they were `before`, or not.
fn stays_quick(before: bool, last: u64, ns: u64) -> bool {
    ns <= QUICK_NS || before && ns.min(last) <= SLOW_NS
}

/// What the emulated device of a store adds to a small file.
fn emulated_ns(backing: &Backing) -> u64 {
    let Some(device) = &backing.emulate else { return 0 };
    let moving = match device.write_bandwidth {
        0 => 0,
        bandwidth => BYTES.len() as u64 * 1_000_000_000 / bandwidth,
    };
    device.latency_ns.saturating_add(moving)
}

/// Whether a close is the last that a file system waits for: not where a server has its part.
fn of_this_host(folder: &Path) -> bool {
    const TMPFS: u32 = 0x0102_1994;
    let kind = statfs(folder).map(|found| found.f_type as u32);
    kind.is_ok_and(|kind| kind == TMPFS || crate::config::is_local_disk(kind))
}

/// In how many nanoseconds a store takes a small file: a quarter of some took no longer. The others
/// may have waited for a processor, or for other programs, and not for the store.
///
/// # Errors
/// The store's; `OPNOTSUPP` where it has no files without a name.
fn taken_ns(folder: &Path) -> Result<u64, Errno> {
    let mut taken = Vec::with_capacity(FILES);
    let first = monotonic_ns();
    let mut began = first;
    while taken.len() < FILES
        && (taken.len() < FILES_LEAST || began.saturating_sub(first) < ENOUGH_NS)
    {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::open(folder, flags, Permissions::RUSR | Permissions::WUSR)?;
        rustix::io::write(&file, &BYTES)?;
        drop(file);
        let ended = monotonic_ns();
        taken.push(ended.saturating_sub(began));
        began = ended;
    }
    taken.sort_unstable();
    Ok(taken[taken.len() / 4])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn a_store_is_quick_until_it_is_clearly_slow_and_again_when_it_is_clearly_quick() {
        let (mut is_quick, mut last) = (false, 0);
        let mut seen = Vec::new();
        for us in [100, 60, 61, 121, 120, 121, 500, 90, 61, 15] {
            is_quick = stays_quick(is_quick, last, us * 1000);
            last = us * 1000;
            seen.push(is_quick);
        }
        assert_eq!(seen, [false, true, true, true, true, true, false, false, false, true]);
    }

    #[test]
    fn an_emulated_store_takes_what_its_device_takes() {
        let of = |emulate: &str| {
            let text = format!(
                "[[backing]]\npath = \"/tmp\"\n{emulate}\n\
                 [[tier]]\nname = \"ram\"\nkind = \"ram\"\ncapacity = \"64MiB\"\n"
            );
            emulated_ns(&Config::parse(&text).unwrap().backing[0])
        };
        assert_eq!(of(""), 0);
        assert_eq!(of("emulate = { latency = \"1ms\" }"), 1_000_000);
        assert_eq!(of("emulate = { bandwidth = \"4.096MB/s\", latency = \"5us\" }"), 1_005_000);
    }

    #[test]
    fn files_are_measured_that_never_have_a_name() {
        let folder = tempfile::tempdir().unwrap();
        match taken_ns(folder.path()) {
            Ok(ns) => assert!(ns > 0),
            Err(errno) => assert_eq!(errno, Errno::OPNOTSUPP),
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_eq!(taken_ns(&folder.path().join("missing")), Err(Errno::NOENT));
        assert!(!of_this_host(&folder.path().join("missing")));
    }
}
