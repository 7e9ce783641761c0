//! Folders whose canonical path a thread has just seen: what is opened in one of them by an
//! absolute path, or by the same way from the same directory, needs no question for its own.
//!
//! The path of a file is a hint for the manager, and for rules; identity decides. So it does no
//! harm that a managed folder of an absolute path may be moved within the time for which it is
//! remembered. But its name may become a symbolic link that leads elsewhere: it is remembered until
//! some process here makes, moves or removes one, or moves a folder.
//!
//! What is opened elsewhere is looked for in the table in any case. If it is not there, the folder
//! decides: that it may have got into a managed directory meanwhile, or that its name may lead
//! there now, would matter. So such a folder is remembered only until some process here changes a
//! name, and for a moment: others may change names unseen.

use crate::fd::borrow;
use core::cell::Cell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};
use forebay_pool::clock::{self, Timer};
use rustix::fd::RawFd;
use rustix::fs::{AtFlags, StatxFlags, statx};

/// Folders that a thread remembers.
const FOLDERS: usize = 4;
/// Longest path of a folder that is remembered.
const FOLDER_BYTES: usize = 200;
/// For how long, in a store, and elsewhere.
const REMEMBERED: Timer = Timer::seconds(1);
const REMEMBERED_ELSEWHERE: Timer = Timer::ms(100);
/// The same where paths start at a directory: one that was moved out of the store unseen still
/// leads to its files. The manager would not find what is made there.
const REMEMBERED_FROM_BASE: Timer = Timer::ms(10);

/// Root directories that the process has had.
static ROOTS: AtomicU64 = AtomicU64::new(0);

/// How often programs have changed what paths mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Changes {
    /// See [`forebay_pool::files::Names::changes`].
    pub names: u64,
    /// See [`forebay_pool::layout::Header::ways`].
    pub ways: u32,
}

/// A directory that paths start at: the same one, and no later one with its inode number, by the
/// same mount. All zeros is the root, where absolute paths do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Base {
    device: (u32, u32),
    inode: u64,
    born: (i64, u32),
    mount: u64,
}

impl Base {
    const ROOT: Base = Base { device: (0, 0), inode: 0, born: (0, 0), mount: 0 };

    /// The directory that a call gives, a descriptor or `AT_FDCWD`. `None` where the kernel does
    /// not tell.
    pub fn of(folder: RawFd) -> Option<Base> {
        let wanted = StatxFlags::INO | StatxFlags::BTIME | StatxFlags::MNT_ID;
        let found = statx(borrow(folder), c"", AtFlags::EMPTY_PATH, wanted).ok()?;
        let device = (found.stx_dev_major, found.stx_dev_minor);
        let born = (found.stx_btime.tv_sec, found.stx_btime.tv_nsec);
        (found.stx_mask & wanted.bits() == wanted.bits()).then_some(Base {
            device,
            inode: found.stx_ino,
            born,
            mount: found.stx_mnt_id,
        })
    }
}

/// Bytes of a path.
struct Text {
    length: Cell<usize>,
    bytes: Cell<[u8; FOLDER_BYTES]>,
}

impl Text {
    const fn none() -> Text {
        Text { length: Cell::new(0), bytes: Cell::new([0; FOLDER_BYTES]) }
    }

    fn set(&self, text: &[u8]) {
        let mut bytes = [0; FOLDER_BYTES];
        bytes[..text.len()].copy_from_slice(text);
        self.bytes.set(bytes);
        self.length.set(text.len());
    }

    fn get(&self) -> &[u8] {
        // SAFETY: of one thread, which changes none while it looks at one, see `Folders::busy`.
        unsafe { &(&*self.bytes.as_ptr())[..self.length.get()] }
    }
}

struct Folder {
    /// Where `path` starts.
    base: Cell<Base>,
    path: Text,
    /// The canonical path, if `path` is not.
    canonical: Text,
    /// `None` for a folder that lies in no store.
    store: Cell<Option<usize>>,
    /// The session that has the store.
    session: Cell<u64>,
    /// Of [`ROOTS`] when it was seen.
    roots: Cell<u64>,
    /// As of before it was seen.
    changes: Cell<Changes>,
    since_ns: Cell<u64>,
}

struct Folders {
    /// What was found last by a path from a directory on lies in a store.
    in_store: Cell<bool>,
    /// A handler that interrupts a look does without.
    busy: Cell<bool>,
    next: Cell<usize>,
    folder: [Folder; FOLDERS],
}

