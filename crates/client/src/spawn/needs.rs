//! Before which libraries an adapter is to be loaded: what a program or a library has in the
//! closure of its DT_NEEDED, found as the loader finds it. See docs/design/adapters.md.
//!
//! Files are only read, by calls that allocate nothing: this runs in a vforked child, too. What
//! cannot be found or understood counts as needing nothing: the program then runs without adapter.

use super::loader_cache::LoaderCache;
use crate::fd::{borrow, descriptor_path};
use core::ffi::CStr;
use core::mem::MaybeUninit;
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};

/// Kinds of libraries before which an adapter is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs(u8);

/// A symbol of MPI 4: a library that has it has all functions with large counts.
const LARGE_COUNTS: &[u8] = b"MPI_File_read_c";
/// A symbol of HDF5 1.14: a library that has it has all functions that came with that.
const SEVERAL_AT_ONCE: &[u8] = b"H5Dwrite_multi";

impl Needs {
    /// None of them.
    pub const NONE: Needs = Needs(0);
    /// MPI.
    pub const MPI: Needs = Needs(1);
    /// MPI with functions for large counts, of MPI 4: a program that found them in an adapter would
    /// believe that its MPI library has them.
    pub const MPI_LARGE: Needs = Needs(2);
    /// HDF5.
    pub const HDF5: Needs = Needs(4);
    /// HDF5 from 1.14 on, with functions that earlier ones lack; see [`Needs::MPI_LARGE`].
    pub const HDF5_LATER: Needs = Needs(8);
    /// All of them.
    pub const ALL: Needs = Needs(15);
    /// Runtimes of AddressSanitizer, which are no adapters: each has to be the first library of a
    /// program that was linked with it, and is put there.
    pub const RUNTIMES: Needs = Needs(0xf0);

    /// Those that the bits say.
    pub fn from_bits(bits: u8) -> Needs {
        Needs(bits)
    }

    /// As bits.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// These and `others`.
    #[must_use]
    pub fn with(self, others: Needs) -> Needs {
        Needs(self.0 | others.0)
    }

    /// Those of them that are among `others`.
    #[must_use]
    pub fn among(self, others: Needs) -> Needs {
        Needs(self.0 & others.0)
    }

    /// Those of them that are not among `others`.
    #[must_use]
    pub fn without(self, others: Needs) -> Needs {
        Needs(self.0 & !others.0)
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The files of their adapters, which lie beside the preload library.
    pub fn adapters(self) -> impl Iterator<Item = &'static str> {
        ADAPTERS
            .iter()
            .filter(move |(needs, _)| !self.among(*needs).is_empty())
            .map(|found| found.1)
    }

    /// The names of the runtimes among them, as the loader finds them.
    pub fn runtimes(self) -> impl Iterator<Item = &'static str> {
        RUNTIMES
            .iter()
            .filter(move |(needs, _)| !self.among(*needs).is_empty())
            .map(|found| found.1)
    }

    /// What a library in LD_PRELOAD is for that was put there for a program which needs it: an
    /// adapter, by its name, or a runtime that no path was given of; none of another one.
    #[inline]
    pub(super) fn of_preloaded(path: &[u8]) -> Needs {
        let name = file_name(path);
        let adapters = ADAPTERS.iter().filter(|(_, file)| file.as_bytes() == name);
        let runtimes = RUNTIMES.iter().filter(|(_, file)| file.as_bytes() == path);
        adapters.chain(runtimes).next().map_or(Needs::NONE, |(needs, _)| *needs)
    }

    /// What [`Needs::admitted`] takes, for people.
    pub const CHOICES: &str = "give auto, none, mpiio or hdf5; several with commas between";

    /// Those that FOREBAY_ADAPTERS admits with this value: names by commas, `none`, or `auto`.
    /// `None` where one of the names is no adapter.
    pub fn admitted(value: &str) -> Option<Needs> {
        let names = value.split(',').map(str::trim).filter(|name| !name.is_empty());
        names.map(named).try_fold(Needs::NONE, |all, more| Some(all.with(more?)))
    }

    /// The names for [`Needs::admitted`].
    pub fn names(self) -> &'static str {
        match (self.among(Needs::MPI) != Needs::NONE, self.among(Needs::HDF5) != Needs::NONE) {
            (true, true) => "auto",
            (true, false) => "mpiio",
            (false, true) => "hdf5",
            (false, false) => "none",
        }
    }

    /// What a library of this name is for.
    fn of_library(name: &[u8]) -> Needs {
        let name = file_name(name);
        let is_library = name.windows(3).any(|part| part == b".so");
        match is_library {
            true if is_runtime(name) => Needs::of_preloaded(name),
            true if name.starts_with(b"libmpi") => Needs::MPI,
            true if name.starts_with(b"libhdf5") => Needs::HDF5,
            _ => Needs::NONE,
        }
    }
}

