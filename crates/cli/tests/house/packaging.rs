//! What packages have: all of them are made of what `scripts/install` installs. Nothing is compiled
//! here: the binaries are those that were built with the tests.

use crate::harness::{FOREBAY, LAZY, Site, have};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The version of the workspace.
fn version() -> String {
    let text = read("Cargo.toml");
    text.lines().find_map(|line| line.strip_prefix("version = ")).unwrap().replace('"', "")
}

/// A folder with the command and the libraries that were built.
fn binaries(site: &Site) -> PathBuf {
    let folder = site.root().join("binaries");
    fs::create_dir(&folder).unwrap();
    symlink(FOREBAY, folder.join("forebay")).unwrap();
    let built = Path::new(FOREBAY).parent().unwrap();
    for name in ["preload", "capi", "mpiio", "mpiio_large", "hdf5", "hdf5_later"] {
        let name = format!("libforebay_{name}.so");
        let places = [built.join("deps").join(&name), built.join(&name)];
        let found = places.iter().find(|path| path.is_file());
        symlink(found.unwrap_or_else(|| panic!("none of {places:?}")), folder.join(name)).unwrap();
    }
    folder
}

/// The files and links below a folder, by their paths in it.
fn files(folder: &Path) -> BTreeSet<String> {
    let (mut found, mut folders) = (BTreeSet::new(), vec![folder.to_owned()]);
    while let Some(here) = folders.pop() {
        for entry in fs::read_dir(here).unwrap() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => {
                    let path = entry.path();
                    let path = path.strip_prefix(folder).unwrap().to_str().unwrap();
                    found.insert(path.to_owned());
                }
            }
        }
    }
    found
}

/// Runs a command of a package's build; what it says.
fn build(command: &mut Command, site: &Site, binaries: &Path) -> String {
    // Of a package's build that runs these tests.
    for variable in ["MAKEFLAGS", "MAKELEVEL", "DEB_BUILD_OPTIONS"] {
        command.env_remove(variable);
    }
    let made = command.env("FOREBAY_BINARIES", binaries).env("TMPDIR", &site.out).output().unwrap();
    let said = String::from_utf8_lossy(&[made.stdout, made.stderr].concat()).into_owned();
    assert!(made.status.success(), "{said}");
    said
}

/// Has `scripts/install` put its files for a prefix below a folder.
fn stage(site: &Site, prefix: &str) -> PathBuf {
    let staged = site.out.join("staged");
    let mut install = Command::new(root().join("scripts/install"));
    build(install.arg(prefix).env("DESTDIR", &staged), site, &binaries(site));
    staged.join(prefix.trim_start_matches('/'))
}

#[test]
fn what_is_staged_for_a_package_is_complete_and_for_its_prefix() {
    let site = Site::new(&LAZY);
    let staged = stage(&site, "/opt/forebay");
    let found = files(&staged);
    for needed in [
        "bin/forebay",
        "lib/forebay/libforebay_preload.so",
        "lib/forebay/libforebay_mpiio.so",
        "lib/forebay/libforebay_mpiio_large.so",
        "lib/forebay/libforebay_hdf5.so",
        "lib/forebay/libforebay_hdf5_later.so",
        "lib/libforebay.so",
        "lib/libforebay.so.0",
        "lib/pkgconfig/forebay.pc",
        "lib/cmake/forebay/forebay-config.cmake",
        "lib/cmake/forebay/forebay-config-version.cmake",
        "share/bash-completion/completions/forebay",
        "share/zsh/site-functions/_forebay",
        "share/fish/vendor_completions.d/forebay.fish",
        "share/man/man1/forebay.1",
        "share/man/man1/forebay-run.1",
    ] {
        assert!(found.contains(needed), "{needed} is not there: {found:?}");
    }
    let below = |folder: &str| -> BTreeSet<String> {
        found.iter().filter_map(|path| path.strip_prefix(folder)).map(str::to_owned).collect()
    };
    assert_eq!(below("include/forebay/"), files(&root().join("include/forebay")));
    let mut modules = files(&root().join("python/forebay"));
    modules.retain(|path| !path.contains("__pycache__"));
    assert_eq!(below("lib/forebay/python/forebay/"), modules);
    let read = |path: &str| fs::read_to_string(staged.join(path)).unwrap();
    let unit = read("share/systemd/user/forebay@.service");
    assert!(unit.contains("\nExecStart=/opt/forebay/bin/forebay node "), "{unit}");
    let module = read(&format!("share/modulefiles/forebay/{}.lua", version()));
    assert!(module.contains("local prefix = \"/opt/forebay\""), "{module}");
    assert!(read("lib/pkgconfig/forebay.pc").contains(&format!("Version: {}\n", version())));
}

