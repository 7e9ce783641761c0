//! Operations on the bytes of a file while they are in a buffer on their way to the store (Hermes,
//! Kougkas et al., HPDC 2018, section 3.1.1: active buffering).
//!
//! Nothing here knows of a pool or a manager: streams come in, streams go out. [`Operation`] has
//! all of them, by name and options; each is a file of its own. [`encoded`] has the forms from
//! which the original comes back.
//!
//! ```
//! use forebay_active::{Context, Operation, Options};
//! use std::io::Cursor;
//!
//! let options = Options::from([("record".into(), "2".into()), ("key".into(), "u8@1".into())]);
//! let sort = Operation::of("sort", &options).unwrap();
//! let mut sorted = Cursor::new(Vec::new());
//! sort.run(&mut Cursor::new(b"a3b1c2"), &mut sorted, &Context::default()).unwrap();
//! assert_eq!(sorted.into_inner(), b"b1c2a3");
//! ```

pub mod checksum;
pub mod encoded;
mod error;
pub mod filter;
pub mod function;
pub mod operation;
pub mod records;
pub mod sort;
mod source;
pub mod transpose;

pub use error::{Error, Result};
pub use operation::{About, Done, Operation, Options};
pub use source::{Seeking, Source};

use crate::error::doing;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// What an operation reads.
pub trait Input: Read + Seek + Send {}
impl<T: Read + Seek + Send> Input for T {}

/// What an operation writes.
pub trait Output: Write + Seek {}
impl<T: Write + Seek> Output for T {}

/// Bytes of memory that an operation has where nothing else is said.
pub const MEMORY: u64 = 256 << 20;

/// What an operation may use besides its streams.
#[derive(Clone, Debug)]
pub struct Context {
    /// Bytes of memory, for the operations that have use for more or less of it.
    pub memory: u64,
    /// Where scratch files are made, without a name: sorting wants some.
    pub scratch: PathBuf,
    /// The file's name, for a manifest.
    pub name: Vec<u8>,
}

impl Default for Context {
    fn default() -> Context {
        Context { memory: MEMORY, scratch: std::env::temp_dir(), name: b"-".to_vec() }
    }
}

impl Context {
    /// A file that is gone with its descriptor.
    fn scratch_file(&self) -> Result<File> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!(".forebay-scratch.{}.{number}", std::process::id());
        let path = self.scratch.join(name);
        let failed = doing("make a scratch file");
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).open(&path).map_err(&failed)?;
        fs::remove_file(&path).map_err(&failed)?;
        Ok(file)
    }
}
