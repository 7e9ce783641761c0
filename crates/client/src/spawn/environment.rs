//! The environment of a new program: with what it needs to find the library and the pool.

use super::{Needs, is_runtime};
use crate::session::Session;
use crate::user_memory::{Strings, texts_at};
use core::ffi::{CStr, c_char};
use core::marker::PhantomData;
use core::ptr::NonNull;
use rustix::fs::{Access, AtFlags, CWD};
use std::alloc::{GlobalAlloc, Layout, System, handle_alloc_error};
use std::ffi::CString;

/// What the environment of every child has to carry, in the order of [`Setting`].
const CARRIED: [&CStr; SETTINGS] = [
    c"LD_PRELOAD",
    c"FOREBAY_POOL",
    c"FOREBAY_SOCKET",
    c"FOREBAY_JOB",
    c"FOREBAY_ADAPTERS",
    c"FOREBAY_MPIIO",
    c"FOREBAY_DEEPBIND",
    c"FOREBAY_ACTION",
];
const SETTINGS: usize = 8;

/// A place in [`CARRIED`].
#[derive(Clone, Copy)]
enum Setting {
    Preload,
    Pool,
    Socket,
    Job,
    Adapters,
    Action = 7,
}

impl Setting {
    fn name(self) -> &'static CStr {
        CARRIED[self as usize]
    }
}

/// Where the loader looks for the libraries of a program.
const LIBRARY_PATH: &CStr = c"LD_LIBRARY_PATH";

/// A program that has this in its environment runs without Forebay.
const DISABLED: &CStr = c"FOREBAY_DISABLE";

/// With these in its environment the loader lists the libraries of a program, and does not start
/// it, or what the kernel has told it: on standard output, before any library can see it.
const LISTED: [&CStr; 2] = [c"LD_TRACE_LOADED_OBJECTS", c"LD_SHOW_AUXV"];

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
    #[inline]
    pub unsafe fn given(list: Strings) -> Variables<'a> {
        let mut number = 0;
        // SAFETY: as the caller says.
        while !list.is_null() && unsafe { !list.add(number).read().is_null() } {
            number += 1;
        }
        Variables { list, number, entries: PhantomData }
    }

    /// Where the entries are.
    fn places(self) -> impl Iterator<Item = *const c_char> {
        // SAFETY: so many were found readable, see `Variables::at`.
        let place = move |index| unsafe { self.list.add(index).read_unaligned() };
        // Another thread may take one away, although it should not.
        (0..self.number).map(place).take_while(|entry| !entry.is_null())
    }

    fn entries(self) -> impl Iterator<Item = &'a CStr> {
        // SAFETY: they were found readable, up to their zeros, and stay so, see `Variables::at`.
        self.places().map(|entry| unsafe { CStr::from_ptr(entry) })
    }

    /// The entry for `name`. A program that starts looks for many names: how long the other entries
    /// are does not matter.
    #[inline]
    pub(super) fn find(self, name: &CStr) -> Option<&'a CStr> {
        // SAFETY: as of `entries`.
        let is_defined = |entry: &*const c_char| unsafe { defines_at(*entry, name) };
        // SAFETY: the same.
        self.places().find(is_defined).map(|entry| unsafe { CStr::from_ptr(entry) })
    }

    /// Whether a program with these runs without Forebay.
    pub(super) fn switch_off(self) -> bool {
        /// What the loader writes to standard output, too.
        const HELP: &[u8] = b"help";
        let helps = |entry: &CStr| value_of(entry).windows(HELP.len()).any(|word| word == HELP);
        self.has(DISABLED)
            || LISTED.iter().any(|name| self.has(name))
            || self.find(c"LD_DEBUG").is_some_and(helps)
    }

    fn has(self, name: &CStr) -> bool {
        self.find(name).is_some()
    }

    /// The folders in which the loader looks for the libraries of a program with these.
    pub(super) fn library_path(self) -> &'a [u8] {
        self.find(LIBRARY_PATH).map_or(&[], value_of)
    }
}

/// What stands behind the name of an entry.
#[inline]
fn value_of(entry: &CStr) -> &[u8] {
    entry.to_bytes().splitn(2, |&byte| byte == b'=').nth(1).unwrap_or_default()
}

/// The libraries that a value of LD_PRELOAD names.
fn preloaded(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b':' || byte == b' ').filter(|name| !name.is_empty())
}

