//! fwscanf on our streams. Characters and texts are read here; a number, all of whose characters
//! are bytes of their own, is left to the scanner of bytes.

use crate::real::Symbol;
use crate::wide::{Arguments, Character, Stream, WEOF};
use crate::{errno, restore_errno, set_errno};
use libc::{FILE, c_char, c_int, c_uint, c_void, size_t, wchar_t};
use rustix::io::Errno;

unsafe extern "C" {
    fn iswspace(character: Character) -> c_int;
    fn wcrtomb(to: *mut c_char, character: wchar_t, state: *mut c_void) -> size_t;
    /// The shim's: the pointer at place `index` of a list of pointers.
    fn forebay_pointer_at(arguments: Arguments, index: c_uint) -> *mut c_void;
}

/// What formats mean, which depends on how the program was compiled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `%as` allocates.
    Gnu,
    C99,
    /// `%i` takes binary numbers.
    C23,
}

/// Why scanning ends early.
enum End {
    /// Nothing more to read.
    Input,
    /// What was read is not what the format wants.
    Matching,
    /// With errno: what was read cannot be kept. Overrides what was done before.
    Failure,
}

/// One conversion specification.
struct Conversion {
    suppressed: bool,
    allocates: bool,
    /// Place of the argument, from 1; 0 is the next one.
    position: u32,
    /// Limit in characters; 0 is none.
    width: usize,
    /// Flags and length modifiers, for the scanner of bytes.
    flags: [u8; 2],
    modifiers: [u8; 2],
    kind: u8,
}

impl Conversion {
    /// Whether the target is one of wide characters.
    fn is_long(&self) -> bool {
        self.modifiers[0] == b'l' || matches!(self.kind, b'C' | b'S')
    }
}

struct Format<'a> {
    rest: &'a [Character],
}

impl<'a> Format<'a> {
    fn next(&mut self) -> Option<Character> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    /// The next character if it is in `set`.
    fn take(&mut self, set: &[u8]) -> Option<u8> {
        let first = u8::try_from(*self.rest.first()?).ok().filter(|byte| set.contains(byte))?;
        self.rest = &self.rest[1..];
        Some(first)
    }

    fn number(&mut self) -> usize {
        let mut number = 0usize;
        while let Some(digit) = self.take(b"0123456789") {
            number = number.saturating_mul(10).saturating_add(usize::from(digit - b'0'));
        }
        number
    }

    /// What follows a percent sign; `None` if the format ends in it.
    fn conversion(&mut self, dialect: Dialect) -> Option<Conversion> {
        let (mut suppressed, mut flags, mut position) = (false, [0; 2], 0);
        let before = self.rest;
        let number = self.number();
        if number > 0 && self.take(b"$").is_some() {
            position = number as u32;
        } else {
            self.rest = before;
        }
        while let Some(flag) = self.take(b"*'I") {
            match flag {
                b'*' => suppressed = true,
                b'\'' => flags[0] = flag,
                _ => flags[1] = flag,
            }
        }
        let width = self.number();
        let mut allocates = self.take(b"m").is_some();
        let mut modifiers = [0; 2];
        if let Some(modifier) = self.take(b"hlLqjzt") {
            modifiers[0] = modifier;
            if let b'h' | b'l' = modifier {
                modifiers[1] = self.take(&[modifier]).unwrap_or(0);
            }
        } else if dialect == Dialect::Gnu
            && let [first, second, ..] = self.rest
            && *first == Character::from(b'a')
            && [b's', b'S', b'['].map(Character::from).contains(second)
        {
            allocates = true;
            self.rest = &self.rest[1..];
        }
        // A kind that is no byte is none that anybody knows.
        let kind = u8::try_from(self.next()?).unwrap_or(0);
        Some(Conversion { suppressed, allocates, position, width, flags, modifiers, kind })
    }

    /// The characters between brackets, behind a caret or not; `None` if they do not end.
    fn set(&mut self) -> Option<Set<'a>> {
        let negated = self.take(b"^").is_some();
        let (first, bracket) = (self.rest.get(1..)?, Character::from(b']'));
        let length = 1 + first.iter().position(|&character| character == bracket)?;
        let members = &self.rest[..length];
        self.rest = &self.rest[length + 1..];
        Some(Set { negated, members })
    }
}

