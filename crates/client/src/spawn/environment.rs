//! The environment of a new program: with what it needs to find the library and the pool.

use crate::session::Session;
use crate::user_memory::{Strings, texts_at};
use core::ffi::{CStr, c_char};
use core::marker::PhantomData;
use std::ffi::CString;
use std::sync::Arc;

/// What the environment of every child has to carry.
const CARRIED: [&CStr; SETTINGS] =
    [c"LD_PRELOAD", c"FOREBAY_POOL", c"FOREBAY_SOCKET", c"FOREBAY_JOB"];
const SETTINGS: usize = 4;

/// A program that has this in its environment runs without Forebay.
const DISABLED: &CStr = c"FOREBAY_DISABLE";

/// An environment: entries "NAME=value".
#[derive(Clone, Copy)]
pub struct Variables<'a> {
    list: Strings,
    number: usize,
    entries: PhantomData<&'a CStr>,
}

impl<'a> Variables<'a> {
    /// Those of `list`, wherever that is; null is none. `None` where some of it is no memory of the
    /// program's, or longer than a program may be given: the kernel refuses it then.
    ///
    /// # Safety
    /// As far as they can be read, list and entries stay as they are for as long as they are used.
    pub unsafe fn at(list: Strings) -> Option<Variables<'a>> {
        // SAFETY: as the caller says.
        let number = if list.is_null() { 0 } else { unsafe { texts_at(list) }? };
        Some(Variables { list, number, entries: PhantomData })
    }

    /// Those that the kernel has given to this process, as the loader passes them on.
    ///
    /// # Safety
    /// The list is that, ends with null, and stays as it is for as long as it is used.
    pub unsafe fn given(list: Strings) -> Variables<'a> {
        let mut number = 0;
        // SAFETY: as the caller says.
        while !list.is_null() && unsafe { !list.add(number).read().is_null() } {
            number += 1;
        }
        Variables { list, number, entries: PhantomData }
    }

    fn entries(self) -> impl Iterator<Item = &'a CStr> {
        // SAFETY: so many were found readable, up to their zeros, and stay so, see `Variables::at`.
        let entry = move |index| unsafe {
            let entry = self.list.add(index).read_unaligned();
            // Another thread may take one away, although it should not.
            (!entry.is_null()).then(|| CStr::from_ptr(entry))
        };
        (0..self.number).map_while(entry)
    }

    /// The entry for `name`.
    pub(super) fn find(self, name: &CStr) -> Option<&'a CStr> {
        self.entries().find(|entry| defines(entry, name))
    }

    /// Whether a program with these runs without Forebay.
    pub(super) fn switch_off(self) -> bool {
        self.has(DISABLED)
    }

    fn has(self, name: &CStr) -> bool {
        self.find(name).is_some()
    }
}

fn defines(entry: &CStr, name: &CStr) -> bool {
    let rest = entry.to_bytes().strip_prefix(name.to_bytes());
    rest.is_some_and(|rest| rest.first() == Some(&b'='))
}

/// Our settings as this process received them, "NAME=value": programs clear their environment.
#[derive(Debug, Default)]
pub struct Carried {
    entries: [Option<CString>; SETTINGS],
}

impl Carried {
    /// The settings in the environment as it was given; none where it switches Forebay off.
    pub fn of(given: Variables<'_>) -> Carried {
        if given.switch_off() {
            return Carried::default();
        }
        Carried { entries: CARRIED.map(|name| given.find(name).map(CStr::to_owned)) }
    }

    /// The pool that the process is to join.
    pub fn pool(&self) -> Option<&CStr> {
        self.value(1)
    }

    /// Whether a program with `variables` is to join the same pool, and not that of another run.
    pub(super) fn is_pool_of(&self, variables: Variables<'_>) -> bool {
        variables.find(CARRIED[1]).is_none_or(|given| self.entries()[1] == Some(given))
    }

    /// The socket of the pool's node manager.
    pub fn socket(&self) -> Option<&CStr> {
        self.value(2)
    }

