//! Wide characters on our streams. glibc's cookie streams are streams of bytes; here characters
//! are made of their bytes, and bytes of characters, with the same tables (iconv) that glibc's own
//! streams use: chosen at the first wide operation, with transliteration when writing.

use crate::real::real;
use crate::stdio::{
    Cookie, EOF_SEEN, ERROR_SEEN, Locked, NO_WRITES, ORIENTATION_AT, READ_END_AT, READ_POINTER_AT,
    field, flags_place, ours, stdin, stdout,
};
use crate::{errno, restore_errno, set_errno};
use core::ffi::CStr;
use libc::{FILE, c_char, c_int, c_void, iconv_t, size_t, wchar_t};
use rustix::io::Errno;

/// A wide character, or `WEOF`.
pub(crate) type Character = u32;
/// The end, or an error.
pub(crate) const WEOF: Character = u32::MAX;

/// The longest sequence of bytes that makes a character, shift sequences included, is far shorter.
const SEQUENCE: usize = 32;
/// Characters that can be pushed back although the character set does not have them.
const PUSHED: usize = 4;
/// Longest name of a character set, with what is appended to it.
const NAME: usize = 64;

unsafe extern "C" {
    fn __chk_fail() -> !;
    fn open_wmemstream(text: *mut *mut wchar_t, length: *mut size_t) -> *mut FILE;
    fn getc_unlocked(stream: *mut FILE) -> c_int;
    fn fwrite_unlocked(
        from: *const c_void,
        size: size_t,
        number: size_t,
        stream: *mut FILE,
    ) -> size_t;
}

/// The wide side of a stream.
pub(crate) struct Wide {
    /// Whether the stream is one of wide characters.
    oriented: bool,
    /// Whether bytes below 128 are characters by themselves.
    ascii: bool,
    /// The name of the character set, ended by a zero.
    charset: [u8; NAME],
    /// Bytes to characters, characters to bytes, and the latter without transliteration; null
    /// before they are needed.
    decoder: iconv_t,
    encoder: iconv_t,
    reverser: iconv_t,
    pushed: [Character; PUSHED],
    pushed_count: usize,
}

impl Default for Wide {
    fn default() -> Wide {
        Wide {
            oriented: false,
            ascii: false,
            charset: [0; NAME],
            decoder: core::ptr::null_mut(),
            encoder: core::ptr::null_mut(),
            reverser: core::ptr::null_mut(),
            pushed: [0; PUSHED],
            pushed_count: 0,
        }
    }
}

impl Drop for Wide {
    fn drop(&mut self) {
        for converter in [self.decoder, self.encoder, self.reverser] {
            if is_open(converter) {
                unsafe { libc::iconv_close(converter) };
            }
        }
    }
}

fn is_open(converter: iconv_t) -> bool {
    !converter.is_null() && converter as isize != -1
}

/// What the bytes so far are.
enum Decoded {
    Character(Character),
    /// The beginning of something.
    Part,
    /// A shift sequence, which is done.
    Shift,
    Illegal,
}

impl Wide {
    /// Makes the stream one of wide characters in `charset`. False if there is no such set.
    pub(crate) fn choose(&mut self, charset: &[u8]) -> bool {
        // Streams have no byte order marks: they use the machine's order.
        let charset = match charset {
            b"UTF-16" if cfg!(target_endian = "little") => b"UTF-16LE",
            b"UTF-32" if cfg!(target_endian = "little") => b"UTF-32LE",
            charset => charset,
        };
        let Some(room) = self.charset.get_mut(..charset.len() + 1) else { return false };
        room[..charset.len()].copy_from_slice(charset);
        room[charset.len()] = 0;
        let same = |name: &[u8]| charset.eq_ignore_ascii_case(name);
        self.ascii = [&b"UTF-8"[..], b"ANSI_X3.4-1968", b"ISO-8859-1"].into_iter().any(same);
        self.oriented = is_open(self.decoder());
        self.oriented
    }

    /// The position was changed.
    pub(crate) fn moved(&mut self) {
        self.pushed_count = 0;
    }

    fn decoder(&mut self) -> iconv_t {
        if self.decoder.is_null() {
            let from = self.charset.as_ptr().cast();
            self.decoder = unsafe { libc::iconv_open(c"WCHAR_T".as_ptr(), from) };
        }
        self.decoder
    }

