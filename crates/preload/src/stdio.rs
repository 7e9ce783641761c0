//! FILE streams. glibc's own stdio never calls the public `write`, so a stream on a managed file
//! is a cookie stream over our functions, with the real descriptor in its `_fileno`: all
//! of stdio (printf, scanf, getline, ungetc, fileno ...) then works on it as it is.
//!
//! stdin, stdout and stderr are made as cookie streams at the start, whatever their descriptors
//! are: a program that keeps their pointers has streams that follow every later dup2. glibc uses
//! them as its own for as long as their descriptors are not managed.

mod buffer;
mod bulk;
mod close;
mod cookie;
pub(crate) mod foreign;
mod glibc;
pub(crate) mod layout;
mod messages;
mod mode;
mod open;
mod position;
pub(crate) mod redirect;
mod reopen;
pub(crate) mod standard;
mod stream;
mod wide;
