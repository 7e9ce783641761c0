//! Rules that no compiler checks: which crate may depend on which, what code inside a program may
//! not do, that no file is dead, that `docs/posix.md` names what the preload library exports, and
//! that `docs/posix-tests.md` names a test for each of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// For each crate: crates of the workspace it may use, and others it may use (`*`: any).
const ALLOWED: &[(&str, &[&str], &[&str])] = &[
    ("placement", &[], &[]),
    ("pool", &["placement"], &["rustix", "crc32c"]),
    ("device", &[], &["rustix"]),
    ("posix", &["device"], &["rustix"]),
    ("tiers", &["placement", "device", "posix"], &["*"]),
    ("client", &["pool", "placement", "device", "posix"], &["rustix"]),
    ("preload", &["client"], &["libc", "rustix"]),
    ("capi", &["client"], &["libc", "rustix", "crc32c"]),
    ("mpiio", &["placement", "client"], &["libc"]),
    ("mpiio-large", &[], &["libc"]),
    ("hdf5", &["client"], &["libc", "rustix"]),
    ("hdf5-later", &[], &[]),
    ("sandbox", &[], &["wasmi"]),
    (
        "active",
        &["placement", "sandbox"],
        &["blake3", "crc32c", "fastcdc", "lz4_flex", "sha2", "zstd"],
    ),
    ("membership", &[], &["crc32c", "foca", "rand", "serde"]),
    ("fabric", &["membership"], &["crc32c", "libc", "ring", "rustix", "rustls", "ucx-rs"]),
    ("directory", &["membership"], &[]),
    ("cluster", &["membership", "directory", "fabric"], &["ring", "rustix"]),
    (
        "node",
        &[
            "active",
            "placement",
            "pool",
            "device",
            "posix",
            "tiers",
            "client",
            "membership",
            "directory",
            "cluster",
            "sandbox",
        ],
        &["*"],
    ),
    ("simulator", &["placement", "membership", "directory"], &[]),
    (
        "bench",
        &["fabric", "membership", "placement", "pool", "simulator"],
        &["rustix", "serde_json"],
    ),
    // preload, capi and the adapters are not called: they are named so that cargo builds them with
    // the command.
    (
        "cli",
        &[
            "active",
            "bench",
            "node",
            "client",
            "pool",
            "placement",
            "simulator",
            "preload",
            "capi",
            "mpiio",
            "mpiio-large",
            "hdf5",
            "hdf5-later",
            "sandbox",
        ],
        &["*"],
    ),
];

/// Development dependencies, where they are limited.
const ALLOWED_IN_TESTS: &[(&str, &[&str])] = &[("placement", &[]), ("pool", &["loom"])];

/// What code that runs inside a program may not contain: it prints nothing, does not abort, starts
/// no threads and installs no signal handlers.
const BANNED_INSIDE: &[&str] = &[
    "println!",
    "eprintln!",
    "print!",
    "dbg!",
    "panic!",
    "unreachable!",
    "assert!",
    "assert_eq!",
    "assert_ne!",
    "unwrap()",
    "expect(",
    "abort(",
    "exit(",
    "thread::spawn",
    "thread::Builder",
    "thread::scope",
    "pthread_create",
    "sigaction",
    "signal(",
    "signal_hook",
];

/// Lines that contain a banned word for a good reason.
const EXCUSED: &[&str] = &[
    // `debug_assert!` is not in a release build, which is what runs inside programs.
    "debug_assert",
    // The compiler asks.
    "const _: () = assert!",
    // The parent that `daemon` leaves behind, as in glibc.
    "_ => libc::_exit(0),",
    // The child of `forkpty` that gets no terminal, as in glibc.
    "libc::_exit(1);",
    // A program that would see other bytes than the others does not begin.
    "unsafe { libc::_exit(126) }",
];