/// What a pair of brackets matches.
struct Set<'a> {
    negated: bool,
    members: &'a [Character],
}

impl Set<'_> {
    fn has(&self, character: Character) -> bool {
        let mut at = 0;
        let mut found = false;
        while let Some(&member) = self.members.get(at) {
            let dash = member == Character::from(b'-') && at > 0;
            match (dash, at.checked_sub(1).map(|last| self.members[last]), self.members.get(at + 1))
            {
                (true, Some(low), Some(&high)) if low <= high => {
                    found |= (low..=high).contains(&character);
                    at += 2;
                }
                _ => {
                    found |= member == character;
                    at += 1;
                }
            }
        }
        found != self.negated
    }
}

/// Where a text goes: to the program's buffer, to one that grows, or nowhere.
struct Sink {
    /// Size of what is stored for a character; 1 for multibyte characters.
    wide: bool,
    base: *mut u8,
    used: usize,
    /// Bytes there are, if the buffer is ours.
    room: Option<usize>,
    /// Where the program finds the buffer that was made for it.
    handle: *mut *mut u8,
    /// The shift state, an `mbstate_t`.
    state: [u64; 2],
}

/// What one character may take.
const LONGEST: usize = 32;

impl Sink {
    /// `None` with errno if memory is short.
    unsafe fn new(conversion: &Conversion, target: *mut c_void) -> Option<Sink> {
        let mut sink = Sink {
            wide: conversion.is_long(),
            base: target.cast(),
            used: 0,
            room: None,
            handle: core::ptr::null_mut(),
            state: [0; 2],
        };
        if conversion.allocates && !target.is_null() {
            sink.handle = target.cast();
            sink.base = core::ptr::null_mut();
            sink.room = Some(0);
            unsafe { sink.resize(4 * LONGEST) }?;
        }
        Some(sink)
    }

    unsafe fn resize(&mut self, bytes: usize) -> Option<()> {
        let base = unsafe { libc::realloc(self.base.cast(), bytes) };
        if base.is_null() {
            set_errno(Errno::NOMEM);
            return None;
        }
        self.base = base.cast();
        self.room = Some(bytes);
        unsafe { self.handle.write(self.base) };
        Some(())
    }

    unsafe fn push(&mut self, character: Character) -> Result<(), End> {
        if self.base.is_null() {
            return Ok(());
        }
        if let Some(room) = self.room
            && room - self.used < LONGEST
        {
            unsafe { self.resize(2 * room) }.ok_or(End::Failure)?;
        }
        let to = unsafe { self.base.add(self.used) };
        self.used += if self.wide {
            unsafe { to.cast::<Character>().write_unaligned(character) };
            size_of::<Character>()
        } else {
            let state = (&raw mut self.state).cast();
            match unsafe { wcrtomb(to.cast(), character as wchar_t, state) } {
                size_t::MAX => return Err(End::Failure),
                bytes => bytes,
            }
        };
        Ok(())
    }

    unsafe fn finish(&mut self, terminated: bool) -> Result<(), End> {
        if terminated {
            unsafe { self.push(0) }?;
        }
        if self.room.is_some() {
            // What is left over goes back; a failure to shrink changes nothing.
            let _ = unsafe { self.resize(self.used.max(1)) };
        }
        Ok(())
    }
}

struct Scanner<'a, 'b> {
    source: &'a mut Stream<'b>,
    stream: *mut FILE,
    arguments: Arguments,
    /// Arguments taken in order.
    taken: u32,
    /// Characters read so far.
    count: usize,
    dialect: Dialect,
    /// Buffers made for the program, which it does not get when all ends in an error.
    made: [*mut *mut u8; 16],
    made_count: usize,
}

fn is_space(character: Character) -> bool {
    character != WEOF && unsafe { iswspace(character) } != 0
}

impl Scanner<'_, '_> {
    unsafe fn get(&mut self) -> Character {
        let character = unsafe { self.source.get() };
        if character != WEOF {
            self.count += 1;
        }
        character
    }

    unsafe fn unget(&mut self, character: Character) {
        if character != WEOF {
            self.count -= 1;
            unsafe { self.source.unget(character) };
        }
    }

