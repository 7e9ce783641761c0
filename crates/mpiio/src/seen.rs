//! What the adapter makes of the calls that it sees: it counts them, and has brought to RAM what
//! the view of this rank will read next.

use crate::abi::abi;
use crate::files::{self, File};
use crate::library::{Symbol, Word, ask};
use crate::pieces::rows;
use crate::services::services;
use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicU8, Ordering};
use forebay_client::services::{NOT_MANAGED, counted};

/// Where a call reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At this offset, in units of the view.
    At(i64),
    /// Where the pointer of this rank is.
    Own,
    /// Where the pointer of all ranks is.
    Shared,
}

/// A call that reads or writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub is_read: bool,
    /// All ranks that have the file open make it.
    pub is_collective: bool,
    pub place: Place,
}

/// Reads of fewer bytes are not looked ahead of: what they need next lies in few blocks, and the
/// predictors of the library see their pattern.
const LEAST: u64 = 64 << 10;

/// Rows that are asked for at a time.
const ROWS: usize = 8;

/// The handle behind the address of one.
///
/// # Safety
/// The address is that of a handle, eight bytes in each MPI.
pub(crate) unsafe fn handle_at(address: Word) -> u64 {
    // SAFETY: as the caller says.
    unsafe { (address as *const u64).read_unaligned() }
}

/// Device and inode of the file at a path.
fn identity_at(path: &CStr) -> Option<(u64, u64)> {
    // SAFETY: zeros are a value of the struct.
    let mut found: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: a path, and a place for what is found.
    let is_there = unsafe { libc::stat(path.as_ptr(), &raw mut found) } == 0;
    is_there.then_some((found.st_dev, found.st_ino))
}

/// A name, and that behind what may say by which of its drivers MPI is to use the file, as
/// ufs:PATH.
pub(crate) fn paths_of(name: &CStr) -> (&CStr, Option<&CStr>) {
    let behind = name.to_bytes_with_nul().splitn(2, |&byte| byte == b':').nth(1);
    (name, behind.and_then(|path| CStr::from_bytes_with_nul(path).ok()))
}

/// A file was opened by this name, as the handle: where Forebay has it, if it does.
pub(crate) fn opened(name: &CStr, handle: u64) -> Option<c_int> {
    let services = services()?;
    let find = |path: &CStr| match identity_at(path) {
        Some((device, inode)) => (services.descriptor_of)(device, inode),
        None => NOT_MANAGED,
    };
    let (path, behind) = paths_of(name);
    let mut fd = find(path);
    if let (..0, Some(path)) = (fd, behind) {
        fd = find(path);
    }
    if fd < 0 {
        return None;
    }
    files::add(handle, fd);
    (services.count)(counted::MPI_FILES, 1);
    note_what_is_missing();
    Some(fd)
}

/// Counts a process whose MPI library has not all that is asked of it: once.
fn note_what_is_missing() {
    static ASKED: [Symbol; 4] = [
        Symbol::new("PMPI_Type_size\0"),
        Symbol::new("PMPI_Type_get_extent\0"),
        Symbol::new("PMPI_File_get_byte_offset\0"),
        Symbol::new("PMPI_File_get_position\0"),
    ];
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let is_whole = ASKED.iter().all(|function| !function.address().is_null());
        if let Some(services) = services().filter(|_| !is_whole || abi().is_none()) {
            (services.count)(counted::MPI_UNADAPTED, 1);
        }
    });
}

/// A file is about to be closed, whose handle lies at this address.
///
/// # Safety
/// As of [`handle_at`].
pub(crate) unsafe fn closes(address: Word) {
    if address != 0 {
        // SAFETY: as the caller says.
        files::remove(unsafe { handle_at(address) });
    }
}

/// Bytes of a type; 0 if it is none.
pub(crate) fn size_of_type(datatype: Word) -> u64 {
    let mut size: c_int = 0;
    let is_known = ask!("PMPI_Type_size", datatype, (&raw mut size) as Word);
    if is_known { u64::try_from(size).unwrap_or(0) } else { 0 }
}

/// Bytes from the first to the last of a type; 0 if it is none.
fn extent_of_type(datatype: Word) -> u64 {
    let (mut low, mut extent) = (0i64, 0i64);
    let is_known =
        ask!("PMPI_Type_get_extent", datatype, (&raw mut low) as Word, (&raw mut extent) as Word);
    if is_known { u64::try_from(extent).unwrap_or(0) } else { 0 }
}

