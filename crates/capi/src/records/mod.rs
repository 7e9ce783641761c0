//! The out-of-core container: records that a program writes at once and reads in an order that is
//! known, MLBS (Alturkestani et al.), Figure 5. See docs/design/container.md.
//!
//! The functions `forebay_records_...` of the header, the C++ class of `mlbs.hpp` and the Python
//! class of `mlbs.py` are all over `store.rs`; so is [`Container`] for Rust.

mod container;
mod copy;
mod files;
mod helper;
mod index;
mod order;
mod space;
mod store;
mod sum;
mod table;
mod window;
mod writers;

pub use container::{Container, Element, Error, Settings};

use crate::report::fail;
use core::ffi::{CStr, c_char, c_int, c_void};
use files::{Folder, Handle};
use order::Rule;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use store::{Options, Store};

/// `struct forebay_records_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct GivenOptions {
    size: usize,
    memory_bytes: u64,
    fast_bytes: u64,
    helpers: u32,
    order: c_int,
    layout: c_int,
    is_kept: c_int,
}

/// `FOREBAY_RECORDS_AUTO`.
const AUTO: u64 = u64::MAX;
/// Helpers that a container may have.
const HELPERS_MAX: u32 = 64;
/// Bytes that are read ahead where nothing is said, without Forebay.
const MEMORY_PLAINLY: u64 = 256 << 20;

/// `struct forebay_records_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Info {
    size: usize,
    records: u64,
    bytes: u64,
    writes: u64,
    reads: u64,
    hits: u64,
    late: u64,
    loaded: u64,
    wasted: u64,
    spilled: u64,
    window_bytes: u64,
    window_used: u64,
    is_spill_off: u64,
}

const DEFAULTS: GivenOptions = GivenOptions {
    size: size_of::<GivenOptions>(),
    memory_bytes: AUTO,
    fast_bytes: AUTO,
    helpers: 1,
    order: 0,
    layout: 0,
    is_kept: 0,
};

/// A quarter of the RAM tier: the rest is for what is written, and for what lies there.
fn default_memory() -> u64 {
    let Some(services) = crate::session::services() else { return MEMORY_PLAINLY };
    let mut now = core::mem::MaybeUninit::<forebay_client::services::TierNow>::uninit();
    // SAFETY: `now` is written to where the result is 0.
    match unsafe { (services.tier)(0, now.as_mut_ptr()) } {
        // SAFETY: it was.
        0 => (unsafe { now.assume_init() }.capacity / 4).max(1),
        _ => MEMORY_PLAINLY,
    }
}

/// Checks what a caller wants.
fn options_of(given: &GivenOptions) -> Result<Options, c_int> {
    const FUNCTION: &str = "forebay_records_open";
    let wrong = |what: core::fmt::Arguments<'_>| {
        Err(fail(-libc::EINVAL, format_args!("{FUNCTION}(): {what}")))
    };
    let memory = match given.memory_bytes {
        0 => {
            return wrong(format_args!(
                "memory_bytes is 0, and a container cannot read ahead without memory; give \
                 FOREBAY_RECORDS_AUTO, or the bytes of some records"
            ));
        }
        AUTO => default_memory(),
        bytes => bytes,
    };
    let fast = match given.fast_bytes {
        0 => {
            return wrong(format_args!(
                "fast_bytes is 0, and what memory does not hold has no place; give \
                 FOREBAY_RECORDS_AUTO for no limit, or the bytes of some records"
            ));
        }
        AUTO => None,
        bytes => Some(bytes),
    };
    if given.helpers > HELPERS_MAX {
        return wrong(format_args!("{} helpers; give 0 to {HELPERS_MAX}", given.helpers));
    }
    let order = match given.order {
        0 => Rule::Fifo,
        1 => Rule::Lifo,
        2 => Rule::Detect,
        order => return wrong(format_args!("{order} is none of the values FOREBAY_ORDER_...")),
    };
    let is_packed = match given.layout {
        0 => true,
        1 => false,
        layout => return wrong(format_args!("{layout} is none of the values FOREBAY_LAYOUT_...")),
    };
    let (is_kept, helpers) = (given.is_kept != 0, given.helpers);
    Ok(Options { order, is_packed, is_kept, helpers, memory, fast })
}

/// Opens a container.
fn open(
    session: *mut c_void,
    directory: &CStr,
    name: &CStr,
    given: &GivenOptions,
) -> Result<*mut c_void, c_int> {
    let options = options_of(given)?;
    let name = files::check_name(name)?;
    let _session = crate::handles::session(session)?;
    let directory = Path::new(std::ffi::OsStr::from_bytes(directory.to_bytes()));
    let folder = Folder::of_name(directory, name)?;
    table::add(Store::open(Handle::of(session), folder, options)?)
}

/// The bytes and the size of an element that a caller gives.
fn sizes(function: &str, is_null: bool, bytes: i64, element: i64) -> Result<(u64, u32), c_int> {
    let (length, size) = (u64::try_from(bytes), u32::try_from(element));
    match (length, size) {
        (Ok(length), Ok(size @ 1..)) if length % u64::from(size) == 0 => {
            if is_null && length > 0 {
                return Err(crate::null(function, "the buffer"));
            }
            Ok((length, size))
        }
        _ => Err(fail(
            -libc::EINVAL,
            format_args!("{function}(): {bytes} bytes are no whole elements of {element} bytes"),
        )),
    }
}

