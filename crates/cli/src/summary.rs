//! What a run did, said at its end.

use crate::drain::observe;
use crate::text::{bytes, counted};
use forebay_node::Config;
use forebay_node::config::Mode;
use forebay_node::markers::WHY;
use forebay_node::runtime::Runtime;
use forebay_node::status::{Count, DatasetRule};
use forebay_placement::schema::METADATA;
use serde_json::{Map, Value};
use std::time::Duration;

/// What the programs of a pool have counted at one moment.
#[derive(Default)]
pub struct Counts {
    all: Vec<Count>,
    /// Of each directory: opens of files there that cannot be buffered.
    unmarked: Vec<(String, u32)>,
    /// How often a file that was buffered was found changed on the store by others.
    conflicts: u64,
    /// How often programs told where a dataset lies, and how often the pool had no room for one.
    datasets: (u32, u32),
    /// The rules that ask for datasets.
    dataset_rules: Vec<DatasetRule>,
}

impl Counts {
    /// Those of now; all zero without a pool.
    pub fn now(runtime: &Runtime) -> Counts {
        let Some(observer) = observe(runtime) else { return Counts::default() };
        let (all, unmarked) = (observer.counters(), observer.unmarked());
        Counts {
            all,
            unmarked,
            conflicts: observer.conflicts().into(),
            datasets: observer.datasets(),
            dataset_rules: observer.dataset_rules(),
        }
    }

    fn of(&self, name: &str) -> u64 {
        self.all.iter().find(|count| count.name == name).map_or(0, |count| count.value)
    }

    /// What was counted between `before` and now: less than all in a pool that was made anew since.
    pub fn since(&self, before: &Counts, name: &str) -> u64 {
        self.of(name).saturating_sub(before.of(name))
    }

    /// One line on what was done since `before`, also by other runs meanwhile, with a drain that
    /// took `drain` behind the command's end.
    pub fn describe(&self, before: &Counts, drain: Duration) -> String {
        let count = |name| self.since(before, name);
        let opens = counted(count("opens"), "open", "opens");
        let written = counted(count("writes"), "write", "writes");
        let read = counted(count("reads"), "read", "reads");
        let around = match count("write_around") {
            0 => String::new(),
            blocks => format!(", {} past the full tiers", counted(blocks, "block", "blocks")),
        };
        let small = match count("small_files") {
            0 => String::new(),
            files => format!(", {} written through", counted(files, "small file", "small files")),
        };
        format!(
            "{opens}, {} in {written}{around}{small}, {} in {read}; all on the store {:.1} s after the command's end",
            bytes(count("write_bytes")),
            bytes(count("read_bytes")),
            drain.as_secs_f64()
        )
    }

    /// All that was counted since `before`, by name.
    pub fn all_since(&self, before: &Counts) -> Map<String, Value> {
        let of = |count: &Count| (count.name.to_owned(), self.since(before, count.name).into());
        self.all.iter().map(of).collect()
    }

    /// Directories with files that cannot be buffered, and how many of them were opened since
    /// `before`.
    pub fn unmarked_since(&self, before: &Counts) -> Vec<(String, u32)> {
        let mut found = Vec::new();
        for (directory, count) in &self.unmarked {
            let earlier = before.unmarked.iter().find(|(other, _)| other == directory);
            let opens = count.saturating_sub(earlier.map_or(0, |&(_, earlier)| earlier));
            if opens > 0 {
                found.push((directory.clone(), opens));
            }
        }
        found
    }

    /// Which files that were opened since `before` cannot be buffered, and why.
    pub fn describe_unmarked(&self, before: &Counts) -> Option<String> {
        let said = self.unmarked_since(before).into_iter().map(|(directory, opens)| {
            let opens = counted(opens, "open", "opens");
            format!("{opens} beneath {directory} could not be buffered: {WHY}")
        });
        let said: Vec<_> = said.collect();
        (!said.is_empty()).then(|| said.join("\n"))
    }

    /// That programs since `before` had an MPI library that the adapter cannot ask what it needs.
    pub fn describe_unadapted(&self, before: &Counts) -> Option<String> {
        let found = self.since(before, "mpi_unadapted");
        (found > 0).then(|| {
            format!(
                "the MPI library of {} is none that is supported: MPI-IO was buffered, and not looked ahead of; \
                 docs/mpi-io.md#which-mpi-libraries says which are",
                counted(found, "process", "processes"),
            )
        })
    }

    /// Which rules ask for datasets of which none was used since `before`, and why that may be; and
    /// that there were more datasets than can be known.
    pub fn describe_datasets(&self, before: &Counts) -> Option<String> {
        let is_idle = |rule: &&DatasetRule| {
            let earlier = before.dataset_rules.iter().find(|other| other.source == rule.source);
            rule.matched <= earlier.map_or(0, |earlier| earlier.matched)
        };
        let (seen, refused) = (
            self.datasets.0.saturating_sub(before.datasets.0),
            self.datasets.1.saturating_sub(before.datasets.1),
        );
        let why = match seen {
            0 => {
                "no dataset of HDF5 was seen at all: a program that is linked to it statically, or \
                 to one before 1.10.5, is not seen"
            }
            _ => "`forebay explain FILE` lists the datasets of a file, by their full paths",
        };
        let idle = self.dataset_rules.iter().filter(is_idle).map(|rule| {
            let DatasetRule { source, pattern, .. } = rule;
            if pattern == METADATA {
                let none = "no file of HDF5 was written for whose metadata it holds";
                return match seen {
                    0 => format!("{source}: {none}; {why}"),
                    _ => format!("{source}: {none}"),
                };
            }
            format!("{source}: no dataset that was used is called \"{pattern}\", or a rule further up holds for it; {why}")
        });
        let refused = (refused > 0 && !self.dataset_rules.is_empty()).then(|| {
            let datasets = counted(refused, "dataset", "datasets");
            format!("no room to know where {datasets} lay; rules did not hold for all of them")
        });
        let said: Vec<_> = idle.chain(refused).collect();
        (!said.is_empty()).then(|| said.join("\n"))
    }

    /// That others have written to files since `before` while they were buffered here, if so: in a
    /// group, whose nodes do that to each other.
    pub fn describe_conflicts(
        &self,
        before: &Counts,
        (runtime, config): (&Runtime, &Config),
    ) -> Option<String> {
        let found = self.conflicts.saturating_sub(before.conflicts);
        (found > 0 && config.is_in_group()).then(|| {
            format!(
                "{} changed on the store by others while it was buffered; {} says which. Of each 4 KiB that both \
                 wrote, what was written here is there, and the rest may be lost: nodes that write one file need \
                 leases: consistency = \"auto\" or \"strict\" in [group]",
                counted(found, "time a file was found", "times a file was found"),
                runtime.readable_log().display()
            )
        })
    }

    /// That no file was opened since `before`, if so: the directory may be another one than was
    /// meant. Files that are not to be buffered are not counted.
    pub fn describe_nothing(&self, before: &Counts, config: &Config) -> Option<String> {
        let is_buffered = |mode| mode != Mode::Bypass;
        if self.since(before, "opens") > 0
            || !config.backing.iter().any(|backing| is_buffered(backing.mode))
        {
            return None;
        }
        let stores: Vec<_> =
            config.backing.iter().map(|backing| backing.path.display().to_string()).collect();
        Some(format!(
            "nothing was buffered: no program of this run was seen to open a file beneath {}. If one did, it is linked \
             statically, was started without LD_PRELOAD, or had no room for the pool (valgrind, ulimit -v)",
            stores.join(", ")
        ))
    }
}
