//! The HDF5 libraries of the process, of which there may be several: a call is meant for the one
//! that its caller was linked to, which the address says that the call returns to.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// An identifier of HDF5's; none is negative.
pub type Id = i64;

/// What `H5Dchunk_iter` calls for each chunk: its first element, filters, address and bytes, as
/// from 1.14 on.
pub type ChunkVisit = unsafe extern "C" fn(*const u64, c_uint, u64, u64, *mut c_void) -> c_int;

/// HDF5 libraries of one process that are told apart.
const LIBRARIES_MAX: usize = 16;
/// Places in programs and libraries that call HDF5, of which it is remembered where to; from others
/// a call takes a microsecond more.
const CALLERS_MAX: usize = 4096;
/// Places that are looked at for one caller.
const PROBES: usize = 8;

/// Declares the functions of a library that are called, of which an older or newer one may lack
/// some.
macro_rules! functions {
    ($($name:ident($($argument:ty),*) -> $result:ty;)*) => {
        /// An HDF5 library.
        #[allow(non_snake_case)]
        pub struct Library {
            /// Where it is loaded.
            base: *mut c_void,
            $(
                #[doc = concat!("`", stringify!($name), "`.")]
                pub $name: Option<unsafe extern "C" fn($($argument),*) -> $result>,
            )*
        }

        impl Library {
            /// The functions that `find` knows.
            #[allow(non_snake_case)]
            fn with(base: *mut c_void, find: impl Fn(&CStr) -> *mut c_void) -> Library {
                $(
                    // SAFETY: the library's function of that name has this signature; null is none.
                    let $name = unsafe {
                        core::mem::transmute::<
                            *mut c_void,
                            Option<unsafe extern "C" fn($($argument),*) -> $result>,
                        >(find(
                            const {
                                match CStr::from_bytes_with_nul(
                                    concat!(stringify!($name), "\0").as_bytes(),
                                ) {
                                    Ok(name) => name,
                                    Err(_) => c"",
                                }
                            },
                        ))
                    };
                )*
                Library { base, $($name,)* }
            }
        }
    };
}

