//! The Python wheel: it is built and installed below a prefix of its own; its tests and the
//! examples of its page run with the command and the libraries that it brings.

use crate::harness::{self, Setup, Site, TINY};
use crate::{built, root};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROOMY: Setup = Setup { ram: "32MiB", nvme: "64MiB", ..TINY };

/// Installs the wheel, of the binaries that were built with the tests; the folder of its modules.
fn install(site: &Site, python: &str) -> PathBuf {
    let (binaries, prefix) = (site.root().join("binaries"), site.root().join("prefix"));
    fs::create_dir_all(&binaries).unwrap();
    symlink(harness::FOREBAY, binaries.join("forebay")).unwrap();
    for name in ["preload", "capi", "mpiio", "mpiio_large", "hdf5", "hdf5_later"] {
        let name = format!("libforebay_{name}.so");
        symlink(built(&name), binaries.join(&name)).unwrap();
    }
    let words = "-m pip install -q --no-index --no-deps --no-cache-dir --ignore-installed";
    let mut command = Command::new(python);
    command.args(words.split(' ')).arg("--prefix").arg(&prefix).arg(root());
    command.env("FOREBAY_BINARIES", binaries).env("PYTHONDONTWRITEBYTECODE", "1");
    let made = command.env("TMPDIR", site.root()).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let version = fs::read_dir(prefix.join("lib")).unwrap().map(|e| e.unwrap().path());
    let found = version.map(|path| path.join("site-packages")).find(|path| path.is_dir());
    found.unwrap_or_else(|| panic!("no site-packages below {}", prefix.display()))
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

#[test]
fn the_wheel_passes_its_tests_and_the_examples_of_its_page() {
    let (tests, page) = (root().join("python/tests"), root().join("docs/python.md"));
    let words = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--doctest-glob=*.md",
        "--doctest-modules",
    ];
    let [tests, page] = [tests, page].map(|path| path.to_str().unwrap().to_owned());
    // Doctests of the installed modules, by their names.
    run(
        &["pip", "pytest", "numpy", "fsspec"],
        &[&words[..], &[&tests, &page, "--pyargs", "forebay._files"]].concat(),
    );
}
