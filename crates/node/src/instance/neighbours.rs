//! Other users with pools on this node. What is in them only they can tell: their files are theirs
//! alone.

use crate::instance::discovery::{POOLS, own_uid};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Whether a file in [`POOLS`] has the name of a pool, of whichever version.
fn is_pool(name: &str) -> bool {
    name.starts_with("forebay-") && name.contains(".pool")
}

/// The users, other than this one, that have a pool on this node, in ascending order. One that is
/// empty, as while it is made, holds nothing.
///
/// # Errors
/// A message that names the directory of pools, when it cannot be listed.
pub fn users_with_pools() -> Result<Vec<u32>, String> {
    let explain = |error| format!("{POOLS}: {error}");
    let mut users = Vec::new();
    for entry in fs::read_dir(POOLS).map_err(explain)? {
        let entry = entry.map_err(explain)?;
        if !entry.file_name().to_str().is_some_and(is_pool) {
            continue;
        }
        // One that is gone meanwhile was drained.
        let Ok(found) = entry.metadata() else { continue };
        if found.is_file() && found.len() > 0 && found.uid() != own_uid() {
            users.push(found.uid());
        }
    }
    users.sort_unstable();
    users.dedup();
    Ok(users)
}
