//! Which memory of the process stays usable until the program unmaps or protects it: what is
//! private and anonymous, as heap, stacks and arrays, and the program's own image. A mapping of a
//! file does not, for another process may truncate the file, which takes copied pages away, too.
//!
//! ```
//! use forebay_client::mappings::mapping_at;
//!
//! let array = vec![0u8; 1 << 20];
//! let mapping = mapping_at(array.as_ptr().addr()).expect("an array is mapped");
//! assert!(mapping.stays && mapping.range.contains(&(array.as_ptr().addr() + array.len() - 1)));
//! assert!(mapping_at(0).is_none());
//! ```

use core::ffi::{c_ulong, c_void};
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

/// A mapping of the process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Its addresses.
    pub range: Range<usize>,
    /// Whether what lies in it stays usable until the program takes it away.
    pub stays: bool,
}

impl Mapping {
    fn new(range: Range<usize>, is_private: bool, is_anonymous: bool) -> Mapping {
        let is_image = || image().is_some_and(|image| image.contains(&range.start));
        let stays = is_private && (is_anonymous || is_image());
        Mapping { range, stays }
    }
}

/// The mapping that has `address`; `None` also where that cannot be found out.
pub fn mapping_at(address: usize) -> Option<Mapping> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let maps = openat(CWD, c"/proc/self/maps", flags, Mode::empty()).ok()?;
    let mut query =
        Query { size: size_of::<Query>() as u64, query_addr: address as u64, ..Query::default() };
    // SAFETY: a `Query` as the kernel wants it.
    match unsafe { ioctl::ioctl(&maps, &mut query) } {
        Ok(()) => {
            let range = query.vma_start as usize..query.vma_end as usize;
            Some(Mapping::new(range, query.vma_flags & SHARED == 0, query.inode == 0))
        }
        // No mapping is there.
        Err(Errno::NOENT) => None,
        // A kernel before 6.11.
        Err(_) => listed(maps.as_fd(), address),
    }
}

/// The same, from the list in /proc/self/maps.
#[cold]
#[inline(never)]
fn listed(maps: BorrowedFd<'_>, address: usize) -> Option<Mapping> {
    // A handler's stack may be small.
    let mut buffer = [0u8; 1024];
    let mut filled = 0;
    let found = |line: &[u8]| parsed(line).filter(|mapping| mapping.range.contains(&address));
    // Whether the line that begins in the buffer has been taken, and only its name is left.
    let mut is_named = false;
    loop {
        let got = read(maps, &mut buffer[filled..]).ok().filter(|&got| got > 0)?;
        filled += got;
        let mut from = 0;
        while let Some(length) = buffer[from..filled].iter().position(|&byte| byte == b'\n') {
            let line = &buffer[from..from + length];
            from += length + 1;
            if !core::mem::take(&mut is_named)
                && let Some(mapping) = found(line)
            {
                return Some(mapping);
            }
        }
        buffer.copy_within(from..filled, 0);
        filled -= from;
        if filled == buffer.len() {
            // All but the end of a long name.
            if !is_named && let Some(mapping) = found(&buffer) {
                return Some(mapping);
            }
            (is_named, filled) = (true, 0);
        }
    }
}

/// The mapping that a line says: `FROM-TO PERMISSIONS OFFSET DEVICE INODE NAME`.
fn parsed(line: &[u8]) -> Option<Mapping> {
    let mut fields = line.split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    let number = |text: &[u8]| usize::from_str_radix(core::str::from_utf8(text).ok()?, 16).ok();
    let range = fields.next()?;
    let dash = range.iter().position(|&byte| byte == b'-')?;
    let range = number(&range[..dash])?..number(&range[dash + 1..])?;
    let is_private = fields.next()?.get(3) == Some(&b'p');
    Some(Mapping::new(range, is_private, fields.nth(2)? == b"0"))
}

/// A segment of an ELF file of 64 bits, `Elf64_Phdr` of elf.h.
#[repr(C)]
struct ProgramHeader {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    physical: u64,
    file_bytes: u64,
    bytes: u64,
    align: u64,
}

