//! What the file tiers of an instance hold whose segment is gone, as after a reboot, is brought to
//! the store's files before the instance starts anew: `slots` reads it, `locate` finds the files,
//! `replay` writes them, and `kept` renames what is left where something is lost.

mod kept;
mod locate;
mod recovered;
mod replay;
mod slots;

pub use replay::Rebuilt;

use crate::config::Config;
use crate::devices::faults::Faults;
use crate::instance::runtime::{Runtime, sync_folder_of};
use crate::journal::Journal;
use crate::journal::contents::{Contents, Staged};
use crate::journal::record::FileIdentity;
use crate::journal::superblock::reason;
use crate::recovery::removed::Keeper;
use forebay_placement::staged::Stage;
use forebay_pool::{crash, power_loss, private};
use kept::keep;
use replay::{Writers, replay};
use rustix::fd::AsFd;
use rustix::fs::OFlags;
use rustix::io::Errno;
use slots::recovered_slots;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Brings what slots and journal of an instance hold to the store, and removes the tiers' files.
/// The caller holds the instance's lock and has found no segment. `None`: there was nothing.
///
/// # Errors
/// A message that names what is lost; the tiers' files are then kept under other names. Or one that
/// names the file of the store that cannot be written; then all stays as it is, to be tried again.
pub(crate) fn rebuild(
    config: &Config,
    runtime: &Runtime,
    faults: Option<&Arc<Faults>>,
) -> Result<Option<Rebuilt>, String> {
    if !runtime.has_slots(config) {
        return Ok(None);
    }
    let journal = Journal::of(config, runtime).map(|journal| journal.path);
    let contents = match &journal {
        Some(path) => Contents::read(path).map_err(|errno| unreadable(path, errno))?,
        None => Contents::default(),
    };
    let is_checkpointed = |key: FileIdentity, sequence| {
        contents.checkpoint_of(key).is_some_and(|upto| sequence <= upto)
    };
    let mut recovered = recovered_slots(config, runtime, &is_checkpointed)?;
    // A slot that was torn while it was overwritten: what a sync acknowledged of it is in the
    // journal.
    recovered.lost.retain(|lost| match (lost.file, &lost.range) {
        (Some(file), Some(range)) => !contents.covers(file, range),
        _ => true,
    });
    if let (Some(path), Some(at)) = (&journal, contents.damaged) {
        let why = format!("byte {at}: a record is damaged, of which file is not known");
        recovered.lose_unknown(path, why);
    }
    let mut writers = Writers::of(config, faults);
    crash::point("rebuild.read");
    let mut keeper = Keeper::of(config, runtime);
    let mut rebuilt = replay(config, &mut recovered, &contents, &mut keeper, &mut writers)?;
    let unfinished = contents.staged.values().filter(|staged| staged.stage == Stage::Writing);
    let path = |staged: &Staged| PathBuf::from(OsStr::from_bytes(&staged.path));
    rebuilt.unfinished.extend(unfinished.map(path));
    rebuilt.unfinished.sort_unstable();
    let kept = keeper.finish();
    rebuilt.kept_in.extend(kept.map_err(|(path, error)| format!("{}: {error}", path.display()))?);
    crash::point("rebuild.applied");
    // The journal goes last: it may be applied again without harm, slots without it may not.
    let forget_journal = || {
        if let Some(path) = &journal {
            private::remove(path);
            sync_folder_of(path);
        }
        runtime.forget_config(config);
    };
    if recovered.lost.is_empty() {
        for (slots, index) in runtime.slot_files(config) {
            // Emptied first: slots without a table would look like a loss.
            if let Ok(table) = private::open(&index, OFlags::WRONLY).map(File::from) {
                power_loss::resizing(table.as_fd(), 0);
                let _ = table.set_len(0);
            }
            crash::point("rebuild.emptied");
            private::remove(&slots);
            crash::point("rebuild.freed");
            private::remove(&index);
        }
        crash::point("rebuild.forgetting");
        forget_journal();
        crash::point("rebuild.forgotten");
        return Ok((rebuilt != Rebuilt::default()).then_some(rebuilt));
    }
    // What it has of a file that is lost is nowhere else.
    let is_source = contents.damaged.is_some() || recovered.needs_journal;
    let needed_journal = journal.clone().filter(|_| is_source);
    let slots = runtime.slot_files(config).into_iter().flat_map(|(slots, index)| [slots, index]);
    let kept = keep(slots.chain(needed_journal));
    crash::point("rebuild.kept");
    let kept = match kept {
        Ok(kept) => {
            forget_journal();
            format!("what the tiers held is kept in {}", kept.join(", "))
        }
        Err(why) => {
            format!("what the tiers hold cannot be kept under other names, and stays: {why}")
        }
    };
    Err(format!(
        "data of an earlier run is lost:{}\n{} bytes of {} files were recovered; {kept}",
        recovered.describe_lost(),
        rebuilt.bytes,
        rebuilt.files,
    ))
}

fn unreadable(journal: &Path, errno: Errno) -> String {
    let name = journal.display();
    match errno {
        Errno::BADMSG => format!(
            "journal {name}: both copies of its superblock are damaged, so that it cannot be told what the \
             store has already; put the file right, or move it away: what the tiers hold is replayed then, and \
             older bytes may come over newer ones"
        ),
        _ => format!("journal {name}: {}", reason(journal, errno)),
    }
}
