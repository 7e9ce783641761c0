//! The folder that the demo works in, with its configurations and its program.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, process};

pub(super) const PROGRAM: &str = include_str!("../../demo/checkpoint.c");

/// The emulated store: the parallel file system as one of the paper's client nodes sees it.
///
/// Hermes (HPDC'18), Figure 7 measures each device with all 32 client nodes at once; a node's share
/// is 1/32 of that:
///
/// | device           |         write |            read | latency |
/// |------------------|---------------|-----------------|---------|
/// | NVMe             | 33103 -> 1034 | 38674 -> 1208   | 20 us   |
/// | 8 burst buffers  |  2762 -> 86   |  3326 -> 104    | 55-66 us|
/// | 16 PFS servers   |   735 -> 23   |   883 -> 27.6   | 4.16 ms |
///
/// in MB/s.
pub(super) const STORE: &str =
    "emulate = { bandwidth = { read = \"27.6MB/s\", write = \"23MB/s\" }, latency = \"4160us\" }";

/// The tiers between RAM and the store, emulated as [`STORE`] is.
pub(super) const LOWER_TIERS: &str = r#"
[[tier]]
name = "nvme"
kind = "file"
path = "nvme"
capacity = "128MiB"
emulate = { bandwidth = { read = "1208MB/s", write = "1034MB/s" }, latency = "20us" }
[[tier]]
name = "bb"
kind = "file"
path = "bb"
capacity = "256MiB"
emulate = { bandwidth = { read = "104MB/s", write = "86MB/s" }, latency = "60us" }
"#;

pub(super) const RAM_TIER: &str =
    "[[tier]]\nname = \"ram\"\nkind = \"ram\"\ncapacity = \"64MiB\"\n";

/// Checkpoints of both runs, buffers and some room for the file systems' own needs.
pub(super) const FREE_SPACE_MIN: u64 = 1 << 30;

/// The temporary directory of the demo, removed when dropped.
pub(super) struct Site(PathBuf);

impl Site {
    /// An empty one.
    pub(super) fn make() -> Result<Self, String> {
        let parent = std::path::absolute(env::temp_dir()).map_err(|e| e.to_string())?;
        let advice = |problem: String| {
            format!("{}: {problem}; set TMPDIR to a directory with more room", parent.display())
        };
        let space = rustix::fs::statvfs(&parent).map_err(|e| advice(e.to_string()))?;
        let free = space.f_bavail * space.f_frsize;
        if free < FREE_SPACE_MIN {
            return Err(advice(format!("only {} MiB free, the demo needs 1024", free >> 20)));
        }
        let site = Self(parent.join(format!("forebay-demo-{}", process::id())));
        let created = DirBuilder::new().mode(0o700).create(&site.0);
        if let Err(error) = created {
            let message = format!("cannot create {}: {error}", site.0.display());
            std::mem::forget(site); // It is not ours to remove.
            return Err(message);
        }
        Ok(site)
    }

    /// One for two runs of the demo's program.
    pub(super) fn build() -> Result<Self, String> {
        let site = Self::make()?;
        for directory in ["pfs-direct", "pfs-forebay", "nvme", "bb"] {
            site.folder(directory)?;
        }
        let direct = format!("[[backing]]\npath = \"pfs-direct\"\nmode = \"bypass\"\n{STORE}\n");
        site.write("direct.toml", &(direct + RAM_TIER))?;
        let buffered =
            format!("[flush]\nperiod = \"200ms\"\n[[backing]]\npath = \"pfs-forebay\"\n{STORE}\n");
        site.write("buffered.toml", &(buffered + RAM_TIER + LOWER_TIERS))?;
        site.write("checkpoint.c", PROGRAM)?;
        Ok(site)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes a folder that no other user may enter.
    pub(super) fn folder(&self, name: &str) -> Result<PathBuf, String> {
        let folder = self.path(name);
        let made = DirBuilder::new().mode(0o700).create(&folder);
        made.map(|()| folder.clone()).map_err(|e| failed(&folder, &e))
    }

    pub(super) fn write(&self, name: &str, content: &str) -> Result<(), String> {
        let file = self.path(name);
        fs::write(&file, content).map_err(|e| failed(&file, &e))
    }

    /// Leaves everything for a closer look.
    pub(super) fn keep(self) {
        eprintln!("forebay: the files of the demo are kept in {}", self.0.display());
        std::mem::forget(self);
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("forebay: cannot remove {}: {error}", self.0.display());
        }
    }
}

/// Compiles the program with `$CC`, which may carry arguments, or `cc`.
pub(super) fn compile(site: &Site) -> Result<PathBuf, String> {
    let compiler = env::var("CC").ok().filter(|cc| !cc.trim().is_empty());
    let compiler = compiler.as_deref().unwrap_or("cc");
    let mut words = compiler.split_whitespace();
    let program = site.path("checkpoint");
    let output = Command::new(words.next().unwrap_or("cc"))
        .args(words)
        .args(["-O2", "-o"])
        .args([&program, &site.path("checkpoint.c")])
        .output()
        .map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => format!(
                "no C compiler: `{compiler}` is not installed; install one (package gcc or clang), \
                 or name yours in CC"
            ),
            _ => format!("cannot run the C compiler `{compiler}`: {e}; name another in CC"),
        })?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{compiler}` cannot compile the program:\n{}", message.trim_end()));
    }
    Ok(program)
}

pub(super) fn failed(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}