    /// Skips white space. The end of the input is no error here.
    unsafe fn skip_spaces(&mut self) {
        let before = errno();
        loop {
            let character = unsafe { self.get() };
            if !is_space(character) {
                unsafe { self.unget(character) };
                break;
            }
        }
        restore_errno(before);
    }

    unsafe fn literal(&mut self, wanted: Character) -> Result<(), End> {
        match unsafe { self.get() } {
            WEOF => Err(End::Input),
            found if found == wanted => Ok(()),
            found => {
                unsafe { self.unget(found) };
                Err(End::Matching)
            }
        }
    }

    unsafe fn target(&mut self, conversion: &Conversion) -> *mut c_void {
        if conversion.suppressed {
            return core::ptr::null_mut();
        }
        let index = match conversion.position {
            0 => {
                self.taken += 1;
                self.taken - 1
            }
            position => position - 1,
        };
        unsafe { forebay_pointer_at(self.arguments, index) }
    }

    /// `%n`: how many characters were read.
    unsafe fn tell(&mut self, conversion: &Conversion) {
        let target = unsafe { self.target(conversion) };
        if target.is_null() {
            return;
        }
        let count = self.count;
        unsafe {
            match conversion.modifiers {
                [b'h', b'h'] => target.cast::<i8>().write(count as i8),
                [b'h', _] => target.cast::<i16>().write(count as i16),
                [0, _] => target.cast::<i32>().write(count as i32),
                _ => target.cast::<i64>().write(count as i64),
            }
        }
    }

    /// A text of at most `limit` characters for which `fits` holds.
    unsafe fn text(
        &mut self,
        conversion: &Conversion,
        limit: usize,
        terminated: bool,
        fits: impl Fn(Character) -> bool,
    ) -> Result<(), End> {
        let target = unsafe { self.target(conversion) };
        let first = unsafe { self.get() };
        if first == WEOF {
            return Err(End::Input);
        }
        let mut sink = unsafe { Sink::new(conversion, target) }.ok_or(End::Failure)?;
        if !sink.handle.is_null()
            && let Some(place) = self.made.get_mut(self.made_count)
        {
            *place = sink.handle;
            self.made_count += 1;
        }
        let (mut next, mut matched) = (first, 0);
        loop {
            if next == WEOF {
                break;
            }
            if !fits(next) {
                unsafe { self.unget(next) };
                break;
            }
            unsafe { sink.push(next) }?;
            matched += 1;
            if matched == limit {
                break;
            }
            next = unsafe { self.get() };
        }
        if matched == 0 {
            // As if the buffer had never been made.
            if !sink.handle.is_null() {
                unsafe {
                    libc::free(sink.base.cast());
                    sink.handle.write(core::ptr::null_mut());
                }
            }
            return Err(End::Matching);
        }
        unsafe { sink.finish(terminated) }
    }

    /// A number, or a pointer. White space before it has been skipped.
    unsafe fn number(&mut self, conversion: &Conversion) -> Result<(), End> {
        static C99: Symbol = Symbol::new(c"__isoc99_fscanf");
        static C23: Symbol = Symbol::new(c"__isoc23_fscanf");
        type Scan = unsafe extern "C" fn(*mut FILE, *const c_char, ...) -> c_int;
        let symbol = if self.dialect == Dialect::C23 { &C23 } else { &C99 };
        // SAFETY: either null or the function of that name.
        let scan: Option<Scan> = unsafe { core::mem::transmute(symbol.address()) };
        let Some(scan) = scan else { return Err(End::Matching) };
        let mut text = [0u8; 48];
        if write_format(conversion, &mut text).is_none() {
            return Err(End::Matching);
        }
        // There must be a character; the bytes of one that cannot be decoded are the end.
        match unsafe { self.get() } {
            WEOF => return Err(End::Input),
            first => unsafe { self.unget(first) },
        }
        let target = unsafe { self.target(conversion) };
        let format = text.as_ptr().cast::<c_char>();
        let mut bytes: c_int = -1;
        let result = if conversion.suppressed {
            unsafe { scan(self.stream, format, &raw mut bytes) }
        } else {
            unsafe { scan(self.stream, format, target, &raw mut bytes) }
        };
        match usize::try_from(bytes) {
            Ok(bytes) => {
                self.count += bytes;
                Ok(())
            }
            Err(_) if result == libc::EOF => Err(End::Input),
            Err(_) => Err(End::Matching),
        }
    }

