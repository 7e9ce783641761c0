//! exec and posix_spawn: the new program must find the library and the pool, and if it cannot load
//! the library, its descriptors must be the kernel's.

mod environment;
mod handing;
mod known;
mod loader_cache;
mod needs;
mod program;
mod reach;
mod search;
mod ways;

use crate::fd::{borrow, reopen};
use crate::session::Session;
use crate::user_memory::UserPath;
use core::ffi::CStr;
pub use environment::{Carried, Environment, Variables, take_adapters};
pub use handing::{Managed, Told};
pub use needs::{Needs, is_runtime};
use program::loads_libraries;
pub(crate) use reach::Reach;
use rustix::fd::{AsRawFd, OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::FdFlags;
pub use ways::{DeepBind, MpiIo};

/// Gives the session that is the caller's own: a vforked child takes one.
pub type Own = fn() -> Option<&'static Session>;

/// How a program starts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Start {
    /// It loads the library, and joins the pool.
    pub joins: bool,
    /// The adapters that are loaded with it, and the runtime that has to come first.
    pub needs: Needs,
}

/// The adapters that the program needs which `name` means, in the folders of `search` if it is no
/// path, and whose environment has this LD_LIBRARY_PATH.
pub fn needs_of_command(name: &CStr, search: &CStr, library_path: &[u8]) -> Needs {
    if name.to_bytes().contains(&b'/') {
        return needs_of_program(name, library_path);
    }
    search::with_found(name, search, |path, _| needs_of_program(path, library_path))
        .unwrap_or_default()
}

fn needs_of_program(path: &CStr, library_path: &[u8]) -> Needs {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let Ok(file) = rustix::fs::openat(rustix::fs::CWD, path, flags, Mode::empty()) else {
        return Needs::NONE;
    };
    let stat = rustix::fs::fstat(&file).ok();
    let needs = |file: &OwnedFd, _: Option<&Stat>| {
        needs::of_program(borrow(file.as_raw_fd()), library_path)
    };
    loads_libraries(&file, stat.as_ref(), 0, &needs).unwrap_or_default()
}

impl Session {
    /// Before a program at `path` is executed: it is read from the store by the kernel, and if it
    /// does not load us it uses the descriptors it inherits through the kernel.
    ///
    /// In a vforked child this session may be the parent's. `own` then gives the child's, if
    /// anything is to be done.
    pub fn program_starts(&self, path: UserPath<'_>, variables: Variables<'_>, own: Own) -> Start {
        let Some(path) = path.get() else { return Start::default() };
        match rustix::fs::stat(path) {
            Ok(stat) => self.seen_program_starts(path, &stat, variables, own),
            Err(_) => Start::default(),
        }
    }

    /// The same where `stat` was seen of the program.
    fn seen_program_starts(
        &self,
        path: &CStr,
        stat: &Stat,
        variables: Variables<'_>,
        own: Own,
    ) -> Start {
        if let Some(needs) = self.needs_of_known_program(stat, variables)
            && self.is_ours(variables)
            && self.can_be_joined()
        {
            return Start { joins: true, needs };
        }
        // A FIFO would make a plain open wait for a writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let opened = rustix::fs::openat(rustix::fs::CWD, path, flags, Mode::empty()).ok();
        opened
            .map_or_else(Start::default, |file| self.readable_program_starts(&file, variables, own))
    }

    /// Whether a program with `variables` is to join the pool of this process.
    fn is_ours(&self, variables: Variables<'_>) -> bool {
        !variables.switch_off() && self.carried.is_pool_of(variables)
    }

    /// As [`Session::program_starts`], for the program behind `fd`.
    pub fn opened_program_starts(&self, fd: RawFd, variables: Variables<'_>, own: Own) -> Start {
        // It may have been opened for nothing but this, with O_PATH.
        if let Ok(file) = reopen(fd, OFlags::RDONLY | OFlags::NONBLOCK) {
            return self.readable_program_starts(&file, variables, own);
        }
        if fd >= 0
            && let Some(session) = own()
        {
            session.make_clean(fd);
            if !self.can_be_joined() {
                session.prepare_for_unmanaged_program();
            }
        }
        Start::default()
    }

