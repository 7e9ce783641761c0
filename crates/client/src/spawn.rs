//! exec and posix_spawn: the new program must find the library and the pool, and if it cannot load
//! the library, its descriptors must be the kernel's.

mod environment;
mod handing;
mod program;
mod search;

use crate::fd::{borrow, reopen};
use crate::session::Session;
use crate::user_memory::UserPath;
use core::ffi::CStr;
pub use environment::{Carried, Environment, Variables};
pub use handing::{Managed, Told};
use program::loads_libraries;
use rustix::fd::{AsRawFd, OwnedFd, RawFd};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};
use rustix::io::FdFlags;

/// Gives the session that is the caller's own: a vforked child takes one.
pub type Own = fn() -> Option<&'static Session>;

impl Session {
    /// Before a program at `path` is executed: it is read from the store by the kernel, and if it
    /// does not load us it uses the descriptors it inherits through the kernel.
    ///
    /// Returns whether it will join.
    ///
    /// In a vforked child this session may be the parent's. `own` then gives the child's, if
    /// anything is to be done.
    pub fn program_starts(&self, path: UserPath<'_>, variables: Variables<'_>, own: Own) -> bool {
        let Some(path) = path.get() else { return false };
        // A FIFO would make a plain open wait for a writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        rustix::fs::open(path, flags, Mode::empty())
            .is_ok_and(|file| self.readable_program_starts(&file, variables, own))
    }

    /// As [`Session::program_starts`], for the program behind `fd`.
    pub fn opened_program_starts(&self, fd: RawFd, variables: Variables<'_>, own: Own) -> bool {
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
        false
    }

    fn readable_program_starts(&self, file: &OwnedFd, variables: Variables<'_>, own: Own) -> bool {
        let stat = rustix::fs::fstat(file).ok();
        let is_known = stat.as_ref().is_some_and(|stat| self.is_in_table(stat));
        let joins = !variables.switch_off()
            && self.carried.is_pool_of(variables)
            && loads_libraries(file, stat.as_ref(), 0)
            && self.can_be_joined();
        if joins && !is_known {
            return true;
        }
        let Some(session) = own() else { return false };
        session.make_clean(file.as_raw_fd());
        if !joins {
            session.prepare_for_unmanaged_program();
        }
        joins
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
    ) -> bool {
        let Some(name) = name.get() else { return false };
        let starts = |path: &CStr| self.program_starts(path.into(), variables, own);
        match name.to_bytes().contains(&b'/') {
            true => starts(name),
            false => search::with_found(name, search, starts).unwrap_or_default(),
        }
    }

    /// Whether a program that this process executes now finds the library and the pool, may use
    /// them as the user it will be, and has the address space for them.
    fn can_be_joined(&self) -> bool {
        let library = self.carried.library().is_some_and(|library| {
            rustix::fs::accessat(CWD, library, Access::READ_OK, AtFlags::EACCESS).is_ok()
        });
        let pool = self.carried.pool().is_some_and(|pool| {
            let access = Access::READ_OK | Access::WRITE_OK;
            rustix::fs::accessat(CWD, pool, access, AtFlags::EACCESS).is_ok()
        });
        let proc = rustix::fs::access(c"/proc/self/stat", Access::READ_OK).is_ok();
        library && pool && proc && self.fits()
    }
}
