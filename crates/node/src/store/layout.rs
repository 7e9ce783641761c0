//! The layout of a file of a Lustre store: over how many servers, in stripes of what length.

use rustix::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Lays out a file, of which its store has no byte yet, over `count` servers in stripes of so many
/// bytes, by `lfs`. The file stays the one that it is, also for processes that have it open.
///
/// # Errors
/// Why it stays as its directory has laid it out, for people.
pub(crate) fn lay_out(file: impl AsFd, stripe: u64, count: u32) -> Result<(), String> {
    let known = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let path: PathBuf = std::fs::read_link(known).map_err(|error| error.to_string())?;
    // A new layout of the same file, which has nothing to be copied: of one that is there,
    // `setstripe` changes none.
    let mut command = Command::new("lfs");
    command.args(["migrate", "-c", &count.to_string(), "-S", &stripe.to_string(), "--"]);
    command.arg(path).stdin(Stdio::null());
    let ran = command.output().map_err(|error| format!("lfs: {error}"))?;
    match ran.status.success() {
        true => Ok(()),
        false => Err(format!("lfs migrate: {}", String::from_utf8_lossy(&ran.stderr).trim())),
    }
}
