//! The container as a Rust type.

use super::store::{Options, Store};
use super::{AUTO, DEFAULTS, GivenOptions, files, helper, options_of};
use crate::handles;
use crate::report::{fail, last_message};
use core::ffi::{CStr, c_int, c_void};
use files::{Folder, Handle};
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// A type whose values are all bytes that it can be made of.
///
/// # Safety
/// Any bytes are a value of the type, and it has no padding.
pub unsafe trait Element: Copy + 'static {
    /// What new elements are.
    const ZERO: Self;
}

macro_rules! elements {
    ($($type:ty: $zero:expr),*) => {
        // SAFETY: a number: any bytes are one.
        $(unsafe impl Element for $type { const ZERO: Self = $zero; })*
    };
}

elements!(u8: 0, u16: 0, u32: 0, u64: 0, i8: 0, i16: 0, i32: 0, i64: 0, f32: 0.0, f64: 0.0);

// SAFETY: any bytes are values of `T`, one after the other.
unsafe impl<T: Element, const N: usize> Element for [T; N] {
    const ZERO: Self = [T::ZERO; N];
}

/// Why a call has failed: a code of the header, negative, and what happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// `-errno`, or one of `FOREBAY_E_...`.
    pub code: i32,
    /// To what, and what to do.
    pub message: String,
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl Error {
    pub(crate) fn last(code: c_int) -> Error {
        // SAFETY: this thread's text.
        let text = unsafe { CStr::from_ptr(last_message()) };
        Error { code, message: text.to_string_lossy().into_owned() }
    }
}

/// What may be said of a container; see `struct forebay_records_options` of the header.
#[derive(Clone, Copy, Debug)]
pub struct Settings(GivenOptions);

impl Default for Settings {
    fn default() -> Settings {
        Settings(DEFAULTS)
    }
}

impl Settings {
    /// Records are read from the last written to the first.
    pub fn lifo(mut self) -> Settings {
        self.0.order = 1;
        self
    }

    /// The order of reads is seen from the first ones, or is that of the last pass.
    pub fn detect(mut self) -> Settings {
        self.0.order = 2;
        self
    }

    /// Each record is a file of its own.
    pub fn file_per_record(mut self) -> Settings {
        self.0.layout = 1;
        self
    }

    /// The records stay when the container is closed.
    pub fn keep(mut self) -> Settings {
        self.0.is_kept = 1;
        self
    }

    /// Bytes that are read ahead, and bytes beyond these that the tiers may hold; `None` of the
    /// latter: no limit.
    pub fn limits(mut self, memory: u64, fast: Option<u64>) -> Settings {
        self.0.memory_bytes = memory;
        self.0.fast_bytes = fast.unwrap_or(AUTO);
        self
    }

    /// Threads that read ahead.
    pub fn helpers(mut self, helpers: u32) -> Settings {
        self.0.helpers = helpers;
        self
    }
}

/// Elements in memory, a whole of which is written to and read from records. Its elements stay
/// where they are when a record is read; only [`Container::resize`] and [`Container::push`] may
/// move them.
///
/// ```
/// use forebay_capi::records::{Container, Settings};
///
/// # let folder = std::env::temp_dir().join(format!("forebay-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// let mut field = Container::<f64>::open(&folder, "field", Settings::default().lifo(), 1000)?;
/// for step in 0..10 {
///     field.fill(f64::from(step));
///     field.write(step as u64)?;
/// }
/// for step in (0..10).rev() {
///     field.read(step as u64)?;
///     assert!(field.iter().all(|&value| value == f64::from(step)));
/// }
/// # drop(field);
/// # std::fs::remove_dir(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Container<T: Element> {
    elements: Vec<T>,
    session: Handle,
    /// `None` once it is closed.
    store: Option<Arc<Store>>,
    helpers: Vec<JoinHandle<()>>,
}

impl<T: Element> Container<T> {
    /// Opens the container `name` in `directory`, with `count` elements of zero. Its records may be
    /// there, of this process, others, or earlier ones.
    pub fn open(
        directory: &Path,
        name: &str,
        settings: Settings,
        count: usize,
    ) -> Result<Self, Error> {
        let open = || {
            if size_of::<T>() == 0 {
                return Err(fail(-libc::EINVAL, format_args!("elements without bytes")));
            }
            let options: Options = options_of(&settings.0)?;
            let name = files::c_path(Path::new(name))?;
            let name = files::check_name(&name)?;
            let folder = Folder::of_name(directory, name)?;
            let session = handles::begin_session()?;
            let made = Store::open(Handle::of(session), folder, options);
            match made.and_then(helper::begin) {
                Ok((store, helpers)) => Ok((session, helpers, store)),
                Err(code) => {
                    crate::forebay_end(session);
                    Err(code)
                }
            }
        };
        let (session, helpers, store) = open().map_err(Error::last)?;
        let session = Handle::of(session);
        let mut made = Container { elements: Vec::new(), session, store: Some(store), helpers };
        made.resize(count)?;
        Ok(made)
    }

