//! What the head of a pool says in every layout, read without a mapping.

use crate::layout::{FOLDER_BYTES, Header, INSTANCE_BYTES, MAGIC};
use core::ffi::CStr;
use core::mem::offset_of;
use rustix::fd::BorrowedFd;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// What the head of a pool says that holds for every layout from 8 on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolIdentity {
    /// Its [`crate::layout::LAYOUT_VERSION`].
    pub layout_version: u32,
    /// Its instance; empty before layout 8.
    pub instance: String,
    /// The folder of its instance; empty if that is not known.
    pub folder: PathBuf,
    /// It is a pool, not a copy of one.
    pub is_original: bool,
}

/// Reads what pool `file` says of itself; `None` if it is no finished pool.
pub fn identify(file: BorrowedFd<'_>) -> Option<PoolIdentity> {
    const LENGTH: usize = offset_of!(Header, folder) + FOLDER_BYTES;
    let mut head = [0u8; LENGTH];
    if rustix::io::pread(file, &mut head, 0).ok()? < LENGTH {
        return None;
    }
    let bytes = |at: usize, length: usize| &head[at..at + length];
    let number = |at: usize| u64::from_ne_bytes(*bytes(at, 8).first_chunk().unwrap_or(&[0; 8]));
    if number(offset_of!(Header, magic)) != MAGIC {
        return None;
    }
    let version = bytes(offset_of!(Header, layout_version), 4).first_chunk();
    let layout_version = u32::from_ne_bytes(*version?);
    let mut found = PoolIdentity {
        layout_version,
        instance: String::new(),
        folder: PathBuf::new(),
        is_original: true,
    };
    if layout_version >= 8 {
        let instance = bytes(offset_of!(Header, instance), INSTANCE_BYTES);
        let inode = rustix::fs::fstat(file).ok()?.st_ino;
        let folder = bytes(offset_of!(Header, folder), FOLDER_BYTES);
        let end = folder.iter().position(|&byte| byte == 0).unwrap_or(0);
        found.instance = String::from_utf8_lossy(instance).into_owned();
        found.folder = PathBuf::from(OsStr::from_bytes(&folder[..end]));
        found.is_original = number(offset_of!(Header, inode)) == inode;
    }
    Some(found)
}

/// Whether `file` is a pool that was never finished: nothing can be in it.
pub fn is_blank(file: BorrowedFd<'_>) -> bool {
    const LENGTH: usize = offset_of!(Header, manager_epoch) + 4;
    let mut head = [0u8; LENGTH];
    let got = rustix::io::pread(file, &mut head, 0);
    let is_zero = |at: usize, length: usize| head[at..at + length].iter().all(|&byte| byte == 0);
    match got {
        Ok(0) => true,
        Ok(LENGTH) => {
            is_zero(offset_of!(Header, magic), 8) && is_zero(offset_of!(Header, manager_epoch), 4)
        }
        _ => false,
    }
}

/// A C string kept in a fixed array of the header.
pub fn text(bytes: &[u8]) -> &CStr {
    CStr::from_bytes_until_nul(bytes).unwrap_or(c"")
}
