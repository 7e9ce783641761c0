//! Wide characters on our streams. glibc's cookie streams are streams of bytes, so that one of ours
//! is [handed back](super::foreign::hand_back) to glibc before its first wide operation; all after
//! that is glibc's.

use super::foreign::hand_back;
use super::glibc::{stdin, stdout};
use crate::real::real;
use libc::{FILE, c_int, c_void, size_t, wchar_t};

/// A wide character, or `WEOF`.
type Character = u32;
/// A `va_list` parameter, which the calling conventions of our platforms pass as a pointer.
type Arguments = *mut c_void;

/// What a function answers that has failed.
trait Failing {
    const FAILURE: Self;
}

impl Failing for Character {
    /// `WEOF`.
    const FAILURE: Character = Character::MAX;
}

impl Failing for c_int {
    const FAILURE: c_int = -1;
}

/// Functions on a stream, which is handed back before.
macro_rules! wide_functions {
    ($($name:ident $symbol:literal ($($argument:ident: $type:ty),*) on $stream:expr => $result:ty;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            // SAFETY: a stream of the program's.
            if !unsafe { hand_back($stream) } {
                return <$result as Failing>::FAILURE;
            }
            real!($symbol($($argument => $type),*) -> $result)
        }
    )* };
}

/// The same of those that return a text.
macro_rules! line_functions {
    ($($name:ident $symbol:literal ($($size:ident)?);)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(to: *mut wchar_t, $($size: size_t,)? number: c_int, stream: *mut FILE) -> *mut wchar_t {
            // SAFETY: a stream of the program's.
            if !unsafe { hand_back(stream) } {
                return core::ptr::null_mut();
            }
            real!($symbol(to => *mut wchar_t, $($size => size_t,)? number => c_int, stream => *mut FILE) -> usize) as *mut wchar_t
        }
    )* };
}

wide_functions! {
    fgetwc c"fgetwc" (from: *mut FILE) on from => Character;
    getwc c"getwc" (from: *mut FILE) on from => Character;
    fgetwc_unlocked c"fgetwc_unlocked" (from: *mut FILE) on from => Character;
    getwc_unlocked c"getwc_unlocked" (from: *mut FILE) on from => Character;
    getwchar c"getwchar" () on stdin => Character;
    getwchar_unlocked c"getwchar_unlocked" () on stdin => Character;
    fputwc c"fputwc" (character: wchar_t, to: *mut FILE) on to => Character;
    putwc c"putwc" (character: wchar_t, to: *mut FILE) on to => Character;
    fputwc_unlocked c"fputwc_unlocked" (character: wchar_t, to: *mut FILE) on to => Character;
    putwc_unlocked c"putwc_unlocked" (character: wchar_t, to: *mut FILE) on to => Character;
    putwchar c"putwchar" (character: wchar_t) on stdout => Character;
    putwchar_unlocked c"putwchar_unlocked" (character: wchar_t) on stdout => Character;
    fputws c"fputws" (text: *const wchar_t, to: *mut FILE) on to => c_int;
    fputws_unlocked c"fputws_unlocked" (text: *const wchar_t, to: *mut FILE) on to => c_int;
    ungetwc c"ungetwc" (character: Character, to: *mut FILE) on to => Character;
    vfwprintf c"vfwprintf" (to: *mut FILE, format: *const wchar_t, arguments: Arguments) on to => c_int;
    vwprintf c"vwprintf" (format: *const wchar_t, arguments: Arguments) on stdout => c_int;
    __vfwprintf_chk c"__vfwprintf_chk" (to: *mut FILE, flag: c_int, format: *const wchar_t, arguments: Arguments) on to => c_int;
    __vwprintf_chk c"__vwprintf_chk" (flag: c_int, format: *const wchar_t, arguments: Arguments) on stdout => c_int;
    vfwscanf c"vfwscanf" (from: *mut FILE, format: *const wchar_t, arguments: Arguments) on from => c_int;
    vwscanf c"vwscanf" (format: *const wchar_t, arguments: Arguments) on stdin => c_int;
    __isoc99_vfwscanf c"__isoc99_vfwscanf" (from: *mut FILE, format: *const wchar_t, arguments: Arguments) on from => c_int;
    __isoc99_vwscanf c"__isoc99_vwscanf" (format: *const wchar_t, arguments: Arguments) on stdin => c_int;
    __isoc23_vfwscanf c"__isoc23_vfwscanf" (from: *mut FILE, format: *const wchar_t, arguments: Arguments) on from => c_int;
    __isoc23_vwscanf c"__isoc23_vwscanf" (format: *const wchar_t, arguments: Arguments) on stdin => c_int;
}

line_functions! {
    fgetws c"fgetws" ();
    fgetws_unlocked c"fgetws_unlocked" ();
    __fgetws_chk c"__fgetws_chk" (room);
    __fgetws_unlocked_chk c"__fgetws_unlocked_chk" (room);
}

/// The orientation: positive for wide characters, negative for bytes. One that has none takes
/// the wanted one.
#[unsafe(no_mangle)]
unsafe extern "C" fn fwide(stream: *mut FILE, wanted: c_int) -> c_int {
    // SAFETY: a stream of the program's.
    if wanted > 0 && !unsafe { hand_back(stream) } {
        return 0;
    }
    real!(c"fwide"(stream => *mut FILE, wanted => c_int) -> c_int)
}
