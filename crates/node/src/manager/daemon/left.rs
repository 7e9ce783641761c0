//! What is kept beside the tiers: configurations, the journal, and what an earlier manager left
//! there.

use super::neighbours::refuse_elsewhere;
use crate::config::{Config, TierKind};
use crate::devices::faults::Faults;
use crate::instance::runtime::Runtime;
use crate::journal::Journal;
use crate::journal::superblock::reason;
use crate::manager::housekeeping::is_full;
use crate::node::Node;
use crate::recovery::rebuild::{Rebuilt, rebuild};
use forebay_pool::private;
use rustix::io::Errno;
use std::sync::Arc;

/// Keeps the configuration in the instance's folder, in one step: others may be reading it.
pub(super) fn write_config(config: &Config, runtime: &Runtime) -> Result<(), String> {
    let fresh = runtime.config().with_extension("new");
    crate::instance::runtime::write_private(&fresh, &config.canonical())
        .and_then(|()| std::fs::rename(&fresh, runtime.config()))
        .map_err(|error| format!("{}: {error}", runtime.config().display()))
}

/// Keeps the configuration on each tier that takes something. One whose device refuses that takes
/// nothing at all: after a reboot nothing would say what its slots belong to.
pub(super) fn keep_configs(node: &Node) -> Result<(), String> {
    for tier in node.file_tiers().filter(|&tier| node.segment.is_sound(tier)) {
        let Err((path, error)) = node.keep_config(tier) else { continue };
        let errno = Errno::from_io_error(&error);
        if !errno.is_some_and(|errno| node.segment.fail_tier(tier, errno)) {
            return Err(format!("{}: {error}", path.display()));
        }
    }
    Ok(())
}

/// Where the journal is, or a new one would be.
pub(super) fn place_journal(node: &Node) -> Option<Journal> {
    let place =
        || Journal::on_one_of(&node.config, &node.runtime, |tier| node.segment.is_sound(tier));
    let journal = place()?;
    if node.segment.is_sound(journal.tier) || !journal.is_new() {
        return Some(journal);
    }
    // Its file may have been made before it was known that the tier is left out.
    private::remove(&journal.path);
    place()
}

/// Makes the journal, if one is wanted, or carries on the one that is there. A tier whose device
/// refuses a new one is left out, and the next one asked; without any what would go to the journal
/// goes to the store.
pub(super) fn start_journal(node: &mut Node) -> Result<(), String> {
    while let Some(journal) = node.journal.as_ref()
        && (node.segment.is_sound(journal.tier) || !journal.is_new())
        && let Err(errno) = journal.start(node.context())
    {
        // One that has anything in it is not to be done without.
        if !journal.is_new() || !node.segment.fail_tier(journal.tier, errno) {
            return Err(format!("{}: {}", journal.path.display(), reason(&journal.path, errno)));
        }
        node.journal = place_journal(node);
    }
    Ok(())
}

/// What is to be told of the tiers that are left out.
pub(super) fn left_out(node: &Node) -> Vec<String> {
    let mut said = Vec::new();
    for tier in node.file_tiers() {
        let Some((errno, _)) = node.segment.tier_failure(tier) else { continue };
        let TierKind::File { path } = &node.config.tiers[tier].kind else { continue };
        let until = match is_full(errno) && node.slots[tier].is_some() {
            true => " until there is room",
            false => "",
        };
        let (name, path) = (node.tier_name(tier), path.display());
        said.push(format!("tier {name} ({path}): {errno}; it is left out{until}"));
    }
    let has_journal = node.journal.as_ref().is_some_and(Journal::takes_data);
    if node.config.wants_journal() && !has_journal && !said.is_empty() {
        said.push(
            "no file tier takes the journal: fsync of files with durability nonvolatile waits for \
             the backing store"
                .to_owned(),
        );
    }
    said
}

/// Brings to the store what tiers hold of the instance: with the tiers of the manager that has left
/// it, and with those that there are today.
pub(super) fn rebuild_all(
    today: &Config,
    runtime: &Runtime,
    faults: Option<&Arc<Faults>>,
) -> Result<Option<Rebuilt>, String> {
    let Some(left) = runtime.left_on_tiers(today) else { return Ok(None) };
    refuse_elsewhere(&left, runtime)?;
    let first = rebuild(&left, runtime, faults)?;
    let rest = rebuild(today, runtime, faults)?;
    Ok(match (first, rest) {
        (Some(first), Some(rest)) => Some(first.and(rest)),
        (first, rest) => first.or(rest),
    })
}
