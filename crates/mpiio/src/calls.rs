//! The functions of C. Each call goes to the library as it has come, and its result back.

use crate::library::{Symbol, Word, find};
use crate::seen::{self, Access, Place, accesses, handle_at};
use core::cell::Cell;
use core::ffi::{CStr, c_char, c_int, c_void};

thread_local! {
    /// Calls of this thread that are under way: a library may use its own functions.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Makes a call inside which others are not looked at. Where it succeeds, and is no part of another
/// one, `look` is called behind it: what the call was given is sound then, and to ask for it
/// enters no handler of errors.
pub(crate) fn inside(call: impl FnOnce() -> c_int, look: impl FnOnce()) -> c_int {
    DEPTH.with(|depth| {
        let before = depth.get();
        depth.set(before + 1);
        let result = call();
        if before == 0 && result == 0 {
            look();
        }
        depth.set(before);
        result
    })
}

const fn reads(place: Place) -> Access {
    Access { is_read: true, is_collective: false, place }
}

const fn writes(place: Place) -> Access {
    Access { is_read: false, is_collective: false, place }
}

const fn all(access: Access) -> Access {
    Access { is_collective: true, ..access }
}

/// Functions that read or write: what comes before the count of the type, which is an `int`, and
/// what comes behind it.
macro_rules! functions {
    ($($name:ident($file:ident, $($before:ident),*; $($after:ident),*) $access:expr;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            $file: Word, $($before: Word,)* count: Word, datatype: Word, $($after: Word),*
        ) -> c_int {
            static NEXT: Symbol = Symbol::new(concat!(stringify!($name), "\0"));
            let look = || accesses($file as u64, $access, (count as i32).into(), datatype);
            // SAFETY: the program's call.
            let call = || unsafe {
                NEXT.call([$file, $($before,)* count, datatype, $($after),*])
            };
            inside(call, look)
        }
    )* };
}

functions! {
    MPI_File_read(file, buffer; status) reads(Place::Own);
    MPI_File_read_all(file, buffer; status) all(reads(Place::Own));
    MPI_File_read_all_begin(file, buffer;) all(reads(Place::Own));
    MPI_File_read_at(file, offset, buffer; status) reads(Place::At(offset as i64));
    MPI_File_read_at_all(file, offset, buffer; status) all(reads(Place::At(offset as i64)));
    MPI_File_read_at_all_begin(file, offset, buffer;) all(reads(Place::At(offset as i64)));
    MPI_File_read_ordered(file, buffer; status) all(reads(Place::Shared));
    MPI_File_read_ordered_begin(file, buffer;) all(reads(Place::Shared));
    MPI_File_read_shared(file, buffer; status) reads(Place::Shared);
    MPI_File_iread(file, buffer; request) reads(Place::Own);
    MPI_File_iread_all(file, buffer; request) all(reads(Place::Own));
    MPI_File_iread_at(file, offset, buffer; request) reads(Place::At(offset as i64));
    MPI_File_iread_at_all(file, offset, buffer; request) all(reads(Place::At(offset as i64)));
    MPI_File_iread_shared(file, buffer; request) reads(Place::Shared);
    MPI_File_write(file, buffer; status) writes(Place::Own);
    MPI_File_write_all(file, buffer; status) all(writes(Place::Own));
    MPI_File_write_all_begin(file, buffer;) all(writes(Place::Own));
    MPI_File_write_at(file, offset, buffer; status) writes(Place::At(offset as i64));
    MPI_File_write_at_all(file, offset, buffer; status) all(writes(Place::At(offset as i64)));
    MPI_File_write_at_all_begin(file, offset, buffer;) all(writes(Place::At(offset as i64)));
    MPI_File_write_ordered(file, buffer; status) all(writes(Place::Shared));
    MPI_File_write_ordered_begin(file, buffer;) all(writes(Place::Shared));
    MPI_File_write_shared(file, buffer; status) writes(Place::Shared);
    MPI_File_iwrite(file, buffer; request) writes(Place::Own);
    MPI_File_iwrite_all(file, buffer; request) all(writes(Place::Own));
    MPI_File_iwrite_at(file, offset, buffer; request) writes(Place::At(offset as i64));
    MPI_File_iwrite_at_all(file, offset, buffer; request) all(writes(Place::At(offset as i64)));
    MPI_File_iwrite_shared(file, buffer; request) writes(Place::Shared);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn MPI_File_open(
    communicator: Word,
    name: *const c_char,
    mode: Word,
    info: Word,
    file: Word,
) -> c_int {
    static NEXT: Symbol = Symbol::new("MPI_File_open\0");
    // SAFETY: the program's call.
    let call = || unsafe { NEXT.call([communicator, name as Word, mode, info, file]) };
    // SAFETY: the call has read the one and written the other.
    inside(call, || unsafe { seen::opened(CStr::from_ptr(name), handle_at(file)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn MPI_File_set_view(
    file: Word,
    displacement: Word,
    unit: Word,
    tile: Word,
    representation: Word,
    info: Word,
) -> c_int {
    static NEXT: Symbol = Symbol::new("MPI_File_set_view\0");
    // SAFETY: the program's call.
    let call = || unsafe { NEXT.call([file, displacement, unit, tile, representation, info]) };
    inside(call, || seen::viewed(file as u64, unit, tile))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn MPI_File_close(file: Word) -> c_int {
    static NEXT: Symbol = Symbol::new("MPI_File_close\0");
    // SAFETY: the program's call, which finds the handle there.
    unsafe { seen::closes(file) };
    // SAFETY: the same.
    inside(|| unsafe { NEXT.call([file]) }, || {})
}

/// For the library with the functions of MPI 4: the next function of this name.
///
/// # Safety
/// The name ends with a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_mpiio_next(name: *const c_char) -> *mut c_void {
    find(name)
}

/// For the same: a call has read (1) or written (0) `count` of a type, collectively (1) or
/// not, at `offset` (`place` is 0), at the pointer of this rank (1), or at that of all (2).
#[unsafe(no_mangle)]
extern "C" fn forebay_mpiio_accesses(
    file: Word,
    is_read: c_int,
    is_collective: c_int,
    place: c_int,
    offset: i64,
    count: i64,
    datatype: Word,
) {
    let place = match place {
        0 => Place::At(offset),
        1 => Place::Own,
        _ => Place::Shared,
    };
    let access = Access { is_read: is_read != 0, is_collective: is_collective != 0, place };
    accesses(file as u64, access, count, datatype);
}
