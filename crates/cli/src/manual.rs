//! What people read and shells need of the command line: an example for each command, completions,
//! manual pages. All of it is made of the same definitions that the command parses by.

use crate::Arguments;
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use forebay_node::log::shown;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

/// An example for each command that people give, by its words; some have two.
const EXAMPLES: &[(&str, &str)] = &[
    ("metrics", "forebay metrics > /var/lib/node_exporter/forebay.prom"),
    ("top", "forebay top --every 0.5"),
    ("run", "forebay run --config site.toml --report=run.html -- ./simulation input.nml"),
    ("run", "forebay run --config site.toml --keep 10min -- python train.py"),
    ("batch", "forebay batch job.sh"),
    ("trace", "forebay trace --backing /lustre/project --out picture -- ./simulation"),
    ("demo", "forebay demo --output forebay-demo"),
    ("profile", "forebay profile --write site.toml"),
    ("status", "forebay status --files"),
    ("status", "forebay status --web"),
    ("explain", "forebay explain results/step-17.h5"),
    ("flush", "forebay flush results"),
    ("stage-in", "forebay stage-in --tier nvme data/train"),
    ("stage-out", "forebay stage-out --drop results"),
    ("drop", "forebay drop data/train"),
    ("pin", "forebay pin --tier nvme data/train"),
    ("wait", "forebay wait results"),
    ("replace", "forebay replace results/old.dat"),
    ("restore", "forebay restore results/old.dat"),
    ("recover", "forebay recover --config site.toml"),
    ("salvage", "forebay salvage --to /other/disk"),
    ("fsck", "forebay fsck"),
    ("stop", "forebay stop --all"),
    ("up", "forebay up --config site.toml"),
    ("up", "forebay up --web"),
    ("down", "forebay down --config site.toml"),
    ("node", "forebay node --config site.toml"),
    ("check", "forebay check site.toml"),
    ("schema", "forebay schema > forebay.xsd"),
    (
        "completions",
        "forebay completions bash > ~/.local/share/bash-completion/completions/forebay",
    ),
    ("man-pages", "forebay man-pages ~/.local/share/man/man1"),
    ("active run", "forebay active run sort events.bin --record 64 --key u64@0 -o sorted.bin"),
    ("active restore", "forebay active restore field.dat.zst -o field.dat"),
    ("active info", "forebay active info field.dat.zst"),
    ("active check", "forebay active check field.dat.sha256"),
    ("predictor check", "forebay predictor check stride.wasm --trace reads.csv"),
    ("model", "forebay model nvm"),
    ("simulate", "forebay simulate hermes-fig8 --svg figure8.svg"),
    #[cfg(feature = "bench")]
    ("bench", "forebay bench hermes-fig4 --svg figure4.svg"),
    #[cfg(feature = "torture")]
    ("torture", "forebay torture --minutes 5"),
];

/// The command line, with its examples.
pub fn command() -> Command {
    let same = |one: &(&str, &str), other: &(&str, &str)| one.0 == other.0;
    EXAMPLES.chunk_by(same).fold(Arguments::command(), |command, examples| {
        let lines = examples.iter().map(|(_, example)| format!("\n  {example}"));
        let help = "Example:".to_owned() + &lines.collect::<String>();
        let words: Vec<_> = examples[0].0.split(' ').collect();
        with_help(command, &words, help)
    })
}

/// A command whose subcommand of these words, or which itself if there is none, ends its help so.
fn with_help(command: Command, words: &[&'static str], help: String) -> Command {
    match words {
        [] => command.after_help(help),
        [first, rest @ ..] => command.mut_subcommand(*first, |found| with_help(found, rest, help)),
    }
}

/// Options of `forebay completions`.
#[derive(Args)]
pub struct CompletionsArguments {
    /// For which shell
    shell: Shell,
}

/// `forebay completions`.
pub fn completions(arguments: &CompletionsArguments) -> Result<ExitCode, String> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command(), "forebay", &mut script);
    print!("{}", String::from_utf8_lossy(&script));
    Ok(ExitCode::SUCCESS)
}

/// Options of `forebay man-pages`.
#[derive(Args)]
pub struct ManPagesArguments {
    /// The folder, made if it is missing
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// `forebay man-pages`: one page for the command, and one for each of its commands.
pub fn man_pages(arguments: &ManPagesArguments) -> Result<ExitCode, String> {
    let folder = &arguments.folder;
    let failed = |error: std::io::Error| format!("{}: {error}; give another folder", shown(folder));
    fs::create_dir_all(folder).map_err(failed)?;
    let mut whole = command();
    whole.build();
    let mut pages = 0;
    let mut write = |name: String, command: &Command| {
        let page = clap_mangen::Man::new(command.clone()).title(name.clone()).section("1");
        let mut text = Vec::new();
        page.render(&mut text).and_then(|()| fs::write(folder.join(format!("{name}.1")), text))?;
        pages += 1;
        Ok(())
    };
    write("forebay".to_owned(), &whole).map_err(failed)?;
    for found in whole.get_subcommands().filter(|found| !found.is_hide_set()) {
        if found.get_name() != "help" {
            write(format!("forebay-{}", found.get_name()), found).map_err(failed)?;
        }
    }
    println!("wrote {pages} pages to {}", shown(folder));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn each_command_has_an_example_and_each_example_is_one() {
        /// Those whose help has examples of its own.
        const OWN: [&str; 3] = ["analyse", "give-up", "report"];
        let command = command();
        let mut names = BTreeSet::new();
        for found in command.get_subcommands().filter(|found| !found.is_hide_set()) {
            let below: Vec<_> = found.get_subcommands().map(Command::get_name).collect();
            let name = found.get_name();
            match below.is_empty() {
                true => drop(names.insert(name.to_owned())),
                false => names.extend(below.iter().map(|below| format!("{name} {below}"))),
            }
        }
        names.retain(|name| !name.ends_with("help"));
        for name in &names {
            let has = EXAMPLES.iter().any(|(known, _)| known == name);
            assert!(has || OWN.contains(&name.as_str()), "{name} has no example");
        }
        for (name, example) in EXAMPLES {
            assert!(names.contains(*name), "there is no command {name}");
            let words = example.split(" > ").next().unwrap_or(example).split_whitespace();
            let parsed = command.clone().try_get_matches_from(words);
            let parsed = parsed.unwrap_or_else(|error| panic!("{example}: {error}"));
            assert_eq!(parsed.subcommand_name(), name.split(' ').next(), "{example}");
        }
    }
}