/// Files that are about a banned word, with the words.
const ABOUT: &[(&str, &[&str])] = &[
    // The program's handlers are entered through ours; none is installed unasked.
    ("preload/src/signals.rs", &["sigaction", "signal("]),
    // The program's threads are started through ours.
    ("preload/src/threads.rs", &["pthread_create"]),
    // A container has threads of its own, from its opening to its end.
    ("capi/src/records/helper.rs", &["thread::Builder"]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All files below `folder` whose name ends in `.ext`.
fn files(folder: &Path, ext: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else { return found };
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.extend(files(&path, ext));
        } else if path.extension().is_some_and(|found| found == ext) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Rust files below `folder`, without those that are tests as a whole.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = files(folder, "rs");
    found.retain(|path| !path.ends_with("tests.rs"));
    found
}

fn crates() -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("Cargo.toml").is_file())
        .collect();
    found.sort();
    found
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// The dependencies in each section of a manifest, as this workspace writes them.
fn dependencies(manifest: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut section = String::new();
    for line in manifest.lines().map(|line| line.split('#').next().unwrap().trim()) {
        if let Some(head) = line.strip_prefix('[') {
            section = head.trim_end_matches(']').to_owned();
            // [target.'cfg(..)'.dependencies] and [dependencies.name] are not in use here.
            assert!(
                !section.contains("dependencies.") && !section.contains(".dependencies"),
                "write [{section}] as a line of [dependencies]"
            );
        } else if let Some((key, _)) = line.split_once('=')
            && section.ends_with("dependencies")
        {
            let key = key.trim().split('.').next().unwrap().trim_matches('"');
            found.entry(section.clone()).or_default().insert(key.to_owned());
        }
    }
    found
}

/// Source text without comments and without what only tests compile.
fn production(text: &str) -> String {
    let text = text.find("#[cfg(test)]\nmod tests {").map_or(text, |end| &text[..end]);
    let code = |line: &str| match line.find("//") {
        Some(at) if !line[..at].contains('"') => line[..at].to_owned(),
        _ => line.to_owned(),
    };
    text.lines().map(code).collect::<Vec<_>>().join("\n")
}

#[test]
fn dependencies_point_up_the_list_of_crates() {
    let known: BTreeSet<_> = ALLOWED.iter().map(|(name, ..)| (*name).to_owned()).collect();
    let found: BTreeSet<_> = crates().iter().map(|path| name(path)).collect();
    assert_eq!(found, known, "crates on the left, those of this test on the right");
    for (crate_name, own, others) in ALLOWED {
        let manifest = read(&root().join("crates").join(crate_name).join("Cargo.toml"));
        for (section, names) in dependencies(&manifest) {
            let in_tests = ALLOWED_IN_TESTS.iter().find(|(name, _)| name == crate_name);
            for dependency in names {
                let allowed = match (dependency.strip_prefix("forebay-"), section.as_str()) {
                    (Some(name), _) => own.contains(&name),
                    (None, "dependencies") => {
                        others.contains(&"*") || others.contains(&dependency.as_str())
                    }
                    (None, "dev-dependencies") => {
                        in_tests.is_none_or(|(_, names)| names.contains(&dependency.as_str()))
                    }
                    (None, _) => ["preload", "hdf5"].contains(crate_name) && dependency == "cc",
                };
                assert!(allowed, "{crate_name} may not use {dependency} in [{section}]");
            }
        }
    }
}

/// The cells of the rows of a table of the architecture page whose head begins with `head`.
fn architecture_table(head: &str) -> Vec<Vec<String>> {
    let page = read(&root().join("ARCHITECTURE.md"));
    let rows = page.lines().skip_while(|line| !line.starts_with(head)).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let cells = |line: &str| {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
    };
    let found: Vec<_> = rows.map(cells).collect();
    assert!(found.len() > 3, "ARCHITECTURE.md has no table {head}");
    found
}

#[test]
fn the_architecture_page_says_what_each_crate_may_use() {
    let listed = architecture_table("| crate | what lives there |");
    let names: Vec<_> = listed.iter().map(|cells| cells[0].trim_matches('`')).collect();
    let allowed: Vec<_> = ALLOWED.iter().map(|(name, ..)| *name).collect();
    assert_eq!(names, allowed);
    for (cells, (name, uses, _)) in listed.iter().zip(ALLOWED) {
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let words = cells[2].split(|c| !is_name(c));
        let said: BTreeSet<_> = words.filter(|word| names.contains(word)).collect();
        assert_eq!(said, uses.iter().copied().collect(), "ARCHITECTURE.md, {name}");
    }
}

/// The modules of `node` that a source text names.
fn modules_named(text: &str) -> BTreeSet<String> {
    let module = |rest: &str| {
        let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(rest.len());
        rest[..end].to_owned()
    };
    production(text).split("crate::").skip(1).map(module).collect()
}