    fn encoder(&mut self) -> iconv_t {
        if self.encoder.is_null() {
            let mut name = [0u8; NAME + 16];
            let length = self.charset.iter().position(|&byte| byte == 0).unwrap_or(0);
            name[..length].copy_from_slice(&self.charset[..length]);
            let suffix = b"//TRANSLIT";
            name[length..length + suffix.len()].copy_from_slice(suffix);
            let to = name.as_ptr().cast();
            self.encoder = unsafe { libc::iconv_open(to, c"WCHAR_T".as_ptr()) };
        }
        self.encoder
    }

    fn reverser(&mut self) -> iconv_t {
        if self.reverser.is_null() {
            let to = self.charset.as_ptr().cast();
            self.reverser = unsafe { libc::iconv_open(to, c"WCHAR_T".as_ptr()) };
        }
        self.reverser
    }

    /// Decodes `bytes`, of which the converter has taken the first `taken` already.
    fn decode(&mut self, bytes: &[u8], taken: &mut usize) -> Decoded {
        let converter = self.decoder();
        if !is_open(converter) {
            return Decoded::Illegal;
        }
        let mut character: Character = 0;
        let (mut to, mut room) = ((&raw mut character).cast::<c_char>(), size_of::<Character>());
        let (mut from, mut left) =
            (bytes[*taken..].as_ptr().cast_mut().cast::<c_char>(), bytes.len() - *taken);
        let result =
            unsafe { libc::iconv(converter, &mut from, &mut left, &mut to, &mut room) } as isize;
        *taken = bytes.len() - left;
        if room == 0 {
            return Decoded::Character(character);
        }
        match result {
            -1 if errno() == libc::EINVAL => Decoded::Part,
            -1 => Decoded::Illegal,
            _ => Decoded::Shift,
        }
    }

    /// Forgets what the decoder has of a character that did not become one.
    fn reset_decoder(&mut self) {
        if is_open(self.decoder) {
            let none = core::ptr::null_mut();
            unsafe {
                libc::iconv(self.decoder, none, core::ptr::null_mut(), none, core::ptr::null_mut())
            };
        }
    }
}

/// Encodes as many characters as go into `room`. Returns how many did, and their bytes; the
/// characters end early at one that cannot be encoded.
fn encode(converter: iconv_t, text: &[Character], room: &mut [u8]) -> (usize, usize) {
    if !is_open(converter) {
        return (0, 0);
    }
    let (mut from, mut left) = (text.as_ptr().cast_mut().cast::<c_char>(), size_of_val(text));
    let (mut to, mut free) = (room.as_mut_ptr().cast::<c_char>(), room.len());
    unsafe { libc::iconv(converter, &mut from, &mut left, &mut to, &mut free) };
    (text.len() - left / size_of::<Character>(), room.len() - free)
}

/// A locked stream of ours, for wide operations.
pub(crate) struct Stream<'a> {
    stream: *mut FILE,
    wide: &'a mut Wide,
}