// In the order in which they come into LD_PRELOAD. What `hdf5` finds behind itself must be the
// library's, and not the part of the adapter for later ones.
const ADAPTERS: [(Needs, &str); 4] = [
    (Needs::MPI, "libforebay_mpiio.so"),
    (Needs::MPI_LARGE, "libforebay_mpiio_large.so"),
    (Needs::HDF5_LATER, "libforebay_hdf5_later.so"),
    (Needs::HDF5, "libforebay_hdf5.so"),
];

/// Runtimes of AddressSanitizer: of gcc from 8 on, and of clang with -shared-libasan. One that a
/// program has within itself stands first anyway.
const RUNTIMES: [(Needs, &str); 4] = [
    (Needs(16), "libasan.so.5"),
    (Needs(32), "libasan.so.6"),
    (Needs(64), "libasan.so.8"),
    (
        Needs(128),
        if cfg!(target_arch = "aarch64") {
            "libclang_rt.asan-aarch64.so"
        } else {
            "libclang_rt.asan-x86_64.so"
        },
    ),
];

/// Whether a library is a runtime of AddressSanitizer.
pub fn is_runtime(path: &[u8]) -> bool {
    let name = file_name(path);
    name.starts_with(b"libasan.so") || name.starts_with(b"libclang_rt.asan")
}

fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or_default()
}

fn named(name: &str) -> Option<Needs> {
    match name {
        "auto" => Some(Needs::ALL),
        "none" => Some(Needs::NONE),
        "mpiio" => Some(Needs::MPI.with(Needs::MPI_LARGE)),
        "hdf5" => Some(Needs::HDF5.with(Needs::HDF5_LATER)),
        _ => None,
    }
}

/// Libraries that need none of those: the C library's own, and the compilers'.
const LEAVES: [&[u8]; 11] = [
    b"libc.so",
    b"libm.so",
    b"libdl.so",
    b"librt.so",
    b"libpthread.so",
    b"libresolv.so",
    b"libutil.so",
    b"libgcc_s.so",
    b"libstdc++.so",
    b"libz.so",
    b"ld-linux",
];

/// Whether a library of this name needs none of them.
pub(super) fn is_leaf(name: &[u8]) -> bool {
    LEAVES.iter().any(|leaf| name.starts_with(leaf))
}

/// Libraries of one closure: more are not looked at.
const FILES: usize = 128;
/// Files that are open at the same time.
const OPEN: usize = 48;
/// Libraries that one file names.
const NAMED: usize = 64;
/// Bytes of a library's name, or of a list of folders.
const TEXT: usize = 1024;
/// Program headers that are looked at.
const HEADERS: usize = 24;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

/// Reads as much of `room` as there is from `offset` on.
fn bytes_at<'r>(file: BorrowedFd<'_>, offset: u64, room: &'r mut [u8]) -> Option<&'r [u8]> {
    let got = rustix::io::pread(file, &mut *room, offset).ok()?;
    room.get(..got)
}

fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(length)?)?;
    Some(bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
}

/// What the dynamic section of an ELF file says.
struct Dynamic {
    /// Segments: address, bytes, offset in the file.
    segments: [(u64, u64, u64); HEADERS],
    strings: u64,
    symbols: u64,
    hash: u64,
    /// The folders to look in, as a place among the strings.
    folders: Option<u64>,
    /// The names of needed libraries, as places among the strings.
    needed: [u32; NAMED],
    count: usize,
}

