//! Figures 4 to 6 of the Hermes paper: what lies in shared memory, against what does the same
//! elsewhere. One file for each figure.

pub mod fig4;
pub(crate) mod fig5;
pub mod fig6;

use forebay_pool::layout::Geometry;
use forebay_pool::segment::anonymous;
use forebay_pool::{Owner, Segment};
use rustix::fd::OwnedFd;
use std::sync::Barrier;
use std::time::Instant;

/// Threads, or client processes, that work at the same time, as there are cores on the least
/// machine.
const CLIENTS: usize = 2;

/// A segment as a node manager makes it, with this process as a client.
struct Pool {
    segment: Segment,
    slot: u32,
    _file: OwnedFd,
}

impl Pool {
    fn new(geometry: &Geometry) -> Result<Pool, String> {
        let (segment, file) = anonymous(geometry).map_err(|e| format!("making a pool: {e}"))?;
        let slot = segment.clients().claim(std::process::id(), 1).ok_or("no client slot")?;
        Ok(Pool { segment, slot, _file: file })
    }

    /// What a thread stamps on what it holds.
    fn owner(&self, thread: usize) -> Owner {
        Owner::new(self.slot, thread as u32)
    }
}

/// Does `body` in so many threads at the same time; returns nanoseconds of the slowest.
fn together<E: Send>(body: impl Fn(usize) -> Result<(), E> + Sync) -> Result<f64, E> {
    let start = Barrier::new(CLIENTS);
    let timed = |thread: usize| {
        start.wait();
        let since = Instant::now();
        body(thread).map(|()| since.elapsed().as_nanos() as f64)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS)
            .map(|thread| {
                scope.spawn({
                    let timed = &timed;
                    move || timed(thread)
                })
            })
            .collect();
        threads.into_iter().try_fold(0.0, |longest: f64, thread| {
            // A panic is a bug of the bench: let it be seen.
            let took = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok(longest.max(took))
        })
    })
}
