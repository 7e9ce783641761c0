//! MPI programs whose ranks are on several nodes: what they leave is what they leave without
//! Forebay, byte by byte, and each rank sees what others have written.
//!
//! MPICH is the one that `.ci/run` installs beside Python, which does not hang in MPI_Finalize as
//! Debian's 4.0.2 does between hosts; Open MPI is Debian's, for which its PnetCDF is built. Both
//! run ROMIO. With Open MPI's own OMPIO, whose atomic mode mixes data without Forebay, too, writes
//! have waited in vain for leases: `FOREBAY_TEST_OMPIO=1` runs it.

use crate::commit::commit;
use crate::groups::{agree, folders, linked};
use crate::harness::{self, LONG, Running, skip, wait_for};
use crate::namespaces::{Nodes, SWITCH};
use crate::strict::strict;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Bytes of a record in files whose records come in any order, as in `mpi_patterns.c`.
const RECORD: usize = 3001;

/// By what an MPI program is compiled and started.
pub enum Mpi {
    /// The folder of its commands.
    Mpich(PathBuf),
    OpenMpi,
}

impl Mpi {
    /// MPICH beside the tests' Python; says so loudly where it is not.
    pub fn mpich() -> Option<Mpi> {
        let python = harness::python_with("sys")?;
        let folder = Path::new(&python).parent()?.to_owned();
        if ["mpicc", "mpiexec"].iter().all(|program| folder.join(program).is_file()) {
            return Some(Mpi::Mpich(folder));
        }
        skip(&format!("beside {python} is no MPICH; FOREBAY_TEST_PYTHON names one of .ci/run"));
        None
    }

    fn open_mpi() -> Option<Mpi> {
        harness::have(&["mpicc.openmpi", "mpirun.openmpi"]).then_some(Mpi::OpenMpi)
    }

    fn compile(&self, nodes: &Nodes, source: &str, flags: &[&str]) -> bool {
        let compiler = match self {
            Mpi::Mpich(folder) => folder.join("mpicc"),
            Mpi::OpenMpi => PathBuf::from("mpicc.openmpi"),
        };
        harness::compile_by(compiler.to_str().unwrap(), &nodes.out, source, flags)
    }

    /// Starts this many ranks in folder `at`, in turns on all nodes. `last` is what those of
    /// `mpi_patterns` run at their end.
    pub fn start(
        &self,
        nodes: &Nodes,
        ranks: usize,
        at: &Path,
        last: &str,
        words: &[&str],
    ) -> Running {
        let launcher = nodes.launcher();
        let launcher = launcher.to_str().unwrap();
        let hosts: Vec<_> = nodes.iter().map(|node| node.to_string()).collect();
        let (hosts, ranks) = (hosts.join(","), ranks.to_string());
        let mut command = match self {
            Mpi::Mpich(folder) => {
                let mpiexec = folder.join("mpiexec");
                let around = ["-localhost", SWITCH, "-launcher", "ssh", "-launcher-exec", launcher];
                let which = ["-hosts", &hosts, "-n", &ranks];
                nodes.starter(
                    at,
                    &[&[mpiexec.to_str().unwrap()], &around[..], &which, words].concat(),
                )
            }
            Mpi::OpenMpi => {
                let around = ["--mca", "plm_rsh_agent", launcher, "--mca", "btl", "tcp,self"];
                let io = match std::env::var_os("FOREBAY_TEST_OMPIO") {
                    Some(_) => "ompio",
                    None => "romio321",
                };
                let kinds = ["--mca", "io", io, "--mca", "pml", "ob1", "--oversubscribe"];
                let around = [&around[..], &kinds].concat();
                let which = ["--map-by", "node", "-H", &hosts, "-n", &ranks];
                nodes.starter(at, &[&["mpirun.openmpi"], &around[..], &which, words].concat())
            }
        };
        // Ranks share two processors: who waits lets others run.
        command
            .env("FI_PROVIDER", "tcp")
            .env("MPIR_CVAR_CH4_NETMOD", "ofi")
            .env("MPIR_CVAR_POLLS_BEFORE_YIELD", "1")
            .env("OMPI_MCA_mpi_yield_when_idle", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        if !last.is_empty() {
            command.env("AT_END", last);
        }
        nodes[0].spawn_command(command)
    }
}

/// The files of a folder. Of those whose records come in any order, the records in one.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let in_order = |(name, item): (PathBuf, harness::Item)| {
        let bytes = item.bytes();
        if name.extension().is_none_or(|end| end != "anyorder") {
            return (name, bytes);
        }
        let mut records: Vec<_> = bytes.chunks(RECORD).collect();
        records.sort();
        (name, records.concat())
    };
    harness::tree(folder).into_iter().map(in_order).collect()
}

