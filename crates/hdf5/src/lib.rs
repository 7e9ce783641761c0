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

mod files;
mod known;
mod layout;
mod library;
mod selection;
mod session;

use crate::library::{Id, Library};
use crate::session::is_active;
use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_uint, c_void};

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
    H5Oopen_by_idx -> forebay_called_H5Oopen_by_idx;
    H5Olink -> forebay_called_H5Olink;
    H5Lmove -> forebay_called_H5Lmove;
    H5Ldelete -> forebay_called_H5Ldelete;
    H5Gmove -> forebay_called_H5Gmove;
    H5Gmove2 -> forebay_called_H5Gmove2;
    H5Gunlink -> forebay_called_H5Gunlink;
    H5Dread -> forebay_called_H5Dread;
    H5Dread_chunk -> forebay_called_H5Dread_chunk;
    H5Dwrite -> forebay_called_H5Dwrite;
    H5Dflush -> forebay_called_H5Dflush;
    H5Drefresh -> forebay_called_H5Drefresh;
    H5Dclose -> forebay_called_H5Dclose;
    H5Oclose -> forebay_called_H5Oclose;
    H5Idec_ref -> forebay_called_H5Idec_ref;
    H5Fcreate -> forebay_called_H5Fcreate;
    H5Fopen -> forebay_called_H5Fopen;
    H5Fflush -> forebay_called_H5Fflush;
    H5Fstart_swmr_write -> forebay_called_H5Fstart_swmr_write;
    H5Fclose -> forebay_called_H5Fclose;
    // For `hdf5-later`, which has the public names.
    forebay_before_H5Dclose_async -> forebay_called_H5Dclose_async;
    forebay_before_H5Dcreate_async -> forebay_called_H5Dcreate_async;
    forebay_before_H5Dopen_async -> forebay_called_H5Dopen_async;
    forebay_before_H5Dread_async -> forebay_called_H5Dread_async;
    forebay_before_H5Dread_chunk1 -> forebay_called_H5Dread_chunk1;
    forebay_before_H5Dread_chunk2 -> forebay_called_H5Dread_chunk2;
    forebay_before_H5Dread_multi -> forebay_called_H5Dread_multi;
    forebay_before_H5Dread_multi_async -> forebay_called_H5Dread_multi_async;
    forebay_before_H5Dwrite_async -> forebay_called_H5Dwrite_async;
    forebay_before_H5Dwrite_multi -> forebay_called_H5Dwrite_multi;
    forebay_before_H5Dwrite_multi_async -> forebay_called_H5Dwrite_multi_async;
    forebay_before_H5Fclose_async -> forebay_called_H5Fclose_async;
    forebay_before_H5Fcreate_async -> forebay_called_H5Fcreate_async;
    forebay_before_H5Fflush_async -> forebay_called_H5Fflush_async;
    forebay_before_H5Fopen_async -> forebay_called_H5Fopen_async;
    forebay_before_H5Oclose_async -> forebay_called_H5Oclose_async;
    forebay_before_H5Oopen_async -> forebay_called_H5Oopen_async;
    forebay_before_H5Oopen_by_idx_async -> forebay_called_H5Oopen_by_idx_async;
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
    forebay_hdf5_H5Oopen_by_idx = H5Oopen_by_idx(
        file: Id, group: *const c_char, kind: c_int, order: c_int, number: u64, access: Id
    ) -> Id, before |_, _, _, _, _, _, _| (), after |library, (), id| opened(library, id);
    // A dataset that was made without a name has one now.
    forebay_hdf5_H5Olink = H5Olink(
        id: Id, place: Id, name: *const c_char, links: Id, access: Id
    ) -> c_int, before |_, id, _, _, _, _| id, after |library, id, _| linked(library, id);
    forebay_hdf5_H5Lmove = H5Lmove(
        from: Id, name: *const c_char, to: Id, new: *const c_char, links: Id, access: Id
    ) -> c_int, before |_, from, name, to, new, _, _| ((from, name), (to, new)), after moved;
    forebay_hdf5_H5Ldelete = H5Ldelete(place: Id, name: *const c_char, access: Id) -> c_int,
        before |_, place, name, _| (place, name),
        after |library, link, _| layout::moved(library, link, None);
    forebay_hdf5_H5Gmove = H5Gmove(
        place: Id, name: *const c_char, new: *const c_char
    ) -> c_int, before |_, place, name, new| ((place, name), (place, new)), after moved;
    forebay_hdf5_H5Gmove2 = H5Gmove2(
        from: Id, name: *const c_char, to: Id, new: *const c_char
    ) -> c_int, before |_, from, name, to, new| ((from, name), (to, new)), after moved;
    forebay_hdf5_H5Gunlink = H5Gunlink(place: Id, name: *const c_char) -> c_int,
        before |_, place, name| (place, name),
        after |library, link, _| layout::moved(library, link, None);
    forebay_hdf5_H5Dread = H5Dread(
        id: Id, kind: Id, memory: Id, space: Id, list: Id, to: *mut c_void
    ) -> c_int, before |library, id, _, _, space, _, _| read(library, id, space),
        after |_, (), _| ();
    forebay_hdf5_H5Dread_chunk = H5Dread_chunk(
        id: Id, list: Id, offset: *const u64, filters: *mut u32, to: *mut c_void
    ) -> c_int, before |library, id, _, offset, _, _| read_chunk(library, id, offset),
        after |_, (), _| ();
    forebay_hdf5_H5Dwrite = H5Dwrite(
        id: Id, kind: Id, memory: Id, space: Id, list: Id, from: *const c_void
    ) -> c_int, before |_, id, _, _, _, _, _| id, after |library, id, _| written(library, id);
    forebay_hdf5_H5Dflush = H5Dflush(id: Id) -> c_int,
        before |_, id| id, after |library, id, _| flushed(library, id);
    forebay_hdf5_H5Drefresh = H5Drefresh(id: Id) -> c_int,
        before |_, id| id, after |library, id, _| refreshed(library, id);
    forebay_hdf5_H5Fcreate = H5Fcreate(
        name: *const c_char, flags: c_uint, list: Id, access: Id
    ) -> Id, before |_, _, _, _, _| (), after |library, (), id| file_made(library, id);
    forebay_hdf5_H5Fopen = H5Fopen(name: *const c_char, flags: c_uint, access: Id) -> Id,
        before |_, _, flags, _| flags, after file_opened;
    forebay_hdf5_H5Fflush = H5Fflush(id: Id, scope: c_int) -> c_int,
        before |_, id, _| id, after |library, id, _| all_flushed(library, id);
    // It flushes the file before.
    forebay_hdf5_H5Fstart_swmr_write = H5Fstart_swmr_write(id: Id) -> c_int,
        before |_, id| id, after |library, id, _| all_flushed(library, id);
    forebay_hdf5_H5Dclose = H5Dclose(id: Id) -> c_int,
        before closing, after closed;
    forebay_hdf5_H5Oclose = H5Oclose(id: Id) -> c_int,
        before closing, after closed;
    forebay_hdf5_H5Idec_ref = H5Idec_ref(id: Id) -> c_int,
        before closing, after closed;
    forebay_hdf5_H5Fclose = H5Fclose(id: Id) -> c_int,
        before file_closing, after file_closed;
}

