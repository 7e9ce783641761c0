//! `forebay salvage`: writes what the tiers hold for a store that cannot take it to another
//! directory.

use crate::fsck::PoolArguments;
use crate::text::{bytes, files};
use clap::Args;
use forebay_node::salvage::{Salvaged, Source, prepare_target, salvage as salvage_pool};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::ExitCode;

/// The list of what was saved, in the target.
const MANIFEST: &str = "MANIFEST";

/// Options of `forebay salvage`.
#[derive(Args)]
pub struct SalvageArguments {
    /// Where to write the files; must be empty, and is made if it does not exist
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    #[command(flatten)]
    pools: PoolArguments,
}

/// `forebay salvage`.
pub fn salvage(arguments: &SalvageArguments) -> Result<ExitCode, String> {
    let pools = arguments.pools.pools()?;
    if let Some(missing) = pools.iter().find(|pool| !pool.is_file()) {
        return Err(format!("{}: no such pool; `forebay status` lists them", missing.display()));
    }
    let target = &arguments.to;
    let explain = |error| format!("{}: {error}", target.display());
    prepare_target(target).map_err(explain)?;
    let list = target.join(MANIFEST);
    let mut manifest = File::options();
    // As the copies are: it names files, in a folder that may be open to others.
    manifest.write(true).create_new(true).mode(0o600);
    let mut manifest = manifest.open(&list).map_err(explain)?;
    let mut whole = true;
    let (mut count, mut sum) = (0, 0);
    for pool in &pools {
        let saved = salvage_pool(pool, target, &mut manifest);
        match saved {
            Ok(saved) => {
                show(&saved);
                whole &= saved.is_whole();
                count += saved.files.len();
                sum +=
                    saved.files.iter().map(|file| file.bytes(|s| *s == Source::Tier)).sum::<u64>();
            }
            Err(error) => {
                eprintln!("forebay: {}: {error}", pool.display());
                whole = false;
            }
        }
    }
    manifest.sync_all().map_err(explain)?;
    println!(
        "salvaged {} ({} from the tiers) to {}; the pools are as they were; {} lists every range",
        files(count),
        bytes(sum),
        target.display(),
        list.display()
    );
    if !whole {
        eprintln!("forebay: something is missing or unclear: see {}", list.display());
    }
    Ok(ExitCode::from(u8::from(!whole)))
}

fn show(saved: &Salvaged) {
    for file in &saved.files {
        let missing = file.bytes(|source| matches!(source, Source::Missing(_)));
        let name = file.copy.display();
        let of_tiers = bytes(file.bytes(|source| *source == Source::Tier));
        let state = match (missing, file.torn) {
            (0, false) => String::new(),
            (0, true) => ", WRITTEN MEANWHILE".to_owned(),
            (missing, _) => format!(", {} MISSING", bytes(missing)),
        };
        println!("  {name}: {} ({of_tiers} from the tiers{state})", bytes(file.size));
    }
    for stray in &saved.strays {
        println!("  UNCLEAR: {}", stray.replace('\t', ", "));
    }
}