#[test]
fn the_debian_package_has_what_is_installed_and_runs_programs_buffered() {
    if !have(&["dpkg-buildpackage", "strip"]) {
        return;
    }
    let site = Site::new(&LAZY);
    let source = site.out.join("source");
    fs::create_dir(&source).unwrap();
    for entry in fs::read_dir(root()).unwrap() {
        let name = entry.unwrap().file_name();
        // Neither what is built nor what is of git.
        if !["target", ".git", "forebay-demo"].map(Some).contains(&name.to_str()) {
            let copied = Command::new("cp").arg("-r").arg(root().join(name)).arg(&source).status();
            assert!(copied.unwrap().success());
        }
    }
    let mut package = Command::new("dpkg-buildpackage");
    package.args(["-b", "-us", "-uc"]).current_dir(&source).env("COMPRESSION", "none");
    let said = build(&mut package, &site, &binaries(&site));
    let mut made = files(&site.out);
    made.retain(|path| path.ends_with(".deb"));
    assert_eq!(made.len(), 1, "{said}");
    let file = site.out.join(made.first().unwrap());
    let unpacked = site.out.join("unpacked");
    let dpkg = |what: &[&str]| {
        let ran = Command::new("dpkg-deb").args(what).output().unwrap();
        assert!(ran.status.success(), "{ran:?}");
        String::from_utf8_lossy(&ran.stdout).into_owned()
    };
    let (file, to) = (file.to_str().unwrap(), unpacked.to_str().unwrap());
    dpkg(&["-x", file, to]);
    let fields = dpkg(&["--show", "--showformat", "${Version} ${Depends}", file]);
    assert!(fields.starts_with(&format!("{} ", version())), "{fields}");
    assert!(fields.contains("libc6 (>= "), "{fields}");
    let found = files(&unpacked.join("usr"));
    for staged in files(&source.join("debian/staged/usr")) {
        let path = match staged.as_str() {
            man if man.starts_with("share/man/") => format!("{man}.gz"),
            unit if unit.starts_with("share/systemd/") => unit.replace("share/", "lib/"),
            module if module.starts_with("share/modulefiles/") => continue,
            other => other.to_owned(),
        };
        assert!(found.contains(&path), "{path} is not there: {found:?}");
    }
    assert!(found.contains("share/doc/forebay/README.md"), "{found:?}");
    assert!(found.contains("share/doc/forebay/docs/service.md"), "{found:?}");
    let forebay = unpacked.join("usr/bin/forebay");
    let mut command = site.command(&site.store, forebay.to_str().unwrap());
    let config = site.config.to_str().unwrap();
    command.args(["run", "--verbose", "--config", config, "--", "sh", "-c", "seq 1000 > file"]);
    let ran = site.end(command).expect(0);
    assert!(!ran.stderr.contains("nothing was buffered"), "{}", ran.stderr);
    assert_eq!(fs::read_to_string(site.store.join("file")).unwrap().lines().count(), 1000);
}

#[test]
fn the_debian_changelog_has_the_version_of_the_workspace() {
    let newest = read("debian/changelog");
    assert!(newest.starts_with(&format!("forebay ({}) ", version())), "{newest}");
}

/// The words of a file of instructions, such as `COPY . .`, one instruction a line.
fn instructions(text: &str) -> Vec<Vec<&str>> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| line.split_whitespace().collect()).collect()
}

#[test]
fn the_container_is_built_of_what_there_is() {
    let text = read("packaging/Containerfile");
    let all = instructions(&text);
    let rust = read("Cargo.toml");
    let rust = rust.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap();
    let from = all.iter().find(|words| words[0] == "FROM").unwrap();
    assert_eq!(from[1], format!("rust:{}-${{DEBIAN}}", rust.replace('"', "")));
    // What is run there is there, and what is copied is what that makes.
    let run: Vec<_> = all.iter().filter(|words| words[0] == "RUN").collect();
    let [_, script, prefix] = run[0][..] else { panic!("{run:?}") };
    assert!(root().join(script).is_file(), "{script}");
    let copies: Vec<_> = all.iter().filter(|words| words[0] == "COPY").collect();
    assert_eq!(copies[0][1..], [".", "."]);
    assert_eq!(copies[1][1..], ["--from=build", &format!("{prefix}/"), &format!("{prefix}/")]);
    let ignored = read(".dockerignore");
    for needed in ["scripts", "crates", "include", "python", "packaging", "examples", "Cargo.lock"]
    {
        assert!(root().join(needed).exists(), "{needed}");
        assert!(!ignored.lines().any(|line| line == needed), "{needed} is ignored");
    }
    let site = Site::new(&LAZY);
    let staged = stage(&site, prefix);
    let entry = all.iter().find(|words| words[0] == "ENTRYPOINT").unwrap()[1];
    let entry = entry.trim_matches(['[', ']', '"']).strip_prefix(prefix).unwrap();
    let mut words = vec![staged.join(entry.trim_start_matches('/'))];
    words.extend(run[1][2..].iter().map(PathBuf::from));
    let ran = Command::new(&words[0]).args(&words[1..]).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(run[1][1], "forebay");
}

