//! `forebay fsck`: checks pools without changing them.

use crate::drain::bytes;
use crate::flush::say;
use crate::instance::InstanceArguments;
use clap::Args;
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
            None if self.instance.is_given() => Ok(vec![self.instance.runtime()?.1.pool]),
            None => {
                crate::manager::mention_strays()?;
                let pools = Runtime::all()?.into_iter().map(|runtime| runtime.pool);
                Ok(pools.filter(|pool| pool.exists()).collect())
            }
        }
    }
}

impl PoolArguments {
    /// Instances that they name whose pool is gone and whose tiers still hold something.
    fn left(&self) -> Result<Vec<Runtime>, String> {
        let mut all = match &self.pool {
            Some(_) => Vec::new(),
            None if self.instance.is_given() => vec![self.instance.runtime()?.1],
            None => Runtime::all()?,
        };
        all.retain(|runtime| !runtime.pool.exists() && runtime.has_left());
        Ok(all)
    }
}

/// `forebay fsck`.
pub fn fsck(arguments: &PoolArguments) -> Result<ExitCode, String> {
    let pools = arguments.pools()?;
    let left = arguments.left()?;
    if pools.is_empty() && left.is_empty() {
        say!("no pools: nothing to check");
    }
    let of_pools = pools.iter().map(|pool| check_one(pool));
    let worst = of_pools.chain(left.iter().map(check_without_pool)).max();
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
fn check_without_pool(runtime: &Runtime) -> u8 {
    let name = runtime.pool.display();
    say!("{name}: gone; `forebay recover` brings back what the file tiers hold");
    let found = runtime.read_config().and_then(|config| check_left(runtime, &config));
    let Some((journal, findings)) = found else { return 0 };
    show_findings(runtime.pool.as_path(), &findings);
    show_journal(&journal, "`forebay recover` will bring");
    if findings.is_empty() { 0 } else { FOUND }
}

fn show_journal(journal: &JournalState, verb: &str) {
    let name = journal.path.display();
    let (used, size, left) = (bytes(journal.used), bytes(journal.size), bytes(journal.bytes));
    let (records, files) = (journal.records, journal.files);
    say!("{name}: {records} records ({used} of {size}); {verb} {left} of {files} files from it");
}

fn show(pool: &Path, checked: &Checked) -> u8 {
    show_findings(pool, &checked.findings);
    let name = pool.display();
    let state = if checked.in_use { "in use" } else { "nobody serves it" };
    let (ahead, left) = (checked.ahead, bytes(checked.dirty));
    match checked.findings.len() {
        0 => say!("{name}: clean ({state}; {ahead} files ahead of the store, {left} to drain)"),
        count => say!("{name}: {count} findings ({state}; {ahead} files ahead of the store)"),
    }
    if let Some(journal) = &checked.journal {
        show_journal(journal, "if the pool were lost, `forebay recover` would bring");
    }
    if checked.findings.is_empty() { 0 } else { FOUND }
}

fn show_findings(pool: &Path, findings: &[Finding]) {
    let name = pool.display();
    for finding in findings {
        let remedy = match finding.remedy {
            Remedy::Mended => "`forebay recover` puts it right, or can do without",
            Remedy::Kept => "`forebay recover` keeps its data in the pool; use `forebay salvage`",
            Remedy::Lost => "`forebay recover` brings back the rest, and says what is lost",
            Remedy::Refused => "`forebay recover` refuses the pool; use `forebay salvage`",
        };
        say!("{name}: {finding} [{remedy}]");
    }
}
