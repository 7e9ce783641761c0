//! Which adapters are loaded with programs: the table `[run]`.

use super::reader::{self, Value};
use super::types::Config;
use core::fmt::Write;
use forebay_client::{DeepBind, MpiIo, Needs};

const KEYS: &[&str] = &["adapters", "mpiio", "deepbind"];

impl Value<'_> {
    /// The table `[run]`.
    pub(super) fn run(&self) -> reader::Result<(Needs, MpiIo, DeepBind)> {
        let section = self.table(KEYS, "a table: [run]")?;
        let adapters = match section.get("adapters") {
            Some(entry) => {
                Needs::admitted(entry.text()?).ok_or_else(|| entry.error(Needs::CHOICES))
            }
            None => Ok(Needs::ALL),
        };
        let mpiio = match section.get("mpiio") {
            Some(entry) => MpiIo::named(entry.text()?).ok_or_else(|| entry.error(MpiIo::CHOICES)),
            None => Ok(MpiIo::default()),
        };
        let deepbind = match section.get("deepbind") {
            Some(entry) => {
                DeepBind::named(entry.text()?).ok_or_else(|| entry.error(DeepBind::CHOICES))
            }
            None => Ok(DeepBind::default()),
        };
        Ok((adapters?, mpiio?, deepbind?))
    }
}

impl Config {
    /// What is said of the adapters, as part of the canonical text. It is no part of the instance's
    /// identity: a run loads what its own configuration says.
    pub(super) fn write_adapters(&self, text: &mut String) {
        let said = [
            ("adapters", self.adapters.names(), self.adapters != Needs::ALL),
            ("mpiio", self.mpiio.name(), self.mpiio != MpiIo::default()),
            ("deepbind", self.deepbind.name(), self.deepbind != DeepBind::default()),
        ];
        if said.iter().any(|(.., is_said)| *is_said) {
            text.push_str("[run]\n");
        }
        for (key, value, _) in said.iter().filter(|(.., is_said)| *is_said) {
            let _ = writeln!(text, "{key} = \"{value}\"");
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
            assert_eq!(config.adapters, needs, "{run}");
            assert_eq!(Config::parse(&config.canonical()).unwrap(), config);
            assert_eq!(config.instance_id(), instance);
        }
        let text = "[run]\nadapters = \"none\"\nmpiio = \"auto\"\ndeepbind = \"keep\"";
        let config = given(text).unwrap();
        assert_eq!((config.mpiio, config.deepbind), (MpiIo::Auto, DeepBind::Keep));
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
