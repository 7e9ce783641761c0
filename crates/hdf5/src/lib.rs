//! The adapter for HDF5: where the datasets of buffered files lie, for all HDF5 libraries that a
//! program brings.
//!
//! It stands before the functions by which datasets are opened, read, written and closed. Each call
//! goes to the library that it was meant for, with the same arguments, and its result to the
//! program. Beside that the library is asked what it knows of the dataset, and the session of the
//! process is told. A process without a session, or whose library lacks what is asked for, has
//! nothing but the calls. See docs/design/hdf5.md.
//!
//! Nothing is asked after a call that has failed: each call of the library empties its stack of
//! errors, which is the program's then.
//!
//! # Safety
//! Each exported symbol is `unsafe` on the conditions of HDF5's manual.

#![cfg(target_os = "linux")]

mod known;
mod layout;
mod library;
mod selection;
mod session;

use crate::library::{Id, Library};
use crate::session::is_active;
use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_void};

/// Exports a public name that jumps to a function of the C shim.
macro_rules! interposed {
    ($($name:ident -> $target:ident;)*) => { $(
        unsafe extern "C" { fn $target(); }
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            naked_asm!("jmp {}", sym $target);
            #[cfg(target_arch = "aarch64")]
            naked_asm!("b {}", sym $target);
        }
    )* };
}

interposed! {
    H5Dcreate1 -> forebay_called_H5Dcreate1;
    H5Dcreate2 -> forebay_called_H5Dcreate2;
    H5Dopen1 -> forebay_called_H5Dopen1;
    H5Dopen2 -> forebay_called_H5Dopen2;
    H5Oopen -> forebay_called_H5Oopen;
    H5Dread -> forebay_called_H5Dread;
    H5Dwrite -> forebay_called_H5Dwrite;
    H5Dflush -> forebay_called_H5Dflush;
    H5Fflush -> forebay_called_H5Fflush;
    H5Dclose -> forebay_called_H5Dclose;
    H5Oclose -> forebay_called_H5Oclose;
    H5Idec_ref -> forebay_called_H5Idec_ref;
    H5Fclose -> forebay_called_H5Fclose;
}

/// What the functions return where no library has them.
const FAILED: i64 = -1;

/// Defines what the C shim calls: the library's function, with `before` and `after` around it.
macro_rules! functions {
    ($($shim:ident = $name:ident($($argument:ident: $type:ty),*) -> $result:ty,
        before $before:expr, after $after:expr;)*) => { $(
        /// # Safety
        /// As of the library's function.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $shim(caller: *const c_void, $($argument: $type),*) -> i64 {
            let Some(library) = Library::of(caller) else { return FAILED };
            let Some(function) = library.$name else { return FAILED };
            if !library.is_followed() || !is_active() {
                // SAFETY: the program's call.
                return i64::from(unsafe { function($($argument),*) });
            }
            let known = ($before)(library, $($argument),*);
            // SAFETY: the program's call.
            let result: $result = unsafe { function($($argument),*) };
            if result >= 0 {
                ($after)(library, known, i64::from(result));
            }
            i64::from(result)
        }
    )* };
}