/// The file has got a view; returns the bytes of a unit, of a tile, and from tile to tile.
pub(crate) fn viewed(handle: u64, unit: Word, tile: Word) -> (u64, u64, u64) {
    let (unit, size, extent) = (size_of_type(unit), size_of_type(tile), extent_of_type(tile));
    if let Some(mut file) = files::get(handle) {
        file.unit = unit.max(1);
        file.is_strided = unit > 0 && size > 0 && extent > size;
        (file.last, file.asked) = (i64::MIN, 0);
        files::set(file);
    }
    (unit, size, extent)
}

/// A call has read or written `count` of a type, or has begun to.
pub(crate) fn accesses(handle: u64, access: Access, count: i64, datatype: Word) {
    let Some(mut file) = files::get(handle) else { return };
    let Some(services) = services() else { return };
    let bytes = size_of_type(datatype).saturating_mul(u64::try_from(count).unwrap_or(0));
    (services.count)(counted::MPI_CALLS, 1);
    (services.count)(counted::MPI_BYTES, bytes);
    if !access.is_read || !file.is_strided || bytes < LEAST {
        return;
    }
    // What other nodes read for this rank is not brought here.
    if access.is_collective && !is_one_node() {
        return;
    }
    let units = (bytes / file.unit) as i64;
    let Some(next) = next_read(&mut file, access.place, units) else { return };
    files::set(file);
    let place = |at: i64| {
        let mut found = -1i64;
        let is_known =
            ask!("PMPI_File_get_byte_offset", handle as Word, at as Word, (&raw mut found) as Word);
        if is_known { u64::try_from(found).ok() } else { None }
    };
    let (rows, count) = rows::<ROWS>(next.start, next.end, file.unit, place);
    for row in &rows[..count] {
        (services.will_read)(file.fd, row.offset, row.bytes, row.stride, row.count);
    }
}

/// The units that will be read after a read of `units`; none where they were asked for before, or
/// it cannot be told. The pointer of the rank is behind the read.
fn next_read(file: &mut File, place: Place, units: i64) -> Option<core::ops::Range<i64>> {
    let next = match place {
        Place::Own => {
            let mut position = -1i64;
            let is_known =
                ask!("PMPI_File_get_position", file.handle as Word, (&raw mut position) as Word);
            Some(position).filter(|&at| is_known && at >= 0)?
        }
        // As far as from the last one to this one.
        Place::At(offset) => {
            let step = offset.checked_sub(file.last).filter(|&step| step >= units);
            file.last = offset;
            offset.checked_add(step.unwrap_or(units))?
        }
        // Other ranks move it.
        Place::Shared => return None,
    };
    let from = next.max(file.asked);
    let end = next.checked_add(units)?;
    if from >= end {
        return None;
    }
    file.asked = end;
    Some(from..end)
}

/// Whether all ranks run on this node, as their starter says: 1 is no, 2 is yes.
static ONE_NODE: AtomicU8 = AtomicU8::new(0);

/// Variables with the number of all ranks and of those on this node: MPICH's and Open MPI's.
const RANKS: [(&CStr, &CStr); 2] =
    [(c"PMI_SIZE", c"MPI_LOCALNRANKS"), (c"OMPI_COMM_WORLD_SIZE", c"OMPI_COMM_WORLD_LOCAL_SIZE")];

fn is_one_node() -> bool {
    let known = ONE_NODE.load(Ordering::Relaxed);
    if known != 0 {
        return known == 2;
    }
    let value = |name: &CStr| {
        // SAFETY: an entry of the environment, which stays as it is.
        unsafe {
            let found: *const c_char = libc::getenv(name.as_ptr());
            (!found.is_null()).then(|| CStr::from_ptr(found))
        }
    };
    let is_one = RANKS.iter().any(|(all, here)| {
        let all = value(all);
        all.is_some() && all == value(here)
    });
    ONE_NODE.store(if is_one { 2 } else { 1 }, Ordering::Relaxed);
    is_one
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> File {
        File { handle: 1, fd: 3, unit: 8, is_strided: true, last: i64::MIN, asked: 0 }
    }

    #[test]
    fn reads_at_offsets_go_on_as_they_have_begun() {
        let mut file = file();
        assert_eq!(next_read(&mut file, Place::At(0), 10), Some(10..20));
        assert_eq!(next_read(&mut file, Place::At(40), 10), Some(80..90));
        assert_eq!(next_read(&mut file, Place::At(80), 10), Some(120..130));
        // Backwards: nothing is known of what comes.
        assert_eq!(next_read(&mut file, Place::At(0), 10), None);
    }

    #[test]
    fn what_was_asked_for_is_not_asked_for_again() {
        let mut file = file();
        assert_eq!(next_read(&mut file, Place::At(0), 10), Some(10..20));
        assert_eq!(next_read(&mut file, Place::At(0), 15), Some(20..30));
        assert_eq!(next_read(&mut file, Place::Shared, 10), None);
    }
}