thread_local! {
    static KNOWN: Folders = const {
        Folders {
            in_store: Cell::new(false),
            busy: Cell::new(false),
            next: Cell::new(0),
            folder: [const {
                Folder {
                    base: Cell::new(Base::ROOT),
                    path: Text::none(),
                    canonical: Text::none(),
                    store: Cell::new(None),
                    session: Cell::new(0),
                    roots: Cell::new(0),
                    changes: Cell::new(Changes { names: 0, ways: 0 }),
                    since_ns: Cell::new(0),
                }
            }; FOLDERS],
        }
    };
}

/// Folder and last part of a path; `None` where that names a folder itself, or the folder is too
/// long.
fn parts_of(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.iter().rposition(|&byte| byte == b'/');
    let (folder, name) = end.map_or((&path[..0], path), |end| (&path[..end], &path[end + 1..]));
    let names_itself = matches!(name, b"" | b"." | b"..");
    (folder.len() <= FOLDER_BYTES && !names_itself).then_some((folder, name))
}

/// The folder of an absolute path to something in it.
fn folder_of(path: &[u8]) -> Option<&[u8]> {
    let (folder, _) = parts_of(path)?;
    (folder.first() == Some(&b'/')).then_some(folder)
}

/// Those of a path that starts at a directory.
fn relative_parts_of(path: &[u8]) -> Option<(&[u8], &[u8])> {
    parts_of(path).filter(|_| path[0] != b'/')
}

impl Folders {
    /// What a thread knows, if the caller does not interrupt a look of the same thread.
    fn look<R>(look: impl FnOnce(&Folders) -> Option<R>) -> Option<R> {
        KNOWN.with(|known| {
            if known.busy.replace(true) {
                return None;
            }
            let found = look(known);
            known.busy.set(false);
            found
        })
    }

    fn find(
        &self,
        session: u64,
        (base, folder): (Base, &[u8]),
        changes: Changes,
        now_ns: u64,
    ) -> Option<&Folder> {
        self.folder.iter().find(|known| {
            known.path.length.get() == folder.len()
                && known.session.get() == session
                && known.roots.get() == ROOTS.load(Ordering::Relaxed)
                && known.path.get() == folder
                && known.base.get() == base
                && known.holds(changes, now_ns)
        })
    }

    fn remember(
        &self,
        session: u64,
        (base, folder): (Base, &[u8]),
        canonical: &[u8],
        store: Option<usize>,
        (changes, since_ns): (Changes, u64),
    ) {
        if self.find(session, (base, folder), changes, since_ns).is_some() {
            return;
        }
        let next = self.next.get();
        self.next.set((next + 1) % FOLDERS);
        let slot = &self.folder[next % FOLDERS];
        slot.base.set(base);
        slot.path.set(folder);
        slot.canonical.set(canonical);
        slot.store.set(store);
        slot.session.set(session);
        slot.roots.set(ROOTS.load(Ordering::Relaxed));
        slot.changes.set(changes);
        slot.since_ns.set(since_ns);
    }
}

