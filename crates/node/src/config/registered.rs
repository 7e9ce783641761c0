//! What is registered while a node manager runs: analyses and operations in the words of a
//! configuration.

use super::active::{self, ActiveRule};
use super::analyses::{self, Analysis};
use super::reader::{self, Source};
use std::path::Path;

/// Actions in a text that has nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registered {
    /// Those of `[[analysis]]`.
    pub analyses: Vec<Analysis>,
    /// Those of `[[active]]`.
    pub operations: Vec<ActiveRule>,
}

impl Registered {
    /// Reads them; `name` is where the text comes from, and `folder` where its relative paths
    /// start. Without a name it is one that a program has written: paths stand as they are.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn of_text(text: &str, name: Option<&str>, folder: &Path) -> reader::Result<Registered> {
        let source = Source { name, text, folder, errors: None };
        let document = source.parse()?;
        let root = source.root(&document, &["analysis", "active"])?;
        let analyses = analyses::read(&root)?;
        let operations = active::read(&root, &analyses)?;
        Ok(Registered { analyses, operations })
    }

    /// The text that [`Registered::of_text`] reads.
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.analyses.iter().for_each(|analysis| analysis.write(&mut text));
        self.operations.iter().for_each(|rule| rule.write(&mut text));
        text
    }
}
