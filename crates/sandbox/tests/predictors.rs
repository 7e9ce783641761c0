//! What good and evil programs come to in the sandbox.

#![cfg(feature = "wasm")]

use forebay_sandbox::{EXPECTED_MAX, FaultKind, MODULE_BYTES_MAX, Predictor, Program, Read};

const SIGNATURE: &str =
    "(param $reader i32) (param $block i64) (param $blocks i64) (param $hit i32)";
const IMPORT: &str = r#"(import "forebay" "expect" (func $expect (param i64 i64)))"#;

/// A module whose `forebay_read` does `body`, with `fields` besides.
fn module(fields: &str, body: &str) -> Vec<u8> {
    let text = format!(
        r#"(module {IMPORT} {fields} (func $read (export "forebay_read") {SIGNATURE} {body}))"#
    );
    wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn begun(fields: &str, body: &str) -> Predictor {
    Program::of(&module(fields, body)).unwrap().begin().unwrap()
}

fn read(block: u64) -> Read {
    Read { reader: 0, block, blocks: 100, hit: false }
}

/// What it does at its first read.
fn fault(fields: &str, body: &str) -> FaultKind {
    begun(fields, body).on_read(read(7)).unwrap_err().kind
}

#[test]
fn what_is_expected_comes_back_in_its_order() {
    let mut next = begun(
        "",
        "(call $expect (i64.add (local.get $block) (i64.const 5)) (i64.const 2))
         (call $expect (i64.const 3) (i64.const 1))",
    );
    assert_eq!(next.on_read(read(7)), Ok(vec![12, 13, 3]));
    assert_eq!(next.on_read(read(8)), Ok(vec![13, 14, 3]));
}

#[test]
fn a_program_remembers_and_each_file_has_its_own_memory() {
    let body = "(i64.store (i32.const 8) (i64.add (i64.load (i32.const 8)) (i64.const 1)))
                (call $expect (i64.load (i32.const 8)) (i64.const 1))";
    let program = Program::of(&module("(memory 1)", body)).unwrap();
    let (mut one, mut two) = (program.begin().unwrap(), program.begin().unwrap());
    assert_eq!(one.on_read(read(0)), Ok(vec![1]));
    assert_eq!(one.on_read(read(0)), Ok(vec![2]));
    assert_eq!(two.on_read(read(0)), Ok(vec![1]));
}

#[test]
fn all_that_it_is_told_arrives() {
    let body = "
        (call $expect (i64.extend_i32_u (local.get $reader)) (i64.const 1))
        (call $expect (local.get $block) (i64.const 1))
        (call $expect (i64.sub (local.get $blocks) (i64.const 1)) (i64.const 1))
        (call $expect (i64.extend_i32_u (local.get $hit)) (i64.const 1))";
    let told = Read { reader: 9, block: 1 << 40, blocks: 1 << 41, hit: true };
    let wanted = vec![9, 1 << 40, (1 << 41) - 1, 1];
    assert_eq!(begun("", body).on_read(told), Ok(wanted));
}

#[test]
fn loops_and_recursions_end() {
    assert_eq!(fault("", "(loop (br 0))"), FaultKind::TooLong);
    let recursion = "(func $f (call $f))";
    assert_eq!(fault(recursion, "(call $f)"), FaultKind::TooDeep);
    let itself = "(call $read (i32.const 0) (i64.const 0) (i64.const 0) (i32.const 0))";
    assert_eq!(fault("", itself), FaultKind::TooDeep);
    // Many values in each function, so that the stack of values is full first.
    let locals = "(local i64) ".repeat(1000);
    let wide = format!("(func $f {locals} (call $f))");
    assert_eq!(fault(&wide, "(call $f)"), FaultKind::TooDeep);
    // Two to the power of 60 calls.
    let tree = "(func $f (param i32) (if (local.get 0) (then
        (call $f (i32.sub (local.get 0) (i32.const 1)))
        (call $f (i32.sub (local.get 0) (i32.const 1))))))";
    assert_eq!(fault(tree, "(call $f (i32.const 60))"), FaultKind::TooLong);
}

#[test]
fn memory_has_an_end() {
    // It is told that there is no more, 31 pages after the first, and goes on.
    let grows = "(loop (br_if 0 (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))
                 (call $expect (i64.extend_i32_u (memory.size)) (i64.const 1))";
    assert_eq!(begun("(memory 1)", grows).on_read(read(0)), Ok(vec![32]));
    assert_eq!(
        fault("(memory 1)", "(loop (drop (memory.grow (i32.const 1))) (br 0))"),
        FaultKind::TooLong
    );
    let beyond = "(i64.store (i32.const 65530) (i64.const 1))";
    assert_eq!(fault("(memory 1)", beyond), FaultKind::Trapped);
    let fills = "(loop (memory.fill (i32.const 0) (i32.const 1) (i32.const 65536)) (br 0))";
    assert_eq!(fault("(memory 1)", fills), FaultKind::TooLong);
    let table = "(table 1 funcref)";
    let grows = "(loop (drop (table.grow (ref.null func) (i32.const 1000))) (br 0))";
    assert_eq!(fault(table, grows), FaultKind::TooLong);
}

#[test]
fn traps_are_faults() {
    assert_eq!(fault("", "unreachable"), FaultKind::Trapped);
    let divides = "(drop (i64.div_u (local.get $block) (i64.const 0)))";
    assert_eq!(fault("", divides), FaultKind::Trapped);
}

