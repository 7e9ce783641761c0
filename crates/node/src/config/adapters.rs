//! The table `[run]`: which adapters are loaded with programs, and what becomes of the node manager
//! after the run.

use super::errors::Errors;
use super::messages::Messages;
use super::reader::{self, Value};
use super::types::Config;
use core::fmt::Write;
use forebay_client::{DeepBind, MpiIo, Needs};
use std::time::Duration;

const KEYS: &[&str] = &["adapters", "mpiio", "deepbind", "keep", "max_unsafe", "max_age"];

/// How programs of a run are adapted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ways {
    /// The adapters that they may load.
    pub adapters: Needs,
    /// What the adapter for MPI-IO does in them.
    pub mpiio: MpiIo,
    /// What becomes of `RTLD_DEEPBIND` in them.
    pub deepbind: DeepBind,
}

impl Default for Ways {
    fn default() -> Ways {
        Ways { adapters: Needs::ALL, mpiio: MpiIo::default(), deepbind: DeepBind::default() }
    }
}

impl Ways {
    /// The variable that says which adapters programs load.
    pub(crate) const ADAPTERS: &str = "FOREBAY_ADAPTERS";

    /// Where nothing is said: the adapter for MPI-IO chooses modes where `forebay profile --mpi`
    /// has measured what its model needs.
    pub(super) fn usual(messages: &Messages) -> Ways {
        let is_measured = *messages != Messages::default();
        let mpiio = if is_measured { MpiIo::Auto } else { MpiIo::default() };
        Ways { mpiio, ..Ways::default() }
    }

    /// What is not as a library has it that is told nothing: the key in `[run]`, the variable, and
    /// the value.
    pub(crate) fn said(&self) -> impl Iterator<Item = [&'static str; 3]> {
        self.unlike(Ways::default())
    }

    /// What is not as `usual`.
    fn unlike(&self, usual: Ways) -> impl Iterator<Item = [&'static str; 3]> {
        let Ways { adapters, mpiio, deepbind } = *self;
        [
            (adapters != usual.adapters).then(|| ["adapters", Ways::ADAPTERS, adapters.names()]),
            (mpiio != usual.mpiio).then(|| ["mpiio", MpiIo::VARIABLE, mpiio.name()]),
            (deepbind != usual.deepbind).then(|| ["deepbind", DeepBind::VARIABLE, deepbind.name()]),
        ]
        .into_iter()
        .flatten()
    }
}

impl Value<'_> {
    /// The table `[run]`: how programs are adapted, and for how long the manager stays after them.
    pub(super) fn run(&self, usual: Ways, errors: &Errors) -> reader::Result<(Ways, Duration)> {
        let section = self.table(KEYS, "a table: [run]")?;
        let keep = section.read("keep", 0, errors, |entry| entry.duration_ns("10min"));
        let ways = Ways {
            adapters: section.read("adapters", usual.adapters, errors, |entry| {
                Needs::admitted(entry.text()?).ok_or_else(|| entry.error(Needs::CHOICES))
            }),
            mpiio: section.read("mpiio", usual.mpiio, errors, |entry| {
                MpiIo::named(entry.text()?).ok_or_else(|| entry.error(MpiIo::CHOICES))
            }),
            deepbind: section.read("deepbind", usual.deepbind, errors, |entry| {
                DeepBind::named(entry.text()?).ok_or_else(|| entry.error(DeepBind::CHOICES))
            }),
        };
        Ok((ways, Duration::from_nanos(keep)))
    }
}

impl Config {
    /// What is said of runs, as part of the canonical text. It is no part of the instance's
    /// identity: a run does what its own configuration says.
    pub(super) fn write_run(&self, text: &mut String) {
        let usual = Ways::usual(&self.messages);
        let ways = self.ways.unlike(usual).map(|[key, _, value]| format!("{key} = \"{value}\""));
        let keep = (!self.keep.is_zero()).then(|| format!("keep = \"{}ns\"", self.keep.as_nanos()));
        for (index, line) in ways.chain(keep).chain(self.run_limits()).enumerate() {
            let head = if index == 0 { "[run]\n" } else { "" };
            let _ = writeln!(text, "{head}{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_do_is_read_and_written() {
        let given = |run: &str| {
            let text = format!(
                "{run}\n[[backing]]\npath = \"/tmp\"\n\
                 [[tier]]\nname = \"ram\"\nkind = \"ram\"\ncapacity = \"64MiB\"\n"
            );
            Config::parse(&text)
        };
        let instance = given("").unwrap().instance_id();
        for (run, needs) in [
            ("", Needs::ALL),
            ("[run]\nadapters = \"auto\"", Needs::ALL),
            ("[run]\nadapters = \"none\"", Needs::NONE),
            ("[run]\nadapters = \"hdf5\"", Needs::HDF5.with(Needs::HDF5_LATER)),
            ("[run]\nadapters = \"mpiio\"", Needs::MPI.with(Needs::MPI_LARGE)),
        ] {
            let config = given(run).unwrap();
            assert_eq!(config.ways.adapters, needs, "{run}");
            assert_eq!(Config::parse(&config.canonical()).unwrap(), config);
            assert_eq!(config.instance_id(), instance);
        }
        let text = "[run]\nadapters = \"none\"\nmpiio = \"auto\"\ndeepbind = \"keep\"";
        let config = given(text).unwrap();
        assert_eq!((config.ways.mpiio, config.ways.deepbind), (MpiIo::Auto, DeepBind::Keep));
        assert_eq!(Config::parse(&config.canonical()).unwrap(), config);
        assert_eq!(config.instance_id(), instance);
        for (run, seconds) in [("keep = \"10m\"", 600), ("mpiio = \"auto\"\nkeep = \"0s\"", 0)] {
            let config = given(&format!("[run]\n{run}")).unwrap();
            assert_eq!(config.keep, Duration::from_secs(seconds), "{run}");
            assert_eq!(Config::parse(&config.canonical()).unwrap(), config);
            assert_eq!(config.instance_id(), instance);
        }
        for (key, wanted) in [("mpiio", "everywhere"), ("deepbind", "keep"), ("keep", "10min")] {
            let wrong = given(&format!("[run]\n{key} = \"yes\"")).unwrap_err().to_string();
            assert!(wrong.contains(&format!("run.{key}")) && wrong.contains(wanted), "{wrong}");
        }
        let measured = "[mpi]\nwithin = { latency = \"1us\", bandwidth = \"1GB/s\" }\n\
                        between = { latency = \"2us\", bandwidth = \"1GB/s\" }\n";
        for (run, mpiio) in [("", MpiIo::Auto), ("[run]\nmpiio = \"observe\"", MpiIo::Observe)] {
            let config = given(&format!("{measured}{run}")).unwrap();
            assert_eq!(config.ways.mpiio, mpiio, "{run}");
            assert_eq!(Config::parse(&config.canonical()).unwrap(), config);
        }
        let wrong = given("[run]\nadapters = \"mpio\"").unwrap_err().to_string();
        assert!(wrong.contains("run.adapters") && wrong.contains("mpiio"), "{wrong}");
    }
}