impl Dynamic {
    fn of(file: BorrowedFd<'_>) -> Option<Dynamic> {
        let room = &mut [0; 64 + 56 * HEADERS];
        let head = bytes_at(file, 0, room)?;
        if !head.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let (table, size) = (number(head, 32, 8)?, number(head, 54, 2)? as usize);
        let count = (number(head, 56, 2)? as usize).min(HEADERS);
        let mut dynamic = Dynamic {
            segments: [(0, 0, 0); HEADERS],
            strings: 0,
            symbols: 0,
            hash: 0,
            folders: None,
            needed: [0; NAMED],
            count: 0,
        };
        let mut section = None;
        // They lie behind the head, as all linkers have it.
        let headers = head.get(usize::try_from(table).ok()?..)?.chunks_exact(size.max(56));
        for (header, segment) in headers.take(count).zip(&mut dynamic.segments) {
            let [offset, address, bytes] = [8, 16, 32].map(|at| number(header, at, 8));
            match number(header, 0, 4)? as u32 {
                PT_LOAD => *segment = (address?, bytes?, offset?),
                PT_DYNAMIC => section = Some((offset?, bytes?)),
                _ => {}
            }
        }
        let (mut at, bytes) = section?;
        let end = at.saturating_add(bytes.min(64 << 10));
        let mut run_path = None;
        let room = &mut [0; 16 * 64];
        'section: while at < end {
            let entries = bytes_at(file, at, room)?;
            if entries.len() < 16 {
                break;
            }
            for entry in entries.chunks_exact(16) {
                let (tag, value) = (number(entry, 0, 8)?, number(entry, 8, 8)?);
                match tag {
                    0 => break 'section,
                    DT_NEEDED if dynamic.count < NAMED => {
                        dynamic.needed[dynamic.count] = u32::try_from(value).ok()?;
                        dynamic.count += 1;
                    }
                    DT_STRTAB => dynamic.strings = value,
                    DT_SYMTAB => dynamic.symbols = value,
                    DT_GNU_HASH => dynamic.hash = value,
                    DT_RPATH => dynamic.folders = Some(value),
                    DT_RUNPATH => run_path = Some(value),
                    _ => {}
                }
            }
            at += entries.len() as u64 / 16 * 16;
        }
        dynamic.folders = run_path.or(dynamic.folders);
        Some(dynamic)
    }

    /// Where in the file the byte at this address lies.
    fn place(&self, address: u64) -> Option<u64> {
        let inside = |&&(from, bytes, _): &&(u64, u64, u64)| address.wrapping_sub(from) < bytes;
        let (from, _, offset) = self.segments.iter().find(inside)?;
        (address - from).checked_add(*offset)
    }

    /// A text among the strings, without its zero.
    fn text<'r>(&self, file: BorrowedFd<'_>, at: u64, room: &'r mut [u8]) -> Option<&'r [u8]> {
        let read = bytes_at(file, self.place(self.strings)?.checked_add(at)?, room)?;
        Some(CStr::from_bytes_until_nul(read).ok()?.to_bytes())
    }

    /// Whether the library defines the symbol, by the hash table of its symbols.
    fn defines(&self, file: BorrowedFd<'_>, name: &[u8]) -> Option<bool> {
        let word = |at: u64| {
            let mut room = [0; 4];
            number(bytes_at(file, at, &mut room)?, 0, 4)
        };
        let hash = name
            .iter()
            .fold(5381u32, |hash, &byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)));
        let table = self.place((self.hash != 0).then_some(self.hash)?)?;
        // Places in a file that is damaged are beyond its end, or wrong ones.
        let beyond = |start: u64, words: u64| start.wrapping_add(words * 4);
        let (buckets, first) = (word(table)?, word(beyond(table, 1))?);
        let start = beyond(table, 4 + 2 * word(beyond(table, 2))?);
        let index = word(beyond(start, u64::from(hash).checked_rem(buckets)?))?;
        let chains = beyond(start, buckets);
        let symbols = self.place(self.symbols)?;
        // A chain has an end, or the file is damaged.
        for index in index..index + 1024 {
            let link = word(beyond(chains, index.checked_sub(first)?))?;
            if link as u32 | 1 == hash | 1 {
                let room = &mut [0; 64];
                let symbol = word(beyond(symbols, index * 6))?;
                if self.text(file, symbol, room) == Some(name) {
                    return Some(true);
                }
            }
            if link & 1 == 1 {
                return Some(false);
            }
        }
        None
    }
}