impl Stream<'_> {
    /// The stream if it is, or now becomes, one of wide characters.
    unsafe fn oriented(stream: *mut FILE, cookie: &mut Cookie) -> Option<Stream<'_>> {
        let wide = &mut cookie.wide;
        if !wide.oriented {
            if unsafe { field::<c_int>(stream, ORIENTATION_AT).read() } < 0 {
                return None;
            }
            let before = errno();
            let name = unsafe { CStr::from_ptr(libc::nl_langinfo(libc::CODESET)) };
            if !wide.choose(name.to_bytes()) {
                // A locale whose character set no converter is installed for.
                wide.choose(b"ANSI_X3.4-1968");
            }
            restore_errno(before);
        }
        Some(Stream { stream, wide })
    }

    unsafe fn fail(&mut self, errno: Errno) {
        unsafe { *flags_place(self.stream) |= ERROR_SEEN };
        set_errno(errno);
    }

    /// The next byte, or -1.
    #[inline]
    unsafe fn byte(&mut self) -> c_int {
        unsafe {
            let place = field::<*const u8>(self.stream, READ_POINTER_AT);
            let (at, end) = (place.read(), field::<*const u8>(self.stream, READ_END_AT).read());
            if at < end {
                place.write(at.add(1));
                return c_int::from(*at);
            }
            getc_unlocked(self.stream)
        }
    }

    /// Puts bytes back, and leaves the indicators as they are.
    unsafe fn give_back(&mut self, bytes: &[u8]) -> bool {
        let indicators = unsafe { *flags_place(self.stream) } & (EOF_SEEN | ERROR_SEEN);
        let done = bytes
            .iter()
            .rev()
            .all(|&byte| unsafe { libc::ungetc(c_int::from(byte), self.stream) } >= 0);
        unsafe { *flags_place(self.stream) |= indicators };
        done
    }

    /// The next character. Bytes that make none stay where they are.
    pub(crate) unsafe fn get(&mut self) -> Character {
        if self.wide.pushed_count > 0 {
            self.wide.pushed_count -= 1;
            return self.wide.pushed[self.wide.pushed_count];
        }
        let mut bytes = [0u8; SEQUENCE];
        let (mut held, mut taken) = (0, 0);
        loop {
            let byte = unsafe { self.byte() };
            if byte < 0 {
                break;
            }
            if held == 0 && self.wide.ascii && byte < 0x80 {
                return byte as Character;
            }
            bytes[held] = byte as u8;
            held += 1;
            let before = errno();
            let decoded = self.wide.decode(&bytes[..held], &mut taken);
            restore_errno(before);
            match decoded {
                Decoded::Character(character) => return character,
                Decoded::Shift => (held, taken) = (0, 0),
                Decoded::Part if held < SEQUENCE => {}
                Decoded::Part | Decoded::Illegal => {
                    unsafe {
                        self.give_back(&bytes[..held]);
                        self.fail(Errno::ILSEQ);
                    }
                    self.wide.reset_decoder();
                    return WEOF;
                }
            }
        }
        if held > 0 {
            unsafe { self.give_back(&bytes[..held]) };
            self.wide.reset_decoder();
        }
        WEOF
    }

    /// Puts a character back.
    pub(crate) unsafe fn unget(&mut self, character: Character) -> bool {
        let indicator = EOF_SEEN;
        let mut bytes = [0u8; SEQUENCE];
        let mut length = 0;
        if self.wide.pushed_count == 0 {
            if self.wide.ascii && character < 0x80 {
                (bytes[0], length) = (character as u8, 1);
            } else {
                let before = errno();
                length = encode(self.wide.reverser(), &[character], &mut bytes).1;
                restore_errno(before);
            }
        }
        let done = if length > 0 {
            unsafe { self.give_back(&bytes[..length]) }
        } else if let Some(place) = self.wide.pushed.get_mut(self.wide.pushed_count) {
            *place = character;
            self.wide.pushed_count += 1;
            true
        } else {
            false
        };
        if done {
            unsafe { *flags_place(self.stream) &= !indicator };
        }
        done
    }

    /// Writes characters.
    unsafe fn put(&mut self, mut text: &[Character]) -> bool {
        let mut bytes = [0u8; 1024];
        let mut used = 0;
        loop {
            while let Some((&character, rest)) = text.split_first()
                && self.wide.ascii
                && character < 0x80
                && used < bytes.len()
            {
                bytes[used] = character as u8;
                used += 1;
                text = rest;
            }
            let room = bytes.len() - used;
            if text.is_empty() || room < SEQUENCE {
                let from = bytes.as_ptr().cast();
                if used > 0 && unsafe { fwrite_unlocked(from, 1, used, self.stream) } != used {
                    return false;
                }
                if text.is_empty() {
                    return true;
                }
                used = 0;
                continue;
            }
            let before = errno();
            let some = &text[..text.len().min(room)];
            let (characters, made) = encode(self.wide.encoder(), some, &mut bytes[used..]);
            restore_errno(before);
            text = &text[characters..];
            used += made;
            // There was room for any character.
            if characters == 0 {
                unsafe {
                    fwrite_unlocked(bytes.as_ptr().cast(), 1, used, self.stream);
                    self.fail(Errno::ILSEQ);
                }
                return false;
            }
        }
    }
}

