//! The functions of Fortran. MPICH's call those of C, where they are seen; Open MPI's call others,
//! so they are looked at here. Their arguments are addresses; lengths of texts come last, and are
//! passed on with all other words.

use crate::calls::inside;
use crate::library::{Symbol, Word, is_open_mpi};
use crate::seen::{self, Access, Place, accesses};
use crate::together;
use core::ffi::{CStr, c_int};
use core::mem::transmute;

/// A number of Fortran's.
///
/// # Safety
/// The address is that of an INTEGER, or of what begins with one.
unsafe fn number_at(address: Word) -> c_int {
    // SAFETY: as the caller says.
    unsafe { (address as *const c_int).read_unaligned() }
}

/// The handle of C for a number of Fortran's, by this function; 0 if there is none.
fn handle_of(function: &Symbol, number: c_int) -> Word {
    let function = function.address();
    if function.is_null() {
        return 0;
    }
    // SAFETY: a function of MPI's that takes a number and returns a handle.
    let convert: unsafe extern "C" fn(c_int) -> Word = unsafe { transmute(function) };
    // SAFETY: the same.
    unsafe { convert(number) }
}

/// # Safety
/// The address is that of a file of Fortran's.
unsafe fn file_at(address: Word) -> Word {
    static CONVERT: Symbol = Symbol::new("PMPI_File_f2c\0");
    // SAFETY: as the caller says.
    handle_of(&CONVERT, unsafe { number_at(address) })
}

/// # Safety
/// The address is that of a type of Fortran's.
unsafe fn type_at(address: Word) -> Word {
    static CONVERT: Symbol = Symbol::new("PMPI_Type_f2c\0");
    // SAFETY: as the caller says.
    handle_of(&CONVERT, unsafe { number_at(address) })
}

/// # Safety
/// The address is that of an INTEGER(KIND=MPI_OFFSET_KIND).
unsafe fn offset_at(address: Word) -> i64 {
    // SAFETY: as the caller says.
    unsafe { (address as *const i64).read_unaligned() }
}

/// Longest name of a file.
const NAME: usize = 4096;

/// A file was opened, by a name with blanks behind it, whose length is the last word.
///
/// # Safety
/// The words are those of the call, which has used them.
unsafe fn opened(words: &Words) {
    let [_, name, _, _, file, _, length, ..] = *words;
    let mut text = [0; NAME];
    // SAFETY: as the caller says.
    let given = unsafe { core::slice::from_raw_parts(name as *const u8, length.min(NAME - 1)) };
    let end = given.iter().rposition(|&byte| byte != b' ').map_or(0, |last| last + 1);
    text[..end].copy_from_slice(&given[..end]);
    if let Ok(name) = CStr::from_bytes_until_nul(&text) {
        // SAFETY: as the caller says.
        seen::opened(name, unsafe { file_at(file) } as u64);
    }
}

const fn reads(place: Place, is_collective: bool) -> Access {
    Access { is_read: true, is_collective, place }
}

const fn writes(place: Place, is_collective: bool) -> Access {
    Access { is_read: false, is_collective, place }
}

/// A file has got a view.
///
/// # Safety
/// The words are those of the call.
unsafe fn viewed(words: &Words) {
    // SAFETY: as the caller says.
    let (file, unit, tile) = unsafe { (file_at(words[0]), type_at(words[2]), type_at(words[3])) };
    let known = seen::viewed(file as u64, unit, tile);
    if let Some(found) = together::of(file as u64) {
        found.viewed(Some(known));
    }
}

/// A file is about to get a view, by a function that may call none of C: what was proved of the one
/// before holds no longer.
///
/// # Safety
/// As of [`file_at`].
unsafe fn loses_view(file: Word) {
    if together::has_any()
        // SAFETY: as the caller says.
        && let Some(found) = together::of(unsafe { file_at(file) } as u64)
    {
        found.viewed(None);
    }
}

/// A file is about to be closed.
///
/// # Safety
/// As of [`file_at`].
unsafe fn closes(file: Word) {
    // SAFETY: as the caller says.
    let handle = unsafe { file_at(file) } as u64;
    // SAFETY: the address of a handle.
    unsafe { seen::closes((&raw const handle) as Word) };
}

/// An offset, which stands in the call.
const AT: Place = Place::At(0);

/// The words of a call: arguments, then lengths of texts. There are fewer mostly; those behind them
/// are whatever lies there.
type Words = [Word; 10];

/// A function that reads or writes was called.
///
/// # Safety
/// The words are those of its call.
unsafe fn look(words: &Words, access: Access) {
    // SAFETY: as the caller says; the count stands behind the buffer, and that behind an offset.
    unsafe {
        let (count, place) = match access.place {
            Place::At(_) => (3, Place::At(offset_at(words[1]))),
            other => (2, other),
        };
        let (file, datatype) = (file_at(words[0]), type_at(words[count + 1]));
        let access = Access { place, ..access };
        accesses(file as u64, access, number_at(words[count]).into(), datatype);
    }
}

