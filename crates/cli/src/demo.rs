//! `forebay demo`: an ordinary checkpointing program, first directly on an emulated slow file
//! system, then under `forebay run`.
//!
//! All of it happens in a temporary directory; only a table and a timeline picture stay.

mod compare;
mod nodes;
mod run;
mod scene;
mod site;

pub use nodes::demo_nodes;
#[cfg(feature = "bench")]
pub use nodes::user_namespace;
use scene::Scene;
use site::{Site, compile, failed};
use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

/// The tiers of the run under Forebay, fastest first.
const TIERS: [&str; 3] = ["ram", "nvme", "bb"];

/// What the demo runs, and where its results go.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `forebay` command.
    pub forebay: PathBuf,
    /// The directory for the table and the picture.
    pub output: PathBuf,
    /// How much the program does.
    pub workload: Workload,
}

impl Options {
    /// The standard demo with this very binary.
    pub fn new(output: PathBuf) -> Result<Self, String> {
        let forebay = env::current_exe().map_err(|e| format!("cannot find my own binary: {e}"))?;
        Ok(Self { forebay, output, workload: Workload::default() })
    }
}

/// How much the program computes and writes.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Checkpoints, each a file of its own.
    pub steps: u32,
    /// Bytes of a checkpoint.
    pub bytes: u64,
    /// Mean computing time of a step in milliseconds; the steps grow longer.
    pub compute_ms: u64,
}

/// Computing takes as long as the store needs for the checkpoints (the paper's balanced case), but
/// more of it comes late: the first checkpoints outrun the store by more than the RAM tier holds.
impl Default for Workload {
    fn default() -> Self {
        Self { steps: 8, bytes: 24 << 20, compute_ms: 1_100 }
    }
}

impl Workload {
    fn total_bytes(&self) -> u64 {
        u64::from(self.steps) * self.bytes
    }
}

/// Runs the demo; succeeds only if both runs left the same files, byte for byte.
pub fn demo(options: &Options) -> Result<ExitCode, String> {
    let output = &options.output;
    fs::create_dir_all(output).map_err(|e| failed(output, &e))?;
    let site = Site::build()?;
    println!("{}", introduction(&options.workload));
    let program = compile(&site)?;
    let scene = Scene { options, site: &site, program: &program };
    let played = scene.play();
    verdict(site, played)
}

/// What became of a demo; what it has written stays where it did not succeed.
fn verdict(site: Site, played: Result<bool, String>) -> Result<ExitCode, String> {
    match played {
        Ok(true) => Ok(ExitCode::SUCCESS),
        Ok(false) => {
            site.keep();
            Ok(ExitCode::FAILURE)
        }
        Err(problem) => {
            site.keep();
            Err(problem)
        }
    }
}

fn introduction(workload: &Workload) -> String {
    format!(
        "Forebay demo: a program that writes checkpoints, on an emulated cluster node\n\
         \n   \
         store    parallel file system, 23 MB/s write, 27.6 MB/s read\n   \
         tiers    RAM 64 MiB, NVMe 128 MiB (1034 MB/s), burst buffer 256 MiB (86 MB/s)\n   \
         program  {} x (compute, write {} MiB), read the last one back; plain C\n\
         \n   \
         Speeds: the testbed of Hermes (HPDC'18, Figure 7), for one of 32 nodes.",
        workload.steps,
        workload.bytes >> 20
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use std::path::Path;
    use std::process;

    /// What stands in for the binary: runs the command behind `--`, then does `after` with the
    /// site in `$site`, and leaves the trace that was asked for.
    fn stand_in(folder: &Path, after: &str) -> Options {
        let script = format!(
            r#"#!/bin/sh
[ "$1 $2" = "run --config" ] && [ -s "$3" ] || exit 9
site=${{3%/*}}
trace=
[ "$4" = --trace ] && trace=$5 && shift 2
[ "$4" = -- ] && shift 4 || exit 9
"$@" || exit
now=$(date +%s%6N)
[ -z "$trace" ] || printf '%s\n' start_us,end_us,action,from,to,bytes \
    $now,$((now + 900)),flush,ram,store,4096 $now,$((now + 90)),demote,ram,nvme,4096 >"$trace"
{after}
"#
        );
        let forebay = folder.join("forebay");
        fs::write(&forebay, script).unwrap();
        fs::set_permissions(&forebay, fs::Permissions::from_mode(0o755)).unwrap();
        let workload = Workload { steps: 3, bytes: 1 << 20, compute_ms: 5 };
        Options { forebay, output: folder.join("out"), workload }
    }

    /// The tests share the process id that names the site, so they take turns.
    fn play(after: &str) -> (tempfile::TempDir, Result<ExitCode, String>) {
        static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let folder = tempfile::tempdir().unwrap();
        let result = demo(&stand_in(folder.path(), after));
        let site = env::temp_dir().join(format!("forebay-demo-{}", process::id()));
        let succeeded = result.as_ref().is_ok_and(|code| *code == ExitCode::SUCCESS);
        assert_ne!(site.exists(), succeeded, "the site is kept only for a closer look");
        if !succeeded {
            fs::remove_dir_all(site).unwrap();
        }
        (folder, result)
    }

    #[test]
    fn equal_runs_succeed() {
        let (folder, result) = play("");
        assert_eq!(result.unwrap(), ExitCode::SUCCESS);
        let table = fs::read_to_string(folder.path().join("out/table.txt")).unwrap();
        assert!(table.contains("All 3 files are the same, 3145728 bytes."), "{table}");
        assert_eq!(table.matches(" same\n").count(), 3);
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
        let introduction = introduction(&Workload::default());
        assert!(introduction.lines().all(|line| line.chars().count() <= 80), "{introduction}");
        let picture = fs::read_to_string(folder.path().join("out/timeline.svg")).unwrap();
        for text in ["directly on the store", "under forebay run", "ram → store", "ram → nvme"]
        {
            assert!(picture.contains(text), "{text}");
        }
    }

    #[test]
    fn one_wrong_byte_fails() {
        let flip = "[ -z \"$trace\" ] || printf x | dd of=$site/pfs-forebay/step-02.dat \
                    bs=1 seek=77 conv=notrunc 2>/dev/null";
        let (folder, result) = play(flip);
        assert_eq!(result.unwrap(), ExitCode::FAILURE);
        let table = fs::read_to_string(folder.path().join("out/table.txt")).unwrap();
        assert!(table.contains("FAILED: the two runs left different files."), "{table}");
        assert!(table.contains(" direct\n") && table.contains(" Forebay\n"), "{table}");
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    }

    #[test]
    fn a_file_that_both_runs_lost_fails() {
        let (folder, result) = play("rm -f $site/pfs-*/step-03.dat");
        assert_eq!(result.unwrap(), ExitCode::FAILURE);
        let table = fs::read_to_string(folder.path().join("out/table.txt")).unwrap();
        assert!(table.contains("left 2097152 bytes instead of 3145728"), "{table}");
    }

    #[test]
    fn a_failed_run_is_an_error() {
        let (_folder, result) = play("exit 3");
        let error = result.unwrap_err();
        assert_eq!(error, "`forebay run --config direct.toml` ended with exit status: 3");
    }
}
