//! The functions of C. Each call goes to the library as it has come, and its result back.

use crate::agreement::note_rank;
use crate::library::{Symbol, Word, call, find};
use crate::seen::{self, Access, Place, accesses, handle_at};
use crate::together::{self, Asked, Opening};
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

/// Whether a call of this thread is under way.
fn is_inside() -> bool {
    DEPTH.with(Cell::get) > 0
}

/// A collective call, which is made by one of both functions: where all ranks have the adapter it
/// may be the second, by which each makes its part alone, at an offset.
fn collective(
    file: u64,
    asked: Asked,
    together: impl FnOnce() -> c_int,
    alone: impl FnOnce(i64) -> c_int,
) -> c_int {
    let Asked { is_read, offset, count, datatype } = asked;
    let place = offset.map_or(Place::Own, Place::At);
    let access = Access { is_read, is_collective: true, place };
    let look = || accesses(file, access, count, datatype);
    let Some(found) = together::of(file).filter(|_| !is_inside()) else {
        return inside(together, look);
    };
    inside(|| found.call(asked, together, alone, look), || {})
}

/// A call that reads or moves the pointer of this rank, without others: not while a collective call
/// that is made alone moves it, as a second thread may do.
fn at_pointer(file: u64, call: impl FnOnce() -> c_int) -> c_int {
    match together::of(file).filter(|_| !is_inside()) {
        Some(found) => found.hold_pointer(call),
        None => call(),
    }
}

/// A split collective call begins on a file.
fn begins(file: u64) {
    if let Some(found) = together::of(file).filter(|_| !is_inside()) {
        found.has_split();
    }
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
    MPI_File_read_at(file, offset, buffer; status) reads(Place::At(offset as i64));
    MPI_File_read_ordered(file, buffer; status) all(reads(Place::Shared));
    MPI_File_read_shared(file, buffer; status) reads(Place::Shared);
    MPI_File_iread_all(file, buffer; request) all(reads(Place::Own));
    MPI_File_iread_at(file, offset, buffer; request) reads(Place::At(offset as i64));
    MPI_File_iread_at_all(file, offset, buffer; request) all(reads(Place::At(offset as i64)));
    MPI_File_iread_shared(file, buffer; request) reads(Place::Shared);
    MPI_File_write_at(file, offset, buffer; status) writes(Place::At(offset as i64));
    MPI_File_write_ordered(file, buffer; status) all(writes(Place::Shared));
    MPI_File_write_shared(file, buffer; status) writes(Place::Shared);
    MPI_File_iwrite_all(file, buffer; request) all(writes(Place::Own));
    MPI_File_iwrite_at(file, offset, buffer; request) writes(Place::At(offset as i64));
    MPI_File_iwrite_at_all(file, offset, buffer; request) all(writes(Place::At(offset as i64)));
    MPI_File_iwrite_shared(file, buffer; request) writes(Place::Shared);
}

/// Functions at the pointer of this rank that it makes without others.
macro_rules! pointer_functions {
    ($($name:ident $access:expr;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            file: Word, buffer: Word, count: Word, datatype: Word, last: Word
        ) -> c_int {
            static NEXT: Symbol = Symbol::new(concat!(stringify!($name), "\0"));
            let look = || accesses(file as u64, $access, (count as i32).into(), datatype);
            // SAFETY: the program's call.
            let call = || unsafe { NEXT.call([file, buffer, count, datatype, last]) };
            at_pointer(file as u64, || inside(call, look))
        }
    )* };
}

