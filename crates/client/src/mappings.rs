//! Which memory of the process is private: heap, stacks, arrays, what the loader has mapped. It stays
//! usable until the program unmaps or protects it. A shared mapping of a file does not: another
//! process may truncate the file.
//!
//! ```
//! use forebay_client::mappings::private_at;
//!
//! let array = vec![0u8; 1 << 20];
//! let range = private_at(array.as_ptr().addr()).expect("an array is memory of its own");
//! assert!(range.contains(&(array.as_ptr().addr() + array.len() - 1)));
//! assert_eq!(private_at(0), None);
//! ```

use core::ffi::c_void;
use core::ops::Range;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{self, Errno, read};
use rustix::ioctl::{self, Ioctl, IoctlOutput, Opcode};

/// `struct procmap_query` of linux/fs.h (Linux 6.11).
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name_addr: u64,
    build_id_addr: u64,
}

/// `PROCMAP_QUERY_VMA_SHARED`.
const SHARED: u64 = 8;

// SAFETY: the kernel reads and writes one `struct procmap_query`, of the size that it says.
unsafe impl Ioctl for &mut Query {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        ioctl::opcode::read_write::<Query>(b'f', 17)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        core::ptr::from_mut::<Query>(self).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> io::Result<()> {
        Ok(())
    }
}

/// The mapping that has `address`, if it is private; `None` also where that cannot be
/// found out.
pub fn private_at(address: usize) -> Option<Range<usize>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let maps = openat(CWD, c"/proc/self/maps", flags, Mode::empty()).ok()?;
    let mut query =
        Query { size: size_of::<Query>() as u64, query_addr: address as u64, ..Query::default() };
    // SAFETY: a `Query` as the kernel wants it.
    match unsafe { ioctl::ioctl(&maps, &mut query) } {
        Ok(()) => {
            let is_private = query.vma_flags & SHARED == 0;
            is_private.then_some(query.vma_start as usize..query.vma_end as usize)
        }
        // No mapping is there.
        Err(Errno::NOENT) => None,
        // A kernel before 6.11.
        Err(_) => listed(maps.as_fd(), address),
    }
}

/// The same, from the list in /proc/self/maps.
fn listed(maps: BorrowedFd<'_>, address: usize) -> Option<Range<usize>> {
    let mut buffer = [0u8; 4096];
    let mut filled = 0;
    loop {
        let got = read(maps, &mut buffer[filled..]).ok().filter(|&got| got > 0)?;
        filled += got;
        let mut from = 0;
        while let Some(length) = buffer[from..filled].iter().position(|&byte| byte == b'\n') {
            let line = &buffer[from..from + length];
            from += length + 1;
            let (range, is_private) = mapping(line)?;
            if range.contains(&address) {
                return is_private.then_some(range);
            }
        }
        // A line is at most as long as its numbers and a path.
        buffer.copy_within(from..filled, 0);
        filled -= from;
        if filled == buffer.len() {
            return None;
        }
    }
}

/// The mapping that a line says, `FROM-TO PERMISSIONS OFFSET DEVICE INODE NAME`, and whether it is
/// private.
fn mapping(line: &[u8]) -> Option<(Range<usize>, bool)> {
    let mut fields = line.split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    let number = |text: &[u8]| usize::from_str_radix(core::str::from_utf8(text).ok()?, 16).ok();
    let range = fields.next()?;
    let dash = range.iter().position(|&byte| byte == b'-')?;
    let range = number(&range[..dash])?..number(&range[dash + 1..])?;
    Some((range, fields.next()?.get(3) == Some(&b'p')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

    /// Maps two pages, asks both ways, and unmaps them.
    fn asked(map: impl FnOnce(ProtFlags) -> *mut c_void) -> Option<Range<usize>> {
        let at = map(ProtFlags::READ | ProtFlags::WRITE);
        let maps = openat(CWD, c"/proc/self/maps", OFlags::RDONLY, Mode::empty()).unwrap();
        let found = private_at(at.addr());
        let listed = listed(maps.as_fd(), at.addr());
        // SAFETY: mapped here.
        unsafe { munmap(at, 8192).unwrap() };
        assert_eq!(found, listed, "at {at:p}");
        found.inspect(|range| assert!(range.contains(&(at.addr() + 8191))))
    }

    #[test]
    fn private_memory_is_told_from_shared() {
        let null = core::ptr::null_mut();
        let (private, shared) = (MapFlags::PRIVATE, MapFlags::SHARED);
        // SAFETY: the kernel chooses fresh addresses.
        unsafe {
            assert!(asked(|access| mmap_anonymous(null, 8192, access, private).unwrap()).is_some());
            assert!(asked(|access| mmap_anonymous(null, 8192, access, shared).unwrap()).is_none());
            let file = &tempfile::tempfile().unwrap();
            let map = |flags| move |access| mmap(null, 8192, access, flags, file, 0).unwrap();
            assert!(asked(map(private)).is_some());
            assert!(asked(map(shared)).is_none());
        }
        assert_eq!(private_at(0), None);
        let here = 0u8;
        assert!(private_at((&raw const here).addr()).is_some());
    }
}
