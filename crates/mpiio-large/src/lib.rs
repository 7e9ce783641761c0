//! The functions of MPI 4 with large counts, `MPI_File_*_c`, as `mpiio` has those without. They are
//! in a library of their own: a program that finds them believes that its MPI library has them, so
//! it is loaded only with one that has. It keeps nothing itself, and asks `mpiio`, which is loaded
//! before it.
//!
//! # Safety
//! Each exported symbol is `unsafe` on the conditions of the MPI function of its name.

#![allow(non_snake_case)]
#![cfg(target_os = "linux")]

use core::ffi::{CStr, c_int, c_void};
use core::mem::transmute;
use core::sync::atomic::{AtomicPtr, Ordering};

/// A machine word of a call: a handle, a number or an address.
type Word = usize;

/// What a function returns that the library does not have.
const MPI_ERR_OTHER: c_int = 15;

/// A function, looked up at first use.
struct Symbol(AtomicPtr<c_void>);

impl Symbol {
    const fn new() -> Symbol {
        Symbol(AtomicPtr::new(core::ptr::null_mut()))
    }

    fn or_find(&self, find: impl FnOnce() -> *mut c_void) -> *mut c_void {
        let mut address = self.0.load(Ordering::Relaxed);
        if address.is_null() {
            address = find();
            self.0.store(address, Ordering::Relaxed);
        }
        address
    }
}

/// A function of the adapter.
fn of_adapter(known: &Symbol, name: &CStr) -> *mut c_void {
    // SAFETY: a look-up by name, in all that was loaded with the program or for all.
    known.or_find(|| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}

/// The next function of a name that ends with a zero.
fn next(name: &'static str) -> *mut c_void {
    static NEXT: Symbol = Symbol::new();
    let find = of_adapter(&NEXT, c"forebay_mpiio_next");
    if find.is_null() {
        return find;
    }
    // SAFETY: the adapter's function.
    let find: unsafe extern "C" fn(*const u8) -> *mut c_void = unsafe { transmute(find) };
    // SAFETY: the name ends with a zero.
    unsafe { find(name.as_ptr()) }
}

/// Tells the adapter of a call: whether it reads, whether it is collective, where it reads or
/// writes, and at which offset, by the numbers of its function.
fn tell(file: Word, numbers: (c_int, c_int, c_int, i64), count: Word, datatype: Word) {
    static TELL: Symbol = Symbol::new();
    let tell = of_adapter(&TELL, c"forebay_mpiio_accesses");
    if !tell.is_null() {
        // SAFETY: the adapter's function.
        let tell: extern "C" fn(Word, c_int, c_int, c_int, i64, i64, Word) =
            unsafe { transmute(tell) };
        tell(file, numbers.0, numbers.1, numbers.2, numbers.3, count as i64, datatype);
    }
}

/// Functions: what comes before the count of the type and what behind it, and the numbers for
/// [`tell`].
macro_rules! functions {
    ($($name:ident($($before:ident),*; $($after:ident),*) $($number:expr),*;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            file: Word, $($before: Word,)* count: Word, datatype: Word, $($after: Word),*
        ) -> c_int {
            static NEXT: Symbol = Symbol::new();
            let next = NEXT.or_find(|| next(concat!(stringify!($name), "\0")));
            if next.is_null() {
                return MPI_ERR_OTHER;
            }
            let function: unsafe extern "C" fn(
                Word, $(functions!(@ $before),)* Word, Word, $(functions!(@ $after)),*
            // SAFETY: the library's function of this name.
            ) -> c_int = unsafe { transmute(next) };
            // SAFETY: the program's call.
            let result = unsafe { function(file, $($before,)* count, datatype, $($after),*) };
            // What a call was given is sound where it has succeeded.
            if result == 0 {
                tell(file, ($($number),*), count, datatype);
            }
            result
        }
    )* };
    (@ $word:ident) => { Word };
}

functions! {
    MPI_File_read_at_c(offset, buffer; status) 1, 0, 0, offset as i64;
    MPI_File_read_shared_c(buffer; status) 1, 0, 2, 0;
    MPI_File_iread_all_c(buffer; request) 1, 1, 1, 0;
    MPI_File_iread_at_c(offset, buffer; request) 1, 0, 0, offset as i64;
    MPI_File_iread_at_all_c(offset, buffer; request) 1, 1, 0, offset as i64;
    MPI_File_iread_shared_c(buffer; request) 1, 0, 2, 0;
    MPI_File_read_ordered_c(buffer; status) 1, 1, 2, 0;
    MPI_File_write_at_c(offset, buffer; status) 0, 0, 0, offset as i64;
    MPI_File_write_shared_c(buffer; status) 0, 0, 2, 0;
    MPI_File_iwrite_all_c(buffer; request) 0, 1, 1, 0;
    MPI_File_iwrite_at_c(offset, buffer; request) 0, 0, 0, offset as i64;
    MPI_File_iwrite_at_all_c(offset, buffer; request) 0, 1, 0, offset as i64;
    MPI_File_iwrite_shared_c(buffer; request) 0, 0, 2, 0;
    MPI_File_write_ordered_c(buffer; status) 0, 1, 2, 0;
}