#[test]
fn folders_of_the_node_manager_use_those_above_them() {
    let listed = architecture_table("| folder | concern |");
    let order: Vec<_> =
        listed.iter().map(|cells| cells[0].trim_matches('`').trim_end_matches(".rs")).collect();
    let source = root().join("crates/node/src");
    let (mut known, mut arrows) = (BTreeSet::new(), 0);
    for file in sources(&source) {
        let below = file.strip_prefix(&source).unwrap();
        let top = name(Path::new(below.components().next().unwrap().as_os_str()));
        let top = top.trim_end_matches(".rs");
        if top == "lib" {
            continue;
        }
        let place = order.iter().position(|folder| *folder == top);
        let place = place.unwrap_or_else(|| panic!("ARCHITECTURE.md does not list {top}"));
        known.insert(place);
        for used in modules_named(&read(&file)) {
            let other = order.iter().position(|folder| *folder == used);
            assert!(
                other.is_some_and(|other| other <= place),
                "{} uses crate::{used}, which is not above {top} in ARCHITECTURE.md",
                below.display()
            );
            arrows += 1;
        }
    }
    assert_eq!(known.len(), order.len(), "ARCHITECTURE.md lists folders that are not there");
    assert!(arrows > 50, "only {arrows} uses were found");
}

/// The files of the preload library that one of them, in folder `folder` ("" is the top), names.
fn files_named(text: &str, folder: &str) -> BTreeSet<String> {
    let text = production(text);
    let mut found = BTreeSet::new();
    for (path, base) in [("crate::", ""), ("super::", folder)] {
        text.split(path).skip(1).for_each(|rest| add_files(rest, base, &mut found));
    }
    found
}

/// Adds the first name of a path, or of each in braces, within folder `base`; in the folder stdio
/// the second one, too.
fn add_files(path: &str, base: &str, found: &mut BTreeSet<String>) {
    for item in items(path) {
        let item = item.trim_start();
        let end = item.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(item.len());
        let (name, rest) = item.split_at(end);
        found.insert(format!("{base}{name}"));
        if let (true, Some(rest)) = (base.is_empty() && name == "stdio", rest.strip_prefix("::")) {
            add_files(rest, "stdio/", found);
        }
    }
}

/// What stands between braces at the start of `text`, by commas outside of inner braces; without
/// braces all of it.
fn items(text: &str) -> Vec<&str> {
    let Some(text) = text.strip_prefix('{') else { return vec![text] };
    let (mut found, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' if depth == 0 => {
                found.push(&text[start..at]);
                start = at + 1;
            }
            '}' => {
                found.push(&text[start..at]);
                break;
            }
            _ => {}
        }
    }
    found.retain(|item| !item.trim().is_empty());
    found
}

#[test]
fn files_of_the_preload_library_are_found_in_each_form_of_a_use() {
    let found = |text: &str| files_named(text, "stdio/").into_iter().collect::<Vec<_>>();
    assert_eq!(
        found("use crate::{aio, real::{a, b}, rw::c,\n};\nuse x::{y};"),
        ["aio", "real", "rw"]
    );
    assert_eq!(found("use crate::stdio::{lock::a, open};"), ["stdio", "stdio/lock", "stdio/open"]);
    assert_eq!(found("use crate::{stdio::close, stat};"), ["stat", "stdio", "stdio/close"]);
    assert_eq!(found("super::open::f(a, crate::rw::g)"), ["rw", "stdio/open"]);
}

#[test]
fn files_of_the_preload_library_use_each_other_in_no_circle() {
    let source = root().join("crates/preload/src");
    let mut uses = BTreeMap::new();
    for file in sources(&source) {
        let below = file.strip_prefix(&source).unwrap().with_extension("");
        let below = below.to_str().unwrap();
        let folder = below.rfind('/').map_or("", |end| &below[..=end]);
        let mut used = files_named(&read(&file), folder);
        // A macro of real.rs names it.
        used.remove(below);
        uses.insert(below.to_owned(), used);
    }
    let known: BTreeSet<_> = uses.keys().cloned().collect();
    uses.values_mut().for_each(|used| used.retain(|file| known.contains(file)));
    let arrows: usize = uses.values().map(BTreeSet::len).sum();
    assert!(arrows > 50, "only {arrows} uses were found");
    assert!(!uses.values().any(|used| used.contains("lib")), "lib.rs uses the others");
    // What uses none of those that are left is in no circle.
    let mut left = uses.len() + 1;
    while left > uses.len() {
        left = uses.len();
        let names: BTreeSet<_> = uses.keys().cloned().collect();
        uses.retain(|_, used| used.iter().any(|file| names.contains(file)));
    }
    assert!(uses.is_empty(), "a circle is among these: {uses:#?}");
}

