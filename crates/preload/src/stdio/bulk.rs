//! Large reads of streams: glibc fills the buffer of a cookie stream over and over, where it reads
//! straight to the program's memory for its own streams. So do we.

use super::cookie::{Cookie, ours};
use super::glibc::Locked;
use super::layout::*;
use super::position::{advance, read_ahead};
use crate::real::real;
use libc::{FILE, c_void, size_t, ssize_t};

/// What is read straight is a multiple of this, in bytes: glibc's usual buffer.
const BLOCK: usize = 4096;
/// Below this a buffer or two are as good.
const LARGE: usize = 4 * BLOCK;

/// Reads through the descriptor.
///
/// # Safety
/// As of read(2).
unsafe fn past_the_buffer(cookie: &Cookie, to: *mut u8, bytes: usize) -> ssize_t {
    // SAFETY: the caller's buffer.
    let got = unsafe { libc::read(cookie.descriptor(), to.cast(), bytes) };
    advance(cookie, got.max(0) as usize);
    got
}

/// Reads `wanted` bytes of our locked stream. Returns how many there were.
///
/// # Safety
/// `to` has room for `wanted` bytes.
unsafe fn read(stream: Stream, cookie: &Cookie, to: *mut u8, wanted: usize) -> usize {
    let flags = || stream.get(FLAGS_AT);
    let mut reading = flags() & WRITING == 0 && !stream.get(READ_BASE_AT).is_null();
    let mut done = 0;
    while done < wanted {
        let (left, ready) = (wanted - done, read_ahead(stream));
        // SAFETY: `to` has room for `wanted`.
        let to = unsafe { to.add(done) };
        if reading && ready == 0 && left >= BLOCK && flags() & (IN_BACKUP | NO_READS) == 0 {
            // SAFETY: `to` has room for what is left.
            match unsafe { past_the_buffer(cookie, to, left - left % BLOCK) } {
                got @ 1.. => done += got as usize,
                end => {
                    let seen = if end == 0 { EOF_SEEN } else { ERROR_SEEN };
                    stream.raise(seen);
                    break;
                }
            }
            continue;
        }
        // What is in the buffer, what does not fill one, or one byte to begin reading.
        let some = match ready {
            0 if left < BLOCK => left,
            ready => left.min(ready.max(1)),
        };
        let got = real!(c"fread_unlocked"(to.cast() => *mut c_void, 1 => size_t, some => size_t, stream.as_ptr() => *mut FILE) -> size_t);
        done += got;
        reading = true;
        if got < some {
            break;
        }
    }
    done
}

macro_rules! readers {
    ($($name:ident $symbol:literal $locks:literal ($($room:ident)?);)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(to: *mut c_void, $($room: size_t,)? size: size_t, number: size_t, stream: *mut FILE) -> size_t {
            let bytes = size.checked_mul(number).filter(|&bytes| bytes >= LARGE);
            $(let bytes = bytes.filter(|&bytes| bytes <= $room);)?
            // SAFETY: a stream of the program's. It is locked below, but for the names that leave
            // that to the program.
            let stream_of_ours = || unsafe { Stream::at(stream) }.filter(|&own| ours(own).is_some());
            if let Some(bytes) = bytes
                && let Some(own) = stream_of_ours()
            {
                let _locked = $locks.then(|| Locked::new(own));
                // Another thread may have handed it back before that.
                if let Some(cookie) = ours(own) {
                    // SAFETY: the program's buffer.
                    return unsafe { read(own, cookie, to.cast(), bytes) / size };
                }
            }
            real!($symbol(to => *mut c_void, $($room => size_t,)? size => size_t, number => size_t, stream => *mut FILE) -> size_t)
        }
    )* };
}

readers! {
    fread c"fread" true ();
    fread_unlocked c"fread_unlocked" false ();
    __fread_chk c"__fread_chk" true (room);
    __fread_unlocked_chk c"__fread_unlocked_chk" false (room);
}