/// The characters of a text that ends with zero.
unsafe fn text_at<'a>(text: *const wchar_t) -> &'a [Character] {
    let mut length = 0;
    unsafe {
        while *text.add(length) != 0 {
            length += 1;
        }
        core::slice::from_raw_parts(text.cast(), length)
    }
}

// Each function asks whether the stream is ours, and then does without the lock what it does with it.

unsafe fn get_one(stream: *mut FILE, cookie: &mut Cookie) -> Character {
    match unsafe { Stream::oriented(stream, cookie) } {
        Some(mut stream) => unsafe { stream.get() },
        None => WEOF,
    }
}

unsafe fn put_all(text: &[Character], stream: *mut FILE, cookie: &mut Cookie) -> bool {
    unsafe { Stream::oriented(stream, cookie) }
        .is_some_and(|mut stream| unsafe { stream.put(text) })
}

unsafe fn put_one(character: wchar_t, stream: *mut FILE, cookie: &mut Cookie) -> Character {
    let character = character as Character;
    if unsafe { put_all(&[character], stream, cookie) } { character } else { WEOF }
}

/// The same where glibc does not look at the orientation: a stream of bytes gets the lowest one,
/// by which cout and wcout share stdout.
unsafe fn put_any(character: wchar_t, stream: *mut FILE, cookie: &mut Cookie) -> Character {
    match unsafe { Stream::oriented(stream, cookie) } {
        Some(_) => unsafe { put_one(character, stream, cookie) },
        None => unsafe { libc::fputc(character, stream) as Character },
    }
}

unsafe fn put_text(text: *const wchar_t, stream: *mut FILE, cookie: &mut Cookie) -> c_int {
    if unsafe { put_all(text_at(text), stream, cookie) } { 1 } else { -1 }
}

/// Reads a line, at most `limit` characters of it; `None` if there was none, or an error.
unsafe fn get_line(
    to: *mut wchar_t,
    limit: usize,
    stream: *mut FILE,
    cookie: &mut Cookie,
) -> Option<usize> {
    let mut source = unsafe { Stream::oriented(stream, cookie) }?;
    let flags = unsafe { flags_place(stream) };
    let old_error = *flags & ERROR_SEEN;
    *flags &= !ERROR_SEEN;
    let mut count = 0;
    while count < limit {
        let character = unsafe { source.get() };
        if character == WEOF {
            break;
        }
        unsafe { to.add(count).write(character as wchar_t) };
        count += 1;
        if character == '\n' as Character {
            break;
        }
    }
    let flags = unsafe { flags_place(stream) };
    let failed = *flags & ERROR_SEEN != 0 && errno() != libc::EAGAIN;
    *flags |= old_error;
    (count > 0 && !failed).then_some(count)
}

unsafe fn get_text(
    to: *mut wchar_t,
    size: Option<usize>,
    number: c_int,
    stream: *mut FILE,
    cookie: &mut Cookie,
) -> *mut wchar_t {
    let Ok(number @ 1..) = usize::try_from(number) else { return core::ptr::null_mut() };
    if number == 1 && size != Some(0) {
        unsafe { to.write(0) };
        return to;
    }
    let limit = (number - 1).min(size.unwrap_or(usize::MAX));
    match unsafe { get_line(to, limit, stream, cookie) } {
        None => core::ptr::null_mut(),
        // The program was compiled to end when a buffer overflows.
        Some(count) if size.is_some_and(|size| count >= size) => unsafe { __chk_fail() },
        Some(count) => {
            unsafe { to.add(count).write(0) };
            to
        }
    }
}

unsafe fn unget_one(character: Character, stream: *mut FILE, cookie: &mut Cookie) -> Character {
    let stream = unsafe { Stream::oriented(stream, cookie) };
    let done =
        character != WEOF && stream.is_some_and(|mut stream| unsafe { stream.unget(character) });
    if done { character } else { WEOF }
}

/// Functions of one shape: on our streams `$act`, with or without the lock; else the real one.
macro_rules! wide_functions {
    ($($name:ident $symbol:literal $locks:literal ($($argument:ident: $type:ty),*) $stream:expr, $act:expr => $result:ty;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            let stream: *mut FILE = unsafe { $stream };
            match unsafe { ours(stream) } {
                Some(cookie) => {
                    let _locked = $locks.then(|| unsafe { Locked::new(stream) });
                    let act: unsafe fn(*mut FILE, &mut Cookie, $($type),*) -> $result = $act;
                    unsafe { act(stream, cookie, $($argument),*) }
                }
                None => real!($symbol($($argument => $type),*) -> $result),
            }
        }
    )* };
}

