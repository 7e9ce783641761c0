//! The orders in which the threads of an earlier run have read the blocks of files, for
//! `forebay run --follow`: memory of the run that its processes map, and that nothing changes any
//! more once it is made.
//!
//! ```
//! use forebay_pool::orders::{Orders, hash};
//!
//! let path = hash(b"/pfs/mesh");
//! let orders = Orders::of(Orders::memory(&mut [(path, vec![7, 3, 9])])?)?;
//! assert_eq!(orders.find(path, 7), Some(0));
//! assert_eq!(orders.list(0), [7, 3, 9]);
//! assert_eq!(orders.find(path, 4), None);
//! # Ok::<(), rustix::io::Errno>(())
//! ```

use core::ptr::NonNull;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Blocks of all orders together: 64 MiB of memory, 4 TiB of files.
pub const BLOCKS_MAX: usize = 1 << 24;
/// Places at the begin of an order where a thread may begin to read.
const BEGIN: usize = 8;
/// Words of four bytes before the lists, and of each list: hash, first block, blocks.
const HEAD: usize = 2;
const LIST: usize = 4;
const MAGIC: u32 = u32::from_le_bytes(*b"FBO1");
const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE).union(SealFlags::SEAL);

/// Characters that would end a field of a recording, which has `_` in place of each.
pub const REPLACED: [char; 3] = [',', '\n', '\r'];

/// What a path is known by: the same for the path of a file and for what a recording has in its
/// place, with [`REPLACED`] characters and what is no UTF-8 replaced.
///
/// ```
/// use forebay_pool::orders::hash;
///
/// assert_eq!(hash(b"/pfs/a,b"), hash(b"/pfs/a_b"));
/// assert_eq!(hash(b"/pfs/\xff"), hash(String::from_utf8_lossy(b"/pfs/\xff").as_bytes()));
/// ```
pub fn hash(path: &[u8]) -> u64 {
    let add = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    path.utf8_chunks().fold(0xcbf2_9ce4_8422_2325, |sum, chunk| {
        // The characters that are replaced have one byte each.
        let is_replaced = |byte: u8| REPLACED.contains(&char::from(byte));
        let valid = chunk.valid().bytes();
        let sum = valid.map(|byte| if is_replaced(byte) { b'_' } else { byte }).fold(sum, add);
        match chunk.invalid() {
            [] => sum,
            _ => "\u{fffd}".bytes().fold(sum, add),
        }
    })
}

/// Orders of blocks, as one process has them mapped.
#[derive(Debug)]
pub struct Orders {
    base: NonNull<u32>,
    words: usize,
}

// SAFETY: memory that nothing writes, which stays as long as this does.
unsafe impl Send for Orders {}
// SAFETY: as above.
unsafe impl Sync for Orders {}

impl Orders {
    /// Memory with these lists: hashes of paths, and blocks in the order in which one thread reads
    /// them. Sorts them.
    ///
    /// # Errors
    /// The system's; `TOOBIG` for more than [`BLOCKS_MAX`] blocks.
    pub fn memory(lists: &mut [(u64, Vec<u32>)]) -> Result<OwnedFd, Errno> {
        let blocks = lists.iter().map(|(_, blocks)| blocks.len()).sum::<usize>();
        if blocks > BLOCKS_MAX || lists.len() > BLOCKS_MAX {
            return Err(Errno::TOOBIG);
        }
        lists.sort_by_key(|(hash, _)| *hash);
        let mut words = vec![MAGIC, lists.len() as u32];
        let mut first = 0;
        for (hash, blocks) in lists.iter() {
            words.extend([*hash as u32, (*hash >> 32) as u32, first, blocks.len() as u32]);
            first += blocks.len() as u32;
        }
        lists.iter().for_each(|(_, blocks)| words.extend(blocks));
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create(c"forebay-orders", flags)?;
        let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
        let mut left = &bytes[..];
        while !left.is_empty() {
            left = &left[rustix::io::write(&memory, left)?..];
        }
        rustix::fs::fcntl_add_seals(&memory, SEALS)?;
        Ok(memory)
    }