const AT_PHDR: c_ulong = 3;
const AT_PHNUM: c_ulong = 5;
const PT_LOAD: u32 = 1;
const PT_PHDR: u32 = 6;

unsafe extern "C" {
    pub(crate) safe fn getauxval(kind: c_ulong) -> c_ulong;
}

/// Where the program itself is loaded, its static arrays included.
fn image() -> Option<Range<usize>> {
    let (at, count) = (getauxval(AT_PHDR) as usize, getauxval(AT_PHNUM) as usize);
    if at == 0 {
        return None;
    }
    // SAFETY: where the kernel has put the program's headers, which nothing changes.
    let headers = unsafe {
        core::slice::from_raw_parts(core::ptr::with_exposed_provenance::<ProgramHeader>(at), count)
    };
    let own = headers.iter().find(|header| header.kind == PT_PHDR)?;
    let bias = at.wrapping_sub(own.address as usize);
    let loaded = || headers.iter().filter(|header| header.kind == PT_LOAD);
    let from = loaded().map(|header| header.address).min()?;
    let to = loaded().map(|header| header.address + header.bytes).max()?;
    let (from, to) = (from as usize / 4096 * 4096, to as usize);
    Some(bias.wrapping_add(from)..bias.wrapping_add(to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

    /// Maps two pages, asks both ways, and unmaps them. Says whether they stay.
    fn asked(map: impl FnOnce(ProtFlags) -> *mut c_void) -> bool {
        let at = map(ProtFlags::READ | ProtFlags::WRITE);
        let maps = openat(CWD, c"/proc/self/maps", OFlags::RDONLY, Mode::empty()).unwrap();
        let found = mapping_at(at.addr()).unwrap();
        let listed = listed(maps.as_fd(), at.addr());
        // SAFETY: mapped here.
        unsafe { munmap(at, 8192).unwrap() };
        assert_eq!(Some(&found), listed.as_ref(), "at {at:p}");
        assert!(found.range.contains(&(at.addr() + 8191)));
        found.stays
    }

    #[test]
    fn anonymous_memory_is_told_from_that_of_files() {
        let null = core::ptr::null_mut();
        let (private, shared) = (MapFlags::PRIVATE, MapFlags::SHARED);
        let folder = tempfile::tempdir().unwrap();
        // Lines of the list that are longer than what is read at once.
        let long = (0..8).fold(folder.path().to_owned(), |path, _| path.join("n".repeat(200)));
        std::fs::create_dir_all(&long).unwrap();
        std::fs::File::create_new(long.join("file")).unwrap();
        let file =
            &std::fs::File::options().read(true).write(true).open(long.join("file")).unwrap();
        file.set_len(8192).unwrap();
        // SAFETY: the kernel chooses fresh addresses.
        unsafe {
            assert!(asked(|access| mmap_anonymous(null, 8192, access, private).unwrap()));
            assert!(!asked(|access| mmap_anonymous(null, 8192, access, shared).unwrap()));
            for flags in [private, shared] {
                assert!(!asked(|access| mmap(null, 8192, access, flags, file, 0).unwrap()));
            }
            // Behind that of a long name.
            let held = mmap(null, 8192, ProtFlags::READ, shared, file, 0).unwrap();
            assert!(asked(|access| mmap_anonymous(null, 8192, access, private).unwrap()));
            munmap(held, 8192).unwrap();
        }
        assert_eq!(mapping_at(0), None);
    }

    #[test]
    fn the_stack_and_the_program_stay() {
        static INITIALIZED: [u8; 3] = [1, 2, 3];
        let here = 0u8;
        for address in [(&raw const here).addr(), INITIALIZED.as_ptr().addr()] {
            assert!(mapping_at(address).unwrap().stays);
        }
        // The C library's is not the program's.
        assert!(!mapping_at(getauxval as *const () as usize).unwrap().stays);
    }
}
