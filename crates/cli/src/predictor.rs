//! `forebay predictor`: looks at a program that predicts what is read, before a rule names it.

use crate::recording::{Access, for_each_access, open};
use crate::text::counted;
use forebay_node::config::{load_predictor, size_of};
use forebay_node::log::shown;
use forebay_placement::prefetch::{Account, DEPTH_MAX, Expectations, Limit};
use forebay_sandbox::{Fault, Program, Read};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of `forebay predictor`.
#[derive(clap::Args)]
pub struct PredictorArguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Say whether a program is a predictor, and with --trace what it would have foreseen
    Check(CheckArguments),
}

#[derive(clap::Args)]
struct CheckArguments {
    /// A WebAssembly module
    program: PathBuf,
    /// What `forebay run --record` wrote: its reads are told to the predictor
    #[arg(long, value_name = "RECORDING")]
    trace: Option<PathBuf>,
    /// Bytes of a block: 64 pages of the configuration's page size
    #[arg(long, value_name = "SIZE", default_value = "256KiB", value_parser = block_bytes)]
    block: u64,
}

fn block_bytes(text: &str) -> Result<u64, String> {
    size_of(text)
        .filter(|bytes| (1..=1 << 40).contains(bytes))
        .ok_or_else(|| "give a size such as \"256KiB\"".to_owned())
}

