//! Parts of a session that most processes never use. Each gets memory of its own when it is used
//! first: a process that starts pays for nothing else than it needs, and its stack need not hold
//! what it has. It comes from the kernel and not from the heap, so that a signal handler may be
//! the first.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};
use rustix::mm::{MapFlags, ProtFlags};

/// A value that is made when it is used first.
pub(crate) struct Later<T>(AtomicPtr<T>);

/// A value that can be made of memory that is zero.
///
/// # Safety
/// Zeros are a valid value.
pub(crate) unsafe trait Zeros: Sync {
    /// Makes of zeros what a value is at first.
    fn begin(&mut self) {}
}

impl<T: Zeros> Later<T> {
    pub const fn new() -> Later<T> {
        Later(AtomicPtr::new(null_mut()))
    }

    /// The value if there is one.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        // SAFETY: it stays until `self` is dropped.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// The value; `None` without memory.
    #[inline]
    pub fn get_or_make(&self) -> Option<&T> {
        self.get().or_else(|| self.make())
    }

    #[cold]
    fn make(&self) -> Option<&T> {
        // SAFETY: a fresh mapping.
        let fresh = unsafe {
            rustix::mm::mmap_anonymous(
                null_mut(),
                size_of::<T>(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let made = NonNull::new(fresh.ok()?.cast::<T>())?;
        // SAFETY: no other thread has it yet, and zeros are a value.
        unsafe { (*made.as_ptr()).begin() };
        let first =
            self.0.compare_exchange(null_mut(), made.as_ptr(), Ordering::AcqRel, Ordering::Acquire);
        if first.is_err() {
            give_back(made);
        }
        self.get()
    }
}

fn give_back<T>(made: NonNull<T>) {
    // SAFETY: made above, and nothing uses it any more. The mapping goes with what is in it.
    unsafe {
        made.drop_in_place();
        let _ = rustix::mm::munmap(made.as_ptr().cast(), size_of::<T>());
    }
}

impl<T> Drop for Later<T> {
    fn drop(&mut self) {
        if let Some(made) = NonNull::new(*self.0.get_mut()) {
            give_back(made);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32;

    struct Counted([AtomicU32; 2000]);

    // SAFETY: numbers.
    unsafe impl Zeros for Counted {
        fn begin(&mut self) {
            *self.0[1].get_mut() = 7;
        }
    }

    #[test]
    fn all_threads_have_the_same_value() {
        let later = Later::<Counted>::new();
        assert!(later.get().is_none());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    later.get_or_make().unwrap().0[1].fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        assert_eq!(later.get().unwrap().0[1].load(Ordering::SeqCst), 11);
    }
}
