//! An emulated store that several node managers share: its token bucket lies in a file that the
//! managers, and the programs under them, map.
//!
//! What a transfer takes is a moment to which the device is booked, not a lock: a process that dies
//! after it has booked time leaves a device that is free again when that time is over.
//!
//! ```
//! use forebay_pool::shared_device::{DeviceSpeed, SharedDevice};
//! use std::sync::atomic::Ordering;
//!
//! let path = std::env::temp_dir().join(format!("forebay-doc-device-{}", std::process::id()));
//! let speed = DeviceSpeed { read_bandwidth: 1_000, write_bandwidth: 1_000, latency_ns: 0 };
//! // Two managers, or one and a program of another.
//! let one = SharedDevice::open_or_create(&path, speed)?;
//! let other = SharedDevice::open_or_create(&path, speed)?;
//! one.next_free_ns().store(7, Ordering::Relaxed);
//! assert_eq!(other.next_free_ns().load(Ordering::Relaxed), 7);
//! std::fs::remove_file(&path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::layout::Emulation;
use crate::liveness;
use crate::private::{self, Wrong};
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::path::Arg;

/// The first bytes of the file.
const MAGIC: u64 = u64::from_le_bytes(*b"FOREDEV\0");
/// Raised with every change of [`Shared`].
const VERSION: u64 = 1;

/// The content of the file; what is 0 was not set yet. Each word is set once, from 0, by the
/// process that comes first: so a file that two managers make at once is right, and so is one whose
/// maker was killed in the middle.
#[repr(C)]
struct Shared {
    magic: AtomicU64,
    version: AtomicU64,
    /// The speeds, each with 1 more.
    read_bandwidth: AtomicU64,
    write_bandwidth: AtomicU64,
    latency_ns: AtomicU64,
    /// Which start of the machine `next_free_ns` is of; 0 is not known. CLOCK_MONOTONIC begins anew
    /// with each.
    boot: AtomicU64,
    /// CLOCK_MONOTONIC nanoseconds at which the device is free again.
    next_free_ns: AtomicU64,
    spare: u64,
}

/// Bytes of the file.
const BYTES: usize = 64;
const _: () = assert!(size_of::<Shared>() == BYTES);

/// How fast the device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSpeed {
    /// Bytes per second; 0 is not limited.
    pub read_bandwidth: u64,
    /// Bytes per second; 0 is not limited.
    pub write_bandwidth: u64,
    /// Nanoseconds added to each transfer.
    pub latency_ns: u64,
}

impl From<&Emulation> for DeviceSpeed {
    fn from(emulation: &Emulation) -> DeviceSpeed {
        let Emulation { read_bandwidth, write_bandwidth, latency_ns, .. } = *emulation;
        DeviceSpeed { read_bandwidth, write_bandwidth, latency_ns }
    }
}

/// Why a file cannot be the token bucket of a store. It is left as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceError {
    /// It is not a file of this user alone, or a system call failed.
    File(Wrong),
    /// It has so many bytes, or other content than such files have.
    Foreign(u64),
    /// It was made by a version of Forebay that has this one in its place.
    OtherVersion(u64),
    /// It was made for a device of this speed.
    OtherSpeed(DeviceSpeed),
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(Wrong::System(errno)) => write!(
                f,
                "{errno}; name a file that can be made, or read and written, on a file system of \
                 this machine"
            ),
            Self::File(wrong) => write!(f, "{wrong}"),
            Self::Foreign(bytes) => write!(
                f,
                "it is no file of a shared device ({bytes} bytes, or other content); name another, \
                 or one that is not there yet"
            ),
            Self::OtherVersion(found) => write!(
                f,
                "another version of Forebay made it (format {found}, this is {VERSION}); remove it \
                 when no node manager uses it"
            ),
            Self::OtherSpeed(DeviceSpeed { read_bandwidth, write_bandwidth, latency_ns }) => {
                write!(
                    f,
                    "it is of a device with {read_bandwidth} B/s (reads), {write_bandwidth} B/s (writes; \
                 0 is not limited) and {latency_ns} ns; give the same bandwidth and latency to all \
                 that share it, or remove it when no node manager uses it"
                )
            }
        }
    }
}

impl core::error::Error for DeviceError {}

impl From<Wrong> for DeviceError {
    fn from(wrong: Wrong) -> DeviceError {
        DeviceError::File(wrong)
    }
}

impl From<Errno> for DeviceError {
    fn from(errno: Errno) -> DeviceError {
        DeviceError::File(Wrong::System(errno))
    }
}

/// The file of a shared device, mapped. Used by all threads; unmapped when dropped.
pub struct SharedDevice(NonNull<Shared>);

// SAFETY: the mapping belongs to the value and no thread.
unsafe impl Send for SharedDevice {}
// SAFETY: all that is used of it is atomics.
unsafe impl Sync for SharedDevice {}