/// Takes the adapters, and a runtime that was put before them, out of the LD_PRELOAD that this
/// process was started with, and says which those are: its children get those that they need
/// themselves.
///
/// # Safety
/// The list is the one that the kernel has given to this process, ends with null, and neither it
/// nor its entries are used by another thread yet.
#[inline]
pub unsafe fn take_adapters(list: *mut *const c_char) -> Needs {
    // SAFETY: as the caller says.
    let given = unsafe { Variables::given(list) };
    let Some(entry) = given.find(Setting::Preload.name()) else { return Needs::NONE };
    let is_adapter = |name: &&[u8]| !Needs::of_preloaded(name).is_empty();
    let Some(first) = preloaded(value_of(entry)).find(is_adapter) else { return Needs::NONE };
    let start = entry.as_ptr().cast_mut().cast::<u8>();
    let (length, at) = (entry.count_bytes(), first.as_ptr().addr() - start.addr());
    // SAFETY: as the caller says.
    unsafe { take_from(start, length, at) }
}

/// The same, of an entry of this length, in which the first of them begins at `to`.
///
/// # Safety
/// As of [`take_adapters`].
#[cold]
unsafe fn take_from(start: *mut u8, length: usize, mut to: usize) -> Needs {
    let mut from = to;
    let mut taken = Needs::NONE;
    // SAFETY: the entry's bytes, which the kernel has put where this process may write; no slice of
    // them outlives a turn.
    unsafe {
        while from < length {
            let rest = core::slice::from_raw_parts(start.add(from), length - from);
            let end = rest.iter().position(|&byte| byte == b':' || byte == b' ');
            let (name, step) = (&rest[..end.unwrap_or(rest.len())], end.map_or(0, |_| 1));
            let needs = Needs::of_preloaded(name);
            let bytes = name.len() + step;
            taken = taken.with(needs);
            if needs.is_empty() {
                start.add(to).copy_from(start.add(from), bytes);
                to += bytes;
            }
            from += bytes;
        }
        // A separator that ends it now is none.
        let is_last = start.add(to - 1).read() == b':' || start.add(to - 1).read() == b' ';
        start.add(to - usize::from(is_last)).write(0);
    }
    taken
}

/// Whether an entry is the one for `name`.
///
/// # Safety
/// It can be read up to its zero.
#[inline]
pub(super) unsafe fn defines_at(entry: *const c_char, name: &CStr) -> bool {
    let wanted = name.to_bytes().iter().chain(b"=");
    // SAFETY: the comparison ends at the zero, which is in no name.
    wanted.zip(0..).all(|(&byte, at)| unsafe { entry.add(at).cast::<u8>().read() } == byte)
}

/// Our settings as this process received them, "NAME=value": programs clear their environment. The
/// copies are never freed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Carried {
    entries: [Option<&'static CStr>; SETTINGS],
}

impl Carried {
    /// The settings in the environment as it was given; none where it switches Forebay off.
    #[inline]
    pub fn of(given: Variables<'_>) -> Carried {
        if given.switch_off() {
            return Carried::default();
        }
        // One piece of memory: a start touches the fewest pages so.
        let mut carried = Carried::default();
        let mut bytes = 0;
        for name in CARRIED {
            bytes += given.find(name).map_or(0, |entry| entry.count_bytes() + 1);
        }
        let layout = Layout::array::<u8>(bytes).ok().filter(|layout| layout.size() > 0);
        let Some(layout) = layout else { return carried };
        // SAFETY: not empty.
        let place = NonNull::new(unsafe { System.alloc(layout) });
        let mut place = place.unwrap_or_else(|| handle_alloc_error(layout));
        for (to, name) in carried.entries.iter_mut().zip(CARRIED) {
            let Some(entry) = given.find(name) else { continue };
            let length = entry.count_bytes() + 1;
            // SAFETY: room for all of them, one after the other, which stay as they are.
            unsafe {
                place.as_ptr().copy_from_nonoverlapping(entry.as_ptr().cast(), length);
                *to = Some(CStr::from_ptr(place.as_ptr().cast()));
                place = place.add(length);
            }
        }
        carried
    }

    /// Whether they say which pool the process is to join, and where its node manager listens.
    #[inline]
    pub fn has_pool(&self) -> bool {
        let has = |setting: Setting| self.entries[setting as usize].is_some();
        has(Setting::Pool) && has(Setting::Socket)
    }

    /// The pool that the process is to join.
    pub fn pool(&self) -> Option<&CStr> {
        self.value(Setting::Pool)
    }

