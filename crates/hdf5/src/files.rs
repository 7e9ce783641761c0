//! Where the raw data of files lies that the process writes, for rules that ask for the rest: their
//! metadata. Kept only where there is such a rule.

use crate::session::FileIdentity;
use core::sync::atomic::{AtomicUsize, Ordering};
use forebay_client::services::ByteRange;
use std::sync::{Mutex, MutexGuard};

/// Files that are followed at the same time; of more, nothing is told apart.
const FILES_MAX: usize = 64;
/// Pieces of raw data of a file, 16 bytes each; of one with more, nothing is told apart.
const PIECES_MAX: usize = 1 << 16;
/// How often a thread looks whether another one has left the table, which a fork may have left
/// locked.
const LOOKS: usize = 10_000;
/// Bytes of the part of the superblock that each program writes that opens a file for writing.
const SUPERBLOCK: u64 = 96;

struct Written {
    file: FileIdentity,
    /// How often the process has it open for writing.
    opens: u32,
    /// What is before that was there when the process opened it, and may be anything.
    from: u64,
    /// What was in use of it at the last look.
    end: u64,
    /// Raw data, in order and apart.
    raw: Vec<ByteRange>,
    /// All raw data is known that the process has written.
    is_whole: bool,
}

static FILES: Mutex<Vec<Written>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn files() -> Option<MutexGuard<'static, Vec<Written>>> {
    (0..LOOKS).find_map(|_| {
        let found = FILES.try_lock().ok();
        if found.is_none() {
            core::hint::spin_loop();
        }
        found
    })
}

fn with<R>(file: FileIdentity, act: impl FnOnce(&mut Written) -> R) -> Option<R> {
    if !is_any() {
        return None;
    }
    files()?.iter_mut().find(|written| written.file == file).map(act)
}

/// Whether any file is followed.
pub fn is_any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// A file was opened for writing of which so many bytes are in use; a new one has no content.
pub fn opened(file: FileIdentity, bytes: u64, is_new: bool) {
    let Some(mut files) = files() else { return };
    let fresh = |opens| Written {
        file,
        opens,
        from: if is_new { 0 } else { bytes },
        end: bytes,
        raw: Vec::new(),
        is_whole: true,
    };
    if let Some(written) = files.iter_mut().find(|written| written.file == file) {
        // What another process has added meanwhile may be anything.
        let goes_on = !is_new && (written.opens > 0 || written.end == bytes);
        match goes_on {
            true => written.opens += 1,
            false => *written = fresh(written.opens + 1),
        }
        return;
    }
    if files.len() == FILES_MAX {
        let Some(closed) = files.iter().position(|written| written.opens == 0) else { return };
        files.remove(closed);
    }
    files.push(fresh(1));
    COUNT.store(files.len(), Ordering::Relaxed);
}

/// A file was closed.
pub fn closed(file: FileIdentity) {
    with(file, |written| written.opens = written.opens.saturating_sub(1));
}

/// Raw data of a file lies in `ranges`; `is_whole`: all of a dataset's.
pub fn add(file: FileIdentity, ranges: &[ByteRange], is_whole: bool) {
    with(file, |written| {
        written.is_whole &= is_whole;
        written.raw.extend_from_slice(ranges);
        join(&mut written.raw);
        if written.raw.len() > PIECES_MAX {
            written.is_whole = false;
            written.raw = Vec::new();
        }
    });
}

/// Some raw data of a file is not known.
pub fn miss(file: FileIdentity) {
    with(file, |written| written.is_whole = false);
}

/// What is not raw data, of so many bytes of a file that are in use, and from where on this is
/// known. `None` where it is not.
pub fn rest(file: FileIdentity, bytes: u64) -> Option<(u64, Vec<ByteRange>)> {
    with(file, |written| {
        written.end = bytes;
        written.is_whole.then(|| (written.from, gaps(&written.raw, written.from, bytes)))
    })?
}

/// Puts ranges in order, and joins those that touch.
fn join(ranges: &mut Vec<ByteRange>) {
    ranges.sort_unstable();
    ranges.dedup_by(|next, kept| {
        let touches = next.start <= kept.end;
        if touches {
            kept.end = kept.end.max(next.end);
        }
        touches
    });
}

/// What lies between ranges from one byte to another one, and the superblock.
fn gaps(raw: &[ByteRange], from: u64, to: u64) -> Vec<ByteRange> {
    let mut gaps = vec![ByteRange { start: 0, end: SUPERBLOCK }];
    let mut at = from;
    for range in raw.iter().take_while(|range| range.start < to) {
        if range.start > at {
            gaps.push(ByteRange { start: at, end: range.start });
        }
        at = at.max(range.end);
    }
    if at < to {
        gaps.push(ByteRange { start: at, end: to });
    }
    join(&mut gaps);
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    #[test]
    fn metadata_is_what_lies_between() {
        let mut raw = vec![range(900, 1000), range(200, 300), range(300, 400), range(250, 310)];
        join(&mut raw);
        assert_eq!(raw, [range(200, 400), range(900, 1000)]);
        assert_eq!(gaps(&raw, 0, 1200), [range(0, 200), range(400, 900), range(1000, 1200)]);
        assert_eq!(gaps(&raw, 350, 950), [range(0, 96), range(400, 900)]);
        assert_eq!(gaps(&raw, 2000, 2000), [range(0, 96)]);
    }

    #[test]
    fn what_was_there_before_is_not_told_apart() {
        let file = FileIdentity::at(c"/").unwrap();
        assert_eq!(rest(file, 100), None);
        opened(file, 500, false);
        add(file, &[range(600, 700), range(100, 200)], true);
        assert_eq!(
            rest(file, 800),
            Some((500, vec![range(0, 96), range(500, 600), range(700, 800)]))
        );
        // The same process goes on; another one may have written meanwhile.
        closed(file);
        opened(file, 800, false);
        assert_eq!(rest(file, 800).unwrap().0, 500);
        opened(file, 900, false);
        assert_eq!(rest(file, 800).unwrap().0, 500, "it was open all the time");
        closed(file);
        closed(file);
        opened(file, 950, false);
        assert_eq!(rest(file, 1000), Some((950, vec![range(0, 96), range(950, 1000)])));
        miss(file);
        assert_eq!(rest(file, 1000), None);
        opened(file, 96, true);
        assert_eq!(rest(file, 300), Some((0, vec![range(0, 300)])));
    }
}
