//! IOR and mdtest, with ranks on several nodes: both check what they read, and what they leave is
//! what they leave without Forebay. See docs/testing.md for where they come from.

use crate::harness::{self, have};
use crate::mpi::{Mpi, assert_same_files};
use crate::namespaces::Nodes;
use crate::strict::strict;
use std::fs;
use std::path::PathBuf;

const RANKS: usize = 4;

/// A program of IOR: in the folder that the variable names, else in PATH. `None`, and loud, where
/// it is not.
fn program(name: &str) -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os("FOREBAY_TEST_IOR") {
        let path = PathBuf::from(folder).join(name);
        assert!(path.is_file(), "FOREBAY_TEST_IOR: no {}", path.display());
        return Some(path);
    }
    have(&[name]).then(|| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file())
    })?
}

/// Runs the program with each of the lines of arguments, first plainly and then with each rank
/// under `forebay run`, and compares all files. What one line leaves buffered the next ones find:
/// node managers stay.
fn same(name: &str, lines: &[String]) {
    let Some(program) = program(name) else { return };
    let (Some(mpi), Some(nodes)) = (Mpi::mpich(), Nodes::new(2)) else { return };
    let config = strict(&nodes, 2);
    let [plain, work] = [nodes.root().join("plain"), nodes.store.clone()].map(|parent| {
        let folder = parent.join("work");
        fs::create_dir_all(&folder).unwrap();
        folder
    });
    let stays: Vec<_> = nodes
        .iter()
        .enumerate()
        .map(|(number, node)| node.spawn_buffered(&config, &[], &format!("step stay{number}")))
        .collect();
    (0..stays.len()).for_each(|number| nodes[number].at(&format!("stay{number}")));
    let under = [harness::FOREBAY, "run", "--config", &config, "--"];
    for line in lines {
        let mut words = vec![program.to_str().unwrap()];
        words.extend(line.split(' '));
        for (folder, before) in [(&plain, &[][..]), (&work, &under)] {
            let words = [before, &words].concat();
            let ran = mpi.start(&nodes, RANKS, folder, "", &words).end().expect(0);
            let said = [&*ran.stdout, &ran.stderr].concat();
            let is_wrong = |line: &&str| line.contains("ERROR") || line.contains("Incorrect data");
            assert_eq!(said.lines().find(is_wrong), None, "{words:?}: {ran:?}");
        }
    }
    for node in nodes.iter() {
        node.status().assert_live();
    }
    (0..stays.len()).for_each(|number| nodes[number].past(&format!("stay{number}")));
    stays.into_iter().for_each(|stay| drop(stay.end().expect(0)));
    assert_same_files(name, &work, &plain);
}

/// How ranks share a file, or not, and in which pieces: of whole and of odd sizes.
const SHAPES: [(&str, &str); 5] = [
    ("segmented", "-b 2m -t 256k"),
    ("strided", "-b 256k -t 256k -s 6"),
    ("odd", "-b 470080 -t 47008 -s 2"),
    ("odd-strided", "-b 47008 -t 47008 -s 20"),
    ("own", "-F -b 1m -t 128k"),
];

/// In one run, and in runs of their own, ranks read what those of the next node have written (-C).
fn files_of_ior(api: &str) {
    let lines = |(name, shape): &(&str, &str)| {
        let all = format!("-k -a {api} {shape} -G 27");
        [
            format!("{all} -e -w -W -r -R -C -o {name}-checked"),
            format!("{all} -w -o {name}-written"),
            format!("{all} -r -R -C -o {name}-written"),
        ]
    };
    same("ior", &SHAPES.iter().flat_map(lines).collect::<Vec<_>>());
}

#[test]
fn ior_by_posix() {
    files_of_ior("POSIX");
}

#[test]
fn ior_by_romio() {
    files_of_ior("MPIIO");
}

#[test]
fn ior_by_romio_with_collective_calls() {
    files_of_ior("MPIIO -c");
}

/// Directories of all ranks and of each; small files that ranks of the next node stat and read
/// (-N), in one run and in runs of their own.
#[test]
fn mdtest_of_two_nodes() {
    let lines = [
        "-n 8 -z 1 -b 2 -d tree",
        "-n 8 -u -z 1 -b 2 -w 3901 -e 3901 -X -d own-trees",
        "-n 8 -w 3901 -e 3901 -X -N 1 -d shared",
        "-n 6 -F -Y -w 300000 -e 300000 -X -N 1 -d large",
        "-n 6 -F -C -w 5000 -G 7 -d left",
        "-n 6 -F -T -w 5000 -G 7 -N 1 -d left",
        "-n 6 -F -E -w 5000 -e 5000 -X -G 7 -N 1 -d left",
    ];
    same("mdtest", &lines.map(str::to_owned));
}