    /// The number of the run that the process belongs to.
    pub fn job(&self) -> Option<&CStr> {
        self.value(3)
    }

    /// The library's path: the first one in the LD_PRELOAD that this process was started with.
    pub(super) fn library(&self) -> Option<&[u8]> {
        self.value(0)?.to_bytes().split(|&byte| byte == b':').next()
    }

    fn entries(&self) -> [Option<&CStr>; SETTINGS] {
        self.entries.each_ref().map(Option::as_deref)
    }

    /// The value of a setting, by its place in `CARRIED`.
    fn value(&self, setting: usize) -> Option<&CStr> {
        let value = CARRIED[setting].count_bytes() + 1;
        let entry = self.entries()[setting]?.to_bytes_with_nul();
        CStr::from_bytes_with_nul(entry.get(value..)?).ok()
    }

    /// Whether an LD_PRELOAD entry names the library.
    fn is_in(&self, entry: &CStr) -> bool {
        let Some(ours) = self.library() else { return true };
        let value = entry.to_bytes().splitn(2, |&byte| byte == b'=').nth(1).unwrap_or_default();
        value.split(|&byte| byte == b':' || byte == b' ').any(|name| name == ours)
    }

    /// "LD_PRELOAD=ours:theirs" with its zero, for an LD_PRELOAD entry; `None` without memory.
    fn merged(&self, entry: &CStr) -> Option<Vec<u8>> {
        let ours = self.library()?;
        let name = b"LD_PRELOAD=";
        let theirs = &entry.to_bytes_with_nul()[name.len()..];
        let separator: &[u8] = if theirs.len() > 1 { b":" } else { b"" };
        let pieces: [&[u8]; 4] = [name, ours, separator, theirs];
        let mut made = Vec::new();
        made.try_reserve_exact(pieces.iter().map(|piece| piece.len()).sum()).ok()?;
        for piece in pieces {
            made.extend_from_slice(piece);
        }
        Some(made)
    }
}

/// An environment with our settings added where they are missing.
pub struct Environment<'a> {
    given: Variables<'a>,
    /// Empty where nothing is missing.
    made: Vec<*const c_char>,
    /// What an entry of `made` points to.
    preload: Option<Vec<u8>>,
}

impl<'a> Environment<'a> {
    fn with(carried: &'a Carried, given: Variables<'a>) -> Environment<'a> {
        let mut environment = Environment { given, made: Vec::new(), preload: None };
        if given.switch_off() {
            return environment;
        }
        let mut missing = carried.entries();
        for (setting, name) in missing.iter_mut().zip(CARRIED) {
            *setting = setting.filter(|_| !given.has(name));
        }
        let is_foreign = |entry: &&CStr| defines(entry, CARRIED[0]) && !carried.is_in(entry);
        let foreign = given.entries().find(is_foreign);
        if missing == [None; SETTINGS] && foreign.is_none() {
            return environment;
        }
        let most = given.number + SETTINGS + 1;
        if environment.made.try_reserve_exact(most).is_err() {
            return environment;
        }
        environment.preload = foreign.and_then(|entry| carried.merged(entry));
        for item in given.entries().chain(missing.into_iter().flatten()) {
            let replacement = match &environment.preload {
                Some(merged) if foreign.is_some_and(|foreign| core::ptr::eq(foreign, item)) => {
                    merged.as_ptr().cast()
                }
                _ => item.as_ptr(),
            };
            environment.made.push(replacement);
        }
        environment.made.push(core::ptr::null());
        environment
    }

    /// What the C library is to be given.
    pub fn list(&self) -> Strings {
        if self.made.is_empty() { self.given.list } else { self.made.as_ptr() }
    }
}

impl Session {
    /// The session, whose process gives `carried` to every child.
    #[must_use]
    pub fn carrying(mut self, carried: Carried) -> Session {
        self.carried = Arc::new(carried);
        self
    }

    /// The environment that a new program gets where its starter has given it `given`.
    pub fn environment<'a>(&'a self, given: Variables<'a>) -> Environment<'a> {
        Environment::with(&self.carried, given)
    }