pub fn assert_same_files(when: &str, got: &Path, wanted: &Path) {
    let (got, wanted) = (files(got), files(wanted));
    assert!(got.keys().eq(wanted.keys()), "{when}: {:?}, not {:?}", got.keys(), wanted.keys());
    assert!(!got.is_empty());
    for (name, bytes) in &wanted {
        let what = format!("{when}: {}", name.display());
        harness::assert_same_bytes(&what, &got[name], bytes);
    }
}

/// Runs a program plainly, and with each rank under `forebay run`, and compares what it leaves: on
/// the store, and as each node reads it.
///
/// With `flushes` (of `mpi_patterns` alone), what is on the store after `forebay flush` and before
/// any run has ended, too.
fn same(mpi: &Mpi, nodes: &Nodes, config: &str, ranks: usize, flushes: bool, words: &[&str]) {
    let folder = |parent: PathBuf| {
        let folder = parent.join("work");
        fs::create_dir_all(&folder).unwrap();
        folder
    };
    let (plain, work) = (folder(nodes.root().join("plain")), folder(nodes.store.clone()));
    let right = format!("all ok with {ranks} ranks\n");
    let ran = mpi.start(nodes, ranks, &plain, "", words).end().expect(0);
    assert!(ran.stdout.ends_with(&right), "{ran:?}");

    // A run on each node that stays, so that managers do, too.
    let stay = |node| format!("step stay{node}");
    let runs: Vec<_> = (0..)
        .zip(nodes.iter())
        .map(|(n, node)| node.spawn_buffered(config, &[], &stay(n)))
        .collect();
    (0..runs.len()).for_each(|n| nodes[n].at(&format!("stay{n}")));
    let run = [&[harness::FOREBAY, "run", "--config", config, "--"], words].concat();
    let last = match flushes {
        true => {
            "\"$FOREBAY\" flush . && : > \"$OUT/at-flushed$PMI_RANK\" && \
             while [ ! -e \"$OUT/past-flushed$PMI_RANK\" ]; do sleep 0.01; done"
        }
        false => "",
    };
    let mut running = mpi.start(nodes, ranks, &work, last, &run);
    if flushes {
        let marks: Vec<_> =
            (0..ranks).map(|rank| nodes.out.join(format!("at-flushed{rank}"))).collect();
        harness::wait_for("the flush of all ranks", LONG, || {
            (marks.iter().all(|mark| mark.exists()) || !running.is_running()).then_some(())
        });
        if running.is_running() {
            assert_same_files("flushed", &work, &plain);
        }
        (0..ranks).for_each(|rank| nodes[0].past(&format!("flushed{rank}")));
    }
    let ran = running.end().expect(0);
    assert!(ran.stdout.ends_with(&right), "{ran:?}");
    assert_same_files("drained", &work, &plain);
    let sums = "cksum work/*";
    let wanted = nodes[0].run(sums).expect(0).stdout;
    for node in nodes.iter() {
        node.status().assert_live();
        let ran = node.spawn_buffered(config, &[], sums).end().expect(0);
        harness::assert_same_lines(&format!("as {node} reads"), &ran.stdout, &wanted);
    }
    (0..runs.len()).for_each(|n| nodes[n].past(&format!("stay{n}")));
    runs.into_iter().for_each(|run| drop(run.end().expect(0)));
}

/// The same for some patterns of `mpi_patterns.c`.
fn patterns(mpi: &Mpi, nodes: &Nodes, consistency: &str, ranks: usize, names: &[&str]) {
    if !mpi.compile(nodes, "mpi_patterns.c", &[]) {
        return;
    }
    let config = match consistency {
        "strict" => strict(nodes, nodes.iter().count()),
        "commit" => commit(nodes, ""),
        _ => open(nodes),
    };
    let program = nodes.out.join("mpi_patterns");
    let words = [&[program.to_str().unwrap(), consistency], names].concat();
    same(mpi, nodes, &config, ranks, matches!(mpi, Mpi::Mpich(_)), &words);
}