#[test]
fn the_command_does_not_call_the_preload_library() {
    for file in files(&root().join("crates/cli/src"), "rs") {
        assert!(!read(&file).contains("forebay_preload::"), "{}", file.display());
    }
}

#[test]
fn one_place_writes_to_standard_output() {
    for file in files(&root().join("crates/cli/src"), "rs") {
        let elsewhere = !file.ends_with("src/output.rs") && read(&file).contains("stdout().");
        assert!(!elsewhere, "{}: use `print!`, which tells of errors", file.display());
    }
}

/// A line that git leaves in a file that was merged and not mended.
fn is_conflict_marker(line: &str) -> bool {
    line == "======="
        || ["<<<<<<< ", "||||||| ", ">>>>>>> "].iter().any(|start| line.starts_with(start))
}

#[test]
fn no_file_has_markers_of_a_merge() {
    let root = root();
    let mut git = std::process::Command::new("git");
    git.args(["-c", "safe.directory=*", "-C"]).arg(&root).args(["ls-files", "-z"]);
    let listed = git.output().ok().filter(|done| done.status.success());
    // What was unpacked from an archive is no checkout.
    let Some(listed) = listed else {
        assert!(!root.join(".git").exists(), "git does not list the files");
        eprintln!("SKIPPED no_file_has_markers_of_a_merge: no git checkout");
        return;
    };
    let listed = String::from_utf8(listed.stdout).unwrap();
    let mut seen = 0;
    let mut wrong = Vec::new();
    for name in listed.split_terminator('\0') {
        let Ok(text) = fs::read_to_string(root.join(name)) else { continue };
        seen += 1;
        let found = text.lines().enumerate().filter(|(_, line)| is_conflict_marker(line));
        wrong.extend(found.map(|(number, line)| format!("{name}:{}: {line}", number + 1)));
    }
    assert!(seen > 100, "only {seen} files were looked at");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn code_inside_programs_is_silent_and_starts_nothing() {
    let mut wrong = Vec::new();
    let inside = [
        "device",
        "posix",
        "client",
        "preload",
        "capi",
        "mpiio",
        "mpiio-large",
        "hdf5",
        "hdf5-later",
    ];
    for crate_name in inside {
        for file in sources(&root().join("crates").join(crate_name).join("src")) {
            let text = production(&read(&file));
            for (number, line) in text.lines().enumerate() {
                let excused = EXCUSED.iter().any(|excuse| line.contains(excuse));
                let allowed = |word: &str| {
                    excused
                        || ABOUT
                            .iter()
                            .any(|(at, words)| file.ends_with(at) && words.contains(&word))
                };
                for word in
                    BANNED_INSIDE.iter().filter(|word| line.contains(**word) && !allowed(word))
                {
                    wrong.push(format!("{}:{}: {word}", file.display(), number + 1));
                }
            }
        }
    }
    let shim = read(&root().join("crates/preload/src/variadic.c"));
    for word in [" printf(", "fprintf(stderr", "abort(", "signal(", "sigaction(", "pthread_create("]
    {
        if shim.contains(word) {
            wrong.push(format!("variadic.c: {word}"));
        }
    }
    assert!(wrong.is_empty(), "not allowed inside a program:\n{}", wrong.join("\n"));
}

/// Whether the item at `at` of a file is one of an implementation of a trait: the trait says what
/// its callers promise.
fn implements_a_trait(lines: &[&str], at: usize) -> bool {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let outer = |line: &&&str| !line.is_empty() && indent(line) < indent(lines[at]);
    let outer = lines[..at].iter().rev().find(outer);
    let words = |line: &str| {
        let line = line.trim_start();
        let line = line.strip_prefix("unsafe ").unwrap_or(line);
        line.starts_with("impl") && line.contains(" for ")
    };
    outer.is_some_and(|line| words(line))
}

/// Clippy asks it of what other crates see. Functions of C have their manual page.
#[test]
fn unsafe_functions_say_what_their_callers_promise() {
    let mut silent = Vec::new();
    for path in crates().iter().flat_map(|path| sources(&path.join("src"))) {
        let text = read(&path);
        let lines: Vec<_> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
            if !words.take(2).eq(["unsafe", "fn"]) || implements_a_trait(&lines, at) {
                continue;
            }
            let above = lines[..at].iter().rev().map(|line| line.trim_start());
            let mut above =
                above.take_while(|line| line.starts_with("///") || line.starts_with('#'));
            if !above.any(|line| line == "/// # Safety") {
                silent.push(format!("{}:{}: {}", path.display(), at + 1, line.trim()));
            }
        }
    }
    assert!(silent.is_empty(), "functions without a section # Safety:\n{}", silent.join("\n"));
}

