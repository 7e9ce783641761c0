//! The loader's list of libraries, /etc/ld.so.cache: struct cache_file_new in glibc's dl-cache.h.

use core::ffi::{CStr, c_void};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const PATH: &CStr = c"/etc/ld.so.cache";
/// Larger ones are not looked at.
const LARGEST: u64 = 64 << 20;
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
/// What older versions have in front of it: entries of 12 bytes.
const OLD_MAGIC: &[u8] = b"ld.so-1.7.0\0";
const HEAD: usize = 48;
const ENTRY: usize = 24;

/// What the flags of an entry say that is a library for this processor, of 64 bits.
#[cfg(target_arch = "x86_64")]
const IS_OURS: Option<u32> = Some(0x0303);
#[cfg(not(target_arch = "x86_64"))]
const IS_OURS: Option<u32> = None;

/// The list, in pages of its own: `ldconfig` replaces the file and never changes it.
pub(super) struct LoaderCache {
    start: *mut c_void,
    bytes: usize,
}

impl LoaderCache {
    /// The list as it is now; an empty one where there is none.
    pub(super) fn open() -> LoaderCache {
        LoaderCache::map().unwrap_or(LoaderCache { start: core::ptr::null_mut(), bytes: 0 })
    }

    fn map() -> Option<LoaderCache> {
        let file = rustix::fs::openat(
            rustix::fs::CWD,
            PATH,
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .ok()?;
        let size = rustix::fs::fstat(&file).ok()?.st_size as u64;
        if !(HEAD as u64..=LARGEST).contains(&size) {
            return None;
        }
        let (bytes, null) = (size as usize, core::ptr::null_mut());
        // SAFETY: new pages, where the kernel has room for them.
        let start = unsafe { mmap(null, bytes, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) };
        Some(LoaderCache { start: start.ok()?, bytes })
    }

    fn bytes(&self) -> &[u8] {
        if self.start.is_null() {
            return &[];
        }
        // SAFETY: mapped until this ends, and not changed.
        unsafe { core::slice::from_raw_parts(self.start.cast(), self.bytes) }
    }

    /// The path of the library of this name.
    pub(super) fn path_of(&self, name: &[u8]) -> Option<&CStr> {
        path_in(self.bytes(), name)
    }
}

impl Drop for LoaderCache {
    fn drop(&mut self) {
        if !self.start.is_null() {
            // SAFETY: what `map` has mapped; no reference to it is left.
            let _ = unsafe { munmap(self.start, self.bytes) };
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn path_in<'c>(cache: &'c [u8], name: &[u8]) -> Option<&'c CStr> {
    let cache = match cache.starts_with(OLD_MAGIC) {
        true => {
            let entries = word(cache, OLD_MAGIC.len())? as usize;
            let end = entries.checked_mul(12)?.checked_add(OLD_MAGIC.len() + 4)?;
            cache.get(end.checked_next_multiple_of(8)?..)?
        }
        false => cache,
    };
    if !cache.starts_with(MAGIC) {
        return None;
    }
    let count = word(cache, MAGIC.len())? as usize;
    let entries = cache.get(HEAD..)?.chunks_exact(ENTRY).take(count);
    let text = |at: u32| CStr::from_bytes_until_nul(cache.get(at as usize..)?).ok();
    for entry in entries {
        let is_it = |at: u32| {
            let behind = cache.get(at as usize..)?.strip_prefix(name)?;
            (behind.first() == Some(&0)).then_some(())
        };
        let is_ours = IS_OURS.is_none_or(|ours| word(entry, 0) == Some(ours));
        if is_ours && is_it(word(entry, 4)?).is_some() {
            return text(word(entry, 8)?);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list with one entry.
    fn list(name: &[u8], path: &[u8]) -> Vec<u8> {
        let flags = IS_OURS.unwrap_or(0);
        let (key, value) = ((HEAD + ENTRY) as u32, (HEAD + ENTRY + name.len() + 1) as u32);
        let mut made = [MAGIC, &1u32.to_le_bytes()].concat();
        made.resize(HEAD, 0);
        [flags, key, value, 0, 0, 0].iter().for_each(|word| made.extend(word.to_le_bytes()));
        [made, name.to_vec(), vec![0], path.to_vec(), vec![0]].concat()
    }

    #[test]
    fn names_are_found_in_lists_of_both_forms() {
        let new = list(b"liba.so.1", b"/lib/liba.so.1");
        let old = [OLD_MAGIC, &1u32.to_le_bytes(), &[7; 12], &[0; 4], &new].concat();
        for cache in [&new, &old] {
            assert_eq!(path_in(cache, b"liba.so.1"), Some(c"/lib/liba.so.1"));
            assert_eq!(path_in(cache, b"liba.so"), None);
            assert_eq!(path_in(cache, b"liba.so.10"), None);
            for length in 0..cache.len() {
                assert_eq!(path_in(&cache[..length], b"liba.so.1"), None, "{length}");
            }
        }
        // Entries that point out of it.
        let mut wild = new;
        wild[HEAD + 4..HEAD + 12].fill(0xff);
        assert_eq!(path_in(&wild, b"liba.so.1"), None);
    }

    #[test]
    fn the_systems_list_has_the_c_library() {
        let cache = LoaderCache::open();
        if !cache.bytes().is_empty() {
            assert!(cache.path_of(b"libc.so.6").is_some());
        }
    }
}
