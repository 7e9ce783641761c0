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

/// Calls the real function; -1 with ENOSYS if there is none.
macro_rules! real {
    ($name:literal ( $($argument:expr => $type:ty),* $(,)? ) -> $result:ty) => {{
        static SYMBOL: $crate::real::Symbol = $crate::real::Symbol::new($name);
        let address = SYMBOL.address();
        if address.is_null() {
            $crate::set_errno(rustix::io::Errno::NOSYS);
            -1isize as $result
        } else {
            let function: unsafe extern "C" fn($($type),*) -> $result =
                unsafe { core::mem::transmute(address) };
            unsafe { function($($argument),*) }
        }
    }};
}
pub(crate) use real;