/// Lines of `pool`, `client` and `node` that name a time and are no `clock::Timer`, with the
/// reason.
const OTHER_TIMES: &[(&str, &str)] = &[
    // Naps between two looks at what another thread is about to do; nothing is given up.
    ("pool/src/backoff.rs", "SLEEP_NS: u64 ="),
    ("pool/src/backoff.rs", "SLEEP_STOPPED_NS: u64 ="),
    ("node/src/node.rs", "sleep_ns(100_000)"),
    ("node/src/recovery/salvage.rs", "sleep_ns(1_000_000)"),
    // What was observed of a device.
    ("node/src/manager/remote.rs", "self.store_pace(id).reading("),
    // What small files take of a store that is quick, and of one that is not.
    ("node/src/manager/small_files.rs", "_NS: u64 ="),
    // What is shown: ages, and what is left of a time.
    ("node/src/observe/outlook.rs", "Duration::from_"),
    // What counts as one stretch of calls in a trace.
    ("pool/src/spans.rs", "GAP_NS: u64"),
    // Emulated devices.
    ("node/src/node.rs", "left.min(50_000_000)"),
    // What a user sets, and the least of it.
    ("node/src/config/active.rs", "PATIENCE: Duration"),
    ("node/src/config/active.rs", "map(Duration::from_nanos)"),
    ("node/src/manager/runner.rs", "Duration::from_millis(now_ms()"),
    ("node/src/config/types.rs", "period: Duration::from_secs(1)"),
    ("node/src/config/types.rs", "max_age: Duration::from_secs(30)"),
    ("node/src/config/toml.rs", "Duration::from_nanos(self.duration_ns("),
    ("node/src/config/analyses.rs", "TIMEOUT"),
    ("node/src/config/metrics.rs", "INTERVAL"),
    ("node/src/config/metrics.rs", "Duration::from_nanos(self.duration_ns("),
    ("node/src/config/analyses.rs", "Duration::from_nanos(value.duration_ns("),
    ("node/src/config/types.rs", "give_back: Duration::from_secs(30)"),
    ("node/src/config/toml.rs", "e.duration_ns("),
    ("node/src/config/toml.rs", "PERIOD_MIN: Duration"),
    ("node/src/config/toml.rs", "HALF_LIFE_M"),
    ("node/src/config/types.rs", "half_life: Duration::"),
    ("node/src/config/limits.rs", "AGE_M"),
    ("node/src/config/adapters.rs", "Duration::from_nanos(keep)"),
    ("pool/src/stay.rs", "Duration::from_nanos(left_ns)"),
    ("node/src/config/limits.rs", "map(Duration::from_nanos)"),
    ("node/src/observe/status.rs", "Duration::from_millis(ms.into())"),
    ("node/src/recovery/recorded.rs", "half_life: Duration::"),
    // The period of looks at the group's folder, which other nodes count on.
    ("node/src/group/flush_watch.rs", "from_millis(self.times.look)"),
    // What a link is taken for until it was observed.
    ("node/src/manager/lend.rs", "LINK_LATENCY_NS: u64"),
    // Pauses on purpose, and the timers themselves.
    ("pool/src/crash/pauses.rs", "_NS: u64 ="),
    ("pool/src/clock.rs", "Duration::from_nanos(self.as_ns())"),
    // A test of its own.
    ("node/src/journal/record.rs", "Instant::now() + Duration::from_millis(700)"),
    // For fsck, salvage, a starting and an ending manager: they wait for the real progress of
    // another.
    ("pool/src/check.rs", "LOOK_NS: u64"),
    ("node/src/recovery/salvage.rs", "LOCK_WAIT_MAX: Duration"),
    ("node/src/manager/daemon/neighbours.rs", "ENDING: Duration"),
    ("node/src/manager/daemon/neighbours.rs", "thread::sleep(Duration::from_millis(50))"),
    ("node/src/instance/guard.rs", "WAIT_MAX: Duration"),
    // Of the clock that files are stamped with: nothing waits for them.
    ("client/src/changed.rs", "TICKS_NS: u64"),
    ("client/src/open.rs", "SECOND_NS: u64"),
    ("node/src/drain/complete.rs", "FADING: Duration"),
    ("node/src/instance/guard.rs", "ENDING: Duration"),
    ("node/src/instance/guard.rs", "thread::sleep(Duration::from_millis(20"),
];

