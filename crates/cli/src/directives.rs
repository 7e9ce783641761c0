//! Lines of a batch script that say what Forebay does for its job: `#FB key=value ...`, before the
//! first command, as the lines of batch systems are.

use crate::instance::InstanceArguments;
use forebay_node::Config;
use forebay_node::config::expand;
use forebay_node::log::shown;
use forebay_placement::schema::Durability;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

/// What runs a script whose own first line names `forebay batch`.
const SHELL: &str = "/bin/sh";

/// The keys, as an error names them.
const KEYS: &str = "backing, config, schema, durability, stage_in, stage_out, shell";

/// The key of a comment that was meant to be heeded, such as `# FB stage_in=DIR`. Two `#` are left
/// alone: lines are taken out by one more.
fn meant(line: &str) -> Option<&'static str> {
    let comment = line.trim_start().strip_prefix('#')?.trim_start();
    let said = comment.get(..2).filter(|name| name.eq_ignore_ascii_case("FB"))?;
    let said = comment[said.len()..].trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    let (key, _) = said.split_once('=')?;
    KEYS.split(", ").find(|known| key.trim_end().eq_ignore_ascii_case(known))
}

/// A path to be staged, and the line that says so.
pub struct Staged {
    line: usize,
    pub path: PathBuf,
}

/// What the lines of a script say.
pub struct Directives {
    /// The script, as messages name it.
    name: String,
    pub instance: InstanceArguments,
    pub stage_in: Vec<Staged>,
    pub stage_out: Vec<Staged>,
    /// What runs the script, with its options.
    pub shell: Vec<OsString>,
    /// The line that says so, where one does.
    shell_line: Option<usize>,
    /// Lines that are below the first command.
    below: Vec<usize>,
    /// Comments that were meant to be lines, with the key of each.
    meant: Vec<(usize, &'static str)>,
}

/// What the lines are read for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Run,
    /// To end what a job has left. What is staged is no matter then, nor are the variables in its
    /// paths, which only the job had.
    End,
}

/// Whether a file's content is a script, and no configuration.
pub fn is_script(content: &[u8]) -> bool {
    content.starts_with(b"#!")
}

impl Directives {
    /// Those of a script; `-` is the standard input.
    ///
    /// # Errors
    /// All that is wrong, a line for each.
    pub fn read(script: &Path) -> Result<Directives, String> {
        Directives::read_for(script, Purpose::Run)
    }

    /// Which instance those of a script name, to end what its job has left.
    pub fn read_to_end(script: &Path) -> Result<InstanceArguments, String> {
        Directives::read_for(script, Purpose::End).map(|found| found.instance)
    }

    fn read_for(script: &Path, purpose: Purpose) -> Result<Directives, String> {
        let name = shown(script).to_string();
        let mut bytes = Vec::new();
        let read = match script == Path::new("-") {
            true => std::io::stdin().read_to_end(&mut bytes),
            false => File::open(script).and_then(|mut file| file.read_to_end(&mut bytes)),
        };
        read.map_err(|error| format!("{name}: {error}"))?;
        Directives::of_content(name, &bytes, purpose)
    }

    /// Those of a script that was read.
    ///
    /// # Errors
    /// All that is wrong, a line for each.
    pub fn of_script(script: &Path, content: &[u8]) -> Result<Directives, String> {
        Directives::of_content(shown(script).to_string(), content, Purpose::Run)
    }

    fn of_content(name: String, content: &[u8], purpose: Purpose) -> Result<Directives, String> {
        let text = String::from_utf8_lossy(content);
        Directives::of(name, &text, purpose, |variable| std::env::var(variable).ok())
    }