/// Those at the pointer of this rank that it makes without others; whether they read.
macro_rules! pointer_functions {
    ($($name:ident $is_read:literal;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            file: Word, buffer: Word, count: Word, datatype: Word, last: Word
        ) -> c_int {
            static NEXT: Symbol = Symbol::new();
            static MAKE: Symbol = Symbol::new();
            let next = NEXT.or_find(|| next(concat!(stringify!($name), "\0")));
            let make = of_adapter(&MAKE, c"forebay_mpiio_at_pointer");
            if next.is_null() || make.is_null() {
                return MPI_ERR_OTHER;
            }
            let make: unsafe extern "C" fn(
                *mut c_void, *const [Word; 5]
            // SAFETY: the adapter's function.
            ) -> c_int = unsafe { transmute(make) };
            // SAFETY: a function of the library that takes these words, which are the program's.
            let result = unsafe { make(next, &[file, buffer, count, datatype, last]) };
            if result == 0 {
                tell(file, ($is_read, 0, 1, 0), count, datatype);
            }
            result
        }
    )* };
}

pointer_functions! {
    MPI_File_read_c 1;
    MPI_File_iread_c 1;
    MPI_File_write_c 0;
    MPI_File_iwrite_c 0;
}

/// Those that begin a split collective call.
macro_rules! beginning_functions {
    ($($name:ident($($before:ident),*) $($number:expr),*;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            file: Word, $($before: Word,)* count: Word, datatype: Word
        ) -> c_int {
            static NEXT: Symbol = Symbol::new();
            let next = NEXT.or_find(|| next(concat!(stringify!($name), "\0")));
            if next.is_null() {
                return MPI_ERR_OTHER;
            }
            begins(file);
            let function: unsafe extern "C" fn(
                Word, $(functions!(@ $before),)* Word, Word
            // SAFETY: the library's function of this name.
            ) -> c_int = unsafe { transmute(next) };
            // SAFETY: the program's call.
            let result = unsafe { function(file, $($before,)* count, datatype) };
            if result == 0 {
                tell(file, ($($number),*), count, datatype);
            }
            result
        }
    )* };
}

/// Tells the adapter that a split collective call begins.
fn begins(file: Word) {
    static TELL: Symbol = Symbol::new();
    let tell = of_adapter(&TELL, c"forebay_mpiio_begins");
    if !tell.is_null() {
        // SAFETY: the adapter's function.
        let tell: extern "C" fn(Word) = unsafe { transmute(tell) };
        tell(file);
    }
}

beginning_functions! {
    MPI_File_read_all_begin_c(buffer) 1, 1, 1, 0;
    MPI_File_read_at_all_begin_c(offset, buffer) 1, 1, 0, offset as i64;
    MPI_File_read_ordered_begin_c(buffer) 1, 1, 2, 0;
    MPI_File_write_all_begin_c(buffer) 0, 1, 1, 0;
    MPI_File_write_at_all_begin_c(offset, buffer) 0, 1, 0, offset as i64;
    MPI_File_write_ordered_begin_c(buffer) 0, 1, 2, 0;
}

/// Makes a collective call by one of two functions of the library, by the adapter: the second is
/// that by which a rank makes it alone, at an offset.
///
/// # Safety
/// The words are the program's, as `MPI_File_write_at_all` has them; at the pointer of the rank the
/// second is any.
unsafe fn collective(
    functions: [*mut c_void; 2],
    is_read: c_int,
    is_at_pointer: c_int,
    words: [Word; 6],
) -> c_int {
    static MAKE: Symbol = Symbol::new();
    let make = of_adapter(&MAKE, c"forebay_mpiio_collective");
    if make.is_null() || functions.iter().any(|function| function.is_null()) {
        return MPI_ERR_OTHER;
    }
    let make: unsafe extern "C" fn(
        *const [*mut c_void; 2],
        c_int,
        c_int,
        *const [Word; 6],
        // SAFETY: the adapter's function.
    ) -> c_int = unsafe { transmute(make) };
    // SAFETY: functions of the library that take these words, as the caller says.
    unsafe { make(&functions, is_read, is_at_pointer, &words) }
}

/// Collective functions at an offset or at the pointer of the rank (1), and those behind the arrow
/// by which a rank makes such a call alone; whether they read.
macro_rules! collective_functions {
    ($($name:ident($($offset:ident)?) => $alone:literal $is_read:literal $is_at_pointer:literal;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            file: Word, $($offset: Word,)? buffer: Word, count: Word, datatype: Word, status: Word
        ) -> c_int {
            static NEXT: Symbol = Symbol::new();
            static ALONE: Symbol = Symbol::new();
            let functions = [
                NEXT.or_find(|| next(concat!(stringify!($name), "\0"))),
                ALONE.or_find(|| next(concat!($alone, "\0"))),
            ];
            let offset = 0;
            $( let offset = offset | $offset; )?
            let words = [file, offset, buffer, count, datatype, status];
            // SAFETY: the program's call.
            unsafe { collective(functions, $is_read, $is_at_pointer, words) }
        }
    )* };
}

collective_functions! {
    MPI_File_read_at_all_c(offset) => "MPI_File_read_at_c" 1 0;
    MPI_File_write_at_all_c(offset) => "MPI_File_write_at_c" 0 0;
    MPI_File_read_all_c() => "MPI_File_read_at_c" 1 1;
    MPI_File_write_all_c() => "MPI_File_write_at_c" 0 1;
}
