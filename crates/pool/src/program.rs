//! Which file the name of a program means: what one process says, and the node manager starts.
//!
//! ```
//! use forebay_pool::program;
//! use std::path::Path;
//!
//! assert_eq!(program::find("bin/sh", Path::new("/"))?, "/bin/sh");
//! assert!(program::find("no-such-program", Path::new("/")).is_err());
//! # Ok::<(), String>(())
//! ```

use std::path::{Path, PathBuf};

/// The absolute path of a program: from `folder` where `name` has a `/` in it, else where the
/// variable PATH says.
///
/// # Errors
/// That there is none that can be executed, and what to do.
pub fn find(name: &str, folder: &Path) -> Result<String, String> {
    let can_run = |path: &Path| {
        path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
    };
    let text = |path: PathBuf| {
        let path = path.into_os_string().into_string();
        path.map_err(|path| format!("{} is not UTF-8; rename it", path.display()))
    };
    if name.contains('/') {
        let path = std::path::absolute(folder.join(name)).map_err(|error| error.to_string())?;
        return match can_run(&path) {
            true => text(path),
            false if path.exists() => {
                Err(format!("{} cannot be executed; run chmod +x on it", path.display()))
            }
            false => Err(format!("{}: no such file; give an existing program", path.display())),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path);
    match folders.find_map(|folder| Some(folder.join(name)).filter(|path| can_run(path))) {
        Some(found) => text(std::path::absolute(found).map_err(|error| error.to_string())?),
        None => Err(format!("there is no program \"{name}\" in PATH; give its path")),
    }
}