    unsafe fn convert(&mut self, conversion: &Conversion, set: Option<Set>) -> Result<bool, End> {
        let limit = if conversion.width == 0 { usize::MAX } else { conversion.width };
        unsafe {
            match (conversion.kind, set) {
                (b'%', _) => {
                    self.literal(Character::from(b'%'))?;
                    return Ok(false);
                }
                (b'n', _) => {
                    self.tell(conversion);
                    return Ok(false);
                }
                (b'c' | b'C', _) => {
                    self.text(conversion, conversion.width.max(1), false, |_| true)?;
                }
                (b's' | b'S', _) => self.text(conversion, limit, true, |c| !is_space(c))?,
                (b'[', Some(set)) => self.text(conversion, limit, true, |c| set.has(c))?,
                (kind, _) if b"diouxXpaAeEfFgG".contains(&kind) => self.number(conversion)?,
                _ => return Err(End::Matching),
            }
        }
        Ok(!conversion.suppressed)
    }
}

/// The same conversion for the scanner of bytes, and how many it reads.
fn write_format(conversion: &Conversion, text: &mut [u8; 48]) -> Option<()> {
    use std::io::Write;
    let mut to = &mut text[..47];
    let mut put = |bytes: &[u8]| to.write_all(bytes).ok();
    put(b"%")?;
    if conversion.suppressed {
        put(b"*")?;
    }
    for flag in conversion.flags.iter().filter(|&&flag| flag != 0) {
        put(&[*flag])?;
    }
    if conversion.width > 0 {
        let mut digits = [0u8; 20];
        let mut rest = &mut digits[..];
        write!(rest, "{}", conversion.width.min(c_int::MAX as usize)).ok()?;
        let unused = rest.len();
        put(&digits[..20 - unused])?;
    }
    for modifier in conversion.modifiers.iter().filter(|&&modifier| modifier != 0) {
        put(&[*modifier])?;
    }
    put(&[conversion.kind])?;
    put(b"%n")
}

/// Scans `stream`, which is locked. Returns what fwscanf does.
pub(crate) unsafe fn scan(
    source: &mut Stream,
    stream: *mut FILE,
    format: &[Character],
    arguments: Arguments,
    dialect: Dialect,
) -> c_int {
    let none = core::ptr::null_mut();
    let mut scanner = Scanner {
        source,
        stream,
        arguments,
        taken: 0,
        count: 0,
        dialect,
        made: [none; 16],
        made_count: 0,
    };
    let mut done = 0;
    match unsafe { run(&mut scanner, Format { rest: format }, &mut done) } {
        Ok(()) | Err(End::Matching) => {}
        Err(End::Input) if done > 0 => {}
        Err(End::Input | End::Failure) => done = libc::EOF,
    }
    if done == libc::EOF {
        for place in &scanner.made[..scanner.made_count] {
            unsafe {
                libc::free((**place).cast());
                place.write(core::ptr::null_mut());
            }
        }
    }
    done
}

unsafe fn run(scanner: &mut Scanner, mut format: Format, done: &mut c_int) -> Result<(), End> {
    let mut spaces = false;
    while let Some(character) = format.next() {
        if is_space(character) {
            spaces = true;
            continue;
        }
        if character != Character::from(b'%') {
            if core::mem::take(&mut spaces) {
                unsafe { scanner.skip_spaces() };
            }
            unsafe { scanner.literal(character) }?;
            continue;
        }
        let Some(conversion) = format.conversion(scanner.dialect) else {
            return Err(End::Matching);
        };
        if core::mem::take(&mut spaces) || !b"[cCn".contains(&conversion.kind) {
            unsafe { scanner.skip_spaces() };
        }
        let set = match conversion.kind {
            b'[' => Some(format.set().ok_or(End::Matching)?),
            _ => None,
        };
        if unsafe { scanner.convert(&conversion, set) }? {
            *done += 1;
        }
    }
    if spaces {
        unsafe { scanner.skip_spaces() };
    }
    Ok(())
}
