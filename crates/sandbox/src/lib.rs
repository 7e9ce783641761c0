//! Where programs that users supply run: WebAssembly in an interpreter, without files, clock,
//! network or threads, each call within a limit of memory and instructions.
//!
//! A kind of program is a file of this crate: what it exports, what it may call, and what its
//! answers may be. There are two: what predicts what will be read ([`Predictor`]), and what makes
//! other bytes of a file's ([`Function`]). Nothing that a program does reaches its caller but as an
//! answer that was checked, or as a [`Fault`] or [`Stop`].
//!
//! The interpreter is the cargo feature `wasm`. Without it [`Program::of`] and [`Function::of`]
//! refuse every program, and say so.

#[cfg(not(feature = "wasm"))]
#[path = "absent.rs"]
mod engine;
mod fault;
#[cfg(feature = "wasm")]
mod function;
#[cfg(feature = "wasm")]
mod wasm;

#[cfg(not(feature = "wasm"))]
pub use engine::{Function, Predictor, Program};
pub use fault::{Fault, FaultKind, Stop};
#[cfg(feature = "wasm")]
pub use function::Function;
#[cfg(feature = "wasm")]
pub use wasm::{Predictor, Program};

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

/// Bytes of a function's file at most: 1 MiB.
pub const FUNCTION_MODULE_BYTES_MAX: usize = 1 << 20;
/// Bytes of memory that a function has at most: 64 MiB.
pub const FUNCTION_MEMORY_MAX: usize = 64 << 20;
/// Instructions that a function has to begin with: a tenth of a second.
pub const FUNCTION_FUEL: u64 = 10_000_000;
/// Instructions that it has more for each byte that it reads.
pub const FUNCTION_FUEL_A_BYTE: u64 = 2000;
/// What a function exports: `()`.
pub const RUN: &str = "forebay_run";

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