    fn of(
        name: String,
        text: &str,
        purpose: Purpose,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Directives, String> {
        let instance =
            InstanceArguments { config: None, backing: Vec::new(), schema: None, durability: None };
        let (stage_in, stage_out) = (Vec::new(), Vec::new());
        let (below, nearly) = (Vec::new(), Vec::new());
        let shell = interpreter(text);
        let shell_line = None;
        let mut found = Directives {
            name,
            instance,
            stage_in,
            stage_out,
            shell,
            shell_line,
            below,
            meant: nearly,
        };
        let mut errors = Vec::new();
        let mut is_above = true;
        for (number, line) in text.lines().enumerate().map(|(at, line)| (at + 1, line)) {
            is_above &= line.trim_start().is_empty() || line.trim_start().starts_with('#');
            let Some(said) = line.strip_prefix("#FB").filter(|rest| begins_blank(rest)) else {
                found.meant.extend(meant(line).map(|key| (number, key)));
                continue;
            };
            if !is_above {
                found.below.push(number);
                continue;
            }
            let taken = words(said).and_then(|words| {
                words.iter().try_for_each(|word| found.take(number, word, purpose, &variable))
            });
            if let Err(error) = taken {
                errors.push(format!("{}:{number}: {error}", found.name));
            }
        }
        if errors.is_empty() && found.instance.config.is_none() && found.instance.backing.is_empty()
        {
            errors.push(format!(
                "{}: no line says what is buffered; add `#FB backing=DIR` or `#FB config=FILE` before the first \
                 command",
                found.name
            ));
            errors.extend(found.unheeded());
        }
        if errors.is_empty() { Ok(found) } else { Err(errors.join("\n")) }
    }

    fn take(
        &mut self,
        line: usize,
        word: &str,
        purpose: Purpose,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<(), String> {
        let (key, value) = word
            .split_once('=')
            .filter(|(_, value)| !value.is_empty())
            .ok_or_else(|| format!("{word:?} is not of the form key=value; keys are {KEYS}"))?;
        let path = || {
            let path = expand(value, &variable).map_err(|error| format!("{word}: {error}"))?;
            match path.starts_with('/') {
                true => Ok(PathBuf::from(path)),
                false => Err(format!(
                    "{word}: give an absolute path; what ends a job on its node has another working directory"
                )),
            }
        };
        let once = |is_given: bool| match is_given {
            true => Err(format!("{key} is given a second time; leave one")),
            false => Ok(()),
        };
        let instance = &mut self.instance;
        match key {
            "backing" => instance.backing.push(path()?),
            "config" => {
                once(instance.config.is_some())?;
                instance.config = Some(path()?);
            }
            "schema" => {
                once(instance.schema.is_some())?;
                instance.schema = Some(path()?);
            }
            "durability" => {
                once(instance.durability.is_some())?;
                let known = Durability::ALL.iter().find(|(known, _)| *known == value);
                let names: Vec<_> = Durability::ALL.iter().map(|(name, _)| *name).collect();
                let unknown = || format!("{word}: give one of {}", names.join(", "));
                instance.durability = Some(known.ok_or_else(unknown)?.1);
            }
            "stage_in" | "stage_out" | "shell" if purpose == Purpose::End => {}
            "stage_in" => self.stage_in.push(Staged { line, path: path()? }),
            "stage_out" => self.stage_out.push(Staged { line, path: path()? }),
            "shell" => {
                once(self.shell_line.is_some())?;
                self.shell = vec![path()?.into()];
                self.shell_line = Some(line);
            }
            _ => return Err(format!("{key} is no key; keys are {KEYS}")),
        }
        Ok(())
    }

    /// Checks that what is to be staged is buffered, and that the shell is there.
    ///
    /// # Errors
    /// All that is not, a line for each.
    pub fn check(&self, config: &Config) -> Result<(), String> {
        let is_buffered = |path: &Path| {
            let whole = resolved(path);
            config.backing.iter().any(|backing| whole.starts_with(&backing.path))
        };
        let all = self.stage_in.iter().chain(&self.stage_out);
        let mut errors: Vec<_> = all
            .filter(|staged| !is_buffered(&staged.path))
            .map(|Staged { line, path }| {
                format!(
                    "{}:{line}: {} is in no buffered directory; add one that has it by backing=DIR",
                    self.name,
                    shown(path)
                )
            })
            .collect();
        if let (Some(line), [shell, ..]) = (self.shell_line, &self.shell[..])
            && let Err(error) = std::fs::metadata(shell)
        {
            let shell = shown(Path::new(shell));
            errors.push(format!(
                "{}:{line}: shell={shell}: {error}; give one that is there",
                self.name
            ));
        }
        if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
    }

    /// What is to be staged in and is not there now; another job may make it.
    pub fn missing(&self) -> impl Iterator<Item = String> {
        let missing = self.stage_in.iter().filter(|staged| !staged.path.exists());
        missing.map(|Staged { line, path }| {
            format!(
                "{}:{line}: {} is not there now; a job that begins before it is there reads the store",
                self.name,
                shown(path)
            )
        })
    }

    /// What is not as it was meant.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        let below = self.below.iter().map(|line| {
            format!("{}:{line}: #FB below the first command is not heeded; move it up", self.name)
        });
        below.chain(self.unheeded())
    }

    /// What looks like a line and is none.
    fn unheeded(&self) -> impl Iterator<Item = String> {
        self.meant.iter().map(|(line, key)| {
            format!(
                "{}:{line}: this is a comment; if it is meant for Forebay, write `#FB {key}=...` at the beginning \
                 of the line, above the first command",
                self.name
            )
        })
    }
}

