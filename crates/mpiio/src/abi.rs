//! What calls that the adapter makes by itself need of constants: a type, a way to seek, and
//! the handles that stand for nothing, which may not be asked about.

use crate::library::{Symbol, Word, find, is_open_mpi};
use core::ffi::CStr;
use std::sync::OnceLock;

/// Constants of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Abi {
    /// MPI_COMM_WORLD.
    pub world: Word,
    /// MPI_COMM_NULL.
    pub no_communicator: Word,
    /// MPI_INFO_NULL.
    pub no_info: Word,
    /// MPI_DATATYPE_NULL.
    pub no_type: Word,
    /// MPI_BYTE.
    pub byte: Word,
    /// MPI_SEEK_SET.
    pub seek_set: Word,
}

/// MPICH's, and that of libraries which are made of it.
const MPICH: Abi = Abi {
    world: 0x4400_0000,
    no_communicator: 0x0400_0000,
    no_info: 0x1c00_0000,
    no_type: 0x0c00_0000,
    byte: 0x4c00_010d,
    seek_set: 600,
};
/// That of the standard (MPI 5).
const STANDARD: Abi = Abi {
    world: 0x101,
    no_communicator: 0x100,
    no_info: 0x130,
    no_type: 0x200,
    byte: 0x247,
    seek_set: 403,
};

/// The library's; `None` if it is none of those that are known.
pub(crate) fn abi() -> Option<&'static Abi> {
    static FOUND: OnceLock<Option<Abi>> = OnceLock::new();
    FOUND.get_or_init(look).as_ref()
}

fn look() -> Option<Abi> {
    if is_open_mpi() {
        let at = |name: &CStr| {
            // A program may have a copy of a library's data, which counts then.
            // SAFETY: a look-up by name.
            let first = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            let found = if first.is_null() { find(name.as_ptr()) } else { first };
            Some(found as Word).filter(|&address| address != 0)
        };
        return Some(Abi {
            world: at(c"ompi_mpi_comm_world")?,
            no_communicator: at(c"ompi_mpi_comm_null")?,
            no_info: at(c"ompi_mpi_info_null")?,
            no_type: at(c"ompi_mpi_datatype_null")?,
            byte: at(c"ompi_mpi_byte")?,
            seek_set: 600,
        });
    }
    static OPEN: Symbol = Symbol::new("PMPI_File_open\0");
    // SAFETY: zeros are a value of the struct, which is filled in for an address of a library.
    let path = unsafe {
        let mut found: libc::Dl_info = core::mem::zeroed();
        let is_known = libc::dladdr(OPEN.address(), &raw mut found) != 0;
        (is_known && !found.dli_fname.is_null()).then(|| CStr::from_ptr(found.dli_fname))?
    };
    of_file(path.to_bytes())
}

/// That of a library by the name of its file: the number of its interface is a part of it.
fn of_file(path: &[u8]) -> Option<Abi> {
    let name = path.rsplit(|&byte| byte == b'/').next()?;
    let has = |text: &[u8]| name.windows(text.len()).any(|part| part == text);
    match (has(b"libmpi_abi.so"), has(b".so.12")) {
        (true, _) => Some(STANDARD),
        (false, true) => Some(MPICH),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_told_apart_by_their_names() {
        assert_eq!(of_file(b"/usr/lib/x86_64-linux-gnu/libmpich.so.12"), Some(MPICH));
        assert_eq!(of_file(b"/opt/intel/libmpi.so.12.0.0"), Some(MPICH));
        assert_eq!(of_file(b"/opt/cray/libmpi_gnu_91.so.12"), Some(MPICH));
        assert_eq!(of_file(b"lib/libmpi_abi.so.1"), Some(STANDARD));
        assert_eq!(of_file(b"/usr/lib/libmpi.so.20"), None);
    }
}
