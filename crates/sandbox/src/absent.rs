//! A build without the interpreter: no program is taken.

use crate::{Fault, Read, Stop};
use std::convert::Infallible;
use std::io;

/// A program that was checked: of this build there is none.
#[derive(Clone, Debug)]
pub struct Program(Infallible);

/// A predictor: of this build there is none.
#[derive(Debug)]
pub struct Predictor(Infallible);

impl Program {
    /// Whether this build has the interpreter.
    pub const IS_BUILT: bool = false;

    /// Refuses every program.
    ///
    /// # Errors
    /// What this build lacks.
    pub fn of(_bytes: &[u8]) -> Result<Program, String> {
        Err("this build has no sandbox for it; build forebay with the cargo feature `wasm`, or \
             remove it"
            .to_owned())
    }

    /// Never called.
    ///
    /// # Errors
    /// None.
    pub fn begin(&self) -> Result<Predictor, Fault> {
        match self.0 {}
    }
}

impl Predictor {
    /// Never called.
    ///
    /// # Errors
    /// None.
    pub fn on_read(&mut self, _read: Read) -> Result<Vec<u64>, Fault> {
        match self.0 {}
    }
}

/// A function: of this build there is none.
#[derive(Clone, Debug)]
pub struct Function(Infallible);

impl Function {
    /// Refuses every program.
    ///
    /// # Errors
    /// What this build lacks.
    pub fn of(bytes: &[u8]) -> Result<Function, String> {
        Program::of(bytes).map(|Program(never)| Function(never))
    }

    /// Never called.
    ///
    /// # Errors
    /// None.
    pub fn run(
        &self,
        _input: &mut dyn io::Read,
        _output: &mut dyn io::Write,
        _output_max: u64,
    ) -> Result<(), Stop> {
        match self.0 {}
    }
}