/// Opens a file to look at it. A FIFO would make a plain open wait for a writer.
fn open(path: &CStr) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::openat(CWD, path, flags, Mode::empty()).ok()
}

/// A path in the making, with a zero behind it.
struct Path {
    bytes: [u8; TEXT],
    length: usize,
}

impl Path {
    const fn new() -> Path {
        Path { bytes: [0; TEXT], length: 0 }
    }

    fn push(&mut self, more: &[u8]) -> Option<()> {
        let to = self.bytes[..TEXT - 1].get_mut(self.length..self.length + more.len())?;
        to.copy_from_slice(more);
        self.length += more.len();
        Some(())
    }

    fn open(&self) -> Option<OwnedFd> {
        open(CStr::from_bytes_until_nul(&self.bytes).ok()?)
    }
}

/// Adds the folder in which the file lies.
fn push_origin(file: BorrowedFd<'_>, path: &mut Path) -> Option<()> {
    let link = &mut [0; 32];
    let mut room = [MaybeUninit::<u8>::uninit(); TEXT];
    let link = descriptor_path(file.as_raw_fd(), link);
    let (found, _) = rustix::fs::readlinkat_raw(CWD, link, &mut room).ok()?;
    let end = found.iter().rposition(|&byte| byte == b'/')?;
    path.push(&found[..end])
}

/// The library `name` in a list of folders, in which $ORIGIN is that of `file`.
fn open_in(folders: &[u8], name: &[u8], file: Option<BorrowedFd<'_>>) -> Option<OwnedFd> {
    let is_end = |byte: &u8| matches!(byte, b':' | b';');
    folders.split(is_end).filter(|folder| !folder.is_empty()).find_map(|folder| {
        let mut path = Path::new();
        let origin = [&b"$ORIGIN"[..], b"${ORIGIN}"];
        match origin.iter().find_map(|token| folder.strip_prefix(*token)) {
            Some(rest) => {
                push_origin(file?, &mut path)?;
                path.push(rest)?;
            }
            None => path.push(folder)?,
        }
        path.push(b"/")?;
        path.push(name)?;
        path.open()
    })
}

/// Where the loader looks at last.
const USUAL_FOLDERS: &[u8] = b"/lib64:/usr/lib64:/lib:/usr/lib";

/// A closure that is looked through.
struct Closure<'a> {
    /// LD_LIBRARY_PATH of the program.
    library_path: &'a [u8],
    cache: Option<LoaderCache>,
    /// Sums of the names that were met.
    met: [u64; FILES],
    met_count: usize,
    /// Files that are still to be looked at.
    open: [Option<OwnedFd>; OPEN],
    open_count: usize,
    found: Needs,
}

