//! Folders whose canonical path a thread has just seen: what is opened in one of them by an
//! absolute path needs no question for its own.
//!
//! The path of a file is a hint for the manager, and for rules; identity decides. So it does no
//! harm that a folder may be moved within the time for which one is remembered.

use core::cell::Cell;
use forebay_pool::clock::{self, Timer};

/// Folders that a thread remembers.
const FOLDERS: usize = 4;
/// Longest path of a folder that is remembered.
const FOLDER_BYTES: usize = 200;
/// For how long.
const REMEMBERED: Timer = Timer::seconds(1);

struct Folder {
    length: Cell<usize>,
    store: Cell<usize>,
    /// The session that has the store.
    session: Cell<u64>,
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
                    store: Cell::new(0),
                    session: Cell::new(0),
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
    fn find(&self, session: u64, folder: &[u8], now_ns: u64) -> Option<&Folder> {
        self.folder.iter().find(|known| {
            // SAFETY: this thread's, and not changed while `busy` is set.
            let path = unsafe { &*known.path.as_ptr() };
            known.length.get() == folder.len()
                && known.session.get() == session
                && &path[..folder.len()] == folder
                && now_ns.wrapping_sub(known.since_ns.get()) < REMEMBERED.as_ns()
        })
    }
}

/// The store of a session in which `path` lies, if its folder was seen a moment ago: the path is
/// canonical then, unless its last part is a symbolic link.
pub(crate) fn store_of(session: u64, path: &[u8]) -> Option<usize> {
    let folder = folder_of(path)?;
    KNOWN.with(|known| {
        if known.busy.replace(true) {
            return None;
        }
        let store =
            known.find(session, folder, clock::realtime_coarse_ns()).map(|known| known.store.get());
        known.busy.set(false);
        store
    })
}

/// Remembers the folder of a canonical `path` in a store.
pub(crate) fn remember(session: u64, path: &[u8], store: usize) {
    let Some(folder) = folder_of(path) else { return };
    KNOWN.with(|known| {
        if known.busy.replace(true) {
            return;
        }
        let now = clock::realtime_coarse_ns();
        if known.find(session, folder, now).is_none() {
            let next = known.next.get();
            known.next.set((next + 1) % FOLDERS);
            let slot = &known.folder[next % FOLDERS];
            let mut bytes = [0; FOLDER_BYTES];
            bytes[..folder.len()].copy_from_slice(folder);
            slot.path.set(bytes);
            slot.length.set(folder.len());
            slot.store.set(store);
            slot.session.set(session);
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

    #[test]
    fn a_folder_is_known_once_it_was_seen() {
        assert_eq!(store_of(1, b"/managed/x"), None);
        remember(1, b"/managed/x", 3);
        assert_eq!(store_of(1, b"/managed/y"), Some(3));
        assert_eq!(store_of(1, b"/managed/y/z"), None);
        assert_eq!(store_of(2, b"/managed/y"), None);
        for number in 0..FOLDERS {
            remember(1, format!("/managed/{number}/x").as_bytes(), number);
        }
        assert_eq!(store_of(1, b"/managed/y"), None);
        assert_eq!(store_of(1, b"/managed/1/y"), Some(1));
    }
}