/// Of nodes without leases.
fn open(nodes: &Nodes) -> String {
    let config = nodes.configure("open.toml", "trigger = \"on-exit\"", "");
    let last = nodes.iter().count() - 1;
    let group = format!("\n[group]\nhosts = \"n[0-{last}]\"\nconsistency = \"open\"\n");
    fs::write(&config, fs::read_to_string(&config).unwrap() + &group).unwrap();
    config
}

#[test]
fn ranks_of_two_nodes_share_files_by_posix() {
    let (Some(mpi), Some(nodes)) = (Mpi::mpich(), Nodes::new(2)) else { return };
    let shared = ["posix_segmented", "posix_strided", "posix_records", "posix_append"];
    let names = [&shared[..], &["posix_own", "posix_rename", "posix_replaced"]].concat();
    patterns(&mpi, &nodes, "strict", 4, &names);
}

#[test]
fn ranks_of_two_nodes_share_files_by_romio() {
    let (Some(mpi), Some(nodes)) = (Mpi::mpich(), Nodes::new(2)) else { return };
    let simple = ["mpi_own", "mpi_segmented", "mpi_strided", "mpi_records"];
    let views = ["mpi_view", "mpi_sieving", "mpi_collective", "mpi_collective_off"];
    let orders = ["mpi_atomic", "mpi_shared", "mpi_ordered"];
    patterns(&mpi, &nodes, "strict", 4, &[&simple[..], &views, &orders].concat());
}

#[test]
fn ranks_of_four_nodes_share_files() {
    let (Some(mpi), Some(nodes)) = (Mpi::mpich(), Nodes::new(4)) else { return };
    let names = ["posix_records", "posix_append", "mpi_sieving", "mpi_collective", "mpi_shared"];
    patterns(&mpi, &nodes, "strict", 4, &names);
}

/// Nothing names hosts: neither the configuration, nor an option, nor a batch system.
fn meet(mpi: &Mpi, nodes: &Nodes, rank: &str) {
    let config = nodes.configure("meets.toml", "trigger = \"on-exit\"", "");
    let count = nodes.iter().count();
    // A second run of each rank finds the group of the first.
    let again = format!("exec {} run --config {config} -- cksum", harness::FOREBAY);
    let script = format!(
        "seq 100000 > of-{rank}; : > $OUT/at-wrote-{rank}; \
         while [ ! -e $OUT/past-end ]; do sleep 0.05; done; {again} < of-{rank}"
    );
    let words = [harness::FOREBAY, "run", "--config", &config, "--", "bash", "-c", &script];
    let running = mpi.start(nodes, 2 * count, &nodes.store, "", &words);
    let members: Vec<_> = (0..count).collect();
    linked(nodes, &agree(nodes, &members, LONG));
    let wanted = nodes[0].run("seq 100000 | cksum").expect(0).stdout;
    (0..2 * count).for_each(|rank| nodes[0].at(&format!("wrote-{rank}")));
    nodes[0].past("end");
    let ran = running.end().expect(0);
    assert_eq!(ran.stdout, wanted.repeat(2 * count), "{ran:?}");
    assert!(!ran.stderr.contains("group"), "{ran:?}");
    for rank in 0..2 * count {
        let stored = nodes[0].run(&format!("cksum < of-{rank}")).expect(0);
        assert_eq!(stored.stdout, wanted, "rank {rank}");
    }
    wait_for("the end of the group's folder", LONG, || folders(nodes).is_empty().then_some(()));
}

#[test]
fn ranks_that_mpich_starts_without_a_list_of_hosts_form_one_group() {
    let (Some(mpi), Some(nodes)) = (Mpi::mpich(), Nodes::new(2)) else { return };
    meet(&mpi, &nodes, "$PMI_RANK");
}

#[test]
fn ranks_that_open_mpi_starts_without_a_list_of_hosts_form_one_group() {
    let (Some(mpi), Some(nodes)) = (Mpi::open_mpi(), Nodes::new(3)) else { return };
    meet(&mpi, &nodes, "$OMPI_COMM_WORLD_RANK");
}

