//! The functions of the header.

use super::{Analysis, Operation, Section, all_names, removed, shown};
use crate::report::fail;
use crate::{fill, given, handles, null};
use core::ffi::{CStr, c_char, c_int, c_void};
use forebay_client::services::cut_off;
use std::path::Path;

/// `FOREBAY_NAME`: bytes of a name, with its zero.
const NAME: usize = 64;

/// `struct forebay_analysis`.
#[repr(C)]
#[derive(Clone, Copy)]
struct GivenAnalysis {
    size: usize,
    pattern: *const c_char,
    command: *const *const c_char,
    name: *const c_char,
    results: *const c_char,
    timeout_ms: i64,
    result_max: u64,
    on: c_int,
    drain: c_int,
    may_drop: c_int,
    reserved: c_int,
}

/// `struct forebay_operation`.
#[repr(C)]
#[derive(Clone, Copy)]
struct GivenOperation {
    size: usize,
    pattern: *const c_char,
    operation: *const c_char,
    options: *const *const c_char,
    name: *const c_char,
    results: *const c_char,
    suffix: *const c_char,
    scratch: *const c_char,
    timeout_ms: i64,
    patience_ms: i64,
    result_max: u64,
    drain: c_int,
    replace: c_int,
}

/// `struct forebay_action_info`.
#[repr(C)]
struct ActionInfo {
    size: usize,
    name: [c_char; NAME],
    pattern: [c_char; 448],
    kind: u32,
    is_configured: u32,
    waiting: u64,
    running: u64,
    done: u64,
    failed: u64,
    failure: [c_char; 512],
}

/// A text of the caller's; none where it is null.
///
/// # Safety
/// `at` is null or a text.
unsafe fn text<'a>(
    function: &str,
    what: &str,
    at: *const c_char,
) -> Result<Option<&'a str>, c_int> {
    if at.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller says.
    let text = unsafe { CStr::from_ptr(at) };
    text.to_str().map(Some).map_err(|_| {
        let shown = text.to_bytes().escape_ascii();
        fail(-libc::EINVAL, format_args!("{function}(): {what} is not UTF-8: {shown}"))
    })
}

/// One that must be there.
///
/// # Safety
/// `at` is null or a text.
unsafe fn needed<'a>(function: &str, what: &str, at: *const c_char) -> Result<&'a str, c_int> {
    // SAFETY: as the caller says.
    unsafe { text(function, what, at) }?.ok_or_else(|| null(function, what))
}

/// Texts up to a null pointer.
///
/// # Safety
/// `at` is null or such a list.
unsafe fn list<'a>(
    function: &str,
    what: &str,
    at: *const *const c_char,
) -> Result<Vec<&'a str>, c_int> {
    let mut all = Vec::new();
    if at.is_null() {
        return Ok(all);
    }
    // SAFETY: as the caller says: the next one is there, as this one was not the last.
    while let Some(one) = unsafe { text(function, what, at.add(all.len()).read()) }? {
        all.push(one);
    }
    Ok(all)
}

fn drain_of(function: &str, section: Section, drain: c_int) -> Result<Section, c_int> {
    let drain = match drain {
        0 => "with",
        1 => "after",
        drain => {
            let text =
                format_args!("{function}(): {drain} is none of the values FOREBAY_DRAIN_...");
            return Err(fail(-libc::EINVAL, text));
        }
    };
    Ok(section.text("drain", drain))
}

impl Section {
    /// Adds what the caller has given.
    fn texts(mut self, given: &[(&str, Option<&str>)]) -> Section {
        for (key, value) in given {
            if let Some(value) = value {
                self = self.text(key, value);
            }
        }
        self
    }

    fn paths(mut self, given: &[(&str, Option<&str>)]) -> Section {
        for (key, value) in given {
            if let Some(value) = value {
                self = self.path(key, Path::new(value));
            }
        }
        self
    }

    /// Adds times that are not 0.
    fn times(mut self, given: &[(&str, i64)]) -> Section {
        for (key, ms) in given.iter().filter(|(_, ms)| *ms != 0) {
            self = self.time(key, ms);
        }
        self
    }

    fn result_max(self, bytes: u64) -> Section {
        if bytes > 0 { self.plain("result_max", bytes) } else { self }
    }
}

/// # Safety
/// The texts of `given` are null or texts.
unsafe fn analysis_of(function: &str, given: &GivenAnalysis) -> Result<Analysis, c_int> {
    if given.command.is_null() {
        return Err(null(function, "command"));
    }
    // SAFETY: as the caller says.
    let (pattern, words, name, results) = unsafe {
        (
            needed(function, "match", given.pattern)?,
            list(function, "command", given.command)?,
            text(function, "name", given.name)?,
            text(function, "results", given.results)?,
        )
    };
    let on = match given.on {
        0 => "close",
        1 => "step",
        on => {
            let text = format_args!("{function}(): {on} is none of the values FOREBAY_ON_...");
            return Err(fail(-libc::EINVAL, text));
        }
    };
    let mut analysis = Analysis::new(pattern, words);
    let said = analysis.said.text("on", on).texts(&[("name", name)]);
    let said = said.paths(&[("results", results)]).times(&[("timeout", given.timeout_ms)]);
    let said = said.result_max(given.result_max).plain("may_drop", given.may_drop != 0);
    analysis.said = drain_of(function, said, given.drain)?;
    Ok(analysis)
}

