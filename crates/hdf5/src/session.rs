//! The session of the process, which the preload library has.

use core::ffi::CStr;
use forebay_client::services::{ByteRange, Found, NOT_MANAGED, Services};

static FOUND: Found = Found::new();

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

    /// Whether a rule may ask for the metadata of files.
    pub fn tells_metadata_apart(self) -> bool {
        (self.services.tells_metadata_apart)(self.fd) == 1
    }

    /// Says that from an offset on these ranges are metadata, and nothing else is.
    pub fn note_metadata(self, from: u64, ranges: &[ByteRange]) {
        // SAFETY: ranges of this length.
        unsafe { (self.services.note_metadata)(self.fd, from, ranges.as_ptr(), ranges.len()) };
    }

    /// Says that a dataset or group is at another path now; `None`: at none.
    pub fn rename(self, from: &[u8], to: Option<&[u8]>) {
        let to = to.unwrap_or_default();
        // SAFETY: names of these lengths.
        unsafe {
            (self.services.rename_datasets)(
                self.fd,
                from.as_ptr(),
                from.len(),
                to.as_ptr(),
                to.len(),
            )
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
    // SAFETY: a look-up by name, in all that was loaded with the program.
    FOUND.get(|name| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}
