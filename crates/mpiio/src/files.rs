//! The MPI files of this process that Forebay manages.

use core::ffi::c_int;
use std::sync::{Mutex, PoisonError};

/// Files that are known at a time; of more nothing is told to Forebay.
const FILES: usize = 64;

/// What is known of an open file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct File {
    /// The handle: eight bytes in each MPI.
    pub handle: u64,
    /// The descriptor by which the MPI library uses it.
    pub fd: c_int,
    /// Bytes of an elementary type of the view.
    pub unit: u64,
    /// The view has holes.
    pub is_strided: bool,
    /// The offset of the last read at an offset of its own, in units.
    pub last: i64,
    /// So far it was asked for what will be read, in units.
    pub asked: i64,
}

static OPEN: Mutex<[Option<File>; FILES]> = Mutex::new([None; FILES]);

fn with<R>(act: impl FnOnce(&mut [Option<File>; FILES]) -> R) -> R {
    act(&mut OPEN.lock().unwrap_or_else(PoisonError::into_inner))
}

fn is(handle: u64) -> impl Fn(&&mut Option<File>) -> bool {
    move |place| place.is_some_and(|file| file.handle == handle)
}

/// Notes a file that was opened, with a view of bytes.
pub(crate) fn add(handle: u64, fd: c_int) {
    let new = File { handle, fd, unit: 1, is_strided: false, last: i64::MIN, asked: 0 };
    with(|files| {
        if let Some(place) = files.iter_mut().find(|place| place.is_none()) {
            *place = Some(new);
        }
    });
}

/// The file of this handle, if Forebay manages it.
pub(crate) fn get(handle: u64) -> Option<File> {
    with(|files| files.iter().flatten().find(|file| file.handle == handle).copied())
}

/// Notes what has become of it.
pub(crate) fn set(file: File) {
    with(|files| {
        if let Some(place) = files.iter_mut().find(is(file.handle)) {
            *place = Some(file);
        }
    });
}

/// Forgets a file that is being closed.
pub(crate) fn remove(handle: u64) {
    with(|files| {
        if let Some(place) = files.iter_mut().find(is(handle)) {
            *place = None;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_from_open_to_close() {
        add(0xffff_0001, 7);
        add(0xffff_0002, 8);
        let mut file = get(0xffff_0001).unwrap();
        assert_eq!((file.fd, file.unit, file.is_strided), (7, 1, false));
        file.unit = 8;
        set(file);
        assert_eq!(get(0xffff_0001).unwrap().unit, 8);
        remove(0xffff_0001);
        assert!(get(0xffff_0001).is_none() && get(0xffff_0002).is_some());
        // One that is gone does not come back.
        set(file);
        assert!(get(0xffff_0001).is_none());
        remove(0xffff_0002);
    }

    #[test]
    fn more_files_than_there_is_room_for_are_passed_over() {
        (0..FILES as u64 + 8).for_each(|number| add(0xfffe_0000 + number, 9));
        assert!(get(0xfffe_0000 + FILES as u64 + 7).is_none());
        (0..FILES as u64 + 8).for_each(|number| remove(0xfffe_0000 + number));
    }
}