    fn readable_program_starts(&self, file: &OwnedFd, variables: Variables<'_>, own: Own) -> Start {
        let stat = rustix::fs::fstat(file).ok();
        let is_known = stat.as_ref().is_some_and(|stat| self.is_in_table(stat));
        let ask = |file: &OwnedFd, stat: Option<&Stat>| self.needs_of(file, stat, variables);
        let needs = self.is_ours(variables).then(|| loads_libraries(file, stat.as_ref(), 0, &ask));
        let needs = needs.flatten();
        let needs = needs.filter(|_| self.can_be_joined());
        let start = Start { joins: needs.is_some(), needs: needs.unwrap_or_default() };
        if start.joins && !is_known {
            return start;
        }
        let Some(session) = own() else { return Start::default() };
        session.make_clean(file.as_raw_fd());
        if !start.joins {
            session.prepare_for_unmanaged_program();
        }
        start
    }

    /// The adapters that the program in an ELF file needs and that may be loaded, where its
    /// environment is `variables`, and the runtime.
    fn needs_of(&self, file: &OwnedFd, stat: Option<&Stat>, variables: Variables<'_>) -> Needs {
        if let Some(stat) = stat {
            self.note_program(stat);
        }
        let admitted = self.carried.admitted_for(variables).with(Needs::RUNTIMES);
        let library_path = variables.library_path();
        let find = || needs::of_program(borrow(file.as_raw_fd()), library_path);
        self.remembered_needs(stat, library_path, find).among(admitted)
    }

    /// The adapters that are to be loaded before the library that `name` means to `dlopen`, where
    /// this process has the LD_LIBRARY_PATH; those of `but` are loaded already.
    pub fn library_needs(&self, name: &CStr, library_path: &[u8], but: Needs) -> Needs {
        let wanted = self.carried.admitted().without(but);
        if wanted.is_empty() {
            return wanted;
        }
        let name = name.to_bytes();
        if needs::is_leaf(name) {
            return Needs::NONE;
        }
        let Some(library) = needs::find_library(name, library_path) else { return Needs::NONE };
        let stat = rustix::fs::fstat(&library).ok();
        let find = || needs::of_library(name, library, library_path);
        self.remembered_needs(stat.as_ref(), library_path, find).among(wanted)
    }

    /// What a file needs, as some process of the pool has found it out, or else `find` does.
    fn remembered_needs(
        &self,
        stat: Option<&Stat>,
        library_path: &[u8],
        find: impl FnOnce() -> Needs,
    ) -> Needs {
        let Some(stat) = stat else { return find() };
        let key = known::key_of(stat, library_path);
        let header = self.segment.header();
        if let Some(bits) = header.needs_of(key) {
            return Needs::from_bits(bits);
        }
        let found = find();
        // There is room for adapters alone; programs with a runtime are few, and looked at again.
        if found.among(Needs::RUNTIMES).is_empty() {
            header.note_needs(key, found.bits());
        }
        found
    }

    /// Gives a program that does not load us what is on the store, and descriptors that the kernel
    /// can read and write.
    fn prepare_for_unmanaged_program(&self) {
        self.note_unmanaged_peers();
        // It also opens what it likes by name.
        self.sync_all(false);
        for file in self.files() {
            let stays = rustix::io::fcntl_getfd(borrow(file.fd))
                .is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC));
            if stays && !file.uses_kernel_offset() {
                let _ = file.release_to_kernel();
            }
        }
    }

    /// As [`Session::program_starts`], for the program that `name` means: without a slash the first
    /// one in the folders of `search`.
    pub fn found_program_starts(
        &self,
        name: UserPath<'_>,
        search: &CStr,
        variables: Variables<'_>,
        own: Own,
    ) -> Start {
        let Some(name) = name.get() else { return Start::default() };
        let starts =
            |path: &CStr, stat: &Stat| self.seen_program_starts(path, stat, variables, own);
        match name.to_bytes().contains(&b'/') {
            true => self.program_starts(name.into(), variables, own),
            false => search::with_found(name, search, starts).unwrap_or_default(),
        }
    }
}
