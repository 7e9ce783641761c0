//! `forebay fsck`: checks pools without changing them.

use crate::instance::InstanceArguments;
use crate::text::{bytes, counted, files};
use clap::Args;
use forebay_node::Config;
use forebay_node::fsck::{Checked, Finding, JournalState, Remedy, check, check_left};
use forebay_node::runtime::Runtime;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Something is wrong.
const FOUND: u8 = 1;
/// Something cannot be read at all.
const UNREADABLE: u8 = 2;

/// Options that name pools; without any, all of this user's are meant.
#[derive(Args)]
pub struct PoolArguments {
    #[command(flatten)]
    instance: InstanceArguments,
    /// The pool itself, or a copy of it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["config", "backing", "schema", "durability"])]
    pool: Option<PathBuf>,
}

impl PoolArguments {
    /// The pools they name.
    pub fn pools(&self) -> Result<Vec<PathBuf>, String> {
        match &self.pool {
            Some(pool) => Ok(vec![pool.clone()]),
            None if self.instance.is_given() => Ok(vec![self.instance.runtime_to_end()?.1.pool]),
            None => {
                let pools = Runtime::all()?.into_iter().filter(Runtime::has_pool);
                Ok(pools.map(|runtime| runtime.pool).collect())
            }
        }
    }
}

impl PoolArguments {
    /// Instances that they name whose pool is gone and whose tiers still hold something.
    fn left(&self) -> Result<Vec<(Runtime, Config)>, String> {
        let mut all: Vec<_> = match &self.pool {
            Some(_) => Vec::new(),
            // After a reboot the instance's folder may be gone, too.
            None if self.instance.is_given() => {
                let (today, runtime) = self.instance.runtime_to_end()?;
                let config = runtime.left_on_tiers(&today).unwrap_or(today);
                vec![(runtime, config)]
            }
            None => {
                let known = |runtime: Runtime| {
                    let config = runtime.read_config()?;
                    Some((runtime, config))
                };
                Runtime::all()?.into_iter().filter_map(known).collect()
            }
        };
        all.retain(|(runtime, config)| !runtime.has_pool() && runtime.has_slots(config));
        Ok(all)
    }
}

/// `forebay fsck`.
pub fn fsck(arguments: &PoolArguments) -> Result<ExitCode, String> {
    let left = arguments.left()?;
    let mut pools = arguments.pools()?;
    pools.retain(|pool| left.iter().all(|(runtime, _)| runtime.pool != *pool));
    // An instance that is named by its configuration may have drained all.
    pools.retain(|pool| arguments.pool.is_some() || pool.exists());
    if pools.is_empty() && left.is_empty() {
        println!("no pools: nothing to check");
    }
    let of_pools = pools.iter().map(|pool| check_one(pool));
    let of_left = left.iter().map(|(runtime, config)| check_without_pool(runtime, config));
    let worst = of_pools.chain(of_left).max();
    Ok(ExitCode::from(worst.unwrap_or(0)))
}

fn check_one(pool: &Path) -> u8 {
    match check(pool) {
        Ok(checked) => show(pool, &checked),
        Err(error) => {
            eprintln!("forebay: {}: {error}", pool.display());
            UNREADABLE
        }
    }
}

/// What is left of an instance whose pool is gone, as after a reboot.
fn check_without_pool(runtime: &Runtime, config: &Config) -> u8 {
    let name = runtime.pool.display();
    println!("{name}: gone; `forebay recover` brings back what the file tiers hold");
    let (journal, findings) = check_left(runtime, config);
    show_findings(&runtime.pool, &findings, false);
    if let Some(journal) = &journal {
        show_journal(journal, "`forebay recover` will bring");
    }
    if findings.is_empty() { 0 } else { FOUND }
}

fn show_journal(journal: &JournalState, verb: &str) {
    let name = journal.path.display();
    let (used, size, left) = (bytes(journal.used), bytes(journal.size), bytes(journal.bytes));
    let records = counted(journal.records, "record", "records");
    let files = files(journal.files);
    println!(
        "{name}: {records} ({used} of {size}); {verb} {left} of {files} from it, besides what the \
         slots of file tiers hold"
    );
}

fn show(pool: &Path, checked: &Checked) -> u8 {
    show_findings(pool, &checked.findings, true);
    let name = pool.display();
    let state = if checked.in_use { "in use" } else { "not served" };
    let (ahead, left) = (files(checked.ahead), bytes(checked.dirty));
    match checked.findings.len() {
        0 => println!("{name}: clean ({state}; {ahead} ahead of the store, {left} to drain)"),
        count => {
            let findings = counted(count, "finding", "findings");
            println!("{name}: {findings} ({state}; {ahead} ahead of the store)");
        }
    }
    if let Some(journal) = &checked.journal {
        show_journal(journal, "if the pool were lost, `forebay recover` would bring");
    }
    if checked.findings.is_empty() { 0 } else { FOUND }
}

fn show_findings(place: &Path, findings: &[Finding], has_pool: bool) {
    let name = place.display();
    for finding in findings {
        let remedy = match finding.remedy {
            Remedy::Repaired => "`forebay recover` puts it right, or can do without",
            Remedy::Kept => "`forebay recover` keeps its data in the pool; use `forebay salvage`",
            Remedy::Lost => "`forebay recover` brings back the rest, and says what is lost",
            Remedy::Refused if has_pool => {
                "`forebay recover` refuses the pool; use `forebay salvage`"
            }
            Remedy::Refused => {
                "`forebay recover` brings nothing back before the file is put right, or moved away"
            }
        };
        println!("{name}: {finding} [{remedy}]");
    }
}