pointer_functions! {
    MPI_File_read reads(Place::Own);
    MPI_File_iread reads(Place::Own);
    MPI_File_write writes(Place::Own);
    MPI_File_iwrite writes(Place::Own);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn MPI_File_seek(file: Word, offset: Word, whence: Word) -> c_int {
    static NEXT: Symbol = Symbol::new("MPI_File_seek\0");
    // SAFETY: the program's call.
    at_pointer(file as u64, || unsafe { NEXT.call([file, offset, whence]) })
}

/// Collective functions that each rank may make alone, by the function behind the arrow; whether
/// they read.
macro_rules! collective_functions {
    ($($name:ident => $alone:literal $is_read:literal;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            file: Word, offset: Word, buffer: Word, count: Word, datatype: Word, status: Word
        ) -> c_int {
            static NEXT: Symbol = Symbol::new(concat!(stringify!($name), "\0"));
            static ALONE: Symbol = Symbol::new(concat!($alone, "\0"));
            let words = [file, offset, buffer, count, datatype, status];
            let asked = Asked {
                is_read: $is_read,
                offset: Some(offset as i64),
                count: (count as i32).into(),
                datatype,
            };
            // SAFETY: the program's call.
            let together = || unsafe { NEXT.call(words) };
            // SAFETY: one that takes the same words.
            let alone = |_: i64| unsafe { ALONE.call(words) };
            collective(file as u64, asked, together, alone)
        }
    )* };
}

collective_functions! {
    MPI_File_read_at_all => "MPI_File_read_at" true;
    MPI_File_write_at_all => "MPI_File_write_at" false;
}

/// The same at the pointer of the rank. The function behind the arrow is one at an offset, which
/// leaves the pointer: MPICH 4.0 leaves a wrong one behind some independent calls that move it.
macro_rules! collective_pointer_functions {
    ($($name:ident => $alone:literal $is_read:literal;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            file: Word, buffer: Word, count: Word, datatype: Word, status: Word
        ) -> c_int {
            static NEXT: Symbol = Symbol::new(concat!(stringify!($name), "\0"));
            static ALONE: Symbol = Symbol::new(concat!($alone, "\0"));
            let asked = Asked {
                is_read: $is_read,
                offset: None,
                count: (count as i32).into(),
                datatype,
            };
            // SAFETY: the program's call.
            let together = || unsafe { NEXT.call([file, buffer, count, datatype, status]) };
            let alone = |offset: i64| {
                // SAFETY: one that takes an offset, and the program's words.
                unsafe { ALONE.call([file, offset as Word, buffer, count, datatype, status]) }
            };
            collective(file as u64, asked, together, alone)
        }
    )* };
}

collective_pointer_functions! {
    MPI_File_read_all => "MPI_File_read_at" true;
    MPI_File_write_all => "MPI_File_write_at" false;
}

/// Functions that begin a split collective call.
macro_rules! beginning_functions {
    ($($name:ident($file:ident, $($before:ident),*) $access:expr;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            $file: Word, $($before: Word,)* count: Word, datatype: Word
        ) -> c_int {
            static NEXT: Symbol = Symbol::new(concat!(stringify!($name), "\0"));
            begins($file as u64);
            let look = || accesses($file as u64, all($access), (count as i32).into(), datatype);
            // SAFETY: the program's call.
            inside(|| unsafe { NEXT.call([$file, $($before,)* count, datatype]) }, look)
        }
    )* };
}