#[test]
fn ranks_of_which_only_some_run_under_forebay_say_so_and_go_on_alone() {
    let (Some(mpi), Some(nodes)) = (Mpi::mpich(), Nodes::new(2)) else { return };
    let config = nodes.configure("meets.toml", "trigger = \"on-exit\"", "");
    let run =
        format!("exec {} run --config {config} -- bash -c 'echo text > file'", harness::FOREBAY);
    let script = format!("[ $PMI_RANK = 0 ] || exit 0; {run}");
    let ran = mpi.start(&nodes, 2, &nodes.store, "", &["bash", "-c", &script]).end().expect(0);
    let said = "MPI has 2 processes, and after 10";
    assert!(ran.stderr.contains(said) && ran.stderr.contains(": n0 (1); start all"), "{ran:?}");
    assert!(ran.stderr.contains("this node goes on alone"), "{ran:?}");
    assert_eq!(harness::sees(&nodes.store.join("file")), "text\n");
    assert!(folders(&nodes).is_empty());
}

/// All files are under commit: a writer syncs, and after a barrier a reader does. Data sieving
/// holds a lock of fcntl while it reads bytes of other ranks and writes them back.
#[test]
fn ranks_of_two_nodes_share_files_under_commit() {
    let (Some(mpi), Some(nodes)) = (Mpi::mpich(), Nodes::new(2)) else { return };
    let posix = ["posix_own", "posix_segmented", "posix_strided", "posix_records", "posix_append"];
    let simple = ["posix_replaced", "mpi_own", "mpi_segmented", "mpi_strided", "mpi_records"];
    let views = ["mpi_view", "mpi_sieving", "mpi_collective", "mpi_collective_off"];
    patterns(&mpi, &nodes, "commit", 4, &[&posix[..], &simple, &views].concat());
}

/// Without strict consistency, what one node has synced and closed another one reads from an open
/// on, and nodes may write different pages of one file.
#[test]
fn ranks_that_sync_and_close_need_no_strict_consistency() {
    let (Some(mpi), Some(nodes)) = (Mpi::mpich(), Nodes::new(2)) else { return };
    // Files that one node writes at a time.
    let names = ["posix_own", "posix_replaced", "mpi_own"];
    patterns(&mpi, &nodes, "open", 4, &names);
}

#[test]
fn ranks_of_two_nodes_share_files_by_open_mpi() {
    let (Some(mpi), Some(nodes)) = (Mpi::open_mpi(), Nodes::new(2)) else { return };
    let names = ["mpi_records", "mpi_view", "mpi_collective", "mpi_shared", "mpi_ordered"];
    patterns(&mpi, &nodes, "strict", 4, &names);
}

#[test]
fn parallel_hdf5_of_two_nodes() {
    let (Some(mpi), Some(nodes)) = (Mpi::mpich(), Nodes::new(2)) else { return };
    const HEADERS: &str = "/usr/include/hdf5/mpich";
    if !Path::new(HEADERS).join("hdf5.h").exists() {
        skip("libhdf5-mpich-dev is not installed");
        return;
    }
    // Debian's library wants the MPI of the tests under another name; both have one interface.
    let Mpi::Mpich(folder) = &mpi else { return };
    let library = folder.join("../lib/libmpi.so.12").canonicalize().unwrap();
    symlink(library, nodes.out.join("libmpich.so.12")).unwrap();
    let include = format!("-I{HEADERS}");
    let path = format!("-Wl,--disable-new-dtags,-rpath,{}", nodes.out.display());
    let flags = [&include, "-lhdf5_mpich", "-Wl,--allow-shlib-undefined", &path];
    if !mpi.compile(&nodes, "mpi_hdf5.c", &flags) {
        return;
    }
    let (config, program) = (strict(&nodes, 2), nodes.out.join("mpi_hdf5"));
    same(&mpi, &nodes, &config, 4, false, &[program.to_str().unwrap(), "strict", "file.h5"]);
}

#[test]
fn parallel_netcdf_of_two_nodes() {
    let (Some(mpi), Some(nodes)) = (Mpi::open_mpi(), Nodes::new(2)) else { return };
    if !Path::new("/usr/include/pnetcdf.h").exists() {
        skip("libpnetcdf-dev is not installed");
        return;
    }
    if !mpi.compile(&nodes, "mpi_pnetcdf.c", &["-lpnetcdf"]) {
        return;
    }
    let (config, program) = (strict(&nodes, 2), nodes.out.join("mpi_pnetcdf"));
    same(&mpi, &nodes, &config, 4, false, &[program.to_str().unwrap(), "file.nc"]);
}
