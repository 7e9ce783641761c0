//! Functions in the interpreter: programs that make other bytes of a file's bytes.

use crate::wasm::{engine_with, shown};
use crate::{FUNCTION_FUEL, FUNCTION_FUEL_A_BYTE, FUNCTION_MEMORY_MAX, FUNCTION_MODULE_BYTES_MAX};
use crate::{RUN, Stop};
use std::fmt;
use std::io::{self, Read, Write};
use wasmi::{
    AsContext, Caller, Error, ExternType, FuncType, Linker, Memory, Module, Store, StoreLimits,
    StoreLimitsBuilder, TrapCode, ValType,
};

/// Entries of all tables of an instance: pointers to functions.
const TABLE_ENTRIES_MAX: usize = 64 << 10;
/// Bytes of an instance's stack of values.
const STACK_BYTES: usize = 1 << 20;
/// Bytes that are moved in or out in one call at most, and of what a function says of a failure.
const PART_MAX: u32 = 1 << 20;
const SAID_MAX: u32 = 400;

/// A function's program: checked and translated. Each run has an instance of its own.
#[derive(Clone)]
pub struct Function {
    module: Module,
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Function")
    }
}

/// The functions that it may import from `forebay`.
fn imports() -> [(&'static str, FuncType); 3] {
    let two = [ValType::I32, ValType::I32];
    [
        ("read", FuncType::new(two, [ValType::I32])),
        ("write", FuncType::new(two, [])),
        ("fail", FuncType::new(two, [])),
    ]
}

impl Function {
    /// Checks and translates a WebAssembly module.
    ///
    /// # Errors
    /// Why it is no function, and what to do about it.
    pub fn of(bytes: &[u8]) -> Result<Function, String> {
        if bytes.len() > FUNCTION_MODULE_BYTES_MAX {
            return Err(format!(
                "is larger than {} KiB; compile it without debugging symbols (-Oz -s)",
                FUNCTION_MODULE_BYTES_MAX >> 10
            ));
        }
        if !bytes.starts_with(b"\0asm") {
            let remedy = "compile it for wasm32, or assemble its text with wat2wasm";
            return Err(format!("is no WebAssembly module; {remedy}"));
        }
        let module = Module::new(&engine_with(STACK_BYTES), bytes).map_err(|error| {
            format!("is no WebAssembly module that can be used: {error}; compile it again")
        })?;
        let known = imports();
        for import in module.imports() {
            let is_known = import.module() == "forebay"
                && known.iter().any(|(name, of)| {
                    *name == import.name()
                        && matches!(import.ty(), ExternType::Func(found) if found == of)
                });
            if !is_known {
                let all = known.map(|(name, of)| format!("forebay.{name}{}", shown(&of)));
                return Err(format!(
                    "imports {}.{}, which there is not; all that a function may call is {}",
                    import.module(),
                    import.name(),
                    all.join(", ")
                ));
            }
        }
        match module.get_export(RUN) {
            Some(ExternType::Func(found)) if found == FuncType::new([], []) => {}
            _ => return Err(format!("does not export {RUN}(); see forebay/function.h")),
        }
        match module.get_export("memory") {
            Some(ExternType::Memory(_)) => Ok(Function { module }),
            _ => Err("does not export its memory; link it without --import-memory".to_owned()),
        }
    }

    /// Runs it once over all of `input`; what it writes goes to `output`, up to `output_max` bytes.
    ///
    /// # Errors
    /// What it did, or what failed of input and output. `output` has some of the result then.
    pub fn run(
        &self,
        input: &mut dyn Read,
        output: &mut dyn Write,
        output_max: u64,
    ) -> Result<(), Stop> {
        let limits = StoreLimitsBuilder::new()
            .memory_size(FUNCTION_MEMORY_MAX)
            .table_elements(TABLE_ENTRIES_MAX)
            .instances(1)
            .tables(4)
            .memories(1)
            .build();
        let host = Host { limits, input, output, left: output_max, stop: None, part: Vec::new() };
        let mut store = Store::new(self.module.engine(), host);
        store.limiter(|host| &mut host.limits);
        let begun = |error: Error| Stop::Fault(format!("cannot be begun: {error}"));
        store.set_fuel(FUNCTION_FUEL).map_err(begun)?;
        let mut linker = <Linker<Host<'_>>>::new(self.module.engine());
        let linked = linker
            .func_wrap("forebay", "read", read)
            .and_then(|linker| linker.func_wrap("forebay", "write", write))
            .and_then(|linker| linker.func_wrap("forebay", "fail", fail));
        linked.map_err(|error| Stop::Fault(format!("cannot be begun: {error}")))?;
        let done = linker.instantiate_and_start(&mut store, &self.module).and_then(|instance| {
            let run = instance.get_typed_func::<(), ()>(&store, RUN)?;
            run.call(&mut store, ())
        });
        let Err(error) = done else { return Ok(()) };
        if let Some(stop) = store.data_mut().stop.take() {
            return Err(stop);
        }
        Err(Stop::Fault(match error.as_trap_code() {
            Some(TrapCode::OutOfFuel) => format!(
                "ran for more than {FUNCTION_FUEL_A_BYTE} instructions for each byte that it read"
            ),
            Some(TrapCode::StackOverflow) => "called its functions too deep".to_owned(),
            _ => format!("trapped: {error}"),
        }))
    }
}

/// What a function finds around it.
struct Host<'a> {
    limits: StoreLimits,
    input: &'a mut dyn Read,
    output: &'a mut dyn Write,
    /// Bytes that it may still write.
    left: u64,
    /// Why it was stopped.
    stop: Option<Stop>,
    part: Vec<u8>,
}