impl Folder {
    fn holds(&self, changes: Changes, now_ns: u64) -> bool {
        let age_ns = now_ns.wrapping_sub(self.since_ns.get());
        let seen = self.changes.get();
        if self.base.get() != Base::ROOT && age_ns >= REMEMBERED_FROM_BASE.as_ns() {
            return false;
        }
        match self.store.get() {
            Some(_) => age_ns < REMEMBERED.as_ns() && seen.ways == changes.ways,
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
    let find = |known: &Folders| {
        known.find(session, (Base::ROOT, folder), changes, now_ns).map(|known| known.store.get())
    };
    Folders::look(find)
}

/// Remembers the folder of a canonical `path`, which lies in `store`; `changes` are as of before it
/// was looked for.
pub(crate) fn remember(session: u64, path: &[u8], store: Option<usize>, changes: Changes) {
    let Some(folder) = folder_of(path) else { return };
    let as_of = (changes, clock::realtime_coarse_ns());
    Folders::look(|known| {
        known.remember(session, (Base::ROOT, folder), b"", store, as_of);
        Some(())
    });
}

/// The canonical path of what `path` names from `base` on, no symbolic link, where its folder was
/// seen from there a moment ago: its length in `buffer`, and the store that it lies in. `changes`
/// and `now_ns` are as of now.
pub(crate) fn path_from(
    session: u64,
    (base, path): (Base, &[u8]),
    (changes, now_ns): (Changes, u64),
    buffer: &mut MaybeUninit<[u8; 4096]>,
) -> Option<(usize, Option<usize>)> {
    let (folder, name) = relative_parts_of(path)?;
    Folders::look(|known| {
        let found = known.find(session, (base, folder), changes, now_ns)?;
        known.in_store.set(found.store.get().is_some());
        let pieces = [found.canonical.get(), b"/", name];
        let length = pieces.iter().map(|piece| piece.len()).sum();
        if length > size_of_val(buffer) {
            return None;
        }
        let mut at = buffer.as_mut_ptr().cast::<u8>();
        for piece in pieces {
            // SAFETY: all of them fit, and none lies in the buffer.
            unsafe {
                core::ptr::copy_nonoverlapping(piece.as_ptr(), at, piece.len());
                at = at.add(piece.len());
            }
        }
        Some((length, found.store.get()))
    })
}

/// Remembers the folder of what `path` names from `base` on, no symbolic link, and whose canonical
/// path is `canonical`; `as_of` is from before that was looked for. See [`remember`].
pub(crate) fn remember_from(
    session: u64,
    (base, path): (Base, &[u8]),
    canonical: &[u8],
    store: Option<usize>,
    as_of: (Changes, u64),
) {
    let (Some((folder, name)), Some((place, last))) =
        (relative_parts_of(path), parts_of(canonical))
    else {
        return;
    };
    // Something else has its name by now.
    if name != last || canonical[0] != b'/' {
        return;
    }
    Folders::look(|known| {
        known.in_store.set(store.is_some());
        known.remember(session, (base, folder), place, store, as_of);
        Some(())
    });
}

/// Whether this thread has found its last file by a path from a directory on in a store.
pub(crate) fn was_in_store() -> bool {
    KNOWN.with(|known| known.in_store.get())
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
        Changes { names, ways: 0 }
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
        let linked = Changes { ways: 1, ..names(0) };
        assert_eq!(store_of(1, b"/managed/1/y", linked, clock::realtime_coarse_ns()), None);
    }

    const BASE: Base = Base { device: (8, 1), inode: 5, born: (9, 9), mount: 7 };

    const NOW_NS: u64 = 5_000_000_000;

    fn from(base: Base, path: &str, as_of: (Changes, u64)) -> Option<(String, Option<usize>)> {
        let mut buffer = MaybeUninit::<[u8; 4096]>::uninit();
        let (length, store) = path_from(3, (base, path.as_bytes()), as_of, &mut buffer)?;
        // SAFETY: so many bytes were written there.
        let path = unsafe { core::slice::from_raw_parts(buffer.as_ptr().cast(), length) };
        Some((String::from_utf8_lossy(path).into_owned(), store))
    }

    #[test]
    fn a_folder_is_known_from_the_directory_that_it_was_seen_from() {
        let remember = |path: &[u8], is: &[u8], store| {
            remember_from(3, (BASE, path), is, store, (names(0), NOW_NS));
        };
        let here = |path| from(BASE, path, (names(9), NOW_NS));
        remember(b"file", b"/store/folder/file", Some(2));
        remember(b"../link/file", b"/store/real/file", Some(2));
        assert_eq!(here("other"), Some(("/store/folder/other".to_owned(), Some(2))));
        assert_eq!(here("../link/b"), Some(("/store/real/b".to_owned(), Some(2))));
        for path in ["link/b", "a/other", "/other", "", "..", "../link/", "../link/."] {
            assert_eq!(here(path), None, "{path}");
        }
        assert_eq!(from(Base { inode: 6, ..BASE }, "other", (names(0), NOW_NS)), None);
        assert_eq!(from(Base { mount: 8, ..BASE }, "other", (names(0), NOW_NS)), None);
        assert_eq!(from(Base { born: (9, 10), ..BASE }, "other", (names(0), NOW_NS)), None);
        assert_eq!(from(BASE, "other", (Changes { ways: 1, ..names(0) }, NOW_NS)), None);
        let later = NOW_NS + REMEMBERED_FROM_BASE.as_ns();
        assert_eq!(from(BASE, "other", (names(0), later)), None);
        // As absolute ones they are not known.
        for path in [&b"../link/b"[..], b"/store/folder/b"] {
            assert_eq!(store_of(3, path, names(0), NOW_NS), None);
        }
        // The kernel says another name: it was changed since.
        remember(b"x/file", b"/store/folder/elsewhere", Some(2));
        assert_eq!(here("x/other"), None);
        // What is elsewhere may come into the store by any change of a name.
        remember(b"a/file", b"/elsewhere/file", None);
        assert_eq!(here("a/other"), None);
        let unchanged = from(BASE, "a/other", (names(0), NOW_NS));
        assert_eq!(unchanged, Some(("/elsewhere/other".to_owned(), None)));
        let long = format!("a/{}", "b".repeat(4090));
        assert_eq!(from(BASE, &long, (names(0), NOW_NS)), None);
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