/// A pause in a test must be able to outlast whatever manager and client wait for.
#[test]
fn all_timers_are_scaled() {
    let mut wrong = Vec::new();
    let mut timers = 0;
    for crate_name in ["pool", "client", "node"] {
        for file in sources(&root().join("crates").join(crate_name).join("src")) {
            let text = production(&read(&file));
            timers += text.matches(": Timer = Timer::").count();
            for (number, line) in text.lines().enumerate() {
                let constant = line.contains("const ")
                    && ["_MS:", "_NS:", "_SECS:"].iter().any(|unit| line.contains(unit));
                let digit = |call: &str| {
                    line.split(call)
                        .nth(1)
                        .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
                };
                let named = constant || line.contains("Duration::from_") || digit("sleep_ns(");
                let excused =
                    OTHER_TIMES.iter().any(|(at, text)| file.ends_with(at) && line.contains(text));
                if named && !excused {
                    wrong.push(format!("{}:{}: {}", file.display(), number + 1, line.trim()));
                }
            }
        }
    }
    assert!(timers >= 20, "{timers}");
    assert!(wrong.is_empty(), "use clock::Timer, or say why not:\n{}", wrong.join("\n"));
}

/// The formatter breaks code, and leaves comments as they are.
#[test]
fn lines_of_comments_have_at_most_100_columns() {
    let mut wide = Vec::new();
    for file in crates().iter().flat_map(|path| files(path, "rs")) {
        for (line, number) in read(&file).lines().zip(1..) {
            if line.trim_start().starts_with("//") && line.chars().count() > 100 {
                wide.push(format!("{}:{number}: {line}", file.display()));
            }
        }
    }
    assert!(wide.is_empty(), "break these lines:\n{}", wide.join("\n"));
}

/// Words that name no thread, process or caller, in comments and in pages.
const VAGUE: [&str; 5] = ["nobody", "somebody", "anybody", "everybody", "whoever"];

#[test]
fn comments_name_threads_processes_and_callers() {
    let sources = crates().into_iter().flat_map(|path| {
        ["src", "tests"].into_iter().flat_map(move |folder| files(&path.join(folder), "rs"))
    });
    let pages = files(&root().join("docs"), "md");
    let mut vague = Vec::new();
    let sources = sources.map(|file| (file, false));
    for (file, is_page) in sources.chain(pages.into_iter().map(|page| (page, true))) {
        for (line, number) in read(&file).lines().zip(1..) {
            let comment = line.split_once("//").map(|(_, comment)| comment);
            let Some(text) = (if is_page { Some(line) } else { comment }) else { continue };
            // The user of that name.
            let text = text.to_lowercase().replace("`nobody`", "");
            let is_end = |c: char| !c.is_alphanumeric() && c != '_';
            if text.split(is_end).any(|word| VAGUE.contains(&word)) {
                vague.push(format!("{}:{number}: {line}", file.display()));
            }
        }
    }
    assert!(vague.is_empty(), "say which thread, process or caller:\n{}", vague.join("\n"));
}

/// A source file as pages name it: `crate/src/file.rs`, or without `src`.
fn is_there(named: &str) -> bool {
    let Some((first, rest)) = named.split_once('/') else { return true };
    let folder = root().join("crates").join(first);
    !folder.is_dir() || folder.join(rest).exists() || folder.join("src").join(rest).exists()
}

#[test]
fn pages_name_source_files_that_exist() {
    let pages = files(&root().join("docs"), "md").into_iter();
    let pages = pages.chain(["ARCHITECTURE.md", "CONTRIBUTING.md"].map(|page| root().join(page)));
    let (mut named, mut stale) = (0, Vec::new());
    for page in pages {
        let text = read(&page);
        let quoted = text.split('`').skip(1).step_by(2).map(str::trim);
        for file in quoted.filter(|word| word.ends_with(".rs") && !word.contains(['{', ' ', '*'])) {
            // A name in capitals stands for any.
            if file.contains(char::is_uppercase) {
                continue;
            }
            named += 1;
            if !is_there(file.strip_prefix("crates/").unwrap_or(file)) {
                stale.push(format!("{}: {file}", page.display()));
            }
        }
    }
    assert!(named > 50, "{named}");
    assert!(stale.is_empty(), "these files are not there:\n{}", stale.join("\n"));
}

