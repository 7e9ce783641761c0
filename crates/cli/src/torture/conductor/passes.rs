//! Which points of the code an operation passes, in order, found out by one run of it.

use super::super::pairs::{Case, NAMES};
use super::super::player::MARKS;
use super::{Conductor, files};
use std::collections::BTreeMap;
use std::fs;
use std::io;

/// A pass of a point: its name, and which pass of that name in its process.
pub(super) type Pass = (String, u64);

/// The passes between the marks in a list of points.
pub(super) fn passed(text: &str) -> Vec<Pass> {
    let (mut counts, mut passes, mut is_within) = (BTreeMap::new(), Vec::new(), false);
    for name in text.lines().filter_map(|line| line.strip_prefix("client ")) {
        match MARKS.iter().position(|mark| *mark == name) {
            Some(0) => is_within = true,
            // Counts begin anew with the image.
            Some(1) => counts.clear(),
            Some(_) => is_within = false,
            None => {
                let count = counts.entry(name).or_insert(0);
                *count += 1;
                if is_within {
                    passes.push((name.to_owned(), *count));
                }
            }
        }
    }
    passes
}

impl Conductor<'_> {
    /// At which pass of which point a case interrupts the first operation; `None` for behind it.
    pub(super) fn pass_of(&mut self, case: &Case) -> io::Result<Option<Pass>> {
        if case.place == 0 || !super::super::points::BUILT {
            return Ok(None);
        }
        let passes = self.passes(case)?;
        let count = passes.len() as u64;
        let start = (case.place - 1) * count / 3;
        let end = (case.place * count / 3).max(start + 1);
        let index = start + case.draw % (end - start);
        Ok(passes.get(index as usize).cloned())
    }

    /// The points that the first operation of a case passes, in their order: found out once for all
    /// cases like it.
    pub(super) fn passes(&mut self, case: &Case) -> io::Result<Vec<Pass>> {
        let Case { first, before, is_nonvolatile, .. } = case;
        let name = format!("points-{first:?}-{before:?}-{is_nonvolatile}");
        let known = self.arguments.place.join(&name);
        if let Ok(text) = fs::read_to_string(&known) {
            return Ok(passed(&text));
        }
        let stem = format!("learn-{}", self.arguments.number);
        let files = files(self.arguments, case.number, *is_nonvolatile, &stem);
        self.prepare(*before, &case.world(&files), &files)?;
        self.signs.clear();
        let list = self.folder.join(&name);
        fs::write(&list, "")?;
        let environment = vec![("FOREBAY_CRASH_LIST", list.display().to_string())];
        let program = self.start(case.number, &stem, "first", &environment)?;
        let status = program.end()?;
        for name in NAMES {
            let _ = fs::remove_file(files.path(name));
        }
        if !status.is_some_and(|status| status.success()) {
            return Err(io::Error::other(format!("{first:?} alone ended with {status:?}")));
        }
        let text = fs::read_to_string(&list)?;
        fs::rename(list, known)?;
        Ok(passed(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_are_counted_from_the_beginning_of_an_image() {
        let text = "client a\nclient b\nclient -begin\nclient a\nnode a\nclient c\nclient -image\n\
                    client a\nclient -image\nclient b\nclient -end\nclient b\n";
        let wanted = [("a", 2), ("c", 1), ("a", 1), ("b", 1)];
        let passes = passed(text);
        assert!(passes.iter().map(|(name, pass)| (&name[..], *pass)).eq(wanted), "{passes:?}");
    }
}