    fn ask<R>(&self, act: impl FnOnce(&Store) -> Result<R, c_int>) -> Result<R, Error> {
        let closed = || fail(crate::report::code::CLOSED, format_args!("it was closed"));
        let store = self.store.as_deref().ok_or_else(closed);
        store.and_then(act).map_err(Error::last)
    }

    /// Writes all elements as record `id`. It survives the program when this returns.
    pub fn write(&self, id: u64) -> Result<(), Error> {
        let (from, bytes) = (self.elements.as_ptr().cast(), size_of_val(&*self.elements) as u64);
        // SAFETY: the elements, which nothing changes meanwhile.
        self.ask(|store| unsafe { store.write(id, from, bytes, size_of::<T>() as u32) })
    }

    /// Replaces all elements by those of record `id`, which has to have as many.
    pub fn read(&mut self, id: u64) -> Result<(), Error> {
        let bytes = size_of_val(&*self.elements) as u64;
        let to = self.elements.as_mut_ptr().cast();
        // SAFETY: the elements, any bytes of which are values.
        self.ask(|store| unsafe { store.read(id, to, bytes, size_of::<T>() as u32) })
    }

    /// Waits until record `id` survives a loss of power; for ever without a limit.
    pub fn sync(&self, id: u64, limit: Option<Duration>) -> Result<(), Error> {
        let limit = limit.map_or(-1, |limit| i64::try_from(limit.as_millis()).unwrap_or(i64::MAX));
        self.ask(|store| store.sync(id, 2, limit))
    }

    /// How many elements record `id` has.
    pub fn record_len(&self, id: u64) -> Result<usize, Error> {
        self.ask(|store| store.size(id)).map(|(bytes, _)| bytes as usize / size_of::<T>())
    }

    /// The records that are there, in ascending order.
    pub fn ids(&self) -> Result<Vec<u64>, Error> {
        self.ask(Store::ids)
    }

    /// Reads what may have been lost; the records that are not whole.
    pub fn check(&self) -> Result<Vec<u64>, Error> {
        self.ask(Store::check_records)
    }

    /// Says which records will be read next, in this order.
    pub fn will_read(&self, ids: &[u64]) -> Result<(), Error> {
        self.ask(|store| store.will_read(ids))
    }

    /// Forgets record `id`.
    pub fn forget(&self, id: u64) -> Result<(), Error> {
        self.ask(|store| store.drop_record(id))
    }

    /// Reads so far, and those of them that found their record in memory.
    pub fn hits(&self) -> Result<(u64, u64), Error> {
        self.ask(|store| {
            let counts = store.lock().counts;
            Ok((counts.reads, counts.hits))
        })
    }

    /// Has `count` elements from now on; new ones are zero.
    pub fn resize(&mut self, count: usize) -> Result<(), Error> {
        let more = count.saturating_sub(self.elements.len());
        self.reserve(more)?;
        self.elements.resize(count, T::ZERO);
        Ok(())
    }

    /// One more element.
    pub fn push(&mut self, element: T) -> Result<(), Error> {
        self.reserve(1)?;
        self.elements.push(element);
        Ok(())
    }

    fn reserve(&mut self, more: usize) -> Result<(), Error> {
        self.elements.try_reserve(more).map_err(|error| {
            Error::last(fail(-libc::ENOMEM, format_args!("{more} more elements: {error}")))
        })
    }
}

impl<T: Element> Deref for Container<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.elements
    }
}

impl<T: Element> DerefMut for Container<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.elements
    }
}

impl<T: Element> Drop for Container<T> {
    fn drop(&mut self) {
        let (Some(store), helpers) = (self.store.take(), std::mem::take(&mut self.helpers)) else {
            return;
        };
        if helper::finish(store, helpers) {
            let session: *mut c_void = self.session.pointer();
            crate::forebay_end(session);
        }
    }
}

#[cfg(test)]
mod tests;
