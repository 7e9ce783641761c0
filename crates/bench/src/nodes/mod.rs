//! Several nodes: what a group costs beside one node, and figures 5 and 6 of the Hermes paper with
//! their clients on several nodes.

pub mod budgets;
pub mod fig5;
pub mod fig6;
mod spaces;

pub use spaces::enter;

use crate::Options;
use crate::site::Site;
use spaces::{Spaces, address};
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

/// Where servers listen on a node: nothing else is in the networks of nodes.
const PORT: u16 = 7000;

/// The site, which is on no /dev/shm unless it is asked for: nodes have their own.
fn site(options: &Options) -> Result<Site, String> {
    let folder = options.folder.clone().unwrap_or_else(std::env::temp_dir);
    Site::new(&Options { folder: Some(folder), ..options.clone() })
}

/// Does `make` in the network of each node, and when all are done `body` with what it gave, at the
/// same time; returns what came of it and the nanoseconds of each.
fn on_each<S, T: Send>(
    spaces: &Spaces,
    nodes: std::ops::Range<usize>,
    make: impl Fn(usize) -> Result<S, String> + Sync,
    body: impl Fn(usize, &mut S) -> Result<T, String> + Sync,
) -> Result<Vec<(T, f64)>, String> {
    let start = Barrier::new(nodes.len());
    let work = |node: usize| {
        spaces.within(node, || {
            let made = make(node);
            // Also after an error: the others wait.
            start.wait();
            let mut made = made?;
            let since = Instant::now();
            let done = body(node, &mut made)?;
            Ok((done, since.elapsed().as_nanos() as f64))
        })
    };
    thread::scope(|scope| {
        let threads: Vec<_> = nodes
            .map(|node| {
                let work = &work;
                scope.spawn(move || work(node))
            })
            .collect();
        // A panic is a bug of the bench: let it be seen.
        let end = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(end).collect()
    })
}
