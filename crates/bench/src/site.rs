//! The temporary directory of a figure: devices, configurations, programs, and what they should
//! write.

use crate::{Options, hierarchy::Hierarchy};
use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};

const KERNEL: &str = include_str!("../kernels/kernel.h");

/// Directories that stand for devices.
const DEVICES: [&str; 3] = ["pfs", "bb", "nvme"];

/// What all tiers and files of a figure take at most.
const FREE_SPACE_MIN: u64 = 512 << 20;

/// How programs of a language are compiled.
struct Language<'a> {
    /// The variable of the environment that names the compiler, and what it is without that.
    variable: &'static str,
    usual: &'a str,
    /// Of names of files.
    ending: &'static str,
}

/// The directory, removed when dropped.
pub struct Site {
    root: PathBuf,
    kept: std::cell::Cell<bool>,
}

impl Site {
    /// Makes one where the options say.
    pub fn new(options: &Options) -> Result<Self, String> {
        let parent = options.folder.clone().unwrap_or_else(usual_folder);
        Self::below(&parent, FREE_SPACE_MIN)
    }

    /// Makes one below a directory that has so many bytes free.
    pub fn below(parent: &Path, needed: u64) -> Result<Self, String> {
        let parent = std::path::absolute(parent).map_err(|e| failed(parent, &e))?;
        let space = rustix::fs::statvfs(&parent).map_err(|e| failed(&parent, &e.into()))?;
        let free = space.f_bavail * space.f_frsize;
        if free < needed {
            return Err(format!(
                "{}: only {} MiB free, {} are needed; name another directory with --dir",
                parent.display(),
                free >> 20,
                needed >> 20
            ));
        }
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let root = parent.join(format!("forebay-bench-{}-{number}", process::id()));
        DirBuilder::new().mode(0o700).create(&root).map_err(|e| failed(&root, &e))?;
        Ok(Self { root, kept: false.into() })
    }

    /// Leaves everything for a closer look; says where.
    pub fn keep(&self) -> &Path {
        self.kept.set(true);
        &self.root
    }

    /// A new directory in it.
    pub fn folder(&self, name: &str) -> Result<PathBuf, String> {
        let folder = self.path(name);
        DirBuilder::new().mode(0o700).create(&folder).map_err(|e| failed(&folder, &e))?;
        Ok(folder)
    }

    /// Something in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Empties the devices.
    pub fn clear(&self) -> Result<(), String> {
        for device in DEVICES {
            let device = self.path(device);
            match fs::remove_dir_all(&device) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed(&device, &error));
                }
                _ => fs::create_dir(&device).map_err(|e| failed(&device, &e))?,
            }
        }
        Ok(())
    }

    /// Writes a configuration file; returns its path.
    pub fn configure(
        &self,
        config: fn(&Hierarchy, bool) -> String,
        hierarchy: &Hierarchy,
        scratch: bool,
    ) -> Result<PathBuf, String> {
        let file = self.path("forebay.toml");
        fs::write(&file, config(hierarchy, scratch)).map_err(|e| failed(&file, &e))?;
        Ok(file)
    }

    /// Compiles a kernel with `$CC`, which may carry arguments, or `cc`.
    pub fn compile(&self, name: &str, source: &str) -> Result<PathBuf, String> {
        self.compile_with(name, source, &[])
    }

    /// The same with further options of the compiler.
    pub fn compile_with(
        &self,
        name: &str,
        source: &str,
        options: &[&str],
    ) -> Result<PathBuf, String> {
        let file = self.path("kernel.h");
        fs::write(&file, KERNEL).map_err(|e| failed(&file, &e))?;
        let options = ["-O2", "-pthread"].iter().chain(options);
        self.build(&Language { variable: "CC", usual: "cc", ending: "c" }, name, source, options)
    }

    /// The same of C++, with `$CXX` or `c++`.
    pub fn compile_cpp(
        &self,
        name: &str,
        source: &str,
        options: &[&str],
    ) -> Result<PathBuf, String> {
        let language = Language { variable: "CXX", usual: "c++", ending: "cc" };
        let options = ["-std=c++20", "-O3", "-pthread"].iter().chain(options);
        self.build(&language, name, source, options)
    }

    /// The same of C with `$MPICC`, or this compiler.
    pub fn compile_mpi(
        &self,
        compiler: &str,
        name: &str,
        source: &str,
        options: &[&str],
    ) -> Result<PathBuf, String> {
        let file = self.path("kernel.h");
        fs::write(&file, KERNEL).map_err(|e| failed(&file, &e))?;
        let language = Language { variable: "MPICC", usual: compiler, ending: "c" };
        self.build(&language, name, source, ["-O2", "-pthread"].iter().chain(options))
    }

    fn build<'a>(
        &self,
        language: &Language<'_>,
        name: &str,
        source: &str,
        options: impl Iterator<Item = &'a &'a str>,
    ) -> Result<PathBuf, String> {
        let Language { variable, usual, ending } = language;
        let (program, source_file) = (self.path(name), self.path(&format!("{name}.{ending}")));
        fs::write(&source_file, source).map_err(|e| failed(&source_file, &e))?;
        let compiler = env::var(variable).ok().filter(|named| !named.trim().is_empty());
        let compiler = compiler.as_deref().unwrap_or(usual);
        let mut words = compiler.split_whitespace();
        let output = Command::new(words.next().unwrap_or(usual))
            .args(words)
            .args(["-o".as_ref(), program.as_os_str(), source_file.as_os_str()])
            .args(options)
            .output()
            .map_err(|e| {
                format!("cannot run the compiler `{compiler}`: {e}; name another in {variable}")
            })?;
        match output.status.success() {
            true => Ok(program),
            false => Err(format!(
                "`{compiler}` cannot compile {name}.{ending}:\n{}",
                String::from_utf8_lossy(&output.stderr).trim_end()
            )),
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if !self.kept.get() {
            // What cannot be removed is left to what cleans up temporary files.
            let _ = fs::remove_dir_all(&self.root);
        }
    }
}