/// Runs `forebay predictor`.
///
/// # Errors
/// What is wrong with the program, or with the recording.
pub fn predictor(arguments: &PredictorArguments) -> Result<ExitCode, String> {
    let Action::Check(arguments) = &arguments.action;
    let named = shown(&arguments.program);
    let failed = |problem: &dyn std::fmt::Display| format!("{named}: {problem}");
    let program = load_predictor(&arguments.program).map_err(|problem| failed(&problem))?;
    let Some(trace) = &arguments.trace else {
        println!("{named}: is a predictor");
        return Ok(ExitCode::SUCCESS);
    };
    let files = files_of(trace, arguments.block)?;
    if files.is_empty() {
        return Err(format!("{}: has no reads; record a run that reads files", shown(trace)));
    }
    for (path, file) in files {
        let outcome = judge(&program, &file, arguments.block)
            .map_err(|fault| failed(&format!("{fault}, at {}", shown(Path::new(&path)))))?;
        let Outcome { read, hits, vain } = outcome;
        println!(
            "{}: {} read, {hits} of them foreseen ({:.1} %), {vain} brought up in vain",
            shown(Path::new(&path)),
            counted(read, "block was", "blocks were"),
            hits as f64 * 100.0 / read.max(1) as f64,
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// What a recording says of a file: its size, and the blocks that each rank reads, in that order.
#[derive(Default)]
struct Recorded {
    blocks: u64,
    reads: Vec<(u32, u64)>,
}

/// The files that are read in a recording.
fn files_of(trace: &Path, block: u64) -> Result<BTreeMap<String, Recorded>, String> {
    let failed = |problem: String| format!("{}: {problem}", shown(trace));
    let mut files = BTreeMap::<String, Recorded>::new();
    let mut ranks = HashMap::<(String, String), u32>::new();
    let mut of_file = HashMap::<String, u32>::new();
    let recording = open(trace).map_err(failed)?;
    for_each_access(recording, |_, Access { rank, path, is_read, bytes }| {
        let file = files.entry(path.to_owned()).or_default();
        file.blocks = file.blocks.max(bytes.end.div_ceil(block));
        if is_read {
            let number = *ranks.entry((path.to_owned(), rank.to_owned())).or_insert_with(|| {
                let next = of_file.entry(path.to_owned()).or_default();
                *next += 1;
                *next - 1
            });
            let blocks = bytes.start / block..bytes.end.div_ceil(block);
            file.reads.extend(blocks.map(|block| (number, block)));
        }
        Ok(())
    })
    .map_err(failed)?;
    files.retain(|_, file| !file.reads.is_empty());
    Ok(files)
}

/// What a predictor would have been good for.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    /// Blocks that were read.
    read: u64,
    /// Of them, those that it expected in time.
    hits: u64,
    /// Blocks that it expected, and that were not read.
    vain: u64,
}

/// Tells a predictor all first reads of a file's blocks, with the account that a process has, and
/// as if what it expects came at once and stayed.
fn judge(program: &Program, file: &Recorded, block_bytes: u64) -> Result<Outcome, Fault> {
    let mut predictor = program.begin()?;
    let (account, mut expectations) = (Account::default(), Expectations::default());
    let (mut there, mut guessed) = (HashSet::new(), 0);
    let mut outcome = Outcome { read: 0, hits: 0, vain: 0 };
    let mut known = HashSet::new();
    for &(reader, block) in &file.reads {
        if !known.insert(block) {
            continue;
        }
        let hit = there.contains(&block);
        outcome.read += 1;
        if expectations.settle(block).is_some() && hit {
            account.was_used(block_bytes);
        }
        outcome.hits += u64::from(hit);
        expectations.note_read(block);
        there.insert(block);
        account.was_read(block_bytes);
        let read = Read { reader, block, blocks: file.blocks, hit };
        expectations.expect(predictor.on_read(read)?);
        let limit = Limit { depth: DEPTH_MAX, more: account.balance() / block_bytes };
        let asked = expectations.ask(limit, 0, |block| !there.contains(&block));
        guessed += account.take(asked.len() as u64 * block_bytes) / block_bytes;
        there.extend(asked);
    }
    outcome.vain = guessed - outcome.hits;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEHMER: &str = include_str!("../../../examples/predictors/lehmer.wat");
    const BLOCK: u64 = 256 << 10;

    fn lehmer() -> Option<Program> {
        Program::IS_BUILT.then(|| Program::of(&wat::parse_str(LEHMER).unwrap()).unwrap())
    }

    /// Blocks 1, 71, 71 x 71 and so on, modulo 251.
    fn order(count: usize) -> Vec<(u32, u64)> {
        std::iter::successors(Some(1), |block| Some(block * 71 % 251))
            .take(count)
            .map(|block| (0, block))
            .collect()
    }

    #[test]
    fn a_predictor_that_knows_the_order_foresees_all_but_the_first() {
        let Some(program) = lehmer() else { return };
        let file = Recorded { blocks: 256, reads: order(250) };
        let wanted = Outcome { read: 250, hits: 249, vain: 0 };
        assert_eq!(judge(&program, &file, BLOCK), Ok(wanted));
    }

    /// A predictor that does `body` at each read.
    fn predictor_of(body: &str) -> Option<Program> {
        let text = format!(
            "(module (import \"forebay\" \"expect\" (func $e (param i64 i64)))
                (func (export \"forebay_read\") (param i32 i64 i64 i32) {body}))"
        );
        Program::IS_BUILT.then(|| Program::of(&wat::parse_str(text).unwrap()).unwrap())
    }

    #[test]
    fn one_that_is_always_wrong_costs_a_twentieth_and_the_grace() {
        let wrong = "(call $e (i64.add (local.get 1) (i64.const 5000)) (i64.const 1))";
        let Some(program) = predictor_of(wrong) else { return };
        let reads = (0..4000).map(|block| (0, block)).collect();
        let outcome = judge(&program, &Recorded { blocks: 10_000, reads }, BLOCK).unwrap();
        assert_eq!((outcome.read, outcome.hits), (4000, 0));
        assert!((200..=216).contains(&outcome.vain), "{outcome:?}");
    }

    #[test]
    fn what_is_expected_beyond_the_file_is_named() {
        let beyond = "(call $e (local.get 2) (i64.const 1))";
        let Some(program) = predictor_of(beyond) else { return };
        let fault = judge(&program, &Recorded { blocks: 256, reads: order(9) }, BLOCK).unwrap_err();
        let said = "expected blocks that cannot be read: 1 blocks from 256 on, of a file of 256";
        assert_eq!(fault.to_string(), said);
    }
}