#[test]
fn nothing_is_left_to_do_later() {
    for file in crates().iter().flat_map(|path| files(path, "rs")) {
        if file.ends_with("house/workspace.rs") {
            continue;
        }
        let text = read(&file);
        for word in ["todo!", "unimplemented!", "TODO", "FIXME", "XXX"] {
            assert!(!text.contains(word), "{}: {word}", file.display());
        }
    }
}

/// Adds `file` and the modules it declares to `seen`.
fn follow(file: &Path, is_root: bool, seen: &mut BTreeSet<PathBuf>) {
    let Ok(file) = file.canonicalize() else { return };
    if !seen.insert(file.clone()) {
        return;
    }
    let folder = file.parent().unwrap();
    let own = match is_root || file.ends_with("mod.rs") {
        true => folder.to_owned(),
        false => folder.join(file.file_stem().unwrap()),
    };
    let mut path = None;
    for line in read(&file).lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("#[path = \"") {
            path = rest.split('"').next().map(|named| folder.join(named));
            continue;
        }
        let line = ["pub(crate) ", "pub(super) ", "pub "]
            .iter()
            .find_map(|word| line.strip_prefix(word))
            .unwrap_or(line);
        let module = line.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';'));
        if let Some(module) = module {
            match path.take() {
                // Modules inside one that is named by path lie beside it.
                Some(named) => follow(&named, true, seen),
                None => {
                    follow(&own.join(format!("{module}.rs")), false, seen);
                    follow(&own.join(module).join("mod.rs"), false, seen);
                }
            }
        } else if !line.starts_with("#[") && !line.is_empty() && !line.starts_with("//") {
            path = None;
        }
    }
}

#[test]
fn no_source_file_is_dead() {
    let mut all = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for path in crates() {
        all.extend(files(&path, "rs").into_iter().map(|file| file.canonicalize().unwrap()));
        for start in ["build.rs", "src/lib.rs", "src/main.rs"] {
            follow(&path.join(start), true, &mut seen);
        }
        for folder in ["tests", "benches", "examples", "src/bin"] {
            let Ok(entries) = fs::read_dir(path.join(folder)) else { continue };
            for file in entries.map(|entry| entry.unwrap().path()) {
                if file.extension().is_some_and(|ext| ext == "rs") {
                    follow(&file, true, &mut seen);
                } else {
                    follow(&file.join("main.rs"), true, &mut seen);
                }
            }
        }
    }
    let dead: Vec<_> = all.difference(&seen).collect();
    assert!(all.len() > 50 && dead.is_empty(), "declared by no module: {dead:?}");
}

/// The preload library that was built with the command.
fn library() -> PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_forebay")).parent().unwrap();
    let places = ["deps/libforebay_preload.so", "libforebay_preload.so"];
    let found = places.iter().map(|place| folder.join(place)).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{places:?} not found in {}", folder.display()))
}

/// The names of the global symbols that a 64-bit little-endian ELF library defines.
fn exported(library: &Path) -> BTreeSet<String> {
    const DYNSYM: u32 = 11;
    let elf = fs::read(library).unwrap();
    assert_eq!(&elf[..6], b"\x7fELF\x02\x01", "{}", library.display());
    let number = |at: usize, bytes: usize| {
        elf[at..at + bytes].iter().rev().fold(0_usize, |sum, &byte| sum << 8 | usize::from(byte))
    };
    let (table, entry, count) = (number(0x28, 8), number(0x3a, 2), number(0x3c, 2));
    let section = |index: usize| table + index * entry;
    let symbols = (0..count)
        .map(section)
        .find(|&at| number(at + 4, 4) == DYNSYM as usize)
        .expect("the library has dynamic symbols");
    let strings = number(section(number(symbols + 0x28, 4)) + 0x18, 8);
    let (start, bytes) = (number(symbols + 0x18, 8), number(symbols + 0x20, 8));
    (start..start + bytes)
        .step_by(24)
        .filter(|&at| elf[at + 4] >> 4 != 0 && number(at + 6, 2) != 0)
        .map(|at| {
            let name = &elf[strings + number(at, 4)..];
            let end = name.iter().position(|&byte| byte == 0).unwrap();
            String::from_utf8(name[..end].to_vec()).unwrap()
        })
        .collect()
}

