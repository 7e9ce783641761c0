//! The I/O of scientific programs (`kernels/science.c`), over HDF5 and MPI where these are
//! installed, and by POSIX calls where they are not, which is said loudly.

use crate::measured::Measured;
use crate::server;
use crate::site::Site;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("../kernels/science.c");

/// A compiler with the libraries that come with it, and what starts ranks.
struct Toolchain {
    compiler: &'static str,
    launcher: &'static str,
    options: &'static [&'static str],
    has_hdf5: bool,
}

/// Those that are looked for, the first that works counts. Debian has an HDF5 for each MPI.
const TOOLCHAINS: [Toolchain; 5] = [
    Toolchain {
        compiler: "mpicc.mpich",
        launcher: "mpiexec.mpich",
        options: &[
            "-DWITH_MPI",
            "-DWITH_HDF5",
            "-I/usr/include/hdf5/mpich",
            "-lhdf5_mpich",
            "-Wl,--allow-shlib-undefined",
        ],
        has_hdf5: true,
    },
    Toolchain {
        compiler: "mpicc.openmpi",
        launcher: "mpiexec.openmpi",
        options: &[
            "-DWITH_MPI",
            "-DWITH_HDF5",
            "-I/usr/include/hdf5/openmpi",
            "-lhdf5_openmpi",
            "-Wl,--allow-shlib-undefined",
        ],
        has_hdf5: true,
    },
    Toolchain {
        compiler: "h5pcc",
        launcher: "mpiexec",
        options: &["-DWITH_MPI", "-DWITH_HDF5"],
        has_hdf5: true,
    },
    Toolchain { compiler: "mpicc", launcher: "mpiexec", options: &["-DWITH_MPI"], has_hdf5: false },
    Toolchain {
        compiler: "mpicc.mpich",
        launcher: "mpiexec.mpich",
        options: &["-DWITH_MPI"],
        has_hdf5: false,
    },
];

const NO_HDF5: &str = "NOT OVER HDF5: no parallel HDF5 was found (Debian: libhdf5-mpich-dev); what \
    the papers do by HDF5 is done by MPI-IO here";
const NO_MPI: &str = "NOT OVER HDF5 AND MPI: no MPI with a compiler was found (Debian: mpich and \
    libhdf5-mpich-dev); kernels make the same requests by POSIX calls, and nothing is collective";

/// By what files are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Hdf5,
    MpiIo,
    Posix,
}

impl Api {
    fn name(self) -> &'static str {
        match self {
            Api::Hdf5 => "hdf5",
            Api::MpiIo => "mpiio",
            Api::Posix => "posix",
        }
    }
}

/// Who does the I/O of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Independent,
    Collective,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::Independent => "independent",
            Mode::Collective => "collective",
        }
    }
}

/// A run of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub kernel: &'static str,
    /// What the papers' program uses; less where that is not installed.
    pub api: Api,
    pub mode: Mode,
    pub ranks: u32,
    pub steps: u32,
    /// Of each step, of all ranks together.
    pub bytes: u64,
    pub compute_us: u64,
}

impl Work {
    /// Seconds of computing in all steps.
    pub fn compute_s(&self) -> f64 {
        f64::from(self.steps) * self.compute_us as f64 / 1e6
    }
}

/// What a kernel says of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Seen {
    pub write_s: f64,
    pub read_s: f64,
    /// Microseconds of CLOCK_REALTIME.
    pub start_us: u64,
    pub end_us: u64,
}

impl Seen {
    /// Reads the line `WRITE_US,READ_US,START,END`, and the movers' below it: when they were done.
    pub fn parse(printed: &str) -> Option<(Seen, Option<u64>)> {
        let mut lines = printed.lines();
        let numbers: Result<Vec<u64>, _> = lines.next()?.split(',').map(str::parse).collect();
        let [write, read, start_us, end_us] = numbers.ok()?[..] else { return None };
        let (write_s, read_s) = (write as f64 / 1e6, read as f64 / 1e6);
        let moved = match lines.next() {
            Some(line) => Some(line.parse().ok()?),
            None => None,
        };
        Some((Seen { write_s, read_s, start_us, end_us }, moved))
    }
}