    /// Whether a program with `variables` is to join the same pool, and not that of another run.
    pub(super) fn is_pool_of(&self, variables: Variables<'_>) -> bool {
        let ours = self.entries[Setting::Pool as usize];
        variables.find(Setting::Pool.name()).is_none_or(|given| ours == Some(given))
    }

    /// The socket of the pool's node manager.
    pub fn socket(&self) -> Option<&CStr> {
        self.value(Setting::Socket)
    }

    /// The number of the run that the process belongs to.
    pub fn job(&self) -> Option<&CStr> {
        self.value(Setting::Job)
    }

    /// Whether the process belongs to a command that the node manager runs on a file: what it
    /// writes starts no other one.
    pub(crate) fn is_action(&self) -> bool {
        self.value(Setting::Action).is_some()
    }

    /// The library's path: the first one in the LD_PRELOAD that this process was started with, but
    /// for runtimes of the user's.
    pub(super) fn library(&self) -> Option<&[u8]> {
        preloaded(self.value(Setting::Preload)?.to_bytes()).find(|name| !is_runtime(name))
    }

    /// The adapters that programs of this run may load.
    pub(super) fn admitted(&self) -> Needs {
        admitted(self.value(Setting::Adapters))
    }

    /// The same for a program with `variables`.
    pub(super) fn admitted_for(&self, variables: Variables<'_>) -> Needs {
        let given = variables.find(Setting::Adapters.name());
        given.map_or_else(|| self.admitted(), |given| admitted(value_text(given)))
    }

    /// The paths of these adapters, which lie beside the library: those that can be loaded.
    pub fn adapters(&self, needs: Needs) -> impl Iterator<Item = CString> {
        let ours = self.library().unwrap_or_default();
        let folder =
            ours.iter().rposition(|&byte| byte == b'/').map_or(&[][..], |at| &ours[..at + 1]);
        needs.adapters().filter_map(move |file| {
            let mut path = Vec::new();
            path.try_reserve_exact(folder.len() + file.len() + 1).ok()?;
            path.extend_from_slice(folder);
            path.extend_from_slice(file.as_bytes());
            path.push(0);
            let path = CString::from_vec_with_nul(path).ok()?;
            let is_there = rustix::fs::accessat(CWD, &*path, Access::READ_OK, AtFlags::EACCESS);
            is_there.is_ok().then_some(path)
        })
    }

    /// The value of a setting.
    fn value(&self, setting: Setting) -> Option<&CStr> {
        let value = setting.name().count_bytes() + 1;
        let entry = self.entries[setting as usize]?.to_bytes_with_nul();
        CStr::from_bytes_with_nul(entry.get(value..)?).ok()
    }

    /// Whether an LD_PRELOAD entry is what a program gets that needs these adapters.
    fn is_preload(&self, entry: &CStr, needs: Needs) -> bool {
        let Some(ours) = self.library() else { return true };
        let names = || preloaded(value_of(entry));
        needs.is_empty()
            && names().any(|name| name == ours)
            && names().all(|name| Needs::of_preloaded(name).is_empty())
            && !names().skip_while(|name| *name != ours).any(is_runtime)
    }

    /// "LD_PRELOAD=runtimes:ours:adapters:theirs" with its zero, for an LD_PRELOAD entry of a
    /// program that needs these adapters and runtimes; `None` without memory.
    fn merged(&self, entry: &CStr, needs: Needs) -> Option<Vec<u8>> {
        let ours = self.library()?;
        let is_theirs = |name: &&[u8]| *name != ours && Needs::of_preloaded(name).is_empty();
        let theirs = || preloaded(value_of(entry)).filter(is_theirs);
        let mut made = Vec::new();
        let mut add = |before: &[u8], name: &[u8]| {
            made.try_reserve(before.len() + name.len() + 1).ok()?;
            made.extend_from_slice(before);
            made.extend_from_slice(name);
            Some(())
        };
        add(b"LD_PRELOAD=", b"")?;
        for runtime in needs.runtimes() {
            add(runtime.as_bytes(), b":")?;
        }
        for runtime in theirs().filter(|name| is_runtime(name)) {
            add(runtime, b":")?;
        }
        add(ours, b"")?;
        for adapter in self.adapters(needs) {
            add(b":", adapter.to_bytes())?;
        }
        for name in theirs().filter(|name| !is_runtime(name)) {
            add(b":", name)?;
        }
        made.push(0);
        Some(made)
    }
}