/// The names in the first column of the tables headed "symbol".
fn listed(page: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut inside = false;
    for line in page.lines() {
        inside = line.starts_with("| symbol |") || inside && line.starts_with('|');
        if inside && line.starts_with("| `") {
            let names = line.split('|').nth(1).unwrap();
            for name in names.split('`').skip(1).step_by(2) {
                assert!(found.insert(name.to_owned()), "docs/posix.md names {name} twice");
            }
        }
    }
    found
}

#[test]
fn the_page_of_calls_names_what_the_library_exports() {
    let exported = exported(&library());
    let listed = listed(&read(&root().join("docs/posix.md")));
    assert!(exported.len() > 100, "{exported:?}");
    let missing: Vec<_> = exported.difference(&listed).collect();
    let surplus: Vec<_> = listed.difference(&exported).collect();
    assert!(
        missing.is_empty() && surplus.is_empty(),
        "docs/posix.md lacks {missing:?} and names {surplus:?}, which the library does not export"
    );
}

/// Symbols that no test program names: libaio's, which fio calls, what the library calls itself,
/// and what the C library looks for.
const UNNAMED: &[&str] = &["io_submit", "forebay_execve", "forebay_execvpe", "forebay_services_1"];

/// The words in backquotes of a table's cell.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The text of a test module and of the programs that it names, or that lie in a folder of its
/// name.
fn test_sources(file: &str) -> String {
    let tests = root().join("crates/cli/tests");
    let is_it = |path: &PathBuf| path.file_stem().is_some_and(|stem| stem == file);
    let module = files(&tests, "rs").into_iter().find(is_it);
    let mut text =
        read(&module.unwrap_or_else(|| panic!("no module {file} in {}", tests.display())));
    let mut folders = vec![tests.join("programs")];
    let mut programs = Vec::new();
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() { folders.push(path) } else { programs.push(path) }
        }
    }
    let own = |path: &Path| path.parent().is_some_and(|folder| folder.ends_with(file));
    let named: Vec<_> =
        programs.into_iter().filter(|path| own(path) || text.contains(&name(path))).collect();
    named.iter().for_each(|path| text.push_str(&read(path)));
    text
}

fn has_word(text: &str, word: &str) -> bool {
    let inside = |letter: Option<char>| letter.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(word).any(|(at, _)| {
        !inside(text[..at].chars().next_back()) && !inside(text[at + word.len()..].chars().next())
    })
}

#[test]
fn the_page_of_tests_has_one_that_exists_for_each_call() {
    let page = read(&root().join("docs/posix-tests.md"));
    let mut sources: BTreeMap<String, String> = BTreeMap::new();
    let mut proved = BTreeSet::new();
    let mut wrong = Vec::new();
    let (mut table, mut rows) = (String::new(), 0);
    for line in page.lines() {
        let cells: Vec<_> = line.split('|').collect();
        let [_, left, right, _] = cells[..] else { continue };
        if !right.contains('`') {
            if !right.contains("---") {
                left.trim().clone_into(&mut table);
            }
            continue;
        }
        rows += 1;
        let mut text = String::new();
        for test in quoted(right) {
            let (file, function) = test.split_once("::").unwrap_or_else(|| panic!("{test}"));
            let source = sources.entry(file.to_owned()).or_insert_with(|| test_sources(file));
            if !source.contains(&format!("\nfn {function}() {{")) {
                wrong.push(format!("{test} does not exist"));
            }
            text.push_str(source);
        }
        for symbol in quoted(left).iter().filter(|_| table == "call") {
            if !has_word(&text, symbol) && !UNNAMED.contains(&symbol.as_str()) {
                wrong.push(format!("no program of {right} names {symbol}"));
            }
            if !proved.insert(symbol.clone()) {
                wrong.push(format!("{symbol} is listed twice"));
            }
        }
    }
    let exported = exported(&library());
    let missing: Vec<_> = exported.difference(&proved).collect();
    let surplus: Vec<_> = proved.difference(&exported).collect();
    assert!(rows > 20, "{page}");
    assert!(
        wrong.is_empty() && missing.is_empty() && surplus.is_empty(),
        "docs/posix-tests.md: {wrong:#?}, lacks {missing:?}, and names {surplus:?} for nothing"
    );
}