impl SharedDevice {
    /// Maps the file at `path`, and makes it if it is not there: for a node manager. A time that is
    /// booked from before a restart of the machine is forgotten.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn open_or_create(
        path: impl Arg + Copy,
        speed: DeviceSpeed,
    ) -> Result<SharedDevice, DeviceError> {
        let file = private::open_or_create(path, OFlags::RDWR)?;
        if rustix::fs::fstat(&file)?.st_size == 0 {
            // By each that comes at once: the length is the same.
            rustix::fs::ftruncate(&file, BYTES as u64)?;
        }
        let device = SharedDevice::map(file.as_fd())?;
        let shared = device.shared();
        let set = |word: &AtomicU64, value| {
            let _ = word.compare_exchange(0, value, Ordering::AcqRel, Ordering::Acquire);
        };
        set(&shared.magic, MAGIC);
        if shared.magic.load(Ordering::Acquire) == MAGIC {
            set(&shared.version, VERSION);
        }
        if shared.version.load(Ordering::Acquire) == VERSION {
            set(&shared.read_bandwidth, speed.read_bandwidth.saturating_add(1));
            set(&shared.write_bandwidth, speed.write_bandwidth.saturating_add(1));
            set(&shared.latency_ns, speed.latency_ns.saturating_add(1));
        }
        device.check(speed)?;
        let boot = liveness::boot();
        if shared.boot.load(Ordering::Acquire) != boot {
            let booked = shared.next_free_ns.load(Ordering::Relaxed);
            // Another manager that does the same may have booked time already.
            let _ = shared.next_free_ns.compare_exchange(
                booked,
                0,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            shared.boot.store(boot, Ordering::Release);
        }
        Ok(device)
    }

    /// Maps the file at `path`, which a node manager has made: for a process of `user`.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn open(
        path: impl Arg + Copy,
        speed: DeviceSpeed,
        user: u32,
    ) -> Result<SharedDevice, DeviceError> {
        let (file, _) = private::open_seen(path, OFlags::RDWR, user)?;
        let device = SharedDevice::map(file.as_fd())?;
        device.check(speed)?;
        Ok(device)
    }

    fn map(file: BorrowedFd<'_>) -> Result<SharedDevice, DeviceError> {
        let bytes = rustix::fs::fstat(file)?.st_size;
        if bytes != BYTES as i64 {
            return Err(DeviceError::Foreign(bytes as u64));
        }
        let usable = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping.
        let base = unsafe {
            rustix::mm::mmap(core::ptr::null_mut(), BYTES, usable, MapFlags::SHARED, file, 0)
        }?;
        NonNull::new(base.cast()).map(SharedDevice).ok_or(DeviceError::File(Wrong::Kind))
    }

    /// What is in the file was written by others.
    fn check(&self, speed: DeviceSpeed) -> Result<(), DeviceError> {
        let shared = self.shared();
        let word = |word: &AtomicU64| word.load(Ordering::Acquire);
        if word(&shared.magic) != MAGIC {
            return Err(DeviceError::Foreign(BYTES as u64));
        }
        match word(&shared.version) {
            VERSION => {}
            other => return Err(DeviceError::OtherVersion(other)),
        }
        let said = |place: &AtomicU64| word(place).saturating_sub(1);
        let found = DeviceSpeed {
            read_bandwidth: said(&shared.read_bandwidth),
            write_bandwidth: said(&shared.write_bandwidth),
            latency_ns: said(&shared.latency_ns),
        };
        if found == speed { Ok(()) } else { Err(DeviceError::OtherSpeed(found)) }
    }

    fn shared(&self) -> &Shared {
        // SAFETY: mapped for as long as self, and all of it that is used is atomics.
        unsafe { self.0.as_ref() }
    }

    /// CLOCK_MONOTONIC nanoseconds at which the device is free again: what
    /// [`forebay_placement::occupy`] books.
    #[inline]
    pub fn next_free_ns(&self) -> &AtomicU64 {
        &self.shared().next_free_ns
    }
}

