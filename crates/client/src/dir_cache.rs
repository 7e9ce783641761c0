//! Folders whose canonical path a thread has just seen: what is opened in one of them by an
//! absolute path needs no question for its own.
//!
//! The path of a file is a hint for the manager, and for rules; identity decides. So it does no
//! harm that a managed folder may be moved within the time for which it is remembered. But its name
//! may become a symbolic link that leads elsewhere: it is remembered until some process here makes
//! or moves one.
//!
//! What is opened elsewhere is looked for in the table in any case. If it is not there, the folder
//! decides: that it may have got into a managed directory meanwhile, or that its name may lead
//! there now, would matter. So such a folder is remembered only until some process here changes a
//! name, and for a moment: others may change names unseen.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use forebay_pool::clock::{self, Timer};

/// Folders that a thread remembers.
const FOLDERS: usize = 4;
/// Longest path of a folder that is remembered.
const FOLDER_BYTES: usize = 200;
/// For how long, in a store, and elsewhere.
const REMEMBERED: Timer = Timer::seconds(1);
const REMEMBERED_ELSEWHERE: Timer = Timer::ms(100);

/// Root directories that the process has had.
static ROOTS: AtomicU64 = AtomicU64::new(0);

/// How often programs have changed what paths mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Changes {
    /// See [`forebay_pool::files::Names::changes`].
    pub names: u64,
    /// See [`forebay_pool::layout::Header::symlinks`].
    pub symlinks: u32,
}

struct Folder {
    length: Cell<usize>,
    /// `None` for a folder that lies in no store.
    store: Cell<Option<usize>>,
    /// The session that has the store.
    session: Cell<u64>,
    /// Of [`ROOTS`] when it was seen.
    roots: Cell<u64>,
    /// As of before it was seen.
    changes: Cell<Changes>,
    since_ns: Cell<u64>,
    path: Cell<[u8; FOLDER_BYTES]>,
}

struct Folders {
    /// A handler that interrupts a look does without.
    busy: Cell<bool>,
    next: Cell<usize>,
    folder: [Folder; FOLDERS],
}

thread_local! {
    static KNOWN: Folders = const {
        Folders {
            busy: Cell::new(false),
            next: Cell::new(0),
            folder: [const {
                Folder {
                    length: Cell::new(0),
                    store: Cell::new(None),
                    session: Cell::new(0),
                    roots: Cell::new(0),
                    changes: Cell::new(Changes { names: 0, symlinks: 0 }),
                    since_ns: Cell::new(0),
                    path: Cell::new([0; FOLDER_BYTES]),
                }
            }; FOLDERS],
        }
    };
}

/// The folder of an absolute path to something in it.
fn folder_of(path: &[u8]) -> Option<&[u8]> {
    let end = path.iter().rposition(|&byte| byte == b'/')?;
    let (folder, name) = (&path[..end], &path[end + 1..]);
    let names_itself = matches!(name, b"" | b"." | b"..");
    (path[0] == b'/' && !folder.is_empty() && folder.len() <= FOLDER_BYTES && !names_itself)
        .then_some(folder)
}

impl Folders {
    fn find(&self, session: u64, folder: &[u8], changes: Changes, now_ns: u64) -> Option<&Folder> {
        self.folder.iter().find(|known| {
            // SAFETY: this thread's, and not changed while `busy` is set.
            let path = unsafe { &*known.path.as_ptr() };
            known.length.get() == folder.len()
                && known.session.get() == session
                && known.roots.get() == ROOTS.load(Ordering::Relaxed)
                && &path[..folder.len()] == folder
                && known.holds(changes, now_ns)
        })
    }
}

impl Folder {
    fn holds(&self, changes: Changes, now_ns: u64) -> bool {
        let age_ns = now_ns.wrapping_sub(self.since_ns.get());
        let seen = self.changes.get();
        match self.store.get() {
            Some(_) => age_ns < REMEMBERED.as_ns() && seen.symlinks == changes.symlinks,
            None => age_ns < REMEMBERED_ELSEWHERE.as_ns() && seen == changes,
        }
    }
}