    /// Maps such memory.
    ///
    /// # Errors
    /// The system's; `INVAL` if it is not memory with orders.
    pub fn of(memory: impl AsFd) -> Result<Orders, Errno> {
        // Only such memory is sealed: another process may have the number of a run that is gone,
        // and its descriptor be of anything.
        let is_sealed = rustix::fs::fcntl_get_seals(&memory)?.contains(SEALS);
        let bytes = usize::try_from(rustix::fs::fstat(&memory)?.st_size).unwrap_or(0);
        let sizes = HEAD * 4..=4 * (HEAD + (LIST + 1) * BLOCKS_MAX);
        if !is_sealed || !sizes.contains(&bytes) {
            return Err(Errno::INVAL);
        }
        let (access, flags) = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: a new mapping, of a size that the memory has.
        let base = unsafe { mmap(core::ptr::null_mut(), bytes, access, flags, memory, 0)? };
        let base = NonNull::new(base.cast()).ok_or(Errno::INVAL)?;
        let orders = Orders { base, words: bytes / 4 };
        if orders.words()[0] == MAGIC { Ok(orders) } else { Err(Errno::INVAL) }
    }

    fn words(&self) -> &[u32] {
        // SAFETY: the mapping, which is sealed against writes.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }

    /// How many lists there are.
    fn count(&self) -> usize {
        (self.words()[1] as usize).min((self.words - HEAD) / LIST)
    }

    fn head(&self, index: usize) -> &[u32] {
        &self.words()[HEAD + index * LIST..][..LIST]
    }

    fn hash_of(&self, index: usize) -> u64 {
        u64::from(self.head(index)[0]) | u64::from(self.head(index)[1]) << 32
    }

    /// The list of the path with this hash that begins with `block`, or nearly so.
    pub fn find(&self, hash: u64, block: u64) -> Option<u32> {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = low.midpoint(high);
            if self.hash_of(middle) < hash { low = middle + 1 } else { high = middle }
        }
        let of_path = || (low..self.count()).take_while(|&index| self.hash_of(index) == hash);
        let place = |index: usize| {
            let begin = self.list(index as u32).iter().take(BEGIN);
            begin.enumerate().find(|&(_, &known)| u64::from(known) == block).map(|(at, _)| at)
        };
        let found = of_path().filter_map(|index| Some((place(index)?, index))).min();
        found.map(|(_, index)| index as u32)
    }

    /// The blocks of a list; none of one that there is not.
    pub fn list(&self, index: u32) -> &[u32] {
        if index as usize >= self.count() {
            return &[];
        }
        let head = self.head(index as usize);
        let blocks = &self.words()[HEAD + self.count() * LIST..];
        let (first, count) = (head[2] as usize, head[3] as usize);
        blocks.get(first..first.saturating_add(count)).unwrap_or_default()
    }
}

impl Drop for Orders {
    fn drop(&mut self) {
        // SAFETY: the mapping, which nothing refers to any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.words * 4) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_its_lists() {
        let mut lists: Vec<_> =
            (0..50).map(|n| (hash(&[n % 7]), vec![n.into(), 1000 + u32::from(n)])).collect();
        let orders = Orders::of(Orders::memory(&mut lists).unwrap()).unwrap();
        for n in 0..50 {
            let index = orders.find(hash(&[n % 7]), n.into()).unwrap();
            assert_eq!(orders.list(index), [n.into(), 1000 + u32::from(n)]);
            assert_eq!(orders.find(hash(&[n % 7 + 1]), n.into()), None);
        }
        assert_eq!(orders.find(hash(b"other"), 3), None);
        assert!(orders.list(50).is_empty() && orders.list(u32::MAX).is_empty());
    }

    #[test]
    fn other_memory_is_refused() {
        let memory = rustix::fs::memfd_create(c"x", MemfdFlags::ALLOW_SEALING).unwrap();
        assert_eq!(Orders::of(&memory).unwrap_err(), Errno::INVAL);
        rustix::io::write(&memory, &[0; 64]).unwrap();
        rustix::fs::fcntl_add_seals(&memory, SEALS).unwrap();
        assert_eq!(Orders::of(&memory).unwrap_err(), Errno::INVAL);
        // Numbers that lead out of it lead nowhere.
        let memory = rustix::fs::memfd_create(c"x", MemfdFlags::ALLOW_SEALING).unwrap();
        let words = [MAGIC, u32::MAX, 1, 0, u32::MAX, u32::MAX, 9, 9];
        rustix::io::write(&memory, &words.map(u32::to_ne_bytes).concat()).unwrap();
        rustix::fs::fcntl_add_seals(&memory, SEALS).unwrap();
        let orders = Orders::of(&memory).unwrap();
        assert!(orders.list(0).is_empty() && orders.find(1, 9).is_none());
    }
}
