//! What makes a command's processes use a pool: the environment in which it is started.

use super::runtime::Runtime;
use crate::config::Ways;
use forebay_client::{DeepBind, MpiIo, Needs, is_runtime, needs_of_command};
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name of the library that is preloaded.
pub const LIBRARY: &str = "libforebay_preload.so";

/// The preload library: beside this program, as cargo leaves it, or where it is installed.
///
/// # Errors
/// Where it was looked for, for people.
pub fn find_library() -> Result<PathBuf, String> {
    if let Some(named) = std::env::var_os("FOREBAY_PRELOAD").filter(|named| !named.is_empty()) {
        // The loader would go on without it, and nothing would be buffered.
        let named = PathBuf::from(named);
        return if named.is_file() {
            Ok(named)
        } else {
            Err(format!("FOREBAY_PRELOAD: {}: no such file; name {LIBRARY}", named.display()))
        };
    }
    let program = std::env::current_exe().map_err(|error| format!("finding myself: {error}"))?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = ["deps", ".", "..", "../lib/forebay", "../lib64/forebay", "../lib"];
    let candidates: Vec<_> = places.iter().map(|place| folder.join(place).join(LIBRARY)).collect();
    candidates.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        format!(
            "{LIBRARY} is not beside {} nor in ../lib/forebay: the command is installed alone, as `cargo install` does, \
             and buffers nothing. `scripts/install PREFIX` in Forebay's source installs it with its libraries; or name \
             the library in FOREBAY_PRELOAD",
            program.display()
        )
    })
}

/// The adapters that a command needs, and the runtime.
fn needs_of(command: &OsStr) -> Needs {
    let text = |text: OsString| CString::new(text.into_vec()).unwrap_or_default();
    let variable = |name| text(std::env::var_os(name).unwrap_or_default());
    let library_path = variable("LD_LIBRARY_PATH");
    needs_of_command(&text(command.to_owned()), &variable("PATH"), library_path.as_bytes())
}

/// The value of a variable that counts for more than the configuration, or that one's.
fn chosen<T>(
    variable: &str,
    choices: &str,
    named: impl Fn(&str) -> Option<T>,
    configured: T,
) -> Result<T, String> {
    let Some(given) = std::env::var_os(variable) else { return Ok(configured) };
    let found = given.to_str().and_then(named);
    found.ok_or_else(|| format!("{variable}={}: {choices}", Path::new(&given).display()))
}

impl Ways {
    /// These, but for what variables of this process say.
    ///
    /// # Errors
    /// A variable with a value that it cannot have, and which there are.
    pub fn or_chosen(self) -> Result<Ways, String> {
        Ok(Ways {
            adapters: chosen(Ways::ADAPTERS, Needs::CHOICES, Needs::admitted, self.adapters)?,
            mpiio: chosen(MpiIo::VARIABLE, MpiIo::CHOICES, MpiIo::named, self.mpiio)?,
            deepbind: chosen(
                DeepBind::VARIABLE,
                DeepBind::CHOICES,
                DeepBind::named,
                self.deepbind,
            )?,
        })
    }
}

/// Has the processes of a command use the pool of an instance, by the preload library at `library`
/// and those of the adapters, which lie beside it, that its program needs; as a part of the run of
/// this number, if it is one's.
pub fn join_pool(
    command: &mut Command,
    (library, ways): (&Path, &Ways),
    runtime: &Runtime,
    job: Option<u32>,
) {
    let needs = needs_of(command.get_program());
    let others = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let others = others.as_bytes().split(|&byte| byte == b':' || byte == b' ');
    let (first, others): (Vec<&[u8]>, Vec<_>) =
        others.filter(|name| !name.is_empty()).partition(|name| is_runtime(name));
    let adapters = needs.among(ways.adapters).adapters().map(|file| library.with_file_name(file));
    let adapters: Vec<_> = adapters.filter(|adapter| adapter.is_file()).collect();
    let runtimes: Vec<&[u8]> = needs.runtimes().map(str::as_bytes).collect();
    let all: Vec<&[u8]> = runtimes
        .into_iter()
        .chain(first)
        .chain([library.as_os_str().as_bytes()])
        .chain(adapters.iter().map(|adapter| adapter.as_os_str().as_bytes()))
        .chain(others)
        .collect();
    command
        .env_remove("FOREBAY_DISABLE")
        .env("LD_PRELOAD", OsStr::from_bytes(&all.join(&b':')))
        .envs(ways.said().map(|[_, variable, value]| (variable, value)))
        .env("FOREBAY_POOL", &runtime.pool)
        .env("FOREBAY_SOCKET", runtime.socket());
    match job {
        Some(number) => command.env("FOREBAY_JOB", number.to_string()),
        None => command.env_remove("FOREBAY_JOB"),
    };
}