/// Forgets all folders: paths begin at another root directory.
pub(crate) fn forget() {
    ROOTS.fetch_add(1, Ordering::Relaxed);
}

/// The store of a session in which `path` lies, if any, where its folder was seen a moment ago: the
/// path is canonical then, unless its last part is a symbolic link. `changes` and `now_ns` are of a
/// time before the open.
pub(crate) fn store_of(
    session: u64,
    path: &[u8],
    changes: Changes,
    now_ns: u64,
) -> Option<Option<usize>> {
    let folder = folder_of(path)?;
    KNOWN.with(|known| {
        if known.busy.replace(true) {
            return None;
        }
        let store = known.find(session, folder, changes, now_ns).map(|known| known.store.get());
        known.busy.set(false);
        store
    })
}

/// Remembers the folder of a canonical `path`, which lies in `store`; `changes` are as of before it
/// was looked for.
pub(crate) fn remember(session: u64, path: &[u8], store: Option<usize>, changes: Changes) {
    let Some(folder) = folder_of(path) else { return };
    KNOWN.with(|known| {
        if known.busy.replace(true) {
            return;
        }
        let now = clock::realtime_coarse_ns();
        if known.find(session, folder, changes, now).is_none() {
            let next = known.next.get();
            known.next.set((next + 1) % FOLDERS);
            let slot = &known.folder[next % FOLDERS];
            let mut bytes = [0; FOLDER_BYTES];
            bytes[..folder.len()].copy_from_slice(folder);
            slot.path.set(bytes);
            slot.length.set(folder.len());
            slot.store.set(store);
            slot.session.set(session);
            slot.roots.set(ROOTS.load(Ordering::Relaxed));
            slot.changes.set(changes);
            slot.since_ns.set(now);
        }
        known.busy.set(false);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_paths_to_something_have_a_folder() {
        assert_eq!(folder_of(b"/a/b"), Some(&b"/a"[..]));
        for path in [&b""[..], b"a", b"a/b", b"/", b"/a", b"/a/", b"/a/.", b"/a/.."] {
            assert_eq!(folder_of(path), None, "{path:?}");
        }
        assert_eq!(folder_of(&[b'/'; 300]), None);
    }

    fn names(names: u64) -> Changes {
        Changes { names, symlinks: 0 }
    }

    fn found(session: u64, path: &str, changes: u64) -> Option<Option<usize>> {
        store_of(session, path.as_bytes(), names(changes), clock::realtime_coarse_ns())
    }

    #[test]
    fn a_folder_is_known_once_it_was_seen() {
        assert_eq!(found(1, "/managed/x", 0), None);
        remember(1, b"/managed/x", Some(3), names(0));
        assert_eq!(found(1, "/managed/y", 9), Some(Some(3)));
        assert_eq!(found(1, "/managed/y/z", 0), None);
        assert_eq!(found(2, "/managed/y", 0), None);
        for number in 0..FOLDERS {
            remember(1, format!("/managed/{number}/x").as_bytes(), Some(number), names(0));
        }
        assert_eq!(found(1, "/managed/y", 0), None);
        assert_eq!(found(1, "/managed/1/y", 0), Some(Some(1)));
        let linked = Changes { symlinks: 1, ..names(0) };
        assert_eq!(store_of(1, b"/managed/1/y", linked, clock::realtime_coarse_ns()), None);
    }

    #[test]
    fn a_folder_elsewhere_is_known_until_a_name_changes_and_for_a_moment() {
        remember(1, b"/elsewhere/x", None, names(7));
        assert_eq!(found(1, "/elsewhere/y", 7), Some(None));
        assert_eq!(found(1, "/elsewhere/y", 8), None);
        let later = clock::realtime_coarse_ns() + REMEMBERED_ELSEWHERE.as_ns();
        assert_eq!(store_of(1, b"/elsewhere/y", names(7), later), None);
        // Seen again, and in a store now.
        remember(1, b"/elsewhere/x", Some(0), names(8));
        assert_eq!(found(1, "/elsewhere/y", 8), Some(Some(0)));
    }
}
