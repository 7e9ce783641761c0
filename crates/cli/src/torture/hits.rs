//! Which faults have hit, and so which errors are none: the managers note each in a file.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes at the end of the file that are looked at for an error.
const TAIL: u64 = 1 << 20;
/// How long after it has hit a fault explains an error of a call that is not a sync: the pauses
/// between tries of a flush.
const MOMENT_NS: u64 = 5_000_000_000;

/// The errno of a sync that finds the node manager stopped: ETIMEDOUT.
pub const STOPPED: i32 = 110;

/// Notes that a node manager is stopped, or dead, or pauses, from now on.
pub fn note_stop(path: &Path) {
    use std::io::Write;
    let mut options = std::fs::File::options();
    if let Ok(mut file) = options.append(true).create(true).open(path) {
        let _ = file.write_all(format!("{} manager sync stopped {STOPPED}\n", now_ns()).as_bytes());
    }
}

/// Nanoseconds since 1970.
pub fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// What a call is that has failed, as far as errors are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// It tells of everything that failed before.
    Sync,
    /// What journal and slots have of the file must be checkpointed before: a truncate, or a call
    /// that the kernel does.
    Checkpointing,
    /// Any other.
    Plain,
}

/// The errno of a file whose checkpoint the journal could not log: EIO, whatever its device said.
const NO_CHECKPOINT: i32 = 5;

/// Whether a fault with this errno has hit `since` this time: one of the store, or a read of a
/// tier, which may be the only one that has the bytes. That a tier cannot be written concerns only
/// what makes checkpoints of files: where the journal cannot note that, a recovery could put old
/// bytes over those on the store. A call that is no sync is excused only by what was a moment ago.
pub fn explains(path: &Path, errno: i32, since: u64, call: Call) -> bool {
    let now = now_ns();
    let moment = now.saturating_sub(MOMENT_NS);
    let of_journal = match call {
        // The generation in which its device failed goes on until all files in it have a
        // checkpoint.
        Call::Sync => since.min(moment),
        _ => moment,
    };
    let since = match (errno, call) {
        // A file may be safe and its manager stopped all the same.
        (STOPPED, _) => moment,
        (_, Call::Sync) => since,
        _ => since.max(moment),
    };
    let tail = |path: &Path| {
        let mut text = Vec::new();
        let _ = std::fs::File::open(path).and_then(|mut file| {
            let size = file.metadata()?.len();
            file.seek(SeekFrom::Start(size.saturating_sub(TAIL)))?;
            file.read_to_end(&mut text)
        });
        String::from_utf8_lossy(&text).into_owned()
    };
    // They may just have been gathered; that moves them on, so in this order.
    let texts = [tail(path), tail(&path.with_extension("taken"))];
    let hit = |line: &str| {
        let mut words = line.split(' ');
        let time = words.next().and_then(|word| word.parse::<u64>().ok());
        let (device, operation) = (words.next(), words.next());
        let concerns = matches!(device, Some("store" | "manager")) || operation == Some("read");
        let error = words.nth(1).and_then(|word| word.parse::<i32>().ok());
        let has_no_checkpoint = errno == NO_CHECKPOINT
            && call != Call::Plain
            && device != Some("store")
            && matches!(operation, Some("write" | "sync"))
            && error.is_some_and(|error| error != 0 && error != STOPPED);
        let is_it = |time| concerns && time >= since && error == Some(errno);
        time.is_some_and(|time| is_it(time) || has_no_checkpoint && time >= of_journal)
    };
    texts.iter().any(|text| text.lines().rev().any(hit))
}

/// Adds how often each fault has hit, by device, operation and kind, and begins anew.
pub fn gather(path: &Path, sums: &mut BTreeMap<String, u64>) {
    // In one step: a manager that still has the old name adds to what is read.
    let taken = path.with_extension("taken");
    if std::fs::rename(path, &taken).is_err() {
        return;
    }
    let text = std::fs::read_to_string(&taken).unwrap_or_default();
    for line in text.lines() {
        let words: Vec<_> = line.split(' ').collect();
        if let [_, device, operation, fault, ..] = words[..] {
            *sums.entry(format!("{device} {operation} {fault}")).or_default() += 1;
        }
    }
    // The last are kept: they may explain a loss.
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_journal_cannot_log_excuses_only_checkpoints() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hits");
        let now = now_ns();
        std::fs::write(&path, format!("{now} nvme write fail 28\n")).unwrap();
        assert!(
            explains(&path, 5, 0, Call::Sync) && explains(&path, 5, now + 1, Call::Checkpointing)
        );
        assert!(!explains(&path, 5, 0, Call::Plain) && !explains(&path, 28, 0, Call::Sync));
        for hit in ["nvme sync delay 0", "store write fail 28", "manager sync stopped 110"] {
            std::fs::write(&path, format!("{now} {hit}\n")).unwrap();
            assert!(!explains(&path, 5, 0, Call::Sync), "{hit}");
        }
    }

    #[test]
    fn an_error_is_excused_by_its_fault_and_its_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hits");
        assert!(!explains(&path, 116, 0, Call::Sync));
        let now = now_ns();
        let old = now - 60_000_000_000;
        let text = format!(
            "{old} store write fail 116\n{now} nvme read fail 28\n\
             {now} nvme write tear 122\n{now} store sync delay 0\n"
        );
        std::fs::write(&path, text).unwrap();
        assert!(explains(&path, 28, now, Call::Sync) && explains(&path, 28, 0, Call::Plain));
        assert!(!explains(&path, 28, now + 1, Call::Sync) && !explains(&path, 122, 0, Call::Sync));
        assert!(explains(&path, 116, old, Call::Sync) && !explains(&path, 116, old, Call::Plain));
        assert!(!explains(&path, 116, old + 1, Call::Sync));
        let mut sums = BTreeMap::new();
        gather(&path, &mut sums);
        gather(&path, &mut sums);
        let wanted = ["nvme read fail", "nvme write tear", "store sync delay", "store write fail"];
        assert!(sums.keys().eq(wanted) && sums.values().all(|&count| count == 1));
    }
}