/// Memory, if there is enough of it.
fn usual_folder() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let is_roomy =
        |space: &rustix::fs::StatVfs| space.f_bavail * space.f_frsize > 4 * FREE_SPACE_MIN;
    match rustix::fs::statvfs(&memory) {
        Ok(space) if is_roomy(&space) => memory,
        _ => env::temp_dir(),
    }
}

/// Says whether two directories have the same files, byte for byte; the error names the first that
/// differs.
pub fn compare(wanted: &Path, found: &Path) -> Result<(), String> {
    let (names, others) = (list(wanted)?, list(found)?);
    if let Some(name) = others.iter().find(|name| !names.contains(name)) {
        return Err(format!("{}: it was not written", found.join(name).display()));
    }
    for name in names {
        let file = found.join(&name);
        let bytes = fs::read(&file).map_err(|e| failed(&file, &e))?;
        let wanted = fs::read(wanted.join(&name)).map_err(|e| failed(&name, &e))?;
        if let Some(at) = { bytes.iter().zip(&wanted) }.position(|(found, wanted)| found != wanted)
        {
            return Err(format!("{}: byte {at} is wrong", file.display()));
        }
        if bytes.len() != wanted.len() {
            let (found, wanted) = (bytes.len(), wanted.len());
            return Err(format!("{}: {found} bytes instead of {wanted}", file.display()));
        }
    }
    Ok(())
}

/// Bytes of all files of a directory.
pub fn size(folder: &Path) -> Result<u64, String> {
    list(folder)?.iter().try_fold(0, |sum, name| {
        let file = folder.join(name);
        Ok(sum + fs::metadata(&file).map_err(|e| failed(&file, &e))?.len())
    })
}

fn list(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|e| failed(folder, &e))?;
    entries
        .map(|entry| entry.map(|entry| entry.file_name().into()).map_err(|e| failed(folder, &e)))
        .collect()
}

pub fn failed(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_named() {
        let root = env::temp_dir().join(format!("forebay-bench-compare-{}", process::id()));
        let (wanted, found) = (root.join("wanted"), root.join("found"));
        fs::create_dir_all(&wanted).unwrap();
        fs::create_dir(&found).unwrap();
        fs::write(wanted.join("a"), "abc").unwrap();
        let compared = |bytes: &str| {
            fs::write(found.join("a"), bytes).unwrap();
            compare(&wanted, &found).map_err(|e| e.rsplit('/').next().unwrap().to_owned())
        };
        assert_eq!(compared("abc"), Ok(()));
        assert_eq!(compared("abx"), Err("a: byte 2 is wrong".into()));
        assert_eq!(compared("ab"), Err("a: 2 bytes instead of 3".into()));
        assert_eq!(compared("abcd"), Err("a: 4 bytes instead of 3".into()));
        fs::write(found.join("b"), "").unwrap();
        assert_eq!(compared("abc"), Err("b: it was not written".into()));
        fs::remove_file(found.join("b")).unwrap();
        fs::remove_file(found.join("a")).unwrap();
        assert!(compare(&wanted, &found).unwrap_err().contains("No such file"));
        fs::remove_dir_all(&root).unwrap();
    }
}