wide_functions! {
    fgetwc c"fgetwc" true (from: *mut FILE) from, |s, c, _| unsafe { get_one(s, c) } => Character;
    getwc c"getwc" true (from: *mut FILE) from, |s, c, _| unsafe { get_one(s, c) } => Character;
    fgetwc_unlocked c"fgetwc_unlocked" false (from: *mut FILE) from, |s, c, _| unsafe { get_one(s, c) } => Character;
    getwc_unlocked c"getwc_unlocked" false (from: *mut FILE) from, |s, c, _| unsafe { get_one(s, c) } => Character;
    getwchar c"getwchar" true () stdin, |s, c| unsafe { get_one(s, c) } => Character;
    getwchar_unlocked c"getwchar_unlocked" false () stdin, |s, c| unsafe { get_one(s, c) } => Character;
    fputwc c"fputwc" true (character: wchar_t, to: *mut FILE) to, |s, c, w, _| unsafe { put_one(w, s, c) } => Character;
    putwc c"putwc" true (character: wchar_t, to: *mut FILE) to, |s, c, w, _| unsafe { put_any(w, s, c) } => Character;
    fputwc_unlocked c"fputwc_unlocked" false (character: wchar_t, to: *mut FILE) to, |s, c, w, _| unsafe { put_one(w, s, c) } => Character;
    putwc_unlocked c"putwc_unlocked" false (character: wchar_t, to: *mut FILE) to, |s, c, w, _| unsafe { put_any(w, s, c) } => Character;
    putwchar c"putwchar" true (character: wchar_t) stdout, |s, c, w| unsafe { put_any(w, s, c) } => Character;
    putwchar_unlocked c"putwchar_unlocked" false (character: wchar_t) stdout, |s, c, w| unsafe { put_any(w, s, c) } => Character;
    fputws c"fputws" true (text: *const wchar_t, to: *mut FILE) to, |s, c, t, _| unsafe { put_text(t, s, c) } => c_int;
    fputws_unlocked c"fputws_unlocked" false (text: *const wchar_t, to: *mut FILE) to, |s, c, t, _| unsafe { put_text(t, s, c) } => c_int;
    ungetwc c"ungetwc" true (character: Character, to: *mut FILE) to, |s, c, w, _| unsafe { unget_one(w, s, c) } => Character;
}

macro_rules! line_functions {
    ($($name:ident $symbol:literal $locks:literal ($($size:ident)?);)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(to: *mut wchar_t, $($size: size_t,)? number: c_int, stream: *mut FILE) -> *mut wchar_t {
            match unsafe { ours(stream) } {
                Some(cookie) => {
                    let _locked = $locks.then(|| unsafe { Locked::new(stream) });
                    #[allow(unused_mut, unused_assignments)]
                    let mut size = None;
                    $(size = Some($size);)?
                    unsafe { get_text(to, size, number, stream, cookie) }
                }
                None => {
                    real!($symbol(to => *mut wchar_t, $($size => size_t,)? number => c_int, stream => *mut FILE) -> usize) as *mut wchar_t
                }
            }
        }
    )* };
}

line_functions! {
    fgetws c"fgetws" true ();
    fgetws_unlocked c"fgetws_unlocked" false ();
    __fgetws_chk c"__fgetws_chk" true (room);
    __fgetws_unlocked_chk c"__fgetws_unlocked_chk" false (room);
}

/// The orientation: positive for wide characters, negative for bytes. One that has none takes
/// the wanted one.
#[unsafe(no_mangle)]
unsafe extern "C" fn fwide(stream: *mut FILE, wanted: c_int) -> c_int {
    let Some(cookie) = (unsafe { ours(stream) }) else {
        return real!(c"fwide"(stream => *mut FILE, wanted => c_int) -> c_int);
    };
    let _locked = unsafe { Locked::new(stream) };
    let bytes = unsafe { field::<c_int>(stream, ORIENTATION_AT) };
    if wanted > 0 {
        let _ = unsafe { Stream::oriented(stream, cookie) };
    } else if wanted < 0 && !cookie.wide.oriented && unsafe { bytes.read() } == 0 {
        unsafe { bytes.write(-1) };
    }
    if cookie.wide.oriented { 1 } else { unsafe { bytes.read() } }
}