/// What stands for Spack: takes note of the directives, and installs.
const SPACK: &str = r#"
import runpy, subprocess, sys, types
recipe, source, prefix = sys.argv[1:]
noted = {}
def directive(name):
    return lambda *given, **named: noted.setdefault(name, []).append(given)
class Package:
    stage = types.SimpleNamespace(source_path=source)
class Environment:
    def prepend_path(self, name, path):
        print("environment", name, path)
module, generic = types.ModuleType("spack.package"), types.ModuleType("generic")
generic.Package = Package
for name in ["license", "version", "depends_on", "conflicts"]:
    setattr(module, name, directive(name))
module.join_path = lambda *parts: "/".join(map(str, parts))
module.Executable = lambda path: lambda *words: subprocess.run([path, *words], check=True)
sys.modules["spack"], sys.modules["spack.package"] = types.ModuleType("spack"), module
for name in ["spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"]:
    sys.modules[name] = types.ModuleType(name)
sys.modules["spack_repo.builtin.build_systems.generic"] = generic
package = runpy.run_path(recipe)["Forebay"]()
package.prefix = prefix
package.install(None, prefix)
package.setup_run_environment(Environment())
for name, given in noted.items():
    for one in given:
        print(name, *one)
"#;

#[test]
fn the_recipe_of_spack_installs_this_version() {
    if !have(&["python3"]) {
        return;
    }
    let site = Site::new(&LAZY);
    let prefix = site.out.join("prefix");
    let mut python = Command::new("python3");
    python.args(["-B", "-c", SPACK]).arg(root().join("packaging/spack/package.py"));
    let said = build(python.arg(root()).arg(&prefix), &site, &binaries(&site));
    let has = |line: &str| assert!(said.lines().any(|said| said == line), "{line}: {said}");
    has(&format!("version {}", version()));
    let rust = read("Cargo.toml");
    let rust = rust.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap();
    has(&format!("depends_on rust@{}:", rust.replace('"', "")));
    let module = prefix.join("lib/forebay/python");
    has(&format!("environment PYTHONPATH {}", module.display()));
    assert!(module.join("forebay/__init__.py").is_file());
    assert!(prefix.join("bin/forebay").is_file());
    assert!(read("packaging/spack/package.py").contains(&format!("forebay@{}\n", version())));
}

#[test]
fn symbols_that_need_a_newer_glibc_are_named() {
    if !have(&["objdump", "cc"]) {
        return;
    }
    let site = Site::new(&LAZY);
    let (source, program) = (site.out.join("call.c"), site.out.join("call"));
    fs::write(&source, "#include <stdio.h>\nint main(void) { return puts(\"\") < 0; }\n").unwrap();
    let made = Command::new("cc").arg(&source).arg("-o").arg(&program).status().unwrap();
    assert!(made.success());
    let check = |limit: &str| {
        let mut script = Command::new(root().join("scripts/check-glibc"));
        let ran = script.args(["--limit", limit]).arg(&program).output().unwrap();
        (ran.status.code(), String::from_utf8_lossy(&ran.stdout).into_owned())
    };
    // Each program has some symbol of a version after 2.0, and none of 9.9.
    let (code, said) = check("2.0");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("\n  puts needs glibc 2."), "{said}");
    let (code, said) = check("9.9");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with(&format!("{}: glibc 2.", program.display())), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

/// What a script of the project says of a file, and its status.
fn script(name: &str, file: &Path) -> (Option<i32>, String) {
    let ran = Command::new(root().join("scripts").join(name)).arg(file).output().unwrap();
    (ran.status.code(), String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned())
}

