//! Predictors in the interpreter.

use crate::{DEPTH_MAX, EXPECT, EXPECTED_MAX, FUEL_MAX, Fault, FaultKind, MEMORY_MAX};
use crate::{MODULE_BYTES_MAX, READ, Read};
use std::fmt;
use wasmi::{
    Caller, CompilationMode, Config, EnforcedLimits, Engine, Error, ExternType, FuncType, Linker,
    Module, Store, StoreLimits, StoreLimitsBuilder, TrapCode, TypedFunc, ValType,
};

/// Entries of all tables of an instance: pointers to functions.
const TABLE_ENTRIES_MAX: usize = 4096;
/// Bytes of an instance's stack of values.
const STACK_BYTES: usize = 256 << 10;

/// A predictor's program: checked, translated, and ready for any number of files.
#[derive(Clone)]
pub struct Program {
    module: Module,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Program")
    }
}

fn engine() -> Engine {
    engine_with(STACK_BYTES)
}

/// An interpreter whose instances have so many bytes of a stack of values.
pub(crate) fn engine_with(stack: usize) -> Engine {
    let mut config = Config::default();
    // All is translated when it is loaded, so that a call costs what its instructions do.
    config
        .consume_fuel(true)
        .wasm_memory64(false)
        .ignore_custom_sections(true)
        .compilation_mode(CompilationMode::Eager)
        .enforced_limits(EnforcedLimits::strict())
        .set_min_stack_height(1 << 10)
        .set_max_stack_height(stack)
        .set_max_recursion_depth(DEPTH_MAX)
        .set_max_cached_stacks(1);
    Engine::new(&config)
}

/// A function's type, for people.
pub(crate) fn shown(function: &FuncType) -> String {
    let types = |types: &[ValType]| {
        let name = |of: &ValType| format!("{of:?}").to_lowercase();
        types.iter().map(name).collect::<Vec<_>>().join(", ")
    };
    match function.results() {
        [] => format!("({})", types(function.params())),
        results => format!("({}) -> {}", types(function.params()), types(results)),
    }
}

fn read_type() -> FuncType {
    FuncType::new([ValType::I32, ValType::I64, ValType::I64, ValType::I32], [])
}

fn expect_type() -> FuncType {
    FuncType::new([ValType::I64, ValType::I64], [])
}

impl Program {
    /// Whether this build has the interpreter.
    pub const IS_BUILT: bool = true;

    /// Checks and translates a WebAssembly module, and begins it once to see that it can be.
    ///
    /// # Errors
    /// Why it is no predictor, and what to do about it.
    pub fn of(bytes: &[u8]) -> Result<Program, String> {
        if bytes.is_empty() {
            return Err("is empty; compile it again".to_owned());
        }
        if bytes.len() > MODULE_BYTES_MAX {
            return Err(format!(
                "is larger than {} KiB; compile it without debugging symbols (-Oz -s)",
                MODULE_BYTES_MAX >> 10
            ));
        }
        if !bytes.starts_with(b"\0asm") {
            let remedy = "compile it for wasm32, or assemble its text with wat2wasm";
            return Err(format!("is no WebAssembly module; {remedy}"));
        }
        let module = Module::new(&engine(), bytes).map_err(|error| {
            format!("is no WebAssembly module that can be used: {error}; compile it again")
        })?;
        let program = Program { module };
        program.check_imports()?;
        program.check_exports()?;
        match program.begin() {
            Ok(_) => Ok(program),
            Err(Fault { detail, .. }) => {
                let most = MEMORY_MAX >> 20;
                Err(format!("cannot be begun: {detail}; it may have {most} MiB of memory"))
            }
        }
    }

    fn check_imports(&self) -> Result<(), String> {
        for import in self.module.imports() {
            let name = (import.module(), import.name());
            let is_expect = name == EXPECT
                && matches!(import.ty(), ExternType::Func(found) if *found == expect_type());
            if !is_expect {
                return Err(format!(
                    "imports {}.{}, which there is not; all that a predictor may call is {}.{}{}",
                    name.0,
                    name.1,
                    EXPECT.0,
                    EXPECT.1,
                    shown(&expect_type())
                ));
            }
        }
        Ok(())
    }

