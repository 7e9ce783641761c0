//! Which adapters are loaded with programs: the table `[run]`.

use super::reader::{self, Value};
use super::types::Config;
use core::fmt::Write;
use forebay_client::{DeepBind, MpiIo, Needs};

const KEYS: &[&str] = &["adapters", "mpiio", "deepbind"];

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

    /// What is not as where nothing is said: the key in `[run]`, the variable, and the value.
    pub(crate) fn said(&self) -> impl Iterator<Item = [&'static str; 3]> {
        let usual = Ways::default();
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
    /// The table `[run]`.
    pub(super) fn run(&self) -> reader::Result<Ways> {
        let section = self.table(KEYS, "a table: [run]")?;
        let usual = Ways::default();
        let adapters = match section.get("adapters") {
            Some(entry) => {
                Needs::admitted(entry.text()?).ok_or_else(|| entry.error(Needs::CHOICES))
            }
            None => Ok(usual.adapters),
        };
        let mpiio = match section.get("mpiio") {
            Some(entry) => MpiIo::named(entry.text()?).ok_or_else(|| entry.error(MpiIo::CHOICES)),
            None => Ok(usual.mpiio),
        };
        let deepbind = match section.get("deepbind") {
            Some(entry) => {
                DeepBind::named(entry.text()?).ok_or_else(|| entry.error(DeepBind::CHOICES))
            }
            None => Ok(usual.deepbind),
        };
        Ok(Ways { adapters: adapters?, mpiio: mpiio?, deepbind: deepbind? })
    }
}

impl Config {
    /// What is said of the adapters, as part of the canonical text. It is no part of the instance's
    /// identity: a run loads what its own configuration says.
    pub(super) fn write_adapters(&self, text: &mut String) {
        for (index, [key, _, value]) in self.ways.said().enumerate() {
            let head = if index == 0 { "[run]\n" } else { "" };
            let _ = writeln!(text, "{head}{key} = \"{value}\"");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_are_read_and_written() {
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
        for (key, wanted) in [("mpiio", "everywhere"), ("deepbind", "keep")] {
            let wrong = given(&format!("[run]\n{key} = \"yes\"")).unwrap_err().to_string();
            assert!(wrong.contains(&format!("run.{key}")) && wrong.contains(wanted), "{wrong}");
        }
        let wrong = given("[run]\nadapters = \"mpio\"").unwrap_err().to_string();
        assert!(wrong.contains("run.adapters") && wrong.contains("mpiio"), "{wrong}");
    }
}