impl Closure<'_> {
    fn new(library_path: &[u8]) -> Closure<'_> {
        Closure {
            library_path,
            cache: None,
            met: [0; FILES],
            met_count: 0,
            open: [const { None }; OPEN],
            open_count: 0,
            found: Needs::NONE,
        }
    }

    /// Whether the name is met for the first time, and there is room to remember it.
    fn meets(&mut self, name: &[u8]) -> bool {
        let sum = sum_of(name, 0);
        let is_new = !self.met[..self.met_count].contains(&sum) && self.met_count < FILES;
        if is_new {
            self.met[self.met_count] = sum;
            self.met_count += 1;
        }
        is_new
    }

    /// The library that a file means by `name`.
    fn find(
        &mut self,
        name: &[u8],
        folders: &[u8],
        file: Option<BorrowedFd<'_>>,
    ) -> Option<OwnedFd> {
        if name.contains(&b'/') {
            let mut path = Path::new();
            path.push(name)?;
            return path.open();
        }
        if let Some(found) =
            open_in(self.library_path, name, None).or_else(|| open_in(folders, name, file))
        {
            return Some(found);
        }
        let cache = self.cache.get_or_insert_with(LoaderCache::open);
        let cached = cache.path_of(name).and_then(open);
        cached.or_else(|| open_in(USUAL_FOLDERS, name, None))
    }

    /// Takes a library that was found by `name` into account.
    fn take(&mut self, name: &[u8], library: OwnedFd) {
        let needs = Needs::of_library(name);
        self.found = self.found.with(needs);
        let fd = borrow(library.as_raw_fd());
        let mut note = |symbol, has: Needs| {
            if Dynamic::of(fd).and_then(|found| found.defines(fd, symbol)) == Some(true) {
                self.found = self.found.with(has);
            }
        };
        if needs == Needs::HDF5 {
            note(SEVERAL_AT_ONCE, Needs::HDF5_LATER);
        }
        if needs == Needs::MPI {
            note(LARGE_COUNTS, Needs::MPI_LARGE);
        } else if let Some(place) = self.open.get_mut(self.open_count) {
            *place = Some(library);
            self.open_count += 1;
        }
    }

    /// Looks at what a file needs.
    fn look(&mut self, file: BorrowedFd<'_>) {
        let Some(dynamic) = Dynamic::of(file) else { return };
        let (names, room) = (&mut [0; 256], &mut [0; TEXT]);
        let folders =
            dynamic.folders.and_then(|at| dynamic.text(file, at, room)).unwrap_or_default();
        for &place in &dynamic.needed[..dynamic.count] {
            let Some(name) = dynamic.text(file, place.into(), names) else { continue };
            if is_leaf(name) || !self.meets(name) {
                continue;
            }
            match self.find(name, folders, Some(file)) {
                Some(library) => self.take(name, library),
                None => self.found = self.found.with(Needs::of_library(name)),
            }
        }
    }

    /// What all that is open needs, and what that needs.
    fn follow(mut self) -> Needs {
        // A runtime is among what the program itself names, which was looked at first.
        while self.found.among(Needs::ALL) != Needs::ALL && self.open_count > 0 {
            self.open_count -= 1;
            if let Some(file) = self.open[self.open_count].take() {
                self.look(borrow(file.as_raw_fd()));
            }
        }
        self.found
    }
}

/// What the program in an ELF file needs, whose environment has this LD_LIBRARY_PATH.
pub(super) fn of_program(file: BorrowedFd<'_>, library_path: &[u8]) -> Needs {
    let mut closure = Closure::new(library_path);
    closure.look(file);
    closure.follow()
}

/// What the library needs that `name` means, by path or as the loader finds it, with itself.
pub(super) fn of_library(name: &[u8], library: OwnedFd, library_path: &[u8]) -> Needs {
    let mut closure = Closure::new(library_path);
    closure.take(name, library);
    closure.follow()
}

/// The library that `name` means to `dlopen`.
pub(super) fn find_library(name: &[u8], library_path: &[u8]) -> Option<OwnedFd> {
    Closure::new(library_path).find(name, b"", None)
}

