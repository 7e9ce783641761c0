//! Whether all ranks of a communicator have the adapter, and do what it does: only then may one of
//! them wait for the others. A rank that runs without (another program of the job, another
//! environment, another node) cannot be asked, as it would not answer: so each process notes in the
//! pool that it has the adapter before its MPI library is initialized, which no rank leaves before
//! all have entered it, and all look after that.

use crate::abi::abi;
use crate::library::{Word, ask};
use crate::services::services;
use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicU8, Ordering};
use forebay_client::MpiIo;

fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: an entry of the environment, which stays as it is.
    unsafe {
        let found = libc::getenv(name.as_ptr());
        (!found.is_null()).then(|| CStr::from_ptr(found))
    }
}

fn setting() -> MpiIo {
    let given = variable(c"FOREBAY_MPIIO");
    given.map_or(MpiIo::default(), |text| {
        text.to_str().ok().and_then(MpiIo::named).unwrap_or(MpiIo::Observe)
    })
}

/// Variables with the number of all ranks of a job: MPICH's and Open MPI's starters'.
const RANKS: [&CStr; 2] = [c"PMI_SIZE", c"OMPI_COMM_WORLD_SIZE"];
/// Variables that tell jobs of one starter apart.
const JOBS: [&CStr; 4] =
    [c"PMIX_NAMESPACE", c"OMPI_MCA_ess_base_jobid", c"PMI_SPAWNED", c"PMI_JOBID"];

/// A sum over bytes (FNV-1a).
pub(crate) fn sum_of(parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.iter().chain(&[0xff]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// The job of this process, by what its starter says, and its ranks; `None` if nothing does.
fn job() -> Option<(u64, u64)> {
    let text = RANKS.iter().find_map(|name| variable(name))?.to_bytes();
    let ranks = core::str::from_utf8(text).ok()?.parse().ok().filter(|&ranks| ranks > 0)?;
    // SAFETY: a number.
    let starter = unsafe { libc::getppid() }.to_ne_bytes();
    let mut parts: [&[u8]; 2 + JOBS.len()] = [&[]; 2 + JOBS.len()];
    (parts[0], parts[1]) = (&starter, text);
    for (part, name) in parts[2..].iter_mut().zip(JOBS) {
        *part = variable(name).map_or(&[], CStr::to_bytes);
    }
    Some((sum_of(&parts).max(1), ranks))
}

/// The MPI library is about to be initialized.
pub(crate) fn note_rank() {
    if setting() != MpiIo::Auto {
        return;
    }
    if let (Some(services), Some((job, _))) = (services(), job()) {
        (services.join_mpi_job)(job);
    }
}

/// Whether all ranks of the job have noted the same. Looked at once.
fn job_agrees() -> bool {
    const YES: u8 = 2;
    const NO: u8 = 1;
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    let known = KNOWN.load(Ordering::Relaxed);
    if known != 0 {
        return known == YES;
    }
    let agrees = match (setting(), services(), job()) {
        (MpiIo::Everywhere, ..) => true,
        (MpiIo::Auto, Some(services), Some((job, ranks))) => {
            u64::try_from((services.ranks_of_mpi_job)(job)) == Ok(ranks)
        }
        (MpiIo::Auto | MpiIo::Observe, ..) => false,
    };
    KNOWN.store(if agrees { YES } else { NO }, Ordering::Relaxed);
    agrees
}

/// Ranks of a communicator, if all of them do the same: each comes to the same answer. One of other
/// jobs (`MPI_Comm_spawn`) is told by its ranks, which have no number in this one.
pub(crate) fn ranks(communicator: Word) -> Option<Ranks> {
    let abi = abi()?;
    if communicator == 0 || communicator == abi.no_communicator || !job_agrees() {
        return None;
    }
    let mut is_inter: c_int = 0;
    let is_known = ask!("PMPI_Comm_test_inter", communicator, (&raw mut is_inter) as Word);
    if !is_known || is_inter != 0 {
        return None;
    }
    let (mut count, mut me): (c_int, c_int) = (0, -1);
    let mut all: c_int = 0;
    let is_known = ask!("PMPI_Comm_size", communicator, (&raw mut count) as Word)
        && ask!("PMPI_Comm_rank", communicator, (&raw mut me) as Word)
        && ask!("PMPI_Comm_size", abi.world, (&raw mut all) as Word);
    if !is_known || count < 1 || me < 0 || count > all {
        return None;
    }
    let (mut group, mut world): (Word, Word) = (0, 0);
    let numbers: Vec<c_int> = (0..count).collect();
    let mut found: Vec<c_int> = vec![-1; numbers.len()];
    let has_groups = ask!("PMPI_Comm_group", communicator, (&raw mut group) as Word)
        && ask!("PMPI_Comm_group", abi.world, (&raw mut world) as Word);
    let is_known = has_groups
        && ask!(
            "PMPI_Group_translate_ranks",
            group,
            count as Word,
            numbers.as_ptr() as Word,
            world,
            found.as_mut_ptr() as Word
        );
    ask!("PMPI_Group_free", (&raw mut group) as Word);
    ask!("PMPI_Group_free", (&raw mut world) as Word);
    let are_ours = is_known && found.iter().all(|rank| (0..all).contains(rank));
    are_ours.then_some(Ranks { count: count as u32, me: me as u32 })
}

/// Those of a communicator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ranks {
    /// How many.
    pub count: u32,
    /// This one.
    pub me: u32,
}

/// What stands for this node.
pub(crate) fn node() -> u64 {
    let mut name = [0u8; 256];
    // SAFETY: room for a name, and one byte behind it.
    unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    sum_of(&[&name])
}