#[test]
fn nonsense_is_a_fault_and_says_what_was_expected() {
    for (block, count, said) in [
        ("0x8000000000000000", "1", "9223372036854775808"),
        ("-1", "1", "18446744073709551615"),
        ("100", "1", "of a file of 100"),
        ("99", "2", "of a file of 100"),
        ("0", "5000000", "5000000 blocks"),
        ("1", "-1", "18446744073709551615 blocks"),
    ] {
        let body = format!("(call $expect (i64.const {block}) (i64.const {count}))");
        let fault = begun("", &body).on_read(read(0)).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Nonsense);
        assert!(fault.to_string().contains(said), "{fault}");
    }
    // What it has expected before counts with it.
    let body = "(loop (call $expect (i64.const 0) (i64.const 50)) (br 0))";
    assert_eq!(fault("", body), FaultKind::Nonsense);
    let nothing = begun("", "(call $expect (i64.const 99) (i64.const 0))").on_read(read(0));
    assert_eq!(nothing, Ok(vec![]));
    let all = "(local $n i32) (loop (call $expect (i64.const 0) (i64.const 64))
        (br_if 0 (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 16))))";
    assert_eq!(begun("", all).on_read(read(0)).unwrap().len() as u64, EXPECTED_MAX);
}

#[test]
fn what_is_no_predictor_is_refused_with_the_reason() {
    let refused = |bytes: &[u8], wanted: &str| {
        let error = Program::of(bytes).unwrap_err();
        assert!(error.contains(wanted), "{error}");
    };
    refused(b"", "is empty");
    refused(b"(module)", "is no WebAssembly module; compile it for wasm32");
    refused(&vec![0; 100 << 20], "is larger than 64 KiB");
    refused(&vec![0; MODULE_BYTES_MAX], "is no WebAssembly module");
    refused(b"\0asm\x01\0\0\0rubbish", "is no WebAssembly module that can be used");
    let text = |text: &str| wat::parse_str(text).unwrap();
    let whole = module("", "");
    refused(&whole[..whole.len() - 3], "is no WebAssembly module that can be used");
    refused(&text("(module)"), "does not export forebay_read(i32, i64, i64, i32)");
    let wrong = r#"(module (func (export "forebay_read") (param i64) (result i32) unreachable))"#;
    refused(&text(wrong), "exports forebay_read(i64) -> i32, and not");
    let memory = r#"(module (memory (export "forebay_read") 1))"#;
    refused(&text(memory), "does not export");
    for import in [
        r#"(import "wasi_snapshot_preview1" "fd_write" (func (param i32 i32 i32 i32) (result i32)))"#,
        r#"(import "forebay" "expect" (func (param i32 i32)))"#,
        r#"(import "forebay" "memory" (memory 1))"#,
        r#"(import "env" "expect" (func (param i64 i64)))"#,
    ] {
        let text =
            text(&format!(r#"(module {import} (func (export "forebay_read") {SIGNATURE}))"#));
        refused(
            &text,
            "which there is not; all that a predictor may call is forebay.expect(i64, i64)",
        );
    }
    refused(&module("(memory 33)", ""), "cannot be begun");
    refused(&module("(table 5000 funcref)", ""), "cannot be begun");
    refused(&module("(start $s) (func $s (loop (br 0)))", ""), "cannot be begun");
    let early = "(start $s) (func $s (call $expect (i64.const 0) (i64.const 1)))";
    refused(&module(early, ""), "cannot be begun");
    refused(&text("(module (memory i64 1))"), "is no WebAssembly module that can be used");
    refused(&module(r#"(memory 1) (data (i32.const 70000) "x")"#, ""), "cannot be begun");
}

/// A release of an interpreter has chosen wrongly where a condition is compared with zero.
#[test]
fn choices_and_copies_are_what_the_standard_says() {
    let both =
        "(i64.add (local.get $block) (i64.const 3)) (i64.sub (local.get $block) (i64.const 3))";
    let reader = "(local.get $reader)";
    for (condition, wanted) in [
        (reader.to_owned(), [4, 10, 10]),
        (format!("(i32.eqz {reader})"), [10, 4, 4]),
        (format!("(i32.eqz (i32.eqz {reader}))"), [4, 10, 10]),
        (format!("(i32.eq {reader} (i32.const 1))"), [4, 10, 4]),
        (format!("(i32.ne {reader} (i32.const 1))"), [10, 4, 10]),
        (format!("(i32.lt_u {reader} (i32.const 2))"), [10, 10, 4]),
        (format!("(i64.eqz (i64.extend_i32_u {reader}))"), [10, 4, 4]),
        (format!("(i32.and {reader} (i32.const 2))"), [4, 4, 10]),
    ] {
        for (form, first) in [
            (format!("(select {both} {condition})"), wanted),
            (format!("(select (i64.const 10) (i64.const 4) {condition})"), wanted),
            (
                format!("(if (result i64) {condition} (then (i64.const 10)) (else (i64.const 4)))"),
                wanted,
            ),
            (
                format!(
                    "(block (result i64) (i64.const 10) (br_if 0 {condition}) (drop) (i64.const 4))"
                ),
                wanted,
            ),
        ] {
            let body = format!("(call $expect {form} (i64.const 1))");
            let mut predictor = begun("", &body);
            for (reader, wanted) in (0..).zip(first) {
                let told = Read { reader, ..read(7) };
                assert_eq!(predictor.on_read(told), Ok(vec![wanted]), "{reader}: {form}");
            }
        }
    }
    let copies = "(local $a i64) (local $b i64) (local $c i64)
        (local.set $b (i64.const 1)) (local.set $c (i64.const 2))
        (call $expect (local.tee $b (local.tee $a (local.get $c))) (i64.const 1))
        (call $expect (local.get $a) (i64.const 1)) (call $expect (local.get $b) (i64.const 1))";
    assert_eq!(begun("", copies).on_read(read(7)), Ok(vec![2, 2, 2]));
}