functions! {
    // Those that programs call through us.
    H5Dcreate1(Id, *const c_char, Id, Id, Id) -> Id;
    H5Dcreate2(Id, *const c_char, Id, Id, Id, Id, Id) -> Id;
    H5Dopen1(Id, *const c_char) -> Id;
    H5Dopen2(Id, *const c_char, Id) -> Id;
    H5Oopen(Id, *const c_char, Id) -> Id;
    H5Oopen_by_idx(Id, *const c_char, c_int, c_int, u64, Id) -> Id;
    H5Olink(Id, Id, *const c_char, Id, Id) -> c_int;
    H5Lmove(Id, *const c_char, Id, *const c_char, Id, Id) -> c_int;
    H5Ldelete(Id, *const c_char, Id) -> c_int;
    H5Gmove(Id, *const c_char, *const c_char) -> c_int;
    H5Gmove2(Id, *const c_char, Id, *const c_char) -> c_int;
    H5Gunlink(Id, *const c_char) -> c_int;
    H5Dread(Id, Id, Id, Id, Id, *mut c_void) -> c_int;
    H5Dwrite(Id, Id, Id, Id, Id, *const c_void) -> c_int;
    H5Dread_chunk(Id, Id, *const u64, *mut u32, *mut c_void) -> c_int;
    H5Dflush(Id) -> c_int;
    H5Drefresh(Id) -> c_int;
    H5Fcreate(*const c_char, c_uint, Id, Id) -> Id;
    H5Fopen(*const c_char, c_uint, Id) -> Id;
    H5Fstart_swmr_write(Id) -> c_int;
    H5Fflush(Id, c_int) -> c_int;
    H5Dclose(Id) -> c_int;
    H5Oclose(Id) -> c_int;
    H5Idec_ref(Id) -> c_int;
    H5Fclose(Id) -> c_int;
    // The same, from 1.14 on. Of asynchronous ones the first three say where the call stands in the
    // program, and the last is a set of events.
    H5Dclose_async(*const c_char, *const c_char, c_uint, Id, Id) -> c_int;
    H5Dcreate_async(
        *const c_char, *const c_char, c_uint, Id, *const c_char, Id, Id, Id, Id, Id, Id
    ) -> Id;
    H5Dopen_async(*const c_char, *const c_char, c_uint, Id, *const c_char, Id, Id) -> Id;
    H5Dread_async(
        *const c_char, *const c_char, c_uint, Id, Id, Id, Id, Id, *mut c_void, Id
    ) -> c_int;
    H5Dread_chunk1(Id, Id, *const u64, *mut u32, *mut c_void) -> c_int;
    H5Dread_chunk2(Id, Id, *const u64, *mut u32, *mut c_void, *mut usize) -> c_int;
    H5Dread_multi(
        usize, *const Id, *const Id, *const Id, *const Id, Id, *const *mut c_void
    ) -> c_int;
    H5Dread_multi_async(
        *const c_char, *const c_char, c_uint, usize, *const Id, *const Id, *const Id, *const Id, Id,
        *const *mut c_void, Id
    ) -> c_int;
    H5Dwrite_async(
        *const c_char, *const c_char, c_uint, Id, Id, Id, Id, Id, *const c_void, Id
    ) -> c_int;
    H5Dwrite_multi(
        usize, *const Id, *const Id, *const Id, *const Id, Id, *const *const c_void
    ) -> c_int;
    H5Dwrite_multi_async(
        *const c_char, *const c_char, c_uint, usize, *const Id, *const Id, *const Id, *const Id, Id,
        *const *const c_void, Id
    ) -> c_int;
    H5Fclose_async(*const c_char, *const c_char, c_uint, Id, Id) -> c_int;
    H5Fcreate_async(
        *const c_char, *const c_char, c_uint, *const c_char, c_uint, Id, Id, Id
    ) -> Id;
    H5Fflush_async(*const c_char, *const c_char, c_uint, Id, c_int, Id) -> c_int;
    H5Fopen_async(*const c_char, *const c_char, c_uint, *const c_char, c_uint, Id, Id) -> Id;
    H5Oclose_async(*const c_char, *const c_char, c_uint, Id, Id) -> c_int;
    H5Oopen_async(*const c_char, *const c_char, c_uint, Id, *const c_char, Id, Id) -> Id;
    H5Oopen_by_idx_async(
        *const c_char, *const c_char, c_uint, Id, *const c_char, c_int, c_int, u64, Id, Id
    ) -> Id;
    // Those by which the structure of a file is learned.
    H5Dchunk_iter(Id, Id, ChunkVisit, *mut c_void) -> c_int;
    H5Dget_chunk_info_by_coord(Id, *const u64, *mut c_uint, *mut u64, *mut u64) -> c_int;
    H5Dget_create_plist(Id) -> Id;
    H5Dget_offset(Id) -> u64;
    H5Dget_space(Id) -> Id;
    H5Dget_storage_size(Id) -> u64;
    H5Eget_auto2(Id, *mut *mut c_void, *mut *mut c_void) -> c_int;
    H5Eset_auto2(Id, *mut c_void, *mut c_void) -> c_int;
    H5Fget_access_plist(Id) -> Id;
    H5Fget_eoa(Id, *mut u64) -> c_int;
    H5Fget_filesize(Id, *mut u64) -> c_int;
    H5Fget_intent(Id, *mut c_uint) -> c_int;
    H5Fget_name(Id, *mut c_char, usize) -> isize;
    H5Iget_file_id(Id) -> Id;
    H5Iget_name(Id, *mut c_char, usize) -> isize;
    H5Iget_ref(Id) -> c_int;
    H5Iget_type(Id) -> c_int;
    H5Pget_chunk(Id, c_int, *mut u64) -> c_int;
    H5Pget_external_count(Id) -> c_int;
    H5Pget_fclose_degree(Id, *mut c_int) -> c_int;
    H5Pget_layout(Id) -> c_int;
    H5VLobject_is_native(Id, *mut bool) -> c_int;
    H5Sget_select_bounds(Id, *mut u64, *mut u64) -> c_int;
    H5Sget_select_type(Id) -> c_int;
    H5Sget_simple_extent_dims(Id, *mut u64, *mut u64) -> c_int;
    H5Sget_simple_extent_ndims(Id) -> c_int;
}

impl Library {
    /// The library that a call is meant for which returns to `caller`. `None` if there is none.
    pub fn of(caller: *const c_void) -> Option<&'static Library> {
        match known(caller) {
            Some(library) => Some(library),
            None => look(caller),
        }
    }

    /// Whether datasets of the library are followed: from 1.10.5 on, which says where chunks lie.
    /// Identifiers of some older ones have half as many bits.
    pub fn is_followed(&self) -> bool {
        self.H5Dget_chunk_info_by_coord.is_some()
    }

    /// A number that differs between libraries.
    pub fn number(&self) -> usize {
        self.base.addr()
    }
}

static LIBRARIES: [AtomicPtr<Library>; LIBRARIES_MAX] =
    [const { AtomicPtr::new(null_mut()) }; LIBRARIES_MAX];