/// Functions of Fortran's: the place of the error among their words, and what is done with the
/// words after success, with Open MPI.
macro_rules! functions {
    ($($name:ident: $error:literal, $($before:ident,)? |$words:ident| $look:block;)*) => { $(
        #[unsafe(no_mangle)]
        // Where nothing is looked at, nothing is unsafe.
        #[allow(clippy::too_many_arguments, unused_unsafe)]
        unsafe extern "C" fn $name(
            a: Word, b: Word, c: Word, d: Word, e: Word,
            f: Word, g: Word, h: Word, i: Word, j: Word,
        ) {
            static NEXT: Symbol = Symbol::new(concat!(stringify!($name), "\0"));
            let mut words = [a, b, c, d, e, f, g, h, i, j];
            $(
                // SAFETY: the program's file.
                unsafe { $before(words[0]) };
            )?
            if !is_open_mpi() {
                // SAFETY: the program's call.
                unsafe { NEXT.call(words) };
                return;
            }
            // A program of the module mpi_f08 may not want to know.
            let mut error: c_int = 0;
            if words[$error] == 0 {
                words[$error] = (&raw mut error) as Word;
            }
            // SAFETY: the program's call, and what it has written.
            let call = || unsafe {
                NEXT.call(words);
                number_at(words[$error])
            };
            let $words = &words;
            // SAFETY: the same.
            inside(call, || unsafe { $look });
        }
    )* };
}

/// Those that read or write, under the names of `mpif.h` and of the module `mpi_f08`.
macro_rules! accesses {
    ($($old:ident, $new:ident: $error:literal, $access:expr;)*) => {
        functions! { $(
            $old: $error, |words| { look(words, $access) };
            $new: $error, |words| { look(words, $access) };
        )* }
    };
}

accesses! {
    mpi_file_read_, mpi_file_read_f08_: 5, reads(Place::Own, false);
    mpi_file_read_all_, mpi_file_read_all_f08_: 5, reads(Place::Own, true);
    mpi_file_read_at_, mpi_file_read_at_f08_: 6, reads(AT, false);
    mpi_file_read_at_all_, mpi_file_read_at_all_f08_: 6, reads(AT, true);
    mpi_file_read_shared_, mpi_file_read_shared_f08_: 5, reads(Place::Shared, false);
    mpi_file_iread_, mpi_file_iread_f08_: 5, reads(Place::Own, false);
    mpi_file_iread_all_, mpi_file_iread_all_f08_: 5, reads(Place::Own, true);
    mpi_file_iread_at_, mpi_file_iread_at_f08_: 6, reads(AT, false);
    mpi_file_iread_at_all_, mpi_file_iread_at_all_f08_: 6, reads(AT, true);
    mpi_file_iread_shared_, mpi_file_iread_shared_f08_: 5, reads(Place::Shared, false);
    mpi_file_read_all_begin_, mpi_file_read_all_begin_f08_: 4, reads(Place::Own, true);
    mpi_file_read_at_all_begin_, mpi_file_read_at_all_begin_f08_: 5, reads(AT, true);
    mpi_file_read_ordered_, mpi_file_read_ordered_f08_: 5, reads(Place::Shared, true);
    mpi_file_read_ordered_begin_, mpi_file_read_ordered_begin_f08_: 4, reads(Place::Shared, true);
    mpi_file_write_, mpi_file_write_f08_: 5, writes(Place::Own, false);
    mpi_file_write_all_, mpi_file_write_all_f08_: 5, writes(Place::Own, true);
    mpi_file_write_at_, mpi_file_write_at_f08_: 6, writes(AT, false);
    mpi_file_write_at_all_, mpi_file_write_at_all_f08_: 6, writes(AT, true);
    mpi_file_write_shared_, mpi_file_write_shared_f08_: 5, writes(Place::Shared, false);
    mpi_file_iwrite_, mpi_file_iwrite_f08_: 5, writes(Place::Own, false);
    mpi_file_iwrite_all_, mpi_file_iwrite_all_f08_: 5, writes(Place::Own, true);
    mpi_file_iwrite_at_, mpi_file_iwrite_at_f08_: 6, writes(AT, false);
    mpi_file_iwrite_at_all_, mpi_file_iwrite_at_all_f08_: 6, writes(AT, true);
    mpi_file_iwrite_shared_, mpi_file_iwrite_shared_f08_: 5, writes(Place::Shared, false);
    mpi_file_write_all_begin_, mpi_file_write_all_begin_f08_: 4, writes(Place::Own, true);
    mpi_file_write_at_all_begin_, mpi_file_write_at_all_begin_f08_: 5, writes(AT, true);
    mpi_file_write_ordered_, mpi_file_write_ordered_f08_: 5, writes(Place::Shared, true);
    mpi_file_write_ordered_begin_, mpi_file_write_ordered_begin_f08_: 4, writes(Place::Shared, true);
}

functions! {
    mpi_file_open_: 5, |words| { opened(words) };
    mpi_file_open_f08_: 5, |words| { opened(words) };
    mpi_file_set_view_: 6, loses_view, |words| { viewed(words) };
    mpi_file_set_view_f08_: 6, loses_view, |words| { viewed(words) };
}

/// Functions that close a file, whose number is not there behind the call.
macro_rules! closing {
    ($($name:ident;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(file: Word, error: Word) {
            static NEXT: Symbol = Symbol::new(concat!(stringify!($name), "\0"));
            if is_open_mpi() {
                // SAFETY: the program's file.
                unsafe { closes(file) };
            }
            // SAFETY: the program's file.
            let handle = if together::has_any() { unsafe { file_at(file) } } else { 0 };
            // SAFETY: the program's call.
            unsafe { NEXT.call([file, error]) };
            if handle != 0 {
                together::closed(handle as u64);
            }
        }
    )* };
}

closing! {
    mpi_file_close_;
    mpi_file_close_f08_;
}
