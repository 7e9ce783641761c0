//! How new small files of a directory are treated: `[[backing]] small_files`.

use super::types::Config;

/// How new small files are treated, see docs/design/small-files.md.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SmallFiles {
    /// Written through where the store is found to take them as quickly as the tiers do.
    #[default]
    Auto,
    /// Buffered, as all others.
    Buffer,
    /// Written through, however long the store takes.
    WriteThrough,
}

pub(super) const SMALL_FILES: &[(&str, SmallFiles)] = &[
    ("auto", SmallFiles::Auto),
    ("buffer", SmallFiles::Buffer),
    ("write-through", SmallFiles::WriteThrough),
];

impl SmallFiles {
    /// The variable that counts for more than the configuration.
    pub const VARIABLE: &str = "FOREBAY_SMALL_FILES";

    fn named(name: &str) -> Option<SmallFiles> {
        SMALL_FILES.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }
}

impl Config {
    /// How new small files of each backing directory are treated, where a variable has the value
    /// `given`, if any.
    ///
    /// # Errors
    /// A value that it cannot have, and which there are.
    pub fn small_files(&self, given: Option<&str>) -> Result<Vec<SmallFiles>, String> {
        let wrong = |name: &str| {
            format!("{}={name}: give auto, buffer or write-through", SmallFiles::VARIABLE)
        };
        let named = |name| SmallFiles::named(name).ok_or_else(|| wrong(name));
        let given = given.map(named).transpose()?;
        Ok(self.backing.iter().map(|backing| given.unwrap_or(backing.small_files)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_counts_for_more_than_directories() {
        let text = "[[backing]]\npath = \"/a\"\nsmall_files = \"buffer\"\n\
             [[backing]]\npath = \"/b\"\n\
             [[tier]]\nname = \"ram\"\nkind = \"ram\"\ncapacity = \"64MiB\"\n";
        let config = Config::parse(text).unwrap();
        assert_eq!(config.small_files(None), Ok(vec![SmallFiles::Buffer, SmallFiles::Auto]));
        let through = vec![SmallFiles::WriteThrough; 2];
        assert_eq!(config.small_files(Some("write-through")), Ok(through));
        let wrong = config.small_files(Some("yes")).unwrap_err();
        assert_eq!(wrong, "FOREBAY_SMALL_FILES=yes: give auto, buffer or write-through");
        // What is not said takes no part in the identity of instances.
        let usual = text.replace("small_files = \"buffer\"\n", "");
        assert!(!Config::parse(&usual).unwrap().canonical().contains("small_files"));
        assert_eq!(Config::parse(&config.canonical()).unwrap(), config);
    }
}