/// Fills in as many numbers as there is room for; how many there are.
///
/// # Safety
/// So many can be written at `to`.
unsafe fn give(function: &str, found: &[u64], to: *mut u64, room: i64) -> i64 {
    let Ok(room) = usize::try_from(room) else {
        return fail(-libc::EINVAL, format_args!("{function}(): room for {room} records")).into();
    };
    if to.is_null() && room > 0 {
        return crate::null(function, "the array").into();
    }
    for (at, &id) in found.iter().take(room).enumerate() {
        // SAFETY: within the caller's array.
        unsafe { to.add(at).write(id) };
    }
    found.len() as i64
}

#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_records_open(
    session: *mut c_void,
    directory: *const c_char,
    name: *const c_char,
    options: *const c_void,
    records: *mut *mut c_void,
) -> c_int {
    const FUNCTION: &str = "forebay_records_open";
    if records.is_null() {
        return crate::null(FUNCTION, "records");
    }
    // SAFETY: the caller's to write.
    unsafe { records.write(core::ptr::null_mut()) };
    if directory.is_null() || name.is_null() {
        return crate::null(FUNCTION, if name.is_null() { "name" } else { "directory" });
    }
    let mut given = DEFAULTS;
    if !options.is_null() {
        // SAFETY: a struct that begins with its size.
        let read = unsafe { crate::given(FUNCTION, "FOREBAY_RECORDS_OPTIONS", options, DEFAULTS) };
        given = match read {
            Ok(read) => read,
            Err(code) => return code,
        };
    }
    // SAFETY: the caller's texts.
    let (directory, name) = unsafe { (CStr::from_ptr(directory), CStr::from_ptr(name)) };
    match open(session, directory, name, &given) {
        // SAFETY: the caller's to write.
        Ok(made) => unsafe {
            records.write(made);
            0
        },
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
extern "C" fn forebay_records_close(records: *mut c_void) -> c_int {
    table::close(records)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_records_write(
    records: *mut c_void,
    id: u64,
    from: *const c_void,
    bytes: i64,
    element: i64,
) -> c_int {
    table::with(records, |store| {
        let (bytes, element) = sizes("forebay_records_write", from.is_null(), bytes, element)?;
        // SAFETY: the caller's buffer.
        unsafe { store.write(id, from.cast(), bytes, element) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_records_read(
    records: *mut c_void,
    id: u64,
    to: *mut c_void,
    bytes: i64,
    element: i64,
) -> c_int {
    table::with(records, |store| {
        let (bytes, element) = sizes("forebay_records_read", to.is_null(), bytes, element)?;
        // SAFETY: the caller's buffer.
        unsafe { store.read(id, to.cast(), bytes, element) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn forebay_records_size(records: *mut c_void, id: u64) -> i64 {
    let mut size = 0;
    let code = table::with(records, |store| {
        size = store.size(id)?.0 as i64;
        Ok(())
    });
    if code == 0 { size } else { code.into() }
}

#[unsafe(no_mangle)]
extern "C" fn forebay_records_sync(records: *mut c_void, id: u64, timeout_ms: i64) -> c_int {
    const DURABLE: c_int = 2;
    table::with(records, |store| store.sync(id, DURABLE, timeout_ms))
}

#[unsafe(no_mangle)]
extern "C" fn forebay_records_drop(records: *mut c_void, id: u64) -> c_int {
    table::with(records, |store| store.drop_record(id))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_records_will_read(
    records: *mut c_void,
    ids: *const u64,
    count: i64,
) -> c_int {
    const FUNCTION: &str = "forebay_records_will_read";
    table::with(records, |store| {
        let Ok(length) = usize::try_from(count) else {
            return Err(fail(-libc::EINVAL, format_args!("{FUNCTION}(): {count} records")));
        };
        if ids.is_null() && length > 0 {
            return Err(crate::null(FUNCTION, "ids"));
        }
        let ids = match length {
            0 => &[],
            // SAFETY: the caller's array, of so many.
            _ => unsafe { core::slice::from_raw_parts(ids, length) },
        };
        store.will_read(ids)
    })
}

/// Fills in the records that `find` gives.
///
/// # Safety
/// As many as there is room for can be written at `ids`.
unsafe fn list(
    function: &str,
    records: *mut c_void,
    (ids, room): (*mut u64, i64),
    find: impl FnOnce(&Store) -> Result<Vec<u64>, c_int>,
) -> i64 {
    let mut count = 0;
    let code = table::with(records, |store| {
        let found = find(store)?;
        // SAFETY: as the caller says.
        count = unsafe { give(function, &found, ids, room) };
        Ok(())
    });
    if code == 0 { count } else { code.into() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_records_ids(records: *mut c_void, ids: *mut u64, room: i64) -> i64 {
    // SAFETY: the caller's array.
    unsafe { list("forebay_records_ids", records, (ids, room), Store::ids) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_records_check(records: *mut c_void, torn: *mut u64, room: i64) -> i64 {
    // SAFETY: the caller's array.
    unsafe { list("forebay_records_check", records, (torn, room), Store::check_records) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_records_status(records: *mut c_void, info: *mut c_void) -> c_int {
    table::with(records, |store| {
        let (records, bytes) = store.contents()?;
        let make = || {
            let state = store.lock();
            let counts = state.counts;
            Ok(Info {
                size: 0,
                records,
                bytes,
                writes: counts.writes,
                reads: counts.reads,
                hits: counts.hits,
                late: counts.late,
                loaded: counts.loaded,
                wasted: state.window.wasted,
                spilled: counts.spilled,
                window_bytes: state.window.limit(),
                window_used: state.window.used(),
                is_spill_off: state.cannot_spill.into(),
            })
        };
        // SAFETY: the caller's struct.
        match unsafe { crate::fill("forebay_records_status", info.cast::<Info>(), make) } {
            0 => Ok(()),
            code => Err(code),
        }
    })
}
