//! `forebay fsck`: checks pools without changing them.

use crate::drain::bytes;
use crate::flush::say;
use crate::instance::InstanceArguments;
use clap::Args;
use forebay_node::fsck::{Checked, Remedy, check};
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
    #[arg(long, value_name = "FILE", conflicts_with_all = ["config", "backing", "schema"])]
    pool: Option<PathBuf>,
}

impl PoolArguments {
    /// The pools they name.
    pub fn pools(&self) -> Result<Vec<PathBuf>, String> {
        match &self.pool {
            Some(pool) => Ok(vec![pool.clone()]),
            None if self.instance.is_given() => Ok(vec![self.instance.runtime()?.1.pool]),
            None => {
                let pools = Runtime::all()?.into_iter().map(|runtime| runtime.pool);
                Ok(pools.filter(|pool| pool.exists()).collect())
            }
        }
    }
}

/// `forebay fsck`.
pub fn fsck(arguments: &PoolArguments) -> Result<ExitCode, String> {
    let pools = arguments.pools()?;
    if pools.is_empty() {
        say!("no pools: nothing to check");
    }
    let worst = pools.iter().map(|pool| check_one(pool)).max();
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

fn show(pool: &Path, checked: &Checked) -> u8 {
    let name = pool.display();
    for finding in &checked.findings {
        let remedy = match finding.remedy {
            Remedy::Mended => "`forebay recover` puts it right, or can do without",
            Remedy::Refused => "`forebay recover` refuses the pool; use `forebay salvage`",
        };
        say!("{name}: {finding} [{remedy}]");
    }
    let state = if checked.in_use { "in use" } else { "nobody serves it" };
    let (ahead, left) = (checked.ahead, bytes(checked.dirty));
    match checked.findings.len() {
        0 => say!("{name}: clean ({state}; {ahead} files ahead of the store, {left} to drain)"),
        count => say!("{name}: {count} findings ({state}; {ahead} files ahead of the store)"),
    }
    if checked.findings.is_empty() { 0 } else { FOUND }
}
