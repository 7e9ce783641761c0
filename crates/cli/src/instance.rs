//! Which node manager a command means: by configuration file or backing directories.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use forebay_node::Config;
use forebay_node::config::Predictors;
use forebay_node::runtime::Runtime;
use forebay_placement::schema::Durability;
use std::ffi::OsString;
use std::path::PathBuf;

/// Options that name an instance.
#[derive(Args, Clone)]
pub struct InstanceArguments {
    /// Configuration file (TOML); without it Forebay chooses a hierarchy
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Directory whose files are buffered; can be given several times
    #[arg(long, value_name = "DIR")]
    pub backing: Vec<PathBuf>,
    /// Rules that say which files are buffered how (XML), before those of the configuration
    #[arg(long, value_name = "FILE")]
    pub schema: Option<PathBuf>,
    /// What fsync waits for, of files whose rule does not say
    #[arg(long, value_name = "DURABILITY", value_parser = durability())]
    pub durability: Option<Durability>,
}

fn durability() -> impl TypedValueParser<Value = Durability> {
    let names = Durability::ALL.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    PossibleValuesParser::new(names).try_map(|name| {
        let known = Durability::ALL.iter().find(|(known, _)| *known == name);
        known.map(|&(_, value)| value).ok_or("not a durability")
    })
}

impl InstanceArguments {
    /// Whether any was given.
    pub fn is_given(&self) -> bool {
        self.config.is_some()
            || !self.backing.is_empty()
            || self.schema.is_some()
            || self.durability.is_some()
    }

    /// The same, as words of a command line.
    pub fn words(&self) -> Vec<OsString> {
        let config = self.config.iter().map(|file| ("--config", file.into()));
        let backing = self.backing.iter().map(|path| ("--backing", path.into()));
        let schema = self.schema.iter().map(|file| ("--schema", file.into()));
        let durability = self.durability.iter().map(|it| ("--durability", it.name().into()));
        let all = config.chain(backing).chain(schema).chain(durability);
        all.flat_map(|(option, value): (&str, OsString)| [option.into(), value]).collect()
    }

    /// The configuration they name.
    ///
    /// # Errors
    /// All that is wrong with it, one on each line.
    pub fn load(&self) -> Result<Config, String> {
        self.load_of(None)
    }

    /// The same; the configuration file's content may have been read.
    pub fn load_of(&self, content: Option<Vec<u8>>) -> Result<Config, String> {
        self.load_with(content, Predictors::Needed)
    }

    fn load_for(&self, predictors: Predictors) -> Result<Config, String> {
        self.load_with(None, predictors)
    }

    fn load_with(&self, content: Option<Vec<u8>>, needed: Predictors) -> Result<Config, String> {
        let loaded = match (&self.config, content) {
            (Some(file), Some(content)) => Config::of_content(file, content, &self.backing, needed),
            (Some(file), None) => Config::load_for(file, &self.backing, needed),
            (None, _) => Config::automatic_of_any_size(&self.backing),
        };
        let with_schema = loaded.and_then(|mut config| {
            self.schema.iter().try_for_each(|schema| config.add_schema(schema, needed))?;
            let durability = self.durability;
            durability.map_or(Ok(()), |asked| config.set_durability(asked, "--durability"))?;
            Ok(config)
        });
        with_schema.map_err(|error| error.to_string())
    }

    /// The instance they name.
    pub fn runtime(&self) -> Result<(Config, Runtime), String> {
        self.runtime_for(Predictors::Needed)
    }

    /// The same, to bring to an end what was started with it.
    pub fn runtime_to_end(&self) -> Result<(Config, Runtime), String> {
        self.runtime_for(Predictors::NotNeeded)
    }

    fn runtime_for(&self, predictors: Predictors) -> Result<(Config, Runtime), String> {
        let config = self.load_for(predictors)?;
        let runtime = startable(&config)?;
        Ok((config, runtime))
    }
}

/// The instance of a configuration, which runs, or for which there is memory to start it.
///
/// # Errors
/// Why it cannot be started now: the configuration is not what is wrong.
pub fn startable(config: &Config) -> Result<Runtime, String> {
    let runtime = Runtime::of(config)?;
    if !runtime.has_pool() {
        config.check_memory().map_err(|error| error.to_string())?;
    }
    Ok(runtime)
}
