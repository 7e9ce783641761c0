//! Which adapters are loaded with programs: the table `[run]`.

use super::reader::{self, Value};
use super::types::Config;
use core::fmt::Write;
use forebay_client::Needs;

const KEYS: &[&str] = &["adapters"];

impl Value<'_> {
    /// The table `[run]`.
    pub(super) fn adapters(&self) -> reader::Result<Needs> {
        let section = self.table(KEYS, "a table: [run]")?;
        let Some(entry) = section.get("adapters") else { return Ok(Needs::ALL) };
        Needs::admitted(entry.text()?).ok_or_else(|| entry.error(Needs::CHOICES))
    }
}

impl Config {
    /// What is said of the adapters, as part of the canonical text. It is no part of the instance's
    /// identity: a run loads what its own configuration says.
    pub(super) fn write_adapters(&self, text: &mut String) {
        if self.adapters != Needs::ALL {
            let _ = write!(text, "[run]\nadapters = \"{}\"\n", self.adapters.names());
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
        let wrong = given("[run]\nadapters = \"mpio\"").unwrap_err().to_string();
        assert!(wrong.contains("run.adapters") && wrong.contains("mpiio"), "{wrong}");
    }
}
