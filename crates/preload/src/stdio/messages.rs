//! What glibc writes inside itself: perror and backtrace_symbols_fd.

use super::cookie::ours;
use super::glibc::{Locked, stderr};
use super::layout::{ORIENTATION_AT, Stream};
use crate::real::real;
use crate::session::managed;
use libc::{c_char, c_int, c_void};

/// glibc writes through a stream of its own on a copy of the descriptor, so that stderr keeps
/// having no orientation.
#[unsafe(no_mangle)]
unsafe extern "C" fn perror(text: *const c_char) {
    let call = || {
        let _ = real!(c"perror"(text => *const c_char) -> c_int);
    };
    // SAFETY: a stream of the program's, locked below.
    let stream = unsafe { Stream::at(stderr) };
    let Some(stream) = stream.filter(|&stream| ours(stream).is_some()) else { return call() };
    let _locked = Locked::new(stream);
    // Another thread may have handed it back in between.
    if ours(stream).is_none() {
        return call();
    }
    let before = stream.get(ORIENTATION_AT);
    stream.set(ORIENTATION_AT, -1);
    call();
    stream.set(ORIENTATION_AT, before);
}

/// glibc writes inside itself: to memory first, then.
#[unsafe(no_mangle)]
unsafe extern "C" fn backtrace_symbols_fd(calls: *const *mut c_void, number: c_int, fd: c_int) {
    use rustix::fd::AsRawFd;
    let call = |fd: c_int| {
        let _ = real!(c"backtrace_symbols_fd"(calls => *const *mut c_void, number => c_int, fd => c_int) -> c_int);
    };
    let memory = rustix::fs::memfd_create(c"backtrace", rustix::fs::MemfdFlags::CLOEXEC);
    let (Some(_), Ok(memory)) = (managed(fd), memory) else { return call(fd) };
    call(memory.as_raw_fd());
    let mut buffer = [0u8; 1024];
    let mut at = 0;
    while let Ok(bytes @ 1..) = rustix::io::pread(&memory, &mut buffer[..], at) {
        at += bytes as u64;
        // SAFETY: as many bytes of our buffer as were read.
        unsafe { libc::write(fd, buffer.as_ptr().cast(), bytes) };
    }
}
