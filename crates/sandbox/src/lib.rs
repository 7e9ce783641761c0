//! Where programs that users supply run: WebAssembly in an interpreter, without files, clock,
//! network or threads, each call within a limit of memory and instructions.
//!
//! A kind of program is a file of this crate: what it exports, what it may call, and what its
//! answers may be. So far there is one, which predicts what will be read ([`Predictor`]). Nothing
//! that a program does reaches its caller but as an answer that was checked, or as a [`Fault`].
//!
//! The interpreter is the cargo feature `wasm`. Without it [`Program::of`] refuses every program,
//! and says so.

#[cfg(not(feature = "wasm"))]
#[path = "absent.rs"]
mod engine;
#[cfg(feature = "wasm")]
#[path = "wasm.rs"]
mod engine;
mod fault;

pub use engine::{Predictor, Program};
pub use fault::{Fault, FaultKind};

/// Bytes of a program's file at most: 64 KiB. Clang and rustc make 1 to 10 KiB of a predictor, and
/// the interpreter translates 64 KiB within milliseconds.
pub const MODULE_BYTES_MAX: usize = 64 << 10;
/// Bytes of memory that an instance has at most: 2 MiB, as rustc alone gives its stack 1 MiB.
pub const MEMORY_MAX: usize = 2 << 20;
/// Instructions of a call at most; to copy bytes within its memory costs more. Some milliseconds.
pub const FUEL_MAX: u64 = 100_000;
/// Functions within each other at most.
pub const DEPTH_MAX: usize = 256;
/// Blocks that a call of a predictor expects at most.
pub const EXPECTED_MAX: u64 = 1024;

/// The function that a predictor exports: `(reader: i32, block: i64, blocks: i64, hit: i32)`.
pub const READ: &str = "forebay_read";
/// The module and the function that a predictor may import: `(block: i64, count: i64)`.
pub const EXPECT: (&str, &str) = ("forebay", "expect");

/// A read that a predictor is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Which thread reads: threads of a file have the numbers 0, 1, 2 in the order in which they
    /// come to it.
    pub reader: u32,
    /// The block that is read.
    pub block: u64,
    /// Blocks that the file has.
    pub blocks: u64,
    /// Whether the block was in memory.
    pub hit: bool,
}
