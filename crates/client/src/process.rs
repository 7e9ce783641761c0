//! What rules of the buffering schema ask about the process: its command, its program, its rank in
//! a parallel job.

use rustix::fs::{Mode, OFlags};
use std::ffi::CStr;

/// Where launchers of parallel jobs tell a process its rank. The batch system's comes last: in a
/// job that starts its ranks with mpirun it is that of the script.
const RANK_VARIABLES: [&[u8]; 7] = [
    b"PMIX_RANK=",
    b"PMI_RANK=",
    b"OMPI_COMM_WORLD_RANK=",
    b"MV2_COMM_WORLD_RANK=",
    b"PALS_RANKID=",
    b"FLUX_TASK_RANK=",
    b"SLURM_PROCID=",
];

/// Bytes of a process' environment that are searched for its rank, at most.
const ENVIRONMENT_MAX: usize = 4 << 20;

/// What rules ask about a process; it stays the same from exec to exec.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Process {
    pub command: Vec<u8>,
    pub program: Vec<u8>,
    pub rank: Option<u32>,
}

impl Process {
    /// Asks the kernel about this process: the C library may not be there yet.
    pub fn look() -> Process {
        let mut command = contents(c"/proc/self/comm", 64);
        command.truncate(command.iter().position(|&byte| byte == b'\n').unwrap_or(command.len()));
        let arguments = contents(c"/proc/self/cmdline", 4096);
        let first = arguments.split(|&byte| byte == 0).next().unwrap_or_default();
        let program = first.rsplit(|&byte| byte == b'/').next().unwrap_or_default().to_vec();
        Process { command, program, rank: rank() }
    }
}

/// The rank of this process in a parallel job.
pub(crate) fn rank() -> Option<u32> {
    rank_in(&contents(c"/proc/self/environ", ENVIRONMENT_MAX))
}

/// Up to `limit` bytes of a file; none of one that cannot be read.
fn contents(path: &CStr, limit: usize) -> Vec<u8> {
    let mut found = Vec::new();
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(rustix::fs::CWD, path, flags, Mode::empty()) else {
        return found;
    };
    let mut buffer = [0u8; 4096];
    while found.len() < limit {
        match rustix::io::read(&file, &mut buffer[..]) {
            Ok(bytes) if bytes > 0 => found.extend_from_slice(&buffer[..bytes]),
            _ => break,
        }
    }
    found
}

/// The rank in an environment, entries of which end with a zero.
fn rank_in(environment: &[u8]) -> Option<u32> {
    RANK_VARIABLES.iter().find_map(|name| {
        let value =
            environment.split(|&byte| byte == 0).find_map(|entry| entry.strip_prefix(*name))?;
        core::str::from_utf8(value).ok()?.parse().ok()
    })
}

/// What the schema says of a process is read only if it says anything at all.
pub(crate) fn process_for(segment: &forebay_pool::Segment) -> Option<Process> {
    (!segment.rules().is_empty()).then(Process::look)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_known() {
        let process = Process::look();
        assert!(process.program.starts_with(b"forebay_client"), "{process:?}");
        assert!(!process.command.is_empty() && process.command.len() < 16, "{process:?}");
    }

    #[test]
    fn a_rank_is_that_of_the_nearest_launcher() {
        assert_eq!(rank_in(b"SLURM_PROCID=0\0PMI_RANK=7\0"), Some(7));
        assert_eq!(rank_in(b"XPMI_RANK=7\0SLURM_PROCID=3"), Some(3));
        assert_eq!(rank_in(b"PMI_RANK=many\0OMPI_COMM_WORLD_RANK=2\0"), Some(2));
        assert_eq!(rank_in(b""), None);
    }
}