beginning_functions! {
    MPI_File_read_all_begin(file, buffer) reads(Place::Own);
    MPI_File_read_at_all_begin(file, offset, buffer) reads(Place::At(offset as i64));
    MPI_File_read_ordered_begin(file, buffer) reads(Place::Shared);
    MPI_File_write_all_begin(file, buffer) writes(Place::Own);
    MPI_File_write_at_all_begin(file, offset, buffer) writes(Place::At(offset as i64));
    MPI_File_write_ordered_begin(file, buffer) writes(Place::Shared);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn MPI_Init(count: Word, words: Word) -> c_int {
    static NEXT: Symbol = Symbol::new("MPI_Init\0");
    note_rank();
    // SAFETY: the program's call.
    unsafe { NEXT.call([count, words]) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn MPI_Init_thread(count: Word, words: Word, wanted: Word, given: Word) -> c_int {
    static NEXT: Symbol = Symbol::new("MPI_Init_thread\0");
    note_rank();
    // SAFETY: the program's call.
    unsafe { NEXT.call([count, words, wanted, given]) }
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
    if is_inside() || name.is_null() {
        // SAFETY: the program's call.
        return unsafe { NEXT.call([communicator, name as Word, mode, info, file]) };
    }
    // SAFETY: a name, which the call reads, too.
    let path = unsafe { CStr::from_ptr(name) };
    let mut opening = None;
    let mut found = None;
    let call = || {
        opening = Opening::begin(communicator, path, info);
        let info = opening.as_ref().and_then(Opening::info).unwrap_or(info);
        // SAFETY: the program's call, with hints that are there for as long as it takes.
        unsafe { NEXT.call([communicator, name as Word, mode, info, file]) }
    };
    // SAFETY: the call has written the handle.
    let result = inside(call, || unsafe {
        let handle = handle_at(file);
        found = Some((handle, seen::opened(path, handle)));
    });
    if let Some(opening) = opening {
        opening.end(found.map(|(handle, _)| handle), found.and_then(|(_, fd)| fd));
    }
    result
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
    let mut known = None;
    let found = together::of(file as u64).filter(|_| !is_inside());
    let result = inside(call, || {
        let sizes = seen::viewed(file as u64, unit, tile);
        // In another representation types have other sizes in the file than in memory.
        // SAFETY: a text of the program's, which the call has read.
        let is_native = unsafe { CStr::from_ptr(representation as *const c_char) };
        known = is_native.to_bytes().eq_ignore_ascii_case(b"native").then_some(sizes);
    });
    if let Some(found) = found {
        found.viewed(known);
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn MPI_File_close(file: Word) -> c_int {
    static NEXT: Symbol = Symbol::new("MPI_File_close\0");
    // SAFETY: the program's call, which finds the handle there.
    unsafe { seen::closes(file) };
    // SAFETY: the same; the handle is another one behind the call.
    let handle = if file == 0 { 0 } else { unsafe { handle_at(file) } };
    // SAFETY: the same.
    let result = inside(|| unsafe { NEXT.call([file]) }, || {});
    if !is_inside() {
        together::closed(handle);
    }
    result
}

/// For the library with the functions of MPI 4: the next function of this name.
///
/// # Safety
/// The name ends with a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_mpiio_next(name: *const c_char) -> *mut c_void {
    find(name)
}

/// For the same: a collective call that reads (1) or writes (0), with words as
/// `MPI_File_write_at_all` has them; at the pointer of the rank (1) the second of them is not
/// looked at. `functions` are that, or `MPI_File_write_all`, and the one by which a rank makes it
/// alone, at an offset.
///
/// # Safety
/// They are functions of the library that take these words, which are the program's; neither is
/// null.
#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_mpiio_collective(
    functions: *const [*mut c_void; 2],
    is_read: c_int,
    is_at_pointer: c_int,
    words: *const [Word; 6],
) -> c_int {
    // SAFETY: as the caller says.
    let ([together, alone], words) = unsafe { (*functions, *words) };
    let [file, offset, buffer, count, datatype, status] = words;
    let given = (is_at_pointer == 0).then_some(offset as i64);
    let asked = Asked { is_read: is_read != 0, offset: given, count: count as i64, datatype };
    let together = || match given {
        // SAFETY: as the caller says.
        Some(_) => unsafe { call(together, &words) },
        // SAFETY: the same.
        None => unsafe { call(together, &[file, buffer, count, datatype, status]) },
    };
    let alone = |offset: i64| {
        // SAFETY: as the caller says.
        unsafe { call(alone, &[file, offset as Word, buffer, count, datatype, status]) }
    };
    collective(file as u64, asked, together, alone)
}

/// For the same: a call at the pointer of this rank that it makes without others, by this function.
///
/// # Safety
/// It is a function of the library that takes these words, which are the program's, and not null.
#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_mpiio_at_pointer(
    function: *mut c_void,
    words: *const [Word; 5],
) -> c_int {
    // SAFETY: as the caller says.
    let words = unsafe { *words };
    // SAFETY: the same.
    at_pointer(words[0] as u64, || unsafe { call(function, &words) })
}

/// For the same: a split collective call begins.
#[unsafe(no_mangle)]
extern "C" fn forebay_mpiio_begins(file: Word) {
    begins(file as u64);
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
