//! The Python wheel: it is built and installed below a prefix of its own; its tests and the
//! examples of its page run with the command and the libraries that it brings.

use crate::harness::{self, Setup, Site, TINY};
use crate::{built, root};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROOMY: Setup = Setup { ram: "32MiB", nvme: "64MiB", ..TINY };

/// pip, which makes the wheel of the binaries that were built with the tests.
fn pip(site: &Site, python: &str, words: &str) -> Command {
    let binaries = site.root().join("binaries");
    fs::create_dir_all(&binaries).unwrap();
    symlink(harness::FOREBAY, binaries.join("forebay")).unwrap();
    for name in ["preload", "capi", "mpiio", "mpiio_large", "hdf5", "hdf5_later"] {
        let name = format!("libforebay_{name}.so");
        symlink(built(&name), binaries.join(&name)).unwrap();
    }
    let mut command = Command::new(python);
    command.args(["-m", "pip"]).args(words.split(' '));
    command.args(["-q", "--no-index", "--no-deps", "--no-cache-dir"]).arg(root());
    command.env("FOREBAY_BINARIES", binaries).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("TMPDIR", site.root());
    command
}

/// Installs the wheel; the folder of its modules.
fn install(site: &Site, python: &str) -> PathBuf {
    let prefix = site.root().join("prefix");
    let mut command = pip(site, python, "install --ignore-installed");
    let made = command.arg("--prefix").arg(&prefix).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let version = fs::read_dir(prefix.join("lib")).unwrap().map(|e| e.unwrap().path());
    let found = version.map(|path| path.join("site-packages")).find(|path| path.is_dir());
    found.unwrap_or_else(|| panic!("no site-packages below {}", prefix.display()))
}

#[test]
fn the_wheel_needs_nothing_that_manylinux_has_not() {
    let Some(python) = harness::python_with("pip, auditwheel") else { return };
    let site = Site::new(&TINY);
    let folder = site.root().join("wheel");
    let made = pip(&site, &python, "wheel").arg("-w").arg(&folder).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let wheel = fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    let shown = Command::new(&python).args(["-m", "auditwheel", "show"]).arg(&wheel).output();
    let shown = shown.unwrap();
    let said = String::from_utf8_lossy(&shown.stdout).replace('\n', " ");
    assert!(shown.status.success() && said.contains("tag: \"manylinux_2_"), "{shown:?}");
}

/// A program of the test's Python that finds the installed package, and no other library.
fn told(mut command: Command, modules: &Path, kind: &str) -> Command {
    command.env("PYTHONPATH", modules).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("FOREBAY_TEST_KIND", kind).env_remove("FOREBAY_LIBRARY");
    command
}

fn run(modules: &[&str], words: &[&str]) {
    let Some(python) = harness::python_with(&modules.join(", ")) else { return };
    let site = Site::new(&ROOMY);
    let folder = install(&site, &python);
    let mut plain = told(site.command(&site.plain, &python), &folder, "plain");
    plain.args(words);
    let ran = site.end(plain).expect(0);
    assert!(ran.stdout.contains(" passed"), "{ran:?}");

    let forebay = site.root().join("prefix/bin/forebay");
    let command = site.command(&site.store, forebay.to_str().unwrap());
    let mut command = told(command, &folder, "buffered");
    command.args(["run", "--config", site.config.to_str().unwrap(), "--", &python]).args(words);
    let ran = site.end(command).expect(0);
    assert!(ran.stdout.contains(" passed"), "{ran:?}");
}

const PYTEST: [&str; 7] =
    ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--doctest-glob=*.md", "--doctest-modules"];

#[test]
fn the_wheel_passes_its_tests_and_the_examples_of_its_page() {
    let (tests, page) = (root().join("python/tests"), root().join("docs/python.md"));
    let [tests, page] = [tests, page].map(|path| path.to_str().unwrap().to_owned());
    // That of torch is the next test; doctests of the installed modules are by their names.
    let torch = format!("--ignore={tests}/test_torch.py");
    run(
        &["pip", "pytest", "numpy", "fsspec"],
        &[&PYTEST[..], &[&torch, &tests, &page, "--pyargs", "forebay._files"]].concat(),
    );
}

#[test]
fn torch_saves_checkpoints_of_all_ranks_by_the_wheel() {
    let tests = root().join("python/tests/test_torch.py");
    run(&["pip", "pytest", "torch"], &[&PYTEST[..], &[tests.to_str().unwrap()]].concat());
}