/// The memory of the instance that calls.
fn memory(caller: &Caller<'_, Host<'_>>) -> Option<Memory> {
    caller.get_export("memory").and_then(wasmi::Extern::into_memory)
}

/// Ends the run, for this reason.
fn stop<T>(caller: &mut Caller<'_, Host<'_>>, why: Stop) -> Result<T, Error> {
    caller.data_mut().stop = Some(why);
    Err(Error::new("stopped"))
}

fn outside<T>(caller: &mut Caller<'_, Host<'_>>) -> Result<T, Error> {
    stop(caller, Stop::Fault("named bytes outside of its memory".to_owned()))
}

/// The next bytes of the file: how many there are, 0 at its end.
fn read(mut caller: Caller<'_, Host<'_>>, at: u32, length: u32) -> Result<u32, Error> {
    let length = length.min(PART_MAX) as usize;
    let host = caller.data_mut();
    let mut part = std::mem::take(&mut host.part);
    part.resize(length, 0);
    let mut count = 0;
    while count < length {
        match host.input.read(&mut part[count..]) {
            Ok(0) => break,
            Ok(read) => count += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return stop(&mut caller, Stop::Read(error)),
        }
    }
    let stored = memory(&caller)
        .is_some_and(|memory| memory.write(&mut caller, at as usize, &part[..count]).is_ok());
    caller.data_mut().part = part;
    if !stored {
        return outside(&mut caller);
    }
    let fuel = caller.get_fuel()?.saturating_add(FUNCTION_FUEL_A_BYTE * count as u64);
    caller.set_fuel(fuel)?;
    Ok(count as u32)
}

/// Takes bytes out of the memory.
fn taken(caller: &mut Caller<'_, Host<'_>>, at: u32, length: u32) -> Option<Vec<u8>> {
    let mut part = std::mem::take(&mut caller.data_mut().part);
    part.resize(length as usize, 0);
    memory(caller)?.read(caller.as_context(), at as usize, &mut part).ok()?;
    Some(part)
}

/// The next bytes of the result.
fn write(mut caller: Caller<'_, Host<'_>>, at: u32, length: u32) -> Result<(), Error> {
    let (mut at, mut length) = (at, length);
    while length > 0 {
        let count = length.min(PART_MAX);
        let Some(part) = taken(&mut caller, at, count) else { return outside(&mut caller) };
        let host = caller.data_mut();
        if u64::from(count) > host.left {
            let why = "wrote more than it may; allow it more, with output_max";
            return stop(&mut caller, Stop::Fault(why.to_owned()));
        }
        if let Err(error) = host.output.write_all(&part) {
            return stop(&mut caller, Stop::Write(error));
        }
        host.left -= u64::from(count);
        host.part = part;
        (at, length) = (at.wrapping_add(count), length - count);
    }
    Ok(())
}

/// It cannot go on, for the reason that it gives.
fn fail(mut caller: Caller<'_, Host<'_>>, at: u32, length: u32) -> Result<(), Error> {
    let Some(said) = taken(&mut caller, at, length.min(SAID_MAX)) else {
        return outside(&mut caller);
    };
    let said = String::from_utf8_lossy(&said).replace(|c: char| c.is_control(), " ");
    stop(&mut caller, Stop::Fault(format!("says: {said}")))
}