functions! {
    forebay_hdf5_H5Dcreate1 = H5Dcreate1(
        file: Id, name: *const c_char, kind: Id, space: Id, list: Id
    ) -> Id, before |_, _, _, _, _, _| (), after |library, (), id| opened(library, id);
    forebay_hdf5_H5Dcreate2 = H5Dcreate2(
        file: Id, name: *const c_char, kind: Id, space: Id, links: Id, list: Id, access: Id
    ) -> Id, before |_, _, _, _, _, _, _, _| (), after |library, (), id| opened(library, id);
    forebay_hdf5_H5Dopen1 = H5Dopen1(file: Id, name: *const c_char) -> Id,
        before |_, _, _| (), after |library, (), id| opened(library, id);
    forebay_hdf5_H5Dopen2 = H5Dopen2(file: Id, name: *const c_char, access: Id) -> Id,
        before |_, _, _, _| (), after |library, (), id| opened(library, id);
    forebay_hdf5_H5Oopen = H5Oopen(file: Id, name: *const c_char, access: Id) -> Id,
        before |_, _, _, _| (), after |library, (), id| opened(library, id);
    forebay_hdf5_H5Dread = H5Dread(
        id: Id, kind: Id, memory: Id, space: Id, list: Id, to: *mut c_void
    ) -> c_int, before |library, id, _, _, space, _, _| read(library, id, space),
        after |_, (), _| ();
    forebay_hdf5_H5Dwrite = H5Dwrite(
        id: Id, kind: Id, memory: Id, space: Id, list: Id, from: *const c_void
    ) -> c_int, before |_, id, _, _, _, _, _| id, after |library, id, _| written(library, id);
    forebay_hdf5_H5Dflush = H5Dflush(id: Id) -> c_int,
        before |_, id| id, after |library, id, _| flushed(library, id);
    forebay_hdf5_H5Fflush = H5Fflush(id: Id, scope: c_int) -> c_int,
        before |_, id, _| id, after |library, id, _| all_flushed(library, id);
    forebay_hdf5_H5Dclose = H5Dclose(id: Id) -> c_int,
        before closing, after closed;
    forebay_hdf5_H5Oclose = H5Oclose(id: Id) -> c_int,
        before closing, after closed;
    forebay_hdf5_H5Idec_ref = H5Idec_ref(id: Id) -> c_int,
        before closing, after closed;
    forebay_hdf5_H5Fclose = H5Fclose(id: Id) -> c_int,
        before file_closing, after |_, (), _| ();
}

/// A dataset, or something else, was opened or made.
fn opened(library: &Library, id: Id) {
    let Some(mut open) = layout::look(library, id) else { return };
    open.is_settled = layout::note(library, &open);
    known::add(open);
}

/// A dataset is about to be read.
fn read(library: &Library, id: Id, space: Id) {
    // 0 selects all of it.
    if space > 0
        && let Some(open) = known::find(known::key(library, id))
    {
        layout::read(library, &open, space);
    }
}

/// A dataset was written: one in one piece has its place in the file now.
fn written(library: &Library, id: Id) {
    let Some(open) = known::find(known::key(library, id)) else { return };
    if !open.is_settled && open.layout == known::Layout::Contiguous {
        settle(library, &open);
    }
}

fn settle(library: &Library, open: &known::Open) {
    if layout::note(library, open) {
        known::change(open.at, |open| open.is_settled = true);
    }
}

/// The chunks of a dataset have their places in the file now.
fn flushed(library: &Library, id: Id) {
    let open = known::find(known::key(library, id));
    if let Some(open) = open.filter(|open| open.is_writable && !open.is_settled) {
        settle(library, &open);
    }
}

/// The same of all datasets of the file in which an object is.
fn all_flushed(library: &Library, id: Id) {
    if known::is_any()
        && let Some(file) = layout::file(library, id)
    {
        known::for_each(library, file, |open| {
            if open.is_writable && !open.is_settled {
                settle(library, &open);
            }
        });
    }
}

/// A file is about to be closed, which may close its datasets.
fn file_closing(library: &Library, id: Id) {
    if known::is_any()
        && let Some(file) = layout::file_closing(library, id)
    {
        known::for_each(library, file, |open| {
            if open.is_writable && !open.is_settled {
                layout::note(library, &open);
            }
            known::remove(open.at);
        });
    }
}

/// What may be a dataset is about to be closed: its chunks get their places first, as they do when
/// it is, but where the process has it open once more. Returns it if it is followed, and has no
/// other reference.
fn closing(library: &Library, id: Id) -> Option<known::Open> {
    let open = known::find(known::key(library, id))?;
    // SAFETY: an identifier that the library looks up.
    let references = library.H5Iget_ref.map_or(0, |count| unsafe { count(id) });
    if references > 1 {
        return None;
    }
    let is_last = || !known::is_open_elsewhere(&open);
    if open.is_writable && !open.is_settled && is_last() {
        layout::note(library, &open);
    }
    Some(open)
}

fn closed(_library: &Library, open: Option<known::Open>, _result: i64) {
    if let Some(open) = open {
        known::remove(open.at);
    }
}
