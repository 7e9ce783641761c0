//! Codes of errors, and the text that says what happened.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int};
use core::fmt::{Arguments, Write};
use rustix::io::Errno;

/// Codes beside those of errno, as the header has them. The lowest errno is -4095.
pub(crate) mod code {
    use core::ffi::c_int;
    /// The process does not run under Forebay.
    pub const NOT_RUNNING: c_int = -10_001;
    /// The file is not one that Forebay buffers.
    pub const NOT_BUFFERED: c_int = -10_002;
    /// The handle was closed, or its session ended.
    pub const CLOSED: c_int = -10_003;
    /// It is no handle of this kind.
    pub const HANDLE: c_int = -10_004;
    /// So many handles are in use.
    pub const TOO_MANY: c_int = -10_005;
    /// A container has no record of this number.
    pub const NO_RECORD: c_int = -10_020;
    /// A record is not whole.
    pub const TORN: c_int = -10_021;
    /// A record has other elements, or another number of them.
    pub const ELEMENT: c_int = -10_022;
}

/// Bytes of a message, with its zero.
const MESSAGE: usize = 512;

struct Message(UnsafeCell<[u8; MESSAGE]>);

thread_local! {
    static LAST: Message = const { Message(UnsafeCell::new([0; MESSAGE])) };
    static NAME: Message = const { Message(UnsafeCell::new([0; MESSAGE])) };
}

/// What is written to a message; the rest is cut off, and so is a zero at the end.
struct Writer {
    to: *mut u8,
    at: usize,
}

impl Write for Writer {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for &byte in text.as_bytes().iter().take(MESSAGE - 1 - self.at.min(MESSAGE - 1)) {
            // SAFETY: within the message, which is this thread's.
            unsafe { self.to.add(self.at).write(byte) };
            self.at += 1;
        }
        Ok(())
    }
}

impl Message {
    fn put(&self, text: Arguments<'_>) {
        let mut writer = Writer { to: self.0.get().cast(), at: 0 };
        let _ = writer.write_fmt(text);
        // SAFETY: at most the last byte.
        unsafe { writer.to.add(writer.at).write(0) };
    }

    fn start(&self) -> *const c_char {
        self.0.get().cast()
    }
}

/// Notes why a call of this thread has failed; returns `code`.
#[cold]
pub(crate) fn fail(code: c_int, text: Arguments<'_>) -> c_int {
    // A thread that ends has none any more.
    let _ = LAST.try_with(|last| last.put(text));
    code
}

/// The same of an errno, which is negative: what was tried, and why it failed.
#[cold]
pub(crate) fn failed(errno: c_int, what: Arguments<'_>) -> c_int {
    let why = Errno::from_raw_os_error(errno.checked_neg().unwrap_or(libc::EIO));
    fail(errno, format_args!("{what}: {}", Reason(why)))
}

/// An errno's text by the C library, which allocates nothing.
struct Reason(Errno);

impl core::fmt::Display for Reason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut text = [0; 128];
        f.write_str(text_of(self.0.raw_os_error(), &mut text))
    }
}

fn text_of(errno: c_int, text: &mut [u8; 128]) -> &str {
    // SAFETY: a buffer of this length; the last byte stays zero.
    unsafe { libc::strerror_r(errno, text.as_mut_ptr().cast(), text.len() - 1) };
    let text = CStr::from_bytes_until_nul(text).unwrap_or(c"");
    text.to_str().unwrap_or("an unknown error")
}

/// The text of the last failure in this thread; empty if there was none.
pub(crate) fn last_message() -> *const c_char {
    LAST.try_with(Message::start).unwrap_or(c"".as_ptr())
}

/// What a code means. Of an errno: until the next such question of the thread.
pub(crate) fn describe(code: c_int) -> *const c_char {
    let known = match code {
        0 => c"success",
        code::NOT_RUNNING => {
            c"the process does not run under Forebay: start it with `forebay run -- PROGRAM`"
        }
        code::NOT_BUFFERED => c"the file is not in a directory that Forebay buffers",
        code::CLOSED => c"the handle was closed, or its session has ended",
        code::HANDLE => c"this is no handle of this kind",
        code::TOO_MANY => c"too many handles are open",
        code::NO_RECORD => c"the container has no record of this number",
        code::TORN => c"the record is not whole: its writer was killed, or the node lost it",
        code::ELEMENT => c"the record has elements of another size, or another number of them",
        errno => {
            let mut text = [0; 128];
            let errno = errno.checked_neg().unwrap_or(0);
            let put = |name: &Message| {
                name.put(format_args!("{}", text_of(errno, &mut text)));
                name.start()
            };
            return NAME.try_with(put).unwrap_or(c"an error".as_ptr());
        }
    };
    known.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(at: *const c_char) -> String {
        // SAFETY: this thread's text.
        unsafe { CStr::from_ptr(at) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_message_says_what_was_tried_and_is_cut_off_where_it_is_too_long() {
        assert_eq!(failed(-libc::ENOENT, format_args!("open {}", "x")), -libc::ENOENT);
        assert_eq!(text(last_message()), "open x: No such file or directory");
        let long = "y".repeat(2 * MESSAGE);
        assert_eq!(fail(code::HANDLE, format_args!("{long}z")), code::HANDLE);
        assert_eq!(text(last_message()), long[..MESSAGE - 1]);
        let other = std::thread::spawn(|| text(last_message()));
        assert_eq!(other.join().unwrap(), "");
    }

    #[test]
    fn each_code_has_a_text() {
        let codes = [
            code::NOT_RUNNING,
            code::NOT_BUFFERED,
            code::CLOSED,
            code::HANDLE,
            code::TOO_MANY,
            code::NO_RECORD,
            code::TORN,
            code::ELEMENT,
            -libc::EIO,
            0,
        ];
        let texts: std::collections::BTreeSet<_> =
            codes.iter().map(|&code| text(describe(code))).collect();
        assert_eq!(texts.len(), codes.len(), "{texts:?}");
        assert!(text(describe(c_int::MIN)).len() > 3);
    }
}
