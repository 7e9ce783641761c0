//! Which faults have hit, and so which errors are none: the managers note each in a file.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes at the end of the file that are looked at for an error.
const TAIL: u64 = 1 << 20;
/// How long after it has hit a fault explains an error of a call that is not a sync: the pauses between
/// tries of a flush.
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

/// Whether a fault with this errno has hit `since` this time: one of the store, or a read of a tier, which may
/// be the only one that has the bytes. That a tier cannot be written is no program's business. A call that is
/// no sync is excused only by what was a moment ago.
pub fn explains(path: &Path, errno: i32, since: u64, is_sync: bool) -> bool {
    let now = now_ns();
    let since = match (errno, is_sync) {
        // A file may be safe and its manager stopped all the same.
        (STOPPED, _) => now.saturating_sub(MOMENT_NS),
        (_, true) => since,
        (_, false) => since.max(now.saturating_sub(MOMENT_NS)),
    };
    let mut text = Vec::new();
    let read = std::fs::File::open(path).and_then(|mut file| {
        let size = file.metadata()?.len();
        file.seek(SeekFrom::Start(size.saturating_sub(TAIL)))?;
        file.read_to_end(&mut text)
    });
    let text = String::from_utf8_lossy(&text);
    let hit = |line: &str| {
        let mut words = line.split(' ');
        let time = words.next().and_then(|word| word.parse::<u64>().ok());
        let (device, operation) = (words.next(), words.next());
        let concerns = matches!(device, Some("store" | "manager")) || operation == Some("read");
        let error = words.nth(1).and_then(|word| word.parse::<i32>().ok());
        concerns && time.is_some_and(|time| time >= since) && error == Some(errno)
    };
    read.is_ok() && text.lines().rev().any(hit)
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
    fn an_error_is_excused_by_its_fault_and_its_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hits");
        assert!(!explains(&path, 5, 0, true));
        let now = now_ns();
        let old = now - 60_000_000_000;
        let text = format!(
            "{old} store write fail 5\n{now} nvme read fail 28\n\
             {now} nvme write tear 122\n{now} store sync delay 0\n"
        );
        std::fs::write(&path, text).unwrap();
        assert!(explains(&path, 28, now, true) && explains(&path, 28, 0, false));
        assert!(!explains(&path, 28, now + 1, true) && !explains(&path, 122, 0, true));
        assert!(explains(&path, 5, old, true) && !explains(&path, 5, old, false));
        assert!(!explains(&path, 5, old + 1, true));
        let mut sums = BTreeMap::new();
        gather(&path, &mut sums);
        gather(&path, &mut sums);
        let wanted = ["nvme read fail", "nvme write tear", "store sync delay", "store write fail"];
        assert!(sums.keys().eq(wanted) && sums.values().all(|&count| count == 1));
    }
}
