//! What good and evil functions come to in the sandbox.

#![cfg(feature = "wasm")]

use forebay_sandbox::{FUNCTION_FUEL, Function, Stop};
use std::io::{self, Read, Write};

const IMPORTS: &str = r#"
    (import "forebay" "read" (func $read (param i32 i32) (result i32)))
    (import "forebay" "write" (func $write (param i32 i32)))
    (import "forebay" "fail" (func $fail (param i32 i32)))"#;

/// A module whose `forebay_run` does `body`.
fn module(body: &str) -> Vec<u8> {
    let text = format!(
        r#"(module {IMPORTS} (memory (export "memory") 1) (data (i32.const 8) "no header")
            (func $run (export "forebay_run") (local $n i32) {body}))"#
    );
    wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Passes all bytes on, 1000 at a time.
const COPY: &str = "
    (loop $more
        (local.set $n (call $read (i32.const 1000) (i32.const 1000)))
        (call $write (i32.const 1000) (local.get $n))
        (br_if $more (local.get $n)))";

fn run(body: &str, input: &[u8], output_max: u64) -> Result<Vec<u8>, Stop> {
    let function = Function::of(&module(body)).unwrap();
    let mut output = Vec::new();
    let mut input = input;
    function.run(&mut input, &mut output, output_max).map(|()| output)
}

fn fault(body: &str, input: &[u8], output_max: u64) -> String {
    match run(body, input, output_max) {
        Err(Stop::Fault(what)) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn bytes_go_in_and_come_out() {
    let input: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
    assert!(run(COPY, &input, 100_000).unwrap() == input);
    assert!(run("", &input, 0).unwrap().is_empty());
}

#[test]
fn the_evil_are_stopped_and_it_is_said_why() {
    assert!(fault("(loop (br 0))", b"", 0).contains("instructions for each byte"));
    // To read at the end again and again gives nothing to go on with.
    let at_end = "(loop (drop (call $read (i32.const 0) (i32.const 9))) (br 0))";
    assert!(fault(at_end, b"abc", 0).contains("instructions for each byte"));
    assert!(fault("(call $run)", b"", 0).contains("too deep"));
    assert!(fault("unreachable", b"", 0).contains("trapped"));
    assert!(fault(COPY, &[7; 1001], 1000).contains("output_max"));
    let outside = "(call $write (i32.const 65530) (i32.const 100))";
    assert!(fault(outside, b"", 1000).contains("outside of its memory"));
    let outside = "(drop (call $read (i32.const 65535) (i32.const 100)))";
    assert!(fault(outside, b"abc", 1000).contains("outside of its memory"));
    // Of 4 GiB of output nothing is taken before it is seen that they cannot be.
    let outside = "(call $write (i32.const 0) (i32.const -1))";
    assert!(fault(outside, b"", u64::MAX).contains("outside of its memory"));
    assert_eq!(fault("(call $fail (i32.const 8) (i32.const 9))", b"", 0), "says: no header");
    // Memory that cannot be had is refused, and the function goes on.
    let grows = "(if (i32.ge_s (memory.grow (i32.const 10000)) (i32.const 0)) (then unreachable))";
    assert!(run(grows, b"", 0).is_ok());
}

#[test]
fn more_to_read_is_more_to_go_on_with() {
    // Four million turns of some five instructions, for 64 KiB read before.
    let body = "
        (loop $more (br_if $more (call $read (i32.const 1000) (i32.const 60000))))
        (loop $turn
            (local.set $n (i32.add (local.get $n) (i32.const 1)))
            (br_if $turn (i32.lt_u (local.get $n) (i32.const 4000000))))";
    const { assert!(4_000_000 > FUNCTION_FUEL / 5) };
    assert!(fault(body, b"", 0).contains("instructions"));
    assert!(run(body, &vec![0; 64 << 10], 0).is_ok());
}

#[test]
fn failures_of_files_are_not_the_functions() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::from_raw_os_error(5))
        }
    }
    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::from_raw_os_error(28))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let function = Function::of(&module(COPY)).unwrap();
    let read = function.run(&mut Broken, &mut Vec::new(), 10).unwrap_err();
    assert!(matches!(read, Stop::Read(error) if error.raw_os_error() == Some(5)));
    let write = function.run(&mut &b"abc"[..], &mut Broken, 10).unwrap_err();
    assert!(matches!(write, Stop::Write(error) if error.raw_os_error() == Some(28)));
}

#[test]
fn what_is_no_function_is_refused() {
    let why = |text: &str| Function::of(&wat::parse_str(text).unwrap()).unwrap_err();
    assert!(why("(module)").contains("does not export forebay_run()"));
    let run = r#"(func (export "forebay_run"))"#;
    assert!(why(&format!("(module {run})")).contains("does not export its memory"));
    let with = r#"(func (export "forebay_run") (param i32))"#;
    assert!(why(&format!("(module {with})")).contains("does not export forebay_run()"));
    let clock = r#"(import "wasi" "clock" (func))"#;
    let said = why(&format!("(module {clock} {run})"));
    assert!(said.contains("imports wasi.clock") && said.contains("forebay.read(i32, i32) -> i32"));
    assert!(Function::of(b"").unwrap_err().contains("no WebAssembly module"));
    assert!(Function::of(&vec![0; 2 << 20]).unwrap_err().contains("larger than 1024 KiB"));
}