/// A sum over bytes, in the manner of Fowler, Noll and Vo.
pub(super) fn sum_of(bytes: &[u8], seed: u64) -> u64 {
    bytes.iter().fold(seed ^ 0xcbf2_9ce4_8422_2325, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3).rotate_left(5)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::fs;
    use std::process::Command;

    #[test]
    fn libraries_are_known_by_their_names() {
        for (name, needs) in [
            (&b"libmpi.so.40"[..], Needs::MPI),
            (b"/opt/lib/libmpich.so.12", Needs::MPI),
            (b"libmpi_abi.so.0", Needs::MPI),
            (b"libasan.so.8", Needs::from_bits(64)),
            (b"libasan.so.8.0.0", Needs::NONE),
            (b"libhdf5_hl-0a1b.so.320", Needs::HDF5),
            (b"libhdf5.a", Needs::NONE),
            (b"libmpfr.so.6", Needs::NONE),
            (b"libc.so.6", Needs::NONE),
        ] {
            assert_eq!(Needs::of_library(name), needs, "{}", String::from_utf8_lossy(name));
        }
        assert_eq!(Needs::of_preloaded(b"/x/libforebay_mpiio.so"), Needs::MPI);
        let hdf5 = Needs::HDF5.with(Needs::HDF5_LATER).adapters().collect::<Vec<_>>();
        assert_eq!(hdf5, ["libforebay_hdf5_later.so", "libforebay_hdf5.so"]);
        assert_eq!(Needs::of_preloaded(b"/x/libforebay_mpiio.so.1"), Needs::NONE);
    }

    #[test]
    fn what_is_admitted_is_named() {
        assert_eq!(Needs::admitted("auto"), Some(Needs::ALL));
        assert_eq!(Needs::admitted("hdf5, mpiio"), Some(Needs::ALL));
        assert_eq!(Needs::admitted("none"), Some(Needs::NONE));
        assert_eq!(Needs::admitted(""), Some(Needs::NONE));
        assert_eq!(Needs::admitted("mpio"), None);
    }

    #[test]
    fn the_closure_is_found_as_the_loader_finds_it() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let build = |name: &str, words: &[&str]| {
            let mut command = Command::new("cc");
            command.current_dir(folder.path()).args(["-fPIC", "-Wl,--no-as-needed", "-o", name]);
            command.args(words).status().is_ok_and(|status| status.success())
        };
        fs::create_dir(at("far")).unwrap();
        fs::write(at("empty.c"), "int main(void) { return 0; }").unwrap();
        fs::write(at("several.c"), "int H5Dwrite_multi(void) { return 0; }").unwrap();
        fs::write(at("large.c"), "int MPI_File_read_c(void) { return 0; }").unwrap();
        let shared = ["-shared", "-x", "c", "/dev/null"];
        if !build("libmpi.so.1", &shared) {
            return;
        }
        assert!(build("far/libmpi.so.2", &["-shared", "large.c", "-Wl,-soname,libmpi.so.2"]));
        assert!(build("libhdf5_x.so", &shared));
        assert!(build("far/libhdf5_y.so", &["-shared", "several.c", "-Wl,-soname,libhdf5_y.so"]));
        // One that needs another, which lies beside it.
        let beside = [&shared[..], &["-x", "none", "-Wl,-rpath,$ORIGIN", "libhdf5_x.so"]].concat();
        assert!(build("libmiddle.so", &beside));
        let found = |program: &str, library_path: &str| {
            let path = CString::new(at(program).to_str().unwrap()).unwrap();
            let file = open(&path).unwrap();
            of_program(borrow(file.as_raw_fd()), library_path.as_bytes())
        };
        let here = folder.path().to_str().unwrap();
        for (program, words, library_path, needs) in [
            ("plain", &["empty.c"][..], "", Needs::NONE),
            ("direct", &["empty.c", "libmpi.so.1"], here, Needs::MPI),
            // By its name alone: the library is nowhere.
            ("missing", &["empty.c", "libmpi.so.1"], "", Needs::MPI),
            (
                "large",
                &["empty.c", "far/libmpi.so.2", "-Wl,-rpath,$ORIGIN/far"],
                "",
                Needs::MPI.with(Needs::MPI_LARGE),
            ),
            (
                "several",
                &["empty.c", "far/libhdf5_y.so", "-Wl,-rpath,$ORIGIN/far"],
                "",
                Needs::HDF5.with(Needs::HDF5_LATER),
            ),
            ("indirect", &["empty.c", "libmiddle.so", "-Wl,-rpath-link,."], here, Needs::HDF5),
            ("lost", &["empty.c", "libmiddle.so", "-Wl,-rpath-link,."], "", Needs::NONE),
        ] {
            assert!(build(program, words), "{program}");
            assert_eq!(found(program, library_path), needs, "{program}");
        }
        // A file of which the half is missing says nothing, and ends no process.
        let whole = fs::read(at("indirect")).unwrap();
        for length in (0..whole.len().min(16 << 10)).step_by(61) {
            fs::write(at("cut"), &whole[..length]).unwrap();
            found("cut", here);
        }
        let mut damaged = whole;
        damaged.iter_mut().take(4096).skip(5).step_by(7).for_each(|byte| *byte ^= 0xff);
        fs::write(at("damaged"), damaged).unwrap();
        found("damaged", here);
    }

    #[test]
    fn programs_of_the_system_need_none() {
        for path in [c"/bin/sh", c"/bin/ls", c"/proc/self/exe"] {
            let Some(file) = open(path) else { continue };
            assert_eq!(of_program(borrow(file.as_raw_fd()), b""), Needs::NONE, "{path:?}");
        }
        let found = find_library(b"libc.so.6", b"").unwrap();
        assert_eq!(of_library(b"libc.so.6", found, b""), Needs::NONE);
    }
}
