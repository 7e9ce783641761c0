//! What UCX is told before anything else: it changes the process otherwise.
//!
//! UCX is linked into the program, and its constructors run before `main`. By default they take
//! SIGHUP and the signals of crashes, and a context rewrites the beginnings of `mmap` and `munmap`
//! in memory. They look at the environment only, so a constructor that runs before them says what
//! they find there, and [`begin`], first in `main`, puts the environment back: what the process
//! starts finds it as it was. What a context is made with is said by UCX' configuration instead.

use super::engine::{address_at, make_context};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int};
use std::net::IpAddr;
use std::sync::Mutex;
use ucx_rs::sys;

/// What constructors of UCX shall find.
const EARLY: [(&CStr, &CStr); 7] = [
    // SIGHUP is the program's.
    (c"UCX_DEBUG_SIGNO", c"0"),
    // So are SIGSEGV and its like: Rust tells of a stack that is full.
    (c"UCX_HANDLE_ERRORS", c"none"),
    // The heap and mappings are nothing that UCX needs to know of: nothing of it is registered.
    (c"UCX_MEM_MMAP_HOOK_MODE", c"none"),
    (c"UCX_MEM_EVENTS", c"n"),
    (c"UCX_LOG_LEVEL", c"fatal"),
    (c"UCX_WARN_UNUSED_ENV_VARS", c"n"),
    // No library is loaded from beside the program.
    (c"UCX_MODULES", c"^*"),
];

/// What a context is made with, besides its transports.
const SETTINGS: &[(&CStr, &CStr)] = &[
    (c"LOG_LEVEL", c"fatal"),
    (c"WARN_UNUSED_ENV_VARS", c"n"),
    // Fragments of UCX over TCP with the handling of errors are of 8 KiB by default
    // (openucx issue 11929): 3 to 6 times slower.
    (c"TCP_TX_SEG_SIZE", c"256k"),
    (c"TCP_RX_SEG_SIZE", c"256k"),
    // A link ends in at most 5 s of silence.
    (c"TCP_USER_TIMEOUT", c"3s"),
    (c"TCP_KEEPIDLE", c"1s"),
    (c"TCP_KEEPINTVL", c"1s"),
    (c"TCP_KEEPCNT", c"3"),
    (c"KEEPALIVE_INTERVAL", c"1s"),
    // Messages of a link go one way.
    (c"MAX_EAGER_RAILS", c"1"),
    // A listener of a process that has ended does not keep its address.
    (c"TCP_CM_REUSEADDR", c"y"),
    (c"TCP_CM_USER_TIMEOUT", c"3s"),
    #[cfg(feature = "rdma")]
    (c"RDMA_CM_REUSEADDR", c"y"),
];

/// What was there in place of [`EARLY`], while it is replaced.
static REPLACED: Mutex<Option<[Option<CString>; EARLY.len()]>> = Mutex::new(None);

/// Runs before UCX' constructors, which have no priority, and after Rust's own.
#[used]
#[unsafe(link_section = ".init_array.00200")]
static FIRST: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = prepare;

extern "C" fn prepare(_: c_int, _: *const *const c_char, _: *const *const c_char) {
    let before = EARLY.map(|(name, value)| {
        // SAFETY: before `main` there is one thread; both are texts that end, and the value that
        // was there is copied before it is replaced.
        unsafe {
            let found = libc::getenv(name.as_ptr());
            let before = (!found.is_null()).then(|| CStr::from_ptr(found).to_owned());
            libc::setenv(name.as_ptr(), value.as_ptr(), 1);
            before
        }
    });
    if let Ok(mut replaced) = REPLACED.lock() {
        *replaced = Some(before);
    }
}

/// Puts the environment back that UCX was not to see. Does so once.
///
/// # Safety
/// The first thing in `main`: no other thread uses the environment.
pub unsafe fn begin() {
    let replaced = REPLACED.lock().ok().and_then(|mut replaced| replaced.take());
    for ((name, _), before) in EARLY.iter().zip(replaced.into_iter().flatten()) {
        // SAFETY: the caller promises that no other thread looks; both are texts that end.
        unsafe {
            match before {
                Some(value) => libc::setenv(name.as_ptr(), value.as_ptr(), 1),
                None => libc::unsetenv(name.as_ptr()),
            };
        }
    }
}

/// A context that uses these transports only, and these network interfaces if there are any.
pub(super) fn context(
    transports: &str,
    interfaces: &[String],
) -> Result<sys::ucp_context_h, String> {
    let text = |text: String| CString::new(text).map_err(|error| error.to_string());
    let (transports, devices) = (text(transports.to_owned())?, text(interfaces.join(","))?);
    let mut settings = [&[(c"TLS", &*transports)], SETTINGS].concat();
    if !interfaces.is_empty() {
        settings.push((c"NET_DEVICES", &devices));
    }
    make_context(&settings).map_err(|(status, what)| format!("UCX: {what}: {status}"))
}

/// The network interfaces that have one of these addresses.
pub(super) fn interfaces(at: &[IpAddr]) -> Vec<String> {
    let mut first = std::ptr::null_mut();
    // SAFETY: it is told where to put the list.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Vec::new();
    }
    let mut names = BTreeSet::new();
    let mut next = first;
    // SAFETY: each is an entry of the list, or null behind the last.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: null, or an address of the family that it says.
        let address = unsafe { address_at(entry.ifa_addr) };
        if address.is_some_and(|address| at.contains(&address.ip())) {
            // SAFETY: the entry's name, a text that ends.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            names.insert(name.to_string_lossy().into_owned());
        }
        next = entry.ifa_next;
    }
    // SAFETY: the list from above, of which nothing is used any more.
    unsafe { libc::freeifaddrs(first) };
    names.into_iter().collect()
}

/// The RDMA devices that the kernel has.
pub fn rdma_devices() -> Vec<String> {
    let found = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let mut names: Vec<_> =
        found.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
