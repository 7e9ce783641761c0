//! The session of the process, which the preload library has; see docs/design/capi.md.

use forebay_client::services::{Found, Services};

static FOUND: Found = Found::new();

/// The preload library's table, if the process runs under Forebay now.
pub(crate) fn services() -> Option<&'static Services> {
    // SAFETY: a look-up by name, in all that was loaded with the program.
    FOUND.get(|name| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}