/// # Safety
/// The texts of `given` are null or texts.
unsafe fn operation_of(function: &str, given: &GivenOperation) -> Result<Operation, c_int> {
    // SAFETY: as the caller says.
    let (pattern, operation, options) = unsafe {
        (
            needed(function, "match", given.pattern)?,
            needed(function, "operation", given.operation)?,
            list(function, "options", given.options)?,
        )
    };
    // SAFETY: as the caller says.
    let (name, results, suffix, scratch) = unsafe {
        (
            text(function, "name", given.name)?,
            text(function, "results", given.results)?,
            text(function, "suffix", given.suffix)?,
            text(function, "scratch", given.scratch)?,
        )
    };
    let Operation(mut said) = Operation::new(pattern, operation);
    for option in options {
        let Some((key, value)) = option.split_once('=') else {
            let text =
                format_args!("{function}(): option \"{option}\" has no value; write NAME=VALUE");
            return Err(fail(-libc::EINVAL, text));
        };
        said = said.text(key, value);
    }
    said = said.texts(&[("name", name), ("suffix", suffix)]);
    said = said.paths(&[("results", results), ("scratch", scratch)]);
    said = said.times(&[("timeout", given.timeout_ms), ("patience", given.patience_ms)]);
    said = said.result_max(given.result_max).plain("replace", given.replace != 0);
    // What is replaced has no result that anything waits for.
    if given.drain != 0 || given.replace == 0 {
        said = drain_of(function, said, given.drain)?;
    }
    Ok(Operation(said))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_analyse(session: *mut c_void, analysis: *const c_void) -> c_int {
    const FUNCTION: &str = "forebay_analyse";
    let asked = handles::session(session).and_then(|_session| {
        // SAFETY: zeros are a value of the struct; the caller's begins with its size, and has
        // texts.
        unsafe {
            let usual = core::mem::zeroed::<GivenAnalysis>();
            let given = given(FUNCTION, "FOREBAY_ANALYSIS", analysis, usual)?;
            analysis_of(FUNCTION, &given)?.ask()
        }
    });
    asked.err().unwrap_or(0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_operate(session: *mut c_void, operation: *const c_void) -> c_int {
    const FUNCTION: &str = "forebay_operate";
    let asked = handles::session(session).and_then(|_session| {
        // SAFETY: as above.
        unsafe {
            let usual = core::mem::zeroed::<GivenOperation>();
            let given = given(FUNCTION, "FOREBAY_OPERATION", operation, usual)?;
            operation_of(FUNCTION, &given)?.ask()
        }
    });
    asked.err().unwrap_or(0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_action_remove(session: *mut c_void, name: *const c_char) -> c_int {
    let done = handles::session(session).and_then(|_session| {
        // SAFETY: the caller's text.
        removed(unsafe { needed("forebay_action_remove", "name", name) }?)
    });
    done.err().unwrap_or(0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_actions(
    session: *mut c_void,
    names: *mut [c_char; NAME],
    room: c_int,
) -> c_int {
    const FUNCTION: &str = "forebay_actions";
    let listed = handles::session(session).and_then(|_session| {
        let Ok(room) = usize::try_from(room) else {
            return Err(fail(-libc::EINVAL, format_args!("{FUNCTION}(): room for {room} names")));
        };
        if names.is_null() && room > 0 {
            return Err(null(FUNCTION, "names"));
        }
        let found = all_names()?;
        for (at, name) in found.iter().take(room).enumerate() {
            // SAFETY: within the caller's array.
            unsafe { names.add(at).write(cut_off(name.as_bytes())) };
        }
        Ok(found.len() as c_int)
    });
    listed.unwrap_or_else(|code| code)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_action(
    session: *mut c_void,
    name: *const c_char,
    info: *mut c_void,
) -> c_int {
    const FUNCTION: &str = "forebay_action";
    let _session = match handles::session(session) {
        Ok(session) => session,
        Err(code) => return code,
    };
    let make = || {
        // SAFETY: the caller's text.
        let name = unsafe { needed(FUNCTION, "name", name) }?;
        let found = shown(FUNCTION, name)?;
        Ok(ActionInfo {
            size: 0,
            name: cut_off(name.as_bytes()),
            pattern: cut_off(found.pattern.as_bytes()),
            kind: found.is_operation.into(),
            is_configured: found.is_configured.into(),
            waiting: found.waiting,
            running: found.running,
            done: found.done,
            failed: found.failed,
            failure: cut_off(found.failure.as_bytes()),
        })
    };
    // SAFETY: the caller's struct.
    unsafe { fill(FUNCTION, info.cast::<ActionInfo>(), make) }
}
