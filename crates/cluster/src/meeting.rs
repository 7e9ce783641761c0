//! How nodes of one job find each other where there is no list of hosts: each notes in the group's
//! folder how many of the job's processes it has, until those are all.

use crate::error::GroupError;
use crate::folder::{GroupFolder, OPENING};
use forebay_membership::HostList;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// Between two looks, first and last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

/// A node of a job that looks for the others.
#[derive(Clone, Copy, Debug)]
pub struct Meeting<'m> {
    /// The group's folder, the same on all nodes; the folder that it is in has to be there.
    pub folder: &'m Path,
    /// What all nodes of the job know of it, and no other job has: letters and digits.
    pub job: &'m str,
    /// The name of this host, by which the others reach it.
    pub host: &'m str,
    /// How many processes of the job this host has.
    pub here: u32,
    /// How many the job has.
    pub all: u32,
    /// How long the others may take.
    pub limit: Duration,
}

impl Meeting<'_> {
    /// The hosts of the job, by ascending name, as soon as all have come. Any process of the job
    /// may call this, several of one host, too.
    ///
    /// What is noted goes with the folder, when the last member of the group leaves it, or with the
    /// last one that has waited in vain.
    ///
    /// # Errors
    /// Others have not come in time, or the folder cannot be used.
    pub fn hosts(&self) -> Result<HostList, GroupError> {
        let begun = Instant::now();
        let mut pause = PAUSES.0;
        loop {
            let came = match GroupFolder::open(self.folder) {
                // It was there, and has gone with its last member.
                Err(GroupError::File { what: OPENING, errno: Errno::NOENT, .. }) => None,
                folder => {
                    let folder = folder?;
                    let came = folder.meet(self)?;
                    folder.is_in_place()?.then_some((folder, came))
                }
            };
            let is_late = begun.elapsed() >= self.limit;
            if let Some((folder, came)) = came {
                let count: u64 = came.values().map(|here| u64::from(*here)).sum();
                if count == u64::from(self.all) {
                    return list(came.into_keys(), &folder);
                }
                if is_late || count > u64::from(self.all) {
                    folder.part(self)?;
                    let (folder, waited) = (self.folder.to_owned(), begun.elapsed());
                    let (waited_ms, all) = (waited.as_millis() as u64, self.all);
                    return Err(GroupError::Unmet { folder, waited_ms, all, came });
                }
            } else if is_late {
                let why = "is removed again and again".to_owned();
                return Err(GroupError::Refused { path: self.folder.to_owned(), why });
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(PAUSES.1);
        }
    }
}

fn list(hosts: impl Iterator<Item = String>, folder: &GroupFolder) -> Result<HostList, GroupError> {
    let hosts: Vec<_> = hosts.collect();
    let list = HostList::of_expression(&hosts.join(","));
    list.map_err(|error| folder.refused("", error.to_string()))
}

/// What a node has noted.
pub(crate) struct Note<'n> {
    job: &'n str,
    here: u32,
    host: &'n str,
}

impl<'n> Note<'n> {
    /// What its name begins with.
    pub const START: &'static str = "meets.";

    pub fn of_name(name: &'n str) -> Option<Self> {
        let mut parts = name.strip_prefix(Self::START)?.splitn(3, '.');
        let (job, here) = (parts.next()?, parts.next()?.parse().ok()?);
        Some(Self { job, here, host: parts.next().filter(|host| !host.is_empty())? })
    }

    fn name(&self) -> String {
        let Self { job, here, host } = self;
        format!("{}{job}.{here}.{host}", Self::START)
    }
}

impl Meeting<'_> {
    /// The name of what this node notes.
    pub(crate) fn note(&self) -> String {
        Note { job: self.job, here: self.here, host: self.host }.name()
    }

    /// Those of the job that have noted something, and how many processes each has.
    pub(crate) fn came(&self, notes: &[String]) -> BTreeMap<String, u32> {
        let notes = notes.iter().filter_map(|name| Note::of_name(name));
        let notes = notes.filter(|note| note.job == self.job);
        // Two of one host cannot both be right: together they are too many.
        let mut came = BTreeMap::<String, u32>::new();
        for note in notes {
            let here = came.entry(note.host.to_owned()).or_default();
            *here = here.saturating_add(note.here);
        }
        came
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meeting<'m>(folder: &'m Path, host: &'m str, here: u32) -> Meeting<'m> {
        Meeting { folder, job: "7", host, here, all: 4, limit: Duration::from_secs(30) }
    }

    #[test]
    fn all_processes_of_a_job_get_one_list() {
        let store = tempfile::tempdir().unwrap();
        let folder = store.path().join("group");
        let lists: Vec<_> = std::thread::scope(|scope| {
            let come = [("b", 1), ("c.d", 1), ("a", 2), ("a", 2)].map(|(host, here)| {
                let meeting = meeting(&folder, host, here);
                scope.spawn(move || meeting.hosts())
            });
            // Another job's in the same folder, which is named in the configuration.
            let other = Meeting { job: "8", ..meeting(&folder, "e", 4) };
            assert_eq!(other.hosts().unwrap().names(), ["e"]);
            come.into_iter().map(|one| one.join().unwrap().unwrap()).collect()
        });
        assert!(lists.iter().all(|list| list.names() == ["a", "b", "c.d"]), "{lists:?}");
        // One that comes late has it at once.
        assert_eq!(meeting(&folder, "b", 1).hosts().unwrap(), lists[0]);
    }

    #[test]
    fn those_that_wait_in_vain_say_who_came_and_leave_nothing() {
        let store = tempfile::tempdir().unwrap();
        let folder = store.path().join("group");
        let one = Meeting { limit: Duration::from_millis(100), ..meeting(&folder, "a", 1) };
        let said = one.hosts().unwrap_err().to_string();
        assert!(said.contains("4 processes") && said.contains(": a (1)"), "{said}");
        assert!(!folder.exists());
        // More than there are, of a job of the same number that was killed.
        std::fs::create_dir(&folder).unwrap();
        let stale = folder.join("meets.7.4.z");
        std::fs::write(&stale, "").unwrap();
        let begun = Instant::now();
        let said = meeting(&folder, "a", 1).hosts().unwrap_err().to_string();
        assert!(said.contains("a (1), z (4)"), "{said}");
        assert!(begun.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_folder_that_goes_meanwhile_is_made_again() {
        let store = tempfile::tempdir().unwrap();
        let folder = store.path().join("group");
        std::thread::scope(|scope| {
            let first = scope.spawn(|| meeting(&folder, "a", 2).hosts());
            let note = folder.join("meets.7.2.a");
            let begun = Instant::now();
            while !note.exists() {
                assert!(begun.elapsed() < Duration::from_secs(20));
                std::thread::sleep(Duration::from_millis(1));
            }
            std::fs::rename(&folder, store.path().join("aside")).unwrap();
            let second = meeting(&folder, "b", 2).hosts().unwrap();
            assert_eq!(first.join().unwrap().unwrap(), second);
        });
    }
}
