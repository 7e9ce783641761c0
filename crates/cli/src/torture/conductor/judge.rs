//! Judging what the programs of a case have left, by what they were told.

use super::super::model::{Course, Story};
use super::super::pairs::{Case, NAMES};
use super::super::script::{Files, Script, Step, Told};
use super::{Conductor, ETIMEDOUT, Pass, within};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// How long it may take until a dead program's slot is reaped, and its last write counted.
pub(super) const TAKEN_BACK: Duration = Duration::from_secs(10);
/// Between two attempts of what may fail for a while.
const RETRIED: Duration = Duration::from_millis(5);

/// What there is of a case's files, as programs see it: what is read, and the size that stat says.
pub(super) type Seen = BTreeMap<char, (Vec<u8>, u64)>;

pub(super) fn observe(files: &Files) -> io::Result<Seen> {
    let mut seen = BTreeMap::new();
    for name in NAMES {
        match fs::read(files.path(name)) {
            Ok(bytes) => {
                let size = fs::metadata(files.path(name))?.len();
                seen.insert(name, (bytes, size));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(within(&format!("reading file {name}"), error)),
        }
    }
    Ok(seen)
}

/// A file of which less or more is read than stat says.
pub(super) fn disagreement(seen: &Seen) -> Option<String> {
    let one = |(name, (bytes, size)): (&char, &(Vec<u8>, u64))| {
        let count = bytes.len();
        let what = || format!("file {name}: stat says {size} bytes, {count} are read");
        (*size != count as u64).then(what)
    };
    seen.iter().find_map(one)
}

pub(super) fn contents(seen: Seen) -> BTreeMap<char, Vec<u8>> {
    seen.into_iter().map(|(name, (bytes, _))| (name, bytes)).collect()
}

/// Syncs a file until that succeeds: only what a sync has acknowledged is sure to be on the store
/// after a loss of memory. Errors that are excused may come for a while, for what has failed
/// before.
///
/// # Errors
/// The file cannot be opened; within, the sync's last.
fn sync_again(path: &Path, excused: &[i32], since: Instant) -> io::Result<io::Result<()>> {
    let is_excused =
        |error: &io::Error| error.raw_os_error().is_some_and(|it| excused.contains(&it));
    loop {
        match File::open(path)?.sync_all() {
            Err(error) if is_excused(&error) && since.elapsed() < TAKEN_BACK => {
                std::thread::sleep(RETRIED);
            }
            other => return Ok(other),
        }
    }
}

impl Conductor<'_> {
    /// Judges what is seen through Forebay, and again when all is synced, and keeps that to be
    /// compared with the store.
    pub(super) fn judge(&mut self, story: &Story, files: &Files) -> io::Result<Option<String>> {
        let is_certain = story.courses.iter().all(|course| !course.died);
        let seen = observe(files)?;
        if let Some(what) = disagreement(&seen).filter(|_| is_certain) {
            return Ok(Some(what));
        }
        let seen = contents(seen);
        if let Some(what) = story.judge(&seen) {
            return Ok(Some(what));
        }
        let since = Instant::now();
        let synced = loop {
            for name in seen.keys() {
                if let Err(error) = sync_again(&files.path(*name), story.excused, since)?
                    && error.raw_os_error() != Some(ETIMEDOUT)
                {
                    return Ok(Some(format!("fsync of file {name}: {error}")));
                }
            }
            let synced = observe(files)?;
            match disagreement(&synced) {
                None => break contents(synced),
                Some(what) if is_certain || since.elapsed() > TAKEN_BACK => {
                    return Ok(Some(format!("after fsync: {what}")));
                }
                Some(_) => std::thread::sleep(RETRIED),
            }
        };
        if let Some(what) = story.judge(&synced) {
            return Ok(Some(format!("after fsync, though not before: {what}")));
        }
        if is_certain && seen != synced {
            return Ok(Some("what is read after fsync is not what was read before".into()));
        }
        for (name, bytes) in &synced {
            let path = files.path(*name);
            let kept = self.folder.join("seen").join(path.file_name().unwrap_or_default());
            fs::write(kept, bytes)?;
            self.tally.bytes += bytes.len() as u64;
        }
        Ok(None)
    }

    /// What is wrong with a program's end.
    pub(super) fn unexpected(
        &self,
        case: &Case,
        scripts: &[Script; 2],
        index: usize,
        told: &[Told],
        status: ExitStatus,
    ) -> Option<String> {
        let program = ["X", "Y"][index];
        let is_to_die = case.form.kills() && (index == 0 || case.form.has_threads());
        let step = scripts[index].all().nth(told.len());
        let shortens = scripts.iter().flat_map(Script::all).any(Step::shortens);
        let maps = case.form.has_threads() || matches!(step, Some(Step::Map { .. }));
        match status.signal() {
            Some(libc::SIGKILL) if is_to_die => None,
            // Behind the end of what the other one has cut.
            Some(libc::SIGBUS) if shortens && maps => None,
            None if status.success() => None,
            _ => Some(format!("program {program} ended with {status}")),
        }
    }

    pub(super) fn count(
        &mut self,
        case: &Case,
        pass: Option<&Pass>,
        scripts: &[Script; 2],
        courses: &[Course; 2],
        statuses: &[Option<ExitStatus>; 2],
    ) -> io::Result<()> {
        let was_killed = statuses[0].is_some_and(|status| status.signal() == Some(libc::SIGKILL));
        let was_within = courses[0].told.len() < scripts[0].all().count();
        let has_paused = fs::metadata(self.folder.join("paused")).is_ok_and(|log| log.len() > 0);
        let kind = match (case.form.kills(), pass) {
            (true, None) => {
                self.tally.kills_behind += u64::from(was_killed);
                return Ok(());
            }
            (false, None) => {
                self.tally.pauses_behind += 1;
                return Ok(());
            }
            (true, Some(_)) => {
                self.tally.kills += 1;
                let hit = was_killed && was_within;
                self.tally.kills_hit += u64::from(hit);
                hit.then_some("kill")
            }
            (false, Some(_)) => {
                self.tally.pauses += 1;
                self.tally.pauses_hit += u64::from(has_paused);
                has_paused.then_some("pause")
            }
        };
        match (kind, pass) {
            (Some(kind), Some((point, _))) => {
                self.reached.write_all(format!("{kind} {point}\n").as_bytes())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn explain(
        &self,
        case: &Case,
        pass: Option<&Pass>,
        story: &Story,
        what: &str,
    ) -> String {
        let within = pass.map_or("behind X".into(), |(name, pass)| format!("{name}:{pass}"));
        let mut text = format!("{what}\n      {}", case.text());
        let early = if case.kills_manager { ", the node manager killed" } else { "" };
        text.push_str(&format!("\n      at {within}{early}, by worker {}", self.arguments.number));
        for (index, name) in ["X", "Y"].into_iter().enumerate() {
            let course = &story.courses[index];
            let died = if course.died { ", died" } else { "" };
            let script = story.scripts[index].text();
            text.push_str(&format!("\n      {name}: {script}\n         {:?}{died}", course.told));
        }
        let Case { number, .. } = case;
        let seed = self.arguments.seed;
        text.push_str(&format!("\n      again: --scenario pairs --case {number} --seed {seed}"));
        text
    }
}