/// A path without links, of which not all need be there yet.
fn resolved(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut whole, component| {
        match component {
            Component::ParentDir => _ = whole.pop(),
            other => whole.push(other),
        }
        std::fs::canonicalize(&whole).unwrap_or(whole)
    })
}

fn begins_blank(rest: &str) -> bool {
    rest.chars().next().is_none_or(|first| first.is_ascii_whitespace())
}

/// What the first line names, with its one argument as the kernel has it.
fn interpreter(text: &str) -> Vec<OsString> {
    let first = text.lines().next().and_then(|line| line.strip_prefix("#!")).unwrap_or("").trim();
    let is_ours = first
        .split_ascii_whitespace()
        .any(|word| Path::new(word).file_name().is_some_and(|name| name == "forebay"));
    let (program, argument) = first.split_once([' ', '\t']).unwrap_or((first, ""));
    match program {
        "" => vec![SHELL.into()],
        _ if is_ours => vec![SHELL.into()],
        _ => [program, argument.trim()]
            .into_iter()
            .filter(|word| !word.is_empty())
            .map(OsString::from)
            .collect(),
    }
}

/// The words of a line, with blanks where they are in double quotes; there a backslash lets the
/// next character be itself.
fn words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut is_quoted = false;
    let mut characters = line.chars();
    while let Some(next) = characters.next() {
        match next {
            '"' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            '\\' if is_quoted => {
                let next = characters.next().ok_or("a \" has no end; close it")?;
                word.get_or_insert_default().push(next);
            }
            '\'' if !is_quoted => return Err("' quotes nothing here; write \"".to_owned()),
            blank if blank.is_ascii_whitespace() && !is_quoted => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    if is_quoted {
        return Err("a \" has no end; close it".to_owned());
    }
    words.extend(word);
    match words.is_empty() {
        true => Err(format!("nothing is said; keys are {KEYS}")),
        false => Ok(words),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Directives, String> {
        let variable = |name: &str| (name == "USER").then(|| "me".to_owned());
        Directives::of("job.sh".to_owned(), text, Purpose::Run, variable)
    }

    fn paths(staged: &[Staged]) -> Vec<(usize, &str)> {
        staged.iter().map(|staged| (staged.line, staged.path.to_str().unwrap())).collect()
    }

    #[test]
    fn lines_above_the_first_command_are_heeded() {
        let text = "#!/bin/bash -l\n#SBATCH --nodes=1\n#FB backing=/lustre/$USER durability=nonvolatile\n\n\
                    # a remark\n#FB \"stage_in=/lustre/me/a b\" stage_in=\"/lustre/me/\\\"c\\\\\"\n#FBx no=\n\
                    #FB\tstage_out=/lustre/me/out\ntrue\n  #FB no\n#FB backing=/other\n";
        let found = of(text).map_err(|error| panic!("{error}")).unwrap();
        assert_eq!(found.instance.backing, [PathBuf::from("/lustre/me")]);
        assert_eq!(found.instance.durability.map(|it| it.name()), Some("nonvolatile"));
        let wanted = [(6, "/lustre/me/a b"), (6, "/lustre/me/\"c\\")];
        assert_eq!(paths(&found.stage_in), wanted);
        assert_eq!(paths(&found.stage_out), [(8, "/lustre/me/out")]);
        assert_eq!(found.shell, ["/bin/bash", "-l"]);
        let warned: Vec<_> = found.warnings().collect();
        assert_eq!(warned, ["job.sh:11: #FB below the first command is not heeded; move it up"]);
    }

    #[test]
    fn comments_that_were_meant_are_told() {
        let told = |line: &str| {
            let found = of(&format!("#!/bin/sh\n#FB config=/a.toml\n{line}\ntrue\n"));
            let found = found.map_err(|error| panic!("{error}")).unwrap();
            found.warnings().collect::<Vec<_>>()
        };
        let lines = [
            "# FB stage_in=/a",
            "#FBstage_in=/a",
            "#fb stage_in=/a",
            "  #FB stage_in=/a",
            "#FB:stage_in=/a",
            "#FB\u{a0}stage_in=/a",
            "#FB\"stage_in=/a b\"",
            "#FB-STAGE_IN = /a",
            "true\n# FB stage_in=/a",
        ];
        for line in lines {
            let told = told(line);
            assert!(
                told.len() == 1 && told[0].contains("write `#FB stage_in=...`"),
                "{line}: {told:?}"
            );
        }
        for line in [
            "##FB stage_in=/a",
            "# FB has stage_in=DIR",
            "# FB",
            "#FBA=1",
            "# f\u{fc}r",
            "FB stage_in=/a",
        ] {
            assert!(told(line).is_empty(), "{line}");
        }
        let error = of("#!/bin/sh\n# FB backing=/a\n").err().unwrap();
        assert!(
            error.contains("no line says") && error.contains("job.sh:2: this is a comment"),
            "{error}"
        );
    }

    #[test]
    fn a_script_that_names_us_has_another_shell() {
        let shell = |first: &str| of(&format!("{first}\n#FB config=/a.toml\n")).unwrap().shell;
        assert_eq!(shell("#!/usr/bin/env -S forebay batch"), ["/bin/sh"]);
        assert_eq!(shell("#!/opt/bin/forebay batch"), ["/bin/sh"]);
        assert_eq!(shell("#! /usr/bin/env python3"), ["/usr/bin/env", "python3"]);
        assert_eq!(shell(""), ["/bin/sh"]);
        assert_eq!(shell("#!/opt/bin/forebay batch\n#FB shell=/bin/bash"), ["/bin/bash"]);
    }

    #[test]
    fn what_ends_a_job_needs_no_variables_of_what_is_staged() {
        let text = "#FB backing=/lustre/$USER stage_out=/lustre/me/$SLURM_ARRAY_TASK_ID\n";
        assert!(of(text).is_err_and(|error| error.contains("SLURM_ARRAY_TASK_ID is not set")));
        let end = |text: &str| {
            let variable = |name: &str| (name == "USER").then(|| "me".to_owned());
            Directives::of("-".to_owned(), text, Purpose::End, variable)
        };
        let found = end(text).map_err(|error| panic!("{error}")).unwrap();
        assert_eq!(found.instance.backing, [PathBuf::from("/lustre/me")]);
        assert!(end("#FB backing=/lustre/$NOT\n").is_err());
    }

    #[test]
    fn errors_name_the_line_and_what_to_do() {
        let refused = |line: &str, says: &str| {
            let error = of(&format!("#!/bin/sh\n#FB config=/a.toml\n{line}\n")).err();
            let error = error.unwrap_or_else(|| panic!("{line} was taken"));
            assert!(error.starts_with("job.sh:3: ") && error.contains(says), "{line}: {error}");
        };
        refused("#FB", "nothing is said; keys are");
        refused("#FB stagein=/a", "stagein is no key; keys are backing,");
        refused("#FB stage_in", "not of the form key=value");
        refused("#FB stage_in=", "not of the form key=value");
        refused("#FB stage_in=\"/a", "close it");
        refused("#FB stage_in=\"/a\\", "close it");
        refused("#FB stage_in='/a b'", "write \"");
        refused("#FB stage_in=a", "absolute path");
        refused("#FB stage_in=/$NOT/a", "NOT is not set");
        refused("#FB config=/b.toml", "a second time");
        refused("#FB durability=always", "give one of");
        refused("#FB shell=/bin/sh shell=/bin/bash", "a second time");
        let both = of("#!/bin/sh\n#FB a=b\n#FB c=d\n").err().unwrap();
        assert_eq!(both.lines().count(), 2, "{both}");
        let none = of("#!/bin/sh\n#FB stage_in=/a\n").err().unwrap();
        assert!(none.contains("no line says what is buffered"), "{none}");
    }
}