// Those of HDF5 1.14. What is asynchronous is done when such a call returns, but with a connector
// that does its work later.
functions! {
    forebay_hdf5_H5Dcreate_async = H5Dcreate_async(
        file: *const c_char, function: *const c_char, line: c_uint,
        place: Id, name: *const c_char, kind: Id, space: Id, links: Id, list: Id, access: Id,
        events: Id
    ) -> Id, before |_, _, _, _, _, _, _, _, _, _, _, _| (),
        after |library, (), id| if_native(library, id, opened);
    forebay_hdf5_H5Dopen_async = H5Dopen_async(
        file: *const c_char, function: *const c_char, line: c_uint,
        place: Id, name: *const c_char, access: Id, events: Id
    ) -> Id, before |_, _, _, _, _, _, _, _| (),
        after |library, (), id| if_native(library, id, opened);
    forebay_hdf5_H5Oopen_async = H5Oopen_async(
        file: *const c_char, function: *const c_char, line: c_uint,
        place: Id, name: *const c_char, access: Id, events: Id
    ) -> Id, before |_, _, _, _, _, _, _, _| (),
        after |library, (), id| if_native(library, id, opened);
    forebay_hdf5_H5Oopen_by_idx_async = H5Oopen_by_idx_async(
        file: *const c_char, function: *const c_char, line: c_uint,
        place: Id, group: *const c_char, kind: c_int, order: c_int, number: u64, access: Id,
        events: Id
    ) -> Id, before |_, _, _, _, _, _, _, _, _, _, _| (),
        after |library, (), id| if_native(library, id, opened);
    forebay_hdf5_H5Dread_async = H5Dread_async(
        file: *const c_char, function: *const c_char, line: c_uint,
        id: Id, kind: Id, memory: Id, space: Id, list: Id, to: *mut c_void, events: Id
    ) -> c_int, before |library, _, _, _, id, _, _, space, _, _, _| read(library, id, space),
        after |_, (), _| ();
    forebay_hdf5_H5Dread_chunk1 = H5Dread_chunk1(
        id: Id, list: Id, offset: *const u64, filters: *mut u32, to: *mut c_void
    ) -> c_int, before |library, id, _, offset, _, _| read_chunk(library, id, offset),
        after |_, (), _| ();
    forebay_hdf5_H5Dread_chunk2 = H5Dread_chunk2(
        id: Id, list: Id, offset: *const u64, filters: *mut u32, to: *mut c_void, size: *mut usize
    ) -> c_int, before |library, id, _, offset, _, _, _| read_chunk(library, id, offset),
        after |_, (), _| ();
    forebay_hdf5_H5Dread_multi = H5Dread_multi(
        count: usize, ids: *const Id, kinds: *const Id, memories: *const Id, spaces: *const Id,
        list: Id, to: *const *mut c_void
    ) -> c_int, before |library, count, ids, _, _, spaces, _, _| {
        read_all(library, count, ids, spaces)
    }, after |_, (), _| ();
    forebay_hdf5_H5Dread_multi_async = H5Dread_multi_async(
        file: *const c_char, function: *const c_char, line: c_uint,
        count: usize, ids: *const Id, kinds: *const Id, memories: *const Id, spaces: *const Id,
        list: Id, to: *const *mut c_void, events: Id
    ) -> c_int, before |library, _, _, _, count, ids, _, _, spaces, _, _, _| {
        read_all(library, count, ids, spaces)
    }, after |_, (), _| ();
    forebay_hdf5_H5Dwrite_async = H5Dwrite_async(
        file: *const c_char, function: *const c_char, line: c_uint,
        id: Id, kind: Id, memory: Id, space: Id, list: Id, from: *const c_void, events: Id
    ) -> c_int, before |_, _, _, _, id, _, _, _, _, _, _| id,
        after |library, id, _| written(library, id);
    forebay_hdf5_H5Dwrite_multi = H5Dwrite_multi(
        count: usize, ids: *const Id, kinds: *const Id, memories: *const Id, spaces: *const Id,
        list: Id, from: *const *const c_void
    ) -> c_int, before |_, count, ids, _, _, _, _, _| (count, ids), after all_written;
    forebay_hdf5_H5Dwrite_multi_async = H5Dwrite_multi_async(
        file: *const c_char, function: *const c_char, line: c_uint,
        count: usize, ids: *const Id, kinds: *const Id, memories: *const Id, spaces: *const Id,
        list: Id, from: *const *const c_void, events: Id
    ) -> c_int, before |_, _, _, _, count, ids, _, _, _, _, _, _| (count, ids), after all_written;
    forebay_hdf5_H5Fcreate_async = H5Fcreate_async(
        file: *const c_char, function: *const c_char, line: c_uint,
        name: *const c_char, flags: c_uint, list: Id, access: Id, events: Id
    ) -> Id, before |_, _, _, _, _, _, _, _, _| (),
        after |library, (), id| if_native(library, id, file_made);
    forebay_hdf5_H5Fopen_async = H5Fopen_async(
        file: *const c_char, function: *const c_char, line: c_uint,
        name: *const c_char, flags: c_uint, access: Id, events: Id
    ) -> Id, before |_, _, _, _, _, flags, _, _| flags, after |library, flags, id| {
        if_native(library, id, |library, id| file_opened(library, flags, id));
    };
    forebay_hdf5_H5Fflush_async = H5Fflush_async(
        file: *const c_char, function: *const c_char, line: c_uint,
        id: Id, scope: c_int, events: Id
    ) -> c_int, before |_, _, _, _, id, _, _| id,
        after |library, id, _| if_native(library, id, all_flushed);
    forebay_hdf5_H5Dclose_async = H5Dclose_async(
        file: *const c_char, function: *const c_char, line: c_uint, id: Id, events: Id
    ) -> c_int, before |library, _, _, _, id, _| closing(library, id), after closed;
    forebay_hdf5_H5Oclose_async = H5Oclose_async(
        file: *const c_char, function: *const c_char, line: c_uint, id: Id, events: Id
    ) -> c_int, before |library, _, _, _, id, _| closing(library, id), after closed;
    forebay_hdf5_H5Fclose_async = H5Fclose_async(
        file: *const c_char, function: *const c_char, line: c_uint, id: Id, events: Id
    ) -> c_int, before |library, _, _, _, id, _| {
        layout::is_native(library, id).then(|| file_closing(library, id)).flatten()
    }, after file_closed;
}