    fn check_exports(&self) -> Result<(), String> {
        let wanted = shown(&read_type());
        match self.module.get_export(READ) {
            Some(ExternType::Func(found)) if found == read_type() => Ok(()),
            Some(ExternType::Func(found)) => Err(format!(
                "exports {READ}{}, and not {READ}{wanted}; see forebay/predictor.h",
                shown(&found)
            )),
            _ => Err(format!("does not export {READ}{wanted}; see forebay/predictor.h")),
        }
    }

    /// Begins it for a file, with memory of its own.
    ///
    /// # Errors
    /// Its memory cannot be had.
    pub fn begin(&self) -> Result<Predictor, Fault> {
        let failed = |error: Error| Fault::new(FaultKind::NotLoaded, error.to_string());
        let limits = StoreLimitsBuilder::new()
            .memory_size(MEMORY_MAX)
            .table_elements(TABLE_ENTRIES_MAX)
            .instances(1)
            .tables(4)
            .memories(1)
            .build();
        let engine = self.module.engine();
        let mut store = Store::new(engine, Host { limits, ..Host::default() });
        store.limiter(|host| &mut host.limits);
        store.set_fuel(FUEL_MAX).map_err(failed)?;
        let mut linker = Linker::new(engine);
        let linked = linker.func_wrap(EXPECT.0, EXPECT.1, Host::expect);
        linked.map_err(|error| Fault::new(FaultKind::NotLoaded, error.to_string()))?;
        let instance = linker.instantiate_and_start(&mut store, &self.module).map_err(failed)?;
        let on_read = instance.get_typed_func(&store, READ).map_err(failed)?;
        Ok(Predictor { store, on_read })
    }
}

/// What a program finds around it.
#[derive(Default)]
struct Host {
    limits: StoreLimits,
    /// Blocks of the file.
    blocks: u64,
    /// What the call has expected.
    expected: Vec<u64>,
    /// What it expected that cannot be.
    nonsense: Option<String>,
}

impl Host {
    fn expect(mut caller: Caller<'_, Host>, block: u64, count: u64) -> Result<(), Error> {
        let host = caller.data_mut();
        let left = EXPECTED_MAX - host.expected.len() as u64;
        let nonsense = if count > left {
            format!(
                "{count} blocks from {block} on, with which a call has more than {EXPECTED_MAX}"
            )
        } else if block >= host.blocks || count > host.blocks - block {
            format!("{count} blocks from {block} on, of a file of {}", host.blocks)
        } else {
            host.expected.extend(block..block + count);
            return Ok(());
        };
        host.nonsense = Some(nonsense);
        Err(Error::new("nonsense"))
    }
}

/// A predictor of one file.
///
/// One thread at a time calls it. After a fault it is not to be called again.
pub struct Predictor {
    store: Store<Host>,
    on_read: TypedFunc<(u32, u64, u64, u32), ()>,
}

impl fmt::Debug for Predictor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Predictor")
    }
}

impl Predictor {
    /// Tells it of a read; returns the blocks that it expects after that, in the order in which it
    /// expects them, all of them within the file.
    ///
    /// # Errors
    /// What it did instead.
    pub fn on_read(&mut self, read: Read) -> Result<Vec<u64>, Fault> {
        let host = self.store.data_mut();
        (host.blocks, host.nonsense) = (read.blocks, None);
        host.expected.clear();
        let fuelled = self.store.set_fuel(FUEL_MAX);
        let arguments = (read.reader, read.block, read.blocks, read.hit.into());
        let done = fuelled.and_then(|()| self.on_read.call(&mut self.store, arguments));
        let host = self.store.data_mut();
        match done {
            Ok(()) => Ok(std::mem::take(&mut host.expected)),
            Err(error) => Err(match (host.nonsense.take(), error.as_trap_code()) {
                (Some(what), _) => Fault::new(FaultKind::Nonsense, what),
                (None, Some(TrapCode::OutOfFuel)) => Fault::new(FaultKind::TooLong, ""),
                (None, Some(TrapCode::StackOverflow)) => Fault::new(FaultKind::TooDeep, ""),
                (None, _) => Fault::new(FaultKind::Trapped, error.to_string()),
            }),
        }
    }
}