    /// What is missing in `given`, the environment of this process: entries to be put there, which
    /// are never freed.
    pub fn missing(&'static self, given: Variables<'_>) -> [Option<&'static CStr>; SETTINGS] {
        if given.switch_off() {
            return [None; SETTINGS];
        }
        let mut missing = self.carried.entries();
        for (setting, name) in missing.iter_mut().zip(CARRIED) {
            match given.find(name) {
                None => {}
                Some(given) if name == CARRIED[0] && !self.carried.is_in(given) => {
                    let merged = self.carried.merged(given);
                    *setting = merged.and_then(|made| CStr::from_bytes_with_nul(made.leak()).ok());
                }
                Some(_) => *setting = None,
            }
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The environment that a child gets where its parent has `kept`, and has given it `given`.
    fn of_child(kept: &[&CStr], given: &[&CStr]) -> Vec<String> {
        let list = |entries: &[&CStr]| {
            let entries = entries.iter().map(|entry| entry.as_ptr());
            entries.chain([core::ptr::null()]).collect::<Vec<_>>()
        };
        let (kept, given) = (list(kept), list(given));
        // SAFETY: they outlive what is made of them.
        let read = |list: &[*const c_char]| unsafe { Variables::at(list.as_ptr()) }.unwrap();
        let carried = Carried::of(read(&kept));
        let environment = Environment::with(&carried, read(&given));
        // SAFETY: the same.
        let made = unsafe { Variables::at(environment.list()) }.unwrap();
        made.entries().map(|entry| entry.to_str().unwrap().to_owned()).collect()
    }

    const KEPT: [&CStr; 3] = [c"LD_PRELOAD=/ours.so:/a.so", c"A=b", c"FOREBAY_POOL=/pool"];

    #[test]
    fn what_is_missing_is_added_behind_what_is_given() {
        assert_eq!(
            of_child(&KEPT, &[c"A=c", c"FOREBAY_POOLS=x"]),
            ["A=c", "FOREBAY_POOLS=x", "LD_PRELOAD=/ours.so:/a.so", "FOREBAY_POOL=/pool"]
        );
        let other = [c"FOREBAY_POOL=/other", c"LD_PRELOAD=/b.so:/ours.so"];
        assert_eq!(of_child(&KEPT, &other), ["FOREBAY_POOL=/other", "LD_PRELOAD=/b.so:/ours.so"]);
        assert_eq!(of_child(&[c"A=b"], &[]), [""; 0]);
    }

    #[test]
    fn the_library_comes_before_the_program_s_own() {
        let pool = c"FOREBAY_POOL=/pool";
        assert_eq!(
            of_child(&KEPT, &[c"LD_PRELOAD=/b.so", pool]),
            ["LD_PRELOAD=/ours.so:/b.so", "FOREBAY_POOL=/pool"]
        );
        assert_eq!(
            of_child(&KEPT, &[c"LD_PRELOAD=", pool]),
            ["LD_PRELOAD=/ours.so", "FOREBAY_POOL=/pool"]
        );
    }

    #[test]
    fn nothing_is_added_or_kept_where_it_is_switched_off() {
        assert_eq!(of_child(&KEPT, &[c"FOREBAY_DISABLE=1"]), ["FOREBAY_DISABLE=1"]);
        assert_eq!(of_child(&[KEPT[0], c"FOREBAY_DISABLE="], &[c"A=c"]), ["A=c"]);
    }

    #[test]
    fn a_list_that_is_no_memory_is_refused() {
        let entries = [c"A=b".as_ptr(), 8 as *const c_char, core::ptr::null()];
        // SAFETY: they are not changed.
        let at = |list: Strings| unsafe { Variables::at(list) }.map(|all| all.number);
        assert_eq!(at(entries.as_ptr()), None);
        assert_eq!(at(8 as Strings), None);
        assert_eq!(at(entries[2..].as_ptr()), Some(0));
        assert_eq!(at(core::ptr::null()), Some(0));
    }
}