/// `H5F_ACC_RDWR`.
const READ_WRITE: c_uint = 1;

/// Does what follows from a call of which no connector has put off the work.
fn if_native(library: &Library, id: i64, act: impl FnOnce(&Library, i64)) {
    if layout::is_native(library, id) {
        act(library, id);
    }
}

fn file_made(library: &Library, id: i64) {
    layout::file_opened(library, id, true);
}

fn file_opened(library: &Library, flags: c_uint, id: i64) {
    if flags & READ_WRITE != 0 {
        layout::file_opened(library, id, false);
    }
}

/// An object has got a name.
fn linked(library: &Library, id: Id) {
    if known::find(known::key(library, id)).is_none() {
        opened(library, id);
    }
}

/// A link was moved; 0 is the place of the other one.
fn moved(library: &Library, (from, to): (layout::Link, layout::Link), _: i64) {
    let at = |link: layout::Link, other: Id| (if link.0 == 0 { other } else { link.0 }, link.1);
    layout::moved(library, at(from, to.0), Some(at(to, from.0)));
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

/// A chunk of a dataset is about to be read as it lies in the file.
fn read_chunk(library: &Library, id: Id, offset: *const u64) {
    if let Some(open) = known::find(known::key(library, id)) {
        // SAFETY: the program's offset, of as many words as the dataset has dimensions.
        unsafe { layout::read_chunk(library, &open, offset) };
    }
}

/// Several datasets are about to be read.
fn read_all(library: &Library, count: usize, ids: *const Id, spaces: *const Id) {
    if ids.is_null() || spaces.is_null() || !known::is_any() {
        return;
    }
    for index in 0..count {
        // SAFETY: the program's arrays, which have so many words each.
        let (id, space) = unsafe { (*ids.add(index), *spaces.add(index)) };
        read(library, id, space);
    }
}

/// Several datasets were written.
fn all_written(library: &Library, (count, ids): (usize, *const Id), _: i64) {
    for index in 0..count {
        // SAFETY: the program's array, which has so many words: the call has succeeded.
        written(library, unsafe { *ids.add(index) });
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

/// What another process has written of a dataset can be read now.
fn refreshed(library: &Library, id: Id) {
    let open = known::find(known::key(library, id));
    if let Some(open) = open.filter(|open| !open.is_writable) {
        layout::refresh(library, &open);
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
    if files::is_any() {
        layout::note_metadata(library, id, true);
    }
}

/// A file is about to be closed, which may close its datasets. Returns it, if its metadata is told
/// apart.
fn file_closing(library: &Library, id: Id) -> Option<session::FileIdentity> {
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
    files::is_any().then(|| layout::note_metadata(library, id, false)).flatten()
}

fn file_closed(_library: &Library, file: Option<session::FileIdentity>, _result: i64) {
    if let Some(file) = file {
        files::closed(file);
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
