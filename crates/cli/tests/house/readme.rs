//! What the pages promise: commands run, options exist, configurations load, links lead somewhere.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::Memory;
use forebay_node::Config;

const FOREBAY: &str = env!("CARGO_BIN_EXE_forebay");

/// Folders that are not the project's pages.
const SKIPPED: [&str; 4] = ["target", ".git", "forebay-demo", "node_modules"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All Markdown files of the project.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !SKIPPED.contains(&name.as_str()) {
            found.extend(pages(&path));
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_site_has_every_page() {
    let site = read(&root().join("mkdocs.yml"));
    let missing: Vec<_> = pages(&root().join("docs"))
        .into_iter()
        .map(|page| page.strip_prefix(root()).unwrap().display().to_string())
        .filter(|page| !site.lines().any(|line| line.ends_with(page.as_str())))
        .collect();
    assert!(missing.is_empty(), "add to the navigation in mkdocs.yml:\n{}", missing.join("\n"));
}

/// The fenced blocks of a page: language, text, and the line where it begins.
fn blocks(page: &str) -> Vec<(String, String, usize)> {
    let mut found: Vec<(String, String, usize)> = Vec::new();
    let mut inside = false;
    for (number, line) in page.lines().enumerate() {
        if let Some(language) = line.strip_prefix("```") {
            inside = !inside;
            if inside {
                found.push((language.trim().to_owned(), String::new(), number + 1));
            }
        } else if inside && let Some((_, text, _)) = found.last_mut() {
            text.push_str(line);
            text.push('\n');
        }
    }
    assert!(!inside, "a block is not closed");
    found
}

/// The command lines of a block: all of `sh`, those after `$ ` of `console`.
fn commands(language: &str, text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().map(str::trim);
    match language {
        "sh" => lines
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(String::from)
            .collect(),
        "console" => lines.filter_map(|line| line.strip_prefix("$ ")).map(String::from).collect(),
        _ => Vec::new(),
    }
}

/// Every command line of every page, with where it stands.
fn all_commands() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for page in pages(&root()) {
        for (language, text, line) in blocks(&read(&page)) {
            let place = format!("{}:{line}", page.display());
            let commands = commands(&language, &text);
            found.extend(commands.into_iter().map(|command| (place.clone(), command)));
        }
    }
    found
}

/// The help of `forebay WORDS`.
fn help(words: &[&str]) -> String {
    let output = Command::new(FOREBAY).args(words).arg("--help").output().unwrap();
    assert!(output.status.success(), "forebay {words:?} --help");
    String::from_utf8(output.stdout).unwrap()
}

/// The subcommands of `forebay`, each with its help.
fn subcommands() -> BTreeMap<String, String> {
    let main = help(&[]);
    let listed = main.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap();
    let names = listed.lines().filter_map(|line| line.split_whitespace().next());
    names
        .filter(|name| *name != "help" && main.contains(&format!("\n  {name} ")))
        .map(|name| (name.to_owned(), help(&[name])))
        .collect()
}

/// Checks the words after `forebay`.
fn check(place: &str, words: &[&str], known: &BTreeMap<String, String>) {
    let Some((subcommand, options)) = words.split_first() else { return };
    if subcommand.starts_with('-') {
        assert!(help(&[]).contains(subcommand), "{place}: forebay {subcommand}");
        return;
    }
    let help = known
        .get(*subcommand)
        .unwrap_or_else(|| panic!("{place}: forebay has no command {subcommand}"));
    for option in options.iter().take_while(|word| **word != "--") {
        if let Some(name) = option.strip_prefix("--") {
            let name = name.split('=').next().unwrap();
            // The value of `--name[=<VALUE>]` may be left out.
            let mut known = help.split_whitespace().filter_map(|word| word.split('[').next());
            let found = known.any(|word| word == format!("--{name}"));
            assert!(found, "{place}: forebay {subcommand} has no option --{name}");
        }
    }
}

#[test]
fn every_command_and_option_that_a_page_shows_exists() {
    let known = subcommands();
    assert!(known.contains_key("run") && known.contains_key("recover"), "{known:?}");
    let mut checked = 0;
    for (place, command) in all_commands() {
        let words: Vec<_> = command.split_whitespace().collect();
        match words.as_slice() {
            ["forebay", rest @ ..] => check(&place, rest, &known),
            ["cargo", "run", "--release", "--", rest @ ..] => check(&place, rest, &known),
            [program, ..] if program.contains('/') => {
                let path = root().join(program);
                assert!(path.is_file(), "{place}: {program} does not exist");
            }
            _ => continue,
        }
        checked += 1;
    }
    assert!(checked >= 10, "only {checked} commands found: is this test blind?");
}

#[test]
fn inline_commands_exist() {
    let known = subcommands();
    for page in pages(&root()) {
        let text = read(&page);
        let design = page.components().any(|part| part.as_os_str() == "design");
        for (number, line) in text.lines().enumerate() {
            for code in line.split('`').skip(1).step_by(2).filter(|_| !design) {
                if let Some(rest) = code.strip_prefix("forebay ") {
                    let words: Vec<_> = rest.split_whitespace().collect();
                    check(&format!("{}:{}", page.display(), number + 1), &words, &known);
                }
            }
        }
    }
}

/// Runs a page's `console` blocks in order, as a reader would, with its first `toml` block, if it
/// has one, as forebay.toml. Says how many commands there were, and where they ran.
fn follow(page: &str) -> (usize, tempfile::TempDir) {
    let text = read(&root().join(page));
    let blocks = blocks(&text);
    let place = tempfile::tempdir().unwrap();
    let runtime = place.path().join("runtime");
    if let Some(toml) = blocks.iter().find(|(language, ..)| language == "toml") {
        fs::write(place.path().join("forebay.toml"), &toml.1).unwrap();
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let folder = Path::new(FOREBAY).parent().unwrap().display();
    // Commands without `--config` act on all pools of the user.
    let memory = Memory::new();
    let mut ran = 0;
    for (language, text, line) in blocks.iter().filter(|(language, ..)| language == "console") {
        for command in commands(language, text) {
            let mut shell = Command::new("sh");
            memory.enter(&mut shell);
            let output = shell
                .args(["-ec", &command])
                .current_dir(place.path())
                .env("PATH", format!("{folder}:{path}"))
                .env("FOREBAY_RUNTIME_DIR", &runtime)
                .env_remove("FOREBAY_SCRATCH")
                .env_remove("FOREBAY_PRELOAD")
                .stdin(Stdio::null())
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success(),
                "{page}:{line}: {command}: {}\n{said}{}",
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
            // What the page shows of these is what they print.
            if ["sha256sum", "tail"].iter().any(|name| command.starts_with(name)) {
                assert!(text.contains(said.trim()), "{page}:{line}: {command} printed {said}");
            }
            ran += 1;
        }
    }
    (ran, place)
}

#[test]
fn the_readme_can_be_followed() {
    let (ran, place) = follow("README.md");
    assert!(ran >= 3, "only {ran} commands were run");
    assert!(place.path().join("project/numbers").is_file());
}

#[test]
fn the_page_of_commands_has_all() {
    let page = read(&root().join("docs/commands.md"));
    let rows: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("| `")).collect();
    for name in subcommands().into_keys() {
        let word = format!("`{name}`");
        let cells = rows.iter().filter_map(|row| row.split('|').next());
        let found = cells.map(|cell| format!("`{cell}")).any(|cell| cell.contains(&word));
        assert!(found, "docs/commands.md has no row of {name}");
    }
}

#[test]
fn the_page_of_commands_can_be_followed() {
    let (ran, place) = follow("docs/commands.md");
    assert!(ran >= 8, "only {ran} commands were run");
    assert!(place.path().join("moves.csv").is_file());
}

#[test]
fn the_start_can_be_followed() {
    let (ran, place) = follow("docs/start.md");
    assert!(ran >= 7, "only {ran} commands were run");
    assert_eq!(fs::metadata(place.path().join("project/state")).unwrap().len(), 100 << 20);
}

#[test]
fn guides_can_be_followed() {
    for page in pages(&root().join("docs/guides")) {
        let page = page.strip_prefix(root()).unwrap().to_str().unwrap();
        let (ran, _place) = follow(page);
        assert!(ran >= 3, "{page}: only {ran} commands were run");
    }
}

/// A table of the text with each directory below `place`, made, each capacity so small that any
/// machine has it, and the example of each predictor that it names in `place`.
fn localised(text: &str, place: &Path) -> String {
    let mut lines = Vec::new();
    let mut table = "";
    for line in text.lines() {
        if line.starts_with('[') {
            table = line;
        }
        if let Some(name) = line.strip_prefix("predictor = \"") {
            let name = Path::new(name.trim_end_matches('"'));
            let text = root().join("examples/predictors").join(name).with_extension("wat");
            fs::write(place.join(name), wat::parse_file(text).unwrap()).unwrap();
        }
        // The path of a rule is a pattern.
        let value = line.strip_prefix("path = \"").filter(|_| table != "[[rule]]");
        if let Some(path) = value.and_then(|rest| rest.strip_suffix('"')) {
            let folder = place.join(path.trim_start_matches('/'));
            fs::create_dir_all(&folder).unwrap();
            lines.push(format!("path = \"{}\"", folder.display()));
        } else if line.starts_with("capacity = ") {
            lines.push("capacity = \"64MiB\"".to_owned());
        } else {
            lines.push(line.to_owned());
        }
    }
    lines.join("\n")
}

#[test]
fn every_configuration_that_a_page_shows_is_accepted() {
    let mut checked = 0;
    for page in pages(&root()) {
        for (language, text, line) in blocks(&read(&page)) {
            if language != "toml" {
                continue;
            }
            let named = format!("{}:{line}", page.display());
            // As it stands, without a look at the machine; then with directories that exist.
            Config::parse(&text).unwrap_or_else(|error| panic!("{named}: {error}"));
            let place = tempfile::tempdir().unwrap();
            let file = place.path().join("forebay.toml");
            fs::write(&file, localised(&text, place.path())).unwrap();
            Config::load(&file, &[]).unwrap_or_else(|error| panic!("{named}: {error}"));
            checked += 1;
        }
    }
    assert!(checked >= 3, "only {checked} configurations found");
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        inside ^= line.starts_with("```");
        if !inside && line.starts_with('#') {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            found.push(kept.collect::<String>().replace(' ', "-"));
        }
    }
    found
}

/// The targets of the links in a page, without those in code.
fn links(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        inside ^= line.starts_with("```");
        if inside {
            continue;
        }
        let plain: String = line.split('`').step_by(2).collect::<Vec<_>>().join("``");
        for part in plain.split("](").skip(1) {
            found.extend(part.split(')').next().map(String::from));
        }
    }
    found
}

#[test]
fn links_lead_to_files_and_headings_that_exist() {
    let mut checked = 0;
    for page in pages(&root()) {
        let text = read(&page);
        for link in links(&text).iter().filter(|link| !link.contains("://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => page.clone(),
                _ => page.parent().unwrap().join(path),
            };
            assert!(target.exists(), "{}: {link} leads nowhere", page.display());
            if !anchor.is_empty() {
                let known = anchors(&read(&target));
                let found = known.iter().any(|found| found == anchor);
                assert!(found, "{}: {link}: no such heading; there are {known:?}", page.display());
            }
            checked += 1;
        }
    }
    assert!(checked >= 10, "only {checked} links found");
}