/// Formats into memory through `format`, and writes the text.
unsafe fn print(
    stream: *mut FILE,
    cookie: &mut Cookie,
    format: impl FnOnce(*mut FILE) -> c_int,
) -> c_int {
    let _locked = unsafe { Locked::new(stream) };
    let Some(mut target) = (unsafe { Stream::oriented(stream, cookie) }) else { return -1 };
    if unsafe { *flags_place(stream) } & NO_WRITES != 0 {
        unsafe { target.fail(Errno::BADF) };
        return -1;
    }
    let (mut text, mut length) = (core::ptr::null_mut::<wchar_t>(), 0);
    // It may be what is to be printed.
    let before = errno();
    let memory = unsafe { open_wmemstream(&mut text, &mut length) };
    if memory.is_null() {
        return -1;
    }
    restore_errno(before);
    let mut result = format(memory);
    let after = errno();
    if real!(c"fclose"(memory => *mut FILE) -> c_int) == 0 {
        restore_errno(after);
        let made = unsafe { core::slice::from_raw_parts(text.cast::<Character>(), length) };
        if !unsafe { target.put(made) } {
            result = -1;
        }
    } else {
        result = -1;
    }
    unsafe { libc::free(text.cast()) };
    result
}

/// A `va_list` parameter, which the calling conventions of our platforms pass as a pointer.
pub(crate) type Arguments = *mut c_void;

#[unsafe(no_mangle)]
unsafe extern "C" fn vfwprintf(
    stream: *mut FILE,
    format: *const wchar_t,
    arguments: Arguments,
) -> c_int {
    let call = |stream: *mut FILE| real!(c"vfwprintf"(stream => *mut FILE, format => *const wchar_t, arguments => Arguments) -> c_int);
    match unsafe { ours(stream) } {
        Some(cookie) => unsafe { print(stream, cookie, call) },
        None => call(stream),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __vfwprintf_chk(
    stream: *mut FILE,
    flag: c_int,
    format: *const wchar_t,
    arguments: Arguments,
) -> c_int {
    let call = |stream: *mut FILE| real!(c"__vfwprintf_chk"(stream => *mut FILE, flag => c_int, format => *const wchar_t, arguments => Arguments) -> c_int);
    match unsafe { ours(stream) } {
        Some(cookie) => unsafe { print(stream, cookie, call) },
        None => call(stream),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn vwprintf(format: *const wchar_t, arguments: Arguments) -> c_int {
    unsafe { vfwprintf(stdout, format, arguments) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __vwprintf_chk(
    flag: c_int,
    format: *const wchar_t,
    arguments: Arguments,
) -> c_int {
    unsafe { __vfwprintf_chk(stdout, flag, format, arguments) }
}

/// Scans our streams with [`crate::scan`], others with the real function.
macro_rules! scanners {
    ($($name:ident $from_stdin:ident $symbol:literal $dialect:ident;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(stream: *mut FILE, format: *const wchar_t, arguments: Arguments) -> c_int {
            let Some(cookie) = (unsafe { ours(stream) }) else {
                return real!($symbol(stream => *mut FILE, format => *const wchar_t, arguments => Arguments) -> c_int);
            };
            let _locked = unsafe { Locked::new(stream) };
            match unsafe { Stream::oriented(stream, cookie) } {
                Some(mut source) => unsafe {
                    crate::scan::scan(&mut source, stream, text_at(format), arguments, crate::scan::Dialect::$dialect)
                },
                None => libc::EOF,
            }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $from_stdin(format: *const wchar_t, arguments: Arguments) -> c_int {
            unsafe { $name(stdin, format, arguments) }
        }
    )* };
}

scanners! {
    vfwscanf vwscanf c"vfwscanf" Gnu;
    __isoc99_vfwscanf __isoc99_vwscanf c"__isoc99_vfwscanf" C99;
    __isoc23_vfwscanf __isoc23_vwscanf c"__isoc23_vfwscanf" C23;
}