/// The compiled program.
pub(crate) struct Science {
    program: PathBuf,
    launcher: Option<&'static str>,
    has_hdf5: bool,
}

impl Science {
    /// Compiles it with what is installed.
    ///
    /// # Errors
    /// What a C compiler says that has no MPI.
    pub fn compile(site: &Site) -> Result<Science, String> {
        for toolchain in &TOOLCHAINS {
            let Toolchain { compiler, launcher, options, has_hdf5 } = *toolchain;
            let Ok(program) = site.compile_mpi(compiler, "science", SOURCE, options) else {
                continue;
            };
            let science = Science { program, launcher: Some(launcher), has_hdf5 };
            if science.has_two_ranks() {
                return Ok(science);
            }
        }
        let program = site.compile_with("science", SOURCE, &[])?;
        Ok(Science { program, launcher: None, has_hdf5: false })
    }

    fn has_two_ranks(&self) -> bool {
        let Some(launcher) = self.launcher else { return false };
        let mut command = Command::new(launcher);
        command.args(["-n", "2"]).arg(&self.program).arg("probe");
        set_environment(&mut command, 2);
        server::run(&mut command).is_ok_and(|said| said.trim_end() == "2 ranks")
    }

    /// Whether ranks can do collective I/O.
    pub fn has_mpi(&self) -> bool {
        self.launcher.is_some()
    }

    /// Says what the kernels do without.
    pub fn note(&self, measured: &mut Measured) {
        match (self.launcher, self.has_hdf5) {
            (Some(launcher), true) => {
                let note = format!("Kernels over parallel HDF5 and MPI, started by {launcher}.");
                measured.notes.push(note);
            }
            (Some(_), false) => measured.notes.push(NO_HDF5.to_owned()),
            (None, _) => measured.notes.push(NO_MPI.to_owned()),
        }
    }

    fn api(&self, wanted: Api) -> Api {
        match wanted {
            _ if !self.has_mpi() => Api::Posix,
            Api::Hdf5 if !self.has_hdf5 => Api::MpiIo,
            api => api,
        }
    }

    /// The command and its arguments.
    pub fn words(&self, work: &Work, folder: &Path) -> Vec<OsString> {
        let mode = if self.has_mpi() { work.mode } else { Mode::Independent };
        self.words_of(work, work.kernel, mode.name(), folder)
    }

    fn words_of(&self, work: &Work, kernel: &str, mode: &str, folder: &Path) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        if let Some(launcher) = self.launcher {
            words.extend([launcher.into(), "-n".into(), work.ranks.to_string().into()]);
        }
        words.push(self.program.clone().into());
        words.extend([kernel, self.api(work.api).name(), mode].map(OsString::from));
        words.push(folder.into());
        let numbers = [u64::from(work.steps), work.bytes, work.compute_us];
        words.extend(numbers.map(|number| OsString::from(number.to_string())));
        words
    }

    /// Reads all files by the same library, without Forebay, and compares each byte of the data.
    ///
    /// # Errors
    /// What is wrong, or cannot be read.
    pub fn check(&self, work: &Work, folder: &Path) -> Result<(), String> {
        let words = self.words_of(work, "check", work.kernel, folder);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        set_environment(&mut command, work.ranks);
        server::run(&mut command).map(drop)
    }
}

/// What ranks want of the environment: as many as there are, also of Open MPI, which counts cores
/// and does not like root.
pub(crate) fn set_environment(command: &mut Command, ranks: u32) {
    command.env("RANKS", ranks.to_string());
    for name in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
        command.env(name, "1");
    }
    command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_says_four_numbers_and_movers_one() {
        let seen = Seen { write_s: 1.5, read_s: 0.0, start_us: 7, end_us: 9 };
        assert_eq!(Seen::parse("1500000,0,7,9\n"), Some((seen, None)));
        assert_eq!(Seen::parse("1500000,0,7,9\n12\n"), Some((seen, Some(12))));
        for printed in ["", "1,2,3", "1,2,3,4,5", "1,2,3,x", "1,2,3,4\n5,6"] {
            assert_eq!(Seen::parse(printed), None, "{printed}");
        }
    }
}
