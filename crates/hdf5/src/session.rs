//! The session of the process, which the preload library has: found once, by the symbol of its
//! table.

use core::ffi::CStr;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use forebay_client::services::{ByteRange, NOT_MANAGED, SERVICES, Services};

/// Null before the first look; [`ABSENT`] where the process has no such library.
static FOUND: AtomicPtr<Services> = AtomicPtr::new(null_mut());

/// No table has such an address.
const ABSENT: *mut Services = core::ptr::without_provenance_mut(1);

/// A file, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    /// That of the file at a path, as the program's working directory has it now.
    pub fn at(path: &CStr) -> Option<FileIdentity> {
        let found = rustix::fs::stat(path).ok()?;
        Some(FileIdentity { device: found.st_dev, inode: found.st_ino })
    }
}

/// A file that the session of the process buffers.
#[derive(Clone, Copy)]
pub struct ManagedFile {
    services: &'static Services,
    fd: i32,
}

impl ManagedFile {
    /// The file, if the process has it open and buffers it.
    pub fn of(identity: FileIdentity) -> Option<ManagedFile> {
        let services = services()?;
        let fd = (services.descriptor_of)(identity.device, identity.inode);
        (fd != NOT_MANAGED).then_some(ManagedFile { services, fd })
    }

    /// Says where a dataset lies. The pool counts those for which it has no room.
    pub fn note(self, name: &[u8], ranges: &[ByteRange]) {
        let (name, bytes) = (name.as_ptr(), name.len());
        // SAFETY: a name and ranges of these lengths.
        unsafe {
            (self.services.note_dataset)(self.fd, name, bytes, ranges.as_ptr(), ranges.len())
        };
    }

    /// Says that bytes will be read.
    pub fn will_need(self, range: ByteRange) {
        let bytes = range.end.saturating_sub(range.start);
        if bytes > 0 {
            (self.services.advise)(self.fd, range.start, bytes, libc::POSIX_FADV_WILLNEED);
        }
    }
}

/// Whether the process runs under Forebay now.
pub fn is_active() -> bool {
    services().is_some()
}

fn services() -> Option<&'static Services> {
    let mut table = FOUND.load(Ordering::Acquire);
    if table.is_null() {
        table = look();
        FOUND.store(table, Ordering::Release);
    }
    if table == ABSENT {
        return None;
    }
    // SAFETY: a table that its library exports, which was loaded with the program and stays.
    let services = unsafe { &*table };
    ((services.is_active)() == 1).then_some(services)
}

#[cold]
fn look() -> *mut Services {
    // SAFETY: a look-up by name, in all that was loaded with the program.
    let table = unsafe { libc::dlsym(libc::RTLD_DEFAULT, SERVICES.as_ptr()) };
    let table = table.cast::<Services>();
    // SAFETY: all tables begin with their length.
    match !table.is_null() && unsafe { (*table).bytes } >= size_of::<Services>() {
        true => table,
        false => ABSENT,
    }
}