impl Drop for SharedDevice {
    fn drop(&mut self) {
        // SAFETY: this mapping is ours and nothing borrows from it any more.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    const SLOW: DeviceSpeed =
        DeviceSpeed { read_bandwidth: 0, write_bandwidth: 23_000_000, latency_ns: 4 };

    /// A directory that goes with the test.
    struct Folder(PathBuf);

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn folder() -> (Folder, PathBuf) {
        let name = format!("fb-device-{}-{:?}", std::process::id(), std::thread::current().id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        let path = folder.join("device");
        (Folder(folder), path)
    }

    fn create(path: &PathBuf) -> Result<SharedDevice, DeviceError> {
        SharedDevice::open_or_create(path, SLOW)
    }

    fn join(path: &PathBuf) -> Result<SharedDevice, DeviceError> {
        SharedDevice::open(path, SLOW, rustix::process::geteuid().as_raw())
    }

    #[test]
    fn managers_and_programs_share_what_is_booked() {
        let (_folder, path) = folder();
        assert!(join(&path).is_err_and(|e| e == DeviceError::File(Wrong::System(Errno::NOENT))));
        let first = create(&path).unwrap();
        first.next_free_ns().store(5, Ordering::Relaxed);
        // A second manager takes nothing back, nor does one that comes after all have ended.
        assert_eq!(create(&path).unwrap().next_free_ns().load(Ordering::Relaxed), 5);
        assert_eq!(join(&path).unwrap().next_free_ns().load(Ordering::Relaxed), 5);
        drop(first);
        let again = create(&path).unwrap();
        again.next_free_ns().store(9, Ordering::Relaxed);
        assert_eq!(join(&path).unwrap().next_free_ns().load(Ordering::Relaxed), 9);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    }

    #[test]
    fn what_was_booked_before_the_machine_started_again_is_forgotten() {
        let (_folder, path) = folder();
        let device = create(&path).unwrap();
        device.next_free_ns().store(u64::MAX, Ordering::Relaxed);
        device.shared().boot.fetch_add(1, Ordering::Relaxed);
        assert_eq!(create(&path).unwrap().next_free_ns().load(Ordering::Relaxed), 0);
        assert_eq!(device.shared().boot.load(Ordering::Relaxed), liveness::boot());
    }

    #[test]
    fn two_that_make_it_at_once_have_one() {
        let (_folder, path) = folder();
        let devices: Vec<_> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|_| scope.spawn(|| create(&path).unwrap())).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        for device in &devices {
            device.next_free_ns().fetch_add(1, Ordering::Relaxed);
        }
        assert!(devices.iter().all(|d| d.next_free_ns().load(Ordering::Relaxed) == 8));
    }

    #[test]
    fn one_whose_maker_was_killed_is_finished() {
        let (_folder, path) = folder();
        let word = |place: usize| fs::read(&path).unwrap()[place * 8..][..8].to_vec();
        for words in 0..5 {
            let _ = fs::remove_file(&path);
            drop(create(&path).unwrap());
            let mut bytes = fs::read(&path).unwrap();
            bytes[words * 8..].fill(0);
            fs::write(&path, bytes).unwrap();
            drop(create(&path).unwrap());
            assert_eq!(word(3), (SLOW.write_bandwidth + 1).to_le_bytes(), "{words}");
        }
        // Made, and nothing more.
        fs::write(&path, "").unwrap();
        assert!(create(&path).is_ok());
    }

    #[test]
    fn what_is_foreign_is_refused_and_left() {
        let (folder, path) = folder();
        let refused = |wanted: DeviceError| {
            assert_eq!(create(&path).err(), Some(wanted));
            assert_eq!(join(&path).err(), Some(wanted));
        };
        let put = |bytes: &[u8]| {
            let _ = fs::remove_file(&path);
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        };
        put(b"notes");
        refused(DeviceError::Foreign(5));
        put(&[b'x'; BYTES]);
        refused(DeviceError::Foreign(BYTES as u64));
        assert_eq!(fs::read(&path).unwrap(), [b'x'; BYTES]);

        fs::remove_file(&path).unwrap();
        let device = create(&path).unwrap();
        device.shared().version.store(7, Ordering::Relaxed);
        refused(DeviceError::OtherVersion(7));
        device.shared().version.store(VERSION, Ordering::Relaxed);
        let faster = DeviceSpeed { write_bandwidth: SLOW.write_bandwidth + 1, ..SLOW };
        let other = SharedDevice::open_or_create(&path, faster).err();
        assert_eq!(other, Some(DeviceError::OtherSpeed(SLOW)));
        assert!(create(&path).is_ok());

        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        refused(DeviceError::File(Wrong::Mode(0o666)));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::hard_link(&path, folder.0.join("other")).unwrap();
        refused(DeviceError::File(Wrong::Links(2)));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(create(&path).is_err() && join(&path).is_err());
        fs::remove_dir(&path).unwrap();
        symlink(folder.0.join("other"), &path).unwrap();
        assert!(create(&path).is_err() && join(&path).is_err());
    }

    #[test]
    fn two_pools_get_together_what_one_gets() {
        use forebay_placement::occupy;
        let (_folder, path) = folder();
        let booked = |pools: u64| {
            let devices: Vec<_> = (0..pools).map(|_| create(&path).unwrap()).collect();
            devices[0].next_free_ns().store(0, Ordering::Relaxed);
            std::thread::scope(|scope| {
                for device in &devices {
                    scope.spawn(|| {
                        for _ in 0..1000 / pools {
                            occupy(device.next_free_ns(), 0, 4096, SLOW.write_bandwidth, 0);
                        }
                    });
                }
            });
            devices[0].next_free_ns().load(Ordering::Relaxed)
        };
        let one = booked(1);
        assert_eq!((booked(2), booked(4)), (one, one));
        assert!(one >= 1000 * 4096 * 1_000_000_000 / SLOW.write_bandwidth);
    }

    #[test]
    fn a_message_names_the_remedy() {
        let said = |error: DeviceError| error.to_string();
        assert!(said(DeviceError::OtherSpeed(SLOW)).contains("23000000 B/s (writes"));
        assert!(said(DeviceError::OtherVersion(2)).contains("format 2, this is 1"));
        assert!(said(DeviceError::Foreign(5)).contains("name another"));
        assert!(said(DeviceError::File(Wrong::System(Errno::ACCESS))).contains("name a file"));
    }
}
