//! Figure 4: operations on memory. Each write of 64 KiB to 2 MiB takes memory for its data, and
//! gives it back when the data are on the disk: here in bursts, as checkpoints come.
//!
//! Hermes' buckets are Forebay's: taken and given back on a real segment, several for a large
//! write. The baselines are allocators, loaded into one small C program. The paper copies the data;
//! but its three million operations of 64 KiB in a second would be 200 GB/s. So both is measured:
//! with the copy, and with one byte written only.

use super::{CLIENTS, Pool, together};
use crate::measured::{Claim, Measured, Unit};
use crate::server;
use crate::site::Site;
use crate::systems::{Allocator, jemalloc, malloc, mimalloc, tcmalloc};
use crate::{Options, Scale};
use forebay_pool::layout::Geometry;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: (&str, &str) = ("allocate", include_str!("../../kernels/allocate.c"));

const FOREBAY: &str = "Forebay buckets";
const ALLOCATORS: [&Allocator; 4] =
    [&malloc::ALLOCATOR, &tcmalloc::ALLOCATOR, &jemalloc::ALLOCATOR, &mimalloc::ALLOCATOR];

const SIZES_KIB: [usize; 4] = [64, 256, 1024, 2048];
const PAGE: u32 = 4096;
const ROUNDS: u32 = 5;

/// Runs the figure.
///
/// # Errors
/// What could not be made or run.
pub fn run(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let site = Site::new(options)?;
    let program = site.compile(PROGRAM.0, PROGRAM.1)?;
    let is_small = options.scale == Scale::Small;
    let rounds = options.rounds.unwrap_or(options.scale.of(ROUNDS, 1)).max(1);
    let title = "Hermes, Figure 4: memory operations, two threads";
    let mut measured = Measured::new("hermes-fig4", title, rounds, is_small);

    let mut found: Vec<(&Allocator, Option<PathBuf>)> = Vec::new();
    for allocator in ALLOCATORS {
        match allocator.find() {
            Ok(library) => found.push((allocator, library)),
            Err(missing) => measured.notes.push(missing),
        }
    }
    // What a thread has on its way to the disk.
    let burst_bytes: usize = options.scale.of(64 << 20, 4 << 20);
    // A small write takes a whole bucket, and a process keeps some at hand.
    let bucket_bytes = PAGE as usize * 64;
    let most = CLIENTS * (burst_bytes / (SIZES_KIB[0] << 10) + 64) * bucket_bytes;
    let pool = Pool::new(&Geometry::for_tiers(PAGE, &[most as u64]))?;
    // As a running program's: every page of the pool is mapped.
    let smallest = SIZES_KIB[0] << 10;
    let burst = burst_bytes / smallest;
    buckets(&pool, smallest, burst, burst, true)?;
    let mut round = 0;
    while measured.next_round(options, &mut round) {
        for copies in [false, true] {
            say(&format!("round {round}{}", if copies { ", with copies" } else { "" }));
            for kib in SIZES_KIB {
                let work = work(kib, copies);
                let bytes = kib << 10;
                let burst = burst_bytes / bytes;
                let operations = burst * options.scale.of(if copies { 32 } else { 256 }, 2);
                let all = (operations * CLIENTS) as f64;
                let ns = buckets(&pool, bytes, operations, burst, copies)?;
                measured.add(&work, FOREBAY, Unit::Rate, all / ns * 1e9);
                for (allocator, library) in &found {
                    let library = library.as_deref();
                    let ns = allocate(
                        &program,
                        allocator,
                        library,
                        [bytes, operations, burst, copies.into()],
                    )?;
                    measured.add(&work, allocator.name, Unit::Rate, all / ns * 1e9);
                }
            }
        }
    }
    for (kib, copies) in SIZES_KIB.into_iter().flat_map(|kib| [(kib, true), (kib, false)]) {
        let work = work(kib, copies);
        for allocator in ALLOCATORS {
            measured.claims.push(Claim {
                paper: allocator.paper,
                ..Claim::ratio(&work, (&work, FOREBAY), (&work, allocator.name), allocator.wanted)
            });
        }
    }
    Ok(measured)
}

fn work(kib: usize, copies: bool) -> String {
    format!("{kib} KiB{}", if copies { ", with copy" } else { "" })
}

fn allocate(
    program: &Path,
    allocator: &Allocator,
    library: Option<&Path>,
    numbers: [usize; 4],
) -> Result<f64, String> {
    let mut command = Command::new(program);
    let name = library.and_then(Path::file_name).map_or("-".into(), |name| name.to_string_lossy());
    command.arg(&*name).args(numbers.map(|number| number.to_string()));
    match library {
        Some(library) => command.env("LD_PRELOAD", library),
        None => command.env_remove("LD_PRELOAD"),
    };
    let printed = server::run(&mut command).map_err(|e| format!("{}: {e}", allocator.name))?;
    printed.trim().parse().map_err(|_| format!("not a number of nanoseconds: {printed:?}"))
}

/// Nanoseconds of taking and giving back what each write needs.
fn buckets(
    pool: &Pool,
    bytes: usize,
    operations: usize,
    burst: usize,
    copies: bool,
) -> Result<f64, String> {
    let segment = &pool.segment;
    let bucket_bytes = segment.bucket_bytes();
    together(|thread| {
        let owner = pool.owner(thread);
        let data = vec![0xa5_u8; bytes];
        let mut held = Vec::with_capacity(burst * bytes.div_ceil(bucket_bytes));
        for operation in 0..operations {
            for part in data.chunks(bucket_bytes) {
                let bucket = segment.take_bucket(owner).ok_or("the pool is empty")?;
                let length = if copies { part.len() } else { 1 };
                // SAFETY: the bucket is this thread's, and as large as a part at least.
                unsafe {
                    part.as_ptr().copy_to_nonoverlapping(segment.bucket_data(bucket), length);
                }
                held.push(bucket);
            }
            if operation % burst == burst - 1 || operation == operations - 1 {
                held.drain(..).for_each(|bucket| segment.free_bucket(bucket));
            }
        }
        Ok::<(), String>(())
    })
}