#[test]
fn a_library_whose_flag_is_set_afterwards_starts_before_others() {
    if !have(&["python3", "cc"]) {
        return;
    }
    let site = Site::new(&LAZY);
    let library = |name: &str, option: &str| {
        let (source, library) = (site.out.join("start.c"), site.out.join(format!("{name}.so")));
        let code = format!(
            "#include <unistd.h>\n\
             __attribute__((constructor)) static void start(void) {{ write(2, \"{name}\", 1); }}\n"
        );
        fs::write(&source, code).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-w", option, "-o"]).arg(&library).arg(&source);
        assert!(cc.status().unwrap().success());
        library
    };
    let (a, b) = (library("a", "-Wl,-z,now"), library("b", "-Wl,-z,now"));
    let order = || {
        let mut program = Command::new("/bin/true");
        program.env("LD_PRELOAD", format!("{} {}", a.display(), b.display()));
        String::from_utf8(program.output().unwrap().stderr).unwrap()
    };
    let plain = order();
    assert!(["ab", "ba"].contains(&plain.as_str()), "{plain}");
    let last = if plain == "ab" { &b } else { &a };
    assert_eq!(
        script("set-initfirst", last),
        (Some(0), format!("{}: INITFIRST is set\n", last.display()))
    );
    assert_eq!(order(), plain.chars().rev().collect::<String>());
    let (code, said) = script("set-initfirst", last);
    assert_eq!((code, said), (Some(0), format!("{}: INITFIRST was set\n", last.display())));
    assert_eq!(order(), plain.chars().rev().collect::<String>());
    // What cannot be done is said, and leaves files as they are.
    let lazy = library("c", "-Wl,-z,lazy");
    let text = site.out.join("start.c");
    for (file, why) in [(&lazy, "has no entry DT_FLAGS_1"), (&text, "is no 64-bit ELF file")] {
        let before = fs::read(file).unwrap();
        let (code, said) = script("set-initfirst", file);
        assert!(code == Some(1) && said.contains(why), "{code:?} {said}");
        assert_eq!(fs::read(file).unwrap(), before);
    }
}

#[test]
fn the_flag_changes_one_bit_of_a_built_library() {
    if !have(&["python3", "readelf"]) {
        return;
    }
    let site = Site::new(&LAZY);
    let built = binaries(&site);
    let flags = |file: &Path| {
        let ran = Command::new("readelf").arg("-dW").arg(file).output().unwrap();
        let said = String::from_utf8(ran.stdout).unwrap();
        let line = said.lines().find_map(|line| line.split_once("Flags: "));
        line.map(|(_, flags)| flags.trim().to_owned())
    };
    // The linker has set it in one library, and in none of the others.
    let preload = fs::read(built.join("libforebay_preload.so")).unwrap();
    let copy = site.out.join("copy.so");
    fs::write(&copy, &preload).unwrap();
    assert_eq!(flags(&copy).as_deref(), Some("NOW INITFIRST"));
    assert_eq!(script("set-initfirst", &copy).0, Some(0));
    assert!(fs::read(&copy).unwrap() == preload);

    let before = fs::read(built.join("libforebay_capi.so")).unwrap();
    fs::write(&copy, &before).unwrap();
    assert_eq!(flags(&copy).as_deref(), Some("NOW"));
    assert_eq!(script("set-initfirst", &copy).0, Some(0));
    assert_eq!(flags(&copy).as_deref(), Some("NOW INITFIRST"));
    let after = fs::read(&copy).unwrap();
    assert_eq!(after.len(), before.len());
    let changed: Vec<_> = before.iter().zip(&after).filter(|(old, new)| old != new).collect();
    assert!(matches!(changed[..], [(old, new)] if old ^ new == 0x20), "{changed:?}");
}

/// Packages that a text has cargo build.
fn packages(text: &str) -> BTreeSet<&str> {
    let words: Vec<_> = text.split_whitespace().collect();
    let named = words.windows(2).filter(|pair| pair[0] == "-p").map(|pair| pair[1]);
    // mkdir has an option of this name, too.
    named.filter(|name| name.starts_with("forebay")).collect()
}

#[test]
fn a_portable_build_is_of_what_is_installed_and_names_what_is_missing() {
    let (portable, install) = (read("scripts/build-portable"), read("scripts/install"));
    assert!(packages(&install).contains("forebay-preload"));
    assert_eq!(packages(&portable), packages(&install));
    let run = |words: &[&str], path: &Path| {
        let mut command = Command::new("/bin/bash");
        command.arg(root().join("scripts/build-portable")).args(words).env("PATH", path);
        let ran = command.env_remove("CARGO_ZIGBUILD_ZIG_PATH").output().unwrap();
        (ran.status.code(), String::from_utf8_lossy(&ran.stderr).into_owned())
    };
    let site = Site::new(&LAZY);
    let nothing = site.out.join("nothing");
    let (code, said) = run(&[nothing.to_str().unwrap()], &nothing);
    assert_eq!(code, Some(1), "{said}");
    for needed in ["cargo", "python3", "objdump", "cargo-zigbuild", "zig"] {
        let line = format!("scripts/build-portable: {needed} is not installed");
        assert!(said.contains(&line), "{needed}: {said}");
    }
    for wrong in [&[][..], &["--glibc", "2.28"], &["--other", "1", "x"], &["--help"]] {
        let (code, said) = run(wrong, &nothing);
        assert!(code == Some(2) && said.starts_with("usage: "), "{wrong:?}: {said}");
    }
    assert!(!nothing.exists());
}
