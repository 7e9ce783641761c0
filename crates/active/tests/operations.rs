//! Operations on records, sums and functions: their results, and data that does not fit.

mod support;

use forebay_active::checksum::read_manifest;
use forebay_active::encoded::{Format, Reader};
use forebay_active::{About, Context, Done, Error, Operation, Options, operation};
use forebay_placement::Random;
use std::io::Cursor;

fn options(given: &[(&str, &str)]) -> Options {
    given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn of(name: &str, given: &[(&str, &str)]) -> Operation {
    Operation::of(name, &options(given)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn run_with(operation: &Operation, input: &[u8], memory: u64) -> Result<(Vec<u8>, Done), Error> {
    let folder = tempfile::tempdir().unwrap();
    let scratch = folder.path().to_owned();
    let context = Context { memory, scratch, name: b"data".to_vec() };
    let mut output = Cursor::new(Vec::new());
    let done = operation.run(&mut Cursor::new(input), &mut output, &context);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "scratch files are left");
    let output = output.into_inner();
    done.map(|done| {
        assert_eq!((done.input, done.output), (input.len() as u64, output.len() as u64));
        (output, done)
    })
}

fn run(operation: &Operation, input: &[u8]) -> Vec<u8> {
    run_with(operation, input, 1 << 20).unwrap().0
}

fn unfit(operation: &Operation, input: &[u8]) -> String {
    match run_with(operation, input, 1 << 20) {
        Err(Error::Unfit(what)) => what,
        other => panic!("{other:?}"),
    }
}

/// Records of 24 bytes: a number without sign, a float with many equal values, which one it is.
fn records(random: &mut Random, count: usize) -> Vec<[u8; 24]> {
    let record = |number: usize| {
        let mut record = [0; 24];
        record[..8].copy_from_slice(&(random.next_u64() >> random.below(60)).to_le_bytes());
        let float = random.below(20) as f64 - 10.0;
        record[8..16].copy_from_slice(&float.to_be_bytes());
        record[16..].copy_from_slice(&(number as u64).to_le_bytes());
        record
    };
    (0..count).map(record).collect()
}

fn number(record: &[u8; 24]) -> u64 {
    u64::from_le_bytes(record[..8].try_into().unwrap())
}

fn float(record: &[u8; 24]) -> f64 {
    f64::from_be_bytes(record[8..16].try_into().unwrap())
}

#[test]
fn sorting_is_the_same_in_memory_and_out_of_it() {
    let mut random = Random::new(support::seed());
    let sort = of("sort", &[("record", "24"), ("key", "f64be@8:desc, u64@0"), ("header", "5")]);
    for count in [0, 1, 2, 1000, 40_000] {
        let unsorted = records(&mut random, count);
        let mut wanted = unsorted.clone();
        wanted
            .sort_by(|a, b| float(b).total_cmp(&float(a)).then_with(|| number(a).cmp(&number(b))));
        let input = [b"HEAD\n", unsorted.concat().as_slice()].concat();
        let wanted = [b"HEAD\n", wanted.concat().as_slice()].concat();
        // All at once, in some runs, and in so many that they are merged in several passes.
        for memory in [64 << 20, 200_000, 40_000] {
            let (sorted, done) = run_with(&sort, &input, memory).unwrap();
            assert!(sorted == wanted, "{count} records with {memory} bytes of memory");
            assert_eq!(done.units, (count as u64, count as u64));
        }
    }
}

#[test]
fn records_with_equal_keys_stay_in_order() {
    let mut random = Random::new(support::seed());
    let unsorted = records(&mut random, 20_000);
    let sort = of("sort", &[("record", "24"), ("key", "f64be@8")]);
    let mut wanted = unsorted.clone();
    wanted.sort_by(|a, b| float(a).total_cmp(&float(b)));
    for memory in [64 << 20, 100_000] {
        assert!(run_with(&sort, &unsorted.concat(), memory).unwrap().0 == wanted.concat());
    }
}

#[test]
fn filters_keep_the_records_for_which_all_conditions_hold() {
    let mut random = Random::new(support::seed());
    let all = records(&mut random, 5000);
    type Holds = fn(&[u8; 24]) -> bool;
    let cases: [(&str, Holds); 5] = [
        ("f64be@8 > 3", |record| float(record) > 3.0),
        ("f64be@8<=-2 and u64@0 != 0", |record| float(record) <= -2.0 && number(record) != 0),
        ("u64@16 >= 100 and u64@16 < 200", |record| {
            (100..200).contains(&u64::from_le_bytes(record[16..].try_into().unwrap()))
        }),
        ("bytes8@16 == 0x0700000000000000", |record| record[16..] == [7, 0, 0, 0, 0, 0, 0, 0]),
        ("i8@23 == 0", |_| true),
    ];
    for (text, holds) in cases {
        let filter = of("filter", &[("record", "24"), ("where", text)]);
        let wanted: Vec<[u8; 24]> = all.iter().copied().filter(holds).collect();
        let (kept, done) = run_with(&filter, &all.concat(), 1 << 20).unwrap();
        assert!(kept == wanted.concat(), "{text}");
        assert_eq!(done.units, (5000, wanted.len() as u64), "{text}");
    }
    let quoted = of("filter", &[("record", "6"), ("where", "bytes5@0 == ' and '")]);
    assert_eq!(run(&quoted, b" and 1 xyz 2 and 3"), b" and 1 and 3");
}

#[test]
fn rows_become_columns_and_come_back() {
    let mut random = Random::new(support::seed());
    for (fields, header, rows) in
        [("8,4,4", 0, ""), ("1", 3, ""), ("3,8x4,5", 7, "100"), ("4x50", 0, "25")]
    {
        let mut given = vec![("fields", fields)];
        let header_text = header.to_string();
        given.push(("header", &header_text));
        if !rows.is_empty() {
            given.push(("rows", rows));
        }
        let there = of("transpose", &given);
        given.push(("inverse", "true"));
        let back = of("transpose", &given);
        let Operation::Transpose(transpose) = &there else { panic!("{there:?}") };
        let record = transpose.records.record as usize;
        let input: Vec<u8> = (0..header + record * 1000).map(|_| random.next_u64() as u8).collect();
        let rows = rows.parse().unwrap_or(1000);
        let mut wanted = input[..header].to_vec();
        for matrix in input[header..].chunks_exact(rows * record) {
            let mut at = 0;
            for &length in &transpose.fields {
                let field = |row: &[u8]| row[at..at + length as usize].to_vec();
                wanted.extend(matrix.chunks_exact(record).flat_map(field));
                at += length as usize;
            }
        }
        for memory in [1 << 20, 1000] {
            let columns = run_with(&there, &input, memory).unwrap().0;
            assert!(columns == wanted, "{fields} with {memory} bytes of memory");
            assert!(run_with(&back, &columns, memory).unwrap().0 == input, "{fields}");
        }
    }
}

#[test]
fn a_matrix_of_two_by_three_is_transposed() {
    let transpose = of("transpose", &[("fields", "1x3"), ("rows", "2")]);
    assert_eq!(run(&transpose, b"abcdefABCDEF"), b"adbecfADBECF");
}

#[test]
fn manifests_are_those_of_coreutils() {
    let manifest = run(&of("checksum", &[]), b"123456789");
    let wanted = "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225  data\n";
    assert_eq!(String::from_utf8(manifest).unwrap(), wanted);
    let manifest = run(&of("checksum", &[("sum", "crc32c")]), b"123456789");
    assert_eq!(read_manifest(&manifest).unwrap(), [("data".into(), "e3069283".to_owned())]);
}

#[test]
fn compressed_and_deduplicated_files_are_read_by_the_reader() {
    let mut random = Random::new(support::seed());
    let original = support::bytes(&mut random, 500_000);
    for (name, given, format) in [
        ("compress", &[("level", "1"), ("frame", "131072")][..], Format::Zstd),
        ("compress", &[("codec", "lz4")][..], Format::Lz4),
        ("dedup", &[("chunk", "4096"), ("memory", "1048576")][..], Format::Dedup),
    ] {
        let operation = of(name, given);
        assert_eq!(operation.format(), Some(format));
        let encoded = run(&operation, &original);
        let length = encoded.len() as u64;
        let mut decoded = Vec::new();
        Reader::open(encoded, length).unwrap().copy_to(&mut decoded).unwrap();
        assert!(decoded == original, "{format}");
    }
}

#[test]
fn data_that_does_not_fit_is_named_with_a_remedy() {
    let sort = of("sort", &[("record", "32"), ("key", "u8@0"), ("header", "10")]);
    let what = unfit(&sort, &[0; 75]);
    assert!(what.contains("65 bytes of records") && what.contains("1 bytes are left"), "{what}");
    assert!(unfit(&sort, &[0; 9]).contains("fewer than its header of 10"));
    let transpose = of("transpose", &[("fields", "4,4"), ("rows", "3")]);
    let what = unfit(&transpose, &[0; 8 * 7]);
    assert!(what.contains("7 records") && what.contains("1 are left"), "{what}");
    assert!(run(&transpose, b"").is_empty());
}

#[test]
fn options_that_cannot_be_are_named() {
    let refused = |name: &str, given: &[(&str, &str)], said: &str| {
        let error = Operation::of(name, &options(given)).unwrap_err().to_string();
        assert!(error.contains(said), "{name} {given:?}: {error}");
    };
    refused("shuffle", &[], "there are sort, compress");
    refused("sort", &[("key", "u8@0")], "record is missing");
    refused("sort", &[("record", "8")], "key is missing");
    refused(
        "sort",
        &[("record", "8"), ("key", "u8@0"), ("codec", "zstd")],
        "codec is no option of",
    );
    refused("sort", &[("record", "8"), ("key", "u32@5")], "ends at byte 9 of a record");
    refused("sort", &[("record", "8"), ("key", "u8@0:up")], "give asc or desc");
    refused("sort", &[("record", "x"), ("key", "u8@0")], "record: \"x\" is no number of bytes");
    refused("sort", &[("record", "0"), ("key", "u8@0")], "a record of 0 bytes");
    refused("compress", &[("codec", "gzip")], "not one of zstd, lz4");
    refused("compress", &[("codec", "lz4"), ("level", "3")], "lz4 has no level");
    refused("compress", &[("level", "77")], "level 77");
    refused("compress", &[("frame", "1073741824")], "a frame of 1073741824 bytes");
    refused("dedup", &[("chunk", "1000")], "not a power of two");
    refused("filter", &[("record", "8"), ("where", "u8@0")], "is no condition");
    refused("filter", &[("record", "8"), ("where", "u8@0 > x")], "no whole number");
    refused("checksum", &[("sum", "md5")], "not one of crc32c, sha256, blake3");
    refused("transpose", &[("fields", "4,0")], "no length of a field");
    refused("transpose", &[("fields", "4"), ("rows", "0")], "at least one row");
    refused("transpose", &[("fields", "4"), ("inverse", "yes")], "not true or false");
    refused("function", &[], "give one of both");
    let gone = of("function", &[("module", "/no/such.wasm")]);
    let error = run_with(&gone, b"abc", 0).unwrap_err().to_string();
    assert!(error.contains("/no/such.wasm: cannot be read"), "{error}");
    refused("function", &[("command", " ")], "the command is empty");
    for about in About::ALL {
        for option in about.needs.iter().chain(about.takes) {
            let known = operation::OPTIONS.iter().any(|(name, _)| name == option);
            assert!(known, "{option} of {} is not explained", about.name);
        }
    }
}

#[test]
fn commands_are_pipes() {
    let upper = of("function", &[("command", "tr a-z A-Z")]);
    let input = b"some text\n".repeat(100_000);
    assert!(run_with(&upper, &input, 0).unwrap().0 == b"SOME TEXT\n".repeat(100_000));
    // One that does not want all of its input is no error.
    assert_eq!(run(&of("function", &[("command", "head -c 4")]), &input), b"some");
    let failed = |command: &str, given: &[(&str, &str)]| {
        let given = [&[("command", command)], given].concat();
        match run_with(&of("function", &given), &input, 0) {
            Err(Error::Function(what)) => what,
            other => panic!("{other:?}"),
        }
    };
    assert!(failed("cat > /dev/null; exit 3", &[]).contains("exit status: 3"));
    assert!(failed("no-such-command-here 2> /dev/null", &[]).contains("exit status: 127"));
    assert!(failed("yes", &[]).contains("output_max"));
    assert!(failed("cat", &[("output_max", "1000")]).contains("output_max"));
}

#[cfg(feature = "wasm")]
#[test]
fn modules_run_in_the_sandbox() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("every-second.wasm");
    let text = r#"(module
        (import "forebay" "read" (func $read (param i32 i32) (result i32)))
        (import "forebay" "write" (func $write (param i32 i32)))
        (memory (export "memory") 1)
        (func (export "forebay_run")
            (loop $more
                (if (i32.eq (call $read (i32.const 0) (i32.const 2)) (i32.const 2))
                    (then (call $write (i32.const 0) (i32.const 1)) (br $more))))))"#;
    std::fs::write(&path, wat::parse_str(text).unwrap()).unwrap();
    let function = of("function", &[("module", path.to_str().unwrap())]);
    assert_eq!(run(&function, b"a1b2c3"), b"abc");
    std::fs::write(&path, b"no module").unwrap();
    let error = run_with(&function, b"abc", 0).unwrap_err().to_string();
    assert!(error.contains("is no WebAssembly module"), "{error}");
    assert!(error.contains(path.to_str().unwrap()));
}