/// The value of an entry as text.
fn value_text(entry: &CStr) -> Option<&CStr> {
    let at = entry.to_bytes().iter().position(|&byte| byte == b'=')? + 1;
    CStr::from_bytes_with_nul(entry.to_bytes_with_nul().get(at..)?).ok()
}

/// What a value of FOREBAY_ADAPTERS admits; all where there is none.
fn admitted(value: Option<&CStr>) -> Needs {
    let Some(value) = value else { return Needs::ALL };
    value.to_str().ok().and_then(Needs::admitted).unwrap_or(Needs::NONE)
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
    fn with(carried: &'a Carried, given: Variables<'a>, needs: Needs) -> Environment<'a> {
        let mut environment = Environment { given, made: Vec::new(), preload: None };
        if given.switch_off() {
            return environment;
        }
        let mut missing = carried.entries;
        for (setting, name) in missing.iter_mut().zip(CARRIED) {
            *setting = setting.filter(|_| !given.has(name));
        }
        // Ours where the program has none.
        let preload = given.find(Setting::Preload.name()).or(missing[0]);
        let foreign = preload.filter(|entry| !carried.is_preload(entry, needs));
        if missing == [None; SETTINGS] && foreign.is_none() {
            return environment;
        }
        let most = given.number + SETTINGS + 1;
        if environment.made.try_reserve_exact(most).is_err() {
            return environment;
        }
        environment.preload = foreign.and_then(|entry| carried.merged(entry, needs));
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
    /// The process gives `carried` to every child from now on.
    pub fn carry(&mut self, carried: Carried) {
        self.carried = carried;
    }

    /// The environment that a new program gets where its starter has given it `given`, and that
    /// needs these adapters.
    pub fn environment<'a>(&'a self, given: Variables<'a>, needs: Needs) -> Environment<'a> {
        Environment::with(&self.carried, given, needs)
    }

    /// The paths of these adapters: those that can be loaded.
    pub fn adapters(&self, needs: Needs) -> impl Iterator<Item = CString> {
        self.carried.adapters(needs)
    }

    /// What is missing in `given`, the environment of this process: entries to be put there, which
    /// are never freed.
    pub fn missing(&'static self, given: Variables<'_>) -> [Option<&'static CStr>; SETTINGS] {
        if given.switch_off() {
            return [None; SETTINGS];
        }
        let mut missing = self.carried.entries;
        for (setting, name) in missing.iter_mut().zip(CARRIED) {
            match given.find(name) {
                None => {}
                Some(given)
                    if name == Setting::Preload.name()
                        && !self.carried.is_preload(given, Needs::NONE) =>
                {
                    let merged = self.carried.merged(given, Needs::NONE);
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
        of_child_with(kept, given, Needs::NONE)
    }

    /// The same where the child needs adapters.
    fn of_child_with(kept: &[&CStr], given: &[&CStr], needs: Needs) -> Vec<String> {
        let list = |entries: &[&CStr]| {
            let entries = entries.iter().map(|entry| entry.as_ptr());
            entries.chain([core::ptr::null()]).collect::<Vec<_>>()
        };
        let (kept, given) = (list(kept), list(given));
        // SAFETY: they outlive what is made of them.
        let read = |list: &[*const c_char]| unsafe { Variables::at(list.as_ptr()) }.unwrap();
        let carried = Carried::of(read(&kept));
        let environment = Environment::with(&carried, read(&given), needs);
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
    fn adapters_come_and_go_with_the_programs_that_need_them() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(at("libforebay_mpiio.so"), "").unwrap();
        let ours = at("ours.so");
        let kept = CString::new(format!("LD_PRELOAD={ours}")).unwrap();
        let other = CString::new(format!("LD_PRELOAD=/b.so {ours}")).unwrap();
        let adapter = at("libforebay_mpiio.so");
        let with = format!("LD_PRELOAD={ours}:{adapter}");
        // The second one lies nowhere.
        let needs = Needs::MPI.with(Needs::HDF5);
        let of_child = |given: &[&CStr], needs| of_child_with(&[&kept], given, needs);
        assert_eq!(of_child(&[], needs), [&with[..]]);
        assert_eq!(of_child(&[c"A=b", &kept], needs), ["A=b", &with[..]]);
        assert_eq!(of_child(&[&other], needs), [format!("{with}:/b.so")]);
        assert_eq!(of_child(&[&other], Needs::HDF5), [format!("LD_PRELOAD={ours}:/b.so")]);
        let inherited = CString::new(with.clone()).unwrap();
        assert_eq!(of_child(&[&inherited], needs), [&with[..]]);
        assert_eq!(of_child(&[&inherited], Needs::NONE), [format!("LD_PRELOAD={ours}")]);
    }

    #[test]
    fn runtimes_of_sanitizers_come_before_the_library() {
        let pool = c"FOREBAY_POOL=/pool";
        let asan = Needs::of_preloaded(b"libasan.so.8");
        let with = |given: &CStr, needs| of_child_with(&KEPT, &[given, pool], needs).remove(0);
        let ours = c"LD_PRELOAD=/ours.so";
        assert_eq!(with(ours, asan), "LD_PRELOAD=libasan.so.8:/ours.so");
        assert_eq!(
            with(c"LD_PRELOAD=libasan.so.8:/ours.so:/b.so", asan),
            "LD_PRELOAD=libasan.so.8:/ours.so:/b.so"
        );
        // A program that was not linked with it has it no more.
        assert_eq!(with(c"LD_PRELOAD=libasan.so.8:/ours.so", Needs::NONE), "LD_PRELOAD=/ours.so");
        // One that the user names stays, and comes first.
        let theirs = "LD_PRELOAD=/lib/libasan.so:/ours.so:/b.so";
        assert_eq!(with(c"LD_PRELOAD=/ours.so:/b.so:/lib/libasan.so", Needs::NONE), theirs);
        assert_eq!(with(c"LD_PRELOAD=/b.so /lib/libasan.so", Needs::NONE), theirs);
        let kept = [c"LD_PRELOAD=/lib/libasan.so:/ours.so", pool];
        assert_eq!(of_child(&kept, &[ours, pool]), [ours, pool].map(|it| it.to_str().unwrap()));
    }

    #[test]
    fn adapters_are_taken_out_of_what_a_process_was_started_with() {
        for (given, left, needs) in [
            ("/o.so:/libforebay_mpiio.so:/b.so", "/o.so:/b.so", Needs::MPI),
            ("/o.so:/x/libforebay_hdf5.so", "/o.so", Needs::HDF5),
            ("/libforebay_mpiio.so /o.so", "/o.so", Needs::MPI),
            (
                "/o.so:/libforebay_mpiio.so:/libforebay_hdf5.so",
                "/o.so",
                Needs::MPI.with(Needs::HDF5),
            ),
            ("/o.so:/b.so", "/o.so:/b.so", Needs::NONE),
            ("libasan.so.8:/o.so:/b.so", "/o.so:/b.so", Needs::of_preloaded(b"libasan.so.8")),
            ("/x/libasan.so.8:/o.so", "/x/libasan.so.8:/o.so", Needs::NONE),
        ] {
            let mut entry = format!("LD_PRELOAD={given}\0").into_bytes();
            let mut list = [entry.as_mut_ptr().cast_const().cast(), core::ptr::null()];
            // SAFETY: it is this test's alone.
            let taken = unsafe { take_adapters(list.as_mut_ptr()) };
            let text = CStr::from_bytes_until_nul(&entry).unwrap().to_str().unwrap();
            assert_eq!((text, taken), (&*format!("LD_PRELOAD={left}"), needs));
        }
    }

    #[test]
    fn what_may_be_loaded_can_be_switched_off() {
        let list = |text: &'static CStr| [text.as_ptr(), core::ptr::null()];
        let (off, plain) = (list(c"FOREBAY_ADAPTERS=none"), list(c"A=b"));
        // SAFETY: they stay as they are.
        let [off, plain] = [&off, &plain].map(|list| unsafe { Variables::given(list.as_ptr()) });
        assert_eq!(Carried::of(off).admitted(), Needs::NONE);
        assert_eq!(Carried::of(off).admitted_for(plain), Needs::NONE);
        assert_eq!(Carried::of(plain).admitted(), Needs::ALL);
        assert_eq!(Carried::of(plain).admitted_for(off), Needs::NONE);
    }

    #[test]
    fn settings_are_found_by_their_names() {
        let names = [
            (Setting::Preload, c"LD_PRELOAD"),
            (Setting::Pool, c"FOREBAY_POOL"),
            (Setting::Socket, c"FOREBAY_SOCKET"),
            (Setting::Job, c"FOREBAY_JOB"),
            (Setting::Adapters, c"FOREBAY_ADAPTERS"),
            (Setting::Action, c"FOREBAY_ACTION"),
        ];
        for (setting, name) in names {
            assert_eq!(setting.name(), name);
        }
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
