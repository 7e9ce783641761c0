//! The functions behind ours: the next definition in the loader's order, looked up at first use.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// A lazily found function.
pub struct Symbol {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Symbol {
    pub const fn new(name: &'static CStr) -> Symbol {
        Symbol { name, address: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Its address; null if the C library does not have it.
    #[inline]
    pub fn address(&self) -> *mut c_void {
        let address = self.address.load(Ordering::Relaxed);
        if !address.is_null() {
            return address;
        }
        // SAFETY: a lookup by name.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

/// Calls the real function, of ABI `$abi`; -1 with ENOSYS if there is none.
macro_rules! next {
    ($abi:literal $name:literal ( $($argument:expr => $type:ty),* $(,)? ) -> $result:ty) => {{
        static SYMBOL: $crate::real::Symbol = $crate::real::Symbol::new($name);
        let address = SYMBOL.address();
        if address.is_null() {
            $crate::errno::set_errno(rustix::io::Errno::NOSYS);
            -1isize as $result
        } else {
            let function: unsafe extern $abi fn($($type),*) -> $result =
                // SAFETY: the library's definition of the symbol, of which ours has the signature.
                unsafe { core::mem::transmute(address) };
            // SAFETY: the arguments are those of the program's call.
            unsafe { function($($argument),*) }
        }
    }};
}
pub(crate) use next;

/// Calls a real function.
macro_rules! real {
    ($($call:tt)*) => { $crate::real::next!("C" $($call)*) };
}
pub(crate) use real;

/// Calls a real function in which the thread may be cancelled: the C library then unwinds the
/// stack, through us. The caller is `extern "C-unwind"`, and holds nothing meanwhile.
macro_rules! cancellable {
    ($($call:tt)*) => { $crate::real::next!("C-unwind" $($call)*) };
}
pub(crate) use cancellable;

/// Names of the C library's that mean what another one means: on 64 bits all forms of an offset are
/// one.
macro_rules! aliases {
    ($($(#[$doc:meta])* $abi:literal $visible:vis $name:ident = $target:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => { $(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        $visible unsafe extern $abi fn $name($($argument: $type),*) $(-> $result)? {
            // SAFETY: the same call.
            unsafe { $target($($argument),*) }
        }
    )* };
}
pub(crate) use aliases;

/// Ends the thread here if it was cancelled. Buffered calls have no other place for that. The
/// caller is `extern "C-unwind"`, and holds nothing.
#[inline]
pub fn cancellation_point() {
    unsafe extern "C-unwind" {
        fn pthread_testcancel();
    }
    // SAFETY: returns, or unwinds.
    unsafe { pthread_testcancel() };
}

/// Calls `act`, in which the thread cannot be cancelled.
#[inline]
pub fn without_cancellation<R>(act: impl FnOnce() -> R) -> R {
    unsafe extern "C" {
        fn pthread_setcancelstate(state: i32, old: *mut i32) -> i32;
    }
    const DISABLE: i32 = 1;
    let mut before = 0;
    // SAFETY: changes a word of this thread's.
    unsafe { pthread_setcancelstate(DISABLE, &mut before) };
    let result = act();
    // SAFETY: the same.
    unsafe { pthread_setcancelstate(before, core::ptr::null_mut()) };
    result
}