/// A caller and its library, which is null until it is known.
struct Caller {
    address: AtomicUsize,
    library: AtomicPtr<Library>,
}

static CALLERS: [Caller; CALLERS_MAX] =
    [const { Caller { address: AtomicUsize::new(0), library: AtomicPtr::new(null_mut()) } };
        CALLERS_MAX];

fn places(caller: *const c_void) -> impl Iterator<Item = &'static Caller> {
    let first = (caller.addr() ^ caller.addr() >> 12).wrapping_mul(0x9e37_79b9) >> 4;
    (0..PROBES).map(move |probe| &CALLERS[(first + probe) % CALLERS_MAX])
}

fn known(caller: *const c_void) -> Option<&'static Library> {
    let place =
        places(caller).find(|place| place.address.load(Ordering::Relaxed) == caller.addr())?;
    // SAFETY: null, or a library that is never freed.
    unsafe { place.library.load(Ordering::Acquire).as_ref() }
}

#[cold]
fn look(caller: *const c_void) -> Option<&'static Library> {
    let library = resolve(caller)?;
    let free = places(caller).find(|place| {
        let taken =
            place.address.compare_exchange(0, caller.addr(), Ordering::Relaxed, Ordering::Relaxed);
        taken.is_ok() || taken == Err(caller.addr())
    });
    if let Some(place) = free {
        place.library.store(core::ptr::from_ref(library).cast_mut(), Ordering::Release);
    }
    Some(library)
}

/// The loader's record of what it has loaded.
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
}

const RTLD_DL_LINKMAP: c_int = 2;

unsafe extern "C" {
    fn dladdr1(
        address: *const c_void,
        found: *mut libc::Dl_info,
        extra: *mut *mut c_void,
        flags: c_int,
    ) -> c_int;
}

/// Where the library begins that has an address, and the loader's name of it.
fn loaded_at(address: *const c_void) -> Option<(*mut c_void, *const c_char)> {
    let (mut found, mut map) = (MaybeUninit::<libc::Dl_info>::zeroed(), null_mut());
    // SAFETY: both are written to.
    let known = unsafe { dladdr1(address, found.as_mut_ptr(), &mut map, RTLD_DL_LINKMAP) };
    if known == 0 || map.is_null() {
        return None;
    }
    // SAFETY: filled in, or zeros; and the loader's record of a library that is loaded.
    let (found, map) = unsafe { (found.assume_init(), &*map.cast::<LinkMap>()) };
    Some((found.dli_fbase, map.name))
}

/// Looks for the library in the scope of the code that calls; for the program itself, and what was
/// loaded with it, that is what comes behind us.
fn resolve(caller: *const c_void) -> Option<&'static Library> {
    let (_, name) = loaded_at(caller)?;
    let own = loaded_at(resolve as *const c_void)?.0;
    // SAFETY: the loader's name; nothing is loaded. The handle is kept, so that neither the caller
    // nor its library is unloaded whose addresses are remembered.
    let handle = unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    // SAFETY: a look-up by name.
    let find_in = |handle, name: &CStr| unsafe { libc::dlsym(handle, name.as_ptr()) };
    let is_ours = |address: *mut c_void| {
        address.is_null() || loaded_at(address).is_none_or(|(base, _)| base == own)
    };
    let mark = c"H5Dclose";
    let scopes = [handle, libc::RTLD_NEXT];
    let scope = scopes.into_iter().find(|&scope| {
        (scope == libc::RTLD_NEXT || !scope.is_null()) && !is_ours(find_in(scope, mark))
    })?;
    let (base, _) = loaded_at(find_in(scope, mark))?;
    let other = find_in(libc::RTLD_DEFAULT, c"forebay_hdf5_later");
    let other = loaded_at(other.cast_const()).map(|(base, _)| base);
    for place in &LIBRARIES {
        let mut seen = place.load(Ordering::Acquire);
        if seen.is_null() {
            // What a later library would have is not this one's, but the other part of the adapter.
            let of_library = |name: &CStr| {
                let found = find_in(scope, name);
                let is_of_other = !found.is_null()
                    && other.is_some_and(|other| loaded_at(found).is_none_or(|at| at.0 == other));
                if is_of_other { null_mut() } else { found }
            };
            let new = Box::into_raw(Box::new(Library::with(base, of_library)));
            match place.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => seen = new,
                Err(other) => {
                    // SAFETY: made just now, and not shared.
                    drop(unsafe { Box::from_raw(new) });
                    seen = other;
                }
            }
        }
        // SAFETY: a library that is never freed.
        let library = unsafe { &*seen };
        if library.base == base {
            return Some(library);
        }
    }
    None
}
